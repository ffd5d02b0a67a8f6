//! Satgres

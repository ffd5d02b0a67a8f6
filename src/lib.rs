//! Satgres

pub mod chaingen;

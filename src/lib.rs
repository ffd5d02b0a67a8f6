//! Satgres keeps the whole Bitcoin chain in PostgreSQL.

pub mod network;

//! Satgres keeps the whole Bitcoin chain in PostgreSQL.

pub mod pg;

//! Satgres keeps the whole Bitcoin chain in PostgreSQL.

pub mod chain;
pub mod network;
pub mod prevouts;
pub mod replay;
pub mod rows;
pub mod source;

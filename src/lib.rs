//! Satgres keeps the whole Bitcoin chain in PostgreSQL.

pub mod chain;
pub mod network;
pub mod pg;
pub mod prevouts;
pub mod profile;
pub mod replay;
pub mod rows;
pub mod source;
pub mod verify;

//! Satgres keeps the whole Bitcoin chain in PostgreSQL.

pub mod cli;
pub mod config;
pub mod error;
pub mod logging;
pub mod network;
pub mod pg;
pub mod profile;

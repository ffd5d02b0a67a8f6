//! Satgres keeps the whole Bitcoin chain in PostgreSQL.
//!
//! The data path, in the order in which a block takes it:
//!
//! 1. [`source`] scans the headers of a node's block files, asks the node itself if it may, and chooses the active chain;
//! 2. [`chain`] parses a block and proves its merkle root and witness commitment, on threads;
//! 3. [`prevouts`] finds the output that each input spends, in one ordered stage;
//! 4. [`rows`] encodes the rows of every table, on threads;
//! 5. [`pg`] copies them into segments, restores indexes and constraints, attaches;
//! 6. [`replay`] is the main path that calls all these; [`profile`] tells how long each phase took;
//! 7. [`live`] connects and disconnects single blocks at the tip, in one transaction each;
//! 8. [`verify`] proves that the result is what it should be; [`status`] tells how far all that is.

pub mod cli;
pub mod config;
pub mod error;
pub mod heap;
pub mod logging;
pub mod network;
pub mod patience;
mod percent;
pub mod plan;
mod process;
pub mod resources;
pub mod stop;

pub mod chain;
pub mod follow;
pub mod live;
pub mod pg;
pub mod prevouts;
pub mod profile;
pub mod replay;
pub mod rows;
pub mod service;
pub mod source;
pub mod status;
pub mod verify;

pub mod chaingen;

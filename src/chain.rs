//! Bitcoin without I/O: hashes, headers, blocks, merkle trees.
//!
//! In: bytes of block records. Out: a [`batch::Batch`] of parsed blocks, whose scripts and witnesses stay where they
//! are in the raw bytes. Called by the block file scan and the parse threads; it must never allocate by a length
//! that a record claims.

pub mod batch;
pub mod block;
pub mod cursor;
pub mod difficulty;
pub mod hash;
pub mod header;
pub mod merkle;
pub mod sha256;

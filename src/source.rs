//! Where blocks come from.
//!
//! In: a directory of `blk*.dat` files, the user's nodes, or both. Out: a tree of headers, the active chain in it (most work whose blocks are all
//! there), and the bytes of any block. Memory stays near 90 bytes a header; nothing is read twice that need not be.

pub mod blk;
pub mod p2p;
mod retry;
pub mod scan;
pub mod tree;

pub use blk::{BlockFiles, Location, SourceError};
pub use p2p::{Node, NodeError, NodeOptions, NodeTip};
pub use tree::{ActiveChain, HeaderTree, HeldBlock, ScannedHeaders};

/// Returns the height that a block's coinbase states (BIP34), or `None` where it states none.
fn blk_height(files: &BlockFiles, location: Location) -> Option<u32> {
    let mut block = Vec::new();
    let len = (location.len as usize).min(1 << 16);
    files.open_file(location.file).ok()?.read_to(location.offset, len, &mut block).ok()?;
    let mut cursor = crate::chain::cursor::Cursor::new(&block);
    cursor.take(80).ok()?;
    cursor.compact_size().ok()?;
    cursor.u32().ok()?;
    if cursor.peek() == Some(0) {
        cursor.take(2).ok()?;
    }
    cursor.compact_size().ok()?;
    cursor.take(36).ok()?;
    let (from, len) = cursor.var_bytes().ok()?;
    match cursor.slice(from, from + len) {
        [small @ 0x51..=0x60, ..] => Some(u32::from(small - 0x50)),
        [count @ 1..=4, rest @ ..] if rest.len() >= usize::from(*count) => {
            let digits = &rest[..usize::from(*count)];
            Some(digits.iter().rev().fold(0, |height, &byte| height << 8 | u32::from(byte)))
        }
        _ => None,
    }
}

//! The tip, and what it says about the block after it.
//!
//! In: the last rows of `chain.blocks`. Out: height, hash, work and times, from which the next block's context follows.
//! Called by the connector; never knows more than eleven blocks.

use tokio_postgres::{GenericClient, Row};

use super::LiveError;
use crate::chain::block::BlockContext;
use crate::chain::hash::Hash32;
use crate::chain::header::{HEADER_BYTES, Header, checked_work};
use crate::network::Network;

/// Blocks whose times make the median (`nMedianTimeSpan` in Bitcoin Core's `chain.h`).
const MEDIAN_BLOCKS: usize = 11;

/// The last block, as far as the next one depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Its height.
    pub height: u32,
    /// Its hash, internal byte order.
    pub hash: Hash32,
    /// Work of the chain up to it.
    pub chainwork: u128,
    /// Times of the last blocks, at most eleven, its own last; seconds since 1970.
    times: Vec<u32>,
}

impl Tip {
    /// Reads the block at a height, or the last one.
    ///
    /// # Errors
    /// What the server says; [`LiveError::Empty`] where there is no block.
    pub(super) async fn read(client: &impl GenericClient, height: Option<u32>) -> Result<Tip, LiveError> {
        let sql = "select height, hash, extract(epoch from time)::int8, substr(chainwork, 17) from chain.blocks \
             where height <= $1 order by height desc limit 11";
        let height = height.map_or(i32::MAX, |height| height as i32);
        let rows = client.query(sql, &[&height]).await.map_err(LiveError::server("reading the tip"))?;
        let Some(last) = rows.first() else { return Err(LiveError::Empty) };
        Ok(Tip {
            height: last.get::<_, i32>(0) as u32,
            hash: hash(last, 1),
            chainwork: u128::from_be_bytes(last.get::<_, &[u8]>(3).try_into().unwrap_or_default()),
            times: rows.iter().rev().map(|row| row.get::<_, i64>(2) as u32).collect(),
        })
    }

    /// Returns what the chain says of a block that follows this one, and what the tip is after it.
    ///
    /// # Errors
    /// [`LiveError::Unlinked`] where it does not follow this one, or proves no work.
    pub(super) fn next(&self, header: &[u8], network: Network) -> Result<(BlockContext, Tip), LiveError> {
        let height = self.height + 1;
        let unlinked = |why| LiveError::Unlinked { height, why };
        let bytes: &[u8; HEADER_BYTES] = header
            .get(..HEADER_BYTES)
            .and_then(|it| it.try_into().ok())
            .ok_or_else(|| unlinked("it has no header"))?;
        let (hash, work) =
            checked_work(bytes, network).ok_or_else(|| unlinked("its header proves no work"))?;
        let header = Header::parse(bytes);
        if header.prev_hash != self.hash {
            return Err(unlinked("its header names another block before it"));
        }
        let mut times = self.times.clone();
        if times.len() == MEDIAN_BLOCKS {
            times.remove(0);
        }
        times.push(header.time);
        let mut sorted = times.clone();
        sorted.sort_unstable();
        let context = BlockContext {
            height,
            hash,
            median_time: sorted[sorted.len() / 2],
            chainwork: self.chainwork + work,
            segwit_active: height >= network.segwit_height(),
        };
        Ok((context, Tip { height, hash, chainwork: context.chainwork, times }))
    }
}

/// Returns a hash column.
pub(super) fn hash(row: &Row, column: usize) -> Hash32 {
    row.get::<_, &[u8]>(column).try_into().expect("hash columns hold 32 bytes")
}

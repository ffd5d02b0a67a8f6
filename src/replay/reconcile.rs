//! Brings what the database holds and what the block files say together, before anything is loaded.
//!
//! In: the segments in `ops`, the active chain. Out: a database whose blocks all belong to the active chain. A short reorg is
//! disconnected row by row, in one transaction; of a deep one the segments that it touches are dropped from the top down
//! and loaded again: O(segments), whatever the depth.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Instant;

use futures_util::TryStreamExt as _;
use tokio_postgres::binary_copy::BinaryCopyOutStream;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use tracing::{debug, info, warn};

use super::ReplayError;
use super::reader::Chain;
use crate::chain::hash::{Hash32, reversed_hex, sha256d};
use crate::chain::header::HEADER_BYTES;
use crate::live;
use crate::pg::segments::{self, SegmentRow};
use crate::rows::Table;
use crate::source::{HeldBlock, Location};

/// A reorg of attached segments that is no deeper is disconnected row by row: a live segment's length. A deeper one drops
/// whole segments: deleting a row costs about as much as loading it.
const DISCONNECT_BLOCKS_MAX: u32 = live::SEGMENT_BLOCKS;

/// The last block that readers see.
#[derive(Clone, Debug)]
pub struct Tip {
    /// Its height.
    pub height: u32,
    /// Its hash, internal byte order.
    pub hash: Hash32,
}

fn server(what: &'static str) -> impl Fn(tokio_postgres::Error) -> ReplayError {
    move |source| ReplayError::Server { what, source }
}

/// Drops the segments whose load was interrupted.
///
/// # Errors
/// What the server says.
pub async fn drop_unfinished(client: &mut Client) -> Result<(), ReplayError> {
    let count = segments::drop_unfinished(client).await.map_err(server("dropping unfinished segments"))?;
    if count > 0 {
        info!(count, "dropped segments whose load was interrupted; they are loaded again");
    }
    Ok(())
}

/// Returns the finished segments, by height.
///
/// # Errors
/// What the server says.
pub async fn segments(client: &Client) -> Result<Vec<SegmentRow>, ReplayError> {
    segments::list(client).await.map_err(server("listing segments"))
}

/// Returns the tip that readers see, or `None` in an empty database.
///
/// # Errors
/// What the server says.
pub async fn tip(client: &Client) -> Result<Option<Tip>, ReplayError> {
    let row = client
        .query_opt("select height, hash from chain.blocks order by height desc limit 1", &[])
        .await
        .map_err(server("reading the tip"))?;
    Ok(row.map(|row| Tip { height: row.get::<_, i32>(0) as u32, hash: hash_of(&row, 1) }))
}

/// Returns the blocks that the database holds, by height, those of segments that wait for their indexes too.
///
/// # Errors
/// What the server says.
pub async fn held_blocks(client: &Client) -> Result<Vec<HeldBlock>, ReplayError> {
    let mut held: Vec<HeldBlock> = Vec::new();
    let mut tables = vec!["chain.blocks".to_owned()];
    let waiting = segments(client).await?.into_iter().filter(|segment| !segment.is_attached);
    tables.extend(waiting.map(|segment| segments::partition(Table::Blocks, segment.id)));
    let (mut prev_hash, mut chainwork_before) = ([0; 32], 0);
    for table in tables {
        let statement = format!(
            "copy (select hash, chainwork, extract(epoch from time)::int8, bits from {table} order by height) \
             to stdout (format binary)"
        );
        let what = server("reading the blocks that are held");
        let stream = client.copy_out(&statement).await.map_err(&what)?;
        let types = [Type::BYTEA, Type::BYTEA, Type::INT8, Type::INT8];
        let mut rows = pin!(BinaryCopyOutStream::new(stream, &types));
        while let Some(row) = rows.try_next().await.map_err(&what)? {
            let hash: Hash32 = row.get::<&[u8]>(0).try_into().expect("hash columns hold 32 bytes");
            let chainwork = row.get::<&[u8]>(1).get(16..).and_then(|low| low.try_into().ok());
            let chainwork = chainwork.map_or(0, u128::from_be_bytes);
            let work = chainwork.saturating_sub(chainwork_before);
            let (time, bits) = (row.get::<i64>(2) as u32, row.get::<i64>(3) as u32);
            held.push(HeldBlock { hash, prev_hash, work, time, bits });
            (prev_hash, chainwork_before) = (hash, chainwork);
        }
    }
    Ok(held)
}

/// Returns the hashes of the blocks that were refused.
///
/// # Errors
/// What the server says.
pub async fn invalid_blocks(client: &Client) -> Result<HashSet<Hash32>, ReplayError> {
    let rows = client
        .query("select hash from ops.invalid_blocks", &[])
        .await
        .map_err(server("reading refused blocks"))?;
    Ok(rows.iter().map(|row| hash_of(row, 0)).collect())
}

/// Records a block that breaks a rule.
///
/// # Errors
/// What the server says.
pub async fn record_invalid(
    client: &Client,
    hash: &Hash32,
    height: u32,
    reason: &str,
    file: &str,
    offset: u64,
) -> Result<(), ReplayError> {
    client
        .execute(
            "insert into ops.invalid_blocks (hash, height, reason, file, file_offset) values ($1, $2, $3, $4, $5) \
             on conflict (hash) do nothing",
            &[&hash.as_slice(), &(height as i32), &reason, &file, &(offset as i64)],
        )
        .await
        .map_err(server("recording a refused block"))?;
    Ok(())
}

/// Takes back what is above the last block that the database and the active chain share; returns the segments that stay.
///
/// Few blocks, or those of live segments, are disconnected row by row: nothing that stays in the chain is loaded again. Of
/// many, whole segments are dropped, and those that wait for their indexes always are.
///
/// # Errors
/// What the server says.
pub async fn roll_back_to_fork(client: &mut Client, chain: &Chain) -> Result<Vec<SegmentRow>, ReplayError> {
    let start = Instant::now();
    let mut present = segments(client).await?;
    let old_tip = tip(client).await?;
    let mut stay = present.len();
    while stay > 0 && !holds_active_block(client, chain, &present[stay - 1]).await? {
        stay -= 1;
    }
    let mut dropped = present.split_off(stay);
    let Some(first) = dropped.first() else { return Ok(present) };
    let fork_height = fork_height(client, chain, first).await?;
    let seen = dropped.iter().take_while(|segment| segment.is_attached).count();
    let waiting = dropped.split_off(seen);
    let depth = old_tip.as_ref().map_or(0, |tip| tip.height.saturating_sub(fork_height));
    let in_place = dropped.first().is_some_and(|first| first.height_first <= fork_height)
        && (dropped[0].is_live || depth <= DISCONNECT_BLOCKS_MAX);
    let reloaded = if in_place { waiting.first() } else { dropped.first().or_else(|| waiting.first()) };
    if let (Some(first), Some(last), None) =
        (reloaded, waiting.last().or_else(|| dropped.last()), &chain.node)
    {
        check_loadable(chain, first.height_first, last.height_last)?;
    }
    for segment in waiting.iter().rev() {
        segments::drop_segment(client, segment.id).await.map_err(server("dropping a segment"))?;
    }
    if in_place {
        let transaction = live::begin(client).await?;
        live::disconnect::disconnect(&transaction, fork_height).await?;
        if let Some(old_tip) = old_tip {
            record_reorg(&transaction, chain, &old_tip, fork_height, start).await?;
        }
        transaction.commit().await.map_err(server("disconnecting blocks"))?;
        return segments(client).await;
    }
    live::disconnect::keep_headers(client, fork_height)
        .await
        .map_err(server("keeping disconnected blocks"))?;
    for segment in dropped.iter().rev() {
        segments::drop_segment(client, segment.id).await.map_err(server("dropping a segment"))?;
    }
    if let Some(old_tip) = old_tip {
        record_reorg(client, chain, &old_tip, fork_height, start).await?;
    }
    Ok(present)
}

/// Ends live segments at the tip where blocks above it are to be loaded in bulk.
///
/// # Errors
/// What the server says.
pub async fn make_room(
    client: &mut Client,
    chain: &Chain,
    present: Vec<SegmentRow>,
) -> Result<Vec<SegmentRow>, ReplayError> {
    let is_loading = present.last().is_some_and(|last| last.height_last < chain.active.tip_height());
    if !is_loading || present.last().is_some_and(|last| !last.is_attached) {
        return Ok(present);
    }
    live::segment::close_early(client).await?;
    segments(client).await
}

/// Blocks that only the database holds cannot be loaded again: their segments must not be dropped.
fn check_loadable(chain: &Chain, height_first: u32, reorg_height: u32) -> Result<(), ReplayError> {
    let held = (height_first..=chain.active.tip_height())
        .find(|&height| chain.location(height).file == Location::HELD);
    match held {
        Some(height) => Err(ReplayError::Gone { height, reorg_height }),
        None => Ok(()),
    }
}

/// Returns the height of the last block that both chains share.
async fn fork_height(client: &Client, chain: &Chain, first_dropped: &SegmentRow) -> Result<u32, ReplayError> {
    let rows = client
        .query(
            "select height, hash from chain.blocks where height >= $1 order by height",
            &[&(first_dropped.height_first as i32)],
        )
        .await
        .map_err(server("looking for the fork"))?;
    let shared = rows.iter().take_while(|row| {
        let height = row.get::<_, i32>(0) as u32;
        height <= chain.active.tip_height() && hash_of(row, 1) == chain.hash(height)
    });
    Ok(first_dropped
        .height_first
        .saturating_sub(1)
        .max(shared.last().map_or(0, |row| row.get::<_, i32>(0) as u32)))
}

/// Returns whether the last block of a segment is in the active chain; then so are all before it.
async fn holds_active_block(
    client: &Client,
    chain: &Chain,
    segment: &SegmentRow,
) -> Result<bool, ReplayError> {
    if segment.height_last > chain.active.tip_height() {
        return Ok(false);
    }
    // Rows of a segment that waits for its indexes stand in its own table.
    let table = if segment.is_attached {
        "chain.blocks".to_owned()
    } else {
        segments::partition(Table::Blocks, segment.id)
    };
    let row = client
        .query_opt(&format!("select hash from {table} where height = $1"), &[&(segment.height_last as i32)])
        .await
        .map_err(server("reading the last block of a segment"))?;
    Ok(row.is_some_and(|row| hash_of(&row, 0) == chain.hash(segment.height_last)))
}

async fn record_reorg(
    client: &impl GenericClient,
    chain: &Chain,
    old_tip: &Tip,
    fork_height: u32,
    start: Instant,
) -> Result<(), ReplayError> {
    let new_height = chain.active.tip_height();
    let new_tip = chain.hash(new_height);
    warn!(
        fork_height,
        old_height = old_tip.height,
        old = reversed_hex(&old_tip.hash),
        new_height,
        new = reversed_hex(&new_tip),
        "the active chain has changed: blocks above the fork are replaced"
    );
    client
        .execute(
            "insert into ops.reorgs (fork_height, depth, old_tip, new_tip, seconds) values ($1, $2, $3, $4, $5)",
            &[
                &(fork_height as i32),
                &(old_tip.height.saturating_sub(fork_height) as i32),
                &old_tip.hash.as_slice(),
                &new_tip.as_slice(),
                &start.elapsed().as_secs_f64(),
            ],
        )
        .await
        .map_err(server("recording a reorg"))?;
    Ok(())
}

/// Lists the blocks of other branches in `chain.stale_blocks`, and takes from it what became active.
///
/// # Errors
/// What the server says; files that cannot be read.
pub async fn record_stale_blocks(client: &mut Client, chain: &Chain) -> Result<(), ReplayError> {
    let what = server("listing stale blocks");
    let transaction = client.transaction().await.map_err(&what)?;
    for stale in chain.tree.stale_blocks(&chain.active) {
        // What only the database held was recorded when it was disconnected.
        if stale.location.file == Location::HELD {
            continue;
        }
        let mut header = Vec::with_capacity(HEADER_BYTES);
        let file = chain.files.open_file(stale.location.file);
        match file.and_then(|file| file.read_to(stale.location.offset, HEADER_BYTES, &mut header)) {
            // A file that was removed or rewritten since the scan has other bytes there, or none.
            Err(error) if !error.is_gone() => {
                warn!(%error, hash = reversed_hex(&stale.hash), "a stale block cannot be read, and is not listed");
                continue;
            }
            _ if sha256d(&header) != stale.hash => {
                debug!(hash = reversed_hex(&stale.hash), "a stale block is not in the files any more");
                continue;
            }
            _ => {}
        }
        transaction
            .execute(
                "insert into chain.stale_blocks (hash, height, header) values ($1, $2, $3) \
                 on conflict (hash) do nothing",
                &[&stale.hash.as_slice(), &(stale.height as i32), &header],
            )
            .await
            .map_err(&what)?;
    }
    transaction
        .execute("delete from chain.stale_blocks s using chain.blocks b where b.hash = s.hash", &[])
        .await
        .map_err(&what)?;
    transaction.commit().await.map_err(&what)
}

fn hash_of(row: &tokio_postgres::Row, column: usize) -> Hash32 {
    let bytes: &[u8] = row.get(column);
    bytes.try_into().expect("hash columns hold 32 bytes")
}

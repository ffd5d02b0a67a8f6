//! Writes the rows of one block: the bytes of the replay, by COPY, without FREEZE.
//!
//! In: a resolved batch of one block, its segment, the open transaction. Out: rows of every table, what was overwritten, the
//! segment's counts, the notification. COPY into the partition itself spares the routing of each row; [`crate::live`] has the
//! figures beside INSERT.

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::Transaction;

use super::LiveError;
use super::segment::{self, LiveSegment};
use crate::chain::batch::Batch;
use crate::chain::hash::reversed_hex;
use crate::pg::segments::{Counts, partition};
use crate::rows::{COPY_HEADER, COPY_TRAILER, Encoded, Table};

/// Largest piece handed to the connection at once, bytes.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The channel on which connected blocks are told.
pub const BLOCK_CHANNEL: &str = "satgres_block";
/// The channel on which reorganisations are told.
pub const REORG_CHANNEL: &str = "satgres_reorg";

/// Writes everything about a block.
///
/// # Errors
/// What the server says.
pub(super) async fn block(
    transaction: &Transaction<'_>,
    segment: &LiveSegment,
    batch: &Batch,
    rows: Encoded,
) -> Result<Counts, LiveError> {
    let block = &batch.blocks[0];
    for (table, rows) in Table::ALL.into_iter().zip(rows.buffers) {
        copy(transaction, table, segment, rows).await.map_err(LiveError::server("copying rows"))?;
    }
    for it in &batch.overwritten {
        transaction
            .execute(
                "insert into chain.overwritten (tx_num, vout, by_tx_num) values ($1, $2, $3)",
                &[&it.tx_num, &(it.vout as i32), &it.by_tx_num],
            )
            .await
            .map_err(LiveError::server("noting an overwritten output"))?;
    }
    let counts = Counts {
        txs: batch.txs.len() as u64,
        inputs: batch.inputs.len() as u64,
        outputs: batch.outputs.len() as u64,
        block_bytes: batch.raw.len() as u64,
    };
    segment::count(transaction, segment, block.height, &counts).await?;
    transaction
        .execute("delete from chain.stale_blocks where hash = $1", &[&block.hash.as_slice()])
        .await
        .map_err(LiveError::server("listing stale blocks"))?;
    let payload = serde_json::json!({ "height": block.height, "hash": reversed_hex(&block.hash) });
    notify(transaction, BLOCK_CHANNEL, &payload).await?;
    Ok(counts)
}

/// Tells listeners something once the transaction has committed (PostgreSQL manual, NOTIFY).
///
/// # Errors
/// What the server says.
pub(super) async fn notify(
    transaction: &Transaction<'_>,
    channel: &str,
    payload: &serde_json::Value,
) -> Result<(), LiveError> {
    transaction
        .execute("select pg_notify($1, $2)", &[&channel, &payload.to_string()])
        .await
        .map_err(LiveError::server("telling listeners"))?;
    Ok(())
}

async fn copy(
    transaction: &Transaction<'_>,
    table: Table,
    segment: &LiveSegment,
    rows: Vec<u8>,
) -> Result<(), tokio_postgres::Error> {
    let name = if table == Table::Blocks { "chain.blocks".to_owned() } else { partition(table, segment.id) };
    let statement = format!("copy {name} ({}) from stdin with (format binary)", table.columns().join(", "));
    let mut sink = std::pin::pin!(transaction.copy_in::<_, Bytes>(&statement).await?);
    let mut sent = sink.feed(Bytes::from_static(&COPY_HEADER)).await;
    let mut rows = Bytes::from(rows);
    while sent.is_ok() && !rows.is_empty() {
        sent = sink.feed(rows.split_to(rows.len().min(PIECE_BYTES_MAX))).await;
    }
    if sent.is_ok() {
        sent = sink.feed(Bytes::from_static(&COPY_TRAILER)).await;
    }
    // Whatever went wrong while sending, only the end of the stream tells the server's own reason.
    sink.as_mut().finish().await?;
    sent
}

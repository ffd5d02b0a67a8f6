//! Loads segments: rows from the pipeline go out through one COPY a table.
//!
//! In: segments and the UTXO set before their first block. Out: segments marked `loaded`, each handed on for its
//! indexes. One segment is open at a time, so that a kill never costs more than one. Where the pipeline is closed early, the
//! open segment ends at the last block that it gave, and its tables get the bounds that they really have.

use std::sync::Arc;

use deadpool_postgres::Pool;
use tokio::sync::mpsc;

use super::pipeline::{EncodedBatch, Item, Pipeline, PipelineError, SegmentEnd};
use super::progress::{Counted, Progress};
use super::schedule::Segment;
use crate::chain::batch::Overwritten;
use crate::pg::copy::{CopyError, TableCopy};
use crate::pg::pool;
use crate::pg::segments::{self, Counts, SegmentRow};
use crate::prevouts::UtxoFigures;
use crate::profile::{Figures, Profile};
use crate::rows::Table;

/// Why loading ended early. Segments that are loaded stay; the open one is dropped by the next start.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A block could not be taken: what follows depends on which and why.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A table could not be filled.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Restoring failed meanwhile: that failure is told.
    #[error("given up")]
    GivenUp,
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// The server refused or went away.
    #[error("{what}")]
    Server {
        /// What was being done.
        what: String,
        /// What the server said.
        source: tokio_postgres::Error,
    },
}

/// Loads the segments, in order, from a running pipeline; fewer where the pipeline is closed early. Returns the last
/// height that was loaded.
///
/// # Errors
/// The first failure in chain order.
pub async fn load_segments(
    pool: &Pool,
    pipeline: &mut Pipeline,
    segments: &[Segment],
    loaded: &mpsc::UnboundedSender<SegmentRow>,
    profile: &Profile,
    progress: &Arc<Progress>,
) -> Result<Option<u32>, LoadError> {
    let mut height_last = None;
    for segment in segments {
        // A pipeline that was closed early may have nothing for it.
        if !pipeline.has_next().await? {
            return if pipeline.is_closing() { Ok(height_last) } else { Err(PipelineError::Broken.into()) };
        }
        let phase = profile.phase();
        let (row, utxos) = load_segment(pool, pipeline, segment, progress).await?;
        pipeline.confirm(row.height_last);
        progress.committed(row.height_last);
        profile.step_done();
        height_last = Some(row.height_last);
        let figures = Figures {
            height: Some(row.height_last),
            blocks: Some(u64::from(row.height_last - row.height_first) + 1),
            rows: Some(row.counts.txs + row.counts.inputs + row.counts.outputs),
            bytes: Some(row.counts.block_bytes),
            cache_hit_ratio: utxos.hit_ratio(),
            detail: Some(detail(&utxos)),
        };
        let client = pool.get().await.map_err(pool::Error::from)?;
        profile.ended(&phase, &format!("Loaded segment {}", segment.id), figures).record(&client).await;
        // Nobody listens any more only when restoring has ended, and then that is told.
        let _ = loaded.send(row);
    }
    Ok(height_last)
}

async fn load_segment(
    pool: &Pool,
    pipeline: &mut Pipeline,
    segment: &Segment,
    progress: &Progress,
) -> Result<(SegmentRow, UtxoFigures), LoadError> {
    let mut client = pool.get().await.map_err(pool::Error::from)?;
    let server = |source| LoadError::Server { what: format!("recording segment {}", segment.id), source };
    segments::begin(&client, segment).await.map_err(server)?;
    let copies = Table::ALL.map(|table| TableCopy::begin(pool, table, segment));
    let copies = futures_util::future::try_join_all(copies).await?;

    let streamed = stream(pipeline, segment, &copies, progress).await?;

    // First every stream ends, then every table commits: a failure in one leaves none behind in most cases, and the
    // segment counts only once all are in.
    let mut filled = Vec::with_capacity(copies.len());
    for copy in copies {
        filled.push(copy.finish().await?);
    }
    let Some(Streamed { counts, overwritten, end }) = streamed else {
        // A stream that broke is an error of its `finish`.
        return Err(PipelineError::Broken.into());
    };
    let heights = *segment.heights.start()..=end.height_last;
    let is_early = heights != segment.heights;
    let segment = &Segment { heights, ..segment.clone() };
    let commits = filled.iter().zip(Table::ALL).map(|(client, table)| async move {
        let rebound = segments::rebound_sql(table, segment).filter(|_| is_early);
        client.batch_execute(&format!("{}; commit", rebound.unwrap_or_default())).await
    });
    futures_util::future::try_join_all(commits)
        .await
        .map_err(|source| LoadError::Server { what: format!("committing segment {}", segment.id), source })?;
    segments::mark_loaded(&mut client, segment, &counts, &overwritten).await.map_err(server)?;
    let row = SegmentRow {
        id: segment.id,
        height_first: *segment.heights.start(),
        height_last: *segment.heights.end(),
        is_attached: false,
        is_live: false,
        counts,
    };
    Ok((row, end.figures))
}

/// Returns what the UTXO set did, for `ops.phases.detail`.
fn detail(utxos: &UtxoFigures) -> serde_json::Value {
    serde_json::json!({
        "prevouts": utxos.inputs,
        "prevouts_waited": utxos.waited,
        "utxo_settlements": utxos.settlements,
        "utxo_settlement_seconds": utxos.settling.as_secs_f64(),
        "utxo_evicted": utxos.evicted,
        "utxo_written_bytes": utxos.written_bytes,
        "utxo_read_bytes": utxos.read_bytes,
        "utxo_cache_coins": utxos.cache_coins,
        "utxo_cache_bytes": utxos.cache_bytes,
        "utxo_runs": utxos.runs,
        "utxo_run_coins": utxos.run_coins,
    })
}

/// What a segment's tables were given.
struct Streamed {
    counts: Counts,
    overwritten: Vec<Overwritten>,
    end: SegmentEnd,
}

/// Sends every batch of the segment to its tables, and every row that waited. Returns `None` where a stream broke.
async fn stream(
    pipeline: &mut Pipeline,
    segment: &Segment,
    copies: &[TableCopy],
    progress: &Progress,
) -> Result<Option<Streamed>, LoadError> {
    let mut counts = Counts::default();
    let mut overwritten = Vec::new();
    let mut height_due = *segment.heights.start();
    loop {
        let (rows, batch) = match pipeline.next().await?.ok_or(PipelineError::Broken)? {
            Item::SegmentEnd(mut end) => {
                assert_eq!(height_due, end.height_last + 1, "the segment is complete");
                assert!(
                    end.height_last == *segment.heights.end() || pipeline.is_closing(),
                    "it ends in time"
                );
                overwritten.append(&mut end.overwritten);
                return Ok(Some(Streamed { counts, overwritten, end }));
            }
            Item::Late(rows) => (rows, None),
            Item::Batch(mut batch) => (std::mem::take(&mut batch.rows), Some(batch)),
        };
        for (copy, rows) in copies.iter().zip(rows) {
            if !copy.send(rows).await {
                // The stream broke: `finish` will say why.
                return Ok(None);
            }
        }
        let Some(batch) = batch else { continue };
        let EncodedBatch { plan, tx_count, input_count, output_count, block_bytes, .. } = batch;
        assert_eq!(*plan.heights.start(), height_due, "batches follow each other: {plan:?}");
        height_due = plan.heights.end() + 1;
        counts.txs += tx_count;
        counts.inputs += input_count;
        counts.outputs += output_count;
        counts.block_bytes += block_bytes;
        overwritten.extend(batch.overwritten);
        let counted = Counted {
            blocks: plan.heights.count() as u64,
            txs: tx_count,
            inputs: input_count,
            outputs: output_count,
            bytes: block_bytes,
        };
        progress.loaded(height_due - 1, &counted);
    }
}

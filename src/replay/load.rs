//! Loads segments: rows from the pipeline go out through one COPY a table.
//!
//! In: segments and the UTXO set before their first block. Out: segments marked `loaded`, each handed on for its
//! indexes. A kill never costs more than one segment: the next is recorded when the one before counts, and what was sent of
//! it before that has not committed. Where the pipeline is closed early, the open segment ends at the last block that it
//! gave, and its tables get the bounds that they really have.

use deadpool_postgres::Pool;
use tokio::sync::{mpsc, oneshot};

use super::pipeline::{Confirmer, EncodedBatch, Item, Pipeline, PipelineError, SegmentEnd};
use super::progress::{Counted, Progress};
use super::schedule::Segment;
use crate::chain::batch::Overwritten;
use crate::pg::copy::{CopyError, TableCopy};
use crate::pg::pool;
use crate::pg::segments::{self, Counts, SegmentRow};
use crate::prevouts::UtxoFigures;
use crate::profile::{Figures, Phase, Profile};
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
    progress: &Progress,
) -> Result<Option<u32>, LoadError> {
    let copies = Table::ALL.map(|table| TableCopy::open(pool, table));
    let copies = futures_util::future::try_join_all(copies).await?;
    let loader = Loader { pool, confirmer: pipeline.confirmer(), loaded, profile, progress };
    let loaded = loader.load(pipeline, segments, &copies).await;
    let closed = futures_util::future::join_all(copies.into_iter().map(TableCopy::close)).await;
    match (loaded, closed.into_iter().find_map(Result::err)) {
        (Err(LoadError::Pipeline(PipelineError::Broken)), Some(why)) => Err(why.into()),
        (loaded, _) => loaded,
    }
}

/// What every segment needs.
struct Loader<'a> {
    pool: &'a Pool,
    confirmer: Confirmer,
    loaded: &'a mpsc::UnboundedSender<SegmentRow>,
    profile: &'a Profile,
    progress: &'a Progress,
}

/// A segment whose rows are all on their way.
struct Filled {
    phase: Phase,
    streamed: Streamed,
}

/// A segment whose tables commit.
struct Committing {
    /// With the heights that it really has.
    segment: Segment,
    filled: Filled,
    tables: Vec<oneshot::Receiver<()>>,
}

impl Loader<'_> {
    /// Fills one segment after the other. While the tables of one still commit, rows of the next are on their way; the
    /// next is recorded only once the one before counts, so a kill finds one that has begun, or none.
    async fn load(
        &self,
        pipeline: &mut Pipeline,
        segments: &[Segment],
        copies: &[TableCopy],
    ) -> Result<Option<u32>, LoadError> {
        let mut before = None;
        for segment in segments {
            let (begin, is_begun) = oneshot::channel();
            let earlier = before.take();
            let recording = async {
                let height_last = self.end(earlier).await?;
                if is_begun.await.is_ok() {
                    let client = self.pool.get().await.map_err(pool::Error::from)?;
                    segments::begin(&client, segment).await.map_err(server("recording", segment))?;
                }
                Ok::<_, LoadError>(height_last)
            };
            // If both fail, the earlier segment comes first.
            let filling = async { Ok(self.fill(pipeline, segment, copies, begin).await) };
            let (height_last, filled) = futures_util::future::try_join(recording, filling).await?;
            let Some(filled) = filled? else { return Ok(height_last) };
            before = Some(commit(segment, filled, copies).await);
        }
        self.end(before).await
    }

    /// Sends all rows of a segment; says when it has begun. Returns `None` where a pipeline that was closed early has
    /// nothing for it.
    async fn fill(
        &self,
        pipeline: &mut Pipeline,
        segment: &Segment,
        copies: &[TableCopy],
        begin: oneshot::Sender<()>,
    ) -> Result<Option<Filled>, LoadError> {
        if !pipeline.has_next().await? {
            return if pipeline.is_closing() { Ok(None) } else { Err(PipelineError::Broken.into()) };
        }
        // Nobody hears it any more when the segment before has failed.
        let _ = begin.send(());
        let phase = self.profile.phase();
        for copy in copies {
            if !copy.begin(segment).await {
                return Err(PipelineError::Broken.into());
            }
        }
        let streamed = stream(pipeline, segment, copies, self.progress).await?;
        Ok(Some(Filled { phase, streamed }))
    }

    /// Waits until the tables of a segment have committed, then makes it count. Returns its last height.
    async fn end(&self, committing: Option<Committing>) -> Result<Option<u32>, LoadError> {
        let Some(Committing { segment, filled: Filled { phase, streamed }, tables }) = committing else {
            return Ok(None);
        };
        for table in tables {
            table.await.map_err(|_| PipelineError::Broken)?;
        }
        let mut client = self.pool.get().await.map_err(pool::Error::from)?;
        let Streamed { counts, overwritten, end } = streamed;
        segments::mark_loaded(&mut client, &segment, &counts, &overwritten)
            .await
            .map_err(server("recording", &segment))?;
        let (height_first, height_last) = (*segment.heights.start(), *segment.heights.end());
        self.confirmer.confirm(height_last);
        self.progress.committed(height_last);
        self.profile.step_done();
        let figures = Figures {
            height: Some(height_last),
            blocks: Some(u64::from(height_last - height_first) + 1),
            rows: Some(counts.txs + counts.inputs + counts.outputs),
            bytes: Some(counts.block_bytes),
            cache_hit_ratio: end.figures.hit_ratio(),
            detail: Some(detail(&end.figures)),
        };
        let text = format!("Loaded segment {}", segment.id);
        self.profile.ended(&phase, &text, figures).record(&client).await;
        let row = SegmentRow {
            id: segment.id,
            height_first,
            height_last,
            is_attached: false,
            is_live: false,
            counts,
        };
        // Nobody listens any more only when restoring has ended, and then that is told.
        let _ = self.loaded.send(row);
        Ok(Some(height_last))
    }
}

/// Lets each table of a segment commit as its stream ends. One that fails leaves the others behind, for the next start
/// to drop: the segment counts only once all are in.
async fn commit(segment: &Segment, filled: Filled, copies: &[TableCopy]) -> Committing {
    let heights = *segment.heights.start()..=filled.streamed.end.height_last;
    let is_early = heights != segment.heights;
    let segment = Segment { heights, ..segment.clone() };
    let mut tables = Vec::with_capacity(copies.len());
    for copy in copies {
        tables.push(copy.commit(&segment, is_early).await);
    }
    Committing { segment, filled, tables }
}

fn server(doing: &str, segment: &Segment) -> impl FnOnce(tokio_postgres::Error) -> LoadError {
    let what = format!("{doing} segment {}", segment.id);
    move |source| LoadError::Server { what, source }
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

/// Sends every batch of the segment to its tables, and every row that waited.
async fn stream(
    pipeline: &mut Pipeline,
    segment: &Segment,
    copies: &[TableCopy],
    progress: &Progress,
) -> Result<Streamed, LoadError> {
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
                return Ok(Streamed { counts, overwritten, end });
            }
            Item::Late(rows) => (rows, None),
            Item::Batch(mut batch) => (std::mem::take(&mut batch.rows), Some(batch)),
        };
        for (copy, rows) in copies.iter().zip(rows) {
            if !copy.send(rows).await {
                // When it is closed, it says why.
                return Err(PipelineError::Broken.into());
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

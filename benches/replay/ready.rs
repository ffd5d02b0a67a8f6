//! The rows that the floor sends: made beforehand by the product's own pipeline, kept in memory.

use std::sync::Arc;

use bytes::Bytes;
use satgres::chain::batch::Overwritten;
use satgres::pg::segments::Counts;
use satgres::prevouts::{FingerprintKey, UtxoOptions, UtxoSet};
use satgres::replay::pipeline::{Item, Pipeline, PipelineOptions};
use satgres::replay::progress::Progress;
use satgres::replay::schedule::{self, Segment};
use satgres::replay::{ReplayOptions, found};
use satgres::rows::Table;

/// The rows of one segment.
#[derive(Clone, Debug)]
pub struct ReadySegment {
    pub segment: Segment,
    pub counts: Counts,
    pub overwritten: Vec<Overwritten>,
    /// Pieces of each table, in the order of `Table::ALL`, without the stream's header and trailer.
    pub rows: [Vec<Bytes>; 4],
}

/// The rows of a chain.
#[derive(Clone, Debug)]
pub struct ReadyRows {
    pub segments: Vec<ReadySegment>,
}

impl ReadyRows {
    /// Makes the rows; nothing is sent anywhere.
    pub async fn make(options: &ReplayOptions) -> anyhow::Result<ReadyRows> {
        let chain = Arc::new(found::scan(options).await?.into_chain()?);
        let segments =
            schedule::segments(0..=chain.active.tip_height(), 0, options.segment_bytes, |height| {
                chain.block_bytes(height)
            });
        let folder = tempfile::tempdir()?;
        let utxos = UtxoOptions { dir: folder.path().into(), cache_bytes_max: None, ..options.utxos.clone() };
        let pipeline_options = PipelineOptions {
            threads: options.threads,
            batch_bytes: options.batch_bytes,
            pipeline_bytes: options.pipeline_bytes,
            store: options.store,
            network: options.network,
            progress: Progress::new(0, chain.active.tip_height(), 0),
        };
        let set = UtxoSet::new(utxos, FingerprintKey::random()?);
        let mut pipeline = Pipeline::start(&chain, segments.clone(), set, &pipeline_options);
        let mut ready = Vec::new();
        for segment in segments {
            let (mut counts, mut overwritten, mut rows) =
                (Counts::default(), Vec::new(), <[Vec<Bytes>; 4]>::default());
            loop {
                // The pipeline lends its buffers; what is kept must be copied.
                match pipeline.next().await?.expect("the segment has an end") {
                    Item::SegmentEnd(end) => {
                        overwritten.extend(end.overwritten);
                        pipeline.confirmer().confirm(*segment.heights.end());
                        break;
                    }
                    Item::Late(late) => keep(&mut rows, &late),
                    Item::Batch(batch) => {
                        keep(&mut rows, &batch.rows);
                        counts.txs += batch.tx_count;
                        counts.inputs += batch.input_count;
                        counts.outputs += batch.output_count;
                        counts.block_bytes += batch.block_bytes;
                        overwritten.extend(batch.overwritten);
                    }
                }
            }
            ready.push(ReadySegment { segment, counts, overwritten, rows });
        }
        tokio::task::spawn_blocking(move || pipeline.finish()).await??;
        Ok(ReadyRows { segments: ready })
    }

    /// Returns the same rows as one segment.
    pub fn as_one_segment(&self) -> ReadyRows {
        let mut all = self.segments.iter();
        let mut whole = all.next().expect("a chain has a genesis block").clone();
        for next in all {
            whole.segment.heights = *whole.segment.heights.start()..=*next.segment.heights.end();
            whole.segment.block_bytes += next.segment.block_bytes;
            whole.counts.txs += next.counts.txs;
            whole.counts.inputs += next.counts.inputs;
            whole.counts.outputs += next.counts.outputs;
            whole.counts.block_bytes += next.counts.block_bytes;
            whole.overwritten.extend(&next.overwritten);
            for (rows, more) in whole.rows.iter_mut().zip(&next.rows) {
                rows.extend(more.iter().cloned());
            }
        }
        ReadyRows { segments: vec![whole] }
    }

    pub fn bytes(&self, table: Table) -> usize {
        let at = Table::ALL.iter().position(|it| *it == table).expect("one of all");
        self.segments.iter().flat_map(|segment| &segment.rows[at]).map(Bytes::len).sum()
    }

    /// Returns the number of rows of the partitioned tables.
    pub fn row_count(&self) -> u64 {
        self.segments.iter().map(|it| it.counts.txs + it.counts.inputs + it.counts.outputs).sum()
    }

    pub fn tx_count(&self) -> u64 {
        self.segments.iter().map(|it| it.counts.txs).sum()
    }
}

fn keep(rows: &mut [Vec<Bytes>; 4], lent: &[Bytes; 4]) {
    for (kept, lent) in rows.iter_mut().zip(lent) {
        if !lent.is_empty() {
            kept.push(Bytes::copy_from_slice(lent));
        }
    }
}

//! The one ordered stage: batches enter as they are parsed, and leave resolved in chain order.
//!
//! In: parsed batches in any order, the UTXO set. Out: resolved batches for the encoders; completed late rows and the
//! end of each segment straight for the loader, all numbered in one order. At each segment's end everything that waits
//! is settled and the set is checkpointed. Ends at the first failure in chain order, and keeps it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use tokio::sync::mpsc;
use tracing::info;

use super::buffers::BufferPool;
use super::gate::Gate;
use super::late::LateRows;
use super::pipeline::{InFlight, Item, Numbered, PipelineError, SegmentEnd};
use super::progress::Progress;
use super::reader::ReadError;
use crate::chain::batch::Overwritten;
use crate::chain::hash::Hash32;
use crate::network::Network;
use crate::prevouts::{ConnectError, UtxoFigures, UtxoSet, resolve_batch};
use crate::rows::Encoded;

/// Checkpoints on disk at most: the resolver waits for the database rather than run further ahead.
const CHECKPOINTS_MAX: usize = 3;

/// How far the database has got, for the resolver that runs ahead of it.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    state: Mutex<(Option<u32>, bool)>,
    changed: Condvar,
}

impl Confirmed {
    /// The database holds every block up to `height` for good.
    pub(super) fn set(&self, height: u32) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(height);
        self.changed.notify_all();
    }

    /// Nothing more will be confirmed: nobody waits any more.
    pub(super) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// Returns the height confirmed last, and whether it is the last ever.
    fn get(&self) -> (Option<u32>, bool) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until more than `height` is confirmed, or nothing more will be.
    fn wait_beyond(&self, height: Option<u32>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.0 <= height && !state.1 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The stage and what it is connected to.
pub(super) struct Resolver {
    pub(super) set: UtxoSet,
    pub(super) network: Network,
    /// Last height of each segment.
    pub(super) segment_ends: Vec<u32>,
    pub(super) late: LateRows,
    pub(super) late_gate: Arc<Gate>,
    pub(super) pools: [BufferPool; 4],
    pub(super) resolved: Sender<InFlight>,
    pub(super) loader: mpsc::Sender<Numbered>,
    pub(super) confirmed: Arc<Confirmed>,
    pub(super) progress: Arc<Progress>,
    pub(super) overwritten: Vec<Overwritten>,
    /// Number of the next item for the loader.
    pub(super) order: u64,
    /// Set when the batches end before their time, because somebody wants the open segment closed.
    pub(super) closing: Arc<AtomicBool>,
    /// The last block of the open segment that was resolved; `None` between two segments.
    pub(super) open: Option<(u32, Hash32)>,
}

impl Resolver {
    /// Runs until the batches or their takers end; returns the set. What went wrong is told in `failure` before the
    /// channels close, as that is when the loader looks there.
    pub(super) fn run(
        mut self,
        parsed: &Receiver<Result<InFlight, (u64, ReadError)>>,
        failure: &Mutex<Option<PipelineError>>,
    ) -> UtxoSet {
        let mut waiting = BTreeMap::new();
        let mut due = 0;
        for result in parsed {
            let seq = result.as_ref().map_or_else(|(seq, _)| *seq, |in_flight| in_flight.plan.seq);
            waiting.insert(seq, result);
            while let Some(result) = waiting.remove(&due) {
                due += 1;
                let outcome = match result {
                    Ok(in_flight) => self.resolve(in_flight),
                    Err((_, error)) => Err(self.first_failure(error)),
                };
                if !tell(outcome, failure) {
                    return self.set;
                }
            }
        }
        if self.closing.load(Ordering::Relaxed)
            && let Some((height, hash)) = self.open
        {
            let closed = self.settle().and_then(|()| self.end_segment(height, &hash));
            tell(closed, failure);
        }
        self.set
    }

    fn resolve(&mut self, mut in_flight: InFlight) -> Result<(), PipelineError> {
        resolve_batch(&mut in_flight.batch, &mut self.set, self.network)?;
        if self.set.is_waiting() {
            self.late.spill(&in_flight.batch)?;
        }
        let height_last = *in_flight.plan.heights.end();
        let is_segment_end = self.segment_ends[in_flight.plan.segment] == height_last;
        let hash_last = in_flight.batch.blocks.last().map(|block| block.hash);
        in_flight.order = self.next_order();
        self.open = hash_last.filter(|_| !is_segment_end).map(|hash| (height_last, hash));
        self.resolved.send(in_flight).map_err(|_| PipelineError::Stopped)?;
        if is_segment_end || self.set.is_settlement_due(self.late.spilled_bytes()) {
            self.settle()?;
        }
        self.progress.resolved(self.set.gauges());
        match hash_last {
            Some(hash) if is_segment_end => self.end_segment(height_last, &hash),
            _ => Ok(()),
        }
    }

    /// Completes what waits and sends it to the loader.
    fn settle(&mut self) -> Result<(), PipelineError> {
        let Resolver { set, late, late_gate, pools, loader, overwritten, order, .. } = self;
        let empty = || Encoded { buffers: std::array::from_fn(|table| pools[table].take()) };
        late.complete(set, overwritten, empty, |Encoded { buffers }| {
            let bytes = buffers.iter().map(Vec::len).sum::<usize>() as u64;
            if bytes == 0 {
                return Ok(());
            }
            let permit = Arc::new(late_gate.enter(bytes).ok_or(PipelineError::Stopped)?);
            let mut pools = pools.iter();
            let rows = buffers.map(|rows| pools.next().expect("four pools").lend(rows, Arc::clone(&permit)));
            let item = Numbered { order: *order, item: Item::Late(rows) };
            *order += 1;
            loader.blocking_send(item).map_err(|_| PipelineError::Stopped)
        })
    }

    /// Tells the loader that a segment is complete, then checkpoints the set.
    fn end_segment(&mut self, height: u32, hash: &Hash32) -> Result<(), PipelineError> {
        let figures = self.set.take_figures();
        log_figures(height, &figures);
        let end =
            SegmentEnd { height_last: height, overwritten: std::mem::take(&mut self.overwritten), figures };
        let item = Numbered { order: self.next_order(), item: Item::SegmentEnd(end) };
        self.loader.blocking_send(item).map_err(|_| PipelineError::Stopped)?;
        loop {
            let (confirmed, is_closed) = self.confirmed.get();
            if let Some(confirmed) = confirmed {
                self.set.forget_before(confirmed)?;
            }
            if self.set.checkpoint_count() < CHECKPOINTS_MAX {
                break;
            }
            if is_closed {
                return Err(PipelineError::Stopped);
            }
            self.confirmed.wait_beyond(confirmed);
        }
        Ok(self.set.checkpoint(height, hash)?)
    }

    /// A block could not be read; a spend that waits may have broken a rule before it.
    fn first_failure(&mut self, error: ReadError) -> PipelineError {
        match self.set.settle(&mut Vec::new(), |_| Ok::<_, ConnectError>(())) {
            Err(earlier) => earlier.into(),
            Ok(()) => error.into(),
        }
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order - 1
    }
}

/// Keeps a failure for the loader, unless it is that the loader has gone; returns whether there was none.
fn tell(outcome: Result<(), PipelineError>, failure: &Mutex<Option<PipelineError>>) -> bool {
    match outcome {
        Ok(()) => return true,
        Err(PipelineError::Stopped) => {}
        Err(error) => *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error),
    }
    false
}

fn log_figures(height: u32, figures: &UtxoFigures) {
    info!(
        height,
        hit_ratio = figures.hit_ratio(),
        waited = figures.waited,
        settlements = figures.settlements,
        evicted = figures.evicted,
        written_bytes = figures.written_bytes,
        read_bytes = figures.read_bytes,
        cache_coins = figures.cache_coins,
        cache_bytes = figures.cache_bytes,
        runs = figures.runs,
        run_coins = figures.run_coins,
        "UTXO set at a segment's end"
    );
}

//! The pipeline's threads: read and parse, resolve in order, encode.
//!
//! In: the batches of the segments to load. Out: encoded rows, batch by batch but in any order of batches, on a bounded
//! channel for the writer; between them late rows and the segments' ends. Everything in flight is paid for at the gate, in chain order, so that the oldest batch can
//! always go on. The first failure in chain order ends the pipeline and is what the writer is told. Closed early, it gives what
//! was read and ends the open segment there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use tokio::sync::mpsc;

use super::buffers::BufferPool;
use super::gate::{Gate, Permit};
use super::late::LateRows;
use super::progress::Progress;
use super::reader::{BatchReader, Chain, ReadError};
use super::resolver::{Confirmed, Resolver};
use super::schedule::{BatchPlan, Batches, Segment};
use crate::chain::batch::{Batch, Overwritten};
use crate::network::Network;
use crate::prevouts::{CoinFileError, ConnectError, ResolveError, UtxoFigures, UtxoSet};
use crate::rows::{Encoded, Store, encode_batch};

/// Memory that a batch needs for each byte of its blocks: the bytes, the facts parsed from them, the encoded rows.
const BYTES_PER_BLOCK_BYTE: u64 = 5;

/// Most bytes of completed late rows on their way to the server, of those in flight.
const LATE_BYTES_MAX: u64 = 16 << 20;

/// What the pipeline is run with.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// Parse threads; half as many encode.
    pub threads: usize,
    /// About how many bytes of blocks make a batch.
    pub batch_bytes: u64,
    /// Most bytes in flight.
    pub pipeline_bytes: u64,
    /// What is stored of what could be left out.
    pub store: Store,
    /// The network, for its rules.
    pub network: Network,
    /// Where the resolver tells how the UTXO set stands.
    pub progress: Arc<Progress>,
}

/// Why the pipeline ended early.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// A block could not be read, or is damaged or invalid by itself.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A block breaks a rule in the light of the chain before it.
    #[error("invalid block at height {}: {}", .0.height, .0)]
    Resolve(ResolveError),
    /// The files of the UTXO set failed.
    #[error(transparent)]
    CoinFiles(#[from] CoinFileError),
    /// Nobody takes the rows any more: whoever stopped knows why.
    #[error("stopped")]
    Stopped,
    /// A thread ended without saying why: a defect.
    #[error("a pipeline thread ended without a result")]
    Broken,
}

impl From<ResolveError> for PipelineError {
    fn from(error: ResolveError) -> Self {
        PipelineError::Resolve(error)
    }
}

impl From<ConnectError> for PipelineError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Broken(error) => PipelineError::Resolve(error),
            ConnectError::Files(error) => PipelineError::CoinFiles(error),
        }
    }
}

/// The encoded rows of one batch.
#[derive(Debug)]
pub struct EncodedBatch {
    /// What the batch holds.
    pub plan: BatchPlan,
    /// Rows of each table, in the order of `Table::ALL`.
    pub rows: [Bytes; 4],
    /// Transactions in it.
    pub tx_count: u64,
    /// Inputs in it.
    pub input_count: u64,
    /// Outputs in it.
    pub output_count: u64,
    /// Bytes of its blocks.
    pub block_bytes: u64,
    /// Outputs that its twins overwrote.
    pub overwritten: Vec<Overwritten>,
}

/// What the loader takes, in order.
#[derive(Debug)]
pub enum Item {
    /// Rows of a batch, but for those that wait.
    Batch(EncodedBatch),
    /// Rows that waited, of each table in the order of `Table::ALL`.
    Late([Bytes; 4]),
    /// Nothing more of the segment follows.
    SegmentEnd(SegmentEnd),
}

/// What is known once a segment is complete.
#[derive(Debug)]
pub struct SegmentEnd {
    /// Its last height: the planned one, or an earlier one where the pipeline was closed early.
    pub height_last: u32,
    /// Outputs whose overwriting was found late.
    pub overwritten: Vec<Overwritten>,
    /// What the UTXO set did for the segment.
    pub figures: UtxoFigures,
}

#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) order: u64,
    pub(super) item: Item,
}

pub(super) struct InFlight {
    pub(super) plan: BatchPlan,
    pub(super) batch: Box<Batch>,
    /// Its place among the loader's items; set by the resolver.
    pub(super) order: u64,
    permit: Permit,
}

/// Closes a pipeline early.
#[derive(Clone, Debug)]
pub struct Closer(Arc<AtomicBool>);

impl Closer {
    /// Lets nothing more be read: what was read goes on its way, then the open segment ends at the last block of it.
    pub fn close(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tells a pipeline how far the database is.
#[derive(Clone, Debug)]
pub struct Confirmer(Arc<Confirmed>);

impl Confirmer {
    /// The database holds every block up to `height` for good: checkpoints of earlier ones are not needed any more.
    pub fn confirm(&self, height: u32) {
        self.0.set(height);
    }
}

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    encoded: mpsc::Receiver<Numbered>,
    waiting: BTreeMap<u64, Item>,
    due: u64,
    gate: Arc<Gate>,
    late_gate: Arc<Gate>,
    confirmed: Arc<Confirmed>,
    stop: Arc<AtomicBool>,
    closing: Arc<AtomicBool>,
    failure: Arc<Mutex<Option<PipelineError>>>,
    resolver: Option<JoinHandle<UtxoSet>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pipeline {
    /// Starts the threads for the given segments. `set` is the UTXO set before their first block.
    pub fn start(
        chain: &Arc<Chain>,
        segments: Vec<Segment>,
        set: UtxoSet,
        options: &PipelineOptions,
    ) -> Self {
        let threads = options.threads.max(1);
        let encoders = threads.div_ceil(2);
        let late_bytes = (options.pipeline_bytes / 8).min(LATE_BYTES_MAX);
        let gate = Gate::new(options.pipeline_bytes - late_bytes);
        let late_gate = Gate::new(late_bytes);
        let confirmed = Arc::new(Confirmed::default());
        let stop = Arc::new(AtomicBool::new(false));
        let closing = Arc::new(AtomicBool::new(false));
        let failure = Arc::new(Mutex::new(None));
        let segment_ends = segments.iter().map(|segment| *segment.heights.end()).collect();
        let batches = Arc::new(Mutex::new(Batches::new(segments, options.batch_bytes)));
        let spare = crossbeam_channel::bounded::<Box<Batch>>(threads * 2 + encoders + 2);
        let (parsed_sender, parsed) = crossbeam_channel::bounded(threads);
        let (resolved_sender, resolved) = crossbeam_channel::bounded(encoders);
        let (encoded_sender, encoded) = mpsc::channel(encoders);

        let mut handles = Vec::new();
        for index in 0..threads {
            let parser = Parser {
                reader: BatchReader::new(
                    Arc::clone(chain),
                    set.key().clone(),
                    [Arc::clone(&stop), Arc::clone(&closing)],
                ),
                batches: Arc::clone(&batches),
                gate: Arc::clone(&gate),
                stop: Arc::clone(&stop),
                closing: Arc::clone(&closing),
                spare: spare.1.clone(),
                parsed: parsed_sender.clone(),
            };
            handles.push(spawn(format!("parse-{index}"), move || parser.run()));
        }
        drop(parsed_sender);
        let buffer_bytes_max = options.batch_bytes.max(1 << 20).saturating_mul(4) as usize;
        let pools: [BufferPool; 4] = std::array::from_fn(|_| BufferPool::new(encoders * 4, buffer_bytes_max));
        let resolver = Resolver {
            late: LateRows::new(&set, options.store),
            set,
            network: options.network,
            segment_ends,
            late_gate: Arc::clone(&late_gate),
            pools: pools.clone(),
            resolved: resolved_sender,
            loader: encoded_sender.clone(),
            confirmed: Arc::clone(&confirmed),
            progress: Arc::clone(&options.progress),
            overwritten: Vec::new(),
            order: 0,
            closing: Arc::clone(&closing),
            open: None,
        };
        let resolver = {
            let failure = Arc::clone(&failure);
            spawn("resolve".to_owned(), move || resolver.run(&parsed, &failure))
        };
        for index in 0..encoders {
            let (resolved, encoded, spare) = (resolved.clone(), encoded_sender.clone(), spare.0.clone());
            let (pools, store) = (pools.clone(), options.store);
            handles.push(spawn(format!("encode-{index}"), move || {
                encode(store, &resolved, &encoded, &spare, &pools);
            }));
        }
        Pipeline {
            encoded,
            waiting: BTreeMap::new(),
            due: 0,
            gate,
            late_gate,
            confirmed,
            stop,
            closing,
            failure,
            resolver: Some(resolver),
            threads: handles,
        }
    }

    /// Returns the next item in chain order, or `None` when all have been given.
    ///
    /// # Errors
    /// The first failure in chain order; every segment before it has been given.
    pub async fn next(&mut self) -> Result<Option<Item>, PipelineError> {
        if !self.has_next().await? {
            return Ok(None);
        }
        let item = self.waiting.remove(&self.due);
        self.due += 1;
        Ok(item)
    }

    /// Waits until the next item is there, and tells whether there is one.
    ///
    /// # Errors
    /// As [`Pipeline::next`].
    pub async fn has_next(&mut self) -> Result<bool, PipelineError> {
        loop {
            if self.waiting.contains_key(&self.due) {
                return Ok(true);
            }
            match self.encoded.recv().await {
                Some(Numbered { order, item }) => {
                    self.waiting.insert(order, item);
                }
                None => {
                    let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                    return match failure {
                        Some(failure) => Err(failure),
                        None if self.waiting.is_empty() => Ok(false),
                        None => Err(PipelineError::Broken),
                    };
                }
            }
        }
    }

    /// Returns what closes the pipeline early while somebody takes its items.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.closing))
    }

    /// Whether the pipeline was closed early.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Ends the threads and returns the UTXO set as the last resolved block left it.
    ///
    /// Blocks until every thread has ended; each stops at its next batch.
    ///
    /// # Errors
    /// A failure that [`Pipeline::next`] has not told.
    pub fn finish(mut self) -> Result<UtxoSet, PipelineError> {
        self.stop.store(true, Ordering::Relaxed);
        self.close_gates();
        self.encoded.close();
        while self.encoded.try_recv().is_ok() {}
        self.waiting.clear();
        let resolver = self.resolver.take().expect("only finish takes it");
        let set = resolver.join().map_err(|_| PipelineError::Broken);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| PipelineError::Broken)?;
        }
        // What went wrong after the last segment was given: its checkpoint.
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure),
            None => set,
        }
    }

    /// Returns what tells the pipeline how far the database is, while somebody takes its items.
    pub fn confirmer(&self) -> Confirmer {
        Confirmer(Arc::clone(&self.confirmed))
    }

    fn close_gates(&self) {
        self.gate.close();
        self.late_gate.close();
        self.confirmed.close();
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Whoever drops a pipeline without `finish` has failed already: the threads end by themselves.
        self.stop.store(true, Ordering::Relaxed);
        self.close_gates();
    }
}

fn spawn<T: Send + 'static>(name: String, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name).spawn(body).expect("the system can start a thread")
}

struct Parser {
    reader: BatchReader,
    batches: Arc<Mutex<Batches>>,
    gate: Arc<Gate>,
    stop: Arc<AtomicBool>,
    closing: Arc<AtomicBool>,
    spare: Receiver<Box<Batch>>,
    parsed: Sender<Result<InFlight, (u64, ReadError)>>,
}

impl Parser {
    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let Some((plan, mut permit)) = self.next_batch() else { break };
            let mut batch = self.spare.try_recv().unwrap_or_default();
            batch.clear();
            let parsed = match self.reader.read(&plan.heights, &mut batch) {
                Ok(()) => {
                    permit.raise(batch.needed_bytes());
                    Ok(InFlight { plan, batch, order: 0, permit })
                }
                Err(error) => Err((plan.seq, error)),
            };
            if self.parsed.send(parsed).is_err() {
                break;
            }
        }
    }

    /// Takes a batch and its permit under one lock: batches enter the gate in chain order.
    fn next_batch(&self) -> Option<(BatchPlan, Permit)> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(height) = batches.height_next() {
            self.reader.await_block(height);
        }
        if self.closing.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let plan = batches.next(|height| self.reader.block_bytes(height))?;
        let permit = self.gate.enter(plan.block_bytes * BYTES_PER_BLOCK_BYTE)?;
        Some((plan, permit))
    }
}

fn encode(
    store: Store,
    resolved: &Receiver<InFlight>,
    encoded: &mpsc::Sender<Numbered>,
    spare: &Sender<Box<Batch>>,
    pools: &[BufferPool; 4],
) {
    for InFlight { plan, mut batch, order, permit } in resolved {
        let mut rows = Encoded { buffers: std::array::from_fn(|table| pools[table].take()) };
        encode_batch(&batch, store, &mut rows);
        let permit = Arc::new(permit);
        let mut pool = pools.iter();
        let done = EncodedBatch {
            tx_count: batch.txs.len() as u64,
            input_count: batch.inputs.len() as u64,
            output_count: batch.outputs.len() as u64,
            block_bytes: batch.raw.len() as u64,
            overwritten: std::mem::take(&mut batch.overwritten),
            rows: rows
                .buffers
                .map(|buffer| pool.next().expect("four pools").lend(buffer, Arc::clone(&permit))),
            plan,
        };
        // A full return channel has enough: this batch's memory is given back. So is that of one which unusual blocks
        // made large, or all batches would be as large in the end.
        if !batch.is_overgrown() {
            let _ = spare.try_send(batch);
        }
        let item = Numbered { order, item: Item::Batch(done) };
        if encoded.blocking_send(item).is_err() {
            break;
        }
    }
}

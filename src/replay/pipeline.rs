//! The pipeline's threads: read and parse, resolve in order, encode.
//!
//! In: the batches of the segments to load. Out: encoded rows, batch by batch but in any order of batches, on a bounded
//! channel for the writer. Everything in flight is paid for at the gate, in chain order, so that the oldest batch can
//! always go on. The first failure in chain order ends the pipeline and is what the writer is told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use tokio::sync::mpsc;

use super::buffers::BufferPool;
use super::gate::{Gate, Permit};
use super::reader::{BatchReader, Chain, ReadError};
use super::schedule::{BatchPlan, Batches, Segment};
use crate::chain::batch::{Batch, Overwritten};
use crate::network::Network;
use crate::prevouts::{CoinFileError, ConnectError, FingerprintKey, ResolveError, UtxoSet, resolve_batch};
use crate::rows::{Encoded, Store, encode_batch};

/// Memory that a batch needs for each byte of its blocks: the bytes, the facts parsed from them, the encoded rows.
const BYTES_PER_BLOCK_BYTE: u64 = 5;

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
    CoinFiles(CoinFileError),
    /// A thread ended without saying why: a defect.
    #[error("a pipeline thread ended without a result")]
    Broken,
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

struct InFlight {
    plan: BatchPlan,
    batch: Box<Batch>,
    permit: Permit,
}

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    encoded: mpsc::Receiver<EncodedBatch>,
    waiting: BTreeMap<u64, EncodedBatch>,
    due: u64,
    gate: Arc<Gate>,
    stop: Arc<AtomicBool>,
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
        key: &FingerprintKey,
        options: &PipelineOptions,
    ) -> Self {
        let threads = options.threads.max(1);
        let encoders = threads.div_ceil(2);
        let gate = Gate::new(options.pipeline_bytes);
        let stop = Arc::new(AtomicBool::new(false));
        let failure = Arc::new(Mutex::new(None));
        let batches = Arc::new(Mutex::new(Batches::new(segments, options.batch_bytes)));
        let spare = crossbeam_channel::bounded::<Box<Batch>>(threads * 2 + encoders + 2);
        let (parsed_sender, parsed) = crossbeam_channel::bounded(threads);
        let (resolved_sender, resolved) = crossbeam_channel::bounded(encoders);
        let (encoded_sender, encoded) = mpsc::channel(encoders);

        let mut handles = Vec::new();
        for index in 0..threads {
            let parser = Parser {
                reader: BatchReader::new(Arc::clone(chain), key.clone()),
                batches: Arc::clone(&batches),
                gate: Arc::clone(&gate),
                stop: Arc::clone(&stop),
                spare: spare.1.clone(),
                parsed: parsed_sender.clone(),
            };
            handles.push(spawn(format!("parse-{index}"), move || parser.run()));
        }
        drop(parsed_sender);
        let resolver = {
            let failure = Arc::clone(&failure);
            let network = options.network;
            spawn("resolve".to_owned(), move || resolve(set, network, &parsed, &resolved_sender, &failure))
        };
        let pools: [BufferPool; 4] = std::array::from_fn(|_| BufferPool::new(encoders * 4));
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
            stop,
            failure,
            resolver: Some(resolver),
            threads: handles,
        }
    }

    /// Returns the next batch in chain order, or `None` when all have been given.
    ///
    /// # Errors
    /// The first failure in chain order; every batch before it has been given.
    pub async fn next(&mut self) -> Result<Option<EncodedBatch>, PipelineError> {
        loop {
            if let Some(batch) = self.waiting.remove(&self.due) {
                self.due += 1;
                return Ok(Some(batch));
            }
            match self.encoded.recv().await {
                Some(batch) => {
                    self.waiting.insert(batch.plan.seq, batch);
                }
                None => {
                    let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                    return match failure {
                        Some(failure) => Err(failure),
                        None if self.waiting.is_empty() => Ok(None),
                        None => Err(PipelineError::Broken),
                    };
                }
            }
        }
    }

    /// Ends the threads and returns the UTXO set as the last resolved block left it.
    ///
    /// Blocks until every thread has ended; each stops at its next batch.
    pub fn finish(mut self) -> Result<UtxoSet, PipelineError> {
        self.stop.store(true, Ordering::Relaxed);
        self.gate.close();
        self.encoded.close();
        while self.encoded.try_recv().is_ok() {}
        self.waiting.clear();
        let resolver = self.resolver.take().expect("only finish takes it");
        let set = resolver.join().map_err(|_| PipelineError::Broken);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| PipelineError::Broken)?;
        }
        set
    }

    /// Returns the most bytes that were in flight at one time.
    pub fn bytes_peak(&self) -> u64 {
        self.gate.bytes_peak()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Whoever drops a pipeline without `finish` has failed already: the threads end by themselves.
        self.stop.store(true, Ordering::Relaxed);
        self.gate.close();
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
    spare: Receiver<Box<Batch>>,
    parsed: Sender<Result<InFlight, (u64, ReadError)>>,
}

impl Parser {
    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let Some((plan, permit)) = self.next_batch() else { break };
            let mut batch = self.spare.try_recv().unwrap_or_default();
            batch.clear();
            let parsed = match self.reader.read(&plan.heights, &mut batch) {
                Ok(()) => Ok(InFlight { plan, batch, permit }),
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
        let plan = batches.next(|height| self.reader.block_bytes(height))?;
        let permit = self.gate.enter(plan.block_bytes * BYTES_PER_BLOCK_BYTE)?;
        Some((plan, permit))
    }
}

/// The one ordered stage. Ends at the first failure in chain order, and keeps it.
fn resolve(
    mut set: UtxoSet,
    network: Network,
    parsed: &Receiver<Result<InFlight, (u64, ReadError)>>,
    resolved: &Sender<InFlight>,
    failure: &Mutex<Option<PipelineError>>,
) -> UtxoSet {
    let mut waiting = BTreeMap::new();
    let mut due = 0;
    for result in parsed {
        let seq = result.as_ref().map_or_else(|(seq, _)| *seq, |in_flight| in_flight.plan.seq);
        waiting.insert(seq, result);
        while let Some(result) = waiting.remove(&due) {
            due += 1;
            let outcome =
                result.map_err(|(_, error)| PipelineError::from(error)).and_then(|mut in_flight| {
                    resolve_batch(&mut in_flight.batch, &mut set, network)?;
                    Ok(in_flight)
                });
            match outcome {
                Ok(in_flight) => {
                    if resolved.send(in_flight).is_err() {
                        return set;
                    }
                }
                Err(error) => {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return set;
                }
            }
        }
    }
    set
}

fn encode(
    store: Store,
    resolved: &Receiver<InFlight>,
    encoded: &mpsc::Sender<EncodedBatch>,
    spare: &Sender<Box<Batch>>,
    pools: &[BufferPool; 4],
) {
    for InFlight { plan, mut batch, permit } in resolved {
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
        // A full return channel has enough: this batch's memory is given back.
        let _ = spare.try_send(batch);
        if encoded.blocking_send(done).is_err() {
            break;
        }
    }
}

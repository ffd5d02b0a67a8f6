//! The set of unspent outputs: a cache within a budget, and coin runs on disk for the rest.
//!
//! In: inserts and spends in chain order. Out: the coin of every spend, at once where the cache has it, otherwise when
//! the waiting spends are settled in one sequential pass. An unspent coin is in the cache or in a run, never in both,
//! and what the cache has of an outpoint is the latest of it: that is why a hit is final. Called by the one ordered
//! resolve stage. It never reads at random, and never holds more than its budget and some fixed buffers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::belt::Belt;
use super::checkpoint::Kept;
use super::entry::pack;
use super::merge::merge;
use super::resolve::{ConnectError, ResolveError};
use super::runs::{Runs, make_dir};
use super::sealed::{CoinFileError, PAYLOAD_BYTES, checksum};
use super::sort::Sorter;
use super::twins::Twins;
use super::waiting::{Settled, Waiting, WaitingBlock, WaitingTx};
use super::{Coin, Fingerprint, FingerprintKey};
use crate::chain::batch::{Input, Overwritten};

/// Most files of one kind that are merged at once: each is read through a buffer of its own.
const FILES_MAX: u64 = 64;
/// With fewer, runs are joined again and again.
const FILES_MIN: u64 = 4;
/// Files beside those that are merged: the one written, the facts, the rows.
const FILES_BESIDE: u64 = 3;
/// What buffers get unless the plan says otherwise.
const BUFFER_BYTES: u64 = 64 << 20;

/// What a set is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UtxoOptions {
    /// Where runs and checkpoints are; made when the first is written.
    pub dir: PathBuf,
    /// Most bytes of the cache; `None` keeps every coin in memory.
    pub cache_bytes_max: Option<u64>,
    /// Buckets on the belt: one falls off at a time.
    pub buckets: u64,
    /// Bounds of buffers and files.
    pub limits: UtxoLimits,
}

/// Bounds of what the set needs beside its cache, once coins have fallen off the belt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UtxoLimits {
    /// Coins on their way to a run, bytes.
    pub pending_bytes: u64,
    /// Each of the two sorts of a settlement, bytes in memory.
    pub sort_bytes: u64,
    /// Waiting spends and rows on disk that are settled together, bytes, or as many bytes as the runs have: so that
    /// the passes over the runs never cost more than the waiting itself.
    pub waiting_bytes: u64,
    /// Coin runs, and sorted chunks of waiting spends.
    pub runs: usize,
}

impl Default for UtxoLimits {
    fn default() -> Self {
        UtxoLimits::within(BUFFER_BYTES)
    }
}

impl UtxoLimits {
    /// Divides `bytes` of memory: up to a quarter to the buffers of files, of the rest a third to coins on their way to
    /// a run and two thirds to sorts. From 2 MiB on the buffers keep to it.
    pub fn within(bytes: u64) -> Self {
        let block = PAYLOAD_BYTES as u64;
        let files = (bytes / 4 / block).saturating_sub(FILES_BESIDE) / 2;
        let files = files.clamp(FILES_MIN, FILES_MAX);
        let rest = bytes.saturating_sub((2 * files + FILES_BESIDE) * block);
        UtxoLimits {
            pending_bytes: rest / 6,
            sort_bytes: rest / 3,
            waiting_bytes: bytes.saturating_mul(4),
            runs: files as usize,
        }
    }

    /// Returns the most memory that all buffers take together, bytes; none is taken while everything is in the cache.
    pub fn buffer_bytes_max(&self) -> u64 {
        // First runs and chunks of spends are merged, then chunks of coins: fewer than twice as many, since a record has
        // 40 bytes instead of 24. The buffered coins stand twice in a merge, and there are two sorts.
        let readers = (2 * self.runs as u64 + FILES_BESIDE) * PAYLOAD_BYTES as u64;
        2 * self.pending_bytes + 2 * self.sort_bytes + readers
    }
}

/// What a set did since it was asked last, and how large it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UtxoFigures {
    /// Inputs that spend something.
    pub inputs: u64,
    /// Of these, the ones whose coin was not in the cache.
    pub waited: u64,
    /// Passes over the runs.
    pub settlements: u64,
    /// Time that they took.
    pub settling: Duration,
    /// Coins that fell off the belt.
    pub evicted: u64,
    /// Bytes written: runs, sorted chunks, spilled facts, caches of checkpoints.
    pub written_bytes: u64,
    /// Bytes read back.
    pub read_bytes: u64,
    /// Coins in the cache now.
    pub cache_coins: u64,
    /// Bytes of the cache now.
    pub cache_bytes: u64,
    /// Coin runs now.
    pub runs: u64,
    /// Entries in them.
    pub run_coins: u64,
}

impl UtxoFigures {
    /// Returns the share of inputs whose coin the cache had, 0 to 1.
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.inputs > 0).then(|| (self.inputs - self.waited) as f64 / self.inputs as f64)
    }
}

/// How the set stands now, and how often its cache had the coin since it was made or resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UtxoGauges {
    /// Coins in the cache.
    pub cache_coins: u64,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Most bytes of the cache; `None` without a bound.
    pub cache_bytes_max: Option<u64>,
    /// Inputs that spend something.
    pub inputs: u64,
    /// Of these, the ones whose coin was not in the cache.
    pub waited: u64,
    /// Spends that wait for their coins now.
    pub waiting: u64,
    /// Coin runs.
    pub runs: u64,
    /// Entries in them.
    pub run_coins: u64,
}

impl UtxoGauges {
    /// Returns the share of inputs whose coin the cache had, 0 to 1.
    pub fn hit_ratio(&self) -> Option<f64> {
        UtxoFigures { inputs: self.inputs, waited: self.waited, ..UtxoFigures::default() }.hit_ratio()
    }
}

/// Why a spend has no coin yet.
#[derive(Debug)]
pub(super) enum Absent {
    /// It is in a run, or nowhere.
    Waits,
    /// It is nowhere.
    Missing,
    /// A file failed.
    Failed(Box<CoinFileError>),
}

/// The set of unspent outputs, by fingerprint of their outpoints.
#[derive(Debug)]
pub struct UtxoSet {
    pub(super) belt: Belt<5>,
    pub(super) key: FingerprintKey,
    pub(super) options: UtxoOptions,
    pub(super) runs: Runs,
    pub(super) twins: Twins,
    pub(super) kept: Vec<Kept>,
    waiting: Option<Waiting>,
    /// Waiting inputs of the transaction at hand.
    vins: Vec<u32>,
    /// Twins' outputs whose earlier twin may lie in a run: outpoint, transaction, index.
    unsettled: Vec<(Fingerprint, i64, u32)>,
    figures: UtxoFigures,
    /// Inputs, and those that waited, before the last figures were taken.
    told: (u64, u64),
}

impl UtxoSet {
    /// Makes an empty set; files of an earlier one are left alone.
    pub fn new(options: UtxoOptions, key: FingerprintKey) -> Self {
        let seed = checksum(0, &key.to_bytes());
        UtxoSet {
            belt: Belt::new(options.cache_bytes_max, options.buckets),
            runs: Runs::new(&options.dir, seed, options.limits.pending_bytes, options.limits.runs),
            key,
            options,
            twins: Twins::default(),
            kept: Vec::new(),
            waiting: None,
            vins: Vec::new(),
            unsettled: Vec::new(),
            figures: UtxoFigures::default(),
            told: (0, 0),
        }
    }

    /// Returns the key of the fingerprints.
    pub fn key(&self) -> &FingerprintKey {
        &self.key
    }

    /// Returns the directory of the set's files.
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// Returns the number of entries in cache and runs. Those that waiting spends will take are among them.
    pub fn coin_count(&self) -> u64 {
        self.belt.table.coin_count() + self.runs.coin_count()
    }

    /// Returns the bytes that the cache has allocated.
    pub fn allocated_bytes(&self) -> u64 {
        self.belt.table.allocated_bytes()
    }

    /// Returns whether spends wait.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns whether enough waits for a pass over the runs; `spilled_bytes` are the caller's own.
    pub fn is_settlement_due(&self, spilled_bytes: u64) -> bool {
        let bytes_max = self.options.limits.waiting_bytes.max(self.runs.file_bytes());
        self.waiting.as_ref().is_some_and(|waiting| {
            waiting.bytes() + spilled_bytes >= bytes_max || waiting.chunk_count() >= self.options.limits.runs
        })
    }

    /// Finds the coins of all waiting spends, and hands out the facts that waited, in chain order. To be called between
    /// two batches.
    ///
    /// # Errors
    /// The first rule that a waiting spend breaks, a file that failed, or what `each` gives: then drop the set.
    pub fn settle<E: From<ResolveError> + From<CoinFileError>>(
        &mut self,
        overwritten: &mut Vec<Overwritten>,
        each: impl FnMut(Settled) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.waiting.is_none() && self.unsettled.is_empty() {
            return Ok(());
        }
        self.figures.settlements += 1;
        let began = Instant::now();
        let dir = &self.options.dir;
        let mut coins = Sorter::new(dir.join("coins.tmp"), self.options.limits.sort_bytes);
        let (spends, facts) = match self.waiting.take() {
            Some(waiting) => {
                self.count_traffic(waiting.bytes());
                let (spends, facts) = waiting.finish()?;
                (Some(spends), Some(facts))
            }
            None => (None, None),
        };
        for replaced in merge(&mut self.runs, spends, &mut coins)? {
            let twin = self.unsettled.iter().find(|(outpoint, tx_num, _)| {
                *outpoint == replaced.outpoint && *tx_num == replaced.by_tx_num
            });
            // Without a twin the same txid repeats only where an earlier spend had no coin: the facts tell which.
            if let Some((_, by_tx_num, vout)) = twin {
                overwritten.push(Overwritten { tx_num: replaced.tx_num, vout: *vout, by_tx_num: *by_tx_num });
            }
        }
        self.unsettled.clear();
        self.remove_unneeded_runs()?;
        self.count_traffic(coins.chunk_bytes());
        let settled = match facts {
            Some(facts) => facts.settle(coins.finish()?, each),
            None => Ok(()),
        };
        self.figures.settling += began.elapsed();
        settled
    }

    /// Returns what was done since the last call.
    pub fn take_figures(&mut self) -> UtxoFigures {
        let (written, read) = self.runs.take_traffic_bytes();
        let done = std::mem::take(&mut self.figures);
        self.told = (self.told.0 + done.inputs, self.told.1 + done.waited);
        UtxoFigures {
            written_bytes: done.written_bytes + written,
            read_bytes: done.read_bytes + read,
            cache_coins: self.belt.table.coin_count(),
            cache_bytes: self.belt.table.allocated_bytes(),
            runs: self.runs.files().len() as u64,
            run_coins: self.runs.coin_count(),
            ..done
        }
    }

    /// Returns how the set stands now.
    pub fn gauges(&self) -> UtxoGauges {
        UtxoGauges {
            cache_coins: self.belt.table.coin_count(),
            cache_bytes: self.belt.table.allocated_bytes(),
            cache_bytes_max: self.options.cache_bytes_max,
            inputs: self.told.0 + self.figures.inputs,
            waited: self.told.1 + self.figures.waited,
            waiting: self.waiting.as_ref().map_or(0, Waiting::spend_count),
            runs: self.runs.files().len() as u64,
            run_coins: self.runs.coin_count(),
        }
    }

    /// Asks the processor to fetch the place of an outpoint.
    #[inline]
    pub(super) fn prefetch(&self, outpoint: Fingerprint) {
        self.belt.table.prefetch(outpoint);
    }

    /// Removes a coin and returns it; notes the spend where it must wait.
    #[inline]
    pub(super) fn spend(&mut self, outpoint: Fingerprint, tx_num: i64, vin: u32) -> Result<Coin, Absent> {
        match self.belt.table.spend(outpoint) {
            Some(coin) => Ok(coin),
            None => Err(self.wait(outpoint, tx_num, vin)),
        }
    }

    /// Adds the coin of an output whose txid has not been there before.
    #[inline]
    pub(super) fn insert(&mut self, outpoint: Fingerprint, coin: &Coin) -> Result<(), CoinFileError> {
        match self.belt.table.insert(outpoint, coin) {
            Ok(_) => Ok(()),
            Err(_) => self.insert_into_full(outpoint, coin),
        }
    }

    /// Adds the coin of a twin's output; returns the coin that it overwrites, if that is known already.
    pub(super) fn insert_twin(
        &mut self,
        outpoint: Fingerprint,
        coin: &Coin,
        vout: u32,
    ) -> Result<Option<Coin>, CoinFileError> {
        self.twins.add_output(outpoint);
        let old = self.belt.table.spend(outpoint);
        if old.is_some() || self.runs.is_empty() {
            self.insert(outpoint, coin)?;
        } else {
            // The earlier coin may lie in a run, spent or not by a spend that waits: all of it is settled there.
            self.runs.push(pack(outpoint, coin))?;
            self.unsettled.push((outpoint, coin.tx_num, vout));
        }
        Ok(old)
    }

    /// Notes a coinbase; returns whether its txid has been there before.
    #[inline]
    pub(super) fn is_repeated_coinbase(&mut self, first_output: Fingerprint) -> bool {
        self.twins.is_repeated_coinbase(first_output)
    }

    /// Returns whether a transaction spends outputs of twins and no others, so that its txid may have been there.
    #[inline]
    pub(super) fn spends_only_twins(&mut self, inputs: &[Input]) -> bool {
        !self.twins.is_empty() && self.twins.spends_only_twins(inputs.iter().map(|input| input.outpoint))
    }

    /// Counts inputs that spend something.
    #[inline]
    pub(super) fn count_inputs(&mut self, inputs: u64) {
        self.figures.inputs += inputs;
    }

    /// Notes the transaction of the waiting spends since the last call.
    pub(super) fn add_waiting_tx(&mut self, tx: &WaitingTx) -> Result<(), CoinFileError> {
        let waiting = self.waiting.as_mut().expect("its spends wait");
        waiting.push_tx(tx, &self.vins)?;
        self.vins.clear();
        Ok(())
    }

    /// Notes a block some of whose transactions wait.
    pub(super) fn add_waiting_block(&mut self, block: &WaitingBlock) -> Result<(), CoinFileError> {
        self.waiting.as_mut().expect("its transactions wait").push_block(block)
    }

    /// Returns the first broken rule in chain order, given one that a transaction breaks whose predecessors may wait.
    pub(super) fn first_broken(&mut self, error: ResolveError) -> ConnectError {
        match self.settle(&mut Vec::new(), |_| Ok::<_, ConnectError>(())) {
            Err(earlier) => earlier,
            Ok(()) => error.into(),
        }
    }

    /// Removes run files that neither the set nor a kept checkpoint needs.
    pub(super) fn remove_unneeded_runs(&self) -> Result<(), CoinFileError> {
        self.runs.remove_others(|id| self.kept.iter().any(|kept| kept.run_ids.contains(&id)))
    }

    /// Asserts that nothing waits.
    pub(super) fn assert_settled(&self) {
        assert!(self.waiting.is_none() && self.unsettled.is_empty(), "settled before a checkpoint");
    }

    #[cold]
    fn wait(&mut self, outpoint: Fingerprint, tx_num: i64, vin: u32) -> Absent {
        if self.runs.is_empty() {
            return Absent::Missing;
        }
        self.figures.waited += 1;
        self.vins.push(vin);
        match self.push_waiting(outpoint, tx_num, vin) {
            Ok(()) => Absent::Waits,
            Err(error) => Absent::Failed(Box::new(error)),
        }
    }

    fn push_waiting(&mut self, outpoint: Fingerprint, tx_num: i64, vin: u32) -> Result<(), CoinFileError> {
        let waiting = match &mut self.waiting {
            Some(waiting) => waiting,
            None => {
                make_dir(&self.options.dir)?;
                let waiting = Waiting::new(&self.options.dir, self.options.limits.sort_bytes)?;
                self.waiting.insert(waiting)
            }
        };
        waiting.push_spend(outpoint, tx_num, vin)
    }

    #[cold]
    fn insert_into_full(&mut self, outpoint: Fingerprint, coin: &Coin) -> Result<(), CoinFileError> {
        loop {
            let evicted = self.drop_oldest_bucket()?;
            self.figures.evicted += evicted;
            if evicted == 0 {
                // The budget has no place for even one coin.
                self.figures.evicted += 1;
                return self.runs.push(pack(outpoint, coin));
            }
            if self.belt.table.insert(outpoint, coin).is_ok() {
                return Ok(());
            }
        }
    }

    /// Moves the oldest bucket from the cache to the runs.
    fn drop_oldest_bucket(&mut self) -> Result<u64, CoinFileError> {
        let runs = &mut self.runs;
        if !runs.is_worth_a_run(self.belt.bucket_entries()) {
            return self
                .belt
                .drop_oldest_bucket(|entries| entries.iter().try_for_each(|entry| runs.push(*entry)));
        }
        let mut run = runs.begin()?;
        let evicted =
            self.belt.drop_oldest_bucket(|entries| entries.iter().try_for_each(|entry| run.push(entry)))?;
        runs.add(run)?;
        Ok(evicted)
    }

    /// Counts bytes that are written once and read back once.
    fn count_traffic(&mut self, bytes: u64) {
        self.figures.written_bytes += bytes;
        self.figures.read_bytes += bytes;
    }
}

//! Progress of a load and of index builds: counted once, told to whoever asks.
//!
//! Counted by the loader and the resolver. Shown by one task, as one line every few seconds or a bar on a terminal, and
//! told by `satgres status`, both from [`LoadFigures`]. The time left is estimated by bytes of blocks, never by blocks:
//! early blocks are a thousandth of late ones. What index builds do comes from [`crate::pg::builds`].

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::Pool;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::rates::Rates;
use crate::pg::builds::{Builds, restore_seconds};
use crate::prevouts::UtxoGauges;

/// Between two lines in a log.
const LINE_SECONDS: u64 = 5;
/// Between two looks at the figures; a bar moves as often.
const LOOK_MS: u64 = 500;
/// Rates are those of the last minute.
const RATE_SECONDS: f64 = 60.0;
/// The time left follows from the rate of the last ten minutes: steadier, and still that of the chain's present part.
const ETA_SECONDS: f64 = 600.0;

/// What was handed to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Blocks.
    pub blocks: u64,
    /// Transactions.
    pub txs: u64,
    /// Inputs.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Bytes of blocks.
    pub bytes: u64,
}

impl Counted {
    /// Returns the rows of transactions, inputs and outputs.
    pub fn rows(&self) -> u64 {
        self.txs + self.inputs + self.outputs
    }
}

/// Counters of a running load.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    bytes_total: u64,
    height_first: u32,
    height_last: u32,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    height: Option<u32>,
    height_committed: Option<u32>,
    bytes_committed: u64,
    counted: Counted,
    rates: Rates,
    utxo_cache: Option<UtxoGauges>,
}

/// How far a load is and how fast it goes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadFigures {
    /// First height to load.
    pub height_first: u32,
    /// Last height to load.
    pub height_last: u32,
    /// Last height whose rows were handed to the server.
    pub height: Option<u32>,
    /// Last height of the segments that are committed.
    pub height_committed: Option<u32>,
    /// What was handed to the server.
    pub counted: Counted,
    /// Bytes of blocks in segments that are committed.
    pub bytes_committed: u64,
    /// Bytes of all blocks to load.
    pub bytes_total: u64,
    /// Seconds since the load began.
    pub seconds: f64,
    /// Blocks a second, over the last minute, as are the next three.
    pub blocks_per_second: f64,
    /// Transactions a second.
    pub txs_per_second: f64,
    /// Rows of transactions, inputs and outputs a second.
    pub rows_per_second: f64,
    /// Bytes of blocks a second.
    pub bytes_per_second: f64,
    /// Seconds left, by bytes at the rate of the last ten minutes; `None` while nothing moves.
    pub eta_seconds: Option<f64>,
}

impl Progress {
    /// Begins counting a load of `bytes_total` bytes of blocks.
    pub fn new(height_first: u32, height_last: u32, bytes_total: u64) -> Arc<Self> {
        let counts = Counts {
            height: None,
            height_committed: None,
            bytes_committed: 0,
            counted: Counted::default(),
            rates: Rates::default(),
            utxo_cache: None,
        };
        let counts = Mutex::new(counts);
        Arc::new(Progress { start: Instant::now(), bytes_total, height_first, height_last, counts })
    }

    /// Counts a batch whose rows have been handed to the server.
    pub fn loaded(&self, height: u32, batch: &Counted) {
        let at = self.start.elapsed().as_secs_f64();
        let counts = &mut *self.lock();
        if counts.height.is_none() {
            info!(height, "first new rows are on their way to the server");
        }
        counts.height = Some(height);
        counts.counted.blocks += batch.blocks;
        counts.counted.txs += batch.txs;
        counts.counted.inputs += batch.inputs;
        counts.counted.outputs += batch.outputs;
        counts.counted.bytes += batch.bytes;
        counts.rates.note(at, &counts.counted);
    }

    /// Notes that everything handed over so far, up to a height, is committed.
    pub fn committed(&self, height: u32) {
        let mut counts = self.lock();
        counts.height_committed = Some(height);
        counts.bytes_committed = counts.counted.bytes;
    }

    /// Notes how the UTXO set stands.
    pub fn resolved(&self, utxo_cache: UtxoGauges) {
        self.lock().utxo_cache = Some(utxo_cache);
    }

    /// Returns how the UTXO set stood last.
    pub fn utxo_cache(&self) -> Option<UtxoGauges> {
        self.lock().utxo_cache
    }

    /// Returns how far the load is.
    pub fn figures(&self) -> LoadFigures {
        self.figures_at(self.start.elapsed().as_secs_f64())
    }

    fn figures_at(&self, now: f64) -> LoadFigures {
        let counts = self.lock();
        let counted = counts.counted;
        let rates = counts.rates.over(RATE_SECONDS, now, &counted);
        let steady = counts.rates.over(ETA_SECONDS, now, &counted).bytes;
        let left = self.bytes_total.saturating_sub(counted.bytes);
        LoadFigures {
            height_first: self.height_first,
            height_last: self.height_last,
            height: counts.height,
            height_committed: counts.height_committed,
            counted,
            bytes_committed: counts.bytes_committed,
            bytes_total: self.bytes_total,
            seconds: now,
            blocks_per_second: rates.blocks,
            txs_per_second: rates.txs,
            rows_per_second: rates.rows,
            bytes_per_second: rates.bytes,
            eta_seconds: (steady > 0.0).then(|| left as f64 / steady),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) {
        let figures = self.figures();
        let cache = self.utxo_cache();
        info!(
            height = figures.height,
            of = figures.height_last,
            blocks_per_s = figures.blocks_per_second.round(),
            tx_per_s = figures.txs_per_second.round(),
            rows_per_s = figures.rows_per_second.round(),
            mb_per_s = figures.bytes_per_second.round() / 1e6,
            cache_hits = cache.and_then(|cache| cache.hit_ratio()),
            eta_s = figures.eta_seconds.map(f64::round),
            "loading"
        );
    }
}

/// Shows progress until it is dropped.
#[derive(Debug)]
pub struct Display {
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Display {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Shows a load.
pub fn show_load(progress: &Arc<Progress>) -> Display {
    let progress = Arc::clone(progress);
    let bar = bar(progress.bytes_total);
    let task = tokio::spawn(async move {
        let bar = Cleared(bar);
        let mut line_at = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
            if let Some(bar) = &bar.0 {
                let figures = progress.figures();
                let bytes = figures.counted.bytes;
                let left = figures.eta_seconds.map_or_else(String::new, |seconds| {
                    format!(", {} left", HumanDuration(Duration::from_secs_f64(seconds.min(1e9))))
                });
                bar.set_position(bytes);
                bar.set_message(format!(
                    "height {}, {} of {}{left}",
                    figures.height.unwrap_or(figures.height_first),
                    HumanBytes(bytes),
                    HumanBytes(figures.bytes_total),
                ));
            } else if line_at.elapsed().as_secs() >= LINE_SECONDS {
                line_at = Instant::now();
                progress.line();
            }
        }
    });
    Display { task }
}

/// Shows the index builds that run on the server, `builds_max` at once.
pub fn show_builds(pool: Pool, builds_max: usize) -> Display {
    let bar = bar(100);
    let task = tokio::spawn(async move {
        let bar = Cleared(bar);
        let mut line_at = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
            let due = line_at.elapsed().as_secs() >= LINE_SECONDS;
            if bar.0.is_none() && !due {
                continue;
            }
            line_at = Instant::now();
            let Ok(client) = pool.get().await else { continue };
            let Ok(builds) = Builds::read(&client).await else { continue };
            let percent = (builds.done_ratio().unwrap_or(0.0) * 100.0) as u64;
            let running: Vec<String> = builds.running.iter().map(ToString::to_string).collect();
            let left = restore_seconds(&builds, 0.0, 0.0, None, builds_max as u64);
            match &bar.0 {
                Some(bar) => {
                    bar.set_position(percent);
                    let left = HumanDuration(Duration::from_secs_f64(left.min(1e9)));
                    bar.set_message(format!("{}, {left} left", running.join(", ")));
                }
                None => {
                    info!(builds = running.join(", "), percent, eta_s = left.round(), "restoring indexes");
                }
            }
        }
    });
    Display { task }
}

/// A bar on a terminal; without one there are lines in the log.
fn bar(total: u64) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {wide_msg}");
        bar.set_style(style.expect("the template is valid"));
        bar
    })
}

/// Takes the bar off the terminal when its task ends.
struct Cleared(Option<ProgressBar>);

impl Drop for Cleared {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_weighted_by_bytes() {
        let progress = Progress::new(0, 1_000_000, 1_000);
        assert_eq!(progress.figures_at(1.0).eta_seconds, None);
        // Nearly all blocks, but a fifth of the bytes.
        let batch = Counted { blocks: 999_001, txs: 10, inputs: 20, outputs: 30, bytes: 200 };
        progress.loaded(999_000, &batch);
        let figures = progress.figures_at(10.0);
        assert_eq!((figures.height, figures.counted), (Some(999_000), batch));
        assert_eq!((figures.bytes_per_second, figures.rows_per_second), (20.0, 6.0));
        assert_eq!(figures.eta_seconds, Some(40.0));
        progress.committed(999_000);
        assert_eq!(progress.figures_at(10.0).bytes_committed, 200);
    }

    #[test]
    fn a_load_that_stands_still_promises_nothing() {
        let progress = Progress::new(0, 10, 1_000);
        progress.loaded(5, &Counted { bytes: 500, ..Counted::default() });
        assert_eq!(progress.figures_at(700.0).eta_seconds, None);
    }
}

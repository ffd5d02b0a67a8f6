//! Progress for people: one line every few seconds, or a bar on a terminal.
//!
//! Counted by the loader, shown by one task. The time left is estimated by bytes of blocks, never by blocks: early blocks
//! are a thousandth of late ones. While indexes are built the figures come from `pg_stat_progress_create_index`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::Pool;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing::info;

/// Between two lines in a log.
const LINE_SECONDS: u64 = 5;
/// Between two looks at the figures; a bar moves as often.
const LOOK_MS: u64 = 500;

/// Counters of a running load.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    height: AtomicU64,
    txs: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    bytes_total: u64,
    blocks: AtomicU64,
    height_first: u32,
    height_last: u32,
}

impl Progress {
    /// Begins counting a load of `bytes_total` bytes of blocks.
    pub fn new(height_first: u32, height_last: u32, bytes_total: u64) -> Arc<Self> {
        Arc::new(Progress {
            start: Instant::now(),
            height: AtomicU64::new(u64::from(height_first)),
            txs: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_total,
            blocks: AtomicU64::new(0),
            height_first,
            height_last,
        })
    }

    /// Counts a batch whose rows have been handed to the server.
    pub fn loaded(&self, height: u32, txs: u64, rows: u64, bytes: u64) {
        self.height.store(u64::from(height), Ordering::Relaxed);
        self.blocks.store(u64::from(height - self.height_first) + 1, Ordering::Relaxed);
        self.txs.fetch_add(txs, Ordering::Relaxed);
        self.rows.fetch_add(rows, Ordering::Relaxed);
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            info!(height, "first new rows are on their way to the server");
        }
    }

    /// Returns the seconds that are left at the mean rate so far, weighted by bytes; `None` before the first batch.
    pub fn seconds_left(&self) -> Option<f64> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let left = self.bytes_total.saturating_sub(bytes);
        (bytes > 0).then(|| self.start.elapsed().as_secs_f64() * left as f64 / bytes as f64)
    }

    fn line(&self) {
        let seconds = self.start.elapsed().as_secs_f64().max(1e-3);
        let rate = |count: &AtomicU64| (count.load(Ordering::Relaxed) as f64 / seconds).round();
        info!(
            height = self.height.load(Ordering::Relaxed),
            of = self.height_last,
            blocks_per_s = rate(&self.blocks),
            tx_per_s = rate(&self.txs),
            rows_per_s = rate(&self.rows),
            mb_per_s = rate(&self.bytes) / 1e6,
            eta_s = self.seconds_left().map(f64::round),
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
                bar.set_position(progress.bytes.load(Ordering::Relaxed));
                let left = progress.seconds_left().unwrap_or(0.0).min(1e9);
                bar.set_message(format!(
                    "height {}, {} of {}, {} left",
                    progress.height.load(Ordering::Relaxed),
                    HumanBytes(progress.bytes.load(Ordering::Relaxed)),
                    HumanBytes(progress.bytes_total),
                    HumanDuration(Duration::from_secs_f64(left))
                ));
            } else if line_at.elapsed().as_secs() >= LINE_SECONDS {
                line_at = Instant::now();
                progress.line();
            }
        }
    });
    Display { task }
}

/// Shows the index builds that run on the server.
pub fn show_builds(pool: Pool) -> Display {
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
            let Some((message, percent)) = builds(&pool).await else { continue };
            match &bar.0 {
                Some(bar) => {
                    bar.set_position(percent);
                    bar.set_message(message);
                }
                None => info!(builds = message, percent, "restoring indexes"),
            }
        }
    });
    Display { task }
}

/// Returns what is being built and how much of all queued rows is done, percent.
async fn builds(pool: &Pool) -> Option<(String, u64)> {
    let client = pool.get().await.ok()?;
    let rows = client
        .query(
            "select coalesce(c.relname, '?'), p.phase, \
               case when p.tuples_total > 0 then p.tuples_done::float8 / p.tuples_total \
                    when p.blocks_total > 0 then p.blocks_done::float8 / p.blocks_total else 0 end \
             from pg_stat_progress_create_index p left join pg_class c on c.oid = p.relid \
             where p.datname = current_database()",
            &[],
        )
        .await
        .ok()?;
    let running: Vec<String> = rows
        .iter()
        .map(|row| {
            let (table, phase, share): (String, String, f64) = (row.get(0), row.get(1), row.get(2));
            format!("{table} ({phase}, {:.0} %)", share * 100.0)
        })
        .collect();
    let done = client
        .query_one(
            "select coalesce(100 * sum(row_count) filter (where state = 'done') / nullif(sum(row_count), 0), 0)::int8 \
             from ops.index_jobs where kind = 'index'",
            &[],
        )
        .await
        .ok()?;
    Some((running.join(", "), done.get::<_, i64>(0) as u64))
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
        assert_eq!(progress.seconds_left(), None);
        // Nearly all blocks, but half of the bytes.
        progress.loaded(999_000, 1, 1, 500);
        std::thread::sleep(Duration::from_millis(20));
        let spent = progress.start.elapsed().as_secs_f64();
        let left = progress.seconds_left().unwrap();
        assert!(left >= spent * 0.9 && left < spent * 2.0, "{left} after {spent}");
    }
}

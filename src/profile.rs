//! PROFILE lines: how long each phase took, for operators who grep and scripts that parse them.
//!
//! In: the text of a phase and what was done in it. Out: one line on standard output, the same as a log event where
//! nobody would see it twice, and a row for `ops.phases`. Called by the main path at every phase, segment and index
//! job. The lines are an interface: their form never changes.
//!
//! ```text
//! PROFILE: Entered LIVE sync from start state: 15684 s (261m) 840000
//! ```

use std::{
    io::{IsTerminal as _, Write as _},
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio_postgres::Client;
use tracing::info;

use crate::pg::reaction::trouble;
use crate::status::Board;

/// Rows that wait for a server.
static UNWRITTEN: Mutex<Vec<PhaseRow>> = Mutex::new(Vec::new());
/// Most of them; a run that writes more without a server has given up long before.
const UNWRITTEN_MAX: usize = 1_000;

/// The clock of one run of the service.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Whether nothing is printed.
    is_quiet: bool,
    start: Instant,
    started: SystemTime,
    /// Whether lines also go to the log.
    log_too: bool,
    board: Board,
    steps: Arc<AtomicU64>,
}

/// A phase that has begun.
#[derive(Debug, Clone)]
pub struct Phase {
    start: Instant,
    started: SystemTime,
    cpu: Duration,
}

/// What was done in a phase; leave out what does not apply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Last height concerned; it is also printed.
    pub height: Option<u32>,
    /// Blocks handled.
    pub blocks: Option<u64>,
    /// Rows written or indexed.
    pub rows: Option<u64>,
    /// Bytes of blocks read, or of the index built.
    pub bytes: Option<u64>,
    /// Share of prevouts found in the UTXO cache, 0 to 1.
    pub cache_hit_ratio: Option<f64>,
    /// Further figures.
    pub detail: Option<serde_json::Value>,
}

/// A row for `ops.phases`.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseRow {
    /// The run: its start, microseconds since 1970.
    pub run_id: i64,
    /// Text of the line, without its time.
    pub phase: String,
    /// When it began.
    pub started: SystemTime,
    /// How long it took.
    pub seconds: f64,
    /// What was done.
    pub figures: Figures,
    /// Largest resident memory of the process so far, bytes.
    pub peak_rss_bytes: Option<u64>,
    /// CPU time of the process in the phase, seconds.
    pub cpu_seconds: f64,
}

impl Profile {
    /// Starts the clock of the run.
    #[must_use]
    pub fn start() -> Profile {
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let log_too = !stderr.is_terminal() && !is_same_file(&stdout, &stderr);
        Profile {
            is_quiet: false,
            start: Instant::now(),
            started: SystemTime::now(),
            log_too,
            board: Board::default(),
            steps: Arc::default(),
        }
    }

    /// Starts the clock of a run that prints nothing: phases are only recorded.
    #[must_use]
    pub fn quiet() -> Profile {
        Profile { is_quiet: true, ..Profile::start() }
    }

    /// What `satgres status` is told of the run.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Counts a step that no failure can undo any more: a segment loaded, an index built, a segment attached.
    pub fn step_done(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Steps done in this run.
    #[must_use]
    pub fn steps_done(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Start of the run, microseconds since 1970: its number in `ops.phases`.
    #[must_use]
    pub fn run_id(&self) -> i64 {
        let since = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    /// Time since the start of the run.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Begins a phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase { start: Instant::now(), started: SystemTime::now(), cpu: cpu_time() }
    }

    /// Prints a milestone with the time since the start of the run, such as `Entered LIVE sync from start state`.
    pub fn reached(&self, text: &str, figures: Figures) -> PhaseRow {
        let whole = Phase { start: self.start, started: self.started, cpu: Duration::ZERO };
        self.ended(&whole, text, figures)
    }

    /// Prints a phase with the time it took, such as `Restored table indexes`.
    pub fn ended(&self, phase: &Phase, text: &str, figures: Figures) -> PhaseRow {
        let took = phase.start.elapsed();
        self.print(&line(text, took, figures.height));
        PhaseRow {
            run_id: self.run_id(),
            phase: text.to_owned(),
            started: phase.started,
            seconds: took.as_secs_f64(),
            figures,
            peak_rss_bytes: peak_rss_bytes(),
            cpu_seconds: cpu_time().saturating_sub(phase.cpu).as_secs_f64(),
        }
    }

    /// Prints a phase whose time was summed from parts, such as `Restored constraints`.
    pub fn took(&self, took: Duration, text: &str, figures: Figures) -> PhaseRow {
        self.print(&line(text, took, figures.height));
        PhaseRow {
            run_id: self.run_id(),
            phase: text.to_owned(),
            started: SystemTime::now() - took,
            seconds: took.as_secs_f64(),
            figures,
            peak_rss_bytes: peak_rss_bytes(),
            cpu_seconds: 0.0,
        }
    }

    fn print(&self, line: &str) {
        if self.is_quiet {
            return;
        }
        // Whoever closed standard output does not want the line; the work goes on.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
        if self.log_too {
            info!(target: "profile", "{line}");
        }
    }
}

/// The line: seconds rounded down, minutes from one minute on, the height where there is one.
fn line(text: &str, time: Duration, height: Option<u32>) -> String {
    let seconds = time.as_secs();
    let minutes = if seconds >= 60 { format!(" ({}m)", seconds / 60) } else { String::new() };
    let height = height.map(|height| format!(" {height}")).unwrap_or_default();
    format!("PROFILE: {text}: {seconds} s{minutes}{height}")
}

impl PhaseRow {
    /// Inserts the row. Where the server went away meanwhile the row waits for the next one that is recorded; any other
    /// failure is logged and costs no more than the row.
    pub async fn record(&self, client: &Client) {
        let mut rows = std::mem::take(&mut *UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner));
        rows.push(self.clone());
        let mut left = Vec::new();
        for row in rows {
            // Behind one that could not be written the others wait, too.
            match if left.is_empty() {
                row.insert(client).await
            } else {
                left.push(row);
                continue;
            } {
                Ok(()) => {}
                Err(error) if trouble(&error).is_some() => left.push(row),
                Err(error) => {
                    tracing::warn!(phase = row.phase, %error, "a row of ops.phases was not written")
                }
            }
        }
        let mut unwritten = UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
        left.append(&mut unwritten);
        left.truncate(UNWRITTEN_MAX);
        *unwritten = left;
    }

    /// Inserts the row.
    ///
    /// # Errors
    /// The server's.
    pub async fn insert(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let sql = "insert into ops.phases (run_id, phase, started, seconds, height, blocks, rows, bytes,
                       peak_rss_bytes, cache_hit_ratio, cpu_seconds, detail)
                   values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb)";
        let big = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
        let figures = &self.figures;
        let height = figures.height.and_then(|height| i32::try_from(height).ok());
        let detail = figures.detail.as_ref().map(ToString::to_string);
        client
            .execute(
                sql,
                &[
                    &self.run_id,
                    &self.phase,
                    &self.started,
                    &self.seconds,
                    &height,
                    &big(figures.blocks),
                    &big(figures.rows),
                    &big(figures.bytes),
                    &big(self.peak_rss_bytes),
                    &figures.cache_hit_ratio,
                    &self.cpu_seconds,
                    &detail,
                ],
            )
            .await?;
        Ok(())
    }
}

/// Whether two open files are one.
fn is_same_file(one: &impl AsFd, other: &impl AsFd) -> bool {
    let identity = |file: &dyn Fn() -> std::io::Result<std::os::fd::OwnedFd>| {
        let file = std::fs::File::from(file().ok()?);
        let found = file.metadata().ok()?;
        Some((found.dev(), found.ino()))
    };
    let one = identity(&|| one.as_fd().try_clone_to_owned());
    let other = identity(&|| other.as_fd().try_clone_to_owned());
    one.is_some() && one == other
}

/// CPU time of this process so far, user and system.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the structure; all zeros are valid where it fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime].into_iter().map(duration).sum()
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default())
}

/// Largest resident memory of this process so far, bytes.
#[must_use]
pub fn peak_rss_bytes() -> Option<u64> {
    parse_peak_rss(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_peak_rss(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_an_interface() {
        let at = |text: &str, seconds: f64, height| line(text, Duration::from_secs_f64(seconds), height);
        assert_eq!(
            at("Entered REINDEX sync from start state", 2.99, None),
            "PROFILE: Entered REINDEX sync from start state: 2 s"
        );
        assert_eq!(
            at("Entering LIVE sync, creating indexes/constraints as needed", 609.0, None),
            "PROFILE: Entering LIVE sync, creating indexes/constraints as needed: 609 s (10m)"
        );
        assert_eq!(
            at("Restored table indexes", 10084.9, None),
            "PROFILE: Restored table indexes: 10084 s (168m)"
        );
        assert_eq!(at("Restored constraints", 0.4, None), "PROFILE: Restored constraints: 0 s");
        assert_eq!(
            at("Entered LIVE sync from start state", 15684.2, Some(840_000)),
            "PROFILE: Entered LIVE sync from start state: 15684 s (261m) 840000"
        );
        assert_eq!(at("x", 59.999, Some(0)), "PROFILE: x: 59 s 0");
        assert_eq!(at("x", 60.0, None), "PROFILE: x: 60 s (1m)");
        assert_eq!(at("x", 119.999, None), "PROFILE: x: 119 s (1m)");
    }

    #[test]
    fn a_phase_is_a_row_of_its_own_time() {
        let profile = Profile { log_too: false, ..Profile::start() };
        let phase = profile.phase();
        let began = Instant::now();
        let mut spun = 0_u64;
        while began.elapsed() < Duration::from_millis(30) {
            spun = std::hint::black_box(spun + 1);
        }
        let figures = Figures { height: Some(420), blocks: Some(421), ..Figures::default() };
        let row = profile.ended(&phase, "Loaded segment 0", figures.clone());
        assert_eq!(
            (row.phase.as_str(), row.run_id, row.figures),
            ("Loaded segment 0", profile.run_id(), figures)
        );
        assert!(
            row.seconds >= 0.03 && row.cpu_seconds > 0.0 && row.cpu_seconds < 10.0,
            "{}",
            row.cpu_seconds
        );
        assert!(row.peak_rss_bytes.unwrap() > 1 << 20);
        assert!(profile.reached("x", Figures::default()).seconds >= row.seconds);
    }

    #[test]
    fn peak_memory_is_read_from_the_kernels_table() {
        assert_eq!(parse_peak_rss("Name:\tx\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n"), Some(12_641_280));
        assert_eq!(parse_peak_rss("Name:\tx\n"), None);
    }

    #[test]
    fn two_handles_of_one_file_are_the_same_and_two_files_are_not() {
        let (one, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        assert!(is_same_file(&one, &one.try_clone().unwrap()));
        assert!(!is_same_file(&one, &other));
    }
}

//! Kills at times that nobody chose: SIGKILL of satgres, of the postmaster, of any backend; then the same command again.
//!
//! A first, uninterrupted run gives the digest, the seconds and the disk use. Then each kill has a run of its own from an
//! empty database. In the ordinary test run: six kills on a small chain. `SATGRES_KILL_MATRIX=20,20` makes it so many of
//! satgres and of PostgreSQL, `SATGRES_KILL_CHAIN=DIR` takes another regtest chain, `SATGRES_KILL_BINARY=FILE` another
//! binary (a release build), `SATGRES_KILL_SEGMENT=SIZE` another segment size. One line a kill goes to standard output:
//!
//! ```text
//! kill of | at second | phase hit | first new row after, s | segments redone | whole after, s | disk, % | result
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use satgres::chaingen::{Options, generate};
use support::{Running, Satgres, is_postgres, wait_until};
use tempfile::TempDir;

/// What the disk use may differ by from that of an uninterrupted run: catalogues, and how indexes happen to split.
const DISK_PERCENT_MAX: f64 = 5.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Satgres,
    Postmaster,
    Backend,
}

struct Matrix {
    chain: PathBuf,
    segment_bytes: String,
    /// Keeps a generated chain.
    _dir: Option<TempDir>,
    victims: Vec<Victim>,
}

impl Matrix {
    fn from_environment() -> Matrix {
        let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let counts = set("SATGRES_KILL_MATRIX").unwrap_or_else(|| "3,3".to_owned());
        let (satgres, postgres) = counts.split_once(',').expect("SATGRES_KILL_MATRIX=N,M");
        let count = |text: &str| text.trim().parse::<usize>().expect("SATGRES_KILL_MATRIX=N,M");
        let mut victims = vec![Victim::Satgres; count(satgres)];
        victims.extend((0..count(postgres)).map(|at| match at % 3 {
            0 => Victim::Postmaster,
            _ => Victim::Backend,
        }));
        let (chain, dir, segment_bytes) = match set("SATGRES_KILL_CHAIN") {
            Some(chain) => (std::path::absolute(chain).unwrap(), None, "64MiB"),
            None => {
                let dir = TempDir::new().unwrap();
                let options =
                    Options { blocks: 400, txs_per_block: 80, seed: 29, out: dir.path().to_owned() };
                let mix = generate(&options).unwrap();
                assert!(mix.transactions > 20_000, "{mix}");
                (dir.path().to_owned(), Some(dir), "1500KiB")
            }
        };
        let segment_bytes = set("SATGRES_KILL_SEGMENT").unwrap_or_else(|| segment_bytes.to_owned());
        Matrix { chain, segment_bytes, _dir: dir, victims }
    }

    fn start(&self, satgres: &Satgres) -> Running {
        Running::run(satgres, &self.chain, &["--segment-bytes", &self.segment_bytes])
    }
}

/// What a kill came to.
enum Outcome {
    Whole,
    /// The run had ended before: after so many seconds.
    TooLate(f64),
}

/// What an uninterrupted run gives.
struct Whole {
    seconds: f64,
    digest: Vec<String>,
    disk_bytes: u64,
}

/// Numbers that are the same every time, spread evenly over 0 to 1.
fn spread(at: usize) -> f64 {
    // The golden ratio's multiples leave no gap.
    ((at as f64 + 0.5) * 0.618_033_988_749_895).fract()
}

/// Bytes of the database's files and of the UTXO set, after what is on its way there has arrived.
fn disk_bytes(satgres: &Satgres) -> u64 {
    let _ = satgres.command(&["psql", "--", "-X", "-q", "-c", "checkpoint"]);
    // The first file of a table that was dropped stays until the next checkpoint.
    let _ = satgres.command(&["psql", "--", "-X", "-q", "-c", "checkpoint"]);
    blocks_below(&satgres.data_dir().join("pg/base")) + blocks_below(&satgres.data_dir().join("coins"))
}

fn blocks_below(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => blocks_below(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// The last thing that a run said it was at.
fn phase(said: &str) -> String {
    let marks = [
        ("scanned the headers", "start"),
        ("PostgreSQL started", "install"),
        ("functions and views installed", "reconcile"),
        ("PROFILE: Resumed the UTXO set", "load"),
        ("PROFILE: Entered REINDEX sync", "load of segment 0"),
        ("PROFILE: Entering LIVE sync", "restore"),
        ("PROFILE: Restored constraints", "statistics"),
        ("PROFILE: Analyzed tables", "entering LIVE"),
        ("PROFILE: Entered LIVE sync", "after its end"),
    ];
    let mut phase = "before the scan".to_owned();
    for line in said.lines() {
        if let Some((mark, name)) = marks.iter().find(|(mark, _)| line.contains(mark)) {
            let is_restart = *mark == "PostgreSQL started" && phase == "entering LIVE";
            if !is_restart {
                (*name).clone_into(&mut phase);
            }
        }
        if let Some(rest) = line.split("PROFILE: Loaded segment ").nth(1) {
            let id: u32 = rest.split(':').next().unwrap().parse().unwrap();
            phase = format!("load of segment {}", id + 1);
        }
        if line.contains("PROFILE: Attached segment ") && phase == "restore" {
            "restore (after an attach)".clone_into(&mut phase);
        }
    }
    phase
}

/// Process ids of the children of the postmaster that serve this data directory.
fn backends(satgres: &Satgres) -> Vec<i32> {
    let Some(postmaster) = postmaster(satgres) else { return Vec::new() };
    let children = fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
    children.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn postmaster(satgres: &Satgres) -> Option<i32> {
    let text = fs::read_to_string(satgres.data_dir().join("pg/postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok().filter(|pid| is_postgres(*pid))
}

fn kill(pid: i32) {
    // SAFETY: a process that this test's own server started; one that has ended meanwhile is no matter.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Segments whose load was begun again.
fn redone(said: &str) -> usize {
    let dropped = said.lines().filter(|line| line.contains("dropped segments whose load was interrupted"));
    dropped
        .map(|line| {
            let count = line.split("count").nth(1).unwrap_or_default();
            let digits: String =
                count.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
            digits.parse::<usize>().unwrap_or(1)
        })
        .sum()
}

#[test]
fn after_any_kill_the_same_command_goes_on() {
    let matrix = Matrix::from_environment();
    let satgres = Satgres::new();
    assert!(satgres.command(&["pg", "start"]).status.success());
    let run = matrix.start(&satgres);
    let began = Instant::now();
    let (status, said) = run.wait();
    assert!(status.success(), "{said}");
    let mut whole = Whole {
        seconds: began.elapsed().as_secs_f64(),
        digest: satgres.digest(),
        disk_bytes: disk_bytes(&satgres),
    };
    println!(
        "uninterrupted: {:.1} s, {} segments, {} bytes on disk",
        whole.seconds,
        // The log, on the other stream, repeats the lines.
        said.lines().filter(|line| line.starts_with("PROFILE: Loaded segment ")).count(),
        whole.disk_bytes
    );
    println!(
        "kill of | at second | phase hit | first new row after, s | segments redone | whole after, s | disk, % | result"
    );
    let mut failures = Vec::new();
    for (at, victim) in matrix.victims.iter().enumerate() {
        loop {
            // As before the first run: a server that runs, with its settings for the replay, and no chain.
            let satgres = Satgres::new();
            assert!(satgres.command(&["pg", "start"]).status.success());
            match once(&matrix, &satgres, &whole, *victim, spread(at) * whole.seconds, at) {
                Ok(Outcome::Whole) => break,
                // The machine had more to do when the first run was measured.
                Ok(Outcome::TooLate(seconds)) => whole.seconds = seconds,
                Err(failure) => {
                    println!("{victim:?} | FAILED: {failure}");
                    failures.push(failure);
                    break;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// One kill and what follows.
fn once(
    matrix: &Matrix,
    satgres: &Satgres,
    whole: &Whole,
    victim: Victim,
    at_seconds: f64,
    number: usize,
) -> Result<Outcome, String> {
    let mut run = matrix.start(satgres);
    while run.elapsed().as_secs_f64() < at_seconds && run.is_running() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let at = run.elapsed().as_secs_f64();
    if !run.is_running() {
        return Ok(Outcome::TooLate(at.min(at_seconds)));
    }
    let hit = phase(&run.said());
    let before = run.said();
    let killed = Instant::now();
    let mut name = format!("{victim:?}");
    let mut killed_at = run.elapsed();
    match victim {
        Victim::Satgres => {
            run.kill();
            run = matrix.start(satgres);
            killed_at = Duration::ZERO;
        }
        Victim::Postmaster => postmaster(satgres).into_iter().for_each(kill),
        Victim::Backend => {
            let backends = backends(satgres);
            if !backends.is_empty() {
                let pid = backends[number % backends.len()];
                let title = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                name = format!("Backend ({})", title.trim_end_matches('\0').trim());
                kill(pid);
            }
        }
    }
    // The same process goes on, or the same command was started again.
    while run.is_running() {
        std::thread::sleep(Duration::from_millis(5));
        if killed.elapsed().as_secs_f64() > 240.0 + 20.0 * whole.seconds {
            return Err(format!("{name} at {at:.1} s ({hit}): it does not end:\n{}", run.said()));
        }
    }
    let first_row = run.first_rows_after(killed_at);
    let (status, said) = run.wait();
    let seconds = killed.elapsed().as_secs_f64();
    let redone = redone(&said);
    let fail = |what: String| Err(format!("{name} at {at:.1} s ({hit}): {what}\n{before}\n---\n{said}"));
    if !status.success() {
        return fail(status.to_string());
    }
    if satgres.digest() != whole.digest {
        return fail("the digest differs".to_owned());
    }
    if redone > 1 {
        return fail(format!("{redone} segments were loaded again"));
    }
    let invalid = satgres.value("select count(*) from pg_index where not indisvalid");
    if invalid != "0" {
        return fail(format!("{invalid} invalid indexes"));
    }
    let orphans = "select count(*) from pg_stat_activity where application_name like 'satgres run%'";
    wait_until("the backends of the run have ended", || satgres.value(orphans) == "0");
    let percent = 100.0 * (disk_bytes(satgres) as f64 / whole.disk_bytes as f64 - 1.0);
    let first_row = first_row.map_or_else(|| "-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()));
    println!("{name} | {at:.1} | {hit} | {first_row} | {redone} | {seconds:.1} | {percent:+.1} | whole");
    if percent.abs() > DISK_PERCENT_MAX {
        return fail(format!("disk use differs by {percent:+.1} %"));
    }
    Ok(Outcome::Whole)
}

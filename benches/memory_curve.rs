//! The memory curve: how much slower a replay is when the UTXO cache holds a half, a tenth or nothing of the set.
//!
//! `cargo bench --bench memory_curve` replays a million transactions in 12 segments or more, with every budget in each
//! round. The budgets are shares of the largest number of coins at any height, 40 bytes each; since a table within a
//! budget fills seven eighths of its slots, 100 % is not quite everything, and a run without a bound stands beside it.
//! Then once more with what the plan chooses inside a cgroup whose limit is a quarter of the database's size: service,
//! server and page cache together. The last line is for programs.

#![allow(missing_docs, unreachable_pub)]

#[path = "../tests/support/cgroup.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "made for tests, which use more of it")]
mod cgroup;
mod harness;
mod lab;

use std::path::PathBuf;

use anyhow::Context as _;
use cgroup::MemoryCgroup;
use clap::Parser;
use harness::stats::{median, median_ratio};
use lab::replayed::{Replayed, replay};
use lab::{Chain, Lab};

/// Bytes of a coin in the cache.
const COIN_BYTES: u64 = 40;
/// Budgets in percent of the whole set; the first is what the others are compared with.
const PERCENTS: [u64; 4] = [100, 50, 10, 0];

/// With less memory than this nothing is worth measuring; the plan wants 512 MiB.
const LIMIT_BYTES_MIN: u64 = 256 << 20;

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Replays a generated chain with less and less UTXO cache", disable_version_flag = true)]
struct Options {
    /// Transactions of the chain, about.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    txs: u64,
    /// Rounds, each with all budgets.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Segments that the chain is cut into.
    #[arg(long, value_name = "N", default_value_t = 12)]
    segments: u64,
    /// Budgets to measure, percent; the first is what the others are compared with.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = PERCENTS)]
    percents: Vec<u64>,
    /// Runs once with what the plan chooses, as a member of the cgroup with this `cgroup.procs`; prints one line.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if let Some(procs) = &options.inside {
        return inside(&options, procs).await;
    }
    harness::machine::print_warnings();
    let chain = Chain::of(options.txs)?;
    let lab = Lab::open().await?;
    let mut replay_options = lab.replay_options(&chain, chain.bytes / options.segments);
    replay_options.utxos.cache_bytes_max = None;
    let whole = replay(&lab, &replay_options).await?;
    let coins = lab.coins_max().await?;
    println!(
        "{} transactions, {} MB of blocks; at most {coins} coins, {} MB",
        chain.txs,
        chain.bytes / 1_000_000,
        coins * COIN_BYTES / 1_000_000
    );
    println!(
        "\n| round | budget | load | restore | all | CPU: service | server | hit ratio | waiting | passes | in passes | written | read |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut rounds: Vec<Vec<Replayed>> = Vec::new();
    for round in 0..options.rounds {
        let mut these = Vec::new();
        replay_options.utxos.cache_bytes_max = None;
        let unbounded = replay(&lab, &replay_options).await?;
        print_line(&format!("{} | no bound", round + 1), &unbounded);
        for percent in options.percents.iter().copied() {
            replay_options.utxos.cache_bytes_max = Some(coins * COIN_BYTES * percent / 100);
            let replayed = replay(&lab, &replay_options).await?;
            print_line(&format!("{} | {percent} %", round + 1), &replayed);
            these.push(replayed);
        }
        these.push(unbounded);
        rounds.push(these);
    }
    lab.close().await?;
    let limited = within_a_quarter(&options, whole.all_bytes as u64)?;
    let seconds = |at: usize| median(rounds.iter().map(|round| round[at].round.total_seconds()));
    println!();
    for (at, percent) in options.percents.iter().enumerate() {
        println!("median at {percent} %: {:.2} s", seconds(at));
    }
    let ratio = |at: usize, base: usize| {
        let seconds = |round: &Vec<Replayed>, at: usize| round[at].round.total_seconds();
        median_ratio(rounds.iter().map(|round| (seconds(round, at), seconds(round, base))))
    };
    let unbounded = options.percents.len();
    println!("median without a bound: {:.2} s", seconds(unbounded));
    for (at, percent) in options.percents.iter().enumerate() {
        println!("{percent} % against no bound: {:.3}", ratio(at, unbounded));
    }
    if let Some(limited) = limited {
        println!("in the cgroup: {limited:.2} s, {:.3} times the first median", limited / seconds(0));
    }
    let slowdowns: Vec<String> = (1..options.percents.len())
        .map(|at| format!("slowdown_{}={:.3}", options.percents[at], ratio(at, 0)))
        .collect();
    println!("{}", slowdowns.join(" "));
    Ok(())
}

/// Runs this program once more, with its server, inside a cgroup; returns the seconds, or `None` where there are no
/// cgroups.
fn within_a_quarter(options: &Options, database_bytes: u64) -> anyhow::Result<Option<f64>> {
    let limit_bytes = database_bytes / 4;
    if limit_bytes < LIMIT_BYTES_MIN {
        println!(
            "SKIPPED: a quarter of the database is {} MB, too little for any server",
            limit_bytes / 1_000_000
        );
        return Ok(None);
    }
    let Some(cgroup) = MemoryCgroup::new(limit_bytes) else { return Ok(None) };
    let watch = cgroup.watch();
    let mut child = std::process::Command::new(std::env::current_exe()?);
    child.args(["--txs", &options.txs.to_string(), "--segments", &options.segments.to_string(), "--inside"]);
    let output = child.arg(cgroup.procs()).stderr(std::process::Stdio::inherit()).output()?;
    let counted = watch.end();
    anyhow::ensure!(output.status.success(), "the run in the cgroup: {}", output.status);
    let said = String::from_utf8(output.stdout)?;
    let (lines, seconds) = said.trim_end().rsplit_once("seconds=").context("the run says its seconds")?;
    print!("{lines}");
    println!(
        "in the cgroup of {} MB: at most {} MB that cannot be reclaimed, {} killed",
        limit_bytes / 1_000_000,
        counted.unreclaimable_bytes_max / 1_000_000,
        counted.oom_kills
    );
    Ok(Some(seconds.parse()?))
}

/// What the child does.
async fn inside(options: &Options, procs: &std::path::Path) -> anyhow::Result<()> {
    std::fs::write(procs, std::process::id().to_string())?;
    let chain = Chain::of(options.txs)?;
    let lab = Lab::open().await?;
    let replay_options = lab.replay_options(&chain, chain.bytes / options.segments);
    let replayed = replay(&lab, &replay_options).await?;
    let budget = lab.plan.utxo_cache_bytes / 1_000_000;
    print_line(&format!("in {} MB | {budget} MB", lab.plan.ram_bytes / 1_000_000), &replayed);
    println!("seconds={}", replayed.round.total_seconds());
    lab.close().await
}

fn print_line(name: &str, replayed: &Replayed) {
    let Replayed { round: times, utxos, .. } = replayed;
    println!(
        "| {name} | {:.2} s | {:.2} s | {:.2} s | {:.2} s | {:.2} s | {:.3} | {} | {} | {:.2} s | {:.0} MB | {:.0} MB |",
        times.load_seconds,
        times.restore_seconds,
        times.total_seconds(),
        times.cpu.service_seconds,
        times.cpu.server_seconds,
        utxos.hit_ratio(),
        utxos.waited,
        utxos.settlements,
        utxos.settlement_seconds,
        utxos.written_bytes as f64 / 1e6,
        utxos.read_bytes as f64 / 1e6,
    );
}

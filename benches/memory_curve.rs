//! The memory curve: how much slower a replay is when the UTXO cache holds a half, a tenth or nothing of the set.
//!
//! `cargo bench --bench memory_curve` replays a million transactions in 12 segments or more, with every budget in each
//! round. The budgets are shares of the largest number of coins at the end of any segment, 40 bytes each. The last line
//! is for programs.

#![allow(missing_docs, unreachable_pub)]

mod harness;
mod lab;

use clap::Parser;
use harness::stats::{median, median_ratio};
use lab::replayed::{Replayed, replay};
use lab::{Chain, Lab};

/// Bytes of a coin in the cache.
const COIN_BYTES: u64 = 40;
/// Budgets in percent of the whole set; the first is what the others are compared with.
const PERCENTS: [u64; 4] = [100, 50, 10, 0];

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
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    for warning in harness::machine::warnings() {
        println!("Warning: {warning}");
    }
    let chain = Chain::of(options.txs)?;
    let lab = Lab::open().await?;
    let mut replay_options = lab.replay_options(&chain, chain.bytes / options.segments);
    replay_options.utxos.cache_bytes_max = None;
    let whole = replay(&lab, &replay_options).await?;
    let coins = whole.utxos.coins_max as u64;
    println!(
        "{} transactions, {} MB of blocks; at most {coins} coins, {} MB",
        chain.txs,
        chain.bytes / 1_000_000,
        coins * COIN_BYTES / 1_000_000
    );
    println!(
        "\n| round | budget | load | restore | all | hit ratio | waiting | passes | in passes | written | read |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut rounds: Vec<Vec<Replayed>> = Vec::new();
    for round in 0..options.rounds {
        let mut these = Vec::new();
        for percent in PERCENTS {
            replay_options.utxos.cache_bytes_max = Some(coins * COIN_BYTES * percent / 100);
            let replayed = replay(&lab, &replay_options).await?;
            print_line(round + 1, percent, &replayed);
            these.push(replayed);
        }
        rounds.push(these);
    }
    lab.close().await?;
    let seconds = |at: usize| median(rounds.iter().map(|round| round[at].round.total_seconds()));
    println!();
    for (at, percent) in PERCENTS.iter().enumerate() {
        println!("median at {percent} %: {:.2} s", seconds(at));
    }
    let slowdown = |at: usize| {
        median_ratio(
            rounds.iter().map(|round| (round[at].round.total_seconds(), round[0].round.total_seconds())),
        )
    };
    println!("slowdown_50={:.3} slowdown_10={:.3} slowdown_0={:.3}", slowdown(1), slowdown(2), slowdown(3));
    Ok(())
}

fn print_line(round: usize, percent: u64, replayed: &Replayed) {
    let Replayed { round: times, utxos, .. } = replayed;
    println!(
        "| {round} | {percent} % | {:.2} s | {:.2} s | {:.2} s | {:.3} | {} | {} | {:.2} s | {:.0} MB | {:.0} MB |",
        times.load_seconds,
        times.restore_seconds,
        times.total_seconds(),
        utxos.hit_ratio(),
        utxos.waited,
        utxos.settlements,
        utxos.settlement_seconds,
        utxos.written_bytes as f64 / 1e6,
        utxos.read_bytes as f64 / 1e6,
    );
}

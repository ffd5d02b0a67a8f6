//! Whether the time for a transaction stays the same as the chain grows.
//!
//! `cargo bench --bench scaling` replays chains of 125,000 to a million transactions, in segments of the same size, and
//! fits the complexity of load and restore together.

#![allow(missing_docs, unreachable_pub)]

mod harness;
mod lab;

use clap::Parser;
use harness::fit::{Point, fit};
use harness::report;
use harness::stats::median;
use lab::replayed::replay;
use lab::{Chain, Lab};

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Replays generated chains of several sizes", disable_version_flag = true)]
struct Options {
    /// Transactions of the chains, about.
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "125000,250000,500000,1000000"
    )]
    txs: Vec<u64>,
    /// Rounds of each size, alternating.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Bytes of blocks in a segment.
    #[arg(long, value_name = "BYTES", default_value_t = 64_000_000)]
    segment_bytes: u64,
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    harness::machine::print_warnings();
    let chains = options.txs.iter().map(|&txs| Chain::of(txs)).collect::<anyhow::Result<Vec<_>>>()?;
    let lab = Lab::open().await?;
    let mut seconds = vec![Vec::new(); chains.len()];
    let mut cpu = vec![Vec::new(); chains.len()];
    for _ in 0..options.rounds {
        for (at, chain) in chains.iter().enumerate() {
            let replayed = replay(&lab, &lab.replay_options(chain, options.segment_bytes)).await?;
            seconds[at].push(replayed.round.total_seconds());
            cpu[at].push(replayed.round.cpu.seconds());
        }
    }
    lab.close().await?;
    println!("\n| transactions | load and restore | us/tx | core-us/tx |\n|---|---|---|---|");
    let mut points = Vec::new();
    for ((chain, seconds), cpu) in chains.iter().zip(seconds).zip(cpu) {
        let (txs, seconds, cpu) = (chain.txs as f64, median(seconds), median(cpu));
        println!("| {} | {seconds:.2} s | {:.2} | {:.2} |", chain.txs, seconds / txs * 1e6, cpu / txs * 1e6);
        points.push(Point { n: txs, seconds });
    }
    let fits = fit(&points);
    print!("{}", report::fits("load and restore", &fits));
    let per_tx = |point: &Point| point.seconds / point.n;
    let (first, last) = (points.first().expect("a size"), points.last().expect("a size"));
    println!(
        "best_fit={} us_per_tx_last_to_first={:.3}",
        fits[0].name.replace(' ', ""),
        per_tx(last) / per_tx(first)
    );
    Ok(())
}

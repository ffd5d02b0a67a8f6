//! The replay beside its floor: what PostgreSQL itself needs for rows that are ready made.
//!
//! `cargo bench --bench replay` takes a million transactions, `-- --quick` less than two minutes. Both sides use the same
//! server, settings, tables, segments and schedule of index builds, and take turns; ratios are medians over the rounds.
//! The last line is for programs: `key=value` pairs.

#![allow(missing_docs, unreachable_pub)]

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../lab/mod.rs"]
mod lab;

mod floor;
mod psql;
mod ready;
mod report;

use clap::Parser;
use lab::replayed::replay_sampled;
use lab::{Chain, Changes, Lab, lookups};
use ready::ReadyRows;

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Replays a generated chain beside COPY of ready-made rows", disable_version_flag = true)]
struct Options {
    /// Transactions of the chain, about.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    txs: u64,
    /// A tenth of the transactions, three rounds: less than two minutes.
    #[arg(long)]
    quick: bool,
    /// Rounds of both sides, alternating.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Segments that the chain is cut into.
    #[arg(long, value_name = "N", default_value_t = 8)]
    segments: u64,
    /// Leaves out the floor with one big segment and psql's \copy.
    #[arg(long)]
    no_extras: bool,
    #[command(flatten)]
    changes: Changes,
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut options = Options::parse();
    if options.quick {
        (options.txs, options.rounds) = (options.txs / 10, options.rounds.min(3));
    }
    harness::machine::print_warnings();
    let chain = Chain::of(options.txs)?;
    let lab = Lab::open_with(&options.changes).await?;
    let replay_options = lab.replay_options(&chain, chain.bytes / options.segments + 1);
    eprintln!("making the rows that the floor sends");
    let rows = ReadyRows::make(&replay_options).await?;
    report::head(&chain, &rows, &lab);

    let (mut rounds, mut latencies) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        // Who begins changes with every round.
        let mut floor = None;
        if round % 2 == 0 {
            floor = Some(floor::run(&lab, &rows, &replay_options).await?);
        }
        let product = replay_sampled(&lab, &replay_options).await?;
        let client = lab.pool()?.get().await?;
        client.batch_execute("vacuum analyze chain.transactions, chain.outputs, chain.inputs").await?;
        let mut measured = lookups::measure(&client, &lookups::all()).await?;
        measured.push(("type of a script", lookups::script_type(&client).await?));
        latencies.push(measured);
        drop(client);
        let floor = match floor {
            Some(floor) => floor,
            None => floor::run(&lab, &rows, &replay_options).await?,
        };
        report::round(round, &floor, &product.round);
        rounds.push((floor, product));
    }
    let mut extras = Vec::new();
    if !options.no_extras {
        let whole = rows.as_one_segment();
        extras.push(("floor, one big segment", floor::run(&lab, &whole, &replay_options).await?));
        extras.push(("psql \\copy of the same bytes", psql::run(&lab, &rows, &replay_options).await?));
    }
    lab.close().await?;
    report::summary(&chain, &rows, &rounds, &extras, &latencies);
    Ok(())
}

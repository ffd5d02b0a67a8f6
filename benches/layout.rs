//! Other orders of rows, and other fill factors of index pages: what they cost when indexes are built, and what they
//! give when rows are looked up.
//!
//! `cargo bench --bench layout` loads a million transactions in one segment, then copies its outputs, those that address
//! look-ups read, in several orders and builds their two indexes one after the other, in turns.

#![allow(missing_docs, unreachable_pub)]

mod harness;
mod lab;

use std::time::Instant;

use clap::Parser;
use harness::stats::median;
use lab::ChainArgs;
use lab::lookups::{self, Latencies};
use lab::replayed::replay;
use tokio_postgres::Client;

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Builds the indexes of outputs in several orders of rows", disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    chain: ChainArgs,
    /// Rounds of each layout, alternating.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
}

/// How the copy of the outputs is laid out.
struct Layout {
    name: &'static str,
    order: &'static str,
    fillfactor: u32,
}

/// The first is what satgres does. A batch is about eight blocks of this chain.
const LAYOUTS: [Layout; 4] = [
    Layout { name: "chain order, full pages", order: "tx_num, vout", fillfactor: 100 },
    Layout { name: "chain order, pages 90 % full", order: "tx_num, vout", fillfactor: 90 },
    Layout {
        name: "by script within a batch",
        order: "chain.height(tx_num) / 8, script_hash, tx_num, vout",
        fillfactor: 100,
    },
    Layout { name: "by script", order: "script_hash, tx_num, vout", fillfactor: 100 },
];

/// What a layout took and gave.
struct Tried {
    copy_seconds: f64,
    key_seconds: f64,
    script_seconds: f64,
    index_bytes: f64,
    latencies: Latencies,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let (chain, lab) = options.chain.open().await?;
    replay(&lab, &lab.replay_options(&chain, u64::MAX)).await?;
    let pool = lab.pool()?;
    let client = pool.get().await?;
    client
        .batch_execute("set max_parallel_maintenance_workers = 0; set maintenance_work_mem = '8MB'")
        .await?;
    let mut tried: Vec<Vec<Tried>> = LAYOUTS.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (layout, tried) in LAYOUTS.iter().zip(&mut tried) {
            tried.push(try_layout(&client, layout).await?);
        }
    }
    drop(client);
    println!("{} transactions\n", chain.txs);
    println!(
        "| layout | copy, s | key, s | script index, s | both indexes | script, µs | outputs of a transaction, µs |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (layout, tried) in LAYOUTS.iter().zip(&tried) {
        let of = |figure: fn(&Tried) -> f64| median(tried.iter().map(figure));
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.0} MB | {:.0} | {:.0} |",
            layout.name,
            of(|tried| tried.copy_seconds),
            of(|tried| tried.key_seconds),
            of(|tried| tried.script_seconds),
            of(|tried| tried.index_bytes) / 1e6,
            of(|tried| tried.latencies[0].1),
            of(|tried| tried.latencies[1].1),
        );
    }
    lab.close().await
}

/// Copies the outputs, builds the indexes, looks up, and removes the copy.
async fn try_layout(client: &Client, layout: &Layout) -> anyhow::Result<Tried> {
    let Layout { order, fillfactor, .. } = layout;
    let copy = format!("create table public.tried as select * from chain.outputs order by {order}");
    let copy_seconds = timed(client, &copy).await?;
    client.batch_execute("vacuum (freeze, analyze) public.tried").await?;
    client.batch_execute("checkpoint").await?;
    let with = format!("with (fillfactor = {fillfactor})");
    let key = format!("create unique index on public.tried (tx_num, vout) {with}");
    let script = format!("create index on public.tried (script_hash, tx_num) {with}");
    let (key_seconds, script_seconds) = (timed(client, &key).await?, timed(client, &script).await?);
    let bytes: i64 = client.query_one("select pg_indexes_size('public.tried')", &[]).await?.get(0);
    let latencies = lookups::measure(client, &lookups::of_outputs("public.tried")).await?;
    client.batch_execute("drop table public.tried").await?;
    Ok(Tried { copy_seconds, key_seconds, script_seconds, index_bytes: bytes as f64, latencies })
}

async fn timed(client: &Client, statement: &str) -> anyhow::Result<f64> {
    let began = Instant::now();
    client.batch_execute(statement).await?;
    Ok(began.elapsed().as_secs_f64())
}

//! What the caches are worth by their size: the UTXO cache in a replay, the TxNumCache over the same chain.
//!
//! `cargo bench --bench caches` replays a million transactions with budgets of 0 to 100 % of the UTXO set, and looks up
//! the transaction of every spent output in caches of several numbers and sizes of buckets.

#![allow(missing_docs, unreachable_pub)]

mod harness;
mod lab;

use std::time::{Duration, Instant};

use bitcoin::consensus::deserialize;
use bitcoin::hashes::Hash;
use clap::Parser;
use harness::stats::median;
use lab::ChainArgs;
use lab::replayed::{Replayed, replay};
use satgres::prevouts::{FingerprintKey, TxNumCache};
use satgres::replay::{ReplayOptions, found};

const COIN_BYTES: u64 = 40;
const PERCENTS: [u64; 6] = [100, 50, 10, 5, 1, 0];

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Replays a generated chain with caches of several sizes", disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    chain: ChainArgs,
    /// Rounds, each with all sizes.
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: usize,
    /// Segments that the chain is cut into.
    #[arg(long, value_name = "N", default_value_t = 12)]
    segments: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let (chain, lab) = options.chain.open().await?;
    let mut replay_options = lab.replay_options(&chain, chain.bytes / options.segments);

    replay_options.utxos.cache_bytes_max = None;
    replay(&lab, &replay_options).await?;
    let coins = lab.coins_max().await?;
    let mut rounds: Vec<Vec<Replayed>> = vec![Vec::new(); PERCENTS.len()];
    for _ in 0..options.rounds {
        for (at, percent) in PERCENTS.iter().enumerate() {
            replay_options.utxos.cache_bytes_max = Some(coins * COIN_BYTES * percent / 100);
            rounds[at].push(replay(&lab, &replay_options).await?);
        }
    }
    lab.close().await?;
    println!("\n{} transactions, at most {coins} coins", chain.txs);
    println!(
        "\n| UTXO cache | load and restore | core-us/tx | hit ratio | waiting spends | passes | in passes | written | read |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (percent, replayed) in PERCENTS.iter().zip(&rounds) {
        let seconds = median(replayed.iter().map(|one| one.round.total_seconds()));
        let cpu = median(replayed.iter().map(|one| one.round.cpu.seconds())) / chain.txs as f64 * 1e6;
        let utxos = replayed.last().expect("a round").utxos;
        println!(
            "| {percent} % | {seconds:.2} s | {cpu:.2} | {:.3} | {} | {} | {:.2} s | {:.0} MB | {:.0} MB |",
            utxos.hit_ratio(),
            utxos.waited,
            utxos.settlements,
            utxos.settlement_seconds,
            utxos.written_bytes as f64 / 1e6,
            utxos.read_bytes as f64 / 1e6,
        );
    }
    txnum_caches(&replay_options).await
}

/// The transactions of a block: id, and the ids whose outputs it spends.
type BlockTxs = Vec<([u8; 32], Vec<[u8; 32]>)>;

async fn txnum_caches(options: &ReplayOptions) -> anyhow::Result<()> {
    let blocks = read_blocks(options).await?;
    println!(
        "\n| TxNumCache | bytes | all, s | hit ratio | misses | a look-up | an insert |\n|---|---|---|---|---|---|---|"
    );
    for buckets in [10, 100] {
        for bucket_size in [10_000, 25_000, 100_000] {
            let mut cache = TxNumCache::new(buckets, bucket_size, FingerprintKey::random()?);
            let (mut looking, mut inserting) = (Duration::ZERO, Duration::ZERO);
            let (mut look_ups, mut misses, mut inserts) = (0, 0_u32, 0);
            for (height, block) in (0_i64..).zip(&blocks) {
                let began = Instant::now();
                for spent in block.iter().flat_map(|(_, spent)| spent) {
                    misses += u32::from(std::hint::black_box(cache.get(spent)).is_none());
                    look_ups += 1;
                }
                looking += began.elapsed();
                let began = Instant::now();
                for (index, (txid, _)) in (0..).zip(block) {
                    cache.insert(txid, height << 16 | index);
                    inserts += 1;
                }
                inserting += began.elapsed();
            }
            println!(
                "| {buckets} x {bucket_size} | {:.1} MB | {:.2} | {:.3} | {misses} | {:.0} ns | {:.0} ns |",
                cache.allocated_bytes() as f64 / 1e6,
                (looking + inserting).as_secs_f64(),
                cache.hit_ratio().unwrap_or_default(),
                looking.as_nanos() as f64 / f64::from(look_ups),
                inserting.as_nanos() as f64 / f64::from(inserts),
            );
        }
    }
    Ok(())
}

async fn read_blocks(options: &ReplayOptions) -> anyhow::Result<Vec<BlockTxs>> {
    let chain = found::scan(options).await?.into_chain()?;
    let mut blocks = Vec::new();
    let mut raw = Vec::new();
    // The built-in genesis block has no file, and nothing spends it.
    for height in 1..=chain.active.tip_height() {
        let location = chain.location(height);
        raw.clear();
        chain.files.open_file(location.file)?.read_to(location.offset, location.len as usize, &mut raw)?;
        let block: bitcoin::Block = deserialize(&raw)?;
        let spent = |tx: &bitcoin::Transaction| {
            tx.input.iter().map(|input| input.previous_output.txid.to_byte_array()).collect()
        };
        // The block's own transactions come first in a look-up, so they count as hits of no cache.
        blocks.push(
            block.txdata.iter().skip(1).map(|tx| (tx.compute_txid().to_byte_array(), spent(tx))).collect(),
        );
    }
    Ok(blocks)
}

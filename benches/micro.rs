//! Micro benchmarks of what the replay does most: hashes, parsing, the UTXO cache, row encoding.
//!
//! `cargo bench --bench micro` runs all of them in less than ten seconds; `-- --help` lists the options. The blocks are
//! made anew each time, always the same ones.

#![allow(missing_docs, unreachable_pub)]

mod fixture;
mod harness;

use std::hint::black_box;

use clap::Parser;
use satgres::chain::batch::Batch;
use satgres::chain::block::{BlockContext, parse_block};
use satgres::chain::hash::{script_hash, sha256d, sha256d_parts};
use satgres::chain::merkle::merkle_root;
use satgres::network::Network;
use satgres::prevouts::{Coin, CoinTable, UtxoLimits, UtxoOptions, UtxoSet, resolve_batch};
use satgres::rows::{Encoded, Store, Table, encode_batch};
use satgres::source::blk::BlockFiles;
use satgres::source::scan::scan_file;

use harness::options::Options;
use harness::{OP, Runner, unit};

fn main() {
    let mut runner = Runner::new(Options::parse());
    hashes(&mut runner);
    let chain = fixture::Chain::make();
    blocks(&mut runner, &chain);
    coin_table(&mut runner);
    belt(&mut runner);
    runner.finish();
}

fn hashes(runner: &mut Runner) {
    let data: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for bytes in [64, 256, 1 << 20] {
        runner.bench(&format!("sha256d, {bytes} bytes"), unit("byte", bytes), || {
            sha256d(black_box(&data[..bytes]))
        });
    }
    // A transaction with one input and two outputs: version, the rest without witness, lock time.
    runner.bench("txid, 222 bytes with witness", OP, || {
        sha256d_parts(black_box([&data[..4], &data[6..115], &data[218..222]]))
    });
    for bytes in [22, 34, 10_000] {
        runner.bench(&format!("script hash, {bytes} bytes"), OP, || script_hash(black_box(&data[..bytes])));
    }
    let hashes: Vec<[u8; 32]> = (0..4_000_u64).map(|n| sha256d(&n.to_le_bytes())).collect();
    let sizes = [10, 1_000, 4_000];
    runner.bench_sizes(
        "merkle root",
        &sizes,
        |leaves| unit("leaf", leaves),
        |leaves| (hashes.iter().copied().cycle().take(leaves as usize).collect::<Vec<_>>(), Vec::new()),
        |(leaves, scratch)| {
            scratch.clone_from(leaves);
            merkle_root(scratch)
        },
    );
}

fn blocks(runner: &mut Runner, chain: &fixture::Chain) {
    let files = BlockFiles::open(&chain.dir(), Network::Regtest).expect("the files just made");
    let file = files.open_file(0).expect("the file just made");
    runner.bench("header scan of a block file", unit("header", chain.blocks.len()), || {
        scan_file(&file, Network::Regtest).expect("the file just made").records.len()
    });

    let key = fixture::key();
    let parse = |block: &fixture::RawBlock, batch: &mut Batch| {
        batch.clear();
        batch.raw.extend_from_slice(&block.bytes);
        let context = BlockContext {
            height: block.height,
            hash: block.hash,
            median_time: 0,
            chainwork: 0,
            segwit_active: true,
        };
        parse_block(batch, 0, &context, &key).expect("a block just made");
    };
    let last = chain.blocks.last().expect("the tip");
    runner.bench_with("block parse", unit("byte", last.bytes.len()), Batch::default, |batch| {
        parse(last, batch)
    });

    let mut batch = Batch::default();
    parse(last, &mut batch);
    let txs = batch.txs.len();
    runner.bench_with("block parse with all hashes", unit("tx", txs), Batch::default, |batch| {
        parse(last, batch)
    });

    // Connects the whole chain, as the resolve stage does, from an empty set.
    let batches: Vec<Batch> = chain
        .blocks
        .iter()
        .map(|block| {
            let mut batch = Batch::default();
            parse(block, &mut batch);
            batch
        })
        .collect();
    let inputs: usize = batches.iter().map(|batch| batch.inputs.len()).sum();
    let resolve = |batches: &mut Vec<Batch>| {
        let options = UtxoOptions {
            dir: chain.dir().join("coins"),
            cache_bytes_max: None,
            buckets: 10,
            limits: UtxoLimits::default(),
        };
        let mut set = UtxoSet::new(options, key.clone());
        for batch in batches {
            resolve_batch(batch, &mut set, Network::Regtest).expect("a valid chain");
        }
        set.coin_count()
    };
    runner.bench_with("resolve prevouts of a chain", unit("input", inputs), || batches.clone(), resolve);

    let mut resolved = batches.clone();
    resolve(&mut resolved);
    let last = resolved.pop().expect("the tip");
    let store = Store { witness: true, script_sig: true };
    runner.bench_with("row encoding, all tables", unit("tx", txs), Encoded::default, |encoded| {
        encoded.buffers.iter_mut().for_each(Vec::clear);
        encode_batch(&last, store, encoded);
    });
    for table in Table::ALL {
        let rows = match table {
            Table::Blocks => 1_000,
            Table::Transactions => last.txs.len(),
            Table::Outputs => last.outputs.len(),
            Table::Inputs => last.inputs.len(),
        };
        let (only, name) = (fixture::only(&last, table), table.name());
        runner.bench_with(&format!("row encoding, {name}"), unit("row", rows), Encoded::default, |rows| {
            rows.buffers.iter_mut().for_each(Vec::clear);
            encode_batch(&only, store, rows);
        });
    }
}

/// The UTXO cache at several sizes, full to the same share.
fn coin_table(runner: &mut Runner) {
    let sizes = [10_000, 100_000, 1_000_000];
    let each = |_| OP;
    runner.bench_sizes("UTXO cache, insert and spend the oldest", &sizes, each, Filled::new, Filled::turn);
    runner.bench_sizes(
        "UTXO cache, look for a coin that is not there",
        &sizes,
        each,
        Filled::new,
        Filled::miss,
    );
    runner.bench_sizes(
        "UTXO cache, fill from empty",
        &sizes,
        |coins| unit("coin", coins),
        |coins| coins,
        |&mut coins| Filled::new(coins).table.coin_count(),
    );
}

/// The belt by its number of buckets, and by the coins that it has place for.
fn belt(runner: &mut Runner) {
    let insert = |runner: &mut Runner, name: &str, coins, buckets| {
        let each = unit("tx", fixture::Belt::TXS);
        runner.bench_with(name, each, || fixture::Belt::new(coins, buckets), fixture::Belt::insert);
    };
    for buckets in [2, 10, 100] {
        let name = format!("belt of {buckets} buckets, insert with eviction to runs");
        insert(runner, &name, 200_000, buckets);
        let name = format!("belt of {buckets} buckets, spend");
        let each = unit("tx", fixture::Belt::TXS);
        runner.bench_with(&name, each, || fixture::Belt::new(200_000, buckets), fixture::Belt::turn);
    }
    for coins in [50_000, 1_000_000] {
        insert(
            runner,
            &format!("belt of 10 buckets, insert with eviction to runs, {coins} coins"),
            coins,
            10,
        );
    }
}

struct Filled {
    table: CoinTable,
    next: u64,
    coins: u64,
}

impl Filled {
    fn new(coins: u64) -> Filled {
        let mut filled =
            Filled { table: CoinTable::new(Some(coins * 40 * 5 / 4 + (1 << 20))), next: 0, coins };
        while filled.next < coins {
            filled.insert();
        }
        filled
    }

    fn insert(&mut self) {
        let coin = Coin { tx_num: self.next as i64, value_sat: 1, script_hash: [7; 16] };
        self.table.insert(fixture::outpoint(self.next), &coin).expect("place for it");
        self.next += 1;
    }

    fn turn(&mut self) -> Option<Coin> {
        let spent = self.table.spend(fixture::outpoint(self.next - self.coins));
        self.insert();
        spent
    }

    fn miss(&mut self) -> Option<Coin> {
        self.next += 1;
        self.table.spend(fixture::outpoint(self.next + (1 << 40)))
    }
}

//! Any change to the files of a checkpointed UTXO set: it is noticed, or the set is the same as before.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use satgres::chain::batch::{Batch, Block, Input, Output, Span, Tx};
use satgres::chain::header::Header;
use satgres::network::Network;
use satgres::prevouts::{
    Coin, ConnectError, Fingerprint, FingerprintKey, UtxoLimits, UtxoOptions, UtxoSet, resolve_batch,
};

const HEIGHT: u32 = 3;
/// Where coinbases may be spent.
const HEIGHT_SPENT: u32 = 200;
const HASH: [u8; 32] = [9; 32];
/// Coins of each of the three blocks of the checkpointed set.
const BLOCK_COINS: u64 = 300;

fn temporary() -> PathBuf {
    // scripts/fuzz has it in memory, and removes it.
    tempfile::Builder::new().prefix("satgres-fuzz").tempdir().expect("a folder").keep()
}

fn options(dir: &Path) -> UtxoOptions {
    let limits = UtxoLimits { pending_bytes: 2_000, sort_bytes: 4_000, ..UtxoLimits::default() };
    UtxoOptions { dir: dir.to_owned(), cache_bytes_max: Some(12_000), buckets: 4, limits }
}

/// The files of a set of 900 coins, most of them in runs.
fn checkpointed() -> &'static (PathBuf, Vec<(String, Vec<u8>)>) {
    static FILES: OnceLock<(PathBuf, Vec<(String, Vec<u8>)>)> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = temporary();
        let key = FingerprintKey::from_bytes(&std::array::from_fn(|at| (at * 37 + 11) as u8));
        let mut set = UtxoSet::new(options(&dir), key);
        for height in 1..=HEIGHT {
            let first = u64::from(height - 1) * BLOCK_COINS;
            resolve_batch(&mut batch(height, first..first + BLOCK_COINS, 0..0), &mut set, Network::Regtest)
                .expect("coins of nothing");
        }
        set.checkpoint(HEIGHT, &HASH).expect("a folder of our own");
        let files = std::fs::read_dir(&dir).expect("it is there").map(|entry| {
            let entry = entry.expect("it is there");
            let name = entry.file_name().into_string().expect("names of ours");
            (name, std::fs::read(entry.path()).expect("it is there"))
        });
        let mut files: Vec<_> = files.collect();
        files.sort();
        (dir, files)
    })
}

fuzz_target!(|bytes: &[u8]| {
    let (dir, files) = checkpointed();
    let mut files = files.clone();
    // Each six bytes are one change: which file, what, where, with what.
    for change in bytes.chunks_exact(6).take(8) {
        let &[file, what, at_low, at_high, value, more] = change else { unreachable!("six bytes") };
        let file_count = files.len();
        let other = files[usize::from(value) % file_count].1.clone();
        let content = &mut files[usize::from(file) % file_count].1;
        let at = usize::from(u16::from_le_bytes([at_low, at_high])) % (content.len() + 1);
        match what % 6 {
            0 if at < content.len() => content[at] ^= value,
            1 => content.truncate(at),
            2 => content.extend(std::iter::repeat_n(value, usize::from(more))),
            3 => content.insert(at, value),
            4 => *content = other,
            5 if at < content.len() => {
                let end = (at + usize::from(more)).min(content.len());
                content.drain(at..end);
            }
            _ => {}
        }
    }
    for entry in std::fs::read_dir(dir).expect("it is there").flatten() {
        std::fs::remove_file(entry.path()).expect("a file of ours");
    }
    for (name, content) in &files {
        std::fs::write(dir.join(name), content).expect("a folder of our own");
    }
    let Ok(Some(mut set)) = UtxoSet::resume(&options(dir), |height, hash| (height, *hash) == (HEIGHT, HASH)) else { return };
    assert_eq!(set.coin_count(), 3 * BLOCK_COINS);
    // Spends every coin: each must be there, with its own facts.
    let mut spends = batch(HEIGHT_SPENT, 0..0, 0..3 * BLOCK_COINS);
    resolve_batch(&mut spends, &mut set, Network::Regtest).expect("every coin is there");
    let mut found = 0;
    for (n, input) in (0..).zip(&spends.inputs[1..]) {
        if input.prevout != Coin::WAITING {
            assert_eq!(input.prevout, coin(n));
            found += 1;
        }
    }
    let mut settled = 0;
    set.settle(&mut Vec::new(), |fact| {
        if let satgres::prevouts::Settled::Input { coin: settled_coin, vin, .. } = fact {
            assert_eq!(settled_coin, coin(u64::from(vin)));
            settled += 1;
        }
        Ok::<_, ConnectError>(())
    })
    .expect("every coin is there");
    assert_eq!(found + settled, 3 * BLOCK_COINS);
});

fn outpoint(n: u64) -> Fingerprint {
    Fingerprint { low: (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), high: n as u32 }
}

fn coin(n: u64) -> Coin {
    let height = 1 + n / BLOCK_COINS;
    Coin { tx_num: (height << 16) as i64, value_sat: n, script_hash: [n as u8; 16] }
}

/// A block whose coinbase makes these coins, and whose other transaction, if there is one, spends these.
fn batch(height: u32, makes: std::ops::Range<u64>, spends: std::ops::Range<u64>) -> Batch {
    let input = |outpoint| Input {
        outpoint,
        sequence: 0,
        prev_vout: 0,
        script_sig: Span::default(),
        witness: Span::default(),
        prevout: Coin::NONE,
    };
    let mut inputs = vec![input(Fingerprint::default())];
    inputs.extend(spends.map(|n| input(outpoint(n))));
    let outputs: Vec<Output> = makes
        .map(|n| Output {
            outpoint: outpoint(n),
            value_sat: n,
            script_hash: [n as u8; 16],
            script: Span::default(),
            is_unspendable: false,
        })
        .collect();
    let tx = |input_count, output_count| Tx {
        txid: [height as u8; 32],
        version: 1,
        locktime: 0,
        size: 100,
        weight: 400,
        input_count,
        output_count,
        fee_sat: 0,
    };
    let mut txs = vec![tx(1, outputs.len() as u32)];
    if inputs.len() > 1 {
        txs.push(tx(inputs.len() as u32 - 1, 0));
    }
    let block = Block {
        height,
        hash: HASH,
        header: Header::parse(&[0; 80]),
        size: 0,
        weight: 0,
        tx_count: txs.len() as u32,
        input_count: inputs.len() as u32,
        output_count: outputs.len() as u32,
        fees_sat: 0,
        subsidy_sat: 0,
        unclaimed_sat: 0,
        median_time: 0,
        chainwork: 0,
    };
    let mut batch = Batch::default();
    (batch.blocks, batch.txs, batch.inputs, batch.outputs) = (vec![block], txs, inputs, outputs);
    batch
}

//! The UTXO set within a budget, through the built binary: the same database whatever the budget, warm after a kill,
//! and rebuilt when its files are not what was written.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use bitcoin::Transaction;
use satgres::chaingen::{Options, generate};
use support::blkfiles::{BlkDir, records};
use support::blocks::{Chain, Draft, coinbase, outpoint, pay, script, spend};
use support::ground_truth::GroundTruth;
use support::{Satgres, sample};
use tempfile::TempDir;

/// A generated chain of a few thousand transactions.
fn chain() -> TempDir {
    let dir = TempDir::new().unwrap();
    let options = Options { blocks: 250, txs_per_block: 30, seed: 11, out: dir.path().to_owned() };
    let mix = generate(&options).unwrap();
    assert!(mix.transactions > 2_500, "{mix}");
    dir
}

/// Names of the files in the set's directory.
fn coin_files(satgres: &Satgres) -> Vec<String> {
    let entries = fs::read_dir(satgres.data_dir().join("coins")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs without a budget, then with each of these options: the digests must be equal.
fn assert_same_digests(blocks_dir: &Path, segment_bytes: &str, budgets: &[&[&str]]) {
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir, &["--utxo-cache", "auto"]);
    satgres.verify();
    let digest = satgres.digest();
    for budget in budgets {
        satgres.forget_chain();
        let options = [&["--segment-bytes", segment_bytes], *budget].concat();
        let output = satgres.run("regtest", blocks_dir, &options).output();
        assert_eq!(satgres.digest(), digest, "{options:?}");
        satgres.verify();
        assert!(output.contains("UTXO set at a segment's end"), "{output}");
        let files = coin_files(&satgres);
        let checkpoints = files.iter().filter(|name| name.starts_with("checkpoint-")).count();
        assert_eq!(checkpoints, 1, "{files:?}");
        assert!(files.iter().all(|name| !name.ends_with(".tmp")), "{files:?}");
        let misses = "select count(*) from ops.phases where phase like 'Loaded segment %' \
             and cache_hit_ratio < 1 and (detail->>'prevouts_waited')::int8 > 0";
        let has_misses: i64 = satgres.value(misses).parse().unwrap();
        assert_eq!(has_misses > 0, budget[1] != "1GiB", "{options:?}");
    }
}

#[test]
fn every_budget_gives_the_same_rows() {
    let chain = chain();
    assert_same_digests(
        chain.path(),
        "200KiB",
        &[
            &["--utxo-cache", "0", "--threads", "1"],
            &["--utxo-cache", "1000", "--utxo-cache-buckets", "3", "--batch-bytes", "1", "--threads", "4"],
            &["--utxo-cache", "64KiB"],
            &["--utxo-cache", "1GiB"],
        ],
    );
}

#[test]
fn a_real_nodes_chain_is_the_same_without_a_cache() {
    let Some(truth) = GroundTruth::open("regtest", "regtest/blocks", "regtest") else { return };
    assert_same_digests(
        &truth.blocks_dir(),
        "300KiB",
        &[&["--utxo-cache", "0"], &["--utxo-cache", "4000", "--utxo-cache-buckets", "1"]],
    );
}

#[test]
fn a_killed_replay_resumes_warm() {
    let chain = chain();
    let satgres = Satgres::new();
    let options = ["--utxo-cache", "20000", "--segment-bytes", "100KiB"];
    let blocks_dir = chain.path().to_str().unwrap();
    let args = [&["run", "--network", "regtest", "--blocks-dir", blocks_dir, "--until-synced"], &options[..]];
    for segments in [2, 5] {
        let mut run = satgres.start(&args.concat());
        let lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let loaded = lines.map(Result::unwrap).filter(|line| line.contains("PROFILE: Loaded segment "));
        assert_eq!(loaded.take(segments).count(), segments);
        run.kill().unwrap();
        run.wait().unwrap();
    }
    let output = satgres.run("regtest", chain.path(), &options).output();
    assert!(output.contains("the UTXO set resumes warm from its checkpoint"), "{output}");
    assert!(output.contains("PROFILE: Resumed the UTXO set from its checkpoint: "), "{output}");
    assert!(!output.contains("it is rebuilt from the database"), "{output}");
    satgres.verify();
    let digest = satgres.digest();
    satgres.forget_chain();
    satgres.run("regtest", chain.path(), &[]);
    assert_eq!(satgres.digest(), digest);
}

/// Height of the first load of [`after`].
const FIRST_TIP: usize = 140;

/// Loads a chain up to a height, does something to the set's files, and loads the rest; returns log and digest.
fn after(satgres: &Satgres, change: impl FnOnce(&Path)) -> (String, Vec<String>) {
    let chain = sample::chain(180);
    let blocks_dir = BlkDir::of(&chain.blocks()[..=FIRST_TIP]);
    satgres.run("regtest", blocks_dir.path(), &["--utxo-cache", "2000", "--segment-bytes", "20KiB"]);
    change(&satgres.data_dir().join("coins"));
    blocks_dir.append(0, &records(&chain.blocks()[FIRST_TIP + 1..]));
    let output = satgres
        .run("regtest", blocks_dir.path(), &["--utxo-cache", "2000", "--live-sync-threshold", "0"])
        .output();
    satgres.verify();
    let digest = satgres.digest();
    satgres.forget_chain();
    (output, digest)
}

fn file_with(dir: &Path, prefix: &str) -> PathBuf {
    let mut paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix)).unwrap()
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_that_are_not_what_was_written_are_never_used() {
    let satgres = Satgres::new();
    // What another load left behind, whole but of a lower block.
    let lower = TempDir::new().unwrap();
    let coins = satgres.data_dir().join("coins");
    let blocks_dir = BlkDir::of(sample::chain(120).blocks());
    satgres.run("regtest", blocks_dir.path(), &["--utxo-cache", "0", "--live-sync-threshold", "0"]);
    for name in coin_files(&satgres) {
        fs::copy(coins.join(&name), lower.path().join(&name)).unwrap();
    }
    satgres.forget_chain();

    let (output, digest) = after(&satgres, |_| ());
    assert!(output.contains("resumes warm"), "{output}");
    type Change<'a> = &'a dyn Fn(&Path);
    let changes: [(&str, Change<'_>); 6] = [
        ("is damaged at byte", &|coins| flip(&file_with(coins, "run-"))),
        ("is damaged at byte", &|coins| flip(&file_with(coins, "checkpoint-"))),
        ("it has another length", &|coins| {
            let file = fs::File::options().write(true).open(file_with(coins, "run-")).unwrap();
            file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        }),
        ("it is missing", &|coins| fs::remove_file(file_with(coins, "run-")).unwrap()),
        ("no checkpoint of the UTXO set is of use", &|coins| fs::remove_dir_all(coins).unwrap()),
        ("a checkpoint of the UTXO set is of another block", &|coins| {
            fs::remove_dir_all(coins).unwrap();
            fs::create_dir(coins).unwrap();
            for entry in fs::read_dir(lower.path()).unwrap().map(Result::unwrap) {
                fs::copy(entry.path(), coins.join(entry.file_name())).unwrap();
            }
        }),
    ];
    for (said, change) in changes {
        let (output, digest_now) = after(&satgres, change);
        assert!(output.contains(said), "{said}\n{output}");
        assert!(output.contains("it is rebuilt from the database"), "{output}");
        assert!(!output.contains("resumes warm"), "{output}");
        assert_eq!(digest_now, digest, "{said}");
    }
}

/// A coinbase that does not name its height, as before BIP34, so that it can be mined again.
fn twin() -> Transaction {
    let script_sig = script(&[0x04, 0xff, 0xff, 0x7f, 0x20, 0x01, 0x07]);
    coinbase(script_sig, vec![pay(3_000_000_000, script(&[0x51])), pay(1_000_000_000, script(&[0x52]))])
}

#[test]
fn a_rebuilt_set_still_knows_the_twins() {
    // A coinbase, what spends it, and what spends that, each mined again while the last outputs are unspent.
    let again = |transactions: Vec<Transaction>| Draft { transactions, ..Draft::default() };
    let coinbase_again = || Draft { coinbase: Some(twin()), ..Draft::default() };
    let spender = spend(
        &[outpoint(&twin(), 0), outpoint(&twin(), 1)],
        vec![pay(1_500_000_000, script(&[0x53])), pay(1_500_000_000, script(&[0x54]))],
    );
    let last = spend(&[outpoint(&spender, 0)], vec![pay(1_400_000_000, script(&[0x55]))]);
    let mut chain = Chain::with_blocks(4);
    chain.mine(coinbase_again());
    chain.mine_empty(100);
    chain.mine(again(vec![spender.clone()]));
    chain.mine(again(vec![last.clone()]));
    chain.mine(coinbase_again());
    chain.mine_empty(100);
    let first_tip = chain.height();
    chain.mine(again(vec![spender]));
    let second_tip = chain.height();
    chain.mine(again(vec![last]));
    chain.mine_empty(1);
    assert_eq!((first_tip, second_tip, chain.height()), (208, 209, 211));

    let satgres = Satgres::new();
    let overwritten = "select tx_num >> 16, vout, by_tx_num >> 16 from chain.overwritten order by 1, 2";
    let mut digests = Vec::new();
    for stops in [vec![], vec![first_tip], vec![second_tip], vec![first_tip, second_tip]] {
        let blocks_dir = BlkDir::new();
        let mut from = 0;
        for height in stops {
            blocks_dir.append(0, &records(&chain.blocks()[from..=height]));
            satgres.run("regtest", blocks_dir.path(), &["--utxo-cache", "0", "--live-sync-threshold", "0"]);
            fs::remove_dir_all(satgres.data_dir().join("coins")).unwrap();
            from = height + 1;
        }
        blocks_dir.append(0, &records(&chain.blocks()[from..]));
        let cache = if from == 0 { "auto" } else { "0" };
        satgres.run("regtest", blocks_dir.path(), &["--utxo-cache", cache, "--live-sync-threshold", "0"]);
        assert_eq!(satgres.copy(overwritten), ["106\t1\t209", "107\t0\t210"], "stopped before {from}");
        satgres.verify();
        digests.push(satgres.digest());
        satgres.forget_chain();
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

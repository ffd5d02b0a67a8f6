//! The UTXO set within a budget, through the built binary: the same database whatever the budget, warm after a kill,
//! and rebuilt when its files are not what was written.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use satgres::chaingen::{Options, generate};
use support::blkfiles::{BlkDir, records};
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
    let mut kills = 0;
    for segments in [2, 5] {
        let mut run = satgres.start(&args.concat());
        let lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let loaded = lines.map(Result::unwrap).filter(|line| line.contains("PROFILE: Loaded segment "));
        assert_eq!(loaded.take(segments).count(), segments);
        run.kill().unwrap();
        run.wait().unwrap();
        kills += 1;
    }
    assert_eq!(kills, 2);
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

/// Loads a chain up to a height, does something to the set's files, and loads the rest with a budget.
fn after(height: usize, change: impl FnOnce(&Path)) -> (Satgres, String, Vec<String>) {
    let chain = sample::chain(180);
    let blocks_dir = BlkDir::of(&chain.blocks()[..=height]);
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &["--utxo-cache", "2000", "--segment-bytes", "10KiB"]);
    change(&satgres.data_dir().join("coins"));
    blocks_dir.append(0, &records(&chain.blocks()[height + 1..]));
    let output = satgres.run("regtest", blocks_dir.path(), &["--utxo-cache", "2000"]).output();
    satgres.verify();
    let digest = satgres.digest();
    (satgres, output, digest)
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
    let (_, output, digest) = after(140, |_| ());
    assert!(output.contains("resumes warm"), "{output}");
    let changes: [(&str, &dyn Fn(&Path)); 6] = [
        ("is damaged at byte", &|coins| flip(&file_with(coins, "run-"))),
        ("is damaged at byte", &|coins| flip(&file_with(coins, "checkpoint-"))),
        ("it has another length", &|coins| {
            let file = fs::File::options().write(true).open(file_with(coins, "run-")).unwrap();
            file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        }),
        ("it is missing", &|coins| fs::remove_file(file_with(coins, "run-")).unwrap()),
        ("no checkpoint of the UTXO set is of use", &|coins| fs::remove_dir_all(coins).unwrap()),
        ("a checkpoint of the UTXO set is of another block", &|coins| {
            // What another load left behind, whole but of a lower block.
            let chain = sample::chain(120);
            let blocks_dir = BlkDir::of(chain.blocks());
            let other = Satgres::new();
            other.run("regtest", blocks_dir.path(), &["--utxo-cache", "0"]);
            fs::remove_dir_all(coins).unwrap();
            fs::create_dir(coins).unwrap();
            for name in coin_files(&other) {
                fs::copy(other.data_dir().join("coins").join(&name), coins.join(&name)).unwrap();
            }
        }),
    ];
    for (said, change) in changes {
        let (_, output, digest_now) = after(140, change);
        assert!(output.contains(said), "{said}\n{output}");
        assert!(output.contains("it is rebuilt from the database"), "{output}");
        assert!(!output.contains("resumes warm"), "{output}");
        assert_eq!(digest_now, digest, "{said}");
    }
}

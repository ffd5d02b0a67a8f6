//! Block files that a node appends to, removes or rewrites while they are read.
//!
//! What changes them waits for the line that says that they were scanned: the database is made after it, so the change
//! always comes before the first block is read.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::thread;
use std::time::Duration;

use bitcoin::consensus::encode::serialize;

use crate::support::blkfiles::{BlkDir, records, shuffle};
use crate::support::blocks::Chain;
use crate::support::ground_truth::GroundTruth;
use crate::support::node::{ADDRESS, Node};
use crate::support::rows::assert_chain;
use crate::support::{Satgres, sample};

/// Runs a replay and does something once the files are scanned; returns the exit code and what was said.
fn run_while(satgres: &Satgres, blocks_dir: &Path, change: impl FnOnce()) -> (Option<i32>, String) {
    let blocks_dir = blocks_dir.to_str().unwrap();
    let mut run =
        satgres.start(&["run", "--network", "regtest", "--blocks-dir", blocks_dir, "--until-synced"]);
    let mut stdout = run.stdout.take().unwrap();
    let stdout = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    let mut stderr = BufReader::new(run.stderr.take().unwrap());
    let mut output = String::new();
    while !output.contains("scanned the headers") {
        assert!(stderr.read_line(&mut output).unwrap() > 0, "it ended before it had scanned:\n{output}");
    }
    change();
    stderr.read_to_string(&mut output).unwrap();
    let status = run.wait().unwrap();
    (status.code(), output + &stdout.join().unwrap())
}

fn assert_synced(satgres: &Satgres, chain: &Chain, (code, output): (Option<i32>, String)) -> String {
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("Entered LIVE sync"), "{output}");
    assert_chain(satgres, &chain.rows());
    satgres.verify();
    output
}

/// Forty blocks a file.
fn split(chain: &Chain) -> BlkDir {
    let blocks_dir = BlkDir::new();
    for (number, blocks) in (0..).zip(chain.blocks().chunks(40)) {
        blocks_dir.write(number, &records(blocks));
    }
    blocks_dir
}

#[test]
fn blocks_appended_after_the_scan_are_loaded_before_it_says_synced() {
    let satgres = Satgres::new();
    let chain = sample::chain(125);
    let blocks_dir = BlkDir::of(&chain.blocks()[..=110]);
    blocks_dir.preallocate(0, 4_000);
    let tail = fs::metadata(blocks_dir.file(0)).unwrap().len() - 4_000;
    let ended = run_while(&satgres, blocks_dir.path(), || {
        // The rest of the last file, then new files.
        let record = records([&chain.blocks()[111]]);
        let bytes = [&[0xfa, 0xbf, 0xb5, 0xda], record_len(&chain, 111).as_slice()].concat();
        assert_eq!(record.len(), 1);
        blocks_dir.write_at(0, tail, &[bytes, serialize(&chain.blocks()[111])].concat());
        blocks_dir.write(1, &records(&chain.blocks()[112..120]));
        blocks_dir.write(2, &records(&chain.blocks()[120..]));
    });
    assert_synced(&satgres, &chain, ended);
}

fn record_len(chain: &Chain, height: usize) -> [u8; 4] {
    u32::try_from(serialize(&chain.blocks()[height]).len()).unwrap().to_le_bytes()
}

#[test]
fn a_record_that_was_being_written_at_the_scan_is_loaded_once_it_is_whole() {
    let satgres = Satgres::new();
    let chain = sample::chain(112);
    let blocks_dir = BlkDir::of(chain.blocks());
    let whole = fs::read(blocks_dir.file(0)).unwrap();
    blocks_dir.cut(0, 300);
    let ended = run_while(&satgres, blocks_dir.path(), || {
        fs::write(blocks_dir.file(0), &whole).unwrap();
    });
    assert_synced(&satgres, &chain, ended);
}

#[test]
fn a_branch_that_overtakes_after_the_scan_is_followed() {
    let satgres = Satgres::new();
    let main = sample::chain(110);
    let mut heavy = main.fork(104, 1);
    (0..8).for_each(|_| sample::extend(&mut heavy));
    let blocks_dir = BlkDir::of(main.blocks());
    let ended = run_while(&satgres, blocks_dir.path(), || {
        blocks_dir.write(1, &records(&heavy.blocks()[105..]));
    });
    let output = assert_synced(&satgres, &heavy, ended);
    assert!(output.contains("the active chain has changed"), "{output}");
    assert_eq!(satgres.value("select count(*) from chain.stale_blocks"), "6");
}

#[test]
fn files_rewritten_in_another_order_are_scanned_again() {
    let satgres = Satgres::new();
    let chain = sample::chain(130);
    let blocks_dir = split(&chain);
    let ended = run_while(&satgres, blocks_dir.path(), || {
        let mut blocks = records(chain.blocks());
        shuffle(&mut blocks, 11);
        for (number, blocks) in (0..).zip(blocks.chunks(50)) {
            fs::remove_file(blocks_dir.file(number)).unwrap();
            blocks_dir.write(number, blocks);
        }
        fs::remove_file(blocks_dir.file(3)).unwrap();
    });
    let output = assert_synced(&satgres, &chain, ended);
    assert!(output.contains("the block files have changed"), "{output}");
}

#[test]
fn a_file_that_is_away_or_cut_for_a_moment_is_waited_for() {
    let chain = sample::chain(130);
    for cut in [None, Some(0), Some(700)] {
        let satgres = Satgres::new();
        let blocks_dir = split(&chain);
        let (file, other) = (blocks_dir.file(1), blocks_dir.file(8));
        let whole = fs::read(&file).unwrap();
        let mut writer = None;
        let ended = run_while(&satgres, blocks_dir.path(), || {
            match cut {
                None => fs::remove_file(&file).unwrap(),
                Some(len) => fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(len).unwrap(),
            }
            writer = Some(thread::spawn(move || {
                thread::sleep(Duration::from_secs(4));
                fs::write(if cut.is_none() { other } else { file }, whole).unwrap();
            }));
        });
        writer.unwrap().join().unwrap();
        assert_synced(&satgres, &chain, ended);
    }
}

#[test]
fn files_pruned_while_they_are_read_are_told_with_the_first_height_that_is_there() {
    let satgres = Satgres::new();
    let chain = sample::chain(130);
    let blocks_dir = split(&chain);
    let (code, output) = run_while(&satgres, blocks_dir.path(), || {
        fs::remove_file(blocks_dir.file(0)).unwrap();
        fs::remove_file(blocks_dir.file(1)).unwrap();
    });
    assert_eq!(code, Some(3), "{output}");
    for words in ["has height 80", "pruned", "from height 1 on"] {
        assert!(output.contains(words), "{words}\n{output}");
    }
    assert!(!output.contains("Entered LIVE sync"), "{output}");
}

#[test]
fn a_pruned_node_whose_first_block_leaves_a_gap_to_the_database_is_refused() {
    let satgres = Satgres::new();
    let chain = sample::chain(130);
    let blocks_dir = split(&chain);
    satgres.run("regtest", BlkDir::of(&chain.blocks()[..60]).path(), &[]);
    let digest = satgres.digest();
    (0..2).for_each(|number| fs::remove_file(blocks_dir.file(number)).unwrap());
    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    for words in ["has height 80", "pruned", "from height 60 on"] {
        assert!(output.contains(words), "{words}\n{output}");
    }
    assert_eq!(satgres.digest(), digest);

    // With the blocks in between it goes on, though those before are still gone.
    blocks_dir.write(1, &records(&chain.blocks()[60..80]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
}

#[test]
fn the_last_blocks_that_vanish_while_they_are_read_are_no_success() {
    let satgres = Satgres::new();
    let chain = sample::chain(130);
    let blocks_dir = split(&chain);
    let last = fs::read(blocks_dir.file(3)).unwrap();
    let (code, output) = run_while(&satgres, blocks_dir.path(), || {
        fs::remove_file(blocks_dir.file(3)).unwrap();
    });
    assert_eq!(code, Some(3), "{output}");
    assert!(output.contains("the block at height 120 has vanished"), "{output}");
    fs::write(blocks_dir.file(3), last).unwrap();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
}

/// A folder with a node's data directory of 28 small files, whose blocks are out of order; `None` where it is not there.
fn small_files() -> Option<tempfile::TempDir> {
    let truth = GroundTruth::open("regtest-small-files", "regtest/blocks", "regtest")?;
    let dir = tempfile::tempdir().unwrap();
    let from = truth.blocks_dir().parent().unwrap().to_owned();
    let status = std::process::Command::new("cp").arg("-a").args([&from, dir.path()]).status().unwrap();
    assert!(status.success(), "cp -a {}", from.display());
    Some(dir)
}

#[test]
fn a_node_that_mines_and_one_that_reindexes_while_its_files_are_read() {
    let Some(dir) = small_files() else { return };
    let Some(node) = Node::start(dir.path(), &["-fastprune"], "a node at work on its files") else { return };
    let blocks_dir = dir.path().join("regtest/blocks");
    let satgres = Satgres::new();
    let (code, output) = run_while(&satgres, &blocks_dir, || {
        node.cli(&["generatetoaddress", "30", ADDRESS]);
    });
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(satgres.value("select max(height) from chain.blocks"), "450");
    let tip = satgres.value("select hash from api.blocks where height = 450");
    assert_eq!(tip, node.cli(&["getbestblockhash"]));
    satgres.verify();
    let digest = satgres.digest();

    satgres.forget_chain();
    let mut again = None;
    let (code, output) = run_while(&satgres, &blocks_dir, || {
        again = Some(node.restart(&["-fastprune", "-reindex"]));
    });
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(satgres.digest(), digest);
    again.unwrap().wait_for_height(450);
    satgres.run("regtest", &blocks_dir, &[]);
    assert_eq!(satgres.digest(), digest);
}

#[test]
fn a_node_that_prunes_while_its_files_are_read_is_told_with_the_first_height_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-fastprune", "-prune=1"];
    let Some(node) = Node::start(dir.path(), &options, "a node that prunes") else { return };
    node.cli(&["generatetoaddress", "900", ADDRESS]);
    let blocks_dir = dir.path().join("regtest/blocks");
    let satgres = Satgres::new();
    let (code, output) = run_while(&satgres, &blocks_dir, || {
        node.cli(&["pruneblockchain", "500"]);
    });
    let info: serde_json::Value = serde_json::from_str(&node.cli(&["getblockchaininfo"])).unwrap();
    let first = info["pruneheight"].as_u64().unwrap();
    assert!(first > 100, "{info}");
    assert_eq!(code, Some(3), "{output}");
    for words in [format!("has height {first}:"), "this node is pruned".to_owned()] {
        assert!(output.contains(&words), "{words}\n{output}");
    }
}

//! Blocks from a real Bitcoin Core over P2P: the same database as from its files, and the node's word on branches.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use bitcoin::consensus::encode::serialize;
use support::blkfiles::{BlkDir, records};
use support::blocks::{Chain, outpoint, pay, script, spend};
use support::ground_truth::GroundTruth;
use support::node::Node;
use support::rows::{assert_chain, hex};
use support::{Running, Satgres};

const NOWHERE: &str = "no-such-folder";
const TIP: &str = "420";

/// Options that let a node be reached at a free port, and its address.
fn listening() -> (Vec<String>, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = vec!["-listen=1".to_owned(), format!("-bind=127.0.0.1:{port}")];
    (options, format!("127.0.0.1:{port}"))
}

fn start(data_dir: &Path, more: &[&str], why: &str) -> Option<(Node, Vec<String>, String)> {
    let (mut options, address) = listening();
    options.extend(more.iter().map(|&option| option.to_owned()));
    let words: Vec<&str> = options.iter().map(String::as_str).collect();
    Some((Node::start(data_dir, &words, why)?, options, address))
}

fn is_confirmed(satgres: &Satgres) -> bool {
    satgres.status()["tip"]["is_confirmed_by_node"].as_bool().unwrap()
}

#[test]
fn files_and_peer_give_the_same_database_however_they_are_mixed() {
    let why = "replay by P2P equals replay by files";
    let Some(truth) = GroundTruth::open("regtest", "regtest/blocks", "regtest") else { return };
    let Some(small) = GroundTruth::open("regtest-small-files", "regtest/blocks", "regtest") else { return };
    let data_dir = truth.blocks_dir().ancestors().nth(2).unwrap().to_owned();
    let satgres = Satgres::new();
    satgres.run("regtest", &truth.blocks_dir(), &[]);
    let digest = satgres.digest();
    assert!(!is_confirmed(&satgres));
    // The node changes its own files: from here on they are not read.
    let Some((_node, _, address)) = start(&data_dir, &[], why) else { return };

    // Nothing but the node.
    for options in [[].as_slice(), &["--segment-bytes", "64KiB", "--threads", "3", "--batch-bytes", "1"]] {
        satgres.forget_chain();
        let options = [&["--peer", address.as_str()], options].concat();
        let output = satgres.run("regtest", Path::new(NOWHERE), &options).stdout;
        assert_eq!(satgres.digest(), digest, "by P2P alone, {options:?}");
        assert_eq!(output.matches("PROFILE: Entered P2P sync from start state: ").count(), 1, "{output}");
        assert!(!output.contains("Entered REINDEX sync"), "{output}");
        assert!(is_confirmed(&satgres));
    }
    satgres.verify();

    // The files lack the tail and some in between; one record is damaged.
    satgres.forget_chain();
    let some = tempfile::tempdir().unwrap();
    let mut names: Vec<_> = fs::read_dir(small.blocks_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("blk"))
        .collect();
    names.sort();
    assert_eq!(names.len(), 28);
    for (index, path) in names.iter().enumerate().filter(|(index, _)| *index < 20 && *index != 7) {
        let mut bytes = fs::read(path).unwrap();
        if index == 3 {
            let at = bytes.len() / 3;
            bytes[at..at + 50].fill(0x77);
        }
        fs::write(some.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    let output = satgres.run("regtest", some.path(), &["--peer", &address]).output();
    assert_eq!(satgres.digest(), digest, "files with holes and the node");
    assert_eq!(output.matches("PROFILE: Entered REINDEX sync from start state: ").count(), 2, "{output}");
    assert_eq!(output.matches("PROFILE: Entered P2P sync from start state: ").count(), 2, "{output}");
    assert!(output.contains("asking the node for the block"), "{output}");

    // All that is there stays, and a wrong network is told by name.
    let again = satgres.run("regtest", Path::new(NOWHERE), &["--peer", &address]).output();
    assert!(!again.contains("PROFILE: Loaded segment"), "{again}");
    let other = Satgres::new().try_run("signet", Path::new(NOWHERE), &["--peer", &address]);
    assert_eq!(other.status.code(), Some(6), "{}", other.output());
    assert!(other.stderr.contains("it is a node of network regtest, not of signet"), "{}", other.stderr);
}

#[test]
fn a_node_that_is_restarted_in_mid_replay_is_waited_for() {
    let why = "a replay survives its node's restart";
    let Some(truth) = GroundTruth::open("regtest", "regtest/blocks", "regtest") else { return };
    let data_dir = truth.blocks_dir().ancestors().nth(2).unwrap().to_owned();
    let satgres = Satgres::new();
    satgres.run("regtest", &truth.blocks_dir(), &[]);
    let digest = satgres.digest();
    satgres.forget_chain();
    let Some((node, options, address)) = start(&data_dir, &[], why) else { return };
    // A window of 8 MB: the node is asked until the end.
    let args = ["--peer", address.as_str(), "--segment-bytes", "20KiB", "--pipeline-bytes", "1MiB"];
    let mut running = Running::run(&satgres, Path::new(NOWHERE), &args);
    running.wait_for("PROFILE: Loaded segment 1", 1);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let _node = node.restart(&options);
    let (status, output) = running.wait();
    assert!(status.success(), "{output}");
    assert!(output.contains("Entered LIVE sync from start state: ") && output.contains(TIP), "{output}");
    assert!(output.contains("lost the node: "), "{output}");
    assert_eq!(satgres.digest(), digest);
}

#[test]
fn the_nodes_chain_counts_against_a_heavier_one_in_the_files() {
    let why = "a block that the node refuses is left out";
    let data_dir = tempfile::tempdir().unwrap();
    let mut chain = Chain::with_blocks(105);
    // Only the files hold this branch: it spends what nobody can spend.
    let mut heavier = chain.fork(104, 1);
    let coinbase = heavier.coinbase_outpoint(2);
    let locked = spend(&[coinbase], vec![pay(heavier.value(&coinbase), script(&[0x00]))]);
    let unlocked = spend(&[outpoint(&locked, 0)], vec![pay(1_000, script(&[0x51]))]);
    heavier.mine_transactions(vec![locked, unlocked]);
    heavier.mine_empty(3);

    let Some((node, _, address)) = start(data_dir.path(), &[], why) else { return };
    for block in &chain.blocks()[1..] {
        let answer = node.cli(&["submitblock", &hex(&serialize(block))]);
        assert_eq!(answer, "", "the node takes our blocks");
    }
    let refused = node.cli(&["submitblock", &hex(&serialize(&heavier.blocks()[105]))]);
    assert!(!refused.contains("duplicate"), "{refused}");
    let blocks_dir = BlkDir::of(chain.blocks());
    blocks_dir.append(0, &records(&heavier.blocks()[105..]));

    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &["--peer", &address]);
    assert_chain(&satgres, &chain.rows());
    assert!(is_confirmed(&satgres));

    // What files alone suggested is taken back, though it has more work.
    satgres.forget_chain();
    satgres.run("regtest", blocks_dir.path(), &["--segment-bytes", "1KiB"]);
    assert_chain(&satgres, &heavier.rows());
    assert!(!is_confirmed(&satgres));
    let output = satgres.run("regtest", blocks_dir.path(), &["--peer", &address]).output();
    assert_chain(&satgres, &chain.rows());
    assert!(output.contains("less work than the database's"), "{output}");
    assert_eq!(satgres.value("select fork_height || ' ' || depth from ops.reorgs"), "104 4");
    satgres.verify();

    // The next blocks come from the node, which alone has them; the second while the first is loaded.
    chain.mine_empty(2);
    assert_eq!(node.cli(&["submitblock", &hex(&serialize(&chain.blocks()[106]))]), "");
    let options = ["--peer", &address, "--live-sync-threshold", "0"];
    let mut running = Running::run(&satgres, blocks_dir.path(), &options);
    running.wait_for("PROFILE: Entered P2P sync from start state: ", 1);
    assert_eq!(node.cli(&["submitblock", &hex(&serialize(&chain.blocks()[107]))]), "");
    let (status, output) = running.wait();
    assert!(status.success(), "{output}");
    assert_chain(&satgres, &chain.rows());
}

#[test]
fn a_node_in_initial_download_is_waited_for_and_takes_nothing_back() {
    let why = "a node in initial download is waited for";
    let Some(truth) = GroundTruth::open("regtest", "regtest/blocks", "regtest") else { return };
    let data_dir = truth.blocks_dir().ancestors().nth(2).unwrap().to_owned();
    let satgres = Satgres::new();
    satgres.run("regtest", &truth.blocks_dir(), &[]);
    let digest = satgres.digest();
    // Its newest block is older than a day.
    let Some((node, options, address)) = start(&data_dir, &["-maxtipage=86400"], why) else { return };
    let mut running = Running::run(&satgres, Path::new(NOWHERE), &["--peer", &address]);
    running.wait_for("waiting for the node: it is in initial download", 1);
    assert_eq!(satgres.status()["phase"]["name"], "WAIT");
    let options: Vec<&str> =
        options.iter().map(String::as_str).filter(|option| !option.starts_with("-maxtipage")).collect();
    let node = node.restart(&options);
    let (status, output) = running.wait();
    assert!(status.success(), "{output}");
    assert_eq!(satgres.digest(), digest);

    // A node that has lost most of its chain is behind, too: nothing is taken back.
    let early = node.cli(&["getblockhash", "100"]);
    node.cli(&["invalidateblock", &early]);
    let mut running = Running::run(&satgres, Path::new(NOWHERE), &["--peer", &address]);
    running.wait_for("waiting for the node: its chain has less work than the database's", 1);
    node.cli(&["reconsiderblock", &early]);
    let (status, output) = running.wait();
    assert!(status.success(), "{output}");
    assert_eq!(satgres.digest(), digest);
}

#[test]
fn a_pruned_node_is_refused_with_its_first_height_unless_files_hold_the_rest() {
    let why = "a pruned node is told by its first height";
    let Some(small) = GroundTruth::open("regtest-small-files", "regtest/blocks", "regtest") else { return };
    let files = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(small.blocks_dir()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        // The last of them hold the last blocks.
        if name.starts_with("blk") && name.as_str() < "blk00022.dat" {
            fs::copy(entry.path(), files.path().join(name)).unwrap();
        }
    }
    let data_dir = small.blocks_dir().ancestors().nth(2).unwrap().to_owned();
    let satgres = Satgres::new();
    satgres.run("regtest", &small.blocks_dir(), &[]);
    let digest = satgres.digest();
    satgres.forget_chain();
    let Some((node, _, address)) = start(&data_dir, &["-fastprune", "-prune=1"], why) else { return };
    node.cli(&["pruneblockchain", "100"]);

    let failed = satgres.try_run("regtest", Path::new(NOWHERE), &["--peer", &address]);
    assert_eq!(failed.status.code(), Some(6), "{}", failed.output());
    let reason =
        "is pruned: the first block that it serves has height 133, but blocks from height 1 on are needed";
    assert!(failed.stderr.contains(reason), "{}", failed.stderr);

    let output = satgres.run("regtest", files.path(), &["--peer", &address]).output();
    assert!(output.contains("PROFILE: Entered P2P sync from start state: "), "{output}");
    assert_eq!(satgres.digest(), digest);
}

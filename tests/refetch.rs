//! What the files do not give is asked of the node: blocks that only the database still holds when a reorg needs them again,
//! and blocks that the disk does not give back. And what the node says of the chain is kept.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash as _;
use support::blkfiles::{BlkDir, records};
use support::blocks::Chain;
use support::node::Node;
use support::rows::{assert_chain, hex};
use support::{Running, Satgres, signal};

const NOWHERE: &str = "no-such-folder";

/// A node that holds these blocks, and its address; its folder must outlive it.
fn node_with(folder: &Path, blocks: &[Block], why: &str) -> Option<(Node, String)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let node = Node::start(folder, &["-listen=1", &format!("-bind=127.0.0.1:{port}")], why)?;
    submit(&node, &blocks[1..]);
    Some((node, format!("127.0.0.1:{port}")))
}

fn submit(node: &Node, blocks: &[Block]) {
    for block in blocks {
        let answer = node.cli(&["submitblock", &hex(&serialize(block))]);
        assert!(["", "inconclusive"].contains(&answer.as_str()), "the node takes our blocks: {answer}");
    }
}

#[test]
fn a_reorg_needs_no_block_that_only_the_database_holds() {
    let chain = Chain::with_blocks(130);
    let mut longer = chain.fork(120, 1);
    longer.mine_empty(15);
    let folder = tempfile::tempdir().unwrap();
    let why = "blocks that only the database holds are not needed again";
    let Some((node, address)) = node_with(folder.path(), chain.blocks(), why) else { return };

    // All in one segment, whose files vanish.
    let blocks_dir = BlkDir::of(chain.blocks());
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    assert_eq!(satgres.value("select count(*) from ops.confirmed_tip"), "0");
    assert!(satgres.status()["confirmed_tip"].is_null());
    drop(blocks_dir);

    // The files of a pruned node hold the other branch alone: what both share stays as it is.
    let branch = BlkDir::of(&longer.blocks()[121..]);
    satgres.run("regtest", branch.path(), &[]);
    assert_chain(&satgres, &longer.rows());
    assert_eq!(satgres.copy("select fork_height, depth from ops.reorgs"), ["120\t10"]);
    satgres.verify();
    submit(&node, &longer.blocks()[121..]);
    satgres.run("regtest", branch.path(), &["--peer", &address]);
    what_the_node_confirmed_is_kept(&satgres, &longer, &address);

    // The same without any file, one block after the other, and in bulk.
    for (nonce, threshold) in [(2, "1000"), (3, "0")] {
        let mut longest = longer.fork(125, nonce);
        longest.mine_empty(20 + nonce as usize);
        submit(&node, &longest.blocks()[126..]);
        let options = ["--peer", &address, "--segment-bytes", "1KiB", "--live-sync-threshold", threshold];
        satgres.run("regtest", Path::new(NOWHERE), &options);
        assert_chain(&satgres, &longest.rows());
        assert_eq!(satgres.status()["confirmed_tip"]["height"], 145 + nonce);
    }
}

fn what_the_node_confirmed_is_kept(satgres: &Satgres, chain: &Chain, address: &str) {
    let tip = chain.blocks()[135].block_hash();
    let row = satgres.psql("select height, chain.hash_hex(hash), peer, now() - at < interval '10 minutes' from ops.confirmed_tip");
    assert_eq!(row, [["135", &tip.to_string(), address, "t"]]);
    let told = &satgres.status()["confirmed_tip"];
    assert_eq!((&told["height"], &told["hash"]), (&135.into(), &tip.to_string().into()), "{told:#}");
    assert_eq!((&told["peer"], &told["is_in_chain"]), (&address.into(), &true.into()), "{told:#}");
    let shown = satgres.command(&["status"]).stdout;
    assert!(shown.contains(&format!("confirmed by a node; {address} confirmed ")), "{shown}");

    // Files alone say otherwise: the node's word stays what it was, of a block that is in the chain no more.
    let mut other = chain.fork(134, 7);
    other.mine_empty(3);
    let files = BlkDir::of(other.blocks());
    satgres.run("regtest", files.path(), &[]);
    let told = &satgres.status()["confirmed_tip"];
    assert_eq!((&told["height"], &told["is_in_chain"]), (&135.into(), &false.into()), "{told:#}");
    satgres.run("regtest", files.path(), &["--peer", address]);
    let told = &satgres.status()["confirmed_tip"];
    assert_eq!((&told["hash"], &told["is_in_chain"]), (&tip.to_string().into(), &true.into()), "{told:#}");
    assert_eq!(tip.to_byte_array().len(), 32);
}

/// A directory in a file's place opens, and fails when it is read: EISDIR, which no waiting mends, as EIO after some tries.
/// A true EIO needs a failing disk.
#[test]
fn a_block_file_that_cannot_be_read_is_made_up_for_by_the_node() {
    let chain = Chain::with_blocks(140);
    let folder = tempfile::tempdir().unwrap();
    let why = "a file that cannot be read is made up for";
    let Some((_node, address)) = node_with(folder.path(), chain.blocks(), why) else { return };
    let blocks_dir = BlkDir::new();
    blocks_dir.write(0, &records(&chain.blocks()[..70]));
    blocks_dir.write(1, &records(&chain.blocks()[70..120]));
    blocks_dir.write(2, &records(&chain.blocks()[120..]));
    let file = blocks_dir.path().join("blk00001.dat");
    let spoil = || {
        fs::rename(&file, file.with_extension("away")).unwrap();
        fs::create_dir(&file).unwrap();
    };
    let mend = || {
        fs::remove_dir(&file).unwrap();
        fs::rename(file.with_extension("away"), &file).unwrap();
    };

    // It cannot even be scanned.
    let satgres = Satgres::new();
    spoil();
    let output = satgres.run("regtest", blocks_dir.path(), &["--peer", &address]).output();
    assert!(output.contains("a block file cannot be read: its blocks are asked of the node"), "{output}");
    assert_chain(&satgres, &chain.rows());
    satgres.forget_chain();
    let failed = satgres.try_run("regtest", blocks_dir.path(), &[]);
    assert_eq!(failed.status.code(), Some(3), "{}", failed.output());
    assert!(failed.stderr.contains("blk00001.dat"), "{}", failed.stderr);

    // Without a node it is an error too where another copy of the blocks is not there; with a copy it is none.
    mend();
    blocks_dir.write(3, &records(&chain.blocks()[70..120]));
    signal_and_spoil(&satgres, &blocks_dir, spoil);
    assert_chain(&satgres, &chain.rows());
}

/// Loads from files alone, one of which fails after the scan.
fn signal_and_spoil(satgres: &Satgres, blocks_dir: &BlkDir, spoil: impl Fn()) {
    let server = satgres.postmaster();
    signal(server, libc::SIGSTOP);
    let mut running = Running::run(satgres, blocks_dir.path(), &[]);
    running.wait_for("scanned the headers of", 1);
    spoil();
    signal(server, libc::SIGCONT);
    let (ended, output) = running.wait();
    assert!(ended.success(), "{output}");
}

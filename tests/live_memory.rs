//! On entering LIVE the memory of the load goes back to the system, and the service stays small while it waits.
//!
//! A test program of its own with one test, so that a machine with few cores is not asked for more at the same time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use bitcoin::block::{Header, Version};
use bitcoin::hashes::Hash as _;
use bitcoin::{Block, CompactTarget, Network, ScriptBuf, TxMerkleNode};
use satgres::plan::{Overrides, Phase, Plan};
use satgres::resources::Resources;
use support::blkfiles::BlkDir;
use support::blocks::{coinbase, mine, pay, script};
use support::{Running, Satgres};

const BLOCKS: u32 = 24;
const OUTPUTS: usize = 90_000;
/// All coins are unspent: 40 bytes each in the cache.
const CACHE_BYTES: u64 = BLOCKS as u64 * OUTPUTS as u64 * 40;

/// Blocks whose coinbases fill the UTXO cache as fast as bytes can: ten bytes of block for forty of cache.
fn wide_blocks() -> Vec<Block> {
    let mut blocks = vec![bitcoin::constants::genesis_block(Network::Regtest)];
    for height in 1..=BLOCKS {
        let parent = blocks.last().unwrap().header;
        let script_sig = ScriptBuf::builder().push_int(i64::from(height)).push_int(1_000).into_script();
        let mut block = Block {
            header: Header {
                version: Version::from_consensus(0x2000_0000),
                prev_blockhash: parent.block_hash(),
                merkle_root: TxMerkleNode::all_zeros(),
                time: parent.time + 600,
                bits: CompactTarget::from_consensus(0x207f_ffff),
                nonce: 0,
            },
            txdata: vec![coinbase(script_sig, vec![pay(0, script(&[0x51])); OUTPUTS])],
        };
        mine(&mut block);
        blocks.push(block);
    }
    blocks
}

/// A line of `/proc/PID/status`, bytes.
fn status_bytes(pid: i32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim_end().parse::<u64>().unwrap() * 1024
}

#[test]
fn resident_memory_falls_below_the_plan_of_live_within_a_minute() {
    let blocks = BlkDir::of(&wide_blocks());
    let satgres = Satgres::new();
    let args = ["run", "--network", "regtest", "--blocks-dir", blocks.path().to_str().unwrap()];
    let mut running = Running::start(&satgres, &[&args[..], &["--utxo-cache", "1GiB"]].concat());
    running.wait_for("Entered LIVE sync from start state", 1);
    let peak = status_bytes(running.pid(), "VmHWM:");
    assert!(peak > CACHE_BYTES + CACHE_BYTES / 4, "the load took {peak} bytes only");

    let live = Plan::new(&Resources::detect(Path::new("/tmp")), Phase::Live, &Overrides::default());
    // What the plan has without the UTXO cache, which only blocks to come will fill.
    let allowed = (live.service_bytes() - live.utxo_cache_bytes).min(CACHE_BYTES);
    let began = Instant::now();
    let mut resident = status_bytes(running.pid(), "VmRSS:");
    while resident > allowed && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
        resident = status_bytes(running.pid(), "VmRSS:");
    }
    eprintln!("resident memory: at most {peak} bytes, {resident} in LIVE after {:?}", began.elapsed());
    assert!(resident <= allowed, "{resident} bytes of {peak} are left, allowed are {allowed}");
    assert!(running.is_running());
    running.signal(libc::SIGTERM);
    let (status, said) = running.wait();
    assert!(said.contains("memory of the service on entering LIVE"), "{said}");
    assert_eq!(status.code(), Some(0), "{said}");
}

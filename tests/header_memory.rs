//! A million headers from a peer stay within 250 bytes of memory each, all in: measured in a process of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bitcoin::block::Header;
use bitcoin::consensus::encode::{deserialize, serialize};
use bitcoin::p2p::message_blockdata::GetHeadersMessage;
use satgres::network::Network;
use satgres::source::{Node, NodeOptions, ScannedHeaders};
use support::Satgres;
use support::blkfiles::REGTEST;
use support::peer::{Misdeed, Peer, message, read_message};
use support::rows::assert_chain;

const HEADERS: u32 = 1_000_000;
const BYTES_A_HEADER_MAX: u64 = 250;
/// Set in the process that measures.
const ADDRESS: &str = "SATGRES_TEST_HEADERS_FROM";

#[test]
fn a_million_headers_stay_below_250_bytes_each() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return measure(address);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || serve(&listener, HEADERS));
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_million_headers_stay_below_250_bytes_each", "--nocapture"]);
    let output = child.env(ADDRESS, address).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let peak =
        said.lines().find_map(|line| line.split_once("peak of ")?.1.split_once(" bytes")?.0.parse().ok());
    let peak: u64 = peak.unwrap_or_else(|| panic!("it measured nothing:\n{said}"));
    println!("{} bytes a header at most, all in", peak / u64::from(HEADERS));
    assert!(peak < BYTES_A_HEADER_MAX * u64::from(HEADERS), "{peak} bytes at most for {HEADERS} headers");
    // No less than the entries themselves: the measure is one.
    assert!(peak > 88 * u64::from(HEADERS), "{peak} bytes");
}

fn measure(address: String) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let timeout = Duration::from_secs(60);
        let options = NodeOptions {
            addresses: vec![address],
            timeout,
            window_bytes: 8_000_000,
            headers_batch: 100_000,
        };
        let node = Node::start(Network::Regtest, &options);
        let mut tree = ScannedHeaders::none(Network::Regtest).link_loosely(&[]);
        let root = tree.root();
        let tips = node.sync_headers(&mut tree, root).await.unwrap();
        assert_eq!(tips.len(), 1);
        assert_eq!(tree.height(tips[0].index), HEADERS);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        println!("peak of {} bytes", kib << 10);
    });
}

/// Headers that descend from genesis, prove their work, break no rule and never end: on regtest they cost two hashes each.
#[test]
fn a_peer_whose_headers_never_end_is_dropped_and_the_good_ones_chain_is_reached() {
    let chain = support::sample::chain(112);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endless = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || serve(&listener, u32::MAX));
    let good = Peer::serve(chain.blocks(), Misdeed::None);
    let satgres = Satgres::new();
    let args = ["--peer", endless.as_str(), "--peer", good.address.as_str()];
    let output = satgres.run("regtest", Path::new("no-such-folder"), &args).output();
    let is_told =
        |line: &str| line.contains("dropped the node: more than 1100000 headers") && line.contains(&endless);
    assert!(output.lines().any(is_told), "{output}");
    assert_chain(&satgres, &chain.rows());
    let peak: u64 = satgres.value("select max(peak_rss_bytes) from ops.phases").parse().unwrap();
    assert!(peak < 1_100_000 * BYTES_A_HEADER_MAX, "{peak} bytes");
    assert!(peak > 1_100_000 * 88, "it took that many: {peak} bytes");
}

/// Mines headers as they are asked for; keeps none but the last.
fn serve(listener: &TcpListener, most: u32) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut last: Header = bitcoin::constants::genesis_block(bitcoin::Network::Regtest).header;
    let mut height = 0;
    while let Ok((command, payload)) = read_message(&mut stream) {
        let answers = match command.as_str() {
            "version" => {
                let mut version = payload;
                version[4..12].copy_from_slice(&9_u64.to_le_bytes());
                [message(REGTEST, "version", &version), message(REGTEST, "verack", &[])].concat()
            }
            "getheaders" => {
                let asked: GetHeadersMessage = deserialize(&payload).unwrap();
                assert_eq!(asked.locator_hashes[0], last.block_hash(), "headers are asked for in order");
                let count = (most - height).min(2000);
                let mut headers = serialize(&bitcoin::VarInt(u64::from(count)));
                for _ in 0..count {
                    last.prev_blockhash = last.block_hash();
                    last.time += 1;
                    while last.validate_pow(last.target()).is_err() {
                        last.nonce = last.nonce.wrapping_add(1);
                    }
                    headers.extend(serialize(&last));
                    headers.push(0);
                }
                height += count;
                message(REGTEST, "headers", &headers)
            }
            _ => continue,
        };
        // Whoever has had enough hangs up.
        if stream.write_all(&answers).is_err() {
            return;
        }
    }
}

//! A node, a `satgres run` that follows it, and a chain that both should have.
//!
//! In: blocks of our own making, which the node judges by its rules. Out: the database's tip as it moves. The node runs
//! every script, so that ours must be satisfied.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "shared by test binaries that are crates of their own")]

use std::path::Path;
use std::time::{Duration, Instant};

use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::{Hash as _, sha256};
use bitcoin::{ScriptBuf, Witness};
use tempfile::TempDir;

use super::support::blocks::{Chain, Draft, outpoint, pay, script, spend};
use super::support::node::Node;
use super::support::rows::{assert_chain, hex};
use super::support::{Running, Satgres, wait_until};

/// Longest time that anything may take; what takes how long is asserted elsewhere.
pub const DEADLINE: Duration = Duration::from_secs(90);
pub const LIVE: &str = "PROFILE: Entered LIVE sync from start state: ";
/// A folder that is not there: the node alone has the blocks.
pub const NOWHERE: &str = "no-such-folder";

/// Everything that a test of the tip needs.
#[derive(Debug)]
pub struct Tip {
    pub node: Option<Node>,
    node_dir: TempDir,
    node_options: Vec<String>,
    pub address: String,
    pub satgres: Satgres,
    pub running: Option<Running>,
    pub chain: Chain,
    /// Options of every `satgres run`.
    pub options: Vec<String>,
    branch: u8,
}

/// A script that anybody can spend with a witness: P2WSH of OP_TRUE.
fn open_witness() -> ScriptBuf {
    script(&[&[0x00, 0x20], sha256::Hash::hash(&[0x51]).to_byte_array().as_slice()].concat())
}

/// Adds a block that the node takes: an old coinbase is split, one part is spent in the block, another in the next one.
pub fn extend(chain: &mut Chain) {
    let height = chain.height() + 1;
    let Some(old) = height.checked_sub(101).filter(|&old| old > 0) else {
        chain.mine_empty(1);
        return;
    };
    let coinbase = chain.coinbase_outpoint(old);
    let value = chain.value(&coinbase);
    let seed = u8::try_from(height % 251).unwrap();
    let split = spend(
        &[coinbase],
        vec![
            pay(1_000_000, open_witness()),
            pay(2_000_000, script(&[0x51])),
            pay(0, script(&[0x6a, 0x01, seed])),
            pay(value - 3_001_000, script(&[&[0x00, 0x14], [seed; 20].as_slice()].concat())),
        ],
    );
    let mut within = spend(&[outpoint(&split, 0)], vec![pay(999_000, script(&[0x51, seed, 0x75]))]);
    within.input[0].witness = Witness::from_slice(&[vec![0x51]]);
    let mut transactions = vec![split, within];
    // What the block before left.
    if let Some(before) = chain.blocks()[height - 1].txdata.get(1) {
        let left = outpoint(before, 1);
        transactions.push(spend(
            &[left],
            vec![pay(
                1_999_000,
                script(&[&[0x76, 0xa9, 0x14], [seed; 20].as_slice(), &[0x88, 0xac]].concat()),
            )],
        ));
    }
    chain.mine(Draft { transactions, ..Draft::default() });
}

impl Tip {
    /// A node with a chain of a height; `why` is what is not tested without one.
    pub fn start(height: usize, options: &[&str], why: &str) -> Option<Tip> {
        Self::start_with(height, options, &[], why)
    }

    /// The same with more options of the node.
    pub fn start_with(height: usize, options: &[&str], node_options: &[&str], why: &str) -> Option<Tip> {
        let more = node_options.iter().map(|&option| option.to_owned());
        let node_dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let node_options: Vec<String> =
            ["-listen=1".to_owned(), format!("-bind=127.0.0.1:{port}")].into_iter().chain(more).collect();
        let words: Vec<&str> = node_options.iter().map(String::as_str).collect();
        let node = Node::start(node_dir.path(), &words, why)?;
        let mut chain = Chain::regtest();
        while chain.height() < height {
            extend(&mut chain);
        }
        let tip = Tip {
            node: Some(node),
            node_dir,
            node_options,
            address: format!("127.0.0.1:{port}"),
            satgres: Satgres::new(),
            running: None,
            chain,
            options: options.iter().map(|&option| option.to_owned()).collect(),
            branch: 0,
        };
        tip.submit(1);
        Some(tip)
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    /// The node's folder of block files.
    pub fn blocks_dir(&self) -> std::path::PathBuf {
        self.node_dir.path().join("regtest/blocks")
    }

    /// Gives the node our blocks from a height on.
    pub fn submit(&self, from: usize) {
        for block in &self.chain.blocks()[from..] {
            let answer = self.node().cli_stdin(&["submitblock"], &hex(&serialize(block)));
            assert!(answer.is_empty() || answer == "inconclusive", "the node takes our blocks: {answer}");
        }
    }

    /// Mines blocks and gives them to the node.
    pub fn mine(&mut self, count: usize) {
        let from = self.chain.height() + 1;
        (0..count).for_each(|_| extend(&mut self.chain));
        self.submit(from);
    }

    /// Makes the node leave the last `depth` blocks for `count` others.
    pub fn reorg(&mut self, depth: usize, count: usize) {
        let fork = self.chain.height() - depth;
        self.branch(fork);
        (0..count).for_each(|_| extend(&mut self.chain));
        // So that a branch with less work counts too.
        self.leave(fork);
        self.submit(fork + 1);
        assert_eq!(self.node().cli(&["getbestblockhash"]), self.chain.tip().to_string());
    }

    /// Goes on from a fork of our chain.
    pub fn branch(&mut self, fork: usize) {
        self.branch = self.branch.wrapping_add(1).max(1);
        self.chain = self.chain.fork(fork, self.branch);
    }

    /// Makes the node go back to the block at a height.
    pub fn leave(&self, fork: usize) {
        let first = self.node().cli(&["getblockhash", &(fork + 1).to_string()]);
        self.node().cli(&["invalidateblock", &first]);
    }

    pub fn restart_node(&mut self) {
        self.stop_node();
        self.start_node();
    }

    pub fn stop_node(&mut self) {
        let node = self.node.take().unwrap();
        node.stop();
    }

    pub fn start_node(&mut self) {
        let words: Vec<&str> = self.node_options.iter().map(String::as_str).collect();
        self.node = Node::start(self.node_dir.path(), &words, "it was there before");
    }

    /// Starts `satgres run`; waits until it is LIVE.
    pub fn follow(&mut self) {
        let address = self.address.clone();
        self.follow_from(Path::new(NOWHERE), &["--peer", &address]);
    }

    /// The same with other sources of blocks.
    pub fn follow_from(&mut self, blocks_dir: &Path, source: &[&str]) {
        let mut args = vec!["run", "--network", "regtest", "--blocks-dir", blocks_dir.to_str().unwrap()];
        args.extend(source);
        args.extend(self.options.iter().map(String::as_str));
        let mut running = Running::start(&self.satgres, &args);
        running.wait_for(LIVE, 1);
        self.running = Some(running);
    }

    /// Kills `satgres run`; returns what it has said.
    pub fn kill(&mut self) -> String {
        self.running.take().unwrap().kill()
    }

    /// Ends `satgres run` by a signal once it is LIVE: before, it would be interrupted, with exit code 130; returns what
    /// it has said.
    pub fn stop(&mut self) -> String {
        wait_until("it is LIVE", || self.satgres.status()["phase"]["name"] == "LIVE");
        let running = self.running.take().unwrap();
        running.signal(libc::SIGTERM);
        let (status, said) = running.wait();
        assert!(status.success(), "{status}\n{said}");
        said
    }

    pub fn said(&self) -> String {
        self.running.as_ref().unwrap().said()
    }

    /// The database's tip, `HEIGHT HASH`; nothing while the server is away.
    fn database_tip(&self) -> Option<String> {
        let sql =
            "select height || ' ' || chain.hash_hex(hash) from chain.blocks order by height desc limit 1";
        let finished = self.satgres.command(&["psql", "--", "-X", "-Atq", "-c", sql]);
        finished.status.success().then(|| finished.stdout.trim().to_owned())
    }

    /// Waits until the database has our tip; returns how long that took.
    pub fn wait(&mut self) -> Duration {
        let began = Instant::now();
        let want = format!("{} {}", self.chain.height(), self.chain.tip());
        loop {
            let found = self.database_tip();
            if found.as_ref() == Some(&want) {
                return began.elapsed();
            }
            let is_running = self.running.as_mut().is_some_and(Running::is_running);
            assert!(
                is_running && began.elapsed() < DEADLINE,
                "the tip is {found:?}, not {want}; it runs: {is_running}; it said:\n{}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for our tip, then panics unless the database holds our chain, row by row.
    pub fn check(&mut self) {
        self.wait();
        assert_chain(&self.satgres, &self.chain.rows());
    }

    /// Panics unless the digest is that of a fresh replay of the node's files, and the UTXO set the node's own.
    pub fn check_against_replay(&mut self, fresh: &Satgres) {
        self.check();
        if fresh.data_dir().exists() {
            fresh.forget_chain();
        }
        fresh.run("regtest", Path::new(NOWHERE), &["--peer", &self.address]);
        assert_eq!(self.satgres.digest(), fresh.digest(), "as a fresh replay");
        let info: serde_json::Value =
            serde_json::from_str(&self.node().cli(&["gettxoutsetinfo", "hash_serialized_3"])).unwrap();
        let ours = self.satgres.command(&["verify", "--utxo-hash"]);
        assert!(ours.status.success(), "{}", ours.output());
        let hash = info["hash_serialized_3"].as_str().unwrap();
        assert!(ours.stdout.contains(hash), "{hash} is not in:\n{}", ours.stdout);
        let coins = self.satgres.psql("select count(*), sum(value) from chain.utxos").remove(0);
        assert_eq!(coins[0], info["txouts"].to_string());
        let amount = info["total_amount"].as_f64().unwrap();
        assert_eq!(coins[1].parse::<f64>().unwrap(), (amount * 1e8).round());
    }
}

//! The tip: how long a block of 3,000 transactions takes from the node to the rows, a reorg, and a restart.
//!
//! `cargo bench --bench live` drives a real Bitcoin Core on regtest, like the tests of LIVE. A block's connect is what the
//! service says that it took, parse and commit included; the announcement is the moment at which the node calls it its tip
//! (its own log, microseconds), its end the notification that a listener hears. A reorg is taken from `ops.reorgs`, a
//! restart from a SIGKILL's successor to its line that LIVE is entered. The last line is for programs.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends by panicking, as a test does")]

mod harness;
#[path = "../tests/live/mod.rs"]
mod live;
#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bitcoin::hashes::{Hash as _, sha256};
use bitcoin::{Amount, OutPoint, ScriptBuf, Transaction, TxOut, Witness};
use clap::Parser;
use futures_util::StreamExt as _;
use harness::stats::median;
use live::Tip;
use support::blocks::{Chain, Draft, outpoint, pay, script, spend};
use tokio_postgres::{AsyncMessage, NoTls};

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Follows a real node's tip and measures it", disable_version_flag = true)]
struct Options {
    /// Transactions of a block.
    #[arg(long, value_name = "N", default_value_t = 3_000)]
    txs: usize,
    /// Blocks to connect.
    #[arg(long, value_name = "N", default_value_t = 24)]
    blocks: usize,
    /// Reorgs of depth 6, and restarts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// A few blocks, two rounds.
    #[arg(long)]
    quick: bool,
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A coin that anybody can spend with a witness as long as a signature and a key.
struct Purse {
    witness_script: ScriptBuf,
    coins: Vec<(OutPoint, u64)>,
}

impl Purse {
    /// Splits an old coinbase into so many coins; the transaction belongs into the next block.
    fn split(chain: &Chain, count: usize) -> (Transaction, Purse) {
        // 72 and 33 bytes are dropped, and true is left.
        let witness_script =
            script(&[&[72][..], &[0x30; 72], &[0x75, 33], &[0x02; 33], &[0x75, 0x51]].concat());
        let coinbase = chain.coinbase_outpoint(1);
        let each = (chain.value(&coinbase) - 1_000_000) / count as u64;
        let mut purse = Purse { witness_script, coins: Vec::new() };
        let split = spend(&[coinbase], (0..count).map(|_| pay(each, purse.script())).collect());
        let txid = split.compute_txid();
        purse.coins = (0..count).map(|vout| (OutPoint { txid, vout: vout as u32 }, each)).collect();
        (split, purse)
    }

    fn script(&self) -> ScriptBuf {
        let hash = sha256::Hash::hash(self.witness_script.as_bytes()).to_byte_array();
        script(&[&[0x00, 0x20], hash.as_slice()].concat())
    }

    /// Spends every coin: each pays somebody, and the rest comes back.
    fn spend_all(&mut self, seed: u32) -> Vec<Transaction> {
        let back = self.script();
        let mut transactions = Vec::with_capacity(self.coins.len());
        for (at, (coin, value)) in std::mem::take(&mut self.coins).into_iter().enumerate() {
            let somebody = sha256::Hash::hash(&[seed.to_le_bytes(), (at as u32).to_le_bytes()].concat());
            let somebody = script(&[&[0x00, 0x14], &somebody.to_byte_array()[..20]].concat());
            let mut transaction = spend(
                &[coin],
                vec![
                    pay(1_000, somebody),
                    TxOut { value: Amount::from_sat(value - 1_200), script_pubkey: back.clone() },
                ],
            );
            transaction.input[0].witness = Witness::from_slice(&[self.witness_script.as_bytes()]);
            self.coins.push((outpoint(&transaction, 1), value - 1_200));
            transactions.push(transaction);
        }
        transactions
    }
}

fn mine_full(chain: &mut Chain, purse: &mut Purse, branch: u32) {
    let transactions = purse.spend_all(branch << 16 | chain.height() as u32);
    let payouts = Some(vec![pay(0, script(&[0x51]))]);
    chain.mine(Draft { transactions, payouts, ..Draft::default() });
}

/// When each block was told, by its hash.
fn listen(tip: &Tip) -> Receiver<(String, f64)> {
    let url = tip.satgres.command(&["url"]).stdout.trim().to_owned();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
            let listen = async {
                client.batch_execute("listen satgres_block").await.unwrap();
                std::future::pending::<()>().await;
            };
            let hear = async {
                while let Some(Ok(message)) = messages.next().await {
                    if let AsyncMessage::Notification(told) = message {
                        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
                        let told: serde_json::Value = serde_json::from_str(told.payload()).unwrap();
                        if sender.send((told["hash"].as_str().unwrap().to_owned(), at)).is_err() {
                            return;
                        }
                    }
                }
            };
            tokio::select! {
                () = listen => {}
                () = hear => {}
            }
        });
    });
    std::thread::sleep(Duration::from_millis(500));
    receiver
}

/// When the node called a block its tip, by its log with microseconds, seconds since 1970.
fn node_took_at(tip: &Tip, hash: &str) -> f64 {
    let log = std::fs::read_to_string(tip.blocks_dir().parent().unwrap().join("debug.log")).unwrap();
    let line = log.lines().rfind(|line| line.contains(&format!("UpdateTip: new best={hash}"))).unwrap();
    let (time, _) = line.split_once(' ').unwrap();
    let parsed = time.strip_suffix('Z').unwrap();
    let (date, clock) = parsed.split_once('T').unwrap();
    let numbers: Vec<i64> = date.split('-').map(|it| it.parse().unwrap()).collect();
    let seconds: Vec<f64> = clock.split(':').map(|it| it.parse().unwrap()).collect();
    // Days since 1970, after Howard Hinnant's civil calendar.
    let (year, month) = (numbers[0] - i64::from(numbers[1] <= 2), numbers[1]);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + numbers[2] - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    days as f64 * 86_400.0 + seconds[0] * 3_600.0 + seconds[1] * 60.0 + seconds[2]
}

/// Seconds that the service says each block took, in order.
fn connect_seconds(said: &str) -> Vec<f64> {
    let lines = said.lines().filter(|line| line.contains("connected block height="));
    lines.map(|line| line.rsplit_once("seconds=").unwrap().1.trim().parse().unwrap()).collect()
}

fn main() {
    let mut options = Options::parse();
    if options.quick {
        (options.blocks, options.rounds) = (6, 2);
    }
    harness::machine::print_warnings();
    let node_options = ["-logtimemicros", "-rpcservertimeout=120"];
    let Some(mut tip) = Tip::start_with(101, &[], &node_options, "the bench of the tip") else { return };
    let (split, mut purse) = Purse::split(&tip.chain, options.txs);
    tip.chain.mine_transactions(vec![split]);
    tip.submit(102);
    tip.follow();
    let told = listen(&tip);

    // Blocks, one after the other, after two that warm up.
    println!("| block | connect, ms | announced to visible, ms |\n|---|---|---|");
    let (mut connects, mut announces) = (Vec::new(), Vec::new());
    for round in 0..options.blocks + 2 {
        mine_full(&mut tip.chain, &mut purse, 0);
        let hash = tip.chain.tip().to_string();
        tip.submit(tip.chain.height());
        let at = loop {
            let (found, at) = told.recv_timeout(Duration::from_secs(60)).unwrap();
            if found == hash {
                break at;
            }
        };
        tip.wait();
        let connect = *connect_seconds(&tip.said()).last().unwrap();
        let announce = at - node_took_at(&tip, &hash);
        if round >= 2 {
            println!("| {} | {:.0} | {:.0} |", tip.chain.height(), connect * 1e3, announce * 1e3);
            connects.push(connect);
            announces.push(announce);
        }
    }

    // Reorgs of full blocks, which the node tells all at once.
    let mut reorgs = Vec::new();
    for round in 0..options.rounds {
        let fork = tip.chain.height() - 6;
        tip.branch(fork);
        // The purse as it was at the fork.
        let last = tip.chain.blocks()[fork].txdata[1..].to_vec();
        purse.coins = last.iter().map(|tx| (outpoint(tx, 1), tx.output[1].value.to_sat())).collect();
        (0..7).for_each(|_| mine_full(&mut tip.chain, &mut purse, round as u32 + 1));
        tip.node().cli(&["setnetworkactive", "false"]);
        tip.leave(fork);
        tip.submit(fork + 1);
        tip.node().cli(&["setnetworkactive", "true"]);
        tip.wait();
        let row = tip.satgres.psql("select depth, seconds from ops.reorgs order by reorg_id desc limit 1");
        assert_eq!(row[0][0], "6", "one reorg of depth 6");
        reorgs.push(row[0][1].parse::<f64>().unwrap());
        println!("reorg of depth 6: {:.0} ms", reorgs[round] * 1e3);
    }

    let mut restarts = Vec::new();
    for _ in 0..options.rounds {
        tip.kill();
        let began = Instant::now();
        tip.follow();
        restarts.push(began.elapsed().as_secs_f64());
        println!("restart after SIGKILL: {:.2} s", restarts[restarts.len() - 1]);
    }
    tip.stop();
    println!(
        "connect_p50_ms={:.0} reorg6_ms={:.0} announce_p50_ms={:.0} restart_s={:.2}",
        median(connects) * 1e3,
        median(reorgs) * 1e3,
        median(announces) * 1e3,
        median(restarts)
    );
}

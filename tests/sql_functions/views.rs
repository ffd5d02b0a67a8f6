//! The api views and look-ups over the whole shared chains: every field equals the node's answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use bitcoin::block::{Header, Version};
use bitcoin::{Block, CompactTarget, Transaction, consensus};
use flate2::read::GzDecoder;
use serde_json::Value;
use tokio_postgres::{Client, Row};

use crate::postgres::{database, describe, shared_data};
use crate::rows::{Loader, Position, analyze, create_indexes, create_segment};

/// A chain as the node tells it, and loaded.
struct Chain {
    client: Client,
    /// `getblock H 3` by height.
    blocks: Vec<Value>,
    /// `getblockstats H` by height, from 1.
    stats: Vec<Value>,
}

fn read_lines(path: &Path) -> Vec<Value> {
    let lines = BufReader::new(GzDecoder::new(File::open(path).unwrap())).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

fn int(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("no integer: {value}"))
}

fn str(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Satoshis of an amount in BTC. A double holds every amount of satoshis below 2^53, so rounding gives it back exactly.
fn sat(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1e8).round() as i64
}

fn transactions(block: &Value) -> &Vec<Value> {
    block["tx"].as_array().unwrap()
}

/// The block whose header fields and transactions the node told.
fn block_of(json: &Value) -> Block {
    let header = Header {
        version: Version::from_consensus(int(&json["version"]) as i32),
        prev_blockhash: json["previousblockhash"].as_str().unwrap_or(&"0".repeat(64)).parse().unwrap(),
        merkle_root: str(&json["merkleroot"]).parse().unwrap(),
        time: int(&json["time"]) as u32,
        bits: CompactTarget::from_unprefixed_hex(str(&json["bits"])).unwrap(),
        nonce: int(&json["nonce"]) as u32,
    };
    let txdata =
        transactions(json).iter().map(|tx| consensus::encode::deserialize_hex(str(&tx["hex"])).unwrap());
    let block = Block { header, txdata: txdata.collect::<Vec<Transaction>>() };
    assert_eq!(block.block_hash().to_string(), str(&json["hash"]));
    block
}

async fn load(name: &str, folder: &Path, network: &str, segment_heights: i64) -> Chain {
    let client = database(name).await;
    client.execute("insert into ops.settings values ('network', $1)", &[&network]).await.unwrap();
    let blocks = read_lines(&folder.join("ground-truth/blocks-verbosity3.jsonl.gz"));
    let stats = read_lines(&folder.join("ground-truth/blockstats.jsonl.gz"));
    for segment_id in 0..=(blocks.len() as i64 / segment_heights) {
        let first = segment_id * segment_heights;
        create_segment(&client, segment_id as u32, first, first + segment_heights - 1).await;
    }
    client.batch_execute("begin").await.unwrap();
    let mut loader = Loader::new(&client);
    for (height, json) in blocks.iter().enumerate() {
        let position = Position {
            height: height as u32,
            median_time: int(&json["mediantime"]) as u32,
            chainwork: hex(str(&json["chainwork"])),
            subsidy: if height == 0 { 5_000_000_000 } else { int(&stats[height - 1]["subsidy"]) },
        };
        loader.connect_block(&position, &block_of(json)).await;
    }
    loader.flush().await;
    client.batch_execute("commit").await.unwrap();
    create_indexes(&client).await;
    analyze(&client).await;
    Chain { client, blocks, stats }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

async fn query(client: &Client, text: &str) -> Vec<Row> {
    client.query(text, &[]).await.unwrap_or_else(|error| panic!("{text}: {}", describe(&error)))
}

/// Compares one column with what is expected, naming the row.
macro_rules! same {
    ($row:expr, $column:literal, $type:ty, $expected:expr, $what:expr) => {
        assert_eq!($row.get::<_, $type>($column), $expected, "{} of {}", $column, $what)
    };
}

impl Chain {
    fn tip(&self) -> usize {
        self.blocks.len() - 1
    }

    async fn blocks_equal(&self) {
        let rows = query(
            &self.client,
            "select *, extract(epoch from time)::bigint as seconds, extract(epoch from median_time)::bigint as median
             from api.blocks order by height",
        )
        .await;
        assert_eq!(rows.len(), self.blocks.len());
        for (height, (row, json)) in rows.iter().zip(&self.blocks).enumerate() {
            same!(row, "height", i32, height as i32, height);
            same!(row, "hash", &str, str(&json["hash"]), height);
            same!(row, "previous_hash", Option<&str>, json["previousblockhash"].as_str(), height);
            same!(row, "version", i32, int(&json["version"]) as i32, height);
            same!(row, "merkle_root", &str, str(&json["merkleroot"]), height);
            same!(row, "seconds", i64, int(&json["time"]), height);
            same!(row, "median", i64, int(&json["mediantime"]), height);
            same!(row, "bits", &str, str(&json["bits"]), height);
            same!(row, "nonce", i64, int(&json["nonce"]), height);
            same!(row, "size", i32, int(&json["size"]) as i32, height);
            same!(row, "weight", i32, int(&json["weight"]) as i32, height);
            same!(row, "tx_count", i32, int(&json["nTx"]) as i32, height);
            same!(row, "chainwork", &str, str(&json["chainwork"]), height);
            same!(row, "confirmations", i32, (self.tip() - height + 1) as i32, height);
            // The node prints 16 digits.
            let (difficulty, printed) =
                (row.get::<_, f64>("difficulty"), json["difficulty"].as_f64().unwrap());
            assert!(
                (difficulty / printed - 1.0).abs() < 1e-15,
                "difficulty of {height}: {difficulty} {printed}"
            );
            let claimed: i64 =
                transactions(json)[0]["vout"].as_array().unwrap().iter().map(|o| sat(&o["value"])).sum();
            let (fees, subsidy) = (row.get::<_, i64>("fees"), row.get::<_, i64>("subsidy"));
            same!(row, "unclaimed", i64, subsidy + fees - claimed, height);
            let Some(stats) = height.checked_sub(1).map(|at| &self.stats[at]) else { continue };
            assert_eq!((fees, subsidy), (int(&stats["totalfee"]), int(&stats["subsidy"])), "height {height}");
            same!(row, "input_count", i32, int(&stats["ins"]) as i32 + 1, height);
            same!(row, "output_count", i32, int(&stats["outs"]) as i32, height);
        }
    }

    async fn transactions_equal(&self) {
        let rows = query(
            &self.client,
            "select v.*, extract(epoch from block_time)::bigint as seconds, fee_rate::text as rate,
                 encode(chain.raw_transaction(tx_num), 'hex') as hex, chain.hash_hex(chain.wtxid(tx_num)) as wtxid
             from api.transactions v order by tx_num",
        )
        .await;
        let mut rows = rows.iter();
        for (height, block) in self.blocks.iter().enumerate() {
            for (index, json) in transactions(block).iter().enumerate() {
                let row = rows.next().expect("as many rows as the node has transactions");
                let txid = str(&json["txid"]);
                same!(row, "height", i32, height as i32, txid);
                same!(row, "tx_index", i32, index as i32, txid);
                same!(row, "txid", &str, txid, height);
                same!(row, "tx_num", i64, (height as i64) << 16 | index as i64, txid);
                same!(row, "is_coinbase", bool, index == 0, txid);
                same!(row, "fee", Option<i64>, json.get("fee").map(sat), txid);
                same!(row, "size", i32, int(&json["size"]) as i32, txid);
                same!(row, "vsize", i32, int(&json["vsize"]) as i32, txid);
                same!(row, "weight", i32, int(&json["weight"]) as i32, txid);
                same!(row, "version", i64, int(&json["version"]), txid);
                same!(row, "locktime", i64, int(&json["locktime"]), txid);
                same!(row, "input_count", i32, json["vin"].as_array().unwrap().len() as i32, txid);
                same!(row, "output_count", i32, json["vout"].as_array().unwrap().len() as i32, txid);
                same!(row, "block_hash", &str, str(&block["hash"]), txid);
                same!(row, "seconds", i64, int(&block["time"]), txid);
                same!(row, "hex", &str, str(&json["hex"]), txid);
                same!(row, "wtxid", &str, str(&json["hash"]), txid);
                let rate = row.get::<_, Option<&str>>("rate").map(|rate| rate.parse::<f64>().unwrap());
                let exact = json.get("fee").map(|fee| sat(fee) as f64 * 4.0 / int(&json["weight"]) as f64);
                assert_eq!(rate.is_some(), exact.is_some(), "fee rate of {txid}");
                assert!(
                    (rate.unwrap_or(0.0) - exact.unwrap_or(0.0)).abs() <= 0.000_501,
                    "fee rate of {txid}"
                );
            }
        }
        assert!(rows.next().is_none());
    }

    /// Spender (tx_num, txid, vin) of every spent outpoint.
    fn spenders(&self) -> HashMap<(&str, i64), (i64, &str, i32)> {
        let mut spenders = HashMap::new();
        for (height, block) in self.blocks.iter().enumerate() {
            for (index, tx) in transactions(block).iter().enumerate() {
                for (vin, input) in tx["vin"].as_array().unwrap().iter().enumerate().filter(|_| index > 0) {
                    let spender = ((height as i64) << 16 | index as i64, str(&tx["txid"]), vin as i32);
                    spenders.insert((str(&input["txid"]), int(&input["vout"])), spender);
                }
            }
        }
        spenders
    }

    async fn outputs_equal(&self) {
        let spenders = self.spenders();
        let rows = query(
            &self.client,
            "select v.*, encode(script, 'hex') as hex from api.outputs v order by tx_num, vout",
        )
        .await;
        let mut rows = rows.iter();
        for (height, block) in self.blocks.iter().enumerate() {
            for (index, tx) in transactions(block).iter().enumerate() {
                for (vout, json) in tx["vout"].as_array().unwrap().iter().enumerate() {
                    let row = rows.next().expect("as many rows as the node has outputs");
                    let what = format!("{}:{vout}", str(&tx["txid"]));
                    let script = &json["scriptPubKey"];
                    same!(row, "height", i32, height as i32, what);
                    same!(row, "tx_index", i32, index as i32, what);
                    same!(row, "txid", &str, str(&tx["txid"]), what);
                    same!(row, "vout", i32, vout as i32, what);
                    same!(row, "value", i64, sat(&json["value"]), what);
                    same!(row, "type", &str, str(&script["type"]), what);
                    same!(row, "address", Option<&str>, script.get("address").map(str), what);
                    same!(row, "hex", &str, str(&script["hex"]), what);
                    same!(row, "is_coinbase", bool, index == 0, what);
                    let hex = str(&script["hex"]);
                    let unspendable = height == 0 || hex.starts_with("6a") || hex.len() > 20_000;
                    same!(row, "is_unspendable", bool, unspendable, what);
                    same!(row, "is_overwritten", bool, false, what);
                    let spender = spenders.get(&(str(&tx["txid"]), vout as i64)).copied();
                    same!(row, "spent_by_tx_num", Option<i64>, spender.map(|spender| spender.0), what);
                    same!(row, "spent_by_txid", Option<&str>, spender.map(|spender| spender.1), what);
                    same!(row, "spent_by_vin", Option<i32>, spender.map(|spender| spender.2), what);
                }
            }
        }
        assert!(rows.next().is_none());
    }

    async fn inputs_equal(&self) {
        let rows = query(
            &self.client,
            "select v.*, encode(script_sig, 'hex') as hex from api.inputs v order by tx_num, vin",
        )
        .await;
        let mut rows = rows.iter();
        for (height, block) in self.blocks.iter().enumerate() {
            for (index, tx) in transactions(block).iter().enumerate() {
                for (vin, json) in tx["vin"].as_array().unwrap().iter().enumerate() {
                    let row = rows.next().expect("as many rows as the node has inputs");
                    let what = format!("input {vin} of {}", str(&tx["txid"]));
                    let spent = json.get("prevout");
                    let script = spent.map(|spent| &spent["scriptPubKey"]);
                    same!(row, "height", i32, height as i32, what);
                    same!(row, "tx_index", i32, index as i32, what);
                    same!(row, "txid", &str, str(&tx["txid"]), what);
                    same!(row, "vin", i32, vin as i32, what);
                    same!(row, "is_coinbase", bool, index == 0, what);
                    same!(
                        row,
                        "prev_height",
                        Option<i32>,
                        spent.map(|spent| int(&spent["height"]) as i32),
                        what
                    );
                    same!(row, "prev_txid", Option<&str>, json.get("txid").map(str), what);
                    same!(row, "prev_vout", Option<i32>, json.get("vout").map(|vout| int(vout) as i32), what);
                    same!(row, "value", Option<i64>, spent.map(|spent| sat(&spent["value"])), what);
                    same!(row, "type", Option<&str>, script.map(|script| str(&script["type"])), what);
                    let address = script.and_then(|script| script.get("address")).map(str);
                    same!(row, "address", Option<&str>, address, what);
                    same!(row, "sequence", i64, int(&json["sequence"]), what);
                    let script_sig = json.get("coinbase").unwrap_or_else(|| &json["scriptSig"]["hex"]);
                    same!(row, "hex", &str, str(script_sig), what);
                    let items = json.get("txinwitness").map(|items| items.as_array().unwrap().clone());
                    let items: Vec<Vec<u8>> =
                        items.unwrap_or_default().iter().map(|item| hex(str(item))).collect();
                    same!(row, "witness", Vec<Vec<u8>>, items, what);
                }
            }
        }
        assert!(rows.next().is_none());
    }

    /// The set of unspent outputs, line by line as the node wrote it.
    async fn utxos_equal(&self, folder: &Path) {
        let file = File::open(folder.join("ground-truth/utxo-set.csv.gz")).unwrap();
        let lines = BufReader::new(GzDecoder::new(file)).lines().skip(1);
        let expected: BTreeSet<String> = lines.map(|line| line.unwrap()).collect();
        let rows = query(
            &self.client,
            "select concat_ws(',', chain.txid_hex(t.txid), u.vout, u.value, (u.tx_num & 65535 = 0)::integer,
                 chain.height(u.tx_num), encode(u.script, 'hex'))
             from chain.utxos u join chain.transactions t using (tx_num)",
        )
        .await;
        let found: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(rows.len(), expected.len());
        assert_eq!(found, expected);
    }

    /// Credits and debits of every address by transaction, as the node's outputs and prevouts give them.
    fn movements(&self) -> HashMap<&str, BTreeMap<i64, (i64, i64)>> {
        let mut movements: HashMap<&str, BTreeMap<i64, (i64, i64)>> = HashMap::new();
        for (height, block) in self.blocks.iter().enumerate() {
            for (index, tx) in transactions(block).iter().enumerate() {
                let tx_num = (height as i64) << 16 | index as i64;
                for output in tx["vout"].as_array().unwrap() {
                    if let Some(address) = output["scriptPubKey"]["address"].as_str() {
                        movements.entry(address).or_default().entry(tx_num).or_default().0 +=
                            sat(&output["value"]);
                    }
                }
                for spent in tx["vin"].as_array().unwrap().iter().filter_map(|input| input.get("prevout")) {
                    if let Some(address) = spent["scriptPubKey"]["address"].as_str() {
                        movements.entry(address).or_default().entry(tx_num).or_default().1 +=
                            sat(&spent["value"]);
                    }
                }
            }
        }
        movements
    }

    /// The busiest address and every `step`th of the others.
    async fn addresses_equal(&self, step: usize) {
        let movements = self.movements();
        let mut addresses: Vec<&str> = movements.keys().copied().collect();
        addresses.sort_by_key(|address| (std::cmp::Reverse(movements[address].len()), *address));
        for address in addresses.into_iter().step_by(step) {
            let expected = &movements[address];
            let (received, spent) =
                expected.values().fold((0, 0), |sum, (credit, debit)| (sum.0 + credit, sum.1 + debit));
            let row =
                self.client.query_one("select * from api.address_balance($1)", &[&address]).await.unwrap();
            let found: (i64, i64, i64) = (row.get("balance"), row.get("received"), row.get("spent"));
            assert_eq!(found, (received - spent, received, spent), "{address}");
            let utxos = self.client.query("select * from api.address_utxos($1)", &[&address]).await.unwrap();
            assert_eq!(
                utxos.iter().map(|row| row.get::<_, i64>("value")).sum::<i64>(),
                received - spent,
                "{address}"
            );
            assert_eq!(utxos.len() as i64, row.get::<_, i64>("utxo_count"), "{address}");
            // The whole history in pages of three.
            let (mut before, mut history) = (None::<i64>, Vec::new());
            loop {
                let page = self
                    .client
                    .query("select * from api.address_history($1, 3, $2)", &[&address, &before])
                    .await
                    .unwrap();
                let Some(last) = page.last() else { break };
                before = Some(last.get("tx_num"));
                for row in page {
                    let height = row.get::<_, i32>("height") as usize;
                    let json = &transactions(&self.blocks[height])[row.get::<_, i32>("tx_index") as usize];
                    same!(row, "txid", &str, str(&json["txid"]), address);
                    let movement = (row.get::<_, i64>("received"), row.get::<_, i64>("spent"));
                    same!(row, "change", i64, movement.0 - movement.1, address);
                    history.push((row.get::<_, i64>("tx_num"), movement));
                }
            }
            let newest_first: Vec<(i64, (i64, i64))> =
                expected.iter().rev().map(|(at, sums)| (*at, *sums)).collect();
            assert_eq!(history, newest_first, "{address}");
        }
    }

    async fn look_ups_equal(&self, step: usize) {
        let mut fees = Vec::new();
        for (height, block) in self.blocks.iter().enumerate() {
            for (index, tx) in transactions(block).iter().enumerate() {
                fees.extend(tx.get("fee").map(|fee| (-sat(fee), height, index, str(&tx["txid"]))));
            }
            if height % step == 0 {
                let by_height =
                    self.client.query("select hash from api.block($1)", &[&(height as i32)]).await.unwrap();
                assert_eq!(by_height[0].get::<_, &str>(0), str(&block["hash"]));
                let by_hash = "select height from api.block_by_hash($1)";
                let by_hash = self.client.query(by_hash, &[&str(&block["hash"])]).await.unwrap();
                assert_eq!(by_hash[0].get::<_, i32>(0), height as i32);
                let last = transactions(block).last().unwrap();
                let found =
                    self.client.query("select height from api.transaction($1)", &[&str(&last["txid"])]).await;
                assert_eq!(found.unwrap()[0].get::<_, i32>(0), height as i32);
            }
        }
        fees.sort_unstable();
        let rows = query(&self.client, "select txid from api.largest_fees(10)").await;
        let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        let expected: Vec<&str> = fees.iter().take(10).map(|fee| fee.3).collect();
        assert_eq!(found, expected);
        let rows = query(&self.client, "select txid from api.largest_fees(3, 100, 300)").await;
        let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        let between = fees.iter().filter(|fee| (100..=300).contains(&fee.1)).take(3);
        assert_eq!(found, between.map(|fee| fee.3).collect::<Vec<&str>>());
        for absent in
            ["api.block(1000000)", "api.block(-1)", "api.block(null)", "api.transaction(repeat('0', 64))"]
        {
            assert!(query(&self.client, &format!("select * from {absent}")).await.is_empty(), "{absent}");
        }
    }
}

#[tokio::test]
async fn the_regtest_chain_reads_as_the_node_tells_it() {
    let Some(data) = shared_data("the regtest chain reads as the node tells it") else { return };
    let folder = data.join("regtest");
    let chain = load("the_regtest_chain_reads_as_the_node_tells_it", &folder, "regtest", 100).await;
    chain.blocks_equal().await;
    chain.transactions_equal().await;
    chain.outputs_equal().await;
    chain.inputs_equal().await;
    chain.utxos_equal(&folder).await;
    chain.addresses_equal(40).await;
    chain.look_ups_equal(7).await;
    let subsidies = query(
        &chain.client,
        "select height from api.blocks where subsidy <> chain.subsidy(height, (select chain.network()))",
    );
    assert!(subsidies.await.is_empty());
}

#[tokio::test]
async fn mainnet_0_to_4312_reads_as_the_node_tells_it() {
    let Some(data) = shared_data("mainnet 0 to 4312 reads as the node tells it") else { return };
    let folder = data.join("mainnet-0-4312");
    let chain = load("mainnet_0_to_4312_reads_as_the_node_tells_it", &folder, "main", 1_000).await;
    chain.blocks_equal().await;
    chain.transactions_equal().await;
    chain.outputs_equal().await;
    chain.inputs_equal().await;
    chain.utxos_equal(&folder).await;
    chain.addresses_equal(1).await;
    chain.look_ups_equal(500).await;
}

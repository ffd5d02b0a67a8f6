//! Real chain data with a real node's answers, read into values that can be compared.
//!
//! In: a folder of `../shared/data` (`SATGRES_SHARED` moves `../shared`). Out: a blocks folder, and what the node said
//! about its chain. Called by `tests/ground_truth.rs`. Amounts are parsed from their digits, never through a float.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use tempfile::TempDir;

use super::rows::unhex;

/// One chain of the data: where it lies, and an unpacked copy of its block files.
#[derive(Debug)]
pub struct GroundTruth {
    answers: PathBuf,
    unpacked: TempDir,
    blocks: &'static str,
}

/// Where the data of one chain is, or None, with a word about it, where it is not.
pub fn find(folder: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("SATGRES_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let path = shared.join("data").join(folder);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: no real chain data in {} (SATGRES_SHARED can point to it)", path.display());
    None
}

impl GroundTruth {
    /// Unpacks `folder`; `blocks` is the blocks folder in its archive, and `answers` the folder with the node's answers.
    pub fn open(folder: &str, blocks: &'static str, answers: &str) -> Option<Self> {
        let archive = find(folder)?.join("datadir.tar.zst");
        let answers = find(answers)?.join("ground-truth");
        let unpacked = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        tar.arg("--zstd").arg("-xf").arg(&archive).arg("-C").arg(unpacked.path());
        let status = tar.status().unwrap_or_else(|error| panic!("tar does not start: {error}"));
        assert!(status.success(), "tar --zstd -xf {}: {status} (is zstd installed?)", archive.display());
        Some(Self { answers, unpacked, blocks })
    }

    pub fn blocks_dir(&self) -> PathBuf {
        self.unpacked.path().join(self.blocks)
    }

    /// `getblock H 3` of every height.
    pub fn blocks(&self) -> Vec<Block> {
        self.json_lines("blocks-verbosity3.jsonl.gz")
    }

    /// `getblockstats H` from height 1.
    pub fn block_stats(&self) -> Vec<BlockStats> {
        self.json_lines("blockstats.jsonl.gz")
    }

    /// `gettxoutsetinfo muhash H` of every height.
    pub fn utxo_totals(&self) -> Vec<UtxoTotals> {
        self.json_lines("txoutsetinfo-by-height.jsonl.gz")
    }

    pub fn stale_blocks(&self) -> Vec<StaleBlock> {
        serde_json::from_str(&self.text("stale-blocks.json.gz")).unwrap()
    }

    /// Lines `txid,vout,value_sat,coinbase,height,scriptpubkey_hex`, sorted.
    pub fn utxo_set(&self) -> Vec<String> {
        self.text("utxo-set.csv.gz").lines().skip(1).map(str::to_owned).collect()
    }

    pub fn summary(&self) -> Summary {
        serde_json::from_str(&fs::read_to_string(self.answers.join("summary.json")).unwrap()).unwrap()
    }

    fn json_lines<T: DeserializeOwned>(&self, name: &str) -> Vec<T> {
        let parse =
            |line: &str| serde_json::from_str(&quote_amounts(line)).unwrap_or_else(|e| panic!("{name}: {e}"));
        self.text(name).lines().map(parse).collect()
    }

    fn text(&self, name: &str) -> String {
        let mut text = String::new();
        let path = self.answers.join(name);
        let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
        text
    }
}

/// A block as `getblock H 3` prints it.
#[derive(Debug, Deserialize)]
pub struct Block {
    pub previousblockhash: Option<String>,
    pub hash: String,
    pub height: u32,
    pub version: i32,
    pub merkleroot: String,
    pub time: u32,
    pub mediantime: u32,
    pub nonce: u32,
    pub bits: String,
    pub chainwork: String,
    #[serde(rename = "nTx")]
    pub tx_count: usize,
    pub strippedsize: usize,
    pub size: usize,
    pub weight: u64,
    pub tx: Vec<Transaction>,
}

#[derive(Debug, Deserialize)]
pub struct Transaction {
    pub txid: String,
    /// The wtxid.
    pub hash: String,
    pub version: u32,
    pub size: usize,
    pub vsize: u64,
    pub weight: u64,
    pub locktime: u32,
    pub fee: Option<Sat>,
    pub vin: Vec<Input>,
    pub vout: Vec<Output>,
    /// All bytes.
    pub hex: String,
}

#[derive(Debug, Deserialize)]
pub struct Input {
    /// scriptSig of a coinbase.
    pub coinbase: Option<String>,
    pub txid: Option<String>,
    pub vout: Option<u32>,
    #[serde(rename = "scriptSig")]
    pub script_sig: Option<Script>,
    #[serde(default)]
    pub txinwitness: Vec<String>,
    pub prevout: Option<Prevout>,
    pub sequence: u32,
}

#[derive(Debug, Deserialize)]
pub struct Prevout {
    pub generated: bool,
    pub height: u32,
    pub value: Sat,
    #[serde(rename = "scriptPubKey")]
    pub script_pubkey: Script,
}

#[derive(Debug, Deserialize)]
pub struct Output {
    pub value: Sat,
    pub n: u32,
    #[serde(rename = "scriptPubKey")]
    pub script_pubkey: Script,
}

/// `type` is missing in a scriptSig, `address` wherever Core gives none.
#[derive(Debug, Deserialize)]
pub struct Script {
    pub hex: String,
    #[serde(rename = "type", default)]
    pub kind: String,
    pub address: Option<String>,
}

/// What `getblockstats` says, in satoshis and bytes; sums over transactions leave the coinbase out.
#[derive(Debug, Deserialize, PartialEq)]
pub struct BlockStats {
    pub height: u32,
    pub avgfee: i64,
    pub avgfeerate: i64,
    pub avgtxsize: i64,
    pub ins: i64,
    pub maxfee: i64,
    pub maxfeerate: i64,
    pub maxtxsize: i64,
    pub minfee: i64,
    pub minfeerate: i64,
    pub mintxsize: i64,
    pub outs: i64,
    pub subsidy: i64,
    pub swtotal_size: i64,
    pub swtotal_weight: i64,
    pub swtxs: i64,
    pub total_out: i64,
    pub total_size: i64,
    pub total_weight: i64,
    pub totalfee: i64,
    pub txs: i64,
    pub utxo_increase: i64,
    pub utxo_size_inc: i64,
    pub utxo_increase_actual: i64,
    pub utxo_size_inc_actual: i64,
}

#[derive(Debug, Deserialize)]
pub struct UtxoTotals {
    pub height: u32,
    pub txouts: usize,
    pub total_amount: Sat,
    pub total_unspendable_amount: Sat,
}

#[derive(Debug, Deserialize)]
pub struct StaleBlock {
    pub hash: String,
    pub height: u32,
    pub hex: String,
}

#[derive(Debug, Deserialize)]
pub struct Summary {
    pub tip_height: u32,
    pub tip: String,
    pub hash_serialized_3: UtxoHash,
}

#[derive(Debug, Deserialize)]
pub struct UtxoHash {
    pub txouts: usize,
    pub hash_serialized_3: String,
    pub total_amount: Sat,
}

/// An amount in satoshis, read from a decimal number of bitcoins in quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sat(pub u64);

impl<'de> Deserialize<'de> for Sat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_sat(&text).map(Sat).ok_or_else(|| D::Error::custom(format!("not an amount: {text}")))
    }
}

/// Satoshis of a decimal number of bitcoins with at most eight places.
fn parse_sat(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    if places.len() > 8 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let places: u64 = format!("{places:0<8}").parse().ok()?;
    Some(whole * 100_000_000 + places)
}

/// Puts the numbers that are amounts in quotes, so that a JSON reader leaves their digits alone. A key of JSON cannot
/// occur inside a string, where its quotes would be escaped.
fn quote_amounts(json: &str) -> String {
    let mut quoted = String::with_capacity(json.len() + json.len() / 16);
    let mut rest = json;
    while let Some(colon) = rest.find("\":") {
        let (head, tail) = rest.split_at(colon + 2);
        quoted.push_str(head);
        rest = tail;
        let is_amount = ["\"value\":", "\"fee\":", "_amount\":"].iter().any(|key| head.ends_with(key));
        if is_amount {
            let end = rest.find([',', '}']).unwrap();
            quoted.extend(["\"", &rest[..end], "\""]);
            rest = &rest[end..];
        }
    }
    quoted.push_str(rest);
    quoted
}

/// Bytes of a script or a whole transaction.
impl Script {
    pub fn bytes(&self) -> Vec<u8> {
        unhex(&self.hex)
    }
}

#[test]
fn amounts_are_read_exactly() {
    let cases = [
        ("50.00000000", Some(5_000_000_000)),
        ("0.00000001", Some(1)),
        ("0.1", Some(10_000_000)),
        ("20999999.99999999", Some(2_099_999_999_999_999)),
        ("7", Some(700_000_000)),
        ("0.000000001", None),
        ("1e-8", None),
    ];
    for (text, sat) in cases {
        assert_eq!(parse_sat(text), sat, "{text}");
    }
    assert_eq!(
        quote_amounts(r#"{"value":1.5,"n":0,"a":[{"fee":0.1}],"total_amount":2.0}"#),
        r#"{"value":"1.5","n":0,"a":[{"fee":"0.1"}],"total_amount":"2.0"}"#
    );
}

//! Rows of the chain tables as plain values, how they are read out of the database, and how two sets are compared.
//!
//! In: expected rows, from the model of `model.rs` or from a node's answers; a loaded database. Out: a panic that
//! names table and row at the first difference. Used by every end-to-end test. It must never compute an expected
//! value from what the database said.

use bitcoin::hashes::{Hash, sha256};

use super::Satgres;

/// What `COPY` prints for NULL.
pub const NULL: &str = "\\N";

/// Expected contents of a database: every table, in key order.
#[derive(Debug, Default, Clone)]
pub struct Rows {
    pub blocks: Vec<BlockRow>,
    pub transactions: Vec<TransactionRow>,
    pub outputs: Vec<OutputRow>,
    pub inputs: Vec<InputRow>,
    pub utxos: Vec<OutputRow>,
    /// `[tx_num, vout, by_tx_num]`
    pub overwritten: Vec<[i64; 3]>,
}

/// A row of `chain.blocks`; hashes in internal byte order.
#[derive(Debug, Clone)]
pub struct BlockRow {
    pub height: u32,
    pub hash: [u8; 32],
    pub version: i32,
    pub merkle_root: [u8; 32],
    pub time: u32,
    pub median_time: u32,
    pub bits: u32,
    pub nonce: u32,
    pub size: usize,
    pub weight: u64,
    pub tx_count: usize,
    pub input_count: usize,
    pub output_count: usize,
    pub fees: i64,
    pub subsidy: i64,
    pub unclaimed: i64,
    /// Hex of 32 bytes, big-endian.
    pub chainwork: String,
}

/// A row of `chain.transactions`; `fee` is None for a coinbase.
#[derive(Debug, Clone)]
pub struct TransactionRow {
    pub tx_num: i64,
    pub fee: Option<i64>,
    pub locktime: u32,
    pub version: u32,
    pub size: usize,
    pub weight: u64,
    pub input_count: usize,
    pub output_count: usize,
    pub txid: [u8; 32],
}

/// A row of `chain.outputs`, or of `chain.utxos`.
#[derive(Debug, Clone)]
pub struct OutputRow {
    pub tx_num: i64,
    pub vout: u32,
    pub value: u64,
    pub script: Vec<u8>,
}

/// A row of `chain.inputs`; `prevout` is None for a coinbase. `witness` in consensus encoding, empty when it has no item.
#[derive(Debug, Clone)]
pub struct InputRow {
    pub tx_num: i64,
    pub vin: u32,
    pub prevout: Option<OutputRow>,
    pub sequence: u32,
    pub script_sig: Vec<u8>,
    pub witness: Vec<u8>,
}

const BLOCKS: &str = "select height, encode(hash, 'hex'), version, encode(merkle_root, 'hex'), \
     extract(epoch from time)::bigint, extract(epoch from median_time)::bigint, bits, nonce, size, weight, tx_count, \
     input_count, output_count, fees, subsidy, unclaimed, encode(chainwork, 'hex') from chain.blocks order by height";
const TRANSACTIONS: &str = "select tx_num, height, fee, locktime, version, size, weight, input_count, output_count, \
     encode(txid, 'hex') from chain.transactions order by tx_num";
const OUTPUTS: &str =
    "select tx_num, vout, value, script_hash, encode(script, 'hex') from chain.outputs order by tx_num, vout";
const UTXOS: &str =
    "select tx_num, vout, value, script_hash, encode(script, 'hex') from chain.utxos order by tx_num, vout";
const INPUTS: &str = "select tx_num, vin, prev_tx_num, prev_vout, value, script_hash, sequence, encode(script_sig, 'hex'), \
     encode(witness, 'hex') from chain.inputs order by tx_num, vin";
const OVERWRITTEN: &str = "select tx_num, vout, by_tx_num from chain.overwritten order by tx_num, vout";

/// Panics at the first row of any chain table that is not as expected.
pub fn assert_chain(satgres: &Satgres, want: &Rows) {
    compare("blocks", &satgres.copy(BLOCKS), want.blocks.iter().map(BlockRow::line));
    compare("transactions", &satgres.copy(TRANSACTIONS), want.transactions.iter().map(TransactionRow::line));
    compare("outputs", &satgres.copy(OUTPUTS), want.outputs.iter().map(OutputRow::line));
    compare("inputs", &satgres.copy(INPUTS), want.inputs.iter().map(InputRow::line));
    compare(
        "overwritten",
        &satgres.copy(OVERWRITTEN),
        want.overwritten.iter().map(|[a, b, c]| format!("{a}\t{b}\t{c}")),
    );
    compare("utxos", &satgres.copy(UTXOS), want.utxos.iter().map(OutputRow::line));
}

/// Panics at the first line that differs, or where one side ends early; `what` names the query.
pub fn compare(what: &str, got: &[String], want: impl ExactSizeIterator<Item = String>) {
    let want_count = want.len();
    for (index, want) in want.enumerate() {
        let got = got.get(index).unwrap_or_else(|| {
            panic!("{what}: {} rows, {want_count} expected; first missing: {}", got.len(), shorten(&want))
        });
        assert!(*got == want, "{what}, row {index}:\n  got  {}\n  want {}", shorten(got), shorten(&want));
    }
    assert!(
        got.len() == want_count,
        "{what}: {} rows, {want_count} expected; first too many: {}",
        got.len(),
        shorten(&got[want_count])
    );
}

/// Cuts long fields (a script may have megabytes) so that a failure can be read.
fn shorten(line: &str) -> String {
    let fields = line.split('\t').map(|field| match field.len() {
        0..=200 => field.to_owned(),
        length => {
            format!("{}…({length} characters, sha256 {})", &field[..60], sha256::Hash::hash(field.as_bytes()))
        }
    });
    fields.collect::<Vec<_>>().join(" | ")
}

impl BlockRow {
    fn line(&self) -> String {
        [
            self.height.to_string(),
            hex(&self.hash),
            self.version.to_string(),
            hex(&self.merkle_root),
            self.time.to_string(),
            self.median_time.to_string(),
            self.bits.to_string(),
            self.nonce.to_string(),
            self.size.to_string(),
            self.weight.to_string(),
            self.tx_count.to_string(),
            self.input_count.to_string(),
            self.output_count.to_string(),
            self.fees.to_string(),
            self.subsidy.to_string(),
            self.unclaimed.to_string(),
            self.chainwork.clone(),
        ]
        .join("\t")
    }
}

impl TransactionRow {
    fn line(&self) -> String {
        [
            self.tx_num.to_string(),
            (self.tx_num >> 16).to_string(),
            self.fee.map_or_else(|| NULL.to_owned(), |fee| fee.to_string()),
            self.locktime.to_string(),
            self.version.to_string(),
            self.size.to_string(),
            self.weight.to_string(),
            self.input_count.to_string(),
            self.output_count.to_string(),
            hex(&self.txid),
        ]
        .join("\t")
    }
}

impl OutputRow {
    fn line(&self) -> String {
        let (hash, script) = (script_hash(&self.script), hex(&self.script));
        format!("{}\t{}\t{}\t{hash}\t{script}", self.tx_num, self.vout, self.value)
    }
}

impl InputRow {
    fn line(&self) -> String {
        let prevout = match &self.prevout {
            None => [NULL; 4].join("\t"),
            Some(coin) => {
                format!("{}\t{}\t{}\t{}", coin.tx_num, coin.vout, coin.value, script_hash(&coin.script))
            }
        };
        let (script_sig, witness) = (hex(&self.script_sig), hex(&self.witness));
        format!("{}\t{}\t{prevout}\t{}\t{script_sig}\t{witness}", self.tx_num, self.vin, self.sequence)
    }
}

/// First 16 bytes of sha256(script), in order, printed as PostgreSQL prints a uuid.
pub fn script_hash(script: &[u8]) -> String {
    let digits = hex(&sha256::Hash::hash(script).to_byte_array()[..16]);
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

/// Lower-case hex, in order.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

/// Bytes of lower- or upper-case hex.
pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd number of hex digits: {text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Internal byte order of a hash that is printed reversed.
pub fn unhex_hash(text: &str) -> [u8; 32] {
    let mut bytes = unhex(text);
    bytes.reverse();
    bytes.try_into().unwrap()
}

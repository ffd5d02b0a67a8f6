//! A batch: consecutive blocks that travel through the replay together, in the bytes they were read as and in the
//! fixed-width facts that parsing and resolving add.
//!
//! Filled by the parse threads (everything but the prevouts), completed by the resolve stage, read by the encoders.
//! Scripts and witnesses are ranges of `raw`; a batch is cleared and used again, so that the hot path does not
//! allocate once its vectors have grown.

use super::hash::Hash32;
use super::header::Header;

/// A range of a batch's raw bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub from: u32,
    /// Number of bytes.
    pub len: u32,
}

impl Span {
    /// Returns the bytes.
    #[inline]
    pub fn of(self, raw: &[u8]) -> &[u8] {
        &raw[self.from as usize..self.from as usize + self.len as usize]
    }
}

/// One block of a batch.
#[derive(Clone, Debug)]
pub struct Block {
    /// Height in the active chain.
    pub height: u32,
    /// Block hash, internal byte order.
    pub hash: Hash32,
    /// The header's fields.
    pub header: Header,
    /// Serialised size with witness, bytes.
    pub size: u32,
    /// Weight, weight units.
    pub weight: u32,
    /// Number of transactions; they follow each other in `Batch::txs`, block by block.
    pub tx_count: u32,
    /// Number of inputs, the coinbase's included.
    pub input_count: u32,
    /// Number of outputs.
    pub output_count: u32,
    /// Sum of fees, satoshis; set by the resolve stage, [`WAITS`] if a transaction waits.
    pub fees_sat: u64,
    /// Subsidy, satoshis; set by the resolve stage.
    pub subsidy_sat: u64,
    /// Subsidy and fees not claimed by the coinbase, satoshis; set by the resolve stage.
    pub unclaimed_sat: u64,
    /// Median time of this block and its ten ancestors, seconds since 1970.
    pub median_time: u32,
    /// Work of the chain up to this block.
    pub chainwork: u128,
}

/// One transaction of a batch; its inputs and outputs follow each other in `Batch::inputs` and `Batch::outputs`.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    /// Transaction id, internal byte order.
    pub txid: Hash32,
    /// Version.
    pub version: u32,
    /// Lock time.
    pub locktime: u32,
    /// Serialised size with witness, bytes.
    pub size: u32,
    /// Weight, weight units.
    pub weight: u32,
    /// Number of inputs.
    pub input_count: u32,
    /// Number of outputs.
    pub output_count: u32,
    /// Fee, satoshis; set by the resolve stage, [`WAITS`] if an input waits, meaningless for a coinbase.
    pub fee_sat: u64,
}

/// One input of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Keyed fingerprint of the outpoint that it spends; meaningless for a coinbase.
    pub outpoint: crate::prevouts::Fingerprint,
    /// Sequence.
    pub sequence: u32,
    /// Index of the output that it spends.
    pub prev_vout: u32,
    /// scriptSig.
    pub script_sig: Span,
    /// Witness in its consensus encoding; empty where there is none.
    pub witness: Span,
    /// The output that it spends; set by the resolve stage, meaningless for a coinbase.
    pub prevout: crate::prevouts::Coin,
}

impl Input {
    /// Returns the txid of the output that it spends, internal byte order; of a coinbase all zeros. The bytes stand in front
    /// of the scriptSig: txid, index (4 bytes), the length of the scriptSig in its shortest form.
    #[inline]
    pub fn prev_txid(&self, raw: &[u8]) -> Hash32 {
        let length_bytes = match self.script_sig.len {
            0..=0xfc => 1,
            0xfd..=0xffff => 3,
            _ => 5,
        };
        let end = self.script_sig.from as usize - length_bytes - 4;
        raw[end - 32..end].try_into().expect("32 bytes")
    }
}

/// One output of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Keyed fingerprint of its outpoint.
    pub outpoint: crate::prevouts::Fingerprint,
    /// Amount, satoshis.
    pub value_sat: u64,
    /// First 16 bytes of SHA-256 of the script.
    pub script_hash: [u8; 16],
    /// scriptPubKey.
    pub script: Span,
    /// Whether it can never be spent: OP_RETURN first, or a script over 10,000 bytes.
    pub is_unspendable: bool,
}

/// Consecutive blocks on their way through the replay.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Place in the order of batches, from 0.
    pub seq: u64,
    /// The blocks as they were read, one after the other.
    pub raw: Vec<u8>,
    /// Blocks, by height.
    pub blocks: Vec<Block>,
    /// Transactions, in chain order.
    pub txs: Vec<Tx>,
    /// Inputs, in chain order.
    pub inputs: Vec<Input>,
    /// Outputs, in chain order.
    pub outputs: Vec<Output>,
    /// Scratch for merkle trees.
    pub(crate) hashes: Vec<Hash32>,
    /// Outputs of earlier coinbases that this batch's twins overwrote (BIP30); set by the resolve stage.
    pub overwritten: Vec<Overwritten>,
}

/// An unspent output that a later coinbase with the same txid replaced (BIP30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overwritten {
    /// The earlier transaction.
    pub tx_num: i64,
    /// Index of the output, the same in both.
    pub vout: u32,
    /// The later transaction.
    pub by_tx_num: i64,
}

impl Batch {
    /// Returns about how much memory the batch needs until its rows are sent, bytes: the blocks, what is known of them,
    /// and their rows, which repeat the scripts. Blocks of many tiny outputs need twenty times their size.
    pub fn needed_bytes(&self) -> u64 {
        // A row's fixed-width columns with their lengths, as COPY sends them, of each table.
        const ROW_BYTES: [usize; 4] = [320, 126, 112, 62];
        let counts = [self.blocks.len(), self.txs.len(), self.inputs.len(), self.outputs.len()];
        let rows: usize = counts.iter().zip(ROW_BYTES).map(|(count, bytes)| count * bytes).sum();
        (2 * self.raw.len() + self.facts_bytes(counts) + rows) as u64
    }

    /// Returns whether the vectors have grown far beyond what such blocks usually need: then their memory is better
    /// given back than kept for the next batch.
    pub fn is_overgrown(&self) -> bool {
        let capacities =
            [self.blocks.capacity(), self.txs.capacity(), self.inputs.capacity(), self.outputs.capacity()];
        self.facts_bytes(capacities) > 4 * self.raw.capacity()
    }

    fn facts_bytes(&self, counts: [usize; 4]) -> usize {
        let [blocks, txs, inputs, outputs] = counts;
        blocks * size_of::<Block>()
            + txs * size_of::<Tx>()
            + inputs * size_of::<Input>()
            + outputs * size_of::<Output>()
            + self.hashes.capacity() * size_of::<Hash32>()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.blocks.clear();
        self.txs.clear();
        self.inputs.clear();
        self.outputs.clear();
        self.overwritten.clear();
    }
}

/// In place of an amount that is not known yet: an input waits for its coin, and with it the row of its transaction and
/// that of its block.
pub const WAITS: u64 = u64::MAX;

/// Most transactions that a `tx_num` can number in one block; a valid block holds at most 16,666.
pub const BLOCK_TXS_MAX: u64 = 1 << 16;

/// Returns `height * 65536 + index`: the number of a transaction, unique and in chain order.
#[inline]
pub fn tx_num(height: u32, index: u32) -> i64 {
    debug_assert!(u64::from(index) < BLOCK_TXS_MAX);
    i64::from(height) << 16 | i64::from(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tiny_outputs_need_far_more_than_their_bytes() {
        let output = Output {
            outpoint: Default::default(),
            value_sat: 0,
            script_hash: [0; 16],
            script: Span::default(),
            is_unspendable: false,
        };
        let mut batch = Batch { raw: vec![0; 4_000_000], ..Batch::default() };
        batch.outputs = vec![output; 4_000];
        assert!((8_000_000..9_000_000).contains(&batch.needed_bytes()), "{}", batch.needed_bytes());
        assert!(!batch.is_overgrown());
        batch.outputs = vec![output; 400_000];
        assert!((50_000_000..64_000_000).contains(&batch.needed_bytes()), "{}", batch.needed_bytes());
        assert!(batch.is_overgrown());
    }
}

//! Parses one block into a batch and proves what can be proved without other blocks: structure, merkle root, witness
//! commitment, weight, amounts in range.
//!
//! In: the bytes of one block record, already appended to `Batch::raw`. Out: rows of facts in the batch. On an error
//! the batch is not usable. Nothing here trusts a length: every count is paid for by bytes that are there.

use std::cell::Cell;

use super::batch::{BLOCK_TXS_MAX, Batch, Block, Input, Output, Scratch, Span, Tx, TxPlace};
use super::cursor::{Cursor, CursorError};
use super::hash::{Hash32, script_hash_of, sha256d_parts};
use super::header::{HEADER_BYTES, Header};
use super::merkle::merkle_root;
use super::sha256::{sha256_many, sha256d_many};
use crate::prevouts::{Coin, FingerprintKey};

/// Most weight of a block (`MAX_BLOCK_WEIGHT` in Bitcoin Core's `consensus/consensus.h`).
pub const BLOCK_WEIGHT_MAX: u64 = 4_000_000;
/// Most satoshis that can exist (`MAX_MONEY` in Bitcoin Core's `consensus/amount.h`).
pub const MONEY_MAX_SAT: u64 = 21_000_000 * 100_000_000;
/// Longest script that can be spent, bytes (`MAX_SCRIPT_SIZE`).
pub const SCRIPT_BYTES_MAX: u32 = 10_000;

const OP_RETURN: u8 = 0x6a;
const WITNESS_SCALE: u64 = 4;

/// Why the bytes of a record are not the block that its header commits to. The record is damaged: another copy of
/// the same block may be whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamagedBlock {
    /// An item runs past the end, or is encoded in a way that no node writes.
    #[error(transparent)]
    Encoding(#[from] CursorError),
    /// A transaction has the segwit marker but another flag than 1, or no witness at all.
    #[error("transaction {index}: bad segwit flag or superfluous witness")]
    SegwitFlag {
        /// Index of the transaction in the block.
        index: u32,
    },
    /// Bytes remain after the last transaction.
    #[error("{count} bytes remain after the last transaction")]
    Trailing {
        /// How many.
        count: usize,
    },
    /// The transactions do not hash to the header's merkle root.
    #[error("merkle root does not match the header")]
    MerkleRoot,
    /// Another list of transactions has the same merkle root (CVE-2012-2459).
    #[error("duplicated transactions at the end (CVE-2012-2459)")]
    MerkleMutated,
    /// The witnesses do not hash to the commitment in the coinbase (BIP141).
    #[error("witness commitment does not match")]
    WitnessCommitment,
    /// Another block stands where this one was found: the file was rewritten since.
    #[error("another block stands here: the file was rewritten since it was scanned")]
    OtherBlock,
    /// A witness stands in a block that commits to none (BIP141).
    #[error("witness without a commitment")]
    UnexpectedWitness,
}

/// A rule that a whole block breaks by itself. The block is invalid, and so is every descendant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBlock {
    /// No transactions.
    #[error("block has no transactions")]
    NoTransactions,
    /// More transactions than fit any valid block.
    #[error("block has {count} transactions")]
    TooManyTransactions {
        /// How many the block says it has.
        count: u64,
    },
    /// The first transaction is no coinbase, or another one is.
    #[error("transaction {index}: coinbase missing or misplaced")]
    Coinbase {
        /// Index of the transaction in the block.
        index: u32,
    },
    /// A transaction without inputs or outputs.
    #[error("transaction {index} has no inputs or no outputs")]
    EmptyTransaction {
        /// Index of the transaction in the block.
        index: u32,
    },
    /// An amount, or the sum of a transaction's outputs, is above 21 million coins.
    #[error("transaction {index}: amount out of range")]
    AmountRange {
        /// Index of the transaction in the block.
        index: u32,
    },
    /// Heavier than 4,000,000 weight units.
    #[error("block weighs {weight} of at most 4000000 weight units")]
    Weight {
        /// Its weight.
        weight: u64,
    },
}

/// Why a block was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The record is damaged: try another copy.
    #[error("damaged: {0}")]
    Damaged(#[from] DamagedBlock),
    /// The block is invalid: exclude it and its descendants.
    #[error("invalid: {0}")]
    Invalid(#[from] InvalidBlock),
}

impl From<CursorError> for BlockError {
    fn from(error: CursorError) -> Self {
        BlockError::Damaged(error.into())
    }
}

/// What the chain before it says about a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockContext {
    /// Height in the active chain.
    pub height: u32,
    /// Hash of its header, internal byte order.
    pub hash: Hash32,
    /// Median time of this block and its ten ancestors, seconds since 1970.
    pub median_time: u32,
    /// Work of the chain up to this block.
    pub chainwork: u128,
    /// Whether witness commitments are checked at this height (BIP141).
    pub segwit_active: bool,
}

/// Parses the block that stands at the end of `batch.raw` from `raw_from` on, and appends it to the batch.
///
/// # Errors
/// [`BlockError::Damaged`]: the record is not what its header commits to; read another copy.
/// [`BlockError::Invalid`]: the block breaks a rule; exclude it and its descendants.
pub fn parse_block(
    batch: &mut Batch,
    raw_from: usize,
    context: &BlockContext,
    key: &FingerprintKey,
) -> Result<(), BlockError> {
    let raw = std::mem::take(&mut batch.raw);
    let mut scratch = std::mem::take(&mut batch.scratch);
    scratch.clear();
    let parsed = parse_from(&raw, batch, &mut scratch, raw_from, context, key);
    batch.raw = raw;
    batch.scratch = scratch;
    parsed
}

fn parse_from(
    raw: &[u8],
    batch: &mut Batch,
    scratch: &mut Scratch,
    raw_from: usize,
    context: &BlockContext,
    key: &FingerprintKey,
) -> Result<(), BlockError> {
    let block = &raw[raw_from..];
    let mut cursor = Cursor::new(block);
    let header = Header::parse(&cursor.array::<HEADER_BYTES>()?);
    let tx_count = cursor.compact_size()?;
    let first = First { tx: batch.txs.len(), input: batch.inputs.len(), output: batch.outputs.len() };

    let mut weight = WITNESS_SCALE * cursor.position() as u64;
    let mut invalid = None;
    for index in 0..tx_count.min(BLOCK_TXS_MAX) as u32 {
        invalid = invalid.or(parse_tx(&mut cursor, batch, scratch, raw_from, index, key)?);
        weight += u64::from(batch.txs.last().expect("just pushed").weight);
    }
    if tx_count > BLOCK_TXS_MAX {
        return Err(InvalidBlock::TooManyTransactions { count: tx_count }.into());
    }
    if cursor.remaining() != 0 {
        return Err(DamagedBlock::Trailing { count: cursor.remaining() }.into());
    }
    hash_all(raw, block, batch, scratch, &first, key);

    // The merkle root first: only bytes that the header commits to may call a block invalid.
    scratch.leaves.extend(batch.txs[first.tx..].iter().map(|tx| tx.txid));
    let (root, mutated) = merkle_root(&mut scratch.leaves);
    if root != header.merkle_root {
        return Err(DamagedBlock::MerkleRoot.into());
    }
    if mutated {
        return Err(DamagedBlock::MerkleMutated.into());
    }
    if batch.txs.len() == first.tx {
        return Err(InvalidBlock::NoTransactions.into());
    }
    check_witness(raw, block, batch, scratch, context, &first)?;
    if let Some(invalid) = invalid {
        return Err(invalid.into());
    }
    if weight > BLOCK_WEIGHT_MAX {
        return Err(InvalidBlock::Weight { weight }.into());
    }

    batch.blocks.push(Block {
        height: context.height,
        hash: context.hash,
        header,
        size: block.len() as u32,
        weight: weight as u32,
        tx_count: (batch.txs.len() - first.tx) as u32,
        input_count: (batch.inputs.len() - first.input) as u32,
        output_count: (batch.outputs.len() - first.output) as u32,
        fees_sat: 0,
        subsidy_sat: 0,
        unclaimed_sat: 0,
        median_time: context.median_time,
        chainwork: context.chainwork,
    });
    Ok(())
}

/// Where a block's rows begin in its batch.
struct First {
    tx: usize,
    input: usize,
    output: usize,
}

/// Makes the txids, the script hashes, and the fingerprints that follow from the txids.
fn hash_all(
    raw: &[u8],
    block: &[u8],
    batch: &mut Batch,
    scratch: &Scratch,
    first: &First,
    key: &FingerprintKey,
) {
    let Scratch { places, stripped, .. } = scratch;
    let txs = &mut batch.txs[first.tx..];
    let bytes = |index: usize| match &places[index] {
        TxPlace { whole, stripped } if stripped.is_empty() => &block[whole.clone()],
        TxPlace { stripped: range, .. } => &stripped[range.clone()],
    };
    sha256d_many(places.len(), bytes, |index, txid| txs[index].txid = txid);
    let outputs = &mut batch.outputs[first.output..];
    let mut left = &mut *outputs;
    for tx in txs.iter() {
        let (these, after) = left.split_at_mut(tx.output_count as usize);
        key.fingerprint_outputs(&tx.txid, these);
        left = after;
    }
    // The two closures need the outputs' scripts and their hashes at the same time.
    let outputs = Cell::from_mut(outputs).as_slice_of_cells();
    sha256_many(
        outputs.len(),
        |index| outputs[index].get().script.of(raw),
        |index, hash| outputs[index].update(|output| Output { script_hash: script_hash_of(&hash), ..output }),
    );
}

/// Parses one transaction, but for its hashes; returns the rule that it breaks by itself.
fn parse_tx(
    cursor: &mut Cursor<'_>,
    batch: &mut Batch,
    scratch: &mut Scratch,
    raw_from: usize,
    index: u32,
    key: &FingerprintKey,
) -> Result<Option<InvalidBlock>, BlockError> {
    let span = |from: usize, len: usize| Span { from: (raw_from + from) as u32, len: len as u32 };
    let start = cursor.position();
    let version = cursor.u32()?;
    let mut has_witness = false;
    if cursor.peek() == Some(0) {
        cursor.u8()?;
        // Without inputs a transaction would look like this too, but no block may hold one.
        if cursor.u8()? != 1 {
            return Err(DamagedBlock::SegwitFlag { index }.into());
        }
        has_witness = true;
    }

    let body = cursor.position();
    let input_first = batch.inputs.len();
    let input_count = cursor.compact_size()?;
    let mut null_prevout = false;
    for _ in 0..input_count {
        let prev_txid = cursor.array::<32>()?;
        let prev_vout = cursor.u32()?;
        let (from, len) = cursor.var_bytes()?;
        let sequence = cursor.u32()?;
        null_prevout |= prev_vout == u32::MAX && prev_txid == [0; 32];
        batch.inputs.push(Input {
            outpoint: key.fingerprint(&prev_txid, prev_vout),
            sequence,
            prev_vout,
            script_sig: span(from, len),
            witness: span(from, 0),
            prevout: Coin::NONE,
        });
    }

    let output_count = cursor.compact_size()?;
    let mut value_sum_sat: u64 = 0;
    let mut in_range = true;
    for _ in 0..output_count {
        let value_sat = cursor.u64()?;
        let (from, len) = cursor.var_bytes()?;
        let script = cursor.slice(from, from + len);
        value_sum_sat = value_sum_sat.saturating_add(value_sat);
        in_range &= value_sum_sat <= MONEY_MAX_SAT;
        batch.outputs.push(Output {
            outpoint: Default::default(),
            value_sat,
            script_hash: [0; 16],
            script: span(from, len),
            is_unspendable: script.first() == Some(&OP_RETURN) || script.len() > SCRIPT_BYTES_MAX as usize,
        });
    }

    let witness_from = cursor.position();
    if has_witness {
        let mut any = false;
        for input in &mut batch.inputs[input_first..] {
            let from = cursor.position();
            let item_count = cursor.compact_size()?;
            for _ in 0..item_count {
                cursor.var_bytes()?;
            }
            if item_count > 0 {
                any = true;
                input.witness = span(from, cursor.position() - from);
            }
        }
        if !any {
            return Err(DamagedBlock::SegwitFlag { index }.into());
        }
    }
    let witness_to = cursor.position();
    let locktime = cursor.u32()?;
    let end = cursor.position();

    let stripped_from = scratch.stripped.len();
    if has_witness {
        for (from, to) in [(start, start + 4), (body, witness_from), (witness_to, end)] {
            scratch.stripped.extend_from_slice(cursor.slice(from, to));
        }
    }
    scratch.places.push(TxPlace { whole: start..end, stripped: stripped_from..scratch.stripped.len() });

    let size = end - start;
    let stripped = if has_witness { size - 2 - (witness_to - witness_from) } else { size };
    let coinbase = input_count == 1 && null_prevout;
    let invalid = if input_count == 0 || output_count == 0 {
        Some(InvalidBlock::EmptyTransaction { index })
    } else if coinbase != (index == 0) || (null_prevout && !coinbase) {
        Some(InvalidBlock::Coinbase { index })
    } else if !in_range {
        Some(InvalidBlock::AmountRange { index })
    } else {
        None
    };
    batch.txs.push(Tx {
        txid: [0; 32],
        version,
        locktime,
        size: size as u32,
        weight: (stripped * 3 + size) as u32,
        input_count: input_count as u32,
        output_count: output_count as u32,
        fee_sat: 0,
    });
    Ok(invalid)
}

/// Checks the witness commitment (BIP141, `CheckWitnessMalleation` in Bitcoin Core's `validation.cpp`).
fn check_witness(
    raw: &[u8],
    block: &[u8],
    batch: &Batch,
    scratch: &mut Scratch,
    context: &BlockContext,
    first: &First,
) -> Result<(), DamagedBlock> {
    let Scratch { places, leaves, .. } = scratch;
    let txs = &batch.txs[first.tx..];
    let outputs = &batch.outputs[first.output..first.output + txs[0].output_count as usize];
    let commitment = context.segwit_active.then(|| last_commitment(raw, outputs)).flatten();
    let has_witness = |index: &usize| !places[*index].stripped.is_empty();
    let Some(commitment) = commitment else {
        let is_any = (0..places.len()).any(|index| has_witness(&index));
        return if is_any { Err(DamagedBlock::UnexpectedWitness) } else { Ok(()) };
    };
    // One item of 32 bytes: a count of 1, a length of 32, the nonce.
    let nonce = match batch.inputs.get(first.input).map(|input| input.witness.of(raw)) {
        Some([1, 32, nonce @ ..]) if nonce.len() == 32 => nonce,
        _ => return Err(DamagedBlock::WitnessCommitment),
    };
    // A transaction without a witness has its txid as its wtxid; the coinbase counts as zeros.
    leaves.clear();
    leaves.extend(txs.iter().map(|tx| tx.txid));
    let others: Vec<usize> = (1..places.len()).filter(has_witness).collect();
    let bytes = |other: usize| &block[places[others[other]].whole.clone()];
    sha256d_many(others.len(), bytes, |other, wtxid| leaves[others[other]] = wtxid);
    leaves[0] = [0; 32];
    let (root, _) = merkle_root(leaves);
    if sha256d_parts([&root, nonce, &[]]) != commitment {
        Err(DamagedBlock::WitnessCommitment)
    } else {
        Ok(())
    }
}

/// Returns the commitment in the last output that carries one.
fn last_commitment(raw: &[u8], outputs: &[Output]) -> Option<Hash32> {
    const PREFIX: [u8; 6] = [OP_RETURN, 0x24, 0xaa, 0x21, 0xa9, 0xed];
    outputs.iter().rev().find_map(|output| {
        let script = output.script.of(raw);
        (script.len() >= 38 && script[..6] == PREFIX).then(|| script[6..38].try_into().expect("32 bytes"))
    })
}

#[cfg(test)]
mod tests;

//! Rows: what a batch of blocks becomes in each table, in PostgreSQL's binary COPY format.
//!
//! In: a resolved batch. Out: one buffer a table, rows in key order, without the stream's header and trailer. Ids are
//! assigned here and nowhere else: `tx_num` follows from height and index. Called by the encode threads; no allocation
//! a row. Format: PostgreSQL manual, COPY, "Binary Format"; columns in the order of the migrations.

mod encode;
mod late;

use crate::chain::batch::{Batch, WAITS};
use crate::prevouts::Coin;

pub use encode::{COPY_HEADER, COPY_TRAILER};
pub use late::{encode_waiting, set_fee, set_prevout, set_rewards};

/// A table that is filled by the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// `chain.blocks`.
    Blocks,
    /// `chain.transactions`.
    Transactions,
    /// `chain.outputs`.
    Outputs,
    /// `chain.inputs`.
    Inputs,
}

impl Table {
    /// All tables, in the order of the design.
    pub const ALL: [Table; 4] = [Table::Blocks, Table::Transactions, Table::Outputs, Table::Inputs];
    /// The tables that are partitioned by `tx_num`.
    pub const PARTITIONED: [Table; 3] = [Table::Transactions, Table::Outputs, Table::Inputs];

    /// Returns the name without its schema.
    pub fn name(self) -> &'static str {
        match self {
            Table::Blocks => "blocks",
            Table::Transactions => "transactions",
            Table::Outputs => "outputs",
            Table::Inputs => "inputs",
        }
    }

    /// Returns the table of a name.
    ///
    /// # Panics
    /// If there is none: names come from the declared list, which a test checks.
    pub fn named(name: &str) -> Self {
        Table::ALL.into_iter().find(|table| table.name() == name).expect("a table of the declared list")
    }

    /// Returns the columns in the order in which rows are encoded.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Blocks => &[
                "height",
                "hash",
                "version",
                "merkle_root",
                "time",
                "median_time",
                "bits",
                "nonce",
                "size",
                "weight",
                "tx_count",
                "input_count",
                "output_count",
                "fees",
                "subsidy",
                "unclaimed",
                "chainwork",
            ],
            Table::Transactions => &[
                "tx_num",
                "fee",
                "locktime",
                "height",
                "version",
                "size",
                "weight",
                "input_count",
                "output_count",
                "txid",
            ],
            Table::Outputs => &["tx_num", "value", "script_hash", "vout", "script"],
            Table::Inputs => &[
                "tx_num",
                "prev_tx_num",
                "value",
                "script_hash",
                "sequence",
                "vin",
                "prev_vout",
                "script_sig",
                "witness",
            ],
        }
    }

    /// Returns the columns that order the rows, and so identify one.
    pub fn key(self) -> &'static [&'static str] {
        match self {
            Table::Blocks => &["height"],
            Table::Transactions => &["tx_num"],
            Table::Outputs => &["tx_num", "vout"],
            Table::Inputs => &["tx_num", "vin"],
        }
    }
}

/// What is stored of what could be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Whether witnesses are stored; otherwise the column is NULL.
    pub witness: bool,
    /// Whether scriptSigs are stored; otherwise the column is NULL.
    pub script_sig: bool,
}

/// The encoded rows of one batch, by table in the order of [`Table::ALL`].
#[derive(Debug, Default)]
pub struct Encoded {
    /// Rows of each table.
    pub buffers: [Vec<u8>; 4],
}

/// Encodes all rows of a resolved batch but those that wait for a coin.
pub fn encode_batch(batch: &Batch, store: Store, encoded: &mut Encoded) {
    let [blocks, transactions, outputs, inputs] = &mut encoded.buffers;
    // One growth each: the sum of what the rows need is known beforehand.
    let raw_bytes = batch.raw.len();
    transactions.reserve(batch.txs.len() * encode::TRANSACTION_ROW_BYTES);
    outputs.reserve(batch.outputs.len() * encode::OUTPUT_ROW_BYTES + raw_bytes / 2);
    inputs.reserve(batch.inputs.len() * encode::INPUT_ROW_BYTES + raw_bytes);

    let (mut txs, mut tx_inputs, mut tx_outputs) =
        (batch.txs.iter(), batch.inputs.as_slice(), batch.outputs.as_slice());
    for block in &batch.blocks {
        if block.unclaimed_sat != WAITS {
            encode::block_row(blocks, block);
        }
        for index in 0..block.tx_count {
            let tx = txs.next().expect("as many transactions as the blocks count");
            let tx_num = crate::chain::batch::tx_num(block.height, index);
            if tx.fee_sat != WAITS {
                encode::transaction_row(transactions, tx_num, block.height, tx, index == 0);
            }
            let (these, after) = tx_outputs.split_at(tx.output_count as usize);
            tx_outputs = after;
            for (vout, output) in these.iter().enumerate() {
                encode::output_row(outputs, tx_num, vout as u32, output, &batch.raw);
            }
            let (these, after) = tx_inputs.split_at(tx.input_count as usize);
            tx_inputs = after;
            for (vin, input) in these.iter().enumerate() {
                if input.prevout != Coin::WAITING {
                    encode::input_row(inputs, tx_num, vin as u32, input, &batch.raw, index == 0, store);
                }
            }
        }
    }
}

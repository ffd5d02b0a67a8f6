//! Rows of inputs, transactions and blocks that wait for a coin: encoded with the rest of their batch, completed later.
//!
//! In: a resolved batch with marks where something waits. Out: those rows in chain order, each input before its
//! transaction, each transaction before its block. Called by the resolve stage; what waits is left out by
//! [`encode_batch`](super::encode_batch).

use super::{Store, Table, encode};
use crate::chain::batch::{Batch, WAITS, tx_num};
use crate::prevouts::Coin;

/// Hands out the rows that wait, without the values that they wait for.
///
/// # Errors
/// Whatever `each` gives.
pub fn encode_waiting<E>(
    batch: &Batch,
    store: Store,
    mut each: impl FnMut(Table, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut txs, mut inputs) = (batch.txs.as_slice(), batch.inputs.as_slice());
    let mut row = Vec::new();
    for block in &batch.blocks {
        let (block_txs, txs_after) = txs.split_at(block.tx_count as usize);
        let (mut block_inputs, inputs_after) = inputs.split_at(block.input_count as usize);
        (txs, inputs) = (txs_after, inputs_after);
        if block.unclaimed_sat != WAITS {
            continue;
        }
        for (tx_index, tx) in (0..).zip(block_txs) {
            let (tx_inputs, inputs_after) = block_inputs.split_at(tx.input_count as usize);
            block_inputs = inputs_after;
            if tx.fee_sat != WAITS {
                continue;
            }
            let tx_num = tx_num(block.height, tx_index);
            for (vin, input) in (0..).zip(tx_inputs) {
                if input.prevout == Coin::WAITING {
                    row.clear();
                    encode::input_row(&mut row, tx_num, vin, input, &batch.raw, false, store);
                    each(Table::Inputs, &row)?;
                }
            }
            row.clear();
            encode::transaction_row(&mut row, tx_num, block.height, tx, false);
            each(Table::Transactions, &row)?;
        }
        row.clear();
        encode::block_row(&mut row, block);
        each(Table::Blocks, &row)?;
    }
    Ok(())
}

/// Puts the coin that an input spends into its row.
pub fn set_prevout(row: &mut [u8], coin: &Coin) {
    put(row, encode::INPUT_PREV_TX_NUM_AT, &coin.tx_num.to_be_bytes());
    put(row, encode::INPUT_VALUE_AT, &coin.value_sat.to_be_bytes());
    put(row, encode::INPUT_SCRIPT_HASH_AT, &coin.script_hash);
}

/// Puts the fee of a transaction into its row.
pub fn set_fee(row: &mut [u8], fee_sat: u64) {
    put(row, encode::TRANSACTION_FEE_AT, &fee_sat.to_be_bytes());
}

/// Puts fees and unclaimed reward of a block into its row.
pub fn set_rewards(row: &mut [u8], fees_sat: u64, unclaimed_sat: u64) {
    put(row, encode::BLOCK_FEES_AT, &fees_sat.to_be_bytes());
    put(row, encode::BLOCK_UNCLAIMED_AT, &unclaimed_sat.to_be_bytes());
}

fn put(row: &mut [u8], at: usize, bytes: &[u8]) {
    row[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::batch::{Block, Input, Span, Tx};
    use crate::chain::header::Header;
    use crate::prevouts::Fingerprint;
    use crate::rows::{Encoded, encode_batch};

    const STORE: Store = Store { witness: true, script_sig: true };

    fn coin(seed: u8) -> Coin {
        Coin {
            tx_num: i64::from(seed) << 16,
            value_sat: 5_000_000_000 - u64::from(seed),
            script_hash: [seed; 16],
        }
    }

    /// Two blocks: a coinbase and two transactions, the second with two inputs; a coinbase alone.
    fn batch() -> Batch {
        let input = |prevout, from| Input {
            outpoint: Fingerprint::default(),
            sequence: 7,
            prev_vout: 2,
            script_sig: Span { from, len: 3 },
            witness: Span { from: 0, len: from },
            prevout,
        };
        let tx = |input_count, fee_sat| Tx {
            txid: [9; 32],
            version: 2,
            locktime: 3,
            size: 200,
            weight: 800,
            input_count,
            output_count: 0,
            fee_sat,
        };
        let block = |height, tx_count, input_count, fees_sat, unclaimed_sat| Block {
            height,
            hash: [height as u8; 32],
            header: Header::parse(&[5; 80]),
            size: 1,
            weight: 4,
            tx_count,
            input_count,
            output_count: 0,
            fees_sat,
            subsidy_sat: 5_000_000_000,
            unclaimed_sat,
            median_time: 6,
            chainwork: 77,
        };
        Batch {
            raw: (0..100).collect(),
            blocks: vec![block(200, 3, 4, 300, 17), block(201, 1, 1, 0, 0)],
            txs: vec![tx(1, 0), tx(1, 100), tx(2, 200), tx(1, 0)],
            inputs: vec![
                input(Coin::NONE, 1),
                input(coin(1), 2),
                input(coin(2), 3),
                input(coin(3), 4),
                input(Coin::NONE, 5),
            ],
            ..Batch::default()
        }
    }

    fn rows(batch: &Batch) -> [Vec<u8>; 4] {
        let mut encoded = Encoded::default();
        encode_batch(batch, STORE, &mut encoded);
        encoded.buffers
    }

    #[test]
    fn completed_rows_are_those_that_would_have_been_encoded_at_once() {
        let whole = batch();
        let mut waiting = whole.clone();
        waiting.inputs[3].prevout = Coin::WAITING;
        waiting.txs[2].fee_sat = WAITS;
        waiting.blocks[0].fees_sat = WAITS;
        waiting.blocks[0].unclaimed_sat = WAITS;
        let mut buffers = rows(&waiting);
        let mut order = Vec::new();
        encode_waiting(&waiting, STORE, |table, row| {
            order.push(table);
            let mut row = row.to_vec();
            match table {
                Table::Inputs => set_prevout(&mut row, &coin(3)),
                Table::Transactions => set_fee(&mut row, 200),
                Table::Blocks => set_rewards(&mut row, 300, 17),
                Table::Outputs => unreachable!(),
            }
            let at = Table::ALL.iter().position(|it| *it == table).unwrap();
            buffers[at].extend(row);
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!(order, [Table::Inputs, Table::Transactions, Table::Blocks]);
        for (late, at_once) in buffers.iter().zip(rows(&whole)) {
            assert_eq!(late.len(), at_once.len());
            // The same rows; only their places differ.
            let sorted = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                bytes.sort_unstable();
                bytes
            };
            assert_eq!(sorted(late), sorted(&at_once));
        }
        // The block that waited comes after the other: its whole row can be compared.
        let [blocks, ..] = rows(&whole);
        let row_bytes = blocks.len() / 2;
        assert_eq!(buffers[0][row_bytes..], blocks[..row_bytes]);
        let [_, transactions, ..] = rows(&whole);
        // A coinbase has no fee: its row is 118 bytes, the others 126.
        assert_eq!(buffers[1][2 * 118 + 126..], transactions[118 + 126..118 + 2 * 126]);
    }
}

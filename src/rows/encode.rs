//! One row of each table in binary COPY format: a column count (i16), then each column as a length (i32, -1 for NULL)
//! and its bytes, all big-endian.

use super::Store;
use crate::chain::batch::{Block, Input, Output, Tx};

/// Begins a binary COPY stream: signature, no flags, no extension.
pub const COPY_HEADER: [u8; 19] = *b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Ends a binary COPY stream.
pub const COPY_TRAILER: [u8; 2] = (-1_i16).to_be_bytes();

/// Bytes of a row of `transactions`.
pub(super) const TRANSACTION_ROW_BYTES: usize = 2 + 10 * 4 + 3 * 8 + 8 + 5 * 4 + 32;
/// Bytes of a row of `outputs` without its script.
pub(super) const OUTPUT_ROW_BYTES: usize = 2 + 5 * 4 + 8 + 8 + 16 + 4;
/// Bytes of a row of `inputs` without its scriptSig and witness.
pub(super) const INPUT_ROW_BYTES: usize = 2 + 9 * 4 + 3 * 8 + 16 + 8 + 4 + 4;

// Where the values stand that a row may wait for: behind the column count, the columns before and the length.
/// `inputs.prev_tx_num`.
pub(super) const INPUT_PREV_TX_NUM_AT: usize = 2 + 12 + 4;
/// `inputs.value`.
pub(super) const INPUT_VALUE_AT: usize = INPUT_PREV_TX_NUM_AT + 8 + 4;
/// `inputs.script_hash`.
pub(super) const INPUT_SCRIPT_HASH_AT: usize = INPUT_VALUE_AT + 8 + 4;
/// `transactions.fee`.
pub(super) const TRANSACTION_FEE_AT: usize = 2 + 12 + 4;
/// `blocks.fees`: behind seven numbers of 4 bytes, four of 8 and two hashes.
pub(super) const BLOCK_FEES_AT: usize = 2 + 7 * 8 + 4 * 12 + 2 * 36 + 4;
/// `blocks.unclaimed`.
pub(super) const BLOCK_UNCLAIMED_AT: usize = BLOCK_FEES_AT + 2 * 12;

/// Seconds from 1970 to PostgreSQL's epoch, 2000-01-01.
const POSTGRES_EPOCH_SECONDS: i64 = 946_684_800;
const NULL: [u8; 4] = (-1_i32).to_be_bytes();

/// Fills an array of a row's fixed-width part, so that it is appended at once.
struct Fixed<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fixed<N> {
    #[inline(always)]
    fn new(column_count: i16) -> Self {
        let mut row = Fixed { bytes: [0; N], at: 0 };
        row.put(&column_count.to_be_bytes());
        row
    }

    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    #[inline(always)]
    fn column(&mut self, bytes: &[u8]) {
        self.put(&(bytes.len() as u32).to_be_bytes());
        self.put(bytes);
    }

    #[inline(always)]
    fn i32(&mut self, value: i32) {
        self.column(&value.to_be_bytes());
    }

    #[inline(always)]
    fn i64(&mut self, value: i64) {
        self.column(&value.to_be_bytes());
    }

    #[inline(always)]
    fn null(&mut self) {
        self.put(&NULL);
    }

    #[inline(always)]
    fn append_to(self, rows: &mut Vec<u8>) {
        rows.extend_from_slice(&self.bytes[..self.at]);
    }
}

#[inline(always)]
fn variable(rows: &mut Vec<u8>, bytes: &[u8]) {
    rows.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    rows.extend_from_slice(bytes);
}

fn timestamp_us(unix_seconds: u32) -> i64 {
    (i64::from(unix_seconds) - POSTGRES_EPOCH_SECONDS) * 1_000_000
}

pub(super) fn block_row(rows: &mut Vec<u8>, block: &Block) {
    let mut row = Fixed::<320>::new(17);
    let mut chainwork = [0; 32];
    chainwork[16..].copy_from_slice(&block.chainwork.to_be_bytes());
    row.i32(block.height as i32);
    row.column(&block.hash);
    row.i32(block.header.version);
    row.column(&block.header.merkle_root);
    row.i64(timestamp_us(block.header.time));
    row.i64(timestamp_us(block.median_time));
    row.i64(i64::from(block.header.bits));
    row.i64(i64::from(block.header.nonce));
    row.i32(block.size as i32);
    row.i32(block.weight as i32);
    row.i32(block.tx_count as i32);
    row.i32(block.input_count as i32);
    row.i32(block.output_count as i32);
    row.i64(block.fees_sat as i64);
    row.i64(block.subsidy_sat as i64);
    row.i64(block.unclaimed_sat as i64);
    row.column(&chainwork);
    row.append_to(rows);
}

#[inline]
pub(super) fn transaction_row(rows: &mut Vec<u8>, tx_num: i64, height: u32, tx: &Tx, is_coinbase: bool) {
    let mut row = Fixed::<TRANSACTION_ROW_BYTES>::new(10);
    row.i64(tx_num);
    if is_coinbase {
        row.null();
    } else {
        row.i64(tx.fee_sat as i64);
    }
    row.i64(i64::from(tx.locktime));
    row.i32(height as i32);
    row.i64(i64::from(tx.version));
    row.i32(tx.size as i32);
    row.i32(tx.weight as i32);
    row.i32(tx.input_count as i32);
    row.i32(tx.output_count as i32);
    row.column(&tx.txid);
    row.append_to(rows);
}

#[inline]
pub(super) fn output_row(rows: &mut Vec<u8>, tx_num: i64, vout: u32, output: &Output, raw: &[u8]) {
    let mut row = Fixed::<OUTPUT_ROW_BYTES>::new(5);
    row.i64(tx_num);
    row.i64(output.value_sat as i64);
    row.column(&output.script_hash);
    row.i32(vout as i32);
    row.append_to(rows);
    variable(rows, output.script.of(raw));
}

#[inline]
pub(super) fn input_row(
    rows: &mut Vec<u8>,
    tx_num: i64,
    vin: u32,
    input: &Input,
    raw: &[u8],
    is_coinbase: bool,
    store: Store,
) {
    let mut row = Fixed::<INPUT_ROW_BYTES>::new(9);
    row.i64(tx_num);
    if is_coinbase {
        row.null();
        row.null();
        row.null();
    } else {
        row.i64(input.prevout.tx_num);
        row.i64(input.prevout.value_sat as i64);
        row.column(&input.prevout.script_hash);
    }
    row.i64(i64::from(input.sequence));
    row.i32(vin as i32);
    if is_coinbase {
        row.null();
    } else {
        row.i32(input.prev_vout as i32);
    }
    row.append_to(rows);
    for (is_stored, span) in [(store.script_sig, input.script_sig), (store.witness, input.witness)] {
        if is_stored {
            variable(rows, span.of(raw));
        } else {
            rows.extend_from_slice(&NULL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::batch::Span;
    use crate::prevouts::{Coin, Fingerprint};

    #[test]
    fn an_output_row_is_what_the_manual_says() {
        let raw = [0xaa, 0x51, 0xbb];
        let output = Output {
            outpoint: Fingerprint::default(),
            value_sat: 2_100_000_000_000_000,
            script_hash: *b"0123456789abcdef",
            script: Span { from: 1, len: 1 },
            is_unspendable: false,
        };
        let mut rows = Vec::new();
        output_row(&mut rows, 0x0001_0002, 7, &output, &raw);
        let expected: Vec<u8> = [
            &[0, 5][..],
            &[0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 2],
            &[0, 0, 0, 8, 0x00, 0x07, 0x75, 0xf0, 0x5a, 0x07, 0x40, 0x00],
            &[0, 0, 0, 16],
            b"0123456789abcdef",
            &[0, 0, 0, 4, 0, 0, 0, 7],
            &[0, 0, 0, 1, 0x51],
        ]
        .concat();
        assert_eq!(rows, expected);
        assert_eq!(rows.len(), OUTPUT_ROW_BYTES + 1);
    }

    #[test]
    fn a_coinbase_input_has_null_prevout_and_extremes_stay_unsigned() {
        let raw = [1, 2, 3];
        let input = Input {
            outpoint: Fingerprint::default(),
            sequence: u32::MAX,
            prev_vout: u32::MAX,
            script_sig: Span { from: 0, len: 3 },
            witness: Span { from: 3, len: 0 },
            prevout: Coin::NONE,
        };
        let mut rows = Vec::new();
        let store = Store { witness: true, script_sig: true };
        input_row(&mut rows, 5 << 16, 0, &input, &raw, true, store);
        let expected: Vec<u8> = [
            &[0, 9][..],
            &[0, 0, 0, 8, 0, 0, 0, 0, 0, 5, 0, 0],
            &[0xff; 12],
            &[0, 0, 0, 8, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
            &[0, 0, 0, 4, 0, 0, 0, 0],
            &[0xff; 4],
            &[0, 0, 0, 3, 1, 2, 3],
            &[0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(rows, expected);

        rows.clear();
        input_row(&mut rows, 5 << 16, 0, &input, &raw, true, Store { witness: false, script_sig: false });
        assert_eq!(rows[rows.len() - 8..], [0xff; 8]);
    }

    #[test]
    fn the_last_second_of_a_header_fits_a_timestamp() {
        assert_eq!(timestamp_us(u32::MAX), 3_348_282_495_000_000);
        assert_eq!(timestamp_us(0), -946_684_800_000_000);
    }
}

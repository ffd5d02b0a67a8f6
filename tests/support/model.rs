//! A naive UTXO set and the rows that a chain of blocks should give: the other opinion in the tests.
//!
//! In: blocks of the `bitcoin` crate, in chain order, obeying the rules on amounts. Out: [`Rows`] for `rows.rs`. Called
//! by `blocks.rs` for each block mined. It must never use the product's code.

use std::collections::BTreeMap;

use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{Block, OutPoint, Transaction, TxIn};

use super::rows::{BlockRow, InputRow, OutputRow, Rows, TransactionRow};

/// The coins of a regtest chain after its last connected block, and all rows so far.
#[derive(Debug, Clone, Default)]
pub struct Model {
    coins: BTreeMap<OutPoint, OutputRow>,
    rows: Rows,
    /// Work of the chain so far.
    work: u64,
}

/// New coins that a regtest block may create, in satoshis.
pub fn subsidy(height: u32) -> u64 {
    5_000_000_000 >> (height / 150)
}

impl Model {
    /// The coin at an outpoint. Panics if it is spent or never was.
    pub fn coin(&self, outpoint: &OutPoint) -> &OutputRow {
        self.coins.get(outpoint).unwrap_or_else(|| panic!("no coin {outpoint}"))
    }

    /// Whether an outpoint is unspent.
    pub fn has_coin(&self, outpoint: &OutPoint) -> bool {
        self.coins.contains_key(outpoint)
    }

    /// The fee of a transaction whose inputs are coins, or outputs of `earlier` transactions of its block.
    pub fn fee(&self, transaction: &Transaction, earlier: &[Transaction]) -> u64 {
        let value = |input: &TxIn| {
            let sibling = earlier.iter().find(|other| other.compute_txid() == input.previous_output.txid);
            sibling.map_or_else(
                || self.coin(&input.previous_output).value,
                |other| other.output[input.previous_output.vout as usize].value.to_sat(),
            )
        };
        transaction.input.iter().map(value).sum::<u64>() - paid(transaction)
    }

    /// Every row expected so far, coins included.
    pub fn rows(&self) -> Rows {
        let mut rows = self.rows.clone();
        rows.utxos = self.coins.values().cloned().collect();
        rows.utxos.sort_by_key(|coin| (coin.tx_num, coin.vout));
        rows.overwritten.sort_unstable();
        rows
    }

    /// Adds the next block of a regtest chain.
    pub fn connect(&mut self, block: &Block) {
        let height = u32::try_from(self.rows.blocks.len()).unwrap();
        let mut fees = 0;
        for (index, transaction) in block.txdata.iter().enumerate() {
            let tx_num = (i64::from(height) << 16) + i64::try_from(index).unwrap();
            fees += self.connect_transaction(tx_num, transaction).unwrap_or(0);
        }
        let claimed = i64::try_from(paid(&block.txdata[0])).unwrap();
        let subsidy = i64::try_from(subsidy(height)).unwrap();
        let unclaimed = subsidy + fees - claimed;
        assert!(unclaimed >= 0, "the test's block {height} claims {} too much", -unclaimed);
        let mut times: Vec<u32> = self.rows.blocks.iter().rev().take(10).map(|row| row.time).collect();
        times.push(block.header.time);
        times.sort_unstable();
        self.work += match block.header.bits.to_consensus() {
            0x207f_ffff => 2,
            0x201f_ffff => 8,
            bits => panic!("the model does not know the work of {bits:08x}"),
        };
        self.rows.blocks.push(BlockRow {
            height,
            hash: block.block_hash().to_byte_array(),
            version: block.header.version.to_consensus(),
            merkle_root: block.header.merkle_root.to_byte_array(),
            time: block.header.time,
            median_time: times[times.len() / 2],
            bits: block.header.bits.to_consensus(),
            nonce: block.header.nonce,
            size: block.total_size(),
            weight: block.weight().to_wu(),
            tx_count: block.txdata.len(),
            input_count: block.txdata.iter().map(|tx| tx.input.len()).sum(),
            output_count: block.txdata.iter().map(|tx| tx.output.len()).sum(),
            fees,
            subsidy,
            unclaimed,
            chainwork: format!("{:064x}", self.work),
        });
    }

    fn connect_transaction(&mut self, tx_num: i64, transaction: &Transaction) -> Option<i64> {
        let txid = transaction.compute_txid();
        let mut spent = 0;
        for (vin, input) in transaction.input.iter().enumerate() {
            let prevout = (!transaction.is_coinbase()).then(|| {
                let coin = self.coins.remove(&input.previous_output);
                coin.unwrap_or_else(|| panic!("{txid} spends {}, which is no coin", input.previous_output))
            });
            spent += prevout.as_ref().map_or(0, |coin| coin.value);
            self.rows.inputs.push(InputRow {
                tx_num,
                vin: u32::try_from(vin).unwrap(),
                prevout,
                sequence: input.sequence.to_consensus_u32(),
                script_sig: input.script_sig.to_bytes(),
                witness: if input.witness.is_empty() { Vec::new() } else { serialize(&input.witness) },
            });
        }
        for (vout, output) in transaction.output.iter().enumerate() {
            let vout = u32::try_from(vout).unwrap();
            let row = OutputRow {
                tx_num,
                vout,
                value: output.value.to_sat(),
                script: output.script_pubkey.to_bytes(),
            };
            self.rows.outputs.push(row.clone());
            let unspendable = tx_num == 0 || row.script.first() == Some(&0x6a) || row.script.len() > 10_000;
            if !unspendable && let Some(twin) = self.coins.insert(OutPoint { txid, vout }, row) {
                self.rows.overwritten.push([twin.tx_num, i64::from(vout), tx_num]);
            }
        }
        let fee = (!transaction.is_coinbase())
            .then(|| i64::try_from(spent).unwrap() - i64::try_from(paid(transaction)).unwrap());
        assert!(fee.is_none_or(|fee| fee >= 0), "the test's transaction {txid} creates value");
        self.rows.transactions.push(TransactionRow {
            tx_num,
            fee,
            locktime: transaction.lock_time.to_consensus_u32(),
            version: transaction.version.0.cast_unsigned(),
            size: transaction.total_size(),
            weight: transaction.weight().to_wu(),
            input_count: transaction.input.len(),
            output_count: transaction.output.len(),
            txid: txid.to_byte_array(),
        });
        fee
    }
}

/// Sum of a transaction's outputs, in satoshis.
fn paid(transaction: &Transaction) -> u64 {
    transaction.output.iter().map(|output| output.value.to_sat()).sum()
}

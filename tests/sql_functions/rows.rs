//! Rows of the chain tables from blocks, built by the bitcoin crate: the tests' own loader, naive on purpose.
//!
//! Blocks come in height order. A prevout whose transaction never came gets a bare row in `chain.transactions`, at the
//! heights from 0, so that single blocks from the middle of the chain can be loaded too.

use std::collections::HashMap;

use bitcoin::hashes::Hash;
use bitcoin::{Block, OutPoint, TxOut, Txid, consensus};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

/// Facts about a block that its bytes do not hold.
pub(crate) struct Position {
    pub(crate) height: u32,
    pub(crate) median_time: u32,
    /// 32 bytes, big-endian.
    pub(crate) chainwork: Vec<u8>,
    pub(crate) subsidy: i64,
}

/// What has been connected, and the rows not sent yet.
pub(crate) struct Loader<'a> {
    client: &'a Client,
    /// Latest tx_num of each txid.
    tx_nums: HashMap<Txid, i64>,
    unspent: HashMap<OutPoint, TxOut>,
    bare: i64,
    blocks: Blocks,
    transactions: Transactions,
    outputs: Outputs,
    inputs: Inputs,
    overwritten: Overwritten,
}

/// Declares one table's rows as columns, with the statement that inserts them.
macro_rules! table {
    ($name:ident, $insert:expr, $($column:ident: $type:ty),+) => {
        #[derive(Default)]
        struct $name { $($column: Vec<$type>),+ }
        impl $name {
            async fn send(&mut self, client: &Client) {
                let rows = std::mem::take(self);
                let columns: &[&(dyn ToSql + Sync)] = &[$(&rows.$column),+];
                if let Err(error) = client.execute($insert, columns).await {
                    panic!("{}: {}", stringify!($name), crate::postgres::describe(&error));
                }
            }
        }
    };
}

table!(Blocks,
    "insert into chain.blocks (height, hash, version, merkle_root, time, median_time, bits, nonce, size, weight,
         tx_count, input_count, output_count, fees, subsidy, unclaimed, chainwork)
     select height, hash, version, merkle_root, to_timestamp(time), to_timestamp(median_time), bits, nonce, size,
         weight, tx_count, input_count, output_count, fees, subsidy, unclaimed, chainwork
     from unnest($1::int[], $2::bytea[], $3::int[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[],
         $8::bigint[], $9::int[], $10::int[], $11::int[], $12::int[], $13::int[], $14::bigint[], $15::bigint[],
         $16::bigint[], $17::bytea[])
         u (height, hash, version, merkle_root, time, median_time, bits, nonce, size, weight, tx_count, input_count,
         output_count, fees, subsidy, unclaimed, chainwork)",
    height: i32, hash: Vec<u8>, version: i32, merkle_root: Vec<u8>, time: i64, median_time: i64, bits: i64,
    nonce: i64, size: i32, weight: i32, tx_count: i32, input_count: i32, output_count: i32, fees: i64, subsidy: i64,
    unclaimed: i64, chainwork: Vec<u8>);

table!(Transactions,
    "insert into chain.transactions (tx_num, fee, locktime, height, version, size, weight, input_count, output_count,
         txid)
     select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::int[], $5::bigint[], $6::int[], $7::int[],
         $8::int[], $9::int[], $10::bytea[])",
    tx_num: i64, fee: Option<i64>, locktime: i64, height: i32, version: i64, size: i32, weight: i32,
    input_count: i32, output_count: i32, txid: Vec<u8>);

table!(Outputs,
    "insert into chain.outputs (tx_num, value, script_hash, vout, script)
     select tx_num, value, chain.script_hash(script), vout, script
     from unnest($1::bigint[], $2::bigint[], $3::int[], $4::bytea[]) u (tx_num, value, vout, script)",
    tx_num: i64, value: i64, vout: i32, script: Vec<u8>);

table!(Inputs,
    "insert into chain.inputs (tx_num, prev_tx_num, value, script_hash, sequence, vin, prev_vout, script_sig, witness)
     select tx_num, prev_tx_num, value, chain.script_hash(prev_script), sequence, vin, prev_vout, script_sig, witness
     from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::int[], $7::int[],
         $8::bytea[], $9::bytea[])
         u (tx_num, prev_tx_num, value, prev_script, sequence, vin, prev_vout, script_sig, witness)",
    tx_num: i64, prev_tx_num: Option<i64>, value: Option<i64>, prev_script: Option<Vec<u8>>, sequence: i64, vin: i32,
    prev_vout: Option<i32>, script_sig: Vec<u8>, witness: Vec<u8>);

table!(Overwritten,
    "insert into chain.overwritten (tx_num, vout, by_tx_num)
     select * from unnest($1::bigint[], $2::int[], $3::bigint[])",
    tx_num: i64, vout: i32, by_tx_num: i64);

impl<'a> Loader<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self {
            client,
            tx_nums: HashMap::new(),
            unspent: HashMap::new(),
            bare: 0,
            blocks: Blocks::default(),
            transactions: Transactions::default(),
            outputs: Outputs::default(),
            inputs: Inputs::default(),
            overwritten: Overwritten::default(),
        }
    }

    /// Adds a block's rows; returns the fee of each transaction, None for the coinbase and where a prevout is unknown.
    pub(crate) async fn connect_block(&mut self, at: &Position, block: &Block) -> Vec<Option<i64>> {
        let mut fees = Vec::new();
        for (index, tx) in block.txdata.iter().enumerate() {
            let tx_num = i64::from(at.height) << 16 | index as i64;
            let txid = tx.compute_txid();
            let value_in = self.spend(tx_num, tx);
            let value_out: i64 = tx.output.iter().map(|output| output.value.to_sat() as i64).sum();
            let fee = value_in.map(|value_in| value_in - value_out);
            self.create(tx_num, txid, tx);
            let rows = &mut self.transactions;
            rows.tx_num.push(tx_num);
            rows.fee.push(fee);
            rows.locktime.push(i64::from(tx.lock_time.to_consensus_u32()));
            rows.height.push(at.height as i32);
            rows.version.push(i64::from(tx.version.0 as u32));
            rows.size.push(tx.total_size() as i32);
            rows.weight.push(tx.weight().to_wu() as i32);
            rows.input_count.push(tx.input.len() as i32);
            rows.output_count.push(tx.output.len() as i32);
            rows.txid.push(txid.to_byte_array().to_vec());
            fees.push(fee);
        }
        self.block_row(at, block, fees.iter().flatten().sum());
        if self.outputs.vout.len() + self.inputs.vin.len() > 5_000 {
            self.flush().await;
        }
        fees
    }

    /// Sends the rows that are not sent yet.
    pub(crate) async fn flush(&mut self) {
        self.blocks.send(self.client).await;
        self.transactions.send(self.client).await;
        self.outputs.send(self.client).await;
        self.inputs.send(self.client).await;
        self.overwritten.send(self.client).await;
    }

    /// Input rows; the sum of the values spent, None for a coinbase or an unknown prevout.
    fn spend(&mut self, tx_num: i64, tx: &bitcoin::Transaction) -> Option<i64> {
        let mut sum = Some(0);
        for (vin, input) in tx.input.iter().enumerate() {
            let coinbase = tx.is_coinbase();
            let spent = self.unspent.remove(&input.previous_output);
            let prev_tx_num = (!coinbase).then(|| self.prev_tx_num(input.previous_output.txid));
            let value = spent.as_ref().map(|output| output.value.to_sat() as i64);
            sum = sum.zip(value).map(|(sum, value)| sum + value);
            let rows = &mut self.inputs;
            rows.tx_num.push(tx_num);
            rows.prev_tx_num.push(prev_tx_num);
            rows.value.push(value);
            rows.prev_script.push(spent.map(|output| output.script_pubkey.into_bytes()));
            rows.sequence.push(i64::from(input.sequence.0));
            rows.vin.push(vin as i32);
            rows.prev_vout.push((!coinbase).then_some(input.previous_output.vout as i32));
            rows.script_sig.push(input.script_sig.to_bytes());
            rows.witness.push(if input.witness.is_empty() {
                vec![]
            } else {
                consensus::serialize(&input.witness)
            });
        }
        sum
    }

    /// tx_num of a transaction that is spent from; a bare row where it never came.
    fn prev_tx_num(&mut self, txid: Txid) -> i64 {
        if let Some(&tx_num) = self.tx_nums.get(&txid) {
            return tx_num;
        }
        let tx_num = self.bare;
        self.bare += 1;
        self.tx_nums.insert(txid, tx_num);
        let rows = &mut self.transactions;
        rows.tx_num.push(tx_num);
        rows.fee.push(None);
        rows.locktime.push(0);
        rows.height.push((tx_num >> 16) as i32);
        rows.version.push(0);
        rows.size.push(0);
        rows.weight.push(1);
        rows.input_count.push(0);
        rows.output_count.push(0);
        rows.txid.push(txid.to_byte_array().to_vec());
        tx_num
    }

    /// Output rows; what an earlier transaction with the same txid left unspent is overwritten.
    fn create(&mut self, tx_num: i64, txid: Txid, tx: &bitcoin::Transaction) {
        let earlier = self.tx_nums.insert(txid, tx_num);
        for (vout, output) in tx.output.iter().enumerate() {
            self.outputs.tx_num.push(tx_num);
            self.outputs.value.push(output.value.to_sat() as i64);
            self.outputs.vout.push(vout as i32);
            self.outputs.script.push(output.script_pubkey.to_bytes());
            let outpoint = OutPoint { txid, vout: vout as u32 };
            if self.unspent.insert(outpoint, output.clone()).is_some() {
                self.overwritten.tx_num.push(earlier.expect("an unspent output has a transaction"));
                self.overwritten.vout.push(vout as i32);
                self.overwritten.by_tx_num.push(tx_num);
            }
        }
    }

    fn block_row(&mut self, at: &Position, block: &Block, fees: i64) {
        let header = &block.header;
        let claimed: i64 = block.txdata[0].output.iter().map(|output| output.value.to_sat() as i64).sum();
        let rows = &mut self.blocks;
        rows.height.push(at.height as i32);
        rows.hash.push(block.block_hash().to_byte_array().to_vec());
        rows.version.push(header.version.to_consensus());
        rows.merkle_root.push(header.merkle_root.to_byte_array().to_vec());
        rows.time.push(i64::from(header.time));
        rows.median_time.push(i64::from(at.median_time));
        rows.bits.push(i64::from(header.bits.to_consensus()));
        rows.nonce.push(i64::from(header.nonce));
        rows.size.push(block.total_size() as i32);
        rows.weight.push(block.weight().to_wu() as i32);
        rows.tx_count.push(block.txdata.len() as i32);
        rows.input_count.push(block.txdata.iter().map(|tx| tx.input.len() as i32).sum());
        rows.output_count.push(block.txdata.iter().map(|tx| tx.output.len() as i32).sum());
        rows.fees.push(fees);
        rows.subsidy.push(at.subsidy);
        rows.unclaimed.push(at.subsidy + fees - claimed);
        rows.chainwork.push(at.chainwork.clone());
    }
}

/// Creates the partitions of one segment.
pub(crate) async fn create_segment(client: &Client, segment_id: u32, height_first: i64, height_last: i64) {
    let (low, high) = (height_first << 16, (height_last + 1) << 16);
    for table in ["transactions", "outputs", "inputs"] {
        let statement = format!(
            "create table chain.{table}_{segment_id:04} partition of chain.{table} for values from ({low}) to ({high})"
        );
        client.batch_execute(&statement).await.expect("create a partition");
    }
}

/// Creates the declared indexes on all partitions.
pub(crate) async fn create_indexes(client: &Client) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/objects.toml");
    let objects: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    for index in objects["index"].as_array().unwrap() {
        let (name, table) = (index["name"].as_str().unwrap(), index["table"].as_str().unwrap());
        let columns: Vec<&str> =
            index["columns"].as_array().unwrap().iter().map(|column| column.as_str().unwrap()).collect();
        let columns = columns.join(", ");
        let statement = if index.get("primary_key").is_some() {
            format!("alter table chain.{table} add constraint {name} primary key ({columns})")
        } else {
            format!("create index {name} on chain.{table} ({columns})")
        };
        client.batch_execute(&statement).await.expect("create an index");
    }
}

/// Gathers statistics, as the service does after attaching a segment.
pub(crate) async fn analyze(client: &Client) {
    let statement = "analyze chain.blocks, chain.transactions, chain.outputs, chain.inputs";
    client.batch_execute(statement).await.expect("analyze");
}

//! Brings a checkpointed set forward to a later block from the database's rows, without its bytes.
//!
//! In: the set as it stood after a block, and the rows of the blocks above it, which live sync connected. Out: the set after
//! the last of them, by the very rules that a replay applies ([`resolve_batch`]): each block's rows become a batch again.
//! Called at the start of a bulk load; it reads what was connected since, never the whole of `chain.utxos`.

use std::ops::RangeInclusive;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::rebuild::RebuildError;
use super::resolve::{ConnectError, resolve_batch};
use super::{Coin, UtxoSet};
use crate::chain::batch::{Batch, Block, Input, Output, Span, Tx, tx_num};
use crate::chain::hash::Hash32;
use crate::chain::header::{HEADER_BYTES, Header};
use crate::network::Network;

/// Blocks that are read at once: some 100,000 rows of full ones.
const BLOCKS_AT_ONCE: u32 = 8;

const TXS: &str = "select tx_num, txid, input_count, output_count from chain.transactions \
     where tx_num >= $1 and tx_num < $2 order by tx_num";

const INPUTS: &str = "select i.tx_num, p.txid, i.prev_vout from chain.inputs i \
     left join chain.transactions p on p.tx_num = i.prev_tx_num \
     where i.tx_num >= $1 and i.tx_num < $2 order by i.tx_num, i.vin";

/// Unspendable as in `chain.utxos`.
const OUTPUTS: &str = "select o.tx_num, o.value, uuid_send(o.script_hash), \
       substr(o.script, 1, 1) = '\\x6a'::bytea or octet_length(o.script) > 10000 \
     from chain.outputs o where o.tx_num >= $1 and o.tx_num < $2 order by o.tx_num, o.vout";

/// Applies the rows of some heights, the first right above the set's last block.
///
/// # Errors
/// [`RebuildError`]; then drop the set. [`RebuildError::Shape`] where the rows are no chain on top of this set.
pub async fn roll_forward(
    client: &Client,
    set: &mut UtxoSet,
    heights: RangeInclusive<u32>,
    network: Network,
) -> Result<(), RebuildError> {
    let mut overwritten = Vec::new();
    let mut first = *heights.start();
    while first <= *heights.end() {
        let last = (first + BLOCKS_AT_ONCE - 1).min(*heights.end());
        let mut batch = read(client, set, first..=last).await?;
        resolve_batch(&mut batch, set, network).map_err(broken)?;
        // What overwrites what is in the database already.
        if set.is_settlement_due(0) {
            set.settle(&mut overwritten, |_| Ok(())).map_err(broken)?;
        }
        overwritten.clear();
        first = last + 1;
    }
    set.settle(&mut overwritten, |_| Ok(())).map_err(broken)
}

fn broken(error: ConnectError) -> RebuildError {
    match error {
        ConnectError::Files(error) => RebuildError::Files(error),
        // The blocks were connected by the same rules: the checkpoint is not what it says, or rows were changed.
        ConnectError::Broken(error) => RebuildError::Broken(error),
    }
}

/// Makes a batch of rows: everything that resolving looks at.
async fn read(client: &Client, set: &UtxoSet, heights: RangeInclusive<u32>) -> Result<Batch, RebuildError> {
    let (from, to) = (tx_num(*heights.start(), 0), tx_num(heights.end() + 1, 0));
    let bounds: [&(dyn ToSql + Sync); 2] = [&from, &to];
    let (txs, inputs, outputs) = tokio::try_join!(
        client.query(TXS, &bounds),
        client.query(INPUTS, &bounds),
        client.query(OUTPUTS, &bounds),
    )?;
    let mut batch = Batch { blocks: heights.clone().map(block).collect(), ..Batch::default() };
    let (mut inputs, mut outputs) = (inputs.iter().peekable(), outputs.iter().peekable());
    for row in &txs {
        let tx_num: i64 = row.get(0);
        let txid = hash(row, 1)?;
        let at = ((tx_num >> 16) as u32 - heights.start()) as usize;
        let block = batch.blocks.get_mut(at).ok_or(RebuildError::Shape)?;
        let (input_first, output_first) = (batch.inputs.len(), batch.outputs.len());
        while let Some(row) = inputs.next_if(|row| row.get::<_, i64>(0) == tx_num) {
            batch.inputs.push(input(set, row)?);
        }
        while let Some(row) = outputs.next_if(|row| row.get::<_, i64>(0) == tx_num) {
            batch.outputs.push(output(row)?);
        }
        set.key.fingerprint_outputs(&txid, &mut batch.outputs[output_first..]);
        let tx = Tx {
            txid,
            version: 0,
            locktime: 0,
            size: 0,
            weight: 0,
            input_count: (batch.inputs.len() - input_first) as u32,
            output_count: (batch.outputs.len() - output_first) as u32,
            fee_sat: 0,
        };
        if i64::from(tx.input_count) != i64::from(row.get::<_, i32>(2))
            || i64::from(tx.output_count) != i64::from(row.get::<_, i32>(3))
        {
            return Err(RebuildError::Shape);
        }
        block.tx_count += 1;
        block.input_count += tx.input_count;
        block.output_count += tx.output_count;
        batch.txs.push(tx);
    }
    let is_whole = batch.blocks.iter().all(|block| block.tx_count > 0);
    if is_whole && inputs.next().is_none() && outputs.next().is_none() {
        Ok(batch)
    } else {
        Err(RebuildError::Shape)
    }
}

fn block(height: u32) -> Block {
    Block {
        height,
        hash: [0; 32],
        header: Header::parse(&[0; HEADER_BYTES]),
        size: 0,
        weight: 0,
        tx_count: 0,
        input_count: 0,
        output_count: 0,
        fees_sat: 0,
        subsidy_sat: 0,
        unclaimed_sat: 0,
        median_time: 0,
        chainwork: 0,
    }
}

/// A coinbase has no output before it; its outpoint is never looked at.
fn input(set: &UtxoSet, row: &Row) -> Result<Input, RebuildError> {
    let outpoint = match row.get::<_, Option<i32>>(2) {
        Some(prev_vout) => set.key.fingerprint(&hash(row, 1)?, prev_vout as u32),
        None => Default::default(),
    };
    let prev_vout = row.get::<_, Option<i32>>(2).map_or(u32::MAX, |vout| vout as u32);
    let (script_sig, witness) = (Span::default(), Span::default());
    Ok(Input { outpoint, sequence: 0, prev_vout, script_sig, witness, prevout: Coin::NONE })
}

fn output(row: &Row) -> Result<Output, RebuildError> {
    Ok(Output {
        outpoint: Default::default(),
        value_sat: row.get::<_, i64>(1) as u64,
        script_hash: row.get::<_, &[u8]>(2).try_into().map_err(|_| RebuildError::Shape)?,
        script: Span::default(),
        is_unspendable: row.get(3),
    })
}

fn hash(row: &Row, column: usize) -> Result<Hash32, RebuildError> {
    let bytes: Option<&[u8]> = row.get(column);
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(RebuildError::Shape)
}

//! Finds the coins that a block spends: outputs of the block itself, then the caches, then the database.
//!
//! In: a parsed block, the caches, the open transaction. Out: [`Found`]: what [`BlockCoins`] needs to resolve it, and which
//! of its txids the chain had already. Two statements a block, whatever the number of misses: txids to `tx_num` by the
//! index on txid of every segment, then (`tx_num`, `vout`) to the coin, through `chain.utxos`, which is what unspent
//! means: neither spent, nor overwritten, nor unspendable. A third and fourth only where a txid repeats (BIP30).

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Row, Transaction};

use super::LiveError;
use super::caches::{Caches, Overlay};
use crate::chain::batch::Batch;
use crate::chain::hash::Hash32;
use crate::prevouts::{BlockCoins, Coin, FingerprintKey};

/// The index on txid, one probe a segment.
const TX_NUMS: &str = "select txid, tx_num from chain.transactions where txid = any($1)";

/// `uuid_send`: 16 bytes as they are. `offset 0` keeps the planner from turning the order round: where statistics are old it
/// went over all outputs, each against all that is looked for (1.8 s instead of 0.05 s for 3,000 in 20,000).
const COINS: &str = "select u.tx_num, w.place, u.value, uuid_send(u.script_hash) \
     from unnest($1::int4[], $2::int8[], $3::int4[]) w (place, tx_num, vout) \
     cross join lateral (select u.tx_num, u.value, u.script_hash from chain.utxos u \
       where u.tx_num = w.tx_num and u.vout = w.vout offset 0) u";

/// All unspent outputs of some transactions.
const OUTPUTS: &str =
    "select u.tx_num, u.vout, u.value, uuid_send(u.script_hash) from chain.utxos u where u.tx_num = any($1)";

/// Where the coins came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Inputs that spend something.
    pub inputs: u64,
    /// Of these, the ones that spend an output of their own block.
    pub own_block: u64,
    /// Of these, the ones whose coin was remembered.
    pub coin_cache: u64,
    /// Of these, the ones whose transaction's number was remembered; the coin itself was looked up.
    pub txnum_cache: u64,
}

impl std::ops::AddAssign for Hits {
    fn add_assign(&mut self, other: Hits) {
        self.inputs += other.inputs;
        self.own_block += other.own_block;
        self.coin_cache += other.coin_cache;
        self.txnum_cache += other.txnum_cache;
    }
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) coins: BlockCoins,
    /// Txids of the block that the chain had already.
    pub(super) repeated: HashSet<Hash32>,
    pub(super) hits: Hits,
}

/// An input whose coin only the database knows.
struct Miss {
    /// Its place among the batch's inputs.
    place: usize,
    prev_txid: Hash32,
    tx_num: Option<i64>,
}

/// Looks for every prevout of a batch of one block.
///
/// # Errors
/// What the server says. What is not found is told when the block is resolved.
pub(super) async fn find(
    transaction: &Transaction<'_>,
    batch: &Batch,
    key: &FingerprintKey,
    caches: &mut Caches,
    overlay: &Overlay,
) -> Result<Found, LiveError> {
    let mut found = Found { coins: BlockCoins::new(key), repeated: HashSet::new(), hits: Hits::default() };
    let mut misses = remembered(batch, caches, overlay, &mut found)?;

    // The coinbase's own txid is asked for too: it may stand in the chain already.
    let coinbase = batch.txs[0].txid;
    let unknown: HashSet<Hash32> = misses
        .iter()
        .filter(|miss| miss.tx_num.is_none())
        .map(|miss| miss.prev_txid)
        .chain([coinbase])
        .collect();
    let numbers = tx_nums(transaction, &unknown).await?;
    for miss in misses.iter_mut().filter(|miss| miss.tx_num.is_none()) {
        // Of twins the later one has the coin: it overwrote the earlier one's.
        miss.tx_num = numbers.get(&miss.prev_txid).and_then(|all| all.iter().max().copied());
    }
    let repeatable = repeatable(batch, &numbers, &mut found);
    let mut earlier = numbers;
    if !repeatable.is_empty() {
        earlier.extend(tx_nums(transaction, &repeatable).await?);
    }
    coins(transaction, batch, &misses, &mut found).await?;
    repeated(transaction, batch, key, &repeatable, &earlier, &mut found).await?;
    Ok(found)
}

/// Takes what block and caches know; returns the rest.
fn remembered(
    batch: &Batch,
    caches: &mut Caches,
    overlay: &Overlay,
    found: &mut Found,
) -> Result<Vec<Miss>, LiveError> {
    let mut made: HashSet<Hash32> = HashSet::with_capacity(batch.txs.len());
    let mut misses = Vec::new();
    let mut place = 0;
    for (index, tx) in batch.txs.iter().enumerate() {
        for input in &batch.inputs[place..place + tx.input_count as usize] {
            if index > 0 {
                found.hits.inputs += 1;
                let prev_txid = input.prev_txid(&batch.raw);
                if made.contains(&prev_txid) {
                    found.hits.own_block += 1;
                } else if let Some(coin) = overlay.coin(caches, input.outpoint) {
                    found.hits.coin_cache += 1;
                    found.coins.add(input.outpoint, &coin).map_err(LiveError::of_coins)?;
                } else {
                    let tx_num = overlay.tx_num(caches, &prev_txid);
                    found.hits.txnum_cache += u64::from(tx_num.is_some());
                    misses.push(Miss { place, prev_txid, tx_num });
                }
            }
            place += 1;
        }
        made.insert(tx.txid);
    }
    Ok(misses)
}

/// Asks the database for the numbers of transactions.
async fn tx_nums(
    transaction: &Transaction<'_>,
    txids: &HashSet<Hash32>,
) -> Result<HashMap<Hash32, Vec<i64>>, LiveError> {
    let mut sorted: Vec<&[u8]> = txids.iter().map(<[u8; 32]>::as_slice).collect();
    sorted.sort_unstable();
    let rows = transaction.query(TX_NUMS, &[&sorted]).await.map_err(LiveError::server("looking up txids"))?;
    let mut numbers: HashMap<Hash32, Vec<i64>> = HashMap::with_capacity(rows.len());
    for row in &rows {
        numbers.entry(super::tip::hash(row, 0)).or_default().push(row.get(1));
    }
    Ok(numbers)
}

/// Returns the txids of the block that may stand in the chain already: a txid repeats only where a coinbase does, or where
/// all inputs spend outputs of transactions that repeat.
fn repeatable(batch: &Batch, numbers: &HashMap<Hash32, Vec<i64>>, found: &mut Found) -> HashSet<Hash32> {
    let mut repeatable: HashSet<Hash32> = HashSet::new();
    if numbers.contains_key(&batch.txs[0].txid) {
        repeatable.insert(batch.txs[0].txid);
    }
    let is_twin = |txid: &Hash32| numbers.get(txid).is_some_and(|all| all.len() > 1);
    let mut inputs = &batch.inputs[batch.txs[0].input_count as usize..];
    for tx in &batch.txs[1..] {
        let (tx_inputs, inputs_after) = inputs.split_at(tx.input_count as usize);
        inputs = inputs_after;
        let mut only_twins = true;
        for input in tx_inputs {
            let prev_txid = input.prev_txid(&batch.raw);
            if is_twin(&prev_txid) {
                found.coins.note_twin_output(input.outpoint);
            } else {
                only_twins &= repeatable.contains(&prev_txid);
            }
        }
        if only_twins {
            repeatable.insert(tx.txid);
        }
    }
    repeatable
}

/// Looks up the coins of the misses.
async fn coins(
    transaction: &Transaction<'_>,
    batch: &Batch,
    misses: &[Miss],
    found: &mut Found,
) -> Result<(), LiveError> {
    let mut wanted: Vec<(i64, i32, i32)> = misses
        .iter()
        .filter_map(|miss| {
            let prev_vout = batch.inputs[miss.place].prev_vout;
            // No output has an index beyond 31 bits: such an input stays without a coin.
            Some((miss.tx_num?, i32::try_from(prev_vout).ok()?, miss.place as i32))
        })
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    // In the order of the tables: neighbours stand on the same pages.
    wanted.sort_unstable();
    let column = |of: fn(&(i64, i32, i32)) -> i32| wanted.iter().map(of).collect::<Vec<i32>>();
    let (places, vouts) = (column(|it| it.2), column(|it| it.1));
    let tx_nums: Vec<i64> = wanted.iter().map(|it| it.0).collect();
    let rows = transaction
        .query(COINS, &[&places, &tx_nums, &vouts])
        .await
        .map_err(LiveError::server("looking up coins"))?;
    for row in &rows {
        let outpoint = batch.inputs[row.get::<_, i32>(1) as usize].outpoint;
        found.coins.add(outpoint, &coin(row)).map_err(LiveError::of_coins)?;
    }
    Ok(())
}

/// Notes which of the block's txids the chain has, and the earlier outputs that are still unspent.
async fn repeated(
    transaction: &Transaction<'_>,
    batch: &Batch,
    key: &FingerprintKey,
    repeatable: &HashSet<Hash32>,
    earlier: &HashMap<Hash32, Vec<i64>>,
    found: &mut Found,
) -> Result<(), LiveError> {
    let mut txids: HashMap<i64, Hash32> = HashMap::new();
    for (index, tx) in batch.txs.iter().enumerate() {
        if !repeatable.contains(&tx.txid) {
            continue;
        }
        let Some(tx_num) = earlier.get(&tx.txid).and_then(|all| all.iter().max()) else { continue };
        found.repeated.insert(tx.txid);
        txids.insert(*tx_num, tx.txid);
        if index == 0 {
            found.coins.note_repeated_coinbase(key.fingerprint(&tx.txid, 0));
        }
    }
    if txids.is_empty() {
        return Ok(());
    }
    let tx_nums: Vec<i64> = txids.keys().copied().collect();
    let rows = transaction
        .query(OUTPUTS, &[&tx_nums])
        .await
        .map_err(LiveError::server("looking up outputs of a repeated transaction"))?;
    for row in &rows {
        let txid = &txids[&row.get::<_, i64>(0)];
        found
            .coins
            .add(key.fingerprint(txid, row.get::<_, i32>(1) as u32), &coin(row))
            .map_err(LiveError::of_coins)?;
    }
    Ok(())
}

/// Returns the coin of a row: transaction, something else, value, script hash.
fn coin(row: &Row) -> Coin {
    Coin {
        tx_num: row.get(0),
        value_sat: row.get::<_, i64>(2) as u64,
        script_hash: row.get::<_, &[u8]>(3).try_into().expect("a uuid has 16 bytes"),
    }
}

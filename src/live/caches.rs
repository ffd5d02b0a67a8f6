//! What the connector remembers between blocks, and what one transaction would change of it.
//!
//! In: connected blocks. Out: coins and transaction numbers without a look at the database. [`Overlay`] lies over
//! [`Caches`] while a transaction is open; only when it has committed are its changes applied, so that nothing of an
//! aborted one can remain. Invariant: what a cache holds is true of the committed tip: a coin is unspent, a txid stands
//! once in the chain (txids that repeat, BIP30, are never kept). The overlay is bounded: a reorg that changes more has no
//! memory of it and leaves the caches empty.

use std::collections::{HashMap, HashSet};

use super::LiveOptions;
use crate::chain::batch::{Batch, tx_num};
use crate::chain::hash::Hash32;
use crate::prevouts::{Coin, CoinCache, Fingerprint, FingerprintKey, TxNumCache};

/// Most changes that an overlay keeps: some 50 MB, or about forty full blocks.
const OVERLAY_CHANGES_MAX: usize = 500_000;

/// The caches, true of the committed tip.
#[derive(Debug)]
pub(super) struct Caches {
    coins: CoinCache,
    txs: TxNumCache,
}

impl Caches {
    pub(super) fn new(options: &LiveOptions, key: &FingerprintKey) -> Caches {
        Caches {
            coins: CoinCache::new(options.coin_cache_bytes),
            txs: TxNumCache::new(options.txnum_cache_buckets, options.txnum_cache_bucket_size, key.clone()),
        }
    }

    /// Forgets everything from a `tx_num` on.
    pub(super) fn forget_from(&mut self, tx_num_first: i64) {
        self.coins.forget_from(tx_num_first);
        self.txs.forget_from(tx_num_first);
    }

    /// Applies what a committed transaction changed.
    pub(super) fn apply(&mut self, overlay: &Overlay) {
        if overlay.is_full {
            return self.forget_from(0);
        }
        if let Some(cut) = overlay.cut {
            self.forget_from(cut);
        }
        overlay.spent.iter().for_each(|outpoint| self.coins.remove(*outpoint));
        overlay.repeated.iter().for_each(|txid| self.txs.remove(txid));
        for (outpoint, coin) in &overlay.coins {
            self.coins.insert(*outpoint, coin);
        }
        // The belt wants them by age.
        let mut txs: Vec<(i64, Hash32)> = overlay.txs.iter().map(|(txid, tx_num)| (*tx_num, *txid)).collect();
        txs.sort_unstable();
        txs.iter().for_each(|(tx_num, txid)| self.txs.insert(txid, *tx_num));
    }
}

/// What an open transaction would change.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// What the caches know from here on was disconnected.
    cut: Option<i64>,
    spent: HashSet<Fingerprint>,
    coins: HashMap<Fingerprint, Coin>,
    txs: HashMap<Hash32, i64>,
    repeated: HashSet<Hash32>,
    is_full: bool,
}

impl Overlay {
    /// Of a transaction that disconnects everything from a `tx_num` on.
    pub(super) fn cut_at(tx_num_first: i64) -> Overlay {
        Overlay { cut: Some(tx_num_first), ..Overlay::default() }
    }

    /// Returns a coin that is known to be unspent.
    pub(super) fn coin(&self, caches: &Caches, outpoint: Fingerprint) -> Option<Coin> {
        if self.is_full || self.spent.contains(&outpoint) {
            return None;
        }
        let below = |coin: &Coin| self.cut.is_none_or(|cut| coin.tx_num < cut);
        self.coins.get(&outpoint).copied().or_else(|| caches.coins.get(outpoint).filter(below))
    }

    /// Returns the number of a transaction whose txid stands once in the chain.
    pub(super) fn tx_num(&self, caches: &mut Caches, txid: &Hash32) -> Option<i64> {
        if self.is_full || self.repeated.contains(txid) {
            return None;
        }
        let below = |tx_num: &i64| self.cut.is_none_or(|cut| *tx_num < cut);
        self.txs.get(txid).copied().or_else(|| caches.txs.get(txid).filter(below))
    }

    /// Notes a resolved block; `repeated` are those of its txids that the chain had already.
    pub(super) fn add(&mut self, batch: &Batch, repeated: &HashSet<Hash32>) {
        let changes = batch.inputs.len() + batch.outputs.len() + batch.txs.len();
        let before = self.spent.len() + self.coins.len() + self.txs.len() + self.repeated.len();
        if self.is_full || before + changes > OVERLAY_CHANGES_MAX {
            *self = Overlay { cut: self.cut, is_full: true, ..Overlay::default() };
            return;
        }
        let height = batch.blocks[0].height;
        let (mut inputs, mut outputs) = (batch.inputs.as_slice(), batch.outputs.as_slice());
        for (index, tx) in (0..).zip(&batch.txs) {
            let (tx_inputs, inputs_after) = inputs.split_at(tx.input_count as usize);
            let (tx_outputs, outputs_after) = outputs.split_at(tx.output_count as usize);
            (inputs, outputs) = (inputs_after, outputs_after);
            if index > 0 {
                for input in tx_inputs {
                    self.coins.remove(&input.outpoint);
                    self.spent.insert(input.outpoint);
                }
            }
            let tx_num = tx_num(height, index);
            if repeated.contains(&tx.txid) {
                self.txs.remove(&tx.txid);
                self.repeated.insert(tx.txid);
                // Whatever was known of its outputs was the earlier transaction's.
                for output in tx_outputs {
                    self.coins.remove(&output.outpoint);
                    self.spent.insert(output.outpoint);
                }
                continue;
            }
            self.txs.insert(tx.txid, tx_num);
            for output in tx_outputs.iter().filter(|output| !output.is_unspendable) {
                let coin = Coin { tx_num, value_sat: output.value_sat, script_hash: output.script_hash };
                self.coins.insert(output.outpoint, coin);
            }
        }
    }
}

//! Recent unspent outputs in memory, for live sync: spares the look-ups of their transactions, rows and spenders.
//!
//! In: the outputs of connected blocks. Out: the coin, if it is still here; then it is unspent at the tip. When the budget
//! is full the oldest bucket falls off the belt and is forgotten: what is not here must be looked up in the database.
//! Called by the live connector, after its transaction has committed; it must never learn of anything earlier.

use std::convert::Infallible;

use super::belt::Belt;
use super::entry::pack;
use super::{Coin, Fingerprint};

/// Buckets on the belt: one falls off at a time.
const BUCKETS: u64 = 16;

/// Unspent outputs by the fingerprints of their outpoints, the most recent ones.
#[derive(Debug)]
pub struct CoinCache {
    belt: Belt<5>,
}

impl CoinCache {
    /// Makes an empty cache that takes at most `bytes_max` bytes; with 0 it holds nothing.
    pub fn new(bytes_max: u64) -> Self {
        CoinCache { belt: Belt::new(Some(bytes_max), BUCKETS) }
    }

    /// Returns an unspent output, if it is here.
    pub fn get(&self, outpoint: Fingerprint) -> Option<Coin> {
        self.belt.table.coin(outpoint)
    }

    /// Adds an output of a connected block.
    pub fn insert(&mut self, outpoint: Fingerprint, coin: &Coin) {
        let entry = pack(outpoint, coin);
        while self.belt.insert(&entry).is_err() {
            let Ok(dropped) = self.belt.drop_oldest_bucket(|_| Ok::<_, Infallible>(()));
            if dropped == 0 {
                return;
            }
        }
    }

    /// Removes an output that was spent, or that nobody can spend any more.
    pub fn remove(&mut self, outpoint: Fingerprint) {
        self.belt.table.spend(outpoint);
    }

    /// Removes all outputs of transactions from `tx_num_first` on: their blocks were disconnected.
    pub fn forget_from(&mut self, tx_num_first: i64) {
        self.belt.table.remove_newer(tx_num_first);
    }

    /// Returns the number of outputs.
    pub fn len(&self) -> u64 {
        self.belt.table.coin_count()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prevouts::FingerprintKey;

    fn coin(n: u32) -> Coin {
        Coin { tx_num: i64::from(n) << 16, value_sat: u64::from(n), script_hash: [n as u8; 16] }
    }

    #[test]
    fn the_oldest_fall_off_and_a_branch_is_forgotten() {
        let key = FingerprintKey::random().unwrap();
        let outpoint = |n: u32| key.fingerprint(&[7; 32], n);
        let mut cache = CoinCache::new(64 << 10);
        for n in 0..10_000 {
            cache.insert(outpoint(n), &coin(n));
        }
        assert!(cache.len() > 1_000 && cache.len() < 1_700, "{}", cache.len());
        assert_eq!((cache.get(outpoint(9_999)), cache.get(outpoint(0))), (Some(coin(9_999)), None));
        cache.remove(outpoint(9_999));
        assert_eq!(cache.get(outpoint(9_999)), None);
        cache.forget_from(9_500 << 16);
        assert_eq!((cache.get(outpoint(9_500)), cache.get(outpoint(9_499))), (None, Some(coin(9_499))));
        cache.forget_from(0);
        assert!(cache.is_empty());
    }

    #[test]
    fn without_a_budget_it_holds_nothing() {
        let key = FingerprintKey::random().unwrap();
        let mut cache = CoinCache::new(0);
        cache.insert(key.fingerprint(&[1; 32], 0), &coin(1));
        assert!(cache.is_empty());
    }
}

//! The numbers of recent transactions: spares live sync and look-ups the probes of every segment.
//!
//! In: each connected transaction. Out: its `tx_num`, as long as it is among the most recent. The belt has buckets of a
//! fixed number of transactions, as in Chronik's cache of that name: when all are full, the oldest bucket falls off.
//! What is not here must be looked up in the database; the cache never says that something does not exist.

use std::collections::VecDeque;
use std::convert::Infallible;

use super::FingerprintKey;
use super::belt::Belt;
use super::entry::{Words, pack_head, tx_num};
use crate::chain::hash::Hash32;

/// Bytes of the budget for each transaction. An entry takes 32; the rest is the room that a hash table needs.
const TXNUM_BYTES: u64 = 40;

/// Transaction ids and their numbers, the most recent ones.
#[derive(Debug)]
pub struct TxNumCache {
    belt: Belt<4>,
    key: FingerprintKey,
    /// The first transaction of each bucket, the oldest first.
    buckets: VecDeque<i64>,
    /// Transactions in the newest bucket.
    newest: u64,
    buckets_max: u64,
    bucket_size: u64,
    hits: u64,
    misses: u64,
}

impl TxNumCache {
    /// Makes an empty cache of `buckets` buckets of `bucket_size` transactions, which takes at most 40 bytes for each;
    /// 0 of either is a cache that holds nothing. `key` hides from others which transactions share a place.
    pub fn new(buckets: u64, bucket_size: u64, key: FingerprintKey) -> Self {
        let bytes_max = buckets.saturating_mul(bucket_size).saturating_mul(TXNUM_BYTES);
        TxNumCache {
            belt: Belt::new(Some(bytes_max), buckets),
            key,
            buckets: VecDeque::new(),
            newest: 0,
            buckets_max: buckets,
            bucket_size,
            hits: 0,
            misses: 0,
        }
    }

    /// Adds a transaction; of two with the same id (BIP30 twins) the later one stays.
    ///
    /// `tx_num` must grow from call to call: it is the age.
    pub fn insert(&mut self, txid: &Hash32, tx_num: i64) {
        if self.buckets_max == 0 || self.bucket_size == 0 {
            return;
        }
        if self.buckets.is_empty() || self.newest == self.bucket_size {
            if self.buckets.len() as u64 == self.buckets_max {
                self.drop_oldest_bucket();
            }
            self.buckets.push_back(tx_num);
            self.newest = 0;
        }
        self.newest += 1;
        let entry = self.entry(txid, tx_num);
        // The budget has room for all buckets, but for some very small ones.
        while self.belt.insert(&entry).is_err() && self.buckets.len() > 1 {
            self.drop_oldest_bucket();
        }
    }

    fn drop_oldest_bucket(&mut self) {
        self.buckets.pop_front();
        let end = self.buckets.front().copied().unwrap_or(i64::MAX);
        let Ok(_) = self.belt.drop_older(end, |_| Ok::<_, Infallible>(()));
    }

    /// Returns the number of a transaction, if it is still here.
    pub fn get(&mut self, txid: &Hash32) -> Option<i64> {
        let place = self.key.fingerprint(txid, 0);
        let found = self.belt.table.get(place).map(tx_num);
        // The same place is the same transaction only if the rest of the id agrees.
        let found = found.filter(|&tx_num| self.belt.table.get(place) == Some(&self.entry(txid, tx_num)));
        *(if found.is_some() { &mut self.hits } else { &mut self.misses }) += 1;
        found
    }

    /// Removes a transaction whose block was disconnected.
    pub fn remove(&mut self, txid: &Hash32) {
        self.belt.table.remove(self.key.fingerprint(txid, 0));
    }

    /// Removes all transactions from `tx_num_first` on: their blocks were disconnected.
    pub fn forget_from(&mut self, tx_num_first: i64) {
        let before = self.len();
        self.belt.table.remove_newer(tx_num_first);
        let removed = before - self.len();
        let buckets_before = self.buckets.len();
        while self.buckets.back().is_some_and(|first| *first >= tx_num_first) {
            self.buckets.pop_back();
        }
        // What is now the newest bucket was full once; it takes no more.
        self.newest = if self.buckets.len() < buckets_before {
            self.bucket_size
        } else {
            self.newest.saturating_sub(removed)
        };
    }

    /// Returns the number of transactions in the cache.
    pub fn len(&self) -> u64 {
        self.belt.table.coin_count()
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that the cache has allocated.
    pub fn allocated_bytes(&self) -> u64 {
        self.belt.table.allocated_bytes()
    }

    /// Returns the share of look-ups that found their transaction, 0 to 1, since the cache was made.
    pub fn hit_ratio(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }

    /// 96 bits of keyed fingerprint, the number, and 120 bits of the id itself.
    fn entry(&self, txid: &Hash32, tx_num: i64) -> Words<4> {
        let word = |at: usize| u64::from_le_bytes(txid[at..at + 8].try_into().expect("8 bytes"));
        let [low, high, rest] = pack_head(self.key.fingerprint(txid, 0), tx_num, word(0) & ((1 << 56) - 1));
        [low, high, rest, word(8)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::hash::sha256d;

    fn txid(n: u64) -> Hash32 {
        sha256d(&n.to_le_bytes())
    }

    fn cache(buckets: u64, bucket_size: u64) -> TxNumCache {
        TxNumCache::new(buckets, bucket_size, FingerprintKey::random().unwrap())
    }

    #[test]
    fn whole_buckets_fall_off_the_oldest_first() {
        let mut cache = cache(4, 25);
        for n in 0..100 {
            cache.insert(&txid(n), n as i64);
        }
        assert_eq!(cache.len(), 100);
        assert_eq!(cache.get(&txid(0)), Some(0));
        cache.insert(&txid(100), 100);
        // The first 25 are gone, all others are there.
        assert_eq!(cache.len(), 76);
        assert_eq!(cache.get(&txid(24)), None);
        for n in 25..=100 {
            assert_eq!(cache.get(&txid(n)), Some(n as i64));
        }
        assert_eq!(cache.hit_ratio(), Some(77.0 / 78.0));
    }

    #[test]
    fn the_default_size_holds_all_its_transactions_within_its_budget() {
        let mut cache = cache(10, 25_000);
        let mut most = 0;
        for n in 0..600_000 {
            cache.insert(&txid(n), (n as i64) << 16);
            most = most.max(cache.allocated_bytes());
            assert!(most <= 10_000_000, "{most} bytes after {n}");
        }
        assert_eq!(cache.len(), 250_000);
        for n in 350_000..600_000 {
            assert_eq!(cache.get(&txid(n)), Some((n as i64) << 16));
        }
        assert_eq!(cache.get(&txid(349_999)), None);
    }

    #[test]
    fn of_twins_the_later_one_is_found() {
        let mut cache = cache(2, 10);
        cache.insert(&txid(7), 91_722 << 16);
        cache.insert(&txid(7), 91_880 << 16);
        assert_eq!((cache.get(&txid(7)), cache.len()), (Some(91_880 << 16), 1));
        cache.remove(&txid(7));
        assert_eq!((cache.get(&txid(7)), cache.is_empty()), (None, true));
    }

    #[test]
    fn what_was_disconnected_is_forgotten_and_the_belt_goes_on_from_there() {
        let mut cache = cache(4, 25);
        for n in 0..90 {
            cache.insert(&txid(n), n as i64);
        }
        cache.forget_from(60);
        assert_eq!(cache.len(), 60);
        assert_eq!((cache.get(&txid(59)), cache.get(&txid(60))), (Some(59), None));
        // The other branch: the same numbers, other transactions.
        for n in 60..110 {
            cache.insert(&txid(1_000 + n), n as i64);
        }
        assert!(cache.len() <= 100);
        for n in 60..110 {
            assert_eq!((cache.get(&txid(n)), cache.get(&txid(1_000 + n))), (None, Some(n as i64)));
        }
        cache.forget_from(0);
        assert!(cache.is_empty());
        cache.insert(&txid(1), 1);
        assert_eq!(cache.get(&txid(1)), Some(1));
    }

    #[test]
    fn a_cache_of_nothing_holds_nothing() {
        for mut cache in [cache(0, 25_000), cache(10, 0), cache(1, 1)] {
            cache.insert(&txid(1), 1);
            cache.insert(&txid(2), 2);
            assert!(cache.len() <= 1);
            assert_eq!(cache.get(&txid(1)), None);
        }
    }
}

//! The UTXO set in memory: 40 bytes an entry, in 1,024 shards that grow one at a time.
//!
//! A shard is an array with linear probing, its capacity any number: it grows by a quarter, so that the whole set
//! never needs more than one shard twice, and memory is touched only as the set fills. The place of an entry grows
//! with its fingerprint, so a shard is copied to its larger array almost front to back. Deleting shifts the following
//! entries back; there are no tombstones.

use super::{Coin, Fingerprint};

const SHARD_BITS: u32 = 10;
const SHARDS: usize = 1 << SHARD_BITS;
/// Slots of a new shard.
const SLOTS_FIRST: usize = 16;

/// One slot: the fingerprint (96 bits), `tx_num` (40), value (56), script hash (128).
type Entry = [u64; 5];
const EMPTY: Entry = [0; 5];

/// The set of unspent outputs, by fingerprint of their outpoints.
#[derive(Debug)]
pub struct UtxoSet {
    shards: Vec<Shard>,
    coin_count: u64,
}

#[derive(Debug)]
struct Shard {
    slots: Box<[Entry]>,
    used: usize,
}

impl Default for UtxoSet {
    fn default() -> Self {
        Self::new()
    }
}

impl UtxoSet {
    /// Makes an empty set.
    pub fn new() -> Self {
        let shards = (0..SHARDS)
            .map(|_| Shard { slots: vec![EMPTY; SLOTS_FIRST].into_boxed_slice(), used: 0 })
            .collect();
        UtxoSet { shards, coin_count: 0 }
    }

    /// Returns the number of coins in the set.
    pub fn coin_count(&self) -> u64 {
        self.coin_count
    }

    /// Returns the bytes that the slots occupy, used or not.
    pub fn allocated_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| (shard.slots.len() * size_of::<Entry>()) as u64).sum()
    }

    /// Adds a coin; returns the one that it overwrites, if there is one (a BIP30 twin).
    ///
    /// # Panics
    /// If the coin does not fit its 40 bits of `tx_num` (heights below 2^24) and 56 bits of value: the caller has
    /// checked both.
    #[inline]
    pub fn insert(&mut self, outpoint: Fingerprint, coin: &Coin) -> Option<Coin> {
        let entry = pack(outpoint, coin);
        let shard = &mut self.shards[shard_index(outpoint.low)];
        let old = shard.insert(entry);
        if old.is_none() {
            self.coin_count += 1;
            if shard.used * 5 > shard.slots.len() * 4 {
                shard.grow();
            }
        }
        old.map(|entry| unpack(&entry))
    }

    /// Removes a coin and returns it, or `None` if it was never there or is spent already.
    #[inline]
    pub fn spend(&mut self, outpoint: Fingerprint) -> Option<Coin> {
        let entry = self.shards[shard_index(outpoint.low)].remove(outpoint)?;
        self.coin_count -= 1;
        Some(unpack(&entry))
    }

    /// Asks the processor to fetch the place of an outpoint, so that the look-up that follows does not wait.
    #[inline]
    pub fn prefetch(&self, outpoint: Fingerprint) {
        let shard = &self.shards[shard_index(outpoint.low)];
        let place: *const Entry = &shard.slots[home(outpoint.low, shard.slots.len())];
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch changes nothing that a program can see, and `place` points into a live slice.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }
}

#[inline]
fn shard_index(low: u64) -> usize {
    (low >> (64 - SHARD_BITS)) as usize
}

/// Returns the slot at which the search for a fingerprint starts: proportional to the bits below the shard's.
#[inline]
fn home(low: u64, slot_count: usize) -> usize {
    let bits = (low << SHARD_BITS) >> 32;
    ((bits * slot_count as u64) >> 32) as usize
}

#[inline]
fn is_empty(entry: &Entry) -> bool {
    entry[0] == 0 && entry[1] >> 32 == 0
}

#[inline]
fn holds(entry: &Entry, outpoint: Fingerprint) -> bool {
    entry[0] == outpoint.low && entry[1] >> 32 == u64::from(outpoint.high)
}

#[inline]
fn pack(outpoint: Fingerprint, coin: &Coin) -> Entry {
    let tx_num = coin.tx_num as u64;
    assert!(tx_num < 1 << 40 && coin.value_sat < 1 << 56, "coin out of range: {coin:?}");
    let word = |at: usize| u64::from_le_bytes(coin.script_hash[at..at + 8].try_into().expect("8 bytes"));
    [
        outpoint.low,
        u64::from(outpoint.high) << 32 | (tx_num & 0xffff_ffff),
        (tx_num >> 32) << 56 | coin.value_sat,
        word(0),
        word(8),
    ]
}

#[inline]
fn unpack(entry: &Entry) -> Coin {
    let mut script_hash = [0; 16];
    script_hash[..8].copy_from_slice(&entry[3].to_le_bytes());
    script_hash[8..].copy_from_slice(&entry[4].to_le_bytes());
    Coin {
        tx_num: ((entry[2] >> 56) << 32 | (entry[1] & 0xffff_ffff)) as i64,
        value_sat: entry[2] & ((1 << 56) - 1),
        script_hash,
    }
}

impl Shard {
    /// Puts the entry in its place; returns the entry with the same fingerprint that stood there.
    #[inline]
    fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let outpoint = Fingerprint { low: entry[0], high: (entry[1] >> 32) as u32 };
        let mut at = home(outpoint.low, self.slots.len());
        loop {
            let slot = &mut self.slots[at];
            if is_empty(slot) {
                *slot = entry;
                self.used += 1;
                return None;
            }
            if holds(slot, outpoint) {
                return Some(std::mem::replace(slot, entry));
            }
            at = self.after(at);
        }
    }

    #[inline]
    fn remove(&mut self, outpoint: Fingerprint) -> Option<Entry> {
        let mut at = home(outpoint.low, self.slots.len());
        loop {
            let slot = &self.slots[at];
            if is_empty(slot) {
                return None;
            }
            if holds(slot, outpoint) {
                break;
            }
            at = self.after(at);
        }
        let removed = self.slots[at];
        self.close_gap(at);
        self.used -= 1;
        Some(removed)
    }

    /// Moves back what follows a freed slot, so that every entry stays reachable from its home.
    #[inline]
    fn close_gap(&mut self, mut gap: usize) {
        let slot_count = self.slots.len();
        let mut at = gap;
        loop {
            at = self.after(at);
            let entry = self.slots[at];
            if is_empty(&entry) {
                break;
            }
            // The entry may move if its home does not lie behind the gap, going round.
            let from_home = (at + slot_count - home(entry[0], slot_count)) % slot_count;
            let from_gap = (at + slot_count - gap) % slot_count;
            if from_home >= from_gap {
                self.slots[gap] = entry;
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    #[cold]
    fn grow(&mut self) {
        let slot_count = self.slots.len() + (self.slots.len() / 4).max(8);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slot_count].into_boxed_slice());
        self.used = 0;
        for entry in old.iter().filter(|entry| !is_empty(entry)) {
            self.insert(*entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn coin(seed: u64) -> Coin {
        let hash = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let mut script_hash = [0; 16];
        script_hash[4..12].copy_from_slice(&hash);
        Coin { tx_num: (seed % (1 << 40)) as i64, value_sat: seed % (1 << 51), script_hash }
    }

    #[test]
    fn extreme_coins_round_trip() {
        let outpoint = Fingerprint { low: u64::MAX, high: u32::MAX };
        let widest = Coin { tx_num: (1 << 40) - 1, value_sat: (1 << 56) - 1, script_hash: [0xff; 16] };
        assert_eq!(unpack(&pack(outpoint, &widest)), widest);
        let least = Coin { tx_num: 0, value_sat: 0, script_hash: [0; 16] };
        assert_eq!(unpack(&pack(outpoint, &least)), least);
    }

    #[test]
    fn a_million_coins_stay_near_forty_bytes_each() {
        let mut set = UtxoSet::new();
        for seed in 0..1_000_000_u64 {
            let low =
                seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            assert_eq!(set.insert(Fingerprint { low, high: 1 }, &coin(seed)), None);
        }
        assert_eq!(set.coin_count(), 1_000_000);
        let bytes_per_coin = set.allocated_bytes() as f64 / 1e6;
        assert!((50.0..65.0).contains(&bytes_per_coin), "{bytes_per_coin}");
    }

    proptest! {
        /// The set against a plain map, with fingerprints that crowd into few homes.
        #[test]
        fn agrees_with_a_plain_map(steps in prop::collection::vec((0..3_u8, 0..40_u64, any::<u64>()), 1..2_000)) {
            let mut set = UtxoSet::new();
            let mut model = HashMap::new();
            for (step, crowd, seed) in steps {
                let outpoint = Fingerprint { low: (crowd % 3) << 60 | u64::MAX >> 12 & !0xff | crowd, high: 7 };
                if step > 0 {
                    prop_assert_eq!(set.insert(outpoint, &coin(seed)), model.insert(outpoint, coin(seed)));
                } else {
                    prop_assert_eq!(set.spend(outpoint), model.remove(&outpoint));
                }
                prop_assert_eq!(set.coin_count(), model.len() as u64);
            }
            for (outpoint, coin) in model {
                prop_assert_eq!(set.spend(outpoint), Some(coin));
            }
        }
    }
}

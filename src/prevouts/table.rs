//! The cached coins in memory: 40 bytes an entry, in shards that grow one at a time and never past the budget.
//!
//! A shard is an array with linear probing, its capacity any number: it grows by a quarter, so that the whole table
//! never needs more than one shard twice, and memory is touched only as the table fills. How many shards there are and
//! how large they may become follows from the budget; without one they grow as long as there is memory. The place of an
//! entry grows with its fingerprint: a shard is copied to its larger array almost front to back, and the shards one
//! after the other are nearly sorted. Deleting shifts the following entries back; there are no tombstones. Nothing
//! here knows files.

use super::entry::{EMPTY, ENTRY_BYTES, Entry, holds, is_empty, outpoint, pack, tx_num, unpack};
use super::slots::Slots;
use super::{Coin, Fingerprint};

/// Most shards: each growth copies about a thousandth of the table.
const SHARDS_MAX: u64 = 1024;
/// A shard of a small budget; fewer bytes would cost more in unevenly filled shards than they save in copies.
const SHARD_BYTES: u64 = 64 << 10;
/// From here on a table has several shards; a smaller one is made in full at once.
const SHARDED_BYTES_MIN: u64 = 1 << 20;
/// Slots of a new shard.
const SLOTS_FIRST: usize = 16;
/// Share of all slots that a table within a budget fills, in 64ths: 0.875. At 0.8 an insert probes 13 slots on
/// average, at 0.875 32, which lie side by side; a look-up that finds its coin 4.5.
const FILL_64THS: u64 = 56;

/// A coin that the budget leaves no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Coins by fingerprint of their outpoints.
#[derive(Debug)]
pub(super) struct CoinTable {
    shards: Box<[Shard]>,
    /// Most slots of a shard.
    slots_max: usize,
    coin_count: u64,
    coins_max: u64,
    allocated_bytes: u64,
}

#[derive(Debug)]
struct Shard {
    slots: Slots,
    used: usize,
}

impl CoinTable {
    /// Makes an empty table that never allocates more than `bytes_max`, not even while a shard grows; without a number
    /// it takes what it needs.
    pub(super) fn new(bytes_max: Option<u64>) -> Self {
        let (shard_count, slots_max, coins_max) = match bytes_max {
            None => (SHARDS_MAX, usize::MAX, u64::MAX),
            Some(bytes_max) => within(bytes_max),
        };
        let shards = (0..shard_count).map(|_| Shard { slots: Slots::new(0), used: 0 }).collect();
        CoinTable { shards, slots_max, coin_count: 0, coins_max, allocated_bytes: 0 }
    }

    /// Returns the number of coins in the table.
    pub(super) fn coin_count(&self) -> u64 {
        self.coin_count
    }

    /// Returns how many coins the budget leaves place for.
    pub(super) fn coins_max(&self) -> u64 {
        self.coins_max
    }

    /// Returns the bytes that the slots occupy, used or not.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// Adds a coin; returns the one that it overwrites, if there is one (a BIP30 twin).
    ///
    /// # Errors
    /// [`Full`], and nothing has changed.
    #[inline]
    pub(super) fn insert(&mut self, outpoint: Fingerprint, coin: &Coin) -> Result<Option<Coin>, Full> {
        self.insert_entry(&pack(outpoint, coin)).map(|old| old.map(|entry| unpack(&entry)))
    }

    /// Adds an entry; returns the one that it overwrites.
    ///
    /// # Errors
    /// [`Full`], and nothing has changed.
    #[inline]
    pub(super) fn insert_entry(&mut self, entry: &Entry) -> Result<Option<Entry>, Full> {
        let (index, fraction) = self.place(entry[0]);
        let shard = &mut self.shards[index];
        if shard.used * 5 >= shard.slots.len() * 4 {
            self.make_room(index)?;
        }
        if self.coin_count >= self.coins_max {
            return Err(Full);
        }
        let old = self.shards[index].insert(entry, fraction);
        self.coin_count += u64::from(old.is_none());
        Ok(old)
    }

    /// Removes a coin and returns it, or `None` if it is not here.
    #[inline]
    pub(super) fn spend(&mut self, outpoint: Fingerprint) -> Option<Coin> {
        let (index, fraction) = self.place(outpoint.low);
        let shard_count = self.shards.len();
        let entry = self.shards[index].remove(outpoint, fraction, shard_count)?;
        self.coin_count -= 1;
        Some(unpack(&entry))
    }

    /// Returns whether a coin is here.
    pub(super) fn contains(&self, outpoint: Fingerprint) -> bool {
        let (index, fraction) = self.place(outpoint.low);
        self.shards[index].find(outpoint, fraction).is_some()
    }

    /// Asks the processor to fetch the place of an outpoint, so that the look-up that follows does not wait.
    #[inline]
    pub(super) fn prefetch(&self, outpoint: Fingerprint) {
        let (index, fraction) = self.place(outpoint.low);
        let Some(shard) = self.shards.get(index) else { return };
        let place: *const Entry = shard.slots.as_ptr().wrapping_add(home(fraction, shard.slots.len()));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch changes nothing that a program can see, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }

    /// Hands out all entries, sorted, shard by shard.
    ///
    /// # Errors
    /// Whatever `each` gives; the table is unchanged.
    pub(super) fn for_each_shard<E>(
        &self,
        mut each: impl FnMut(&mut Vec<Entry>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut sorted = Vec::new();
        for shard in &self.shards {
            sorted.clear();
            sorted.extend(shard.slots.iter().filter(|entry| !is_empty(entry)));
            sorted.sort_unstable();
            each(&mut sorted)?;
        }
        Ok(())
    }

    /// Removes the entries made before `tx_num_end` and hands them out, sorted, shard by shard.
    ///
    /// # Errors
    /// Whatever `each` gives; then the table has lost entries and is of no use any more.
    pub(super) fn remove_older<E>(
        &mut self,
        tx_num_end: i64,
        mut each: impl FnMut(&mut Vec<Entry>) -> Result<(), E>,
    ) -> Result<(), E> {
        let shard_count = self.shards.len();
        let (mut leaving, mut staying) = (Vec::new(), Vec::new());
        for shard in &mut self.shards {
            leaving.clear();
            staying.clear();
            for entry in shard.slots.iter().filter(|entry| !is_empty(entry)) {
                if tx_num(entry) < tx_num_end { leaving.push(*entry) } else { staying.push(*entry) }
            }
            if leaving.is_empty() {
                continue;
            }
            shard.refill(&staying, shard_count);
            self.coin_count -= leaving.len() as u64;
            leaving.sort_unstable();
            each(&mut leaving)?;
        }
        Ok(())
    }

    /// Returns the age, as a `tx_num`, that one `parts`-th of the coins does not exceed: of all coins if they are few,
    /// otherwise of about `samples` of them. Places are random, so whole shards are a fair sample.
    pub(super) fn oldest_part(&self, parts: u64, samples: usize) -> Option<i64> {
        let coins_per_shard = (self.coin_count as usize / self.shards.len().max(1)).max(1);
        let step = (self.shards.len() / (samples / coins_per_shard).max(1)).max(1);
        let mut ages: Vec<i64> = Vec::new();
        for shard in self.shards.iter().step_by(step) {
            ages.extend(shard.slots.iter().filter(|entry| !is_empty(entry)).map(tx_num));
        }
        if ages.is_empty() {
            // Few coins in many shards: the sample met none.
            ages.extend(
                self.shards.iter().flat_map(|shard| shard.slots.iter()).filter(|e| !is_empty(e)).map(tx_num),
            );
        }
        let at = (ages.len() / parts.max(1) as usize).min(ages.len().checked_sub(1)?);
        Some(*ages.select_nth_unstable(at).1)
    }

    /// Fills an empty table from sorted entries, each shard at once in an array of the right size.
    ///
    /// # Errors
    /// Whatever the entries give; [`Full`] as `Ok(Err(_))`.
    pub(super) fn fill_sorted<E>(
        &mut self,
        mut next: impl FnMut() -> Result<Option<Entry>, E>,
    ) -> Result<Result<(), Full>, E> {
        assert_eq!(self.coin_count, 0, "only an empty table is filled");
        let mut these: Vec<Entry> = Vec::new();
        let mut index_of_these = 0;
        loop {
            let entry = next()?;
            let index = entry.map(|entry| self.place(entry[0]).0);
            if index != Some(index_of_these) && !these.is_empty() {
                let slot_count = (these.len() * 5 / 4 + SLOTS_FIRST).min(self.slots_max);
                if these.len() >= slot_count || self.coin_count + these.len() as u64 > self.coins_max {
                    return Ok(Err(Full));
                }
                self.resize(index_of_these, slot_count);
                let shard_count = self.shards.len();
                self.shards[index_of_these].refill(&these, shard_count);
                self.coin_count += these.len() as u64;
                these.clear();
            }
            let (Some(entry), Some(index)) = (entry, index) else { return Ok(Ok(())) };
            index_of_these = index;
            these.push(entry);
        }
    }

    #[inline]
    fn place(&self, low: u64) -> (usize, u64) {
        place(low, self.shards.len())
    }

    /// Lets a shard grow that is four fifths full; one that may not grow any more fills further, up to its last slots.
    #[cold]
    fn make_room(&mut self, index: usize) -> Result<(), Full> {
        let shard = &self.shards[index];
        let slot_count = shard.slots.len();
        if slot_count >= self.slots_max {
            // Inserting costs more the fuller the shard; one slot must always stay free, or no search would end.
            let reserve = (slot_count / 32).max(1);
            return if shard.used + reserve < slot_count { Ok(()) } else { Err(Full) };
        }
        // A table of one shard would not fit its budget twice: it is made in full at once.
        let grown = if self.shards.len() == 1 && self.slots_max < usize::MAX {
            self.slots_max
        } else {
            (slot_count + (slot_count / 4).max(SLOTS_FIRST)).min(self.slots_max)
        };
        self.resize(index, grown);
        Ok(())
    }

    fn resize(&mut self, index: usize, slot_count: usize) {
        let shard_count = self.shards.len();
        let shard = &mut self.shards[index];
        self.allocated_bytes -= Slots::allocated_bytes(shard.slots.len());
        self.allocated_bytes += Slots::allocated_bytes(slot_count);
        let old = std::mem::replace(&mut shard.slots, Slots::new(slot_count));
        shard.used = 0;
        for entry in old.iter().filter(|entry| !is_empty(entry)) {
            shard.insert(entry, place(entry[0], shard_count).1);
        }
    }
}

/// Returns number of shards, most slots of each, and most coins of a table within `bytes_max` bytes.
fn within(bytes_max: u64) -> (u64, usize, u64) {
    let is_sharded = bytes_max >= SHARDED_BYTES_MIN;
    let shard_count = if is_sharded { (bytes_max / SHARD_BYTES).min(SHARDS_MAX) } else { 1 };
    // While one shard grows, its old array stands beside the new one.
    let arrays = if shard_count == 1 { 1 } else { shard_count + 1 };
    let mut slots_max = (bytes_max / arrays / ENTRY_BYTES) as usize;
    while slots_max > 0 && Slots::allocated_bytes(slots_max) > bytes_max / arrays {
        slots_max -= 1;
    }
    if slots_max < 2 {
        // Not even one coin and the free slot that ends a search.
        return (1, 0, 0);
    }
    let slots = shard_count * slots_max as u64;
    (shard_count, slots_max, (slots * FILL_64THS / 64).max(1))
}

/// Returns the shard of a fingerprint, and how far into the shard it belongs as a fraction of 2^64.
#[inline]
fn place(low: u64, shard_count: usize) -> (usize, u64) {
    let product = u128::from(low) * shard_count as u128;
    ((product >> 64) as usize, product as u64)
}

/// Returns the slot at which the search for a fingerprint starts.
#[inline]
fn home(fraction: u64, slot_count: usize) -> usize {
    ((u128::from(fraction) * slot_count as u128) >> 64) as usize
}

impl Shard {
    /// Puts the entry in its place; returns the entry with the same fingerprint that stood there.
    #[inline]
    fn insert(&mut self, entry: &Entry, fraction: u64) -> Option<Entry> {
        let outpoint = outpoint(entry);
        let mut at = home(fraction, self.slots.len());
        loop {
            let slot = &mut self.slots[at];
            if is_empty(slot) {
                *slot = *entry;
                self.used += 1;
                return None;
            }
            if holds(slot, outpoint) {
                return Some(std::mem::replace(slot, *entry));
            }
            at = self.after(at);
        }
    }

    #[inline]
    fn find(&self, outpoint: Fingerprint, fraction: u64) -> Option<usize> {
        if self.used == 0 {
            return None;
        }
        let mut at = home(fraction, self.slots.len());
        loop {
            let slot = &self.slots[at];
            if is_empty(slot) {
                return None;
            }
            if holds(slot, outpoint) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    #[inline]
    fn remove(&mut self, outpoint: Fingerprint, fraction: u64, shard_count: usize) -> Option<Entry> {
        let at = self.find(outpoint, fraction)?;
        let removed = self.slots[at];
        self.close_gap(at, shard_count);
        self.used -= 1;
        Some(removed)
    }

    /// Moves back what follows a freed slot, so that every entry stays reachable from its home.
    #[inline]
    fn close_gap(&mut self, mut gap: usize, shard_count: usize) {
        let slot_count = self.slots.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + slot_count - from };
        let mut at = gap;
        loop {
            at = self.after(at);
            let entry = self.slots[at];
            if is_empty(&entry) {
                break;
            }
            // The entry may move if its home does not lie behind the gap, going round.
            let home = home(place(entry[0], shard_count).1, slot_count);
            if distance(home, at) >= distance(gap, at) {
                self.slots[gap] = entry;
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
    }

    /// Holds these entries and no others.
    fn refill(&mut self, entries: &[Entry], shard_count: usize) {
        self.slots.fill(EMPTY);
        self.used = 0;
        for entry in entries {
            self.insert(entry, place(entry[0], shard_count).1);
        }
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn coin(seed: u64) -> Coin {
        let hash = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let mut script_hash = [0; 16];
        script_hash[4..12].copy_from_slice(&hash);
        Coin { tx_num: (seed % (1 << 40)) as i64, value_sat: seed % (1 << 51), script_hash }
    }

    fn scattered(seed: u64) -> Fingerprint {
        let low =
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Fingerprint { low, high: 1 }
    }

    #[test]
    fn a_million_coins_without_a_budget_stay_near_forty_bytes_each() {
        let mut table = CoinTable::new(None);
        for seed in 0..1_000_000_u64 {
            assert_eq!(table.insert(scattered(seed), &coin(seed)), Ok(None));
        }
        assert_eq!(table.coin_count(), 1_000_000);
        let bytes_per_coin = table.allocated_bytes() as f64 / 1e6;
        assert!((50.0..65.0).contains(&bytes_per_coin), "{bytes_per_coin}");
    }

    #[test]
    fn a_budget_gives_these_shards() {
        assert_eq!(within(0), (1, 0, 0));
        assert_eq!(within(79), (1, 0, 0));
        assert_eq!(within(80), (1, 2, 1));
        assert_eq!(within(400), (1, 10, 8));
        assert_eq!(within(64 << 10), (1, 1_638, 1_433));
        assert_eq!(within(1 << 20), (16, 1_542, 21_588));
        assert_eq!(within(100 << 20), (1_024, 2_557, 2_291_072));
        assert_eq!(within(8 << 30), (1_024, 209_510, 187_720_960));
    }

    #[test]
    fn the_budget_holds_at_every_insert_and_is_used_well() {
        for bytes_max in [80, 4_000, 64 << 10, 300_000, 1 << 20, 20 << 20, 90 << 20] {
            let mut table = CoinTable::new(Some(bytes_max));
            let mut seed = 0;
            while table.insert(scattered(seed), &coin(seed)).is_ok() {
                if bytes_max < 100_000 || seed % 1_009 == 0 {
                    // The largest shard may stand twice while it grows.
                    let shards = table.shards.iter().map(|shard| Slots::allocated_bytes(shard.slots.len()));
                    let twice = if table.shards.len() == 1 { 0 } else { shards.max().unwrap() };
                    assert!(table.allocated_bytes() + twice <= bytes_max, "{bytes_max}");
                }
                seed += 1;
            }
            assert_eq!(table.insert(scattered(seed), &coin(seed)), Err(Full));
            assert_eq!(table.coin_count(), seed);
            assert!(table.contains(scattered(0)) && !table.contains(scattered(seed)));
            if bytes_max >= 4_000 {
                let used = (seed * ENTRY_BYTES) as f64 / bytes_max as f64;
                assert!(used > 0.75, "{used} of {bytes_max}");
            }
        }
    }

    #[test]
    fn the_oldest_part_leaves_sorted() {
        for (bytes_max, parts) in [(Some(64 << 10), 10), (Some(30 << 20), 4), (None, 2)] {
            let mut table = CoinTable::new(bytes_max);
            let count = table.coins_max().min(400_000);
            for seed in 0..count * 9 / 10 {
                table.insert(scattered(seed), &coin(seed)).unwrap();
            }
            let before = table.coin_count();
            let age = table.oldest_part(parts, 32 << 10).unwrap();
            let mut left: Vec<Entry> = Vec::new();
            table
                .remove_older(age + 1, |entries| {
                    left.extend(entries.iter());
                    Ok::<_, ()>(())
                })
                .unwrap();
            assert!(left.is_sorted() && left.iter().all(|entry| tx_num(entry) <= age));
            assert_eq!(table.coin_count() + left.len() as u64, before);
            let share = left.len() as f64 * parts as f64 / before as f64;
            assert!((0.95..1.05).contains(&share), "{share}");
            for seed in 0..before {
                let is_here = table.spend(scattered(seed)).is_some();
                assert_eq!(is_here, coin(seed).tx_num > age, "{seed}");
            }
        }
    }

    #[test]
    fn a_table_is_filled_from_its_own_sorted_entries() {
        let mut table = CoinTable::new(Some(3 << 20));
        for seed in 0..50_000 {
            table.insert(scattered(seed), &coin(seed)).unwrap();
        }
        let mut sorted = Vec::new();
        table.for_each_shard(|entries| Ok::<_, ()>(sorted.extend(entries.iter().copied()))).unwrap();
        assert!(sorted.is_sorted());
        for bytes_max in [Some(3 << 20), Some(4 << 20), None] {
            let mut entries = sorted.iter().copied();
            let mut copy = CoinTable::new(bytes_max);
            assert_eq!(copy.fill_sorted(|| Ok::<_, ()>(entries.next())), Ok(Ok(())));
            assert_eq!(copy.coin_count(), 50_000);
            assert!((0..50_000).all(|seed| copy.spend(scattered(seed)) == Some(coin(seed))));
        }
        let mut entries = sorted.iter().copied();
        let mut small = CoinTable::new(Some(1 << 20));
        assert_eq!(small.fill_sorted(|| Ok::<_, ()>(entries.next())), Ok(Err(Full)));
    }

    proptest! {
        /// The table against a plain map, with fingerprints that crowd into few homes.
        #[test]
        fn agrees_with_a_plain_map(
            bytes_max in prop_oneof![Just(None), (80..6_000_u64).prop_map(Some)],
            steps in prop::collection::vec((0..4_u8, 0..40_u64, any::<u64>()), 1..2_000),
        ) {
            let mut table = CoinTable::new(bytes_max);
            let mut model = BTreeMap::new();
            for (step, crowd, seed) in steps {
                let outpoint = Fingerprint { low: (crowd % 3) << 62 | u64::MAX >> 14 & !0xff | crowd, high: 7 };
                if step == 0 {
                    prop_assert_eq!(table.spend(outpoint), model.remove(&outpoint));
                } else if let Ok(old) = table.insert(outpoint, &coin(seed)) {
                    prop_assert_eq!(old, model.insert(outpoint, coin(seed)));
                } else {
                    let age = table.oldest_part(3, 10).unwrap();
                    let mut left = 0;
                    table.remove_older(age + 1, |entries| { left += entries.len(); Ok::<_, ()>(()) }).unwrap();
                    prop_assert!(left > 0);
                    model.retain(|_, coin| coin.tx_num > age);
                }
                prop_assert_eq!(table.coin_count(), model.len() as u64);
            }
            for (outpoint, coin) in model {
                prop_assert_eq!(table.spend(outpoint), Some(coin));
            }
            prop_assert_eq!(table.coin_count(), 0);
        }
    }
}

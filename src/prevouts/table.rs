//! Cached entries in memory, by their fingerprints: 40 bytes for a coin, in shards that grow one at a time and never past the budget.
//!
//! A shard is an array with linear probing, its capacity any number: it grows by a quarter, so that the whole table
//! never needs more than one shard twice, and memory is touched only as the table fills. How many shards there are and
//! how large they may become follows from the budget; without one they grow as long as there is memory. The place of an
//! entry grows with its fingerprint: a shard is copied to its larger array almost front to back, and the shards one
//! after the other are nearly sorted. Deleting shifts the following entries back; there are no tombstones. Nothing
//! here knows files.

use std::convert::Infallible;

use super::entry::{Words, empty, holds, is_empty, outpoint, pack, tx_num, unpack};
use super::slots::{Region, Slots};
use super::{Coin, Fingerprint};

/// Most shards: each growth copies about a 250th of the table, and most of a table of gigabytes lies in huge pages.
const SHARDS_MAX: u64 = 256;
/// A shard of a small budget; fewer bytes would cost more in unevenly filled shards than they save in copies.
const SHARD_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4096;
/// From here on a table has several shards; a smaller one is made in full at once.
const SHARDED_BYTES_MIN: u64 = 4 << 20;
/// Slots of a new shard.
const SLOTS_FIRST: usize = 16;
/// Share of all slots that a table within a budget fills, in 64ths: 0.875. At 0.8 an insert probes 13 slots on
/// average, at 0.875 32, which lie side by side; a look-up that finds its coin 4.5.
const FILL_64THS: u64 = 56;

/// An entry that the budget leaves no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Coins by the fingerprints of their outpoints.
pub type CoinTable = Table<5>;

/// Entries of `N` words by their fingerprints.
#[derive(Debug)]
pub struct Table<const N: usize> {
    shards: Box<[Shard<N>]>,
    /// Most slots of a shard.
    slots_max: usize,
    coin_count: u64,
    coins_max: u64,
    allocated_bytes: u64,
    /// Entries of a shard that grows in its place.
    moving: Vec<Words<N>>,
    /// Where the shards lie within a budget; dropped after them.
    region: Option<Region>,
}

#[derive(Debug)]
struct Shard<const N: usize> {
    slots: Slots<N>,
    used: usize,
}

impl<const N: usize> Table<N> {
    /// Makes an empty table that never allocates more than `bytes_max`, not even while a shard grows; without a number
    /// it takes what it needs.
    pub fn new(bytes_max: Option<u64>) -> Self {
        let (shard_count, slots_max, coins_max) = match bytes_max {
            None => (SHARDS_MAX, usize::MAX, u64::MAX),
            Some(bytes_max) => within(bytes_max, size_of::<Words<N>>() as u64),
        };
        let shards = (0..shard_count).map(|_| Shard { slots: Slots::new(0), used: 0 }).collect();
        let is_bounded = bytes_max.is_some() && slots_max > 0;
        let region = is_bounded.then(|| Region::new::<N>(shard_count as usize, slots_max));
        Table { shards, slots_max, coin_count: 0, coins_max, allocated_bytes: 0, moving: Vec::new(), region }
    }

    /// Returns the number of coins in the table.
    pub fn coin_count(&self) -> u64 {
        self.coin_count
    }

    /// Returns how many coins the budget leaves place for.
    pub fn coins_max(&self) -> u64 {
        self.coins_max
    }

    /// Returns the bytes that the slots occupy, used or not.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// Adds an entry; returns the one that it overwrites.
    ///
    /// # Errors
    /// [`Full`], and nothing has changed.
    #[inline]
    pub(super) fn insert_entry(&mut self, entry: &Words<N>) -> Result<Option<Words<N>>, Full> {
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

    /// Removes an entry and returns it, or `None` if it is not here.
    #[inline]
    pub(super) fn remove(&mut self, outpoint: Fingerprint) -> Option<Words<N>> {
        let (index, fraction) = self.place(outpoint.low);
        let shard_count = self.shards.len();
        let entry = self.shards[index].remove(outpoint, fraction, shard_count)?;
        self.coin_count -= 1;
        Some(entry)
    }

    /// Returns an entry, or `None` if it is not here.
    #[inline]
    pub(super) fn get(&self, outpoint: Fingerprint) -> Option<&Words<N>> {
        let (index, fraction) = self.place(outpoint.low);
        let shard = &self.shards[index];
        Some(&shard.slots[shard.find(outpoint, fraction)?])
    }

    /// Asks the processor to fetch the place of an outpoint, so that the look-up that follows does not wait.
    #[inline]
    pub(super) fn prefetch(&self, outpoint: Fingerprint) {
        let (index, fraction) = self.place(outpoint.low);
        let Some(shard) = self.shards.get(index) else { return };
        let place: *const Words<N> = shard.slots.as_ptr().wrapping_add(home(fraction, shard.slots.len()));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch changes nothing that a program can see, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // The entry, or another one before it, ends in the next line of 64 bytes more often than not.
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
            _mm_prefetch::<_MM_HINT_T0>(place.cast::<i8>().wrapping_add(64));
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
        mut each: impl FnMut(&mut Vec<Words<N>>) -> Result<(), E>,
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
        each: impl FnMut(&mut Vec<Words<N>>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.remove_where(|tx_num| tx_num < tx_num_end, each)
    }

    /// Removes the entries made from `tx_num_first` on.
    pub(super) fn remove_newer(&mut self, tx_num_first: i64) {
        let Ok(()) = self.remove_where(|tx_num| tx_num >= tx_num_first, |_| Ok::<_, Infallible>(()));
    }

    fn remove_where<E>(
        &mut self,
        leaves: impl Fn(i64) -> bool,
        mut each: impl FnMut(&mut Vec<Words<N>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let shard_count = self.shards.len();
        let (mut leaving, mut staying) = (Vec::new(), Vec::new());
        for shard in &mut self.shards {
            leaving.clear();
            staying.clear();
            for entry in shard.slots.iter().filter(|entry| !is_empty(entry)) {
                if leaves(tx_num(entry)) { leaving.push(*entry) } else { staying.push(*entry) }
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
        let count = (ages.len() / parts.max(1) as usize).max(1);
        let at = (count - 1).min(ages.len().checked_sub(1)?);
        Some(*ages.select_nth_unstable(at).1)
    }

    /// Fills an empty table from sorted entries, each shard at once in an array of the right size.
    ///
    /// # Errors
    /// Whatever the entries give; [`Full`] as `Ok(Err(_))`.
    pub(super) fn fill_sorted<E>(
        &mut self,
        mut next: impl FnMut() -> Result<Option<Words<N>>, E>,
    ) -> Result<Result<(), Full>, E> {
        assert_eq!(self.coin_count, 0, "only an empty table is filled");
        let mut these: Vec<Words<N>> = Vec::new();
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
        let Some(region) = &self.region else {
            self.allocated_bytes -= Slots::<N>::allocated_bytes(shard.slots.len());
            self.allocated_bytes += Slots::<N>::allocated_bytes(slot_count);
            let old = std::mem::replace(&mut shard.slots, Slots::new(slot_count));
            shard.insert_all(old.iter().filter(|entry| !is_empty(entry)), shard_count);
            return;
        };
        // The array grows in its place: its entries step aside meanwhile.
        self.moving.clear();
        self.moving.reserve_exact(shard.used);
        self.moving.extend(shard.slots.iter().filter(|entry| !is_empty(entry)));
        // Touched pages count, but for the last one of a table that has no more.
        let bytes = |slot_count: usize| match shard_count {
            1 => (slot_count * size_of::<Words<N>>()) as u64,
            _ => Region::stride_bytes::<N>(slot_count) as u64,
        };
        self.allocated_bytes = self.allocated_bytes - bytes(shard.slots.len()) + bytes(slot_count);
        let used_count = shard.slots.len();
        shard.slots = Slots::new(0);
        // SAFETY: the shard's slots were just given up, and the table drops its shards before its region.
        shard.slots = unsafe { region.slots(index, slot_count, used_count) };
        shard.insert_all(self.moving.iter(), shard_count);
    }
}

impl CoinTable {
    /// Adds a coin; returns the one that it overwrites, if there is one (a BIP30 twin).
    ///
    /// # Errors
    /// [`Full`], and nothing has changed.
    #[inline]
    pub fn insert(&mut self, outpoint: Fingerprint, coin: &Coin) -> Result<Option<Coin>, Full> {
        self.insert_entry(&pack(outpoint, coin)).map(|old| old.map(|entry| unpack(&entry)))
    }

    /// Removes a coin and returns it, or `None` if it is not here.
    #[inline]
    pub fn spend(&mut self, outpoint: Fingerprint) -> Option<Coin> {
        self.remove(outpoint).map(|entry| unpack(&entry))
    }

    /// Returns a coin, which stays.
    #[inline]
    pub(super) fn coin(&self, outpoint: Fingerprint) -> Option<Coin> {
        self.get(outpoint).map(unpack)
    }

    /// Returns whether a coin is here.
    #[cfg(test)]
    fn contains(&self, outpoint: Fingerprint) -> bool {
        self.get(outpoint).is_some()
    }
}

/// Returns number of shards, most slots of each, and most entries of a table within `bytes_max` bytes.
fn within(bytes_max: u64, entry_bytes: u64) -> (u64, usize, u64) {
    let is_sharded = bytes_max >= SHARDED_BYTES_MIN;
    let shard_count = if is_sharded { (bytes_max / SHARD_BYTES).min(SHARDS_MAX) } else { 1 };
    // While one shard grows, its entries stand beside it. Arrays take whole pages, but for the only one.
    let slots_max = if shard_count == 1 {
        (bytes_max / entry_bytes) as usize
    } else {
        (bytes_max / (shard_count + 1) / PAGE_BYTES * PAGE_BYTES / entry_bytes) as usize
    };
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

impl<const N: usize> Shard<N> {
    /// Puts the entry in its place; returns the entry with the same fingerprint that stood there.
    #[inline]
    fn insert(&mut self, entry: &Words<N>, fraction: u64) -> Option<Words<N>> {
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
    fn remove(&mut self, outpoint: Fingerprint, fraction: u64, shard_count: usize) -> Option<Words<N>> {
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
        self.slots[gap] = empty();
    }

    /// Holds these entries and no others.
    fn refill(&mut self, entries: &[Words<N>], shard_count: usize) {
        self.slots.fill(empty());
        self.insert_all(entries.iter(), shard_count);
    }

    /// Puts entries into slots that are all empty.
    fn insert_all<'a>(&mut self, entries: impl Iterator<Item = &'a Words<N>>, shard_count: usize) {
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
mod tests;

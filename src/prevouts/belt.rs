//! The conveyor belt: entries come in at the front, and when the budget is full the oldest bucket falls off at the end.
//!
//! All buckets stand in one table, so that a look-up probes one place however many there are. An entry's bucket follows
//! from its age, which is its `tx_num`: the oldest of `N` buckets is the oldest `N`-th of the entries. They leave in one
//! sweep over the table, which finds them nearly sorted. The UTXO cache and the TxNumCache are such belts.

use super::entry::Words;
use super::table::{Full, Table};

/// How many entries are looked at to find the age of a bucket: enough to know its size within about 2 %.
const SAMPLES: usize = 32 << 10;

/// A table within a budget whose oldest entries make room for new ones.
#[derive(Debug)]
pub(super) struct Belt<const N: usize> {
    pub(super) table: Table<N>,
    buckets: u64,
}

impl<const N: usize> Belt<N> {
    /// Makes an empty belt of `buckets` buckets that together take at most `bytes_max` bytes, or what they need.
    pub(super) fn new(bytes_max: Option<u64>, buckets: u64) -> Self {
        Belt { table: Table::new(bytes_max), buckets: buckets.max(1) }
    }

    /// Returns about how many entries a bucket holds when the belt is full of what it has now.
    pub(super) fn bucket_entries(&self) -> u64 {
        self.table.coin_count() / self.buckets
    }

    /// Adds an entry where there is place for it; returns the one that it overwrites.
    ///
    /// # Errors
    /// [`Full`]: drop the oldest bucket.
    #[inline]
    pub(super) fn insert(&mut self, entry: &Words<N>) -> Result<Option<Words<N>>, Full> {
        self.table.insert_entry(entry)
    }

    /// Removes the oldest bucket and hands out its entries, sorted, part by part; returns how many they were, at least
    /// one unless the belt is empty.
    ///
    /// # Errors
    /// Whatever `each` gives; then the belt has lost entries and is of no use any more.
    pub(super) fn drop_oldest_bucket<E>(
        &mut self,
        each: impl FnMut(&mut Vec<Words<N>>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let Some(age) = self.table.oldest_part(self.buckets, SAMPLES) else { return Ok(0) };
        self.drop_older(age + 1, each)
    }

    /// Removes the entries made before `tx_num_end` and hands them out, sorted, part by part; returns how many they were.
    ///
    /// # Errors
    /// As [`Belt::drop_oldest_bucket`].
    pub(super) fn drop_older<E>(
        &mut self,
        tx_num_end: i64,
        each: impl FnMut(&mut Vec<Words<N>>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let before = self.table.coin_count();
        self.table.remove_older(tx_num_end, each)?;
        Ok(before - self.table.coin_count())
    }
}

//! The conveyor belt: coins enter the cache at the front, and when it is full the oldest bucket falls off into the runs.
//!
//! All buckets stand in one table, so that a look-up probes one place however many there are. A coin's bucket follows
//! from its age, which is its `tx_num`: the oldest of `N` buckets is the oldest `N`-th of the coins. Its entries leave
//! in one sweep over the table, which finds them nearly sorted.

use super::runs::Runs;
use super::sealed::CoinFileError;
use super::table::CoinTable;

/// How many coins are looked at to find the age of a bucket: enough to know its size within about 2 %.
const SAMPLES: usize = 32 << 10;

/// Moves the oldest of `buckets` buckets from the table to the runs; returns how many coins that were, at least one
/// unless the table is empty.
///
/// # Errors
/// [`CoinFileError`]; then the set is of no use any more.
pub(super) fn drop_oldest_bucket(
    table: &mut CoinTable,
    runs: &mut Runs,
    buckets: u64,
) -> Result<u64, CoinFileError> {
    let Some(age) = table.oldest_part(buckets, SAMPLES) else { return Ok(0) };
    let before = table.coin_count();
    if runs.is_worth_a_run(before / buckets.max(1)) {
        let mut run = runs.begin()?;
        table.remove_older(age + 1, |entries| entries.iter().try_for_each(|entry| run.push(entry)))?;
        runs.add(run)?;
    } else {
        table.remove_older(age + 1, |entries| entries.iter().try_for_each(|entry| runs.push(*entry)))?;
    }
    Ok(before - table.coin_count())
}

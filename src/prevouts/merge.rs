//! One sequential pass over all coin runs: waiting spends find their coins, and the runs become one.
//!
//! In: the runs' entries and the waiting spends, both by fingerprint. Out: the coins found, by position of their spend;
//! one run without what was spent; which outputs were overwritten. What happened to one outpoint is replayed in chain
//! order, so that twins and spends between them come out as if every coin had been in memory.

use super::Fingerprint;
use super::entry::{Entry, outpoint, tx_num, unpack};
use super::runs::Runs;
use super::sealed::CoinFileError;
use super::sort::{Merged, Sorter};
use super::waiting::{coin_record, spender};

/// An output that a later transaction with the same txid replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    pub(super) outpoint: Fingerprint,
    pub(super) tx_num: i64,
    pub(super) by_tx_num: i64,
}

/// Merges, and puts the found coins into `coins`. A spend that finds none is simply not in there.
///
/// # Errors
/// [`CoinFileError`]; then the set is of no use any more.
pub(super) fn merge(
    runs: &mut Runs,
    mut spends: Option<Merged<3>>,
    coins: &mut Sorter<5>,
) -> Result<Vec<Replaced>, CoinFileError> {
    let mut replaced = Vec::new();
    let mut entries = runs.open_all()?;
    let mut joined = runs.begin()?;
    let mut events = Events::default();
    while let Some(entry) = entries.next()? {
        let outpoint = outpoint(&entry);
        if let Some(spends) = &mut spends {
            while spent(spends).is_some_and(|spent| spent < outpoint) {
                spends.next()?;
            }
        }
        let is_spent = spends.as_ref().is_some_and(|spends| spent(spends) == Some(outpoint));
        let has_twin = entries.peek().is_some_and(|next| self::outpoint(next) == outpoint);
        if !is_spent && !has_twin {
            joined.push(&entry)?;
            continue;
        }
        events.clear();
        events.coins.push(entry);
        while entries.peek().is_some_and(|next| self::outpoint(next) == outpoint) {
            events.coins.extend(entries.next()?);
        }
        if let Some(spends) = &mut spends {
            while spent(spends) == Some(outpoint) {
                events.spends.extend(spends.next()?.map(|[_, _, position]| position));
            }
        }
        if let Some(left) = events.replay(coins, &mut replaced)? {
            joined.push(&left)?;
        }
    }
    runs.count_read(entries.bytes_read());
    let joined = runs.end(joined)?;
    runs.clear();
    runs.adopt(joined);
    Ok(replaced)
}

fn spent(spends: &Merged<3>) -> Option<Fingerprint> {
    spends.peek().map(|[low, high, _]| Fingerprint { low: *low, high: (high >> 32) as u32 })
}

/// What happened to one outpoint.
#[derive(Debug, Default)]
struct Events {
    coins: Vec<Entry>,
    /// Positions, ascending.
    spends: Vec<u64>,
}

impl Events {
    fn clear(&mut self) {
        self.coins.clear();
        self.spends.clear();
    }

    /// Goes through the events in chain order; returns the coin that is left. Inputs are spent before outputs are
    /// made, so a transaction never spends its own.
    fn replay(
        &mut self,
        coins: &mut Sorter<5>,
        replaced: &mut Vec<Replaced>,
    ) -> Result<Option<Entry>, CoinFileError> {
        self.coins.sort_unstable_by_key(tx_num);
        let mut live: Option<Entry> = None;
        let mut make = |live: &mut Option<Entry>, coin: Entry| {
            if let Some(old) = live.replace(coin) {
                let (old, by_tx_num) = (tx_num(&old), tx_num(&coin));
                replaced.push(Replaced { outpoint: outpoint(&coin), tx_num: old, by_tx_num });
            }
        };
        let mut made = self.coins.iter().copied().peekable();
        for position in &self.spends {
            while let Some(coin) = made.next_if(|coin| tx_num(coin) < spender(*position)) {
                make(&mut live, coin);
            }
            if let Some(coin) = live.take() {
                coins.push(coin_record(*position, &unpack(&coin)))?;
            }
        }
        for coin in made {
            make(&mut live, coin);
        }
        Ok(live)
    }
}

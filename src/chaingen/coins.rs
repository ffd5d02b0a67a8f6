//! The coins that the planner may spend, by the height that made them.
//!
//! In: the outputs of each finished block. Out: single coins, picked by age. Called by the planner; read at the end for
//! the UTXO set's count, total and hash. A coin takes 56 bytes, so a chain of a million transactions needs some 20 MB.
//! It must never give out a coin twice, nor a coinbase before its maturity.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use bitcoin::Txid;

use super::random::Random;
use super::scripts::Lock;

/// An unspent output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coin {
    pub(super) txid: Txid,
    pub(super) vout: u32,
    pub(super) value_sat: u64,
    pub(super) lock: Lock,
    pub(super) is_coinbase: bool,
}

/// The number of blocks after which a coinbase may be spent.
pub(super) const COINBASE_MATURITY: u32 = 100;

/// Every unspent output of the chain so far.
#[derive(Debug, Default)]
pub(super) struct Coins {
    /// The spendable coins of each height. `[height]`
    by_height: Vec<Vec<Coin>>,
    /// The heights that have spendable coins, ascending.
    live_heights: Vec<u32>,
    spendable_count: usize,
    /// Coinbases too young to be spent, oldest first.
    immature: VecDeque<(u32, Coin)>,
}

impl Coins {
    /// Returns the number of coins that may be spent now.
    pub(super) fn spendable_count(&self) -> usize {
        self.spendable_count
    }

    /// Adds an output that a transaction at `height` made.
    pub(super) fn add(&mut self, height: u32, coin: Coin) {
        if coin.is_coinbase {
            self.immature.push_back((height, coin));
        } else {
            self.add_spendable(height, coin);
        }
    }

    /// Makes those coinbases spendable that a block at `height` may spend.
    pub(super) fn mature(&mut self, height: u32) {
        while let Some((made_at, _)) = self.immature.front()
            && made_at + COINBASE_MATURITY <= height
        {
            let (made_at, coin) = self.immature.pop_front().expect("the front was just seen");
            self.add_spendable(made_at, coin);
        }
    }

    fn add_spendable(&mut self, height: u32, coin: Coin) {
        if self.by_height.len() <= height as usize {
            self.by_height.resize_with(height as usize + 1, Vec::new);
        }
        let bucket = &mut self.by_height[height as usize];
        if bucket.is_empty() {
            let place = self.live_heights.partition_point(|live| *live < height);
            self.live_heights.insert(place, height);
        }
        bucket.push(coin);
        self.spendable_count += 1;
    }

    /// Says whether a coin made at `height` may be spent.
    pub(super) fn has_coin_at(&self, height: u32) -> bool {
        self.by_height.get(height as usize).is_some_and(|bucket| !bucket.is_empty())
    }

    /// Returns the height inside `heights` that has coins and is nearest to `target`.
    pub(super) fn nearest_height(&self, target: u32, heights: RangeInclusive<u32>) -> Option<u32> {
        let place = self.live_heights.partition_point(|live| *live < target);
        let above = self.live_heights.get(place).copied();
        let below = place.checked_sub(1).map(|place| self.live_heights[place]);
        [above, below]
            .into_iter()
            .flatten()
            .filter(|live| heights.contains(live))
            .min_by_key(|live| live.abs_diff(target))
    }

    /// Returns the oldest height that has coins.
    pub(super) fn oldest_height(&self) -> Option<u32> {
        self.live_heights.first().copied()
    }

    /// Takes a random coin of a height, which has one.
    pub(super) fn take(&mut self, height: u32, random: &mut Random) -> Coin {
        let bucket = &mut self.by_height[height as usize];
        let coin = bucket.swap_remove(random.index(bucket.len()));
        if bucket.is_empty() {
            *bucket = Vec::new();
            let place = self.live_heights.binary_search(&height).expect("a height with coins is listed");
            self.live_heights.remove(place);
        } else if bucket.len() * 2 < bucket.capacity() {
            // Most coins of a block go soon; without this their room would stay for ever.
            bucket.shrink_to_fit();
        }
        self.spendable_count -= 1;
        coin
    }

    /// Visits every unspent output with its height, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Coin)> {
        let spendable = (0u32..)
            .zip(&self.by_height)
            .flat_map(|(height, bucket)| bucket.iter().map(move |coin| (height, coin)));
        spendable.chain(self.immature.iter().map(|(height, coin)| (*height, coin)))
    }
}

#[cfg(test)]
mod tests {
    use bitcoin::hashes::Hash;

    use super::super::scripts::BUSY_LOCK;
    use super::*;

    fn coin(number: u8, is_coinbase: bool) -> Coin {
        let txid = Txid::from_byte_array([number; 32]);
        Coin { txid, vout: 0, value_sat: 1, lock: BUSY_LOCK, is_coinbase }
    }

    #[test]
    fn a_coin_takes_56_bytes() {
        assert_eq!(size_of::<Coin>(), 56);
    }

    #[test]
    fn a_coinbase_waits_for_its_maturity() {
        let mut coins = Coins::default();
        coins.add(1, coin(1, true));
        coins.mature(100);
        assert_eq!(coins.spendable_count(), 0);
        assert_eq!(coins.iter().count(), 1);
        coins.mature(101);
        assert_eq!(coins.spendable_count(), 1);
        assert_eq!(coins.iter().map(|(height, _)| height).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn each_coin_is_given_out_once() {
        let (mut coins, mut random) = (Coins::default(), Random::from_seed(3));
        for number in 0..10 {
            coins.add(5, coin(number, false));
        }
        let mut taken: Vec<Txid> = (0..10).map(|_| coins.take(5, &mut random).txid).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 10);
        assert_eq!((coins.spendable_count(), coins.oldest_height()), (0, None));
    }

    #[test]
    fn the_nearest_height_keeps_to_its_bounds() {
        let mut coins = Coins::default();
        for height in [3, 10, 20] {
            coins.add(height, coin(height as u8, false));
        }
        assert_eq!(coins.nearest_height(11, 0..=30), Some(10));
        assert_eq!(coins.nearest_height(16, 0..=30), Some(20));
        assert_eq!(coins.nearest_height(16, 0..=15), Some(10));
        assert_eq!(coins.nearest_height(30, 21..=30), None);
        assert_eq!(coins.nearest_height(0, 0..=30), Some(3));
        assert_eq!(coins.oldest_height(), Some(3));
        assert!(coins.has_coin_at(20) && !coins.has_coin_at(19) && !coins.has_coin_at(99));
    }
}

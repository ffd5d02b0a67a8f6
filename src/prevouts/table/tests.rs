//! The table against a plain map, its growth and its memory.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::entry::{ENTRY_BYTES, Entry};
use super::*;

fn coin(seed: u64) -> Coin {
    let hash = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut script_hash = [0; 16];
    script_hash[4..12].copy_from_slice(&hash);
    Coin { tx_num: (seed % (1 << 40)) as i64, value_sat: seed % (1 << 51), script_hash }
}

fn scattered(seed: u64) -> Fingerprint {
    let low = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
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
    assert_eq!(within(0, ENTRY_BYTES), (1, 0, 0));
    assert_eq!(within(79, ENTRY_BYTES), (1, 0, 0));
    assert_eq!(within(80, ENTRY_BYTES), (1, 2, 1));
    assert_eq!(within(400, ENTRY_BYTES), (1, 10, 8));
    assert_eq!(within(64 << 10, ENTRY_BYTES), (1, 1_638, 1_433));
    assert_eq!(within(1 << 20, ENTRY_BYTES), (1, 26_214, 22_937));
    assert_eq!(within(100 << 20, ENTRY_BYTES), (256, 10_137, 2_270_688));
    assert_eq!(within(8 << 30, ENTRY_BYTES), (256, 835_584, 187_170_816));
}

#[test]
fn the_budget_holds_at_every_insert_and_is_used_well() {
    for bytes_max in [80, 4_000, 64 << 10, 300_000, 1 << 20, 20 << 20, 90 << 20] {
        let mut table = CoinTable::new(Some(bytes_max));
        let mut seed = 0;
        while table.insert(scattered(seed), &coin(seed)).is_ok() {
            if bytes_max < 100_000 || seed % 1_009 == 0 {
                // The entries of a shard that grows stand aside.
                let aside = table.moving.capacity() as u64 * ENTRY_BYTES;
                assert!(table.allocated_bytes() + aside <= bytes_max, "{bytes_max}");
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
    let collect = |entries: &mut Vec<Entry>| {
        sorted.extend(entries.iter().copied());
        Ok::<_, ()>(())
    };
    table.for_each_shard(collect).unwrap();
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

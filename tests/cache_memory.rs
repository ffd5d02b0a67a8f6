//! What the caches say that they take is what the process has, at every stage of filling and never above the budget.
//!
//! A test program of its own with one test: resident memory is the whole process's.

use satgres::chain::hash::sha256d;
use satgres::prevouts::{Coin, CoinTable, Fingerprint, FingerprintKey, TxNumCache};

const BUDGET_BYTES: u64 = 48 << 20;

/// Resident memory of this process, bytes (proc(5), statm).
fn rss_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("its second field");
    pages * 4096.0
}

/// Fills a cache step by step; compares what it says with what the process has grown by.
fn check<C>(
    name: &str,
    make: impl FnOnce() -> C,
    mut insert: impl FnMut(&mut C, u64),
    bytes: impl Fn(&C) -> u64,
) {
    let before = rss_bytes();
    let mut cache = make();
    let untouched = rss_bytes() - before;
    assert!(untouched < 1e6, "{name}: {untouched} bytes are touched before anything is in it");
    let mut n = 0;
    // Up to well beyond what the budget holds: entries fall off, or are refused.
    for step in 1..=12_u64 {
        while n < step * BUDGET_BYTES / 40 / 8 {
            insert(&mut cache, n);
            n += 1;
        }
        let (says, has) = (bytes(&cache), rss_bytes() - before);
        assert!(says <= BUDGET_BYTES, "{name}: {says} bytes with {n} entries");
        assert!(
            has <= 1.01 * BUDGET_BYTES as f64,
            "{name}: the process grew by {has} bytes with {n} entries"
        );
        let ratio = has / says as f64;
        assert!(
            (0.95..1.05).contains(&ratio),
            "{name}: says {says}, the process grew by {has}, with {n} entries"
        );
    }
    drop(cache);
    let left = rss_bytes() - before;
    assert!(left < 4e6, "{name}: {left} bytes stay when it is gone");
}

#[test]
fn caches_take_what_they_say_and_never_more_than_their_budget() {
    let key = FingerprintKey::random().unwrap();
    check(
        "UTXO cache",
        || CoinTable::new(Some(BUDGET_BYTES)),
        |table, n| {
            let place = Fingerprint { low: (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), high: 1 };
            let coin = Coin { tx_num: n as i64, value_sat: n, script_hash: [7; 16] };
            // A full table refuses: nothing falls off by itself here.
            let _ = table.insert(place, &coin);
        },
        CoinTable::allocated_bytes,
    );
    check(
        "TxNumCache",
        || TxNumCache::new(10, BUDGET_BYTES / 400, key),
        |cache, n| cache.insert(&sha256d(&n.to_le_bytes()), n as i64),
        TxNumCache::allocated_bytes,
    );
}

//! A coin as the table, the runs and the checkpoint hold it: 40 bytes with the fingerprint of its outpoint.
//!
//! Entries order by fingerprint, the order of every file and, nearly, of the table. Pure; no I/O.

use super::{Coin, Fingerprint};

/// Fingerprint (96 bits), `tx_num` (40), value (56), script hash (128).
pub(super) type Entry = [u64; 5];

/// A slot without a coin: no fingerprint is all zero.
pub(super) const EMPTY: Entry = [0; 5];

/// Bytes of an entry, in memory and in files.
pub(super) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

#[inline]
pub(super) fn is_empty(entry: &Entry) -> bool {
    entry[0] == 0 && entry[1] >> 32 == 0
}

#[inline]
pub(super) fn holds(entry: &Entry, outpoint: Fingerprint) -> bool {
    entry[0] == outpoint.low && entry[1] >> 32 == u64::from(outpoint.high)
}

/// Returns the fingerprint of an entry.
#[inline]
pub(super) fn outpoint(entry: &Entry) -> Fingerprint {
    Fingerprint { low: entry[0], high: (entry[1] >> 32) as u32 }
}

/// Returns the transaction that made the coin: its age.
#[inline]
pub(super) fn tx_num(entry: &Entry) -> i64 {
    ((entry[2] >> 56) << 32 | (entry[1] & 0xffff_ffff)) as i64
}

/// Packs a coin.
///
/// # Panics
/// If it does not fit its 40 bits of `tx_num` (heights below 2^24) and 56 bits of value: the parser has checked both.
#[inline]
pub(super) fn pack(outpoint: Fingerprint, coin: &Coin) -> Entry {
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

/// Returns the coin of an entry.
#[inline]
pub(super) fn unpack(entry: &Entry) -> Coin {
    let mut script_hash = [0; 16];
    script_hash[..8].copy_from_slice(&entry[3].to_le_bytes());
    script_hash[8..].copy_from_slice(&entry[4].to_le_bytes());
    Coin { tx_num: tx_num(entry), value_sat: entry[2] & ((1 << 56) - 1), script_hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_coins_round_trip() {
        let place = Fingerprint { low: u64::MAX, high: u32::MAX };
        let widest = Coin { tx_num: (1 << 40) - 1, value_sat: (1 << 56) - 1, script_hash: [0xff; 16] };
        assert_eq!(unpack(&pack(place, &widest)), widest);
        assert_eq!(outpoint(&pack(place, &widest)), place);
        let least = Coin { tx_num: 0, value_sat: 0, script_hash: [0; 16] };
        assert_eq!(unpack(&pack(place, &least)), least);
    }
}

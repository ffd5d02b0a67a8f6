//! What a table holds, word by word: first a keyed fingerprint and a `tx_num`, then what belongs to it.
//!
//! A coin takes 40 bytes, in the table, the runs and the checkpoint alike. Entries order by fingerprint, the order of
//! every file and, nearly, of the table. Pure; no I/O.

use super::{Coin, Fingerprint};

/// An entry of `N` words: fingerprint (96 bits), `tx_num` (40), 56 bits and further words as the table's user likes.
pub(super) type Words<const N: usize> = [u64; N];

/// A coin: value in the 56 bits, script hash (128 bits) in the further words.
pub(super) type Entry = Words<5>;

/// Bytes of a coin, in memory and in files.
pub(super) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// Returns what a slot holds that holds nothing: no fingerprint is all zero.
#[inline]
pub(super) const fn empty<const N: usize>() -> Words<N> {
    [0; N]
}

#[inline]
pub(super) fn is_empty<const N: usize>(entry: &Words<N>) -> bool {
    entry[0] == 0 && entry[1] >> 32 == 0
}

#[inline]
pub(super) fn holds<const N: usize>(entry: &Words<N>, outpoint: Fingerprint) -> bool {
    entry[0] == outpoint.low && entry[1] >> 32 == u64::from(outpoint.high)
}

/// Returns the fingerprint of an entry.
#[inline]
pub(super) fn outpoint<const N: usize>(entry: &Words<N>) -> Fingerprint {
    Fingerprint { low: entry[0], high: (entry[1] >> 32) as u32 }
}

/// Returns the transaction of an entry: its age.
#[inline]
pub(super) fn tx_num<const N: usize>(entry: &Words<N>) -> i64 {
    ((entry[2] >> 56) << 32 | (entry[1] & 0xffff_ffff)) as i64
}

/// Returns the first three words of an entry.
///
/// # Panics
/// If the `tx_num` does not fit 40 bits (heights below 2^24) or the rest 56.
#[inline]
pub(super) fn pack_head(place: Fingerprint, tx_num: i64, rest: u64) -> Words<3> {
    let tx_num = tx_num as u64;
    assert!(tx_num < 1 << 40 && rest < 1 << 56, "out of range: transaction {tx_num}, {rest}");
    [place.low, u64::from(place.high) << 32 | (tx_num & 0xffff_ffff), (tx_num >> 32) << 56 | rest]
}

/// Packs a coin.
///
/// # Panics
/// If it does not fit its 40 bits of `tx_num` (heights below 2^24) and 56 bits of value: the parser has checked both.
#[inline]
pub(super) fn pack(outpoint: Fingerprint, coin: &Coin) -> Entry {
    let word = |at: usize| u64::from_le_bytes(coin.script_hash[at..at + 8].try_into().expect("8 bytes"));
    let [low, high, rest] = pack_head(outpoint, coin.tx_num, coin.value_sat);
    [low, high, rest, word(0), word(8)]
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

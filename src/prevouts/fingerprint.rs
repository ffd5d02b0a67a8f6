//! Keyed 96-bit fingerprints of outpoints.
//!
//! Two independent strongly universal hashes (multiply-shift over 64-bit words with 128-bit secret factors;
//! Dietzfelbinger 1996), one of 64 and one of 32 bits: two given outpoints collide with probability 2^-96 over the
//! choice of the key, whoever chose them. With 170 million coins the chance of any collision is below 2^-42. The key is
//! drawn anew for every set and never leaves the data directory.

use std::fs::File;
use std::io::Read;

use crate::chain::batch::Output;
use crate::chain::hash::Hash32;

/// A keyed fingerprint of an outpoint: 96 bits, never all zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    /// The first 64 bits; they also choose the place in the table.
    pub low: u64,
    /// The other 32 bits.
    pub high: u32,
}

/// The secret factors of the two hashes.
#[derive(Clone, PartialEq, Eq)]
pub struct FingerprintKey {
    factors: [[u128; 6]; 2],
}

impl std::fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FingerprintKey(secret)")
    }
}

impl FingerprintKey {
    /// Length of a serialised key, bytes.
    pub const BYTES: usize = 192;

    /// Draws a key from the operating system.
    ///
    /// # Errors
    /// If `/dev/urandom` cannot be read: stop.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self::from_bytes(&bytes))
    }

    /// Reads a key from its bytes.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut factors = [[0; 6]; 2];
        for (index, chunk) in bytes.chunks_exact(16).enumerate() {
            factors[index / 6][index % 6] = u128::from_le_bytes(chunk.try_into().expect("16 bytes"));
        }
        FingerprintKey { factors }
    }

    /// Returns the key's bytes, for a checkpoint.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (chunk, factor) in bytes.chunks_exact_mut(16).zip(self.factors.iter().flatten()) {
            chunk.copy_from_slice(&factor.to_le_bytes());
        }
        bytes
    }

    /// Returns the fingerprint of one outpoint.
    #[inline]
    pub fn fingerprint(&self, txid: &Hash32, vout: u32) -> Fingerprint {
        let sums = self.txid_sums(txid);
        self.finish(sums, vout)
    }

    /// Sets the fingerprints of all outputs of one transaction.
    #[inline]
    pub fn fingerprint_outputs(&self, txid: &Hash32, outputs: &mut [Output]) {
        let sums = self.txid_sums(txid);
        for (vout, output) in outputs.iter_mut().enumerate() {
            output.outpoint = self.finish(sums, vout as u32);
        }
    }

    #[inline]
    fn txid_sums(&self, txid: &Hash32) -> [u128; 2] {
        let mut sums = [self.factors[0][5], self.factors[1][5]];
        for (index, chunk) in txid.chunks_exact(8).enumerate() {
            let word = u128::from(u64::from_le_bytes(chunk.try_into().expect("8 bytes")));
            sums[0] = sums[0].wrapping_add(self.factors[0][index].wrapping_mul(word));
            sums[1] = sums[1].wrapping_add(self.factors[1][index].wrapping_mul(word));
        }
        sums
    }

    #[inline]
    fn finish(&self, sums: [u128; 2], vout: u32) -> Fingerprint {
        let vout = u128::from(vout);
        let low = (sums[0].wrapping_add(self.factors[0][4].wrapping_mul(vout)) >> 64) as u64;
        let high = (sums[1].wrapping_add(self.factors[1][4].wrapping_mul(vout)) >> 96) as u32;
        // All zero marks an empty slot of the table.
        Fingerprint { low, high: if low == 0 && high == 0 { 1 } else { high } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_and_single_outpoints_agree_and_differ_from_each_other() {
        let key = FingerprintKey::from_bytes(&std::array::from_fn(|at| (at * 37 + 11) as u8));
        let template = Output {
            outpoint: Fingerprint::default(),
            value_sat: 0,
            script_hash: [0; 16],
            script: Default::default(),
            is_unspendable: false,
        };
        let mut outputs = [template; 100];
        key.fingerprint_outputs(&[7; 32], &mut outputs);
        for (vout, output) in outputs.iter().enumerate() {
            assert_eq!(output.outpoint, key.fingerprint(&[7; 32], vout as u32));
            assert_ne!(output.outpoint, key.fingerprint(&[8; 32], vout as u32));
        }
        let mut all: Vec<_> = outputs.iter().map(|output| output.outpoint).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 100);
    }

    #[test]
    fn another_key_gives_other_fingerprints() {
        let (one, two) = (FingerprintKey::random().unwrap(), FingerprintKey::random().unwrap());
        assert_eq!(FingerprintKey::from_bytes(&one.to_bytes()), one);
        assert_ne!(one.fingerprint(&[1; 32], 0), two.fingerprint(&[1; 32], 0));
    }
}

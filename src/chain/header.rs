//! Block headers: the 80 bytes, their hash, their proof of work.

use bitcoin::pow::{CompactTarget, Target};

use super::hash::{Hash32, sha256d};
use crate::network::Network;

/// Length of a serialised header, bytes.
pub const HEADER_BYTES: usize = 80;

/// A block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version, signed as Bitcoin Core prints it.
    pub version: i32,
    /// Hash of the block before, internal byte order.
    pub prev_hash: Hash32,
    /// Merkle root of the txids, internal byte order.
    pub merkle_root: Hash32,
    /// Seconds since 1970, set by the miner.
    pub time: u32,
    /// Target in compact form.
    pub bits: u32,
    /// Nonce.
    pub nonce: u32,
}

impl Header {
    /// Reads the 80 bytes; every value is allowed here.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Header {
            version: word(0) as i32,
            prev_hash: bytes[4..36].try_into().expect("32 bytes"),
            merkle_root: bytes[36..68].try_into().expect("32 bytes"),
            time: word(68),
            bits: word(72),
            nonce: word(76),
        }
    }
}

/// Returns the hash of a header and the work that it proves, or `None` if its target is no valid one for the network
/// or its hash is above the target (`CheckProofOfWork` in Bitcoin Core's `pow.cpp`).
///
/// The work is the expected number of hashes, 2^256 / (target + 1).
pub fn checked_work(bytes: &[u8; HEADER_BYTES], network: Network) -> Option<(Hash32, u128)> {
    let bits = u32::from_le_bytes(bytes[72..76].try_into().expect("4 bytes"));
    let target = target(bits, network)?;
    let hash = sha256d(bytes);
    if Target::from_le_bytes(hash) > target {
        return None;
    }
    // The work of one block, and of all of mainnet (about 2^97), is far below 2^128.
    let work = target.to_work().to_be_bytes();
    let (high, low) = work.split_at(16);
    if high.iter().any(|&byte| byte != 0) {
        return None;
    }
    Some((hash, u128::from_be_bytes(low.try_into().expect("16 bytes"))))
}

/// Returns the target that the compact form means, or `None` for zero, negative, overflowing or too easy ones.
fn target(bits: u32, network: Network) -> Option<Target> {
    let (exponent, mantissa) = (bits >> 24, bits & 0x007f_ffff);
    let overflows = mantissa != 0
        && (exponent > 34 || (mantissa > 0xff && exponent > 33) || (mantissa > 0xffff && exponent > 32));
    if mantissa == 0 || bits & 0x0080_0000 != 0 || overflows {
        return None;
    }
    let target = Target::from_compact(CompactTarget::from_consensus(bits));
    let limit = Target::from_compact(CompactTarget::from_consensus(network.pow_limit_bits()));
    (target <= limit && target > Target::ZERO).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn genesis_header(network: Network) -> [u8; HEADER_BYTES] {
        network.genesis_block()[..HEADER_BYTES].try_into().unwrap()
    }

    #[test]
    fn genesis_headers_prove_their_work() {
        let (_, work) = checked_work(&genesis_header(Network::Main), Network::Main).unwrap();
        assert_eq!(work, 0x1_0001_0001);
        let (_, work) = checked_work(&genesis_header(Network::Regtest), Network::Regtest).unwrap();
        assert_eq!(work, 2);
    }

    #[test]
    fn a_changed_nonce_and_a_target_too_easy_are_refused() {
        let mut header = genesis_header(Network::Main);
        header[76] ^= 1;
        assert_eq!(checked_work(&header, Network::Main), None);
        assert_eq!(checked_work(&genesis_header(Network::Regtest), Network::Main), None);
    }

    #[test]
    fn odd_compact_targets_are_refused() {
        for bits in
            [0, 0x2000_0000, 0x0180_0001, 0x2080_0000, 0x2300_0001, 0xff12_3456, 0x2101_0000, 0x0100_0000]
        {
            assert_eq!(target(bits, Network::Regtest), None, "{bits:08x}");
        }
        assert!(target(0x2100_7fff, Network::Regtest).is_some());
    }

    #[test]
    fn parse_reads_every_field() {
        let header = Header::parse(&genesis_header(Network::Main));
        assert_eq!(
            (header.version, header.time, header.bits, header.nonce),
            (1, 1_231_006_505, 0x1d00_ffff, 2_083_236_893)
        );
        assert_eq!(header.prev_hash, [0; 32]);
        assert_eq!(header.merkle_root[31], 0x4a);
    }
}

//! The hashes of the chain: double SHA-256 and the script hash. Byte order is internal everywhere; only text that
//! people read is reversed.

use bitcoin::hashes::{self, Hash, HashEngine};

/// A block hash or txid, 32 bytes, internal byte order.
pub type Hash32 = [u8; 32];

/// Returns SHA-256 of the bytes.
#[inline]
pub fn sha256(bytes: &[u8]) -> Hash32 {
    hashes::sha256::Hash::hash(bytes).to_byte_array()
}

/// Returns SHA-256 of SHA-256 of the bytes.
#[inline]
pub fn sha256d(bytes: &[u8]) -> Hash32 {
    hashes::sha256d::Hash::hash(bytes).to_byte_array()
}

/// Returns SHA-256 of SHA-256 of the parts, one after the other.
#[inline]
pub fn sha256d_parts(parts: [&[u8]; 3]) -> Hash32 {
    let mut engine = hashes::sha256d::Hash::engine();
    for part in parts {
        engine.input(part);
    }
    hashes::sha256d::Hash::from_engine(engine).to_byte_array()
}

/// Returns the script hash: the first 16 bytes of SHA-256 of a scriptPubKey, in order.
#[inline]
pub fn script_hash(script: &[u8]) -> [u8; 16] {
    script_hash_of(&sha256(script))
}

/// Returns the script hash from the SHA-256 of a scriptPubKey.
#[inline]
pub fn script_hash_of(sha256: &Hash32) -> [u8; 16] {
    sha256[..16].try_into().expect("16 of 32 bytes")
}

/// Returns the hex that people know: bytes reversed.
pub fn reversed_hex(hash: &Hash32) -> String {
    hash.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the hex that people know; `None` if it is not 64 hex digits.
pub fn parse_reversed_hex(hex: &str) -> Option<Hash32> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (index, byte) in hash.iter_mut().rev().enumerate() {
        *byte = u8::from_str_radix(&hex[index * 2..index * 2 + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENESIS: &str = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f";

    #[test]
    fn the_genesis_header_hashes_to_its_known_hash() {
        let block = crate::network::Network::Main.genesis_block();
        assert_eq!(reversed_hex(&sha256d(&block[..80])), GENESIS);
        assert_eq!(sha256d_parts([&block[..4], &block[4..76], &block[76..80]]), sha256d(&block[..80]));
        assert_eq!(parse_reversed_hex(GENESIS), Some(sha256d(&block[..80])));
        assert_eq!(parse_reversed_hex(&GENESIS[1..]), None);
    }

    #[test]
    fn script_hash_is_the_start_of_sha256() {
        assert_eq!(script_hash(b"")[..4], [0xe3, 0xb0, 0xc4, 0x42]);
    }
}

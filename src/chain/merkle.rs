//! Merkle roots, with the check for duplicated tails (CVE-2012-2459).

use super::hash::{Hash32, sha256d};
use super::sha256::sha256d_many;

/// Computes the merkle root in place; the slice is used up as scratch.
///
/// Returns the root, and whether two equal hashes stand side by side on some level: then another list of leaves has
/// the same root, and the block must be refused (`ComputeMerkleRoot` in Bitcoin Core's `consensus/merkle.cpp`).
/// An empty list gives zeros.
pub fn merkle_root(hashes: &mut [Hash32]) -> (Hash32, bool) {
    let mut mutated = false;
    if hashes.is_empty() {
        return ([0; 32], false);
    }
    let mut count = hashes.len();
    let mut scratch = vec![[0; 32]; count.div_ceil(2)];
    let (mut level, mut above) = (hashes, scratch.as_mut_slice());
    while count > 1 {
        let (pairs, odd) = level[..count].as_chunks::<2>();
        mutated |= pairs.iter().any(|[left, right]| left == right);
        sha256d_many(pairs.len(), |pair| pairs[pair].as_flattened(), |pair, hash| above[pair] = hash);
        if let [last] = odd {
            above[pairs.len()] = sha256d([*last, *last].as_flattened());
        }
        count = count.div_ceil(2);
        (level, above) = (above, level);
    }
    (level[0], mutated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: u8) -> Vec<Hash32> {
        (0..count).map(|leaf| [leaf; 32]).collect()
    }

    #[test]
    fn one_leaf_is_its_own_root_and_three_repeat_the_last() {
        assert_eq!(merkle_root(&mut leaves(1)), ([0; 32], false));
        let mut four = leaves(3);
        four.push([2; 32]);
        let (root, mutated) = merkle_root(&mut leaves(3));
        assert!(!mutated);
        assert_eq!(merkle_root(&mut four), (root, true));
    }

    #[test]
    fn agrees_with_the_bitcoin_crate() {
        use bitcoin::hashes::Hash;
        for count in 1..40 {
            let theirs = bitcoin::merkle_tree::calculate_root(
                leaves(count).into_iter().map(bitcoin::Txid::from_byte_array),
            );
            assert_eq!(merkle_root(&mut leaves(count)).0, theirs.unwrap().to_byte_array());
        }
    }
}

//! Which transactions repeat an earlier txid (BIP30 twins), known at once and without the earlier outputs.
//!
//! A twin's outputs overwrite those of the earlier transaction, which may lie in a coin run: then only the merge can
//! settle them. A txid repeats only where a coinbase does, or where all inputs of a transaction spend outputs of twins:
//! so the fingerprints of all coinbases (8 bytes a block, outside the cache's budget) and of the outputs of twins are
//! enough to tell. A fingerprint that two coinbases share by chance costs nothing but a detour.

use hashbrown::HashSet;

use super::Fingerprint;

/// What is needed to recognise twins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Twins {
    coinbases: HashSet<u64>,
    /// Unspent outputs of twins.
    outputs: HashSet<Fingerprint>,
}

impl Twins {
    /// Notes a coinbase by the fingerprint of its first output; returns whether an earlier one had the same txid.
    #[inline]
    pub(super) fn is_repeated_coinbase(&mut self, first_output: Fingerprint) -> bool {
        !self.coinbases.insert(first_output.low)
    }

    /// Returns whether no twin's output is unspent.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Notes the spends of a transaction; returns whether every one spends a twin's output.
    pub(super) fn spends_only_twins(&mut self, outpoints: impl Iterator<Item = Fingerprint>) -> bool {
        let mut only = true;
        for outpoint in outpoints {
            only &= self.outputs.remove(&outpoint);
        }
        only
    }

    /// Notes an output of a twin.
    pub(super) fn add_output(&mut self, outpoint: Fingerprint) {
        self.outputs.insert(outpoint);
    }

    /// Returns the fingerprints of coinbases, for a checkpoint.
    pub(super) fn coinbases(&self) -> impl ExactSizeIterator<Item = u64> {
        self.coinbases.iter().copied()
    }

    /// Returns the unspent outputs of twins, for a checkpoint.
    pub(super) fn outputs(&self) -> impl ExactSizeIterator<Item = Fingerprint> {
        self.outputs.iter().copied()
    }

    /// Notes a coinbase read from a checkpoint.
    pub(super) fn add_coinbase(&mut self, low: u64) {
        self.coinbases.insert(low);
    }
}

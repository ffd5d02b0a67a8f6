//! The coins that one block may spend, looked up beforehand: for live sync, which has no whole set.
//!
//! In: unspent outputs as they were before the block, and which of its txids have been there already. Out: the block
//! resolved by the very rules of the replay ([`resolve_batch`]): an unbounded set that knows these coins and no others.
//! What is not among them counts as missing or spent, so whoever calls must have looked for every prevout.

use std::path::PathBuf;

use super::resolve::{ConnectError, resolve_batch};
use super::{Coin, Fingerprint, FingerprintKey, UtxoLimits, UtxoOptions, UtxoSet};
use crate::chain::batch::Batch;
use crate::network::Network;

/// The part of the UTXO set that a block can touch.
#[derive(Debug)]
pub struct BlockCoins {
    set: UtxoSet,
}

impl BlockCoins {
    /// Makes an empty one; `key` is that of the block's fingerprints.
    pub fn new(key: &FingerprintKey) -> Self {
        // Without a bound nothing is ever written: the directory is none.
        let options = UtxoOptions {
            dir: PathBuf::new(),
            cache_bytes_max: None,
            buckets: 1,
            limits: UtxoLimits::default(),
        };
        BlockCoins { set: UtxoSet::new(options, key.clone()) }
    }

    /// Adds an output that is unspent before the block.
    ///
    /// # Errors
    /// None in practice: nothing is written.
    pub fn add(&mut self, outpoint: Fingerprint, coin: &Coin) -> Result<(), ConnectError> {
        Ok(self.set.insert(outpoint, coin)?)
    }

    /// Notes that the block's coinbase, told by its first output, repeats an earlier txid (BIP30).
    pub fn note_repeated_coinbase(&mut self, first_output: Fingerprint) {
        self.set.twins.is_repeated_coinbase(first_output);
    }

    /// Notes an outpoint whose txid stands twice in the chain: whoever spends such alone may be a repetition too.
    pub fn note_twin_output(&mut self, outpoint: Fingerprint) {
        self.set.twins.add_output(outpoint);
    }

    /// Resolves the block.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn resolve(mut self, batch: &mut Batch, network: Network) -> Result<(), ConnectError> {
        resolve_batch(batch, &mut self.set, network)
    }
}

//! What Bitcoin Core's `gettxoutsetinfo` says about the chain's unspent outputs.
//!
//! In: the coins that are left at the tip. Out: their count, total and `hash_serialized_3`. Called once by `generate`.

use bitcoin::consensus::Encodable;
use bitcoin::hashes::{Hash, HashEngine, sha256d};

use super::coins::{Coin, Coins};
use super::scripts::Keyring;

/// Count, total and hash of a UTXO set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UtxoSet {
    pub(super) count: u64,
    pub(super) total_sat: u64,
    /// `hash_serialized_3` as Core prints it: reversed hex.
    pub(super) hash: String,
}

impl UtxoSet {
    /// Sums up and hashes the coins in the order of Core's database: txid in internal byte order, then vout.
    pub(super) fn of(coins: &Coins, keys: &Keyring) -> Self {
        let mut sorted: Vec<(u32, &Coin)> = coins.iter().collect();
        sorted.sort_unstable_by_key(|(_, coin)| (coin.txid.to_byte_array(), coin.vout));
        let mut engine = sha256d::Hash::engine();
        let mut total_sat = 0;
        for (height, coin) in &sorted {
            total_sat += coin.value_sat;
            engine.input(&coin.txid.to_byte_array());
            engine.input(&coin.vout.to_le_bytes());
            engine.input(&(height << 1 | u32::from(coin.is_coinbase)).to_le_bytes());
            engine.input(&coin.value_sat.to_le_bytes());
            let script = keys.script_pubkey(coin.lock);
            script.consensus_encode(&mut engine).expect("a hash engine takes all bytes");
        }
        let hash = sha256d::Hash::from_engine(engine).to_string();
        Self { count: sorted.len() as u64, total_sat, hash }
    }
}

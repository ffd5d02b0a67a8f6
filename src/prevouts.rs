//! Prevouts: which output an input spends, without reading the database.
//!
//! [`UtxoSet`] maps a keyed fingerprint of an outpoint to its [`Coin`]. It is an exact model of Bitcoin Core's coins: an
//! entry leaves when it is spent, and a BIP30 twin overwrites the earlier coin. It keeps to a budget: a cache in memory,
//! and sorted runs on disk with which spends that miss are merged. Called by the one ordered resolve stage; the
//! fingerprints are computed beforehand, by the parse threads.

mod fingerprint;
mod rebuild;
mod resolve;

mod set;

mod belt;
mod block_coins;
mod coin_cache;
mod entry;
mod slots;
mod table;
mod txnum_cache;

mod merge;
mod runs;
pub(crate) mod sealed;
mod sort;
mod twins;
mod waiting;

mod checkpoint;
mod resume;
mod roll_forward;

pub use block_coins::BlockCoins;
pub use coin_cache::CoinCache;
pub use fingerprint::{Fingerprint, FingerprintKey};
pub use rebuild::{RebuildError, rebuild};
pub use resolve::{BrokenRule, ConnectError, ResolveError, resolve_batch};
pub use resume::{newest_checkpoint, remove_all};
pub use roll_forward::roll_forward;
pub use sealed::CoinFileError;
pub use set::{UtxoFigures, UtxoGauges, UtxoLimits, UtxoOptions, UtxoSet};
pub use table::{CoinTable, Full, Table};
pub use txnum_cache::TxNumCache;
pub use waiting::Settled;

/// An unspent output: what a row of `chain.inputs` repeats of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coin {
    /// The transaction that made it: height * 65536 + index.
    pub tx_num: i64,
    /// Amount, satoshis, below 2^56.
    pub value_sat: u64,
    /// First 16 bytes of SHA-256 of its script.
    pub script_hash: [u8; 16],
}

impl Coin {
    /// The value of an input that is not resolved yet, or spends nothing.
    pub const NONE: Coin = Coin { tx_num: -1, value_sat: 0, script_hash: [0; 16] };
    /// The value of an input whose coin is not in the cache: its row waits.
    pub const WAITING: Coin = Coin { tx_num: -2, value_sat: 0, script_hash: [0; 16] };

    /// Returns whether a coinbase made it.
    pub fn is_coinbase(&self) -> bool {
        self.tx_num & 0xffff == 0
    }

    /// Returns the height of the block that made it.
    pub fn height(&self) -> u32 {
        (self.tx_num >> 16) as u32
    }
}

#[cfg(test)]
mod tests;

//! The UTXO set as Bitcoin Core's `gettxoutsetinfo` tells it: count, amount, and `hash_serialized_3`.
//!
//! The hash is the double SHA-256 over every coin in the order of (txid, vout): outpoint, then height * 2 + coinbase as
//! u32, then value and script as a transaction output has them (Bitcoin Core, `kernel/coinstats.cpp`).

use bitcoin::consensus::Encodable;
use bitcoin::hashes::{Hash, HashEngine, sha256d};
use deadpool_postgres::Pool;
use futures_util::TryStreamExt;

use super::{VerifyError, server};
use crate::chain::hash::{Hash32, reversed_hex};
use crate::pg::pool;

const QUERY: &str = "select t.txid, u.vout, t.height, (u.tx_num & 65535) = 0, u.value, u.script \
     from chain.utxos u join chain.transactions t using (tx_num) order by t.txid, u.vout";

/// What `gettxoutsetinfo` would say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UtxoSetInfo {
    /// Unspent outputs.
    pub count: u64,
    /// Their sum, satoshis.
    pub amount_sat: u64,
    /// `hash_serialized_3`, internal byte order.
    pub hash: Hash32,
}

impl std::fmt::Display for UtxoSetInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "utxos {} {} {}", self.count, self.amount_sat, reversed_hex(&self.hash))
    }
}

/// Computes count, amount and hash in one ordered scan.
///
/// # Errors
/// [`VerifyError`].
pub async fn utxo_set_info(pool: &Pool) -> Result<UtxoSetInfo, VerifyError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    info_of(&client).await
}

/// The same on a connection, in its transaction if it has one.
pub(super) async fn info_of(client: &tokio_postgres::Client) -> Result<UtxoSetInfo, VerifyError> {
    let what = || server("reading chain.utxos");
    let none: [&str; 0] = [];
    let mut rows = std::pin::pin!(client.query_raw(QUERY, none).await.map_err(what())?);
    let mut engine = sha256d::Hash::engine();
    let mut info = UtxoSetInfo { count: 0, amount_sat: 0, hash: [0; 32] };
    while let Some(row) = rows.try_next().await.map_err(what())? {
        let (txid, script): (&[u8], &[u8]) = (row.get(0), row.get(5));
        let (vout, height, value): (i32, i32, i64) = (row.get(1), row.get(2), row.get(4));
        let code = (height as u32) << 1 | u32::from(row.get::<_, bool>(3));
        engine.input(txid);
        engine.input(&(vout as u32).to_le_bytes());
        engine.input(&code.to_le_bytes());
        engine.input(&(value as u64).to_le_bytes());
        let length = bitcoin::VarInt(script.len() as u64);
        length.consensus_encode(&mut engine).expect("a hash engine takes every byte");
        engine.input(script);
        info.count += 1;
        info.amount_sat += value as u64;
    }
    info.hash = sha256d::Hash::from_engine(engine).to_byte_array();
    Ok(info)
}

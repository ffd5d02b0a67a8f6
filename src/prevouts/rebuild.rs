//! Rebuilds the UTXO set from `chain.utxos`, in one scan.
//!
//! In: a database whose segments are all attached. Out: the set as it stood after their last block. Called at the start
//! of a replay that goes on from rows that are there. Byte order as in the tables.

use std::pin::pin;

use bytes::{Buf, BytesMut};
use futures_util::TryStreamExt;
use tokio_postgres::Client;

use super::{Coin, FingerprintKey, UtxoSet};

const QUERY: &str = "copy (select t.txid, u.vout, u.tx_num, u.value, u.script_hash \
     from chain.utxos u join chain.transactions t using (tx_num)) to stdout with (format binary)";

/// Signature, flags and the length of the extension (PostgreSQL manual, COPY, "Binary Format").
const HEADER_BYTES: usize = 19;
/// Column count, five lengths, txid, vout, tx_num, value, script hash.
const ROW_BYTES: usize = 2 + 5 * 4 + 32 + 4 + 8 + 8 + 16;

/// Why the set could not be rebuilt: retry or stop as for any other statement.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The server refused or went away.
    #[error("reading chain.utxos")]
    Server(#[from] tokio_postgres::Error),
    /// The stream is not what was asked for: a defect, or another schema.
    #[error("chain.utxos gave a row of another shape")]
    Shape,
}

/// Reads every unspent output into a new set.
///
/// # Errors
/// [`RebuildError`].
pub async fn rebuild(client: &Client, key: &FingerprintKey) -> Result<UtxoSet, RebuildError> {
    let mut set = UtxoSet::new();
    let mut stream = pin!(client.copy_out(QUERY).await?);
    let mut bytes = BytesMut::new();
    let mut is_begun = false;
    while let Some(piece) = stream.try_next().await? {
        bytes.extend_from_slice(&piece);
        if !is_begun && bytes.len() >= HEADER_BYTES {
            bytes.advance(HEADER_BYTES);
            is_begun = true;
        }
        while is_begun && bytes.len() >= ROW_BYTES {
            let row = bytes.split_to(ROW_BYTES);
            let (outpoint, coin) = parse_row(&row).ok_or(RebuildError::Shape)?;
            set.insert(key.fingerprint(&outpoint.0, outpoint.1), &coin);
        }
    }
    // The trailer: a column count of -1.
    if bytes[..] != [0xff, 0xff] {
        return Err(RebuildError::Shape);
    }
    Ok(set)
}

fn parse_row(mut row: &[u8]) -> Option<(([u8; 32], u32), Coin)> {
    if row.get_i16() != 5 {
        return None;
    }
    let mut column = |len: usize| {
        let bytes = row.get(4..4 + len)?;
        let stated = i32::from_be_bytes(row[..4].try_into().expect("4 bytes"));
        row = &row[4 + len..];
        (stated == len as i32).then_some(bytes)
    };
    let txid = column(32)?.try_into().ok()?;
    let vout = u32::from_be_bytes(column(4)?.try_into().ok()?);
    let tx_num = i64::from_be_bytes(column(8)?.try_into().ok()?);
    let value_sat = u64::from_be_bytes(column(8)?.try_into().ok()?);
    let script_hash = column(16)?.try_into().ok()?;
    Some(((txid, vout), Coin { tx_num, value_sat, script_hash }))
}

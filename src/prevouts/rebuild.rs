//! Rebuilds the UTXO set from the database, in one scan of `chain.utxos`.
//!
//! In: a database whose segments are all attached. Out: the set as it stood after their last block, within its budget:
//! what does not fit goes to runs. Called at the start of a replay that goes on from rows that are there, when no
//! checkpoint is of use. Byte order as in the tables.

use std::collections::BTreeSet;
use std::pin::pin;

use bytes::{Buf, BytesMut};
use futures_util::TryStreamExt;
use tokio_postgres::Client;

use super::resolve::ResolveError;
use super::sealed::CoinFileError;
use super::{Coin, FingerprintKey, UtxoOptions, UtxoSet};

const COINS: &str = "copy (select t.txid, u.vout, u.tx_num, u.value, u.script_hash \
     from chain.utxos u join chain.transactions t using (tx_num)) to stdout with (format binary)";

/// In chain order: the later of two equal coinbases is the twin.
const COINBASES: &str = "copy (select t.txid, t.tx_num from chain.blocks b \
     join chain.transactions t on t.tx_num = chain.first_tx_num(b.height) order by t.tx_num) \
     to stdout with (format binary)";

const SPENDERS: &str = "select tx_num, bool_and(prev_tx_num = any($1)) from chain.inputs where tx_num in \
     (select tx_num from chain.inputs where prev_tx_num = any($2)) group by tx_num";

const TWIN_OUTPUTS: &str = "select t.txid, u.vout from chain.utxos u join chain.transactions t using (tx_num) \
     where u.tx_num = any($1)";

/// Signature, flags and the length of the extension (PostgreSQL manual, COPY, "Binary Format").
const HEADER_BYTES: usize = 19;

/// Why the set could not be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The server refused or went away: retry or stop as for any other statement.
    #[error("reading chain.utxos")]
    Server(#[from] tokio_postgres::Error),
    /// The stream is not what was asked for: a defect, or another schema.
    #[error("chain.utxos gave a row of another shape")]
    Shape,
    /// The rows of the blocks after a checkpoint do not follow from it: rebuild the set.
    #[error("the blocks after a checkpoint do not follow from it")]
    Broken(#[source] ResolveError),
    /// What the budget has no place for could not be written.
    #[error(transparent)]
    Files(#[from] CoinFileError),
}

/// Reads every unspent output into a new set.
///
/// # Errors
/// [`RebuildError`].
pub async fn rebuild(
    client: &Client,
    options: UtxoOptions,
    key: FingerprintKey,
) -> Result<UtxoSet, RebuildError> {
    let mut set = UtxoSet::new(options, key);
    copy_out(client, COINS, [32, 4, 8, 8, 16], |[txid, vout, tx_num, value_sat, script_hash]| {
        let coin = Coin {
            tx_num: number(tx_num)? as i64,
            value_sat: number(value_sat)?,
            script_hash: script_hash.try_into().map_err(|_| RebuildError::Shape)?,
        };
        let txid = txid.try_into().map_err(|_| RebuildError::Shape)?;
        let outpoint = set.key.fingerprint(txid, number(vout)? as u32);
        Ok(set.insert(outpoint, &coin)?)
    })
    .await?;
    note_twins(client, &mut set).await?;
    Ok(set)
}

/// Notes the coinbases, and the unspent outputs of those that repeat an earlier txid and of their descendants.
async fn note_twins(client: &Client, set: &mut UtxoSet) -> Result<(), RebuildError> {
    let mut found: Vec<i64> = Vec::new();
    copy_out(client, COINBASES, [32, 8], |[txid, tx_num]| {
        let txid = txid.try_into().map_err(|_| RebuildError::Shape)?;
        if set.twins.is_repeated_coinbase(set.key.fingerprint(txid, 0)) {
            found.push(number(tx_num)? as i64);
        }
        Ok(())
    })
    .await?;
    let mut twins: BTreeSet<i64> = found.iter().copied().collect();
    while !found.is_empty() {
        // A transaction all of whose inputs spend twins may be one itself.
        let known: Vec<i64> = twins.iter().copied().collect();
        let rows = client.query(SPENDERS, &[&known, &found]).await?;
        let all: Vec<i64> = rows.iter().filter(|row| row.get(1)).map(|row| row.get(0)).collect();
        found = all.into_iter().filter(|tx_num| twins.insert(*tx_num)).collect();
    }
    if !twins.is_empty() {
        let twins: Vec<i64> = twins.into_iter().collect();
        for row in client.query(TWIN_OUTPUTS, &[&twins]).await? {
            let txid = row.get::<_, &[u8]>(0).try_into().map_err(|_| RebuildError::Shape)?;
            let outpoint = set.key.fingerprint(txid, row.get::<_, i32>(1) as u32);
            set.twins.add_output(outpoint);
        }
    }
    Ok(())
}

/// Streams rows of `N` columns of fixed widths.
async fn copy_out<const N: usize>(
    client: &Client,
    query: &str,
    widths: [usize; N],
    mut each: impl FnMut([&[u8]; N]) -> Result<(), RebuildError>,
) -> Result<(), RebuildError> {
    let row_bytes = 2 + widths.iter().map(|width| 4 + width).sum::<usize>();
    let mut stream = pin!(client.copy_out(query).await?);
    let mut bytes = BytesMut::new();
    let mut is_begun = false;
    while let Some(piece) = stream.try_next().await? {
        bytes.extend_from_slice(&piece);
        if !is_begun && bytes.len() >= HEADER_BYTES {
            bytes.advance(HEADER_BYTES);
            is_begun = true;
        }
        while is_begun && bytes.len() >= row_bytes {
            each(columns(&bytes[..row_bytes], widths).ok_or(RebuildError::Shape)?)?;
            bytes.advance(row_bytes);
        }
    }
    // The trailer: a column count of -1.
    if bytes[..] == [0xff, 0xff] { Ok(()) } else { Err(RebuildError::Shape) }
}

/// Cuts a row into its columns, if it has as many and as wide ones.
fn columns<const N: usize>(mut row: &[u8], widths: [usize; N]) -> Option<[&[u8]; N]> {
    if usize::try_from(row.get_i16()) != Ok(N) {
        return None;
    }
    let mut columns = [&row[..0]; N];
    for (column, width) in columns.iter_mut().zip(widths) {
        if row.try_get_i32() != Ok(width as i32) {
            return None;
        }
        (*column, row) = row.split_at_checked(width)?;
    }
    Some(columns)
}

/// Reads a big-endian number of 4 or 8 bytes.
fn number(bytes: &[u8]) -> Result<u64, RebuildError> {
    match bytes.len() {
        4 => Ok(u64::from(u32::from_be_bytes(bytes.try_into().expect("4 bytes")))),
        8 => Ok(u64::from_be_bytes(bytes.try_into().expect("8 bytes"))),
        _ => Err(RebuildError::Shape),
    }
}

//! The digest: SHA-256 over the rows of each table in key order, in binary COPY format.
//!
//! Independent of segments, physical layout, threads and history: equal digests mean equal rows. The stream's header and
//! trailer are left out, so that it does not matter in how many pieces the rows are read.

use std::pin::pin;

use bitcoin::hashes::{Hash, HashEngine, sha256};
use deadpool_postgres::Pool;
use futures_util::TryStreamExt;

use super::{VerifyError, server};
use crate::chain::batch::tx_num;
use crate::pg::pool;
use crate::pg::segments;
use crate::rows::{COPY_HEADER, COPY_TRAILER, Table};

/// The digest of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDigest {
    /// The table.
    pub table: Table,
    /// SHA-256 of its rows, in order.
    pub sha256: [u8; 32],
}

impl std::fmt::Display for TableDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.table.name(), sha256::Hash::from_byte_array(self.sha256))
    }
}

/// Computes the digests of all tables, each on its own connection.
///
/// # Errors
/// [`VerifyError`].
pub async fn digest(pool: &Pool) -> Result<Vec<TableDigest>, VerifyError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let mut pieces = Vec::new();
    for segment in segments::list(&client).await.map_err(server("listing segments"))? {
        if segment.is_attached {
            pieces.push((segment.height_first, segment.height_last));
        }
    }
    drop(client);
    let tables = Table::ALL.map(|table| table_digest(pool, table, &pieces));
    futures_util::future::try_join_all(tables).await
}

/// Reads piece by piece: rows of a segment stand in key order, so that no sort is needed.
async fn table_digest(pool: &Pool, table: Table, pieces: &[(u32, u32)]) -> Result<TableDigest, VerifyError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let what = || server(format!("reading chain.{}", table.name()));
    let mut engine = sha256::Hash::engine();
    client.batch_execute("begin; set local enable_sort = off; set local jit = off").await.map_err(what())?;
    for &(first, last) in pieces {
        let bounds = match table {
            Table::Blocks => format!("height between {first} and {last}"),
            _ => format!("tx_num >= {} and tx_num < {}", tx_num(first, 0), tx_num(last + 1, 0)),
        };
        let statement = format!(
            "copy (select {} from chain.{} where {bounds} order by {}) to stdout with (format binary)",
            table.columns().join(", "),
            table.name(),
            table.key().join(", ")
        );
        let mut stream = pin!(client.copy_out(&statement).await.map_err(what())?);
        let mut rows = Rows::new();
        while let Some(piece) = stream.try_next().await.map_err(what())? {
            rows.push(&piece, &mut engine);
        }
    }
    client.batch_execute("commit").await.map_err(what())?;
    Ok(TableDigest { table, sha256: sha256::Hash::from_engine(engine).to_byte_array() })
}

/// Passes a COPY stream on without its header and trailer.
struct Rows {
    header_left: usize,
    held: Vec<u8>,
}

impl Rows {
    fn new() -> Self {
        Rows { header_left: COPY_HEADER.len(), held: Vec::new() }
    }

    fn push(&mut self, piece: &[u8], engine: &mut sha256::HashEngine) {
        let skipped = self.header_left.min(piece.len());
        self.header_left -= skipped;
        self.held.extend_from_slice(&piece[skipped..]);
        // The last bytes so far may be the trailer.
        let ready = self.held.len().saturating_sub(COPY_TRAILER.len());
        engine.input(&self.held[..ready]);
        self.held.drain(..ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_trailer_are_left_out_wherever_the_stream_is_cut() {
        let stream = [&COPY_HEADER[..], b"rows of a table", &COPY_TRAILER].concat();
        let expected = sha256::Hash::hash(b"rows of a table");
        for size in 1..stream.len() {
            let (mut rows, mut engine) = (Rows::new(), sha256::Hash::engine());
            stream.chunks(size).for_each(|piece| rows.push(piece, &mut engine));
            assert_eq!(sha256::Hash::from_engine(engine), expected, "pieces of {size}");
            assert_eq!(rows.held, COPY_TRAILER);
        }
    }
}

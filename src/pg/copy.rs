//! One table of a segment: created and filled in one transaction with COPY FREEZE (PostgreSQL manual, COPY).
//!
//! In: encoded rows, buffer by buffer. Out: a committed table, or none at all. One connection each, taken out of the
//! pool. Buffers are handed over without a copy; the only await is one a buffer, never one a row.

use bytes::Bytes;
use deadpool_postgres::{ClientWrapper, Pool};
use futures_util::SinkExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;

use super::pool::{self, connect_copy};
use super::segments::{copy_sql, create_table_sql};
use crate::replay::schedule::Segment;
use crate::rows::{COPY_HEADER, COPY_TRAILER, Table};

/// Largest piece handed to a connection at once, bytes.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// Lets the disk write while rows still come, where the server can and its owner has not decided otherwise: without this
/// a commit waits until everything that COPY wrote is on disk, with nothing else to do (PostgreSQL manual, section 20.4.6).
const SET_FLUSH_AFTER: &str = "select set_config('backend_flush_after', '512kB', false) \
     where current_setting('backend_flush_after') = '0'";

/// Why a table was not filled. Nothing of it is visible; its segment is loaded again.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// The server refused or went away.
    #[error("copying into {table}")]
    Server {
        /// The table.
        table: &'static str,
        /// What the server said.
        source: tokio_postgres::Error,
    },
}

/// A table being filled.
#[derive(Debug)]
pub struct TableCopy {
    rows: mpsc::Sender<Bytes>,
    task: JoinHandle<Result<ClientWrapper, CopyError>>,
}

impl TableCopy {
    /// Opens a connection, creates the table and begins its stream.
    ///
    /// # Errors
    /// [`CopyError`]; the server keeps nothing.
    pub async fn begin(pool: &Pool, table: Table, segment: &Segment) -> Result<Self, CopyError> {
        let client = connect_copy(pool).await?;
        let (sender, receiver) = mpsc::channel(2);
        let name = format!("set application_name = '{}{}'", pool::COPY, table.name());
        let create = format!("{name}; begin; {}", create_table_sql(table, segment));
        let server = |source| CopyError::Server { table: table.name(), source };
        match client.batch_execute(SET_FLUSH_AFTER).await {
            // The server's system cannot.
            Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => {}
            set => set.map_err(server)?,
        }
        client.batch_execute(&create).await.map_err(server)?;
        let task = tokio::spawn(fill(client, table, copy_sql(table, segment), receiver));
        Ok(TableCopy { rows: sender, task })
    }

    /// Hands over the rows of one batch. An error shows at [`TableCopy::finish`].
    pub async fn send(&self, rows: Bytes) -> bool {
        rows.is_empty() || self.rows.send(rows).await.is_ok()
    }

    /// Ends the stream; the table is complete but not committed.
    ///
    /// # Errors
    /// [`CopyError`]: what the server said, also to anything sent before.
    pub async fn finish(self) -> Result<ClientWrapper, CopyError> {
        drop(self.rows);
        // The task never panics and is never aborted: it ends when its channel does.
        self.task.await.expect("the copy task runs to its end")
    }
}

async fn fill(
    client: ClientWrapper,
    table: Table,
    statement: String,
    mut rows: mpsc::Receiver<Bytes>,
) -> Result<ClientWrapper, CopyError> {
    let server = |source| CopyError::Server { table: table.name(), source };
    let sink = client.copy_in::<_, Bytes>(statement.as_str()).await.map_err(server)?;
    let mut sink = std::pin::pin!(sink);
    let mut sent = sink.send(Bytes::from_static(&COPY_HEADER)).await;
    'rows: while let Some(mut buffer) = rows.recv().await {
        while !buffer.is_empty() {
            let piece = buffer.split_to(buffer.len().min(PIECE_BYTES_MAX));
            sent = sink.feed(piece).await;
            if sent.is_err() {
                break 'rows;
            }
        }
    }
    if sent.is_ok() {
        sent = sink.send(Bytes::from_static(&COPY_TRAILER)).await;
    }
    // Whatever went wrong while sending, only the end of the stream tells the server's own reason.
    let finished = sink.as_mut().finish().await.map_err(server);
    match (finished, sent) {
        (Err(error), _) => Err(error),
        (Ok(_), Err(error)) => Err(server(error)),
        (Ok(_), Ok(())) => Ok(client),
    }
}

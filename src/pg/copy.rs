//! One table of every segment: created and filled in one transaction with COPY FREEZE (PostgreSQL manual, COPY).
//!
//! In: encoded rows, buffer by buffer, segment by segment. Out: committed tables, or none at all. One connection each, taken
//! out of the pool and kept for the whole load; each takes its next segment as soon as it has committed the last, whatever
//! the others do. Buffers are handed over without a copy; the only await is one a buffer, never one a row.

use bytes::Bytes;
use deadpool_postgres::{ClientWrapper, Pool};
use futures_util::SinkExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;

use super::pool::{self, connect_copy};
use super::segments::{self, copy_sql, create_table_sql};
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

/// What a connection is told.
enum Message {
    /// Make the table of a segment, and begin to fill it.
    Begin { create: String, copy: String },
    /// Rows of it.
    Rows(Bytes),
    /// It is complete: commit with these statements before, and say so.
    Commit { before: String, committed: oneshot::Sender<()> },
}

/// A connection that fills one table, segment after segment.
#[derive(Debug)]
pub struct TableCopy {
    table: Table,
    messages: mpsc::Sender<Message>,
    task: JoinHandle<Result<(), CopyError>>,
}

impl TableCopy {
    /// Opens the connection.
    ///
    /// # Errors
    /// [`CopyError`].
    pub async fn open(pool: &Pool, table: Table) -> Result<Self, CopyError> {
        let client = connect_copy(pool).await?;
        let server = move |source| CopyError::Server { table: table.name(), source };
        match client.batch_execute(SET_FLUSH_AFTER).await {
            // The server's system cannot.
            Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => {}
            set => set.map_err(server)?,
        }
        let name = format!("set application_name = '{}{}'", pool::COPY, table.name());
        client.batch_execute(&name).await.map_err(server)?;
        let (messages, receiver) = mpsc::channel(2);
        let task = tokio::spawn(async move { fill_all(client, receiver).await.map_err(server) });
        Ok(TableCopy { table, messages, task })
    }

    /// Begins a segment, as soon as the one before it has committed. Returns `false` where the connection broke:
    /// [`TableCopy::close`] then says why.
    pub async fn begin(&self, segment: &Segment) -> bool {
        let create = format!("begin; {}", create_table_sql(self.table, segment));
        self.tell(Message::Begin { create, copy: copy_sql(self.table, segment) }).await
    }

    /// Hands over rows of the segment that was begun. Returns `false` as [`TableCopy::begin`].
    pub async fn send(&self, rows: Bytes) -> bool {
        rows.is_empty() || self.tell(Message::Rows(rows)).await
    }

    /// Lets the segment commit, as it ends: a segment that ends early gets its real bounds. What is returned tells when
    /// it has; where it is dropped instead, the connection broke.
    pub async fn commit(&self, segment: &Segment, is_early: bool) -> oneshot::Receiver<()> {
        let before = segments::rebound_sql(self.table, segment).filter(|_| is_early).unwrap_or_default();
        let (committed, receiver) = oneshot::channel();
        self.tell(Message::Commit { before, committed }).await;
        receiver
    }

    /// Closes the connection; a segment that was begun and not to be committed is gone.
    ///
    /// # Errors
    /// [`CopyError`]: what the server said, to anything that was sent.
    pub async fn close(self) -> Result<(), CopyError> {
        drop(self.messages);
        // The task never panics and is never aborted: it ends when its channel does.
        self.task.await.expect("the copy task runs to its end")
    }

    async fn tell(&self, message: Message) -> bool {
        self.messages.send(message).await.is_ok()
    }
}

/// Fills one table after the other, until nobody wants more.
async fn fill_all(
    client: ClientWrapper,
    mut messages: mpsc::Receiver<Message>,
) -> Result<(), tokio_postgres::Error> {
    while let Some(Message::Begin { create, copy }) = messages.recv().await {
        client.batch_execute(&create).await?;
        let Some((before, committed)) = fill(&client, &copy, &mut messages).await? else { break };
        client.batch_execute(&format!("{before}; commit")).await?;
        // Nobody waits any more when the load was given up.
        let _ = committed.send(());
    }
    Ok(())
}

/// Fills one table; returns how it shall commit, or `None` if it shall not.
async fn fill(
    client: &ClientWrapper,
    statement: &str,
    messages: &mut mpsc::Receiver<Message>,
) -> Result<Option<(String, oneshot::Sender<()>)>, tokio_postgres::Error> {
    let sink = client.copy_in::<_, Bytes>(statement).await?;
    let mut sink = std::pin::pin!(sink);
    let mut sent = sink.send(Bytes::from_static(&COPY_HEADER)).await;
    let mut end = None;
    'rows: while let Some(message) = messages.recv().await {
        let mut rows = match message {
            Message::Rows(rows) => rows,
            Message::Commit { before, committed } => {
                end = Some((before, committed));
                break;
            }
            Message::Begin { .. } => unreachable!("a segment is committed before the next one begins"),
        };
        while !rows.is_empty() {
            let piece = rows.split_to(rows.len().min(PIECE_BYTES_MAX));
            sent = sink.feed(piece).await;
            if sent.is_err() {
                break 'rows;
            }
        }
    }
    if end.is_none() && sent.is_ok() {
        // Dropped, the stream tells the server that it failed.
        return Ok(None);
    }
    if sent.is_ok() {
        sent = sink.send(Bytes::from_static(&COPY_TRAILER)).await;
    }
    // Whatever went wrong while sending, only the end of the stream tells the server's own reason.
    sink.as_mut().finish().await?;
    sent?;
    Ok(end)
}

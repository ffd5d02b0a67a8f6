//! The blocks of a branch, in order, fetched ahead of whoever connects them.
//!
//! In: a chain and the heights that are wanted. Out: their bytes, one block after the other, from the files or the nodes, by
//! the same reader and the same checks as a bulk load's. A thread reads ahead until its budget is full, whatever the length
//! of the branch; what was taken makes room. A block that cannot be had ends the feed, with the reason.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::chain::batch::Batch;
use crate::live::NewBlock;
use crate::prevouts::FingerprintKey;
use crate::replay::reader::{BatchReader, Chain, ReadError};
use crate::source::scan::BLOCK_BYTES_MAX;

/// Longest wait for the next block: a transaction may be open.
const BLOCK_WAIT_MAX: Duration = Duration::from_secs(60);
/// The same once the nodes have announced something else meanwhile.
const NEWS_WAIT_MAX: Duration = Duration::from_secs(2);
/// Least budget: a block at its largest in the hands of whoever connects it, and one on its way.
const BUDGET_BYTES_MIN: u64 = 2 * BLOCK_BYTES_MAX;

/// Why a feed ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum FeedError {
    /// A block cannot be had.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It did not come in time.
    #[error("a block did not come in time")]
    TooLate,
}

/// A block, and its room in the budget.
type Fed = Result<(NewBlock, OwnedSemaphorePermit), ReadError>;

/// Blocks on their way.
#[derive(Debug)]
pub(super) struct Feed {
    blocks: mpsc::UnboundedReceiver<Fed>,
    /// Told when nothing more fits, or everything is there.
    filled: Option<oneshot::Receiver<()>>,
    given_up: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// What the nodes announce meanwhile.
    news: Option<watch::Receiver<u64>>,
    /// Why it ended early.
    error: Option<FeedError>,
}

impl Feed {
    /// Begins to read the blocks of some heights; `budget_bytes` bounds what waits. Must be called on a runtime.
    pub(super) fn begin(
        chain: Arc<Chain>,
        heights: RangeInclusive<u32>,
        budget_bytes: u64,
        key: FingerprintKey,
    ) -> Feed {
        let (sender, blocks) = mpsc::unbounded_channel();
        let (tell_filled, filled) = oneshot::channel();
        let news = chain.node.as_ref().map(|node| node.news());
        let given_up = Arc::new(AtomicBool::new(false));
        let flags = [Arc::clone(&given_up), Arc::default()];
        let budget = u32::try_from(budget_bytes.max(BUDGET_BYTES_MIN)).unwrap_or(u32::MAX >> 3);
        let room = Arc::new(Semaphore::new(budget as usize));
        let runtime = tokio::runtime::Handle::current();
        let thread = tokio::task::spawn_blocking(move || {
            let mut tell_filled = Some(tell_filled);
            let mut reader = BatchReader::new(chain, key, flags.clone());
            let mut batch = Batch::default();
            for height in heights {
                batch.clear();
                let fed = reader.read(&(height..=height), &mut batch);
                let is_over = fed.is_err() || flags[0].load(Ordering::Relaxed);
                let fed = fed.map(|()| Bytes::from(std::mem::take(&mut batch.raw)));
                let bytes = fed.as_ref().map_or(0, |bytes| bytes.len() as u32);
                let permit = Arc::clone(&room).try_acquire_many_owned(bytes).or_else(|_| {
                    tell_filled.take().map(|filled| filled.send(()));
                    runtime.block_on(Arc::clone(&room).acquire_many_owned(bytes))
                });
                // Whoever took the receiver away wants no more.
                let Ok(permit) = permit else { return };
                if sender.send(fed.map(|bytes| (NewBlock { height, bytes }, permit))).is_err() || is_over {
                    return;
                }
            }
        });
        Feed { blocks, filled: Some(filled), given_up, thread: Some(thread), news, error: None }
    }

    /// Waits until all blocks are there, or as many as fit; false where one does not come.
    pub(super) async fn filled(&mut self) -> bool {
        // The sender is dropped with the thread's end: then all are there.
        let Some(filled) = self.filled.take() else { return true };
        if within_patience(&mut self.news, filled).await.is_none() {
            self.error = Some(FeedError::TooLate);
        }
        self.error.is_none()
    }

    /// Returns the next block; `None` after the last one, or where [`Feed::end`] has the reason.
    pub(super) async fn next(&mut self) -> Option<NewBlock> {
        match within_patience(&mut self.news, self.blocks.recv()).await {
            Some(Some(Ok((block, _room)))) => return Some(block),
            Some(Some(Err(error))) => self.error = Some(error.into()),
            Some(None) => {}
            None => self.error = Some(FeedError::TooLate),
        }
        None
    }

    /// Ends the thread; returns why the feed ended early, if it did.
    pub(super) async fn end(mut self) -> Option<FeedError> {
        self.given_up.store(true, Ordering::Relaxed);
        self.blocks.close();
        while self.blocks.recv().await.is_some() {}
        if let Some(thread) = self.thread.take() {
            // A panic of its own was logged; nothing came of it.
            let _ = thread.await;
        }
        self.error.take()
    }
}

/// Waits for what comes from a node; `None` where it does not come. A node keeps silent about a block that has left its
/// chain since it was asked: whoever has announced something else, or has connected again, is given a moment only.
async fn within_patience<T>(
    news: &mut Option<watch::Receiver<u64>>,
    awaited: impl Future<Output = T>,
) -> Option<T> {
    let changed = async {
        match news {
            Some(news) => {
                let _ = news.changed().await;
                tokio::time::sleep(NEWS_WAIT_MAX).await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        awaited = awaited => Some(awaited),
        () = changed => None,
        () = tokio::time::sleep(BLOCK_WAIT_MAX) => None,
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

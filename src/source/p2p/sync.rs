//! Header sync: from what the tree knows to the tip of each node's active chain.
//!
//! In: the header tree. Out: the tree with the nodes' headers in it, and each node's tip. A node answers `getheaders` with
//! up to 2,000 headers of its active chain after the first hash of ours that is in it. An empty answer does not tell where
//! its tip is, so the first question begins one block below ours, and lower while nothing comes. Headers are checked in
//! order as they come; what a node made up is taken back from the tree.

use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::fault::Fault;
use super::frame::HEADERS_MAX;
use super::session::AskHeaders;
use super::{Node, NodeError};
use crate::chain::header::HEADER_BYTES;
use crate::source::tree::{HeaderFault, HeaderTree};

/// Answers that do not follow what was asked for may be news that crossed the question; so many are forgiven.
const STRAY_ANSWERS_MAX: u32 = 5;
/// Headers between two lines of the log.
const TELL_EVERY: usize = 100_000;

/// The tip of a node's active chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTip {
    /// The node, as [`Node::address`] takes it.
    pub peer: usize,
    /// Index of its tip in the tree.
    pub index: u32,
    /// Whether it says that it is in initial download.
    pub is_in_initial_download: bool,
}

impl Node {
    /// Brings the tree up to the tip of every node that is connected. `base` is the best that the tree knows.
    ///
    /// # Errors
    /// No node is left, or none can be reached.
    pub async fn sync_headers(&self, tree: &mut HeaderTree, base: u32) -> Result<Vec<NodeTip>, NodeError> {
        loop {
            self.reach().await?;
            let mut tips = Vec::new();
            for peer in 0..self.inner.addresses.len() {
                let known = self.inner.lock().peers[peer].tip;
                let base = known.and_then(|hash| tree.find(&hash)).unwrap_or(base);
                let mark = tree.mark();
                let answer = self.sync_peer(peer, tree, base).await;
                tree.index_headers();
                match answer {
                    Ok(None) => {}
                    Ok(Some(index)) => {
                        let state = &mut self.inner.lock().peers[peer];
                        state.tip = Some(tree.hash(index));
                        tips.push(NodeTip {
                            peer,
                            index,
                            is_in_initial_download: state.is_in_initial_download,
                        });
                    }
                    Err(fault) => {
                        tree.take_back(mark);
                        warn!(peer = self.address(peer), "dropped the node: {fault}");
                        let mut shared = self.inner.lock();
                        shared.peers[peer].dropped.get_or_insert_with(|| fault.to_string());
                        shared.peers[peer].blame.get_or_insert(fault);
                        drop(shared);
                        self.inner.tell();
                    }
                }
            }
            if !tips.is_empty() {
                return Ok(tips);
            }
            self.check_left()?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns whether a node that is connected has headers after what was its tip.
    pub async fn has_news(&self, tree: &HeaderTree, tips: &[NodeTip]) -> bool {
        for tip in tips {
            let headers = self.ask(tip.peer, tree.locator(tip.index)).await;
            if headers.is_some_and(|headers| !headers.is_empty()) {
                return true;
            }
        }
        false
    }

    /// Returns the index of a node's tip; `None` where it went away meanwhile.
    async fn sync_peer(&self, peer: usize, tree: &mut HeaderTree, base: u32) -> Result<Option<u32>, Fault> {
        let (mut at, mut back) = (base, 1);
        let (mut tip, mut stray, mut count) = (None, 0, 0);
        loop {
            let height = tree.height(at);
            let from = if tip.is_none() { tree.ancestor(at, height.saturating_sub(back)) } else { at };
            let Some(headers) = self.ask(peer, tree.locator(from)).await else { return Ok(None) };
            if headers.is_empty() {
                // Nothing after its tip; or not even the block after `from`.
                if tip.is_some() || from == tree.root() {
                    return Ok(Some(tip.unwrap_or(from)));
                }
                back *= 4;
                continue;
            }
            let is_full = headers.len() == HEADERS_MAX;
            match add_all(tree, &headers, self.inner.headers_batch) {
                Ok(last) if tip.is_some() && tree.height(last) <= tree.height(at) => {
                    // It goes round in circles, or has reorganised: begin once more at its new tip.
                    stray += 1;
                    (tip, at, back) = (None, last, 1);
                }
                Ok(last) => {
                    let is_told = count / TELL_EVERY != (count + headers.len()) / TELL_EVERY;
                    count += headers.len();
                    if is_told {
                        info!(height = tree.height(last), "headers from the node");
                    }
                    (tip, at) = (Some(last), last);
                    if !is_full {
                        return Ok(Some(last));
                    }
                }
                Err(HeaderFault::Unlinked) if stray < STRAY_ANSWERS_MAX => stray += 1,
                Err(fault) => return Err(fault.into()),
            }
            if stray >= STRAY_ANSWERS_MAX {
                return Err(HeaderFault::Unlinked.into());
            }
        }
    }

    /// Asks a node; `None` where it is not connected, or goes away before it answers.
    async fn ask(
        &self,
        peer: usize,
        locator: Vec<crate::chain::hash::Hash32>,
    ) -> Option<Vec<[u8; HEADER_BYTES]>> {
        let commands = self.inner.lock().peers[peer].commands.clone()?;
        let (answer, answered) = oneshot::channel();
        commands.send(AskHeaders { locator, answer }).await.ok()?;
        // Its session has the clock: with it goes the sender.
        answered.await.ok()
    }
}

/// Adds headers that follow each other; the first one's parent must be known.
fn add_all(tree: &mut HeaderTree, headers: &[[u8; HEADER_BYTES]], batch: usize) -> Result<u32, HeaderFault> {
    let mut last = None;
    for header in headers {
        let index = tree.append_header(header, batch)?;
        if last.is_some_and(|last| tree.parent(index) != Some(last)) {
            return Err(HeaderFault::OutOfOrder);
        }
        last = Some(index);
    }
    last.ok_or(HeaderFault::Unlinked)
}

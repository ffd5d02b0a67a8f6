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
use super::{Node, NodeError, Peer};
use crate::chain::hash::Hash32;
use crate::chain::header::HEADER_BYTES;
use crate::source::tree::{HeaderFault, HeaderTree};

/// Answers that do not follow what was asked for may be news that crossed the question; so many are forgiven.
const STRAY_ANSWERS_MAX: u32 = 5;
/// Longest wait for one node's headers while the tip is followed: another may have them.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
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
            let tips = self.ask_tips(tree, base, None).await;
            if !tips.is_empty() {
                return Ok(tips);
            }
            self.check_left()?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Brings the tree up to the tips of the nodes that are connected now, waiting for none that is not. `known` are the
    /// tips before: a node that has announced nothing since keeps its own, unless `is_all`. One that does not answer soon
    /// is left out.
    ///
    /// # Errors
    /// [`NodeError::NoneLeft`].
    pub async fn follow_headers(
        &self,
        tree: &mut HeaderTree,
        base: u32,
        known: &[NodeTip],
        is_all: bool,
    ) -> Result<Vec<NodeTip>, NodeError> {
        self.check_left()?;
        Ok(self.ask_tips(tree, base, Some((known, is_all))).await)
    }

    async fn ask_tips(
        &self,
        tree: &mut HeaderTree,
        base: u32,
        follows: Option<(&[NodeTip], bool)>,
    ) -> Vec<NodeTip> {
        let mut tips = Vec::new();
        for peer in 0..self.inner.addresses.len() {
            let (tip_before, has_news) = {
                let state = &mut self.inner.lock().peers[peer];
                let is_connected = state.commands.is_some() && state.dropped.is_none();
                if follows.is_some() && !is_connected {
                    continue;
                }
                (state.tip, std::mem::take(&mut state.has_news))
            };
            let known = follows.and_then(|(known, _)| known.iter().find(|tip| tip.peer == peer));
            if let (Some(known), Some((_, false)), false) = (known, follows, has_news) {
                tips.push(known.clone());
                continue;
            }
            let base = tip_before.and_then(|hash| tree.find(&hash)).unwrap_or(base);
            let mark = tree.mark();
            let wait = if follows.is_some() { ANSWER_WAIT_MAX } else { Duration::MAX };
            let answer = self.sync_peer(peer, tree, base, wait).await;
            match answer {
                Ok(None) => self.inner.lock().peers[peer].has_news = true,
                Ok(Some(index)) => {
                    let state = &mut self.inner.lock().peers[peer];
                    state.tip = Some(tree.hash(index));
                    let is_in_initial_download = state.is_in_initial_download;
                    tips.push(NodeTip { peer, index, is_in_initial_download });
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
        tips
    }

    /// Returns whether a node that is away, but not dropped, had this tip when it was last asked.
    pub fn is_vouched_from_afar(&self, tip: &Hash32) -> bool {
        let shared = self.inner.lock();
        let vouches =
            |peer: &Peer| peer.dropped.is_none() && peer.commands.is_none() && peer.tip.as_ref() == Some(tip);
        shared.peers.iter().any(vouches)
    }

    /// Returns whether any node is connected.
    pub fn is_connected(&self) -> bool {
        self.inner.lock().peers.iter().any(|peer| peer.commands.is_some() && peer.dropped.is_none())
    }

    /// Returns the index of a node's tip; `None` where it went away meanwhile, or let us wait for an answer too long.
    async fn sync_peer(
        &self,
        peer: usize,
        tree: &mut HeaderTree,
        base: u32,
        wait: Duration,
    ) -> Result<Option<u32>, Fault> {
        let (mut at, mut back) = (base, 1);
        let (mut tip, mut stray, mut count) = (None, 0, 0);
        loop {
            let height = tree.height(at);
            let from = if tip.is_none() { tree.ancestor(at, height.saturating_sub(back)) } else { at };
            let asked = tokio::time::timeout(wait, self.ask(peer, tree.locator(from)));
            let Ok(Some(headers)) = asked.await else { return Ok(None) };
            if headers.is_empty() {
                // Nothing after its tip; or not even the block after `from`.
                if tip.is_some() || from == tree.root() {
                    return Ok(Some(tip.unwrap_or(from)));
                }
                back *= 4;
                continue;
            }
            let is_full = headers.len() == HEADERS_MAX;
            match add_all(tree, &headers) {
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
    async fn ask(&self, peer: usize, locator: Vec<Hash32>) -> Option<Vec<[u8; HEADER_BYTES]>> {
        let commands = self.inner.lock().peers[peer].commands.clone()?;
        let (answer, answered) = oneshot::channel();
        commands.send(AskHeaders { locator, answer }).await.ok()?;
        // Its session has the clock: with it goes the sender.
        answered.await.ok()
    }
}

/// Adds headers that follow each other; the first one's parent must be known.
fn add_all(tree: &mut HeaderTree, headers: &[[u8; HEADER_BYTES]]) -> Result<u32, HeaderFault> {
    let mut last = None;
    for header in headers {
        let index = tree.add_header(header)?;
        if last.is_some_and(|last| tree.parent(index) != Some(last)) {
            return Err(HeaderFault::OutOfOrder);
        }
        last = Some(index);
    }
    last.ok_or(HeaderFault::Unlinked)
}

//! Which chain is loaded: the nodes' if there are any, otherwise what the files suggest.
//!
//! In: the header tree, the nodes' tips, what was refused, the database's tip. Out: a chain. A node has run the scripts, so
//! its active chain counts, also against blocks that our files hold. It may be in initial download or behind, though: then
//! nothing is taken back, it is waited for. Called by the main path before every load.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tracing::{debug, info, warn};

use super::ReplayError;
use super::found::FoundBlocks;
use super::reader::Chain;
use super::reconcile::Tip;
use crate::chain::hash::{Hash32, reversed_hex};
use crate::profile::Profile;
use crate::source::{ActiveChain, HeaderTree, NodeTip};
use crate::status::Step;
use crate::stop::Stop;

/// How often a node that is behind is asked again.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long its tip must stay where it is before blocks are taken back for a chain with less work.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Most blocks that are taken back for a chain with less work. A node that would have more is taken to be behind.
const TAKE_BACK_BLOCKS_MAX: u32 = 144;
/// How often a wait is told.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// How long nodes are asked once more when everything is loaded.
const LAST_LOOK_MAX: Duration = Duration::from_secs(5);

/// Why nothing is loaded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The node says so.
    InitialDownload { height: u32 },
    /// Its chain has less work than what the database holds, and many blocks would be taken back.
    LessWork { height: u32, take_back_blocks: u32 },
    /// The same with few blocks: a block that the node refuses, or a node that is about to catch up.
    Unsettled { height: u32 },
}

impl FoundBlocks {
    /// Chooses the chain to be loaded; waits for the nodes where they are behind.
    ///
    /// # Errors
    /// No node can be used; what the server says; a signal.
    pub(super) async fn choose(
        &mut self,
        client: &Client,
        excluded: &HashSet<Hash32>,
        tip: Option<&Tip>,
        profile: &Profile,
        stop: &Stop,
    ) -> Result<Chain, ReplayError> {
        let preferred = tip.map(|tip| &tip.hash);
        let tree = self.tree(client).await?;
        if self.node.is_none() {
            let active = Arc::new(tree.active_chain(excluded, preferred));
            return Ok(Chain { files: self.files(), tree, active, node: None });
        }
        drop(tree);
        let mut told = None;
        let mut settling: Option<(Hash32, Instant)> = None;
        loop {
            stop.or(self.ask_nodes(excluded, preferred)).await??;
            let tree = self.tree(client).await?;
            let Some((chosen, active)) = self.best(&tree, excluded, preferred) else {
                self.node.iter().try_for_each(|node| node.check_left())?;
                continue;
            };
            let hash = tree.hash(chosen.index);
            profile.board().node_height(tree.height(chosen.index));
            let since = match settling {
                Some((settling, since)) if settling == hash => since,
                _ => settling.insert((hash, Instant::now())).1,
            };
            let Some(behind) = behind(&tree, &active, &chosen, preferred, since.elapsed()) else {
                if told.is_some() {
                    profile.board().step(Step::Compare);
                }
                let (files, active, node) = (self.files(), Arc::new(active), self.node.clone());
                return Ok(Chain { files, tree, active, node });
            };
            drop(tree);
            if told.is_none_or(|(at, what): (Instant, Behind)| {
                at.elapsed() > TELL_EVERY || std::mem::discriminant(&what) != std::mem::discriminant(&behind)
            }) {
                profile.board().step(Step::WaitForNode);
                told = Some((Instant::now(), behind));
                tell(behind);
            }
            stop.or(tokio::time::sleep(ASK_EVERY)).await?;
        }
    }

    /// Asks every node for its headers.
    async fn ask_nodes(
        &mut self,
        excluded: &HashSet<Hash32>,
        preferred: Option<&Hash32>,
    ) -> Result<(), ReplayError> {
        let Some(node) = self.node.clone() else { return Ok(()) };
        let tree = self.tree_mut();
        let base = tree.active_chain(excluded, preferred);
        let base = base.at(base.tip_height()).expect("a chain has a tip");
        let begin = (Instant::now(), tree.len());
        self.tips = node.sync_headers(self.tree_mut(), base).await?;
        let new = self.tree_mut().len() - begin.1;
        if new > 0 {
            info!(headers = new, seconds = begin.0.elapsed().as_secs_f64(), "headers came from the node");
        }
        Ok(())
    }

    /// Returns the tip with most work whose chain holds no block that was refused; nodes whose chains do are dropped.
    fn best(
        &self,
        tree: &HeaderTree,
        excluded: &HashSet<Hash32>,
        preferred: Option<&Hash32>,
    ) -> Option<(NodeTip, ActiveChain)> {
        let preferred = preferred.and_then(|hash| tree.find(hash));
        let mut tips = self.tips.clone();
        // Of equal ones that with the database's tip in it.
        let holds_preferred = |tip: &NodeTip| {
            preferred.is_some_and(|index| {
                tree.height(index) <= tree.height(tip.index)
                    && tree.ancestor(tip.index, tree.height(index)) == index
            })
        };
        tips.sort_by_key(|tip| std::cmp::Reverse((tree.chainwork(tip.index), holds_preferred(tip))));
        for tip in tips {
            let active = tree.chain_to(tip.index);
            let refused = (0..=active.tip_height()).find(|&height| {
                !excluded.is_empty() && active.at(height).is_some_and(|at| excluded.contains(&tree.hash(at)))
            });
            let Some(height) = refused else { return Some((tip, active)) };
            let hash = active.at(height).map(|at| reversed_hex(&tree.hash(at))).unwrap_or_default();
            let reason =
                format!("its active chain holds {hash}, which breaks a rule: see ops.invalid_blocks");
            self.node.iter().for_each(|node| node.disown(tip.peer, height, &reason));
        }
        None
    }

    /// Asks the nodes once more when everything is loaded: true if one has headers after its tip. The tree stays as it is:
    /// whoever asks still holds it, and it would be copied.
    pub(super) async fn has_node_grown(&self, tree: &HeaderTree) -> bool {
        let Some(node) = &self.node else { return false };
        let asked = tokio::time::timeout(LAST_LOOK_MAX, node.has_news(tree, &self.tips));
        asked.await.unwrap_or_else(|_| {
            debug!("the node did not answer in time; all that it had is loaded");
            false
        })
    }
}

/// Returns why a chain is not to be followed yet.
fn behind(
    tree: &HeaderTree,
    active: &ActiveChain,
    tip: &NodeTip,
    preferred: Option<&Hash32>,
    stands_for: Duration,
) -> Option<Behind> {
    let height = active.tip_height();
    if tip.is_in_initial_download {
        return Some(Behind::InitialDownload { height });
    }
    let held = preferred.and_then(|hash| tree.find(hash)).filter(|&held| tree.height(held) != u32::MAX)?;
    if active.at(tree.height(held)) == Some(held) || tree.chainwork(tip.index) >= tree.chainwork(held) {
        return None;
    }
    let take_back_blocks = tree.height(held) - tree.shared_height(active, held);
    if take_back_blocks > TAKE_BACK_BLOCKS_MAX {
        return Some(Behind::LessWork { height, take_back_blocks });
    }
    (stands_for < SETTLED_AFTER).then_some(Behind::Unsettled { height })
}

fn tell(behind: Behind) {
    match behind {
        Behind::InitialDownload { height } => {
            info!(height, "waiting for the node: it is in initial download");
        }
        Behind::LessWork { height, take_back_blocks } => warn!(
            height,
            take_back_blocks,
            "waiting for the node: its chain has less work than the database's, and nothing is taken back for that"
        ),
        Behind::Unsettled { height } => {
            info!(height, "the node's chain has less work than the database's: waiting whether it goes on");
        }
    }
}

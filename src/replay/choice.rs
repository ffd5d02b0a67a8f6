//! Which chain is loaded: the nodes' if there are any, otherwise what the files suggest.
//!
//! In: the header tree, the nodes' tips, what was refused, the database's tip. Out: a chain. A node has run the scripts, so
//! its active chain counts, also against blocks that our files hold. It may be in initial download or behind, though: then
//! nothing is taken back, it is waited for. Called by the main path before every load.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tracing::{info, warn};

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

/// Why nothing is loaded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// The node says so.
    InitialDownload { height: u32 },
    /// Its chain has less work than what the database holds, and many blocks would be taken back.
    LessWork { height: u32, take_back_blocks: u32 },
    /// The same with few blocks: a block that the node refuses, or a node that is about to catch up.
    Unsettled { height: u32 },
}

/// What the nodes' tips come to.
enum Judged {
    /// No node has said anything that counts.
    Nothing,
    Behind(Behind),
    Chain(ActiveChain),
}

/// What there is to follow.
#[derive(Debug)]
pub(crate) enum News {
    /// The database holds the active chain.
    Same,
    /// No node is connected.
    Away,
    /// The node is behind: nothing is taken back yet.
    Behind(Behind),
    /// Another chain is the active one.
    Chain(Chain),
}

/// Since when the best chain has been what it is.
#[derive(Debug, Default)]
pub(crate) struct Settling(Option<(Hash32, Instant)>);

impl Settling {
    fn note(&mut self, tip: Hash32) -> Duration {
        match self.0 {
            Some((settling, since)) if settling == tip => since.elapsed(),
            _ => {
                self.0 = Some((tip, Instant::now()));
                Duration::ZERO
            }
        }
    }
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
        let mut settling = Settling::default();
        loop {
            stop.or(self.ask_nodes(excluded, preferred)).await??;
            let tree = self.tree(client).await?;
            match self.judge(&tree, excluded, preferred, &mut settling) {
                Judged::Nothing => self.node.iter().try_for_each(|node| node.check_left())?,
                Judged::Chain(active) => {
                    if told.is_some() {
                        profile.board().step(Step::Compare);
                    }
                    let (files, active, node) = (self.files(), Arc::new(active), self.node.clone());
                    return Ok(Chain { files, tree, active, node });
                }
                Judged::Behind(behind) => {
                    drop(tree);
                    if told.is_none_or(|(at, what): (Instant, Behind)| {
                        at.elapsed() > TELL_EVERY || !what.is_alike(&behind)
                    }) {
                        profile.board().step(Step::WaitForNode);
                        told = Some((Instant::now(), behind));
                        behind.tell();
                    }
                    stop.or(tokio::time::sleep(ASK_EVERY)).await?;
                }
            }
        }
    }

    /// Chooses the chain while the tip is followed: waits for nobody. `is_all` asks the nodes that announced nothing, too.
    ///
    /// # Errors
    /// No node is left; what the server says.
    pub(crate) async fn choose_now(
        &mut self,
        client: &Client,
        excluded: &HashSet<Hash32>,
        tip: &Tip,
        settling: &mut Settling,
        is_all: bool,
    ) -> Result<News, ReplayError> {
        let tree = self.tree(client).await?;
        let chain = |found: &FoundBlocks, tree: Arc<HeaderTree>, active: ActiveChain| {
            let chain =
                Chain { files: found.files(), tree, active: Arc::new(active), node: found.node.clone() };
            let height = chain.active.tip_height();
            if height == tip.height && chain.hash(height) == tip.hash {
                News::Same
            } else {
                News::Chain(chain)
            }
        };
        let Some(node) = self.node.clone() else {
            let active = tree.active_chain(excluded, Some(&tip.hash));
            return Ok(chain(self, tree, active));
        };
        let base = tree.find(&tip.hash).unwrap_or_else(|| tree.root());
        drop(tree);
        let known = std::mem::take(&mut self.tips);
        self.tips = node.follow_headers(self.tree_mut(), base, &known, is_all).await?;
        let tree = self.tree(client).await?;
        Ok(match self.judge(&tree, excluded, Some(&tip.hash), settling) {
            Judged::Nothing => News::Away,
            // Another node, away for the moment, had that chain.
            Judged::Behind(_) if node.is_vouched_from_afar(&tip.hash) => News::Same,
            Judged::Behind(behind) => News::Behind(behind),
            Judged::Chain(active) => chain(self, tree, active),
        })
    }

    /// Looks at the tips of the nodes as they were told last.
    fn judge(
        &self,
        tree: &HeaderTree,
        excluded: &HashSet<Hash32>,
        preferred: Option<&Hash32>,
        settling: &mut Settling,
    ) -> Judged {
        let Some((chosen, active)) = self.best(tree, excluded, preferred) else { return Judged::Nothing };
        let stands_for = settling.note(tree.hash(chosen.index));
        match behind(tree, &active, &chosen, preferred, stands_for) {
            Some(behind) => Judged::Behind(behind),
            None => Judged::Chain(active),
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

impl Behind {
    /// Whether the same was told before.
    pub(crate) fn is_alike(&self, other: &Behind) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    pub(crate) fn tell(self) {
        match self {
            Behind::InitialDownload { height } => {
                info!(height, "waiting for the node: it is in initial download");
            }
            Behind::LessWork { height, take_back_blocks } => warn!(
                height,
                take_back_blocks,
                "waiting for the node: its chain has less work than the database's, and nothing is taken back for that"
            ),
            Behind::Unsettled { height } => {
                info!(
                    height,
                    "the node's chain has less work than the database's: waiting whether it goes on"
                );
            }
        }
    }
}

//! What following the tip tells: lines of the log, phases, the status board.
//!
//! In: each thing that was done. Out: one INFO line a block while there are few, one every few seconds while there are many;
//! a row of `ops.phases` with its PROFILE line for a gap that was closed; the height, the node's and the lag for
//! `satgres status`. Called by the follower only; it decides nothing.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tracing::info;

use super::RECORDED_BLOCKS_MIN;
use crate::chain::hash::reversed_hex;
use crate::live::{Followed, Tip as LiveTip};
use crate::profile::{Figures, Phase, Profile};
use crate::replay::choice::Behind;
use crate::replay::found::FoundBlocks;
use crate::replay::reader::Chain;
use crate::replay::reconcile::Tip;
use crate::status::{LiveFigures, Step};

/// Gaps of at most so many blocks are told block by block.
const LINES_MAX: u32 = 10;
/// Time between two lines of a longer one.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How often a wait for the node is told.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What was told, and what is to be told.
#[derive(Debug)]
pub(super) struct Reporter {
    profile: Profile,
    /// The step that the board shows between two blocks.
    is_live: bool,
    figures: LiveFigures,
    behind: Option<(Instant, Behind)>,
    is_away: bool,
    is_long: bool,
    /// Blocks since the last line.
    untold: Followed,
    told_at: Instant,
    /// Blocks since the gap began.
    gap: Option<(Phase, Followed)>,
}

impl Reporter {
    pub(super) fn new(profile: &Profile) -> Reporter {
        Reporter {
            profile: profile.clone(),
            is_live: false,
            figures: LiveFigures::default(),
            behind: None,
            is_away: false,
            is_long: false,
            untold: Followed::default(),
            told_at: Instant::now(),
            gap: None,
        }
    }

    /// From here on the chain is followed.
    pub(super) fn live(&mut self) {
        self.is_live = true;
        info!(height = self.figures.height, "following the tip: all that is known of the chain is queryable");
        self.profile.board().step(Step::Live);
    }

    /// What the nodes and the tree say of the tip.
    pub(super) fn nodes(&mut self, found: &FoundBlocks, tip: &Tip) {
        let Some(tree) = found.linked() else { return };
        self.figures.height = tip.height;
        self.figures.hash = reversed_hex(&tip.hash);
        if let Some(index) = tree.find(&tip.hash) {
            self.figures.block_timestamp_seconds = tree.time(index);
        }
        self.figures.is_node_connected = found.node().map(|node| node.is_connected());
        if let Some(height) = found.tips.iter().map(|tip| tree.height(tip.index)).max() {
            self.figures.node_height = Some(height);
        }
        self.profile.board().live(&self.figures, None);
    }

    /// No node is connected.
    pub(super) fn away(&mut self) {
        if !std::mem::replace(&mut self.is_away, true) && self.is_live {
            info!("no node is connected: the chain that is there is served meanwhile");
        }
    }

    /// A node is behind.
    pub(super) fn behind(&mut self, behind: Behind) {
        self.is_away = false;
        let is_due = |(at, told): &(Instant, Behind)| at.elapsed() > TELL_EVERY || !told.is_alike(&behind);
        if self.behind.as_ref().is_none_or(is_due) {
            self.profile.board().step(Step::WaitForNode);
            self.behind = Some((Instant::now(), behind));
            behind.tell();
        }
    }

    /// Blocks are about to be connected.
    pub(super) fn begin(&mut self, fork_height: u32, tip: &LiveTip, target: u32) {
        self.settle();
        self.is_long = target.saturating_sub(fork_height) > LINES_MAX;
        if fork_height == tip.height {
            self.gap.get_or_insert_with(|| (self.profile.phase(), Followed::default()));
        }
        if self.is_long {
            info!(from = fork_height + 1, to = target, "connecting blocks");
            self.told_at = Instant::now();
        }
    }

    /// A block was connected, or a reorg followed.
    pub(super) fn followed(&mut self, chain: &Chain, followed: &Followed) {
        self.figures.blocks = u64::from(followed.blocks);
        self.figures.reorgs = u64::from(followed.depth > 0);
        self.figures.connect_seconds = followed.seconds;
        self.figures.height = followed.height;
        self.figures.hash = reversed_hex(&followed.hash);
        self.figures.block_timestamp_seconds =
            chain.active.at(followed.height).map_or(0, |index| chain.tree.time(index));
        self.profile.board().live(&self.figures, Some(chain.node.is_some()));
        (self.figures.blocks, self.figures.reorgs) = (0, 0);
        if followed.depth == 0
            && let Some((_, gap)) = &mut self.gap
        {
            add(gap, followed);
        }
        add(&mut self.untold, followed);
        if !self.is_long || followed.depth > 0 || self.told_at.elapsed() >= LINE_EVERY {
            self.tell();
        }
    }

    fn tell(&mut self) {
        let Followed { height, hash, depth, blocks, counts, seconds, .. } = std::mem::take(&mut self.untold);
        self.told_at = Instant::now();
        if blocks == 0 && depth == 0 {
            return;
        }
        let (hash, txs, bytes) = (reversed_hex(&hash), counts.txs, counts.block_bytes);
        let seconds = (seconds * 1e3).round() / 1e3;
        match (depth, blocks) {
            (0, 1) => info!(height, hash, txs, bytes, seconds, "connected block"),
            (0, _) => info!(height, hash, blocks, txs, bytes, seconds, "connected blocks"),
            _ => info!(height, hash, depth, blocks, txs, bytes, seconds, "followed a reorg"),
        }
    }

    /// The database holds the active chain.
    pub(super) async fn caught_up(&mut self, client: &Client) {
        // Whoever is asked has just said so.
        self.profile.board().live(&self.figures, Some(self.figures.is_node_connected == Some(true)));
        self.tell();
        self.settle();
        if let Some((phase, gap)) = self.gap.take()
            && u64::from(gap.blocks) >= RECORDED_BLOCKS_MIN
        {
            let figures = Figures {
                height: Some(gap.height),
                blocks: Some(u64::from(gap.blocks)),
                rows: Some(gap.counts.txs + gap.counts.inputs + gap.counts.outputs),
                bytes: Some(gap.counts.block_bytes),
                ..Figures::default()
            };
            self.profile.ended(&phase, "Connected blocks", figures).record(client).await;
        }
    }

    /// What was waited for is there.
    fn settle(&mut self) {
        if self.is_away {
            info!("the node is back");
        }
        self.is_away = false;
        if self.behind.take().is_some() {
            self.profile.board().step(if self.is_live { Step::Live } else { Step::Compare });
        }
    }
}

fn add(sum: &mut Followed, followed: &Followed) {
    (sum.height, sum.hash) = (followed.height, followed.hash);
    sum.depth += followed.depth;
    sum.blocks += followed.blocks;
    sum.counts.txs += followed.counts.txs;
    sum.counts.inputs += followed.counts.inputs;
    sum.counts.outputs += followed.counts.outputs;
    sum.counts.block_bytes += followed.counts.block_bytes;
    sum.seconds += followed.seconds;
}

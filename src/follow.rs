//! Follows the tip: what the nodes or the block files have come to is brought into the database, block by block.
//!
//! In: a filled database, the nodes' announcements, the block files as they grow. Out: the active chain's blocks connected,
//! those of a left branch disconnected, one INFO line each or for many; or the word that a gap is better loaded in bulk.
//! One loop: look, choose, connect, wait. The choice is that of the bulk load ([`crate::replay`]): the nodes' active chain
//! decides, without nodes the most work of the files. Called by the service, under the lock of `satgres run`; it never
//! changes the database but through [`Connector`] and the list of refused blocks.

pub mod cost;
mod feed;
mod rates;
mod report;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{Object, Pool};
use tokio::sync::watch;
use tracing::{info, warn};

use self::cost::{Connected, Gap, Rates, Way};
use self::feed::{Feed, FeedError};
use self::report::Reporter;
use crate::chain::hash::{Hash32, reversed_hex};
use crate::live::{Change, Connector, Followed, LiveError, LiveOptions};
use crate::pg::pool;
use crate::pg::reaction::{Trouble, trouble};
use crate::prevouts::FingerprintKey;
use crate::profile::Profile;
use crate::replay::choice::{News, Settling};
use crate::replay::found::FoundBlocks;
use crate::replay::reader::{Chain, ReadError};
use crate::replay::reconcile::{self, Tip};
use crate::replay::{ReplayError, ReplayOptions};
use crate::source::NodeError;
use crate::status::Step;
use crate::stop::Stop;

/// How often nodes are asked although they announced nothing: one may have gone back, which nobody announces.
const ASK_ALL_EVERY: Duration = Duration::from_secs(10);
/// How often the block files are looked at where no node is there to tell.
const FILES_EVERY: Duration = Duration::from_secs(2);
/// How often a node that is behind is asked again.
const BEHIND_EVERY: Duration = Duration::from_secs(1);
/// How soon after one look the next may come: announcements of a burst are answered together.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How long a start waits for a node before it follows without it: the chain that is there can be queried.
const NODE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Pause before another try at what another session was in the way of.
const CONFLICT_PAUSE: Duration = Duration::from_secs(1);
/// Tries at the same tip after which a failure is the server's.
const CONFLICTS_MAX: u32 = 30;
/// Blocks of which a phase is recorded: fewer say nothing about a rate.
const RECORDED_BLOCKS_MIN: u64 = 20;

/// What the tip is followed with.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// What connects blocks.
    pub live: LiveOptions,
    /// Most bytes of blocks that wait to be connected.
    pub feed_bytes: u64,
    /// Most bytes of blocks that have arrived from nodes or are on their way.
    pub window_bytes: u64,
    /// Most blocks that are connected one by one; `None` leaves it to the rates.
    pub threshold_blocks: Option<u32>,
    /// Whether a start ends only when a node has said that everything is there.
    pub until_synced: bool,
}

/// Follows the tip of one database.
#[derive(Debug)]
pub struct Follower<'a> {
    pool: &'a Pool,
    found: &'a mut FoundBlocks,
    options: FollowOptions,
    /// Where the UTXO set of bulk loads is.
    replay: &'a ReplayOptions,
    profile: Profile,
    stop: Stop,
    client: Object,
    connector: Connector,
    key: FingerprintKey,
    rates: Rates,
    held_bytes: u64,
    connected: Connected,
    settling: Settling,
    /// Blocks of the files that are not written to their end yet.
    unwritten: HashSet<Hash32>,
    /// What was said last of files that cannot be looked at.
    files_fault: Option<String>,
    news: Option<watch::Receiver<u64>>,
    asked_all_at: Option<Instant>,
    reporter: Reporter,
    conflicts: u32,
    stale_count: usize,
    /// The tip that was last recorded as a node's.
    confirmed: Option<Hash32>,
}

/// What one look came to.
enum Looked {
    /// The database holds the active chain.
    Same,
    /// No node is connected.
    Away,
    /// The node is behind.
    Behind,
    /// Something was done: look again.
    Moved,
    /// The gap is better loaded in bulk.
    Bulk,
}

impl<'a> Follower<'a> {
    /// Begins at the tip of the database; `None` where it must be filled first, or a load be finished.
    ///
    /// # Errors
    /// What the server says.
    pub async fn open(
        pool: &'a Pool,
        found: &'a mut FoundBlocks,
        options: FollowOptions,
        replay: &'a ReplayOptions,
        profile: &Profile,
        stop: &Stop,
    ) -> Result<Option<Follower<'a>>, ReplayError> {
        let mut client = pool.get().await.map_err(pool::Error::from)?;
        let connector = match Connector::open(&mut client, options.live.clone()).await {
            Ok(connector) => connector,
            Err(LiveError::Empty | LiveError::NotAttached) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let key = FingerprintKey::random()
            .map_err(|source| ReplayError::System { what: "drawing a fingerprint key", source })?;
        let (rates, held_bytes) = rates::measured(&client).await?;
        let node = found.node();
        node.iter().for_each(|node| node.set_window(options.window_bytes));
        Ok(Some(Follower {
            pool,
            options,
            replay,
            profile: profile.clone(),
            stop: stop.clone(),
            client,
            connector,
            key,
            rates,
            held_bytes,
            connected: Connected::default(),
            settling: Settling::default(),
            unwritten: HashSet::new(),
            files_fault: None,
            news: node.as_ref().map(|node| node.news()),
            asked_all_at: None,
            reporter: Reporter::new(profile),
            conflicts: 0,
            stale_count: usize::MAX,
            confirmed: None,
            found,
        }))
    }

    /// Returns the height of the database's tip.
    pub fn height(&self) -> u32 {
        self.connector.tip().height
    }

    /// Closes the gap that there is at the start. [`Way::Bulk`]: it is better loaded in bulk, and nothing of it was
    /// connected.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub async fn catch_up(&mut self) -> Result<Way, ReplayError> {
        let began = Instant::now();
        let mut pause = LOOK_PAUSE;
        self.profile.board().step(Step::Compare);
        loop {
            let looked = self.stop.clone().or(self.look(true)).await??;
            match looked {
                Looked::Same => return Ok(Way::Live),
                Looked::Bulk => return Ok(Way::Bulk),
                Looked::Moved => continue,
                Looked::Away if self.options.until_synced => {
                    let Some(node) = self.found.node() else { return Ok(Way::Live) };
                    self.stop.or(node.reach()).await??;
                }
                Looked::Away if began.elapsed() > NODE_WAIT_MAX => {
                    warn!(
                        "no node is connected: the chain that is there is served, and followed once one is"
                    );
                    return Ok(Way::Live);
                }
                Looked::Away => pause = Duration::from_millis(100),
                Looked::Behind => pause = BEHIND_EVERY,
            }
            self.stop.or(tokio::time::sleep(pause)).await?;
        }
    }

    /// Follows the tip until a gap is better loaded in bulk.
    ///
    /// # Errors
    /// [`ReplayError::Stopped`] by a signal, and what cannot be waited out here: the server went away, no node is left, a
    /// file is damaged.
    pub async fn follow(&mut self) -> Result<(), ReplayError> {
        self.reporter.live();
        self.connector.prepare(&mut self.client).await?;
        let mut is_due = true;
        loop {
            let is_all = self.asked_all_at.is_none_or(|at| at.elapsed() >= ASK_ALL_EVERY);
            let stop = self.stop.clone();
            let wait = match stop.or(self.look(is_all || is_due)).await?? {
                Looked::Bulk => return Ok(()),
                Looked::Moved => Duration::ZERO,
                Looked::Behind => BEHIND_EVERY,
                Looked::Same | Looked::Away if self.news.is_some() => ASK_ALL_EVERY,
                Looked::Same | Looked::Away => FILES_EVERY,
            };
            is_due = matches!(wait, BEHIND_EVERY);
            stop.or(self.wait(wait)).await?;
        }
    }

    /// Waits for an announcement, at most so long.
    async fn wait(&mut self, longest: Duration) {
        if longest.is_zero() {
            return;
        }
        match &mut self.news {
            Some(news) => {
                let _ = tokio::time::timeout(longest, news.changed()).await;
                tokio::time::sleep(LOOK_PAUSE).await;
            }
            None => tokio::time::sleep(longest).await,
        }
    }

    /// Looks once at what there is to follow, and does it.
    async fn look(&mut self, is_all: bool) -> Result<Looked, ReplayError> {
        if let Some(news) = &mut self.news {
            news.mark_unchanged();
            if is_all {
                self.asked_all_at = Some(Instant::now());
            }
        } else {
            self.look_at_files().await?;
        }
        let mut excluded = reconcile::invalid_blocks(&self.client).await?;
        excluded.extend(&self.unwritten);
        let tip = self.tip();
        let news = self.found.choose_now(&self.client, &excluded, &tip, &mut self.settling, is_all).await?;
        self.reporter.nodes(self.found, &tip);
        match news {
            News::Same => {
                if self.confirmed != Some(tip.hash) {
                    self.found.record_confirmed(&self.client, &tip).await?;
                    self.confirmed = Some(tip.hash);
                }
                self.reporter.caught_up(&self.client).await;
                Ok(Looked::Same)
            }
            News::Away => {
                self.reporter.away();
                Ok(Looked::Away)
            }
            News::Behind(behind) => {
                self.reporter.behind(behind);
                Ok(Looked::Behind)
            }
            News::Chain(chain) => self.go_to(Arc::new(chain)).await,
        }
    }

    /// Takes in what a node has appended to the files. What cannot be read of them ends nothing: what is loaded is served,
    /// and they are looked at again.
    async fn look_at_files(&mut self) -> Result<(), ReplayError> {
        match self.found.glance(&self.client).await {
            Ok(is_more) => {
                self.files_fault = None;
                if is_more {
                    self.unwritten.clear();
                }
            }
            Err(ReplayError::Source(error)) if self.found.linked().is_some() => {
                let fault = error.to_string();
                if self.files_fault.as_ref() != Some(&fault) {
                    warn!(%error, "the block files cannot be looked at; all that they held is served, and they are tried again");
                }
                self.files_fault = Some(fault);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn tip(&self) -> Tip {
        let tip = self.connector.tip();
        Tip { height: tip.height, hash: tip.hash }
    }

    /// Goes as far towards the tip of a chain as one step leads.
    async fn go_to(&mut self, chain: Arc<Chain>) -> Result<Looked, ReplayError> {
        let tip = self.connector.tip().clone();
        let Some(held) = chain.tree.find(&tip.hash) else {
            // Somebody else has moved the tip of the database.
            return Err(ReplayError::Live(LiveError::Unlinked {
                height: tip.height,
                why: "the tip is not known",
            }));
        };
        let fork_height = chain.tree.shared_height(&chain.active, held);
        let gap = self.gap(&chain, fork_height).await?;
        let rates = self.connected.applied_to(self.rates);
        let target = match cost::way(&gap, &rates, self.options.threshold_blocks) {
            Way::Live => chain.active.tip_height(),
            Way::Bulk if fork_height < tip.height => reorg_target(&chain, fork_height, tip.chainwork),
            Way::Bulk => {
                info!(
                    blocks = gap.blocks,
                    bytes = gap.bytes,
                    live_seconds = rates.live_seconds(&gap).round(),
                    bulk_seconds = rates.bulk_load_seconds(&gap).round(),
                    threshold_blocks = self.options.threshold_blocks,
                    "the gap is loaded in bulk"
                );
                return Ok(Looked::Bulk);
            }
        };
        self.reporter.begin(fork_height, &tip, target);
        let mut feed = self.feed(&chain, fork_height, target)?;
        let outcome = if fork_height < tip.height {
            match feed.filled().await {
                true => self.reorganise(&chain, fork_height, target, &mut feed).await,
                false => Ok(()),
            }
        } else {
            self.connect(&chain, &mut feed).await
        };
        let ended = feed.end().await;
        chain.node.iter().for_each(|node| node.end());
        match (outcome, ended) {
            // Without the block that could not be had, nothing else was wrong.
            (Ok(()) | Err(LiveError::Unlinked { .. }), Some(error)) => {
                self.react_to_feed(&chain, error).await
            }
            (Err(error), _) => self.react(&chain, error).await,
            (Ok(()), None) => {
                self.conflicts = 0;
                self.record_stale(&chain).await?;
                if fork_height < tip.height {
                    let active = Arc::clone(&chain.active);
                    // Nobody else may hold the tree: it would be copied.
                    drop(chain);
                    self.found.forget_disconnected(&active);
                }
                Ok(Looked::Moved)
            }
        }
    }

    async fn gap(&self, chain: &Chain, fork_height: u32) -> Result<Gap, ReplayError> {
        let heights = fork_height + 1..=chain.active.tip_height();
        let set_bytes = match crate::prevouts::newest_checkpoint(&self.replay.utxos, fork_height) {
            None => self.held_bytes,
            Some(height) => {
                let connected = "select coalesce(sum(size), 0)::int8 from chain.blocks where height > $1";
                let row = self.client.query_one(connected, &[&(height as i32)]).await;
                let what = "summing blocks since a checkpoint";
                row.map_err(|source| ReplayError::Server { what, source })?.get::<_, i64>(0) as u64
            }
        };
        Ok(Gap {
            blocks: heights.clone().count() as u64,
            bytes: heights.map(|height| chain.block_bytes(height)).sum(),
            set_bytes,
        })
    }

    /// Begins to fetch what is above the fork.
    fn feed(&self, chain: &Arc<Chain>, fork_height: u32, target: u32) -> Result<Feed, ReplayError> {
        if let Some(node) = &chain.node {
            node.begin(chain.wishes_to(target), fork_height + 1, &self.found.shares(chain))?;
        }
        Ok(Feed::begin(
            Arc::clone(chain),
            fork_height + 1..=target,
            self.options.feed_bytes,
            self.key.clone(),
        ))
    }

    /// Connects blocks on top of the tip, each in a transaction of its own.
    async fn connect(&mut self, chain: &Chain, feed: &mut Feed) -> Result<(), LiveError> {
        while let Some(block) = feed.next().await {
            let change = Change { fork_height: self.connector.tip().height, blocks: vec![block] };
            let followed = self.connector.follow(&mut self.client, &change).await?;
            self.note(chain, &followed);
            if self.stop.is_asked() {
                break;
            }
        }
        Ok(())
    }

    /// Goes back to the fork and up the other branch, in one transaction.
    async fn reorganise(
        &mut self,
        chain: &Chain,
        fork_height: u32,
        target: u32,
        feed: &mut Feed,
    ) -> Result<(), LiveError> {
        let new_tip = chain.hash(target);
        let next = async || feed.next().await;
        let followed =
            self.connector.follow_branch(&mut self.client, fork_height, Some(new_tip), next).await?;
        self.note(chain, &followed);
        Ok(())
    }

    fn note(&mut self, chain: &Chain, followed: &Followed) {
        self.profile.step_done();
        if followed.depth == 0 {
            let seconds = Duration::from_secs_f64(followed.seconds);
            self.connected.note(u64::from(followed.blocks), followed.counts.block_bytes, seconds);
        }
        self.held_bytes += followed.counts.block_bytes;
        self.reporter.followed(chain, followed);
    }

    /// Does what an error of the connector asks for.
    async fn react(&mut self, chain: &Chain, error: LiveError) -> Result<Looked, ReplayError> {
        match error {
            LiveError::Invalid { height, hash, reason } => {
                self.refuse(chain, height, &hash, &reason.to_string()).await?;
                Ok(Looked::Moved)
            }
            // The reader proved it: so it is memory that is not to be trusted.
            LiveError::Damaged { .. } => Err(error.into()),
            LiveError::Fork { .. } | LiveError::Unlinked { .. } if self.conflicts < CONFLICTS_MAX => {
                self.conflicts += 1;
                Ok(Looked::Moved)
            }
            error if trouble(&error) == Some(Trouble::Conflict) && self.conflicts < CONFLICTS_MAX => {
                self.conflicts += 1;
                warn!(%error, "another session was in the way of a block; trying again");
                tokio::time::sleep(CONFLICT_PAUSE).await;
                self.client = self.pool.get().await.map_err(pool::Error::from)?;
                self.connector = Connector::open(&mut self.client, self.options.live.clone()).await?;
                Ok(Looked::Moved)
            }
            error => Err(error.into()),
        }
    }

    /// Does what a block that cannot be had asks for.
    async fn react_to_feed(&mut self, chain: &Chain, error: FeedError) -> Result<Looked, ReplayError> {
        match error {
            FeedError::TooLate => {
                info!("{error}: asking the nodes for their chain again");
                Ok(Looked::Moved)
            }
            FeedError::Read(ReadError::Invalid { height, hash, rule, .. }) => {
                self.refuse(chain, height, &hash, &rule.to_string()).await?;
                Ok(Looked::Moved)
            }
            FeedError::Read(ReadError::Node { source: NodeError::Stopped, .. }) => Ok(Looked::Moved),
            FeedError::Read(ReadError::Node { source, .. }) if self.found.has_nodes_left() => {
                warn!(%source, "choosing the chain again with the nodes that are left");
                tokio::time::sleep(BEHIND_EVERY).await;
                Ok(Looked::Moved)
            }
            FeedError::Read(ReadError::Node { source, .. }) => Err(source.into()),
            FeedError::Read(ReadError::Damaged { height, hash, .. }) if chain.is_unwritten(height)? => {
                self.unwritten.insert(hash);
                Ok(Looked::Moved)
            }
            FeedError::Read(error) => {
                if let Some((height, hash)) = error.moved()
                    && self.found.find_again(&self.client, height, &hash).await?
                {
                    return Ok(Looked::Moved);
                }
                Err(ReplayError::Block(error))
            }
        }
    }

    /// Records a block that breaks a rule: the next choice leaves it out, and drops the nodes whose chain holds it.
    async fn refuse(&self, chain: &Chain, height: u32, hash: &Hash32, rule: &str) -> Result<(), ReplayError> {
        let location = chain.location(height);
        let (file, offset) = (chain.files.name(location), location.offset);
        warn!(height, hash = reversed_hex(hash), file, offset, rule, "block refused");
        reconcile::record_invalid(&self.client, hash, height, rule, &file, offset).await
    }

    /// Lists the blocks of other branches that the files have come to hold.
    async fn record_stale(&mut self, chain: &Chain) -> Result<(), ReplayError> {
        if chain.files.paths().is_empty() {
            return Ok(());
        }
        let count = chain.tree.stale_blocks(&chain.active).len();
        if count != self.stale_count {
            reconcile::record_stale_blocks(&mut self.client, chain).await?;
            self.stale_count = count;
        }
        Ok(())
    }
}

/// How far a reorg to a long branch goes in its one transaction: to where the new branch has more work than the old one, so
/// that readers see one or the other; what follows is a gap like any other. A branch with less work, which a node may
/// decide for, is followed to its end.
fn reorg_target(chain: &Chain, fork_height: u32, old_work: u128) -> u32 {
    let heights = fork_height + 1..=chain.active.tip_height();
    let work = |height| chain.active.at(height).map_or(0, |index| chain.tree.chainwork(index));
    heights.clone().find(|&height| work(height) > old_work).unwrap_or_else(|| chain.active.tip_height())
}

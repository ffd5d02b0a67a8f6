//! Live sync: connects and disconnects blocks row by row, in the database.
//!
//! In: blocks on top of the tip, or of a block below it, fetched beforehand. Out: rows, as the replay would have written
//! them, byte for byte. A block that follows the tip is one transaction; a reorg of any depth is one transaction: readers
//! see the old branch or the new one, and a kill at any moment leaves either. A block that breaks a rule changes nothing.
//! Called by the service in LIVE, by one task at a time, under the lock of `satgres run`. It never asks a node, never
//! chooses a branch, and remembers nothing that has not committed.
//!
//! Measured (release build, PostgreSQL 15, 13 segments of a million transactions, full blocks of 2,419 transactions with 6,300
//! inputs; two cores that compilers kept busy at a load of 9, so ratios only): 445 ms a block, of which COPY of inputs
//! 162, of outputs 120 (three indexes in random order each), txids to numbers 95, coins 71, COPY of transactions 25. With
//! the foreign keys present 581 ms, 31 % more, and disconnecting a block takes 65 ms more: they are added when the
//! segment is complete. INSERT of unnested arrays takes 1.3 times as long as COPY, INSERT from a table of the same rows as long:
//! the indexes cost, not the way in.

mod caches;
pub(crate) mod disconnect;
mod lookup;
pub(crate) mod segment;
mod tip;
mod write;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio_postgres::{Client, Transaction};
use tracing::warn;

use self::caches::{Caches, Overlay};
pub use self::lookup::Hits;
pub use self::tip::Tip;
pub use self::write::{BLOCK_CHANNEL, REORG_CHANNEL};
use crate::chain::batch::{Batch, tx_num};
use crate::chain::block::{BlockError, DamagedBlock, InvalidBlock, parse_block};
use crate::chain::hash::{Hash32, reversed_hex};
use crate::network::Network;
use crate::pg::segments::Counts;
use crate::prevouts::{ConnectError, FingerprintKey, ResolveError};
use crate::rows::{Encoded, Store, encode_batch};

/// Heights of a live segment: two weeks.
pub const SEGMENT_BLOCKS: u32 = 2_016;
/// A segment is made ahead when so few heights are left in the last one.
const AHEAD_BLOCKS: u32 = 72;
/// How long a reorg waits for readers of a segment that it drops, and a segment made ahead for anything.
const LOCK_TIMEOUT: &str = "10s";

/// Begins a transaction. Look-ups are few rows out of many: the planner must never think of reading whole tables, which
/// it would where statistics are old.
const BEGIN: &str = "set local enable_hashjoin = off; set local enable_mergejoin = off; set local enable_seqscan = off; \
     set local jit = off; set local lock_timeout = '";

/// What a connector is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// The network, for its rules.
    pub network: Network,
    /// What is stored of what could be left out.
    pub store: Store,
    /// Heights of a live segment; [`SEGMENT_BLOCKS`] but in tests.
    pub segment_blocks: u32,
    /// Most bytes of recent unspent outputs; 0: none are remembered.
    pub coin_cache_bytes: u64,
    /// Buckets of the TxNumCache; 0: no number is remembered.
    pub txnum_cache_buckets: u64,
    /// Transactions in each.
    pub txnum_cache_bucket_size: u64,
}

/// A block to be connected.
#[derive(Clone, Debug)]
pub struct NewBlock {
    /// Its height.
    pub height: u32,
    /// The whole block as a node sends it.
    pub bytes: Bytes,
}

/// What is to be followed: the blocks above a fork, in order. Without a reorg the fork is the tip.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Height of the last block that stays.
    pub fork_height: u32,
    /// The blocks above it.
    pub blocks: Vec<NewBlock>,
}

/// What was followed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Followed {
    /// Height of the tip now.
    pub height: u32,
    /// Its hash, internal byte order.
    pub hash: Hash32,
    /// Blocks disconnected.
    pub depth: u32,
    /// Blocks connected.
    pub blocks: u32,
    /// Rows and bytes of the blocks connected.
    pub counts: Counts,
    /// Where their coins came from.
    pub hits: Hits,
    /// How long it took.
    pub seconds: f64,
}

/// Why a block is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReason {
    /// By itself.
    #[error(transparent)]
    Block(#[from] InvalidBlock),
    /// In the light of the chain before it.
    #[error(transparent)]
    Rule(#[from] ResolveError),
}

/// Why blocks were not followed. Of blocks on top of the tip those before the one named are connected; of a reorg nothing.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// A block breaks a rule: record it, and choose again without it.
    #[error("invalid block {} at height {height}: {reason}", reversed_hex(hash))]
    Invalid {
        /// Its height.
        height: u32,
        /// Its hash, internal byte order.
        hash: Hash32,
        /// The rule.
        reason: InvalidReason,
    },
    /// The bytes are not the block that its header commits to: drop who sent them, and ask elsewhere.
    #[error("damaged block {} at height {height}: {damage}", reversed_hex(hash))]
    Damaged {
        /// Its height.
        height: u32,
        /// Its hash, internal byte order.
        hash: Hash32,
        /// What is wrong with it.
        damage: DamagedBlock,
    },
    /// A block does not follow the one before: choose again.
    #[error("the block given for height {height} does not follow: {why}")]
    Unlinked {
        /// The height.
        height: u32,
        /// In which way.
        why: &'static str,
    },
    /// The fork is above the tip: choose again.
    #[error("the fork at height {fork_height} is above the tip at height {height}")]
    Fork {
        /// Height of the fork.
        fork_height: u32,
        /// Height of the tip.
        height: u32,
    },
    /// The database holds no block yet: load in bulk first.
    #[error("the database has no block to go on from")]
    Empty,
    /// Segments wait for their indexes, or were left unfinished: restore them first.
    #[error("segments above the tip are not attached yet")]
    NotAttached,
    /// The server refused or went away: open a connector anew. Whether the last transaction committed is in the database.
    #[error("{what}")]
    Server {
        /// What was being done.
        what: &'static str,
        /// What the server said.
        source: tokio_postgres::Error,
    },
    /// The system gives no randomness, or a thread died: a defect or a broken machine.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl LiveError {
    fn server(what: &'static str) -> impl Fn(tokio_postgres::Error) -> LiveError {
        move |source| LiveError::Server { what, source }
    }

    fn system(what: &'static str) -> impl Fn(std::io::Error) -> LiveError {
        move |source| LiveError::System { what, source }
    }

    /// Of coins that are in memory only.
    fn of_coins(error: ConnectError) -> LiveError {
        LiveError::System { what: "keeping the coins of a block", source: std::io::Error::other(error) }
    }
}

/// Connects and disconnects blocks.
#[derive(Debug)]
pub struct Connector {
    options: LiveOptions,
    key: Arc<FingerprintKey>,
    caches: Caches,
    tip: Tip,
}

impl Connector {
    /// Reads the tip; nothing is changed.
    ///
    /// # Errors
    /// [`LiveError::Empty`] in a database without blocks, [`LiveError::NotAttached`] in one that is being loaded; what the
    /// server says.
    pub async fn open(client: &mut Client, options: LiveOptions) -> Result<Connector, LiveError> {
        let unattached = "select exists (select from ops.segments where state in ('loading', 'loaded'))";
        let row = client.query_one(unattached, &[]).await.map_err(LiveError::server("listing segments"))?;
        if row.get(0) {
            return Err(LiveError::NotAttached);
        }
        let tip = Tip::read(client, None).await?;
        let key = FingerprintKey::random().map_err(LiveError::system("drawing a fingerprint key"))?;
        let caches = Caches::new(&options, &key);
        Ok(Connector { options, key: Arc::new(key), caches, tip })
    }

    /// Makes the segment of the next block if there is none: a service that stays has it ready, one that ends at the tip
    /// leaves none behind.
    ///
    /// # Errors
    /// What the server says.
    pub async fn prepare(&mut self, client: &mut Client) -> Result<(), LiveError> {
        self.make_ahead(client, self.tip.height + 1).await
    }

    /// Returns the tip as this connector left or found it.
    pub fn tip(&self) -> &Tip {
        &self.tip
    }

    /// Follows the chain: blocks on top of the tip in one transaction each, a reorg in one.
    ///
    /// # Errors
    /// [`LiveError`], by what to do. After [`LiveError::Server`] open a connector anew.
    pub async fn follow(&mut self, client: &mut Client, change: &Change) -> Result<Followed, LiveError> {
        let start = Instant::now();
        if change.fork_height > self.tip.height {
            let (fork_height, height) = (change.fork_height, self.tip.height);
            return Err(LiveError::Fork { fork_height, height });
        }
        if change.fork_height < self.tip.height {
            let new_tip = change.blocks.last().map(last_hash);
            let mut blocks = change.blocks.iter().cloned();
            return self.follow_branch(client, change.fork_height, new_tip, async || blocks.next()).await;
        }
        let mut followed = Followed::default();
        for block in &change.blocks {
            self.connect(client, block, &mut followed).await?;
        }
        Ok(self.followed(client, followed, start).await)
    }

    /// Follows a reorg in one transaction: back to the fork, and up the branch whose last block is `new_tip`; `None`: no
    /// further. `next` gives the blocks in order, so that a branch of any length need not stand in memory.
    ///
    /// # Errors
    /// As [`Connector::follow`]; [`LiveError::Unlinked`] where `next` ends before the new tip: nothing was changed.
    pub async fn follow_branch(
        &mut self,
        client: &mut Client,
        fork_height: u32,
        new_tip: Option<Hash32>,
        next: impl AsyncFnMut() -> Option<NewBlock>,
    ) -> Result<Followed, LiveError> {
        let start = Instant::now();
        let followed = self.reorganise(client, fork_height, new_tip, next, start).await?;
        Ok(self.followed(client, followed, start).await)
    }

    /// Says where the chain was followed to, and makes the next segment ahead.
    async fn followed(&mut self, client: &mut Client, done: Followed, start: Instant) -> Followed {
        let (height, hash) = (self.tip.height, self.tip.hash);
        let followed = Followed { height, hash, seconds: start.elapsed().as_secs_f64(), ..done };
        self.look_ahead(client).await;
        followed
    }

    /// Connects one block on top of the tip.
    async fn connect(
        &mut self,
        client: &mut Client,
        block: &NewBlock,
        followed: &mut Followed,
    ) -> Result<(), LiveError> {
        let parsed = self.parse(&self.tip, block).await?;
        let transaction = begin(client).await?;
        self.check_tip(&transaction).await?;
        let mut overlay = Overlay::default();
        let tip = self.add(&transaction, &mut overlay, parsed, followed).await?;
        transaction.commit().await.map_err(LiveError::server("committing a block"))?;
        self.caches.apply(&overlay);
        self.tip = tip;
        Ok(())
    }

    /// Goes back to the fork and up the other branch.
    async fn reorganise(
        &mut self,
        client: &mut Client,
        fork_height: u32,
        new_tip: Option<Hash32>,
        mut next: impl AsyncFnMut() -> Option<NewBlock>,
        start: Instant,
    ) -> Result<Followed, LiveError> {
        let transaction = begin(client).await?;
        self.check_tip(&transaction).await?;
        let mut tip = Tip::read(&transaction, Some(fork_height)).await?;
        if tip.height != fork_height {
            return Err(LiveError::Empty);
        }
        let depth = disconnect::disconnect(&transaction, fork_height).await?;
        let mut overlay = Overlay::cut_at(tx_num(fork_height + 1, 0));
        let mut done = Followed { depth, ..Followed::default() };
        let new_tip = new_tip.unwrap_or(tip.hash);
        self.record(&transaction, fork_height, depth, &new_tip).await?;
        while tip.hash != new_tip {
            let height = tip.height + 1;
            let why = "the branch ends before its tip";
            let block = next().await.ok_or(LiveError::Unlinked { height, why })?;
            let parsed = self.parse(&tip, &block).await?;
            tip = self.add(&transaction, &mut overlay, parsed, &mut done).await?;
        }
        let seconds = "update ops.reorgs set at = clock_timestamp(), seconds = $1 \
             where reorg_id = (select max(reorg_id) from ops.reorgs)";
        transaction
            .execute(seconds, &[&start.elapsed().as_secs_f64()])
            .await
            .map_err(LiveError::server("recording a reorg"))?;
        transaction.commit().await.map_err(LiveError::server("committing a reorg"))?;
        warn!(
            fork_height,
            depth,
            old = reversed_hex(&self.tip.hash),
            new_height = tip.height,
            new = reversed_hex(&tip.hash),
            "the active chain has changed: blocks above the fork are replaced"
        );
        self.caches.apply(&overlay);
        self.tip = tip;
        Ok(done)
    }

    /// Resolves a parsed block and writes its rows; returns the tip after it.
    async fn add(
        &mut self,
        transaction: &Transaction<'_>,
        overlay: &mut Overlay,
        (batch, tip): (Batch, Tip),
        followed: &mut Followed,
    ) -> Result<Tip, LiveError> {
        let segment = segment::ensure(transaction, tip.height, self.options.segment_blocks).await?;
        let found = lookup::find(transaction, &batch, &self.key, &mut self.caches, overlay).await?;
        let (network, store) = (self.options.network, self.options.store);
        let (coins, repeated, hits) = (found.coins, found.repeated, found.hits);
        let resolved = blocking(move || {
            let mut batch = batch;
            coins.resolve(&mut batch, network)?;
            let mut rows = Encoded::default();
            encode_batch(&batch, store, &mut rows);
            Ok::<_, ConnectError>((batch, rows))
        });
        let (batch, rows) = match resolved.await? {
            Ok(resolved) => resolved,
            Err(ConnectError::Broken(rule)) => {
                return Err(LiveError::Invalid { height: tip.height, hash: tip.hash, reason: rule.into() });
            }
            Err(error) => return Err(LiveError::of_coins(error)),
        };
        let counts = write::block(transaction, &segment, &batch, rows).await?;
        overlay.add(&batch, &repeated);
        followed.blocks += 1;
        followed.hits += hits;
        followed.counts.txs += counts.txs;
        followed.counts.inputs += counts.inputs;
        followed.counts.outputs += counts.outputs;
        followed.counts.block_bytes += counts.block_bytes;
        Ok(tip)
    }

    /// Parses a block that follows a tip, and proves what can be proved without the chain.
    async fn parse(&self, tip: &Tip, block: &NewBlock) -> Result<(Batch, Tip), LiveError> {
        let (context, after) = tip.next(&block.bytes, self.options.network)?;
        let (height, hash) = (context.height, context.hash);
        let (bytes, key) = (block.bytes.clone(), Arc::clone(&self.key));
        let parsed = blocking(move || {
            let mut batch = Batch { raw: bytes.to_vec(), ..Batch::default() };
            parse_block(&mut batch, 0, &context, &key).map(|()| batch)
        });
        match parsed.await? {
            Ok(batch) => Ok((batch, after)),
            Err(BlockError::Damaged(damage)) => Err(LiveError::Damaged { height, hash, damage }),
            Err(BlockError::Invalid(rule)) => Err(LiveError::Invalid { height, hash, reason: rule.into() }),
        }
    }

    /// Records a reorg and tells listeners, before the blocks of the new branch.
    async fn record(
        &self,
        transaction: &Transaction<'_>,
        fork_height: u32,
        depth: u32,
        new_tip: &Hash32,
    ) -> Result<(), LiveError> {
        transaction
            .execute(
                "insert into ops.reorgs (fork_height, depth, old_tip, new_tip, seconds) values ($1, $2, $3, $4, 0)",
                &[&(fork_height as i32), &(depth as i32), &self.tip.hash.as_slice(), &new_tip.as_slice()],
            )
            .await
            .map_err(LiveError::server("recording a reorg"))?;
        let payload = serde_json::json!({
            "fork_height": fork_height,
            "depth": depth,
            "old_tip": reversed_hex(&self.tip.hash),
            "new_tip": reversed_hex(new_tip),
        });
        write::notify(transaction, REORG_CHANNEL, &payload).await
    }

    /// The caches are true of one tip only: that of the database must be the same.
    async fn check_tip(&mut self, transaction: &Transaction<'_>) -> Result<(), LiveError> {
        let found = Tip::read(transaction, None).await?;
        if found != self.tip {
            warn!(height = found.height, expected = self.tip.height, "the tip was moved by somebody else");
            self.caches.forget_from(0);
            let (fork_height, height) = (self.tip.height, found.height);
            self.tip = found;
            return Err(LiveError::Fork { fork_height, height });
        }
        Ok(())
    }

    /// Makes the next segment when the last one is nearly full. What stands in the way is no failure: the block that needs
    /// it makes it.
    async fn look_ahead(&mut self, client: &mut Client) {
        let ahead = self.tip.height + AHEAD_BLOCKS.min(self.options.segment_blocks / 2) + 1;
        if let Err(error) = self.make_ahead(client, ahead).await {
            warn!(%error, "the next segment could not be made ahead");
        }
    }

    async fn make_ahead(&mut self, client: &mut Client, height: u32) -> Result<(), LiveError> {
        let there = segment::from_height(client, self.tip.height).await?;
        let height_last = there.last().map_or(self.tip.height, |last| last.height_last);
        if height_last >= height {
            return Ok(());
        }
        let transaction = begin(client).await?;
        segment::ensure(&transaction, height_last + 1, self.options.segment_blocks).await?;
        transaction.commit().await.map_err(LiveError::server("making a live segment"))
    }
}

/// Begins a transaction for look-ups by key and for locks that do not wait for ever.
pub(crate) async fn begin(client: &mut Client) -> Result<Transaction<'_>, LiveError> {
    let what = "beginning a transaction";
    let transaction = client.transaction().await.map_err(LiveError::server(what))?;
    transaction.batch_execute(&format!("{BEGIN}{LOCK_TIMEOUT}'")).await.map_err(LiveError::server(what))?;
    Ok(transaction)
}

/// Hash of the header that a block's bytes begin with.
fn last_hash(block: &NewBlock) -> Hash32 {
    crate::chain::hash::sha256d(block.bytes.get(..crate::chain::header::HEADER_BYTES).unwrap_or_default())
}

/// Computes off the runtime's threads.
async fn blocking<T: Send + 'static>(steps: impl FnOnce() -> T + Send + 'static) -> Result<T, LiveError> {
    let ended = tokio::task::spawn_blocking(steps).await;
    ended.map_err(|error| LiveError::System { what: "computing on a thread", source: error.into() })
}

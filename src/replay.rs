//! The main path: from block files to a chain that readers can query.
//!
//! In: a directory of block files and a database whose schema is installed. Out: every block of the active chain, indexed
//! and attached. Read [`run`] from top to bottom. It is idempotent: each step first looks at what is there, so that the
//! same command goes on after any interruption. It must never delete rows of a block that is still in the active chain,
//! other than those of a segment that a reorg cuts, which it loads again.

pub mod buffers;
pub(crate) mod choice;
pub mod found;
pub mod gate;
mod late;
pub mod load;
pub mod pipeline;
pub mod progress;
pub mod rates;
pub mod reader;
pub mod reconcile;
mod resolver;
pub mod room;
pub mod schedule;
mod utxos;

use std::collections::HashSet;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};

use self::found::FoundBlocks;
use self::load::{LoadError, load_segments};
use self::pipeline::{Pipeline, PipelineError, PipelineOptions};
use self::progress::{Progress, show_builds, show_load};
use self::reader::{Chain, ReadError};
use self::room::{NoRoom, RoomOptions};
use self::schedule::Segment;
use crate::chain::hash::{Hash32, reversed_hex};
use crate::heap;
use crate::live::LiveError;
use crate::network::Network;
use crate::pg::pool;
use crate::pg::restore::{RestoreError, Restored, restore};
use crate::pg::segments::SegmentRow;
use crate::prevouts::{CoinFileError, RebuildError, UtxoOptions, UtxoSet};
use crate::profile::{Figures, Profile};
use crate::resources::about;
use crate::rows::Store;
use crate::source::{Node, NodeError, NodeOptions, SourceError};
use crate::status::Step;
use crate::stop::{Stop, Stopped};

/// How often it is looked whether blocks come from the nodes.
const BULK_LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a replay is run with.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The folder that holds the `blk*.dat` files.
    pub blocks_dir: PathBuf,
    /// Where what a scan of the files found is kept for the next start; `None`: nowhere.
    pub kept_dir: Option<PathBuf>,
    /// The user's nodes, which decide between branches and have what the files lack; `None`: the files alone.
    pub node: Option<NodeOptions>,
    /// The network.
    pub network: Network,
    /// About how many bytes of blocks make a segment.
    pub segment_bytes: u64,
    /// About how many bytes of blocks make a batch.
    pub batch_bytes: u64,
    /// Most bytes in flight between the block files and the server.
    pub pipeline_bytes: u64,
    /// Threads that parse; half as many encode.
    pub threads: usize,
    /// Index builds that may run side by side when nothing is being loaded.
    pub builds_max: usize,
    /// Sort memory of one build, bytes.
    pub build_bytes: u64,
    /// What is stored of what could be left out.
    pub store: Store,
    /// Where the UTXO set is, and how much memory it may take.
    pub utxos: UtxoOptions,
    /// How room on the disks is looked for.
    pub room: RoomOptions,
}

/// Why a replay stopped. What is loaded stays; the same command goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The block files cannot be used: the user must act.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A block of the active chain cannot be read or is damaged: the user must act.
    #[error(
        "{0}; get the file again from a node, or restore it from a backup, then start the same command again"
    )]
    Block(ReadError),
    /// No node can be used: the user must act.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A reorg reaches below blocks that only the database still holds: the user must act.
    #[error(
        "the active chain has changed at or below height {reorg_height}, and to follow it the block at height {height} is \
         needed again, which the block files no longer hold; nothing was changed. Use the files of a node that has it"
    )]
    Gone {
        /// Height of the first block that only the database holds.
        height: u32,
        /// Last height of the segments that would be loaded again.
        reorg_height: u32,
    },
    /// Loading failed on the database's side.
    #[error("loading failed")]
    Load(#[source] LoadError),
    /// Restoring indexes failed on the database's side.
    #[error("restoring indexes failed")]
    Restore(#[from] RestoreError),
    /// The UTXO set could not be read back.
    #[error("reading the UTXO set back failed")]
    Rebuild(#[from] RebuildError),
    /// The files of the UTXO set failed.
    #[error("keeping the UTXO set's files failed")]
    CoinFiles(#[from] CoinFileError),
    /// A block could not be connected or taken back, or a live segment not be ended: the same command goes on.
    #[error("connecting or taking back blocks failed")]
    Live(#[from] LiveError),
    /// The disks are too small: the user must act.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// The server refused or went away.
    #[error("{what}")]
    Server {
        /// What was being done.
        what: &'static str,
        /// What the server said.
        source: tokio_postgres::Error,
    },
    /// A signal came first.
    #[error("stopped by a signal")]
    Stopped,
    /// The system gives no randomness, or a thread died: a defect or a broken machine.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl From<Stopped> for ReplayError {
    fn from(_: Stopped) -> Self {
        ReplayError::Stopped
    }
}

/// What a replay ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Height of the tip that readers see.
    pub tip_height: u32,
}

/// Brings the database to the tip that the block files hold; may be called again with the same `found` after a failure
/// of the server's. On a signal it closes the open segment early, or drops what it is about.
///
/// # Errors
/// [`ReplayError`], whose text says what to do.
pub async fn run(
    pool: &Pool,
    found: &mut FoundBlocks,
    options: &ReplayOptions,
    profile: &Profile,
    stop: &Stop,
) -> Result<Outcome, ReplayError> {
    // 1. What blocks are there, in the files and in the database?
    profile.board().step(Step::Compare);
    let mut client = pool.get().await.map_err(pool::Error::from)?;
    found.list_files(&client).await?;

    let mut unwritten: HashSet<Hash32> = HashSet::new();
    let mut damages = 0;
    loop {
        // 2. Away with what an interrupted load left behind.
        reconcile::drop_unfinished(&mut client).await?;

        // 3. Choose the chain; drop segments that a reorg has left behind.
        let mut excluded = reconcile::invalid_blocks(&client).await?;
        excluded.extend(&unwritten);
        let tip = reconcile::tip(&client).await?;
        let chain = Arc::new(found.choose(&client, &excluded, tip.as_ref(), profile, stop).await?);
        let present = reconcile::roll_back_to_fork(&mut client, &chain).await?;
        let mut present = reconcile::make_room(&mut client, &chain, present).await?;

        // 4. Resume the UTXO set, or rebuild it: then what an earlier run loaded must be attached before.
        let segments = missing_segments(&chain, &present, options);
        profile.board().planned(&chain, &present, &segments);
        if !found.is_entered && !segments.is_empty() {
            room::check(&chain, &segments, options)?;
        }
        let mut set = None;
        if let Some(first) = segments.first() {
            let height_first = *first.heights.start();
            let seen = reconcile::tip(&client).await?.map(|tip| tip.height);
            set = stop.or(utxos::resume(pool, &chain, height_first, seen, options, profile)).await??;
            if set.is_none() {
                if present.iter().any(|segment| !segment.is_attached) {
                    load_and_restore(pool, &chain, present, Vec::new(), None, options, profile, stop).await?;
                    present = reconcile::segments(&client).await?;
                }
                let rebuilt = utxos::rebuild(pool, &chain, height_first, &options.utxos, profile);
                set = Some(stop.or(rebuilt).await??);
            }
        }

        // 5. Load what is missing, restore and attach what is loaded.
        if let (Some(node), Some(first)) = (&chain.node, segments.first()) {
            node.begin(chain.wishes(), *first.heights.start(), &found.shares(&chain))?;
        }
        if !segments.is_empty() && !found.is_entered {
            found.is_entered = true;
            let heights = *segments[0].heights.start()..=chain.active.tip_height();
            if chain.node.is_some() && heights.clone().all(|height| !chain.location(height).is_in_file()) {
                tell_p2p(&client, chain.node.as_deref(), profile).await;
            } else {
                profile
                    .reached("Entered REINDEX sync from start state", Figures::default())
                    .record(&client)
                    .await;
            }
        }
        let failure = load_and_restore(pool, &chain, present, segments, set, options, profile, stop).await;
        chain.node.iter().for_each(|node| node.end());
        match failure? {
            // 6. Blocks that came meanwhile are for whoever follows the tip.
            None => {
                reconcile::record_stale_blocks(&mut client, &chain).await?;
                return Ok(Outcome { tip_height: chain.active.tip_height() });
            }
            // 7. A block that cannot be taken: look for it again, leave it out and choose again, or tell the user.
            Some(PipelineError::CoinFiles(error)) => {
                damages += 1;
                utxos::throw_away(error, damages, &options.utxos)?;
            }
            // Whoever failed to send it was dropped.
            Some(PipelineError::Read(ReadError::Node { source, .. })) if found.has_nodes_left() => {
                warn!(%source, "choosing the chain again with the nodes that are left");
            }
            Some(PipelineError::Read(error)) if is_found_again(found, &client, &chain, &error).await? => {
                unwritten.clear();
            }
            Some(error) => leave_out(&client, &chain, error, &mut unwritten).await?,
        }
    }
}

/// Cuts the heights above the last segment into new ones.
fn missing_segments(chain: &Chain, present: &[SegmentRow], options: &ReplayOptions) -> Vec<Segment> {
    let height_first = present.last().map_or(0, |segment| segment.height_last + 1);
    let id_first = present.iter().map(|segment| segment.id + 1).max().unwrap_or(0);
    schedule::segments(height_first..=chain.active.tip_height(), id_first, options.segment_bytes, |height| {
        chain.block_bytes(height)
    })
}

/// Loads new segments while the indexes of earlier ones are built; returns why loading ended early, if it did and the
/// reason lies in a block. A failure of either side ends the other at once.
#[expect(clippy::too_many_arguments, reason = "the one place where all parts of the main path meet")]
async fn load_and_restore(
    pool: &Pool,
    chain: &Arc<Chain>,
    present: Vec<SegmentRow>,
    segments: Vec<Segment>,
    set: Option<UtxoSet>,
    options: &ReplayOptions,
    profile: &Profile,
    stop: &Stop,
) -> Result<Option<PipelineError>, ReplayError> {
    let is_loading = !segments.is_empty();
    let (loaded, to_restore) = mpsc::unbounded_channel();
    let builds_first = if is_loading { builds_while_loading(options.builds_max) } else { options.builds_max };
    let (builds_sender, builds) = watch::channel(builds_first);
    for segment in present.iter().filter(|segment| !segment.is_attached) {
        let _ = loaded.send(segment.clone());
    }
    // Whichever way this function is left, the task ends with it.
    let mut restoring = JoinSet::new();
    restoring.spawn(restore(pool.clone(), to_restore, builds, options.build_bytes, profile.clone()));
    let mut ended = None;
    if let Some(set) = set {
        let (give_up, given_up) = oneshot::channel();
        let mut loading = pin!(load(pool, chain, set, segments, &loaded, options, profile, stop, given_up));
        tokio::select! {
            loaded = &mut loading => ended = loaded?,
            // While `loaded` is open it ends only by failing. The threads of the load use files that the next try needs.
            failed = restoring.join_next() => {
                let _ = give_up.send(());
                let _ = loading.await;
                restored_by(failed)?;
                return Err(ReplayError::Load(LoadError::GivenUp));
            }
        }
    }
    if stop.is_asked() {
        return Err(ReplayError::Stopped);
    }
    let client = pool.get().await.map_err(pool::Error::from)?;
    if chain.node.as_deref().is_some_and(Node::is_bulk) {
        tell_p2p(&client, chain.node.as_deref(), profile).await;
    }
    // In this order: when the list of segments ends, all cores must be known to be free.
    let _ = builds_sender.send(options.builds_max);
    drop(loaded);
    profile.board().step(Step::Restore);
    let phase = profile.phase();
    if is_loading {
        let what = "Entering LIVE sync, creating indexes/constraints as needed";
        profile.reached(what, Figures::default()).record(&client).await;
    }
    let display = show_builds(pool.clone(), options.builds_max);
    let restored = restored_by(stop.or(restoring.join_next()).await?)?;
    drop(display);
    if restored.segments > 0 {
        profile.ended(&phase, "Restored table indexes", Figures::default()).record(&client).await;
        let seconds = Duration::from_secs_f64(restored.attach_seconds);
        profile.took(seconds, "Restored constraints", Figures::default()).record(&client).await;
    }
    Ok(ended)
}

/// While rows are loaded the cores are busy; one build at a time keeps the indexes coming.
pub(crate) fn builds_while_loading(builds_max: usize) -> usize {
    (builds_max / 2).max(1)
}

/// How the task that restores ended.
fn restored_by(
    joined: Option<Result<Result<Restored, RestoreError>, JoinError>>,
) -> Result<Restored, ReplayError> {
    let joined = joined.expect("one task was spawned, and is awaited once");
    Ok(joined.map_err(|error| ReplayError::System { what: "restoring indexes", source: error.into() })??)
}

#[expect(clippy::too_many_arguments, reason = "as its only caller")]
async fn load(
    pool: &Pool,
    chain: &Arc<Chain>,
    set: UtxoSet,
    segments: Vec<Segment>,
    loaded: &mpsc::UnboundedSender<SegmentRow>,
    options: &ReplayOptions,
    profile: &Profile,
    stop: &Stop,
    given_up: oneshot::Receiver<()>,
) -> Result<Option<PipelineError>, ReplayError> {
    let bytes_total = segments.iter().map(|segment| segment.block_bytes).sum();
    let height_first = segments.first().map_or(0, |segment| *segment.heights.start());
    let height_last = segments.last().map_or(height_first, |segment| *segment.heights.end());
    let progress = Progress::new(height_first, height_last, bytes_total);
    profile.board().load(&progress);
    let pipeline_options = PipelineOptions {
        threads: options.threads,
        batch_bytes: options.batch_bytes,
        pipeline_bytes: options.pipeline_bytes,
        store: options.store,
        network: options.network,
        progress: Arc::clone(&progress),
    };
    let mut pipeline = Pipeline::start(chain, segments.clone(), set, &pipeline_options);
    let closer = pipeline.closer();
    let closing = async {
        stop.asked().await;
        info!("closing the open segment at the last block that was read");
        closer.close();
        std::future::pending::<()>().await;
    };
    let node = chain.node.clone();
    let entering_p2p = enter_p2p(pool, node.as_deref(), profile);
    let display = show_load(&progress);
    let ended = tokio::select! {
        ended = load_segments(pool, &mut pipeline, &segments, loaded, profile, &progress) => ended,
        Ok(()) = given_up => Err(LoadError::GivenUp),
        () = closing => unreachable!("it never ends"),
        () = entering_p2p => unreachable!("it never ends"),
    };
    drop(display);
    // Also after a failure: the next try must not meet these threads at work on the same files.
    let finished = tokio::task::spawn_blocking(move || pipeline.finish())
        .await
        .map_err(|error| ReplayError::System { what: "ending the pipeline", source: error.into() })?;
    match ended {
        Ok(loaded_last) => {
            // Every row is in; what could fail is the last checkpoint.
            let mut set = match finished {
                Ok(set) => set,
                Err(error) => return Ok(Some(error)),
            };
            if let Some(height) = loaded_last {
                set.forget_before(height)?;
            }
            info!(
                coins = set.coin_count(),
                bytes = set.allocated_bytes(),
                height = loaded_last,
                "UTXO set at the last height that is loaded"
            );
            // The index builds and the page cache have use for the memory. Gigabytes take a moment.
            let given = tokio::task::spawn_blocking(move || {
                drop(set);
                heap::give_back()
            });
            let resident = given
                .await
                .map_err(|error| ReplayError::System { what: "giving memory back", source: error.into() })?;
            info!(resident = resident.map(about), "the memory of the load is given back");
            Ok(None)
        }
        Err(LoadError::Pipeline(error)) => Ok(Some(error)),
        Err(error) => Err(ReplayError::Load(error)),
    }
}

/// Tells, once a run, when blocks of the chain begin to come from the nodes; never ends.
async fn enter_p2p(pool: &Pool, node: Option<&Node>, profile: &Profile) {
    if let Some(node) = node {
        while !node.is_bulk() {
            tokio::time::sleep(BULK_LOOK_EVERY).await;
        }
        // A server that is away is told by whoever needs it.
        if let Ok(client) = pool.get().await {
            tell_p2p(&client, Some(node), profile).await;
        }
    }
    std::future::pending().await
}

async fn tell_p2p(client: &deadpool_postgres::Object, node: Option<&Node>, profile: &Profile) {
    if node.is_some_and(Node::is_first_entry) {
        let what = "Entered P2P sync from start state";
        profile.reached(what, Figures::default()).record(client).await;
    }
}

/// Returns whether a block that could not be read may be read now, from files that have changed since they were scanned.
async fn is_found_again(
    found: &mut FoundBlocks,
    client: &deadpool_postgres::Object,
    chain: &Chain,
    error: &ReadError,
) -> Result<bool, ReplayError> {
    match error.moved() {
        Some((height, hash)) if !chain.is_unwritten(height)? => found.find_again(client, height, &hash).await,
        _ => Ok(false),
    }
}

/// Leaves a block out of the chain if that is right, so that the next choice does without it; otherwise the replay ends.
async fn leave_out(
    client: &deadpool_postgres::Object,
    chain: &Chain,
    error: PipelineError,
    unwritten: &mut HashSet<Hash32>,
) -> Result<(), ReplayError> {
    match error {
        PipelineError::Read(ReadError::Damaged { height, hash, file, offset, damage })
            if chain.is_unwritten(height)? =>
        {
            info!(height, file, offset, %damage, "the newest block is not fully written yet");
            unwritten.insert(hash);
            Ok(())
        }
        PipelineError::Read(ReadError::Invalid { height, hash, file, offset, rule }) => {
            warn!(height, hash = reversed_hex(&hash), file, offset, %rule, "block refused");
            reconcile::record_invalid(client, &hash, height, &rule.to_string(), &file, offset).await
        }
        PipelineError::Resolve(error) => {
            let hash = chain.hash(error.height);
            let location = chain.location(error.height);
            let (file, offset) = (chain.files.name(location), location.offset);
            warn!(height = error.height, hash = reversed_hex(&hash), file, offset, %error, "block refused");
            reconcile::record_invalid(client, &hash, error.height, &error.to_string(), &file, offset).await
        }
        PipelineError::Read(ReadError::Node { source, .. }) => Err(source.into()),
        PipelineError::Read(error) => Err(ReplayError::Block(error)),
        PipelineError::CoinFiles(error) => Err(error.into()),
        error @ (PipelineError::Broken | PipelineError::Stopped) => Err(ReplayError::Load(error.into())),
    }
}

/// Gathers planner statistics of the parents: autovacuum never does (PostgreSQL manual, ANALYZE).
///
/// # Errors
/// What the server says; the same command goes on.
pub async fn analyze(pool: &Pool, profile: &Profile) -> Result<(), ReplayError> {
    if is_analyze_due(pool).await? {
        profile.board().step(Step::Analyze);
        analyze_now(pool, profile).await?;
    }
    Ok(())
}

/// The same in the background of LIVE, which `satgres status` goes on to show.
///
/// # Errors
/// As [`analyze`].
pub async fn analyze_behind(pool: &Pool, profile: &Profile) -> Result<(), ReplayError> {
    if is_analyze_due(pool).await? { analyze_now(pool, profile).await } else { Ok(()) }
}

async fn is_analyze_due(pool: &Pool) -> Result<bool, ReplayError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let is_due = "select exists (select from ops.segments where state = 'attached' and attached_at > \
         coalesce((select max(started) from ops.phases where phase = 'Analyzed tables'), '-infinity'))";
    let server = |source| ReplayError::Server { what: "gathering statistics", source };
    Ok(client.query_one(is_due, &[]).await.map_err(server)?.get(0))
}

async fn analyze_now(pool: &Pool, profile: &Profile) -> Result<(), ReplayError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let server = |source| ReplayError::Server { what: "gathering statistics", source };
    let phase = profile.phase();
    let tables = crate::rows::Table::ALL.map(|table| async move {
        let client = pool.get().await.map_err(pool::Error::from)?;
        client.batch_execute(&format!("analyze chain.{}", table.name())).await.map_err(server)
    });
    futures_util::future::try_join_all(tables).await?;
    profile.ended(&phase, "Analyzed tables", Figures::default()).record(&client).await;
    Ok(())
}

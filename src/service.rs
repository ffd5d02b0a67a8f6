//! What the commands do, from a data directory to a result: each a short list of steps.
//!
//! In: settings. Out: a running server with a queryable chain, or the result of a check. Called by the command line only.
//! The private server outlives every command but `pg stop`. `run` makes attempts: each opens the server, takes the lock of
//! the database, and does whatever is missing; a trouble that passes is waited out before the next.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::config::{Detail, Settings, Tune};
use crate::error::Error;
use crate::follow::cost::Way;
use crate::follow::{FollowOptions, Follower};
use crate::heap;
use crate::live::{LiveOptions, SEGMENT_BLOCKS};
use crate::patience::Patience;
use crate::pg::cluster::{Cluster, ServiceLock};
use crate::pg::external::{self, Purpose};
use crate::pg::run_lock::RunLock;
use crate::pg::schema::{self, Facts};
use crate::pg::server::{self, Server};
use crate::pg::{leaked, objects, pool, validate};
use crate::plan::{Phase, Plan};
use crate::prevouts::{UtxoLimits, UtxoOptions};
use crate::profile::{Figures, Profile};
use crate::replay::found::{self, FoundBlocks};
use crate::replay::room::RoomOptions;
use crate::replay::{self, ReplayError, ReplayOptions};
use crate::resources::{Resources, about};
use crate::rows::Store;
use crate::source::NodeOptions;
use crate::status::Step;
use crate::stop::Stop;
use crate::verify::{Check, TableDigest, UtxoSetInfo};

/// How long backends may take to end when a run ends.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Share of the pipeline's memory for blocks that come from nodes: one in so many bytes.
const PEER_WINDOW_SHARE: u64 = 4;
/// How often it is looked whether the database needs something beside the tip's blocks.
const LOOK_AFTER_EVERY: Duration = Duration::from_secs(3600);

/// Loads what the block files or the nodes hold and follows the tip; ends on a signal, or once that is queryable if so asked. A server that goes away
/// is waited for, and started again where it is ours.
///
/// # Errors
/// [`Error`], by who must act.
pub async fn run(settings: &Settings) -> Result<(), Error> {
    heap::bound_leftovers();
    let profile = Profile::start();
    let stop = Stop::on_signals();
    let _at_work = ServiceLock::take(&settings.data_dir)?;
    let ended = serve(settings, &profile, stop).await;
    profile.board().ended(&ended, settings.until_synced);
    ended
}

/// What [`run`] does once it alone is at work on the data directory.
async fn serve(settings: &Settings, profile: &Profile, stop: Stop) -> Result<(), Error> {
    let plans = Plans::new(settings)?;
    profile.board().publish(
        &settings.data_dir,
        settings.network,
        server::external_database(settings)?,
        &[&plans.replay, &plans.restore, &plans.live],
    );
    let options = replay_options(settings, &plans);
    // Where a node has what a database lacks, the files are read once they are needed. A new database begins with them, so
    // that wrong ones are told before anything is made.
    let is_later = !settings.peers.is_empty()
        && (settings.database_url.is_some() || settings.data_dir.join("pg").exists());
    let found =
        if is_later { found::without_files(&options) } else { stop.or(found::scan(&options)).await?? };
    plans.log();
    let profile = profile.clone();
    let mut run = Run {
        settings,
        plans,
        profile,
        stop,
        found,
        patience: Patience::default(),
        is_advised: false,
        is_live: false,
        height_followed: None,
    };
    loop {
        let Err(error) = run.attempt().await else { return Ok(()) };
        let steps = run.profile.steps_done();
        run.profile.board().step(Step::WaitForServer);
        run.patience.wait_out(error, steps, &run.stop, &settings.data_dir).await?;
    }
}

/// What lasts from one attempt to the next.
struct Run<'a> {
    settings: &'a Settings,
    plans: Plans,
    profile: Profile,
    stop: Stop,
    found: FoundBlocks,
    patience: Patience,
    is_advised: bool,
    is_live: bool,
    /// The tip when it was last followed.
    height_followed: Option<u32>,
}

impl Run<'_> {
    /// Does whatever is missing, and follows the tip, for as long as the server lasts.
    async fn attempt(&mut self) -> Result<(), Error> {
        self.profile.board().step(Step::StartServer);
        let mut connected = self.open(None).await?;
        self.patience.reached();
        let mut ended = self.work(&connected).await;
        if let Ok(Next::EnterLive) = ended {
            // The first time that everything is queryable: one restart.
            self.profile.board().step(Step::EnterLive);
            connected.close().await;
            connected = self.open(Some(&self.plans.live)).await?;
            ended = self.work(&connected).await;
        }
        connected.close().await;
        ended.map(|_| ())
    }

    /// Fills the database, then follows the tip; loads in bulk again whenever a gap is better closed so.
    async fn work(&mut self, connected: &Connected) -> Result<Next, Error> {
        self.prepare(connected).await?;
        let mut behind = JoinSet::new();
        let mut height_loaded = None;
        loop {
            let (mut follow, replay) =
                (follow_options(self.settings, &self.plans), replay_options(self.settings, &self.plans));
            // A load that brings nothing new is not tried again.
            if height_loaded.is_some() && height_loaded == self.height_followed {
                follow.threshold_blocks = Some(u32::MAX);
            }
            let opened =
                Follower::open(&connected.pool, &mut self.found, follow, &replay, &self.profile, &self.stop);
            let Some(mut follower) = opened.await? else {
                height_loaded = Some(self.load(connected).await?);
                continue;
            };
            self.height_followed = Some(follower.height());
            if follower.catch_up().await? == Way::Bulk {
                drop(follower);
                height_loaded = Some(self.load(connected).await?);
                continue;
            }
            let height = follower.height();
            if is_live_due(self.settings) {
                return Ok(Next::EnterLive);
            }
            if !std::mem::replace(&mut self.is_live, true) {
                give_back_memory(&self.plans).await;
                let client = connected.pool.get().await.map_err(pool::Error::from)?;
                let figures = Figures { height: Some(height), ..Figures::default() };
                self.profile.reached("Entered LIVE sync from start state", figures).record(&client).await;
            }
            if self.settings.until_synced {
                self.profile.board().step(Step::Live);
                return Ok(Next::Ended);
            }
            if behind.is_empty() {
                behind.spawn(look_after(connected.pool.clone(), self.profile.clone()));
            }
            tokio::select! {
                followed = follower.follow() => match followed {
                    Ok(()) => {}
                    Err(ReplayError::Stopped) => {
                        info!("ended by a signal; PostgreSQL goes on, `satgres pg stop` ends the private one");
                        return Ok(Next::Ended);
                    }
                    Err(error) => return Err(error.into()),
                },
                () = connected.lock.hangup().done() => return Err(Error::ServerLost),
            }
            self.height_followed = Some(follower.height());
            drop(follower);
            self.found.begin_again();
            self.is_live = false;
            height_loaded = Some(self.load(connected).await?);
        }
    }

    /// Opens the server, a private one with the settings of a plan, or with those of the phase that it is in.
    async fn open(&self, plan: Option<&Plan>) -> Result<Connected, Error> {
        let connected = Connected::open(self.settings, plan, &self.stop).await?;
        self.profile.board().server(connected.server.postmaster_pid());
        Ok(connected)
    }

    /// Makes the database fit to be filled.
    async fn prepare(&mut self, connected: &Connected) -> Result<(), Error> {
        let Connected { server, pool, .. } = connected;
        if !self.is_advised {
            self.is_advised = true;
            external::log_advice(&server.advice(&self.plans.resources, &self.plans.replay, &self.plans.live));
        }
        self.profile.board().step(Step::Install);
        install(pool, self.settings).await?;
        leaked::sweep(server, pool).await;
        Ok(())
    }

    /// Loads in bulk what is missing; returns the tip.
    async fn load(&mut self, connected: &Connected) -> Result<u32, Error> {
        let Connected { server, pool, .. } = connected;
        let mut options = replay_options(self.settings, &self.plans);
        options.builds_max = server.builds_max(options.builds_max);
        if let (Some(node), Some(options)) = (self.found.node(), &options.node) {
            node.set_window(options.window_bytes);
        }
        let outcome = replay::run(pool, &mut self.found, &options, &self.profile, &self.stop).await?;
        self.stop.or(replay::analyze(pool, &self.profile)).await??;
        Ok(outcome.tip_height)
    }
}

/// How work on one connection ended.
enum Next {
    /// Everything is queryable, and the server is due to get its settings for LIVE.
    EnterLive,
    /// The end was asked for.
    Ended,
}

/// Whether the private server still has its settings for the replay. It never gets them again: a catch-up, however
/// large, loads with those of LIVE. `wal_level = minimal` would load 1.1 to 1.5 times as fast, but it ends the
/// standbys and backups that LIVE promises, and its two restarts end every reader's connection.
fn is_live_due(settings: &Settings) -> bool {
    settings.database_url.is_none()
        && settings.tune != Tune::Off
        && Cluster::recorded_phase(&settings.data_dir) != Phase::Live
}

/// Leaves the service with what it needs in LIVE: caches and buffers of the load are gone, the heap's rest follows.
async fn give_back_memory(plans: &Plans) {
    let resident = tokio::task::spawn_blocking(heap::give_back).await.ok().flatten();
    let planned = about(plans.live.service_bytes());
    info!(resident = resident.map(about), planned, "memory of the service on entering LIVE");
}

/// What the database needs beside the tip's blocks, in the background of LIVE: statistics where an earlier run did not come
/// to gather them, and proofs of constraints that were added NOT VALID, such as those of a segment that has become full.
async fn look_after(pool: Pool, profile: Profile) {
    loop {
        if let Err(error) = replay::analyze_behind(&pool, &profile).await {
            debug!(%error, "statistics were not gathered");
        }
        if let Ok(client) = pool.get().await {
            match validate::validate_all(&client).await {
                Ok(faults) => faults.iter().for_each(|fault| warn!(fault, "a constraint does not hold")),
                Err(error) => debug!(%error, "constraints were not validated"),
            }
        }
        tokio::time::sleep(LOOK_AFTER_EVERY).await;
    }
}

/// A server, the right to change its database, and connections that end with that right.
struct Connected {
    server: Server,
    lock: RunLock,
    pool: Pool,
}

impl Connected {
    /// Reaches the server; a private one is started if it is down, waited for while it recovers, and given the settings.
    /// Takes the lock.
    async fn open(settings: &Settings, plan: Option<&Plan>, stop: &Stop) -> Result<Connected, Error> {
        let server = stop.or(Server::start_with(settings, Purpose::Load, plan)).await??;
        let target = server.target().named(pool::CONTROL);
        let lock = stop.or(RunLock::take(&target)).await??;
        let pool = pool::pool_until(target, server.connections_max(), lock.hangup().clone())?;
        Ok(Connected { server, lock, pool })
    }

    /// Ends all connections and what they do on the server.
    async fn close(self) {
        self.pool.close();
        self.lock.release(CLOSE_WAIT_MAX).await;
    }
}

/// The memory plans of this run.
struct Plans {
    resources: Resources,
    replay: Plan,
    restore: Plan,
    live: Plan,
}

impl Plans {
    fn new(settings: &Settings) -> Result<Plans, Error> {
        let resources = server::resources(settings)?;
        let overrides = settings.overrides();
        let plan = |phase| Plan::new(&resources, phase, &overrides);
        Ok(Plans {
            replay: plan(Phase::Replay),
            restore: plan(Phase::Restore),
            live: plan(Phase::Live),
            resources,
        })
    }

    /// Says what was detected, from where, and what was chosen.
    fn log(&self) {
        info!("memory plan for {}", self.resources);
        for plan in [&self.replay, &self.restore, &self.live] {
            info!("memory plan, {}: {}", plan.phase, plan.summary());
        }
        let mut warnings: Vec<&String> =
            [&self.replay, &self.live].into_iter().flat_map(|it| &it.warnings).collect();
        warnings.dedup();
        for warning in warnings {
            warn!("{warning}");
        }
    }
}

async fn install(pool: &Pool, settings: &Settings) -> Result<(), Error> {
    let mut client = pool.get().await.map_err(pool::Error::from)?;
    let facts = Facts {
        network: settings.network,
        store_witness: settings.store.witness,
        store_script_sig: settings.store.script_sig,
    };
    schema::install(&mut client, &facts).await?;
    objects::ensure_parents(&client).await?;
    Ok(())
}

fn follow_options(settings: &Settings, plans: &Plans) -> FollowOptions {
    let live = &plans.live;
    FollowOptions {
        live: LiveOptions {
            network: settings.network,
            store: store(settings),
            segment_blocks: SEGMENT_BLOCKS,
            coin_cache_bytes: live.utxo_cache_bytes,
            txnum_cache_buckets: live.txnum_cache_buckets,
            txnum_cache_bucket_size: live.txnum_cache_bucket_size,
        },
        // The rest is for the block that is being connected: its bytes, its facts, its rows.
        feed_bytes: live.pipeline_bytes / 4,
        window_bytes: live.pipeline_bytes / 4,
        threshold_blocks: settings.live.sync_threshold_blocks,
        until_synced: settings.until_synced,
    }
}

fn store(settings: &Settings) -> Store {
    Store {
        witness: settings.store.witness == Detail::Full,
        script_sig: settings.store.script_sig == Detail::Full,
    }
}

fn replay_options(settings: &Settings, plans: &Plans) -> ReplayOptions {
    // Blocks on their way from a node take their room from the pipeline's.
    let peer_window_bytes =
        if settings.peers.is_empty() { 0 } else { plans.replay.pipeline_bytes / PEER_WINDOW_SHARE };
    ReplayOptions {
        blocks_dir: settings.blocks_dir.clone(),
        kept_dir: Some(settings.data_dir.clone()),
        node: (!settings.peers.is_empty()).then(|| NodeOptions {
            addresses: settings.peers.clone(),
            timeout: Duration::from_secs(settings.peer_timeout_seconds),
            window_bytes: peer_window_bytes,
        }),
        network: settings.network,
        segment_bytes: settings.replay.segment_bytes,
        batch_bytes: settings.replay.batch_bytes,
        pipeline_bytes: plans.replay.pipeline_bytes - peer_window_bytes,
        threads: plans.replay.threads,
        builds_max: plans.restore.builds,
        build_bytes: plans.restore.maintenance_work_mem_bytes,
        store: store(settings),
        utxos: UtxoOptions {
            dir: settings.data_dir.join("coins"),
            cache_bytes_max: Some(plans.replay.utxo_cache_bytes),
            buckets: settings.replay.utxo_cache_buckets,
            limits: UtxoLimits::within(plans.replay.coin_files_bytes),
        },
        room: RoomOptions {
            database_dir: settings.database_url.is_none().then(|| settings.data_dir.join("pg/base")),
            is_checked: settings.replay.disk_check,
        },
    }
}

/// Checks everything; each result is handed over as it ends.
///
/// # Errors
/// [`Error::VerifyFailed`] if anything does not hold; others if it could not be checked.
pub async fn verify(settings: &Settings, each: impl FnMut(&Check)) -> Result<(), Error> {
    let pool = open(settings, Purpose::Check).await?;
    let checks = crate::verify::verify(&pool, each).await?;
    let failed = checks.iter().filter(|check| !check.is_ok()).count();
    if failed > 0 { Err(Error::VerifyFailed { failed }) } else { Ok(()) }
}

/// Computes the digest of each table.
///
/// # Errors
/// [`Error`].
pub async fn digest(settings: &Settings) -> Result<Vec<TableDigest>, Error> {
    Ok(crate::verify::digest(&open(settings, Purpose::Read).await?).await?)
}

/// Computes what Bitcoin Core's `gettxoutsetinfo` tells.
///
/// # Errors
/// [`Error`].
pub async fn utxo_set_info(settings: &Settings) -> Result<UtxoSetInfo, Error> {
    Ok(crate::verify::utxo_set_info(&open(settings, Purpose::Read).await?).await?)
}

/// Starts the private server if it is down, or connects to the user's; the database must have been filled by `run`.
async fn open(settings: &Settings, purpose: Purpose) -> Result<Pool, Error> {
    let server = Server::start(settings, purpose).await?;
    let pool = pool::pool(server.target(), server.connections_max())?;
    let client = pool.get().await.map_err(pool::Error::from)?;
    if schema::recorded_network(&client).await?.is_none() {
        return Err(match &settings.database_url {
            None => Error::NothingLoaded { data_dir: settings.data_dir.clone() },
            Some(_) => Error::NothingInDatabase { database: server.target().to_string() },
        });
    }
    drop(client);
    Ok(pool)
}

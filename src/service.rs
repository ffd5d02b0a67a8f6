//! What the commands do, from a data directory to a result: each a short list of steps.
//!
//! In: settings. Out: a running server with a queryable chain, or the result of a check. Called by the command line only.
//! The private server outlives every command but `pg stop`. `run` makes attempts: each opens the server, takes the lock of
//! the database, and does whatever is missing; a trouble that passes is waited out before the next.

use std::time::Duration;

use deadpool_postgres::Pool;
use tracing::{info, warn};

use crate::config::{Detail, Settings, Tune};
use crate::error::Error;
use crate::patience::Patience;
use crate::pg::cluster::{self, Cluster, ServiceLock};
use crate::pg::run_lock::RunLock;
use crate::pg::schema::{self, Facts};
use crate::pg::{objects, pool, validate};
use crate::plan::{Phase, Plan};
use crate::prevouts::{UtxoLimits, UtxoOptions};
use crate::profile::{Figures, Profile};
use crate::replay::{self, FoundBlocks, ReplayOptions};
use crate::resources::Resources;
use crate::rows::Store;
use crate::stop::Stop;
use crate::verify::{Check, TableDigest, UtxoSetInfo};

/// Connections at most: four fill tables, two build indexes a core, the others control.
const CONNECTIONS_MAX: usize = 40;
/// How long backends may take to end when a run ends.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Loads what the block files hold and keeps it queryable; ends when that is so, or on a signal. A server that goes away
/// is waited for, and started again where it is ours.
///
/// # Errors
/// [`Error`], by who must act.
pub async fn run(settings: &Settings) -> Result<(), Error> {
    let profile = Profile::start();
    let stop = Stop::on_signals();
    let _at_work = ServiceLock::take(&settings.data_dir)?;
    let plans = Plans::new(settings);
    let found = stop.or(replay::scan(&replay_options(settings, &plans))).await??;
    plans.log();
    let mut run =
        Run { settings, plans, profile, stop, found, patience: Patience::default(), is_live: false };
    loop {
        let Err(error) = run.attempt().await else { return Ok(()) };
        let steps = run.profile.steps_done();
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
    is_live: bool,
}

impl Run<'_> {
    /// Does whatever is missing, and keeps it, for as long as the server lasts.
    async fn attempt(&mut self) -> Result<(), Error> {
        let mut server = Connected::open(self.settings.cluster_options(), &self.stop).await?;
        self.patience.reached();
        let tip_height = match self.sync(&server).await {
            Ok(tip_height) => tip_height,
            Err(error) => {
                server.close().await;
                return Err(error);
            }
        };
        if self.is_live_due() {
            // The first time that everything is queryable: one restart.
            server.close().await;
            let settings = self.settings.server_settings(&self.plans.live);
            let options = cluster::Options { settings, ..self.settings.cluster_options() };
            server = Connected::open(options, &self.stop).await?;
        }
        let kept = self.keep(&server, tip_height).await;
        server.close().await;
        kept
    }

    /// Installs the schema and replays; returns the tip.
    async fn sync(&mut self, server: &Connected) -> Result<u32, Error> {
        install(&server.cluster, &server.pool, self.settings).await?;
        let options = replay_options(self.settings, &self.plans);
        let outcome = replay::run(&server.pool, &mut self.found, &options, &self.profile, &self.stop).await?;
        Ok(outcome.tip_height)
    }

    /// Whether the private server still has its settings for the replay.
    fn is_live_due(&self) -> bool {
        self.settings.tune != Tune::Off && Cluster::recorded_phase(&self.settings.data_dir) != Phase::Live
    }

    /// Tells that everything is queryable; then stays until a signal, and validates in the background what was added NOT
    /// VALID.
    async fn keep(&mut self, server: &Connected, tip_height: u32) -> Result<(), Error> {
        let client = server.pool.get().await.map_err(pool::Error::from)?;
        if !self.is_live {
            self.is_live = true;
            let figures = Figures { height: Some(tip_height), ..Figures::default() };
            self.profile.reached("Entered LIVE sync from start state", figures).record(&client).await;
        }
        if self.settings.until_synced {
            return Ok(());
        }
        info!("all that the block files hold is queryable; newer blocks are loaded at the next start");
        if let Ok(validated) = self.stop.or(validate::validate_all(&client)).await {
            for fault in validated? {
                warn!(fault, "a constraint does not hold");
            }
            drop(client);
            tokio::select! {
                () = self.stop.asked() => {}
                () = server.lock.hangup().done() => return Err(Error::ServerLost),
            }
        }
        info!("ended by a signal; PostgreSQL goes on, `satgres pg stop` ends it");
        Ok(())
    }
}

/// A server, the right to change its database, and connections that end with that right.
struct Connected {
    cluster: Cluster,
    lock: RunLock,
    pool: Pool,
}

impl Connected {
    /// Starts the server if it is down, waits while it recovers, and gives it the settings; takes the lock.
    async fn open(options: cluster::Options, stop: &Stop) -> Result<Connected, Error> {
        let options = cluster::Options { reconfigure: true, ..options };
        let cluster = stop.or(Cluster::start(options)).await??;
        let mut config = cluster.pg_config();
        config.application_name(pool::CONTROL);
        let lock = stop.or(RunLock::take(&config)).await??;
        let pool = pool::pool_until(config, CONNECTIONS_MAX, lock.hangup().clone())?;
        Ok(Connected { cluster, lock, pool })
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
    fn new(settings: &Settings) -> Plans {
        let resources = Resources::detect(&settings.data_dir);
        let overrides = settings.overrides();
        let plan = |phase| Plan::new(&resources, phase, &overrides);
        Plans {
            replay: plan(Phase::Replay),
            restore: plan(Phase::Restore),
            live: plan(Phase::Live),
            resources,
        }
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

async fn install(cluster: &Cluster, pool: &Pool, settings: &Settings) -> Result<(), Error> {
    let mut client = pool.get().await.map_err(pool::Error::from)?;
    let facts = Facts {
        network: settings.network,
        store_witness: settings.store.witness,
        store_script_sig: settings.store.script_sig,
    };
    schema::install(cluster, &mut client, &facts).await?;
    objects::ensure_parents(&client).await?;
    Ok(())
}

fn replay_options(settings: &Settings, plans: &Plans) -> ReplayOptions {
    ReplayOptions {
        blocks_dir: settings.blocks_dir.clone(),
        network: settings.network,
        segment_bytes: settings.replay.segment_bytes,
        batch_bytes: settings.replay.batch_bytes,
        pipeline_bytes: plans.replay.pipeline_bytes,
        threads: plans.replay.threads,
        builds_max: plans.restore.builds,
        build_bytes: plans.restore.maintenance_work_mem_bytes,
        store: Store {
            witness: settings.store.witness == Detail::Full,
            script_sig: settings.store.script_sig == Detail::Full,
        },
        utxos: UtxoOptions {
            dir: settings.data_dir.join("coins"),
            cache_bytes_max: Some(plans.replay.utxo_cache_bytes),
            buckets: settings.replay.utxo_cache_buckets,
            limits: UtxoLimits::default(),
        },
    }
}

/// Checks everything; each result is handed over as it ends.
///
/// # Errors
/// [`Error::VerifyFailed`] if anything does not hold; others if it could not be checked.
pub async fn verify(settings: &Settings, each: impl FnMut(&Check)) -> Result<(), Error> {
    let pool = open(settings).await?;
    let checks = crate::verify::verify(&pool, each).await?;
    let failed = checks.iter().filter(|check| !check.is_ok()).count();
    if failed > 0 { Err(Error::VerifyFailed { failed }) } else { Ok(()) }
}

/// Computes the digest of each table.
///
/// # Errors
/// [`Error`].
pub async fn digest(settings: &Settings) -> Result<Vec<TableDigest>, Error> {
    Ok(crate::verify::digest(&open(settings).await?).await?)
}

/// Computes what Bitcoin Core's `gettxoutsetinfo` tells.
///
/// # Errors
/// [`Error`].
pub async fn utxo_set_info(settings: &Settings) -> Result<UtxoSetInfo, Error> {
    Ok(crate::verify::utxo_set_info(&open(settings).await?).await?)
}

/// Starts the private server if it is down; the database must have been made by `run`.
async fn open(settings: &Settings) -> Result<Pool, Error> {
    let cluster = Cluster::start(settings.cluster_options()).await?;
    let pool = pool::pool(cluster.pg_config(), CONNECTIONS_MAX)?;
    let client = pool.get().await.map_err(pool::Error::from)?;
    if schema::recorded_network(&client).await?.is_none() {
        return Err(Error::NothingLoaded { data_dir: settings.data_dir.clone() });
    }
    drop(client);
    Ok(pool)
}

//! What the commands do, from a data directory to a result: each a short list of steps.
//!
//! In: settings. Out: a running server with a queryable chain, or the result of a check. Called by the command line only.
//! The private server outlives every command but `pg stop`.

use deadpool_postgres::Pool;
use tracing::{info, warn};

use crate::config::{Detail, Settings, Tune};
use crate::error::Error;
use crate::pg::cluster::{self, Cluster, ServiceLock};
use crate::pg::schema::{self, Facts};
use crate::pg::{leaked, objects, pool, validate};
use crate::plan::{Phase, Plan};
use crate::prevouts::{UtxoLimits, UtxoOptions};
use crate::profile::{Figures, Profile};
use crate::replay::found::{self, FoundBlocks};
use crate::replay::room::RoomOptions;
use crate::replay::{self, ReplayOptions};
use crate::resources::Resources;
use crate::rows::Store;
use crate::verify::{Check, TableDigest, UtxoSetInfo};

/// Connections at most: four fill tables, two build indexes a core, the others control.
const CONNECTIONS_MAX: usize = 40;

/// Loads what the block files hold and keeps it queryable; ends when that is so, or on a signal.
///
/// # Errors
/// [`Error`], by who must act.
pub async fn run(settings: &Settings) -> Result<(), Error> {
    let profile = Profile::start();
    let _at_work = ServiceLock::take(&settings.data_dir)?;
    let plans = Plans::new(settings);
    let found = found::scan(&replay_options(settings, &plans)).await?;
    plans.log();
    let options = cluster::Options { reconfigure: true, ..settings.cluster_options() };
    let mut cluster = Cluster::start(options).await?;
    let pool = pool::pool(cluster.pg_config(), CONNECTIONS_MAX)?;
    install(&cluster, &pool, settings).await?;

    let ending = signal();
    let synced = tokio::select! {
        synced = sync(&mut cluster, &pool, found, settings, &plans, &profile) => synced.map(Some),
        () = ending => Ok(None),
    };
    if synced?.is_none() {
        info!("ended by a signal; the same command goes on from the last finished segment");
        return Err(Error::Interrupted);
    }
    if settings.until_synced {
        return Ok(());
    }
    keep(&pool).await
}

/// Replays, and tells when everything is queryable.
async fn sync(
    cluster: &mut Cluster,
    pool: &Pool,
    found: FoundBlocks,
    settings: &Settings,
    plans: &Plans,
    profile: &Profile,
) -> Result<(), Error> {
    leaked::sweep(cluster, pool).await;
    let outcome = replay::run(pool, found, &replay_options(settings, plans), profile).await?;
    enter_live(cluster, pool, settings, plans).await?;
    let client = pool.get().await.map_err(pool::Error::from)?;
    let figures = Figures { height: Some(outcome.tip_height), ..Figures::default() };
    profile.reached("Entered LIVE sync from start state", figures).record(&client).await;
    Ok(())
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

/// Gives the server its settings for LIVE the first time that everything is queryable: one restart.
async fn enter_live(
    cluster: &mut Cluster,
    pool: &Pool,
    settings: &Settings,
    plans: &Plans,
) -> Result<(), Error> {
    if settings.tune == Tune::Off || Cluster::recorded_phase(&settings.data_dir) == Phase::Live {
        return Ok(());
    }
    // Idle connections would report that the server went away.
    pool.retain(|_, _| false);
    cluster.reconfigure(settings.server_settings(&plans.live)).await?;
    Ok(())
}

/// Stays until a signal; validates in the background what was added NOT VALID.
async fn keep(pool: &Pool) -> Result<(), Error> {
    info!("all that the block files hold is queryable; newer blocks are loaded at the next start");
    let client = pool.get().await.map_err(pool::Error::from)?;
    let validated = tokio::select! {
        validated = validate::validate_all(&client) => Some(validated?),
        () = signal() => None,
    };
    if let Some(faults) = validated {
        for fault in faults {
            warn!(fault, "a constraint does not hold");
        }
        signal().await;
    }
    info!("ended by a signal; PostgreSQL goes on, `satgres pg stop` ends it");
    Ok(())
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
        room: RoomOptions {
            database_dir: Some(settings.data_dir.join("pg/base")),
            is_checked: settings.replay.disk_check,
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

/// Waits for SIGINT or SIGTERM.
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        // Without handlers the signals keep their default: they end the process.
        _ => std::future::pending().await,
    }
}

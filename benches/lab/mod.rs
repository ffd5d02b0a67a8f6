//! What the benches that need a server stand on: a generated chain that is kept, and a private server of their own.
//!
//! In: sizes. Out: a folder of block files, a running server, and a fresh database each time one is asked for. The
//! server lies in a temporary folder, runs with the settings of the plan, and is stopped when the lab is closed.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod cpu;
#[path = "../../tests/support/kept_chain.rs"]
mod kept_chain;
pub mod lookups;
pub mod replayed;
pub mod round;

use std::path::{Path, PathBuf};

use deadpool_postgres::Pool;
use kept_chain::KeptChain;
use satgres::config::{LowArgs, Settings};
use satgres::heap;
use satgres::network::Network;
use satgres::pg::cluster::{self, Cluster};
use satgres::pg::schema::{self, Facts};
use satgres::pg::{conf, objects, pool};
use satgres::plan::{Phase, Plan};
use satgres::prevouts::{UtxoLimits, UtxoOptions};
use satgres::replay::ReplayOptions;
use satgres::replay::room::RoomOptions;
use satgres::resources::Resources;
use satgres::rows::Store;

const CONNECTIONS_MAX: usize = 40;

/// A chain on disk.
#[derive(Clone, Debug)]
pub struct Chain {
    pub dir: PathBuf,
    pub txs: u64,
    pub bytes: u64,
    /// Unspent outputs at the tip.
    pub coins: u64,
}

impl Chain {
    /// Returns a chain of about `txs` transactions, made once and kept in the cache folder.
    pub fn of(txs: u64) -> anyhow::Result<Chain> {
        let KeptChain { dir, txs, mix } = KeptChain::of(txs)?;
        Ok(Chain { dir, txs, bytes: mix.bytes, coins: mix.utxo_count })
    }
}

/// Options of the benches that load a chain.
#[derive(Clone, Debug, clap::Args)]
pub struct ChainArgs {
    /// Transactions of the chain, about.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub txs: u64,
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

impl ChainArgs {
    /// Says what makes this machine unfit, then makes the chain and the server.
    pub async fn open(&self) -> anyhow::Result<(Chain, Lab)> {
        crate::harness::machine::print_warnings();
        Ok((Chain::of(self.txs)?, Lab::open().await?))
    }
}

/// A private server in a temporary folder.
#[derive(Debug)]
pub struct Lab {
    dir: tempfile::TempDir,
    cluster: Cluster,
    pub settings: Settings,
    pub plan: Plan,
    pub restore_plan: Plan,
}

/// What differs from a replay as it is by default.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Changes {
    /// An option of satgres.toml, such as `store.witness=none`; may be repeated.
    #[arg(long = "config", value_name = "KEY=VALUE", value_parser = pair)]
    pub config: Vec<(String, String)>,
    /// A setting of the server, such as `shared_buffers=1GB`; may be repeated.
    #[arg(long = "server", value_name = "NAME=VALUE", value_parser = pair)]
    pub server: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it lacks a =")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Lab {
    /// Makes and starts the server, with the settings of a replay on this machine.
    pub async fn open() -> anyhow::Result<Lab> {
        Lab::open_with(&Changes::default()).await
    }

    /// The same, with some changes.
    pub async fn open_with(changes: &Changes) -> anyhow::Result<Lab> {
        // As the service does.
        heap::bound_leftovers();
        let dir = tempfile::Builder::new().prefix("satgres-bench").tempdir()?;
        let mut typed = LowArgs::default();
        for (key, value) in [("network", "regtest"), ("blocks_dir", "/nowhere")] {
            typed.values.insert(key, value.to_owned());
        }
        typed.values.insert("data_dir", dir.path().join("data").display().to_string());
        // Keys live as long as the program.
        let changed = changes.config.iter().map(|(key, value)| (&*key.clone().leak(), value.clone()));
        typed.values.extend(changed);
        let settings = Settings::resolve(&typed)?;
        let resources = Resources::detect(dir.path());
        let plan = Plan::new(&resources, Phase::Replay, &settings.overrides());
        let restore_plan = Plan::new(&resources, Phase::Restore, &settings.overrides());
        let mut server = settings.server_settings(&plan);
        for (name, value) in &changes.server {
            let name: &'static str = name.clone().leak();
            server.retain(|setting| setting.name != name);
            server.push(conf::Setting::new(name, value, "tried by a bench"));
        }
        let options = cluster::Options { settings: server, reconfigure: true, ..settings.cluster_options() };
        let cluster = Cluster::start(options).await?;
        Ok(Lab { dir, cluster, settings, plan, restore_plan })
    }

    /// Returns a pool on a database that is as good as new.
    pub async fn fresh_database(&self) -> anyhow::Result<Pool> {
        let mut config = self.cluster.pg_config();
        config.dbname("postgres");
        let admin = pool::pool(config, 1)?;
        let client = admin.get().await?;
        client.batch_execute(&format!("drop database if exists {} with (force)", cluster::DATABASE)).await?;
        client.batch_execute(&format!("create database {}", cluster::DATABASE)).await?;
        let pool = self.pool()?;
        let mut client = pool.get().await?;
        let facts = Facts {
            network: Network::Regtest,
            store_witness: self.settings.store.witness,
            store_script_sig: self.settings.store.script_sig,
        };
        schema::install(&mut client, &facts).await?;
        objects::ensure_parents(&client).await?;
        client.batch_execute("checkpoint").await?;
        let _ = std::fs::remove_dir_all(self.coins_dir());
        drop(client);
        Ok(pool)
    }

    /// Returns a pool on the database as it is.
    pub fn pool(&self) -> anyhow::Result<Pool> {
        Ok(pool::pool(self.cluster.pg_config(), CONNECTIONS_MAX)?)
    }

    /// Returns the largest number of unspent outputs at any height of the chain that was just loaded.
    pub async fn coins_max(&self) -> anyhow::Result<u64> {
        let most = "with changes (height, coins) as (
               select chain.height(tx_num), 1 from chain.outputs
               where substring(script, 1, 1) is distinct from '\\x6a' and length(script) <= 10000
               union all
               select chain.height(tx_num), -1 from chain.inputs where prev_tx_num is not null),
             blocks (height, coins) as (select height, sum(coins) from changes group by height)
             select max(coins)::int8 from (select sum(coins) over (order by height) as coins from blocks) heights";
        let client = self.pool()?.get().await?;
        let coins: i64 = client.query_one(most, &[]).await?.get(0);
        Ok(coins as u64)
    }

    /// Returns the process id of the server.
    pub fn postmaster(&self) -> i32 {
        self.cluster.postmaster().pid
    }

    /// Returns the connection string of the database.
    pub fn url(&self) -> String {
        self.cluster.url()
    }

    /// Returns the folder of the server's programs.
    pub fn bin_dir(&self) -> PathBuf {
        self.cluster.binaries().dir.clone()
    }

    /// Returns the folder of the UTXO set's files.
    pub fn coins_dir(&self) -> PathBuf {
        self.dir.path().join("data/coins")
    }

    /// Returns the temporary folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns what a replay of a chain is run with, as the service would on this machine.
    pub fn replay_options(&self, chain: &Chain, segment_bytes: u64) -> ReplayOptions {
        ReplayOptions {
            kept_dir: None,
            blocks_dir: chain.dir.clone(),
            node: None,
            network: Network::Regtest,
            segment_bytes,
            batch_bytes: self.settings.replay.batch_bytes,
            pipeline_bytes: self.plan.pipeline_bytes,
            threads: self.plan.threads,
            builds_max: self.restore_plan.builds,
            builds_while_loading: self.plan.builds,
            build_bytes: self.restore_plan.maintenance_work_mem_bytes,
            store: Store {
                witness: self.settings.store.witness.is_full(),
                script_sig: self.settings.store.script_sig.is_full(),
            },
            utxos: UtxoOptions {
                dir: self.coins_dir(),
                cache_bytes_max: Some(self.plan.utxo_cache_bytes),
                buckets: self.settings.replay.utxo_cache_buckets,
                limits: UtxoLimits::within(self.plan.coin_files_bytes),
            },
            room: RoomOptions { database_dir: None, is_checked: false },
        }
    }

    /// Stops the server and removes everything.
    pub async fn close(self) -> anyhow::Result<()> {
        Cluster::stop(self.settings.data_dir.clone()).await?;
        Ok(self.dir.close()?)
    }
}

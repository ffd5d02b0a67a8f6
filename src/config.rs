//! What was typed becomes what it means, once.
//!
//! In: the command line's options as text ([`LowArgs`]), the environment (`SATGRES_*`) and a TOML file. Out: [`Settings`],
//! every value parsed and present, each with its [`Origin`]. Called by the command line only; nobody else sees an
//! option that may be missing. Typed wins over environment, environment over file, file over default.

mod database_url;
mod file;
mod options;
mod parse;
mod size;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

pub use self::{
    database_url::DatabaseUrl,
    options::{OPTIONS, OptionSpec},
    size::{SizeError, format_size, parse_size},
};
use crate::{
    network::Network,
    pg::{cluster, conf, target::conninfo::ConninfoError},
    plan::{Overrides, Plan},
    resources::{Found, Resources},
};

/// The file that is read where it exists and `--config` names no other.
pub const DEFAULT_FILE: &str = "config/satgres.toml";

/// Why the settings make no sense.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value cannot be read.
    #[error("{origin}: {value:?} is no valid value: {reason}")]
    Value {
        /// Where it was given.
        origin: Origin,
        /// The value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file has a mistake.
    #[error("configuration file {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Line, key and what is wrong.
        reason: String,
    },
    /// The connection string cannot be read; its text may hold a password, so it is not told.
    #[error("{origin}: no valid connection string: {reason}")]
    DatabaseUrl {
        /// Where it was given.
        origin: Origin,
        /// What is wrong with it.
        reason: String,
    },
    /// The URL of a node's RPC cannot be read; its text may hold a password, so it is not told.
    #[error(
        "--node: no valid URL: {reason}\n  help: --node http://USER:PASSWORD@HOST:PORT, or --node http://HOST:PORT --cookie FILE"
    )]
    NodeUrl {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A default needs a home directory.
    #[error("no home directory is known, so {option} has no default: give it")]
    NoHome {
        /// The option.
        option: &'static str,
    },
}

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere.
    Default,
    /// In a file, under a key.
    File(PathBuf, String),
    /// In a variable of the environment.
    Env(String),
    /// On the command line.
    Typed(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path, key) => write!(f, "{}, {key}", path.display()),
            Origin::Env(name) => f.write_str(name),
            Origin::Typed(option) => f.write_str(option),
        }
    }
}

/// What was typed: the text of every option that was, by its key (`replay.segment_bytes`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LowArgs {
    /// File named by `--config`.
    pub config: Option<PathBuf>,
    /// Text by key.
    pub values: BTreeMap<&'static str, String>,
}

/// How much of a column is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All of it.
    Full,
    /// NULL in its place.
    None,
}

impl Detail {
    /// Name, as options and `ops.settings` have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Detail::Full => "full",
            Detail::None => "none",
        }
    }

    /// Whether it is stored.
    #[must_use]
    pub fn is_full(self) -> bool {
        self == Detail::Full
    }
}

/// Everything that can be set, resolved.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The chain.
    pub network: Network,
    /// The node's directory of `blk*.dat`.
    pub blocks_dir: PathBuf,
    /// `HOST:PORT` of the user's own nodes; none: the files alone.
    pub peers: Vec<String>,
    /// Longest silence of a node that owes an answer, seconds.
    pub peer_timeout_seconds: u64,
    /// Where the database and the service's own files are; absolute.
    pub data_dir: PathBuf,
    /// The user's own server and database in place of the private ones.
    pub database_url: Option<DatabaseUrl>,
    /// Directory of PostgreSQL's programs, if one was named.
    pub pg_bin: Option<PathBuf>,
    /// Whether `run` ends when all that the files hold is queryable.
    pub until_synced: bool,
    /// Where `run` answers `/health` and `/metrics`; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Filter of the log.
    pub log: String,
    /// Who decides on the private server's settings.
    pub tune: Tune,
    /// How a replay works.
    pub replay: ReplaySettings,
    /// How live sync works.
    pub live: LiveSettings,
    /// What is stored.
    pub store: StoreSettings,
    /// Where each value was given, by key.
    pub origins: BTreeMap<&'static str, Origin>,
}

/// How a replay works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaySettings {
    /// Bytes of blocks in a segment; 0 makes a segment of every block.
    pub segment_bytes: u64,
    /// Threads that parse blocks, of which half as many encode rows; `None` leaves it to the plan.
    pub threads: Option<usize>,
    /// Index builds beside a load; `None`: what the plan gives.
    pub builds_while_loading: Option<usize>,
    /// Bytes of blocks in a batch.
    pub batch_bytes: u64,
    /// Most bytes between reading and sending; `None` leaves it to the plan.
    pub pipeline_bytes: Option<u64>,
    /// Bytes for the UTXO cache; `None` leaves it to the plan.
    pub utxo_cache_bytes: Option<u64>,
    /// Buckets of the UTXO cache: the oldest one leaves when it is full.
    pub utxo_cache_buckets: u64,
    /// Headers from a node that are put into the tree's index together.
    pub headers_batch: usize,
    /// Whether a load that does not seem to fit on the disk is refused.
    pub disk_check: bool,
}

/// How live sync works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveSettings {
    /// Most blocks that are connected one by one; `None` leaves it to the cost model.
    pub sync_threshold_blocks: Option<u32>,
    /// Buckets of the TxNumCache.
    pub txnum_cache_buckets: u64,
    /// Entries in each.
    pub txnum_cache_bucket_size: u64,
}

/// Who decides on the private server's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tune {
    /// The memory plan, at every start.
    Auto,
    /// The user: only what satgres cannot do without is set.
    Off,
}

/// What is stored of what could be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSettings {
    /// Witnesses.
    pub witness: Detail,
    /// Input scripts.
    pub script_sig: Detail,
}

impl Settings {
    /// Resolves what was typed, with this process' environment and the file.
    ///
    /// # Errors
    /// [`Error`], naming where the wrong value was given.
    pub fn resolve(typed: &LowArgs) -> Result<Settings, Error> {
        Settings::resolve_in(typed, &|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    fn resolve_in(typed: &LowArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<Settings, Error> {
        let from_file = match typed
            .config
            .clone()
            .or_else(|| env("SATGRES_CONFIG").filter(|it| !it.is_empty()).map(PathBuf::from))
        {
            Some(path) => file::read(&path)?,
            None if Path::new(DEFAULT_FILE).exists() => file::read(Path::new(DEFAULT_FILE))?,
            None => BTreeMap::new(),
        };
        let mut values = Values { chosen: BTreeMap::new() };
        for option in OPTIONS {
            let chosen = typed
                .values
                .get(option.key)
                .map(|text| (text.clone(), Origin::Typed(option.flag())))
                .or_else(|| {
                    let names = option.env_names();
                    let mut set = names.into_iter().filter_map(|name| Some((env(&name)?, name)));
                    set.find(|(text, _)| !text.is_empty()).map(|(text, name)| (text, Origin::Env(name)))
                })
                .or_else(|| from_file.get(option.key).cloned());
            if let Some(chosen) = chosen {
                values.chosen.insert(option.key, chosen);
            }
        }
        values.settle(env)
    }

    /// What a command wants of the private server: as it was, with the plan of the phase that it was last started for.
    #[must_use]
    pub fn cluster_options(&self) -> cluster::Options {
        let phase = cluster::Cluster::recorded_phase(&self.data_dir);
        let plan = Plan::new(&Resources::detect(&self.data_dir), phase, &self.overrides());
        cluster::Options {
            data_dir: self.data_dir.clone(),
            pg_bin: self.pg_bin.clone(),
            settings: self.server_settings(&plan),
            reconfigure: false,
        }
    }

    /// The private server's settings under a plan.
    #[must_use]
    pub fn server_settings(&self, plan: &Plan) -> Vec<conf::Setting> {
        match self.tune {
            Tune::Auto => conf::planned(plan),
            Tune::Off => conf::fixed(),
        }
    }

    /// What the plan must heed, with where it was given.
    #[must_use]
    pub fn overrides(&self) -> Overrides {
        let source = |key| self.origins.get(key).map(ToString::to_string);
        let found = |key, value: Option<u64>| Some(Found::new(value?, source(key)?));
        Overrides {
            utxo_cache_bytes: found("replay.utxo_cache", self.replay.utxo_cache_bytes),
            txnum_cache_buckets: found("live.txnum_cache_buckets", Some(self.live.txnum_cache_buckets)),
            txnum_cache_bucket_size: found(
                "live.txnum_cache_bucket_size",
                Some(self.live.txnum_cache_bucket_size),
            ),
            pipeline_bytes: found("replay.pipeline_bytes", self.replay.pipeline_bytes),
            threads: self.replay.threads.zip(source("replay.threads")).map(|(n, from)| Found::new(n, from)),
            builds_while_loading: self
                .replay
                .builds_while_loading
                .zip(source("replay.builds_while_loading"))
                .map(|(n, from)| Found::new(n, from)),
        }
    }

    /// Every option's value in force, as text, in the order of [`OPTIONS`].
    #[must_use]
    pub fn listing(&self) -> Vec<(&'static OptionSpec, String, Origin)> {
        let text = |key: &str| match key {
            "network" => self.network.to_string(),
            "blocks_dir" => self.blocks_dir.display().to_string(),
            "peer" if self.peers.is_empty() => "none".to_owned(),
            "peer" => self.peers.join(","),
            "peer_timeout_seconds" => self.peer_timeout_seconds.to_string(),
            "data_dir" => self.data_dir.display().to_string(),
            "database_url" => {
                self.database_url.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
            }
            "pg_bin" => {
                self.pg_bin.as_ref().map_or_else(|| "found".to_owned(), |dir| dir.display().to_string())
            }
            "until_synced" => self.until_synced.to_string(),
            "listen" => self.listen.map_or_else(|| "none".to_owned(), |address| address.to_string()),
            "log" => self.log.clone(),
            "replay.segment_bytes" => format_size(self.replay.segment_bytes),
            "tune" => match self.tune {
                Tune::Auto => "auto".to_owned(),
                Tune::Off => "off".to_owned(),
            },
            "replay.threads" => self.replay.threads.map_or_else(|| "auto".to_owned(), |n| n.to_string()),
            "replay.builds_while_loading" => {
                self.replay.builds_while_loading.map_or_else(|| "auto".to_owned(), |n| n.to_string())
            }
            "replay.batch_bytes" => format_size(self.replay.batch_bytes),
            "replay.pipeline_bytes" => {
                self.replay.pipeline_bytes.map_or_else(|| "auto".to_owned(), format_size)
            }
            "replay.utxo_cache" => {
                self.replay.utxo_cache_bytes.map_or_else(|| "auto".to_owned(), format_size)
            }
            "replay.utxo_cache_buckets" => self.replay.utxo_cache_buckets.to_string(),
            "replay.headers_batch" => self.replay.headers_batch.to_string(),
            "replay.disk_check" => if self.replay.disk_check { "on" } else { "off" }.to_owned(),
            "live.sync_threshold_blocks" => {
                self.live.sync_threshold_blocks.map_or_else(|| "auto".to_owned(), |n| n.to_string())
            }
            "live.txnum_cache_buckets" => self.live.txnum_cache_buckets.to_string(),
            "live.txnum_cache_bucket_size" => self.live.txnum_cache_bucket_size.to_string(),
            "store.witness" => self.store.witness.name().to_owned(),
            "store.script_sig" => self.store.script_sig.name().to_owned(),
            _ => unreachable!("OPTIONS lists no other key; a test prints them all"),
        };
        let origin = |key| self.origins.get(key).cloned().unwrap_or(Origin::Default);
        OPTIONS.iter().map(|option| (option, text(option.key), origin(option.key))).collect()
    }
}

/// The text chosen for each key, and where it was given.
struct Values {
    chosen: BTreeMap<&'static str, (String, Origin)>,
}

impl Values {
    /// Parses a value where one was given.
    fn get<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        let Some((text, origin)) = self.chosen.get(key) else { return Ok(None) };
        let failed = |reason| Error::Value { origin: origin.clone(), value: text.clone(), reason };
        parse(text.trim()).map(Some).map_err(failed)
    }

    /// The connection string, where one was given; a mistake in it must not show the password.
    fn database_url(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<DatabaseUrl>, Error> {
        let Some((text, origin)) = self.chosen.get("database_url") else { return Ok(None) };
        if text.trim() == "none" {
            return Ok(None);
        }
        let failed =
            |error: ConninfoError| Error::DatabaseUrl { origin: origin.clone(), reason: error.to_string() };
        DatabaseUrl::parse(text, env).map(Some).map_err(failed)
    }

    fn settle(self, env: &dyn Fn(&str) -> Option<String>) -> Result<Settings, Error> {
        let network = self.get("network", parse::network)?.unwrap_or(Network::Main);
        let blocks_dir = match self.get("blocks_dir", parse::path)? {
            Some(dir) => dir,
            None => default_blocks_dir(network)?,
        };
        let data_dir = match self.get("data_dir", parse::path)? {
            Some(dir) => dir,
            None => default_data_dir()?,
        };
        let settings = Settings {
            network,
            blocks_dir,
            peers: self.get("peer", parse::peers)?.unwrap_or_default(),
            peer_timeout_seconds: self.get("peer_timeout_seconds", parse::seconds)?.unwrap_or(30),
            data_dir,
            database_url: self.database_url(env)?,
            pg_bin: self.get("pg_bin", parse::path)?,
            until_synced: self.get("until_synced", parse::bool)?.unwrap_or(false),
            listen: self.get("listen", parse::listen)?.flatten(),
            log: self.get("log", crate::logging::check)?.unwrap_or_else(|| "info".to_owned()),
            tune: self.get("tune", parse::tune)?.unwrap_or(Tune::Auto),
            replay: ReplaySettings {
                segment_bytes: self.get("replay.segment_bytes", parse::size)?.unwrap_or(50 << 30),
                threads: self.get("replay.threads", parse::threads)?.flatten(),
                builds_while_loading: self.get("replay.builds_while_loading", parse::builds)?.flatten(),
                batch_bytes: self.get("replay.batch_bytes", parse::size_not_zero)?.unwrap_or(4 << 20),
                pipeline_bytes: self.get("replay.pipeline_bytes", parse::pipeline_bytes)?.flatten(),
                utxo_cache_bytes: self.get("replay.utxo_cache", parse::size_or_auto)?.flatten(),
                utxo_cache_buckets: self.get("replay.utxo_cache_buckets", parse::buckets)?.unwrap_or(10),
                headers_batch: self.get("replay.headers_batch", parse::headers_batch)?.unwrap_or(100_000),
                disk_check: self.get("replay.disk_check", parse::switch)?.unwrap_or(true),
            },
            live: LiveSettings {
                sync_threshold_blocks: self.get("live.sync_threshold_blocks", parse::threshold)?.flatten(),
                txnum_cache_buckets: self.get("live.txnum_cache_buckets", parse::count)?.unwrap_or(10),
                txnum_cache_bucket_size: self
                    .get("live.txnum_cache_bucket_size", parse::count)?
                    .unwrap_or(25_000),
            },
            store: StoreSettings {
                witness: self.get("store.witness", parse::detail)?.unwrap_or(Detail::Full),
                script_sig: self.get("store.script_sig", parse::detail)?.unwrap_or(Detail::Full),
            },
            origins: self.chosen.into_iter().map(|(key, (_, origin))| (key, origin)).collect(),
        };
        Ok(settings)
    }
}

/// Bitcoin Core's own place for a network's block files.
fn default_blocks_dir(network: Network) -> Result<PathBuf, Error> {
    let home = std::env::home_dir().ok_or(Error::NoHome { option: "--blocks-dir" })?;
    let node = home.join(".bitcoin");
    Ok(match network {
        Network::Main => node.join("blocks"),
        Network::Test => node.join("testnet3/blocks"),
        other => node.join(other.name()).join("blocks"),
    })
}

/// `/var/lib/satgres` for root, otherwise a place in the user's own data directory.
fn default_data_dir() -> Result<PathBuf, Error> {
    // SAFETY: reads the process' own id.
    if unsafe { libc::geteuid() } == 0 {
        return Ok(PathBuf::from("/var/lib/satgres"));
    }
    let xdg = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = match xdg {
        Some(dir) => dir,
        None => std::env::home_dir().ok_or(Error::NoHome { option: "--data-dir" })?.join(".local/share"),
    };
    Ok(base.join("satgres"))
}

#[cfg(test)]
mod tests;

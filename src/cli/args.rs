//! What can be typed, and the settings in it by their keys.
//!
//! In: the arguments. Out: [`Cli`], which clap fills, and [`LowArgs`] for the settings. Called by [`super::main`]. It decides
//! nothing: what a value means, and which one wins, is said in [`crate::config`].

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{LowArgs, parse_size},
    exit_codes,
    plan::{Format, Phase},
    resources::DiskKind,
};

/// Keeps the whole Bitcoin chain in PostgreSQL.
///
/// Satgres reads the block files of your Bitcoin node, loads them into a PostgreSQL of its own, and lets you ask
/// about them in SQL. Start with `satgres run`; it makes everything it needs.
#[derive(Debug, Parser)]
#[command(
    name = "satgres",
    version,
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = concat!(
        "Examples:
  satgres run --until-synced                       load ~/.bitcoin/blocks, then end
  satgres run --network regtest --blocks-dir DIR   another network, another place
  satgres psql -- -c 'select max(height) from chain.blocks'
  psql \"$(satgres url)\"                            the same, with your own psql
  satgres status                                   phase, height, time left, what is being built
  satgres pg stop                                  stop the private PostgreSQL

Every option may also stand in config/satgres.toml or in the environment: --data-dir is data_dir or
SATGRES_DATA_DIR. The command line wins over the environment, which wins over the file.

", exit_codes!())
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(super) struct GlobalArgs {
    /// Configuration file [default: config/satgres.toml, if there]
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Where the database is, one network each [default: /var/lib/satgres for root, else ~/.local/share/satgres]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) data_dir: Option<String>,
    /// A database of your own in place of the private one: a URL or key=value pairs; data-dir still holds satgres' files
    #[arg(long, global = true, value_name = "URL", hide_env_values = true)]
    pub(super) database_url: Option<String>,
    /// PostgreSQL's programs, 15 or newer [default: $PG_BIN, pg_config's, or the highest installed]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) pg_bin: Option<String>,
    /// How much is logged to standard error: error, warn, info, debug, trace, or a filter [default: info]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(super) log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Load what the block files hold and keep it queryable: does whatever is missing
    ///
    /// Makes and starts a private PostgreSQL if there is none, loads the blocks, builds the indexes. After a crash or
    /// a kill the same command goes on where it stopped.
    #[command(after_help = concat!(
        "Examples:
  satgres run
  satgres run --network signet --until-synced
  satgres run --blocks-dir /mnt/node/blocks --data-dir /fast/satgres
  satgres run --peer 127.0.0.1:8333                the node decides between branches, and has what the files lack

", exit_codes!()))]
    Run(RunArgs),
    /// Open psql on the database; what follows `--` is psql's
    #[command(after_help = "Examples:
  satgres psql                                     an interactive session
  satgres psql -- -Atc 'select count(*) from chain.blocks'
  satgres psql -- -f report.sql

Standard output and the exit code are psql's own: 0 success, 1 a fatal error of psql's, 2 a lost connection,
3 an error in a script with ON_ERROR_STOP set.")]
    Psql {
        /// Arguments for psql
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<std::ffi::OsString>,
    },
    /// Print the connection string, for psql and any other client on this machine
    #[command(after_help = "Example:
  psql \"$(satgres url)\"")]
    Url,
    /// Start or stop the private PostgreSQL
    Pg {
        #[command(subcommand)]
        command: PgCommand,
    },
    /// Check that the database holds what it should
    ///
    /// Heights, links, counts, prevouts, fees, rewards, indexes and constraints. Every failure is named on standard
    /// output and gives exit code 5.
    #[command(after_help = exit_codes!())]
    Verify(VerifyArgs),
    /// Generate a regtest chain with realistic transactions, as a node's block files
    #[command(after_help = "Example:
  satgres chaingen --blocks 1000 --txs-per-block 100 --seed 1 --out /tmp/chain
  satgres run --network regtest --blocks-dir /tmp/chain --data-dir /tmp/satgres --until-synced")]
    Chaingen(ChaingenArgs),
    /// Show what the service, its PostgreSQL and the chain in it are doing; starts nothing and waits for nobody
    ///
    /// True at any moment: while blocks are loaded, while the database is down or recovers, after a kill.
    #[command(after_help = "Examples:
  satgres status
  watch satgres status
  satgres status --json | jq .eta.total_seconds
  satgres status --check >/dev/null || echo 'it does not run'

docs/status.md tells the keys of the JSON. The exit code is 0 whenever the state could be told, whatever it is, 1
where the data directory may not be looked into. With --check it is 0 only while `satgres run` is at work and says
so every second, else 1.")]
    Status {
        /// Print one JSON object instead: bytes, seconds, stable keys
        #[arg(long)]
        json: bool,
        /// End with exit code 1 unless `satgres run` is at work: for health checks
        #[arg(long)]
        check: bool,
    },
    /// Show who gets which memory in each phase, and why; also for another machine
    ///
    /// Three share the memory: PostgreSQL, the caches of satgres, and the page cache. `satgres run` gives the private
    /// PostgreSQL these settings at every start; user.conf beside its postgresql.conf wins over them.
    #[command(after_help = "Examples:
  satgres tune
  satgres tune --ram 16GiB --cpus 8 --disk nvme --phase live
  satgres tune --phase replay --format postgresql.conf >tuned.conf
  satgres tune --format json

Standard output holds the format alone. JSON has one object for the phase, or one a phase; sizes are bytes.")]
    Tune(TuneArgs),
    /// Show every setting in force and where it was given
    Config(RunArgs),
}

#[derive(Debug, Subcommand)]
pub(super) enum PgCommand {
    /// Start it if it is down; make it if there is none
    Start,
    /// Stop it if it runs: sessions are ended, nothing is lost
    Stop,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The chain: main, test, testnet4, signet or regtest [default: main]
    #[arg(long, value_name = "NAME")]
    pub(super) network: Option<String>,
    /// The node's directory of blk*.dat files [default: ~/.bitcoin/blocks, or the network's below ~/.bitcoin]
    #[arg(long, value_name = "DIR")]
    pub(super) blocks_dir: Option<String>,
    /// Your own node's P2P address; may be given several times [default: none, the files alone]
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) peer: Vec<String>,
    /// Longest silence of a node that owes an answer [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub(super) peer_timeout_seconds: Option<String>,
    /// End once all that the files hold is queryable; PostgreSQL goes on
    #[arg(long)]
    pub(super) until_synced: bool,
    /// Bytes of blocks in one partition, such as 50GiB; 0 makes one of every block [default: 50GiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) segment_bytes: Option<String>,
    /// Threads that parse blocks [default: one per core]
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<String>,
    /// Bytes of blocks that travel the pipeline together [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) batch_bytes: Option<String>,
    /// Most memory between reading blocks and sending rows [default: from the memory plan]
    #[arg(long, value_name = "SIZE")]
    pub(super) pipeline_bytes: Option<String>,
    #[command(flatten)]
    pub(super) caches: CacheArgs,
    /// Parts of the memory for unspent outputs; the oldest leaves when it is full [default: 10]
    #[arg(long, value_name = "N")]
    pub(super) utxo_cache_buckets: Option<String>,
    /// Refuse what does not seem to fit on the disk: on or off [default: on]
    #[arg(long, value_name = "SWITCH")]
    pub(super) disk_check: Option<String>,
    /// Most blocks that are connected one by one; a larger gap is loaded in bulk [default: by measured rates]
    #[arg(long, value_name = "BLOCKS")]
    pub(super) live_sync_threshold: Option<String>,
    /// Who decides on PostgreSQL's settings: auto, as `satgres tune` shows them, or off [default: auto]
    #[arg(long, value_name = "WHO")]
    pub(super) tune: Option<String>,
    /// Store witnesses: full or none [default: full]
    #[arg(long, value_name = "DETAIL")]
    pub(super) store_witness: Option<String>,
    /// Store input scripts: full or none [default: full]
    #[arg(long, value_name = "DETAIL")]
    pub(super) store_script_sig: Option<String>,
}

/// Sizes of the caches.
#[derive(Debug, Args)]
pub(super) struct CacheArgs {
    /// Memory for the set of unspent outputs, 0 for none; the rest goes to sorted files [default: from the memory plan]
    #[arg(long, value_name = "SIZE")]
    pub(super) utxo_cache: Option<String>,
    /// Buckets of the cache of recent transactions; the oldest goes when the newest is full [default: 10]
    #[arg(long, value_name = "N")]
    pub(super) txnum_cache_buckets: Option<String>,
    /// Transactions in such a bucket, 40 bytes each [default: 25000]
    #[arg(long, value_name = "N")]
    pub(super) txnum_cache_bucket_size: Option<String>,
}

/// The machine to plan for, and what to print.
#[derive(Debug, Args)]
pub(super) struct TuneArgs {
    /// Memory to plan for, such as 16GiB; 0 is unknown [default: what this process may use]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) ram: Option<u64>,
    /// Cores to plan for [default: what this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) cpus: Option<u32>,
    /// Disk of the database: ssd, nvme or hdd [default: that of the data directory]
    #[arg(long, value_name = "KIND")]
    pub(super) disk: Option<DiskKind>,
    /// One phase: replay, restore or live [default: all; live for postgresql.conf]
    #[arg(long, value_name = "PHASE")]
    pub(super) phase: Option<Phase>,
    /// table, postgresql.conf or json
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(super) format: Format,
    #[command(flatten)]
    pub(super) caches: CacheArgs,
}

/// What `verify` is asked for besides its checks.
#[derive(Debug, Clone, Args)]
pub(super) struct VerifyArgs {
    /// Print one line `TABLE SHA256` per table instead, the same for the same chain however it was loaded
    #[arg(long)]
    pub(super) digest: bool,
    /// Print the hash of the UTXO set too, as Bitcoin Core's gettxoutsetinfo gives it
    #[arg(long)]
    pub(super) utxo_hash: bool,
}

/// What `chaingen` generates.
#[derive(Debug, Clone, Args)]
pub(super) struct ChaingenArgs {
    /// Height of the tip
    #[arg(long, value_name = "N")]
    pub(super) blocks: u32,
    /// Transactions in a block, once there are coins to spend
    #[arg(long, value_name = "M", default_value_t = 100)]
    pub(super) txs_per_block: u32,
    /// The same arguments and seed give the same bytes
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
    /// Directory for blk00000.dat and so on; made if it is missing
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
}

/// Collects what was typed, by key.
pub(super) fn low_args(cli: &Cli) -> LowArgs {
    let mut values = BTreeMap::new();
    let mut take = |key, text: &Option<String>| {
        if let Some(text) = text {
            values.insert(key, text.clone());
        }
    };
    take("data_dir", &cli.global.data_dir);
    take("database_url", &cli.global.database_url);
    take("pg_bin", &cli.global.pg_bin);
    take("log", &cli.global.log);
    let caches = match &cli.command {
        Command::Run(args) | Command::Config(args) => Some(&args.caches),
        Command::Tune(args) => Some(&args.caches),
        _ => None,
    };
    if let Some(caches) = caches {
        take("replay.utxo_cache", &caches.utxo_cache);
        take("live.txnum_cache_buckets", &caches.txnum_cache_buckets);
        take("live.txnum_cache_bucket_size", &caches.txnum_cache_bucket_size);
    }
    if let Command::Run(args) | Command::Config(args) = &cli.command {
        take("network", &args.network);
        take("blocks_dir", &args.blocks_dir);
        take("peer", &(!args.peer.is_empty()).then(|| args.peer.join(",")));
        take("peer_timeout_seconds", &args.peer_timeout_seconds);
        take("until_synced", &args.until_synced.then(|| "true".to_owned()));
        take("replay.segment_bytes", &args.segment_bytes);
        take("replay.threads", &args.threads);
        take("replay.batch_bytes", &args.batch_bytes);
        take("replay.pipeline_bytes", &args.pipeline_bytes);
        take("replay.utxo_cache_buckets", &args.utxo_cache_buckets);
        take("replay.disk_check", &args.disk_check);
        take("live.sync_threshold_blocks", &args.live_sync_threshold);
        take("tune", &args.tune);
        take("store.witness", &args.store_witness);
        take("store.script_sig", &args.store_script_sig);
    }
    LowArgs { config: cli.global.config.clone(), values }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::config::OPTIONS;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// Whoever adds an option to one of the two lists and not to the other sees it here.
    #[test]
    fn every_option_can_be_typed_and_reaches_the_settings() {
        let mut typed = vec!["satgres".to_owned(), "run".to_owned()];
        for option in OPTIONS {
            typed.push(option.flag());
            if option.key != "until_synced" {
                typed.push("x".to_owned());
            }
        }
        let low = low_args(&Cli::try_parse_from(typed).unwrap());
        let keys: Vec<&str> = low.values.keys().copied().collect();
        let mut expected: Vec<&str> = OPTIONS.iter().map(|option| option.key).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }
}

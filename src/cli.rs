//! The command line: what can be typed, and which part of the service does it.
//!
//! In: the arguments. Out: [`LowArgs`] for the settings, one call per command, an exit code. Only the results of
//! commands go to standard output; everything said to people goes to standard error.

use std::{
    collections::BTreeMap, error::Error as _, io::Write as _, os::unix::process::CommandExt as _,
    path::PathBuf, process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use crate::{
    chaingen,
    config::{LowArgs, Settings, parse_size},
    error::Error,
    exit_codes, logging,
    pg::{
        cluster::Cluster,
        external::{Error as ExternalError, External, Purpose, log_advice},
        server::{self, Server},
    },
    plan::{self, Format, Phase, Plan},
    resources::{DiskKind, Found, Resources, ServerPlace},
    service,
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
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
struct GlobalArgs {
    /// Configuration file [default: config/satgres.toml, if there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the database is, one network each [default: /var/lib/satgres for root, else ~/.local/share/satgres]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// A database of your own in place of the private one: a URL or key=value pairs; data-dir still holds satgres' files
    #[arg(long, global = true, value_name = "URL", hide_env_values = true)]
    database_url: Option<String>,
    /// PostgreSQL's programs, 15 or newer [default: $PG_BIN, pg_config's, or the highest installed]
    #[arg(long, global = true, value_name = "DIR")]
    pg_bin: Option<String>,
    /// How much is logged to standard error: error, warn, info, debug, trace, or a filter [default: info]
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
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

docs/status.md tells the keys of the JSON. The exit code is 0 whenever the state could be told, whatever it is, 1
where the data directory may not be looked into.")]
    Status {
        /// Print one JSON object instead: bytes, seconds, stable keys
        #[arg(long)]
        json: bool,
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
enum PgCommand {
    /// Start it if it is down; make it if there is none
    Start,
    /// Stop it if it runs: sessions are ended, nothing is lost
    Stop,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The chain: main, test, testnet4, signet or regtest [default: main]
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// The node's directory of blk*.dat files [default: ~/.bitcoin/blocks, or the network's below ~/.bitcoin]
    #[arg(long, value_name = "DIR")]
    blocks_dir: Option<String>,
    /// Your own node's P2P address; may be given several times [default: none, the files alone]
    #[arg(long, value_name = "HOST:PORT")]
    peer: Vec<String>,
    /// Longest silence of a node that owes an answer [default: 30]
    #[arg(long, value_name = "SECONDS")]
    peer_timeout_seconds: Option<String>,
    /// End once all that the files hold is queryable; PostgreSQL goes on
    #[arg(long)]
    until_synced: bool,
    /// Bytes of blocks in one partition, such as 50GiB; 0 makes one of every block [default: 50GiB]
    #[arg(long, value_name = "SIZE")]
    segment_bytes: Option<String>,
    /// Threads that parse blocks [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Bytes of blocks that travel the pipeline together [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    batch_bytes: Option<String>,
    /// Most memory between reading blocks and sending rows [default: from the memory plan]
    #[arg(long, value_name = "SIZE")]
    pipeline_bytes: Option<String>,
    #[command(flatten)]
    caches: CacheArgs,
    /// Parts of the memory for unspent outputs; the oldest leaves when it is full [default: 10]
    #[arg(long, value_name = "N")]
    utxo_cache_buckets: Option<String>,
    /// Refuse what does not seem to fit on the disk: on or off [default: on]
    #[arg(long, value_name = "SWITCH")]
    disk_check: Option<String>,
    /// Who decides on PostgreSQL's settings: auto, as `satgres tune` shows them, or off [default: auto]
    #[arg(long, value_name = "WHO")]
    tune: Option<String>,
    /// Store witnesses: full or none [default: full]
    #[arg(long, value_name = "DETAIL")]
    store_witness: Option<String>,
    /// Store input scripts: full or none [default: full]
    #[arg(long, value_name = "DETAIL")]
    store_script_sig: Option<String>,
}

/// Sizes of the caches.
#[derive(Debug, Args)]
struct CacheArgs {
    /// Memory for the set of unspent outputs, 0 for none; the rest goes to sorted files [default: from the memory plan]
    #[arg(long, value_name = "SIZE")]
    utxo_cache: Option<String>,
    /// Buckets of the cache of recent transactions; the oldest goes when the newest is full [default: 10]
    #[arg(long, value_name = "N")]
    txnum_cache_buckets: Option<String>,
    /// Transactions in such a bucket, 40 bytes each [default: 25000]
    #[arg(long, value_name = "N")]
    txnum_cache_bucket_size: Option<String>,
}

/// The machine to plan for, and what to print.
#[derive(Debug, Args)]
struct TuneArgs {
    /// Memory to plan for, such as 16GiB; 0 is unknown [default: what this process may use]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ram: Option<u64>,
    /// Cores to plan for [default: what this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    cpus: Option<u32>,
    /// Disk of the database: ssd, nvme or hdd [default: that of the data directory]
    #[arg(long, value_name = "KIND")]
    disk: Option<DiskKind>,
    /// One phase: replay, restore or live [default: all; live for postgresql.conf]
    #[arg(long, value_name = "PHASE")]
    phase: Option<Phase>,
    /// table, postgresql.conf or json
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,
    #[command(flatten)]
    caches: CacheArgs,
}

/// What `verify` is asked for besides its checks.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Print one line `TABLE SHA256` per table instead, the same for the same chain however it was loaded
    #[arg(long)]
    pub digest: bool,
    /// Print the hash of the UTXO set too, as Bitcoin Core's gettxoutsetinfo gives it
    #[arg(long)]
    pub utxo_hash: bool,
}

/// What `chaingen` generates.
#[derive(Debug, Clone, Args)]
pub struct ChaingenArgs {
    /// Height of the tip
    #[arg(long, value_name = "N")]
    pub blocks: u32,
    /// Transactions in a block, once there are coins to spend
    #[arg(long, value_name = "M", default_value_t = 100)]
    pub txs_per_block: u32,
    /// The same arguments and seed give the same bytes
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Directory for blk00000.dat and so on; made if it is missing
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Runs the command that was typed and returns its exit code.
pub fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Says what happened, and why as far as it is known.
fn report(error: &Error) {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!("\n  because: {inner}"));
        cause = inner.source();
    }
    // Where standard error is closed nobody is left to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn dispatch(cli: Cli) -> Result<(), Error> {
    let settings = Settings::resolve(&low_args(&cli))?;
    logging::start(&settings.log);
    match cli.command {
        Command::Config(_) => print_config(&settings),
        Command::Tune(args) => tune(&settings, &args),
        Command::Run(_) => block_on(service::run(&settings)),
        Command::Status { json } => block_on(status(&settings, json)),
        Command::Verify(args) => block_on(verify(&settings, &args)),
        Command::Chaingen(args) => chaingen(&args),
        Command::Psql { args } => psql(&settings, &args),
        Command::Url => {
            let server = block_on(start(&settings))?;
            print(&format!("{}\n", server.url()))
        }
        Command::Pg { .. } if settings.database_url.is_some() => {
            Err(Error::NotOurs { help: "for the private one: satgres pg --database-url none start" })
        }
        Command::Pg { command: PgCommand::Start } => block_on(start(&settings)).map(|_| ()),
        Command::Pg { command: PgCommand::Stop } => block_on(stop(&settings)),
    }
}

/// `satgres status`: the report goes to standard output.
async fn status(settings: &Settings, json: bool) -> Result<(), Error> {
    let report = crate::status::collect(&settings.data_dir).await?;
    if json {
        let text = serde_json::to_string_pretty(&report).expect("a report has text keys only");
        return print(&format!("{text}\n"));
    }
    print(&crate::status::render(&report))
}

/// `satgres verify`: what was found goes to standard output.
async fn verify(settings: &Settings, args: &VerifyArgs) -> Result<(), Error> {
    if args.digest {
        for digest in service::digest(settings).await? {
            print(&format!("{digest}\n"))?;
        }
    }
    if args.utxo_hash {
        print(&format!("{}\n", service::utxo_set_info(settings).await?))?;
    }
    if args.digest || args.utxo_hash {
        return Ok(());
    }
    let mut written = Ok(());
    let verified = service::verify(settings, |check| {
        if written.is_ok() {
            written = print(&format!("{check}\n"));
        }
    })
    .await;
    verified.and(written)
}

/// `satgres chaingen`: the mix that was reached goes to standard output.
fn chaingen(args: &ChaingenArgs) -> Result<(), Error> {
    let options = chaingen::Options {
        blocks: args.blocks,
        txs_per_block: args.txs_per_block,
        seed: args.seed,
        out: args.out.clone(),
    };
    print(&format!("{}\n", chaingen::generate(&options)?))
}

/// `satgres tune`: the plan goes to standard output, what is wrong with it to the log.
fn tune(settings: &Settings, args: &TuneArgs) -> Result<(), Error> {
    let mut resources = server::resources(settings)?;
    if let Some(bytes) = args.ram {
        let here = resources;
        resources =
            Resources { cpus: here.cpus, disk: here.disk, server: here.server, ..Resources::unknown(1) };
        if bytes > 0 {
            resources.ram_bytes = Found::new(bytes, "--ram");
        }
    }
    if let Some(cpus) = args.cpus {
        resources.cpus = Found::new(cpus as usize, "--cpus");
    }
    if let Some(disk) = args.disk {
        resources.disk = Found::new(disk, "--disk");
    }
    let phases = args.phase.map_or_else(|| Phase::ALL.to_vec(), |phase| vec![phase]);
    let overrides = settings.overrides();
    let plans: Vec<Plan> = phases.iter().map(|phase| Plan::new(&resources, *phase, &overrides)).collect();
    let mut warnings: Vec<&String> = plans.iter().flat_map(|plan| &plan.warnings).collect();
    warnings.dedup();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    print(&plan::render(&resources, &plans, args.format))?;
    advise(settings, &resources, args.format)
}

/// What the user's own server could do better: part of the table, and beside any other format.
fn advise(settings: &Settings, resources: &Resources, format: Format) -> Result<(), Error> {
    let Some(url) = &settings.database_url else { return Ok(()) };
    let server = match block_on(async { Ok(External::connect(url.params(), Purpose::Read).await) })? {
        Ok(server) => server,
        Err(error @ ExternalError::Target(_)) => return Err(error.into()),
        Err(error) => {
            // The plan needs no database.
            tracing::warn!("no advice: {error}");
            return Ok(());
        }
    };
    let plan = |phase| Plan::new(resources, phase, &settings.overrides());
    let place = resources.server.value;
    let advice = plan::advice::advise(server.running(), &plan(Phase::Replay), &plan(Phase::Live), place);
    if format != Format::Table {
        log_advice(&advice);
        return Ok(());
    }
    let mut text = format!("\nADVICE for database {}, PostgreSQL {}", server.target(), server.version());
    if place == ServerPlace::OtherHost {
        text.push_str(" on another host, whose memory is not known");
    }
    text.push_str(if advice.is_empty() { ": none, its settings are near the plan\n" } else { "\n" });
    for line in advice {
        text.push_str(&format!("  {line}\n"));
    }
    print(&text)
}

/// Starts the private server if it is down; a running one, and the user's own, are taken as they are.
async fn start(settings: &Settings) -> Result<Server, Error> {
    Ok(Server::start(settings, Purpose::Read).await?)
}

async fn stop(settings: &Settings) -> Result<(), Error> {
    if !Cluster::stop(settings.data_dir.clone()).await? {
        tracing::info!(data_dir = %settings.data_dir.display(), "no PostgreSQL was running");
    }
    Ok(())
}

/// Becomes psql, connected to the database: its output, signals and exit code are untouched.
fn psql(settings: &Settings, args: &[std::ffi::OsString]) -> Result<(), Error> {
    let mut command = block_on(start(settings))?.psql(settings);
    let source = command.args(args).exec();
    let program = std::path::Path::new(command.get_program());
    let what = format!("run {} (sudo apt-get install postgresql-client brings it)", program.display());
    Err(Error::System { what, source })
}

/// `satgres config`: one line an option.
fn print_config(settings: &Settings) -> Result<(), Error> {
    let mut text = String::new();
    for (option, value, origin) in settings.listing() {
        text.push_str(&format!("{} = {value}  ({origin})\n", option.key));
    }
    print(&text)
}

fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|source| Error::System { what: "write to standard output".to_owned(), source })
}

/// Runs a command's async part to its end.
fn block_on<T>(command: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { what: "start the runtime".to_owned(), source })?;
    let result = runtime.block_on(command);
    // A command that was interrupted must not wait for a scan that nobody wants any more.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}

/// Collects what was typed, by key.
fn low_args(cli: &Cli) -> LowArgs {
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

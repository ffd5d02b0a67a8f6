//! The list of all options: from it come the names of environment variables, the keys of the file and the listing.

/// One option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionSpec {
    /// Key in the file, with its table: `replay.segment_bytes`.
    pub key: &'static str,
    /// Name on the command line, without dashes.
    pub name: &'static str,
    /// Default, as the file would say it.
    pub default: &'static str,
    /// What it is for, in one line.
    pub why: &'static str,
}

const fn option(
    key: &'static str,
    name: &'static str,
    default: &'static str,
    why: &'static str,
) -> OptionSpec {
    OptionSpec { key, name, default, why }
}

/// All options, in the order of the file.
pub const OPTIONS: &[OptionSpec] = &[
    option("network", "network", "\"main\"", "The chain: main, test, testnet4, signet or regtest."),
    option(
        "blocks_dir",
        "blocks-dir",
        "\"~/.bitcoin/blocks\"",
        "The node's directory of blk*.dat files; by default where Bitcoin Core keeps the network's.",
    ),
    option(
        "peer",
        "peer",
        "\"none\"",
        "Your own node's P2P address, HOST:PORT, or several with commas: it has what the files lack, and decides.",
    ),
    option(
        "peer_timeout_seconds",
        "peer-timeout-seconds",
        "30",
        "Longest silence of a node that owes an answer.",
    ),
    option(
        "data_dir",
        "data-dir",
        "\"~/.local/share/satgres\"",
        "The database and the service's files: fast disk, one network each; /var/lib/satgres for root.",
    ),
    option(
        "database_url",
        "database-url",
        "\"none\"",
        "A database of your own in place of the private one: a URL or key=value pairs, as psql takes them.",
    ),
    option(
        "pg_bin",
        "pg-bin",
        "\"/usr/lib/postgresql/15/bin\"",
        "PostgreSQL's programs, 15 or newer; by default $PG_BIN, pg_config's or the highest installed.",
    ),
    option(
        "tune",
        "tune",
        "\"auto\"",
        "auto gives the private PostgreSQL the settings that `satgres tune` shows; off leaves them to you.",
    ),
    option("until_synced", "until-synced", "false", "End once all that the files hold is queryable."),
    option(
        "log",
        "log",
        "\"info\"",
        "How much is logged: error, warn, info, debug, trace, or a filter like info,satgres=debug.",
    ),
    option(
        "replay.segment_bytes",
        "segment-bytes",
        "\"50GiB\"",
        "Blocks in one partition: fewer segments make look-ups faster, more make a crash cheaper. 0: one per block.",
    ),
    option("replay.threads", "threads", "\"auto\"", "Threads that parse blocks; auto is one per core."),
    option("replay.batch_bytes", "batch-bytes", "\"4MiB\"", "Blocks that travel the pipeline together."),
    option(
        "replay.pipeline_bytes",
        "pipeline-bytes",
        "\"auto\"",
        "Most memory between reading blocks and sending rows; auto is what the memory plan gives.",
    ),
    option(
        "replay.utxo_cache",
        "utxo-cache",
        "\"auto\"",
        "Memory for the set of unspent outputs; what does not fit goes to sorted files in data_dir. 0: no cache.",
    ),
    option(
        "replay.utxo_cache_buckets",
        "utxo-cache-buckets",
        "10",
        "Parts of that memory: the oldest one leaves when it is full.",
    ),
    option(
        "replay.disk_check",
        "disk-check",
        "\"on\"",
        "on refuses to load what does not seem to fit on the disk; off tries all the same.",
    ),
    option(
        "live.sync_threshold_blocks",
        "live-sync-threshold",
        "\"auto\"",
        "Most blocks that are connected one by one; a larger gap is loaded in bulk. auto goes by measured rates.",
    ),
    option(
        "live.txnum_cache_buckets",
        "txnum-cache-buckets",
        "10",
        "Buckets of the cache of recent transactions: the oldest is dropped when the newest is full.",
    ),
    option(
        "live.txnum_cache_bucket_size",
        "txnum-cache-bucket-size",
        "25000",
        "Transactions in a bucket of that cache, 40 bytes each.",
    ),
    option(
        "store.witness",
        "store-witness",
        "\"full\"",
        "full or none: input witnesses; without them the database is smaller.",
    ),
    option("store.script_sig", "store-script-sig", "\"full\"", "full or none: input scripts."),
];

impl OptionSpec {
    /// Name on the command line: `--segment-bytes`.
    #[must_use]
    pub fn flag(&self) -> String {
        format!("--{}", self.name)
    }

    /// Variables of the environment that set it, the first one wins: `SATGRES_SEGMENT_BYTES`, and with the table's
    /// name `SATGRES_REPLAY_SEGMENT_BYTES`.
    #[must_use]
    pub fn env_names(&self) -> Vec<String> {
        let mut names = vec![format!("SATGRES_{}", self.name.replace('-', "_").to_uppercase())];
        let with_table = format!("SATGRES_{}", self.key.replace('.', "_").to_uppercase());
        if names[0] != with_table {
            names.push(with_table);
        }
        names
    }
}

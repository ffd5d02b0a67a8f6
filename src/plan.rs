//! The memory plan: who gets which memory in each phase, and why.
//!
//! In: what the machine gives ([`Resources`]), a phase, and what the user decided ([`Overrides`]). Out: [`Plan`]: the
//! sizes of our caches, how many builds and threads, and PostgreSQL's settings, each with origin and reason. Three share
//! the memory: PostgreSQL, our caches, and the page cache. Called by `run`, by `tune`, and whenever the private server
//! is started. Pure: the same input gives the same plan, so that a second `run` restarts nothing. Every size grows
//! steadily with the memory, and all parts together never exceed it unless the user asked for more.

pub mod advice;
mod entry;
mod format;
pub mod pgtune;
mod settings;
mod shares;
pub mod space;
pub mod utxo_cache;

use std::fmt;

use self::shares::Shares;
pub use self::{
    entry::{Entry, Kind, Part, Value},
    format::{Format, json, render},
};
use crate::{
    pg::conf::Setting,
    resources::{Found, Resources, about},
};

/// Smallest memory that is planned for; what has less gets the plan of this.
pub const RAM_BYTES_MIN: u64 = 64 << 20;
/// Below this a plan is made, but replays of large chains will be slow.
pub const RAM_BYTES_WANTED: u64 = 512 << 20;

/// What the service is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Loading blocks in bulk; indexes of finished segments are built beside.
    Replay,
    /// Building what indexes are left.
    Restore,
    /// Following the tip, serving readers.
    Live,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Phase; 3] = [Phase::Replay, Phase::Restore, Phase::Live];

    /// Lower-case name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Replay => "replay",
            Phase::Restore => "restore",
            Phase::Live => "live",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Phase, String> {
        let known = Phase::ALL.into_iter().find(|phase| phase.name() == text);
        known.ok_or_else(|| "use replay, restore or live".to_owned())
    }
}

/// What the user decided; each wins over the plan's own rule. The source says where it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Bytes of the UTXO cache, in every phase.
    pub utxo_cache_bytes: Option<Found<u64>>,
    /// Buckets of the TxNumCache.
    pub txnum_cache_buckets: Option<Found<u64>>,
    /// Entries in a bucket of the TxNumCache.
    pub txnum_cache_bucket_size: Option<Found<u64>>,
    /// Bytes between reading blocks and sending rows.
    pub pipeline_bytes: Option<Found<u64>>,
    /// Threads that parse blocks.
    pub threads: Option<Found<usize>>,
    /// Index builds beside a load.
    pub builds_while_loading: Option<Found<usize>>,
}

/// Who gets what in one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The phase.
    pub phase: Phase,
    /// Memory that was planned for, bytes.
    pub ram_bytes: u64,
    /// Bytes of the UTXO cache.
    pub utxo_cache_bytes: u64,
    /// Bytes of the TxNumCache: 40 for each entry of each bucket.
    pub txnum_cache_bytes: u64,
    /// Buckets of the TxNumCache.
    pub txnum_cache_buckets: u64,
    /// Entries in a bucket of the TxNumCache.
    pub txnum_cache_bucket_size: u64,
    /// Bytes of sorts and buffers of the UTXO set once it has files.
    pub coin_files_bytes: u64,
    /// Bytes between reading blocks and sending rows.
    pub pipeline_bytes: u64,
    /// Threads that parse blocks.
    pub threads: usize,
    /// Index builds at once; while rows are loaded that may be none.
    pub builds: usize,
    /// Sort memory of one index build, bytes.
    pub maintenance_work_mem_bytes: u64,
    /// Every value, with origin and reason.
    pub entries: Vec<Entry>,
    /// How the memory of this host is divided.
    pub parts: Vec<Part>,
    /// What the user should know of what was asked for.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Makes the plan of a phase.
    ///
    /// # Panics
    /// If the parts exceed the memory although nothing was asked for: a defect.
    #[must_use]
    pub fn new(resources: &Resources, phase: Phase, overrides: &Overrides) -> Plan {
        let shares = Shares::new(resources, phase, overrides);
        let parts = shares.parts();
        let parts_bytes = shares::sum(parts.iter().map(|part| part.bytes));
        let is_asked = overrides.utxo_cache_bytes.is_some()
            || overrides.txnum_cache_buckets.is_some()
            || overrides.txnum_cache_bucket_size.is_some()
            || overrides.pipeline_bytes.is_some();
        assert!(is_asked || parts_bytes <= shares.ram_bytes, "{phase}: {parts:?} > {}", shares.ram_bytes);
        let mut warnings = utxo_cache::warning(resources, phase, overrides);
        if parts_bytes > shares.ram_bytes {
            warnings.push(format!(
                "the plan for {phase} needs {} of {} ({}): lower what was asked for",
                about(parts_bytes),
                about(shares.ram_bytes),
                resources.ram_bytes.source
            ));
        }
        Plan {
            phase,
            ram_bytes: shares.ram_bytes,
            utxo_cache_bytes: shares.utxo_cache,
            txnum_cache_bytes: shares.txnum_cache,
            txnum_cache_buckets: shares.txnum_buckets,
            txnum_cache_bucket_size: shares.txnum_bucket_size,
            coin_files_bytes: shares.coin_files,
            pipeline_bytes: shares.pipeline,
            threads: shares.threads,
            builds: shares.build_count,
            maintenance_work_mem_bytes: settings::whole(shares.maintenance_work_mem),
            entries: settings::entries(resources, phase, overrides, &shares),
            parts,
            warnings,
        }
    }

    /// Returns an entry by its key; keys are PostgreSQL's names of settings and our own.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// What matters most, in one line for the log.
    #[must_use]
    pub fn summary(&self) -> String {
        let setting = |key| self.entry(key).map_or_else(String::new, |entry| entry.value.to_postgres());
        let page_cache =
            self.parts.iter().find(|part| part.name == "page cache").map_or(0, |part| part.bytes);
        format!(
            "UTXO cache {} ({}), TxNumCache {}, pipeline {}, builds {} x {}, shared_buffers {}, work_mem {}, page cache {}",
            about(self.utxo_cache_bytes),
            self.entry("utxo_cache_bytes").map_or("", |entry| &entry.origin),
            about(self.txnum_cache_bytes),
            about(self.pipeline_bytes),
            self.builds,
            setting("maintenance_work_mem"),
            setting("shared_buffers"),
            setting("work_mem"),
            about(page_cache)
        )
    }

    /// The service's own share of the memory, bytes.
    #[must_use]
    pub fn service_bytes(&self) -> u64 {
        self.bytes_of(&["UTXO cache", "TxNumCache", "pipeline", "coin files", "satgres itself"])
    }

    /// The server's share, bytes; 0 on another host.
    #[must_use]
    pub fn server_bytes(&self) -> u64 {
        self.bytes_of(&["shared buffers", "connections", "sorts and hashes", "index builds", "autovacuum"])
    }

    fn bytes_of(&self, names: &[&str]) -> u64 {
        shares::sum(self.parts.iter().filter(|part| names.contains(&part.name)).map(|part| part.bytes))
    }

    /// The settings of the server, for its configuration file.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        self.entries.iter().filter_map(Entry::setting).collect()
    }
}

#[cfg(test)]
mod tests;

//! The report: every key of `satgres status --json`, and so of whatever else tells how the service is.
//!
//! In: what was found out. Out: plain values; units last in their names, timestamps in seconds since 1970. The keys are
//! an interface, listed in docs/status.md and pinned by a test: none is renamed.

use serde::Serialize;

use super::{
    SILENCE_SECONDS,
    database::{Constraints, InvalidBlock, Reorg},
    disk::Disk,
    server::ServerReport,
    state::LiveFigures,
};
use crate::{pg::builds::Builds, prevouts::UtxoGauges, replay::progress::LoadFigures};

/// Everything that is known. Its keys in JSON are an interface, listed in docs/status.md.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct Report {
    pub satgres_version: &'static str,
    pub data_dir: String,
    pub at_timestamp_seconds: f64,
    pub network: Option<String>,
    pub is_ready: bool,
    pub service: ServiceReport,
    pub phase: Option<PhaseReport>,
    pub server: ServerReport,
    pub heights: Heights,
    pub tip: Option<TipReport>,
    pub live: Option<LiveReport>,
    pub invalid_blocks: Option<InvalidBlocks>,
    pub load: Option<LoadReport>,
    pub eta: Eta,
    pub utxo_cache: Option<CacheReport>,
    pub segments: Segments,
    pub indexes: Option<Indexes>,
    pub constraints: Option<Constraints>,
    pub disk: Disk,
    pub memory: Memory,
    pub last_reorg: Option<Reorg>,
    pub notes: Vec<String>,
}

/// The process `satgres run`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct ServiceReport {
    pub state: &'static str,
    pub pid: Option<i32>,
    pub started_timestamp_seconds: Option<f64>,
    pub seen_timestamp_seconds: Option<f64>,
    pub silent_seconds: Option<f64>,
    pub last_phase: Option<String>,
    pub last_step: Option<String>,
    pub exit_code: Option<u8>,
    pub error: Option<String>,
}

impl ServiceReport {
    /// Whether the service runs and says so, every second: what a health check wants to know.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        matches!(self.state, "running" | "unseen")
            && self.silent_seconds.is_some_and(|seconds| seconds <= SILENCE_SECONDS)
    }
}

/// What a running service does.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct PhaseReport {
    pub name: String,
    pub step: String,
    pub started_timestamp_seconds: f64,
    pub elapsed_seconds: f64,
}

/// How far the chain is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct Heights {
    pub files: Option<u32>,
    pub loading: Option<u32>,
    pub loaded: Option<u32>,
    pub attached: Option<u32>,
}

/// The last block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct TipReport {
    pub height: u32,
    pub hash: Option<String>,
    pub source: &'static str,
    pub is_confirmed_by_node: bool,
}

/// The tip as it is followed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct LiveReport {
    pub height: u32,
    pub hash: String,
    pub block_timestamp_seconds: u32,
    pub block_age_seconds: f64,
    pub node_height: Option<u32>,
    pub lag_blocks: Option<u32>,
    pub is_node_connected: Option<bool>,
    pub connected_blocks: u64,
    pub reorgs: u64,
    pub connect_seconds: f64,
}

/// Blocks that were refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct InvalidBlocks {
    pub count: u64,
    pub first: Option<InvalidBlock>,
}

/// A running load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct LoadReport {
    pub height_first: u32,
    pub height_last: u32,
    pub blocks: u64,
    pub txs: u64,
    pub rows: u64,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub elapsed_seconds: f64,
    pub blocks_per_second: f64,
    pub txs_per_second: f64,
    pub rows_per_second: f64,
    pub bytes_per_second: f64,
}

/// Seconds left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct Eta {
    pub load_seconds: Option<f64>,
    pub restore_seconds: Option<f64>,
    pub total_seconds: Option<f64>,
}

/// The UTXO set in memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct CacheReport {
    pub coins: u64,
    pub used_bytes: u64,
    pub budget_bytes: Option<u64>,
    pub hit_ratio: Option<f64>,
    pub waiting_spends: u64,
    pub run_files: u64,
    pub run_coins: u64,
}

/// Segments by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct Segments {
    pub planned: Option<u64>,
    pub loading: Option<u64>,
    pub loaded: Option<u64>,
    pub attached: Option<u64>,
}

/// Indexes of the loaded segments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct Indexes {
    pub total: u64,
    pub done: u64,
    pub failed: u64,
    pub done_ratio: Option<f64>,
    pub running: Vec<RunningBuild>,
}

/// An index that is being built.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct RunningBuild {
    pub name: String,
    pub step: String,
    pub done_ratio: f64,
    pub elapsed_seconds: f64,
}

/// Memory in use, and what the plan allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct Memory {
    pub service_bytes: Option<u64>,
    pub server_bytes: Option<u64>,
    pub server_processes: Option<u64>,
    pub plan_phase: Option<String>,
    pub plan_service_bytes: Option<u64>,
    pub plan_server_bytes: Option<u64>,
    pub plan_total_bytes: Option<u64>,
}

impl LiveReport {
    pub(super) fn new(live: &LiveFigures, at: f64) -> LiveReport {
        LiveReport {
            height: live.height,
            hash: live.hash.clone(),
            block_timestamp_seconds: live.block_timestamp_seconds,
            block_age_seconds: super::between(f64::from(live.block_timestamp_seconds), at),
            node_height: live.node_height,
            lag_blocks: live.node_height.map(|node| node.saturating_sub(live.height)),
            is_node_connected: live.is_node_connected,
            connected_blocks: live.blocks,
            reorgs: live.reorgs,
            connect_seconds: live.connect_seconds,
        }
    }
}

impl LoadReport {
    pub(super) fn new(load: &LoadFigures) -> LoadReport {
        LoadReport {
            height_first: load.height_first,
            height_last: load.height_last,
            blocks: load.counted.blocks,
            txs: load.counted.txs,
            rows: load.counted.rows(),
            done_bytes: load.counted.bytes,
            total_bytes: load.bytes_total,
            elapsed_seconds: load.seconds,
            blocks_per_second: load.blocks_per_second,
            txs_per_second: load.txs_per_second,
            rows_per_second: load.rows_per_second,
            bytes_per_second: load.bytes_per_second,
        }
    }
}

impl CacheReport {
    pub(super) fn new(cache: UtxoGauges) -> CacheReport {
        CacheReport {
            coins: cache.cache_coins,
            used_bytes: cache.cache_bytes,
            budget_bytes: cache.cache_bytes_max,
            hit_ratio: cache.hit_ratio(),
            waiting_spends: cache.waiting,
            run_files: cache.runs,
            run_coins: cache.run_coins,
        }
    }
}

impl Indexes {
    pub(super) fn new(builds: &Builds) -> Indexes {
        let running = builds.running.iter().map(|build| RunningBuild {
            name: build.name.clone(),
            step: build.step.clone(),
            done_ratio: build.done_ratio,
            elapsed_seconds: build.seconds,
        });
        Indexes {
            total: builds.total,
            done: builds.done,
            failed: builds.failed,
            done_ratio: builds.done_ratio(),
            running: running.collect(),
        }
    }
}

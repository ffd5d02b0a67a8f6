//! The division of the memory: every share a steady function of it, so that a little more RAM never gives a jump.
//!
//! Each share is the lesser of a fraction of the memory and what it can use. On small machines the fractions bind (they
//! sum to less than one), on large ones the uses; what is left is the page cache, which PostgreSQL reads and writes
//! through and which sorts spill into.

use super::{Overrides, Part, Phase, RAM_BYTES_MIN, pgtune, utxo_cache};
use crate::resources::{DiskKind, Resources, ServerPlace};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Largest memory that is planned for.
const RAM_BYTES_MAX: u64 = 1 << 50;

/// Bytes of an entry of either cache.
pub(super) const CACHE_ENTRY_BYTES: u64 = 40;
/// Chronik's TxNumCache: buckets on the belt.
pub(super) const TXNUM_CACHE_BUCKETS: u64 = 10;
/// Chronik's TxNumCache: entries in a bucket.
pub(super) const TXNUM_CACHE_BUCKET_SIZE: u64 = 25_000;

/// Program, stacks, and a header tree of mainnet: 900,000 headers of about 100 bytes.
const SERVICE_BYTES_MAX: u64 = 128 * MIB;
/// The kernel and whoever else lives on the machine.
const SYSTEM_BYTES_MAX: u64 = 512 * MIB;
/// More than this loads no faster: 128 MB and 8 GB were alike.
const REPLAY_BUFFERS_BYTES_MAX: u64 = 128 * MIB;
/// What a batch takes on its way: 4 MiB of blocks, the facts parsed from them, their rows.
const BATCH_BYTES: u64 = 20 * MIB;
/// A pipeline never needs more, whatever the machine; with it `run` stays below 1 GiB on a small chain.
const PIPELINE_BYTES_MAX: u64 = 512 * MIB;
/// Sorts and buffers of the UTXO set once it has files.
const COIN_FILES_BYTES_MAX: u64 = 256 * MIB;
/// In LIVE one block after the other comes through.
const LIVE_PIPELINE_BYTES_MAX: u64 = 64 * MIB;
/// Private memory of the connections that load, build and control.
const REPLAY_CONNECTIONS_BYTES_MAX: u64 = 64 * MIB;
/// The same with readers.
const LIVE_CONNECTIONS_BYTES_MAX: u64 = 256 * MIB;
/// Sort memory of a build: 16 to 64 MB were fastest, more was slower.
const BUILD_BYTES_MIN: u64 = 16 * MIB;
const BUILD_BYTES_MAX: u64 = 64 * MIB;
/// Cores that a load keeps busy: one parses and resolves, one encodes and sends, two copy inputs and outputs. On two cores
/// a build beside it cost 3.6 core-µs a transaction more than one afterwards (docs/benchmarks.md).
const LOAD_CPUS: u64 = 4;
/// Builds at once: each has a connection, of which the service takes 40.
const BUILDS_MAX: u64 = 32;
/// Statements that sort or hash at the same time while the chain is loaded: a rebuild of the UTXO set, a check.
const REPLAY_SORTS: u64 = 4;
const REPLAY_WORK_MEM_MAX: u64 = 64 * MIB;
/// Only small tables are vacuumed then.
const REPLAY_AUTOVACUUM_WORK_MEM_MAX: u64 = 16 * MIB;
/// A hash may take twice `work_mem` (PostgreSQL's `hash_mem_multiplier`).
pub(super) const HASH_MEM_MULTIPLIER: u64 = 2;
/// Connections that the server admits.
pub(super) const CONNECTIONS_MAX: u64 = 100;

/// What each part gets, bytes, and how many work at once. Sizes are not rounded yet, so that they grow steadily.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares {
    pub(super) ram_bytes: u64,
    pub(super) is_server_here: bool,
    pub(super) utxo_cache: u64,
    pub(super) txnum_cache: u64,
    pub(super) txnum_buckets: u64,
    pub(super) txnum_bucket_size: u64,
    pub(super) pipeline: u64,
    pub(super) coin_files: u64,
    pub(super) threads: usize,
    pub(super) service: u64,
    pub(super) system: u64,
    pub(super) shared_buffers: u64,
    pub(super) connections: u64,
    /// All statements together that sort or hash, and how many that are.
    pub(super) sorts: u64,
    pub(super) sort_count: u64,
    pub(super) work_mem: u64,
    /// All index builds together.
    pub(super) builds: u64,
    pub(super) build_count: usize,
    pub(super) maintenance_work_mem: u64,
    pub(super) autovacuum_workers: u64,
    pub(super) autovacuum_work_mem: u64,
    pub(super) page_cache: u64,
    pub(super) effective_cache_size: u64,
    /// What PostgreSQL's share was computed from, in LIVE.
    pub(super) server: u64,
    /// PGTune's answer for that.
    pub(super) tuned: pgtune::Tuned,
}

impl Shares {
    pub(super) fn new(resources: &Resources, phase: Phase, overrides: &Overrides) -> Shares {
        let ram = resources.ram_bytes.value.clamp(RAM_BYTES_MIN, RAM_BYTES_MAX);
        let cpus = resources.cpus.value.clamp(1, 65_536) as u64;
        let is_server_here = resources.server.value == ServerPlace::ThisHost;

        let utxo_rule = utxo_cache::default_bytes(ram, phase).min(ram / 4);
        let utxo_cache = overrides.utxo_cache_bytes.as_ref().map_or(utxo_rule, |asked| asked.value);
        let (txnum_buckets, txnum_bucket_size) = txnum_buckets(ram, phase, overrides);
        let txnum_cache = txnum_buckets.saturating_mul(txnum_bucket_size).saturating_mul(CACHE_ENTRY_BYTES);
        let (pipeline, threads) = pipeline(ram, cpus, phase, overrides);
        let coin_files = if phase == Phase::Replay { (ram / 16).min(COIN_FILES_BYTES_MAX) } else { 0 };
        let service = (ram / 8).min(SERVICE_BYTES_MAX);
        let system = (ram / 16).min(SYSTEM_BYTES_MAX);
        // A smaller cache than the rule's leaves the server's settings alone: they would need a restart.
        let others = sum([utxo_cache.max(utxo_rule), txnum_cache, pipeline, coin_files, service, system]);
        // On a host of its own the server has all of that host's memory: for want of knowledge, as much as this one's.
        // However much was asked for our caches, it gets a quarter here.
        let server = if is_server_here { ram.saturating_sub(others).max(ram / 4) } else { ram };
        let tuned = pgtune(server, cpus, resources.disk.value);
        let mut shares = Shares {
            ram_bytes: ram,
            is_server_here,
            utxo_cache,
            txnum_cache,
            txnum_buckets,
            txnum_bucket_size,
            pipeline,
            coin_files,
            threads,
            service,
            system,
            shared_buffers: 0,
            connections: 0,
            sorts: 0,
            sort_count: 0,
            work_mem: 0,
            builds: 0,
            build_count: 1,
            maintenance_work_mem: 0,
            autovacuum_workers: tuned.autovacuum_max_workers.unwrap_or(3),
            autovacuum_work_mem: 0,
            page_cache: 0,
            effective_cache_size: 0,
            server,
            tuned,
        };
        match phase {
            Phase::Replay | Phase::Restore => {
                let builds_while_loading = overrides.builds_while_loading.as_ref();
                shares.load(phase, cpus, builds_while_loading.map(|asked| asked.value as u64));
            }
            Phase::Live => shares.serve(cpus),
        }
        let used = sum(shares.parts().iter().map(|part| part.bytes));
        shares.page_cache = ram.saturating_sub(used);
        shares.effective_cache_size = match phase {
            Phase::Live => shares.tuned.effective_cache_size * KIB,
            _ if is_server_here => shares.shared_buffers + shares.page_cache,
            _ => server / 4 * 3,
        };
        shares
    }

    /// PostgreSQL while rows come in and indexes are built: little for itself, the rest to our cache and the page cache.
    /// What only a restart changes is the same in both phases.
    fn load(&mut self, phase: Phase, cpus: u64, builds_while_loading: Option<u64>) {
        let ram = self.ram_bytes;
        self.shared_buffers = (ram / 8).min(REPLAY_BUFFERS_BYTES_MAX);
        self.connections = (ram / 16).min(REPLAY_CONNECTIONS_BYTES_MAX);
        self.work_mem = (ram / 128).min(REPLAY_WORK_MEM_MAX);
        self.sort_count = REPLAY_SORTS;
        self.sorts = self.work_mem * HASH_MEM_MULTIPLIER * REPLAY_SORTS;
        self.autovacuum_work_mem = (ram / 128).min(REPLAY_AUTOVACUUM_WORK_MEM_MAX);
        // One build per core; while rows are loaded as well, one for each core that the load leaves idle, at most half.
        let (budget, wanted) = match (phase, builds_while_loading) {
            (Phase::Replay, Some(asked)) => (ram / 16, asked.min(BUILDS_MAX)),
            (Phase::Replay, None) => (ram / 16, cpus.saturating_sub(LOAD_CPUS).min(cpus / 2).min(BUILDS_MAX)),
            (Phase::Restore | Phase::Live, _) => (ram / 8, cpus.min(BUILDS_MAX)),
        };
        self.builds = budget.min(wanted * BUILD_BYTES_MAX);
        // Without builds it is for whatever else an operator does meanwhile.
        let each = budget / wanted.max(cpus / 2).clamp(1, BUILDS_MAX);
        self.maintenance_work_mem = each.clamp(BUILD_BYTES_MIN.min(budget), BUILD_BYTES_MAX);
        self.build_count = (budget / self.maintenance_work_mem).clamp(wanted.min(1), wanted) as usize;
    }

    /// PostgreSQL for readers: PGTune's formulas on what our caches leave.
    fn serve(&mut self, cpus: u64) {
        let server = self.server;
        self.shared_buffers = self.tuned.shared_buffers * KIB;
        self.connections = (server / 8).min(LIVE_CONNECTIONS_BYTES_MAX);
        self.sorts = server / 8;
        self.sort_count = cpus.clamp(4, 32);
        let fair = self.sorts / (HASH_MEM_MULTIPLIER * self.sort_count);
        self.work_mem = (self.tuned.work_mem * KIB).min(fair);
        self.maintenance_work_mem = self.tuned.maintenance_work_mem * KIB;
        self.builds = self.maintenance_work_mem;
        self.autovacuum_work_mem = (server / 64).min(GIB);
    }

    /// The parts of this host's memory. The page cache comes last and is what the others leave.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut parts = vec![
            Part { name: "UTXO cache", bytes: self.utxo_cache },
            Part { name: "TxNumCache", bytes: self.txnum_cache },
            Part { name: "pipeline", bytes: self.pipeline },
            Part { name: "coin files", bytes: self.coin_files },
            Part { name: "satgres itself", bytes: self.service },
            Part { name: "system", bytes: self.system },
        ];
        if self.is_server_here {
            parts.extend([
                Part { name: "shared buffers", bytes: self.shared_buffers },
                Part { name: "connections", bytes: self.connections },
                Part { name: "sorts and hashes", bytes: self.sorts },
                Part { name: "index builds", bytes: self.builds },
                Part { name: "autovacuum", bytes: self.autovacuum_work_mem * self.autovacuum_workers },
            ]);
        }
        parts.push(Part { name: "page cache", bytes: self.page_cache });
        parts
    }
}

/// Adds sizes of which some may be anything that the user asked for.
pub(super) fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// Buckets of the TxNumCache and entries in each; on a small machine as many as a 32nd of the memory holds.
fn txnum_buckets(ram: u64, phase: Phase, overrides: &Overrides) -> (u64, u64) {
    // A replay finds every prevout in the UTXO cache.
    if phase != Phase::Live {
        return (0, 0);
    }
    let asked = |found: &Option<crate::resources::Found<u64>>, default| {
        found.as_ref().map_or(default, |found| found.value)
    };
    let buckets = asked(&overrides.txnum_cache_buckets, TXNUM_CACHE_BUCKETS);
    let bucket_size = asked(&overrides.txnum_cache_bucket_size, TXNUM_CACHE_BUCKET_SIZE);
    if overrides.txnum_cache_buckets.is_some() || overrides.txnum_cache_bucket_size.is_some() {
        (buckets, bucket_size)
    } else {
        (buckets, bucket_size.min(ram / 32 / CACHE_ENTRY_BYTES / buckets))
    }
}

/// Bytes in flight and the threads that they keep busy: while one batch is parsed another waits or is sent.
fn pipeline(ram: u64, cpus: u64, phase: Phase, overrides: &Overrides) -> (u64, usize) {
    let rule = match phase {
        Phase::Replay => {
            let wanted = (cpus.saturating_mul(2) + 4).saturating_mul(BATCH_BYTES).min(PIPELINE_BYTES_MAX);
            (ram / 8).min(wanted)
        }
        Phase::Restore => 0,
        Phase::Live => (ram / 16).min(LIVE_PIPELINE_BYTES_MAX),
    };
    let bytes = match &overrides.pipeline_bytes {
        Some(asked) if phase == Phase::Replay => asked.value,
        _ => rule,
    };
    let threads = match &overrides.threads {
        Some(asked) => asked.value,
        None => (rule / BATCH_BYTES).clamp(1, cpus) as usize,
    };
    (bytes, threads)
}

fn pgtune(memory_bytes: u64, cpus: u64, disk: DiskKind) -> pgtune::Tuned {
    let machine = pgtune::Machine {
        memory_kb: memory_bytes / KIB,
        cpus: Some(cpus),
        connections: Some(CONNECTIONS_MAX),
        profile: pgtune::Profile::Mixed,
        storage: match disk {
            DiskKind::Hdd => pgtune::Storage::Hdd,
            DiskKind::Ssd => pgtune::Storage::Ssd,
            DiskKind::Nvme => pgtune::Storage::Nvme,
        },
        database: pgtune::DatabaseSize::AboveRam,
        version: 15,
    };
    pgtune::tune(&machine, pgtune::Edition::Current)
}

//! The plan's values with their origins and reasons: what every output prints and the server is given.
//!
//! In: the shares of a phase. Out: one [`Entry`] a value. Sizes are cut to round figures here and nowhere else, so that
//! they still never shrink when the memory grows.

use super::{
    Entry, Kind, Overrides, Phase, Value,
    shares::{CACHE_ENTRY_BYTES, CONNECTIONS_MAX, HASH_MEM_MULTIPLIER, Shares},
    utxo_cache,
};
use crate::{
    pg::conf::Otherwise,
    resources::{DiskKind, Resources, about},
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Smallest `/dev/shm` that parallel queries are trusted to: containers have 64 MB unless told otherwise.
const SHM_BYTES_MIN: u64 = 256 * MIB;
/// WAL is sized in steps of this where the disk is nearly full.
const WAL_STEP_BYTES: u64 = 256 * MIB;

/// Collects entries that share their sources.
struct Entries<'a> {
    list: Vec<Entry>,
    resources: &'a Resources,
}

impl Entries<'_> {
    fn add(&mut self, kind: Kind, key: &'static str, value: Value, origin: String, why: String) {
        self.list.push(Entry { key, kind, value, origin, why, otherwise: Otherwise::Required });
    }

    /// A setting that follows from the phase alone.
    fn fixed(&mut self, key: &'static str, value: Value, why: &str) {
        self.add(Kind::Setting, key, value, "plan".to_owned(), why.to_owned());
    }

    /// A size that follows from the memory.
    fn size(&mut self, key: &'static str, bytes: u64, rule: &str, why: String) {
        let origin = format!("{rule}, RAM from {}", self.resources.ram_bytes.source);
        self.add(Kind::Setting, key, Value::Bytes(whole(bytes)), origin, why);
    }

    /// A number that follows from the cores.
    fn count(&mut self, key: &'static str, count: u64, rule: &str, why: &str) {
        let origin = format!("{rule}, CPUs from {}", self.resources.cpus.source);
        self.add(Kind::Setting, key, Value::Count(count), origin, why.to_owned());
    }

    /// Names what the server gets where it lacks the value added last.
    fn or(&mut self, otherwise: Otherwise) {
        self.list.last_mut().expect("an entry was added just now").otherwise = otherwise;
    }
}

/// Cuts a size to whole MiB, a small one to whole 64 KiB, of which it keeps one.
pub(super) fn whole(bytes: u64) -> u64 {
    let unit = if bytes >= 8 * MIB { MIB } else { 64 * KIB };
    (bytes / unit * unit).max(64 * KIB)
}

/// All values of a phase: ours first, then the server's.
pub(super) fn entries(
    resources: &Resources,
    phase: Phase,
    overrides: &Overrides,
    shares: &Shares,
) -> Vec<Entry> {
    let mut entries = Entries { list: Vec::new(), resources };
    caches(&mut entries, phase, overrides, shares);
    work(&mut entries, phase, overrides, shares);
    memory(&mut entries, phase, shares);
    workers(&mut entries, phase, shares);
    wal(&mut entries, phase);
    storage(&mut entries, phase, shares);
    entries.list
}

fn caches(entries: &mut Entries<'_>, phase: Phase, overrides: &Overrides, shares: &Shares) {
    let ram = &entries.resources.ram_bytes;
    let of_ram = |rule: &str| format!("{rule}, RAM from {}", ram.source);
    let (origin, why) = match &overrides.utxo_cache_bytes {
        Some(asked) => (asked.source.clone(), "asked for".to_owned()),
        None if shares.utxo_cache < utxo_cache::DEFAULT_BYTES_MIN => {
            (of_ram("plan"), "a quarter of what little there is".to_owned())
        }
        None => {
            let cap = about(if phase == Phase::Replay {
                utxo_cache::WHOLE_SET_BYTES
            } else {
                utxo_cache::LIVE_BYTES_MAX
            });
            let what = if phase == Phase::Replay { "a whole UTXO set" } else { "enough for a steady state" };
            let why = format!("(RAM - 2GiB) / 4, at least 100MiB, at most {cap}: {what}");
            (of_ram("Bitcoin Core's rule"), why)
        }
    };
    entries.add(Kind::Cache, "utxo_cache_bytes", Value::Bytes(shares.utxo_cache), origin, why);

    let sources = [&overrides.txnum_cache_buckets, &overrides.txnum_cache_bucket_size];
    let sources: Vec<&str> = sources.into_iter().flatten().map(|found| found.source.as_str()).collect();
    let (origin, why) = if phase == Phase::Live {
        let origin = if sources.is_empty() { "Chronik's defaults".to_owned() } else { sources.join(", ") };
        let (buckets, bucket_size) = (shares.txnum_buckets, shares.txnum_bucket_size);
        (origin, format!("{buckets} buckets of {bucket_size} entries of {CACHE_ENTRY_BYTES} bytes"))
    } else {
        ("plan".to_owned(), "only live sync and look-ups need it".to_owned())
    };
    entries.add(Kind::Cache, "txnum_cache_bytes", Value::Bytes(shares.txnum_cache), origin, why);

    let (origin, why) = match (&overrides.pipeline_bytes, phase) {
        (Some(asked), Phase::Replay) => (asked.source.clone(), "asked for".to_owned()),
        (_, Phase::Replay) => {
            let why = "20MiB for each batch on its way, two a core and four; an eighth of RAM at most";
            (of_ram("plan"), why.to_owned())
        }
        (_, Phase::Restore) => ("plan".to_owned(), "nothing is loaded".to_owned()),
        (_, Phase::Live) => (of_ram("plan"), "one block after the other".to_owned()),
    };
    entries.add(Kind::Cache, "pipeline_bytes", Value::Bytes(shares.pipeline), origin, why);
}

fn work(entries: &mut Entries<'_>, phase: Phase, overrides: &Overrides, shares: &Shares) {
    let cpus = format!("plan, CPUs from {}", entries.resources.cpus.source);
    if phase == Phase::Replay {
        let (origin, why) = match &overrides.threads {
            Some(asked) => (asked.source.clone(), "asked for"),
            None => (cpus.clone(), "one a core, as far as the pipeline feeds them"),
        };
        entries.add(Kind::Work, "threads", Value::Count(shares.threads as u64), origin, why.to_owned());
    }
    let (cpus, asked) = match (&overrides.builds_while_loading, phase) {
        (Some(asked), Phase::Replay) => (asked.source.clone(), true),
        _ => (cpus, false),
    };
    let why = match phase {
        Phase::Replay if asked => "asked for",
        Phase::Replay => "beside the load, one for each core beyond the four that a load keeps busy",
        Phase::Restore => "one serial build a core is fastest, as far as sort memory reaches",
        Phase::Live => "indexes of new segments only",
    };
    entries.add(Kind::Work, "builds", Value::Count(shares.build_count as u64), cpus, why.to_owned());
}

fn memory(entries: &mut Entries<'_>, phase: Phase, shares: &Shares) {
    let share = if shares.is_server_here {
        format!("of the {} that satgres and the system leave", about(shares.server))
    } else {
        format!("of {}: as if the server's own host had that", about(shares.server))
    };
    let (buffers, cache, build, work, rule) = match phase {
        Phase::Replay | Phase::Restore => (
            "128MB and 8GB load alike: the memory serves the UTXO cache and the page cache".to_owned(),
            "shared buffers and the page cache".to_owned(),
            "16 to 64MB sort as fast as more, once for each build".to_owned(),
            format!("for {} statements at once: loading sorts nothing", shares.sort_count),
            "plan",
        ),
        Phase::Live => (
            format!("a quarter {share}"),
            format!("three quarters {share}"),
            format!("a sixteenth {share}"),
            format!(
                "what {CONNECTIONS_MAX} connections may take, at most an eighth {share} for {} statements at once",
                shares.sort_count
            ),
            "PGTune (mixed)",
        ),
    };
    entries.size("shared_buffers", shares.shared_buffers, rule, buffers);
    let huge = if shares.shared_buffers >= 2 * GIB { "try" } else { "off" };
    entries.fixed("huge_pages", Value::Text(huge), "from 2GB of shared buffers they spare page table misses");
    entries.size("effective_cache_size", shares.effective_cache_size, rule, cache);
    entries.size("maintenance_work_mem", shares.maintenance_work_mem, rule, build);
    let why = format!("for {} workers", shares.autovacuum_workers);
    entries.size("autovacuum_work_mem", shares.autovacuum_work_mem, "plan", why);
    entries.size("work_mem", shares.work_mem, rule, work);
    let hash = Value::Count(HASH_MEM_MULTIPLIER);
    entries.fixed("hash_mem_multiplier", hash, "PostgreSQL's default; the plan counts on it");
    let wal_buffers = (shares.shared_buffers / 100 * 3).min(16 * MIB);
    entries.size("wal_buffers", wal_buffers, "PGTune", "3 % of the shared buffers, at most 16MB".to_owned());
    let why = "service, builds and readers";
    entries.fixed("max_connections", Value::Count(CONNECTIONS_MAX), why);
    if let Some(shm) = entries.resources.shm_bytes.clone().filter(|shm| shm.value < SHM_BYTES_MIN) {
        let why = format!("{} has {} only: parallel queries would fail", shm.source, about(shm.value));
        entries.fixed("dynamic_shared_memory_type", Value::Text("mmap"), &why);
    }
}

fn workers(entries: &mut Entries<'_>, phase: Phase, shares: &Shares) {
    let cpus = entries.resources.cpus.value as u64;
    let tuned = &shares.tuned;
    entries.count(
        "max_worker_processes",
        cpus.clamp(8, 1024),
        "PGTune",
        "one a core; 8 is PostgreSQL's default",
    );
    entries.count("max_parallel_workers", cpus.clamp(2, 1024), "PGTune", "one a core");
    let per_gather = tuned.max_parallel_workers_per_gather.unwrap_or(cpus / 2);
    entries.count("max_parallel_workers_per_gather", per_gather, "PGTune", "half of the cores, at most 4");
    match phase {
        Phase::Live => {
            let workers = tuned.max_parallel_maintenance_workers.unwrap_or(cpus / 2);
            let why = "half of the cores, at most 4";
            entries.count("max_parallel_maintenance_workers", workers, "PGTune", why);
        }
        Phase::Replay | Phase::Restore => {
            let why = "one serial build a core is fastest; the restore raises it where cores are left";
            entries.fixed("max_parallel_maintenance_workers", Value::Count(0), why);
        }
    }
    let why = "3 is PostgreSQL's default; more from 16 cores on";
    entries.count("autovacuum_max_workers", shares.autovacuum_workers, "PGTune", why);
}

fn wal(entries: &mut Entries<'_>, phase: Phase) {
    if phase == Phase::Live {
        entries.fixed("wal_level", Value::Text("replica"), "backups and streaming replicas");
        entries.fixed("max_wal_senders", Value::Count(10), "backups and streaming replicas");
        entries.fixed(
            "checkpoint_timeout",
            Value::Text("15min"),
            "blocks come slowly: fewer full-page images",
        );
    } else {
        let why = "COPY into a table made in the same transaction then writes no WAL";
        entries.fixed("wal_level", Value::Text("minimal"), why);
        entries.fixed("max_wal_senders", Value::Count(0), "wal_level = minimal demands it");
        let why = "every checkpoint makes the next change of a page log all of it";
        entries.fixed("checkpoint_timeout", Value::Text("30min"), why);
    }
    let (max, origin) = match &entries.resources.disk_free_bytes {
        Some(free) if free.value / 16 < 4 * GIB => {
            let steps = (free.value / 16 / WAL_STEP_BYTES).max(1);
            (steps * WAL_STEP_BYTES, format!("plan, {} free by {}", about(free.value), free.source))
        }
        _ => (4 * GIB, "PGTune (mixed)".to_owned()),
    };
    let why = if phase == Phase::Live {
        "checkpoints by time, not by volume"
    } else {
        "a checkpoint in mid-load is paid twice"
    };
    entries.add(Kind::Setting, "max_wal_size", Value::Bytes(max), origin.clone(), why.to_owned());
    let min = GIB.min(max / 2);
    entries.add(Kind::Setting, "min_wal_size", Value::Bytes(min), origin, "files kept for reuse".to_owned());
    let why = "less WAL for a few cycles";
    entries.fixed("wal_compression", Value::Text("lz4"), why);
    entries.or(Otherwise::Use("pglz"));
}

fn storage(entries: &mut Entries<'_>, phase: Phase, shares: &Shares) {
    let disk = &entries.resources.disk;
    let origin = format!("PGTune, disk from {}", disk.source);
    let (cost, kind) = match disk.value {
        DiskKind::Hdd => (4.0, "rotating disk"),
        DiskKind::Ssd => (1.1, "solid state disk"),
        DiskKind::Nvme => (1.1, "solid state disk by NVMe"),
    };
    let cost = Value::Number(cost);
    entries.add(Kind::Setting, "random_page_cost", cost, origin.clone(), kind.to_owned());
    let reads = Value::Count(shares.tuned.effective_io_concurrency);
    entries.add(Kind::Setting, "effective_io_concurrency", reads, origin, kind.to_owned());
    if phase == Phase::Live {
        let target = Value::Count(shares.tuned.default_statistics_target);
        let (rule, why) = ("PGTune (mixed)".to_owned(), "PostgreSQL's default".to_owned());
        entries.add(Kind::Setting, "default_statistics_target", target, rule, why);
    }
    let why = "large scripts and witnesses: faster than pglz";
    entries.fixed("default_toast_compression", Value::Text("lz4"), why);
    entries.or(Otherwise::Omit);
    entries.fixed("jit", Value::Text("off"), "planning many partitions costs more than it gives");
}

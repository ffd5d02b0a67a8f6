//! PGTune's formulas: the published ones of 2026 and those of 2021, which many hand-tuned configurations still carry.
//!
//! In: a machine that PostgreSQL owns alone, and what it is for. Out: settings, as le0pard/pgtune computes them (read at
//! 7caef27) for Linux. The plan for LIVE starts from them with the memory that our own caches leave; the rest is here
//! so that anybody can compare. Pure; sizes are in kB as in PGTune, fractions are cut off.

/// What the database is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Web application: many connections, small queries.
    Web,
    /// Transactions.
    Oltp,
    /// Data warehouse: few connections, large queries.
    Dw,
    /// A developer's own machine.
    Desktop,
    /// Some of everything.
    Mixed,
}

/// What it is stored on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// Rotating disk.
    Hdd,
    /// Solid state.
    Ssd,
    /// Storage network.
    San,
    /// Solid state on NVMe; unknown to the formulas of 2021, which take it for [`Storage::Ssd`].
    Nvme,
}

/// The database beside the memory; unknown to the formulas of 2021.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseSize {
    /// Fits.
    BelowRam,
    /// About as large: PGTune's default.
    AboutRam,
    /// Larger.
    AboveRam,
}

/// Which edition of the formulas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edition {
    /// As of 2021.
    Of2021,
    /// As of July 2026.
    Current,
}

/// A server to be tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// All of its memory, kB.
    pub memory_kb: u64,
    /// Its cores, if known.
    pub cpus: Option<u64>,
    /// Connections, if chosen.
    pub connections: Option<u64>,
    /// What for.
    pub profile: Profile,
    /// On what.
    pub storage: Storage,
    /// How much.
    pub database: DatabaseSize,
    /// PostgreSQL's major version.
    pub version: u32,
}

/// What PGTune says; `None` where it says nothing. Sizes in kB.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the fields are PostgreSQL's settings")]
pub struct Tuned {
    pub max_connections: u64,
    pub shared_buffers: u64,
    pub effective_cache_size: u64,
    pub maintenance_work_mem: u64,
    pub autovacuum_work_mem: Option<u64>,
    pub autovacuum_max_workers: Option<u64>,
    pub checkpoint_completion_target: f64,
    pub wal_buffers: u64,
    pub default_statistics_target: u64,
    pub random_page_cost: f64,
    pub effective_io_concurrency: u64,
    pub work_mem: u64,
    pub huge_pages: Option<&'static str>,
    pub min_wal_size: u64,
    pub max_wal_size: u64,
    pub max_worker_processes: Option<u64>,
    pub max_parallel_workers_per_gather: Option<u64>,
    pub max_parallel_workers: Option<u64>,
    pub max_parallel_maintenance_workers: Option<u64>,
    pub wal_compression: Option<&'static str>,
    pub jit: Option<&'static str>,
    pub io_method: Option<&'static str>,
    pub wal_level: Option<&'static str>,
    pub max_wal_senders: Option<u64>,
}

const MB: u64 = 1024;
const GB: u64 = 1024 * MB;

/// `max_worker_processes` where nothing is set, which the current `work_mem` counts on below four cores.
const WORKERS_DEFAULT: u64 = 8;

/// Computes the settings.
#[must_use]
pub fn tune(machine: &Machine, edition: Edition) -> Tuned {
    let Machine { memory_kb, cpus, profile, version, .. } = *machine;
    let is_current = edition == Edition::Current;
    // In the order of `Profile`.
    let by_profile = |values: [u64; 5]| values[profile as usize];
    let is_desktop = profile == Profile::Desktop;
    let is_dw = profile == Profile::Dw;

    let max_connections = machine.connections.unwrap_or_else(|| by_profile([200, 300, 40, 20, 100])).max(1);
    let shared_buffers = memory_kb / if is_desktop { 16 } else { 4 };
    let maintenance_max = if is_current { 8 * GB } else { 2 * GB };
    let maintenance_work_mem = (memory_kb / if is_dw { 8 } else { 16 }).min(maintenance_max);
    let parallel_cpus = cpus.filter(|cpus| *cpus >= 4);
    let per_gather = parallel_cpus.map(|cpus| if is_dw { cpus.div_ceil(2) } else { cpus.div_ceil(2).min(4) });
    let divisor = by_profile([1, 1, 2, 6, 2]);
    let left = memory_kb - shared_buffers;
    let work_mem = if is_current {
        let processes = max_connections + parallel_cpus.unwrap_or(WORKERS_DEFAULT);
        let factor = match machine.database {
            DatabaseSize::BelowRam => 1.3,
            DatabaseSize::AboutRam => 1.0,
            DatabaseSize::AboveRam => 0.9,
        };
        let share = left / (processes * 3) / divisor;
        ((share as f64 * factor).floor() as u64).max(4 * MB)
    } else {
        (left / (max_connections * 3) / per_gather.unwrap_or(1) / divisor).max(64)
    };
    let min_wal_size = by_profile([GB, 2 * GB, 4 * GB, 100 * MB, GB]);
    let max_wal_size = by_profile([4 * GB, 8 * GB, 16 * GB, 2 * GB, 4 * GB]);
    let current = |value: u64| is_current.then_some(value);
    let current_word = |word: &'static str| is_current.then_some(word);

    Tuned {
        max_connections,
        shared_buffers,
        effective_cache_size: if is_desktop { memory_kb / 4 } else { memory_kb * 3 / 4 },
        maintenance_work_mem,
        autovacuum_work_mem: current(2 * GB).filter(|_| maintenance_work_mem >= 2 * GB),
        autovacuum_max_workers: match cpus.unwrap_or(0) {
            0..16 => None,
            16..32 => current(4),
            _ => current(5),
        },
        checkpoint_completion_target: 0.9,
        wal_buffers: wal_buffers(shared_buffers),
        default_statistics_target: by_profile([100, 100, 500, 100, 100]),
        random_page_cost: random_page_cost(machine, edition),
        effective_io_concurrency: match machine.storage {
            Storage::Hdd => 2,
            Storage::San => 300,
            Storage::Nvme if is_current => 1000,
            Storage::Ssd | Storage::Nvme => 200,
        },
        work_mem,
        huge_pages: current_word(if shared_buffers >= 2 * GB { "try" } else { "off" }),
        min_wal_size,
        max_wal_size,
        max_worker_processes: parallel_cpus,
        max_parallel_workers_per_gather: per_gather,
        max_parallel_workers: parallel_cpus.filter(|_| version >= 10),
        max_parallel_maintenance_workers: parallel_cpus
            .filter(|_| version >= 11)
            .map(|cpus| cpus.div_ceil(2).min(4)),
        wal_compression: match version {
            0..10 => None,
            10..15 => current_word("on"),
            _ => current_word("lz4"),
        },
        jit: current_word("off").filter(|_| version >= 12 && !is_dw && !is_desktop),
        io_method: current_word("io_uring").filter(|_| version >= 18),
        wal_level: is_desktop.then_some("minimal"),
        max_wal_senders: is_desktop.then_some(0),
    }
}

/// 3 % of the buffers, at most 16 MB; what is nearly that becomes that.
fn wal_buffers(shared_buffers: u64) -> u64 {
    let kb = (shared_buffers * 3 / 100).min(16 * MB);
    if kb > 14 * MB { 16 * MB } else { kb.max(32) }
}

fn random_page_cost(machine: &Machine, edition: Edition) -> f64 {
    let is_hdd = machine.storage == Storage::Hdd;
    let is_random = match edition {
        Edition::Of2021 => !is_hdd,
        Edition::Current => {
            machine.database == DatabaseSize::BelowRam || (!is_hdd && machine.profile != Profile::Dw)
        }
    };
    if is_random { 1.1 } else { 4.0 }
}

/// Writes a size as PGTune prints it: in the largest of GB, MB and kB that divides it.
#[must_use]
pub fn format_kb(kb: u64) -> String {
    if kb.is_multiple_of(GB) {
        format!("{}GB", kb / GB)
    } else if kb.is_multiple_of(MB) {
        format!("{}MB", kb / MB)
    } else {
        format!("{kb}kB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gb: u64, cpus: u64, profile: Profile) -> Machine {
        Machine {
            memory_kb: gb * GB,
            cpus: Some(cpus),
            connections: None,
            profile,
            storage: Storage::Ssd,
            database: DatabaseSize::AboutRam,
            version: 15,
        }
    }

    /// The memory settings of each profile: connections, S, cache, W, work_mem, statistics, WAL.
    fn memory(tuned: &Tuned) -> (u64, [String; 6], u64) {
        let sizes = [
            tuned.shared_buffers,
            tuned.effective_cache_size,
            tuned.maintenance_work_mem,
            tuned.work_mem,
            tuned.min_wal_size,
            tuned.max_wal_size,
        ];
        (tuned.max_connections, sizes.map(format_kb), tuned.default_statistics_target)
    }

    #[test]
    fn the_old_formulas_give_the_configuration_that_haf_publishes() {
        let old = tune(
            &Machine { connections: Some(40), version: 14, ..machine(64, 32, Profile::Dw) },
            Edition::Of2021,
        );
        let expected = ["16GB", "48GB", "2GB", "13107kB", "4GB", "16GB"].map(str::to_owned);
        assert_eq!(memory(&old), (40, expected, 500));
        assert_eq!(format_kb(old.wal_buffers), "16MB");
        assert_eq!((old.checkpoint_completion_target, old.random_page_cost), (0.9, 1.1));
        assert_eq!(old.effective_io_concurrency, 200);
        assert_eq!(old.max_worker_processes, Some(32));
        assert_eq!(old.max_parallel_workers_per_gather, Some(16));
        assert_eq!(old.max_parallel_workers, Some(32));
        assert_eq!(old.max_parallel_maintenance_workers, Some(4));
        let silent = (old.wal_compression, old.jit, old.io_method, old.huge_pages, old.autovacuum_work_mem);
        assert_eq!(silent, (None, None, None, None, None));
        assert_eq!((old.autovacuum_max_workers, old.wal_level), (None, None));
    }

    #[test]
    fn the_current_formulas_on_the_same_machine() {
        let new = tune(
            &Machine { connections: Some(40), version: 14, ..machine(64, 32, Profile::Dw) },
            Edition::Current,
        );
        let expected = ["16GB", "48GB", "8GB", "116508kB", "4GB", "16GB"].map(str::to_owned);
        assert_eq!(memory(&new), (40, expected, 500));
        assert_eq!((new.random_page_cost, new.effective_io_concurrency), (4.0, 200));
        assert_eq!(new.autovacuum_work_mem.map(format_kb).as_deref(), Some("2GB"));
        assert_eq!((new.autovacuum_max_workers, new.wal_compression), (Some(5), Some("on")));
        assert_eq!((new.huge_pages, new.jit), (Some("try"), None));
        assert_eq!(new.max_parallel_workers_per_gather, Some(16));
    }

    #[test]
    fn every_profile_on_16_gb_and_8_cores() {
        let pin = |profile, edition, connections, sizes: [&str; 6], statistics| {
            let tuned = tune(&machine(16, 8, profile), edition);
            assert_eq!(
                memory(&tuned),
                (connections, sizes.map(str::to_owned), statistics),
                "{profile:?} {edition:?}"
            );
        };
        let current = Edition::Current;
        pin(Profile::Web, current, 200, ["4GB", "12GB", "1GB", "20164kB", "1GB", "4GB"], 100);
        pin(Profile::Oltp, current, 300, ["4GB", "12GB", "1GB", "13617kB", "2GB", "8GB"], 100);
        pin(Profile::Dw, current, 40, ["4GB", "12GB", "2GB", "43690kB", "4GB", "16GB"], 500);
        pin(Profile::Desktop, current, 20, ["1GB", "4GB", "1GB", "31207kB", "100MB", "2GB"], 100);
        pin(Profile::Mixed, current, 100, ["4GB", "12GB", "1GB", "19418kB", "1GB", "4GB"], 100);
        let old = Edition::Of2021;
        pin(Profile::Web, old, 200, ["4GB", "12GB", "1GB", "5242kB", "1GB", "4GB"], 100);
        pin(Profile::Oltp, old, 300, ["4GB", "12GB", "1GB", "3495kB", "2GB", "8GB"], 100);
        pin(Profile::Dw, old, 40, ["4GB", "12GB", "2GB", "13107kB", "4GB", "16GB"], 500);
        pin(Profile::Desktop, old, 20, ["1GB", "4GB", "1GB", "10922kB", "100MB", "2GB"], 100);
        pin(Profile::Mixed, old, 100, ["4GB", "12GB", "1GB", "5242kB", "1GB", "4GB"], 100);
    }

    #[test]
    fn few_cores_small_memory_and_other_storage() {
        let small = tune(&machine(1, 2, Profile::Web), Edition::Current);
        let expected = ["256MB", "768MB", "64MB", "4MB", "1GB", "4GB"].map(str::to_owned);
        assert_eq!(memory(&small), (200, expected, 100));
        assert_eq!(format_kb(small.wal_buffers), "7864kB");
        assert_eq!((small.huge_pages, small.jit), (Some("off"), Some("off")));
        assert_eq!((small.max_worker_processes, small.max_parallel_workers_per_gather), (None, None));
        assert_eq!((small.autovacuum_work_mem, small.autovacuum_max_workers), (None, None));
        let old = tune(&machine(1, 2, Profile::Mixed), Edition::Of2021);
        assert_eq!(format_kb(old.work_mem), "1310kB");

        let on = |storage, profile, database, edition| {
            let tuned = tune(&Machine { storage, database, ..machine(16, 8, profile) }, edition);
            (tuned.random_page_cost, tuned.effective_io_concurrency)
        };
        let (current, old, about) = (Edition::Current, Edition::Of2021, DatabaseSize::AboutRam);
        assert_eq!(on(Storage::Hdd, Profile::Web, about, current), (4.0, 2));
        assert_eq!(on(Storage::Hdd, Profile::Web, DatabaseSize::BelowRam, current), (1.1, 2));
        assert_eq!(on(Storage::San, Profile::Web, about, current), (1.1, 300));
        assert_eq!(on(Storage::Nvme, Profile::Web, about, current), (1.1, 1000));
        assert_eq!(on(Storage::Nvme, Profile::Dw, about, current), (4.0, 1000));
        assert_eq!(on(Storage::Hdd, Profile::Dw, about, old), (4.0, 2));
        assert_eq!(on(Storage::San, Profile::Dw, about, old), (1.1, 300));
    }

    #[test]
    fn the_database_size_moves_work_mem_and_versions_what_exists() {
        let sized = |database| {
            format_kb(
                tune(&Machine { database, ..machine(16, 8, Profile::Mixed) }, Edition::Current).work_mem,
            )
        };
        assert_eq!(sized(DatabaseSize::BelowRam), "25243kB");
        assert_eq!(sized(DatabaseSize::AboveRam), "17476kB");
        let of = |version| tune(&Machine { version, ..machine(16, 16, Profile::Mixed) }, Edition::Current);
        assert_eq!((of(9).wal_compression, of(9).jit, of(9).max_parallel_workers), (None, None, None));
        assert_eq!((of(15).wal_compression, of(15).jit, of(15).io_method), (Some("lz4"), Some("off"), None));
        assert_eq!((of(18).io_method, of(18).autovacuum_max_workers), (Some("io_uring"), Some(4)));
    }

    #[test]
    fn wal_buffers_snap_to_16_mb() {
        assert_eq!(wal_buffers(400 * MB), 12_288);
        assert_eq!(wal_buffers(480 * MB), 16_384);
        assert_eq!(wal_buffers(16 * GB), 16_384);
        assert_eq!(wal_buffers(1024), 32);
    }
}

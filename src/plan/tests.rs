//! The plan on machines from a Raspberry Pi to a large server, and what must hold on every machine.

use proptest::prelude::*;

use super::*;
use crate::resources::{DiskKind, ServerPlace};

const MIB: u64 = 1 << 20;

fn machine(ram_mib: u64, cpus: usize, disk: DiskKind) -> Resources {
    Resources {
        ram_bytes: Found::new(ram_mib * MIB, "test"),
        disk: Found::new(disk, "test"),
        ..Resources::unknown(cpus)
    }
}

/// A phase in one line: UTXO cache, pipeline in MiB, threads x builds, then PostgreSQL's shared_buffers,
/// maintenance_work_mem, work_mem, effective_cache_size.
fn line(resources: &Resources, phase: Phase) -> String {
    let plan = Plan::new(resources, phase, &Overrides::default());
    let setting = |key: &str| plan.entry(key).unwrap().value.to_postgres();
    format!(
        "utxo {} pipeline {} threads {} builds {} | {} {} {} {}",
        plan.utxo_cache_bytes / MIB,
        plan.pipeline_bytes / MIB,
        plan.threads,
        plan.builds,
        setting("shared_buffers"),
        setting("maintenance_work_mem"),
        setting("work_mem"),
        setting("effective_cache_size"),
    )
}

/// The three phases of a machine.
fn pin(name: &str, resources: &Resources, expected: [&str; 3]) {
    assert_eq!(Phase::ALL.map(|phase| line(resources, phase)), expected, "{name}");
}

#[test]
fn single_board_computers() {
    pin(
        "1 GiB, 4 cores, SD card",
        &machine(1024, 4, DiskKind::Ssd),
        [
            "utxo 100 pipeline 128 threads 4 builds 0 | 128MB 32MB 8MB 388MB",
            "utxo 100 pipeline 0 threads 1 builds 4 | 128MB 32MB 8MB 452MB",
            "utxo 100 pipeline 64 threads 3 builds 1 | 164MB 41MB 4MB 493MB",
        ],
    );
    pin(
        "4 GiB, 4 cores, rotating disk",
        &machine(4096, 4, DiskKind::Hdd),
        [
            "utxo 512 pipeline 240 threads 4 builds 0 | 128MB 64MB 32MB 2336MB",
            "utxo 512 pipeline 0 threads 1 builds 4 | 128MB 64MB 32MB 2576MB",
            "utxo 512 pipeline 64 threads 3 builds 1 | 781MB 195MB 4MB 2344MB",
        ],
    );
}

#[test]
fn desktops() {
    pin(
        "2 GiB, 1 core",
        &machine(2048, 1, DiskKind::Ssd),
        [
            "utxo 100 pipeline 120 threads 1 builds 0 | 128MB 64MB 16MB 1204MB",
            "utxo 100 pipeline 0 threads 1 builds 1 | 128MB 64MB 16MB 1388MB",
            "utxo 100 pipeline 64 threads 1 builds 1 | 404MB 101MB 4MB 1213MB",
        ],
    );
    pin(
        "8 GiB, 4 cores",
        &machine(8192, 4, DiskKind::Ssd),
        [
            "utxo 1536 pipeline 240 threads 4 builds 0 | 128MB 64MB 64MB 4896MB",
            "utxo 1536 pipeline 0 threads 1 builds 4 | 128MB 64MB 64MB 5136MB",
            "utxo 1536 pipeline 64 threads 3 builds 1 | 1485MB 371MB 6528kB 4456MB",
        ],
    );
    pin(
        "16 GiB, 8 cores",
        &machine(16_384, 8, DiskKind::Nvme),
        [
            "utxo 3584 pipeline 400 threads 8 builds 4 | 128MB 64MB 64MB 10624MB",
            "utxo 2048 pipeline 0 threads 1 builds 8 | 128MB 64MB 64MB 12560MB",
            "utxo 2048 pipeline 64 threads 3 builds 1 | 3405MB 851MB 14MB 10216MB",
        ],
    );
}

#[test]
fn servers() {
    pin(
        "64 GiB, 32 cores",
        &machine(65_536, 32, DiskKind::Ssd),
        [
            "utxo 8192 pipeline 512 threads 25 builds 16 | 128MB 64MB 64MB 54256MB",
            "utxo 2048 pipeline 0 threads 1 builds 32 | 128MB 64MB 64MB 60144MB",
            "utxo 2048 pipeline 64 threads 3 builds 1 | 15693MB 3923MB 53MB 47080MB",
        ],
    );
    pin(
        "256 GiB, 64 cores",
        &machine(262_144, 64, DiskKind::Nvme),
        [
            "utxo 8192 pipeline 512 threads 25 builds 32 | 128MB 64MB 64MB 249840MB",
            "utxo 2048 pipeline 0 threads 1 builds 32 | 128MB 64MB 64MB 256752MB",
            "utxo 2048 pipeline 64 threads 3 builds 1 | 64845MB 8GB 177MB 194536MB",
        ],
    );
}

#[test]
fn containers_on_a_host_of_128_gib_and_32_cores() {
    let container = |ram_mib| machine(ram_mib, 32, DiskKind::Nvme);
    pin(
        "512 MiB",
        &container(512),
        [
            "utxo 100 pipeline 64 threads 3 builds 2 | 64MB 16MB 4MB 104MB",
            "utxo 100 pipeline 0 threads 1 builds 4 | 64MB 16MB 4MB 168MB",
            "utxo 100 pipeline 32 threads 1 builds 1 | 68MB 17MB 512kB 205MB",
        ],
    );
    pin(
        "1 GiB",
        &container(1024),
        [
            "utxo 100 pipeline 128 threads 6 builds 4 | 128MB 16MB 8MB 308MB",
            "utxo 100 pipeline 0 threads 1 builds 8 | 128MB 16MB 8MB 436MB",
            "utxo 100 pipeline 64 threads 3 builds 1 | 164MB 41MB 1280kB 493MB",
        ],
    );
    pin(
        "2 GiB",
        &container(2048),
        [
            "utxo 100 pipeline 256 threads 12 builds 8 | 128MB 16MB 16MB 908MB",
            "utxo 100 pipeline 0 threads 1 builds 16 | 128MB 16MB 16MB 1164MB",
            "utxo 100 pipeline 64 threads 3 builds 1 | 404MB 101MB 3200kB 1213MB",
        ],
    );
    pin(
        "8 GiB",
        &container(8192),
        [
            "utxo 1536 pipeline 512 threads 25 builds 16 | 128MB 32MB 64MB 4080MB",
            "utxo 1536 pipeline 0 threads 1 builds 32 | 128MB 32MB 64MB 4336MB",
            "utxo 1536 pipeline 64 threads 3 builds 1 | 1485MB 371MB 5184kB 4456MB",
        ],
    );
}

#[test]
fn a_server_on_another_host_leaves_the_memory_of_this_one_to_the_caches() {
    let server = Found::new(ServerPlace::OtherHost, "--database-url");
    let resources = Resources { server, ..machine(16_384, 8, DiskKind::Ssd) };
    pin(
        "16 GiB, 8 cores, PostgreSQL elsewhere",
        &resources,
        [
            "utxo 3584 pipeline 400 threads 8 builds 4 | 128MB 64MB 64MB 12GB",
            "utxo 2048 pipeline 0 threads 1 builds 8 | 128MB 64MB 64MB 12GB",
            "utxo 2048 pipeline 64 threads 3 builds 1 | 4GB 1GB 17MB 12GB",
        ],
    );
    let plan = Plan::new(&resources, Phase::Live, &Overrides::default());
    let names: Vec<&str> = plan.parts.iter().map(|part| part.name).collect();
    assert_eq!(
        names,
        ["UTXO cache", "TxNumCache", "pipeline", "coin files", "satgres itself", "system", "page cache"]
    );
    assert!(plan.entry("shared_buffers").unwrap().why.contains("as if the server's own host"));
}

#[test]
fn what_the_phases_differ_in() {
    let resources = machine(16_384, 8, DiskKind::Nvme);
    let values = |key: &str| {
        Phase::ALL.map(|phase| {
            let plan = Plan::new(&resources, phase, &Overrides::default());
            plan.entry(key).map_or_else(String::new, |entry| entry.value.to_postgres())
        })
    };
    assert_eq!(values("wal_level"), ["minimal", "minimal", "replica"]);
    assert_eq!(values("max_wal_senders"), ["0", "0", "10"]);
    assert_eq!(values("checkpoint_timeout"), ["30min", "30min", "15min"]);
    assert_eq!(values("max_wal_size"), ["4GB", "4GB", "4GB"]);
    assert_eq!(values("min_wal_size"), ["1GB", "1GB", "1GB"]);
    assert_eq!(values("wal_buffers"), ["3904kB", "3904kB", "16MB"]);
    assert_eq!(values("huge_pages"), ["off", "off", "try"]);
    assert_eq!(values("max_parallel_maintenance_workers"), ["0", "0", "4"]);
    assert_eq!(values("max_parallel_workers_per_gather"), ["4", "4", "4"]);
    assert_eq!(values("max_worker_processes"), ["8", "8", "8"]);
    assert_eq!(values("effective_io_concurrency"), ["1000", "1000", "1000"]);
    assert_eq!(values("random_page_cost"), ["1.1", "1.1", "1.1"]);
    assert_eq!(values("autovacuum_work_mem"), ["16MB", "16MB", "212MB"]);
    let hdd = Plan::new(&machine(4096, 4, DiskKind::Hdd), Phase::Live, &Overrides::default());
    assert_eq!(hdd.entry("random_page_cost").unwrap().value, Value::Number(4.0));
    assert_eq!(hdd.entry("effective_io_concurrency").unwrap().value, Value::Count(2));
}

/// Between REPLAY and RESTORE the server goes on, so what only a restart changes must not differ.
#[test]
fn replay_and_restore_need_no_restart_between_them() {
    for (ram_mib, cpus) in [(512, 1), (1024, 4), (16_384, 8), (262_144, 64)] {
        let [replay, restore] = [Phase::Replay, Phase::Restore]
            .map(|phase| Plan::new(&machine(ram_mib, cpus, DiskKind::Ssd), phase, &Overrides::default()));
        for key in [
            "shared_buffers",
            "huge_pages",
            "wal_buffers",
            "wal_level",
            "max_wal_senders",
            "max_connections",
            "max_worker_processes",
            "autovacuum_max_workers",
        ] {
            assert_eq!(replay.entry(key).unwrap().value, restore.entry(key).unwrap().value, "{key}");
        }
        assert!(replay.maintenance_work_mem_bytes <= restore.maintenance_work_mem_bytes);
    }
}

#[test]
fn a_small_shared_memory_or_disk_is_minded() {
    let mut resources = machine(4096, 4, DiskKind::Ssd);
    resources.shm_bytes = Some(Found::new(64 * MIB, "/dev/shm"));
    resources.disk_free_bytes = Some(Found::new(20 << 30, "file system of /data"));
    let plan = Plan::new(&resources, Phase::Live, &Overrides::default());
    assert_eq!(plan.entry("dynamic_shared_memory_type").unwrap().value, Value::Text("mmap"));
    assert_eq!(plan.entry("max_wal_size").unwrap().value.to_postgres(), "1280MB");
    assert_eq!(plan.entry("min_wal_size").unwrap().value.to_postgres(), "640MB");
    resources.shm_bytes = Some(Found::new(2048 * MIB, "/dev/shm"));
    resources.disk_free_bytes = Some(Found::new(0, "file system of /data"));
    let plan = Plan::new(&resources, Phase::Live, &Overrides::default());
    assert_eq!(plan.entry("dynamic_shared_memory_type"), None);
    assert_eq!(plan.entry("max_wal_size").unwrap().value.to_postgres(), "256MB");
    assert_eq!(plan.entry("min_wal_size").unwrap().value.to_postgres(), "128MB");
}

#[test]
fn what_was_asked_for_wins_and_is_named() {
    let overrides = Overrides {
        utxo_cache_bytes: Some(Found::new(13 << 30, "--utxo-cache")),
        txnum_cache_buckets: Some(Found::new(100, "SATGRES_TXNUM_CACHE_BUCKETS")),
        txnum_cache_bucket_size: None,
        pipeline_bytes: Some(Found::new(1 << 30, "--pipeline-bytes")),
        threads: Some(Found::new(3, "--threads")),
        builds_while_loading: Some(Found::new(2, "--builds-while-loading")),
    };
    let resources = machine(16_384, 8, DiskKind::Ssd);
    let replay = Plan::new(&resources, Phase::Replay, &overrides);
    assert_eq!((replay.utxo_cache_bytes, replay.pipeline_bytes), (13_958_643_712, 1_073_741_824));
    assert_eq!((replay.threads, replay.txnum_cache_bytes), (3, 0));
    assert_eq!(
        (replay.builds, replay.entry("builds").unwrap().origin.as_str()),
        (2, "--builds-while-loading")
    );
    assert_eq!(replay.entry("utxo_cache_bytes").unwrap().origin, "--utxo-cache");
    assert_eq!(
        replay.warnings,
        [
            "a UTXO cache of 13GiB (--utxo-cache) is too large for 16GiB of RAM (test): it is more than 75 % of it"
        ]
    );
    let live = Plan::new(&resources, Phase::Live, &overrides);
    assert_eq!((live.txnum_cache_bytes, live.pipeline_bytes), (100_000_000, 67_108_864));
    assert_eq!(live.entry("txnum_cache_bytes").unwrap().origin, "SATGRES_TXNUM_CACHE_BUCKETS");
    assert_eq!(live.entry("shared_buffers").unwrap().value.to_postgres(), "1GB");
    assert_eq!(live.warnings.len(), 1, "{:?}", live.warnings);
    let most =
        Overrides { utxo_cache_bytes: Some(Found::new(15 << 30, "--utxo-cache")), ..Overrides::default() };
    let warnings = Plan::new(&resources, Phase::Live, &most).warnings;
    assert_eq!(warnings[1], "the plan for live needs 18313MiB of 16GiB (test): lower what was asked for");

    let little =
        Overrides { utxo_cache_bytes: Some(Found::new(512 << 20, "--utxo-cache")), ..Overrides::default() };
    let plan = Plan::new(&machine(2048, 2, DiskKind::Ssd), Phase::Replay, &little);
    let warning = "a UTXO cache of 512MiB (--utxo-cache) is too large for 2GiB of RAM (test): \
                   it is more than the default of 100MiB";
    assert_eq!(plan.warnings, [warning]);
    let none = Overrides { utxo_cache_bytes: Some(Found::new(0, "--utxo-cache")), ..Overrides::default() };
    let plan = Plan::new(&machine(2048, 2, DiskKind::Ssd), Phase::Replay, &none);
    assert_eq!((plan.utxo_cache_bytes, plan.warnings.len()), (0, 0));
}

/// The cache of recent transactions has the size that the plan gives it, also where that is less than the default.
#[test]
fn the_txnum_cache_of_live_is_as_large_as_its_share() {
    for (ram_mib, buckets, bucket_size, bytes) in
        [(64, 10, 5_242, 2_096_800), (256, 10, 20_971, 8_388_400), (16_384, 10, 25_000, 10_000_000)]
    {
        let plan = Plan::new(&machine(ram_mib, 2, DiskKind::Ssd), Phase::Live, &Overrides::default());
        assert_eq!((plan.txnum_cache_buckets, plan.txnum_cache_bucket_size), (buckets, bucket_size));
        assert_eq!(plan.txnum_cache_bytes, bytes);
        let key = crate::prevouts::FingerprintKey::random().unwrap();
        let mut cache = crate::prevouts::TxNumCache::new(buckets, bucket_size, key);
        for n in 0..buckets * bucket_size {
            cache.insert(&crate::chain::hash::sha256d(&n.to_le_bytes()), n as i64);
        }
        assert_eq!(cache.len(), buckets * bucket_size);
        assert!(cache.allocated_bytes() <= bytes && cache.allocated_bytes() > bytes / 10 * 8);
    }
    let replay = Plan::new(&machine(16_384, 2, DiskKind::Ssd), Phase::Replay, &Overrides::default());
    assert_eq!((replay.txnum_cache_buckets, replay.txnum_cache_bytes), (0, 0));
}

/// The buffers of the coin files keep to their share on machines of every size.
#[test]
fn coin_files_have_a_share_in_a_replay_alone() {
    for (ram_mib, bytes_mib) in [(512, 32), (1024, 64), (4096, 256), (262_144, 256)] {
        let plan = Plan::new(&machine(ram_mib, 2, DiskKind::Ssd), Phase::Replay, &Overrides::default());
        assert_eq!(plan.coin_files_bytes, bytes_mib * MIB);
        let limits = crate::prevouts::UtxoLimits::within(plan.coin_files_bytes);
        assert!(limits.buffer_bytes_max() <= plan.coin_files_bytes);
        let live = Plan::new(&machine(ram_mib, 2, DiskKind::Ssd), Phase::Live, &Overrides::default());
        assert_eq!(live.coin_files_bytes, 0);
    }
}

/// A catch-up loads while the server has its settings for LIVE: that must fit too.
#[test]
fn a_catch_up_on_a_live_server_fits() {
    for ram_mib in [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536, 262_144] {
        for cpus in [1, 2, 8, 64] {
            let [replay, restore, live] = Phase::ALL
                .map(|phase| Plan::new(&machine(ram_mib, cpus, DiskKind::Ssd), phase, &Overrides::default()));
            let builds = restore.builds as u64 * restore.maintenance_work_mem_bytes;
            let all = replay.service_bytes() + live.server_bytes() + builds;
            assert!(all <= ram_mib * MIB, "{ram_mib} MiB, {cpus} cores: {} MiB", all / MIB);
        }
    }
}

#[test]
fn extremes_do_not_hurt() {
    for ram_bytes in [0, 1, u64::MAX] {
        for cpus in [1, usize::MAX] {
            let resources = Resources {
                ram_bytes: Found::new(ram_bytes, "test"),
                cpus: Found::new(cpus, "test"),
                ..Resources::unknown(1)
            };
            for phase in Phase::ALL {
                let plan = Plan::new(&resources, phase, &Overrides::default());
                assert_eq!(plan.warnings, [""; 0]);
                let all = Overrides {
                    utxo_cache_bytes: Some(Found::new(u64::MAX, "test")),
                    txnum_cache_buckets: Some(Found::new(u64::MAX, "test")),
                    txnum_cache_bucket_size: Some(Found::new(u64::MAX, "test")),
                    pipeline_bytes: Some(Found::new(u64::MAX, "test")),
                    threads: Some(Found::new(usize::MAX, "test")),
                    builds_while_loading: Some(Found::new(usize::MAX, "test")),
                };
                assert!(!Plan::new(&resources, phase, &all).warnings.is_empty());
            }
        }
    }
}

/// Most that a size may grow with one MiB of memory: that MiB and the rounding.
const STEP_BYTES_MAX: u64 = 2 * MIB;

proptest! {
    /// On every machine: nobody gets what is not there, nothing warns, `run` stays small on a small chain, PostgreSQL
    /// accepts the sizes; and one MiB more never takes anything away nor gives a jump.
    #[test]
    fn plans_fit_and_grow_steadily(
        ram_bytes in prop_oneof![0..=(600 * MIB), 0..=(12_u64 << 30), 0..=(1_u64 << 40), any::<u64>()],
        cpus in prop_oneof![1..=8_usize, 1..=512_usize],
        disk in prop::sample::select(vec![DiskKind::Hdd, DiskKind::Ssd, DiskKind::Nvme]),
        is_here in any::<bool>(),
    ) {
        let place = if is_here { ServerPlace::ThisHost } else { ServerPlace::OtherHost };
        let resources = |ram_bytes| Resources {
            ram_bytes: Found::new(ram_bytes, "test"),
            server: Found::new(place, "test"),
            ..machine(0, cpus, disk)
        };
        for phase in Phase::ALL {
            let plan = Plan::new(&resources(ram_bytes), phase, &Overrides::default());
            let more = Plan::new(&resources(ram_bytes.saturating_add(MIB)), phase, &Overrides::default());
            prop_assert!(plan.warnings.is_empty());
            prop_assert_eq!(plan.parts.iter().map(|part| part.bytes).sum::<u64>(), plan.ram_bytes);
            prop_assert!(plan.ram_bytes <= ram_bytes.max(RAM_BYTES_MIN));
            prop_assert!(plan.pipeline_bytes <= 512 * MIB);
            prop_assert!((1..=cpus).contains(&plan.threads));
            let builds_min = usize::from(plan.phase != Phase::Replay);
            prop_assert!((builds_min..=32).contains(&plan.builds));
            prop_assert!(plan.threads as u64 * 20 * MIB <= plan.pipeline_bytes.max(20 * MIB));
            for (entry, next) in plan.entries.iter().zip(&more.entries) {
                prop_assert_eq!(entry.key, next.key);
                match (&entry.value, &next.value) {
                    (Value::Bytes(bytes), Value::Bytes(grown)) => {
                        prop_assert!(grown >= bytes, "{} {} {}", entry.key, bytes, grown);
                        prop_assert!(grown - bytes <= STEP_BYTES_MAX, "{} {} {}", entry.key, bytes, grown);
                    }
                    (Value::Count(count), Value::Count(grown)) => {
                        prop_assert!(grown >= count && grown - count <= 1, "{}", entry.key);
                    }
                    _ => {}
                }
            }
            for (part, next) in plan.parts.iter().zip(&more.parts) {
                prop_assert!(next.bytes >= part.bytes && next.bytes - part.bytes <= STEP_BYTES_MAX, "{}", part.name);
            }
            for (key, bytes_min) in [
                ("shared_buffers", 128 << 10),
                ("work_mem", 64 << 10),
                ("maintenance_work_mem", 1 << 20),
                ("wal_buffers", 32 << 10),
                ("min_wal_size", 128 << 20),
            ] {
                let bytes = &plan.entry(key).unwrap().value;
                prop_assert!(matches!(bytes, Value::Bytes(bytes) if *bytes >= bytes_min), "{} {:?}", key, bytes);
            }
        }
    }
}

#[test]
fn every_part_is_the_services_the_servers_or_the_systems() {
    for phase in Phase::ALL {
        let plan = Plan::new(&machine(16_384, 8, DiskKind::Ssd), phase, &Overrides::default());
        let rest = plan.parts.iter().filter(|part| ["system", "page cache"].contains(&part.name));
        let rest: u64 = rest.map(|part| part.bytes).sum();
        assert_eq!(plan.service_bytes() + plan.server_bytes() + rest, plan.ram_bytes, "{phase}");
    }
}

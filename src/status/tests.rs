//! The report's keys, its text, and what it makes of what it was told.

use serde_json::Value;

use super::{state::FilesTip, state::PlanFigures, *};
use crate::replay::progress::Counted;

/// Every key of the JSON: an interface, also listed in docs/status.md.
const KEYS: &[&str] = &[
    "at_timestamp_seconds",
    "constraints.failed",
    "constraints.total",
    "constraints.validated",
    "data_dir",
    "disk.cluster_bytes",
    "disk.coins_bytes",
    "disk.database_bytes",
    "disk.free_bytes",
    "eta.load_seconds",
    "eta.restore_seconds",
    "eta.total_seconds",
    "heights.attached",
    "heights.files",
    "heights.loaded",
    "heights.loading",
    "indexes.done",
    "indexes.done_ratio",
    "indexes.failed",
    "indexes.running[].done_ratio",
    "indexes.running[].elapsed_seconds",
    "indexes.running[].name",
    "indexes.running[].step",
    "indexes.total",
    "invalid_blocks.count",
    "invalid_blocks.first.file",
    "invalid_blocks.first.file_offset_bytes",
    "invalid_blocks.first.hash",
    "invalid_blocks.first.height",
    "invalid_blocks.first.reason",
    "is_ready",
    "last_reorg.at_timestamp_seconds",
    "last_reorg.depth_blocks",
    "last_reorg.fork_height",
    "last_reorg.new_tip_hash",
    "last_reorg.old_tip_hash",
    "last_reorg.took_seconds",
    "live.block_age_seconds",
    "live.block_timestamp_seconds",
    "live.connect_seconds",
    "live.connected_blocks",
    "live.hash",
    "live.height",
    "live.is_node_connected",
    "live.lag_blocks",
    "live.node_height",
    "live.reorgs",
    "load.blocks",
    "load.blocks_per_second",
    "load.bytes_per_second",
    "load.done_bytes",
    "load.elapsed_seconds",
    "load.height_first",
    "load.height_last",
    "load.rows",
    "load.rows_per_second",
    "load.total_bytes",
    "load.txs",
    "load.txs_per_second",
    "memory.plan_phase",
    "memory.plan_server_bytes",
    "memory.plan_service_bytes",
    "memory.plan_total_bytes",
    "memory.server_bytes",
    "memory.server_processes",
    "memory.service_bytes",
    "network",
    "notes[]",
    "phase.elapsed_seconds",
    "phase.name",
    "phase.started_timestamp_seconds",
    "phase.step",
    "satgres_version",
    "segments.attached",
    "segments.loaded",
    "segments.loading",
    "segments.planned",
    "server.data_dir",
    "server.database",
    "server.message",
    "server.pid",
    "server.started_timestamp_seconds",
    "server.state",
    "server.version",
    "service.error",
    "service.exit_code",
    "service.last_phase",
    "service.last_step",
    "service.pid",
    "service.seen_timestamp_seconds",
    "service.silent_seconds",
    "service.started_timestamp_seconds",
    "service.state",
    "tip.hash",
    "tip.height",
    "tip.is_confirmed_by_node",
    "tip.source",
    "utxo_cache.budget_bytes",
    "utxo_cache.coins",
    "utxo_cache.hit_ratio",
    "utxo_cache.run_coins",
    "utxo_cache.run_files",
    "utxo_cache.used_bytes",
    "utxo_cache.waiting_spends",
];

/// A report in which everything is known: 40 % of mainnet loaded.
fn report() -> Report {
    let at = 1_800_000_000.0;
    Report {
        satgres_version: "0.1.0",
        data_dir: "/data".to_owned(),
        at_timestamp_seconds: at,
        network: Some("main".to_owned()),
        is_ready: true,
        service: ServiceReport {
            state: "running",
            pid: Some(4711),
            started_timestamp_seconds: Some(at - 18_120.0),
            seen_timestamp_seconds: Some(at - 0.5),
            silent_seconds: Some(0.5),
            last_phase: Some("REINDEX".to_owned()),
            last_step: Some("loading blocks".to_owned()),
            exit_code: None,
            error: None,
        },
        phase: Some(PhaseReport {
            name: "REINDEX".to_owned(),
            step: "loading blocks".to_owned(),
            started_timestamp_seconds: at - 18_000.0,
            elapsed_seconds: 18_000.0,
        }),
        server: ServerReport {
            database: None,
            state: "up",
            pid: Some(4712),
            version: Some("15.18".to_owned()),
            started_timestamp_seconds: Some(at - 18_100.0),
            data_dir: Some("/data/pg".to_owned()),
            message: None,
        },
        heights: Heights {
            files: Some(900_000),
            loading: Some(554_321),
            loaded: Some(519_000),
            attached: Some(480_000),
        },
        tip: Some(TipReport {
            height: 480_000,
            hash: Some("00000000000000000001".to_owned()),
            source: "database",
            is_confirmed_by_node: false,
        }),
        live: Some(LiveReport {
            height: 239_999,
            hash: "00".repeat(32),
            block_timestamp_seconds: 1_799_999_400,
            block_age_seconds: 600.0,
            node_height: Some(240_001),
            lag_blocks: Some(2),
            is_node_connected: Some(true),
            connected_blocks: 144,
            reorgs: 1,
            connect_seconds: 0.25,
        }),
        invalid_blocks: Some(InvalidBlocks {
            count: 1,
            first: Some(InvalidBlock {
                height: 500_001,
                hash: format!("{}0123456789abcdef", "0".repeat(48)),
                reason: "its coinbase pays too much".to_owned(),
                file: Some("blk01000.dat".to_owned()),
                file_offset_bytes: Some(8),
            }),
        }),
        load: Some(LoadReport {
            height_first: 0,
            height_last: 900_000,
            blocks: 554_322,
            txs: 365_000_000,
            rows: 2_200_000_000,
            done_bytes: 193_273_528_320,
            total_bytes: 687_194_767_360,
            elapsed_seconds: 18_000.0,
            blocks_per_second: 11.5,
            txs_per_second: 20_123.4,
            rows_per_second: 123_456.7,
            bytes_per_second: 10_550_000.0,
        }),
        eta: Eta {
            load_seconds: Some(46_800.0),
            restore_seconds: Some(7_260.0),
            total_seconds: Some(54_060.0),
        },
        utxo_cache: Some(CacheReport {
            coins: 52_000_000,
            used_bytes: 2_080_000_000,
            budget_bytes: Some(4 << 30),
            hit_ratio: Some(0.9876),
            waiting_spends: 120_000,
            run_files: 3,
            run_coins: 21_000_000,
        }),
        segments: Segments { planned: Some(14), loading: Some(1), loaded: Some(3), attached: Some(2) },
        indexes: Some(Indexes {
            total: 21,
            done: 15,
            failed: 0,
            done_ratio: Some(0.78),
            running: vec![RunningBuild {
                name: "inputs_0002_pkey".to_owned(),
                step: "building index: loading tuples in tree".to_owned(),
                done_ratio: 0.81,
                elapsed_seconds: 312.0,
            }],
        }),
        constraints: Some(Constraints { total: 6, validated: 0, failed: 0 }),
        disk: Disk {
            database_bytes: Some(400 << 30),
            cluster_bytes: Some(404 << 30),
            coins_bytes: Some(1 << 30),
            free_bytes: Some(1 << 40),
        },
        memory: Memory {
            service_bytes: Some(2_700_000_000),
            server_bytes: Some(700_000_000),
            server_processes: Some(14),
            plan_phase: Some("replay".to_owned()),
            plan_service_bytes: Some(5 << 30),
            plan_server_bytes: Some(1 << 30),
            plan_total_bytes: Some(16 << 30),
        },
        last_reorg: Some(Reorg {
            at_timestamp_seconds: at - 273_600.0,
            fork_height: 479_000,
            depth_blocks: 1,
            old_tip_hash: "aa".to_owned(),
            new_tip_hash: "bb".to_owned(),
            took_seconds: 0.2,
        }),
        notes: vec!["a note".to_owned()],
    }
}

fn keys_of(prefix: &str, value: &Value, keys: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                keys_of(&path, value, keys);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys_of(&format!("{prefix}[]"), item, keys)),
        _ => keys.push(prefix.to_owned()),
    }
}

#[test]
fn the_keys_are_an_interface_and_documented() {
    let mut keys = Vec::new();
    keys_of("", &serde_json::to_value(report()).unwrap(), &mut keys);
    keys.sort();
    assert_eq!(keys, KEYS);
    let documented = include_str!("../../docs/status.md");
    let rows = documented.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut documented: Vec<&str> = rows.collect();
    documented.sort_unstable();
    assert_eq!(documented, KEYS);
}

#[test]
fn one_screen_tells_everything() {
    let expected = "\
satgres 0.1.0, main, /data
service     running, process 4711, for 5h 2m
phase       REINDEX: loading blocks, for 5h 0m
server      PostgreSQL 15.18 is up, process 4712, for 5h 1m
blocks      readers see up to 480,000, loaded up to 519,000, loading 554,321, the files reach 900,000
tip         480,000 00000000000000000001; no node has confirmed the tip
live        the tip's time was 10m 0s ago; 2 blocks behind the node; 144 blocks connected since the start, 1 reorg
refused     1 block, the lowest at height 500,001 (…0123456789abcdef): its coinbase pays too much
left        13h 0m to load, then about 2h 1m for indexes
rates       20,123 tx/s, 123,456 rows/s, 10.6 MB/s; 180 GiB of 640 GiB of blocks
UTXO cache  1.94 GiB of 4.00 GiB, 52,000,000 coins, 98.8 % hits; 21,000,000 coins in 3 files, 120,000 spends waiting
segments    3 of 14 loaded, 2 attached
indexes     15 of 21 built, 78 % of the work
             81 % inputs_0002_pkey, loading tuples in tree, for 5m 12s
constraints 0 of 6 validated
disk        database 400 GiB, PostgreSQL 404 GiB, coins 1.00 GiB, 1.00 TiB free
memory      service 2.51 GiB of 5.00 GiB planned, server 668 MiB of 1.00 GiB planned
last reorg  3d 4h ago: 1 block above height 479,000 replaced
note        a note
";
    assert_eq!(render(&report()), expected);
}

#[test]
fn the_services_end_is_told_in_words() {
    let line = |state, exit_code, error: Option<&str>| {
        let mut report = report();
        report.service = ServiceReport {
            state,
            exit_code,
            error: error.map(str::to_owned),
            silent_seconds: Some(90.0),
            ..report.service
        };
        report.phase = None;
        let text = render(&report);
        text.split_once("\nserver ").unwrap().0.split_once('\n').unwrap().1.to_owned()
    };
    assert_eq!(
        line("dead", None, None),
        "service     not running; killed or crashed, last seen 1m 30s ago, in REINDEX: loading blocks"
    );
    assert_eq!(
        line("stopped", Some(130), None),
        "service     not running; stopped by a signal 1m 30s ago, in REINDEX: loading blocks"
    );
    assert_eq!(
        line("failed", Some(4), Some("loading failed; because: no space left")),
        "service     not running; failed 1m 30s ago with exit code 4, in REINDEX: loading blocks\n            \
         loading failed; because: no space left"
    );
    assert_eq!(
        line("running", None, None),
        "service     running, process 4711, for 5h 2m; its last word came 1m 30s ago"
    );
}

fn state(phase: &str) -> State {
    let load = LoadFigures {
        height_first: 0,
        height_last: 999,
        height: Some(400),
        height_committed: Some(299),
        counted: Counted { blocks: 401, txs: 1_000_000, inputs: 0, outputs: 0, bytes: 500 },
        bytes_committed: 250,
        bytes_total: 1_250,
        seconds: 10.0,
        blocks_per_second: 40.0,
        txs_per_second: 1e5,
        rows_per_second: 1e5,
        bytes_per_second: 50.0,
        eta_seconds: Some(15.0),
    };
    State {
        format: 1,
        satgres_version: "0.1.0".to_owned(),
        network: "main".to_owned(),
        process: process::Identity::own(),
        started_at: 100.0,
        written_at: 200.0,
        phase: phase.to_owned(),
        step: "…".to_owned(),
        step_started_at: 150.0,
        ended: None,
        database: None,
        server_pid: None,
        files_tip: Some(FilesTip { height: 999, hash: "ff".to_owned() }),
        is_confirmed_by_node: false,
        height_attached: Some(199),
        segments_planned: Some(5),
        load: (phase == "REINDEX").then_some(load),
        live: None,
        utxo_cache: None,
        plans: vec![PlanFigures {
            phase: "restore".to_owned(),
            ram_bytes: 8,
            service_bytes: 2,
            server_bytes: 3,
            builds: 4,
        }],
    }
}

#[test]
fn the_time_left_is_that_of_loading_and_of_the_indexes_after_it() {
    let database = Database {
        builds: Some(Builds { cost_total: 2.0, cost_done: 1.0, ..Builds::default() }),
        segments: Some(database::Segments { loaded: 1, ..database::Segments::default() }),
        ..Database::default()
    };
    let told = Told::new(Some(state("REINDEX")), |_| Presence::Alive, 201.0);
    let eta_of = |told: &Told, database: &Database| {
        eta(told, told.running().and_then(|state| state.load.as_ref()), database)
    };
    // A million transactions in 500 bytes cost 1.1 core-seconds; 1,000 bytes are not committed yet: 2.2 to come, 0.55 of
    // them in the last of four segments. Two builds beside the load manage 30 seconds' worth: all but that one.
    let found = eta_of(&told, &database);
    assert_eq!(found.load_seconds, Some(15.0));
    let restore = found.restore_seconds.unwrap();
    assert!((restore - 0.1375).abs() < 1e-9, "{restore}");
    assert_eq!(found.total_seconds, Some(15.0 + restore));

    let told = Told::new(Some(state("RESTORE")), |_| Presence::Alive, 201.0);
    let found = eta_of(&told, &database);
    assert_eq!(found, Eta { load_seconds: None, restore_seconds: Some(0.25), total_seconds: Some(0.25) });
    // Nothing is promised while the database does not answer, nor by a service that does not run.
    assert_eq!(eta_of(&told, &Database::default()), Eta::default());
    let told = Told::new(Some(state("RESTORE")), |_| Presence::Gone, 201.0);
    assert_eq!(eta_of(&told, &database), Eta::default());
}

#[test]
fn a_silent_process_that_cannot_be_seen_does_not_count_as_running() {
    let at = |seconds| {
        let told = Told::new(Some(state("REINDEX")), |_| Presence::Unseen, 200.0 + seconds);
        (told.service.state, told.is_running)
    };
    assert_eq!((at(2.0), at(11.0)), (("unseen", true), ("unseen", false)));
}

#[test]
fn without_the_database_the_heights_are_what_the_service_knew_last() {
    let told = Told::new(Some(state("REINDEX")), |_| Presence::Gone, 201.0);
    let expected = Heights { files: Some(999), loading: None, loaded: Some(299), attached: Some(199) };
    assert_eq!(heights(&told, &Database::default()), expected);
    // An empty database is no silent one.
    let empty =
        Database { tip: Some(None), segments: Some(database::Segments::default()), ..Database::default() };
    let expected = Heights { files: Some(999), ..Heights::default() };
    assert_eq!(heights(&told, &empty), expected);
    let tip = tip(told.state.as_ref(), expected, &empty).unwrap();
    assert_eq!((tip.height, tip.source, tip.is_confirmed_by_node), (999, "files", false));
}

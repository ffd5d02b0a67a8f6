//! `satgres status` against real runs and real servers: true before the first second, while blocks are loaded, after a
//! kill, while the server is down, recovers or hangs, and for another user.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use satgres::chaingen::{self, Options};
use serde_json::Value;
use support::{Satgres, close, hold, is_root, open, release, signal, wait_until};

/// A chain of its own, and a data directory that is not there yet.
struct Ground {
    satgres: Satgres,
    chain: tempfile::TempDir,
}

impl Ground {
    fn new(blocks: u32, txs_per_block: u32) -> Ground {
        let chain = tempfile::tempdir().unwrap();
        let out = chain.path().join("blocks");
        chaingen::generate(&Options { blocks, txs_per_block, seed: 1, out }).unwrap();
        Ground { satgres: Satgres::new(), chain }
    }

    fn blocks_dir(&self) -> PathBuf {
        self.chain.path().join("blocks")
    }

    fn start_run(&self, options: &[&str]) -> Run {
        let blocks_dir = self.blocks_dir();
        let mut args = vec!["run", "--network", "regtest", "--blocks-dir", blocks_dir.to_str().unwrap()];
        args.extend(["--log", "error"]);
        args.extend(options);
        let mut child = self.satgres.start(&args);
        // Nobody reads what it says; it must not wait for a reader either.
        drop((child.stdout.take(), child.stderr.take()));
        Run(child)
    }
}

/// A running `satgres run`; it is killed with the test.
struct Run(Child);

impl Run {
    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The report as JSON; it must come within the time that is promised.
fn status(satgres: &Satgres) -> Value {
    let finished = satgres.command(&["status", "--json"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert_eq!(finished.stderr, "");
    assert!(finished.elapsed < Duration::from_secs(8), "it took {:?}", finished.elapsed);
    serde_json::from_str(&finished.stdout).unwrap()
}

fn text(satgres: &Satgres) -> String {
    let finished = satgres.command(&["status"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    finished.stdout
}

/// Polls until the report is as wanted.
fn status_when(satgres: &Satgres, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let report = status(satgres);
        if wanted(&report) {
            return report;
        }
        assert!(began.elapsed() < Duration::from_secs(90), "waited in vain until {what}: {report:#}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn word<'a>(report: &'a Value, pointer: &str) -> &'a str {
    report.pointer(pointer).and_then(Value::as_str).unwrap_or("null")
}

fn number(report: &Value, pointer: &str) -> Option<f64> {
    report.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {report:#}")).as_f64()
}

#[test]
fn a_run_is_told_from_before_its_first_second_to_its_end() {
    let ground = Ground::new(0, 0);
    let satgres = &ground.satgres;
    let nothing = status(satgres);
    assert_eq!((word(&nothing, "/service/state"), word(&nothing, "/server/state")), ("never", "absent"));
    assert!(
        text(satgres).contains("service     not running; nothing was loaded here yet: `satgres run` does\n")
    );
    assert!(!satgres.data_dir().exists(), "to look changes nothing");

    // From second 0: the process is held as soon as it has said its first word.
    let run = ground.start_run(&["--until-synced"]);
    wait_until("it says something", || satgres.data_dir().join("status.json").exists());
    signal(run.pid(), libc::SIGSTOP);
    let first = status(satgres);
    assert_eq!((word(&first, "/service/state"), word(&first, "/phase/name")), ("running", "START"));
    assert_eq!(number(&first, "/service/pid"), Some(f64::from(run.pid())));
    assert_eq!(word(&first, "/network"), "regtest");
    assert!(number(&first, "/memory/service_bytes").unwrap() > 1e6);
    signal(run.pid(), libc::SIGCONT);

    let genesis = status_when(satgres, "it ends", |report| word(report, "/service/state") == "finished");
    assert_eq!(
        (number(&genesis, "/tip/height"), number(&genesis, "/segments/planned")),
        (Some(0.0), Some(1.0))
    );

    a_load_and_a_restore_are_told(&ground);
    an_index_build_is_shown_while_it_runs(satgres);
    refused_blocks_and_reorgs_are_told(satgres);
}

/// Three segments above genesis: the load waits when the first cannot be recorded and the second is full, then the
/// restore before it attaches.
fn a_load_and_a_restore_are_told(ground: &Ground) {
    let satgres = &ground.satgres;
    let (jobs, blocks) = (hold(satgres, "ops.index_jobs"), hold(satgres, "chain.blocks"));
    fs::remove_dir_all(ground.blocks_dir()).unwrap();
    let out = ground.blocks_dir();
    chaingen::generate(&Options { blocks: 150, txs_per_block: 200, seed: 1, out }).unwrap();
    let options = ["--until-synced", "--segment-bytes", "2000000", "--utxo-cache", "1MiB"];
    // However few blocks there are, it is bulk that is looked at.
    let _run = ground.start_run(&[&options[..], &["--live-sync-threshold", "0"]].concat());

    let full = |report: &Value| {
        report.pointer("/heights/loading").and_then(Value::as_u64).is_some_and(|height| height > 0)
            && report.pointer("/load/rows_per_second").and_then(Value::as_f64).is_some_and(|rate| rate > 0.0)
    };
    let loading = status_when(satgres, "rows are loaded", full);
    assert_eq!((word(&loading, "/phase/name"), word(&loading, "/phase/step")), ("REINDEX", "loading blocks"));
    assert_eq!((word(&loading, "/server/state"), word(&loading, "/tip/source")), ("up", "database"));
    assert_eq!(number(&loading, "/heights/files"), Some(150.0));
    assert_eq!(
        (number(&loading, "/heights/loaded"), number(&loading, "/heights/attached")),
        (Some(0.0), Some(0.0))
    );
    let segments = serde_json::json!({"planned": 4, "loading": 1, "loaded": 1, "attached": 1});
    assert_eq!(loading["segments"], segments);
    assert!(number(&loading, "/load/done_bytes").unwrap() < number(&loading, "/load/total_bytes").unwrap());
    assert!(number(&loading, "/eta/load_seconds").unwrap() > 0.0, "{loading:#}");
    assert!(number(&loading, "/eta/restore_seconds").unwrap() > 0.0, "{loading:#}");
    assert!(number(&loading, "/utxo_cache/used_bytes").unwrap() <= f64::from(1 << 20));
    let shown = text(satgres);
    assert!(shown.contains("\nrates  ") && shown.contains(" to load, then about "), "{shown}");

    release(satgres, "ops.index_jobs", jobs);
    // The service's own word and the database's are not of the same instant.
    let restoring = status_when(satgres, "all rows are loaded", |report| {
        word(report, "/phase/name") == "RESTORE" && number(report, "/segments/loaded") == Some(4.0)
    });
    assert_eq!(word(&restoring, "/phase/step"), "creating indexes and constraints as needed");
    let segments = serde_json::json!({"planned": 4, "loading": 0, "loaded": 4, "attached": 1});
    assert_eq!(restoring["segments"], segments);
    assert_eq!(
        (number(&restoring, "/heights/loaded"), number(&restoring, "/heights/attached")),
        (Some(150.0), Some(0.0))
    );
    assert_eq!(number(&restoring, "/indexes/total"), Some(28.0));
    assert!(number(&restoring, "/eta/restore_seconds").is_some() && restoring["load"].is_null());

    release(satgres, "chain.blocks", blocks);
    let ended = status_when(satgres, "it ends", |report| word(report, "/service/state") == "finished");
    assert_eq!((number(&ended, "/service/exit_code"), ended["phase"].is_null()), (Some(0.0), true));
    let heights = serde_json::json!({"files": 150, "loading": null, "loaded": 150, "attached": 150});
    assert_eq!(ended["heights"], heights);
    let tip = satgres.value("select chain.hash_hex(hash) from chain.blocks where height = 150");
    assert_eq!((word(&ended, "/tip/hash"), word(&ended, "/tip/source")), (tip.as_str(), "database"));
    assert_eq!((&ended["tip"]["is_confirmed_by_node"], &ended["is_ready"]), (&false.into(), &true.into()));
    let segments = serde_json::json!({"planned": 4, "loading": 0, "loaded": 4, "attached": 4});
    assert_eq!(ended["segments"], segments);
    assert_eq!(ended["constraints"], serde_json::json!({"total": 8, "validated": 0, "failed": 0}));
    assert_eq!(
        (number(&ended, "/indexes/done"), number(&ended, "/indexes/done_ratio")),
        (Some(28.0), Some(1.0))
    );
    assert!(number(&ended, "/disk/database_bytes").unwrap() > 1e7);
    let shown = text(satgres);
    assert!(shown.contains(&format!("tip         150 {tip}; no node has confirmed the tip\n")), "{shown}");
    assert!(shown.contains("indexes     28 of 28 built\n") && shown.lines().count() <= 24, "{shown}");
}

/// An index that takes seconds, built by a statement like the service's own.
fn an_index_build_is_shown_while_it_runs(satgres: &Satgres) {
    let slow = "create table chain.slow_0009 as select generate_series(1, 100) as n;
        create function chain.slowly(n integer) returns integer language plpgsql immutable
            as $$ begin perform pg_sleep(0.1); return n; end $$;
        insert into ops.index_jobs (segment_id, object_name, table_name, kind, state, row_count)
            values (9, 'slow_0009_n_idx', 'slow_0009', 'index', 'running', 100)";
    assert!(satgres.command(&["psql", "--", "-qc", slow]).status.success());
    let build = "create index \"slow_0009_n_idx\" on chain.\"slow_0009\" (chain.slowly(n))";
    let mut builder = satgres.start(&["psql", "--", "-c", build]);
    let building = status_when(satgres, "it is built", |report| {
        report["indexes"]["running"].as_array().is_some_and(|running| !running.is_empty())
    });
    assert_eq!(word(&building, "/indexes/running/0/name"), "slow_0009_n_idx");
    assert_eq!(
        (number(&building, "/indexes/total"), number(&building, "/indexes/done")),
        (Some(29.0), Some(28.0))
    );
    let shown = text(satgres);
    assert!(
        shown.contains(" slow_0009_n_idx, ") && shown.contains("indexes     28 of 29 built, "),
        "{shown}"
    );
    builder.kill().unwrap();
    builder.wait().unwrap();
    let clear = "select pg_cancel_backend(pid) from pg_stat_activity where query like 'create index%';
        delete from ops.index_jobs where segment_id = 9";
    assert!(satgres.command(&["psql", "--", "-qc", clear]).status.success());
}

fn refused_blocks_and_reorgs_are_told(satgres: &Satgres) {
    let rows = "insert into ops.invalid_blocks (hash, height, reason, file, file_offset) values
            (decode(repeat('02', 32), 'hex'), 140, 'second', 'blk00001.dat', 8),
            (decode('01' || repeat('00', 30) || 'ff', 'hex'), 139, 'coinbase pays 1 satoshi too much', 'blk00000.dat', 4711);
        insert into ops.reorgs (at, fork_height, depth, old_tip, new_tip, seconds) values
            (now() - interval '2 hours', 138, 3, decode(repeat('aa', 32), 'hex'), decode(repeat('bb', 32), 'hex'), 0.5)";
    assert!(satgres.command(&["psql", "--", "-qc", rows]).status.success());
    let report = status(satgres);
    let first = serde_json::json!({
        "height": 139, "hash": format!("ff{}01", "00".repeat(30)), "reason": "coinbase pays 1 satoshi too much",
        "file": "blk00000.dat", "file_offset_bytes": 4711,
    });
    assert_eq!(report["invalid_blocks"], serde_json::json!({"count": 2, "first": first}));
    assert_eq!(
        (number(&report, "/last_reorg/fork_height"), number(&report, "/last_reorg/depth_blocks")),
        (Some(138.0), Some(3.0))
    );
    let shown = text(satgres);
    let refused = "refused     2 blocks, the lowest at height 139 (…0000000000000001): coinbase pays 1 satoshi too much\n";
    assert!(shown.contains(refused), "{shown}");
    assert!(shown.contains("last reorg  2h 0m ago: 3 blocks above height 138 replaced\n"), "{shown}");
}

#[test]
fn a_killed_stopped_or_failed_service_is_told_from_a_running_one() {
    let ground = Ground::new(20, 5);
    let satgres = &ground.satgres;
    let mut run = ground.start_run(&[]);
    let live = status_when(satgres, "it is LIVE", |report| word(report, "/phase/name") == "LIVE");
    assert_eq!((word(&live, "/service/state"), word(&live, "/memory/plan_phase")), ("running", "live"));

    // A second one that may not run leaves the first one's word alone.
    let blocks_dir = ground.blocks_dir();
    let second = satgres.run_expect_failure("regtest", &blocks_dir, &[]);
    assert!(second.contains("is at work on"), "{second}");
    let report = status(satgres);
    assert_eq!(number(&report, "/service/pid"), Some(f64::from(run.pid())));
    assert_eq!(word(&report, "/service/state"), "running");

    signal(run.pid(), libc::SIGKILL);
    // Not even reaped yet: a dead process all the same.
    let dead = status_when(satgres, "it is dead", |report| word(report, "/service/state") != "running");
    assert_eq!((word(&dead, "/service/state"), word(&dead, "/service/last_phase")), ("dead", "LIVE"));
    assert!(
        dead["phase"].is_null()
            && dead["service"]["pid"].is_null()
            && dead["memory"]["service_bytes"].is_null()
    );
    assert_eq!((word(&dead, "/server/state"), number(&dead, "/heights/attached")), ("up", Some(20.0)));
    run.0.wait().unwrap();
    let shown = text(satgres);
    assert!(shown.contains("service     not running; killed or crashed, last seen "), "{shown}");

    // Another process with the dead one's number does not deceive.
    let file = satgres.data_dir().join("status.json");
    let told = fs::read_to_string(&file).unwrap();
    let pid = format!("\"pid\": {}", run.pid());
    assert!(told.contains(&pid), "{told}");
    fs::write(&file, told.replace(&pid, &format!("\"pid\": {}", std::process::id()))).unwrap();
    assert_eq!(word(&status(satgres), "/service/state"), "dead");

    let mut run = ground.start_run(&[]);
    status_when(satgres, "it is LIVE again", |report| word(report, "/phase/name") == "LIVE");
    signal(run.pid(), libc::SIGTERM);
    run.0.wait().unwrap();
    let stopped = status(satgres);
    assert_eq!(
        (word(&stopped, "/service/state"), word(&stopped, "/service/last_phase")),
        ("stopped", "LIVE")
    );
    assert!(text(satgres).contains("service     not running; stopped by a signal "));

    let failure = satgres.run_expect_failure("main", &blocks_dir, &[]);
    let failed = status(satgres);
    assert_eq!(word(&failed, "/service/state"), "failed");
    assert_eq!(number(&failed, "/service/exit_code"), Some(3.0), "{failure}");
    assert!(word(&failed, "/service/error").contains("main"), "{failed:#}");
    assert!(failed["tip"]["height"] == 20 && failed["network"] == "regtest", "{failed:#}");

    // Without the server: what the service knew last.
    ground.start_run(&["--until-synced"]).0.wait().unwrap();
    assert!(satgres.command(&["pg", "stop"]).status.success());
    let down = status(satgres);
    assert_eq!((word(&down, "/server/state"), word(&down, "/service/state")), ("down", "finished"));
    assert_eq!(
        down["heights"],
        serde_json::json!({"files": 20, "loading": null, "loaded": 20, "attached": 20})
    );
    assert_eq!((&down["is_ready"], &down["invalid_blocks"]), (&false.into(), &Value::Null));
    assert!(number(&down, "/disk/cluster_bytes").unwrap() > 1e6);
    assert!(!satgres.data_dir().join("pg/postmaster.pid").exists(), "to look starts nothing");
}

#[test]
fn a_server_that_recovers_or_hangs_is_told_in_bounded_time() {
    let satgres = &Satgres::new();
    assert!(satgres.command(&["pg", "start"]).status.success());
    let report = status(satgres);
    assert_eq!((word(&report, "/service/state"), word(&report, "/server/state")), ("never", "up"));
    assert!(report["segments"]["loaded"].is_null() && report["tip"].is_null(), "{report:#}");
    let pid = number(&report, "/server/pid").unwrap() as i32;
    assert!(number(&report, "/memory/server_processes").unwrap() >= 5.0);

    signal(pid, libc::SIGSTOP);
    let began = Instant::now();
    let silent = status(satgres);
    let took = began.elapsed();
    signal(pid, libc::SIGCONT);
    assert_eq!(word(&silent, "/server/state"), "silent");
    assert!(took < Duration::from_secs(4), "{took:?}");

    // A backend dies; the server waits seconds for a process that cannot hear it, and then recovers.
    let process = |kind: &str| -> i32 {
        let sql = format!(
            "select pid from pg_stat_activity where backend_type = '{kind}' and pid <> pg_backend_pid()"
        );
        satgres.psql(&sql)[0][0].parse().unwrap()
    };
    let mut session = satgres.start(&["psql", "--", "-c", "select pg_sleep(60)"]);
    let count = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)'";
    wait_until("the session is there", || satgres.value(count) == "1");
    let (writer, backend) = (process("background writer"), process("client backend"));
    signal(writer, libc::SIGSTOP);
    signal(backend, libc::SIGKILL);
    // At first the server only cuts connections.
    let recovering =
        status_when(satgres, "it recovers", |report| word(report, "/server/state") == "recovering");
    assert!(word(&recovering, "/server/message").contains("recovery"), "{recovering:#}");
    session.wait().unwrap();
    status_when(satgres, "it is up again", |report| word(report, "/server/state") == "up");
}

#[test]
fn another_user_is_told_what_that_user_may_see() {
    if !is_root() {
        eprintln!("SKIPPED: only root can be another user");
        return;
    }
    let ground = Ground::new(5, 1);
    ground.satgres.run("regtest", &ground.blocks_dir(), &[]);
    // The program lies where others may not look.
    let program = ground.satgres.data_dir().with_file_name("satgres");
    fs::copy(env!("CARGO_BIN_EXE_satgres"), &program).unwrap();
    let look = || {
        let mut command = Command::new(&program);
        command.args(["status", "--json", "--data-dir"]).arg(ground.satgres.data_dir());
        command.current_dir("/").env_clear().env("HOME", "/").stdin(Stdio::null()).uid(65_534).gid(65_534);
        command.output().unwrap()
    };
    close(&ground.satgres.data_dir());
    let refused = look();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.starts_with("error: cannot look into ") && said.contains("Permission denied"), "{said}");

    open(&ground.satgres.data_dir());
    let told = look();
    assert_eq!(told.status.code(), Some(0), "{}", String::from_utf8_lossy(&told.stderr));
    let report: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((word(&report, "/service/state"), word(&report, "/server/state")), ("finished", "unknown"));
    assert_eq!(number(&report, "/heights/attached"), Some(5.0));
    assert!(word(&report, "/notes/0").contains("cannot look into"), "{report:#}");
}

#[test]
fn from_another_container_neither_service_nor_server_is_told_to_be_down() {
    if !is_root() {
        eprintln!("SKIPPED: only root can make a container");
        return;
    }
    let ground = Ground::new(5, 1);
    let _run = ground.start_run(&[]);
    status_when(&ground.satgres, "it is LIVE", |report| word(report, "/phase/name") == "LIVE");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_satgres"), "status", "--json"]);
    let output = command.arg("--data-dir").arg(ground.satgres.data_dir()).output().unwrap();
    if !output.status.success() {
        eprintln!("SKIPPED: no container can be made: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((word(&report, "/service/state"), word(&report, "/server/state")), ("unseen", "up"));
    assert_eq!((word(&report, "/phase/name"), number(&report, "/heights/attached")), ("LIVE", Some(5.0)));
}

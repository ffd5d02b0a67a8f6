//! Kills, signals, and a server that goes away, at chosen places: the same command goes on, or the same process does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Child;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use satgres::chaingen::{Options, generate};
use satgres::pg::cluster::{self, Cluster};
use satgres::pg::conf;
use satgres::pg::run_lock::RunLock;
use support::{Running, Satgres, is_postgres, signal, wait_until};
use tempfile::TempDir;

/// Six segments or so, a few seconds of work.
const SEGMENT: [&str; 2] = ["--segment-bytes", "400KiB"];

/// A generated chain, and the digest of it from an uninterrupted run.
static CHAIN: LazyLock<(TempDir, Vec<String>)> = LazyLock::new(|| {
    let dir = TempDir::new().unwrap();
    let options = Options { blocks: 300, txs_per_block: 40, seed: 23, out: dir.path().to_owned() };
    let mix = generate(&options).unwrap();
    assert!(mix.transactions > 5_000, "{mix}");
    let satgres = Satgres::new();
    satgres.run("regtest", dir.path(), &SEGMENT);
    let digest = satgres.digest();
    (dir, digest)
});

fn blocks_dir() -> &'static Path {
    CHAIN.0.path()
}

/// The database is what an uninterrupted run makes, and nobody works on it any more.
fn assert_whole(satgres: &Satgres) {
    assert_eq!(satgres.digest(), CHAIN.1);
    satgres.verify();
    assert_eq!(satgres.psql("select indexrelid::regclass from pg_index where not indisvalid"), [[""; 0]; 0]);
    assert_no_backends(satgres);
    let gaps = "select count(*) from (select height_first, lag(height_last) over (order by height_first) as before \
         from ops.segments) s where height_first <> before + 1";
    assert_eq!(satgres.value(gaps), "0");
}

fn assert_no_backends(satgres: &Satgres) {
    wait_until("the backends of the run have ended", || run_backends(satgres, "").is_empty());
}

/// Process ids of the run's backends whose name goes on like this.
fn run_backends(satgres: &Satgres, name: &str) -> Vec<i32> {
    let sql = format!(
        "select pid from pg_stat_activity where application_name like 'satgres run%{name}%' and backend_type = 'client backend'"
    );
    satgres.psql(&sql).iter().map(|row| row[0].parse().unwrap()).collect()
}

/// A session that does something until it is killed.
fn session(satgres: &Satgres, sql: &str) -> Session {
    let child = satgres.start(&["psql", "--", "-X", "-q", "-c", sql]);
    Session(child)
}

struct Session(Child);

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Process id of a backend that runs a query that contains this.
fn backend_of(satgres: &Satgres, query: &str) -> i32 {
    let sql = format!(
        "select pid from pg_stat_activity where query like '%{query}%' and pid <> pg_backend_pid() and state = 'active'"
    );
    let mut pid = 0;
    wait_until("the session is there", || {
        pid = satgres.psql(&sql).first().map_or(0, |row| row[0].parse().unwrap());
        pid != 0
    });
    pid
}

/// Makes every index build of a run do something first.
fn on_build(satgres: &Satgres, what: &str) {
    let started = satgres.command(&["pg", "start"]);
    assert!(started.status.success(), "{}", started.stderr);
    satgres.psql(&format!(
        "create function public.on_build() returns event_trigger language plpgsql as $$ begin \
           if current_setting('application_name') = 'satgres run build' then {what}; end if; end $$"
    ));
    satgres.psql(
        "create event trigger on_build on ddl_command_start when tag in ('CREATE INDEX') execute function public.on_build()",
    );
}

fn let_build(satgres: &Satgres) {
    satgres.psql("drop event trigger on_build");
}

/// Holds every load up before it creates tables whose names contain this, until [`go_on`] or a crash of the server.
fn stall(satgres: &Satgres, tables: &str) -> Session {
    let started = satgres.command(&["pg", "start"]);
    assert!(started.status.success(), "{}", started.stderr);
    satgres.psql(&format!(
        "create or replace function public.on_copy() returns event_trigger language plpgsql as $$ begin \
           if current_setting('application_name') like 'satgres run copy %' then \
             if strpos(current_query(), '{tables}') > 0 then \
               perform pg_advisory_lock_shared(42); \
             end if; \
           end if; \
         end $$"
    ));
    satgres.psql(
        "create event trigger on_copy on ddl_command_start when tag in ('CREATE TABLE') execute function public.on_copy()",
    );
    let session = session(satgres, "select pg_advisory_lock(42), pg_sleep(1000)");
    wait_until("the load will stall", || satgres.value(STALLING) == "1");
    session
}

const STALLING: &str = "select count(pid) from pg_locks where locktype = 'advisory' and objid = 42 and granted \
     and mode = 'ExclusiveLock'";

/// Waits until a load is held up; returns the process id of the backend that waits.
fn stalled(satgres: &Satgres) -> i32 {
    let waiting = "select pid from pg_locks where locktype = 'advisory' and objid = 42 and not granted";
    let mut pid = 0;
    wait_until("the load has stalled", || {
        pid = satgres.psql(waiting).first().map_or(0, |row| row[0].parse().unwrap());
        pid != 0
    });
    pid
}

/// Lets the load go on.
fn go_on(satgres: &Satgres) {
    satgres.value(&STALLING.replace("count(pid)", "count(pg_terminate_backend(pid))"));
}

#[test]
fn a_run_right_after_a_killed_backend_waits_for_the_recovery() {
    let satgres = Satgres::new();
    let mut run = Running::run(&satgres, blocks_dir(), &SEGMENT);
    run.wait_for("PROFILE: Loaded segment ", 2);
    let _victim = session(&satgres, "select pg_sleep(1000)");
    let pid = backend_of(&satgres, "pg_sleep");
    run.kill();
    signal(pid, libc::SIGKILL);
    let output = satgres.run("regtest", blocks_dir(), &SEGMENT).output();
    assert!(!output.contains("it is rebuilt from the database"), "{output}");
    assert_whole(&satgres);
}

#[test]
fn other_commands_wait_for_the_recovery_too() {
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir(), &SEGMENT);
    for command in
        [&["verify", "--digest"][..], &["psql", "--", "-c", "select 1"], &["url"], &["pg", "start"]]
    {
        let _victim = session(&satgres, "select pg_sleep(1000)");
        signal(backend_of(&satgres, "pg_sleep"), libc::SIGKILL);
        let finished = satgres.command(command);
        assert!(finished.status.success(), "{command:?}: {}", finished.stderr);
    }
}

#[test]
fn one_process_survives_a_killed_backend_and_a_killed_postmaster() {
    let satgres = Satgres::new();
    let _stall = stall(&satgres, "_0002");
    let mut run = Running::run(&satgres, blocks_dir(), &["--segment-bytes", "150KiB"]);
    // The crash of the server ends the stall, too.
    signal(stalled(&satgres), libc::SIGKILL);
    run.wait_for("trying again", 1);
    let loaded = run.said().matches("PROFILE: Loaded segment ").count();
    run.wait_for("PROFILE: Loaded segment ", loaded + 1);
    signal(satgres.postmaster(), libc::SIGKILL);
    run.wait_for("trying again", 2);
    let (status, said) = run.wait();
    assert!(status.success(), "{said}");
    assert!(!said.contains("it is rebuilt from the database"), "{said}");
    for milestone in ["Entered REINDEX sync", "Entered LIVE sync"] {
        let line = format!("\nPROFILE: {milestone} from start state");
        assert_eq!(said.matches(&line).count(), 1, "{said}");
    }
    let unwritten = "select count(*) from ops.segments s where not exists \
         (select from ops.phases where phase = 'Loaded segment ' || s.segment_id)";
    assert_eq!(satgres.value(unwritten), "0");
    assert_whole(&satgres);
}

#[test]
fn a_stopped_server_is_started_again() {
    let satgres = Satgres::new();
    let mut run = Running::run(&satgres, blocks_dir(), &SEGMENT);
    run.wait_for("PROFILE: Loaded segment ", 1);
    let stopped = satgres.command(&["pg", "stop"]);
    assert!(stopped.status.success(), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("a `satgres run` is at work"), "{}", stopped.stderr);
    let (status, said) = run.wait();
    assert!(status.success(), "{said}");
    assert!(said.contains("trying again"), "{said}");
    assert_whole(&satgres);
}

#[test]
fn exhausted_connections_are_waited_for() {
    let satgres = Satgres::new();
    let started = satgres.command(&["pg", "start"]);
    assert!(started.status.success(), "{}", started.stderr);
    std::fs::write(satgres.data_dir().join("pg/user.conf"), "max_connections = 16\n").unwrap();
    assert!(satgres.command(&["pg", "stop"]).status.success());
    assert!(satgres.command(&["pg", "start"]).status.success());
    let sessions: Vec<Session> =
        (0..14).map(|number| session(&satgres, &format!("select pg_sleep({})", 1_000 + number))).collect();
    let busy =
        "select count(*) from pg_stat_activity where query like '%pg_sleep(1%' and pid <> pg_backend_pid()";
    wait_until("the sessions are there", || satgres.value(busy) == "14");
    let mut run = Running::run(&satgres, blocks_dir(), &SEGMENT);
    run.wait_for("has no connection left", 1);
    assert!(run.is_running());
    drop(sessions);
    let ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity where query like '%pg_sleep(1%' \
         and pid <> pg_backend_pid()";
    satgres.value(ended);
    let (status, said) = run.wait();
    assert!(status.success(), "{said}");
    assert_whole(&satgres);
}

#[test]
fn a_signal_closes_the_open_segment_at_its_last_whole_block() {
    let satgres = Satgres::new();
    // One segment. The pipeline is full, and holds a part of the chain only.
    let _stall = stall(&satgres, "_0000");
    let mut run =
        Running::run(&satgres, blocks_dir(), &["--batch-bytes", "10KiB", "--pipeline-bytes", "200KiB"]);
    stalled(&satgres);
    let signalled = Instant::now();
    run.signal(libc::SIGTERM);
    run.wait_for("closing the open segment", 1);
    go_on(&satgres);
    let (status, said) = run.wait();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(signalled.elapsed() < Duration::from_secs(60), "{said}");
    assert!(said.contains("closing the open segment"), "{said}");
    assert_no_backends(&satgres);
    let closed = satgres.psql("select segment_id, height_first, height_last, state from ops.segments");
    assert_eq!(closed.len(), 1, "{closed:?}");
    let height_last: u32 = closed[0][2].parse().unwrap();
    assert_eq!((closed[0][1].as_str(), closed[0][3].as_str()), ("0", "loaded"));
    assert!(height_last < 300, "{height_last}");

    let output = satgres.run("regtest", blocks_dir(), &[]).output();
    assert!(!output.contains("dropped segments"), "{output}");
    assert!(output.contains("resumes warm"), "{output}");
    let segments = satgres.psql("select height_first, height_last from ops.segments order by 1");
    assert_eq!(
        segments,
        [["0".to_owned(), height_last.to_string()], [(height_last + 1).to_string(), "300".into()]]
    );
    assert_whole(&satgres);
}

#[test]
fn a_second_signal_ends_at_once() {
    let satgres = Satgres::new();
    let _stall = stall(&satgres, "_0001");
    let mut run = Running::run(&satgres, blocks_dir(), &SEGMENT);
    stalled(&satgres);
    run.signal(libc::SIGINT);
    run.wait_for("a second one ends at once", 1);
    std::thread::sleep(Duration::from_secs(1));
    assert!(run.is_running(), "{}", run.said());
    run.signal(libc::SIGTERM);
    let signalled = Instant::now();
    let (status, said) = run.wait();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(signalled.elapsed() < Duration::from_secs(5), "{said}");
    go_on(&satgres);
    satgres.run("regtest", blocks_dir(), &SEGMENT);
    assert_whole(&satgres);
}

#[test]
fn rows_of_the_next_segment_leave_nothing_behind_while_the_last_one_commits() {
    let satgres = Satgres::new();
    let _stall = stall(&satgres, "inputs_0000");
    let run = Running::run(&satgres, blocks_dir(), &SEGMENT);
    stalled(&satgres);
    // The outputs of segment 0 are in, and those of segment 1 on their way.
    backend_of(&satgres, "outputs_0001");
    let segments =
        "select segment_id, state, to_regclass('chain.outputs_0000') is not null from ops.segments";
    assert_eq!(satgres.psql(segments), [["0", "loading", "t"]]);
    run.kill();
    go_on(&satgres);
    assert_no_backends(&satgres);
    let tables =
        "select relname from pg_class where relnamespace = 'chain'::regnamespace and relname ~ '_[0-9]{4}$'";
    assert!(
        satgres.psql(tables).iter().all(|table| table[0].ends_with("_0000")),
        "{:?}",
        satgres.psql(tables)
    );
    satgres.psql("drop event trigger on_copy");
    satgres.run("regtest", blocks_dir(), &SEGMENT);
    assert_whole(&satgres);
}

#[test]
fn a_signal_cancels_the_index_builds() {
    let satgres = Satgres::new();
    on_build(&satgres, "perform pg_sleep(1000)");
    let mut run = Running::run(&satgres, blocks_dir(), &SEGMENT);
    run.wait_for("PROFILE: Entering LIVE sync, creating indexes", 1);
    wait_until("an index is being built", || !run_backends(&satgres, "build").is_empty());
    let signalled = Instant::now();
    run.signal(libc::SIGTERM);
    let (status, said) = run.wait();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(signalled.elapsed() < Duration::from_secs(60), "{said}");
    assert_eq!(run_backends(&satgres, ""), Vec::<i32>::new());
    let_build(&satgres);
    let output = satgres.run("regtest", blocks_dir(), &SEGMENT).output();
    assert!(!output.contains("PROFILE: Loaded segment "), "{output}");
    assert_whole(&satgres);
}

#[test]
fn what_a_killed_run_left_on_the_server_is_ended() {
    let satgres = Satgres::new();
    // The server itself would look only now and then.
    on_build(&satgres, "set client_connection_check_interval = 0; perform pg_sleep(1000)");
    let mut run = Running::run(&satgres, blocks_dir(), &SEGMENT);
    run.wait_for("PROFILE: Loaded segment ", 1);
    wait_until("an index is being built", || !run_backends(&satgres, "build").is_empty());
    let builds = run_backends(&satgres, "build");
    run.kill();
    let_build(&satgres);
    let output = satgres.run("regtest", blocks_dir(), &SEGMENT).output();
    assert!(output.contains("ending backends that have nobody to work for"), "{output}");
    assert!(builds.iter().all(|pid| !is_postgres(*pid)), "{builds:?}");
    assert_whole(&satgres);
}

#[test]
fn a_failed_build_ends_the_load_at_once() {
    let satgres = Satgres::new();
    on_build(&satgres, "raise exception 'no index today' using errcode = 'P0001'");
    let output = satgres.run_expect_failure(
        "regtest",
        blocks_dir(),
        &["--segment-bytes", "50KiB", "--builds-while-loading", "1"],
    );
    assert!(output.contains("no index today"), "{output}");
    assert!(!output.contains("PROFILE: Entering LIVE sync"), "{output}");
    let_build(&satgres);
    satgres.run("regtest", blocks_dir(), &SEGMENT);
    assert_whole(&satgres);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_is_told_who_holds_the_database() {
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir(), &SEGMENT);
    let options = cluster::Options {
        data_dir: satgres.data_dir(),
        pg_bin: None,
        settings: conf::replay(2),
        reconfigure: false,
    };
    let cluster = Cluster::start(options).await.unwrap();
    let held = RunLock::take(&cluster.pg_config().into()).await.unwrap();
    let blocks_dir = blocks_dir().to_str().unwrap().to_owned();
    let args = ["run", "--network", "regtest", "--blocks-dir", &blocks_dir, "--until-synced"];
    let finished = satgres.command(&args);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let said = format!("satgres run, process {} (", std::process::id());
    for text in ["another `satgres run` is at work on this database: ", &said, ", backend ", ", since 20"] {
        assert!(finished.stderr.contains(text), "{text}\n{}", finished.stderr);
    }
    drop(held);
    let finished = satgres.command(&args);
    assert!(finished.status.success(), "{}", finished.stderr);
}

#[test]
fn a_second_run_on_a_data_directory_is_told_the_process() {
    let satgres = Satgres::new();
    let blocks = blocks_dir().to_str().unwrap();
    let args = ["run", "--network", "regtest", "--blocks-dir", blocks];
    let mut run = Running::start(&satgres, &args);
    run.wait_for("PROFILE: Entered LIVE sync from start state", 1);
    let finished = satgres.command(&args);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains(&format!(": process {}, for ", run.pid())), "{}", finished.stderr);

    // Without its lock it does not go on: it takes it again.
    let holder = "select pid from pg_locks where locktype = 'advisory' and granted";
    let before = satgres.value(holder);
    satgres.value(&format!("select pg_terminate_backend({before})"));
    run.wait_for("trying again", 1);
    wait_until("the lock is held again", || satgres.psql(holder).first().is_some_and(|row| row[0] != before));
    // A signal before all is queryable again would interrupt it: exit code 130.
    run.wait_for("following the tip", 2);
    run.signal(libc::SIGTERM);
    let (status, said) = run.wait();
    assert!(status.success(), "{said}");
    assert_whole(&satgres);
}

#[test]
fn a_stop_during_recovery_ends() {
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir(), &SEGMENT);
    for _ in 0..4 {
        let _victim = session(&satgres, "select pg_sleep(1000)");
        let (pid, server) = (backend_of(&satgres, "pg_sleep"), satgres.postmaster());
        signal(pid, libc::SIGKILL);
        let stopped = satgres.command(&["pg", "stop"]);
        assert!(stopped.status.success(), "{}", stopped.stderr);
        assert!(!is_postgres(server));
    }
    assert_whole(&satgres);
}

/// A small file system for a data directory, of which the server has ended before it goes.
struct Mount<'a>(&'a Satgres);

impl Mount<'_> {
    fn of<'a>(satgres: &'a Satgres, size: &str) -> Option<Mount<'a>> {
        std::fs::create_dir(satgres.data_dir()).unwrap();
        let mounted =
            mount(&["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "satgres-test"], satgres);
        mounted.then_some(Mount(satgres))
    }
}

fn mount(args: &[&str], satgres: &Satgres) -> bool {
    let status = std::process::Command::new("mount").args(args).arg(satgres.data_dir()).status();
    status.is_ok_and(|status| status.success())
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        self.0.command(&["pg", "stop"]);
        let _ = std::process::Command::new("umount").arg(self.0.data_dir()).status();
    }
}

#[test]
fn a_full_disk_is_waited_for_and_named() {
    let satgres = Satgres::new();
    let Some(_mount) = Mount::of(&satgres, "110m") else {
        eprintln!("SKIPPED: a file system of a test's own needs root");
        return;
    };
    let chain = TempDir::new().unwrap();
    let options = Options { blocks: 600, txs_per_block: 80, seed: 31, out: chain.path().to_owned() };
    generate(&options).unwrap();
    let mut run = Running::run(&satgres, chain.path(), &["--segment-bytes", "4MiB", "--disk-check", "off"]);
    run.wait_for("the disk is full: make room. Now ", 2);
    let at = format!(" are free on the file system at {}, which holds ", satgres.data_dir().display());
    assert!(run.said().contains(&at), "{}", run.said());
    assert!(run.is_running());
    assert!(mount(&["-o", "remount,size=2g"], &satgres));
    let (status, said) = run.wait();
    assert!(status.success(), "{said}");
    satgres.verify();
    let digest = satgres.digest();
    let other = Satgres::new();
    other.run("regtest", chain.path(), &[]);
    assert_eq!(digest, other.digest());
}

//! `satgres status` where the database is the user's own: true while that server serves, refuses, hangs and is gone, and
//! silent about what only a private server has.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use satgres::{
    chaingen::{self, Options},
    pg::target::{Target, conninfo::Params},
};
use serde_json::{Value, json};
use support::{ExternalServer, Running, Satgres, signal};
use tokio_postgres::error::SqlState;

/// A server with a role that may create schemas and has a password, and hostile defaults.
fn server() -> ExternalServer {
    let conf = "wal_level = replica\nlog_connections = on";
    let server = ExternalServer::start(conf, "host all all localhost scram-sha-256");
    server.sql(
        "postgres",
        "create role alice login password 'wonder land'
;\ncreate database chain template template0 encoding 'UTF8'
;\ngrant create on database chain to alice
;\nalter role alice set statement_timeout = '150ms'
;\nalter role alice set default_transaction_isolation = 'serializable'
;\nalter role alice set search_path = ''",
    );
    server
}

fn postmaster(server: &ExternalServer) -> i32 {
    let text = fs::read_to_string(server.data().join("postmaster.pid")).unwrap();
    text.lines().next().unwrap().trim().parse().unwrap()
}

/// The report; it must come within the time that is promised, with nothing beside it.
fn status(satgres: &Satgres, more: &[&str]) -> Value {
    let finished = satgres.command(&[&["status", "--json"], more].concat());
    assert_eq!((finished.status.code(), finished.stderr.as_str()), (Some(0), ""));
    assert!(finished.elapsed < Duration::from_secs(8), "it took {:?}", finished.elapsed);
    serde_json::from_str(&finished.stdout).unwrap()
}

fn text(satgres: &Satgres) -> String {
    let finished = satgres.command(&["status"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    finished.stdout
}

fn word<'a>(report: &'a Value, pointer: &str) -> &'a str {
    report.pointer(pointer).and_then(Value::as_str).unwrap_or("null")
}

/// What only a private server has is not told, whatever the state of the user's own.
fn assert_nothing_private(report: &Value) {
    for pointer in [
        "/server/pid",
        "/server/data_dir",
        "/disk/cluster_bytes",
        "/memory/server_bytes",
        "/memory/server_processes",
    ] {
        assert!(report.pointer(pointer).unwrap().is_null(), "{pointer} in {report:#}");
    }
}

fn start(satgres: &Satgres, blocks_dir: &Path) -> Running {
    let blocks_dir = blocks_dir.to_str().unwrap();
    Running::start(satgres, &["run", "--network", "regtest", "--blocks-dir", blocks_dir])
}

#[test]
fn the_users_own_database_is_told_of_while_it_serves_hangs_and_is_gone() {
    let server = server();
    let chain = tempfile::tempdir().unwrap();
    let blocks_dir = chain.path().join("blocks");
    chaingen::generate(&Options { blocks: 20, txs_per_block: 3, seed: 1, out: blocks_dir.clone() }).unwrap();
    let url = server.url("alice", "chain");
    let satgres = Satgres::new().with("SATGRES_DATABASE_URL", &url).with("PGPASSWORD", "wonder land");
    let name = format!("\"chain\" at localhost:{}", server.port);

    let nothing = status(&satgres, &[]);
    assert_eq!((word(&nothing, "/service/state"), word(&nothing, "/server/state")), ("never", "up"));
    assert_eq!(word(&nothing, "/server/database"), name);
    assert!(nothing["segments"]["loaded"].is_null() && nothing["tip"].is_null(), "{nothing:#}");
    assert!(nothing["disk"]["database_bytes"].as_u64().unwrap() > 1_000_000, "{nothing:#}");
    assert_nothing_private(&nothing);
    assert!(!satgres.data_dir().exists(), "to look changes nothing");

    let mut run = start(&satgres, &blocks_dir);
    run.wait_for("following the tip", 1);
    let live = status(&satgres, &["--check"]);
    assert_eq!((word(&live, "/phase/name"), word(&live, "/network")), ("LIVE", "regtest"));
    assert_eq!(live["heights"], json!({"files": 20, "loading": null, "loaded": 20, "attached": 20}));
    assert_eq!((&live["is_ready"], &live["notes"]), (&json!(true), &json!([])));
    assert_eq!(live["indexes"]["done"], live["indexes"]["total"]);
    assert!(live["server"]["started_timestamp_seconds"].as_f64().unwrap() > 1e9, "{live:#}");
    assert!(live["memory"]["service_bytes"].as_u64().unwrap() > 1_000_000, "{live:#}");
    assert_nothing_private(&live);
    let shown = text(&satgres);
    assert!(
        shown.contains("\nserver      PostgreSQL ")
            && shown.contains(&format!("is up, database {name}, for ")),
        "{shown}"
    );
    assert!(!shown.contains("wonder land") && !live.to_string().contains("wonder land"), "{shown}");

    // Whoever forgets the option is not told that there is no server and nothing else.
    let forgot = status(&satgres, &["--database-url", "none"]);
    assert_eq!((word(&forgot, "/server/state"), &forgot["server"]["database"]), ("absent", &Value::Null));
    let note = format!(
        "the service here is one for database {name}, but the private PostgreSQL was looked at: see --database-url"
    );
    assert_eq!(forgot["notes"], json!([note]));

    // A role that is refused is no server that is down.
    let refused = Satgres::new().with("SATGRES_DATABASE_URL", &url).with("PGPASSWORD", "wrong");
    let refused = status(&refused, &[]);
    assert_eq!(word(&refused, "/server/state"), "refusing");
    assert_eq!(word(&refused, "/server/message"), "password authentication failed for user \"alice\"");

    let pid = postmaster(&server);
    signal(pid, libc::SIGSTOP);
    let began = Instant::now();
    let silent = status(&satgres, &[]);
    let took = began.elapsed();
    signal(pid, libc::SIGCONT);
    assert_eq!((word(&silent, "/server/state"), &silent["is_ready"]), ("silent", &json!(false)));
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(word(&silent, "/service/state"), "running");
    assert_nothing_private(&silent);

    let log = fs::read_to_string(server.home().join("log")).unwrap();
    assert!(
        log.contains("connection authorized: user=alice database=chain application_name=satgres status"),
        "{log}"
    );
    assert!(!log.contains("unexpected EOF"), "the server is told goodbye: {log}");

    // The server goes away, with all that it held.
    drop(server);
    run.wait_for("trying again in 0.5 s", 1);
    let down = status(&satgres, &["--check"]);
    assert_eq!((word(&down, "/server/state"), word(&down, "/server/database")), ("down", name.as_str()));
    assert_eq!(word(&down, "/service/state"), "running", "it waits for its server");
    assert_eq!(down["heights"], json!({"files": 20, "loading": null, "loaded": 20, "attached": 20}));
    assert_eq!((&down["is_ready"], &down["segments"]["loaded"]), (&json!(false), &Value::Null));
    assert_eq!((&down["tip"]["height"], &down["tip"]["hash"]), (&json!(20), &Value::Null));
    assert_nothing_private(&down);
    let shown = text(&satgres);
    assert!(shown.contains(&format!("\nserver      PostgreSQL is down, database {name} (")), "{shown}");
    assert!(shown.contains("Connection refused"), "{shown}");

    run.kill();
    let checked = satgres.command(&["status", "--check"]);
    assert_eq!(checked.status.code(), Some(1), "{}", checked.stdout);
    assert!(checked.stdout.contains("service     not running; killed or crashed"), "{}", checked.stdout);
    assert_eq!(
        checked.stderr,
        "error: no `satgres run` is at work here: service.state is dead, see docs/status.md\n"
    );
}

/// The run ended with exit code 4 when the user's own server took no connections for a moment.
#[test]
fn a_run_outlives_the_restart_of_the_users_own_server() {
    let mut server = server();
    let chain = tempfile::tempdir().unwrap();
    let out = chain.path().join("blocks");
    chaingen::generate(&Options { blocks: 5, txs_per_block: 1, seed: 1, out: out.clone() }).unwrap();
    let satgres = Satgres::new()
        .with("SATGRES_DATABASE_URL", server.url("alice", "chain"))
        .with("PGPASSWORD", "wonder land");
    let mut run = start(&satgres, &out);
    run.wait_for("following the tip", 1);
    server.stop();
    run.wait_for("trying again in 0.5 s", 1);
    let waiting = status(&satgres, &["--check"]);
    assert_eq!((word(&waiting, "/phase/name"), word(&waiting, "/server/state")), ("START", "down"));
    server.start_again();
    run.wait_for("following the tip", 2);
    let live = status(&satgres, &["--check"]);
    assert_eq!((word(&live, "/phase/name"), &live["is_ready"]), ("LIVE", &json!(true)));
    run.signal(libc::SIGTERM);
    let (ended, said) = run.wait();
    assert!(ended.success(), "{said}");
    assert_eq!(
        said.matches("PROFILE: Entered LIVE sync from start state").count(),
        2,
        "once, and its log line: {said}"
    );
}

#[test]
fn a_server_that_cannot_be_reached_and_a_url_that_cannot_be_used_are_told_apart() {
    let looked_at = |url: &str| Satgres::new().with("SATGRES_DATABASE_URL", url);
    // No route leads to the address of everybody.
    let unreachable = looked_at("postgresql://alice@255.255.255.255/chain");
    let report = status(&unreachable, &[]);
    assert_eq!(word(&report, "/server/state"), "unreachable", "{report:#}");
    assert!(
        text(&unreachable).contains(
            "server      PostgreSQL cannot be reached, database \"chain\" at 255.255.255.255:5432 ("
        )
    );
    // No socket, no server.
    let report = status(&looked_at("host=/nonexistent user=alice dbname=chain"), &[]);
    assert_eq!(
        (word(&report, "/server/state"), word(&report, "/server/database")),
        ("down", "\"chain\" at /nonexistent:5432")
    );
    let wrong = looked_at("host=localhost user=alice sslmode=perhaps").command(&["status", "--json"]);
    assert_eq!((wrong.status.code(), wrong.stdout.as_str()), (Some(2), ""));
    assert!(wrong.stderr.starts_with("error: the database URL cannot be used: "), "{}", wrong.stderr);
}

#[tokio::test]
async fn a_look_can_change_nothing_whatever_the_role_may() {
    let server = server();
    let url = format!("{}?password=wonder%20land", server.url("alice", "chain"));
    let target = Target::external(&Params::parse(&url, &|_| None).unwrap()).unwrap();
    let (client, _task) = target.clone().looking().connect().await.unwrap();
    let shown = |name: &'static str| {
        let client = &client;
        async move { client.query_one(&format!("show {name}"), &[]).await.unwrap().get::<_, String>(0) }
    };
    assert_eq!(shown("statement_timeout").await, "1500ms");
    assert_eq!(shown("lock_timeout").await, "500ms");
    assert_eq!(shown("transaction_isolation").await, "read committed");
    let refused = client.batch_execute("create schema mine").await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));
    // The same role can, where it does not only look.
    let (client, _task) = target.connect().await.unwrap();
    client.batch_execute("create schema mine").await.unwrap();
}

#[test]
fn a_run_that_only_just_began_says_which_database_it_is_for() {
    // Nothing listens there: it never gets further than waiting.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgresql://alice@127.0.0.1:{port}/chain");
    let chain = tempfile::tempdir().unwrap();
    let out = chain.path().join("blocks");
    chaingen::generate(&Options { blocks: 1, txs_per_block: 0, seed: 1, out: out.clone() }).unwrap();
    let satgres = Satgres::new().with("SATGRES_DATABASE_URL", &url);
    let mut run = start(&satgres, &out);
    run.wait_for("trying again", 1);
    let report = status(&satgres, &["--check"]);
    assert_eq!((word(&report, "/server/state"), &report["notes"]), ("down", &json!([])));
    assert_eq!((word(&report, "/phase/name"), word(&report, "/service/state")), ("START", "running"));
}

//! A throw-away PostgreSQL for tests: one server per test binary, or per run of nextest; one database per test.
//!
//! `database(name)` starts the server when it is first called, creates the database, and executes the migrations and
//! the SQL files of this repository in it. The server listens on a Unix socket in its own folder under /tmp. Its
//! guardian, a shell, waits for the end of the test process (of nextest, which has a process for each test), however
//! that comes, then stops the server and removes the folder. `PG_BIN` names the folder of the server's binaries where
//! the newest of those installed is not wanted.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, Config, NoTls};

/// Folder of the server: its socket, its log, and `data`. Started once, and ended with the process.
static SERVER: OnceLock<PathBuf> = OnceLock::new();

/// What the guardian does: start the server, wait while a process lives (that of another user too), remove everything.
const GUARDIAN: &str = r#"
"$1/postgres" -D "$2/data" -k "$2" -c listen_addresses= -c wal_level=minimal -c max_wal_senders=0 \
    -c shared_buffers=64MB >"$2/log" 2>&1 &
server=$!
while kill -0 "$3" 2>/dev/null || [ -d "/proc/$3" ]; do sleep 0.5; done
kill -QUIT $server
wait $server
rm -rf "$2"
"#;

/// Returns a connection to a new database, named after the test (a name used nowhere else), with all SQL of this repository executed in it.
pub(crate) async fn database(name: &str) -> Client {
    let dir = SERVER.get_or_init(start);
    let admin = connect(dir, "postgres").await;
    // A repeated test finds its database of the first time.
    admin.execute(&format!("drop database if exists {name} with (force)"), &[]).await.expect("drop database");
    admin.execute(&format!("create database {name}"), &[]).await.expect("create database");
    let client = connect(dir, name).await;
    install(&client).await;
    client
}

/// Executes the migrations in their order, then the functions, then the api schema, as the service does.
pub(crate) async fn install(client: &Client) {
    for file in sql_files() {
        let text = fs::read_to_string(&file).expect("read an SQL file");
        if let Err(error) = client.batch_execute(&text).await {
            panic!("{}: {}", file.display(), describe(&error));
        }
    }
}

/// Returns the server's message with its SQLSTATE, which the error's own text leaves out.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} {} {}", db.code().code(), db.message(), db.detail().unwrap_or_default()),
        None => error.to_string(),
    }
}

/// Returns the folder of the shared chain data; where it is absent, says that the test is skipped.
pub(crate) fn shared_data(what: &str) -> Option<PathBuf> {
    let root = std::env::var_os("SATGRES_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let data = root.join("data");
    if data.join("README.md").exists() {
        return Some(data);
    }
    eprintln!("SKIPPED: {what}: no chain data in {} (SATGRES_SHARED names another folder)", data.display());
    None
}

fn sql_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("migrations"))
        .expect("read migrations")
        .map(|entry| entry.expect("read migrations").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    files.sort();
    files.push(root.join("sql/functions.sql"));
    files.push(root.join("sql/api.sql"));
    files
}

/// Connects to a database; the connection's task ends with the client.
async fn connect(dir: &Path, database: &str) -> Client {
    let mut config = Config::new();
    config.host_path(dir).user("postgres").dbname(database);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match config.connect(NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                return client;
            }
            Err(error) if Instant::now() > deadline => {
                let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
                panic!("no connection: {}\n{log}", describe(&error));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Makes the cluster and starts it, as user postgres where the tests run as root; returns its folder.
#[expect(clippy::zombie_processes, reason = "the guardian outlives this process")]
fn start() -> PathBuf {
    let (dir, watched) = match std::env::var("NEXTEST_RUN_ID") {
        Ok(run) => {
            let dir = PathBuf::from(format!("/tmp/satgres-test-{run}"));
            if fs::create_dir(&dir).is_err() {
                return dir; // another test of this run starts it
            }
            (dir, std::os::unix::process::parent_id())
        }
        Err(_) => {
            let dir =
                tempfile::Builder::new().prefix("satgres-test-").tempdir_in("/tmp").expect("make a folder");
            (dir.keep(), std::process::id())
        }
    };
    let bin = server_binaries();
    let user = if fs::metadata(&dir).expect("the folder was just made").uid() == 0 {
        Some(postgres_user())
    } else {
        None
    };
    if let Some((uid, gid)) = user {
        chown(&dir, Some(uid), Some(gid)).expect("give the folder to user postgres");
    }
    let as_user = |program: &Path| {
        let mut command = Command::new(program);
        command.current_dir(&dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
        command
    };
    let initdb = as_user(&bin.join("initdb"))
        .args(["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D"])
        .arg(dir.join("data"))
        .status()
        .expect("run initdb");
    assert!(initdb.success(), "initdb failed: {initdb}");
    // A process group of its own, so that Ctrl-C does not end the guardian before it has cleaned up.
    as_user(Path::new("/bin/sh"))
        .args(["-c", GUARDIAN, "guardian"])
        .args([&bin, &dir])
        .arg(watched.to_string())
        .process_group(0)
        .spawn()
        .expect("start the server");
    dir
}

/// `$PG_BIN`, or else the newest of Debian's, or else what pg_config names.
fn server_binaries() -> PathBuf {
    if let Some(bin) = std::env::var_os("PG_BIN") {
        return PathBuf::from(bin);
    }
    let newest = (15..=18).rev().map(|major| PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")));
    if let Some(bin) = newest.into_iter().find(|bin| bin.join("initdb").exists()) {
        return bin;
    }
    let output =
        Command::new("pg_config").arg("--bindir").output().expect("PostgreSQL 15 or newer, or PG_BIN");
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// Numbers of user postgres, which root must become to start a server.
fn postgres_user() -> (u32, u32) {
    let passwd = fs::read_to_string("/etc/passwd").expect("read /etc/passwd");
    let line =
        passwd.lines().find(|line| line.starts_with("postgres:")).expect("as root, a user named postgres");
    let mut fields = line.split(':').skip(2).map(|field| field.parse().expect("a number"));
    (fields.next().expect("a uid"), fields.next().expect("a gid"))
}

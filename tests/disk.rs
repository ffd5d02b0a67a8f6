//! The disk: files that a crash of the server leaves behind, room that is told before a load, and a disk that becomes
//! full.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use satgres::chaingen::{Options, generate};
use satgres::pg::cluster::Cluster;
use satgres::pg::leaked;
use support::{DataDir, Satgres, is_postgres, is_root, signal, wait_until};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

async fn connect(cluster: &Cluster) -> Client {
    let (client, connection) = cluster.pg_config().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Names in the directory of the cluster's database that are a relation's, with their sizes.
async fn relation_files(dir: &DataDir, client: &Client) -> Vec<(String, u64)> {
    let sql = "select oid from pg_database where datname = current_database()";
    let oid: u32 = client.query_one(sql, &[]).await.unwrap().get(0);
    let entries = fs::read_dir(dir.pg_dir().join(format!("base/{oid}"))).unwrap();
    let files = entries.map(|entry| entry.unwrap()).filter_map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        let bytes = entry.metadata().unwrap().len();
        name.starts_with(|first: char| first.is_ascii_digit()).then_some((name, bytes))
    });
    files.collect()
}

const FILL: &str = "create table loaded as select i, repeat('x', 100) as filler from generate_series(1, 20000) i; \
     create index on loaded (i)";

/// Kills a server with all its backends, as a machine that loses its power does. Backends that outlive the postmaster
/// would tidy up.
fn kill_server(pid: i32) {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    for child in &children {
        signal(*child, libc::SIGSTOP);
    }
    signal(pid, libc::SIGKILL);
    for child in &children {
        signal(*child, libc::SIGKILL);
    }
    for pid in children.into_iter().chain([pid]) {
        wait_until("the server has ended", || !is_postgres(pid));
    }
}

#[tokio::test]
async fn what_a_killed_server_leaves_without_a_table_is_removed_and_nothing_else() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let client = connect(&cluster).await;
    client.batch_execute("create table kept as select generate_series(1, 1000) i").await.unwrap();
    client.batch_execute("create unlogged table kept_unlogged (i int primary key)").await.unwrap();
    assert_eq!(leaked::remove(&cluster, &client).await.unwrap(), []);
    let before = relation_files(&dir, &client).await.len();
    client.batch_execute(&format!("begin; {FILL}")).await.unwrap();
    kill_server(dir.pid().unwrap());
    // SQL tells the times of files in whole seconds: what is younger than one when the server starts is not reported yet.
    tokio::time::sleep(Duration::from_millis(2_100)).await;

    let cluster = Cluster::start(dir.options()).await.unwrap();
    let client = connect(&cluster).await;
    // What an open transaction makes now is not what the crash left; while one writes, nothing is touched at all.
    let other = connect(&cluster).await;
    other.batch_execute("begin; create table open_still as select generate_series(1, 5000) i").await.unwrap();
    assert_eq!(leaked::remove(&cluster, &client).await.unwrap(), []);
    other.batch_execute("commit").await.unwrap();
    other.batch_execute("create temporary table passing as select generate_series(1, 5000) i").await.unwrap();
    let reported = leaked::report(&client).await.unwrap();
    let removed = leaked::remove(&cluster, &client).await.unwrap();
    assert_eq!(reported, removed);
    assert!(removed.len() >= 2, "{removed:?}");
    let bytes: u64 = removed.iter().map(|file| file.bytes).sum();
    assert!(bytes > 20_000 * 100, "{bytes} bytes in {removed:?}");

    assert_eq!(leaked::remove(&cluster, &client).await.unwrap(), []);
    let after = relation_files(&dir, &client).await;
    let large: Vec<_> = after.iter().filter(|(_, bytes)| *bytes > 1_000_000).collect();
    assert!(large.is_empty(), "{large:?}");
    assert_eq!(after.len(), before + 1, "only `open_still` is new");
    for (table, rows) in [("kept", 1_000_i64), ("kept_unlogged", 0), ("open_still", 5_000)] {
        let sql = format!("select count(*) from {table}");
        assert_eq!(client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), rows, "{table}");
    }
    assert_eq!(other.query_one("select count(*) from passing", &[]).await.unwrap().get::<_, i64>(0), 5_000);
    client.batch_execute("vacuum full kept").await.unwrap();
    client.batch_execute("checkpoint").await.unwrap();
    assert_eq!(leaked::remove(&cluster, &client).await.unwrap(), []);
}

#[tokio::test]
async fn what_a_killed_backend_leaves_is_removed_though_the_postmaster_lives_on() {
    // The server's user gets to its files by a descriptor only.
    let dir = DataDir::below_a_closed_one();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let client = connect(&cluster).await;
    client.batch_execute(&format!("begin; {FILL}")).await.unwrap();
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    signal(pid, libc::SIGKILL);
    wait_until("the backend has ended", || !is_postgres(pid));
    let postmaster = dir.pid();
    // It recovers, and takes no connections meanwhile.
    while cluster.pg_config().connect(NoTls).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let cluster = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(dir.pid(), postmaster);
    let client = connect(&cluster).await;
    let removed = leaked::remove(&cluster, &client).await.unwrap();
    assert!(removed.iter().map(|file| file.bytes).sum::<u64>() > 20_000 * 100, "{removed:?}");
}

#[tokio::test]
async fn a_prepared_transaction_keeps_its_files() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    fs::write(dir.pg_dir().join("user.conf"), "max_prepared_transactions = 3\n").unwrap();
    kill_server(dir.pid().unwrap());
    drop(cluster);
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let client = connect(&cluster).await;
    client.batch_execute(&format!("begin; {FILL}; prepare transaction 'later'")).await.unwrap();
    client.batch_execute("begin; create table lost as select generate_series(1, 50000) i").await.unwrap();
    kill_server(dir.pid().unwrap());
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let client = connect(&cluster).await;
    assert_eq!(leaked::remove(&cluster, &client).await.unwrap(), []);
    client.batch_execute("commit prepared 'later'").await.unwrap();
    let removed = leaked::remove(&cluster, &client).await.unwrap();
    assert!(removed.iter().map(|file| file.bytes).sum::<u64>() > 1_000_000, "{removed:?}");
    let row = client.query_one("select count(*) from loaded where i > 0", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 20_000);
}

/// A generated chain of some ten thousand transactions, 5 MB.
fn chain() -> TempDir {
    let dir = TempDir::new().unwrap();
    generate(&Options { blocks: 320, txs_per_block: 40, seed: 5, out: dir.path().to_owned() }).unwrap();
    dir
}

/// Files of the database's directory that no table has, whatever their age, as SQL sees it.
const STRAYS: &str = "select name from pg_ls_dir('base/' || (select oid from pg_database \
     where datname = current_database())) name where name ~ '^[0-9]+(_|[.]|$)' \
     and split_part(split_part(name, '_', 1), '.', 1)::oid not in \
         (select pg_relation_filenode(oid) from pg_class where pg_relation_filenode(oid) is not null)";

fn tree_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => tree_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

#[test]
fn a_server_killed_in_mid_load_leaves_no_disk_leaked() {
    let chain = chain();
    let satgres = Satgres::new();
    satgres.run("regtest", chain.path(), &[]);
    let digest = satgres.digest();
    satgres.psql("checkpoint");
    assert_eq!(satgres.psql(STRAYS), Vec::<Vec<String>>::new());
    satgres.forget_chain();

    let base = satgres.data_dir().join("pg/base");
    let blocks_dir = chain.path().to_str().unwrap();
    let before = tree_bytes(&base);
    let mut run =
        satgres.start(&["run", "--network", "regtest", "--blocks-dir", blocks_dir, "--until-synced"]);
    // A new database has 8 MB.
    wait_until("rows are being loaded", || tree_bytes(&base) > before + (10 << 20));
    let server = satgres.postmaster();
    // Stopped, so that it neither ends its transactions nor starts the server again.
    signal(i32::try_from(run.id()).unwrap(), libc::SIGSTOP);
    kill_server(server);
    run.kill().unwrap();
    run.wait().unwrap();

    let finished = satgres.run("regtest", chain.path(), &[]);
    let output = finished.output();
    assert!(output.contains("that a crash of PostgreSQL had left without a table"), "{output}");
    assert_eq!(satgres.digest(), digest);
    satgres.psql("checkpoint");
    assert_eq!(satgres.psql(STRAYS), Vec::<Vec<String>>::new());
}

/// A file system of its own and of a limited size, in memory; root alone may have one.
struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    fn new(mib: u32, why: &str) -> Option<SmallDisk> {
        let permissions = fs::Permissions::from_mode(0o755);
        let dir = tempfile::Builder::new().permissions(permissions).tempdir().unwrap();
        let mounted = is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=755"), "tmpfs"])
                .arg(dir.path())
                .status()
                .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("SKIPPED: {why}: only root, outside of most containers, can mount a small file system");
            return None;
        }
        Some(SmallDisk { dir })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn grow(&self, mib: u32) {
        let size = format!("remount,size={mib}m");
        assert!(Command::new("mount").args(["-o", &size]).arg(self.path()).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        if !unmounted.as_ref().is_ok_and(|status| status.success()) {
            eprintln!("umount: {unmounted:?}");
        }
    }
}

/// Puts a data directory's part on another disk by a link.
fn link(satgres: &Satgres, disk: &SmallDisk, name: &str) -> PathBuf {
    fs::create_dir_all(satgres.data_dir()).unwrap();
    support::open(&satgres.data_dir());
    std::os::unix::fs::symlink(disk.path(), satgres.data_dir().join(name)).unwrap();
    satgres.data_dir().join(name)
}

#[test]
fn a_disk_without_room_is_told_before_anything_is_loaded() {
    let Some(disk) = SmallDisk::new(100, "room is told beforehand") else { return };
    let chain = chain();
    let satgres = Satgres::at(disk.path());
    let output = satgres.run_expect_failure("regtest", chain.path(), &[]);
    for words in ["free, but about", "--disk-check off", disk.path().to_str().unwrap(), "are needed"] {
        assert!(output.contains(words), "{words}\n{output}");
    }
    assert!(!output.contains("Entered REINDEX"), "{output}");
    let finished = satgres.try_run("regtest", chain.path(), &[]);
    assert_eq!(finished.status.code(), Some(1));
    disk.grow(600);
    satgres.run("regtest", chain.path(), &[]);
}

#[test]
fn a_disk_that_becomes_full_while_rows_are_loaded_stops_nothing_for_good() {
    let Some(disk) = SmallDisk::new(75, "a full disk") else { return };
    let chain = chain();
    let fresh = Satgres::new();
    fresh.run("regtest", chain.path(), &[]);
    let digest = fresh.digest();
    drop(fresh);

    let satgres = Satgres::at(disk.path());
    let args = ["run", "--network", "regtest", "--blocks-dir", chain.path().to_str().unwrap()];
    let mut run = satgres.start(&[&args[..], &["--until-synced", "--disk-check", "off"]].concat());
    let mut stderr = BufReader::new(run.stderr.take().unwrap());
    let mut output = String::new();
    while !output.contains("No space left on device") {
        assert!(stderr.read_line(&mut output).unwrap() > 0, "it ended without a word of the disk:\n{output}");
    }
    // It may wait for room, or have ended: the same command goes on in both cases.
    disk.grow(600);
    stderr.read_to_string(&mut output).unwrap();
    let first = run.wait().unwrap();
    assert!(matches!(first.code(), Some(0 | 4)), "{first}\n{output}");
    satgres.run("regtest", chain.path(), &["--disk-check", "off"]);
    assert_eq!(satgres.digest(), digest);
    satgres.psql("checkpoint");
    assert_eq!(satgres.psql(STRAYS), Vec::<Vec<String>>::new());
}

#[test]
fn full_disk_under_the_files_of_the_utxo_set_is_told_and_no_checkpoint_is_broken() {
    let Some(disk) = SmallDisk::new(1, "a full disk under the UTXO set") else { return };
    let chain = chain();
    let satgres = Satgres::new();
    let coins = link(&satgres, &disk, "coins");
    fs::write(disk.path().join("ballast"), vec![7; 900 << 10]).unwrap();
    let options = ["--segment-bytes", "500KiB", "--utxo-cache", "0", "--disk-check", "off"];
    let mut run = support::Running::run(&satgres, chain.path(), &options);
    run.wait_for("the disk is full: make room. Now ", 2);
    let output = run.said();
    for words in ["No space left on device", coins.to_str().unwrap(), "make room on the file system"] {
        assert!(output.contains(words), "{words}\n{output}");
    }
    assert!(run.is_running(), "{output}");
    disk.grow(50);
    let (status, output) = run.wait();
    assert!(status.success(), "{output}");
    satgres.verify();
    let digest = satgres.digest();
    satgres.forget_chain();
    satgres.run("regtest", chain.path(), &["--utxo-cache", "auto"]);
    assert_eq!(satgres.digest(), digest);
}

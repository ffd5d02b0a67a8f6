//! The private PostgreSQL against the real server: made, adopted, stopped, killed, interrupted, contended.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use satgres::pg::{
    cluster::{Cluster, Error, Options, ServiceLock},
    conf::Setting,
    pool,
    run_lock::RunLock,
};
use support::{DataDir, close, is_postgres, is_root, open, signal, wait_until};

async fn query(cluster: &Cluster, sql: &str) -> String {
    let pool = pool::pool(cluster.pg_config(), 1).unwrap();
    let client = pool.get().await.unwrap();
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn setting(cluster: &Cluster, name: &str) -> String {
    query(cluster, &format!("select current_setting('{name}')")).await
}

#[tokio::test]
async fn first_start_makes_a_private_server_and_the_second_adopts_it() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(query(&cluster, "select current_database()::text").await, "satgres");
    assert_eq!(query(&cluster, "select current_user::text").await, "satgres");
    let sql = "select pg_encoding_to_char(encoding) || ' ' || datcollate from pg_database where datname = 'satgres'";
    assert_eq!(query(&cluster, sql).await, "UTF8 C");
    for (name, value) in [
        ("listen_addresses", ""),
        ("wal_level", "minimal"),
        ("fsync", "on"),
        ("wal_segment_size", "64MB"),
        ("shared_buffers", "128MB"),
        ("application_name", "satgres"),
        ("max_wal_size", "4GB"),
    ] {
        assert_eq!(setting(&cluster, name).await, value, "{name}");
    }
    let run = fs::metadata(dir.path().join("run")).unwrap();
    assert_eq!(run.mode() & 0o777, 0o700);
    assert_eq!(cluster.postmaster().socket_dir, fs::canonicalize(dir.path()).unwrap().join("run"));

    let again = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(again.postmaster(), cluster.postmaster());
    let conf = fs::read_to_string(dir.pg_dir().join("postgresql.conf")).unwrap();
    assert_eq!(conf.matches("include 'satgres.conf'").count(), 1);

    assert!(Cluster::stop(dir.path().into()).await.unwrap());
    assert!(!is_postgres(cluster.postmaster().pid));
    let log = fs::read_to_string(dir.path().join("pg.log")).unwrap();
    assert!(!log.contains("connection to client lost"), "connections are closed properly:\n{log}");
    assert!(!Cluster::stop(dir.path().into()).await.unwrap());
}

/// A connection that is dropped just before is not told as lost; one that nobody drops is ended all the same.
#[tokio::test]
async fn ending_a_runs_backends_leaves_an_idle_one_the_time_to_say_goodbye() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let told = Told::default();
    let writer = told.clone();
    let _guard = tracing::subscriber::set_default(
        tracing_subscriber::fmt().with_writer(move || writer.clone()).finish(),
    );
    let lock = RunLock::take(&cluster.pg_config().into()).await.unwrap();
    let pool = pool::pool(cluster.pg_config(), 2).unwrap();
    for is_dropped in [true, false] {
        let client = pool::connect_copy(&pool).await.unwrap();
        client.batch_execute(&format!("set application_name = '{}'", pool::BUILD)).await.unwrap();
        let dropping = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            (!is_dropped).then_some(client)
        };
        let (ended, client) = tokio::join!(lock.end_backends(pool::RUN), dropping);
        ended.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let text = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
        for told in ["a connection to PostgreSQL was lost", "ending backends"] {
            assert_eq!(text.contains(told), !is_dropped, "{text}");
        }
        drop(client);
    }
    drop(lock);
    Cluster::stop(dir.path().into()).await.unwrap();
}

/// What was logged.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn stopping_what_was_never_made_makes_nothing() {
    let dir = DataDir::new();
    assert!(!Cluster::stop(dir.path().into()).await.unwrap());
    assert!(!dir.path().exists());
}

#[tokio::test]
async fn a_killed_server_is_started_again_although_a_backend_lives_on() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let pool = pool::pool(cluster.pg_config(), 2).unwrap();
    let busy = pool.get().await.unwrap();
    busy.batch_execute("create table kept (n int); insert into kept values (42)").await.unwrap();
    let backend: i32 = busy.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    // A backend that computes notices its server's death only at the end of its statement.
    let loop_sql = "do $$ begin perform count(*) from generate_series(1, 40000000) a; end $$";
    let task = tokio::spawn(async move { busy.batch_execute(loop_sql).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    signal(cluster.postmaster().pid, libc::SIGKILL);
    wait_until("the server is gone", || !is_postgres(cluster.postmaster().pid));
    assert!(dir.pid().is_some(), "a killed server leaves its pid file");

    let again = Cluster::start(dir.options()).await.unwrap();
    assert_ne!(again.postmaster().pid, cluster.postmaster().pid);
    assert!(!is_postgres(backend), "the orphan is gone before the new server starts");
    assert_eq!(query(&again, "select n::text from kept").await, "42");
    let _ = task.await.unwrap();
}

#[tokio::test]
async fn a_pid_file_whose_number_another_program_has_is_not_believed() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let file = dir.pg_dir().join("postmaster.pid");
    let text = fs::read_to_string(&file).unwrap();
    Cluster::stop(dir.path().into()).await.unwrap();

    // Another program of the server's user, so that PostgreSQL itself would believe the file.
    let owner = fs::metadata(dir.pg_dir()).unwrap();
    let mut stranger = std::process::Command::new("sleep");
    std::os::unix::process::CommandExt::uid(stranger.arg("60"), owner.uid());
    let mut stranger = stranger.spawn().unwrap();
    let stale = text.replacen(&cluster.postmaster().pid.to_string(), &stranger.id().to_string(), 1);
    fs::write(&file, stale).unwrap();
    assert!(!Cluster::stop(dir.path().into()).await.unwrap(), "nothing of ours to stop");
    assert!(stranger.try_wait().unwrap().is_none(), "the other program lives on");
    let again = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(setting(&again, "cluster_name").await, "satgres");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn a_server_of_another_directory_is_left_alone() {
    let (one, other) = (DataDir::new(), DataDir::new());
    let of_one = Cluster::start(one.options()).await.unwrap();
    let of_other = Cluster::start(other.options()).await.unwrap();
    assert_ne!(of_one.postmaster(), of_other.postmaster());
    // A copied data directory brings the pid file of a server that works elsewhere.
    Cluster::stop(other.path().into()).await.unwrap();
    fs::copy(one.pg_dir().join("postmaster.pid"), other.pg_dir().join("postmaster.pid")).unwrap();
    assert!(!Cluster::stop(other.path().into()).await.unwrap());
    let again = Cluster::start(other.options()).await.unwrap();
    assert_ne!(again.postmaster().pid, of_one.postmaster().pid);
    assert!(is_postgres(of_one.postmaster().pid));
}

#[tokio::test]
async fn an_interrupted_initdb_is_done_again() {
    let dir = DataDir::new();
    fs::create_dir_all(dir.path().join("pg.new/base/1")).unwrap();
    fs::write(dir.path().join("pg.new/PG_VERSION"), "15\n").unwrap();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(query(&cluster, "select 'up'").await, "up");
    assert!(!dir.path().join("pg.new").exists());
}

#[tokio::test]
async fn a_directory_that_is_no_cluster_is_neither_used_nor_removed() {
    let dir = DataDir::new();
    fs::create_dir_all(dir.pg_dir()).unwrap();
    fs::write(dir.pg_dir().join("precious"), "mine").unwrap();
    let error = Cluster::start(dir.options()).await.unwrap_err();
    assert!(matches!(error, Error::NotACluster { .. }), "{error}");
    assert_eq!(fs::read_to_string(dir.pg_dir().join("precious")).unwrap(), "mine");
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_gets_a_private_directory_elsewhere() {
    let dir = DataDir::below(Path::new(&"d".repeat(120)));
    let cluster = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(query(&cluster, "select 'up'").await, "up");
    let socket_dir = cluster.postmaster().socket_dir.clone();
    assert!(!socket_dir.starts_with(dir.path()));
    assert_eq!(fs::metadata(&socket_dir).unwrap().mode() & 0o777, 0o700);
    let again = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(again.postmaster(), cluster.postmaster());

    // Somebody else's directory of that name is not trusted.
    Cluster::stop(dir.path().into()).await.unwrap();
    fs::set_permissions(&socket_dir, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Cluster::start(dir.options()).await.unwrap_err();
    assert!(error.to_string().contains("other users may enter it"), "{error}");
    fs::remove_dir_all(&socket_dir).unwrap();
}

#[tokio::test]
async fn a_cluster_of_another_major_version_is_refused_with_the_way_out() {
    let dir = DataDir::new();
    Cluster::start(dir.options()).await.unwrap();
    Cluster::stop(dir.path().into()).await.unwrap();
    fs::write(dir.pg_dir().join("PG_VERSION"), "13\n").unwrap();
    let error = Cluster::start(dir.options()).await.unwrap_err().to_string();
    assert!(error.contains("was made by PostgreSQL 13, but the programs in"), "{error}");
    assert!(error.contains("--pg-bin /usr/lib/postgresql/13/bin"), "{error}");
}

#[tokio::test]
async fn the_users_own_settings_win_and_a_change_restarts_only_where_it_must() {
    let dir = DataDir::new();
    let options = Options { reconfigure: true, ..dir.options() };
    let mut cluster = Cluster::start(options.clone()).await.unwrap();
    let pid = cluster.postmaster().pid;
    let user_conf = dir.pg_dir().join("user.conf");
    assert!(fs::read_to_string(&user_conf).unwrap().starts_with("# Your own PostgreSQL settings"));

    // Nothing changed: nothing happens. A reloadable one: no restart.
    assert!(!cluster.reconfigure(options.settings.clone()).await.unwrap());
    fs::write(&user_conf, "random_page_cost = 3\n").unwrap();
    assert!(!cluster.reconfigure(options.settings.clone()).await.unwrap());
    assert_eq!(cluster.postmaster().pid, pid);

    fs::write(&user_conf, "shared_buffers = '64MB'\nrandom_page_cost = 3\n").unwrap();
    // A command that only reads adopts the server as it is.
    assert_eq!(Cluster::start(dir.options()).await.unwrap().postmaster().pid, pid);
    let cluster = Cluster::start(options.clone()).await.unwrap();
    assert_ne!(cluster.postmaster().pid, pid);
    assert_eq!(setting(&cluster, "shared_buffers").await, "64MB");
    assert_eq!(setting(&cluster, "random_page_cost").await, "3");

    // Another plan's settings, and one taken away again.
    let mut more = options.settings.clone();
    more.push(Setting::new("max_locks_per_transaction", "128", "a test"));
    let mut cluster = cluster;
    assert!(cluster.reconfigure(more).await.unwrap());
    assert_eq!(setting(&cluster, "max_locks_per_transaction").await, "128");
    assert!(cluster.reconfigure(options.settings.clone()).await.unwrap());
    assert_eq!(setting(&cluster, "max_locks_per_transaction").await, "64");

    fs::write(&user_conf, "shared_bufers = '64MB'\n").unwrap();
    let error = cluster.reconfigure(options.settings.clone()).await.unwrap_err().to_string();
    assert!(error.contains("user.conf, line 1: shared_bufers"), "{error}");
    fs::write(&user_conf, "shared_buffers = 'much'\n").unwrap();
    let error = cluster.reconfigure(options.settings.clone()).await.unwrap_err().to_string();
    assert!(error.contains("user.conf, line 1: shared_buffers"), "{error}");
    assert_eq!(query(&cluster, "select 'still up'").await, "still up");
}

#[tokio::test]
async fn a_start_that_fails_shows_the_end_of_the_log() {
    let dir = DataDir::new();
    Cluster::start(dir.options()).await.unwrap();
    Cluster::stop(dir.path().into()).await.unwrap();
    fs::write(dir.pg_dir().join("user.conf"), "shared_buffers = 'much'\n").unwrap();
    let error = Cluster::start(dir.options()).await.unwrap_err().to_string();
    assert!(error.contains("PostgreSQL did not start"), "{error}");
    assert!(error.contains("invalid value for parameter \"shared_buffers\": \"much\""), "{error}");
}

#[tokio::test]
async fn a_directory_made_by_root_is_handed_over_but_not_with_other_peoples_files() {
    if !is_root() {
        eprintln!("skipped: only root hands a directory over");
        return;
    }
    let dir = DataDir::new();
    fs::create_dir(dir.path()).unwrap();
    close(dir.path());
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let server = fs::metadata(format!("/proc/{}", cluster.postmaster().pid)).unwrap();
    assert_ne!(server.uid(), 0);
    assert_eq!(fs::metadata(dir.pg_dir()).unwrap().uid(), server.uid());
    for file in ["PG_VERSION", "postgresql.conf", "satgres.conf", "user.conf"] {
        assert_eq!(fs::metadata(dir.pg_dir().join(file)).unwrap().uid(), server.uid(), "{file}");
    }
    assert_eq!(fs::metadata(dir.path().join("pg.log")).unwrap().uid(), server.uid());

    for full in [DataDir::new(), DataDir::below_a_closed_one()] {
        fs::create_dir(full.path()).unwrap();
        fs::write(full.path().join("letter"), "private").unwrap();
        close(full.path());
        let error = Cluster::start(full.options()).await.unwrap_err().to_string();
        let first_closed = if mode_and_owner(full.parent()).0 == 0o700 { full.parent() } else { full.path() };
        let named = format!("who may not enter {}\n", fs::canonicalize(first_closed).unwrap().display());
        assert!(error.contains(&named), "{error}");
        assert!(error.contains("choose a --data-dir elsewhere"), "{error}");
        assert_eq!(mode_and_owner(full.path()), (0o700, 0));
    }
}

fn mode_and_owner(dir: &Path) -> (u32, u32) {
    let found = fs::metadata(dir).unwrap();
    (found.mode() & 0o7777, found.uid())
}

#[tokio::test]
async fn below_directories_closed_to_its_user_the_server_works_and_they_stay_closed() {
    if !is_root() {
        eprintln!("skipped: only root runs the server as another user");
        return;
    }
    let dir = DataDir::below_a_closed_one();
    let options = Options { reconfigure: true, ..dir.options() };
    // What an interrupted initdb left.
    fs::create_dir_all(dir.path().join("pg.new/base/1")).unwrap();
    let cluster = Cluster::start(options.clone()).await.unwrap();
    assert!(!dir.path().join("pg.new").exists());
    let first = cluster.postmaster().clone();
    assert_ne!(fs::metadata(format!("/proc/{}", first.pid)).unwrap().uid(), 0);
    assert_eq!(first.socket_dir, fs::canonicalize(dir.path()).unwrap().join("run"));
    assert_eq!(setting(&cluster, "unix_socket_directories").await, "../run");
    assert_eq!(query(&cluster, "select current_user::text").await, "satgres");

    // Adopted; stopped and started again; killed and started again.
    let mut cluster = Cluster::start(options.clone()).await.unwrap();
    assert_eq!(cluster.postmaster(), &first);
    let session = pool::pool(cluster.pg_config(), 1).unwrap().get().await.unwrap();
    session.batch_execute("create table kept as select 42 as n").await.unwrap();
    drop(session);
    assert!(Cluster::stop(dir.path().into()).await.unwrap());
    assert!(!is_postgres(first.pid));
    assert!(!Cluster::stop(dir.path().into()).await.unwrap());
    for how in ["stopped", "killed"] {
        cluster = Cluster::start(options.clone()).await.unwrap();
        assert_eq!(query(&cluster, "select n::text from kept").await, "42", "{how}");
        if how == "stopped" {
            signal(cluster.postmaster().pid, libc::SIGKILL);
        }
    }

    // Settings: one by a reload, one by a restart, one that is wrong.
    let pid = cluster.postmaster().pid;
    let user_conf = dir.pg_dir().join("user.conf");
    fs::write(&user_conf, "random_page_cost = 3\n").unwrap();
    assert!(!cluster.reconfigure(options.settings.clone()).await.unwrap());
    let began = std::time::Instant::now();
    while setting(&cluster, "random_page_cost").await != "3" {
        assert!(began.elapsed().as_secs() < 20, "the files are read again");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(cluster.postmaster().pid, pid);
    let mut more = options.settings.clone();
    more.push(Setting::new("max_locks_per_transaction", "128", "a test"));
    assert!(cluster.reconfigure(more).await.unwrap());
    assert_ne!(cluster.postmaster().pid, pid);
    assert_eq!(setting(&cluster, "max_locks_per_transaction").await, "128");
    fs::write(&user_conf, "shared_bufers = '64MB'\n").unwrap();
    let error = cluster.reconfigure(options.settings.clone()).await.unwrap_err().to_string();
    let named = format!("{}, line 1: shared_bufers", fs::canonicalize(&user_conf).unwrap().display());
    assert!(error.contains(&named), "{error}");
    Cluster::stop(dir.path().into()).await.unwrap();
    let error = Cluster::start(options).await.unwrap_err().to_string();
    let named = format!("in file \"{}\" line 1", fs::canonicalize(&user_conf).unwrap().display());
    assert!(error.contains("PostgreSQL did not start") && error.contains(&named), "{error}");

    assert_eq!(mode_and_owner(dir.parent()), (0o700, 0));
    assert_eq!(mode_and_owner(&dir.parent().join("closed")), (0o700, 0));
}

#[tokio::test]
async fn a_directory_above_may_be_closed_and_opened_while_the_server_runs() {
    if !is_root() {
        eprintln!("skipped: only root runs the server as another user");
        return;
    }
    // What is missing above the data directory is made, open to others.
    let dir = DataDir::below(Path::new("made/by/satgres"));
    let options = Options { reconfigure: true, ..dir.options() };
    let by_path = Cluster::start(options.clone()).await.unwrap();
    assert_eq!(mode_and_owner(&dir.parent().join("made")), (0o755, 0));
    assert_eq!(mode_and_owner(&dir.parent().join("made/by")), (0o755, 0));
    assert_eq!(query(&by_path, "select 'up'").await, "up");

    close(dir.parent());
    let adopted = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(adopted.postmaster(), by_path.postmaster());
    // Its settings cannot be read any more by path: it is restarted once.
    let by_descriptor = Cluster::start(options.clone()).await.unwrap();
    assert_ne!(by_descriptor.postmaster().pid, by_path.postmaster().pid);
    let again = Cluster::start(options.clone()).await.unwrap();
    assert_eq!(again.postmaster(), by_descriptor.postmaster());
    assert_eq!(query(&again, "select 'up'").await, "up");

    open(dir.parent());
    let by_path = Cluster::start(options.clone()).await.unwrap();
    assert_eq!(setting(&by_path, "data_directory").await, by_path.pg_dir().to_str().unwrap());
    assert_eq!(mode_and_owner(dir.parent()), (0o755, 0));
}

#[tokio::test]
async fn below_a_closed_directory_an_enterable_one_keeps_its_owner_and_a_link_is_refused() {
    if !is_root() {
        eprintln!("skipped: only root runs the server as another user");
        return;
    }
    let dir = DataDir::below_a_closed_one();
    fs::create_dir(dir.path()).unwrap();
    open(dir.path());
    let cluster = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(query(&cluster, "select 'up'").await, "up");
    assert_eq!(mode_and_owner(dir.path()), (0o755, 0));
    Cluster::stop(dir.path().into()).await.unwrap();

    // The server could not tell its socket's directory from there.
    let elsewhere = dir.parent().join("elsewhere");
    fs::rename(dir.pg_dir(), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, dir.pg_dir()).unwrap();
    let error = Cluster::start(dir.options()).await.unwrap_err().to_string();
    let named = format!("who may not enter {}\n", fs::canonicalize(dir.parent()).unwrap().display());
    assert!(error.contains(&named), "{error}");
}

#[tokio::test]
async fn a_long_path_below_a_closed_directory_works_too() {
    if !is_root() {
        eprintln!("skipped: only root runs the server as another user");
        return;
    }
    let dir = DataDir::below(&Path::new("closed").join("d".repeat(120)));
    close(dir.parent());
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let socket_dir = cluster.postmaster().socket_dir.clone();
    assert!(!socket_dir.starts_with(dir.path()), "{}", socket_dir.display());
    assert_eq!(query(&cluster, "select 'up'").await, "up");
    let again = Cluster::start(dir.options()).await.unwrap();
    assert_eq!(again.postmaster(), cluster.postmaster());
    Cluster::stop(dir.path().into()).await.unwrap();
    fs::remove_dir_all(&socket_dir).unwrap();
}

#[tokio::test]
async fn a_socket_of_the_users_own_choice_is_found_and_none_at_all_is_an_error() {
    let dir = DataDir::new();
    let first = Cluster::start(dir.options()).await.unwrap();
    Cluster::stop(dir.path().into()).await.unwrap();
    let chosen = dir.parent().join("chosen");
    fs::create_dir(&chosen).unwrap();
    fs::set_permissions(&chosen, fs::Permissions::from_mode(0o777)).unwrap();
    let user_conf = dir.pg_dir().join("user.conf");
    let text = format!("unix_socket_directories = '{}'\nport = 5433\n", chosen.display());
    fs::write(&user_conf, text).unwrap();
    for _ in ["started", "adopted"] {
        let cluster = Cluster::start(dir.options()).await.unwrap();
        assert_ne!(cluster.postmaster().pid, first.postmaster().pid);
        assert_eq!((&cluster.postmaster().socket_dir, cluster.postmaster().port), (&chosen, 5433));
        assert_eq!(query(&cluster, "select 'up'").await, "up");
    }
    Cluster::stop(dir.path().into()).await.unwrap();
    fs::write(&user_conf, "unix_socket_directories = ''\nlisten_addresses = '127.0.0.1'\nport = 54871\n")
        .unwrap();
    let error = Cluster::start(dir.options()).await.unwrap_err().to_string();
    assert!(error.contains("has no Unix socket"), "{error}");
    assert!(Cluster::stop(dir.path().into()).await.unwrap());
}

#[tokio::test]
async fn a_server_whose_socket_is_gone_is_started_again() {
    let dir = DataDir::new();
    let first = Cluster::start(dir.options()).await.unwrap();
    let (pid, socket_dir) = (first.postmaster().pid, first.postmaster().socket_dir.clone());
    fs::remove_file(socket_dir.join(".s.PGSQL.5432")).unwrap();
    let again = Cluster::start(dir.options()).await.unwrap();
    assert_ne!(again.postmaster().pid, pid);
    assert_eq!(setting(&again, "data_directory").await, again.pg_dir().display().to_string());
}

#[tokio::test]
async fn only_one_run_may_work_on_a_data_directory() {
    let dir = DataDir::new();
    let held = ServiceLock::take(dir.path()).unwrap();
    assert!(matches!(ServiceLock::take(dir.path()), Err(Error::InService { .. })));
    drop(held);
    ServiceLock::take(dir.path()).unwrap();
}

#[tokio::test]
async fn a_copy_connection_leaves_the_pool_free_for_others() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let pool = pool::pool(cluster.pg_config(), 1).unwrap();
    let copy = pool::connect_copy(&pool).await.unwrap();
    copy.batch_execute("set work_mem = '7MB'").await.unwrap();
    let control = pool.get().await.unwrap();
    let work_mem: String = control.query_one("show work_mem", &[]).await.unwrap().get(0);
    assert_eq!(work_mem, "32MB");
    assert_eq!(copy.query_one("show work_mem", &[]).await.unwrap().get::<_, String>(0), "7MB");
}

//! What [`super::Cluster`] itself asks its server: is it the right one, and do its settings need a restart.
//!
//! Its connections are of this module's own, closed before the function that opened them returns.

use std::time::{Duration, Instant};

use tokio_postgres::NoTls;
use tracing::{debug, info};

use super::{Cluster, DATABASE, Error, postmaster};
use crate::pg::pool;
use crate::pg::reaction::{Trouble, trouble};

/// Longest wait for a server that recovers after one of its backends was killed: it repeats its log.
const RECOVERY_WAIT_MAX: Duration = Duration::from_secs(3600);
/// Longest wait for what passes otherwise: a connection to come free, a socket to come back.
const TROUBLE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection.
struct Session {
    client: tokio_postgres::Client,
    task: tokio::task::JoinHandle<()>,
}

impl Session {
    /// Connects to the database that every cluster has.
    async fn open(cluster: &Cluster) -> Result<Session, Error> {
        let mut config = cluster.pg_config();
        config.dbname("postgres");
        let failed = |source| Error::Server { what: "accept a connection", source };
        let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
        Ok(Session { client, task: tokio::spawn(pool::drive(connection)) })
    }

    /// Says goodbye to the server, which otherwise logs a lost client.
    async fn close(self) {
        drop(self.client);
        if let Err(error) = self.task.await {
            debug!(%error, "a connection's task ended badly");
        }
    }
}

/// Checks that the socket is answered by the server of this directory, and makes the database if need be. Waits while
/// the server recovers or has no connection left.
///
/// # Errors
/// What does not pass, or not in time; at once where the server has ended.
pub(super) async fn check_in(cluster: &Cluster) -> Result<(), Error> {
    let began = Instant::now();
    let mut told = Duration::ZERO;
    loop {
        let Err(error) = check_in_once(cluster).await else { return Ok(()) };
        let Some(trouble) = trouble(&error) else { return Err(error) };
        let wait_max = if trouble == Trouble::Starting { RECOVERY_WAIT_MAX } else { TROUBLE_WAIT_MAX };
        let waited = began.elapsed();
        if waited > wait_max || !cluster.is_up() {
            return Err(error);
        }
        if told.is_zero() || waited >= told + Duration::from_secs(10) {
            told = waited.max(PAUSE);
            info!(seconds = waited.as_secs(), "waiting: {}", trouble.words());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn check_in_once(cluster: &Cluster) -> Result<(), Error> {
    let session = Session::open(cluster).await?;
    let sql = "select pg_backend_pid(), current_setting('data_directory'),
                      exists (select from pg_database where datname = $1)";
    let row = session.client.query_one(sql, &[&DATABASE]).await;
    let row = row.map_err(|source| Error::Server { what: "name its directory", source })?;
    let (backend, found, has_database): (i32, String, bool) = (row.get(0), row.get(1), row.get(2));
    // The directory's name proves nothing: it may be a link that means another thing to every process.
    if !postmaster::works_in(backend, &cluster.pg_dir(), &cluster.account) {
        let socket_dir = cluster.postmaster.socket_dir.clone();
        return Err(Error::OtherCluster { socket_dir, found, pg_dir: cluster.pg_dir() });
    }
    if !has_database {
        let sql = "create database satgres encoding 'UTF8' locale 'C' template template0";
        let made = session.client.batch_execute(sql).await;
        made.map_err(|source| Error::Server { what: "create the database", source })?;
    }
    session.close().await;
    Ok(())
}

/// Makes the server read its configuration files again, unless that would not do: returns whether only a restart
/// gives what they ask for.
///
/// # Errors
/// [`Error::Configuration`] where the files have mistakes.
pub(super) async fn reload(cluster: &Cluster) -> Result<bool, Error> {
    let session = Session::open(cluster).await?;
    let restart = needs_restart(&session.client, cluster).await?;
    if !restart {
        let reloaded = session.client.execute("select pg_reload_conf()", &[]).await;
        reloaded.map_err(|source| Error::Server { what: "reload its settings", source })?;
    }
    session.close().await;
    Ok(restart)
}

/// Whether the configuration files ask for something that only a restart gives.
async fn needs_restart(client: &tokio_postgres::Client, cluster: &Cluster) -> Result<bool, Error> {
    let failed = |source| Error::Server { what: "read its configuration files", source };
    let row = client.query_one("select current_setting('data_directory')", &[]).await.map_err(failed)?;
    let told: String = row.get(0);
    if !cluster.reach.is_served_by(&told) {
        // A directory above it was closed since it was started: it cannot read them any more.
        return Ok(true);
    }
    let sql = "select coalesce(sourcefile, ''), coalesce(sourceline, 0), coalesce(name, ''), error
               from pg_file_settings where error is not null";
    let problems = client.query(sql, &[]).await.map_err(failed)?;
    // Reading the files has marked, in this session, the settings whose valid new value must wait for a restart.
    let pending =
        client.query("select name from pg_settings where pending_restart", &[]).await.map_err(failed)?;
    let pending: Vec<String> = pending.iter().map(|row| row.get(0)).collect();
    let mut restart = !pending.is_empty();
    for row in problems {
        let (file, line): (String, i32) = (row.get(0), row.get(1));
        let (name, error): (String, String) = (row.get(2), row.get(3));
        // A line that was taken away is reported without a name.
        if pending.contains(&name) || error.contains("without restarting the server") {
            restart = true;
            continue;
        }
        // The reader knows the directory by its path.
        let pg_dir = cluster.pg_dir();
        let file = file.replacen(&told, &pg_dir.to_string_lossy(), 1);
        let reason = format!("{file}, line {line}: {name}: {error}");
        return Err(Error::Configuration { pg_dir, reason });
    }
    Ok(restart)
}

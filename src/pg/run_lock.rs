//! The right to change a database: an advisory lock of one `satgres run`, held by a connection of its own.
//!
//! In: how to connect. Out: a [`RunLock`]; all other connections of the run hang on it, so that nothing goes on without
//! it. Whoever holds it may end the backends that an earlier run left behind. Called by `satgres run` only.

use std::io;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio_postgres::Client;
use tracing::{info, warn};

use super::pool::{self, Hangup, RUN};
use super::target::Target;

/// Key of the lock: `satg_run` in ASCII, another one than that of installations.
const KEY: i64 = 0x7361_7467_5f72_756e;
/// How long the lock of a run that has just ended may take to come free.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long backends of an earlier run may take to end.
const END_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long idle ones may take to end by themselves: the goodbye of a connection that was dropped may be on its way.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(50);

/// Notices a peer that vanished without a word, within a minute.
const KEEP_ALIVE: &str =
    "set tcp_keepalives_idle = 20; set tcp_keepalives_interval = 10; set tcp_keepalives_count = 4";

const HOLDER: &str = "select a.pid, a.application_name, coalesce(a.client_addr::text, 'this machine'), \
         to_char(a.backend_start, 'YYYY-MM-DD HH24:MI:SS OF') \
     from pg_locks l join pg_stat_activity a on a.pid = l.pid \
     where l.locktype = 'advisory' and l.granted and l.objsubid = 1 \
       and l.database = (select oid from pg_database where datname = current_database()) \
       and l.classid = ($1::int8 >> 32)::int4::oid and l.objid = (($1::int8 << 32) >> 32)::int4::oid";

/// Same database, same user, a name that only a run's connections bear, and not this one.
const END: &str = "select pid, \
       case when $2 or state is distinct from 'idle' then pg_terminate_backend(pid) else false end \
     from pg_stat_activity \
     where datname = current_database() and usename = current_user and pid <> pg_backend_pid() \
       and starts_with(application_name, $1)";

/// Why a run may not work on the database.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another run holds the lock.
    #[error(
        "another `satgres run` is at work on this database: {name}, backend {pid} from {address}, since {since}\n  help: wait for it, or stop it first"
    )]
    Held {
        /// The backend's process id.
        pid: i32,
        /// What its connection is called: the process that holds it, and its host.
        name: String,
        /// Where it comes from.
        address: String,
        /// When it connected.
        since: String,
    },
    /// A backend of an earlier run does not end.
    #[error(
        "backends of an earlier `satgres run` do not end within {seconds} s: {pids:?}\n  help: see pg_stat_activity; on the server, kill -INT them"
    )]
    Leftovers {
        /// Their process ids.
        pids: Vec<i32>,
        /// How long they were waited for.
        seconds: u64,
    },
    /// The server refused or went away.
    #[error("cannot {what}")]
    Server {
        /// What was being done.
        what: &'static str,
        /// What the server said.
        source: tokio_postgres::Error,
    },
}

fn server(what: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
    move |source| Error::Server { what, source }
}

/// The lock, until it is dropped or its connection is lost: then `hangup` cuts all connections of the run.
#[derive(Debug)]
pub struct RunLock {
    client: Client,
    hangup: Hangup,
}

impl RunLock {
    /// Takes the lock, and ends what an earlier run left behind.
    ///
    /// # Errors
    /// [`Error::Held`] where another run holds it.
    pub async fn take(target: &Target) -> Result<RunLock, Error> {
        let target = target.clone().named(NAME.as_str());
        let (client, driving) = target.connect().await.map_err(server("connect"))?;
        let hangup = Hangup::default();
        let at_end = hangup.clone();
        tokio::spawn(async move {
            let _ = driving.await;
            at_end.now();
        });
        let lock = RunLock { client, hangup };
        pool::watch_client(&lock.client).await.map_err(server("connect"))?;
        lock.client.batch_execute(KEEP_ALIVE).await.map_err(server("connect"))?;
        lock.acquire().await?;
        lock.end_backends(RUN).await?;
        Ok(lock)
    }

    /// What cuts the run's connections when the lock is lost.
    #[must_use]
    pub fn hangup(&self) -> &Hangup {
        &self.hangup
    }

    async fn acquire(&self) -> Result<(), Error> {
        let began = Instant::now();
        let what = "take the lock of `satgres run`";
        loop {
            let row = self.client.query_one("select pg_try_advisory_lock($1)", &[&KEY]).await;
            if row.map_err(server(what))?.get(0) {
                return Ok(());
            }
            let holder = self.client.query_opt(HOLDER, &[&KEY]).await.map_err(server(what))?;
            match holder {
                // A run that was killed a moment ago: its backend is about to notice.
                _ if began.elapsed() < LOCK_WAIT_MAX => tokio::time::sleep(POLL).await,
                // Our own lost connection, which the server has not noticed yet.
                Some(row) if row.get::<_, &str>(1) == *NAME => {
                    let pid: i32 = row.get(0);
                    let ended = self.client.execute("select pg_terminate_backend($1)", &[&pid]).await;
                    ended.map_err(server(what))?;
                    tokio::time::sleep(POLL).await;
                }
                Some(row) => {
                    let (pid, name, address, since) = (row.get(0), row.get(1), row.get(2), row.get(3));
                    return Err(Error::Held { pid, name, address, since });
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Ends all other backends of a run whose names begin with `prefix`, and waits until they are gone: their locks and
    /// half-built indexes go with them.
    ///
    /// # Errors
    /// [`Error::Leftovers`].
    pub async fn end_backends(&self, prefix: &str) -> Result<(), Error> {
        let began = Instant::now();
        let mut is_told = false;
        loop {
            let rows = self.client.query(END, &[&prefix, &(began.elapsed() > GOODBYE_WAIT)]).await;
            let rows = rows.map_err(server("end the backends of an earlier run"))?;
            if rows.is_empty() {
                return Ok(());
            }
            let pids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
            if !is_told && rows.iter().any(|row| row.get(1)) {
                is_told = true;
                info!(?pids, "ending backends that have nobody to work for any more");
            }
            let seconds = began.elapsed().as_secs();
            if began.elapsed() > END_WAIT_MAX {
                return Err(Error::Leftovers { pids, seconds });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Cuts all connections of the run and ends their backends; gives the lock back. What cannot be ended is left to the
    /// next start.
    pub async fn release(self, patience: Duration) {
        self.hangup.now();
        match tokio::time::timeout(patience, self.end_backends(RUN)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if super::reaction::trouble(&error).is_some() => {}
            Ok(Err(error)) => warn!(%error, "some backends go on; the next start ends them"),
            Err(_) => warn!("some backends go on; the next start ends them"),
        }
    }
}

/// Tells whose connection it is, once and for all in this process: at most 63 bytes, as the server keeps no more.
static NAME: LazyLock<String> = LazyLock::new(|| {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let host = host_name().unwrap_or_default();
    let name = format!("satgres run, process {} ({started}) on {host}", std::process::id());
    name.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(63).collect()
});

fn host_name() -> io::Result<String> {
    let mut bytes = [0_u8; 256];
    // SAFETY: the buffer has the length that is told; the last byte stays NUL.
    let status = unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), bytes.len() - 1) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

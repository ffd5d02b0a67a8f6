//! Connections: a pool for control statements, and connections taken out of it for COPY.
//!
//! In: a [`Target`]. Out: deadpool-postgres pools whose connection tasks report how they end.
//! Called by everything that speaks SQL. It must never let a connection's error vanish: a caller of a lost
//! connection sees only "connection closed", the reason is in the log.

use std::{future::poll_fn, time::Duration};

use deadpool_postgres::{
    ClientWrapper, Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, Connection};
use tracing::{debug, warn};

use super::target::Target;

/// Longest wait for a free connection of a pool, and for making one.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How often a server looks whether the client of a running statement is still there: an index build whose client died
/// must not hold its locks for hours. Any user may set it; platforms that cannot look refuse it.
const CHECK_CLIENT: &str = "set client_connection_check_interval = '3s'";

/// Cuts many connections at once: whoever uses one then sees it closed.
#[derive(Clone, Debug)]
pub struct Hangup(watch::Sender<bool>);

impl Default for Hangup {
    fn default() -> Self {
        Hangup(watch::Sender::new(false))
    }
}

impl Hangup {
    /// Cuts them all, and those that are opened later.
    pub fn now(&self) {
        self.0.send_replace(true);
    }

    /// Waits until they are cut.
    pub async fn done(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|is_done| *is_done).await;
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// All are in use, or the server refuses.
    #[error("no connection to PostgreSQL")]
    Connection(#[from] deadpool_postgres::PoolError),
    /// The pool's own settings are wrong.
    #[error("the connection pool cannot be made")]
    Pool(#[from] deadpool_postgres::BuildError),
}

/// How long a connection that ended badly waits for word that it was meant to.
const CUT_WAIT: Duration = Duration::from_millis(100);

/// Makes a pool of at most `connections_max` connections; none is opened yet.
///
/// # Errors
/// [`Error::Pool`].
pub fn pool(target: impl Into<Target>, connections_max: usize) -> Result<Pool, Error> {
    pool_until(target, connections_max, Hangup::default())
}

/// The same; all its connections, also those taken out of it, end with `hangup`.
///
/// # Errors
/// [`Error::Pool`].
pub fn pool_until(target: impl Into<Target>, connections_max: usize, hangup: Hangup) -> Result<Pool, Error> {
    let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let connector = Reporting { target: target.into(), hangup };
    let manager = Manager::from_connect(Config::new(), connector, manager_config);
    let builder = Pool::builder(manager).max_size(connections_max).runtime(Runtime::Tokio1);
    Ok(builder.wait_timeout(Some(WAIT_MAX)).create_timeout(Some(WAIT_MAX)).build()?)
}

/// Takes a connection out of the pool for COPY: it lives for minutes, carries session settings, and is closed when
/// it is dropped. The pool may open another in its place.
///
/// # Errors
/// [`Error::Connection`].
pub async fn connect_copy(pool: &Pool) -> Result<ClientWrapper, Error> {
    Ok(Object::take(pool.get().await?))
}

/// How the names of all connections of `satgres run` begin in `pg_stat_activity`, but for that of its lock. Only the
/// holder of the lock may end such backends.
pub const RUN: &str = "satgres run ";
/// Name of those that ask and record.
pub const CONTROL: &str = "satgres run control";
/// Name of those that build indexes.
pub const BUILD: &str = "satgres run build";
/// How the names of those that fill a table begin.
pub const COPY: &str = "satgres run copy ";

/// Opens connections and spawns their tasks, which log what goes wrong.
struct Reporting {
    target: Target,
    hangup: Hangup,
}

type Opened = Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl Connect for Reporting {
    fn connect(&self, _: &Config) -> std::pin::Pin<Box<dyn Future<Output = Opened> + Send + '_>> {
        Box::pin(async move {
            let (client, driving) = self.target.connect().await?;
            let (hangup, cut) = (self.hangup.clone(), driving.abort_handle());
            let task = tokio::spawn(async move {
                tokio::select! {
                    _ = driving => {}
                    () = hangup.done() => cut.abort(),
                }
            });
            watch_client(&client).await?;
            Ok((client, task))
        })
    }
}

/// Asks the server to notice when the client of a running statement goes away.
pub(super) async fn watch_client(client: &Client) -> Result<(), tokio_postgres::Error> {
    match client.batch_execute(CHECK_CLIENT).await {
        Err(error) if error.code().is_some() => {
            debug!(%error, "the server does not look for lost clients");
            // Where the server cannot look at all it refuses; where it went away the first statement says so.
            if super::reaction::trouble(&error).is_some() { Err(error) } else { Ok(()) }
        }
        other => other,
    }
}

/// Carries a connection's messages until it ends; logs the server's notices and the reason of a bad end.
pub(super) async fn drive<S, T>(mut connection: Connection<S, T>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            None => return,
            Some(Ok(AsyncMessage::Notice(notice))) => {
                debug!(severity = notice.severity(), message = notice.message(), "notice from PostgreSQL");
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                // Whoever ends a run cuts its connections, then ends their backends: on a busy machine the backend's end
                // may be seen first. Then nothing is lost, and this task ends while it waits.
                drop(connection);
                tokio::time::sleep(CUT_WAIT).await;
                warn!(%error, cause, "a connection to PostgreSQL was lost");
                return;
            }
        }
    }
}

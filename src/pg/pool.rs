//! Connections: a pool for control statements, and connections taken out of it for COPY.
//!
//! In: a [`Target`]. Out: deadpool-postgres pools whose connection tasks report how they end.
//! Called by everything that speaks SQL. It must never let a connection's error vanish: a caller of a lost
//! connection sees only "connection closed", the reason is in the log.

use std::{future::poll_fn, time::Duration};

use deadpool_postgres::{
    ClientWrapper, Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, Connection};
use tracing::{debug, warn};

use super::target::Target;

/// Longest wait for a free connection of a pool, and for making one.
const WAIT_MAX: Duration = Duration::from_secs(60);

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

/// Makes a pool of at most `connections_max` connections; none is opened yet.
///
/// # Errors
/// [`Error::Pool`].
pub fn pool(target: impl Into<Target>, connections_max: usize) -> Result<Pool, Error> {
    let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_connect(Config::new(), Reporting(target.into()), manager_config);
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

/// Opens connections and spawns their tasks, which log what goes wrong.
struct Reporting(Target);

type Opened = Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl Connect for Reporting {
    fn connect(&self, _: &Config) -> std::pin::Pin<Box<dyn Future<Output = Opened> + Send + '_>> {
        Box::pin(self.0.connect())
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
                warn!(%error, cause, "a connection to PostgreSQL was lost");
                return;
            }
        }
    }
}

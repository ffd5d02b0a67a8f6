//! The one place that decides exit codes.
//!
//! In: any module's error that reached the command line. Out: a code by which scripts tell what to do next. Modules
//! keep their own enums; this one only sorts them by who must act.

use crate::pg::reaction::{Trouble, trouble};
use crate::prevouts::RebuildError;
use crate::replay::ReplayError;
use crate::stop::Stopped;
use crate::verify::VerifyError;
use crate::{config, pg};

/// Exit codes and their meaning, as `--help` lists them.
#[macro_export]
#[doc(hidden)]
macro_rules! exit_codes {
    () => {
        "Exit codes:
  0  success
  1  something failed that a human must look at
  2  wrong usage or configuration
  3  the block files are missing, damaged or invalid
  4  PostgreSQL cannot be found, started or used, or refuses a statement
  5  verify found that the database does not hold what it should
  6  the node of --peer or --node cannot be reached or used
130  ended by a signal before all was loaded; the same command goes on
`satgres psql` ends with psql's own exit code."
    };
}

/// Exit code after a signal.
pub const INTERRUPTED: u8 = 130;

/// What reached the command line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong options.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// No server.
    #[error(transparent)]
    Cluster(#[from] pg::cluster::Error),
    /// A server of the user's own that cannot be used.
    #[error(transparent)]
    External(#[from] pg::external::Error),
    /// Nobody can listen there.
    #[error(transparent)]
    Listen(#[from] crate::status::ListenError),
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pg::pool::Error),
    /// Another run is at work, or the lock that proves it cannot be had.
    #[error(transparent)]
    RunLock(#[from] pg::run_lock::Error),
    /// What should have passed by itself did not.
    #[error("gave up after {tries} tries in {seconds} s; nothing is lost: the same command goes on")]
    GaveUp {
        /// Tries since the last step that was done.
        tries: u32,
        /// Seconds since the first of them.
        seconds: u64,
        /// The last failure.
        source: Box<Error>,
    },
    /// The connection that holds the lock was lost while nothing else was asked of the server.
    #[error("the connection to PostgreSQL was lost")]
    ServerLost,
    /// No schema.
    #[error(transparent)]
    Schema(#[from] pg::schema::Error),
    /// A statement failed.
    #[error("PostgreSQL refused a statement")]
    Postgres(#[from] tokio_postgres::Error),
    /// A program or file of the system's.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The replay stopped.
    #[error(transparent)]
    Replay(#[from] crate::replay::ReplayError),
    /// The block files cannot be used.
    #[error(transparent)]
    Source(#[from] crate::source::SourceError),
    /// A verification could not be carried out.
    #[error("verification failed")]
    Verify(#[from] crate::verify::VerifyError),
    /// Something does not hold.
    #[error("{failed} checks failed: see above, and table ops.checks")]
    VerifyFailed {
        /// How many.
        failed: usize,
    },
    /// A chain could not be generated.
    #[error(transparent)]
    Chaingen(#[from] crate::chaingen::ChaingenError),
    /// Nothing was loaded into the data directory.
    #[error("{} holds no chain yet\n  help: `satgres run` loads one; or give the --data-dir that it was given", data_dir.display())]
    NothingLoaded {
        /// The data directory.
        data_dir: std::path::PathBuf,
    },
    /// Nothing was loaded into the user's own database.
    #[error(
        "database {database} holds no chain yet\n  help: `satgres run` with the same --database-url loads one"
    )]
    NothingInDatabase {
        /// Database, host and port.
        database: String,
    },
    /// `satgres status --check` found no service at work.
    #[error("no `satgres run` is at work here: service.state is {state}, see docs/status.md")]
    NotAtWork {
        /// What is known of it.
        state: &'static str,
    },
    /// The user's own server is neither started nor stopped.
    #[error(
        "the server of --database-url is not satgres' own: start and stop it by its own means\n  help: {help}"
    )]
    NotOurs {
        /// What to type instead.
        help: &'static str,
    },
    /// A signal ended the service before everything was loaded.
    #[error("interrupted; nothing is lost: the same command goes on")]
    Interrupted,
}

impl From<Stopped> for Error {
    fn from(_: Stopped) -> Self {
        Error::Interrupted
    }
}

impl Error {
    /// What is to be waited out, if that can help. `is_reached` tells that the server was there before in this run: one
    /// that does not start again may yet do so.
    #[must_use]
    pub fn trouble(&self, is_reached: bool) -> Option<Trouble> {
        use pg::cluster::{Error as Cluster, PostmasterError as Postmaster};
        use pg::external::Error as External;
        match self {
            Error::ServerLost | Error::Cluster(Cluster::Postmaster(Postmaster::Leftovers { .. })) => {
                Some(Trouble::Gone)
            }
            Error::RunLock(pg::run_lock::Error::Leftovers { .. }) => Some(Trouble::Conflict),
            // Its text tells what to do in place of a chain of causes.
            Error::External(External::Connect { trouble, .. }) => *trouble,
            Error::External(External::Connections { .. }) => is_reached.then_some(Trouble::Connections),
            Error::Cluster(Cluster::Postmaster(Postmaster::Died { tail, .. })) => {
                let is_full = tail.contains("No space left on device");
                if is_full { Some(Trouble::Disk) } else { is_reached.then_some(Trouble::Starting) }
            }
            error => trouble(error),
        }
    }

    /// The exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::System { .. }
            | Error::Listen(_)
            | Error::Chaingen(_)
            | Error::NotAtWork { .. }
            | Error::NothingLoaded { .. }
            | Error::NothingInDatabase { .. } => 1,
            Error::Interrupted => INTERRUPTED,
            Error::RunLock(pg::run_lock::Error::Held { .. }) => 1,
            Error::GaveUp { source, .. } => source.exit_code(),
            Error::Source(_)
            | Error::Replay(ReplayError::Source(_) | ReplayError::Block(_) | ReplayError::Gone { .. }) => 3,
            Error::Replay(ReplayError::Node(_)) => 6,
            Error::Replay(ReplayError::Stopped) => INTERRUPTED,
            Error::Replay(
                ReplayError::System { .. } | ReplayError::CoinFiles(_) | ReplayError::NoRoom(_),
            ) => 1,
            Error::Replay(ReplayError::Rebuild(RebuildError::Files(_))) => 1,
            Error::Verify(VerifyError::Node(_)) => 6,
            Error::Replay(_) | Error::Verify(_) => 4,
            Error::VerifyFailed { .. } => 5,
            Error::Cluster(pg::cluster::Error::InService { .. }) => 1,
            Error::Config(_)
            | Error::NotOurs { .. }
            | Error::External(pg::external::Error::Target(_))
            | Error::Schema(pg::schema::Error::Mismatch { .. }) => 2,
            Error::ServerLost
            | Error::Cluster(_)
            | Error::RunLock(_)
            | Error::External(_)
            | Error::Pool(_)
            | Error::Schema(_)
            | Error::Postgres(_) => 4,
        }
    }
}

impl From<pg::server::Error> for Error {
    fn from(error: pg::server::Error) -> Error {
        match error {
            pg::server::Error::Private(error) => error.into(),
            pg::server::Error::External(error) => error.into(),
        }
    }
}

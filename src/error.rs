//! The one place that decides exit codes.
//!
//! In: any module's error that reached the command line. Out: a code by which scripts tell what to do next. Modules
//! keep their own enums; this one only sorts them by who must act.

use crate::prevouts::RebuildError;
use crate::{config, pg, replay::ReplayError};

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
130  ended by a signal before all was loaded; the same command goes on
`satgres psql` ends with psql's own exit code."
    };
}

/// What reached the command line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong options.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// No server.
    #[error(transparent)]
    Cluster(#[from] pg::cluster::Error),
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pg::pool::Error),
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
    /// A signal ended the service before everything was loaded.
    #[error("interrupted; nothing is lost: the same command goes on")]
    Interrupted,
}

impl Error {
    /// The exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::System { .. } | Error::Chaingen(_) | Error::NothingLoaded { .. } => 1,
            Error::Interrupted => 130,
            Error::Source(_)
            | Error::Replay(ReplayError::Source(_) | ReplayError::Block(_) | ReplayError::Gone { .. }) => 3,
            Error::Replay(
                ReplayError::System { .. } | ReplayError::CoinFiles(_) | ReplayError::NoRoom(_),
            ) => 1,
            Error::Replay(ReplayError::Rebuild(RebuildError::Files(_))) => 1,
            Error::Replay(_) | Error::Verify(_) => 4,
            Error::VerifyFailed { .. } => 5,
            Error::Cluster(pg::cluster::Error::InService { .. }) => 1,
            Error::Config(_) | Error::Schema(pg::schema::Error::Mismatch { .. }) => 2,
            Error::Cluster(_) | Error::Pool(_) | Error::Schema(_) | Error::Postgres(_) => 4,
        }
    }
}

//! Why the private server cannot be had: each cause with what the user can do.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{account, postmaster, socket};
use crate::pg::binaries;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable programs.
    #[error(transparent)]
    Binaries(#[from] binaries::Error),
    /// Nobody to run it as, or files that the server's user cannot reach.
    #[error(transparent)]
    Account(#[from] account::Error),
    /// No safe place for the socket.
    #[error(transparent)]
    Socket(#[from] socket::Error),
    /// The process.
    #[error(transparent)]
    Postmaster(#[from] postmaster::Error),
    /// The cluster was made by another major version.
    #[error("{} was made by PostgreSQL {found}, but the programs in {} are version {have}\n  help: install PostgreSQL {found} and name it by --pg-bin /usr/lib/postgresql/{found}/bin, or choose another --data-dir and replay", pg_dir.display(), binaries.display())]
    OtherVersion {
        /// The cluster.
        pg_dir: PathBuf,
        /// Its major version.
        found: String,
        /// Where the programs are.
        binaries: PathBuf,
        /// Their major version.
        have: u32,
    },
    /// A directory `pg` that no initdb made.
    #[error("{} is not empty, but no PostgreSQL cluster either\n  help: move it away, or choose another --data-dir", pg_dir.display())]
    NotACluster {
        /// The directory.
        pg_dir: PathBuf,
    },
    /// `initdb` failed.
    #[error("initdb failed in {} ({status}):\n{output}", dir.display())]
    Initdb {
        /// Where.
        dir: PathBuf,
        /// How it ended.
        status: String,
        /// What it printed.
        output: String,
    },
    /// Another command holds the lock for too long.
    #[error("another satgres command has been starting or stopping the server of {} for {seconds} s\n  help: look for it: fuser -v {}/satgres.lock", data_dir.display(), data_dir.display())]
    Locked {
        /// The data directory.
        data_dir: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Another `satgres run` works on the data directory.
    #[error("another `satgres run` is at work on {}: process {pid}, for {seconds} s\n  help: wait for it, or stop it first", data_dir.display())]
    InService {
        /// The data directory.
        data_dir: PathBuf,
        /// Its process id, as it wrote it down.
        pid: String,
        /// How long it has been at work.
        seconds: u64,
    },
    /// `user.conf`, or what it includes, has mistakes.
    #[error("PostgreSQL refuses its configuration: {reason}\n  help: correct {}/user.conf", pg_dir.display())]
    Configuration {
        /// The cluster.
        pg_dir: PathBuf,
        /// File, line and what is wrong.
        reason: String,
    },
    /// The socket answers for another cluster.
    #[error("the server at {} serves {found}, not {}", socket_dir.display(), pg_dir.display())]
    OtherCluster {
        /// The socket directory.
        socket_dir: PathBuf,
        /// Data directory of that server.
        found: String,
        /// The cluster expected.
        pg_dir: PathBuf,
    },
    /// The server refuses a connection or a statement.
    #[error("PostgreSQL failed to {what}")]
    Server {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        source: tokio_postgres::Error,
    },
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

pub(super) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

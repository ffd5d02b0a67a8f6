//! A look at the private server that changes nothing, takes no lock and waits for nobody.
//!
//! In: a data directory, which may belong to somebody else. Out: what can be seen of the server. Called by `satgres
//! status`; it must never start anything.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use super::{DATABASE, Postmaster, USER, account::Account, postmaster};

/// What can be seen of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Glance {
    /// No cluster was made yet.
    Absent,
    /// It does not run.
    Down,
    /// It runs.
    Running {
        /// Process id.
        pid: i32,
        /// Its socket, if it has one already.
        socket: Option<Postmaster>,
        /// Whether it said that it is ready.
        is_ready: bool,
    },
    /// Its process is not there: it was killed, or it runs in another container and answers at this socket.
    Unseen(Postmaster),
    /// We may not look, and why.
    Closed(String),
}

/// Looks at the server of a data directory.
#[must_use]
pub fn glance(data_dir: &Path) -> Glance {
    let pg_dir = data_dir.join("pg");
    match fs::symlink_metadata(pg_dir.join("PG_VERSION")) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Glance::Absent,
        Err(error) => return Glance::Closed(format!("cannot look into {}: {error}", pg_dir.display())),
    }
    let account = match Account::choose(data_dir, &pg_dir) {
        Ok(account) => account,
        Err(error) => return Glance::Closed(error.to_string()),
    };
    match postmaster::glance(&pg_dir, &account) {
        Ok(Some((Some(pid), socket, is_ready))) => Glance::Running { pid, socket, is_ready },
        Ok(Some((None, Some(socket), _))) => Glance::Unseen(socket),
        Ok(Some((None, None, _)) | None) => Glance::Down,
        Err(error) => Glance::Closed(error.to_string()),
    }
}

/// Version of the server that made the cluster, such as `15`; `None` where there is none or we may not look.
#[must_use]
pub fn major_version(data_dir: &Path) -> Option<String> {
    let text = fs::read_to_string(data_dir.join("pg/PG_VERSION")).ok()?;
    Some(text.trim().to_owned())
}

/// The number that initdb gave the cluster, as `pg_control_system()` tells it: the first eight bytes of its control file.
#[must_use]
pub fn system_identifier(data_dir: &Path) -> Option<u64> {
    let mut bytes = [0; 8];
    fs::File::open(data_dir.join("pg/global/pg_control")).ok()?.read_exact(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

impl Postmaster {
    /// How to connect to the database, as the superuser.
    #[must_use]
    pub fn pg_config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host_path(&self.socket_dir).port(self.port).user(USER).dbname(DATABASE);
        config
    }
}

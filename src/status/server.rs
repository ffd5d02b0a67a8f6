//! Is the server there, and does it answer: found out without starting it and without waiting for long.
//!
//! In: the data directory, or how to connect to the user's own server. Out: [`ServerReport`], and a connection where the
//! server answers. Called by [`super::collect`].

use std::{io, path::Path, time::Duration};

use serde::Serialize;
use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::{Client, NoTls, error::SqlState};

use crate::{
    pg::{
        cluster::{Glance, Postmaster, glance, major_version, system_identifier},
        target::Target,
    },
    process,
};

/// What can be said of the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ServerReport {
    /// `absent`, `down`, `unreachable`, `starting`, `recovering`, `stopping`, `up`, `standby`, `silent`, `refusing` or
    /// `unknown`.
    pub state: &'static str,
    /// The user's own database, with host and port; `None` for the private server.
    pub database: Option<String>,
    /// Its process.
    pub pid: Option<i32>,
    /// Its version, the major one only where it does not answer.
    pub version: Option<String>,
    /// When it was started.
    pub started_timestamp_seconds: Option<f64>,
    /// PostgreSQL's own directory.
    pub data_dir: Option<String>,
    /// What it, or the system, said.
    pub message: Option<String>,
}

/// A connection, and what was found out on the way.
pub(super) struct Answer {
    pub(super) report: ServerReport,
    pub(super) family: Option<process::Family>,
    pub(super) session: Option<Session>,
}

/// An open connection.
pub(super) struct Session {
    pub(super) client: Client,
    task: JoinHandle<()>,
}

impl Session {
    /// Says goodbye, or the server logs a client that it lost.
    pub(super) async fn close(self, patience: Duration) {
        drop(self.client);
        let _ = timeout(patience, self.task).await;
    }
}

/// Connects to the user's own server if it answers within `patience`; nothing else is known of it.
pub(super) async fn look_at(target: &Target, patience: Duration) -> Answer {
    let mut report =
        ServerReport { state: "up", database: Some(target.to_string()), ..ServerReport::default() };
    let connected = match timeout(patience, target.connect()).await {
        Ok(Ok((client, task))) => Ok(Session { client, task }),
        Ok(Err(error)) => Err(Refusal::Failed(error)),
        Err(_) => Err(Refusal::Silent),
    };
    let session = match connected {
        Ok(session) => Some(session),
        Err(refusal) => {
            (report.state, report.message) = (refusal.state_from_afar(), refusal.message());
            None
        }
    };
    Answer { report, family: None, session }
}

/// Looks at the private server and connects to it if it answers within `patience`.
pub(super) async fn look(data_dir: &Path, patience: Duration) -> Answer {
    let mut report = ServerReport { state: "down", ..ServerReport::default() };
    let mut unseen = None;
    let (pid, socket, is_ready) = match glance(data_dir) {
        Glance::Absent => {
            report.state = "absent";
            return Answer { report, family: None, session: None };
        }
        Glance::Closed(why) => {
            (report.state, report.message) = ("unknown", Some(why));
            return Answer { report, family: None, session: None };
        }
        Glance::Down => (None, None, false),
        Glance::Unseen(socket) => {
            unseen = Some(socket);
            (None, None, false)
        }
        Glance::Running { pid, socket, is_ready } => (Some(pid), socket, is_ready),
    };
    report.pid = pid;
    report.version = major_version(data_dir);
    report.data_dir = Some(data_dir.join("pg").display().to_string());
    let family = pid.and_then(process::family);
    let is_recovering = family.is_some_and(|family| family.is_recovering);
    let mut session = None;
    if pid.is_some() {
        match connect(socket.as_ref(), patience).await {
            Ok(connected) => {
                report.state = "up";
                session = Some(connected);
            }
            Err(refusal) => {
                report.state = refusal.state(is_ready, is_recovering);
                report.message = refusal.message();
            }
        }
    }
    // In another container: what answers at the socket is asked who it is.
    if let Some(socket) = unseen
        && let Ok(connected) = connect(Some(&socket), patience).await
        && is_server_of(data_dir, &connected.client, patience).await
    {
        report.state = "up";
        session = Some(connected);
    }
    Answer { report, family, session }
}

/// Whether the server is that of the data directory.
async fn is_server_of(data_dir: &Path, client: &Client, patience: Duration) -> bool {
    let sql = "select system_identifier from pg_control_system()";
    let Ok(Ok(row)) = timeout(patience, client.query_one(sql, &[])).await else { return false };
    // SQL knows no unsigned number.
    system_identifier(data_dir) == Some(row.get::<_, i64>(0) as u64)
}

enum Refusal {
    NoSocket,
    Silent,
    Failed(tokio_postgres::Error),
}

async fn connect(socket: Option<&Postmaster>, patience: Duration) -> Result<Session, Refusal> {
    let mut config = socket.ok_or(Refusal::NoSocket)?.pg_config();
    // The settings of the session bound every statement, and keep it from changing anything.
    config.application_name("satgres status").options(
        "-c statement_timeout=1500 -c lock_timeout=500 -c default_transaction_read_only=on -c jit=off",
    );
    match timeout(patience, config.connect(NoTls)).await {
        Err(_) => Err(Refusal::Silent),
        Ok(Err(error)) => Err(Refusal::Failed(error)),
        Ok(Ok((client, connection))) => {
            // How it ends shows in what the client's statements say.
            let task = tokio::spawn(async move { drop(connection.await) });
            Ok(Session { client, task })
        }
    }
}

impl Refusal {
    fn state(&self, is_ready: bool, is_recovering: bool) -> &'static str {
        let error = match self {
            Refusal::Silent => return "silent",
            Refusal::NoSocket => return if is_recovering { "recovering" } else { "starting" },
            Refusal::Failed(error) => error,
        };
        match error.code() {
            Some(code) if *code == SqlState::CANNOT_CONNECT_NOW => not_now(error, is_recovering),
            Some(_) => "refusing",
            None if is_recovering => "recovering",
            None if is_ready => "refusing",
            None => "starting",
        }
    }

    /// The same of a server of which no process is seen.
    fn state_from_afar(&self) -> &'static str {
        let Refusal::Failed(error) = self else { return "silent" };
        let system = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        match (error.code(), system.map(io::Error::kind)) {
            (Some(code), _) if *code == SqlState::CANNOT_CONNECT_NOW => not_now(error, false),
            // The second: no socket.
            (None, Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)) => "down",
            (None, Some(io::ErrorKind::TimedOut)) => "silent",
            (None, Some(_)) => "unreachable",
            _ => "refusing",
        }
    }

    fn message(&self) -> Option<String> {
        let Refusal::Failed(error) = self else { return None };
        if let Some(error) = error.as_db_error() {
            return Some(error.message().to_owned());
        }
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        Some(format!("{error}{}", cause.unwrap_or_default()))
    }
}

/// What a server does that takes no connections for now, from what it says.
fn not_now(error: &tokio_postgres::Error, is_recovering: bool) -> &'static str {
    let said = error.as_db_error().map_or("", tokio_postgres::error::DbError::message);
    if said.contains("shutting down") {
        "stopping"
    } else if is_recovering || said.contains("recovery") || said.contains("consistent") {
        "recovering"
    } else {
        "starting"
    }
}

//! What to do about an error: the one place that tells what passes by itself from what needs somebody.
//!
//! In: any error of ours, with its causes. Out: the [`Trouble`] to wait out, or nothing where waiting cannot help. Called
//! by `satgres run` around everything that it does with the server, and by every command that opens a connection. It must
//! never call a mistake of ours a trouble that passes.

use std::error::Error;
use std::io;

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

/// A trouble that passes by itself, or when somebody acts elsewhere: what was being done is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The server went away or ended the connection: it was stopped, it crashed, the network failed.
    Gone,
    /// It is starting, recovering from a crash, or stopping.
    Starting,
    /// It has no connection left for us.
    Connections,
    /// Its disk is full, or ours is.
    Disk,
    /// It has no memory left.
    Memory,
    /// Another session was in the way.
    Conflict,
}

impl Trouble {
    /// What happened, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Trouble::Gone => "the connection to PostgreSQL was lost",
            Trouble::Starting => "PostgreSQL is starting, recovering or stopping",
            Trouble::Connections => {
                "PostgreSQL has no connection left: close other sessions, or raise max_connections"
            }
            Trouble::Disk => "the disk is full",
            Trouble::Memory => "PostgreSQL has no memory left",
            Trouble::Conflict => "another session was in the way",
        }
    }
}

/// Returns the trouble behind an error, or `None` where another try would fail alike.
#[must_use]
pub fn trouble(error: &(dyn Error + 'static)) -> Option<Trouble> {
    let mut cause = Some(error);
    let mut is_servers = false;
    while let Some(error) = cause {
        is_servers |= error.is::<tokio_postgres::Error>() || error.is::<sqlx::Error>();
        if let Some(trouble) = of_one(error, is_servers) {
            return Some(trouble);
        }
        cause = error.source();
    }
    None
}

/// Looks at one error of a chain; `is_servers` tells that what lies above it came from talking to the server.
fn of_one(error: &(dyn Error + 'static), is_servers: bool) -> Option<Trouble> {
    if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
        return match error.code() {
            Some(code) => of_state(code.code()),
            None => error.is_closed().then_some(Trouble::Gone),
        };
    }
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        return match error {
            sqlx::Error::Database(error) => error.code().and_then(|code| of_state(&code)),
            sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed => Some(Trouble::Gone),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<PoolError>() {
        return match error {
            PoolError::Timeout(_) => Some(Trouble::Connections),
            PoolError::Closed => Some(Trouble::Gone),
            _ => None,
        };
    }
    let kind = error.downcast_ref::<io::Error>()?.kind();
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Trouble::Disk),
        _ if !is_servers => None,
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => None,
        // A socket that is not there, refuses or falls silent: the server is down or on its way.
        _ => Some(Trouble::Gone),
    }
}

/// Classes as in the PostgreSQL manual, appendix "PostgreSQL Error Codes".
fn of_state(code: &str) -> Option<Trouble> {
    let is = |states: &[&SqlState]| states.iter().any(|state| state.code() == code);
    if is(&[&SqlState::CANNOT_CONNECT_NOW]) {
        return Some(Trouble::Starting);
    }
    if is(&[&SqlState::TOO_MANY_CONNECTIONS]) {
        return Some(Trouble::Connections);
    }
    if is(&[&SqlState::DISK_FULL]) {
        return Some(Trouble::Disk);
    }
    if is(&[&SqlState::OUT_OF_MEMORY]) {
        return Some(Trouble::Memory);
    }
    if is(&[
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
        &SqlState::LOCK_NOT_AVAILABLE,
    ]) {
        return Some(Trouble::Conflict);
    }
    let ended = [&SqlState::ADMIN_SHUTDOWN, &SqlState::CRASH_SHUTDOWN, &SqlState::IDLE_SESSION_TIMEOUT];
    (is(&ended) || code.starts_with("08")).then_some(Trouble::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_pass_are_told_from_those_that_do_not() {
        for (code, expected) in [
            ("57P01", Some(Trouble::Gone)),
            ("57P02", Some(Trouble::Gone)),
            ("57P03", Some(Trouble::Starting)),
            ("08006", Some(Trouble::Gone)),
            ("53300", Some(Trouble::Connections)),
            ("53100", Some(Trouble::Disk)),
            ("53200", Some(Trouble::Memory)),
            ("40001", Some(Trouble::Conflict)),
            ("40P01", Some(Trouble::Conflict)),
            ("55P03", Some(Trouble::Conflict)),
            ("23503", None),
            ("42501", None),
            ("XX001", None),
        ] {
            assert_eq!(of_state(code), expected, "{code}");
        }
    }

    #[test]
    fn only_a_full_disk_is_waited_out_where_the_file_is_ours() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(trouble(&full), Some(Trouble::Disk));
        let reset = io::Error::from_raw_os_error(libc::ECONNRESET);
        assert_eq!(trouble(&reset), None);
        let pool = crate::pg::pool::Error::Connection(PoolError::Closed);
        assert_eq!(trouble(&pool), Some(Trouble::Gone));
    }

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_a_server_that_is_down() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = tokio_postgres::Config::new();
        config.host_path(dir.path()).user("nobody");
        let error = config.connect(tokio_postgres::NoTls).await.map(|_| ()).unwrap_err();
        assert_eq!(trouble(&error), Some(Trouble::Gone));
        let wrapped = crate::pg::cluster::Error::Server { what: "accept a connection", source: error };
        assert_eq!(trouble(&wrapped), Some(Trouble::Gone));
    }
}

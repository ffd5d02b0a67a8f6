//! A server that is not ours: is it fit, what does it allow, what could it do better.
//!
//! In: the user's connection string. Out: [`External`], once all that a command needs is known to be there; each thing that
//! is not is one error with the very statement that mends it. Called by [`super::server`]. It needs no superuser, and changes
//! nothing but its own sessions.

use tokio_postgres::{Client, Row, error::SqlState};
use tracing::warn;

use super::{
    reaction::{self, Trouble},
    target::{self, Target, conninfo::Params},
    tls,
};
use crate::plan::advice::{NAMES, Reading, Running};

/// Oldest server that has what satgres uses, as `server_version_num`.
const VERSION_MIN: i32 = 150_000;
/// Connections that fill a segment's tables.
const COPIES: i64 = 4;
/// Connections that ask and record.
const CONTROLS: i64 = 6;
/// With fewer free connections a load cannot go on: those above, one build, one to spare.
const FREE_CONNECTIONS_MIN: i64 = COPIES + CONTROLS + 2;

/// What a command does with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Installs, loads, builds.
    Load,
    /// Reads, and records what it found.
    Check,
    /// Only reads; a standby will do.
    Read,
}

/// Why a server that is not ours cannot be used: the user must act, or its administrator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection string.
    #[error(transparent)]
    Target(#[from] target::Error),
    /// No connection.
    #[error("cannot connect to database {target}: {reason}")]
    Connect {
        /// Database, host and port.
        target: String,
        /// What happened and what to do.
        reason: String,
        /// Whether that may pass by itself.
        trouble: Option<Trouble>,
    },
    /// The database is not there.
    #[error(
        "there is no database {database} on that server\n  help: let its administrator run: create database {database} owner {role} encoding 'UTF8' template template0"
    )]
    NoDatabase {
        /// Its name, quoted.
        database: String,
        /// The role, quoted.
        role: String,
    },
    /// An old server.
    #[error(
        "the server is PostgreSQL {version}, but 15 or newer is needed\n  help: use a newer server, or leave --database-url out: satgres then brings its own"
    )]
    TooOld {
        /// Its version.
        version: String,
    },
    /// A standby.
    #[error(
        "the server is a standby: it only repeats what its primary does\n  help: give the URL of the primary"
    )]
    Standby,
    /// Transactions are read-only.
    #[error(
        "transactions of role {role} in database {database} are read-only\n  help: alter role {role} in database {database} set default_transaction_read_only = off"
    )]
    ReadOnly {
        /// The role, quoted.
        role: String,
        /// The database, quoted.
        database: String,
    },
    /// Text cannot be kept exactly.
    #[error(
        "database {database} has encoding {encoding}, but satgres keeps paths and messages as UTF-8\n  help: make another one: create database satgres owner {role} encoding 'UTF8' template template0"
    )]
    Encoding {
        /// The database, quoted.
        database: String,
        /// What it has.
        encoding: String,
        /// The role, quoted.
        role: String,
    },
    /// Schemas cannot be made.
    #[error(
        "role {role} may not create schemas in database {database}\n  help: let its owner run: grant create on database {database} to {role}"
    )]
    NoCreate {
        /// The role, quoted.
        role: String,
        /// The database, quoted.
        database: String,
    },
    /// PL/pgSQL is missing.
    #[error(
        "role {role} cannot use PL/pgSQL in database {database}, in which functions are written\n  help: let its owner run: create extension if not exists plpgsql; grant usage on language plpgsql to {role}"
    )]
    NoPlpgsql {
        /// The role, quoted.
        role: String,
        /// The database, quoted.
        database: String,
    },
    /// A schema of that name belongs to another program.
    #[error(
        "database {database} has a schema {schema} that satgres did not make, and it needs that name\n  help: give satgres a database of its own: create database satgres owner {role} encoding 'UTF8' template template0"
    )]
    ForeignSchema {
        /// The database, quoted.
        database: String,
        /// The schema.
        schema: String,
        /// The role, quoted.
        role: String,
    },
    /// Another role made it.
    #[error(
        "schema {schema} of database {database} belongs to role {owner}, not to {role}\n  help: connect as {owner}, or let an administrator run: grant {owner} to {role}"
    )]
    OtherOwner {
        /// The schema.
        schema: String,
        /// The database, quoted.
        database: String,
        /// Who owns it, quoted.
        owner: String,
        /// The role, quoted.
        role: String,
    },
    /// Sessions are shared.
    #[error(
        "the server is behind a connection pooler that gives each transaction another session, in which settings and locks get lost\n  help: connect to PostgreSQL itself, or to a pool with pool_mode = session"
    )]
    Pooler,
    /// Too few connections.
    #[error(
        "the server has {free} connections left for role {role}, but a load needs {FREE_CONNECTIONS_MIN}\n  help: end idle sessions, raise max_connections, or lift the limit: alter role {role} connection limit -1"
    )]
    Connections {
        /// How many are left.
        free: i64,
        /// The role, quoted.
        role: String,
    },
    /// A statement failed.
    #[error("cannot {what}")]
    Server {
        /// What was asked.
        what: &'static str,
        /// What the server said.
        source: tokio_postgres::Error,
    },
}

/// A server that is not ours, and fit.
#[derive(Debug, Clone)]
pub struct External {
    target: Target,
    version: String,
    /// Connections that this role may still open.
    free: i64,
    running: Running,
}

impl External {
    /// Connects, and checks all that the purpose needs.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn connect(params: &Params, purpose: Purpose) -> Result<External, Error> {
        let target = Target::external(params)?;
        let (client, task) = target.connect().await.map_err(|error| refused(&target, &error))?;
        let (version, free) = check(&client, purpose).await?;
        if purpose == Purpose::Load && is_pooled(&client, &target).await? {
            return Err(Error::Pooler);
        }
        let running = running(&client).await?;
        drop(client);
        // Says goodbye to the server, which otherwise logs a lost client.
        let _ = task.await;
        Ok(External { target, version, free, running })
    }

    /// How to connect.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Version, as the server prints it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The settings that [`crate::plan::advice`] looks at.
    #[must_use]
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Connections of the pool, of at most `wanted`.
    #[must_use]
    pub fn connections_max(&self, wanted: usize) -> usize {
        wanted.min(usize::try_from(self.free - COPIES).unwrap_or(0)).max(2)
    }

    /// Index builds at once, of at most `wanted`: each has a connection.
    #[must_use]
    pub fn builds_max(&self, wanted: usize) -> usize {
        wanted.min(usize::try_from(self.free - COPIES - CONTROLS).unwrap_or(0)).max(1)
    }
}

fn failed(what: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Error {
    move |source| Error::Server { what, source }
}

/// Quotes an identifier for the statement that the user will copy.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Says why there is no connection, and what to do.
fn refused(target: &Target, error: &tokio_postgres::Error) -> Error {
    let (user, database) = target.names();
    let (user, database) = (quoted(user), quoted(database));
    let reason = match error.code() {
        Some(&SqlState::INVALID_CATALOG_NAME) => return Error::NoDatabase { database, role: user },
        Some(&SqlState::INVALID_PASSWORD) => format!(
            "the password of role {user} is wrong or was not given\n  help: give it in the URL, in PGPASSWORD, or in ~/.pgpass"
        ),
        Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => format!(
            "{}\n  help: pg_hba.conf on the server decides who may connect from where, by TLS (sslmode) or without",
            said(error)
        ),
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => format!(
            "{}\n  help: let its owner run: grant connect on database {database} to {user}",
            said(error)
        ),
        Some(&SqlState::TOO_MANY_CONNECTIONS) => {
            format!("{}\n  help: end idle sessions, or raise max_connections", said(error))
        }
        _ => tls::explain(error).unwrap_or_else(|| said(error)),
    };
    Error::Connect { target: target.to_string(), reason, trouble: reaction::trouble(error) }
}

/// The whole chain of causes: tokio-postgres tells the reason only there.
fn said(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.message().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    if text.contains("password missing") {
        text.push_str("\n  help: give it in the URL, in PGPASSWORD, or in ~/.pgpass");
    }
    text
}

/// All that a check needs, in one row; a role without any privilege may ask it.
const FACTS: &str = "select current_setting('server_version_num')::int, current_setting('server_version'), \
        pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
        pg_encoding_to_char(d.encoding), current_user::text, d.datname::text, \
        has_database_privilege(d.oid, 'create'), \
        exists (select from pg_language where lanname = 'plpgsql' and has_language_privilege(oid, 'usage')), \
        exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                where n.nspname = 'ops' and c.relname = 'settings'), \
        least(current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8 \
                - coalesce(current_setting('reserved_connections', true)::int8, 0) \
                - (select coalesce(sum(numbackends), 0) from pg_stat_database)::int8, \
              case when d.datconnlimit >= 0 then d.datconnlimit::int8 - \
                (select numbackends from pg_stat_database s where s.datid = d.oid)::int8 end, \
              case when r.rolconnlimit >= 0 then r.rolconnlimit::int8 - \
                (select count(*) from pg_stat_activity a where a.usename = current_user) end) + 1 \
    from pg_database d cross join pg_roles r where d.datname = current_database() and r.rolname = current_user";

/// Schemas that bear a name of ours.
const SCHEMAS: &str = "select nspname::text, pg_get_userbyid(nspowner)::text, pg_has_role(nspowner, 'usage') \
    from pg_namespace where nspname in ('chain', 'ops', 'api', 'app') order by 1";

/// Checks what the purpose needs; returns the version, and how many connections are left with this one.
async fn check(client: &Client, purpose: Purpose) -> Result<(String, i64), Error> {
    let row = client.query_one(FACTS, &[]).await.map_err(failed("look at the server"))?;
    let schemas = client.query(SCHEMAS, &[]).await.map_err(failed("look for schemas"))?;
    judge(&row, &schemas, purpose)?;
    let (version, free) = (row.get(1), row.get(10));
    Ok((version, free))
}

fn judge(row: &Row, schemas: &[Row], purpose: Purpose) -> Result<(), Error> {
    let role = quoted(row.get(5));
    let database = quoted(row.get(6));
    if row.get::<_, i32>(0) < VERSION_MIN {
        return Err(Error::TooOld { version: row.get(1) });
    }
    if purpose == Purpose::Read {
        return Ok(());
    }
    if row.get(2) {
        return Err(Error::Standby);
    }
    if row.get(3) {
        return Err(Error::ReadOnly { role, database });
    }
    if purpose == Purpose::Check {
        return Ok(());
    }
    let encoding: String = row.get(4);
    if encoding != "UTF8" {
        return Err(Error::Encoding { database, encoding, role });
    }
    let is_ours: bool = row.get(9);
    for schema in schemas {
        let name: String = schema.get(0);
        // `app` is for applications, which may be there before the first load.
        if !is_ours && name != "app" {
            return Err(Error::ForeignSchema { database, schema: name, role });
        }
        if is_ours && name != "app" && !schema.get::<_, bool>(2) {
            return Err(Error::OtherOwner { schema: name, database, owner: quoted(schema.get(1)), role });
        }
    }
    if !row.get::<_, bool>(7) {
        return Err(Error::NoCreate { role, database });
    }
    if !row.get::<_, bool>(8) {
        return Err(Error::NoPlpgsql { role, database });
    }
    let free: i64 = row.get(10);
    if free < FREE_CONNECTIONS_MIN {
        return Err(Error::Connections { free, role });
    }
    Ok(())
}

/// Whether two connections share backends: a pooler in transaction mode hands the one just released to whoever comes
/// next. Two sessions of PostgreSQL's own never have one process, and a session never has two.
async fn is_pooled(one: &Client, target: &Target) -> Result<bool, Error> {
    let pid = "select pg_backend_pid()";
    let asking = "ask for a process id";
    let before: i32 = one.query_one(pid, &[]).await.map_err(failed(asking))?.get(0);
    let (mut other, task) = target.connect().await.map_err(|error| refused(target, &error))?;
    let transaction = other.transaction().await.map_err(failed("begin"))?;
    let others: i32 = transaction.query_one(pid, &[]).await.map_err(failed(asking))?.get(0);
    let after: i32 = one.query_one(pid, &[]).await.map_err(failed(asking))?.get(0);
    transaction.rollback().await.map_err(failed("roll back"))?;
    drop(other);
    let _ = task.await;
    Ok(shares_backends(before, others, after))
}

fn shares_backends(before: i32, others: i32, after: i32) -> bool {
    before == others || before != after
}

/// Reads the settings that advice is about.
async fn running(client: &Client) -> Result<Running, Error> {
    let reading = "read the server's settings";
    let sql = "select name, setting, unit from pg_settings where name = any($1)";
    let rows = client.query(sql, &[&NAMES]).await.map_err(failed(reading))?;
    let settings =
        rows.iter().map(|row| (row.get(0), Reading { setting: row.get(1), unit: row.get(2) })).collect();
    let slots = client.query_one("select exists (select from pg_replication_slots)", &[]).await;
    let has_slots = slots.map_err(failed(reading))?.get(0);
    Ok(Running { settings, has_slots })
}

/// Says what the server could do better; `place` is where it runs.
pub fn log_advice(advice: &[crate::plan::advice::Advice]) {
    for line in advice {
        if matches!(line.setting, "fsync" | "full_page_writes") {
            warn!("advice: {line}");
        } else {
            tracing::info!("advice: {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pooler_is_known_by_the_processes_behind_it() {
        assert!(!shares_backends(10, 11, 10));
        // The backend that the first one released.
        assert!(shares_backends(10, 10, 11));
        // It comes back to another, since its own is busy.
        assert!(shares_backends(10, 11, 12));
    }

    #[test]
    fn names_are_quoted_for_the_statement_that_mends() {
        let error = Error::NoCreate { role: quoted("me"), database: quoted("my\"db") };
        assert_eq!(
            error.to_string(),
            "role \"me\" may not create schemas in database \"my\"\"db\"\n  help: let its owner run: grant create on \
             database \"my\"\"db\" to \"me\""
        );
    }
}

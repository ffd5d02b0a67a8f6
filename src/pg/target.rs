//! Where the server is and how it is spoken to: every connection of satgres is made here.
//!
//! In: the private server's socket, or the user's connection string. Out: connections that are alike: by TLS or not, with the
//! session's settings made fit for loads that take hours. Called by [`super::pool`] and by [`super::external`]. It must never
//! tell a password, and never change anything on the server but its own session.

pub mod conninfo;

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_postgres::{
    CancelToken, Client, Config, NoTls,
    config::{Host, SslMode as Wanted, SslNegotiation},
    error::SqlState,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use self::conninfo::{ConninfoError, Params};
use super::{
    pool,
    tls::{self, SslMode, TlsOptions},
};
use crate::resources::{Found, ServerPlace};

/// Longest wait for the start of a connection where the user names none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// What a session of an external server gets: the role may set all of it. Limits made for short statements would end a
/// load, another kind of table could not be frozen, and rows that count as committed must be on disk. What a version lacks
/// or the role may not set is left out.
const SESSION: &str = "select set_config(s.name, w.value, false) \
    from (values ('statement_timeout', '0'), ('transaction_timeout', '0'), ('lock_timeout', '0'), \
                 ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'), \
                 ('client_connection_check_interval', '1s'), ('default_transaction_isolation', 'read committed'), \
                 ('default_table_access_method', 'heap'), ('standard_conforming_strings', 'on'), ('jit', 'off'), \
                 ('synchronous_commit', 'on')) w (name, value) \
    join pg_catalog.pg_settings s on s.name = w.name \
    where s.context = 'user' and s.setting <> w.value \
      and (s.name <> 'synchronous_commit' or s.setting = 'off')";

/// What a session gets that only looks: one transaction that can change nothing, whatever the role's defaults are, whose
/// settings end with it, also where a pooler gives the same session to others. Bounds are milliseconds.
const LOOK: &str = "begin isolation level read committed read only; set local statement_timeout = 1500; \
    set local lock_timeout = 500; set local idle_in_transaction_session_timeout = 10000; set local jit = off";

/// Why a connection string cannot be used: the user must act.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("the database URL cannot be used: {0}")]
    Conninfo(#[from] ConninfoError),
    /// It asks for something that tokio-postgres refuses.
    #[error("the database URL cannot be used: {}", cause(.0))]
    Config(tokio_postgres::Error),
    /// A value is none of those possible.
    #[error("the database URL cannot be used: {0}")]
    Value(String),
    /// Certificates or keys.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

/// The innermost reason, which is what tells something.
fn cause(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A server and how to connect to it.
#[derive(Clone)]
pub struct Target {
    config: Config,
    /// Modes to try, each after the one before was refused.
    attempts: Vec<Wanted>,
    tls: Option<MakeRustlsConnect>,
    /// What each session begins with.
    session: Option<&'static str>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self}, {:?})", self.attempts)
    }
}

impl fmt::Display for Target {
    /// Database, host and port: enough to know which one is meant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.config.get_dbname().or_else(|| self.config.get_user()).unwrap_or_default();
        write!(f, "{database:?} at ")?;
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            let port =
                self.config.get_ports().get(at).or_else(|| self.config.get_ports().first()).unwrap_or(&5432);
            let comma = if at == 0 { "" } else { ", " };
            match host {
                Host::Tcp(name) if name.contains(':') => write!(f, "{comma}[{name}]:{port}")?,
                Host::Tcp(name) => write!(f, "{comma}{name}:{port}")?,
                Host::Unix(dir) => write!(f, "{comma}{}:{port}", dir.display())?,
            }
        }
        Ok(())
    }
}

impl From<Config> for Target {
    /// The private server: a Unix socket, and settings that are ours.
    fn from(config: Config) -> Target {
        Target { config, attempts: vec![Wanted::Disable], tls: None, session: None }
    }
}

impl Target {
    /// Makes the target that a user's parameters name; reads certificates and the password file.
    ///
    /// # Errors
    /// [`Error`].
    pub fn external(params: &Params) -> Result<Target, Error> {
        let mut params = params.clone();
        complete(&mut params)?;
        let options = TlsOptions {
            mode: params
                .get("sslmode")
                .map_or_else(|| Ok(default_mode(&params)), str::parse)
                .map_err(Error::Value)?,
            root_cert: params.get("sslrootcert").map(str::to_owned),
            cert: params.get("sslcert").map(str::to_owned),
            key: params.get("sslkey").map(str::to_owned),
        };
        let mut config = config(&params)?;
        config.application_name("satgres");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        let is_socket = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let attempts = match options.mode {
            // libpq never uses TLS on a Unix socket either.
            _ if is_socket => vec![Wanted::Disable],
            SslMode::Disable => vec![Wanted::Disable],
            SslMode::Allow => vec![Wanted::Disable, Wanted::Require],
            SslMode::Prefer => vec![Wanted::Prefer, Wanted::Disable],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => vec![Wanted::Require],
        };
        let tls = if attempts == [Wanted::Disable] { None } else { Some(tls::connector(&options)?) };
        if tls.is_none() {
            config.ssl_negotiation(SslNegotiation::Postgres);
        }
        Ok(Target { config, attempts, tls, session: Some(SESSION) })
    }

    /// Gives its connections a name, by which `pg_stat_activity` shows them.
    #[must_use]
    pub fn named(mut self, name: &str) -> Target {
        self.config.application_name(name);
        self
    }

    /// Makes each connection a short look at the user's own server: one read-only transaction, bounded in time.
    #[must_use]
    pub fn looking(mut self) -> Target {
        self.session = self.session.map(|_| LOOK);
        self
    }

    /// Opens a connection, whose task logs how it ends.
    ///
    /// # Errors
    /// What the server says to the last attempt.
    pub async fn connect(&self) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let mut attempts = self.attempts.iter().peekable();
        loop {
            let mode = *attempts.next().expect("there is one attempt at least, and the last one returns");
            match self.connect_with(mode).await {
                // Only pg_hba.conf can want the other way.
                Err(error) if is_refused_by_hba(&error) && attempts.peek().is_some() => {}
                Err(error) => return Err(error),
                Ok((client, task)) => {
                    if let Some(session) = self.session {
                        client.batch_execute(session).await?;
                    }
                    return Ok((client, task));
                }
            }
        }
    }

    async fn connect_with(&self, mode: Wanted) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let mut config = self.config.clone();
        config.ssl_mode(mode);
        match &self.tls {
            Some(tls) if mode != Wanted::Disable => {
                let (client, connection) = config.connect(tls.clone()).await?;
                Ok((client, tokio::spawn(pool::drive(connection))))
            }
            _ => {
                let (client, connection) = config.connect(NoTls).await?;
                Ok((client, tokio::spawn(pool::drive(connection))))
            }
        }
    }

    /// Asks the server to end the statement of another connection of this target, by TLS where that one is.
    ///
    /// # Errors
    /// Where the server cannot be asked; whether it heeded is not known.
    pub async fn cancel(&self, token: &CancelToken) -> Result<(), tokio_postgres::Error> {
        match &self.tls {
            Some(tls) => token.cancel_query(tls.clone()).await,
            None => token.cancel_query(NoTls).await,
        }
    }

    /// Whether the server is on this host, as far as the address tells.
    #[must_use]
    pub fn place(&self) -> Found<ServerPlace> {
        let is_here = |host: &Host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => {
                name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|it| it.is_loopback())
            }
        };
        let place = if self.config.get_hosts().iter().all(is_here) {
            ServerPlace::ThisHost
        } else {
            ServerPlace::OtherHost
        };
        Found::new(place, format!("database {self}"))
    }

    /// The role, and the database, that are asked for.
    #[must_use]
    pub fn names(&self) -> (&str, &str) {
        let user = self.config.get_user().unwrap_or_default();
        (user, self.config.get_dbname().unwrap_or(user))
    }
}

fn is_refused_by_hba(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

/// libpq checks everything where the system's authorities are trusted.
fn default_mode(params: &Params) -> SslMode {
    if params.get("sslrootcert") == Some("system") { SslMode::VerifyFull } else { SslMode::Prefer }
}

/// The file of a server's socket (PostgreSQL manual, "unix_socket_directories").
pub(super) fn socket_file(dir: &Path, port: impl fmt::Display) -> PathBuf {
    dir.join(format!(".s.PGSQL.{port}"))
}

/// Fills what libpq takes from the system: host, user, database, the password's file.
fn complete(params: &mut Params) -> Result<(), Error> {
    if let Some(address) = params.get("hostaddr").map(str::to_owned)
        && params.get("host").is_none()
    {
        params.set("host", address);
    }
    if params.get("host").is_none() {
        let socket_dirs = ["/var/run/postgresql", "/tmp"].into_iter();
        let port = params.get("port").unwrap_or("5432").to_owned();
        let found = socket_dirs.into_iter().find(|dir| socket_file(Path::new(dir), &port).exists());
        params.set("host", found.unwrap_or("localhost"));
    }
    if params.get("user").is_none() {
        params.set("user", system_user().ok_or_else(|| Error::Value("it names no user".to_owned()))?);
    }
    if params.get("dbname").is_none() {
        let user = params.get("user").unwrap_or_default().to_owned();
        params.set("dbname", user);
    }
    if params.get("password").is_some() {
        return Ok(());
    }
    let home = std::env::home_dir().map(|home| home.join(".pgpass"));
    let Some(file) = params.get("passfile").map(Into::into).or(home) else { return Ok(()) };
    let text = |key| params.get(key).unwrap_or_default().to_owned();
    let (hosts, ports, database, user) = (text("host"), text("port"), text("dbname"), text("user"));
    let host = hosts.split(',').next().unwrap_or_default();
    let port = ports.split(',').next().filter(|port| !port.is_empty()).unwrap_or("5432");
    let is_default_socket = host == "/var/run/postgresql" || host == "/tmp";
    let host = if is_default_socket { "localhost" } else { host };
    match conninfo::password_from_file(&file, [host, port, &database, &user]) {
        Ok(Some(password)) => params.set("password", password),
        Ok(None) => {}
        // As libpq: said, and gone on without.
        Err(error) => tracing::warn!("{error}"),
    }
    Ok(())
}

/// Name of the user that this process runs as.
fn system_user() -> Option<String> {
    // SAFETY: reads the process' own id.
    let uid = unsafe { libc::geteuid() };
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = fields.find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(uid))?;
    Some((*line.first()?).to_owned())
}

/// What tokio-postgres knows itself is left to its own parser.
fn config(params: &Params) -> Result<Config, Error> {
    const OURS: [&str; 8] = [
        "passfile",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "application_name",
        "keepalives_count",
        "tcp_user_timeout",
    ];
    let mut text = String::new();
    for (key, value) in params.iter().filter(|(key, _)| !OURS.contains(key)) {
        let value = value.replace('\\', "\\\\").replace('\'', "\\'");
        text.push_str(&format!("{key}='{value}' "));
    }
    let mut config: Config = text.parse().map_err(Error::Config)?;
    if let Some(count) = params.get("keepalives_count") {
        let count = count.parse().map_err(|_| Error::Value("keepalives_count is no number".to_owned()))?;
        config.keepalives_retries(count);
    }
    if let Some(milliseconds) = params.get("tcp_user_timeout") {
        let count =
            milliseconds.parse().map_err(|_| Error::Value("tcp_user_timeout is no number".to_owned()))?;
        config.tcp_user_timeout(Duration::from_millis(count));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        Target::external(&Params::parse(text, &|_| None).unwrap()).unwrap()
    }

    #[test]
    fn a_target_is_told_without_its_password() {
        let shown = |text| target(text).to_string();
        assert_eq!(shown("postgresql://me:secret@db.example/chain"), "\"chain\" at db.example:5432");
        assert_eq!(shown("postgresql://me@[::1]:5433/chain"), "\"chain\" at [::1]:5433");
        assert_eq!(shown("host=/run/pg user=me"), "\"me\" at /run/pg:5432");
        assert_eq!(shown("postgresql://me@a:1,b:2/chain"), "\"chain\" at a:1, b:2");
        assert!(!format!("{:?}", target("postgresql://me:secret@h/chain")).contains("secret"));
    }

    #[test]
    fn only_a_socket_or_a_loopback_address_is_this_host() {
        let place = |text| target(text).place().value;
        assert_eq!(place("host=/run/pg user=me"), ServerPlace::ThisHost);
        assert_eq!(place("postgresql://me@127.0.0.1/x"), ServerPlace::ThisHost);
        assert_eq!(place("postgresql://me@[::1]/x"), ServerPlace::ThisHost);
        assert_eq!(place("postgresql://me@localhost/x"), ServerPlace::ThisHost);
        assert_eq!(place("postgresql://me@db.example/x"), ServerPlace::OtherHost);
        assert_eq!(place("postgresql://me@localhost,db.example/x"), ServerPlace::OtherHost);
    }

    #[test]
    fn each_sslmode_has_its_attempts() {
        let attempts = |mode: &str| target(&format!("host=h user=me sslmode={mode}")).attempts;
        assert_eq!(attempts("disable"), [Wanted::Disable]);
        assert_eq!(attempts("allow"), [Wanted::Disable, Wanted::Require]);
        assert_eq!(attempts("prefer"), [Wanted::Prefer, Wanted::Disable]);
        assert_eq!(attempts("require"), [Wanted::Require]);
        assert_eq!(target("host=/run/pg user=me sslmode=require").attempts, [Wanted::Disable]);
        let wrong = Params::parse("host=h user=me sslmode=on", &|_| None).unwrap();
        assert!(Target::external(&wrong).unwrap_err().to_string().contains("use disable, allow"));
    }

    #[test]
    fn what_is_left_open_is_the_systems() {
        let params = Params::parse("hostaddr=127.0.0.1 user=me", &|_| None).unwrap();
        let found = Target::external(&params).unwrap();
        assert_eq!(found.config.get_hosts(), [Host::Tcp("127.0.0.1".to_owned())]);
        assert_eq!(found.names(), ("me", "me"));
        assert_eq!(found.config.get_connect_timeout(), Some(&Duration::from_secs(30)));
        let wrong = Params::parse("host=h user=me port=many", &|_| None).unwrap();
        let error = Target::external(&wrong).unwrap_err().to_string();
        assert!(error.starts_with("the database URL cannot be used: "), "{error}");
    }
}

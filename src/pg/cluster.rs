//! The private PostgreSQL under the data directory: made, started, adopted, restarted, stopped.
//!
//! In: a data directory and the settings wanted. Out: a running server with a database `satgres`, reachable by its
//! Unix socket alone. Called by every command before it does anything else, and safe to call from several at once.
//! It never removes a finished cluster, never touches a server of another directory, and never edits the user's
//! `user.conf`.
//!
//! ```text
//! DATA_DIR/satgres.lock   held while a server is made, started or stopped
//! DATA_DIR/pg/            the cluster; satgres.conf and user.conf in it
//! DATA_DIR/pg.new/        a cluster being made: renamed when finished, removed if it is found
//! DATA_DIR/pg.log         the server's log; pg.log.1 is the part before
//! DATA_DIR/run/           the socket (elsewhere if the path is too long)
//! ```

mod account;
mod data_dir;
mod error;
mod files;
mod glance;
mod initdb;
mod lock;
mod postmaster;
mod session;
mod socket;

use std::{
    fs,
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use tracing::{debug, info, warn};

use self::{
    account::Account,
    data_dir::{Reach, make_data_dir, open_to_account},
    error::io_error,
    files::{LOG_BYTES_MAX, log_path, rotate, write_file},
    initdb::{initdb, version_of},
    lock::{lock, lock_within},
};
pub use self::{
    error::Error,
    glance::{Glance, glance, major_version, system_identifier},
    lock::ServiceLock,
    postmaster::{Error as PostmasterError, Postmaster},
};
use super::{
    binaries::Binaries,
    conf::{self, Setting},
    target::socket_file,
};
use crate::plan::Phase;

/// Superuser of the cluster, and name of the database.
pub const USER: &str = "satgres";
/// The database.
pub const DATABASE: &str = "satgres";

/// Starts in one call at most: a server that ends while it is being asked is started again.
const STARTS_MAX: u32 = 3;
/// How long a stop waits for a command that starts the server.
const STOP_LOCK_WAIT_MAX: Duration = Duration::from_secs(10);

/// What a command wants of the server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory, absolute.
    pub data_dir: PathBuf,
    /// Directory of the server's programs, if the user named one.
    pub pg_bin: Option<PathBuf>,
    /// Settings for `satgres.conf`, written whenever the server is started.
    pub settings: Vec<Setting>,
    /// Whether a server that runs already must take these settings too, by a restart if need be.
    pub reconfigure: bool,
}

/// The running private server.
#[derive(Debug, Clone)]
pub struct Cluster {
    data_dir: PathBuf,
    binaries: Binaries,
    account: Account,
    reach: Reach,
    postmaster: Postmaster,
}

impl Cluster {
    /// Makes the cluster if there is none, starts the server if it is down, otherwise adopts it.
    ///
    /// Several processes may call this at once: a lock file puts them in order.
    ///
    /// # Errors
    /// [`Error`]; its text says what to do.
    pub async fn start(options: Options) -> Result<Cluster, Error> {
        let reconfigure = options.reconfigure;
        let settings = options.settings.clone();
        let mut tries_left = STARTS_MAX;
        let (mut cluster, started, lock) = loop {
            let options = options.clone();
            let (cluster, started, lock) = blocking(move || Cluster::start_process(&options)).await?;
            tries_left -= 1;
            match session::check_in(&cluster).await {
                Ok(()) => break (cluster, started, lock),
                // It ended while it was asked: stopped, or killed.
                Err(_) if tries_left > 0 && !cluster.is_up() => {
                    info!("PostgreSQL ended; it is started again")
                }
                Err(error) => return Err(error),
            }
        };
        if reconfigure && !started {
            cluster.reconfigure_locked(settings).await?;
        }
        drop(lock);
        Ok(cluster)
    }

    /// Stops the server of a data directory: fast, and harder where that does not end. Returns whether one was running.
    ///
    /// # Errors
    /// [`Error::Postmaster`] where it does not stop, [`Error::Locked`].
    pub async fn stop(data_dir: PathBuf) -> Result<bool, Error> {
        blocking(move || {
            let pg_dir = data_dir.join("pg");
            if !pg_dir.is_dir() {
                return Ok(false);
            }
            let account = Account::choose(&data_dir, &pg_dir)?;
            if ServiceLock::is_held(&data_dir) {
                warn!("a `satgres run` is at work: it starts PostgreSQL again; stop it first");
            }
            // Whoever waits for a server in recovery holds the lock, maybe for an hour: a stop need not wait for that.
            let _lock = match lock_within(&data_dir, &account, STOP_LOCK_WAIT_MAX) {
                Err(Error::Locked { .. }) if postmaster::running(&pg_dir, &account)?.is_some() => None,
                Err(Error::Locked { .. }) => Some(lock(&data_dir, &account)?),
                other => Some(other?),
            };
            let Some(pid) = postmaster::running(&pg_dir, &account)? else { return Ok(false) };
            postmaster::stop(pid, &pg_dir, &account, &postmaster::STOP_WAITS)?;
            info!(pid, "PostgreSQL stopped");
            Ok(true)
        })
        .await
    }

    /// The connection string, for psql and every other client of libpq.
    #[must_use]
    pub fn url(&self) -> String {
        let host = percent_encode(self.postmaster.socket_dir.as_os_str().as_bytes());
        format!("postgresql://{USER}@/{DATABASE}?host={host}&port={}", self.postmaster.port)
    }

    /// The same as a value for tokio-postgres; the application name is set.
    #[must_use]
    pub fn pg_config(&self) -> tokio_postgres::Config {
        let mut config = self.postmaster.pg_config();
        config.application_name("satgres").connect_timeout(Duration::from_secs(30));
        config
    }

    /// Whether the server's process lives.
    #[must_use]
    pub fn is_up(&self) -> bool {
        postmaster::works_in(self.postmaster.pid, &self.pg_dir(), &self.account)
    }

    /// The server process and its socket.
    #[must_use]
    pub fn postmaster(&self) -> &Postmaster {
        &self.postmaster
    }

    /// The programs it runs.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// PostgreSQL's own directory inside the data directory.
    #[must_use]
    pub fn pg_dir(&self) -> PathBuf {
        self.data_dir.join("pg")
    }

    /// Gives the running server other settings; restarts it if one of them needs that. Returns whether it did.
    ///
    /// # Errors
    /// [`Error::Configuration`] where the files have mistakes; the server then runs on unchanged. [`Error::Locked`].
    pub async fn reconfigure(&mut self, settings: Vec<Setting>) -> Result<bool, Error> {
        let this = self.clone();
        // Another command must not start the server while it is down for the restart.
        let lock = blocking(move || lock(&this.data_dir, &this.account)).await?;
        let restarted = self.reconfigure_locked(settings).await?;
        drop(lock);
        Ok(restarted)
    }

    async fn reconfigure_locked(&mut self, settings: Vec<Setting>) -> Result<bool, Error> {
        let this = self.clone();
        let wanted = settings.clone();
        blocking(move || this.write_conf(&wanted, &this.postmaster.socket_dir)).await?;
        if !session::reload(self).await? {
            return Ok(false);
        }
        info!("restarting PostgreSQL: changed settings need it");
        let this = self.clone();
        self.postmaster = blocking(move || {
            postmaster::stop(this.postmaster.pid, &this.pg_dir(), &this.account, &postmaster::STOP_WAITS)?;
            this.spawn(&settings)
        })
        .await?;
        Ok(true)
    }

    /// Runs steps on the cluster's files with the rights of the server's user. They are given its directory by a path
    /// that this user can walk, whatever is above it; it is of use on this thread and until they end.
    ///
    /// # Errors
    /// [`Error::Io`] where the directory cannot be opened.
    pub fn as_server_user<T>(&self, steps: impl FnOnce(&Path) -> T) -> Result<T, Error> {
        let pg_dir = self.pg_dir();
        let directory = open_to_walk(&pg_dir).map_err(io_error("open directory", &pg_dir))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Ok(self.account.look(|| steps(&path)))
    }

    /// Puts the server's log aside once it is large, so that the two files together stay bounded.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn rotate_log(&self) -> Result<(), Error> {
        rotate(&log_path(&self.data_dir), LOG_BYTES_MAX)
    }

    /// The phase that the server's settings were last written for: LIVE once it was reached, before that REPLAY.
    #[must_use]
    pub fn recorded_phase(data_dir: &Path) -> Phase {
        let text = fs::read_to_string(conf_path(data_dir)).unwrap_or_default();
        match conf::value_in(&text, "wal_level") {
            Some(level) if level != "minimal" => Phase::Live,
            _ => Phase::Replay,
        }
    }

    /// The steps that need no connection. Returns whether the server was started here, and the lock.
    fn start_process(options: &Options) -> Result<(Cluster, bool, File), Error> {
        let data_dir = make_data_dir(&options.data_dir)?;
        let pg_dir = data_dir.join("pg");
        let account = Account::choose(&data_dir, &pg_dir)?;
        open_to_account(&data_dir, &account)?;
        let lock = lock(&data_dir, &account)?;

        let found = version_of(&pg_dir)?;
        let major_wanted = found.as_deref().and_then(|version| version.parse().ok());
        let binaries = Binaries::find(options.pg_bin.as_deref(), major_wanted)?;
        account.check_runs(&binaries.program("postgres"))?;
        let reach = Reach::find(&data_dir, &account)?;
        match found {
            None => initdb(&binaries, &data_dir, &account, reach)?,
            Some(found) if major_wanted != Some(binaries.major) => {
                let (dir, have) = (binaries.dir, binaries.major);
                return Err(Error::OtherVersion { pg_dir, found, binaries: dir, have });
            }
            Some(_) => {}
        }

        let log = log_path(&data_dir);
        rotate(&log, LOG_BYTES_MAX)?;
        if let Some(postmaster) = adopt(&data_dir, &account)? {
            return Ok((Cluster { data_dir, binaries, account, reach, postmaster }, false, lock));
        }
        postmaster::clear_leftovers(&pg_dir, &account)?;
        let nobody = Postmaster { pid: 0, port: 0, socket_dir: PathBuf::new() };
        let mut cluster = Cluster { data_dir, binaries, account, reach, postmaster: nobody };
        cluster.postmaster = cluster.spawn(&options.settings)?;
        Ok((cluster, true, lock))
    }

    /// Writes the settings and starts the server, which must be down.
    fn spawn(&self, settings: &[Setting]) -> Result<Postmaster, Error> {
        let socket_dir = socket::prepare(&self.data_dir, &self.account)?;
        postmaster::clear_socket_locks(&socket_dir)?;
        self.write_conf(settings, &socket_dir)?;
        let began = Instant::now();
        let program = self.binaries.program("postgres");
        let postmaster = postmaster::spawn(
            &program,
            &self.pg_dir(),
            &log_path(&self.data_dir),
            &self.account,
            self.reach,
        )?;
        info!(
            version = self.binaries.version,
            pid = postmaster.pid,
            milliseconds = began.elapsed().as_millis(),
            data_dir = %self.data_dir.display(),
            "PostgreSQL started"
        );
        Ok(postmaster)
    }

    /// Writes `satgres.conf` where it differs.
    fn write_conf(&self, settings: &[Setting], socket_dir: &Path) -> Result<(), Error> {
        let told = self.reach.socket_directory(&self.data_dir, socket_dir);
        let mut all = vec![
            Setting::new("listen_addresses", "", "a private server: nobody reaches it by network"),
            Setting::new("unix_socket_directories", told.to_string_lossy(), "closed to other users"),
            Setting::new("unix_socket_permissions", "0700", "only the server's user, and root, may connect"),
            Setting::new("port", socket::PORT.to_string(), "only names the socket's file"),
        ];
        all.extend(conf::settle(settings, |name, value| self.knows(name, value)));
        let (path, text) = (conf_path(&self.data_dir), conf::render(&all));
        if let Ok(before) = fs::read_to_string(&path) {
            let changes = conf::changes(&before, &text);
            // A cluster that was just made has an empty file.
            if !changes.is_empty() && conf::value_in(&before, "port").is_some() {
                info!(changes = changes.join(", "), "settings of PostgreSQL changed");
            }
        }
        write_file(&path, &text, &self.account)
    }

    /// Asks the server program whether it accepts a setting's value.
    fn knows(&self, name: &str, value: &str) -> bool {
        let mut command = self.account.command(&self.binaries.program("postgres"));
        command.arg("-C").arg(name).arg("-c").arg(format!("{name}={value}"));
        if self.reach.add_directory(&mut command, &self.pg_dir()).is_err() {
            return false;
        }
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }
}

/// The server that runs already, once it is ready; `None` where none runs, or it was just stopping.
fn adopt(data_dir: &Path, account: &Account) -> Result<Option<Postmaster>, Error> {
    let pg_dir = data_dir.join("pg");
    let Some(pid) = postmaster::running(&pg_dir, account)? else { return Ok(None) };
    let postmaster = match postmaster::adopt(pid, &pg_dir, &log_path(data_dir), account) {
        Err(postmaster::Error::Died { .. }) => return Ok(None),
        other => other?,
    };
    socket::check(&postmaster.socket_dir, account).or_else(|error| {
        // A directory that the user chose in user.conf is the user's affair.
        let ours = socket::prepare(data_dir, account)?;
        if postmaster.socket_dir == ours { Err(error) } else { Ok(()) }
    })?;
    // An older server of a directory that was removed takes the socket of its path along when it ends.
    let socket = socket_file(&postmaster.socket_dir, postmaster.port);
    if fs::symlink_metadata(&socket).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        warn!(pid, socket = %socket.display(), "PostgreSQL runs, but its socket is gone: starting it again");
        postmaster::stop(pid, &pg_dir, account, &postmaster::STOP_WAITS)?;
        return Ok(None);
    }
    debug!(pid, "PostgreSQL is running already");
    Ok(Some(postmaster))
}

/// The file of settings that satgres writes.
fn conf_path(data_dir: &Path) -> PathBuf {
    data_dir.join("pg/satgres.conf")
}

/// Opens a directory, also through a link, only to get to what is in it.
fn open_to_walk(dir: &Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(dir)
}

/// Encodes a path for use in a URL's query.
fn percent_encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Runs steps that wait for files and processes, off the runtime's threads.
async fn blocking<T: Send + 'static>(
    steps: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(steps).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process ids of the server's own processes with such a title.
    fn children(pid: i32, title: &str) -> Vec<i32> {
        let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is_wanted = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(title))
        };
        listed.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_wanted).collect()
    }

    /// PostgreSQL 15, told to stop while it recovered, waited for its checkpointer for ever.
    #[tokio::test]
    async fn a_server_that_waits_for_its_checkpointer_for_ever_is_stopped_all_the_same() {
        use std::os::unix::fs::PermissionsExt as _;
        let open = fs::Permissions::from_mode(0o755);
        let temp = tempfile::Builder::new().prefix("satgres-test-").permissions(open).tempdir().unwrap();
        let data_dir = temp.path().join("data");
        let settings = conf::replay(2);
        let options = Options { data_dir, pg_bin: None, settings, reconfigure: false };
        let waits = postmaster::StopWaits {
            fast: Duration::from_secs(2),
            sessions: Duration::from_secs(2),
            recovering: Duration::from_secs(2),
            harder: Duration::from_secs(2),
        };
        // A stopped server takes no signal but the last; a stopped child of it is killed by the server itself, or by us.
        for is_server in [false, true] {
            let cluster = Cluster::start(options.clone()).await.unwrap();
            let pid = cluster.postmaster().pid;
            let checkpointer = children(pid, "checkpointer");
            assert_eq!(checkpointer.len(), 1);
            let held = if is_server { pid } else { checkpointer[0] };
            // SAFETY: processes that this test has started.
            assert_eq!(unsafe { libc::kill(held, libc::SIGSTOP) }, 0);
            let (pg_dir, account) = (cluster.pg_dir(), cluster.account.clone());
            blocking(move || Ok(postmaster::stop(pid, &pg_dir, &account, &waits)?)).await.unwrap();
            assert!(!cluster.is_up());
            assert_eq!(postmaster::running(&cluster.pg_dir(), &cluster.account).unwrap(), None);
        }
        let cluster = Cluster::start(options.clone()).await.unwrap();
        assert!(cluster.is_up());
        assert!(Cluster::stop(options.data_dir).await.unwrap());
    }

    #[test]
    fn a_path_with_odd_bytes_survives_in_a_url() {
        assert_eq!(percent_encode(b"/tmp/a b&c=d%\xc3\xa9"), "/tmp/a%20b%26c%3Dd%25%C3%A9");
    }
}

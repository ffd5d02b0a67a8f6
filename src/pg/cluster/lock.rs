//! The two locks of a data directory: one puts starts and stops of the server in order, one says that a `satgres
//! run` is at work. Both are `flock`s: they end with their process, however that ends, and nobody cleans up.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use tracing::info;

use super::{Error, account::Account, data_dir::make_data_dir, io_error};

/// Longest wait for another command that makes, starts or stops the server.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(900);

/// How long somebody who only looks may hold the lock of a run.
const LOOK_MAX: Duration = Duration::from_millis(300);

/// The right to change the data: at most one `satgres run` per data directory holds it, until it is dropped.
#[derive(Debug)]
pub struct ServiceLock {
    _file: File,
}

impl ServiceLock {
    /// Takes the lock `DATA_DIR/run.lock`, and writes the process id into it.
    ///
    /// # Errors
    /// [`Error::InService`] where another process holds it.
    pub fn take(data_dir: &Path) -> Result<ServiceLock, Error> {
        let data_dir = make_data_dir(data_dir)?;
        let path = data_dir.join("run.lock");
        let mut file = open_lock(&path)?;
        let began = Instant::now();
        while !try_flock(&file).map_err(io_error("lock", &path))? {
            if began.elapsed() > LOOK_MAX {
                let pid = std::fs::read_to_string(&path).unwrap_or_default();
                let seconds = file.metadata().and_then(|found| found.modified());
                let seconds =
                    seconds.ok().and_then(|since| since.elapsed().ok()).unwrap_or_default().as_secs();
                return Err(Error::InService { data_dir, pid: pid.trim().to_owned(), seconds });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // For whoever comes second.
        let told = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        told.map_err(io_error("write", &path))?;
        Ok(ServiceLock { _file: file })
    }

    /// Whether a run is at work on the data directory.
    pub(super) fn is_held(data_dir: &Path) -> bool {
        let Ok(file) = File::open(data_dir.join("run.lock")) else { return false };
        // A look takes the lock for a moment.
        matches!(try_flock(&file), Ok(false))
    }
}

/// Takes the lock that puts starts and stops in order; waits for whoever holds it.
pub(super) fn lock(data_dir: &Path, account: &Account) -> Result<File, Error> {
    lock_within(data_dir, account, LOCK_WAIT_MAX)
}

/// The same with another bound.
pub(super) fn lock_within(data_dir: &Path, account: &Account, wait_max: Duration) -> Result<File, Error> {
    let path = data_dir.join("satgres.lock");
    let file = open_lock(&path)?;
    account.hand_over(&path)?;
    let began = Instant::now();
    let mut told = false;
    while !try_flock(&file).map_err(io_error("lock", &path))? {
        let waited = began.elapsed();
        if waited > wait_max {
            return Err(Error::Locked { data_dir: data_dir.to_owned(), seconds: waited.as_secs() });
        }
        if !told && waited > Duration::from_secs(2) {
            told = true;
            info!("waiting for another satgres command that starts or stops the server");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(file)
}

fn open_lock(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map_err(io_error("open", path))
}

/// Locks a file, without waiting; the lock ends with the file or the process, however that ends.
fn try_flock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open for as long as `file` lives.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

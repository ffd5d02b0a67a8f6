//! A data directory of a test's own, whose server is ended with it.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use satgres::pg::{cluster::Options, conf};

/// A temporary data directory; dropping it stops the server and removes everything.
#[derive(Debug)]
pub struct DataDir {
    temp: tempfile::TempDir,
    data_dir: PathBuf,
}

impl DataDir {
    /// A directory that does not exist yet, in a private temporary one.
    pub fn new() -> DataDir {
        DataDir::below(Path::new("data"))
    }

    /// A directory at a path below a private temporary one.
    pub fn below(path: &Path) -> DataDir {
        let temp = tempfile::Builder::new().prefix("satgres-test-").tempdir().unwrap();
        open(temp.path());
        let data_dir = temp.path().join(path);
        DataDir { temp, data_dir }
    }

    /// A directory two levels below one that only its owner may enter, as temporary directories are.
    pub fn below_a_closed_one() -> DataDir {
        let temp = tempfile::Builder::new().prefix("satgres-test-").tempdir().unwrap();
        let data_dir = temp.path().join("closed/data");
        close(temp.path());
        std::fs::create_dir(temp.path().join("closed")).unwrap();
        close(&temp.path().join("closed"));
        DataDir { temp, data_dir }
    }

    /// The temporary directory that holds the data directory.
    pub fn parent(&self) -> &Path {
        self.temp.path()
    }

    pub fn path(&self) -> &Path {
        &self.data_dir
    }

    pub fn pg_dir(&self) -> PathBuf {
        self.data_dir.join("pg")
    }

    pub fn options(&self) -> Options {
        Options {
            data_dir: self.data_dir.clone(),
            pg_bin: None,
            settings: conf::replay(2),
            reconfigure: false,
        }
    }

    /// Process id of the server, from its file; it may be stale.
    pub fn pid(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.pg_dir().join("postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let Some(pid) = self.pid().filter(|pid| is_postgres(*pid)) else { return };
        signal(pid, libc::SIGQUIT);
        wait_until("the server ends", || !is_postgres(pid));
    }
}

/// Lets every user through a directory.
pub fn open(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Lets nobody but its owner into a directory.
pub fn close(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
}

pub fn is_root() -> bool {
    // SAFETY: reads the process' own id.
    unsafe { libc::geteuid() == 0 }
}

/// Whether a live process bears the server's name; a dead one that nobody has reaped yet does not count.
pub fn is_postgres(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains("(postgres)") && !stat.contains("(postgres) Z")
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: sends a signal to a process that the test started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill {pid}");
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! A cgroup with a memory limit, of whichever version this machine has, and what the kernel counts in it.
//!
//! In: a limit. Out: a cgroup whose members are started through it, figures, and a reason where none can be made. With
//! SATGRES_SKIP=never that is a failure. It is removed with the guard, once its last process has ended.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A cgroup with a memory limit.
#[derive(Debug)]
pub struct MemoryCgroup {
    dir: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// What the kernel counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Most memory at one time that only ending a process gives back, bytes: private pages and shared buffers.
    pub unreclaimable_bytes_max: u64,
    /// Most memory of any kind at one time, page cache too, bytes; `None` before Linux 5.19 (version 2).
    pub usage_bytes_max: Option<u64>,
    /// Processes that were killed for want of memory.
    pub oom_kills: u64,
}

impl MemoryCgroup {
    /// Makes one; `None`, with the reason said, where that cannot be done.
    pub fn new(limit_bytes: u64) -> Option<MemoryCgroup> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("satgres-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let mut reasons = Vec::new();
        for (version, root) in [(Version::V1, "/sys/fs/cgroup/memory"), (Version::V2, "/sys/fs/cgroup")] {
            let dir = Path::new(root).join(&name);
            if let Err(error) = fs::create_dir(&dir) {
                reasons.push(format!("{}: {error}", dir.display()));
                continue;
            }
            let cgroup = MemoryCgroup { dir, version };
            match fs::write(cgroup.dir.join(cgroup.limit_file()), limit_bytes.to_string()) {
                Ok(()) => return Some(cgroup),
                Err(error) => reasons.push(format!("{root} {}: {error}", cgroup.limit_file())),
            }
        }
        let reasons = reasons.join("; ");
        assert!(
            std::env::var_os("SATGRES_SKIP").is_none_or(|skip| skip != "never"),
            "no memory cgroup can be made here: {reasons}"
        );
        eprintln!("SKIPPED: no memory cgroup can be made here: {reasons}");
        None
    }

    /// Where a process writes itself to become a member.
    pub fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// How a plan names the limit.
    pub fn source(&self) -> String {
        let version = if self.version == Version::V1 { "v1" } else { "v2" };
        let name = self.dir.file_name().unwrap().to_str().unwrap();
        format!("cgroup {version} {} of /{name}", self.limit_file())
    }

    fn limit_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        }
    }

    /// Looks at it every 20 ms until the watch ends.
    pub fn watch(&self) -> Watch {
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, dir, version) = (Arc::clone(&is_over), self.dir.clone(), self.version);
        let thread = thread::spawn(move || {
            let mut most = 0;
            while !ends.load(Ordering::Relaxed) {
                most = most.max(unreclaimable_bytes(&dir, version));
                thread::sleep(Duration::from_millis(20));
            }
            Counted { unreclaimable_bytes_max: most, ..counted(&dir, version) }
        });
        Watch { is_over, thread }
    }
}

/// Somebody looks at a cgroup.
#[derive(Debug)]
pub struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Counted>,
}

impl Watch {
    /// Ends looking.
    pub fn end(self) -> Counted {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn unreclaimable_bytes(dir: &Path, version: Version) -> u64 {
    let keys = match version {
        Version::V1 => ["total_rss", "total_shmem"],
        Version::V2 => ["anon", "shmem"],
    };
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap();
    keys.map(|key| field(&stat, key).unwrap_or_else(|| panic!("{key}: {stat}"))).iter().sum()
}

fn counted(dir: &Path, version: Version) -> Counted {
    let (peak, events) = match version {
        Version::V1 => ("memory.max_usage_in_bytes", "memory.oom_control"),
        Version::V2 => ("memory.peak", "memory.events"),
    };
    let events = fs::read_to_string(dir.join(events)).unwrap();
    Counted {
        unreclaimable_bytes_max: 0,
        usage_bytes_max: fs::read_to_string(dir.join(peak)).ok().map(|text| text.trim().parse().unwrap()),
        oom_kills: field(&events, "oom_kill").unwrap_or_else(|| panic!("{events}")),
    }
}

/// Reads a line `KEY NUMBER`.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // The last backends of a server that was stopped are on their way out; whoever else is left was forgotten when
        // something failed.
        let began = Instant::now();
        while let Err(error) = fs::remove_dir(&self.dir) {
            if began.elapsed() > Duration::from_secs(20) {
                eprintln!("{}: {error}", self.dir.display());
                return;
            }
            if began.elapsed() > Duration::from_secs(5) {
                let members = fs::read_to_string(self.procs()).unwrap_or_default();
                for pid in members.lines().filter_map(|line| line.parse().ok()) {
                    // SAFETY: sends a signal to a process that was started in this cgroup.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

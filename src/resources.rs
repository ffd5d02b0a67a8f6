//! What this machine gives to this process: memory, cores, disk, shared memory, each with where it was read.
//!
//! In: `/proc` and `/sys/fs/cgroup`, below a root that tests choose, and the data directory. Out: [`Resources`], from
//! which [`crate::plan`] decides who gets what. Called by `run`, by `tune` and whenever the private server is started.
//! Whatever the files hold, it never panics and never fails: what cannot be read counts as absent.
//!
//! The `sysinfo` crate says what kind of disk it is, what memory there is where there is no `/proc`, and gives a second
//! opinion on the limits of this process' own cgroup (of two limits the tighter one counts). The limits are read here
//! first all the same, because sysinfo gives up as a whole when one file is missing (a cgroup namespace that shows
//! paths which are not mounted, an ancestor without the memory controller), reads `memory.high` not at all and of
//! `mountinfo` the first 16 KiB only, knows no CPU quota, and does not say which ancestor a limit comes from.

mod cgroup;
pub(crate) mod disk;

use std::{fmt, fs, io::Read as _, path::Path};

pub use self::disk::DiskKind;
use crate::config::format_size;

/// Memory assumed where none can be read: 4 GiB, or 2 GiB on a 32-bit system, as Bitcoin Core assumes.
pub const RAM_UNKNOWN_BYTES: u64 = if cfg!(target_pointer_width = "32") { 2 << 30 } else { 4 << 30 };

/// Most bytes read of a file in `/proc` or `/sys`.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A value and where it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// The value.
    pub value: T,
    /// Where it comes from, for people: `cgroup v2 memory.max of /a/b`.
    pub source: String,
}

impl<T> Found<T> {
    /// Pairs a value with its source.
    pub fn new(value: T, source: impl Into<String>) -> Found<T> {
        Found { value, source: source.into() }
    }
}

/// Where the PostgreSQL server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerPlace {
    /// On this host: it shares the memory.
    ThisHost,
    /// On another one, of which nothing is known.
    OtherHost,
}

/// What the machine gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// Memory that this process and the server on the same host may use, bytes.
    pub ram_bytes: Found<u64>,
    /// Cores, by affinity and quota; at least 1.
    pub cpus: Found<usize>,
    /// Free bytes where the database lies.
    pub disk_free_bytes: Option<Found<u64>>,
    /// Kind of the disk where the database lies.
    pub disk: Found<DiskKind>,
    /// Size of `/dev/shm`, where parallel workers share memory.
    pub shm_bytes: Option<Found<u64>>,
    /// Where the server runs.
    pub server: Found<ServerPlace>,
}

impl Resources {
    /// A machine of which nothing is known but its cores.
    #[must_use]
    pub fn unknown(cpus: usize) -> Resources {
        Resources {
            ram_bytes: unknown_ram(),
            cpus: Found::new(cpus.max(1), "given"),
            disk_free_bytes: None,
            disk: Found::new(DiskKind::Ssd, "unknown, taken as ssd"),
            shm_bytes: None,
            server: Found::new(ServerPlace::ThisHost, "private server"),
        }
    }

    /// Looks at this machine; the private server's data is, or will be, below `data_dir`.
    #[must_use]
    pub fn detect(data_dir: &Path) -> Resources {
        let mut found = Resources::read(Path::new("/"));
        if let Some(limit) = second_opinion(found.ram_bytes.source.starts_with("unknown"))
            && (limit.value < found.ram_bytes.value || found.ram_bytes.source.starts_with("unknown"))
        {
            found.ram_bytes = limit;
        }
        found.disk = disk::kind(data_dir);
        found.disk_free_bytes = disk::free_bytes(data_dir);
        found.shm_bytes = disk::size_bytes(Path::new("/dev/shm"));
        found
    }

    /// Reads memory and cores from the `/proc` and `/sys/fs/cgroup` below `root`.
    #[must_use]
    pub fn read(root: &Path) -> Resources {
        let groups = cgroup::Groups::read(root);
        Resources { ram_bytes: ram(root, &groups), cpus: cpus(root, &groups), ..Resources::unknown(1) }
    }
}

impl fmt::Display for Resources {
    /// One line: every value with its source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RAM {} ({}), CPUs {} ({}), disk {} ({})",
            about(self.ram_bytes.value),
            self.ram_bytes.source,
            self.cpus.value,
            self.cpus.source,
            self.disk.value,
            self.disk.source
        )?;
        if let Some(free) = &self.disk_free_bytes {
            write!(f, ", {} free ({})", about(free.value), free.source)?;
        }
        if let Some(shm) = &self.shm_bytes {
            write!(f, ", shared memory {} ({})", about(shm.value), shm.source)?;
        }
        match self.server.value {
            ServerPlace::ThisHost => write!(f, ", PostgreSQL on this host ({})", self.server.source),
            ServerPlace::OtherHost => write!(f, ", PostgreSQL on another host ({})", self.server.source),
        }
    }
}

/// Writes a size for people: exact where whole MiB or less than one, else in MiB, rounded down.
#[must_use]
pub fn about(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    match bytes {
        _ if bytes < MIB || bytes.is_multiple_of(MIB) => format_size(bytes),
        _ if bytes < 100 * MIB => format!("{}.{}MiB", bytes / MIB, bytes % MIB * 10 / MIB),
        _ => format!("{}MiB", bytes / MIB),
    }
}

fn unknown_ram() -> Found<u64> {
    Found::new(RAM_UNKNOWN_BYTES, format!("unknown, taken as {}", format_size(RAM_UNKNOWN_BYTES)))
}

/// The tightest of physical memory and the limits of all cgroups from this process' own up to the root.
fn ram(root: &Path, groups: &cgroup::Groups) -> Found<u64> {
    let mut limits = groups.memory_limits();
    limits.extend(mem_total(root));
    limits.into_iter().min_by_key(|limit| limit.value).unwrap_or_else(unknown_ram)
}

fn mem_total(root: &Path) -> Option<Found<u64>> {
    let text = read_text(&root.join("proc/meminfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    let bytes = kib.checked_mul(1024).filter(|bytes| *bytes > 0)?;
    Some(Found::new(bytes, "MemTotal of /proc/meminfo"))
}

/// The cores that affinity allows, or as many as the tightest quota is worth, rounded down.
fn cpus(root: &Path, groups: &cgroup::Groups) -> Found<usize> {
    let mut limits = groups.cpu_quotas();
    limits.extend(affinity(root).or_else(|| processors(root)));
    let tightest = limits.into_iter().min_by_key(|limit| limit.value);
    tightest.unwrap_or_else(|| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Found::new(cpus, "the system's own count")
    })
}

fn affinity(root: &Path) -> Option<Found<usize>> {
    let text = read_text(&root.join("proc/self/status"))?;
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut count: usize = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.saturating_add(last.checked_sub(first)? as usize + 1);
    }
    Some(Found::new(count, "Cpus_allowed_list of /proc/self/status"))
}

fn processors(root: &Path) -> Option<Found<usize>> {
    let text = read_text(&root.join("proc/cpuinfo"))?;
    let count = text.lines().filter(|line| line.starts_with("processor")).count();
    (count > 0).then(|| Found::new(count, "/proc/cpuinfo"))
}

/// What sysinfo says of this process' cgroup; where nothing else is known, of the machine too.
fn second_opinion(nothing_known: bool) -> Option<Found<u64>> {
    let mut system = sysinfo::System::new().ok()?;
    let pid = sysinfo::get_current_pid().ok()?;
    let wanted = sysinfo::ProcessesToUpdate::Some(&[pid]);
    system.refresh_processes_specifics(wanted, false, sysinfo::ProcessRefreshKind::nothing());
    let limits = system.process(pid).and_then(sysinfo::Process::cgroup_limits);
    if let Some(limits) = limits.filter(|limits| limits.total_memory > 0) {
        return Some(Found::new(limits.total_memory, "cgroup limit of this process, by sysinfo"));
    }
    if nothing_known {
        system.refresh_memory();
        let bytes = system.total_memory();
        return (bytes > 0).then(|| Found::new(bytes, "physical memory, by sysinfo"));
    }
    None
}

/// Reads a file of the system's, whatever it holds; `None` if it cannot be read.
fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;

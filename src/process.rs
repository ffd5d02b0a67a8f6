//! Processes as the kernel's tables tell them: is it still the one that wrote a file, and how much memory it has.
//!
//! In: what a process wrote about itself, or a process id. Out: whether it lives, since when, and bytes. Called by
//! [`crate::status`] and by the private server's start and stop. A process id alone is never believed: ids are used again,
//! and mean another process in another container.

use std::{fs, time::Duration};

use serde::{Deserialize, Serialize};

/// A process that says nothing for longer than this may be dead where nothing else tells.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What tells a process from every other one, before and after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Process id.
    pub pid: i32,
    /// When it was started, in the kernel's ticks since it booted.
    pub start_ticks: u64,
    /// Which boot of which machine.
    pub boot_id: String,
    /// In which container its id means something.
    pub pid_namespace: String,
}

/// What can be said of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It runs.
    Alive,
    /// It has ended.
    Gone,
    /// It cannot be seen from here: another container, or processes of other users are hidden.
    Unseen,
}

impl Identity {
    /// This process.
    #[must_use]
    pub(crate) fn own() -> Identity {
        let pid = i32::try_from(std::process::id()).expect("the kernel's process ids fit 31 bits");
        Identity {
            pid,
            start_ticks: stat(pid).map_or(0, |(_, start)| start),
            boot_id: boot_id(),
            pid_namespace: pid_namespace(),
        }
    }

    /// Looks whether the process still runs; `silence` is the time since its last word.
    #[must_use]
    pub(crate) fn look(&self, silence: Duration) -> Presence {
        self.look_from(&boot_id(), &pid_namespace(), silence)
    }

    fn look_from(&self, boot_id: &str, pid_namespace: &str, silence: Duration) -> Presence {
        if self.boot_id != boot_id {
            // Another machine may share the directory; after a restart of this one nothing is written any more.
            return if silence <= SILENCE_MAX { Presence::Unseen } else { Presence::Gone };
        }
        if self.pid_namespace != pid_namespace {
            return Presence::Unseen;
        }
        match stat(self.pid) {
            Some((state, start)) if start == self.start_ticks && is_live(state) => Presence::Alive,
            Some(_) => Presence::Gone,
            // Not in /proc, but there: processes of others are hidden.
            None if exists(self.pid) => Presence::Unseen,
            None => Presence::Gone,
        }
    }
}

/// Whether a process of that id is there, of whatever user.
fn exists(pid: i32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let sent = unsafe { libc::kill(pid, 0) };
    sent == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy().into_owned()
}

/// When a process was started, in the kernel's ticks since it booted; `None` once it has ended, even if nobody has reaped it yet.
#[must_use]
pub(crate) fn start_ticks(pid: i32) -> Option<u64> {
    let (state, start) = stat(pid)?;
    is_live(state).then_some(start)
}

/// Whether a process in that state still runs: a zombie has ended.
fn is_live(state: char) -> bool {
    !matches!(state, 'Z' | 'X')
}

/// State and start of a process, in the kernel's ticks.
fn stat(pid: i32) -> Option<(char, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `pid (name) state …`: the start is the 22nd field; the name may hold anything, parentheses too.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Resident memory of a process, bytes.
#[must_use]
pub(crate) fn rss_bytes(pid: i32) -> Option<u64> {
    field_bytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// A server process and its children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Family {
    /// How many processes.
    pub processes: u64,
    /// Private memory of all, and what the largest has mapped of the memory that they share, counted once; bytes.
    pub bytes: u64,
    /// Whether one of them replays the log of a server that crashed.
    pub is_recovering: bool,
}

/// Looks at a server and its children; `None` where it is not there or hidden.
#[must_use]
pub(crate) fn family(parent: i32) -> Option<Family> {
    let mut found = Family::default();
    let mut shared = 0;
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        if pid != parent && field(&status, "PPid:") != Some(&parent.to_string()) {
            continue;
        }
        found.processes += 1;
        found.bytes += field_bytes(&status, "RssAnon:").unwrap_or(0);
        shared = shared.max(field_bytes(&status, "RssShmem:").unwrap_or(0));
        let title = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        found.is_recovering |= String::from_utf8_lossy(&title).contains("startup recovering");
    }
    found.bytes += shared;
    (found.processes > 0).then_some(found)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn field_bytes(status: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(status, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn a_process_is_told_from_a_later_one_with_the_same_id() {
        let own = Identity::own();
        assert_eq!(own.look(NOW), Presence::Alive);
        let earlier = Identity { start_ticks: own.start_ticks - 1, ..own.clone() };
        assert_eq!(earlier.look(NOW), Presence::Gone);
        let nobody = Identity { pid: i32::MAX, ..own };
        assert_eq!(nobody.look(NOW), Presence::Gone);
    }

    #[test]
    fn a_dead_process_that_nobody_reaped_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let identity = Identity { pid, start_ticks: stat(pid).unwrap().1, ..Identity::own() };
        assert_eq!(identity.look(NOW), Presence::Alive);
        assert_eq!(start_ticks(pid), Some(identity.start_ticks));
        child.kill().unwrap();
        while stat(pid).is_some_and(|(state, _)| state != 'Z') {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(start_ticks(pid), None, "dead, and not reaped yet");
        assert_eq!(identity.look(NOW), Presence::Gone);
        child.wait().unwrap();
        assert_eq!(identity.look(NOW), Presence::Gone);
    }

    #[test]
    fn what_cannot_be_seen_is_neither_alive_nor_gone() {
        let own = Identity::own();
        let other = |boot: &str, namespace: &str, seconds| {
            own.look_from(boot, namespace, Duration::from_secs(seconds))
        };
        assert_eq!(other(&own.boot_id, "pid:[1]", 3600), Presence::Unseen);
        assert_eq!(other("another", &own.pid_namespace, 2), Presence::Unseen);
        assert_eq!(other("another", &own.pid_namespace, 11), Presence::Gone);
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let rest = "1 2 3 0 -1 4194560 5 6 7 8 9 10 11 12 20 0 1 0 8675309 13 14";
        assert_eq!(parse_stat(&format!("4711 (a) b)) S {rest}")), Some(('S', 8_675_309)));
        assert_eq!(parse_stat("4711"), None);
        let status = "Name:\tpostgres\nPPid:\t17\nVmRSS:\t   2048 kB\nRssAnon:\t     512 kB\n";
        assert_eq!((field(status, "PPid:"), field_bytes(status, "VmRSS:")), (Some("17"), Some(2_097_152)));
        assert_eq!(field_bytes(status, "RssShmem:"), None);
        let own = family(Identity::own().pid).unwrap();
        assert!(own.processes >= 1 && own.bytes > 1 << 16, "{own:?}");
    }
}

//! Limits of the cgroups that this process is in: its own and every ancestor's, versions 1 and 2, mixed as well.
//!
//! In: `/proc/self/cgroup`, `/proc/self/mountinfo` and the mounted hierarchies, below a root. Out: every memory limit and
//! CPU quota that binds this process, named by file and cgroup. Where a path is not mounted (cgroup namespaces,
//! containers that see the host's paths) what is mounted still counts. It never takes a limit of a sibling.

use std::path::{Component, Path, PathBuf};

use super::{Found, read_text};

/// From here on a number means that there is no limit: version 1 writes the largest multiple of the page size that
/// fits in 63 bits, such as 9223372036854771712.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// Most ancestors looked at: the kernel's own bound is far lower.
const LEVELS_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// One cgroup: its directory as we see it and its name as the kernel gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Level {
    version: Version,
    dir: PathBuf,
    name: String,
}

/// The cgroups of this process, own first, by controller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Groups {
    memory: Vec<Level>,
    cpu: Vec<Level>,
}

impl Groups {
    pub(super) fn read(root: &Path) -> Groups {
        let membership = read_text(&root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = mounts(root);
        let mut groups = Groups::default();
        for (controller, levels) in [("memory", &mut groups.memory), ("cpu", &mut groups.cpu)] {
            levels.extend(levels_of(Version::V2, None, &membership, &mounts));
            levels.extend(levels_of(Version::V1, Some(controller), &membership, &mounts));
        }
        groups
    }

    /// Every memory limit in force, own cgroup first.
    pub(super) fn memory_limits(&self) -> Vec<Found<u64>> {
        let mut limits = Vec::new();
        for level in &self.memory {
            let files: &[&str] = match level.version {
                Version::V2 => &["memory.max", "memory.high"],
                Version::V1 => &["memory.limit_in_bytes"],
            };
            for file in files {
                let bytes = level.read(file).and_then(|text| limit_bytes(&text));
                limits.extend(bytes.map(|bytes| level.found(bytes, file)));
            }
        }
        // Version 1 also tells of ancestors that a namespace hides.
        if let Some(own) = self.memory.iter().find(|level| level.version == Version::V1) {
            let stat = own.read("memory.stat").unwrap_or_default();
            let text = stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "));
            let bytes = text.and_then(limit_bytes);
            limits.extend(bytes.map(|bytes| own.found(bytes, "hierarchical_memory_limit")));
        }
        limits
    }

    /// Every CPU quota in force as whole cores, rounded down, at least 1.
    pub(super) fn cpu_quotas(&self) -> Vec<Found<usize>> {
        let mut quotas = Vec::new();
        for level in &self.cpu {
            let (file, quota) = match level.version {
                Version::V2 => {
                    let text = level.read("cpu.max").unwrap_or_default();
                    let mut words = text.split_whitespace();
                    (
                        "cpu.max",
                        words.next().zip(words.next()).and_then(|(quota, period)| cores(quota, period)),
                    )
                }
                Version::V1 => {
                    let both = level.read("cpu.cfs_quota_us").zip(level.read("cpu.cfs_period_us"));
                    ("cpu.cfs_quota_us", both.and_then(|(quota, period)| cores(&quota, &period)))
                }
            };
            quotas.extend(quota.map(|cores| level.found(cores, file)));
        }
        quotas
    }
}

impl Level {
    fn read(&self, file: &str) -> Option<String> {
        read_text(&self.dir.join(file))
    }

    fn found<T>(&self, value: T, file: &str) -> Found<T> {
        let version = if self.version == Version::V1 { "v1" } else { "v2" };
        Found::new(value, format!("cgroup {version} {file} of {}", self.name))
    }
}

/// A limit in bytes; `None` where the text means none or nothing at all.
fn limit_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| (1..NO_LIMIT_BYTES).contains(bytes))
}

fn cores(quota: &str, period: &str) -> Option<usize> {
    let quota: u64 = quota.trim().parse().ok().filter(|quota| *quota > 0)?;
    let period: u64 = period.trim().parse().ok().filter(|period| *period > 0)?;
    usize::try_from((quota / period).max(1)).ok()
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// Controllers of version 1.
    controllers: Vec<String>,
    /// Which cgroup is mounted.
    top: PathBuf,
    /// Where.
    dir: PathBuf,
}

/// Finds the hierarchies: by `mountinfo`, otherwise at the places where they usually are.
fn mounts(root: &Path) -> Vec<Mount> {
    let table = read_text(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounts: Vec<Mount> = table.lines().filter_map(|line| mount(root, line)).collect();
    if !mounts.is_empty() {
        return mounts;
    }
    let base = root.join("sys/fs/cgroup");
    let usual = |version, controllers: &[&str], dir: PathBuf| Mount {
        version,
        controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        top: PathBuf::from("/"),
        dir,
    };
    let version_1 = ["memory", "cpu", "cpu,cpuacct"].map(|name| {
        let controllers: Vec<&str> = name.split(',').collect();
        usual(Version::V1, &controllers, base.join(name))
    });
    let version_2 = [base.clone(), base.join("unified")].map(|dir| usual(Version::V2, &[], dir));
    // Of version 2 there is one hierarchy: a directory that holds version 1's is not its root.
    let is_root = |mount: &Mount| mount.dir.join("cgroup.controllers").exists() || mount.dir != base;
    let version_2 = version_2.into_iter().filter(|mount| mount.dir.is_dir()).find(is_root);
    let version_2 = version_2.or_else(|| {
        let any = version_1.iter().any(|mount| mount.dir.is_dir());
        (!any && base.is_dir()).then(|| usual(Version::V2, &[], base.clone()))
    });
    version_2.into_iter().chain(version_1.into_iter().filter(|mount| mount.dir.is_dir())).collect()
}

/// Reads one line of `mountinfo`: `ID PARENT DEVICE TOP DIR OPTIONS [FIELDS] - TYPE SOURCE SUPER_OPTIONS`.
fn mount(root: &Path, line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (top, dir) = (unescape(before.next()?), unescape(before.next()?));
    let mut after = after.split(' ');
    let version = match after.next()? {
        "cgroup2" => Version::V2,
        "cgroup" => Version::V1,
        _ => return None,
    };
    let options = after.nth(1).unwrap_or_default();
    Some(Mount {
        version,
        controllers: options.split(',').map(str::to_owned).collect(),
        top: PathBuf::from(top),
        dir: root.join(dir.trim_start_matches('/')),
    })
}

/// Puts back the spaces that the kernel writes as `\040`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The cgroups of one hierarchy that bind this process and can be seen, own first.
fn levels_of(version: Version, controller: Option<&str>, membership: &str, mounts: &[Mount]) -> Vec<Level> {
    let has = |mount: &&Mount| {
        mount.version == version
            && controller.is_none_or(|name| mount.controllers.iter().any(|have| have == name))
    };
    let path = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match controller {
            Some(name) => controllers.split(',').any(|have| have == name),
            None => id == "0" && controllers.is_empty(),
        };
        is_it.then(|| Path::new(path))
    });
    // Without membership nothing but the top of a mount can be ours; in a namespace that is this process' own cgroup.
    let path = path.unwrap_or_else(|| Path::new("/"));
    let below = |mount: &Mount| {
        let rest = path.strip_prefix(&mount.top).ok()?;
        let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| rest.to_owned())
    };
    let fitting = mounts.iter().filter(has).find_map(|mount| Some((mount, below(mount)?)));
    let fitting = fitting.or_else(|| Some((mounts.iter().find(has)?, PathBuf::new())));
    let Some((mount, rest)) = fitting else { return Vec::new() };
    let level = |rest: &Path| Level {
        version,
        dir: mount.dir.join(rest),
        name: if rest.as_os_str().is_empty() {
            mount.top.display().to_string()
        } else {
            mount.top.join(rest).display().to_string()
        },
    };
    rest.ancestors().map(level).filter(|level| level.dir.is_dir()).take(LEVELS_MAX).collect()
}

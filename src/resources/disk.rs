//! The disk below a directory: how much is free and what kind it is.
//!
//! In: a path that may not exist yet. Out: figures of the file system that holds it. It asks nothing of other file
//! systems, since a network mount that is down would hang.

use std::{
    ffi::CString,
    fmt, fs,
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::Found;

/// What a disk is, as far as planning cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// Solid state.
    Ssd,
    /// Solid state, attached by NVMe.
    Nvme,
    /// Rotating: random reads cost a hundred times a sequential one.
    Hdd,
}

impl fmt::Display for DiskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskKind::Ssd => "ssd",
            DiskKind::Nvme => "nvme",
            DiskKind::Hdd => "hdd",
        })
    }
}

impl FromStr for DiskKind {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskKind, String> {
        match text {
            "ssd" => Ok(DiskKind::Ssd),
            "nvme" => Ok(DiskKind::Nvme),
            "hdd" => Ok(DiskKind::Hdd),
            _ => Err("use ssd, nvme or hdd".to_owned()),
        }
    }
}

/// The nearest directory that is there, without links.
fn existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|path| fs::canonicalize(path).ok())
}

fn statvfs(path: &Path) -> Option<libc::statvfs> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut figures = MaybeUninit::uninit();
    // SAFETY: `path` ends with NUL and `figures` has room for the answer, which is read only if there was one.
    unsafe { (libc::statvfs(path.as_ptr(), figures.as_mut_ptr()) == 0).then(|| figures.assume_init()) }
}

/// Bytes that may still be written where `path` is or will be.
pub(super) fn free_bytes(path: &Path) -> Option<Found<u64>> {
    let there = existing(path)?;
    let figures = statvfs(&there)?;
    let bytes = figures.f_bavail.saturating_mul(figures.f_frsize);
    Some(Found::new(bytes, format!("file system of {}", there.display())))
}

/// A file system, as far as room in it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Tells two apart.
    pub(crate) device: u64,
    /// The directory at which it is mounted.
    pub(crate) mounted_at: PathBuf,
    /// Bytes that may still be written.
    pub(crate) free_bytes: u64,
}

/// Returns the file system where `path` is or will be; `None` where it cannot be told.
pub(crate) fn file_system(path: &Path) -> Option<FileSystem> {
    use std::os::unix::fs::MetadataExt as _;
    let there = existing(path)?;
    let device_of = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    let device = device_of(&there)?;
    let mounted_at = there.ancestors().take_while(|path| device_of(path) == Some(device)).last()?;
    let free_bytes = free_bytes(&there)?.value;
    Some(FileSystem { device, mounted_at: mounted_at.to_owned(), free_bytes })
}

/// Says which file system holds `path`, and how much of it is free.
pub(crate) fn room(path: &Path) -> Option<String> {
    let FileSystem { mounted_at, free_bytes, .. } = file_system(path)?;
    let free = indicatif::HumanBytes(free_bytes);
    Some(format!(
        "{free} are free on the file system at {}, which holds {}",
        mounted_at.display(),
        path.display()
    ))
}

/// Size of the file system mounted at `path`; `None` where it is a plain directory of another.
pub(super) fn size_bytes(path: &Path) -> Option<Found<u64>> {
    let figures = statvfs(path)?;
    let bytes = figures.f_blocks.saturating_mul(figures.f_frsize);
    (bytes > 0).then(|| Found::new(bytes, path.display().to_string()))
}

/// Kind of the disk where `path` is or will be.
pub(super) fn kind(path: &Path) -> Found<DiskKind> {
    let unknown = || Found::new(DiskKind::Ssd, "unknown, taken as ssd");
    let Some(there) = existing(path) else { return unknown() };
    let wanted = sysinfo::DiskRefreshKind::nothing().with_kind();
    let Ok(disks) = sysinfo::Disks::new_with_refreshed_list_specifics(wanted) else { return unknown() };
    let holding = disks.iter().filter(|disk| there.starts_with(disk.mount_point()));
    let Some(disk) = holding.max_by_key(|disk| disk.mount_point().components().count()) else {
        return unknown();
    };
    let device = disk.name().to_string_lossy();
    let name = device.rsplit('/').next().unwrap_or(&device);
    match disk.kind() {
        _ if name.starts_with("nvme") => Found::new(DiskKind::Nvme, device),
        // Virtual disks claim to rotate whatever lies behind them.
        sysinfo::DiskKind::HDD if name.starts_with("vd") || name.starts_with("xvd") => {
            Found::new(DiskKind::Ssd, format!("{device}, virtual, taken as ssd"))
        }
        sysinfo::DiskKind::HDD => Found::new(DiskKind::Hdd, device),
        sysinfo::DiskKind::SSD => Found::new(DiskKind::Ssd, device),
        _ => Found::new(DiskKind::Ssd, format!("{device}, unknown, taken as ssd")),
    }
}

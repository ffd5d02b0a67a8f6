//! The data directory: made, handed over, and how the server's user gets into it.
//!
//! Root may put it below directories that are closed to the server's user: a private temporary directory, its own
//! home. Those belong to others and stay as they are. The server is then led past them: root opens PostgreSQL's
//! directory, the programs inherit the descriptor, and their `-D` is `/proc/self/fd/N`. The kernel follows that link
//! without a look at the parents. PostgreSQL enters it once and from then on uses relative paths; its children
//! inherit the descriptor too, so the configuration files are found again at every reload. Called by
//! [`super::Cluster`]; it must never change a directory that satgres did not make or was not given.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, OpenOptionsExt},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Error,
    account::{self, Account},
    io_error,
};

/// Where a process finds the files that it has open.
const DESCRIPTORS: &str = "/proc/self/fd";

/// How the server's user gets into the cluster's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// By its path, like everybody.
    Path,
    /// By a descriptor that root opened: a directory above is closed to that user.
    Descriptor,
}

impl Reach {
    /// Finds out how the server's user gets into the data directory, and that it can.
    ///
    /// # Errors
    /// [`account::Error::Unreachable`] with the first closed directory where that user may not enter the data
    /// directory itself, or its `pg` is a link to a place beyond a closed directory.
    pub(super) fn find(data_dir: &Path, account: &Account) -> Result<Reach, Error> {
        if account.can_reach(data_dir) {
            return Ok(Reach::Path);
        }
        let pg_dir = data_dir.join("pg");
        let directory = open_directory(data_dir).map_err(io_error("open directory", data_dir))?;
        if account.may_enter(&directory) && !pg_dir.is_symlink() {
            return Ok(Reach::Descriptor);
        }
        let mut ancestors: Vec<&Path> = data_dir.ancestors().collect();
        ancestors.reverse();
        let closed = ancestors.into_iter().find(|dir| !account.can_reach(dir)).unwrap_or(data_dir);
        Err(account::Error::Unreachable { user: account.name.clone(), dir: closed.to_owned() }.into())
    }

    /// Adds `-D DIR` to one of PostgreSQL's programs, and what it needs to get there; returns that name of the
    /// directory, which PostgreSQL uses in its messages.
    pub(super) fn add_directory(self, command: &mut Command, dir: &Path) -> io::Result<PathBuf> {
        if self == Reach::Path {
            command.arg("-D").arg(dir);
            return Ok(dir.to_owned());
        }
        let directory = open_directory(dir)?;
        let name = Path::new(DESCRIPTORS).join(directory.as_raw_fd().to_string());
        command.arg("-D").arg(&name);
        // SAFETY: fcntl is async-signal-safe; the closure owns the descriptor, so it is open when the child is made.
        unsafe {
            command.pre_exec(move || match libc::fcntl(directory.as_raw_fd(), libc::F_SETFD, 0) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        Ok(name)
    }

    /// The socket directory as the server must be told it: relative to its own directory where it cannot use paths.
    pub(super) fn socket_directory(self, data_dir: &Path, socket_dir: &Path) -> PathBuf {
        match (self, socket_dir.strip_prefix(data_dir)) {
            (Reach::Descriptor, Ok(below)) => Path::new("..").join(below),
            _ => socket_dir.to_owned(),
        }
    }

    /// Whether a server that calls its directory by this name can still find its configuration files.
    pub(super) fn is_served_by(self, name: &str) -> bool {
        self == Reach::Path || Path::new(name).starts_with(DESCRIPTORS)
    }
}

/// The path of a directory that a server in `DATA_DIR/pg` names, maybe relative to its own.
pub(super) fn resolve(pg_dir: &Path, named: &Path) -> PathBuf {
    match (named.strip_prefix(".."), pg_dir.parent()) {
        (Ok(below), Some(data_dir)) => data_dir.join(below),
        _ => pg_dir.join(named),
    }
}

/// Makes the data directory if need be and returns its real path.
///
/// What is missing above it is made as well, open to others as far as the umask allows.
pub(super) fn make_data_dir(data_dir: &Path) -> Result<PathBuf, Error> {
    if !data_dir.is_dir() {
        let parent = data_dir.parent().unwrap_or(data_dir);
        let mut above = fs::DirBuilder::new();
        above.recursive(true).mode(0o755).create(parent).map_err(io_error("make directory", parent))?;
        let made = fs::DirBuilder::new().mode(0o700).create(data_dir);
        if !data_dir.is_dir() {
            made.map_err(io_error("make directory", data_dir))?;
        }
    }
    fs::canonicalize(data_dir).map_err(io_error("look at", data_dir))
}

/// Hands the data directory over to the server's user where that user may not enter it.
///
/// Only a directory that is empty or made by satgres is handed over; one that the user may enter stays as it is.
pub(super) fn open_to_account(data_dir: &Path, account: &Account) -> Result<(), Error> {
    let directory = open_directory(data_dir).map_err(io_error("open directory", data_dir))?;
    if account.may_enter(&directory) {
        return Ok(());
    }
    let entries = fs::read_dir(data_dir).map_err(io_error("read directory", data_dir))?;
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    if names.is_empty()
        || names.iter().any(|name| name == "satgres.lock" || name == "run.lock" || name == "pg")
    {
        account.hand_over(data_dir)?;
    }
    Ok(())
}

/// Opens a directory, not a link to one, only to enter it.
fn open_directory(dir: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    options.read(true).custom_flags(flags).open(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_directory_is_relative_only_for_a_server_without_a_path() {
        let data_dir = Path::new("/root/data");
        let told = |reach: Reach, dir: &str| reach.socket_directory(data_dir, Path::new(dir));
        assert_eq!(told(Reach::Path, "/root/data/run"), Path::new("/root/data/run"));
        assert_eq!(told(Reach::Descriptor, "/root/data/run"), Path::new("../run"));
        assert_eq!(told(Reach::Descriptor, "/tmp/satgres-7-0123"), Path::new("/tmp/satgres-7-0123"));
    }

    #[test]
    fn names_that_a_server_tells_are_resolved_as_it_means_them() {
        let resolved = |named: &str| resolve(Path::new("/root/data/pg"), Path::new(named));
        assert_eq!(resolved("../run"), Path::new("/root/data/run"));
        assert_eq!(resolved("sockets"), Path::new("/root/data/pg/sockets"));
        assert_eq!(resolved("/tmp"), Path::new("/tmp"));
    }

    #[test]
    fn a_server_led_by_a_descriptor_is_told_apart_from_one_that_lost_its_path() {
        assert!(Reach::Descriptor.is_served_by("/proc/self/fd/9"));
        assert!(!Reach::Descriptor.is_served_by("/root/data/pg"));
        assert!(Reach::Path.is_served_by("/root/data/pg") && Reach::Path.is_served_by("/proc/self/fd/9"));
    }
}

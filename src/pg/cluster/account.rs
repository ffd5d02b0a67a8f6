//! The operating-system user that PostgreSQL runs as.
//!
//! PostgreSQL refuses to run as root. So when satgres is root, the server (and only the server) runs as the owner of
//! the existing cluster, or as `postgres`, and the files it needs are handed over to that user. Otherwise it runs as
//! whoever satgres is. satgres itself never changes its own user.

use std::{
    ffi::{CStr, CString},
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The user that packages create for the server.
const DEFAULT_USER: &str = "postgres";

/// Why the server cannot run as anybody.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Root, and no user for the server.
    #[error(
        "PostgreSQL does not run as root, and there is no user `{DEFAULT_USER}` to run it as\n  help: sudo apt-get install postgresql, or run satgres as an ordinary user"
    )]
    NoUser,
    /// Somebody else's cluster.
    #[error("{} belongs to {owner}, but satgres runs as {user}\n  help: run it as {owner} or as root, or choose another --data-dir", dir.display())]
    NotOurs {
        /// The cluster.
        dir: PathBuf,
        /// Who owns it.
        owner: String,
        /// Who we are.
        user: String,
    },
    /// The data directory is closed to the server's user and not ours to hand over.
    #[error("PostgreSQL would run as {user}, who may not enter {}\n  help: choose a --data-dir elsewhere, such as /var/lib/satgres, or open that directory: chmod o+x {}", dir.display(), dir.display())]
    Unreachable {
        /// The server's user.
        user: String,
        /// First directory on the way that is closed.
        dir: PathBuf,
    },
    /// The programs are closed to the server's user.
    #[error("user {user} cannot run {}: {source}\n  help: name another directory by --pg-bin", program.display())]
    CannotRun {
        /// The server's user.
        user: String,
        /// The program.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The user that the server runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    /// User id.
    pub(super) uid: u32,
    /// Group id.
    pub(super) gid: u32,
    /// Name for messages.
    pub(super) name: String,
    /// Whether it is another user than satgres' own (which is root then).
    pub(super) is_other: bool,
}

impl Account {
    /// Chooses the user for the cluster in `pg_dir`, which may not exist yet.
    ///
    /// # Errors
    /// [`Error::NoUser`] as root where nobody can run it, [`Error::NotOurs`] where another user owns it.
    pub(super) fn choose(data_dir: &Path, pg_dir: &Path) -> Result<Account, Error> {
        // SAFETY: both calls only read the process' own ids and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let owner = owner(pg_dir)?;
        if uid != 0 {
            let name = user_name(uid);
            if let Some(owner) = owner
                && owner.0 != uid
            {
                return Err(Error::NotOurs { dir: pg_dir.to_owned(), owner: user_name(owner.0), user: name });
            }
            return Ok(Account { uid, gid, name, is_other: false });
        }
        let existing = match owner {
            Some((0, _)) | None => self::owner(data_dir)?.filter(|owner| owner.0 != 0),
            other => other,
        };
        let (uid, gid) = match existing {
            Some(owner) => owner,
            None => user_ids(DEFAULT_USER).ok_or(Error::NoUser)?,
        };
        Ok(Account { uid, gid, name: user_name(uid), is_other: true })
    }

    /// A command that runs as this user, outside satgres' working directory, without input.
    #[must_use]
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).current_dir("/");
        if self.is_other {
            // Setting a uid as root also clears the supplementary groups.
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    /// Makes this user the owner of a file or directory, without following links; nothing where it is satgres' own.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn hand_over(&self, path: &Path) -> Result<(), Error> {
        if !self.is_other {
            return Ok(());
        }
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid)).map_err(|source| Error::Io {
            what: "hand over",
            path: path.to_owned(),
            source,
        })
    }

    /// Looks at files with this user's eyes: only it may see which program and directory its processes have.
    ///
    /// Root may too, but not in containers, which take that capability away. Only this thread is affected.
    pub(super) fn look<T>(&self, at: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                set_file_ids(0, 0);
            }
        }
        if !self.is_other {
            return at();
        }
        let _restore = Restore;
        set_file_ids(self.uid, self.gid);
        at()
    }

    /// Whether this user can get into a directory by its path.
    #[must_use]
    pub(super) fn can_reach(&self, dir: &Path) -> bool {
        !self.is_other || does_nothing(self.command(Path::new("/bin/sh")).current_dir(dir))
    }

    /// Whether this user may enter an open directory, whatever is above it.
    #[must_use]
    pub(super) fn may_enter(&self, directory: &File) -> bool {
        if !self.is_other {
            return true;
        }
        let mut command = self.command(Path::new("/bin/sh"));
        let descriptor = directory.as_raw_fd();
        // SAFETY: fchdir is async-signal-safe, and `directory` stays open until the child has ended.
        unsafe {
            command.pre_exec(move || match libc::fchdir(descriptor) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        does_nothing(&mut command)
    }

    /// Checks that this user can run `program`.
    ///
    /// # Errors
    /// [`Error::CannotRun`].
    pub(super) fn check_runs(&self, program: &Path) -> Result<(), Error> {
        if !self.is_other {
            return Ok(());
        }
        let run = self.command(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.map_err(|source| Error::CannotRun {
            user: self.name.clone(),
            program: program.to_owned(),
            source,
        })?;
        Ok(())
    }
}

/// Runs a shell that does nothing and returns whether it could.
fn does_nothing(shell: &mut Command) -> bool {
    let status = shell.args(["-c", ":"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Sets the ids by which the kernel judges this thread's access to files; only root can.
fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: both calls change this thread's own credentials only and cannot fail in a way that matters: a
    // process that is not looked at with the right eyes counts as a stranger.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

/// Owner (user and group id) of a path, `None` where it does not exist.
fn owner(path: &Path) -> Result<Option<(u32, u32)>, Error> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some((found.uid(), found.gid()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { what: "look at", path: path.to_owned(), source }),
    }
}

/// Largest entry of the user database that is read, bytes.
const PASSWD_BYTES_MAX: usize = 64 * 1024;

/// User and group id of a user name.
fn user_ids(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; PASSWD_BYTES_MAX];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to live memory of the stated size; `entry` is read only if `found` says it is filled.
    unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        );
        (!found.is_null()).then(|| ((*found).pw_uid, (*found).pw_gid))
    }
}

/// Name of a user id, or the number where it has none.
fn user_name(uid: u32) -> String {
    let mut buffer = vec![0; PASSWD_BYTES_MAX];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: as above; the name points into `buffer`, which outlives the copy.
    let name = unsafe {
        libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found);
        (!found.is_null()).then(|| CStr::from_ptr((*found).pw_name).to_string_lossy().into_owned())
    };
    name.unwrap_or_else(|| format!("uid {uid}"))
}

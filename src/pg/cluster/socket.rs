//! The directory of the server's Unix socket.
//!
//! It is `DATA_DIR/run` where the socket's path fits the system's 107 bytes; otherwise a short private directory in
//! `$XDG_RUNTIME_DIR` or `/tmp`, named by a hash of the data directory. Whoever owns that directory could pose as
//! the server, so one that exists must be a real directory, owned by the server's user and closed to others.

use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use bitcoin::hashes::{Hash, sha256};

use super::account::{self, Account};
use crate::pg::target::socket_file;

/// Longest path of a Unix socket on Linux, bytes (108 with the final NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Port number, which only names the socket's file.
pub(super) const PORT: u16 = 5432;

/// Why there is no directory for the socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory of that name is not private to the server.
    #[error("the socket directory {} is not safe: {reason}\n  help: remove it, or choose a shorter --data-dir", dir.display())]
    NotPrivate {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// It cannot be made.
    #[error("cannot make the socket directory {}: {source}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It cannot be handed over.
    #[error(transparent)]
    Account(#[from] account::Error),
}

/// Makes the socket directory for a cluster and returns its path.
///
/// # Errors
/// [`Error`].
pub(super) fn prepare(data_dir: &Path, account: &Account) -> Result<PathBuf, Error> {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // The runtime directory belongs to whoever runs satgres: another user cannot enter it.
    let runtime_dir = runtime_dir.filter(|dir| !account.is_other && dir.is_absolute() && dir.is_dir());
    let dir = choose(data_dir, runtime_dir.as_deref(), account.uid);
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => account.hand_over(&dir)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(Error::Io { dir, source }),
    }
    if dir.starts_with(data_dir) {
        // Inside the data directory a copy or restore may have changed the mode: put it right.
        account.hand_over(&dir)?;
        let found = fs::symlink_metadata(&dir).map_err(|source| Error::Io { dir: dir.clone(), source })?;
        if found.is_dir() && found.mode() & 0o777 != 0o700 {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))
                .map_err(|source| Error::Io { dir: dir.clone(), source })?;
        }
    }
    check(&dir, account)?;
    Ok(dir)
}

/// Checks that a socket directory is a real one, of the server's user, closed to others.
///
/// # Errors
/// [`Error::NotPrivate`].
pub(super) fn check(dir: &Path, account: &Account) -> Result<(), Error> {
    let found = fs::symlink_metadata(dir).map_err(|source| Error::Io { dir: dir.to_owned(), source })?;
    let reason = if !found.is_dir() {
        "it is no directory"
    } else if found.uid() != account.uid {
        "another user owns it"
    } else if found.mode() & 0o077 != 0 {
        "other users may enter it"
    } else {
        return Ok(());
    };
    Err(Error::NotPrivate { dir: dir.to_owned(), reason })
}

/// The path: `DATA_DIR/run` if it is short enough, else a name made of a hash.
fn choose(data_dir: &Path, runtime_dir: Option<&Path>, uid: u32) -> PathBuf {
    let digest = sha256::Hash::hash(data_dir.as_os_str().as_bytes()).to_string();
    let inside = data_dir.join("run");
    let in_runtime = runtime_dir.map(|dir| dir.join(format!("satgres-{}", &digest[..16])));
    let short = PathBuf::from(format!("/tmp/satgres-{uid}-{}", &digest[..16]));
    [Some(inside), in_runtime].into_iter().flatten().find(|dir| fits(dir)).unwrap_or(short)
}

fn fits(dir: &Path) -> bool {
    socket_file(dir, PORT).as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_107_bytes_is_used_and_one_more_is_not() {
        // "/" and 88 letters, "/run" and "/.s.PGSQL.5432": 89 + 4 + 14 = 107
        let fits_exactly = PathBuf::from(format!("/{}", "a".repeat(88)));
        assert_eq!(choose(&fits_exactly, None, 7), fits_exactly.join("run"));
        let too_long = PathBuf::from(format!("/{}", "a".repeat(89)));
        let chosen = choose(&too_long, None, 7).to_string_lossy().into_owned();
        assert!(chosen.starts_with("/tmp/satgres-7-") && chosen.len() == 31, "{chosen}");
        let runtime = Path::new("/run/user/7");
        assert!(choose(&too_long, Some(runtime), 7).starts_with(runtime));
        let other = PathBuf::from(format!("/{}", "b".repeat(89)));
        assert_ne!(choose(&too_long, None, 7), choose(&other, None, 7));
    }

    #[test]
    fn a_directory_that_others_can_use_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        // SAFETY: reads the process' own ids.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let account = Account { uid, gid, name: "me".into(), is_other: false };
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(check(temp.path(), &account).is_ok());
        let stranger = Account { uid: uid + 1, ..account.clone() };
        assert!(check(temp.path(), &stranger).unwrap_err().to_string().contains("another user owns it"));
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(temp.path(), &link).unwrap();
        assert!(check(&link, &account).unwrap_err().to_string().contains("no directory"));
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(check(temp.path(), &account).unwrap_err().to_string().contains("other users may enter"));
    }
}

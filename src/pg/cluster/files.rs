//! Files that satgres writes beside or inside the cluster: its settings, and the server's log once it is large.
//!
//! As root it writes into directories of another user, so it never follows a link that stands there.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::{Error, account::Account, io_error};

/// Size at which the server's log is put aside, bytes.
pub(super) const LOG_BYTES_MAX: u64 = 16 << 20;

/// The server's log.
pub(super) fn log_path(data_dir: &Path) -> PathBuf {
    data_dir.join("pg.log")
}

/// Copies a log that has grown beyond `bytes_max` to `pg.log.1` and empties it; the server appends, so it goes on.
pub(super) fn rotate(log: &Path, bytes_max: u64) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    let mut file = match options.read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(log) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(io_error("open", log)(source)),
    };
    let bytes = file.metadata().map_err(io_error("look at", log))?.len();
    if bytes <= bytes_max {
        return Ok(());
    }
    let before = log.with_extension("log.1");
    // No more than the newest part is kept, however large the log grew before anybody looked.
    file.seek(SeekFrom::Start(bytes - bytes_max)).map_err(io_error("read", log))?;
    let mut kept = Vec::new();
    (&mut file).take(bytes_max).read_to_end(&mut kept).map_err(io_error("read", log))?;
    replace_file(&before, &kept).map_err(io_error("write", &before))?;
    file.set_len(0).map_err(io_error("empty", log))
}

/// Writes a file of the server's where its text differs: whole or not at all.
pub(super) fn write_file(path: &Path, text: &str, account: &Account) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    let new = path.with_extension("conf.new");
    replace_file(&new, text.as_bytes()).map_err(io_error("write", &new))?;
    account.hand_over(&new)?;
    fs::rename(&new, path).map_err(io_error("write", path))
}

/// Writes a new file in place of an old one, never through a link that stands there.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_at_its_bound_and_its_newest_part_kept() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("pg.log");
        rotate(&log, 10).unwrap();
        fs::write(&log, "0123456789").unwrap();
        rotate(&log, 10).unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"0123456789");
        fs::write(&log, "abcdefgh0123456789").unwrap();
        rotate(&log, 10).unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"");
        assert_eq!(fs::read(temp.path().join("pg.log.1")).unwrap(), b"0123456789");
    }
}

//! Makes a new cluster by `initdb`, so that it is either there and complete or not there at all.
//!
//! It is made as `pg.new` and renamed to `pg` once it is on disk. What a killed attempt left is removed by the next
//! one. Called by [`super::Cluster::start`] under the lock. It never removes a directory `pg`.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{fs::DirBuilderExt, process::CommandExt},
    },
    path::Path,
    time::{Duration, Instant},
};

use tracing::info;

use super::{Error, USER, account::Account, data_dir::Reach, files::write_file, io_error};
use crate::pg::{binaries::Binaries, conf};

/// Major version of the cluster in a directory; `None` where there is none yet.
pub(super) fn version_of(pg_dir: &Path) -> Result<Option<String>, Error> {
    let path = pg_dir.join("PG_VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // An empty directory may stand there, a mount point for instance; anything else is not ours to judge.
            let empty = fs::read_dir(pg_dir).map_or(true, |mut entries| entries.next().is_none());
            if empty { Ok(None) } else { Err(Error::NotACluster { pg_dir: pg_dir.to_owned() }) }
        }
        Err(source) => Err(Error::Io { what: "read", path, source }),
    }
}

/// Makes a cluster under another name and gives it its own when it is complete and on disk.
pub(super) fn initdb(
    binaries: &Binaries,
    data_dir: &Path,
    account: &Account,
    reach: Reach,
) -> Result<(), Error> {
    let began = Instant::now();
    let (unfinished, pg_dir) = (data_dir.join("pg.new"), data_dir.join("pg"));
    remove_unfinished(&unfinished)?;
    fs::DirBuilder::new().mode(0o700).create(&unfinished).map_err(io_error("make directory", &unfinished))?;
    account.hand_over(&unfinished)?;

    let mut command = account.command(&binaries.program("initdb"));
    command.args(["--no-locale", "-E", "UTF8", "-A", "trust", "-N", "--wal-segsize=64"]);
    command.arg(format!("--username={USER}"));
    reach.add_directory(&mut command, &unfinished).map_err(io_error("open directory", &unfinished))?;
    // SAFETY: prctl is async-signal-safe; with it initdb ends when satgres is killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let output = command.output().map_err(io_error("run", &binaries.program("initdb")))?;
    if !output.status.success() {
        let printed = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8_lossy(&printed).trim_end().to_owned();
        let status = output.status.to_string();
        return Err(Error::Initdb { dir: unfinished, status, output: text });
    }
    let main = unfinished.join("postgresql.conf");
    let text = fs::read_to_string(&main).map_err(io_error("read", &main))?;
    let include = "\n# Added once by satgres; the last setting wins.\ninclude 'satgres.conf'\ninclude_if_exists 'user.conf'\n";
    write_file(&main, &(text + include), account)?;
    write_file(&unfinished.join("satgres.conf"), "", account)?;
    write_file(&unfinished.join("user.conf"), conf::USER_CONF, account)?;
    // initdb -N leaves everything to the page cache: one syncfs costs less than its thousand fsyncs.
    let dir = File::open(&unfinished).map_err(io_error("open", &unfinished))?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::syncfs(dir.as_raw_fd()) } != 0 {
        return Err(io_error("write to disk", &unfinished)(io::Error::last_os_error()));
    }
    fs::rename(&unfinished, &pg_dir).map_err(io_error("rename to pg", &unfinished))?;
    info!(milliseconds = began.elapsed().as_millis(), pg_dir = %pg_dir.display(), "PostgreSQL cluster made");
    Ok(())
}

/// Removes what a killed attempt left. Its last process may still be ending: tries for a while.
fn remove_unfinished(dir: &Path) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::DirectoryNotEmpty
                    && began.elapsed() < Duration::from_secs(5) =>
            {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(source) => return Err(io_error("remove", dir)(source)),
            Ok(()) => {
                info!(dir = %dir.display(), "removed a cluster whose making was interrupted");
                return Ok(());
            }
        }
    }
}

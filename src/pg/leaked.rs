//! Files of tables that no catalogue knows: what a crash of the server leaves of a load that had not committed.
//!
//! In: a connection to the database, and for a private server its directory. Out: the files that were removed, or that
//! somebody should remove. Called at the start of a load, when the lock of the service is held. It must never touch a
//! file that a living transaction may own. So a file counts as leaked only if all of this holds:
//!
//! - it is named like a relation's (`16384`, `16384_fsm`, `16384.1`, `t3_16384`) and lies in this database's directory;
//! - no row of `pg_class`, read *after* the files were listed, has its number, mapped relations included;
//! - it was last written before every process began that could own it, so before the server's last recovery ended;
//! - no transaction that writes is open, and none is prepared.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use deadpool_postgres::Pool;
use tokio_postgres::Client;
use tracing::{info, warn};

use super::cluster::{self, Cluster};
use super::pool;
use super::server::Server;
use crate::config::format_size;

/// The kernel dates files by a clock that stands still for a tick: up to 10 ms. Microseconds.
const CLOCK_TICK_US: i64 = 20_000;
/// The server tells the age of files in whole seconds. Microseconds.
const SECOND_US: i64 = 1_000_000;

/// Why leaked files could not be looked for, or not be removed. Nothing is lost: the next start tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// The server refused or went away.
    #[error("looking for leaked files")]
    Server(#[from] tokio_postgres::Error),
    /// The private server's directory cannot be entered.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// A file operation failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// A file that no table owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakedFile {
    /// Its path, below the server's data directory.
    pub path: String,
    /// Its size, bytes.
    pub bytes: u64,
}

/// A file of the database's directory, when it was listed.
#[derive(Clone, Debug)]
struct Listed {
    path: String,
    filenode: u32,
    bytes: u64,
    /// When it was last written, microseconds since 1970.
    written_us: i64,
}

/// Removes leaked files of a private server, tells those of another one. What keeps it from doing so is said in the log: nothing depends on it.
pub async fn sweep(server: &Server, pool: &Pool) {
    let swept = async {
        let client = pool.get().await.map_err(pool::Error::from)?;
        match server {
            Server::Private(cluster) => remove(cluster, &client).await,
            Server::External { .. } => report(&client).await,
        }
    };
    if let Err(error) = swept.await {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        warn!(%error, cause, "files that a crash may have left are looked for at the next start");
    }
}

/// Removes leaked files of a private server and says in the log how many and how large; returns them.
///
/// # Errors
/// [`Error`].
pub async fn remove(cluster: &Cluster, client: &Client) -> Result<Vec<LeakedFile>, Error> {
    let database = database_oid(client).await?;
    let listed = cluster.as_server_user(|pg_dir| list(pg_dir, database))??;
    let leaked = leaked(client, listed, CLOCK_TICK_US).await?;
    if leaked.is_empty() {
        return Ok(Vec::new());
    }
    let removed = cluster.as_server_user(|pg_dir| unlink(pg_dir, &leaked))??;
    let bytes: u64 = removed.iter().map(|file| file.bytes).sum();
    info!(
        files = removed.len(),
        bytes,
        "removed {} that a crash of PostgreSQL had left without a table",
        format_size(bytes)
    );
    Ok(removed)
}

/// Says in the log which leaked files a server that is not ours has; returns them. Where it does not let us look, none.
///
/// # Errors
/// [`Error::Server`].
pub async fn report(client: &Client) -> Result<Vec<LeakedFile>, Error> {
    let may_look = "select has_function_privilege('pg_ls_dir(text, boolean, boolean)', 'execute') \
         and has_function_privilege('pg_stat_file(text, boolean)', 'execute')";
    if !client.query_one(may_look, &[]).await?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let listed = list_by_server(client).await?;
    let leaked = leaked(client, listed, SECOND_US).await?;
    let files: Vec<LeakedFile> = leaked.into_iter().map(LeakedFile::from).collect();
    if !files.is_empty() {
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).take(10).collect();
        warn!(
            files = files.len(),
            bytes,
            first = paths.join(" "),
            "the server's data directory holds {} of files that no table of this database owns, as a crash leaves \
             them; whoever runs the server may remove them while it is down",
            format_size(bytes)
        );
    }
    Ok(files)
}

impl From<Listed> for LeakedFile {
    fn from(listed: Listed) -> Self {
        LeakedFile { path: listed.path, bytes: listed.bytes }
    }
}

async fn database_oid(client: &Client) -> Result<u32, Error> {
    let sql = "select oid from pg_database where datname = current_database()";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Returns those of the listed files that nobody owns; `tick_us` is how inexact their dates are.
async fn leaked(client: &Client, listed: Vec<Listed>, tick_us: i64) -> Result<Vec<Listed>, Error> {
    if listed.is_empty() {
        return Ok(listed);
    }
    // In this order: a transaction that prepares itself in between is seen here or there, one that commits in pg_class.
    let Some(before_us) = oldest_owner_us(client).await? else { return Ok(Vec::new()) };
    let prepared = "select exists (select from pg_prepared_xacts where database = current_database())";
    if client.query_one(prepared, &[]).await?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let known = "select distinct coalesce(pg_relation_filenode(oid), 0)::oid from pg_class \
         union select relfilenode from pg_class";
    let known: HashSet<u32> = client.query(known, &[]).await?.iter().map(|row| row.get(0)).collect();
    let is_leaked = |file: &Listed| {
        !known.contains(&file.filenode) && file.written_us.saturating_add(tick_us) <= before_us
    };
    let mut leaked: Vec<Listed> = listed.into_iter().filter(is_leaked).collect();
    leaked.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(leaked)
}

/// Returns the time before which no living process can have written a file of its own, microseconds since 1970, or
/// `None` while a transaction that writes is open.
///
/// The checkpointer and its like are left out: they begin before the recovery, which still writes to what the crash
/// left. The others begin after it, also where only a backend had crashed and the postmaster lived on. Where we may not
/// see the others, the start of the postmaster has to do.
async fn oldest_owner_us(client: &Client) -> Result<Option<i64>, Error> {
    let row = client
        .query_one(
            "select pg_has_role('pg_read_all_stats', 'usage'), \
                    (extract(epoch from pg_postmaster_start_time()) * 1000000)::int8, \
                    (extract(epoch from min(backend_start) filter (where backend_type not in \
                        ('checkpointer', 'background writer', 'startup', 'archiver', 'io worker'))) * 1000000)::int8, \
                    count(*) filter (where backend_xid is not null and datname = current_database() \
                        and backend_type <> 'autovacuum worker' and pid <> pg_backend_pid()) \
             from pg_stat_activity",
            &[],
        )
        .await?;
    let (sees_all, server_us): (bool, i64) = (row.get(0), row.get(1));
    let (oldest_us, writers): (Option<i64>, i64) = (row.get(2), row.get(3));
    Ok(match (sees_all, oldest_us) {
        _ if writers > 0 => None,
        (true, Some(oldest_us)) => Some(oldest_us.max(server_us)),
        _ => Some(server_us),
    })
}

/// Lists the relation files of a database below the server's directory, also in tablespaces.
fn list(pg_dir: &Path, database: u32) -> Result<Vec<Listed>, Error> {
    let mut directories = vec![format!("base/{database}")];
    for tablespace in names(pg_dir, "pg_tblspc")? {
        let tablespace = format!("pg_tblspc/{tablespace}");
        // One directory for each major version that ever used the place.
        let versions = names(pg_dir, &tablespace)?.into_iter().filter(|name| name.starts_with("PG_"));
        directories.extend(versions.map(|version| format!("{tablespace}/{version}/{database}")));
    }
    let mut listed = Vec::new();
    for directory in directories {
        for name in names(pg_dir, &directory)? {
            let Some(filenode) = filenode(&name) else { continue };
            let path = format!("{directory}/{name}");
            let Some((bytes, written_us)) = look_at(&pg_dir.join(&path))? else { continue };
            listed.push(Listed { path, filenode, bytes, written_us });
        }
    }
    Ok(listed)
}

/// Names in a directory; none where there is no such directory.
fn names(pg_dir: &Path, directory: &str) -> Result<Vec<String>, Error> {
    let path = pg_dir.join(directory);
    let failed = |source| Error::Io { what: "read directory", path: path.clone(), source };
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Size of a plain file, and when it was last written, microseconds since 1970; `None` for all else.
fn look_at(path: &Path) -> Result<Option<(u64, i64)>, Error> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {
            Ok(Some((found.len(), found.mtime() * SECOND_US + found.mtime_nsec() / 1_000)))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { what: "look at", path: path.to_owned(), source }),
    }
}

/// Removes files that are still as they were listed; returns those.
fn unlink(pg_dir: &Path, leaked: &[Listed]) -> Result<Vec<LeakedFile>, Error> {
    let mut removed = Vec::new();
    for file in leaked {
        let path = pg_dir.join(&file.path);
        if look_at(&path)? != Some((file.bytes, file.written_us)) {
            continue;
        }
        match fs::remove_file(&path) {
            Ok(()) => removed.push(LeakedFile::from(file.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Io { what: "remove", path, source }),
        }
    }
    Ok(removed)
}

/// The same list, as the server's own functions give it.
async fn list_by_server(client: &Client) -> Result<Vec<Listed>, Error> {
    let sql = "with database as (select oid from pg_database where datname = current_database()), \
         directories as ( \
             select 'base/' || d.oid as path from database d \
             union all \
             select 'pg_tblspc/' || t.oid || '/' || version || '/' || d.oid \
             from database d, pg_tablespace t, lateral pg_ls_dir('pg_tblspc/' || t.oid, true, false) version \
             where t.spcname not in ('pg_default', 'pg_global') and version like 'PG\\_%') \
         select d.path || '/' || name, name, s.size, (extract(epoch from s.modification) * 1000000)::int8 \
         from directories d, lateral pg_ls_dir(d.path, true, false) name, \
              lateral pg_stat_file(d.path || '/' || name, true) s \
         where s.size is not null and not s.isdir";
    let rows = client.query(sql, &[]).await?;
    let listed = rows.iter().filter_map(|row| {
        let filenode = filenode(row.get(1))?;
        Some(Listed {
            path: row.get(0),
            filenode,
            bytes: row.get::<_, i64>(2) as u64,
            written_us: row.get(3),
        })
    });
    Ok(listed.collect())
}

/// Returns the number of the relation that a file belongs to by its name: `16384_vm.2`, of temporary ones `t3_16384`
/// (`common/relpath.c`). Other names are no relation's.
fn filenode(name: &str) -> Option<u32> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match name.strip_prefix('t') {
        Some(temporary) => temporary.split_once('_').filter(|(backend, _)| is_number(backend))?.1,
        None => name,
    };
    let name = match name.split_once('.') {
        Some((name, part)) if is_number(part) => name,
        Some(_) => return None,
        None => name,
    };
    let number = match name.split_once('_') {
        Some((number, "fsm" | "vm" | "init")) => number,
        Some(_) => return None,
        None => name,
    };
    is_number(number).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relation_files_give_their_numbers_and_others_none() {
        for (name, number) in [
            ("16384", 16_384),
            ("16384.1", 16_384),
            ("16384_fsm", 16_384),
            ("16384_vm.12", 16_384),
            ("16384_init", 16_384),
            ("t3_16384", 16_384),
            ("t12_16384_fsm.1", 16_384),
            ("4294967295", 4_294_967_295),
        ] {
            assert_eq!(filenode(name), Some(number), "{name}");
        }
        for name in [
            "PG_VERSION",
            "pg_filenode.map",
            "pg_internal.init",
            "pg_internal.init.123",
            "pgsql_tmp",
            "t3_",
            "t_16384",
            "table",
            "16384.",
            "16384_",
            "16384_old",
            "16384.bak",
            "16384_fsm.old",
            "-1",
            "+1",
            "4294967296",
            "",
        ] {
            assert_eq!(filenode(name), None, "{name}");
        }
    }

    #[test]
    fn a_file_written_since_it_was_listed_stays() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base/5");
        fs::create_dir_all(&base).unwrap();
        for name in ["100", "100.1", "200", "PG_VERSION"] {
            fs::write(base.join(name), [7; 10]).unwrap();
        }
        fs::create_dir(base.join("300")).unwrap();
        let listed = list(folder.path(), 5).unwrap();
        let paths: Vec<&str> = listed.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["base/5/100", "base/5/100.1", "base/5/200"]);
        fs::write(base.join("200"), [7; 11]).unwrap();
        let removed = unlink(folder.path(), &listed).unwrap();
        let file = |path: &str| LeakedFile { path: path.to_owned(), bytes: 10 };
        assert_eq!(removed, [file("base/5/100"), file("base/5/100.1")]);
        assert!(base.join("200").exists() && base.join("300").exists() && base.join("PG_VERSION").exists());
    }
}

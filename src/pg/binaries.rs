//! Finds the PostgreSQL server programs on this machine.
//!
//! In: what the user said (`--pg-bin`), the environment, and the major version of a cluster that exists already.
//! Out: one directory that holds `postgres` and `initdb`, with its version. Called by [`super::cluster`]. It never
//! installs anything and never guesses past a directory that the user named.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

/// Oldest major version that has what Satgres uses.
pub const MAJOR_MIN: u32 = 15;

/// Where distributions put one directory per major version.
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// What to type where there is no server: Debian 12, Ubuntu 24.04 and later have 15 or newer.
const INSTALL: &str = "sudo apt-get install postgresql";

/// Why no usable server was found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory that the user named is not one.
    #[error("{origin} names {}, but there is no PostgreSQL server in it ({reason})\n  help: name the directory that holds `postgres` and `initdb`, such as /usr/lib/postgresql/15/bin", dir.display())]
    NotUsable {
        /// `--pg-bin` or `PG_BIN`.
        origin: &'static str,
        /// The directory.
        dir: PathBuf,
        /// What is missing in it.
        reason: String,
    },
    /// Nothing is installed.
    #[error(
        "no PostgreSQL server was found: neither by pg_config nor under {DEBIAN_ROOT}\n  help: {INSTALL}   (or --pg-bin DIR)"
    )]
    NotFound,
    /// Only versions that are too old.
    #[error(
        "the newest PostgreSQL found is {version} in {}, but {MAJOR_MIN} or newer is needed\n  help: {INSTALL}   (where that is older still: https://wiki.postgresql.org/wiki/Apt, then sudo apt-get install postgresql-17)",
        dir.display()
    )]
    TooOld {
        /// The directory.
        dir: PathBuf,
        /// Its version, as the server prints it.
        version: String,
    },
}

/// The directory of the server's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The directory.
    pub dir: PathBuf,
    /// Major version, such as 15.
    pub major: u32,
    /// Full version, such as `15.18`.
    pub version: String,
}

impl Binaries {
    /// Finds the programs: `--pg-bin`, `$PG_BIN`, `pg_config --bindir`, the highest `/usr/lib/postgresql/*/bin`.
    ///
    /// With `major_wanted` (a cluster exists), a directory of that major version is preferred among those the user
    /// did not name.
    ///
    /// # Errors
    /// [`Error`], each with what to type next.
    pub fn find(pg_bin: Option<&Path>, major_wanted: Option<u32>) -> Result<Binaries, Error> {
        let env = std::env::var_os("PG_BIN").filter(|value| !value.is_empty());
        let named = match (pg_bin, env) {
            (Some(dir), _) => Some(("--pg-bin", dir.to_owned())),
            (None, Some(dir)) => Some(("PG_BIN", PathBuf::from(dir))),
            (None, None) => None,
        };
        if let Some((origin, dir)) = named {
            let found =
                inspect(&dir).map_err(|reason| Error::NotUsable { origin, dir: dir.clone(), reason })?;
            return accept(found);
        }
        choose(candidates(Path::new(DEBIAN_ROOT)), major_wanted)
    }

    /// Path of one program, such as `initdb`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Directories to look into, pg_config's first, without repeats.
fn candidates(root: &Path) -> Vec<Binaries> {
    let mut dirs = Vec::new();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output()
        && output.status.success()
    {
        dirs.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    let versions: BTreeSet<OsString> =
        std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    dirs.extend(versions.into_iter().map(|version| root.join(version).join("bin")));
    dirs.iter().filter_map(|dir| inspect(dir).ok()).collect()
}

/// The candidate of the wanted version if there is one, otherwise the first new enough, highest version first except
/// that pg_config's comes before all.
fn choose(mut found: Vec<Binaries>, major_wanted: Option<u32>) -> Result<Binaries, Error> {
    if let Some(index) = found.iter().position(|it| Some(it.major) == major_wanted && it.major >= MAJOR_MIN) {
        return Ok(found.swap_remove(index));
    }
    if found.first().is_some_and(|first| first.major >= MAJOR_MIN) {
        return Ok(found.swap_remove(0));
    }
    found.into_iter().max_by_key(|it| it.major).map_or(Err(Error::NotFound), accept)
}

fn accept(found: Binaries) -> Result<Binaries, Error> {
    if found.major >= MAJOR_MIN {
        Ok(found)
    } else {
        Err(Error::TooOld { dir: found.dir, version: found.version })
    }
}

/// Asks the server in a directory for its version; the error says what is missing.
fn inspect(dir: &Path) -> Result<Binaries, String> {
    if !dir.join("initdb").is_file() {
        return Err("it has no `initdb`".to_owned());
    }
    let output = Command::new(dir.join("postgres"))
        .arg("--version")
        .output()
        .map_err(|error| format!("`postgres --version` cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (major, version) =
        parse_version(&text).ok_or_else(|| format!("`postgres --version` printed {:?}", text.trim()))?;
    Ok(Binaries { dir: dir.to_owned(), major, version })
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` or `postgres (PostgreSQL) 19beta1`.
fn parse_version(text: &str) -> Option<(u32, String)> {
    let version = text.trim().strip_prefix("postgres (PostgreSQL) ")?.split_whitespace().next()?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    Some((version[..digits].parse().ok()?, version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binaries(dir: &str, major: u32) -> Binaries {
        Binaries { dir: dir.into(), major, version: format!("{major}.1") }
    }

    #[test]
    fn versions_are_read_as_servers_print_them() {
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(parse_version(debian), Some((15, "15.18".to_owned())));
        assert_eq!(parse_version("postgres (PostgreSQL) 19beta1\n"), Some((19, "19beta1".to_owned())));
        assert_eq!(parse_version("postgres (PostgreSQL) 9.6.24\n"), Some((9, "9.6.24".to_owned())));
        assert_eq!(parse_version("mysqld 8.0\n"), None);
    }

    #[test]
    fn a_clusters_own_version_is_preferred_and_the_newest_is_the_fallback() {
        let all = || vec![binaries("/config", 16), binaries("/15", 15), binaries("/18", 18)];
        assert_eq!(choose(all(), Some(15)).unwrap().dir, Path::new("/15"));
        assert_eq!(choose(all(), None).unwrap().dir, Path::new("/config"));
        let old_first = vec![binaries("/config", 14), binaries("/15", 15), binaries("/18", 18)];
        assert_eq!(choose(old_first, None).unwrap().dir, Path::new("/18"));
        assert!(matches!(choose(vec![binaries("/14", 14)], None), Err(Error::TooOld { .. })));
        assert!(matches!(choose(Vec::new(), None), Err(Error::NotFound)));
    }

    #[test]
    fn a_missing_server_is_reported_with_the_line_that_installs_it() {
        assert!(Error::NotFound.to_string().contains("help: sudo apt-get install postgresql"));
        let named = Binaries::find(Some(Path::new("/nonexistent")), None).unwrap_err();
        assert!(named.to_string().starts_with("--pg-bin names /nonexistent, but"), "{named}");
    }
}

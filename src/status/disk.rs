//! Bytes on disk: of PostgreSQL's directory, of the UTXO set's files, and what is free.
//!
//! In: the data directory, whether PostgreSQL's own directory in it is meant, and a deadline. Out: [`Disk`]. Files that vanish while it looks count as nothing; what takes too
//! long, or may not be looked into, is unknown.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Instant};

use serde::Serialize;

use crate::resources::free_bytes;

/// What lies on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key, and a test compares the two")]
pub struct Disk {
    pub database_bytes: Option<u64>,
    pub cluster_bytes: Option<u64>,
    pub coins_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
}

/// Looks at the data directory; the database's own size is the server's to tell.
pub(super) fn measure(data_dir: &Path, is_private: bool, deadline: Instant) -> Disk {
    Disk {
        database_bytes: None,
        free_bytes: free_bytes(data_dir),
        coins_bytes: used_bytes(&data_dir.join("coins"), deadline),
        // Beside a database elsewhere an older cluster may lie here: it is not the one that is told of.
        cluster_bytes: is_private.then(|| used_bytes(&data_dir.join("pg"), deadline)).flatten(),
    }
}

/// Bytes that the files below a directory take on disk; 0 where it does not exist.
fn used_bytes(dir: &Path, deadline: Instant) -> Option<u64> {
    let mut dirs = vec![dir.to_owned()];
    let mut bytes = 0;
    while let Some(next) = dirs.pop() {
        let entries = match fs::read_dir(&next) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        for entry in entries.flatten() {
            if Instant::now() > deadline {
                return None;
            }
            // Not followed: a link's target lies elsewhere.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                dirs.push(entry.path());
            } else {
                bytes += found.blocks() * 512;
            }
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_files_take_is_summed_and_a_missing_directory_takes_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(used_bytes(&temp.path().join("none"), later), Some(0));
        fs::create_dir(temp.path().join("below")).unwrap();
        fs::write(temp.path().join("below/file"), vec![1; 1 << 20]).unwrap();
        fs::write(temp.path().join("file"), vec![1; 1 << 20]).unwrap();
        let used = used_bytes(temp.path(), later).unwrap();
        assert!((2 << 20..3 << 20).contains(&used), "{used}");
        assert_eq!(used_bytes(temp.path(), Instant::now() - Duration::from_secs(1)), None);
        assert!(measure(temp.path(), true, later).free_bytes.unwrap() > 0);
        assert_eq!(measure(temp.path(), true, later).cluster_bytes, Some(0));
        assert_eq!(measure(temp.path(), false, later).cluster_bytes, None);
    }
}

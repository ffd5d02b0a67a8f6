//! Whether there is room for what is about to be loaded: told before it begins.
//!
//! In: the segments to load, and where the database and the UTXO set's files lie. Out: a line in the log, and an error
//! where they do not fit. Called by the main path once a run. An estimate must never stop a load that somebody insists
//! on: `--disk-check off`.

use std::fmt;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::ReplayOptions;
use super::reader::Chain;
use super::schedule::Segment;
use crate::plan::space::{Load, Space, space};
use crate::resources::disk::{FileSystem, file_system};

/// How room is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomOptions {
    /// Where the private server keeps its tables; `None` for a server that is not ours.
    pub database_dir: Option<PathBuf>,
    /// Whether too little room is an error.
    pub is_checked: bool,
}

/// A file system is too small for what is about to be loaded. Nothing was loaded: the user must act.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file system at {} has {} free, but about {} are needed there ({what})\n  help: make room, choose a larger \
     --data-dir, store less (--store-witness none, --store-script-sig none), or try all the same with --disk-check off",
    mounted_at.display(), size(*free_bytes), size(*needed_bytes)
)]
pub struct NoRoom {
    /// Where it is mounted.
    pub mounted_at: PathBuf,
    /// Bytes that may still be written there.
    pub free_bytes: u64,
    /// Bytes that are needed.
    pub needed_bytes: u64,
    /// What for.
    pub what: String,
}

/// What one file system has to hold.
struct Share {
    file_system: FileSystem,
    parts: Vec<Part>,
}

struct Part {
    name: &'static str,
    bytes: u64,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, size(self.bytes))
    }
}

/// Says how much room the segments need and how much there is.
///
/// # Errors
/// [`NoRoom`] unless it is switched off.
pub(super) fn check(chain: &Chain, segments: &[Segment], options: &ReplayOptions) -> Result<(), NoRoom> {
    let block_bytes: u64 = segments.iter().map(|segment| segment.block_bytes).sum();
    let load = Load {
        block_bytes,
        segment_bytes_max: segments.iter().map(|segment| segment.block_bytes).max().unwrap_or(0),
        chain_bytes: (0..=chain.active.tip_height()).map(|height| chain.block_bytes(height)).sum(),
        coins_there_bytes: bytes_in(&options.utxos.dir),
        store: options.store,
        builds_max: options.builds_max,
        build_bytes: options.build_bytes,
    };
    let needed = space(&load);
    if options.room.database_dir.is_none() {
        let database_bytes = needed.database_bytes + needed.sort_bytes;
        info!("disk: about {} are needed where the server keeps the database", size(database_bytes));
    }
    for share in shares(&needed, options.room.database_dir.as_deref(), &options.utxos.dir) {
        let Share { file_system: FileSystem { mounted_at, free_bytes, .. }, parts } = share;
        let needed_bytes = parts.iter().map(|part| part.bytes).sum();
        let what = parts.iter().map(Part::to_string).collect::<Vec<_>>().join(", ");
        info!(
            needed_bytes,
            free_bytes,
            "disk: about {} are needed at {} for {} of blocks ({what}), {} are free",
            size(needed_bytes),
            mounted_at.display(),
            size(block_bytes),
            size(free_bytes)
        );
        if needed_bytes > free_bytes {
            let no_room = NoRoom { mounted_at, free_bytes, needed_bytes, what };
            if options.room.is_checked {
                return Err(no_room);
            }
            warn!(needed_bytes, free_bytes, "the disk may become full: --disk-check is off");
        }
    }
    Ok(())
}

/// Spreads what is needed over the file systems that hold it; what cannot be told is left out.
fn shares(needed: &Space, database_dir: Option<&Path>, coins_dir: &Path) -> Vec<Share> {
    let part = |name, bytes| Part { name, bytes };
    let mut places = vec![(coins_dir, vec![part("unspent outputs", needed.coins_bytes)])];
    if let Some(dir) = database_dir {
        let parts = vec![part("database", needed.database_bytes), part("sorting", needed.sort_bytes)];
        places.insert(0, (dir, parts));
    }
    let mut shares: Vec<Share> = Vec::new();
    for (dir, mut parts) in places {
        let Some(file_system) = file_system(dir) else { continue };
        match shares.iter_mut().find(|share| share.file_system.device == file_system.device) {
            Some(share) => share.parts.append(&mut parts),
            None => shares.push(Share { file_system, parts }),
        }
    }
    shares
}

/// Writes a size for people, in whole units.
fn size(bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20);
    if mib < 10 << 10 { format!("{mib} MiB") } else { format!("{} GiB", mib >> 10) }
}

/// Bytes of the files in a directory; 0 where there is none.
fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_one_file_system_is_summed_and_on_two_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let needed = Space { database_bytes: 3_000, sort_bytes: 200, coins_bytes: 10 };
        let dirs = (folder.path().join("pg/base"), folder.path().join("coins"));
        let one = shares(&needed, Some(&dirs.0), &dirs.1);
        let sums = |shares: &[Share]| -> Vec<u64> {
            shares.iter().map(|share| share.parts.iter().map(|part| part.bytes).sum()).collect()
        };
        assert_eq!(sums(&one), [3_210]);
        assert!(folder.path().starts_with(&one[0].file_system.mounted_at));
        let two = shares(&needed, Some(&dirs.0), Path::new("/proc"));
        assert_eq!(sums(&two), [3_200, 10]);
        assert_eq!(two[1].file_system.mounted_at, Path::new("/proc"));
        assert_eq!(sums(&shares(&needed, None, &dirs.1)), [10]);
    }

    #[test]
    fn the_error_says_where_how_much_and_what_to_do() {
        let error = NoRoom {
            mounted_at: PathBuf::from("/data"),
            free_bytes: 300 << 20,
            needed_bytes: 1_500 << 20,
            what: "database 1500 MiB".to_owned(),
        };
        let text = error.to_string();
        for words in
            ["at /data has 300 MiB free", "about 1500 MiB are needed", "--disk-check off", "--data-dir"]
        {
            assert!(text.contains(words), "{words}\n{text}");
        }
    }
}

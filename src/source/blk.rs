//! The `blk*.dat` files of a node: which there are, their xor key, the bytes of a record.
//!
//! A record is the network's magic, the length of the block (u32, little-endian) and the block. Bitcoin Core 28 and
//! later may xor all bytes with the 8-byte key in `xor.dat`, whose phase is the offset in the file; the unused tail of
//! the last file is raw zeros, not xored (`node/blockstorage.cpp`). Files are only read, never locked.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::retry;
use crate::network::Network;

/// Bytes before the block in a record: magic and length.
pub const RECORD_HEAD_BYTES: u64 = 8;
const XOR_KEY_BYTES: usize = 8;
/// How long after its last write a file's times tell of another one.
const SETTLED_SECONDS: i64 = 2;
/// How many of the last files a node may be writing.
const TAIL_FILES: usize = 2;

/// What went wrong with the block files.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The directory is not there, or is no directory.
    #[error("blocks directory {path}: {source}; give the folder that holds blk00000.dat with --blocks-dir")]
    NoDirectory {
        /// What was given.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No block file in the directory.
    #[error(
        "no blk*.dat file in {path}; give the folder that holds blk00000.dat with --blocks-dir \
         (a node keeps it in its data directory under blocks, for other networks than main under e.g. regtest/blocks)"
    )]
    NoFiles {
        /// The directory.
        path: PathBuf,
    },
    /// `xor.dat` has another size than 8 bytes.
    #[error(
        "{path} holds {len} bytes where a key of 8 is expected; copy it again from the node that wrote the files"
    )]
    XorKey {
        /// The file.
        path: PathBuf,
        /// Its size, bytes.
        len: usize,
    },
    /// A block file cannot be read.
    #[error("reading {path} at offset {offset}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where, bytes.
        offset: u64,
        /// What the operating system said.
        source: io::Error,
    },
    /// The files hold blocks of another network.
    #[error("{path} holds blocks of network {found}, but --network is {asked}; start with --network {found}")]
    OtherNetwork {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: Network,
        /// What was asked for.
        asked: Network,
    },
    /// No record of the network was found in any file.
    #[error(
        "no block of network {asked} in the files of {path}: are they of a custom signet, or is \
         xor.dat missing or another node's?"
    )]
    NoBlocks {
        /// The directory.
        path: PathBuf,
        /// What was asked for.
        asked: Network,
    },
    /// The first blocks of the chain are gone.
    #[error(
        "the first block in {path} that continues a chain has height {height_first}: this node is pruned. \
         Satgres needs every block from height {height_due} on: use the block files of a node with prune=0"
    )]
    Pruned {
        /// The directory.
        path: PathBuf,
        /// Height of the first block that is there.
        height_first: u32,
        /// Height of the first block that is needed.
        height_due: u32,
    },
    /// A block was there when the files were scanned, and is not any more.
    #[error(
        "the block at height {height} has vanished from the files in {path} while they were read; \
         start the same command again once nobody moves or rewrites them"
    )]
    Vanished {
        /// The directory.
        path: PathBuf,
        /// Height of the block.
        height: u32,
    },
    /// No block continues from the genesis block, and the height of the first one is not known.
    #[error(
        "{path}: no block there follows the genesis block of {asked} or what the database holds; \
         are the files complete, and of that network?"
    )]
    Unconnected {
        /// The directory.
        path: PathBuf,
        /// What was asked for.
        asked: Network,
    },
}

impl SourceError {
    /// Returns whether a file was removed or cut since it was listed: looking again is of use, trying again is not.
    pub fn is_gone(&self) -> bool {
        let gone = [io::ErrorKind::NotFound, io::ErrorKind::UnexpectedEof];
        matches!(self, SourceError::Read { source, .. } if gone.contains(&source.kind()))
    }
}

/// Where the bytes of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Index of the file in [`BlockFiles::paths`]; [`Location::BUILT_IN`] for the genesis block that Satgres knows.
    pub file: u32,
    /// Offset of the block's header in the file, bytes.
    pub offset: u64,
    /// Length of the block as its record says, bytes.
    pub len: u32,
}

impl Location {
    /// The file index of the genesis block where no file holds it.
    pub const BUILT_IN: u32 = u32::MAX;
    /// The file index of a block that only the database holds.
    pub const HELD: u32 = u32::MAX - 1;
    /// The file index of a block whose header alone is known, from a node.
    pub const PEER: u32 = u32::MAX - 2;

    /// Returns whether a block file holds the block.
    pub fn is_in_file(self) -> bool {
        self.file < Location::PEER
    }
}

/// What tells that a file has been written to, cut or replaced since.
#[derive(Clone, Copy, Debug, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds.
    written: (i64, i64),
    /// When it was looked at, seconds since 1970.
    looked_at: i64,
}

/// Whether two looks saw the same file; when they were does not matter.
impl PartialEq for Stamp {
    fn eq(&self, other: &Stamp) -> bool {
        (self.device, self.inode, self.len, self.written)
            == (other.device, other.inode, other.len, other.written)
    }
}

impl Stamp {
    /// Bytes of [`Stamp::to_bytes`].
    pub(super) const BYTES: usize = 40;

    /// Returns whether another write would change the time of the last one: a file system's clock ticks.
    pub(super) fn is_settled(&self) -> bool {
        self.looked_at > self.written.0 + SETTLED_SECONDS
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.device, self.inode, self.len, self.written.0 as u64, self.written.1 as u64];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Stamp {
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
        let written = (word(3) as i64, word(4) as i64);
        Stamp { device: word(0), inode: word(1), len: word(2), written, looked_at: i64::MAX }
    }

    /// Looks at a file; `None` where it is not there.
    fn of(path: &Path) -> Result<Option<Stamp>, SourceError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let looked_at = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let found = retry::read(path, 0, || match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        })?;
        Ok(found.map(|found| Stamp {
            device: found.dev(),
            inode: found.ino(),
            len: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            looked_at,
        }))
    }
}

/// The block files of one directory.
#[derive(Debug)]
pub struct BlockFiles {
    directory: PathBuf,
    paths: Vec<PathBuf>,
    /// Of each file as it was before anything of it was read.
    stamps: Vec<Stamp>,
    xor_key: Option<[u8; XOR_KEY_BYTES]>,
    network: Network,
}

impl BlockFiles {
    /// Lists the files, in the order of their numbers, and reads the xor key.
    ///
    /// # Errors
    /// A missing or empty directory, or a key of a wrong size: stop and tell the user.
    pub fn open(directory: &Path, network: Network) -> Result<Self, SourceError> {
        let no_directory = |source| SourceError::NoDirectory { path: directory.to_owned(), source };
        let mut numbered = Vec::new();
        for entry in fs::read_dir(directory).map_err(no_directory)? {
            let path = entry.map_err(no_directory)?.path();
            if let Some(number) = path.file_name().and_then(|name| file_number(name.to_str()?)) {
                numbered.push((number, path));
            }
        }
        if numbered.is_empty() {
            return Err(SourceError::NoFiles { path: directory.to_owned() });
        }
        numbered.sort();
        let (mut paths, mut stamps) = (Vec::new(), Vec::new());
        for (_, path) in numbered {
            // One that vanished since it was listed is not listed.
            if let Some(stamp) = Stamp::of(&path)? {
                paths.push(path);
                stamps.push(stamp);
            }
        }
        if paths.is_empty() {
            return Err(SourceError::NoFiles { path: directory.to_owned() });
        }
        Ok(BlockFiles {
            directory: directory.to_owned(),
            paths,
            stamps,
            xor_key: read_xor_key(&directory.join("xor.dat"))?,
            network,
        })
    }

    /// Returns no files: a directory that is not there or empty, where a node has the blocks.
    pub fn none(directory: &Path, network: Network) -> Self {
        BlockFiles {
            directory: directory.to_owned(),
            paths: Vec::new(),
            stamps: Vec::new(),
            xor_key: None,
            network,
        }
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the files, in the order of their numbers.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns what tells whether a file is still the same, of each.
    pub(super) fn stamps(&self) -> &[Stamp] {
        &self.stamps
    }

    /// Returns whether another write to a file would be noticed.
    pub fn is_settled(&self, file: u32) -> bool {
        self.stamps[file as usize].is_settled()
    }

    /// Returns the key that all bytes are xored with, if there is one.
    pub(super) fn xor_key(&self) -> Option<[u8; XOR_KEY_BYTES]> {
        self.xor_key
    }

    /// Returns whether the last files are as they were and no further one has come: three looks, however many files there
    /// are. One that was being written when it was listed counts as changed.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn is_tail_same(&self) -> Result<bool, SourceError> {
        let tail = self.paths.len().saturating_sub(TAIL_FILES);
        for (path, stamp) in self.paths.iter().zip(&self.stamps).skip(tail) {
            if !stamp.is_settled() || Stamp::of(path)?.as_ref() != Some(stamp) {
                return Ok(false);
            }
        }
        let last = self.paths.last().and_then(|path| file_number(path.file_name()?.to_str()?));
        let next = last.map_or(0, |number| number + 1);
        Ok(Stamp::of(&self.directory.join(format!("blk{next:05}.dat")))?.is_none())
    }

    /// Returns the network whose blocks are looked for.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Returns the index in these files of each file of `now` that is still the same; `None` for one that is new or has
    /// changed.
    pub fn unchanged(&self, now: &BlockFiles) -> Vec<Option<u32>> {
        let known: HashMap<&PathBuf, usize> = self.paths.iter().zip(0..).collect();
        let index_of = |path: &PathBuf, stamp: &Stamp| {
            let index = *known.get(path)?;
            (self.stamps[index] == *stamp && self.xor_key == now.xor_key).then_some(index as u32)
        };
        now.paths.iter().zip(&now.stamps).map(|(path, stamp)| index_of(path, stamp)).collect()
    }

    /// Opens one file for reading.
    ///
    /// # Errors
    /// What the operating system says: retry, then stop and tell the user.
    pub fn open_file(&self, file: u32) -> Result<BlockFile<'_>, SourceError> {
        let path = &self.paths[file as usize];
        let (handle, len) = retry::read(path, 0, || {
            let handle = File::open(path)?;
            let len = handle.metadata()?.len();
            Ok((handle, len))
        })?;
        Ok(BlockFile { path, handle, len, xor_key: self.xor_key })
    }

    /// Returns the name of the file that a location is in.
    pub fn name(&self, location: Location) -> String {
        match self.paths.get(location.file as usize) {
            Some(path) => path.display().to_string(),
            None if location.file == Location::HELD => "the database".to_owned(),
            None if location.file == Location::PEER => "what the node sends".to_owned(),
            None => "the built-in genesis block".to_owned(),
        }
    }
}

/// One open block file.
#[derive(Debug)]
pub struct BlockFile<'a> {
    path: &'a Path,
    handle: File,
    len: u64,
    xor_key: Option<[u8; XOR_KEY_BYTES]>,
}

impl BlockFile<'_> {
    /// Returns the file's length when it was opened, bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// Appends `len` decoded bytes from `offset` on to `buffer`.
    ///
    /// # Errors
    /// A file shorter than that, or what the operating system says; `buffer` is as before.
    pub fn read_to(&self, offset: u64, len: usize, buffer: &mut Vec<u8>) -> Result<(), SourceError> {
        let from = buffer.len();
        buffer.resize(from + len, 0);
        if let Err(error) = self.read_raw(offset, &mut buffer[from..]) {
            buffer.truncate(from);
            return Err(error);
        }
        self.decode(offset, &mut buffer[from..]);
        Ok(())
    }

    /// Returns whether the last bytes before `end` are raw zeros: a record that ends like this is not written to its end
    /// yet. A witness nonce and lock time are 36 zeros at most, so it takes more.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn ends_blank(&self, end: u64) -> Result<bool, SourceError> {
        const BLANK_BYTES: usize = 64;
        let mut bytes = [0; BLANK_BYTES];
        if end > self.len || end < BLANK_BYTES as u64 {
            return Ok(end > self.len);
        }
        self.read_raw(end - BLANK_BYTES as u64, &mut bytes)?;
        Ok(bytes == [0; BLANK_BYTES])
    }

    /// Reads bytes as they stand in the file, not decoded.
    pub(super) fn read_raw(&self, offset: u64, bytes: &mut [u8]) -> Result<(), SourceError> {
        retry::read(self.path, offset, || self.handle.read_exact_at(bytes, offset))
    }

    /// Undoes the xor of bytes that were read at `offset`.
    pub(super) fn decode(&self, offset: u64, bytes: &mut [u8]) {
        let Some(mut key) = self.xor_key else { return };
        key.rotate_left((offset % XOR_KEY_BYTES as u64) as usize);
        let word = u64::from_ne_bytes(key);
        let mut chunks = bytes.chunks_exact_mut(XOR_KEY_BYTES);
        for chunk in &mut chunks {
            let plain = u64::from_ne_bytes((&*chunk).try_into().expect("8 bytes")) ^ word;
            chunk.copy_from_slice(&plain.to_ne_bytes());
        }
        for (byte, key) in chunks.into_remainder().iter_mut().zip(key) {
            *byte ^= key;
        }
    }
}

/// Returns the number in `blk00012.dat`; more digits come after file 99999.
fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("blk")?.strip_suffix(".dat")?;
    (digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

fn read_xor_key(path: &Path) -> Result<Option<[u8; XOR_KEY_BYTES]>, SourceError> {
    let found = retry::read(path, 0, || match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    })?;
    let Some(bytes) = found else { return Ok(None) };
    match <[u8; XOR_KEY_BYTES]>::try_from(bytes.as_slice()) {
        Ok(key) => Ok((key != [0; XOR_KEY_BYTES]).then_some(key)),
        Err(_) => Err(SourceError::XorKey { path: path.to_owned(), len: bytes.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_grow_shrink_come_or_are_replaced_are_not_the_same_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: u32| folder.path().join(format!("blk{number:05}.dat"));
        let open = || BlockFiles::open(folder.path(), Network::Regtest).unwrap();
        (0..5).for_each(|number| fs::write(path(number), [1; 100]).unwrap());
        let before = open();
        assert_eq!(before.unchanged(&open()), [Some(0), Some(1), Some(2), Some(3), Some(4)]);
        fs::remove_file(path(0)).unwrap();
        fs::write(path(2), [1; 101]).unwrap();
        // The same bytes in another file, as when a copy is moved there.
        fs::write(path(9), [1; 100]).unwrap();
        fs::rename(path(9), path(3)).unwrap();
        fs::write(path(7), [1; 100]).unwrap();
        assert_eq!(before.unchanged(&open()), [Some(1), None, None, Some(4), None]);
        fs::write(folder.path().join("xor.dat"), [3; 8]).unwrap();
        assert_eq!(before.unchanged(&open()), [None; 5]);
        (1..8).for_each(|number| drop(fs::remove_file(path(number))));
        let error = BlockFiles::open(folder.path(), Network::Regtest).unwrap_err();
        assert!(matches!(error, SourceError::NoFiles { .. }), "{error}");
    }

    /// Reads of a process' memory at address 0 fail with EIO, as those of a broken disk do.
    #[test]
    fn a_disk_error_is_told_with_file_and_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blk00000.dat");
        std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
        let files = BlockFiles::open(folder.path(), Network::Regtest).unwrap();
        let mut bytes = vec![7];
        let error = files.open_file(0).unwrap().read_to(16, 100, &mut bytes).unwrap_err();
        let SourceError::Read { path: named, offset: 16, source } = &error else { panic!("{error}") };
        assert_eq!((named, source.raw_os_error()), (&path, Some(libc::EIO)));
        assert_eq!(bytes, [7]);
    }

    #[test]
    fn file_names_give_their_numbers() {
        assert_eq!(file_number("blk00012.dat"), Some(12));
        assert_eq!(file_number("blk123456.dat"), Some(123_456));
        for name in ["rev00012.dat", "blk12.dat", "blk0001x.dat", "blk00012.dat.tmp"] {
            assert_eq!(file_number(name), None, "{name}");
        }
    }

    #[test]
    fn the_xor_phase_is_the_offset_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let key = [1, 2, 3, 4, 5, 6, 7, 8];
        let plain: Vec<u8> = (0..100).collect();
        let coded: Vec<u8> = plain.iter().enumerate().map(|(at, byte)| byte ^ key[at % 8]).collect();
        fs::write(folder.path().join("blk00000.dat"), coded).unwrap();
        fs::write(folder.path().join("xor.dat"), key).unwrap();
        let files = BlockFiles::open(folder.path(), Network::Regtest).unwrap();
        let file = files.open_file(0).unwrap();
        for (offset, len) in [(0, 100), (3, 9), (8, 8), (13, 1), (99, 1), (50, 0)] {
            let mut bytes = vec![0xaa];
            file.read_to(offset, len, &mut bytes).unwrap();
            assert_eq!(bytes[1..], plain[offset as usize..offset as usize + len]);
        }
        assert!(file.read_to(99, 2, &mut Vec::new()).is_err());
    }

    #[test]
    fn a_key_of_seven_bytes_is_refused_and_one_of_zeros_is_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("blk00000.dat"), b"").unwrap();
        fs::write(folder.path().join("xor.dat"), [7; 7]).unwrap();
        let error = BlockFiles::open(folder.path(), Network::Main).unwrap_err();
        assert!(matches!(error, SourceError::XorKey { len: 7, .. }));
        fs::write(folder.path().join("xor.dat"), [0; 8]).unwrap();
        assert_eq!(BlockFiles::open(folder.path(), Network::Main).unwrap().xor_key, None);
    }
}

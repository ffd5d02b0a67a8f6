//! What the scan of block files found, kept between runs: a restart reads only the files that have changed since.
//!
//! In: a linked tree and its files. Out: a sealed file in the data directory, and from it the records of each file that is
//! still the same: by its name, device, inode, length and time of writing. It is a cache: one that is missing, damaged, of
//! another version or another directory costs a scan, and nothing else. A file that was written to within the last seconds
//! is not kept: another write may leave the same time behind. 101 bytes a header.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::HeaderTree;
use crate::chain::hash::Hash32;
use crate::prevouts::CoinFileError;
use crate::prevouts::sealed::{SealedReader, SealedWriter};
use crate::source::blk::{BlockFiles, Stamp};
use crate::source::scan::{FileScan, Record, Trust};

/// Its name in the data directory.
const NAME: &str = "headers.scan";
/// First bytes, with the version of what follows.
const MAGIC: [u8; 8] = *b"satscan1";
/// Key of the checksums: a file of another kind does not pass.
const SEED: u64 = 0x7361_7467_7265_7301;
/// Bytes of a record.
const RECORD_BYTES: usize = 101;
/// Longest path and most records of a file that are believed.
const PATH_BYTES_MAX: u32 = 4096;
const RECORDS_MAX: u32 = 2_000_000;

/// What an earlier run found, by file.
#[derive(Debug, Default)]
pub struct KeptScan {
    by_path: HashMap<PathBuf, (Stamp, Vec<Record>)>,
}

impl KeptScan {
    /// Reads what was kept of these files; nothing where that is not possible.
    pub fn read(data_dir: &Path, files: &BlockFiles) -> KeptScan {
        let path = data_dir.join(NAME);
        if !path.exists() {
            return KeptScan::default();
        }
        read(&path, files).unwrap_or_else(|error| {
            tracing::info!(%error, "what an earlier scan of the block files found is of no use: scanning them again");
            KeptScan::default()
        })
    }

    /// Returns the records of a file, if it is still the same.
    pub(super) fn take(&mut self, path: &Path, stamp: &Stamp) -> Option<FileScan> {
        let (kept, records) = self.by_path.remove(path)?;
        (kept == *stamp).then(|| FileScan { records, ..FileScan::default() })
    }

    /// Returns how many of the files must be read.
    pub fn misses(&self, files: &BlockFiles) -> usize {
        let is_known = |path, stamp| self.by_path.get(path).is_some_and(|(kept, _)| kept == stamp);
        files.paths().iter().zip(files.stamps()).filter(|(path, stamp)| !is_known(*path, *stamp)).count()
    }
}

fn read(path: &Path, files: &BlockFiles) -> Result<KeptScan, CoinFileError> {
    let mut reader = SealedReader::open(path, SEED, None)?;
    if reader.read_array()? != MAGIC {
        return Err(reader.damaged("it is of another version"));
    }
    if reader.read_array()? != identity(files) {
        return Err(reader.damaged("it is of another network, or of files with another xor key"));
    }
    let mut kept = KeptScan::default();
    let file_count = u32::from_le_bytes(reader.read_array()?);
    let mut record_bytes = Vec::new();
    for _ in 0..file_count {
        let path_bytes = u32::from_le_bytes(reader.read_array()?);
        let mut path = Vec::new();
        if path_bytes > PATH_BYTES_MAX {
            return Err(reader.damaged("an impossible name"));
        }
        reader.read_to(path_bytes as usize, &mut path)?;
        let stamp = Stamp::from_bytes(&reader.read_array()?);
        let count = u32::from_le_bytes(reader.read_array()?);
        if count > RECORDS_MAX {
            return Err(reader.damaged("an impossible count"));
        }
        let mut records = Vec::with_capacity(count as usize);
        for _ in 0..count {
            record_bytes.clear();
            reader.read_to(RECORD_BYTES, &mut record_bytes)?;
            let record = decode(&record_bytes).ok_or_else(|| reader.damaged("an impossible record"))?;
            records.push(record);
        }
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&path));
        kept.by_path.insert(path, (stamp, records));
    }
    reader.check_rest()?;
    Ok(kept)
}

impl HeaderTree {
    /// Keeps what the scan of the files found, whole or not at all. What it holds of files that were written to just now is
    /// left out.
    ///
    /// # Errors
    /// [`CoinFileError::System`]: the next start scans again.
    pub fn keep(&self, data_dir: &Path, files: &BlockFiles) -> Result<(), CoinFileError> {
        let (path, new) = (data_dir.join(NAME), data_dir.join(format!("{NAME}.new")));
        let written = self.write_kept(&new, files).and_then(|()| {
            std::fs::rename(&new, &path).map_err(crate::prevouts::sealed::system("rename", &new))
        });
        if written.is_err() {
            // A full disk: half a file is of no use.
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    fn write_kept(&self, path: &Path, files: &BlockFiles) -> Result<(), CoinFileError> {
        let mut by_file = self.records_by_file(files.paths().len());
        let mut writer = SealedWriter::create(path, SEED)?;
        writer.write(&MAGIC)?;
        writer.write(&identity(files))?;
        let settled: Vec<usize> =
            (0..by_file.len()).filter(|&file| files.stamps()[file].is_settled()).collect();
        writer.write(&(settled.len() as u32).to_le_bytes())?;
        for file in settled {
            let (path, records) =
                (files.paths()[file].as_os_str().as_bytes(), std::mem::take(&mut by_file[file]));
            writer.write(&(path.len() as u32).to_le_bytes())?;
            writer.write(path)?;
            writer.write(&files.stamps()[file].to_bytes())?;
            writer.write(&(records.len() as u32).to_le_bytes())?;
            for record in &records {
                writer.write(&encode(record))?;
            }
        }
        writer.finish()?;
        Ok(())
    }
}

/// What a scan depends on besides the files: the magic of the network and the xor key.
fn identity(files: &BlockFiles) -> [u8; 12] {
    let mut identity = [0; 12];
    identity[..4].copy_from_slice(&files.network().magic());
    identity[4..].copy_from_slice(&files.xor_key().unwrap_or_default());
    identity
}

fn encode(record: &Record) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..32].copy_from_slice(&record.hash);
    bytes[32..64].copy_from_slice(&record.prev_hash);
    bytes[64..80].copy_from_slice(&record.work.to_le_bytes());
    bytes[80..84].copy_from_slice(&record.time.to_le_bytes());
    bytes[84..88].copy_from_slice(&record.bits.to_le_bytes());
    bytes[88..96].copy_from_slice(&record.offset.to_le_bytes());
    bytes[96..100].copy_from_slice(&record.len.to_le_bytes());
    bytes[100] = match record.trust {
        Trust::Whole => 0,
        Trust::Doubtful => 1,
        Trust::Cut => 2,
    };
    bytes
}

fn decode(bytes: &[u8]) -> Option<Record> {
    let hash = |from: usize| -> Hash32 { bytes[from..from + 32].try_into().expect("32 bytes") };
    let word = |from: usize| u32::from_le_bytes(bytes[from..from + 4].try_into().expect("4 bytes"));
    Some(Record {
        hash: hash(0),
        prev_hash: hash(32),
        work: u128::from_le_bytes(bytes[64..80].try_into().expect("16 bytes")),
        time: word(80),
        bits: word(84),
        offset: u64::from_le_bytes(bytes[88..96].try_into().expect("8 bytes")),
        len: word(96),
        trust: match bytes[100] {
            0 => Trust::Whole,
            1 => Trust::Doubtful,
            2 => Trust::Cut,
            _ => return None,
        },
    })
}

//! The folder that holds a chain: block files, and the stamp that says whose they are.
//!
//! In: blocks in order. Out: `blk00000.dat` and so on, then `chaingen.json`. While a chain is being written its files
//! stand in a folder `chaingen.partial` inside; they are moved up when all are complete, and the stamp comes last:
//! a folder without it is never taken for a chain. It must never touch a file that chaingen did not write.

use std::fs::{self, File, TryLockError};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use bitcoin::Network;
use serde::{Deserialize, Serialize};

use super::mix::Mix;
use super::{ChaingenError, FORMAT, Options};

/// The name of the stamp.
const STAMP: &str = "chaingen.json";
/// The folder that holds a chain being written.
const PARTIAL: &str = "chaingen.partial";
/// Core begins a new file before one exceeds this.
const FILE_BYTES_MAX: u64 = 0x800_0000;

/// What the stamp says.
#[derive(Debug, Serialize, Deserialize)]
struct Stamp {
    format: u32,
    blocks: u32,
    txs_per_block: u32,
    seed: u64,
    /// Sizes of the block files. `[file number]`
    file_bytes: Vec<u64>,
    mix: Mix,
}

/// What was found in the folder.
pub(super) enum Found {
    /// The chain that was asked for, complete.
    Chain(Box<Mix>),
    /// Nothing, or what an interrupted run left, now removed.
    Nothing(Box<ChainWriter>),
}

/// Writes block files.
pub(super) struct ChainWriter {
    dir: PathBuf,
    /// The folder, locked.
    lock: File,
    file: BufWriter<File>,
    /// Sizes of the files so far; the last one is being written. `[file number]`
    file_bytes: Vec<u64>,
    file_bytes_max: u64,
}

/// Looks into the folder of a chain, makes it if it is missing, and keeps other runs out of it.
///
/// # Errors
/// Another run holds the lock; there are foreign files, another chain, or a chain that was changed.
pub(super) fn open(options: &Options) -> Result<Found, ChaingenError> {
    let dir = &options.out;
    fs::create_dir_all(dir).map_err(io("create", dir))?;
    let lock = File::open(dir).map_err(io("open", dir))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(ChaingenError::InUse { dir: dir.clone() }),
        Err(TryLockError::Error(source)) => return Err(io("lock", dir)(source)),
    }
    let stamp_path = dir.join(STAMP);
    match fs::read(&stamp_path) {
        Ok(bytes) => {
            let mix = check_stamp(options, &bytes)?;
            remove_leftovers(dir, false)?;
            lock.unlock().map_err(io("unlock", dir))?;
            Ok(Found::Chain(Box::new(mix)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            refuse_foreign_files(dir)?;
            remove_leftovers(dir, true)?;
            ChainWriter::new(dir, lock).map(|writer| Found::Nothing(Box::new(writer)))
        }
        Err(source) => Err(io("read", &stamp_path)(source)),
    }
}

fn check_stamp(options: &Options, bytes: &[u8]) -> Result<Mix, ChaingenError> {
    let dir = options.out.clone();
    let other = |found: String| ChaingenError::OtherChain { dir: options.out.clone(), found };
    let stamp: Stamp =
        serde_json::from_slice(bytes).map_err(|error| other(format!("an unknown stamp ({error})")))?;
    if (stamp.blocks, stamp.txs_per_block, stamp.seed)
        != (options.blocks, options.txs_per_block, options.seed)
    {
        let Stamp { blocks, txs_per_block, seed, .. } = stamp;
        return Err(other(format!(
            "the chain of --blocks {blocks} --txs-per-block {txs_per_block} --seed {seed}"
        )));
    }
    if stamp.format != FORMAT {
        return Err(other(format!(
            "a chain of format {}, this version writes format {FORMAT}",
            stamp.format
        )));
    }
    for (number, bytes) in (0u32..).zip(&stamp.file_bytes) {
        let path = dir.join(file_name(number));
        let found = fs::metadata(&path).map(|metadata| metadata.len()).ok();
        if found != Some(*bytes) {
            return Err(ChaingenError::Changed { path, bytes: *bytes, found });
        }
    }
    Ok(stamp.mix)
}

/// Fails if the folder holds anything but what an interrupted run leaves.
fn refuse_foreign_files(dir: &Path) -> Result<(), ChaingenError> {
    let is_interrupted = dir.join(PARTIAL).is_dir();
    for entry in fs::read_dir(dir).map_err(io("read", dir))? {
        let name = entry.map_err(io("read", dir))?.file_name().to_string_lossy().into_owned();
        if name != PARTIAL && !(is_interrupted && is_file_name(&name)) {
            return Err(ChaingenError::NotEmpty { dir: dir.to_path_buf(), entry: name });
        }
    }
    Ok(())
}

/// Removes the folder of an unfinished chain and, if they belong to one, the block files beside it.
fn remove_leftovers(dir: &Path, with_block_files: bool) -> Result<(), ChaingenError> {
    let partial = dir.join(PARTIAL);
    if !partial.is_dir() {
        return Ok(());
    }
    if with_block_files {
        for entry in fs::read_dir(dir).map_err(io("read", dir))? {
            let entry = entry.map_err(io("read", dir))?;
            if is_file_name(&entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path()).map_err(io("remove", &entry.path()))?;
            }
        }
    }
    fs::remove_dir_all(&partial).map_err(io("remove", &partial))
}

impl ChainWriter {
    fn new(dir: &Path, lock: File) -> Result<Self, ChaingenError> {
        let partial = dir.join(PARTIAL);
        fs::create_dir(&partial).map_err(io("create", &partial))?;
        let file = create_file(dir, 0)?;
        Ok(Self { dir: dir.to_path_buf(), lock, file, file_bytes: vec![0], file_bytes_max: FILE_BYTES_MAX })
    }

    /// Appends a block's record: magic, length, block.
    pub(super) fn write(&mut self, block: &[u8]) -> Result<(), ChaingenError> {
        let record_bytes = 8 + block.len() as u64;
        if self.file_bytes[self.file_number() as usize] + record_bytes > self.file_bytes_max {
            self.finish_file()?;
            let next = self.file_number() + 1;
            self.file = create_file(&self.dir, next)?;
            self.file_bytes.push(0);
        }
        let length = (block.len() as u32).to_le_bytes();
        for part in [&Network::Regtest.magic().to_bytes()[..], &length, block] {
            self.file.write_all(part).map_err(|source| self.error("write", source))?;
        }
        *self.file_bytes.last_mut().expect("there is always a file") += record_bytes;
        Ok(())
    }

    /// Completes the chain: files durable and in their place, then the stamp. Returns the mix with the files counted.
    pub(super) fn finish(mut self, options: &Options, mut mix: Mix) -> Result<Mix, ChaingenError> {
        self.finish_file()?;
        mix.files = self.file_bytes.len() as u32;
        mix.bytes = self.file_bytes.iter().sum();
        let partial = self.dir.join(PARTIAL);
        for number in 0..mix.files {
            let name = file_name(number);
            let from = partial.join(&name);
            fs::rename(&from, self.dir.join(&name)).map_err(io("move", &from))?;
        }
        let stamp = Stamp {
            format: FORMAT,
            blocks: options.blocks,
            txs_per_block: options.txs_per_block,
            seed: options.seed,
            file_bytes: self.file_bytes,
            mix,
        };
        let path = partial.join(STAMP);
        let json = serde_json::to_vec_pretty(&stamp).expect("a stamp is plain numbers and strings");
        fs::write(&path, json).map_err(io("write", &path))?;
        fs::rename(&path, self.dir.join(STAMP)).map_err(io("move", &path))?;
        fs::remove_dir(&partial).map_err(io("remove", &partial))?;
        self.lock.unlock().map_err(io("unlock", &self.dir))?;
        Ok(stamp.mix)
    }

    fn finish_file(&mut self) -> Result<(), ChaingenError> {
        self.file.flush().map_err(|source| self.error("write", source))?;
        self.file.get_ref().sync_data().map_err(|source| self.error("write", source))
    }

    fn file_number(&self) -> u32 {
        self.file_bytes.len() as u32 - 1
    }

    fn error(&self, action: &'static str, source: std::io::Error) -> ChaingenError {
        io(action, &self.dir.join(PARTIAL).join(file_name(self.file_number())))(source)
    }
}

fn create_file(dir: &Path, number: u32) -> Result<BufWriter<File>, ChaingenError> {
    let path = dir.join(PARTIAL).join(file_name(number));
    let file = File::create_new(&path).map_err(io("create", &path))?;
    Ok(BufWriter::with_capacity(1 << 20, file))
}

fn file_name(number: u32) -> String {
    format!("blk{number:05}.dat")
}

fn is_file_name(name: &str) -> bool {
    let number = name.strip_prefix("blk").and_then(|rest| rest.strip_suffix(".dat"));
    number.is_some_and(|digits| digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn io<'a>(action: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> ChaingenError + use<'a> {
    move |source| ChaingenError::Io { action, path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_would_exceed_the_file_begins_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { blocks: 2, txs_per_block: 0, seed: 0, out: dir.path().to_path_buf() };
        let Ok(Found::Nothing(mut writer)) = open(&options) else { panic!("the folder is empty") };
        writer.file_bytes_max = 30;
        writer.write(&[1; 7]).unwrap();
        writer.write(&[2; 7]).unwrap();
        writer.write(&[3; 1]).unwrap();
        let mix = writer.finish(&options, Mix::default()).unwrap();
        assert_eq!((mix.files, mix.bytes), (2, 39));
        let first = fs::read(dir.path().join("blk00000.dat")).unwrap();
        assert_eq!(first[..15], [0xfa, 0xbf, 0xb5, 0xda, 7, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(first.len(), 30);
        let second = fs::read(dir.path().join("blk00001.dat")).unwrap();
        assert_eq!(second, [0xfa, 0xbf, 0xb5, 0xda, 1, 0, 0, 0, 3]);
    }

    #[test]
    fn only_five_digits_make_a_block_file() {
        assert!(is_file_name("blk00000.dat") && is_file_name("blk12345.dat"));
        assert!(
            !is_file_name("blk0000.dat") && !is_file_name("blk+0001.dat") && !is_file_name("rev00000.dat")
        );
    }
}

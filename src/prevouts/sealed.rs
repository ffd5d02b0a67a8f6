//! Sequential files in checksummed blocks: what coin runs, checkpoints, sorted chunks and spills are made of.
//!
//! In: bytes. Out: the same bytes, or an error that names file and offset; a damaged byte is never handed out. Every
//! block carries its number, its length, whether it is the last, and a checksum keyed by the file's seed: a cut file, a
//! block of another file and a flipped bit are all noticed. One system call a block, none an entry.
//!
//! ```text
//! block: payload length u32 (highest bit: last block) | block number u32 | checksum u64 | payload, little-endian
//! ```

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of a full block's payload: a multiple of every record's size, so that records never cross blocks.
pub(crate) const PAYLOAD_BYTES: usize = 120 << 10;
const HEADER_BYTES: usize = 16;
const LAST: u32 = 1 << 31;

/// Why the files of the UTXO set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CoinFileError {
    /// The system refused: disk full, no permission, a failing disk. Stop and tell the user.
    #[error("cannot {what} {}{}", path.display(), help(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file does not hold what was written: throw it away and rebuild the set from the database.
    #[error("{} is damaged at byte {offset}: {damage}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the block, bytes.
        offset: u64,
        /// What is wrong.
        damage: &'static str,
    },
}

/// What a finished file holds, kept by whoever refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Bytes of the file.
    pub(crate) file_bytes: u64,
    /// Checksum over the checksums of its blocks.
    pub(crate) checksum: u64,
}

/// What to do about the system's answer, if anybody can do anything.
fn help(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "\n  help: make room on the file system that holds it, then start the same command again"
        }
        _ => "",
    }
}

pub(crate) fn system(what: &'static str, path: &Path) -> impl Fn(std::io::Error) -> CoinFileError + use<> {
    let path = path.to_owned();
    move |source| CoinFileError::System { what, path: path.clone(), source }
}

/// Returns a checksum of words and trailing bytes. Every step is a bijection of the state, so that a change of any one
/// word always shows; four lanes keep the processor busy.
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9fb2_1c65_1e98_df25;
    let step = |state: u64, word: u64| (state ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let mut lanes = [seed, seed ^ 1, seed ^ 2, seed ^ 3];
    let mut groups = bytes.chunks_exact(32);
    for group in &mut groups {
        for (lane, bytes) in lanes.iter_mut().zip(group.chunks_exact(8)) {
            *lane = step(*lane, word(bytes));
        }
    }
    let mut state = step(seed, bytes.len() as u64);
    let mut words = groups.remainder().chunks_exact(8);
    for bytes in &mut words {
        state = step(state, word(bytes));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    state = step(state, word(&last));
    for lane in lanes {
        state = step(state, lane);
    }
    state ^ state >> 31
}

/// Writes a file.
#[derive(Debug)]
pub(crate) struct SealedWriter {
    file: File,
    path: PathBuf,
    seed: u64,
    block: Vec<u8>,
    block_number: u32,
    seal: Seal,
}

impl SealedWriter {
    /// Makes a file, or empties it.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(crate) fn create(path: &Path, seed: u64) -> Result<Self, CoinFileError> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(system("create", path))?;
        let mut block = Vec::with_capacity(HEADER_BYTES + PAYLOAD_BYTES);
        block.resize(HEADER_BYTES, 0);
        Ok(SealedWriter { file, path: path.to_owned(), seed, block, block_number: 0, seal: Seal::default() })
    }

    /// Makes a file without a name: it is gone with its last handle, whatever ends the process.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(crate) fn create_unnamed(path: &Path, seed: u64) -> Result<Self, CoinFileError> {
        let writer = SealedWriter::create(path, seed)?;
        std::fs::remove_file(path).map_err(system("unlink", path))?;
        Ok(writer)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    #[inline]
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), CoinFileError> {
        loop {
            let room = HEADER_BYTES + PAYLOAD_BYTES - self.block.len();
            if bytes.len() <= room {
                self.block.extend_from_slice(bytes);
                return Ok(());
            }
            let (now, later) = bytes.split_at(room);
            self.block.extend_from_slice(now);
            self.end_block(0)?;
            bytes = later;
        }
    }

    /// Appends a record of words.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    #[inline]
    pub(crate) fn write_words<const N: usize>(&mut self, words: &[u64; N]) -> Result<(), CoinFileError> {
        if self.block.len() + N * 8 > HEADER_BYTES + PAYLOAD_BYTES {
            self.end_block(0)?;
        }
        for word in words {
            self.block.extend_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    /// Returns the bytes that stand in the file or are about to.
    pub(crate) fn bytes(&self) -> u64 {
        self.seal.file_bytes + self.block.len() as u64
    }

    /// Writes the last block.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(crate) fn finish(mut self) -> Result<(File, Seal), CoinFileError> {
        self.end_block(LAST)?;
        Ok((self.file, self.seal))
    }

    fn end_block(&mut self, last: u32) -> Result<(), CoinFileError> {
        let header = header(self.seed, self.block_number, last, &self.block[HEADER_BYTES..]);
        self.block[..HEADER_BYTES].copy_from_slice(&header);
        self.file.write_all(&self.block).map_err(system("write", &self.path))?;
        self.seal.file_bytes += self.block.len() as u64;
        self.seal.checksum = checksum(self.seal.checksum, &header);
        self.block_number += 1;
        self.block.truncate(HEADER_BYTES);
        Ok(())
    }
}

fn header(seed: u64, block_number: u32, last: u32, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(payload.len() as u32 | last).to_le_bytes());
    header[4..8].copy_from_slice(&block_number.to_le_bytes());
    let place = u64::from(block_number) << 32 | u64::from(last);
    header[8..].copy_from_slice(&checksum(checksum(seed, &place.to_le_bytes()), payload).to_le_bytes());
    header
}

/// Reads a file from its begin to its end.
#[derive(Debug)]
pub(crate) struct SealedReader {
    file: File,
    path: PathBuf,
    seed: u64,
    /// What the file must turn out to be.
    expected: Option<Seal>,
    read: Seal,
    block: Vec<u8>,
    at: usize,
    block_number: u32,
    is_last: bool,
}

impl SealedReader {
    /// Opens a file. `path` only names it in errors.
    pub(crate) fn new(file: File, path: &Path, seed: u64, expected: Option<Seal>) -> Self {
        SealedReader {
            file,
            path: path.to_owned(),
            seed,
            expected,
            read: Seal::default(),
            block: Vec::new(),
            at: 0,
            block_number: 0,
            is_last: false,
        }
    }

    /// Opens a file by its name.
    ///
    /// # Errors
    /// [`CoinFileError::Damaged`] if it is missing or has another length.
    pub(crate) fn open(path: &Path, seed: u64, expected: Option<Seal>) -> Result<Self, CoinFileError> {
        let damaged = |damage| CoinFileError::Damaged { path: path.to_owned(), offset: 0, damage };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(damaged("it is missing")),
            Err(error) => return Err(system("open", path)(error)),
        };
        let file_bytes = file.metadata().map_err(system("look at", path))?.len();
        if expected.is_some_and(|expected| expected.file_bytes != file_bytes) {
            return Err(damaged("it has another length"));
        }
        Ok(SealedReader::new(file, path, seed, expected))
    }

    /// Returns the bytes read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.read.file_bytes
    }

    /// Returns the next record, or `None` at the end.
    ///
    /// # Errors
    /// [`CoinFileError`].
    #[inline]
    pub(crate) fn next_words<const N: usize>(&mut self) -> Result<Option<[u64; N]>, CoinFileError> {
        if self.at == self.block.len() && !self.next_block()? {
            return Ok(None);
        }
        let Some(bytes) = self.block.get(self.at..self.at + N * 8) else {
            return Err(self.damaged("a record is cut"));
        };
        self.at += N * 8;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
        Ok(Some(words))
    }

    /// Appends the next `count` bytes to `bytes`.
    ///
    /// # Errors
    /// [`CoinFileError`], also where the file ends before.
    pub(crate) fn read_to(&mut self, mut count: usize, bytes: &mut Vec<u8>) -> Result<(), CoinFileError> {
        while count > 0 {
            if self.at == self.block.len() && !self.next_block()? {
                return Err(self.damaged("it ends too early"));
            }
            let now = count.min(self.block.len() - self.at);
            bytes.extend_from_slice(&self.block[self.at..self.at + now]);
            self.at += now;
            count -= now;
        }
        Ok(())
    }

    /// Returns the next `N` bytes.
    ///
    /// # Errors
    /// [`CoinFileError`], also where the file ends before.
    pub(crate) fn read_array<const N: usize>(&mut self) -> Result<[u8; N], CoinFileError> {
        let mut array = [0; N];
        let mut done = 0;
        while done < N {
            if self.at == self.block.len() && !self.next_block()? {
                return Err(self.damaged("it ends too early"));
            }
            let now = (N - done).min(self.block.len() - self.at);
            array[done..done + now].copy_from_slice(&self.block[self.at..self.at + now]);
            self.at += now;
            done += now;
        }
        Ok(array)
    }

    /// Reads the rest and checks it.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(crate) fn check_rest(&mut self) -> Result<(), CoinFileError> {
        while self.next_block()? {}
        Ok(())
    }

    /// Says what is wrong with the block read last.
    pub(crate) fn damaged(&self, damage: &'static str) -> CoinFileError {
        CoinFileError::Damaged { path: self.path.clone(), offset: self.read.file_bytes, damage }
    }

    /// Reads the next block that is not empty; false at the end.
    fn next_block(&mut self) -> Result<bool, CoinFileError> {
        self.block.clear();
        self.at = 0;
        while !self.is_last {
            let mut header_read = [0; HEADER_BYTES];
            self.read_exact(&mut header_read)?;
            let length = u32::from_le_bytes(header_read[..4].try_into().expect("4 bytes"));
            let (length, last) = ((length & !LAST) as usize, length & LAST);
            if length > PAYLOAD_BYTES {
                return Err(self.damaged("a block has an impossible length"));
            }
            let mut block = std::mem::take(&mut self.block);
            block.resize(length, 0);
            let outcome = self.read_exact(&mut block);
            self.block = block;
            outcome?;
            if header(self.seed, self.block_number, last, &self.block) != header_read {
                self.block.clear();
                return Err(self.damaged("a block's checksum is wrong"));
            }
            self.read.file_bytes += (HEADER_BYTES + length) as u64;
            self.read.checksum = checksum(self.read.checksum, &header_read);
            self.block_number += 1;
            self.is_last = last != 0;
            if self.is_last && self.expected.is_some_and(|expected| expected != self.read) {
                self.block.clear();
                return Err(self.damaged("it is not the file that was written"));
            }
            if length > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), CoinFileError> {
        match self.file.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.damaged("it is cut")),
            Err(error) => Err(system("read", &self.path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &Path, count: u64) -> Seal {
        let mut writer = SealedWriter::create(path, 7).unwrap();
        for word in 0..count {
            writer.write_words(&[word, word * 3, word ^ 0xffff, 1, 2]).unwrap();
        }
        let bytes = writer.bytes();
        let (_, seal) = writer.finish().unwrap();
        assert_eq!(seal.file_bytes, bytes);
        seal
    }

    fn read_all(path: &Path, seed: u64, seal: Option<Seal>) -> Result<u64, CoinFileError> {
        let mut reader = SealedReader::open(path, seed, seal)?;
        let mut count = 0;
        while let Some(words) = reader.next_words::<5>()? {
            assert_eq!(words, [count, count * 3, count ^ 0xffff, 1, 2]);
            count += 1;
        }
        Ok(count)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for count in [0, 1, 3_071, 3_072, 3_073, 10_000] {
            let seal = written(&path, count);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), seal.file_bytes);
            assert_eq!(read_all(&path, 7, Some(seal)).unwrap(), count);
        }
    }

    #[test]
    fn bytes_cross_blocks_and_an_unnamed_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spill");
        let mut writer = SealedWriter::create_unnamed(&path, 1).unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        for piece in bytes.chunks(77_777) {
            writer.write(piece).unwrap();
        }
        let (mut file, seal) = writer.finish().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::io::Seek::rewind(&mut file).unwrap();
        let mut reader = SealedReader::new(file, &path, 1, Some(seal));
        let mut back = reader.read_array::<1_000>().unwrap().to_vec();
        reader.read_to(299_000, &mut back).unwrap();
        assert!(back == bytes);
        assert!(matches!(
            reader.read_array::<1>(),
            Err(CoinFileError::Damaged { damage: "it ends too early", .. })
        ));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let seal = written(&path, 4_000);
        let whole = std::fs::read(&path).unwrap();
        let places = (0..200).chain((200..whole.len()).step_by(997)).chain(whole.len() - 40..whole.len());
        for place in places {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << (place % 8);
            std::fs::write(&path, &bytes).unwrap();
            for seal in [Some(seal), None] {
                let error = read_all(&path, 7, seal).unwrap_err();
                assert!(matches!(error, CoinFileError::Damaged { .. }), "{place}: {error}");
            }
            std::fs::write(&path, &whole[..place]).unwrap();
            assert!(read_all(&path, 7, None).is_err(), "cut at {place}");
        }
        std::fs::write(&path, &whole).unwrap();
        assert!(read_all(&path, 8, Some(seal)).is_err(), "another seed");
        assert!(read_all(&path, 7, Some(Seal { checksum: 1, ..seal })).is_err(), "another file");
        assert_eq!(read_all(&path, 7, Some(seal)).unwrap(), 4_000);
    }
}

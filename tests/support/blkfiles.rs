//! Block files as a node leaves them, and worse: any order, any split, obfuscated or not, with whatever between records.
//!
//! In: blocks or bytes. Out: a folder with blkNNNNN.dat and xor.dat. Called by the tests.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use tempfile::TempDir;

/// Magic of regtest messages and block files.
pub const REGTEST: [u8; 4] = [0xfa, 0xbf, 0xb5, 0xda];
/// Magic of mainnet messages and block files.
pub const MAINNET: [u8; 4] = [0xf9, 0xbe, 0xb4, 0xd9];

/// What stands in a block file, plain.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Magic, length, and these bytes.
    Record(Vec<u8>),
    /// These bytes as they are.
    Raw(Vec<u8>),
}

/// A temporary blocks folder.
#[derive(Debug)]
pub struct BlkDir {
    dir: TempDir,
    magic: [u8; 4],
    key: [u8; 8],
}

impl BlkDir {
    /// An empty folder for regtest files without obfuscation and without xor.dat, as before Bitcoin Core 28.
    pub fn new() -> Self {
        Self::of_network(REGTEST)
    }

    /// The same for a network with another magic.
    pub fn of_network(magic: [u8; 4]) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), magic, key: [0; 8] }
    }

    /// A folder whose files will be obfuscated with a key; writes xor.dat.
    pub fn with_key(key: [u8; 8]) -> Self {
        let blocks_dir = Self { key, ..Self::new() };
        fs::write(blocks_dir.path().join("xor.dat"), key).unwrap();
        blocks_dir
    }

    /// A folder with one plain file that holds these blocks in order.
    pub fn of(blocks: &[Block]) -> Self {
        let blocks_dir = Self::new();
        blocks_dir.write(0, &records(blocks));
        blocks_dir
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, number: u32) -> PathBuf {
        self.path().join(format!("blk{number:05}.dat"))
    }

    /// Writes a new file. Returns the offset of each piece.
    pub fn write(&self, number: u32, pieces: &[Piece]) -> Vec<u64> {
        assert!(!self.file(number).exists(), "file {number} is there already");
        self.append(number, pieces)
    }

    /// Appends to a file, or begins it. Returns the offset of each piece.
    pub fn append(&self, number: u32, pieces: &[Piece]) -> Vec<u64> {
        let mut end = fs::metadata(self.file(number)).map_or(0, |metadata| metadata.len());
        let start = end;
        let (mut offsets, mut bytes) = (Vec::new(), Vec::new());
        for piece in pieces {
            offsets.push(end);
            bytes.extend(self.encode(piece));
            end = start + u64::try_from(bytes.len()).unwrap();
        }
        self.write_at(number, start, &bytes);
        offsets
    }

    /// Writes plain bytes at an offset, obfuscated as that place wants it.
    pub fn write_at(&self, number: u32, offset: u64, plain: &[u8]) {
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(self.file(number)).unwrap();
        let phase = usize::try_from(offset % 8).unwrap();
        let bytes: Vec<u8> =
            plain.iter().zip(self.key.iter().cycle().skip(phase)).map(|(byte, key)| byte ^ key).collect();
        file.write_all_at(&bytes, offset).unwrap();
    }

    /// Lengthens a file by zeros that are not obfuscated: what a node preallocates.
    pub fn preallocate(&self, number: u32, zeros: u64) {
        let file = OpenOptions::new().write(true).open(self.file(number)).unwrap();
        file.set_len(file.metadata().unwrap().len() + zeros).unwrap();
    }

    /// Shortens a file by some bytes.
    pub fn cut(&self, number: u32, bytes: u64) {
        let file = OpenOptions::new().write(true).open(self.file(number)).unwrap();
        file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
    }

    fn encode(&self, piece: &Piece) -> Vec<u8> {
        match piece {
            Piece::Raw(bytes) => bytes.clone(),
            Piece::Record(bytes) => {
                let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
                [self.magic.as_slice(), &length, bytes].concat()
            }
        }
    }
}

/// One record for each block.
pub fn records<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Vec<Piece> {
    blocks.into_iter().map(record).collect()
}

/// The record of a block.
pub fn record(block: &Block) -> Piece {
    Piece::Record(serialize(block))
}

/// Puts items in another order, always the same one for a seed.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for at in (1..items.len()).rev() {
        // Knuth's MMIX generator; the high bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
    }
}

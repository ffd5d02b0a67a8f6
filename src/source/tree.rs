//! The header tree: every block that the files hold, linked to its parent, and the active chain in it.
//!
//! 88 bytes a header and 8 in the hash index. Records are added file by file in the order in which they stand
//! there, which is the order in which the node saw them: equal work goes to the first.

mod active;
mod again;
mod grow;
mod headers;
mod kept;
mod scan;

use std::collections::HashMap;

use hashbrown::HashTable;

pub use self::active::{ActiveChain, StaleBlock};
pub use self::grow::Grown;
pub use self::headers::HeaderFault;
pub use self::kept::KeptScan;
pub use self::scan::ScannedHeaders;
use super::blk::{BlockFiles, Location, SourceError};
use super::scan::{FileScan, Record, Trust};
use crate::chain::hash::{Hash32, sha256d};
use crate::network::Network;

/// The index of an entry whose parent is not in the tree.
const NONE: u32 = u32::MAX;
/// The height of an entry that does not descend from the genesis block.
const UNCONNECTED: u32 = u32::MAX;

/// One block of the tree.
#[derive(Clone, Debug)]
struct Entry {
    hash: Hash32,
    /// Its own work until the tree is linked, then the whole chain's.
    work: Work,
    prev: u32,
    height: u32,
    time: u32,
    bits: u32,
    location: Location,
    trust: Trust,
}

/// 128 bits that ask for no more alignment than 64: it saves eight bytes an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work([u64; 2]);

impl Work {
    fn new(work: u128) -> Work {
        Work([work as u64, (work >> 64) as u64])
    }

    fn get(self) -> u128 {
        u128::from(self.0[1]) << 64 | u128::from(self.0[0])
    }
}

/// All headers of the block files, and those of a node.
#[derive(Clone, Debug)]
pub struct HeaderTree {
    entries: Vec<Entry>,
    by_hash: HashTable<u32>,
    /// Further copies of a block, best first.
    copies: HashMap<u32, Vec<(Trust, Location)>>,
    /// Children seen before their parents.
    orphans: Vec<(u32, Hash32)>,
    /// Blocks of the files that a node's headers connected since the last mark, in order.
    joined: Vec<u32>,
    /// Whether a file could not be read: what is known of it is not all that it holds.
    is_partial: bool,
    /// Entries from this one on are not in `by_hash` yet.
    unindexed_from: usize,
    network: Network,
    /// The last record of the last file: the node may still be writing it.
    newest: Option<u32>,
}

/// A block of the database.
#[derive(Clone, Debug)]
pub struct HeldBlock {
    /// Block hash, internal byte order.
    pub hash: Hash32,
    /// Hash of the block before, internal byte order.
    pub prev_hash: Hash32,
    /// Work of this block alone.
    pub work: u128,
    /// Time in the header, seconds since 1970.
    pub time: u32,
    /// Target in the header, compact form.
    pub bits: u32,
}

impl HeaderTree {
    fn new(network: Network) -> Self {
        HeaderTree {
            entries: Vec::new(),
            by_hash: HashTable::new(),
            copies: HashMap::new(),
            orphans: Vec::new(),
            joined: Vec::new(),
            is_partial: false,
            unindexed_from: 0,
            network,
            newest: None,
        }
    }

    /// Returns the number of headers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no header at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn add_file(&mut self, file: u32, scan: FileScan) {
        for record in scan.records {
            let Record { hash, prev_hash, work, time, bits, offset, len, trust } = record;
            let location = Location { file, offset, len };
            if let Some(index) = self.find(&hash) {
                self.add_copy(index, trust, location);
                continue;
            }
            let work = Work::new(work);
            let entry = Entry { hash, work, prev: NONE, height: UNCONNECTED, time, bits, location, trust };
            self.add_entry(entry, prev_hash);
        }
    }

    fn add_held(&mut self, block: &HeldBlock) {
        if self.find(&block.hash).is_none() {
            let &HeldBlock { hash, prev_hash, work, time, bits } = block;
            let work = Work::new(work);
            let location = Location { file: Location::HELD, offset: 0, len: 0 };
            let trust = Trust::Whole;
            let entry = Entry { hash, work, prev: NONE, height: UNCONNECTED, time, bits, location, trust };
            self.add_entry(entry, prev_hash);
        }
    }

    fn add_entry(&mut self, mut entry: Entry, prev_hash: Hash32) {
        let index = self.entries.len() as u32;
        entry.prev = self.find(&prev_hash).unwrap_or(NONE);
        if entry.prev == NONE {
            self.orphans.push((index, prev_hash));
        }
        self.push_entry(entry);
    }

    /// The better of two copies is the entry's own.
    fn add_copy(&mut self, index: u32, trust: Trust, location: Location) {
        let entry = &mut self.entries[index as usize];
        let mut copy = (trust, location);
        if trust < entry.trust {
            copy = (entry.trust, entry.location);
            entry.trust = trust;
            entry.location = location;
        }
        let copies = self.copies.entry(index).or_default();
        copies.push(copy);
        copies.sort();
    }

    fn newest_of(&self, file: u32) -> Option<u32> {
        let in_file = self.entries.iter().enumerate().filter(|(_, entry)| entry.location.file == file);
        in_file.max_by_key(|(_, entry)| entry.location.offset).map(|(index, _)| index as u32)
    }

    /// Files of our own making may begin with block 1.
    fn add_genesis(&mut self) {
        let bytes = self.network.genesis_block();
        let hash = sha256d(&bytes[..80]);
        if self.find(&hash).is_none() {
            let header: [u8; 80] = bytes[..80].try_into().expect("80 bytes");
            let (_, work) = crate::chain::header::checked_work(&header, self.network)
                .expect("genesis blocks prove their work");
            let parsed = crate::chain::header::Header::parse(&header);
            let record = Record {
                hash,
                prev_hash: parsed.prev_hash,
                work,
                time: parsed.time,
                bits: parsed.bits,
                offset: 0,
                len: bytes.len() as u32,
                trust: Trust::Whole,
            };
            self.add_file(Location::BUILT_IN, FileScan { records: vec![record], ..FileScan::default() });
        }
    }

    /// Finds the parents of orphans, then sums work and heights from the genesis block up.
    fn link(&mut self) {
        for (index, prev_hash) in std::mem::take(&mut self.orphans) {
            match self.find(&prev_hash) {
                Some(prev) => self.entries[index as usize].prev = prev,
                None => self.orphans.push((index, prev_hash)),
            }
        }
        let genesis = self.genesis();
        self.entries[genesis as usize].height = 0;
        let mut done = vec![false; self.entries.len()];
        done[genesis as usize] = true;
        let mut path = Vec::new();
        for start in 0..self.entries.len() as u32 {
            let mut at = start;
            while at != NONE && !done[at as usize] {
                path.push(at);
                done[at as usize] = true;
                at = self.entries[at as usize].prev;
            }
            while let Some(child) = path.pop() {
                let prev = self.entries[child as usize].prev;
                if prev != NONE && self.entries[prev as usize].height != UNCONNECTED {
                    let (height, work) =
                        (self.entries[prev as usize].height, self.entries[prev as usize].work.get());
                    let entry = &mut self.entries[child as usize];
                    entry.height = height + 1;
                    entry.work = Work::new(entry.work.get().saturating_add(work));
                }
            }
        }
    }

    /// A tree in which no block of the files follows the genesis block or what the database holds, though there are
    /// blocks, is a pruned node's.
    fn check_connected(&self, files: &BlockFiles) -> Result<(), SourceError> {
        let in_files = |entry: &Entry| entry.location.is_in_file();
        let connected = self
            .entries
            .iter()
            .any(|entry| in_files(entry) && entry.height != UNCONNECTED && entry.height > 0);
        let loose = self.entries.iter().filter(|entry| entry.height == UNCONNECTED).count();
        if connected || loose == 0 {
            if loose > 0 {
                tracing::warn!(
                    blocks = loose,
                    "blocks in the files descend from none that is there: is a block file missing? \
                     The chain ends before them"
                );
            }
            return Ok(());
        }
        let heights = self.entries.iter().map(|entry| entry.height).filter(|height| *height != UNCONNECTED);
        Err(self.pruned(files, heights.max().unwrap_or(0) + 1).unwrap_or_else(|| SourceError::Unconnected {
            path: files.directory().to_owned(),
            asked: self.network,
        }))
    }

    /// Returns what to say where the block at a height is needed and the files only hold later ones; `None` where no
    /// block stands apart, or the height of the first one cannot be told.
    pub fn pruned(&self, files: &BlockFiles, height_due: u32) -> Option<SourceError> {
        let height_first = self.first_height(files)?;
        (height_first > height_due).then(|| SourceError::Pruned {
            path: files.directory().to_owned(),
            height_first,
            height_due,
        })
    }

    /// Returns the height of the lowest block that is there, from the heights that coinbases state (BIP34).
    fn first_height(&self, files: &BlockFiles) -> Option<u32> {
        let mut lowest = None;
        // Only the roots matter; where a root is too old to state its height, a descendant does.
        let roots = self.entries.iter().enumerate().filter(|(index, entry)| {
            entry.prev == NONE && *index as u32 != self.genesis() && entry.trust != Trust::Cut
        });
        for (_, root) in roots.take(10_000) {
            let height = super::blk_height(files, root.location);
            lowest = match (lowest, height) {
                (Some(lowest), Some(height)) => Some(std::cmp::min::<u32>(lowest, height)),
                (lowest, height) => lowest.or(height),
            };
        }
        lowest
    }

    /// Returns the index of a block.
    pub fn find(&self, hash: &Hash32) -> Option<u32> {
        self.by_hash.find(table_hash(hash), |&at| self.entries[at as usize].hash == *hash).copied()
    }

    /// Returns a block's hash, internal byte order.
    pub fn hash(&self, index: u32) -> Hash32 {
        self.entries[index as usize].hash
    }

    /// Returns a block's height in its branch; `u32::MAX` where it does not descend from the genesis block.
    pub fn height(&self, index: u32) -> u32 {
        self.entries[index as usize].height
    }

    /// Returns the time in a block's header, seconds since 1970.
    pub fn time(&self, index: u32) -> u32 {
        self.entries[index as usize].time
    }

    /// Returns the work of the chain up to a block.
    pub fn chainwork(&self, index: u32) -> u128 {
        self.entries[index as usize].work.get()
    }

    /// Returns where a block is, the best copy first.
    pub fn locations(&self, index: u32) -> impl Iterator<Item = Location> + '_ {
        let copies = self.copies.get(&index).into_iter().flatten().map(|(_, location)| *location);
        std::iter::once(self.entries[index as usize].location).chain(copies)
    }

    /// Returns the length of a block as its record says, bytes.
    pub fn len_bytes(&self, index: u32) -> u32 {
        self.entries[index as usize].location.len
    }

    fn genesis(&self) -> u32 {
        let hash = sha256d(&self.network.genesis_block()[..80]);
        self.find(&hash).expect("the genesis block is always added")
    }
}

/// Block hashes are uniform in their first bytes: the end holds the zeros of the proof of work.
fn table_hash(hash: &Hash32) -> u64 {
    u64::from_le_bytes(hash[..8].try_into().expect("8 bytes")).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests;

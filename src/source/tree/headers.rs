//! Headers that a node sends, kept in the tree beside those of the files; each is checked before it is believed.
//!
//! In: 80 bytes at a time, parents first. Out: entries without a block, linked and summed. Called by the header sync only.
//! It must never keep what breaks a rule; what a peer turns out to have made up can be taken back.

use super::{ActiveChain, Entry, HeaderTree, NONE, UNCONNECTED, Work, table_hash};
use crate::chain::difficulty::{BadHeader, Past, check_header};
use crate::chain::hash::Hash32;
use crate::chain::header::{HEADER_BYTES, Header, checked_work};
use crate::network::Network;
use crate::source::blk::Location;
use crate::source::scan::Trust;

/// Hashes in a locator that stand side by side, before they thin out.
const LOCATOR_DENSE: u32 = 10;
/// Most headers, all in all, of a network that anybody can mine on.
const HEADERS_MAX_TEST: usize = 8_000_000;
/// The same for regtest, where a header costs two hashes.
const HEADERS_MAX_REGTEST: usize = 2_000_000;

/// Why a header is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Its target is no valid one, or its hash is above it.
    #[error("a header without its proof of work")]
    Work,
    /// Its parent is not known.
    #[error("a header that follows none that is known")]
    Unlinked,
    /// It does not follow the one before it in its message.
    #[error("headers that do not follow each other")]
    OutOfOrder,
    /// It breaks a rule.
    #[error("the header at height {height}: {rule}")]
    Rule {
        /// Its height.
        height: u32,
        /// The rule.
        rule: BadHeader,
    },
    /// More headers than the chain can have.
    #[error("more than {max} headers")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

/// A state of the tree to which it can be taken back.
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

/// The ancestors of a block, itself first.
#[derive(Clone, Debug)]
struct Ancestors<'a> {
    tree: &'a HeaderTree,
    at: u32,
}

impl Iterator for Ancestors<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let at = self.at;
        if at == NONE {
            return None;
        }
        self.at = self.tree.entries[at as usize].prev;
        Some(at)
    }
}

impl HeaderTree {
    /// Adds a header after one that descends from the genesis block; returns its index. One that is there already stays.
    ///
    /// # Errors
    /// [`HeaderFault`]: whoever sent it is wrong; the tree is as before.
    pub fn add_header(&mut self, bytes: &[u8; HEADER_BYTES]) -> Result<u32, HeaderFault> {
        let (hash, work) = checked_work(bytes, self.network).ok_or(HeaderFault::Work)?;
        let known = self.find(&hash);
        if let Some(index) = known
            && self.height(index) != UNCONNECTED
        {
            return Ok(index);
        }
        let header = Header::parse(bytes);
        let prev = self.find(&header.prev_hash).filter(|&prev| self.height(prev) != UNCONNECTED);
        let prev = prev.ok_or(HeaderFault::Unlinked)?;
        let height = self.height(prev) + 1;
        let past = Ancestors { tree: self, at: prev }.map(|index| {
            let entry = &self.entries[index as usize];
            Past { time: entry.time, bits: entry.bits }
        });
        check_header(self.network, height, &header, past)
            .map_err(|rule| HeaderFault::Rule { height, rule })?;
        let chainwork = Work::new(self.chainwork(prev).saturating_add(work));
        if let Some(index) = known {
            // A block of the files whose parent they lack.
            let entry = &mut self.entries[index as usize];
            (entry.prev, entry.height, entry.work) = (prev, height, chainwork);
            self.joined.push(index);
            return Ok(index);
        }
        let max = headers_max(self.network, header.time);
        if self.entries.len() >= max {
            return Err(HeaderFault::TooMany { max });
        }
        let len = block_bytes_guess(self.network, height);
        let location = Location { file: Location::PEER, offset: 0, len };
        let (time, bits, trust) = (header.time, header.bits, Trust::Whole);
        self.push_entry(Entry { hash, work: chainwork, prev, height, time, bits, location, trust });
        Ok(self.entries.len() as u32 - 1)
    }

    /// Remembers the tree as it is.
    pub fn mark(&mut self) -> Mark {
        self.joined.clear();
        Mark(self.entries.len())
    }

    /// Takes back every header added since the mark, which must be the last one made.
    pub fn take_back(&mut self, mark: Mark) {
        while let Some(index) = self.joined.pop() {
            let prev = self.entries[index as usize].prev;
            let own_work = self.chainwork(index) - self.chainwork(prev);
            let entry = &mut self.entries[index as usize];
            (entry.work, entry.height) = (Work::new(own_work), UNCONNECTED);
            if prev as usize >= mark.0 {
                entry.prev = NONE;
            }
        }
        for index in mark.0..self.entries.len() {
            let hash = table_hash(&self.entries[index].hash);
            if let Ok(entry) = self.by_hash.find_entry(hash, |&at| at as usize == index) {
                entry.remove();
            }
        }
        self.entries.truncate(mark.0);
        self.entries.shrink_to(mark.0 + mark.0 / 8);
    }

    /// Adds the headers up to a tip from an older tree of the same network: they were checked when they came.
    pub fn adopt(&mut self, older: &HeaderTree, tip: u32) {
        let chain = older.chain_to(tip);
        for height in 1..=chain.tip_height() {
            let index = chain.by_height[height as usize];
            let prev = chain.by_height[height as usize - 1];
            let from = older.entries[index as usize].clone();
            let prev = self.find(&older.hash(prev)).expect("the parent was adopted before");
            match self.find(&from.hash) {
                Some(index) => {
                    let entry = &mut self.entries[index as usize];
                    (entry.prev, entry.height, entry.work) = (prev, from.height, from.work);
                }
                None => {
                    let len = block_bytes_guess(self.network, height);
                    let location = Location { file: Location::PEER, offset: 0, len };
                    self.push_entry(Entry { prev, location, trust: Trust::Whole, ..from });
                }
            }
        }
    }

    /// Blocks that only the database held and that a chain lacks are headers alone from now on.
    pub fn forget_held(&mut self, chain: &ActiveChain) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.location.file == Location::HELD && chain.at(entry.height) != Some(index as u32) {
                self.entries[index].location.file = Location::PEER;
            }
        }
    }

    /// Returns the hashes by which a node finds where its chain leaves ours: dense at first, then ever sparser, the
    /// genesis block last.
    pub fn locator(&self, from: u32) -> Vec<Hash32> {
        let mut hashes = vec![self.hash(from)];
        let (mut step, mut at) = (1, from);
        while self.height(at) > 0 {
            at = self.ancestor(at, self.height(at).saturating_sub(step));
            hashes.push(self.hash(at));
            if hashes.len() as u32 > LOCATOR_DENSE {
                step *= 2;
            }
        }
        hashes
    }

    /// Returns the block's ancestor at a height.
    pub fn ancestor(&self, index: u32, height: u32) -> u32 {
        let mut ancestors = Ancestors { tree: self, at: index };
        ancestors.find(|&at| self.height(at) <= height).expect("it descends from the genesis block")
    }

    /// Returns the height of the last block that a branch shares with a chain.
    pub fn shared_height(&self, chain: &ActiveChain, tip: u32) -> u32 {
        let mut ancestors = Ancestors { tree: self, at: tip };
        let shared = ancestors.find(|&at| chain.at(self.height(at)) == Some(at));
        shared.map_or(0, |at| self.height(at))
    }

    /// Returns the index of a block's parent; `None` for the genesis block, or where the parent is not known.
    pub fn parent(&self, index: u32) -> Option<u32> {
        Some(self.entries[index as usize].prev).filter(|&prev| prev != NONE)
    }

    /// Returns the index of the genesis block.
    pub fn root(&self) -> u32 {
        self.genesis()
    }

    pub(super) fn push_entry(&mut self, entry: Entry) {
        let (index, hash) = (self.entries.len() as u32, table_hash(&entry.hash));
        self.entries.push(entry);
        let entries = &self.entries;
        self.by_hash.insert_unique(hash, index, |&at| table_hash(&entries[at as usize].hash));
    }
}

/// Returns how many headers a tree may hold: twice what mainnet's and signet's ten minutes give until a time, with some
/// stale ones; other networks have no such measure.
fn headers_max(network: Network, time: u32) -> usize {
    const MAIN_BEGAN: u32 = 1_231_006_505;
    match network {
        Network::Main | Network::Signet => 100_000 + time.saturating_sub(MAIN_BEGAN) as usize / 300,
        Network::Test | Network::Testnet4 => HEADERS_MAX_TEST,
        Network::Regtest => HEADERS_MAX_REGTEST,
    }
}

/// Guesses the length of a block of which only the header is known, for what is planned ahead: a segment's end, the room
/// on the disk, the time left. Rounded from the chains as they were in 2025.
fn block_bytes_guess(network: Network, height: u32) -> u32 {
    match (network, height / 50_000) {
        (Network::Main, 0..2) => 500,
        (Network::Main, 2..4) => 20_000,
        (Network::Main, 4..6) => 120_000,
        (Network::Main, 6..8) => 500_000,
        (Network::Main, 8..11) => 900_000,
        (Network::Main, 11..15) => 1_150_000,
        (Network::Main, _) => 1_650_000,
        (Network::Test, _) => 40_000,
        (Network::Testnet4, _) => 100_000,
        (Network::Signet, _) => 60_000,
        (Network::Regtest, _) => 1_000,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::chain::hash::sha256d;
    use crate::source::scan::{FileScan, Record};

    /// Mines the child of a header on regtest.
    fn child(parent: &[u8; 80], seed: u8) -> [u8; 80] {
        let mut header = *parent;
        header[4..36].copy_from_slice(&sha256d(parent));
        header[36] = seed;
        let time = u32::from_le_bytes(parent[68..72].try_into().unwrap()) + 1;
        header[68..72].copy_from_slice(&time.to_le_bytes());
        while checked_work(&header, Network::Regtest).is_none() {
            header[76] = header[76].wrapping_add(1);
        }
        header
    }

    fn branch(from: &[u8; 80], count: usize, seed: u8) -> Vec<[u8; 80]> {
        std::iter::successors(Some(child(from, seed)), |parent| Some(child(parent, seed)))
            .take(count)
            .collect()
    }

    fn genesis() -> [u8; 80] {
        Network::Regtest.genesis_block()[..80].try_into().unwrap()
    }

    fn tree_of_files(headers: &[[u8; 80]]) -> HeaderTree {
        let mut tree = HeaderTree::new(Network::Regtest);
        let records = headers.iter().map(|bytes| {
            let header = Header::parse(bytes);
            let (hash, work) = checked_work(bytes, Network::Regtest).unwrap();
            let (time, bits) = (header.time, header.bits);
            Record {
                hash,
                prev_hash: header.prev_hash,
                work,
                time,
                bits,
                offset: 8,
                len: 300,
                trust: Trust::Whole,
            }
        });
        tree.add_file(0, FileScan { records: records.collect(), ..FileScan::default() });
        tree.add_genesis();
        tree.link();
        tree
    }

    #[test]
    fn an_entry_takes_88_bytes() {
        assert_eq!(size_of::<Entry>(), 88);
    }

    #[test]
    fn headers_connect_what_the_files_lack_and_count_as_no_blocks() {
        let main = branch(&genesis(), 6, 1);
        // The files hold 1, 2 and 5.
        let mut tree = tree_of_files(&[main[4], main[0], main[1]]);
        let last = main.iter().map(|header| tree.add_header(header).unwrap()).last().unwrap();
        assert_eq!((tree.height(last), tree.chainwork(last), tree.len()), (6, 14, 7));
        assert_eq!(tree.active_chain(&HashSet::new(), None).tip_height(), 5);
        assert_eq!(tree.chain_to(last).tip_height(), 6);
        let in_files: Vec<bool> = (1..=6)
            .map(|height| tree.locations(tree.ancestor(last, height)).all(Location::is_in_file))
            .collect();
        assert_eq!(in_files, [true, true, false, false, true, false]);
    }

    #[test]
    fn what_breaks_a_rule_is_not_kept() {
        let main = branch(&genesis(), 3, 1);
        let mut tree = tree_of_files(&[]);
        assert_eq!(tree.add_header(&main[1]), Err(HeaderFault::Unlinked));
        let mut unmined = main[0];
        while checked_work(&unmined, Network::Regtest).is_some() {
            unmined[76] = unmined[76].wrapping_add(1);
        }
        assert_eq!(tree.add_header(&unmined), Err(HeaderFault::Work));
        let mut easier = main[0];
        easier[72..76].copy_from_slice(&0x2070_0000_u32.to_le_bytes());
        while checked_work(&easier, Network::Regtest).is_none() {
            easier[76] = easier[76].wrapping_add(1);
        }
        assert!(matches!(tree.add_header(&easier), Err(HeaderFault::Rule { height: 1, .. })));
        assert_eq!(tree.len(), 1);
    }

    #[test]
    fn what_was_taken_back_leaves_the_tree_as_it_was() {
        let main = branch(&genesis(), 5, 1);
        let other = branch(&main[0], 3, 2);
        let mut tree = tree_of_files(&[main[0], main[3], main[4]]);
        let before = format!("{:?}", tree.entries);
        let mark = tree.mark();
        for header in main.iter().chain(&other) {
            tree.add_header(header).unwrap();
        }
        assert_eq!(tree.len(), 9);
        tree.take_back(mark);
        assert_eq!(format!("{:?}", tree.entries), before);
        assert!(other.iter().all(|header| tree.find(&sha256d(header)).is_none()));
        for header in &main {
            tree.add_header(header).unwrap();
        }
        assert_eq!(tree.len(), 6);
    }

    #[test]
    fn a_locator_thins_out_and_ends_at_the_genesis_block() {
        let main = branch(&genesis(), 60, 1);
        let mut tree = tree_of_files(&[]);
        let last = main.iter().map(|header| tree.add_header(header).unwrap()).last().unwrap();
        let heights: Vec<u32> =
            tree.locator(last).iter().map(|hash| tree.height(tree.find(hash).unwrap())).collect();
        assert_eq!(heights, [60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 48, 44, 36, 20, 0]);
        assert_eq!(tree.locator(tree.root()), [sha256d(&genesis())]);
    }

    #[test]
    fn an_adopted_chain_keeps_its_work_and_meets_new_files() {
        let main = branch(&genesis(), 4, 1);
        let mut older = tree_of_files(&[main[0]]);
        let tip = main.iter().map(|header| older.add_header(header).unwrap()).last().unwrap();
        let mut newer = tree_of_files(&[main[0], main[2]]);
        newer.adopt(&older, tip);
        let tip = newer.find(&sha256d(&main[3])).unwrap();
        assert_eq!((newer.height(tip), newer.chainwork(tip), newer.len()), (4, 10, 5));
        assert_eq!(newer.shared_height(&newer.chain_to(tip), tip), 4);
        let other = branch(&main[1], 2, 7);
        let other_tip = other.iter().map(|header| newer.add_header(header).unwrap()).last().unwrap();
        assert_eq!(newer.shared_height(&newer.chain_to(tip), other_tip), 2);
    }
}

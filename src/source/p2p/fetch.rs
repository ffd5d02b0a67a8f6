//! Which blocks are asked for, from whom, and which have arrived: a window that moves up the chain.
//!
//! In: the chain's wishes, peers that can serve, blocks as they arrive in any order. Out: requests, and blocks in the order
//! in which the reader takes them. No clock, no I/O. What has arrived and what has been asked for together never take more
//! than the window; a block that is asked for again was in it already.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::chain::hash::Hash32;
use crate::source::scan::BLOCK_BYTES_MAX;

/// Most blocks asked of one peer at a time (`MAX_BLOCKS_IN_TRANSIT_PER_PEER` in Bitcoin Core's `net_processing.cpp`).
pub(super) const IN_FLIGHT_MAX: usize = 16;

/// A chain of which some blocks must come from peers.
pub trait Wishes: Send + Sync {
    /// Returns the first such block at this height or above it.
    fn next_from(&self, height: u32) -> Option<(u32, Hash32)>;
}

/// Blocks that are asked for, and blocks that have arrived.
pub(super) struct Fetch {
    wishes: Option<Arc<dyn Wishes>>,
    /// The next height to look for a wish at.
    next: u32,
    window_bytes: u64,
    asked: HashMap<Hash32, (u32, usize)>,
    /// Blocks to be asked for out of turn.
    again: BTreeMap<u32, Hash32>,
    arrived: BTreeMap<u32, Arrived>,
    arrived_bytes: u64,
}

/// A block as a peer sent it; only its header was looked at.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) bytes: Vec<u8>,
    pub(super) peer: usize,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("next", &self.next)
            .field("asked", &self.asked.len())
            .field("again", &self.again.len())
            .field("arrived_bytes", &self.arrived_bytes)
            .finish_non_exhaustive()
    }
}

impl Fetch {
    pub(super) fn new(window_bytes: u64) -> Fetch {
        Fetch {
            wishes: None,
            next: 0,
            window_bytes,
            asked: HashMap::new(),
            again: BTreeMap::new(),
            arrived: BTreeMap::new(),
            arrived_bytes: 0,
        }
    }

    /// From now on the window has another size, bytes.
    pub(super) fn set_window(&mut self, window_bytes: u64) {
        self.window_bytes = window_bytes;
    }

    /// Begins at a height; what was asked for before is forgotten.
    pub(super) fn begin(&mut self, wishes: Arc<dyn Wishes>, height_first: u32) {
        *self = Fetch::new(self.window_bytes);
        self.next = height_first;
        self.wishes = Some(wishes);
    }

    /// Ends; everything that waits is dropped.
    pub(super) fn end(&mut self) {
        *self = Fetch::new(self.window_bytes);
    }

    /// Returns what to ask of a peer now; it can serve these heights.
    pub(super) fn assign(&mut self, peer: usize, serves: &RangeInclusive<u32>) -> Vec<Hash32> {
        let mut free = IN_FLIGHT_MAX.saturating_sub(self.in_flight(peer));
        let mut hashes = Vec::new();
        let again: Vec<(u32, Hash32)> =
            self.again.range(serves.clone()).take(free).map(|(&height, &hash)| (height, hash)).collect();
        for (height, hash) in again {
            self.again.remove(&height);
            self.asked.insert(hash, (height, peer));
            hashes.push(hash);
            free -= 1;
        }
        while free > 0 && self.has_room() {
            let wish = self.wishes.as_ref().and_then(|wishes| wishes.next_from(self.next));
            let Some((height, hash)) = wish else {
                self.wishes = None;
                break;
            };
            // What lies between is in the files: it is not looked at again.
            self.next = height;
            if !serves.contains(&height) {
                break;
            }
            self.next = height + 1;
            if !self.is_known(height, &hash) {
                self.asked.insert(hash, (height, peer));
                hashes.push(hash);
                free -= 1;
            }
        }
        hashes
    }

    fn has_room(&self) -> bool {
        let in_use = self.arrived_bytes + self.asked.len() as u64 * BLOCK_BYTES_MAX;
        in_use == 0 || in_use + BLOCK_BYTES_MAX <= self.window_bytes
    }

    fn is_known(&self, height: u32, hash: &Hash32) -> bool {
        self.arrived.contains_key(&height)
            || self.again.contains_key(&height)
            || self.asked.contains_key(hash)
    }

    /// Returns how many blocks a peer owes.
    pub(super) fn in_flight(&self, peer: usize) -> usize {
        self.asked.values().filter(|(_, of)| *of == peer).count()
    }

    /// Asks for a block out of turn, unless it is on its way; a height of the sequence may come first.
    pub(super) fn want(&mut self, height: u32, hash: Hash32) {
        if !self.is_known(height, &hash) {
            self.again.insert(height, hash);
        }
    }

    /// Takes a block that arrived; false where nobody asked for it.
    pub(super) fn deliver(&mut self, peer: usize, hash: &Hash32, bytes: Vec<u8>) -> bool {
        let Some((height, _)) = self.asked.remove(hash) else { return false };
        self.arrived_bytes += bytes.len() as u64;
        self.arrived.insert(height, Arrived { bytes, peer });
        true
    }

    /// A peer is away: what it owes is asked of others.
    pub(super) fn release(&mut self, peer: usize) {
        let again = &mut self.again;
        self.asked.retain(|hash, (height, of)| {
            if *of == peer {
                again.insert(*height, *hash);
            }
            *of != peer
        });
    }

    /// Throws away what a peer has sent and nobody has taken yet: it is not to be believed.
    pub(super) fn distrust(&mut self, peer: usize, hash_at: impl Fn(u32) -> Option<Hash32>) {
        let heights: Vec<u32> =
            self.arrived.iter().filter(|(_, block)| block.peer == peer).map(|(&height, _)| height).collect();
        for height in heights {
            if let (Some(block), Some(hash)) = (self.arrived.remove(&height), hash_at(height)) {
                self.arrived_bytes -= block.bytes.len() as u64;
                self.again.insert(height, hash);
            }
        }
    }

    /// Returns the length of the block at a height, if it has arrived, bytes.
    pub(super) fn arrived_len(&self, height: u32) -> Option<u64> {
        self.arrived.get(&height).map(|block| block.bytes.len() as u64)
    }

    /// Hands a block over.
    pub(super) fn take(&mut self, height: u32) -> Option<Arrived> {
        let block = self.arrived.remove(&height)?;
        self.arrived_bytes -= block.bytes.len() as u64;
        Some(block)
    }

    #[cfg(test)]
    fn in_use_bytes(&self) -> u64 {
        self.arrived_bytes + self.asked.len() as u64 * BLOCK_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct EveryThird;

    fn hash(height: u32) -> Hash32 {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&height.to_le_bytes());
        hash
    }

    impl Wishes for EveryThird {
        fn next_from(&self, height: u32) -> Option<(u32, Hash32)> {
            let height = height.div_ceil(3) * 3;
            (height <= 900).then(|| (height, hash(height)))
        }
    }

    fn heights(hashes: &[Hash32]) -> Vec<u32> {
        hashes.iter().map(|hash| u32::from_le_bytes(hash[..4].try_into().unwrap())).collect()
    }

    fn begun(window_bytes: u64) -> Fetch {
        let mut fetch = Fetch::new(window_bytes);
        fetch.begin(Arc::new(EveryThird), 7);
        fetch
    }

    #[test]
    fn the_window_holds_whatever_arrives() {
        let mut fetch = begun(40_000_000);
        assert_eq!(heights(&fetch.assign(0, &(0..=900))), [9, 12, 15, 18, 21, 24, 27, 30, 33, 36]);
        assert!(fetch.assign(1, &(0..=900)).is_empty());
        // All at their largest, out of order: room for nobody until some are taken.
        for height in [36, 33, 30, 27, 24, 21, 18, 15, 12, 9] {
            assert!(fetch.deliver(0, &hash(height), vec![0; 4_000_000]));
            assert!(fetch.in_use_bytes() <= 40_000_000);
        }
        assert!(fetch.assign(1, &(0..=900)).is_empty());
        assert_eq!(fetch.take(9).unwrap().peer, 0);
        assert_eq!(heights(&fetch.assign(1, &(0..=900))), [39]);
    }

    #[test]
    fn small_blocks_keep_every_peer_busy_but_not_more() {
        let mut fetch = begun(1 << 30);
        assert_eq!(fetch.assign(0, &(0..=900)).len(), 16);
        assert_eq!(fetch.assign(1, &(0..=900)).len(), 16);
        assert!(fetch.assign(0, &(0..=900)).is_empty());
        assert!(fetch.deliver(0, &hash(9), vec![0; 300]));
        assert_eq!(heights(&fetch.assign(0, &(0..=900))), [105]);
    }

    #[test]
    fn what_a_lost_peer_owes_is_asked_of_another_even_while_the_window_is_full() {
        let mut fetch = begun(12_000_000);
        assert_eq!(heights(&fetch.assign(0, &(0..=900))), [9, 12, 15]);
        fetch.deliver(0, &hash(12), vec![0; 4_000_000]);
        fetch.release(0);
        assert_eq!(heights(&fetch.assign(1, &(0..=10))), [9]);
        assert_eq!(heights(&fetch.assign(2, &(0..=900))), [15]);
        assert!(!fetch.deliver(1, &hash(99), vec![0; 10]), "nobody asked");
        assert!(fetch.deliver(0, &hash(9), vec![0; 10]), "who it comes from does not matter");
    }

    #[test]
    fn a_distrusted_peers_blocks_are_asked_for_again() {
        let mut fetch = begun(1 << 30);
        fetch.assign(0, &(0..=12));
        fetch.deliver(0, &hash(9), vec![0; 10]);
        fetch.distrust(0, |height| Some(hash(height)));
        fetch.release(0);
        assert_eq!(fetch.arrived_len(9), None);
        assert_eq!(heights(&fetch.assign(1, &(0..=12))), [9, 12]);
        assert_eq!(fetch.arrived_bytes, 0);
    }

    #[test]
    fn a_damaged_block_of_the_files_comes_out_of_turn() {
        let mut fetch = begun(4_000_000);
        assert_eq!(heights(&fetch.assign(0, &(0..=900))), [9]);
        fetch.want(500, hash(500));
        fetch.want(500, hash(500));
        assert_eq!(heights(&fetch.assign(0, &(0..=900))), [500]);
        fetch.deliver(0, &hash(500), vec![1; 20]);
        assert_eq!(fetch.take(500).unwrap().bytes, [1; 20]);
    }
}

//! Which chain counts: most work whose blocks are all there, then the first seen.
//!
//! In: a linked tree, what breaks a rule, and the tip that the database holds. Out: the active chain, and the blocks beside it.

use std::collections::HashSet;

use super::{HeaderTree, NONE, UNCONNECTED};
use crate::chain::hash::Hash32;
use crate::source::blk::Location;
use crate::source::scan::Trust;

/// The active chain: most work whose blocks are all there.
#[derive(Debug)]
pub struct ActiveChain {
    /// Index in the tree of the block at each height.
    pub(super) by_height: Vec<u32>,
}

impl ActiveChain {
    /// Returns the height of the tip.
    pub fn tip_height(&self) -> u32 {
        self.by_height.len() as u32 - 1
    }

    /// Returns the block's index in the tree.
    pub fn at(&self, height: u32) -> Option<u32> {
        self.by_height.get(height as usize).copied()
    }
}

/// A block that is in the files but not in the active chain.
#[derive(Clone, Debug)]
pub struct StaleBlock {
    /// Block hash, internal byte order.
    pub hash: Hash32,
    /// Height in its own branch.
    pub height: u32,
    /// Where it is.
    pub location: Location,
}

impl HeaderTree {
    /// Chooses the active chain: most work, then first seen; blocks in `excluded` and their descendants do not count.
    /// A block of `preferred` wins a tie: the tip that the database already holds.
    pub fn active_chain(&self, excluded: &HashSet<Hash32>, preferred: Option<&Hash32>) -> ActiveChain {
        let genesis = self.genesis();
        let mut is_excluded = vec![false; if excluded.is_empty() { 0 } else { self.entries.len() }];
        if !excluded.is_empty() {
            // By height, so that parents come before their children.
            let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
            order.sort_by_key(|&index| self.entries[index as usize].height);
            for index in order {
                let entry = &self.entries[index as usize];
                is_excluded[index as usize] = excluded.contains(&entry.hash)
                    || (entry.prev != NONE && is_excluded[entry.prev as usize]);
            }
        }
        let counts = |index: u32| {
            self.entries[index as usize].height != UNCONNECTED
                && self.entries[index as usize].location.file != Location::PEER
                && !is_excluded.get(index as usize).copied().unwrap_or(false)
                && !self.is_unwritten(index)
        };
        let mut tip =
            preferred.and_then(|hash| self.find(hash)).filter(|&index| counts(index)).unwrap_or(genesis);
        for index in 0..self.entries.len() as u32 {
            if counts(index) && self.chainwork(index) > self.chainwork(tip) {
                tip = index;
            }
        }
        self.chain_to(tip)
    }

    /// Returns the chain from the genesis block up to a block that descends from it.
    ///
    /// # Panics
    /// If it does not.
    pub fn chain_to(&self, tip: u32) -> ActiveChain {
        let genesis = self.genesis();
        let mut by_height = Vec::with_capacity(self.entries[tip as usize].height as usize + 1);
        let mut at = tip;
        loop {
            by_height.push(at);
            if at == genesis {
                break;
            }
            at = self.entries[at as usize].prev;
        }
        by_height.reverse();
        ActiveChain { by_height }
    }

    /// Returns whether the node has begun to write this block's record and not ended: cut, last in the last file, and
    /// no other copy.
    fn is_unwritten(&self, index: u32) -> bool {
        let entry = &self.entries[index as usize];
        entry.trust == Trust::Cut && self.newest == Some(index) && !self.copies.contains_key(&index)
    }

    /// Returns whether a block's record is the last of the last file: if it is damaged, the node may still be writing it.
    pub fn is_newest(&self, index: u32) -> bool {
        self.newest == Some(index)
    }

    /// Returns the blocks that descend from the genesis block but are not in the chain. A header alone is no block.
    pub fn stale_blocks(&self, active: &ActiveChain) -> Vec<StaleBlock> {
        let mut stale = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let connected = entry.height != UNCONNECTED
                && entry.location.file != Location::PEER
                && !self.is_unwritten(index as u32);
            if connected && active.at(entry.height) != Some(index as u32) {
                stale.push(StaleBlock { hash: entry.hash, height: entry.height, location: entry.location });
            }
        }
        stale
    }
}

//! A linked tree that takes in what a node has appended to its files, in place.
//!
//! In: the records of a file that has grown. Out: the same tree with the new blocks in it. Called while the tip is followed
//! from files, where a tree of a million headers must not be made anew for every block. A file in which a known record is
//! not what it was has been rewritten: then the tree says so and stays as it is, for [`HeaderTree::scan_again`].

use std::collections::HashMap;

use super::{HeaderTree, NONE, UNCONNECTED, Work};
use crate::source::blk::Location;
use crate::source::scan::{FileScan, Record};

/// What a file that was looked at again holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// Nothing new.
    Same,
    /// More blocks, or the rest of one: all of it is in the tree.
    More,
    /// Something else than before: the tree is as it was.
    Rewritten,
}

impl HeaderTree {
    /// Takes in what stands in a file, of which it knows the first records or none; `file_count` is the number of files now.
    pub fn grow(&mut self, file: u32, file_count: usize, scan: &FileScan) -> Grown {
        let known = self.known_in(file);
        let mut standing = 0;
        let mut changed = Vec::new();
        for record in &scan.records {
            let Some(&index) = known.get(&record.offset) else { continue };
            let entry = &self.entries[index as usize];
            if entry.hash != record.hash {
                return Grown::Rewritten;
            }
            standing += 1;
            let at = Location { file, offset: record.offset, len: record.len };
            if entry.location == at && entry.trust == record.trust {
                continue;
            }
            let is_copy = self.copies.contains_key(&index);
            if is_copy && self.copies[&index].contains(&(record.trust, at)) {
                continue;
            }
            // Which of several copies is the best one is found out by a whole look.
            if is_copy {
                return Grown::Rewritten;
            }
            changed.push((index, at, record.trust));
        }
        if standing < known.len() {
            return Grown::Rewritten;
        }
        let newest_before = self.newest;
        let mut grown = if changed.is_empty() { Grown::Same } else { Grown::More };
        for (index, location, trust) in changed {
            let entry = &mut self.entries[index as usize];
            (entry.location, entry.trust) = (location, trust);
        }
        for record in &scan.records {
            if !known.contains_key(&record.offset) {
                self.take_in(file, record);
                grown = Grown::More;
            }
        }
        self.connect_loose();
        if file_count > 0 {
            self.newest = self.newest_of(file_count as u32 - 1);
        }
        if self.newest != newest_before { Grown::More } else { grown }
    }

    /// Returns the entries that have a record in a file, by its offset.
    fn known_in(&self, file: u32) -> HashMap<u64, u32> {
        let own = (0..).zip(&self.entries).map(|(index, entry)| (entry.location, index));
        let copies =
            self.copies.iter().flat_map(|(&index, copies)| copies.iter().map(move |&(_, at)| (at, index)));
        own.chain(copies).filter(|(at, _)| at.file == file).map(|(at, index)| (at.offset, index)).collect()
    }

    fn take_in(&mut self, file: u32, record: &Record) {
        let &Record { hash, prev_hash, work, time, bits, offset, len, trust } = record;
        let location = Location { file, offset, len };
        match self.find(&hash) {
            // Its bytes are at hand now.
            Some(index) if !self.entries[index as usize].location.is_in_file() => {
                let entry = &mut self.entries[index as usize];
                if entry.location.file != Location::BUILT_IN {
                    (entry.location, entry.trust) = (location, trust);
                }
            }
            Some(index) => self.add_copy(index, trust, location),
            None => {
                let work = Work::new(work);
                let height = UNCONNECTED;
                self.add_entry(
                    super::Entry { hash, work, prev: NONE, height, time, bits, location, trust },
                    prev_hash,
                );
            }
        }
    }

    /// Connects what has a parent now.
    fn connect_loose(&mut self) {
        for (index, prev_hash) in std::mem::take(&mut self.orphans) {
            match self.find(&prev_hash) {
                Some(prev) => self.entries[index as usize].prev = prev,
                None => self.orphans.push((index, prev_hash)),
            }
        }
        // Parents mostly stand before their children; where they do not, another pass connects those.
        loop {
            let mut is_any = false;
            for index in 0..self.entries.len() {
                let (prev, height) = (self.entries[index].prev, self.entries[index].height);
                if height != UNCONNECTED || prev == NONE || self.height(prev) == UNCONNECTED {
                    continue;
                }
                let (height, work) = (self.height(prev) + 1, self.chainwork(prev));
                let entry = &mut self.entries[index];
                entry.height = height;
                entry.work = Work::new(entry.work.get().saturating_add(work));
                is_any = true;
            }
            if !is_any {
                return;
            }
        }
    }
}

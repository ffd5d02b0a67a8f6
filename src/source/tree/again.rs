//! The tree of files that have changed since it was made: what stays is not read again.
//!
//! In: the linked tree, its files, and the files as they are now. Out: headers to be linked, as a scan of all files
//! would give them. Called when a node has appended to its files, rewritten or removed some. Memory is that of two trees
//! for a moment; time is that of scanning the changed files alone.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::{Entry, HeaderTree, KeptScan, NONE, ScannedHeaders, UNCONNECTED};
use crate::chain::hash::Hash32;
use crate::source::blk::{BlockFiles, Location, SourceError};
use crate::source::scan::{FileScan, Record, Trust};

impl HeaderTree {
    /// Scans the files that are new or have changed and takes from this tree what it knows of the others.
    ///
    /// # Errors
    /// As [`HeaderTree::scan`].
    pub fn scan_again(
        &self,
        before: &BlockFiles,
        now: &BlockFiles,
        kept: KeptScan,
        threads: usize,
    ) -> Result<ScannedHeaders, SourceError> {
        let mut by_file = self.records_by_file(before.paths().len());
        let known: Vec<Mutex<Option<FileScan>>> = before
            .unchanged(now)
            .into_iter()
            .map(|index| {
                let records = index.map(|index| std::mem::take(&mut by_file[index as usize]));
                Mutex::new(records.map(|records| FileScan { records, ..FileScan::default() }))
            })
            .collect();
        drop(by_file);
        let kept = Mutex::new(kept);
        HeaderTree::gather(now, threads, |file| {
            let known = known[file as usize].lock().unwrap_or_else(PoisonError::into_inner).take();
            known.or_else(|| {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.take(&now.paths()[file as usize], &now.stamps()[file as usize])
            })
        })
    }

    /// Returns the records of each file, by offset, as the scan gave them.
    pub(super) fn records_by_file(&self, file_count: usize) -> Vec<Vec<Record>> {
        let orphans: HashMap<u32, Hash32> = self.orphans.iter().copied().collect();
        let mut by_file = vec![Vec::new(); file_count];
        for (index, entry) in (0..).zip(&self.entries) {
            let prev_hash = match entry.prev {
                NONE => orphans.get(&index).copied().unwrap_or_default(),
                prev => self.entries[prev as usize].hash,
            };
            let copies = self.copies.get(&index).into_iter().flatten().copied();
            for (trust, location) in std::iter::once((entry.trust, entry.location)).chain(copies) {
                if let Some(records) = by_file.get_mut(location.file as usize) {
                    records.push(self.record(entry, prev_hash, trust, location));
                }
            }
        }
        for records in &mut by_file {
            records.sort_by_key(|record| record.offset);
        }
        by_file
    }

    fn record(&self, entry: &Entry, prev_hash: Hash32, trust: Trust, location: Location) -> Record {
        let is_summed = entry.height != UNCONNECTED && entry.prev != NONE;
        let work_before = if is_summed { self.chainwork(entry.prev) } else { 0 };
        let work = entry.work.get() - work_before;
        let Location { offset, len, .. } = location;
        let Entry { hash, time, bits, .. } = *entry;
        Record { hash, prev_hash, work, time, bits, offset, len, trust }
    }
}

//! The headers of all block files, read on threads, and their way into the tree.
//!
//! In: the files, and what an earlier run kept of those that are still the same. Out: [`ScannedHeaders`], which become a
//! tree once they are linked. Files are taken in their order, whichever was read first: equal work goes to the first seen.

use super::{HeaderTree, HeldBlock, KeptScan};
use crate::network::Network;
use crate::source::blk::{BlockFiles, SourceError};
use crate::source::scan::{FileScan, scan_file};

/// The headers of the files, before they are linked.
#[derive(Debug)]
pub struct ScannedHeaders {
    pub(super) tree: HeaderTree,
}

impl ScannedHeaders {
    /// Returns the number of blocks found.
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Returns whether no block was found; a scan that succeeds has found one.
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Links every block to its parent. Blocks that the database holds count as data too: a node may have pruned their
    /// files since.
    ///
    /// # Errors
    /// [`SourceError::Pruned`] or [`SourceError::Unconnected`]: no block continues from the genesis block.
    pub fn link(self, files: &BlockFiles, held: &[HeldBlock]) -> Result<HeaderTree, SourceError> {
        let tree = self.link_loosely(held);
        tree.check_connected(files)?;
        Ok(tree)
    }

    /// The same where a node has what the files lack: it does not matter whether theirs continue from the genesis block.
    pub fn link_loosely(self, held: &[HeldBlock]) -> HeaderTree {
        let mut tree = self.tree;
        for block in held {
            tree.add_held(block);
        }
        tree.add_genesis();
        tree.link();
        tree
    }

    /// Returns no headers at all: there are no files.
    pub fn none(network: Network) -> ScannedHeaders {
        ScannedHeaders { tree: HeaderTree::new(network) }
    }
}

impl HeaderTree {
    /// Scans all files on `threads` threads; what they hold is not linked yet.
    ///
    /// # Errors
    /// Files that cannot be read, of another network, or without a block: stop and tell the user.
    pub fn scan(files: &BlockFiles, threads: usize) -> Result<ScannedHeaders, SourceError> {
        HeaderTree::gather(files, threads, |_| None)
    }

    /// The same with what an earlier run kept of files that are still the same.
    ///
    /// # Errors
    /// As [`HeaderTree::scan`].
    pub fn scan_with(
        files: &BlockFiles,
        kept: KeptScan,
        threads: usize,
    ) -> Result<ScannedHeaders, SourceError> {
        let kept = std::sync::Mutex::new(kept);
        HeaderTree::gather(files, threads, |file| {
            let mut kept = kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            kept.take(&files.paths()[file as usize], &files.stamps()[file as usize])
        })
    }

    /// Scans those files of which `known` does not give what they hold. No files, where a node has the blocks, hold none.
    pub(super) fn gather(
        files: &BlockFiles,
        threads: usize,
        known: impl Fn(u32) -> Option<FileScan> + Sync,
    ) -> Result<ScannedHeaders, SourceError> {
        let mut tree = HeaderTree::new(files.network());
        if files.paths().is_empty() {
            return Ok(ScannedHeaders { tree });
        }
        let mut seen = Seen::default();
        let scan = |file| match known(file) {
            Some(scan) => Ok(scan),
            None => {
                files.open_file(file).and_then(|open| scan_file(&open, files.network())).or_else(|error| {
                    if !files.is_backed() || error.is_gone() {
                        return Err(error);
                    }
                    tracing::warn!(%error, "a block file cannot be read: its blocks are asked of the node");
                    Ok(FileScan { is_unread: true, ..FileScan::default() })
                })
            }
        };
        scan_in_order(files.paths().len() as u32, threads, scan, |file, scan| {
            seen.note(&scan);
            tree.is_partial |= scan.is_unread;
            tree.add_file(file, scan);
        })?;
        tree.newest = tree.newest_of(files.paths().len() as u32 - 1);
        if tree.entries.is_empty() && !(files.is_backed() && seen.other_network.is_none()) {
            let path = files.directory().to_owned();
            let asked = files.network();
            return Err(match seen.other_network {
                Some((file, found)) => {
                    SourceError::OtherNetwork { path: files.paths()[file].clone(), found, asked }
                }
                None => SourceError::NoBlocks { path, asked },
            });
        }
        if seen.break_count > 0 {
            tracing::warn!(breaks = seen.break_count, "bytes between block records were stepped over");
        }
        Ok(ScannedHeaders { tree })
    }
}

/// What the scan saw apart from records.
#[derive(Default)]
struct Seen {
    file_count: usize,
    other_network: Option<(usize, Network)>,
    break_count: u64,
}

impl Seen {
    fn note(&mut self, scan: &FileScan) {
        if self.other_network.is_none() {
            self.other_network = scan.other_network.map(|network| (self.file_count, network));
        }
        self.break_count += scan.breaks.len() as u64;
        self.file_count += 1;
    }
}

/// Scans files on threads and hands their records over in file order; at most two files a thread wait.
fn scan_in_order(
    file_count: u32,
    threads: usize,
    scan: impl Fn(u32) -> Result<FileScan, SourceError> + Sync,
    mut each: impl FnMut(u32, FileScan),
) -> Result<(), SourceError> {
    let next = std::sync::atomic::AtomicU32::new(0);
    let (sender, receiver) = crossbeam_channel::bounded(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(file_count as usize).max(1) {
            let (sender, next, scan) = (sender.clone(), &next, &scan);
            scope.spawn(move || {
                loop {
                    let file = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if file >= file_count {
                        break;
                    }
                    if sender.send((file, scan(file))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting = std::collections::BTreeMap::new();
        let mut due = 0;
        for (file, scan) in &receiver {
            waiting.insert(file, scan?);
            while let Some(scan) = waiting.remove(&due) {
                each(due, scan);
                due += 1;
            }
        }
        Ok(())
    })
}

//! The blocks of a directory as they are now: scanned, linked, and looked at again when a node has changed its files.
//!
//! In: a directory of block files, the user's nodes, or both. Out: the header tree that chains are chosen from. A node appends to its last file,
//! removes files (pruning) and rewrites them (reindex) while we read. So a block that is not where the scan saw it is
//! looked for again, a few times, and before a replay ends the files are looked at once more. Called by the main path
//! only; it must never take a vanished block for one that was never there.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tracing::{debug, info, warn};

use super::reader::Chain;
use super::{ReplayError, ReplayOptions, reconcile};
use crate::chain::hash::Hash32;
use crate::source::scan::scan_file;
use crate::source::tree::{Grown, KeptScan};
use crate::source::{
    ActiveChain, BlockFiles, HeaderTree, HeldBlock, Location, Node, NodeTip, ScannedHeaders, SourceError,
};

/// Pauses before a block that has moved is looked for again.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// How often a scan begins again because a file vanished under it.
const SCANS_MAX: usize = 5;
/// How many files may be scanned at every start before the scan is kept anew.
const UNKEPT_FILES_MAX: usize = 8;

/// The blocks of a directory, by their headers.
#[derive(Debug)]
pub struct FoundBlocks {
    files: Arc<BlockFiles>,
    headers: Headers,
    threads: usize,
    /// The nodes, and the tips of their chains when they were last asked.
    pub(super) node: Option<Arc<Node>>,
    pub(crate) tips: Vec<NodeTip>,
    /// Whether a load of them has begun in this process.
    pub(super) is_entered: bool,
    /// Where a scan is kept for the next start; `None`: nowhere.
    kept_dir: Option<PathBuf>,
    /// Whether the files were listed; otherwise the tree is made of what the database and the nodes have.
    is_listed: bool,
    /// Files that were scanned since a scan was kept.
    unkept_files: usize,
    /// Height of the block that was looked for last, and how often.
    sought: (u32, usize),
}

#[derive(Debug)]
enum Headers {
    Scanned(Box<ScannedHeaders>),
    Linked(Arc<HeaderTree>),
    /// Linking failed: the user must act.
    Failed,
}

/// Files and their tree, as they were looked at later.
type Seen = (Arc<BlockFiles>, Arc<HeaderTree>);

/// What one scan gives: the files, their headers, and how many files it had to read.
type Scanned = (BlockFiles, ScannedHeaders, usize);

/// Scans the headers of all block files; the database is not needed, so that wrong files are told before anything is
/// made.
///
/// # Errors
/// Files that are missing, cannot be read, or are of another network: the user must act.
pub async fn scan(options: &ReplayOptions) -> Result<FoundBlocks, ReplayError> {
    let start = Instant::now();
    let (directory, network, threads) = (options.blocks_dir.clone(), options.network, options.threads);
    let kept_dir = options.kept_dir.clone();
    let node = options.node.as_ref().map(|node| Arc::new(Node::start(network, node)));
    let has_node = node.is_some();
    let (files, headers, read_files) = blocking(move || {
        let scan = || scan_once(&directory, network, threads, has_node, kept_dir.as_deref());
        for _ in 1..SCANS_MAX {
            match scan() {
                Err(error) if error.is_gone() => debug!(%error, "a file vanished while it was scanned"),
                other => return other,
            }
        }
        scan()
    })
    .await?;
    if let Some(node) = &node {
        node.reach().await?;
    }
    info!(
        headers = headers.len(),
        files = files.paths().len(),
        read_files,
        seconds = start.elapsed().as_secs_f64(),
        "scanned the headers of {}",
        files.directory().display()
    );
    let found = FoundBlocks::new(options, files, headers, node);
    Ok(FoundBlocks { is_listed: true, unkept_files: read_files, ..found })
}

/// Begins without the block files, where nodes can give what the database lacks: they are scanned before the first bulk
/// load. Nobody is waited for.
///
/// # Panics
/// If there is no node.
pub fn without_files(options: &ReplayOptions) -> FoundBlocks {
    let node = options.node.as_ref().expect("a node has the blocks");
    let node = Arc::new(Node::start(options.network, node));
    let files = BlockFiles::none(&options.blocks_dir, options.network);
    FoundBlocks::new(options, files, ScannedHeaders::none(options.network), Some(node))
}

fn scan_once(
    directory: &Path,
    network: crate::network::Network,
    threads: usize,
    has_node: bool,
    kept_dir: Option<&Path>,
) -> Result<Scanned, SourceError> {
    let files = open_files(directory, network, has_node)?;
    let kept = kept_dir.map(|dir| KeptScan::read(dir, &files)).unwrap_or_default();
    let read_files = kept.misses(&files);
    let headers = HeaderTree::scan_with(&files, kept, threads)?;
    Ok((files, headers, read_files))
}

/// Lists the files; where a node has the blocks there need be none.
fn open_files(
    directory: &Path,
    network: crate::network::Network,
    has_node: bool,
) -> Result<BlockFiles, SourceError> {
    match BlockFiles::open(directory, network).map(|files| files.backed(has_node)) {
        Err(SourceError::NoFiles { .. }) if has_node => Ok(BlockFiles::none(directory, network)),
        Err(SourceError::NoDirectory { source, .. })
            if has_node && source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(BlockFiles::none(directory, network))
        }
        opened => opened,
    }
}

impl FoundBlocks {
    fn new(
        options: &ReplayOptions,
        files: BlockFiles,
        headers: ScannedHeaders,
        node: Option<Arc<Node>>,
    ) -> FoundBlocks {
        FoundBlocks {
            files: Arc::new(files),
            headers: Headers::Scanned(Box::new(headers)),
            threads: options.threads,
            node,
            tips: Vec::new(),
            is_entered: false,
            kept_dir: options.kept_dir.clone(),
            is_listed: false,
            unkept_files: 0,
            sought: (0, 0),
        }
    }

    /// Returns the block files.
    pub fn files(&self) -> Arc<BlockFiles> {
        Arc::clone(&self.files)
    }

    /// Returns the active chain as the files alone suggest it.
    ///
    /// # Errors
    /// As [`ScannedHeaders::link`].
    ///
    /// # Panics
    /// If a replay has linked the headers already.
    pub fn into_chain(self) -> Result<Chain, SourceError> {
        let Headers::Scanned(headers) = self.headers else { panic!("nobody has linked the headers before") };
        let tree = Arc::new(headers.link(&self.files, &[])?);
        let active = Arc::new(tree.active_chain(&HashSet::new(), None));
        Ok(Chain { files: self.files, tree, active, node: None })
    }

    /// Returns the tree; the first time it is linked with the blocks that the database holds.
    ///
    /// # Errors
    /// [`SourceError::Pruned`] and its like: the user must act.
    pub async fn tree(&mut self, client: &Client) -> Result<Arc<HeaderTree>, ReplayError> {
        if let Headers::Linked(tree) = &self.headers {
            return Ok(Arc::clone(tree));
        }
        let held = reconcile::held_blocks(client).await?;
        let Headers::Scanned(headers) = std::mem::replace(&mut self.headers, Headers::Failed) else {
            unreachable!("nobody comes again after linking has failed")
        };
        let tree = Arc::new(link(*headers, &self.files, &held, self.node.is_some())?);
        self.headers = Headers::Linked(Arc::clone(&tree));
        self.keep(&tree).await?;
        Ok(tree)
    }

    /// Keeps the scan for the next start, where that saves enough.
    async fn keep(&mut self, tree: &Arc<HeaderTree>) -> Result<(), ReplayError> {
        if self.unkept_files < UNKEPT_FILES_MAX.min(self.files.paths().len()) || !self.is_listed {
            return Ok(());
        }
        self.unkept_files = 0;
        let Some(dir) = self.kept_dir.clone() else { return Ok(()) };
        let (files, tree) = (self.files(), Arc::clone(tree));
        let kept = blocking(move || Ok(tree.keep(&dir, &files))).await?;
        if let Err(error) = kept {
            warn!(%error, "the scan of the block files could not be kept: the next start scans them again");
        }
        Ok(())
    }

    /// Scans the files if that was left for later.
    ///
    /// # Errors
    /// As [`scan`], and what the server says.
    pub(super) async fn list_files(&mut self, client: &Client) -> Result<(), ReplayError> {
        self.tree(client).await?;
        if self.is_listed {
            return Ok(());
        }
        let began = Instant::now();
        if let Some((files, tree)) = self.look(client).await? {
            self.set(files, tree);
        }
        self.is_listed = true;
        let tree = self.tree(client).await?;
        self.keep(&tree).await?;
        let (files, seconds) = (self.files.paths().len(), began.elapsed().as_secs_f64());
        info!(
            headers = tree.len(),
            files,
            seconds,
            "scanned the headers of {}",
            self.files.directory().display()
        );
        Ok(())
    }

    /// Looks whether a node has appended to the last files, at the cost of three looks at the file system; takes in what
    /// has come. True: there are other blocks than before.
    ///
    /// # Errors
    /// Files that cannot be read; what the server says.
    pub async fn glance(&mut self, client: &Client) -> Result<bool, ReplayError> {
        self.tree(client).await?;
        let before = self.files();
        let (has_node, looked) = (self.node.is_some(), Arc::clone(&before));
        let now = blocking(move || {
            if looked.is_tail_same()? {
                return Ok(None);
            }
            open_files(looked.directory(), looked.network(), has_node).map(Some)
        });
        let Some(now) = now.await? else { return Ok(false) };
        let is_appended = now.paths().starts_with(before.paths());
        let changed: Vec<u32> = (0..now.paths().len() as u32)
            .zip(before.unchanged(&now))
            .filter_map(|(file, unchanged)| {
                (unchanged != Some(file) || !now.is_settled(file)).then_some(file)
            })
            .collect();
        let now = Arc::new(now);
        if is_appended && changed.len() <= UNKEPT_FILES_MAX {
            let scanned = Arc::clone(&now);
            let scans = blocking(move || {
                let scan = |&file: &u32| Ok((file, scan_file(&scanned.open_file(file)?, scanned.network())?));
                changed.iter().map(scan).collect::<Result<Vec<_>, SourceError>>()
            });
            let (mut is_more, mut is_rewritten) = (false, false);
            for (file, scan) in scans.await? {
                match self.tree_mut().grow(file, now.paths().len(), &scan) {
                    Grown::Same => {}
                    Grown::More => is_more = true,
                    Grown::Rewritten => is_rewritten = true,
                }
            }
            if !is_rewritten {
                self.unkept_files += now.paths().len() - before.paths().len();
                self.files = now;
                let tree = self.tree(client).await?;
                self.keep(&tree).await?;
                return Ok(is_more);
            }
        }
        let Some((files, tree)) = self.look(client).await? else { return Ok(false) };
        info!("the block files were rewritten: looked at all of them again");
        self.set(files, tree);
        Ok(true)
    }

    /// Returns the tree, once it is linked.
    pub(crate) fn linked(&self) -> Option<&HeaderTree> {
        match &self.headers {
            Headers::Linked(tree) => Some(tree),
            _ => None,
        }
    }

    /// Returns the nodes.
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.clone()
    }

    /// After a reorg: a block that only the database held is in no one's hands once it is disconnected.
    pub(crate) fn forget_disconnected(&mut self, active: &ActiveChain) {
        self.tree_mut().forget_held(active);
    }

    /// A bulk load begins anew in this process: it is told as the first one was.
    pub(crate) fn begin_again(&mut self) {
        self.is_entered = false;
        self.node.iter().for_each(|node| node.begin_again());
    }

    /// Returns the linked tree, to add a node's headers to.
    ///
    /// # Panics
    /// If it is not linked.
    pub(super) fn tree_mut(&mut self) -> &mut HeaderTree {
        match &mut self.headers {
            // Nobody else holds it between two loads: it is not copied.
            Headers::Linked(tree) => Arc::make_mut(tree),
            _ => panic!("the tree is linked before nodes are asked"),
        }
    }

    /// Whether a node is left that was not dropped.
    pub(crate) fn has_nodes_left(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.check_left().is_ok())
    }

    /// Returns for each node how far its chain is that one, and how far it goes: its number, the last height that both
    /// share, and the height of its tip.
    pub(crate) fn shares(&self, chain: &Chain) -> Vec<(usize, u32, u32)> {
        let share = |tip: &NodeTip| {
            (tip.peer, chain.tree.shared_height(&chain.active, tip.index), chain.tree.height(tip.index))
        };
        self.tips.iter().map(share).collect()
    }

    /// Looks for a block that could not be read where the scan saw it. True: it is elsewhere now, or its file has changed,
    /// so read again. False: nothing has changed, what was wrong with it stays.
    ///
    /// # Errors
    /// The block is not in the files any more, also after some seconds: [`SourceError::Pruned`] with the first height
    /// that is there, or [`SourceError::Vanished`].
    pub async fn find_again(
        &mut self,
        client: &Client,
        height: u32,
        hash: &Hash32,
    ) -> Result<bool, ReplayError> {
        if self.sought.0 != height {
            self.sought = (height, 0);
        }
        let mut missing = None;
        while let Some(pause) = PAUSES.get(self.sought.1) {
            self.sought.1 += 1;
            tokio::time::sleep(*pause).await;
            match self.look(client).await {
                Ok(None) if missing.is_none() => return Ok(false),
                // As it was: what was missing in between is back.
                Ok(None) => return Ok(true),
                Ok(Some((files, tree))) if is_in_files(&tree, hash) => {
                    info!(height, "the block files have changed: going on with what they hold now");
                    self.set(files, tree);
                    return Ok(true);
                }
                Ok(Some((files, tree))) => {
                    let path = files.directory().to_owned();
                    let vanished = || SourceError::Vanished { path, height };
                    missing = Some(tree.pruned(&files, height).unwrap_or_else(vanished).into());
                }
                Err(error @ ReplayError::Source(_)) => missing = Some(error),
                Err(error) => return Err(error),
            }
            debug!(height, "a block has vanished from the files; waiting for it");
        }
        missing.map_or(Ok(false), Err)
    }

    fn set(&mut self, files: Arc<BlockFiles>, tree: Arc<HeaderTree>) {
        if let Headers::Linked(older) = &self.headers {
            for tip in &mut self.tips {
                tip.index = tree.find(&older.hash(tip.index)).expect("its chain was adopted");
            }
        }
        self.files = files;
        self.headers = Headers::Linked(tree);
    }

    /// Returns what the directory holds now, or `None` where no file has changed.
    async fn look(&self, client: &Client) -> Result<Option<Seen>, ReplayError> {
        let Headers::Linked(tree) = &self.headers else { return Ok(None) };
        let (before, tree, threads) = (self.files(), Arc::clone(tree), self.threads);
        let (older, has_node) = (Arc::clone(&tree), self.node.is_some());
        let kept_dir = self.kept_dir.clone().filter(|_| !self.is_listed);
        let scanned = blocking(move || {
            let now = open_files(before.directory(), before.network(), has_node)?;
            let is_same = now.paths().len() == before.paths().len()
                && before.unchanged(&now).iter().all(Option::is_some);
            if is_same {
                return Ok(None);
            }
            // Of files that were never listed an earlier run may know something.
            let kept = kept_dir.map(|dir| KeptScan::read(&dir, &now)).unwrap_or_default();
            let headers = tree.scan_again(&before, &now, kept, threads)?;
            Ok(Some((now, headers)))
        });
        let Some((now, headers)) = scanned.await? else { return Ok(None) };
        let held = reconcile::held_blocks(client).await?;
        let mut tree = link(headers, &now, &held, has_node)?;
        for tip in &self.tips {
            tree.adopt(&older, tip.index);
        }
        Ok(Some((Arc::new(now), Arc::new(tree))))
    }
}

fn is_in_files(tree: &HeaderTree, hash: &Hash32) -> bool {
    let is_in_files = |at: Location| at.is_in_file() || at.file == Location::BUILT_IN;
    tree.find(hash).is_some_and(|index| tree.locations(index).any(is_in_files))
}

fn link(
    headers: ScannedHeaders,
    files: &BlockFiles,
    held: &[HeldBlock],
    has_node: bool,
) -> Result<HeaderTree, SourceError> {
    if has_node { Ok(headers.link_loosely(held)) } else { headers.link(files, held) }
}

/// Reads files off the runtime's threads.
async fn blocking<T: Send + 'static>(
    steps: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, ReplayError> {
    let ended = tokio::task::spawn_blocking(steps).await;
    Ok(ended.map_err(|error| ReplayError::System { what: "scanning headers", source: error.into() })??)
}

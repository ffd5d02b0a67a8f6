//! The blocks of a directory as they are now: scanned, linked, and looked at again when a node has changed its files.
//!
//! In: a directory of block files, the user's nodes, or both. Out: the header tree that chains are chosen from. A node appends to its last file,
//! removes files (pruning) and rewrites them (reindex) while we read. So a block that is not where the scan saw it is
//! looked for again, a few times, and before a replay ends the files are looked at once more. Called by the main path
//! only; it must never take a vanished block for one that was never there.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tracing::{debug, info, warn};

use super::reader::Chain;
use super::{ReplayError, ReplayOptions, reconcile};
use crate::chain::hash::Hash32;
use crate::source::{
    BlockFiles, HeaderTree, HeldBlock, Location, Node, NodeTip, ScannedHeaders, SourceError,
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
/// How often blocks that came while others were loaded are loaded too, before `run` says that it is synced.
const TAIL_LOOKS_MAX: usize = 5;
/// How often a scan begins again because a file vanished under it.
const SCANS_MAX: usize = 5;

/// The blocks of a directory, by their headers.
#[derive(Debug)]
pub struct FoundBlocks {
    files: Arc<BlockFiles>,
    headers: Headers,
    threads: usize,
    /// The nodes, and the tips of their chains when they were last asked.
    pub(super) node: Option<Arc<Node>>,
    pub(super) tips: Vec<NodeTip>,
    /// Whether a load of them has begun in this process.
    pub(super) is_entered: bool,
    /// Height of the block that was looked for last, and how often.
    sought: (u32, usize),
    tail_looks: usize,
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

/// Scans the headers of all block files; the database is not needed, so that wrong files are told before anything is
/// made.
///
/// # Errors
/// Files that are missing, cannot be read, or are of another network: the user must act.
pub async fn scan(options: &ReplayOptions) -> Result<FoundBlocks, ReplayError> {
    let start = Instant::now();
    let (directory, network, threads) = (options.blocks_dir.clone(), options.network, options.threads);
    let node = options.node.as_ref().map(|node| Arc::new(Node::start(network, node)));
    let has_node = node.is_some();
    let (files, headers) = blocking(move || {
        for _ in 1..SCANS_MAX {
            match scan_once(&directory, network, threads, has_node) {
                Err(error) if error.is_gone() => debug!(%error, "a file vanished while it was scanned"),
                other => return other,
            }
        }
        scan_once(&directory, network, threads, has_node)
    })
    .await?;
    if let Some(node) = &node {
        node.reach().await?;
    }
    info!(
        headers = headers.len(),
        files = files.paths().len(),
        seconds = start.elapsed().as_secs_f64(),
        "scanned the headers of {}",
        files.directory().display()
    );
    Ok(FoundBlocks {
        files: Arc::new(files),
        headers: Headers::Scanned(Box::new(headers)),
        threads,
        node,
        tips: Vec::new(),
        is_entered: false,
        sought: (0, 0),
        tail_looks: 0,
    })
}

fn scan_once(
    directory: &std::path::Path,
    network: crate::network::Network,
    threads: usize,
    has_node: bool,
) -> Result<(BlockFiles, ScannedHeaders), SourceError> {
    let files = open_files(directory, network, has_node)?;
    let headers = HeaderTree::scan(&files, threads)?;
    Ok((files, headers))
}

/// Lists the files; where a node has the blocks there need be none.
fn open_files(
    directory: &std::path::Path,
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
        Ok(tree)
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
    pub(super) fn has_nodes_left(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.check_left().is_ok())
    }

    /// Returns for each node how far its chain is that one, and how far it goes: its number, the last height that both
    /// share, and the height of its tip.
    pub(super) fn shares(&self, chain: &Chain) -> Vec<(usize, u32, u32)> {
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

    /// Looks at the files once more when all that they held is loaded. True: they hold something else now, so choose the
    /// chain again. After some times it is enough: the next start loads what came later.
    ///
    /// # Errors
    /// What the server says.
    pub async fn has_grown(&mut self, client: &Client) -> Result<bool, ReplayError> {
        if self.tail_looks == TAIL_LOOKS_MAX {
            return Ok(false);
        }
        self.tail_looks += 1;
        match self.look(client).await {
            Ok(None) => {
                let tree = self.tree(client).await?;
                Ok(self.has_node_grown(&tree).await)
            }
            Ok(Some((files, tree))) => {
                self.set(files, tree);
                Ok(true)
            }
            // All that was there is loaded.
            Err(ReplayError::Source(error)) => {
                warn!(%error, "the block files could not be looked at again; all that they held is loaded");
                Ok(false)
            }
            Err(error) => Err(error),
        }
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
        let scanned = blocking(move || {
            let now = open_files(before.directory(), before.network(), has_node)?;
            let is_same = now.paths().len() == before.paths().len()
                && before.unchanged(&now).iter().all(Option::is_some);
            if is_same {
                return Ok(None);
            }
            let headers = tree.scan_again(&before, &now, threads)?;
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

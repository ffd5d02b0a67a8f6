//! Reads the blocks of a batch from the block files and parses them.
//!
//! In: heights of the active chain. Out: a filled batch. A damaged record is tried again from its other copies, then
//! asked of a node if there is one; only then is it an error, which names file, offset and height. Blocks that no file
//! holds come from the node by the same path and through the same checks.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::warn;

use crate::chain::batch::Batch;
use crate::chain::block::{BlockContext, BlockError, DamagedBlock, InvalidBlock, parse_block};
use crate::chain::hash::{Hash32, sha256d};
use crate::chain::header::HEADER_BYTES;
use crate::network::Network;
use crate::prevouts::FingerprintKey;
use crate::source::blk::BlockFile;
use crate::source::p2p::{SentBlock, Wishes};
use crate::source::{ActiveChain, BlockFiles, HeaderTree, Location, Node, NodeError, SourceError};

/// Why a block of the active chain was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system could not read: retry, then stop.
    #[error("block at height {height}: {source}")]
    Source {
        /// Height of the block.
        height: u32,
        /// What was said.
        source: SourceError,
    },
    /// No node can serve it: choose again with those that are left.
    #[error("block at height {height}: {source}")]
    Node {
        /// Height of the block.
        height: u32,
        /// Why.
        source: NodeError,
    },
    /// No file holds the block any more where the scan saw it: look again.
    #[error("the block at height {height} is not in {file} any more")]
    Gone {
        /// Height of the block.
        height: u32,
        /// Block hash, internal byte order.
        hash: Hash32,
        /// The file of the best copy.
        file: String,
    },
    /// No copy of the block is whole: look again where the file has changed, treat it as not yet written if it is the
    /// newest record, or stop.
    #[error("damaged block at height {height} in {file} at offset {offset}: {damage}")]
    Damaged {
        /// Height of the block.
        height: u32,
        /// Block hash, internal byte order.
        hash: Hash32,
        /// The file of the best copy.
        file: String,
        /// Offset of the header in that file, bytes.
        offset: u64,
        /// What is wrong with it.
        damage: DamagedBlock,
    },
    /// The block breaks a rule by itself: exclude it.
    #[error("invalid block at height {height} in {file} at offset {offset}: {rule}")]
    Invalid {
        /// Height of the block.
        height: u32,
        /// Block hash, internal byte order.
        hash: Hash32,
        /// The file.
        file: String,
        /// Offset of the header in that file, bytes.
        offset: u64,
        /// The rule.
        rule: InvalidBlock,
    },
}

impl ReadError {
    /// Returns height and hash of a block that may have moved since the scan.
    pub fn moved(&self) -> Option<(u32, Hash32)> {
        match self {
            ReadError::Gone { height, hash, .. } | ReadError::Damaged { height, hash, .. } => {
                Some((*height, *hash))
            }
            ReadError::Source { .. } | ReadError::Node { .. } | ReadError::Invalid { .. } => None,
        }
    }
}

/// Stands for the length of a block that has not arrived: more than any batch takes beside others.
const UNKNOWN_BYTES: u64 = u32::MAX as u64;

/// Why one copy of a block is of no use.
enum CopyFault {
    /// Its file is away, or shorter than it was.
    Gone,
    Damaged(DamagedBlock),
}

impl std::fmt::Display for CopyFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CopyFault::Gone => f.write_str("the block is not where it was"),
            CopyFault::Damaged(damage) => write!(f, "damaged block: {damage}"),
        }
    }
}

/// The active chain and where its blocks are.
#[derive(Debug)]
pub struct Chain {
    /// The block files.
    pub files: Arc<BlockFiles>,
    /// All their headers.
    pub tree: Arc<HeaderTree>,
    /// The chosen branch.
    pub active: Arc<ActiveChain>,
    /// The nodes that chose it and have every block of it; `None`: the files alone suggest it.
    pub node: Option<Arc<Node>>,
}

/// Those blocks of a chain that no file holds.
#[derive(Debug)]
struct NotInFiles {
    tree: Arc<HeaderTree>,
    active: Arc<ActiveChain>,
    height_last: u32,
}

impl Wishes for NotInFiles {
    fn next_from(&self, height: u32) -> Option<(u32, Hash32)> {
        let is_wished = |index| self.tree.locations(index).next().is_some_and(is_sent);
        (height..=self.height_last).find_map(|height| {
            let index = self.active.at(height).filter(|&index| is_wished(index))?;
            Some((height, self.tree.hash(index)))
        })
    }
}

/// Whether only a node can give the block.
fn is_sent(location: Location) -> bool {
    !location.is_in_file() && location.file != Location::BUILT_IN
}

impl Chain {
    /// Returns the length of the block at a height as its record says, bytes.
    ///
    /// # Panics
    /// If the height is above the tip.
    pub fn block_bytes(&self, height: u32) -> u64 {
        // What a record says may be wrong, but a block is never longer than its network allows.
        u64::from(self.tree.len_bytes(self.index(height))).min(crate::source::scan::BLOCK_BYTES_MAX)
    }

    /// Returns the hash of the block at a height, internal byte order.
    ///
    /// # Panics
    /// If the height is above the tip.
    pub fn hash(&self, height: u32) -> Hash32 {
        self.tree.hash(self.index(height))
    }

    /// Returns where the best copy of the block at a height is.
    ///
    /// # Panics
    /// If the height is above the tip.
    pub fn location(&self, height: u32) -> Location {
        self.tree.locations(self.index(height)).next().expect("every block has a location")
    }

    /// Returns whether no file holds the block at a height, so that a node must send it.
    ///
    /// # Panics
    /// If the height is above the tip.
    pub fn is_sent(&self, height: u32) -> bool {
        is_sent(self.location(height))
    }

    /// Returns what must come from the nodes.
    pub fn wishes(&self) -> Arc<dyn Wishes> {
        self.wishes_to(self.active.tip_height())
    }

    /// Returns what must come from the nodes up to a height.
    pub fn wishes_to(&self, height_last: u32) -> Arc<dyn Wishes> {
        let (tree, active) = (Arc::clone(&self.tree), Arc::clone(&self.active));
        Arc::new(NotInFiles { tree, active, height_last })
    }

    /// Returns whether a damaged block is the last record of the last file and its end is blank: the node is still
    /// writing it.
    ///
    /// # Errors
    /// What the operating system says.
    ///
    /// # Panics
    /// If the height is above the tip.
    pub fn is_unwritten(&self, height: u32) -> Result<bool, SourceError> {
        let location = self.location(height);
        if !self.tree.is_newest(self.index(height)) || location.file == Location::BUILT_IN {
            return Ok(false);
        }
        let end = location.offset + u64::from(location.len);
        match self.files.open_file(location.file).and_then(|file| file.ends_blank(end)) {
            Err(error) if error.is_gone() => Ok(false),
            ends_blank => ends_blank,
        }
    }

    /// Returns what the chain says about the block at a height.
    fn context(&self, height: u32) -> BlockContext {
        let index = self.index(height);
        let mut times: Vec<u32> =
            (height.saturating_sub(10)..=height).map(|height| self.tree.time(self.index(height))).collect();
        times.sort_unstable();
        BlockContext {
            height,
            hash: self.tree.hash(index),
            median_time: times[times.len() / 2],
            chainwork: self.tree.chainwork(index),
            segwit_active: height >= self.files.network().segwit_height(),
        }
    }

    fn index(&self, height: u32) -> u32 {
        self.active.at(height).expect("heights come from the active chain")
    }

    fn network(&self) -> Network {
        self.files.network()
    }
}

/// Reads and parses batches on one thread.
#[derive(Debug)]
pub struct BatchReader {
    chain: Arc<Chain>,
    key: FingerprintKey,
    /// If any is set, nobody waits for a node any more.
    given_up: [Arc<AtomicBool>; 2],
}

impl BatchReader {
    /// Makes a reader; it opens files as it needs them. As soon as one of `given_up` is set it waits for no node.
    pub fn new(chain: Arc<Chain>, key: FingerprintKey, given_up: [Arc<AtomicBool>; 2]) -> Self {
        BatchReader { chain, key, given_up }
    }

    /// Waits until the block at a height is there, if a node must send it: what stands in the way is told when it is read.
    pub fn await_block(&self, height: u32) {
        if let Some(node) = self.chain.node.as_ref().filter(|_| self.chain.is_sent(height)) {
            let _ = node.wait_for(height, &self.chain.hash(height), &|| self.is_given_up());
        }
    }

    fn is_given_up(&self) -> bool {
        self.given_up.iter().any(|flag| flag.load(Ordering::Relaxed))
    }

    /// Returns the length of the block at a height as its record says, or as it has arrived, bytes; more than any block
    /// has while it has not: a batch ends before it.
    pub fn block_bytes(&self, height: u32) -> u64 {
        match self.chain.node.as_ref().filter(|_| self.chain.is_sent(height)) {
            Some(node) => node.arrived_bytes(height).unwrap_or(UNKNOWN_BYTES),
            None => self.chain.block_bytes(height),
        }
    }

    /// Fills an empty batch with the blocks of some heights.
    ///
    /// # Errors
    /// The first block that cannot be taken; the batch is not usable then.
    pub fn read(&mut self, heights: &RangeInclusive<u32>, batch: &mut Batch) -> Result<(), ReadError> {
        let chain = Arc::clone(&self.chain);
        // Neighbours in height mostly stand in one file: the one in use stays open for the batch.
        let mut open: Option<(u32, BlockFile<'_>)> = None;
        for height in heights.clone() {
            let context = chain.context(height);
            let mut first_fault = None;
            let mut is_taken = false;
            for location in chain.tree.locations(chain.index(height)) {
                if chain.node.is_some() && is_sent(location) {
                    continue;
                }
                match self.read_copy(&chain, &mut open, location, &context, batch)? {
                    Ok(()) => {
                        is_taken = true;
                        break;
                    }
                    Err(fault) => {
                        first_fault.get_or_insert((location, fault));
                    }
                }
            }
            if is_taken {
                continue;
            }
            if let Some(node) = &chain.node {
                if let Some((location, fault)) = first_fault {
                    let (file, offset) = (chain.files.name(location), location.offset);
                    warn!(height, file, offset, "{fault}: asking the node for the block");
                } else {
                    node.enter_bulk();
                }
                self.read_sent(&chain, node, &context, batch)?;
            } else if let Some((location, fault)) = first_fault {
                let (file, offset, hash) = (chain.files.name(location), location.offset, context.hash);
                return Err(match fault {
                    CopyFault::Gone => ReadError::Gone { height, hash, file },
                    CopyFault::Damaged(damage) => ReadError::Damaged { height, hash, file, offset, damage },
                });
            }
        }
        Ok(())
    }

    /// Appends a block that a node sends; one that sends something else is dropped, and the next one asked.
    fn read_sent(
        &self,
        chain: &Chain,
        node: &Node,
        context: &BlockContext,
        batch: &mut Batch,
    ) -> Result<(), ReadError> {
        let height = context.height;
        loop {
            let before = Lengths::of(batch);
            let sent = node.take(height, &context.hash, &|| self.is_given_up());
            let SentBlock { bytes, peer } = sent.map_err(|source| ReadError::Node { height, source })?;
            batch.raw.extend_from_slice(&bytes);
            match parse_block(batch, before.raw, context, &self.key) {
                Ok(()) => return Ok(()),
                Err(BlockError::Damaged(damage)) => {
                    before.restore(batch);
                    let hash_at = |height| (height <= chain.active.tip_height()).then(|| chain.hash(height));
                    node.refuse(peer, height, damage.to_string(), hash_at);
                }
                Err(BlockError::Invalid(rule)) => {
                    let (hash, file) = (context.hash, format!("what {} sends", node.address(peer)));
                    return Err(ReadError::Invalid { height, hash, file, offset: 0, rule });
                }
            }
        }
    }

    /// Appends one copy of a block; the inner error means that another copy may serve.
    fn read_copy<'a>(
        &self,
        chain: &'a Chain,
        open: &mut Option<(u32, BlockFile<'a>)>,
        location: Location,
        context: &BlockContext,
        batch: &mut Batch,
    ) -> Result<Result<(), CopyFault>, ReadError> {
        let height = context.height;
        let before = Lengths::of(batch);
        match read_bytes(chain, open, location, &mut batch.raw) {
            Ok(()) => {}
            Err(error) if error.is_gone() => return Ok(Err(CopyFault::Gone)),
            Err(source) => return Err(ReadError::Source { height, source }),
        }
        // A file that was rewritten since the scan holds another block here.
        let parsed = if batch.raw.len() - before.raw < HEADER_BYTES
            || sha256d(&batch.raw[before.raw..before.raw + HEADER_BYTES]) != context.hash
        {
            Err(BlockError::Damaged(DamagedBlock::OtherBlock))
        } else {
            parse_block(batch, before.raw, context, &self.key)
        };
        match parsed {
            Ok(()) => Ok(Ok(())),
            Err(BlockError::Damaged(damage)) => {
                before.restore(batch);
                Ok(Err(CopyFault::Damaged(damage)))
            }
            Err(BlockError::Invalid(rule)) => Err(ReadError::Invalid {
                height,
                hash: context.hash,
                file: chain.files.name(location),
                offset: location.offset,
                rule,
            }),
        }
    }
}

fn read_bytes<'a>(
    chain: &'a Chain,
    open: &mut Option<(u32, BlockFile<'a>)>,
    location: Location,
    raw: &mut Vec<u8>,
) -> Result<(), SourceError> {
    if location.file == Location::BUILT_IN {
        raw.extend_from_slice(&chain.network().genesis_block());
        return Ok(());
    }
    if is_sent(location) {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(SourceError::Read { path: chain.files.directory().to_owned(), offset: 0, source });
    }
    let file = match open {
        Some((file, handle)) if *file == location.file => handle,
        _ => &mut open.insert((location.file, chain.files.open_file(location.file)?)).1,
    };
    // A cut record is read as far as it goes: parsing says what is missing.
    let len = u64::from(location.len).min(file.len().saturating_sub(location.offset));
    file.read_to(location.offset, len.min(crate::source::scan::BLOCK_BYTES_MAX) as usize, raw)
}

/// Lengths of a batch's vectors before a block, to undo a failed parse.
struct Lengths {
    raw: usize,
    txs: usize,
    inputs: usize,
    outputs: usize,
}

impl Lengths {
    fn of(batch: &Batch) -> Self {
        Lengths {
            raw: batch.raw.len(),
            txs: batch.txs.len(),
            inputs: batch.inputs.len(),
            outputs: batch.outputs.len(),
        }
    }

    fn restore(&self, batch: &mut Batch) {
        batch.raw.truncate(self.raw);
        batch.txs.truncate(self.txs);
        batch.inputs.truncate(self.inputs);
        batch.outputs.truncate(self.outputs);
    }
}

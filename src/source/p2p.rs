//! Headers and blocks from the user's own nodes, over Bitcoin's peer-to-peer protocol.
//!
//! In: addresses. Out: the headers of each node's active chain ([`sync`]), and blocks, many at a time, in any order, handed
//! to threads that wait for them height by height. One task a peer ([`session`]) on the runtime; everything shared stands
//! under one lock. The nodes have run the scripts and decide between branches; what can be checked without scripts is
//! checked all the same: headers here, blocks by whoever parses them, who then calls [`Node::refuse`]. A peer that is wrong
//! is dropped with a reason and its blocks are asked of the others; nothing a peer does makes memory grow beyond the window.

mod fault;
mod fetch;
mod frame;
mod message;
mod session;
mod sync;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bitcoin::p2p::ServiceFlags;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use self::fault::Fault;
pub use self::fetch::Wishes;
use self::fetch::{Arrived, Fetch};
use self::message::Greeting;
use self::session::AskHeaders;
pub use self::sync::NodeTip;
use crate::chain::hash::Hash32;
use crate::network::Network;

/// Longest time until a node is first reached: an address may be wrong, or the node is being started.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest time that a block is waited for while no node is connected that has it.
const AWAY_WAIT_MAX: Duration = Duration::from_secs(30 * 60);
/// How often a waiting thread looks whether it should give up.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Blocks below the tip that a node with `NODE_NETWORK_LIMITED` serves (BIP159).
const LIMITED_BLOCKS: u32 = 288;
/// Least window: a block at its largest, and one on its way.
const WINDOW_BYTES_MIN: u64 = 8_000_000;

/// What the nodes are reached with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOptions {
    /// `HOST:PORT` of each.
    pub addresses: Vec<String>,
    /// Longest silence of a node that owes something.
    pub timeout: Duration,
    /// Most bytes of blocks that have arrived or are on their way.
    pub window_bytes: u64,
}

/// Why no node can be used. Nothing was changed: the same command goes on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// None answered.
    #[error(
        "no node can be reached after {seconds} s: {peers}\n  help: is the node running with -listen=1, and is --peer \
         its P2P address (port 8333 on main, 38333 on signet, 18444 on regtest)?"
    )]
    Unreachable {
        /// Each address and what happened.
        peers: String,
        /// How long it was tried, seconds.
        seconds: u64,
    },
    /// Every node was dropped.
    #[error("no node is left: {peers}")]
    NoneLeft {
        /// Each address and why it was dropped.
        peers: String,
    },
    /// No node that is left serves a block of the chain that was chosen.
    #[error("no node serves the block at height {height}: {peers}")]
    NotServed {
        /// Height of the block.
        height: u32,
        /// Each address and its state.
        peers: String,
    },
    /// The node has deleted blocks that are needed.
    #[error(
        "the node {peer} is pruned: the first block that it serves has height {height_first}, but blocks from height \
         {height_due} on are needed. Give a --peer with prune=0, or the block files"
    )]
    Pruned {
        /// Its address.
        peer: String,
        /// First height that it serves.
        height_first: u32,
        /// First height that is needed.
        height_due: u32,
    },
    /// Whoever waited was asked to stop.
    #[error("stopped")]
    Stopped,
}

/// The user's nodes, kept connected.
#[derive(Debug)]
pub struct Node {
    inner: Arc<Inner>,
    /// Whether blocks of the chain, not only damaged ones of the files, have been taken.
    is_bulk: AtomicBool,
    /// Whether that was said.
    is_told: AtomicBool,
    /// Ends the sessions with the handle.
    _sessions: JoinSet<()>,
}

#[derive(Debug)]
struct Inner {
    network: Network,
    timeout: Duration,
    addresses: Vec<String>,
    shared: Mutex<Shared>,
    /// For threads.
    changed: Condvar,
    /// For tasks.
    wake: watch::Sender<()>,
    /// Counts what the nodes have announced.
    news: watch::Sender<u64>,
}

#[derive(Debug)]
struct Shared {
    peers: Vec<Peer>,
    fetch: Fetch,
}

/// What is known of a peer.
#[derive(Debug, Default)]
struct Peer {
    commands: Option<mpsc::Sender<AskHeaders>>,
    services: u64,
    was_reached: bool,
    /// It has been tried at least once.
    was_tried: bool,
    is_in_initial_download: bool,
    /// Why it was dropped for good.
    dropped: Option<String>,
    /// What somebody who looked at its blocks says; its session has not heard of it yet.
    blame: Option<Fault>,
    /// The last passing fault.
    fault: Option<String>,
    strikes: u32,
    /// Blocks that it has sent.
    delivered: u64,
    /// Tip of its active chain, once it was asked.
    tip: Option<Hash32>,
    /// It has connected, or announced something, since it was asked.
    has_news: bool,
    /// Heights of the chosen chain that it serves.
    serves: Option<RangeInclusive<u32>>,
}

/// A block that a node has sent; only its header was checked.
#[derive(Debug)]
pub struct SentBlock {
    /// The block.
    pub bytes: Vec<u8>,
    /// Who sent it, for [`Node::refuse`].
    pub peer: usize,
}

impl Node {
    /// Begins to connect to every address; must be called on a runtime.
    pub fn start(network: Network, options: &NodeOptions) -> Node {
        let peers = options.addresses.iter().map(|_| Peer::default()).collect();
        let fetch = Fetch::new(options.window_bytes.max(WINDOW_BYTES_MIN));
        let inner = Arc::new(Inner {
            network,
            timeout: options.timeout,
            addresses: options.addresses.clone(),
            shared: Mutex::new(Shared { peers, fetch }),
            changed: Condvar::new(),
            wake: watch::Sender::new(()),
            news: watch::Sender::new(0),
        });
        let mut sessions = JoinSet::new();
        for peer in 0..options.addresses.len() {
            sessions.spawn(session::keep(Arc::clone(&inner), peer));
        }
        Node { inner, is_bulk: AtomicBool::default(), is_told: AtomicBool::default(), _sessions: sessions }
    }

    /// Waits until every node was tried and at least one is connected.
    ///
    /// # Errors
    /// [`NodeError::NoneLeft`], [`NodeError::Unreachable`].
    pub async fn reach(&self) -> Result<(), NodeError> {
        let began = Instant::now();
        let mut wake = self.inner.wake.subscribe();
        loop {
            {
                let shared = self.inner.lock();
                let is_any = shared.peers.iter().any(|peer| peer.commands.is_some());
                let is_over = shared.peers.iter().all(|peer| peer.was_tried);
                let is_patient = began.elapsed() < FIRST_WAIT_MAX;
                if is_any && (is_over || !is_patient) {
                    return Ok(());
                }
                if shared.peers.iter().all(|peer| peer.dropped.is_some()) {
                    return Err(NodeError::NoneLeft { peers: self.inner.describe(&shared) });
                }
                if !is_patient && shared.peers.iter().all(|peer| !peer.was_reached) {
                    let seconds = began.elapsed().as_secs();
                    return Err(NodeError::Unreachable { peers: self.inner.describe(&shared), seconds });
                }
                if began.elapsed() > AWAY_WAIT_MAX {
                    let seconds = began.elapsed().as_secs();
                    return Err(NodeError::Unreachable { peers: self.inner.describe(&shared), seconds });
                }
            }
            let _ = tokio::time::timeout(Duration::from_secs(1), wake.changed()).await;
        }
    }

    /// Tells which blocks of which chain each node serves, and begins to ask for those that are wished from a height on.
    /// `shared_heights` gives, for each [`NodeTip::peer`], the last height that its chain shares with the chosen one, and
    /// its tip's height.
    ///
    /// # Errors
    /// [`NodeError::Pruned`]: the only nodes there are no longer have the first block.
    pub fn begin(
        &self,
        wishes: Arc<dyn Wishes>,
        height_first: u32,
        shared_heights: &[(usize, u32, u32)],
    ) -> Result<(), NodeError> {
        let mut shared = self.inner.lock();
        let wished = wishes.next_from(height_first);
        let mut pruned = None;
        for &(peer, height_shared, height_tip) in shared_heights {
            let state = &mut shared.peers[peer];
            let has_all = ServiceFlags::from(state.services).has(ServiceFlags::NETWORK);
            let first = if has_all { 0 } else { (height_tip + 1).saturating_sub(LIMITED_BLOCKS) };
            state.serves = Some(first..=height_shared);
            if let Some((height_due, _)) = wished
                && height_due <= height_shared
                && height_due < first
            {
                let peer = self.inner.addresses[peer].clone();
                pruned = Some(NodeError::Pruned { peer, height_first: first, height_due });
            }
        }
        let is_served = |height| {
            let serves = |peer: &Peer| peer.serves.as_ref().is_some_and(|serves| serves.contains(&height));
            shared.peers.iter().any(|peer| peer.dropped.is_none() && serves(peer))
        };
        if let (Some(pruned), Some((height, _))) = (pruned, wished)
            && !is_served(height)
        {
            return Err(pruned);
        }
        shared.fetch.begin(wishes, height_first);
        drop(shared);
        self.inner.wake.send_replace(());
        Ok(())
    }

    /// Tells of every block that a node announces, and of every node that comes or goes.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.inner.news.subscribe()
    }

    /// Bounds what has arrived and what is on its way by another size, bytes.
    pub fn set_window(&self, window_bytes: u64) {
        self.inner.lock().fetch.set_window(window_bytes.max(WINDOW_BYTES_MIN));
    }

    /// Another bulk load begins in this process.
    pub fn begin_again(&self) {
        self.is_bulk.store(false, Ordering::Relaxed);
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// Asks for nothing more and forgets what has arrived.
    pub fn end(&self) {
        self.inner.lock().fetch.end();
    }

    /// Returns the length of a block that has arrived, bytes; `None` while it has not.
    pub fn arrived_bytes(&self, height: u32) -> Option<u64> {
        self.inner.lock().fetch.arrived_len(height)
    }

    /// Waits until a block has arrived, and leaves it there; asks for it if nobody has. Blocks the thread.
    ///
    /// # Errors
    /// [`NodeError::NotServed`], or [`NodeError::Stopped`] as soon as `is_given_up` says so.
    pub fn wait_for(
        &self,
        height: u32,
        hash: &Hash32,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<(), NodeError> {
        self.wait(height, hash, is_given_up, |shared| shared.fetch.arrived_len(height).map(|_| ()))
    }

    /// Waits for a block and takes it. Blocks the thread.
    ///
    /// # Errors
    /// As [`Node::wait_for`].
    pub fn take(
        &self,
        height: u32,
        hash: &Hash32,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<SentBlock, NodeError> {
        let taken = self.wait(height, hash, is_given_up, |shared| shared.fetch.take(height));
        let Arrived { bytes, peer } = taken?;
        // There is room in the window again.
        self.inner.wake.send_replace(());
        Ok(SentBlock { bytes, peer })
    }

    fn wait<T>(
        &self,
        height: u32,
        hash: &Hash32,
        is_given_up: &dyn Fn() -> bool,
        ready: impl Fn(&mut Shared) -> Option<T>,
    ) -> Result<T, NodeError> {
        let mut away_since = None;
        let mut shared = self.inner.lock();
        if let Some(ready) = ready(&mut shared) {
            return Ok(ready);
        }
        shared.fetch.want(height, *hash);
        self.inner.wake.send_replace(());
        loop {
            if let Some(ready) = ready(&mut shared) {
                return Ok(ready);
            }
            if is_given_up() {
                return Err(NodeError::Stopped);
            }
            let serving = |peer: &&Peer| peer.serves.as_ref().is_some_and(|serves| serves.contains(&height));
            let mut serving =
                shared.peers.iter().filter(|peer| peer.dropped.is_none()).filter(serving).peekable();
            let is_served = serving.peek().is_some();
            if serving.any(|peer| peer.commands.is_some()) {
                away_since = None;
            }
            let away = *away_since.get_or_insert_with(Instant::now);
            if !is_served || away.elapsed() > AWAY_WAIT_MAX {
                return Err(NodeError::NotServed { height, peers: self.inner.describe(&shared) });
            }
            let waited = self.inner.changed.wait_timeout(shared, LOOK_EVERY);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Notes that blocks of the chain come from the nodes, not only damaged ones of the files.
    pub fn enter_bulk(&self) {
        self.is_bulk.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Node::enter_bulk`] was called.
    pub fn is_bulk(&self) -> bool {
        self.is_bulk.load(Ordering::Relaxed)
    }

    /// Returns true the first time: somebody says now that blocks come from the nodes.
    pub fn is_first_entry(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Drops a node that has sent a block which is not what its header commits to, and asks others for all that it sent and
    /// nobody has taken yet.
    pub fn refuse(
        &self,
        sent_by: usize,
        height: u32,
        reason: String,
        hash_at: impl Fn(u32) -> Option<Hash32>,
    ) {
        let mut shared = self.inner.lock();
        let fault = Fault::Block { height, reason };
        let peer = &mut shared.peers[sent_by];
        peer.dropped.get_or_insert_with(|| fault.to_string());
        peer.blame.get_or_insert(fault);
        shared.fetch.distrust(sent_by, hash_at);
        shared.fetch.release(sent_by);
        drop(shared);
        self.inner.tell();
    }

    /// Drops a node whose active chain holds a block that breaks a rule.
    pub fn disown(&self, peer: usize, height: u32, reason: &str) {
        self.refuse(peer, height, reason.to_owned(), |_| None);
    }

    /// Returns a node's address.
    pub fn address(&self, peer: usize) -> &str {
        self.inner.address(peer)
    }

    /// Returns whether any node is not dropped yet, and what is known of each.
    ///
    /// # Errors
    /// [`NodeError::NoneLeft`].
    pub fn check_left(&self) -> Result<(), NodeError> {
        let shared = self.inner.lock();
        if shared.peers.iter().all(|peer| peer.dropped.is_some()) {
            return Err(NodeError::NoneLeft { peers: self.inner.describe(&shared) });
        }
        Ok(())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells threads and tasks that something has changed.
    fn tell(&self) {
        self.changed.notify_all();
        self.wake.send_replace(());
    }

    fn address(&self, peer: usize) -> &str {
        &self.addresses[peer]
    }

    fn describe(&self, shared: &Shared) -> String {
        let of = |(peer, address): (&Peer, &String)| match (&peer.dropped, &peer.commands, &peer.fault) {
            (Some(reason), ..) => format!("{address}: {reason}"),
            (None, Some(_), _) => format!("{address}: connected, but on another branch"),
            (None, None, Some(fault)) => format!("{address}: {fault}"),
            (None, None, None) => format!("{address}: not tried yet"),
        };
        shared.peers.iter().zip(&self.addresses).map(of).collect::<Vec<_>>().join("; ")
    }

    fn connected(&self, peer: usize, greeting: &Greeting, commands: mpsc::Sender<AskHeaders>) {
        let mut shared = self.lock();
        let state = &mut shared.peers[peer];
        state.commands = Some(commands);
        state.services = greeting.services.to_u64();
        (state.was_reached, state.was_tried, state.has_news) = (true, true, true);
        drop(shared);
        self.tell();
        self.tell_news();
    }

    /// A node has announced a block.
    fn announced(&self, peer: usize) {
        self.lock().peers[peer].has_news = true;
        self.tell_news();
    }

    fn tell_news(&self) {
        self.news.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A session has ended; returns whether the peer owed something.
    fn disconnect(&self, peer: usize) -> bool {
        let mut shared = self.lock();
        let owed = shared.fetch.in_flight(peer) > 0;
        shared.peers[peer].commands = None;
        shared.fetch.release(peer);
        drop(shared);
        self.tell();
        self.tell_news();
        owed
    }

    fn note_fault(&self, peer: usize, fault: String) {
        let mut shared = self.lock();
        shared.peers[peer].fault = Some(fault);
        shared.peers[peer].was_tried = true;
        drop(shared);
        self.tell();
    }

    fn drop_peer(&self, peer: usize, reason: String) {
        let mut shared = self.lock();
        shared.peers[peer].dropped.get_or_insert(reason);
        shared.peers[peer].was_tried = true;
        drop(shared);
        self.tell();
    }

    fn is_dropped(&self, peer: usize) -> bool {
        self.lock().peers[peer].dropped.is_some()
    }

    fn was_reached(&self, peer: usize) -> bool {
        self.lock().peers[peer].was_reached
    }

    /// Counts a passing fault while something was owed; returns how many there were in a row.
    fn strike(&self, peer: usize, is_strike: bool) -> u32 {
        let mut shared = self.lock();
        let state = &mut shared.peers[peer];
        state.strikes += u32::from(is_strike);
        state.strikes
    }

    /// Returns why the peer must go, if somebody has said so.
    fn blame(&self, peer: usize) -> Option<Fault> {
        self.lock().peers[peer].blame.take()
    }

    fn assign(&self, peer: usize) -> Vec<Hash32> {
        let mut shared = self.lock();
        let Shared { peers, fetch } = &mut *shared;
        match &peers[peer] {
            Peer { dropped: None, serves: Some(serves), .. } => fetch.assign(peer, serves),
            _ => Vec::new(),
        }
    }

    fn in_flight(&self, peer: usize) -> usize {
        self.lock().fetch.in_flight(peer)
    }

    fn deliver(&self, peer: usize, hash: &Hash32, bytes: Vec<u8>) -> bool {
        let mut shared = self.lock();
        let is_asked = shared.fetch.deliver(peer, hash, bytes);
        if is_asked {
            shared.peers[peer].strikes = 0;
            shared.peers[peer].delivered += 1;
        }
        drop(shared);
        self.changed.notify_all();
        is_asked
    }

    fn delivered_by(&self, peer: usize) -> u64 {
        self.lock().peers[peer].delivered
    }

    fn set_initial_download(&self, peer: usize, is_in_initial_download: bool) {
        self.lock().peers[peer].is_in_initial_download = is_in_initial_download;
        self.announced(peer);
    }
}

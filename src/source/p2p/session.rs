//! One connection to a node, from its first byte to the reason why it ends.
//!
//! In: an address. Out: greetings, headers and blocks for whoever waits for them. One task a peer; it connects again, ever
//! more slowly, until the fault does not pass. What the other side sends beyond what was asked for is bounded, and so is
//! every wait.

use std::sync::Arc;
use std::time::Duration;

use bitcoin::p2p::ServiceFlags;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::Inner;
use super::fault::Fault;
use super::frame::{Frame, FrameReader, encode};
use super::message::{self, Greeting};
use crate::chain::hash::{Hash32, sha256d};
use crate::chain::header::HEADER_BYTES;
use crate::network::Network;

/// Pause before the second attempt; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Passing faults in a row, while something was owed, after which a peer is dropped.
const STRIKES_MAX: u32 = 3;
/// Slowest that a message may come, bytes a second.
const RATE_MIN: u64 = 32 << 10;
/// Silence after which the other side is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(60);
/// How long the search for a node's network may take, a network.
const PROBE_WAIT: Duration = Duration::from_secs(2);
/// Messages and bytes that nobody asked for: at once, and a second.
const UNASKED_MESSAGES: (f64, f64) = (1_000.0, 20.0);
const UNASKED_BYTES: (f64, f64) = (16e6, 64e3);

/// A request for headers, and where the answer goes.
#[derive(Debug)]
pub(super) struct AskHeaders {
    pub(super) locator: Vec<Hash32>,
    pub(super) answer: oneshot::Sender<Vec<[u8; HEADER_BYTES]>>,
}

/// Keeps a peer connected until it is dropped or the task is ended.
pub(super) async fn keep(inner: Arc<Inner>, peer: usize) {
    let mut pause = PAUSE_FIRST;
    let mut is_probed = false;
    loop {
        if inner.is_dropped(peer) {
            return;
        }
        let delivered_before = inner.delivered_by(peer);
        let (mut ended, was_connected) = connect_and_run(&inner, peer).await;
        let owed = inner.disconnect(peer);
        if matches!(ended, Fault::Closed | Fault::Broken(_)) && !is_probed && !inner.was_reached(peer) {
            // A node of another network hangs up without a word.
            is_probed = true;
            if let Some(found) = probe(inner.address(peer), inner.network, inner.timeout).await {
                ended = Fault::OtherNetwork { found, asked: inner.network };
            }
        }
        if inner.delivered_by(peer) > delivered_before {
            pause = PAUSE_FIRST;
        }
        let strikes = inner.strike(peer, owed && ended.is_passing());
        if strikes >= STRIKES_MAX {
            ended = Fault::TooOften { times: strikes, last: ended.to_string() };
        }
        if !ended.is_passing() {
            warn!(peer = inner.address(peer), "dropped the node: {ended}");
            inner.drop_peer(peer, ended.to_string());
            return;
        }
        let seconds = pause.as_secs_f64();
        if was_connected {
            warn!(peer = inner.address(peer), "lost the node: {ended}; connecting again");
        } else {
            debug!(peer = inner.address(peer), "{ended}; connecting again in {seconds} s");
        }
        inner.note_fault(peer, ended.to_string());
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns why it ended, and whether there was a session.
async fn connect_and_run(inner: &Inner, peer: usize) -> (Fault, bool) {
    let mut session = match Session::connect(inner, peer).await {
        Ok(session) => session,
        Err(fault) => return (fault, false),
    };
    let (commands, asked) = mpsc::channel(1);
    inner.connected(peer, &session.greeting, commands);
    match session.run(asked).await {
        Err(fault) => (fault, true),
        Ok(never) => match never {},
    }
}

struct Session<'a> {
    inner: &'a Inner,
    peer: usize,
    reader: FrameReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    greeting: Greeting,
    unasked: Unasked,
    /// When something last came that was waited for, or began to be.
    progress_at: Instant,
    heard_at: Instant,
    pinged_at: Option<Instant>,
    headers: Option<oneshot::Sender<Vec<[u8; HEADER_BYTES]>>>,
}

impl<'a> Session<'a> {
    async fn connect(inner: &'a Inner, peer: usize) -> Result<Session<'a>, Fault> {
        let within = inner.timeout;
        let stream = timeout(within, TcpStream::connect(inner.address(peer)));
        let stream = stream.await.map_err(|_| Fault::TimedOut { what: "connection", within })?;
        let stream = stream.map_err(Fault::Connect)?;
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        let now = Instant::now();
        let mut session = Session {
            inner,
            peer,
            reader: FrameReader::new(reader, inner.network),
            writer,
            greeting: Greeting { services: ServiceFlags::NONE, user_agent: String::new(), start_height: 0 },
            unasked: Unasked::new(now),
            progress_at: now,
            heard_at: now,
            pinged_at: None,
            headers: None,
        };
        let shaken = timeout(within, session.shake_hands()).await;
        shaken.map_err(|_| Fault::TimedOut { what: "greeting", within })??;
        Ok(session)
    }

    async fn shake_hands(&mut self) -> Result<(), Fault> {
        self.send("version", &message::version()).await?;
        let mut is_greeted = false;
        loop {
            let frame = self.reader.next(false).await?;
            match (frame.command.as_str(), &frame.payload) {
                ("version", Some(payload)) if !is_greeted => {
                    is_greeted = true;
                    self.greeting = message::greeting(payload)?;
                    let services = self.greeting.services;
                    let has_blocks =
                        services.has(ServiceFlags::NETWORK) || services.has(ServiceFlags::NETWORK_LIMITED);
                    if !has_blocks || !services.has(ServiceFlags::WITNESS) {
                        return Err(Fault::Services { services: services.to_u64() });
                    }
                    self.send("verack", &[]).await?;
                }
                ("verack", _) if is_greeted => break,
                _ => self.unasked.count(&frame)?,
            }
        }
        info!(
            peer = self.inner.address(self.peer),
            agent = self.greeting.user_agent,
            height = self.greeting.start_height,
            "connected to the node"
        );
        // New blocks are told by their headers.
        self.send("sendheaders", &[]).await
    }

    /// Serves until a fault.
    async fn run(
        &mut self,
        mut asked: mpsc::Receiver<AskHeaders>,
    ) -> Result<std::convert::Infallible, Fault> {
        let mut wake = self.inner.wake.subscribe();
        let mut tick = tokio::time::interval((self.inner.timeout / 8).min(Duration::from_secs(1)));
        loop {
            wake.mark_unchanged();
            if let Some(reason) = self.inner.blame(self.peer) {
                return Err(reason);
            }
            let owed_before = self.inner.in_flight(self.peer);
            let hashes = self.inner.assign(self.peer);
            if !hashes.is_empty() {
                if owed_before == 0 {
                    self.progress_at = Instant::now();
                }
                self.send("getdata", &message::get_blocks(&hashes)).await?;
            }
            let is_block_asked = self.inner.in_flight(self.peer) > 0;
            tokio::select! {
                frame = self.reader.next(is_block_asked) => self.handle(frame?).await?,
                Some(AskHeaders { locator, answer }) = asked.recv(), if self.headers.is_none() => {
                    self.headers = Some(answer);
                    self.progress_at = Instant::now();
                    self.send("getheaders", &message::get_headers(&locator)).await?;
                }
                _ = wake.changed() => {}
                _ = tick.tick() => self.check_clock(is_block_asked).await?,
            }
        }
    }

    async fn handle(&mut self, frame: Frame) -> Result<(), Fault> {
        self.heard_at = Instant::now();
        match (frame.command.as_str(), &frame.payload) {
            ("headers", Some(payload)) if self.headers.is_some() => {
                let headers = message::headers(payload)?;
                self.progress_at = self.heard_at;
                if let Some(answer) = self.headers.take() {
                    // Whoever asked may have given up.
                    let _ = answer.send(headers);
                }
                return Ok(());
            }
            // What is announced does not matter: its headers are asked for from what we have. A malformed one is told here.
            ("headers", Some(payload)) => {
                message::headers(payload)?;
                self.unasked.count(&frame)?;
                self.inner.announced(self.peer);
                return Ok(());
            }
            // Of blocks: we never ask for transactions. Also how a reorg of more than eight blocks is announced.
            ("inv", _) => {
                self.unasked.count(&frame)?;
                self.inner.announced(self.peer);
                return Ok(());
            }
            ("block", Some(_)) => return self.deliver(frame),
            ("notfound", Some(_)) if self.inner.in_flight(self.peer) > 0 => return Err(Fault::NotFound),
            ("pong", _) if self.pinged_at.take().is_some() => return Ok(()),
            ("feefilter", Some(payload)) => {
                self.inner.set_initial_download(self.peer, message::is_in_initial_download(payload));
            }
            ("ping", Some(payload)) => {
                let nonce = payload.clone();
                self.unasked.count(&frame)?;
                return self.send("pong", &nonce).await;
            }
            _ => {}
        }
        self.unasked.count(&frame)
    }

    fn deliver(&mut self, frame: Frame) -> Result<(), Fault> {
        let len = frame.len;
        let bytes = frame.payload.unwrap_or_default();
        if bytes.len() <= HEADER_BYTES {
            return Err(Fault::Malformed { command: frame.command, what: "shorter than a header" });
        }
        let hash = sha256d(&bytes[..HEADER_BYTES]);
        if self.inner.deliver(self.peer, &hash, bytes) {
            self.progress_at = self.heard_at;
            return Ok(());
        }
        self.unasked.count(&Frame { command: frame.command, len, payload: None })
    }

    /// Ends a session that does not move.
    async fn check_clock(&mut self, is_block_asked: bool) -> Result<(), Fault> {
        let (now, within) = (Instant::now(), self.inner.timeout);
        if let Some((began, len)) = self.reader.unfinished() {
            let within = within + Duration::from_secs(u64::from(len) / RATE_MIN);
            if now.duration_since(began) > within {
                return Err(Fault::TimedOut { what: "end of a message", within });
            }
        } else if (is_block_asked || self.headers.is_some()) && now.duration_since(self.progress_at) > within
        {
            let what = if is_block_asked { "block" } else { "headers" };
            return Err(Fault::TimedOut { what, within });
        }
        match self.pinged_at {
            Some(pinged_at)
                if now.duration_since(pinged_at) > within && now.duration_since(self.heard_at) > within =>
            {
                Err(Fault::TimedOut { what: "answer to a ping", within })
            }
            None if now.duration_since(self.heard_at) > PING_AFTER => {
                self.pinged_at = Some(now);
                self.send("ping", &[0x5a; 8]).await
            }
            _ => Ok(()),
        }
    }

    async fn send(&mut self, command: &str, payload: &[u8]) -> Result<(), Fault> {
        let within = self.inner.timeout;
        let bytes = encode(self.inner.network, command, payload);
        let sent = timeout(within, self.writer.write_all(&bytes)).await;
        // A closed connection is told by reading, together with what came before the end.
        match sent.map_err(|_| Fault::TimedOut { what: "room to send", within })? {
            Err(error) if self.reader.is_silent() => Err(Fault::Broken(error)),
            _ => Ok(()),
        }
    }
}

/// What the other side has sent unasked: a bucket that fills slowly.
#[derive(Debug)]
struct Unasked {
    messages_left: f64,
    bytes_left: f64,
    at: Instant,
    messages: u64,
    bytes: u64,
}

impl Unasked {
    fn new(now: Instant) -> Unasked {
        Unasked {
            messages_left: UNASKED_MESSAGES.0,
            bytes_left: UNASKED_BYTES.0,
            at: now,
            messages: 0,
            bytes: 0,
        }
    }

    fn count(&mut self, frame: &Frame) -> Result<(), Fault> {
        let now = Instant::now();
        let seconds = now.duration_since(self.at).as_secs_f64();
        self.at = now;
        self.messages += 1;
        self.bytes += u64::from(frame.len);
        let refill = |left: f64, (most, a_second): (f64, f64)| (left + a_second * seconds).min(most);
        self.messages_left = refill(self.messages_left, UNASKED_MESSAGES) - 1.0;
        self.bytes_left = refill(self.bytes_left, UNASKED_BYTES) - f64::from(frame.len);
        if self.messages_left < 0.0 || self.bytes_left < 0.0 {
            return Err(Fault::Flood { messages: self.messages, bytes: self.bytes });
        }
        Ok(())
    }
}

/// Finds the network of a node that hangs up on ours: it answers a greeting in its own.
async fn probe(address: &str, asked: Network, within: Duration) -> Option<Network> {
    for network in Network::ALL.into_iter().filter(|network| *network != asked) {
        let answer = timeout(PROBE_WAIT.min(within), async {
            let stream = TcpStream::connect(address).await.map_err(Fault::Connect)?;
            let (reader, mut writer) = stream.into_split();
            let greeting = encode(network, "version", &message::version());
            writer.write_all(&greeting).await.map_err(Fault::Broken)?;
            FrameReader::new(reader, network).next(false).await
        });
        if let Ok(Ok(_)) = answer.await {
            return Some(network);
        }
    }
    None
}

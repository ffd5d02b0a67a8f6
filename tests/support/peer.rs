//! A node of the tests' own on the P2P protocol: it serves a chain, and does one thing wrong if it is told to.
//!
//! In: blocks, a misdeed. Out: an address, and what was asked of it. It ends with the test. Its code shares nothing with
//! the code that is tested but the bitcoin crate.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bitcoin::consensus::encode::{deserialize, serialize};
use bitcoin::hashes::{Hash as _, sha256d};
use bitcoin::p2p::message_blockdata::{GetHeadersMessage, Inventory};
use bitcoin::{Block, BlockHash, Witness};

use super::blkfiles::REGTEST;

/// How long a peer takes for a block, so that others are asked too.
const PACE: Duration = Duration::from_millis(3);
/// The same while another is still to be found out.
const SLOW_PACE: Duration = Duration::from_millis(50);

/// What a peer does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misdeed {
    /// Nothing.
    None,
    /// Hangs up after every ten blocks, and can be reached again at once.
    Restless,
    /// Answers with the magic of signet.
    OtherMagic,
    /// Says that it serves no witnesses.
    NoWitnessService,
    /// Announces a block of four gigabytes.
    HugeLength,
    /// Sends bytes without meaning in place of a block.
    Garbage,
    /// Sends blocks without their witnesses.
    StrippedBlocks,
    /// Sends the genesis block in place of each.
    WrongBlocks,
    /// Repeats the last transactions of a block (CVE-2012-2459).
    DuplicatedTails,
    /// Flips a bit in each block.
    FlippedBlocks,
    /// Never sends a block.
    Stall,
    /// Sends a byte of a block now and then.
    Drip,
    /// Hangs up in the middle of a block.
    CutLine,
    /// Sends headers that nobody asked for, without end.
    FloodHeaders,
    /// Sends pings without end.
    FloodPings,
    /// Sends large messages without end.
    FloodAddresses,
    /// Sends headers without proof of work.
    UnminedHeaders,
    /// Sends headers that follow nothing.
    LooseHeaders,
    /// Says that it does not have the blocks of its headers.
    NotFound,
}

/// A running peer.
#[derive(Debug)]
pub struct Peer {
    pub address: String,
    blocks_asked: Arc<AtomicU64>,
    is_dropped: Arc<AtomicBool>,
}

impl Peer {
    /// Serves these blocks, from genesis on, until the test ends.
    pub fn serve(blocks: &[Block], misdeed: Misdeed) -> Peer {
        Peer::serve_slowly_until(blocks, misdeed, Arc::new(AtomicBool::new(true)))
    }

    /// The same without a misdeed; but it takes its time until the other one has been dropped, which would not be asked for
    /// a block if this one had sent them all before.
    pub fn serve_beside(blocks: &[Block], other: &Peer) -> Peer {
        Peer::serve_slowly_until(blocks, Misdeed::None, Arc::clone(&other.is_dropped))
    }

    fn serve_slowly_until(blocks: &[Block], misdeed: Misdeed, is_in_haste: Arc<AtomicBool>) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let blocks_asked = Arc::new(AtomicU64::new(0));
        let heights = blocks.iter().enumerate().map(|(height, block)| (block.block_hash(), height)).collect();
        let chain = Arc::new((blocks.to_vec(), heights));
        let is_dropped = Arc::new(AtomicBool::new(false));
        let (asked, ended) = (Arc::clone(&blocks_asked), Arc::clone(&is_dropped));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (chain, asked, ended) = (Arc::clone(&chain), Arc::clone(&asked), Arc::clone(&ended));
                let is_in_haste = Arc::clone(&is_in_haste);
                thread::spawn(move || {
                    let line = Line {
                        stream,
                        chain: &chain,
                        misdeed,
                        asked: &asked,
                        is_in_haste: &is_in_haste,
                        sent: 0,
                    };
                    // The other side hangs up when it has had enough.
                    let _ = line.serve();
                    ended.store(true, Ordering::Relaxed);
                });
            }
        });
        Peer { address, blocks_asked, is_dropped }
    }

    /// How many blocks were asked of it.
    pub fn blocks_asked(&self) -> u64 {
        self.blocks_asked.load(Ordering::Relaxed)
    }
}

struct Line<'a> {
    stream: TcpStream,
    chain: &'a (Vec<Block>, HashMap<BlockHash, usize>),
    misdeed: Misdeed,
    asked: &'a AtomicU64,
    is_in_haste: &'a AtomicBool,
    sent: u32,
}

impl Line<'_> {
    fn serve(mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        loop {
            let (command, payload) = read_message(&mut self.stream)?;
            match command.as_str() {
                "version" => self.greet(&payload)?,
                "verack" => match self.misdeed {
                    Misdeed::FloodHeaders => return self.flood("headers", &headers(&self.chain.0[1..20])),
                    Misdeed::FloodPings => return self.flood("ping", &[7; 8]),
                    Misdeed::FloodAddresses => return self.flood("addr", &vec![3; 1_000_000]),
                    _ => {}
                },
                "getheaders" => self.send_headers(&payload)?,
                "getdata" => self.send_blocks(&payload)?,
                "ping" => self.send("pong", &payload)?,
                _ => {}
            }
        }
    }

    fn greet(&mut self, theirs: &[u8]) -> io::Result<()> {
        let mut version = theirs.to_vec();
        let services: u64 = if self.misdeed == Misdeed::NoWitnessService { 1 } else { 9 };
        version[4..12].copy_from_slice(&services.to_le_bytes());
        if self.misdeed == Misdeed::OtherMagic {
            return self.stream.write_all(&message([0x0a, 0x03, 0xcf, 0x40], "version", &version));
        }
        self.send("version", &version)?;
        self.send("verack", &[])
    }

    fn send_headers(&mut self, payload: &[u8]) -> io::Result<()> {
        let asked: GetHeadersMessage = deserialize(payload).unwrap();
        let (blocks, heights) = self.chain;
        let fork = asked.locator_hashes.iter().find_map(|hash| heights.get(hash)).copied().unwrap_or(0);
        let mut answer = blocks[fork + 1..].iter().take(2000).cloned().collect::<Vec<_>>();
        match self.misdeed {
            Misdeed::UnminedHeaders => {
                let header = &mut answer.last_mut().unwrap().header;
                while header.validate_pow(header.target()).is_ok() {
                    header.nonce += 1;
                }
            }
            Misdeed::LooseHeaders => answer.iter_mut().for_each(|block| {
                block.header.prev_blockhash = BlockHash::from_byte_array([9; 32]);
                while block.header.validate_pow(block.header.target()).is_err() {
                    block.header.nonce += 1;
                }
            }),
            _ => {}
        }
        self.send("headers", &headers(&answer))
    }

    fn send_blocks(&mut self, payload: &[u8]) -> io::Result<()> {
        let asked: Vec<Inventory> = deserialize(payload).unwrap();
        for item in &asked {
            let Inventory::WitnessBlock(hash) = item else { panic!("{item:?} was asked for") };
            self.asked.fetch_add(1, Ordering::Relaxed);
            let height = self.chain.1[hash];
            self.send_block(height)?;
            self.sent += 1;
            if self.misdeed == Misdeed::Restless && self.sent == 10 {
                return self.stream.shutdown(Shutdown::Both);
            }
        }
        Ok(())
    }

    fn send_block(&mut self, height: usize) -> io::Result<()> {
        let mut block = self.chain.0[height].clone();
        match self.misdeed {
            Misdeed::None => {
                thread::sleep(if self.is_in_haste.load(Ordering::Relaxed) { PACE } else { SLOW_PACE });
            }
            Misdeed::HugeLength => {
                let mut head = message(REGTEST, "block", &[]);
                head[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
                return self.stream.write_all(&head);
            }
            Misdeed::Garbage => return self.stream.write_all(&[0x5c; 5_000]),
            Misdeed::StrippedBlocks => {
                for input in block.txdata.iter_mut().flat_map(|tx| &mut tx.input) {
                    input.witness = Witness::new();
                }
            }
            Misdeed::WrongBlocks => block = self.chain.0[0].clone(),
            Misdeed::DuplicatedTails if block.txdata.len() == 3 => {
                let last = block.txdata[2].clone();
                block.txdata.push(last);
            }
            Misdeed::FlippedBlocks => {
                let mut bytes = serialize(&block);
                let at = bytes.len() - 3;
                bytes[at] ^= 4;
                return self.send("block", &bytes);
            }
            Misdeed::Stall => return Ok(()),
            Misdeed::Drip => {
                for byte in message(REGTEST, "block", &serialize(&block)) {
                    self.stream.write_all(&[byte])?;
                    thread::sleep(Duration::from_millis(200));
                }
                return Ok(());
            }
            Misdeed::CutLine => {
                let bytes = message(REGTEST, "block", &serialize(&block));
                self.stream.write_all(&bytes[..bytes.len() / 2])?;
                self.stream.shutdown(Shutdown::Both)?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Misdeed::NotFound => {
                let items = vec![Inventory::WitnessBlock(block.block_hash())];
                return self.send("notfound", &serialize(&items));
            }
            _ => {}
        }
        self.send("block", &serialize(&block))
    }

    fn flood(&mut self, command: &str, payload: &[u8]) -> io::Result<()> {
        let bytes = message(REGTEST, command, payload);
        loop {
            self.stream.write_all(&bytes)?;
        }
    }

    fn send(&mut self, command: &str, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&message(REGTEST, command, payload))
    }
}

fn headers(blocks: &[Block]) -> Vec<u8> {
    let mut payload = serialize(&bitcoin::VarInt(blocks.len() as u64));
    for block in blocks {
        payload.extend(serialize(&block.header));
        payload.push(0);
    }
    payload
}

/// A message as it goes over the wire.
pub fn message(magic: [u8; 4], command: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(command.as_bytes());
    bytes.resize(16, 0);
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(&sha256d::Hash::hash(payload).to_byte_array()[..4]);
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads a message: its name and its payload.
pub fn read_message(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut head = [0; 24];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_le_bytes(head[16..20].try_into().unwrap()) as usize];
    stream.read_exact(&mut payload)?;
    let name =
        String::from_utf8(head[4..16].iter().copied().take_while(|&byte| byte != 0).collect()).unwrap();
    Ok((name, payload))
}

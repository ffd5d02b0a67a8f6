//! Messages as they stand on the wire: the network's magic, a name, a length, a checksum, a payload (the V1 transport).
//!
//! In: a stream of bytes. Out: names and payloads. Whatever the other side claims, memory is taken for bytes that are there
//! and never for more than a message of its name may have; a message that nobody needs is read past. Reading may be given
//! up at any await and goes on where it stood.

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::Instant;

use super::fault::Fault;
use crate::chain::hash::sha256d;
use crate::network::Network;
use crate::source::scan::BLOCK_BYTES_MAX;

/// Magic, name, length and checksum.
const HEAD_BYTES: usize = 24;
/// Longest message of any name (`MAX_PROTOCOL_MESSAGE_LENGTH` in Bitcoin Core's `net.h`).
const MESSAGE_BYTES_MAX: u32 = BLOCK_BYTES_MAX as u32;
/// Most headers in a message.
pub(super) const HEADERS_MAX: usize = 2000;
/// Memory is taken in steps of at least this.
const STEP_BYTES: usize = 64 << 10;

/// A message.
#[derive(Debug)]
pub(super) struct Frame {
    /// Its name, without the zeros that fill it up.
    pub(super) command: String,
    /// Length of the payload on the wire, bytes.
    pub(super) len: u32,
    /// The payload; `None` where it was read past.
    pub(super) payload: Option<Vec<u8>>,
}

/// Returns the longest payload of a name that is of use, bytes; `None` where none is.
fn useful_bytes(command: &str, is_block_asked: bool) -> Option<u32> {
    match command {
        "version" => Some(1 << 10),
        "verack" | "sendheaders" => Some(0),
        "ping" | "pong" | "feefilter" => Some(8),
        "headers" => Some(3 + 81 * HEADERS_MAX as u32),
        "notfound" => Some(3 + 36 * 1_000),
        "block" if is_block_asked => Some(BLOCK_BYTES_MAX as u32),
        _ => None,
    }
}

/// Reads messages from a stream.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    stream: R,
    network: Network,
    head: Vec<u8>,
    /// Once the head is whole.
    body: Option<Body>,
    /// When the first byte of the message being read came.
    began: Option<Instant>,
    /// Bytes read in all.
    bytes: u64,
}

#[derive(Debug)]
struct Body {
    command: String,
    len: u32,
    left: usize,
    checksum: [u8; 4],
    payload: Option<Vec<u8>>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(stream: R, network: Network) -> Self {
        FrameReader {
            stream,
            network,
            head: Vec::with_capacity(HEAD_BYTES),
            body: None,
            began: None,
            bytes: 0,
        }
    }

    /// Returns when the message being read began, and its length as far as it is known, bytes.
    pub(super) fn unfinished(&self) -> Option<(Instant, u32)> {
        Some((self.began?, self.body.as_ref().map_or(0, |body| body.len)))
    }

    /// Returns whether anything has ever come.
    pub(super) fn is_silent(&self) -> bool {
        self.bytes == 0
    }

    /// Reads the next message; `is_block_asked` tells whether a block is of use.
    ///
    /// # Errors
    /// The stream's, and whatever is wrong with the message.
    pub(super) async fn next(&mut self, is_block_asked: bool) -> Result<Frame, Fault> {
        if self.body.is_none() {
            while self.head.len() < HEAD_BYTES {
                let missing = (HEAD_BYTES - self.head.len()) as u64;
                let read = (&mut self.stream).take(missing).read_buf(&mut self.head).await;
                self.note(read)?;
            }
            self.body = Some(self.begin(is_block_asked)?);
        }
        loop {
            let body = self.body.as_mut().expect("it was begun above");
            if body.left == 0 {
                break;
            }
            let read = match &mut body.payload {
                Some(payload) => {
                    if payload.len() == payload.capacity() {
                        payload.reserve_exact(payload.len().max(STEP_BYTES).min(body.left));
                    }
                    let left = body.left as u64;
                    (&mut self.stream).take(left).read_buf(payload).await
                }
                None => {
                    let mut past = [0; 4096];
                    let left = body.left.min(past.len());
                    self.stream.read(&mut past[..left]).await
                }
            };
            let count = self.note(read)?;
            self.body.as_mut().expect("as above").left -= count;
        }
        let Body { command, len, checksum, payload, .. } = self.body.take().expect("as above");
        self.head.clear();
        self.began = None;
        // What a block commits to is checked by more than four bytes, and elsewhere.
        if let Some(payload) = &payload
            && command != "block"
            && sha256d(payload)[..4] != checksum
        {
            return Err(Fault::Malformed { command, what: "wrong checksum" });
        }
        Ok(Frame { command, len, payload })
    }

    fn note(&mut self, read: std::io::Result<usize>) -> Result<usize, Fault> {
        match read {
            Ok(0) => Err(Fault::Closed),
            Ok(count) => {
                self.began.get_or_insert_with(Instant::now);
                self.bytes += count as u64;
                Ok(count)
            }
            Err(error) => Err(Fault::Broken(error)),
        }
    }

    fn begin(&self, is_block_asked: bool) -> Result<Body, Fault> {
        let word = |at: usize| <[u8; 4]>::try_from(&self.head[at..at + 4]).expect("4 bytes");
        let (magic, asked) = (word(0), self.network);
        if magic != asked.magic() {
            let known = Network::ALL.into_iter().find(|network| network.magic() == magic);
            return Err(match known {
                Some(found) => Fault::OtherNetwork { found, asked },
                None => Fault::UnknownMagic { magic, asked },
            });
        }
        let name = &self.head[4..16];
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let command = String::from_utf8_lossy(&name[..end]).into_owned();
        if name[end..].iter().any(|&byte| byte != 0) || !name[..end].iter().all(u8::is_ascii_graphic) {
            return Err(Fault::Malformed { command, what: "its name is no text" });
        }
        let len = u32::from_le_bytes(word(16));
        let useful = useful_bytes(&command, is_block_asked);
        let max = useful.unwrap_or(MESSAGE_BYTES_MAX);
        if len > max {
            return Err(Fault::TooLong { command, len, max });
        }
        let payload = useful.map(|_| Vec::new());
        Ok(Body { command, len, left: len as usize, checksum: word(20), payload })
    }
}

/// Returns a message as it goes over the wire.
pub(super) fn encode(network: Network, command: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    bytes.extend_from_slice(&network.magic());
    bytes.extend_from_slice(command.as_bytes());
    bytes.resize(16, 0);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&sha256d(payload)[..4]);
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8], is_block_asked: bool) -> Result<Frame, Fault> {
        FrameReader::new(bytes, Network::Regtest).next(is_block_asked).await
    }

    /// A head that claims a length.
    fn head(command: &str, len: u32) -> Vec<u8> {
        let mut bytes = encode(Network::Regtest, command, &[]);
        bytes[16..20].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    #[tokio::test]
    async fn messages_come_one_by_one_and_what_nobody_needs_is_read_past() {
        let long = vec![7; 300_000];
        let stream = [
            encode(Network::Regtest, "ping", &[1; 8]),
            encode(Network::Regtest, "addr", &long),
            encode(Network::Regtest, "block", &long),
            encode(Network::Regtest, "block", &long),
        ]
        .concat();
        let mut reader = FrameReader::new(stream.as_slice(), Network::Regtest);
        let ping = reader.next(false).await.unwrap();
        assert_eq!((ping.command.as_str(), ping.payload), ("ping", Some(vec![1; 8])));
        let addr = reader.next(false).await.unwrap();
        assert_eq!((addr.command.as_str(), addr.len, addr.payload), ("addr", 300_000, None));
        assert_eq!(reader.next(false).await.unwrap().payload, None);
        assert_eq!(reader.next(true).await.unwrap().payload, Some(long));
        assert!(matches!(reader.next(true).await, Err(Fault::Closed)));
    }

    #[tokio::test]
    async fn a_length_is_refused_before_memory_is_taken_for_it() {
        for (command, len) in [("headers", 162_004), ("block", 4_000_001), ("ping", 9), ("addr", u32::MAX)] {
            let error = read(&head(command, len), true).await.unwrap_err();
            assert!(matches!(&error, Fault::TooLong { len: found, .. } if *found == len), "{error}");
        }
        let claim = head("block", 4_000_000);
        let mut reader = FrameReader::new(claim.as_slice(), Network::Regtest);
        assert!(matches!(reader.next(true).await, Err(Fault::Closed)));
        let taken = reader.body.unwrap().payload.unwrap().capacity();
        assert!(taken <= 2 * STEP_BYTES, "{taken} bytes for a claim");
    }

    #[tokio::test]
    async fn other_networks_and_garbage_are_told_apart() {
        let error = read(&encode(Network::Signet, "version", &[0; 90]), false).await.unwrap_err();
        assert!(matches!(error, Fault::OtherNetwork { found: Network::Signet, .. }), "{error}");
        let error = read(b"HTTP/1.1 400 Bad Request\r\n\r\n", false).await.unwrap_err();
        assert!(matches!(error, Fault::UnknownMagic { .. }), "{error}");
        let mut wrong = encode(Network::Regtest, "ping", &[1; 8]);
        wrong[31] ^= 1;
        let error = read(&wrong, false).await.unwrap_err();
        assert_eq!(error.to_string(), "malformed message \"ping\": wrong checksum");
    }

    #[tokio::test]
    async fn a_read_that_is_given_up_goes_on_where_it_stood() {
        let (mut far, near) = tokio::io::duplex(16);
        let message = encode(Network::Regtest, "ping", &[9; 8]);
        let mut reader = FrameReader::new(near, Network::Regtest);
        tokio::spawn(async move {
            for byte in message {
                tokio::io::AsyncWriteExt::write_all(&mut far, &[byte]).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            std::future::pending::<()>().await;
        });
        let mut given_up = 0;
        let ping = loop {
            match tokio::time::timeout(std::time::Duration::from_millis(1), reader.next(false)).await {
                Ok(read) => break read.unwrap(),
                Err(_) => given_up += 1,
            }
        };
        assert!(given_up > 5);
        assert_eq!(ping.payload, Some(vec![9; 8]));
    }
}

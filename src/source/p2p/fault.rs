//! Why a connection to a node ended, and what follows: connect again, or never.

use std::io;
use std::time::Duration;

use crate::network::Network;
use crate::source::tree::HeaderFault;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No connection could be made: try again.
    #[error("no connection: {0}")]
    Connect(io::Error),
    /// The connection broke: try again.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// The other side closed the connection: try again.
    #[error("it closed the connection")]
    Closed,
    /// Nothing came in time: try again.
    #[error("no {what} within {} s", .within.as_secs_f64())]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        within: Duration,
    },
    /// The same passing fault came too often while blocks were awaited.
    #[error("{times} times without sending what was asked for; the last time: {last}")]
    TooOften {
        /// How often in a row.
        times: u32,
        /// What it was.
        last: String,
    },
    /// It is a node of another network.
    #[error(
        "it is a node of network {found}, not of {asked}: start with --network {found}, or give another --peer"
    )]
    OtherNetwork {
        /// Its network.
        found: Network,
        /// What was asked for.
        asked: Network,
    },
    /// Its messages begin otherwise than any known network's.
    #[error("its messages begin with {:02x?}: no node of network {asked}", .magic)]
    UnknownMagic {
        /// The first four bytes.
        magic: [u8; 4],
        /// What was asked for.
        asked: Network,
    },
    /// It does not serve whole blocks with their witnesses.
    #[error("it serves no blocks with witnesses (services {services:#x}): not a full node")]
    Services {
        /// What it says that it serves.
        services: u64,
    },
    /// A message is longer than it may be.
    #[error("message {command:?} of {len} bytes, at most {max} are allowed")]
    TooLong {
        /// Its name.
        command: String,
        /// Its length, bytes.
        len: u32,
        /// What is allowed, bytes.
        max: u32,
    },
    /// A message is not what its name says.
    #[error("malformed message {command:?}: {what}")]
    Malformed {
        /// Its name.
        command: String,
        /// What is wrong.
        what: &'static str,
    },
    /// It sends more than anybody asked for.
    #[error("it floods: {messages} messages that nobody asked for, {bytes} bytes of them")]
    Flood {
        /// Messages since the connection was made.
        messages: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A header breaks a rule.
    #[error(transparent)]
    Header(#[from] HeaderFault),
    /// It says that it does not have a block of its own chain.
    #[error("it does not have a block of its own chain")]
    NotFound,
    /// A block is not what its header commits to.
    #[error("it sent a bad block at height {height}: {reason}")]
    Block {
        /// Height of the block.
        height: u32,
        /// What is wrong with it.
        reason: String,
    },
}

impl Fault {
    /// Whether another connection may go better.
    pub fn is_passing(&self) -> bool {
        matches!(self, Fault::Connect(_) | Fault::Broken(_) | Fault::Closed | Fault::TimedOut { .. })
    }
}

//! What we say to a node and understand of what it says, message by message.
//!
//! In: values. Out: payloads, and back. Encoded by the bitcoin crate's types; headers stay the 80 bytes that are hashed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use bitcoin::BlockHash;
use bitcoin::consensus::encode::{deserialize_partial, serialize};
use bitcoin::hashes::Hash as _;
use bitcoin::p2p::message_blockdata::{GetHeadersMessage, Inventory};
use bitcoin::p2p::message_network::VersionMessage;
use bitcoin::p2p::{Address, ServiceFlags};

use super::fault::Fault;
use super::frame::HEADERS_MAX;
use crate::chain::cursor::Cursor;
use crate::chain::hash::Hash32;
use crate::chain::header::HEADER_BYTES;

/// The version of the protocol that we speak: with `sendheaders`, `feefilter` and witnesses, without `addrv2`.
const VERSION: u32 = 70_015;
/// A fee rate, satoshis per 1,000 virtual bytes, above all that a node asks for. While it is in initial download it wants
/// no transactions and sends 9,170,997, the highest there is (`MaybeSendFeefilter` in Bitcoin Core's `net_processing.cpp`).
const FEE_RATE_MAX_SAT: u64 = 9_000_000;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) services: ServiceFlags,
    pub(super) user_agent: String,
    pub(super) start_height: u32,
}

/// Our own `version`.
pub(super) fn version() -> Vec<u8> {
    let nobody = Address::new(&SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), ServiceFlags::NONE);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
    let agent = concat!("/satgres:", env!("CARGO_PKG_VERSION"), "/").to_owned();
    let mut message = VersionMessage::new(ServiceFlags::NONE, now, nobody.clone(), nobody, 0, agent, 0);
    message.version = VERSION;
    // No transactions, please.
    message.relay = false;
    serialize(&message)
}

/// Reads a node's `version`.
///
/// # Errors
/// [`Fault::Malformed`].
pub(super) fn greeting(payload: &[u8]) -> Result<Greeting, Fault> {
    let malformed = |_| Fault::Malformed { command: "version".to_owned(), what: "it ends too early" };
    let (message, _) = deserialize_partial::<VersionMessage>(payload).map_err(malformed)?;
    let user_agent = message.user_agent.chars().filter(|letter| !letter.is_control()).take(100).collect();
    Ok(Greeting {
        services: message.services,
        user_agent,
        start_height: u32::try_from(message.start_height).unwrap_or(0),
    })
}

/// Asks for the headers after the first hash that the node's active chain has.
pub(super) fn get_headers(locator: &[Hash32]) -> Vec<u8> {
    let locator = locator.iter().map(|hash| BlockHash::from_byte_array(*hash)).collect();
    let mut message = GetHeadersMessage::new(locator, BlockHash::all_zeros());
    message.version = VERSION;
    serialize(&message)
}

/// Asks for whole blocks with their witnesses.
pub(super) fn get_blocks(hashes: &[Hash32]) -> Vec<u8> {
    let blocks: Vec<Inventory> =
        hashes.iter().map(|hash| Inventory::WitnessBlock(BlockHash::from_byte_array(*hash))).collect();
    serialize(&blocks)
}

/// Reads `headers`.
///
/// # Errors
/// [`Fault::Malformed`].
pub(super) fn headers(payload: &[u8]) -> Result<Vec<[u8; HEADER_BYTES]>, Fault> {
    let malformed = |what| Fault::Malformed { command: "headers".to_owned(), what };
    let mut cursor = Cursor::new(payload);
    let count = cursor.compact_size().map_err(|_| malformed("no count"))? as usize;
    if count > HEADERS_MAX || cursor.remaining() != count * (HEADER_BYTES + 1) {
        return Err(malformed("its length does not fit its count"));
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        headers.push(cursor.array::<HEADER_BYTES>().map_err(|_| malformed("it ends too early"))?);
        if cursor.u8() != Ok(0) {
            return Err(malformed("a header with transactions"));
        }
    }
    Ok(headers)
}

/// Reads whether `feefilter` says that a node is in initial download.
pub(super) fn is_in_initial_download(payload: &[u8]) -> bool {
    payload.try_into().is_ok_and(|rate| u64::from_le_bytes(rate) > FEE_RATE_MAX_SAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_back_and_its_text_is_tamed() {
        let greeting = greeting(&version()).unwrap();
        assert_eq!(greeting.services, ServiceFlags::NONE);
        assert_eq!(greeting.user_agent, concat!("/satgres:", env!("CARGO_PKG_VERSION"), "/"));
        assert!(super::greeting(&version()[..70]).is_err());
    }

    #[test]
    fn headers_must_fit_their_count() {
        assert_eq!(headers(&[0]).unwrap(), [] as [[u8; 80]; 0]);
        let one = [&[1][..], &[7; 80], &[0]].concat();
        assert_eq!(headers(&one).unwrap(), [[7; 80]]);
        for bad in
            [&one[..81], &[&one[..], &[0]].concat(), &[&[1][..], &[7; 80], &[1]].concat(), &[], &[0xff; 9]]
        {
            assert!(headers(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn initial_download_is_told_by_the_highest_fee_rate() {
        assert!(is_in_initial_download(&9_170_997_u64.to_le_bytes()));
        assert!(!is_in_initial_download(&1_000_u64.to_le_bytes()));
        assert!(!is_in_initial_download(&[]));
    }

    #[test]
    fn blocks_are_asked_for_with_witness() {
        let payload = get_blocks(&[[3; 32]]);
        assert_eq!(payload[..5], [1, 2, 0, 0, 0x40]);
        assert_eq!(payload[5..], [3; 32]);
    }
}

//! The networks that Satgres knows, and what differs between them on disk and in the rules.
//!
//! In: the name that a user typed. Out: magic, genesis block, limits. Called by the command line, the block file
//! scan and the rules of the replay. Addresses never tell a network (testnet and signet share a prefix): the magic
//! and the genesis block do.

use std::fmt;
use std::str::FromStr;

/// A Bitcoin network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// The main network.
    Main,
    /// Test network version 3.
    Test,
    /// Test network version 4 (BIP94).
    Testnet4,
    /// The default signet (BIP325).
    Signet,
    /// A private regression test network.
    Regtest,
}

/// A network name that is none of the five.
#[derive(Debug, thiserror::Error)]
#[error("unknown network {0:?}: use main, test, testnet4, signet or regtest")]
pub struct UnknownNetwork(pub String);

impl Network {
    /// All networks, in the order in which help texts name them.
    pub const ALL: [Network; 5] =
        [Network::Main, Network::Test, Network::Testnet4, Network::Signet, Network::Regtest];

    /// Returns the name, as Bitcoin Core's `-chain` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Network::Main => "main",
            Network::Test => "test",
            Network::Testnet4 => "testnet4",
            Network::Signet => "signet",
            Network::Regtest => "regtest",
        }
    }

    /// Returns the four bytes that precede every record of a block file and every message.
    pub fn magic(self) -> [u8; 4] {
        match self {
            Network::Main => [0xf9, 0xbe, 0xb4, 0xd9],
            Network::Test => [0x0b, 0x11, 0x09, 0x07],
            Network::Testnet4 => [0x1c, 0x16, 0x3f, 0x28],
            Network::Signet => [0x0a, 0x03, 0xcf, 0x40],
            Network::Regtest => [0xfa, 0xbf, 0xb5, 0xda],
        }
    }

    /// Returns the number of blocks after which the subsidy halves.
    pub fn halving_interval_blocks(self) -> u32 {
        if self == Network::Regtest { 150 } else { 210_000 }
    }

    /// Returns the easiest target that a header may carry, in compact form (`nBits`).
    pub fn pow_limit_bits(self) -> u32 {
        match self {
            Network::Main | Network::Test | Network::Testnet4 => 0x1d00_ffff,
            Network::Signet => 0x1e03_77ae,
            Network::Regtest => 0x207f_ffff,
        }
    }

    /// Returns the height from which witness commitments are checked (BIP141; `SegwitHeight` in Bitcoin Core's
    /// `kernel/chainparams.cpp`).
    pub fn segwit_height(self) -> u32 {
        match self {
            Network::Main => 481_824,
            Network::Test => 834_624,
            Network::Testnet4 | Network::Signet => 1,
            Network::Regtest => 0,
        }
    }

    /// Returns the serialised genesis block.
    pub fn genesis_block(self) -> Vec<u8> {
        let params = match self {
            Network::Main => bitcoin::Network::Bitcoin,
            Network::Test => bitcoin::Network::Testnet,
            Network::Testnet4 => bitcoin::Network::Testnet4,
            Network::Signet => bitcoin::Network::Signet,
            Network::Regtest => bitcoin::Network::Regtest,
        };
        bitcoin::consensus::serialize(&bitcoin::constants::genesis_block(params))
    }

    /// Returns the new coins, in satoshis, that a block at this height may create
    /// (`GetBlockSubsidy` in Bitcoin Core's `validation.cpp`).
    pub fn subsidy_sat(self, height: u32) -> u64 {
        let halvings = height / self.halving_interval_blocks();
        if halvings >= 64 { 0 } else { 5_000_000_000 >> halvings }
    }
}

impl FromStr for Network {
    type Err = UnknownNetwork;

    fn from_str(name: &str) -> Result<Self, UnknownNetwork> {
        Network::ALL
            .into_iter()
            .find(|network| network.name() == name)
            .ok_or_else(|| UnknownNetwork(name.to_owned()))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for network in Network::ALL {
            assert_eq!(network.name().parse::<Network>().unwrap(), network);
        }
        assert!("bitcoin".parse::<Network>().is_err());
    }

    #[test]
    fn subsidy_halves_and_ends() {
        assert_eq!(Network::Main.subsidy_sat(209_999), 5_000_000_000);
        assert_eq!(Network::Main.subsidy_sat(840_000), 312_500_000);
        assert_eq!(Network::Regtest.subsidy_sat(150), 2_500_000_000);
        assert_eq!(Network::Regtest.subsidy_sat(u32::MAX), 0);
    }

    #[test]
    fn genesis_blocks_carry_their_own_pow_limit() {
        for network in Network::ALL {
            let block = network.genesis_block();
            let bits = u32::from_le_bytes(block[72..76].try_into().unwrap());
            assert_eq!(bits, network.pow_limit_bits(), "{network}");
        }
    }
}

//! The scripts that the chain pays to, and the keys behind them.
//!
//! In: a number of keys. Out: for each pair of script kind and key the scriptPubKey, and what its spender needs.
//! Called by the planner (sizes), by the signer (scripts and keys) and at the end by the hash of the UTXO set.
//! The keys are public knowledge: they are hashes of their numbers. They must never guard anything of value.

use bitcoin::hashes::{Hash, sha256};
use bitcoin::key::{Keypair, PublicKey, TweakedPublicKey};
use bitcoin::opcodes::all::OP_CHECKMULTISIG;
use bitcoin::script::{Builder, ScriptBuf};
use bitcoin::secp256k1::{Secp256k1, SecretKey, SignOnly};
use bitcoin::{PubkeyHash, WPubkeyHash};
use serde::{Deserialize, Serialize};

/// A kind of output script, in the order in which the mix lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum ScriptKind {
    /// A public key (compressed) and OP_CHECKSIG.
    P2pk,
    /// The hash of a public key.
    P2pkh,
    /// A version 0 key hash program inside a script hash.
    P2shP2wpkh,
    /// A version 0 key hash program.
    P2wpkh,
    /// A version 0 script hash program over 2-of-3 OP_CHECKMULTISIG.
    P2wsh,
    /// A taproot output, spent by its key.
    P2tr,
    /// 1-of-2 OP_CHECKMULTISIG that stands in the output itself.
    BareMultisig,
    /// OP_RETURN and data; value 0, never spent.
    OpReturn,
}

impl ScriptKind {
    /// All kinds, each at the place of its number.
    pub const ALL: [Self; 8] = [
        Self::P2pk,
        Self::P2pkh,
        Self::P2shP2wpkh,
        Self::P2wpkh,
        Self::P2wsh,
        Self::P2tr,
        Self::BareMultisig,
        Self::OpReturn,
    ];

    /// Returns the name that people use.
    pub fn name(self) -> &'static str {
        match self {
            Self::P2pk => "P2PK",
            Self::P2pkh => "P2PKH",
            Self::P2shP2wpkh => "P2SH-P2WPKH",
            Self::P2wpkh => "P2WPKH",
            Self::P2wsh => "P2WSH 2-of-3",
            Self::P2tr => "P2TR",
            Self::BareMultisig => "bare multisig",
            Self::OpReturn => "OP_RETURN",
        }
    }

    /// Says whether signatures of this kind's spends stand in the scriptSig, and so change the txid.
    pub(super) fn signs_in_script_sig(self) -> bool {
        matches!(self, Self::P2pk | Self::P2pkh | Self::BareMultisig)
    }

    /// Returns the number of signatures in a spend.
    pub(super) fn signature_count(self) -> u64 {
        match self {
            Self::OpReturn => 0,
            Self::P2wsh => 2,
            _ => 1,
        }
    }

    /// Returns the weight of an input of this kind with signatures of 72 bytes, the longest.
    pub(super) fn input_weight_max(self) -> u64 {
        // 41 bytes of outpoint, scriptSig length and sequence, then scriptSig; the witness weighs a quarter.
        match self {
            Self::P2pk => 4 * (41 + 73) + 1,
            Self::P2pkh => 4 * (41 + 107) + 1,
            Self::P2shP2wpkh => 4 * (41 + 23) + 108,
            Self::P2wpkh => 4 * 41 + 108,
            Self::P2wsh => 4 * 41 + 254,
            Self::P2tr => 4 * 41 + 66,
            Self::BareMultisig => 4 * (41 + 74) + 1,
            Self::OpReturn => 0,
        }
    }

    /// Returns the weight of an output of this kind (OP_RETURN: with 80 bytes of data).
    pub(super) fn output_weight_max(self) -> u64 {
        4 * match self {
            Self::P2pk => 9 + 35,
            Self::P2pkh => 9 + 25,
            Self::P2shP2wpkh => 9 + 23,
            Self::P2wpkh => 9 + 22,
            Self::P2wsh | Self::P2tr => 9 + 34,
            Self::BareMultisig => 9 + 71,
            Self::OpReturn => 9 + 83,
        }
    }

    /// Returns what an input of this kind adds to the block's signature operation cost.
    pub(super) fn input_sigop_cost(self) -> u64 {
        match self {
            Self::P2wpkh | Self::P2shP2wpkh => 1,
            Self::P2wsh => 3,
            _ => 0,
        }
    }

    /// Returns what an output of this kind adds to the block's signature operation cost.
    pub(super) fn output_sigop_cost(self) -> u64 {
        match self {
            Self::P2pk | Self::P2pkh => 4,
            Self::BareMultisig => 80,
            _ => 0,
        }
    }
}

/// One of the chain's scripts: a kind, and the number of the (first) key in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) key: u32,
    pub(super) kind: ScriptKind,
}

/// The lock that 1 % of all outputs pay to; no other lock names key 0 first.
pub(super) const BUSY_LOCK: Lock = Lock { key: 0, kind: ScriptKind::P2wpkh };

/// All keys of the chain.
pub(super) struct Keyring {
    pub(super) secp: Secp256k1<SignOnly>,
    keypairs: Vec<Keypair>,
}

impl Keyring {
    /// Derives `key_count` keys (three or more, for multisig) on `threads` threads.
    pub(super) fn new(key_count: u32, threads: usize) -> Self {
        assert!(key_count >= 3, "2-of-3 needs three keys");
        let secp = Secp256k1::signing_only();
        let numbers: Vec<u32> = (0..key_count).collect();
        let keypairs = std::thread::scope(|scope| {
            let secp = &secp;
            let workers: Vec<_> = numbers
                .chunks(numbers.len().div_ceil(threads))
                .map(|part| {
                    scope.spawn(move || {
                        part.iter()
                            .map(|number| Keypair::from_secret_key(secp, &secret_key(*number)))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().expect("deriving keys never panics"))
                .collect()
        });
        Self { secp, keypairs }
    }

    /// Returns the number of keys.
    pub(super) fn key_count(&self) -> u32 {
        self.keypairs.len() as u32
    }

    /// Returns the key pair of a number; numbers beyond the last key begin again at 0.
    pub(super) fn keypair(&self, number: u32) -> &Keypair {
        &self.keypairs[number as usize % self.keypairs.len()]
    }

    /// Returns the public key (compressed) of a number.
    pub(super) fn public_key(&self, number: u32) -> PublicKey {
        PublicKey::new(self.keypair(number).public_key())
    }

    /// Returns the scriptPubKey of a lock.
    pub(super) fn script_pubkey(&self, lock: Lock) -> ScriptBuf {
        match lock.kind {
            ScriptKind::P2pk => ScriptBuf::new_p2pk(&self.public_key(lock.key)),
            ScriptKind::P2pkh => ScriptBuf::new_p2pkh(&PubkeyHash::from(self.public_key(lock.key))),
            ScriptKind::P2shP2wpkh => ScriptBuf::new_p2sh(&self.key_program(lock.key).script_hash()),
            ScriptKind::P2wpkh => self.key_program(lock.key),
            ScriptKind::P2wsh => ScriptBuf::new_p2wsh(&self.witness_script(lock.key).wscript_hash()),
            ScriptKind::P2tr => {
                // BIP341 advises to tweak the key by the hash of no scripts. Consensus does not ask for it, and
                // without it a key costs one point multiplication instead of two.
                let (key, _parity) = self.keypair(lock.key).x_only_public_key();
                ScriptBuf::new_p2tr_tweaked(TweakedPublicKey::dangerous_assume_tweaked(key))
            }
            ScriptKind::BareMultisig => self.multisig(1, lock.key, 2),
            ScriptKind::OpReturn => unreachable!("a lock can be opened"),
        }
    }

    /// Returns the version 0 key hash program of a key: a scriptPubKey, or the redeem script of P2SH-P2WPKH.
    pub(super) fn key_program(&self, number: u32) -> ScriptBuf {
        let key = self.public_key(number);
        ScriptBuf::new_p2wpkh(&WPubkeyHash::hash(&key.inner.serialize()))
    }

    /// Returns the witness script of a P2WSH lock: 2 of the 3 keys that begin with `number`.
    pub(super) fn witness_script(&self, number: u32) -> ScriptBuf {
        self.multisig(2, number, 3)
    }

    fn multisig(&self, required: i64, first: u32, key_count: u32) -> ScriptBuf {
        (first..first + key_count)
            .fold(Builder::new().push_int(required), |script, number| {
                script.push_key(&self.public_key(number))
            })
            .push_int(i64::from(key_count))
            .push_opcode(OP_CHECKMULTISIG)
            .into_script()
    }
}

fn secret_key(number: u32) -> SecretKey {
    let digest = sha256::Hash::hash(format!("satgres chaingen key {number}").as_bytes());
    SecretKey::from_slice(digest.as_ref()).expect("no hash of these words is zero or above the group order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_what_their_kinds_say() {
        let keys = Keyring::new(4, 2);
        let script = |kind| keys.script_pubkey(Lock { key: 3, kind });
        assert!(script(ScriptKind::P2pk).is_p2pk());
        assert!(script(ScriptKind::P2pkh).is_p2pkh());
        assert!(script(ScriptKind::P2shP2wpkh).is_p2sh());
        assert!(script(ScriptKind::P2wpkh).is_p2wpkh());
        assert!(script(ScriptKind::P2wsh).is_p2wsh());
        assert!(script(ScriptKind::P2tr).is_p2tr());
        assert!(script(ScriptKind::BareMultisig).is_multisig());
        for kind in ScriptKind::ALL.into_iter().filter(|kind| *kind != ScriptKind::OpReturn) {
            assert_eq!(kind.output_weight_max(), 4 * (9 + script(kind).len() as u64), "{kind:?}");
        }
    }

    #[test]
    fn kinds_stand_at_the_place_of_their_number() {
        for (place, kind) in ScriptKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }

    #[test]
    fn keys_do_not_depend_on_the_number_of_threads() {
        let (one, three) = (Keyring::new(10, 1), Keyring::new(10, 3));
        assert!((0..10).all(|number| one.public_key(number) == three.public_key(number)));
    }
}

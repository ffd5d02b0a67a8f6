//! Turns drafts into signed transactions, on several threads.
//!
//! In: a block's drafts. Out: for each its bytes, txid and wtxid, in the same order. Called once a block by `generate`.
//! Signatures are real and deterministic: ECDSA after RFC 6979 (low S), Schnorr without auxiliary randomness. They
//! are nearly all of the work. It must never draw a random number.

use std::sync::Mutex;

use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use bitcoin::key::PublicKey;
use bitcoin::script::{Builder, ScriptBuf};
use bitcoin::secp256k1::Message;
use bitcoin::sighash::{EcdsaSighashType, Prevouts, SighashCache, TapSighashType};
use bitcoin::{Amount, Transaction, TxOut, Txid, Weight, Witness, Wtxid, ecdsa, taproot};

use super::draft::{Draft, push_bytes};
use super::scripts::{Keyring, ScriptKind};

/// A finished transaction.
#[derive(Debug, Clone)]
pub(super) struct SignedTransaction {
    pub(super) bytes: Vec<u8>,
    pub(super) txid: Txid,
    pub(super) wtxid: Wtxid,
    pub(super) weight: Weight,
}

/// Drafts that a thread takes at once.
const DRAFTS_PER_STEP: usize = 8;

/// Signs a block's drafts on up to `threads` threads.
pub(super) fn sign_block(drafts: &[Draft], keys: &Keyring, threads: usize) -> Vec<SignedTransaction> {
    let mut signed: Vec<Option<SignedTransaction>> = vec![None; drafts.len()];
    let steps = Mutex::new(drafts.chunks(DRAFTS_PER_STEP).zip(signed.chunks_mut(DRAFTS_PER_STEP)));
    let work = || {
        loop {
            let step = steps.lock().expect("no thread panics while it holds the lock").next();
            let Some((drafts, places)) = step else { break };
            for (draft, place) in drafts.iter().zip(places) {
                *place = Some(sign_transaction(draft, keys));
            }
        }
    };
    let helpers = threads.min(drafts.len().div_ceil(DRAFTS_PER_STEP)).saturating_sub(1);
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(work);
        }
        work();
    });
    signed.into_iter().map(|place| place.expect("every place was in one of the steps")).collect()
}

fn sign_transaction(draft: &Draft, keys: &Keyring) -> SignedTransaction {
    let mut transaction = draft.unsigned(keys);
    let prevouts: Vec<TxOut> = draft
        .spends
        .iter()
        .map(|spend| TxOut {
            value: Amount::from_sat(spend.coin.value_sat),
            script_pubkey: keys.script_pubkey(spend.coin.lock),
        })
        .collect();
    let mut signer = InputSigner { keys, prevouts: &prevouts, cache: SighashCache::new(&transaction) };
    let proofs: Vec<Proof> =
        draft.spends.iter().enumerate().map(|(index, spend)| signer.sign(index, spend.coin.lock)).collect();
    for (input, proof) in transaction.input.iter_mut().zip(proofs) {
        match proof {
            Proof::ScriptSig(script_sig) => input.script_sig = script_sig,
            Proof::Witness(witness) => input.witness = witness,
        }
    }
    SignedTransaction {
        bytes: serialize(&transaction),
        txid: transaction.compute_txid(),
        wtxid: transaction.compute_wtxid(),
        weight: transaction.weight(),
    }
}

/// What proves the right to spend, and where it goes.
enum Proof {
    ScriptSig(ScriptBuf),
    Witness(Witness),
}

struct InputSigner<'a> {
    keys: &'a Keyring,
    prevouts: &'a [TxOut],
    cache: SighashCache<&'a Transaction>,
}

const IN_RANGE: &str = "the transaction has one input for each spend";

impl InputSigner<'_> {
    fn sign(&mut self, index: usize, lock: super::scripts::Lock) -> Proof {
        match lock.kind {
            ScriptKind::P2pk => {
                let signature = self.sign_legacy(index, lock.key);
                Proof::ScriptSig(Builder::new().push_slice(signature).into_script())
            }
            ScriptKind::P2pkh => {
                let signature = self.sign_legacy(index, lock.key);
                let key = self.keys.public_key(lock.key);
                Proof::ScriptSig(Builder::new().push_slice(signature).push_key(&key).into_script())
            }
            ScriptKind::BareMultisig => {
                // OP_CHECKMULTISIG takes one element too many: an empty one.
                let signature = self.sign_legacy(index, lock.key);
                Proof::ScriptSig(Builder::new().push_int(0).push_slice(signature).into_script())
            }
            ScriptKind::P2wpkh | ScriptKind::P2shP2wpkh => self.sign_key_program(index, lock.key),
            ScriptKind::P2wsh => self.sign_witness_script(index, lock.key),
            ScriptKind::P2tr => self.sign_taproot(index, lock.key),
            ScriptKind::OpReturn => unreachable!("a lock can be opened"),
        }
    }

    fn sign_legacy(&self, index: usize, key: u32) -> impl AsRef<bitcoin::script::PushBytes> + use<> {
        let script_pubkey = &self.prevouts[index].script_pubkey;
        let hash = self
            .cache
            .legacy_signature_hash(index, script_pubkey, EcdsaSighashType::All.to_u32())
            .expect(IN_RANGE);
        push_bytes(self.ecdsa(hash.to_byte_array(), key).to_vec())
    }

    fn sign_key_program(&mut self, index: usize, key: u32) -> Proof {
        let program = self.keys.key_program(key);
        let value = self.prevouts[index].value;
        let hash = self
            .cache
            .p2wpkh_signature_hash(index, &program, value, EcdsaSighashType::All)
            .expect("the script is a key hash program and the input exists");
        let PublicKey { inner, .. } = self.keys.public_key(key);
        Proof::Witness(Witness::p2wpkh(&self.ecdsa(hash.to_byte_array(), key), &inner))
    }

    fn sign_witness_script(&mut self, index: usize, key: u32) -> Proof {
        let script = self.keys.witness_script(key);
        let value = self.prevouts[index].value;
        let hash =
            self.cache.p2wsh_signature_hash(index, &script, value, EcdsaSighashType::All).expect(IN_RANGE);
        let mut witness = Witness::new();
        witness.push([]);
        witness.push_ecdsa_signature(&self.ecdsa(hash.to_byte_array(), key));
        witness.push_ecdsa_signature(&self.ecdsa(hash.to_byte_array(), key + 1));
        witness.push(script);
        Proof::Witness(witness)
    }

    fn sign_taproot(&mut self, index: usize, key: u32) -> Proof {
        let hash = self
            .cache
            .taproot_key_spend_signature_hash(index, &Prevouts::All(self.prevouts), TapSighashType::Default)
            .expect("as many prevouts as inputs");
        let message = Message::from_digest(hash.to_byte_array());
        let signature = self.keys.secp.sign_schnorr_no_aux_rand(&message, self.keys.keypair(key));
        let sighash_type = TapSighashType::Default;
        Proof::Witness(Witness::p2tr_key_spend(&taproot::Signature { signature, sighash_type }))
    }

    fn ecdsa(&self, digest: [u8; 32], key: u32) -> ecdsa::Signature {
        let secret_key = self.keys.keypair(key).secret_key();
        ecdsa::Signature::sighash_all(self.keys.secp.sign_ecdsa(&Message::from_digest(digest), &secret_key))
    }
}

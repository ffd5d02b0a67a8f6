//! A transaction as the planner decides it: which coins it spends, whom it pays, nothing signed yet.
//!
//! Made by the planner, turned into bytes by the signer, read by the mix and by the UTXO bookkeeping.

use bitcoin::absolute::LockTime;
use bitcoin::script::{PushBytesBuf, ScriptBuf};
use bitcoin::transaction::Version;
use bitcoin::{Amount, OutPoint, Sequence, Transaction, TxIn, TxOut, Txid, Witness};

use super::coins::Coin;
use super::scripts::{Keyring, Lock, ScriptKind};

/// A coin and the height that made it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spend {
    pub(super) coin: Coin,
    pub(super) height: u32,
}

/// Whom an output pays.
#[derive(Debug, Clone)]
pub(super) enum Payee {
    /// The owner of a key.
    Lock(Lock),
    /// Nobody: OP_RETURN and these bytes.
    Data(Vec<u8>),
}

/// An output.
#[derive(Debug, Clone)]
pub(super) struct Payment {
    pub(super) payee: Payee,
    pub(super) value_sat: u64,
    /// A later transaction of the same block spends it, so it never becomes a coin.
    pub(super) is_spent_in_block: bool,
}

impl Payment {
    /// Returns the kind of the output's script.
    pub(super) fn kind(&self) -> ScriptKind {
        match &self.payee {
            Payee::Lock(lock) => lock.kind,
            Payee::Data(_) => ScriptKind::OpReturn,
        }
    }
}

/// A transaction without its signatures.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) version: Version,
    pub(super) lock_time: LockTime,
    /// The sequence of every input; all of them leave BIP68 switched off.
    pub(super) sequence: Sequence,
    pub(super) spends: Vec<Spend>,
    pub(super) payments: Vec<Payment>,
}

impl Draft {
    /// Says whether the txid is the same before and after signing.
    pub(super) fn has_fixed_txid(&self) -> bool {
        self.spends.iter().all(|spend| !spend.coin.lock.kind.signs_in_script_sig())
    }

    /// Returns what the transaction pays to the miner, in sat.
    pub(super) fn fee_sat(&self) -> u64 {
        let spent: u64 = self.spends.iter().map(|spend| spend.coin.value_sat).sum();
        spent - self.payments.iter().map(|payment| payment.value_sat).sum::<u64>()
    }

    /// Returns a weight that the signed transaction does not exceed.
    pub(super) fn weight_max(&self) -> u64 {
        // Version, lock time, two counts of up to three bytes; marker and flag.
        let spends: u64 = self.spends.iter().map(|spend| spend.coin.lock.kind.input_weight_max()).sum();
        let payments: u64 = self.payments.iter().map(|payment| payment.kind().output_weight_max()).sum();
        4 * (4 + 4 + 3 + 3) + 2 + spends + payments
    }

    /// Returns the block signature operation cost.
    pub(super) fn sigop_cost(&self) -> u64 {
        let spends: u64 = self.spends.iter().map(|spend| spend.coin.lock.kind.input_sigop_cost()).sum();
        spends + self.payments.iter().map(|payment| payment.kind().output_sigop_cost()).sum::<u64>()
    }

    /// Builds the transaction with everything in place except signatures.
    pub(super) fn unsigned(&self, keys: &Keyring) -> Transaction {
        let input = self.spends.iter().map(|Spend { coin, .. }| TxIn {
            previous_output: OutPoint { txid: coin.txid, vout: coin.vout },
            script_sig: match coin.lock.kind {
                ScriptKind::P2shP2wpkh => push_script(keys.key_program(coin.lock.key)),
                _ => ScriptBuf::new(),
            },
            sequence: self.sequence,
            witness: Witness::new(),
        });
        let output = self.payments.iter().map(|payment| TxOut {
            value: Amount::from_sat(payment.value_sat),
            script_pubkey: match &payment.payee {
                Payee::Lock(lock) => keys.script_pubkey(*lock),
                Payee::Data(data) => ScriptBuf::new_op_return(push_bytes(data.clone())),
            },
        });
        Transaction {
            version: self.version,
            lock_time: self.lock_time,
            input: input.collect(),
            output: output.collect(),
        }
    }

    /// Returns the txid, which must not depend on signatures.
    pub(super) fn fixed_txid(&self, keys: &Keyring) -> Txid {
        assert!(self.has_fixed_txid(), "the txid of this transaction depends on its signatures");
        self.unsigned(keys).compute_txid()
    }
}

fn push_script(script: ScriptBuf) -> ScriptBuf {
    ScriptBuf::builder().push_slice(push_bytes(script.into_bytes())).into_script()
}

/// Wraps what a script pushes.
pub(super) fn push_bytes(bytes: Vec<u8>) -> PushBytesBuf {
    PushBytesBuf::try_from(bytes).expect("a push of some hundred bytes is far below the limit of 4 GiB")
}

//! What a finished chain consists of: the figures that `satgres chaingen` prints and that tests compare.
//!
//! In: each block's drafts. Out: counts, and shares made of them. Kept in the stamp beside the chain.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::draft::{Draft, Payee};
use super::plan::YOUNG_AGE_BLOCKS;
use super::scripts::{BUSY_LOCK, ScriptKind};

/// The age classes of spends: their names, and the first age (in blocks) above each.
const AGES: [(&str, u32); 8] = [
    ("same block", 1),
    ("1-9 blocks", 10),
    ("10-99", 100),
    ("100-199", 200),
    ("200-499", 500),
    ("500-999", 1000),
    ("1,000-9,999", 10_000),
    ("10,000 and more", u32::MAX),
];

/// The composition of a chain. All figures but those of the UTXO set leave out coinbases and genesis.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mix {
    /// Height of the last block.
    pub tip_height: u32,
    /// Hash of the last block, as people write it.
    pub tip_hash: String,
    /// The last height whose transactions only split coins (0: there is none).
    pub ramp_up_height_last: u32,
    /// Transactions.
    pub transactions: u64,
    /// Inputs.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Signatures.
    pub signatures: u64,
    /// Outputs of each script kind. `[ScriptKind as usize]`
    pub outputs_by_kind: [u64; 8],
    /// Inputs that spend each script kind. `[ScriptKind as usize]`
    pub inputs_by_kind: [u64; 8],
    /// Inputs by the age of the coin: same block, below 10 blocks, 100, 200, 500, 1,000, 10,000, more.
    pub inputs_by_age: [u64; 8],
    /// Outputs to the busy address.
    pub busy_outputs: u64,
    /// All fees together, in sat.
    pub fees_sat: u64,
    /// Unspent outputs, as `gettxoutsetinfo` counts them (`txouts`).
    pub utxo_count: u64,
    /// Their values' sum, in sat (`total_amount`).
    pub utxo_total_sat: u64,
    /// Their hash (`hash_serialized_3`).
    pub utxo_hash: String,
    /// Block files.
    pub files: u32,
    /// Bytes of all block files.
    pub bytes: u64,
}

impl Mix {
    /// Counts a transaction of the block at `height`.
    pub(super) fn count(&mut self, height: u32, draft: &Draft) {
        self.transactions += 1;
        self.inputs += draft.spends.len() as u64;
        self.outputs += draft.payments.len() as u64;
        self.fees_sat += draft.fee_sat();
        for spend in &draft.spends {
            let (kind, age) = (spend.coin.lock.kind, height - spend.height);
            self.inputs_by_kind[kind as usize] += 1;
            self.signatures += kind.signature_count();
            let class = AGES.iter().position(|(_, end)| age < *end).expect("the last class has no end");
            self.inputs_by_age[class] += 1;
        }
        for payment in &draft.payments {
            self.outputs_by_kind[payment.kind() as usize] += 1;
            self.busy_outputs += u64::from(matches!(payment.payee, Payee::Lock(BUSY_LOCK)));
        }
    }

    /// Returns the mean number of inputs of a transaction.
    pub fn inputs_per_transaction(&self) -> f64 {
        ratio(self.inputs, self.transactions)
    }

    /// Returns the mean number of outputs of a transaction.
    pub fn outputs_per_transaction(&self) -> f64 {
        ratio(self.outputs, self.transactions)
    }

    /// Returns the share of a script kind in all outputs, 0 to 1.
    pub fn output_share(&self, kind: ScriptKind) -> f64 {
        ratio(self.outputs_by_kind[kind as usize], self.outputs)
    }

    /// Returns the share of a script kind in all spends, 0 to 1.
    pub fn input_share(&self, kind: ScriptKind) -> f64 {
        ratio(self.inputs_by_kind[kind as usize], self.inputs)
    }

    /// Returns the number of spends of coins younger than 100 blocks.
    pub fn young_inputs(&self) -> u64 {
        let young = self.inputs_by_age.iter().zip(AGES).filter(|(_, (_, end))| *end <= YOUNG_AGE_BLOCKS);
        young.map(|(inputs, _)| inputs).sum()
    }

    /// Returns the share of spends of coins younger than 100 blocks, 0 to 1.
    pub fn young_share(&self) -> f64 {
        ratio(self.young_inputs(), self.inputs)
    }

    /// Returns the share of spends of outputs of the same block, 0 to 1.
    pub fn same_block_share(&self) -> f64 {
        ratio(self.inputs_by_age[0], self.inputs)
    }

    /// Returns the busy address' share of all outputs, 0 to 1.
    pub fn busy_share(&self) -> f64 {
        ratio(self.busy_outputs, self.outputs)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tip            {} {}", self.tip_height, self.tip_hash)?;
        writeln!(f, "block files    {} ({} bytes)", self.files, self.bytes)?;
        writeln!(
            f,
            "transactions   {} (and {} coinbases)",
            self.transactions,
            u64::from(self.tip_height) + 1
        )?;
        writeln!(f, "inputs         {} ({:.2} a transaction)", self.inputs, self.inputs_per_transaction())?;
        writeln!(f, "outputs        {} ({:.2} a transaction)", self.outputs, self.outputs_per_transaction())?;
        writeln!(f, "signatures     {}", self.signatures)?;
        writeln!(f, "fees           {} sat", self.fees_sat)?;
        writeln!(f, "UTXO set       {} outputs, {} sat", self.utxo_count, self.utxo_total_sat)?;
        writeln!(f, "UTXO hash      {} (hash_serialized_3)", self.utxo_hash)?;
        writeln!(f, "busy address   {} outputs ({:.2} %)", self.busy_outputs, 100.0 * self.busy_share())?;
        if self.ramp_up_height_last > 0 {
            writeln!(f, "ramp-up        heights 101 to {} only split coins", self.ramp_up_height_last)?;
        }
        writeln!(f, "\n{:<16}{:>12}{:>9}{:>12}{:>9}", "script", "outputs", "%", "spends", "%")?;
        for kind in ScriptKind::ALL {
            let (outputs, inputs) = (self.outputs_by_kind[kind as usize], self.inputs_by_kind[kind as usize]);
            let (output_share, input_share) =
                (100.0 * self.output_share(kind), 100.0 * self.input_share(kind));
            writeln!(f, "{:<16}{outputs:>12}{output_share:>9.2}{inputs:>12}{input_share:>9.2}", kind.name())?;
        }
        writeln!(f, "\n{:<16}{:>12}{:>9}", "age of spends", "spends", "%")?;
        for (inputs, (name, _)) in self.inputs_by_age.iter().zip(AGES) {
            writeln!(f, "{name:<16}{inputs:>12}{:>9.2}", 100.0 * ratio(*inputs, self.inputs))?;
        }
        write!(f, "below 100       {:>12}{:>9.2}", self.young_inputs(), 100.0 * self.young_share())
    }
}

//! Resolves the prevouts of a batch, in chain order, and checks what only the chain before it can tell.
//!
//! In: a parsed batch and the set as it stood after the block before. Out: every input's coin, every fee, the blocks'
//! rewards, the overwritten outputs. The rules are a closed list: prevouts exist and are unspent, coinbases are mature,
//! no transaction creates value, a coinbase claims at most subsidy and fees. Scripts are never run.

use super::{Coin, UtxoSet};
use crate::chain::batch::{Batch, Block, Input, Output, Overwritten, Tx, tx_num};
use crate::chain::block::MONEY_MAX_SAT;
use crate::network::Network;

/// Blocks that must be built on a coinbase before it may be spent (`COINBASE_MATURITY`).
const COINBASE_MATURITY_BLOCKS: u32 = 100;

/// A rule that a block breaks in the light of the chain before it. The block is invalid, and so is every descendant.
/// The set is not usable afterwards: blocks before the invalid one stay applied, its own transactions in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule} (transaction {tx_index})")]
pub struct ResolveError {
    /// Height of the block.
    pub height: u32,
    /// Index of the transaction in the block.
    pub tx_index: u32,
    /// The rule.
    pub rule: BrokenRule,
}

/// The rules of the closed list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenRule {
    /// The output never existed, or is spent already.
    #[error("input {vin} spends an output that does not exist or is spent already")]
    MissingPrevout {
        /// Index of the input.
        vin: u32,
    },
    /// A coinbase is spent less than 100 blocks after it.
    #[error("input {vin} spends the coinbase of height {coinbase_height} too early")]
    ImmatureCoinbase {
        /// Index of the input.
        vin: u32,
        /// Height of the coinbase.
        coinbase_height: u32,
    },
    /// A transaction's outputs exceed its inputs, or its inputs exceed all money.
    #[error("outputs of {output_sat} sat exceed inputs of {input_sat} sat")]
    ValueCreated {
        /// Sum of the inputs, satoshis.
        input_sat: u64,
        /// Sum of the outputs, satoshis.
        output_sat: u64,
    },
    /// The coinbase claims more than subsidy and fees.
    #[error("coinbase claims {claimed_sat} of {allowed_sat} sat")]
    CoinbaseTooLarge {
        /// What it claims, satoshis.
        claimed_sat: u64,
        /// Subsidy and fees, satoshis.
        allowed_sat: u64,
    },
}

/// Applies a batch to the set, and completes its inputs, transactions and blocks.
///
/// # Errors
/// The first rule that a block breaks: exclude that block, drop the set, and begin again from a known state.
pub fn resolve_batch(batch: &mut Batch, set: &mut UtxoSet, network: Network) -> Result<(), ResolveError> {
    let (mut txs, mut inputs, mut outputs) =
        (batch.txs.as_mut_slice(), batch.inputs.as_mut_slice(), batch.outputs.as_slice());
    for block in &mut batch.blocks {
        let (block_txs, txs_after) = txs.split_at_mut(block.tx_count as usize);
        let (block_inputs, inputs_after) = inputs.split_at_mut(block.input_count as usize);
        let (block_outputs, outputs_after) = outputs.split_at(block.output_count as usize);
        (txs, inputs, outputs) = (txs_after, inputs_after, outputs_after);
        connect_block(block, block_txs, block_inputs, block_outputs, set, network, &mut batch.overwritten)?;
    }
    Ok(())
}

fn connect_block(
    block: &mut Block,
    txs: &mut [Tx],
    mut inputs: &mut [Input],
    mut outputs: &[Output],
    set: &mut UtxoSet,
    network: Network,
    overwritten: &mut Vec<Overwritten>,
) -> Result<(), ResolveError> {
    let height = block.height;
    // Almost every look-up misses the processor's caches: all places of the block are asked for at once.
    for input in inputs.iter() {
        set.prefetch(input.outpoint);
    }
    for output in outputs {
        set.prefetch(output.outpoint);
    }

    let mut fees_sat = 0;
    let mut claimed_sat = 0;
    for (index, tx) in txs.iter_mut().enumerate() {
        let tx_index = index as u32;
        let broken = |rule| ResolveError { height, tx_index, rule };
        let (tx_inputs, inputs_after) = inputs.split_at_mut(tx.input_count as usize);
        let (tx_outputs, outputs_after) = outputs.split_at(tx.output_count as usize);
        (inputs, outputs) = (inputs_after, outputs_after);

        let output_sat: u64 = tx_outputs.iter().map(|output| output.value_sat).sum();
        if index == 0 {
            claimed_sat = output_sat;
        } else {
            let input_sat = spend_inputs(height, tx_inputs, set).map_err(broken)?;
            if output_sat > input_sat || input_sat > MONEY_MAX_SAT {
                return Err(broken(BrokenRule::ValueCreated { input_sat, output_sat }));
            }
            tx.fee_sat = input_sat - output_sat;
            fees_sat += tx.fee_sat;
        }
        // Nobody can spend the genesis output: Bitcoin Core never adds it.
        if height > 0 {
            add_outputs(tx_num(height, tx_index), tx_outputs, set, overwritten);
        }
    }

    block.fees_sat = fees_sat;
    block.subsidy_sat = network.subsidy_sat(height);
    let allowed_sat = block.subsidy_sat + fees_sat;
    block.unclaimed_sat = allowed_sat.checked_sub(claimed_sat).ok_or(ResolveError {
        height,
        tx_index: 0,
        rule: BrokenRule::CoinbaseTooLarge { claimed_sat, allowed_sat },
    })?;
    Ok(())
}

#[inline]
fn spend_inputs(height: u32, inputs: &mut [Input], set: &mut UtxoSet) -> Result<u64, BrokenRule> {
    let mut input_sat: u64 = 0;
    for (vin, input) in inputs.iter_mut().enumerate() {
        let vin = vin as u32;
        let coin = set.spend(input.outpoint).ok_or(BrokenRule::MissingPrevout { vin })?;
        if coin.is_coinbase() && height - coin.height() < COINBASE_MATURITY_BLOCKS {
            return Err(BrokenRule::ImmatureCoinbase { vin, coinbase_height: coin.height() });
        }
        input_sat = input_sat.saturating_add(coin.value_sat);
        input.prevout = coin;
    }
    Ok(input_sat)
}

#[inline]
fn add_outputs(tx_num: i64, outputs: &[Output], set: &mut UtxoSet, overwritten: &mut Vec<Overwritten>) {
    for (vout, output) in outputs.iter().enumerate() {
        if output.is_unspendable {
            continue;
        }
        let coin = Coin { tx_num, value_sat: output.value_sat, script_hash: output.script_hash };
        if let Some(old) = set.insert(output.outpoint, &coin) {
            overwritten.push(Overwritten { tx_num: old.tx_num, vout: vout as u32, by_tx_num: tx_num });
        }
    }
}

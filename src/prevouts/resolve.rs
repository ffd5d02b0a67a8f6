//! Resolves the prevouts of a batch, in chain order, and checks what only the chain before it can tell.
//!
//! In: a parsed batch and the set as it stood after the block before. Out: every input's coin, every fee, the blocks'
//! rewards, the overwritten outputs; or marks where a coin lies in a run and the fact must wait. The rules are a closed
//! list: prevouts exist and are unspent, coinbases are mature, no transaction creates value, a coinbase claims at most
//! subsidy and fees. Scripts are never run.

use super::set::{Absent, UtxoSet};
use super::waiting::{WaitingBlock, WaitingTx};
use super::{Coin, CoinFileError, Fingerprint};
use crate::chain::batch::{Batch, Block, Input, Output, Overwritten, Tx, WAITS, tx_num};
use crate::chain::block::MONEY_MAX_SAT;
use crate::network::Network;

/// Blocks that must be built on a coinbase before it may be spent (`COINBASE_MATURITY`).
const COINBASE_MATURITY_BLOCKS: u32 = 100;

/// Inputs, and outputs, whose places are asked for before their turn.
const PREFETCH_AHEAD: usize = 32;

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

/// Why blocks were not connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A block breaks a rule: exclude it, and begin again from a known state.
    #[error(transparent)]
    Broken(#[from] ResolveError),
    /// The set's files failed.
    #[error(transparent)]
    Files(#[from] CoinFileError),
}

/// Applies a batch to the set, and completes its inputs, transactions and blocks, but for those that wait.
///
/// # Errors
/// The first rule that a block breaks, in chain order, waiting spends included: drop the set, and begin again from a
/// known state.
pub fn resolve_batch(batch: &mut Batch, set: &mut UtxoSet, network: Network) -> Result<(), ConnectError> {
    match connect_batch(batch, set, network) {
        // A spend that waits may have broken a rule before.
        Err(ConnectError::Broken(error)) => Err(set.first_broken(error)),
        connected => connected,
    }
}

fn connect_batch(batch: &mut Batch, set: &mut UtxoSet, network: Network) -> Result<(), ConnectError> {
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
) -> Result<(), ConnectError> {
    let height = block.height;
    // Almost every look-up misses the processor's caches: places are asked for some time before they are needed, but not
    // so early that they are gone again.
    let input_outpoints: Vec<Fingerprint> = inputs.iter().map(|input| input.outpoint).collect();
    let mut inputs_ahead = input_outpoints.iter();
    let mut outputs_ahead = outputs.iter();
    inputs_ahead.by_ref().take(PREFETCH_AHEAD).for_each(|outpoint| set.prefetch(*outpoint));
    outputs_ahead.by_ref().take(PREFETCH_AHEAD).for_each(|output| set.prefetch(output.outpoint));

    let mut fees_sat = 0;
    let mut claimed_sat = 0;
    let mut waits = false;
    set.count_inputs(inputs.len() as u64 - 1);
    for (index, tx) in txs.iter_mut().enumerate() {
        let tx_index = index as u32;
        let tx_num = tx_num(height, tx_index);
        let (tx_inputs, inputs_after) = inputs.split_at_mut(tx.input_count as usize);
        let (tx_outputs, outputs_after) = outputs.split_at(tx.output_count as usize);
        (inputs, outputs) = (inputs_after, outputs_after);
        inputs_ahead.by_ref().take(tx_inputs.len()).for_each(|outpoint| set.prefetch(*outpoint));
        outputs_ahead.by_ref().take(tx_outputs.len()).for_each(|output| set.prefetch(output.outpoint));

        let output_sat: u64 = tx_outputs.iter().map(|output| output.value_sat).sum();
        let is_twin;
        if index == 0 {
            claimed_sat = output_sat;
            is_twin = tx_outputs.first().is_some_and(|output| set.is_repeated_coinbase(output.outpoint));
        } else {
            is_twin = set.spends_only_twins(tx_inputs);
            match spend_inputs(tx_num, tx_inputs, output_sat, set)? {
                Some(fee_sat) => {
                    tx.fee_sat = fee_sat;
                    fees_sat += fee_sat;
                }
                None => {
                    tx.fee_sat = WAITS;
                    waits = true;
                }
            }
        }
        // Nobody can spend the genesis output: Bitcoin Core never adds it.
        if height > 0 {
            add_outputs(tx_num, tx_outputs, is_twin, set, overwritten)?;
        }
    }

    block.subsidy_sat = network.subsidy_sat(height);
    if waits {
        block.fees_sat = WAITS;
        block.unclaimed_sat = WAITS;
        let subsidy_sat = block.subsidy_sat;
        set.add_waiting_block(&WaitingBlock { height, known_fees_sat: fees_sat, subsidy_sat, claimed_sat })?;
    } else {
        block.fees_sat = fees_sat;
        block.unclaimed_sat = check_reward(claimed_sat, block.subsidy_sat + fees_sat)
            .map_err(|rule| ResolveError { height, tx_index: 0, rule })?;
    }
    Ok(())
}

/// Spends a transaction's inputs and returns its fee, or `None` if it must wait for at least one of them.
#[inline]
fn spend_inputs(
    tx_num: i64,
    inputs: &mut [Input],
    output_sat: u64,
    set: &mut UtxoSet,
) -> Result<Option<u64>, ConnectError> {
    let height = (tx_num >> 16) as u32;
    let broken = |rule| ResolveError { height, tx_index: (tx_num & 0xffff) as u32, rule };
    let mut input_sat: u64 = 0;
    let mut waits = false;
    let mut is_cut = None;
    for (vin, input) in inputs.iter_mut().enumerate() {
        let vin = vin as u32;
        let coin = match set.spend(input.outpoint, tx_num, vin) {
            Ok(coin) => coin,
            Err(Absent::Waits) => {
                input.prevout = Coin::WAITING;
                waits = true;
                continue;
            }
            Err(Absent::Missing) => {
                is_cut = Some(BrokenRule::MissingPrevout { vin });
                break;
            }
            Err(Absent::Failed(error)) => return Err((*error).into()),
        };
        if let Err(rule) = check_maturity(height, vin, &coin) {
            is_cut = Some(rule);
            break;
        }
        input_sat = input_sat.saturating_add(coin.value_sat);
        input.prevout = coin;
    }
    if waits {
        let is_cut = is_cut.is_some();
        set.add_waiting_tx(&WaitingTx { tx_num, known_sat: input_sat, output_sat, is_cut })?;
    }
    match is_cut {
        Some(rule) => Err(broken(rule).into()),
        None if waits => Ok(None),
        None => Ok(Some(check_value(input_sat, output_sat).map_err(broken)?)),
    }
}

#[inline]
fn add_outputs(
    tx_num: i64,
    outputs: &[Output],
    is_twin: bool,
    set: &mut UtxoSet,
    overwritten: &mut Vec<Overwritten>,
) -> Result<(), CoinFileError> {
    for (vout, output) in outputs.iter().enumerate() {
        if output.is_unspendable {
            continue;
        }
        let coin = Coin { tx_num, value_sat: output.value_sat, script_hash: output.script_hash };
        if !is_twin {
            set.insert(output.outpoint, &coin)?;
        } else if let Some(old) = set.insert_twin(output.outpoint, &coin, vout as u32)? {
            overwritten.push(Overwritten { tx_num: old.tx_num, vout: vout as u32, by_tx_num: tx_num });
        }
    }
    Ok(())
}

/// Checks that a coinbase is spent late enough.
#[inline]
pub(super) fn check_maturity(height: u32, vin: u32, coin: &Coin) -> Result<(), BrokenRule> {
    if coin.is_coinbase() && height - coin.height() < COINBASE_MATURITY_BLOCKS {
        return Err(BrokenRule::ImmatureCoinbase { vin, coinbase_height: coin.height() });
    }
    Ok(())
}

/// Checks that a transaction creates no value; returns its fee.
#[inline]
pub(super) fn check_value(input_sat: u64, output_sat: u64) -> Result<u64, BrokenRule> {
    if output_sat > input_sat || input_sat > MONEY_MAX_SAT {
        return Err(BrokenRule::ValueCreated { input_sat, output_sat });
    }
    Ok(input_sat - output_sat)
}

/// Checks what a coinbase claims; returns what it leaves.
#[inline]
pub(super) fn check_reward(claimed_sat: u64, allowed_sat: u64) -> Result<u64, BrokenRule> {
    allowed_sat.checked_sub(claimed_sat).ok_or(BrokenRule::CoinbaseTooLarge { claimed_sat, allowed_sat })
}

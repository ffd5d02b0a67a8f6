//! Decides what every block holds: how many transactions, which coins they spend, what they pay to whom.
//!
//! In: the random stream, the coins, a height. Out: the block's drafts, in order. Called once a block by `generate`.
//! Everything random happens here, on one thread, so that the chain does not depend on the number of threads. It
//! must never need a signature: a coin made in the same block is spent only if its transaction's txid is fixed
//! before signing (no P2PKH, P2PK or bare multisig among its inputs).

use bitcoin::Sequence;
use bitcoin::absolute::LockTime;
use bitcoin::transaction::Version;

use super::coins::{Coin, Coins};
use super::draft::{Draft, Payee, Payment, Spend};
use super::random::Random;
use super::scripts::{BUSY_LOCK, Keyring, Lock, ScriptKind};

/// Shares of all outputs, in thousandths.
const OUTPUT_SHARES: [(ScriptKind, u64); 8] = [
    (ScriptKind::P2wpkh, 330),
    (ScriptKind::P2pkh, 280),
    (ScriptKind::P2shP2wpkh, 160),
    (ScriptKind::P2tr, 120),
    (ScriptKind::P2wsh, 50),
    (ScriptKind::OpReturn, 30),
    (ScriptKind::BareMultisig, 10),
    (ScriptKind::P2pk, 10),
];
/// The busy address' share.
const BUSY_SHARE: u64 = 10;

/// Of a thousand inputs, those that spend an output of their own block.
const SAME_BLOCK_SHARE: u64 = 60;
/// Spends younger than this should be half of all.
pub(super) const YOUNG_AGE_BLOCKS: u32 = 100;

/// Inputs: 1, 2 or 3 in so many of a thousand transactions; the rest has a long tail. The mean is 2.6.
const INPUT_COUNT_SHARES: [u64; 3] = [560, 200, 90];
const INPUT_TAIL: u64 = 836;
/// Outputs: likewise. The mean is 2.87, or 2.7 while the chain has more than 2.85 a transaction: a short chain needs
/// more coins than 2.8 leave it, or it would have no old ones (see `coins_wanted`).
const OUTPUT_COUNT_SHARES: [u64; 3] = [160, 620, 80];
const OUTPUT_TAIL: u64 = 822;
const OUTPUT_TAIL_LEAN: u64 = 782;
const OUTPUTS_PER_1000_TXS: u64 = 2850;
/// The longest tail of either.
const TAIL_MAX: usize = 46;

/// Outputs of a transaction that splits a coin while the set of coins still grows.
const FAN_OUT: usize = 40;
/// Outputs of a block of such transactions, for each transaction of an ordinary block.
const FAN_OUT_OUTPUTS_PER_TX: u64 = 8;

/// What a block may hold, with room for header, coinbase and one more transaction of the largest size.
const BLOCK_WEIGHT_MAX: u64 = 4_000_000 - 60_000;
const BLOCK_SIGOP_COST_MAX: u64 = 80_000 - 5_000;

/// The planner's state between blocks.
pub(super) struct Planner<'a> {
    keys: &'a Keyring,
    random: Random,
    txs_per_block: u32,
    /// While there are fewer coins than this, transactions only split coins.
    coins_wanted: usize,
    is_ramping_up: bool,
    ramp_up_height_last: u32,
    transaction_count: u64,
    output_count: u64,
    spend_count: u64,
    young_spend_count: u64,
}

/// The block being planned.
#[derive(Default)]
struct BlockDraft {
    drafts: Vec<Draft>,
    /// Outputs of this block that a later transaction of it may spend: index of the transaction, vout.
    fresh: Vec<(u32, u32)>,
    weight: u64,
    sigop_cost: u64,
}

impl BlockDraft {
    fn is_full(&self) -> bool {
        self.weight > BLOCK_WEIGHT_MAX || self.sigop_cost > BLOCK_SIGOP_COST_MAX
    }

    fn push(&mut self, draft: Draft) {
        self.weight += draft.weight_max();
        self.sigop_cost += draft.sigop_cost();
        if draft.has_fixed_txid() {
            let transaction = self.drafts.len() as u32;
            let vouts =
                (0u32..).zip(&draft.payments).filter(|(_, payment)| payment.kind() != ScriptKind::OpReturn);
            self.fresh.extend(vouts.map(|(vout, _)| (transaction, vout)));
        }
        self.drafts.push(draft);
    }

    /// Takes a random output of this block.
    fn take_fresh(&mut self, height: u32, random: &mut Random, keys: &Keyring) -> Spend {
        let (transaction, vout) = self.fresh.swap_remove(random.index(self.fresh.len()));
        let draft = &mut self.drafts[transaction as usize];
        let txid = draft.fixed_txid(keys);
        let payment = &mut draft.payments[vout as usize];
        payment.is_spent_in_block = true;
        let Payee::Lock(lock) = payment.payee else { unreachable!("data outputs are never listed as fresh") };
        let coin = Coin { txid, vout, value_sat: payment.value_sat, lock, is_coinbase: false };
        Spend { coin, height }
    }
}

impl<'a> Planner<'a> {
    /// Starts the plan of a chain of `blocks` blocks.
    pub(super) fn new(keys: &'a Keyring, seed: u64, blocks: u32, txs_per_block: u32) -> Self {
        Self {
            keys,
            random: Random::from_seed(seed),
            txs_per_block,
            coins_wanted: coins_wanted(blocks, txs_per_block),
            is_ramping_up: true,
            ramp_up_height_last: 0,
            transaction_count: 0,
            output_count: 0,
            spend_count: 0,
            young_spend_count: 0,
        }
    }

    /// Returns the height of the last block whose transactions only split coins, 0 if there was none.
    pub(super) fn ramp_up_height_last(&self) -> u32 {
        self.ramp_up_height_last
    }

    /// Returns the seconds between a block and its parent: 5 to 15 minutes.
    pub(super) fn block_interval_seconds(&mut self) -> u32 {
        300 + self.random.below(601) as u32
    }

    /// Returns the lock that a block's coinbase pays to.
    pub(super) fn coinbase_lock(&mut self) -> Lock {
        self.lock()
    }

    /// Plans the transactions of the block at `height`, without its coinbase.
    pub(super) fn plan_block(&mut self, height: u32, coins: &mut Coins) -> Vec<Draft> {
        let mut block = BlockDraft::default();
        if coins.spendable_count() == 0 {
            return block.drafts;
        }
        self.is_ramping_up = coins.spendable_count()
            < if self.is_ramping_up { self.coins_wanted } else { self.coins_wanted / 16 };
        if self.is_ramping_up {
            self.ramp_up_height_last = height;
            self.plan_fan_outs(height, coins, &mut block);
        } else {
            while block.drafts.len() < self.txs_per_block as usize && !block.is_full() {
                let Some(draft) = self.plan_payment(height, coins, &mut block) else { break };
                self.count(height, &draft);
                block.push(draft);
            }
        }
        block.drafts
    }

    /// Splits the oldest coins into many: three times as many outputs as an ordinary block has.
    fn plan_fan_outs(&mut self, height: u32, coins: &mut Coins, block: &mut BlockDraft) {
        let outputs_wanted = u64::from(self.txs_per_block) * FAN_OUT_OUTPUTS_PER_TX;
        let most = outputs_wanted.div_ceil(FAN_OUT as u64).min(coins.spendable_count() as u64);
        for _ in 0..most {
            let oldest = coins.oldest_height().expect("as many coins as transactions were counted");
            let spends = vec![Spend { coin: coins.take(oldest, &mut self.random), height: oldest }];
            let draft = self.draft(height, spends, FAN_OUT);
            self.count(height, &draft);
            block.push(draft);
        }
    }

    fn plan_payment(&mut self, height: u32, coins: &mut Coins, block: &mut BlockDraft) -> Option<Draft> {
        let input_count = self.input_count();
        let mut spends = Vec::with_capacity(input_count);
        for _ in 0..input_count {
            let Some(spend) = self.pick_coin(height, coins, block) else { break };
            spends.push(spend);
        }
        let output_count = self.output_count();
        (!spends.is_empty()).then(|| self.draft(height, spends, output_count))
    }

    /// Picks a coin by its age: of this block, younger than 100 blocks, or older; inside either by the logarithm.
    fn pick_coin(&mut self, height: u32, coins: &mut Coins, block: &mut BlockDraft) -> Option<Spend> {
        if !block.fresh.is_empty() && self.random.chance(SAME_BLOCK_SHARE) {
            return Some(block.take_fresh(height, &mut self.random, self.keys));
        }
        // Lean against what the chain has too much of, since young chains have few old coins.
        let is_young_wanted = 2 * self.young_spend_count < self.spend_count;
        let is_old = height > YOUNG_AGE_BLOCKS && self.random.chance(if is_young_wanted { 440 } else { 640 });
        let (age_first, age_last) =
            if is_old { (YOUNG_AGE_BLOCKS, height) } else { (1, YOUNG_AGE_BLOCKS - 1) };
        let heights = height.saturating_sub(age_last)..=height - age_first.min(height);
        let mut target = 0;
        for _ in 0..3 {
            let age = self.random.log_uniform(u64::from(age_first), u64::from(age_last)) as u32;
            target = height.saturating_sub(age);
            if coins.has_coin_at(target) {
                break;
            }
        }
        let found =
            coins.nearest_height(target, heights).or_else(|| coins.nearest_height(target, 0..=height))?;
        Some(Spend { coin: coins.take(found, &mut self.random), height: found })
    }

    fn draft(&mut self, height: u32, spends: Vec<Spend>, output_count: usize) -> Draft {
        let payments = self.payees(output_count);
        let payments =
            payments.into_iter().map(|payee| Payment { payee, value_sat: 0, is_spent_in_block: false });
        // Some wallets forbid blocks below the tip to take the transaction, some allow its replacement.
        let height_last = LockTime::from_height(height - 1).expect("heights are below 500,000,000");
        let lock_time = if self.random.chance(300) { height_last } else { LockTime::ZERO };
        let sequence = match self.random.below(10) {
            0..5 => Sequence::ENABLE_RBF_NO_LOCKTIME,
            5..7 => Sequence::ENABLE_LOCKTIME_NO_RBF,
            _ => Sequence::MAX,
        };
        let version = if self.random.chance(250) { Version::ONE } else { Version::TWO };
        let mut draft = Draft { version, lock_time, sequence, spends, payments: payments.collect() };
        self.share_out(&mut draft);
        draft
    }

    /// Sets the outputs' values: a fee of 1 to 100 sat/vB but at most a quarter, the rest in unequal parts.
    fn share_out(&mut self, draft: &mut Draft) {
        let spent: u64 = draft.spends.iter().map(|spend| spend.coin.value_sat).sum();
        let fee = (self.random.log_uniform(1, 100) * draft.weight_max().div_ceil(4)).min(spent / 4);
        let payments = draft.payments.iter_mut().filter(|payment| payment.kind() != ScriptKind::OpReturn);
        let mut parts: Vec<(&mut Payment, u64)> =
            payments.map(|payment| (payment, (1 + self.random.below(64)).pow(2))).collect();
        let weights: u64 = parts.iter().map(|(_, weight)| weight).sum();
        let mut left = spent - fee;
        for (payment, weight) in &mut parts {
            payment.value_sat = (u128::from(spent - fee) * u128::from(*weight) / u128::from(weights)) as u64;
            left -= payment.value_sat;
        }
        parts[0].0.value_sat += left;
    }

    /// Draws whom the outputs pay: at most one carries data, at least one can be spent.
    fn payees(&mut self, output_count: usize) -> Vec<Payee> {
        let mut payees = Vec::with_capacity(output_count);
        let mut is_data_allowed = output_count > 1;
        while payees.len() < output_count {
            let kind = self.kind();
            payees.push(match kind {
                Some(ScriptKind::OpReturn) if is_data_allowed => {
                    is_data_allowed = false;
                    Payee::Data(self.data())
                }
                Some(ScriptKind::OpReturn) => Payee::Lock(self.lock()),
                Some(kind) => Payee::Lock(Lock { key: self.key(), kind }),
                None => Payee::Lock(BUSY_LOCK),
            });
        }
        payees
    }

    fn lock(&mut self) -> Lock {
        loop {
            match self.kind() {
                Some(ScriptKind::OpReturn) => {}
                Some(kind) => return Lock { key: self.key(), kind },
                None => return BUSY_LOCK,
            }
        }
    }

    /// Draws an output's kind by its share; none stands for the busy address.
    fn kind(&mut self) -> Option<ScriptKind> {
        let mut draw = self.random.below(1000).checked_sub(BUSY_SHARE)?;
        for (kind, share) in OUTPUT_SHARES {
            if draw < share {
                return Some(kind);
            }
            draw -= share;
        }
        unreachable!("all shares add up to 1000")
    }

    fn key(&mut self) -> u32 {
        1 + self.random.below(u64::from(self.keys.key_count()) - 1) as u32
    }

    fn data(&mut self) -> Vec<u8> {
        let len = 20 + self.random.index(61);
        let mut data = Vec::with_capacity(len + 7);
        while data.len() < len {
            data.extend_from_slice(&self.random.bits().to_le_bytes());
        }
        data.truncate(len);
        data
    }

    fn input_count(&mut self) -> usize {
        self.count_by(INPUT_COUNT_SHARES, INPUT_TAIL)
    }

    fn output_count(&mut self) -> usize {
        let is_above = self.output_count * 1000 > self.transaction_count * OUTPUTS_PER_1000_TXS;
        self.count_by(OUTPUT_COUNT_SHARES, if is_above { OUTPUT_TAIL_LEAN } else { OUTPUT_TAIL })
    }

    fn count_by(&mut self, shares: [u64; 3], tail: u64) -> usize {
        let mut draw = self.random.below(1000);
        for (place, share) in shares.into_iter().enumerate() {
            if draw < share {
                return place + 1;
            }
            draw -= share;
        }
        4 + self.random.run_length(tail, TAIL_MAX)
    }

    fn count(&mut self, height: u32, draft: &Draft) {
        self.transaction_count += 1;
        self.output_count += draft.payments.len() as u64;
        self.spend_count += draft.spends.len() as u64;
        let young = draft.spends.iter().filter(|spend| height - spend.height < YOUNG_AGE_BLOCKS);
        self.young_spend_count += young.count() as u64;
    }
}

/// Returns the number of coins with which ordinary transactions begin, in all a fifth of the chain's transactions.
///
/// The mean age of spends times their rate is the number of coins (Little's law). For half of the spends to be older
/// than 100 blocks the last 100 blocks alone must hold 170 blocks' worth (that many times `txs_per_block`), for
/// older ones still more, and 0.2 outputs left over by each transaction come too late for a chain of some thousand blocks.
/// Chains under 1,000 blocks get fewer, or splitting coins would be most of what they do: their spends are young.
fn coins_wanted(blocks: u32, txs_per_block: u32) -> usize {
    let blocks_worth = (blocks.saturating_sub(YOUNG_AGE_BLOCKS) / 4).min(blocks / 5 + 25).clamp(10, 1000);
    blocks_worth as usize * txs_per_block as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        assert_eq!(OUTPUT_SHARES.iter().map(|(_, share)| share).sum::<u64>() + BUSY_SHARE, 1000);
    }

    #[test]
    fn the_number_of_coins_wanted_follows_the_length_of_the_chain() {
        assert_eq!(coins_wanted(50, 20), 200);
        assert_eq!(coins_wanted(260, 20), 800);
        assert_eq!(coins_wanted(1000, 20), 4500);
        assert_eq!(coins_wanted(2000, 500), 212_500);
        assert_eq!(coins_wanted(1_000_000, 2000), 2_000_000);
    }
}

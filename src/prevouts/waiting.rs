//! Spends whose coin is not in the cache: they wait, with what is known about their transactions and blocks.
//!
//! In: in chain order, each waiting spend, then its transaction, then its block. Out: the spends by fingerprint, for
//! the merge with the coin runs; then, with the coins that the merge found, every fact in chain order, or the first
//! rule that is broken. Called by the set only. Memory is bounded: spends are sorted in chunks, facts go to a file.

use std::io::Seek;
use std::path::Path;

use super::resolve::{BrokenRule, ResolveError, check_maturity, check_reward, check_value};
use super::sealed::{CoinFileError, SealedReader, SealedWriter, system};
use super::sort::{Merged, Sorter};
use super::{Coin, Fingerprint};

/// Bits of a position below its `tx_num`: the input's index. A block has fewer than 2^17 inputs.
const VIN_BITS: u32 = 24;

const END: u8 = 0;
const TX: u8 = 1;
const CUT_TX: u8 = 2;
const BLOCK: u8 = 3;

/// Unnamed files live and die with the process: their checksums need no key.
const SEED: u64 = 0;

/// Returns the place of a spend in the chain, as one number.
pub(super) fn position(tx_num: i64, vin: u32) -> u64 {
    assert!(vin < 1 << VIN_BITS, "no block holds so many inputs");
    (tx_num as u64) << VIN_BITS | u64::from(vin)
}

/// Returns the transaction of a position.
pub(super) fn spender(position: u64) -> i64 {
    (position >> VIN_BITS) as i64
}

/// What a waiting transaction knows without its waiting inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingTx {
    pub(super) tx_num: i64,
    /// Sum of the inputs that do not wait, satoshis.
    pub(super) known_sat: u64,
    pub(super) output_sat: u64,
    /// Whether a rule was broken at a later input: then only the inputs before it count.
    pub(super) is_cut: bool,
}

/// What a block with waiting transactions knows without them.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingBlock {
    pub(super) height: u32,
    /// Sum of the fees of the transactions that do not wait, satoshis.
    pub(super) known_fees_sat: u64,
    pub(super) subsidy_sat: u64,
    /// What the coinbase claims, satoshis.
    pub(super) claimed_sat: u64,
}

/// A fact that waited, in chain order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The output that an input spends.
    Input {
        /// The spending transaction.
        tx_num: i64,
        /// Index of the input.
        vin: u32,
        /// The output.
        coin: Coin,
    },
    /// The fee of a transaction; follows its inputs.
    Transaction {
        /// The transaction.
        tx_num: i64,
        /// Its fee, satoshis.
        fee_sat: u64,
    },
    /// The figures of a block; follows its transactions.
    Block {
        /// Its height.
        height: u32,
        /// Sum of fees, satoshis.
        fees_sat: u64,
        /// Subsidy and fees not claimed by the coinbase, satoshis.
        unclaimed_sat: u64,
    },
}

/// Everything that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    spends: Sorter<3>,
    spend_count: u64,
    facts: SealedWriter,
    path: std::path::PathBuf,
}

/// The facts of the waiting, to be read once their coins are known.
#[derive(Debug)]
pub(super) struct Facts {
    reader: SealedReader,
}

impl Waiting {
    /// Begins; `dir` exists.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn new(dir: &Path, sort_bytes_max: u64) -> Result<Self, CoinFileError> {
        let path = dir.join("waiting.tmp");
        Ok(Waiting {
            spends: Sorter::new(dir.join("spends.tmp"), sort_bytes_max),
            spend_count: 0,
            facts: SealedWriter::create_unnamed(&path, SEED)?,
            path,
        })
    }

    /// Adds a spend.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn push_spend(
        &mut self,
        outpoint: Fingerprint,
        tx_num: i64,
        vin: u32,
    ) -> Result<(), CoinFileError> {
        self.spend_count += 1;
        self.spends.push([outpoint.low, u64::from(outpoint.high) << 32, position(tx_num, vin)])
    }

    /// Adds the transaction of the spends added since the one before; `vins` are the waiting inputs' indexes.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn push_tx(&mut self, tx: &WaitingTx, vins: &[u32]) -> Result<(), CoinFileError> {
        self.facts.write(&[if tx.is_cut { CUT_TX } else { TX }])?;
        for number in [tx.tx_num as u64, tx.known_sat, tx.output_sat, vins.len() as u64] {
            self.facts.write(&number.to_le_bytes())?;
        }
        for vin in vins {
            self.facts.write(&vin.to_le_bytes())?;
        }
        Ok(())
    }

    /// Adds a block whose transactions were added before.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn push_block(&mut self, block: &WaitingBlock) -> Result<(), CoinFileError> {
        self.facts.write(&[BLOCK])?;
        for number in [u64::from(block.height), block.known_fees_sat, block.subsidy_sat, block.claimed_sat] {
            self.facts.write(&number.to_le_bytes())?;
        }
        Ok(())
    }

    /// Returns the number of spends.
    pub(super) fn spend_count(&self) -> u64 {
        self.spend_count
    }

    /// Returns the number of sorted chunks on disk.
    pub(super) fn chunk_count(&self) -> usize {
        self.spends.chunk_count()
    }

    /// Returns the bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.spends.chunk_bytes() + self.facts.bytes()
    }

    /// Ends collecting: the spends by fingerprint, and the facts in chain order.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn finish(mut self) -> Result<(Merged<3>, Facts), CoinFileError> {
        self.facts.write(&[END])?;
        let (mut file, seal) = self.facts.finish()?;
        file.rewind().map_err(system("rewind", &self.path))?;
        let reader = SealedReader::new(file, &self.path, SEED, Some(seal));
        Ok((self.spends.finish()?, Facts { reader }))
    }
}

impl Facts {
    /// Hands out every fact in chain order. `coins` are the found coins by position; a spend without one has none.
    ///
    /// # Errors
    /// The first rule that is broken, in chain order, or a file that failed.
    pub(super) fn settle<E: From<ResolveError> + From<CoinFileError>>(
        mut self,
        mut coins: Merged<5>,
        mut each: impl FnMut(Settled) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut late_fees_sat = 0;
        loop {
            match self.reader.read_array::<1>()?[0] {
                END => return Ok(()),
                BLOCK => {
                    let [height, known_fees_sat, subsidy_sat, claimed_sat] = self.numbers()?;
                    let height = height as u32;
                    let fees_sat = known_fees_sat + late_fees_sat;
                    late_fees_sat = 0;
                    let unclaimed_sat = check_reward(claimed_sat, subsidy_sat + fees_sat)
                        .map_err(|rule| ResolveError { height, tx_index: 0, rule })?;
                    each(Settled::Block { height, fees_sat, unclaimed_sat })?;
                }
                kind @ (TX | CUT_TX) => {
                    let [tx_num, known_sat, output_sat, count] = self.numbers()?;
                    let tx_num = tx_num as i64;
                    let (height, tx_index) = ((tx_num >> 16) as u32, (tx_num & 0xffff) as u32);
                    let broken = |rule| ResolveError { height, tx_index, rule };
                    let mut input_sat = known_sat;
                    for _ in 0..count {
                        let vin = u32::from_le_bytes(self.reader.read_array()?);
                        let coin = take_coin(&mut coins, position(tx_num, vin))?
                            .ok_or_else(|| broken(BrokenRule::MissingPrevout { vin }))?;
                        check_maturity(height, vin, &coin).map_err(broken)?;
                        input_sat = input_sat.saturating_add(coin.value_sat);
                        each(Settled::Input { tx_num, vin, coin })?;
                    }
                    if kind == TX {
                        let fee_sat = check_value(input_sat, output_sat).map_err(broken)?;
                        late_fees_sat += fee_sat;
                        each(Settled::Transaction { tx_num, fee_sat })?;
                    }
                }
                _ => return Err(self.reader.damaged("a fact of an unknown kind").into()),
            }
        }
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], CoinFileError> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.reader.read_array()?);
        }
        Ok(numbers)
    }
}

/// Returns a found coin as a record that sorts by the position of its spend.
pub(super) fn coin_record(position: u64, coin: &Coin) -> [u64; 5] {
    let word = |at: usize| u64::from_le_bytes(coin.script_hash[at..at + 8].try_into().expect("8 bytes"));
    [position, coin.tx_num as u64, coin.value_sat, word(0), word(8)]
}

fn take_coin(coins: &mut Merged<5>, position: u64) -> Result<Option<Coin>, CoinFileError> {
    if coins.peek().is_none_or(|record| record[0] != position) {
        return Ok(None);
    }
    let [_, tx_num, value_sat, first, second] = coins.next()?.expect("it was just peeked at");
    let mut script_hash = [0; 16];
    script_hash[..8].copy_from_slice(&first.to_le_bytes());
    script_hash[8..].copy_from_slice(&second.to_le_bytes());
    Ok(Some(Coin { tx_num: tx_num as i64, value_sat, script_hash }))
}

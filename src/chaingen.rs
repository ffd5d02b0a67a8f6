//! Writes regtest chains: block files that Bitcoin Core accepts, as large as one likes, from four numbers.
//!
//! In: [`Options`]. Out: `blk*.dat` files in Core's format (magic, length, block; genesis first, no xor key), the same
//! bytes for the same options on every machine, and the [`Mix`] that was reached. Called by `satgres chaingen`,
//! by tests and by benchmarks. Signatures are real, so a node that checks everything takes the chain.
//!
//! One thread plans a block ([`plan`]) from a seeded random stream; all threads sign it ([`sign`]); then it gets
//! its coinbase and proof of work ([`block`]) and goes to the files ([`folder`]). It must never overwrite a file that it
//! did not write, and an interrupted run is never taken for a finished one.

mod block;
mod coins;
mod draft;
mod folder;
mod mix;
mod plan;
mod random;
mod scripts;
mod sign;
mod utxo_set;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bitcoin::consensus::encode::serialize;
use bitcoin::{Network, Txid, constants};

use block::BlockTemplate;
use coins::{Coin, Coins};
use draft::{Draft, Payee};
use folder::{ChainWriter, Found};
pub use mix::Mix;
use plan::Planner;
use scripts::Keyring;
pub use scripts::ScriptKind;
use sign::SignedTransaction;
use utxo_set::UtxoSet;

/// Grows whenever the same options give other bytes; put it into the name of a folder that keeps chains.
pub const FORMAT: u32 = 1;
/// The most blocks of a chain: with ten minutes between blocks it ends in 2020.
pub const BLOCKS_MAX: u32 = 500_000;
/// The most transactions of a block: together they weigh about three quarters of what a block may.
pub const TXS_PER_BLOCK_MAX: u32 = 2_000;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// What determines a chain, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Height of the tip.
    pub blocks: u32,
    /// Transactions in a block beside the coinbase, once there are enough coins for them: the first coinbase may be
    /// spent at height 101, and from there a number of blocks (an eighth of the chain, at most some 170) only split
    /// coins, with fewer and wider transactions.
    pub txs_per_block: u32,
    /// Where the random stream starts.
    pub seed: u64,
    /// The folder for the block files. It is made if it is missing; otherwise it must be empty, or hold this very
    /// chain, which is then left as it is.
    pub out: PathBuf,
}

/// Why there is no chain.
#[derive(Debug, thiserror::Error)]
pub enum ChaingenError {
    /// More blocks than a chain may have.
    #[error("{blocks} blocks are too many: at most {BLOCKS_MAX}")]
    TooManyBlocks {
        /// What was asked for.
        blocks: u32,
    },
    /// More transactions than fit into a block.
    #[error("{txs_per_block} transactions a block are too many: at most {TXS_PER_BLOCK_MAX} surely fit")]
    TooManyTransactions {
        /// What was asked for.
        txs_per_block: u32,
    },
    /// The folder holds something else.
    #[error("{} holds {entry}, which chaingen did not write; name a new or empty folder", dir.display())]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
        /// A file or folder in it.
        entry: String,
    },
    /// The folder holds the chain of other options.
    #[error("{} holds {found}; name another folder or remove this one", dir.display())]
    OtherChain {
        /// The folder.
        dir: PathBuf,
        /// What is in it.
        found: String,
    },
    /// A block file is not as chaingen left it.
    #[error(
        "{} was {bytes} bytes long when chaingen wrote it and is {} now; remove its folder and run again",
        path.display(),
        found.map_or_else(|| "missing".to_owned(), |found| found.to_string())
    )]
    Changed {
        /// The block file.
        path: PathBuf,
        /// Its size when it was written.
        bytes: u64,
        /// Its size now, if it is there.
        found: Option<u64>,
    },
    /// Another run writes the same folder.
    #[error("another chaingen is writing {}; wait for it or name another folder", dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Writes a chain, on as many threads as there are processors.
///
/// If the folder already holds this chain, nothing is written and its mix is returned.
///
/// # Errors
/// Options out of range, a folder that holds something else, or a file system that refuses; the message says what to do.
pub fn generate(options: &Options) -> Result<Mix, ChaingenError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    generate_on(options, threads)
}

/// Writes a chain on `threads` threads (one or more), which changes nothing but the time that it takes.
///
/// # Errors
/// As [`generate`].
pub fn generate_on(options: &Options, threads: usize) -> Result<Mix, ChaingenError> {
    let Options { blocks, txs_per_block, .. } = *options;
    if blocks > BLOCKS_MAX {
        return Err(ChaingenError::TooManyBlocks { blocks });
    }
    if txs_per_block > TXS_PER_BLOCK_MAX {
        return Err(ChaingenError::TooManyTransactions { txs_per_block });
    }
    match folder::open(options)? {
        Found::Chain(mix) => Ok(*mix),
        Found::Nothing(writer) => write_chain(options, threads.max(1), *writer),
    }
}

fn write_chain(options: &Options, threads: usize, mut writer: ChainWriter) -> Result<Mix, ChaingenError> {
    let keys = Keyring::new(key_count(options), threads);
    let mut planner = Planner::new(&keys, options.seed, options.blocks, options.txs_per_block);
    let mut coins = Coins::default();
    let mut mix = Mix { tip_height: options.blocks, ..Mix::default() };

    let genesis = constants::genesis_block(Network::Regtest);
    writer.write(&serialize(&genesis))?;
    let (mut parent, mut time) = (genesis.block_hash(), genesis.header.time);
    let mut progress = Progress::start();
    for height in 1..=options.blocks {
        coins.mature(height);
        let drafts = planner.plan_block(height, &mut coins);
        let signed = sign::sign_block(&drafts, &keys, threads);
        let reward_lock = planner.coinbase_lock();
        time += planner.block_interval_seconds();
        let finished = BlockTemplate {
            height,
            parent,
            time,
            seed: options.seed,
            reward_script: keys.script_pubkey(reward_lock),
            fees_sat: drafts.iter().map(Draft::fee_sat).sum(),
            transactions: &signed,
        }
        .finish();
        writer.write(&finished.bytes)?;
        parent = finished.hash;

        let value_sat = finished.reward_sat;
        let txid = finished.coinbase_txid;
        coins.add(height, Coin { txid, vout: 0, value_sat, lock: reward_lock, is_coinbase: true });
        for (draft, SignedTransaction { txid, .. }) in drafts.iter().zip(&signed) {
            mix.count(height, draft);
            add_coins(&mut coins, height, *txid, draft);
        }
        progress.report(height, options.blocks, mix.transactions);
    }
    let utxos = UtxoSet::of(&coins, &keys);
    mix.tip_hash = parent.to_string();
    mix.ramp_up_height_last = planner.ramp_up_height_last();
    (mix.utxo_count, mix.utxo_total_sat, mix.utxo_hash) = (utxos.count, utxos.total_sat, utxos.hash);
    writer.finish(options, mix)
}

/// Adds what a transaction made and its own block did not spend.
fn add_coins(coins: &mut Coins, height: u32, txid: Txid, draft: &Draft) {
    for (vout, payment) in (0u32..).zip(&draft.payments) {
        if let Payee::Lock(lock) = payment.payee
            && !payment.is_spent_in_block
        {
            let coin = Coin { txid, vout, value_sat: payment.value_sat, lock, is_coinbase: false };
            coins.add(height, coin);
        }
    }
}

/// Returns the number of keys: so many that a script gets about two outputs, as on mainnet, within bounds.
fn key_count(options: &Options) -> u32 {
    let transactions = u64::from(options.blocks) * u64::from(options.txs_per_block);
    (transactions / 4).clamp(256, 1 << 18) as u32
}

/// Tells every few seconds how far the chain is.
struct Progress {
    started: Instant,
    reported: Instant,
}

impl Progress {
    fn start() -> Self {
        let now = Instant::now();
        Self { started: now, reported: now }
    }

    fn report(&mut self, height: u32, blocks: u32, transactions: u64) {
        if self.reported.elapsed() >= PROGRESS_INTERVAL {
            self.reported = Instant::now();
            let txs_per_second = (transactions as f64 / self.started.elapsed().as_secs_f64()) as u64;
            tracing::info!(height, blocks, transactions, txs_per_second, "generating the chain");
        }
    }
}

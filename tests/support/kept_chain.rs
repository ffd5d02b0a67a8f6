//! Generated chains that take long to make: made once, kept outside the checkout, shared by tests and benches.
//!
//! In: about how many transactions. Out: the folder of its block files and what it consists of. The folder is
//! `SATGRES_CACHE_DIR`, or `satgres` in the user's cache.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use satgres::chaingen::{self, ChaingenError, Mix};

/// Transactions of a block.
const TXS_PER_BLOCK: u32 = 500;
/// Blocks before the first that holds as many: too few coins exist.
const BLOCKS_BEFORE: u64 = 150;
/// How long another process is waited for that makes the same chain. A million transactions take a debug build three
/// to five minutes on two cores.
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// A chain on disk.
#[derive(Debug, Clone)]
pub struct KeptChain {
    pub dir: PathBuf,
    /// Transactions, coinbases and genesis' own included.
    pub txs: u64,
    pub mix: Mix,
}

impl KeptChain {
    /// Returns a chain of about `txs` transactions, not fewer from a hundred thousand on.
    pub fn of(txs: u64) -> anyhow::Result<KeptChain> {
        let blocks = (txs / u64::from(TXS_PER_BLOCK) + BLOCKS_BEFORE) as u32;
        let name = format!("{blocks}x{TXS_PER_BLOCK}-seed1-format{}", chaingen::FORMAT);
        let dir = cache_dir()?.join("chains").join(name);
        eprintln!("chain of {blocks} blocks in {}", dir.display());
        std::fs::create_dir_all(&dir)?;
        let options = chaingen::Options { blocks, txs_per_block: TXS_PER_BLOCK, seed: 1, out: dir.clone() };
        let began = Instant::now();
        let mix = loop {
            match chaingen::generate(&options) {
                Err(ChaingenError::InUse { .. }) if began.elapsed() < WAIT_MAX => {
                    std::thread::sleep(Duration::from_millis(500));
                }
                made => break made?,
            }
        };
        Ok(KeptChain { dir, txs: mix.transactions + u64::from(blocks) + 1, mix })
    }
}

/// The folder for what takes long to make.
fn cache_dir() -> anyhow::Result<PathBuf> {
    let under = |name: &str, rest: &str| std::env::var_os(name).map(|dir| PathBuf::from(dir).join(rest));
    under("SATGRES_CACHE_DIR", "")
        .or_else(|| under("XDG_CACHE_HOME", "satgres"))
        .or_else(|| under("HOME", ".cache/satgres"))
        .context("neither SATGRES_CACHE_DIR nor HOME is set: where should generated chains be kept?")
}

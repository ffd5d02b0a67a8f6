//! Writes the set's checkpoints, and begins from one at the next start.
//!
//! In: the last block that the database holds. Out: the set as it stood after that block, or the reason why it must be
//! rebuilt. A checkpoint is kept until the database has confirmed a later segment, because the resolve stage runs
//! ahead of it. Nothing of a file is used before all files of the checkpoint are proven whole.

use std::path::Path;

use tracing::{info, warn};

use super::checkpoint::{self, Manifest};
use super::runs::Run;
use super::sealed::{CoinFileError, system};
use super::set::{UtxoOptions, UtxoSet};
use super::sort::{Merged, Source};
use crate::chain::hash::{Hash32, reversed_hex};

impl UtxoSet {
    /// Writes the set as it stands after a block; nothing waits. Earlier checkpoints stay until they are forgotten.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub fn checkpoint(&mut self, height: u32, hash: &Hash32) -> Result<(), CoinFileError> {
        self.assert_settled();
        self.runs.flush()?;
        let mut cache = self.runs.begin()?;
        self.belt.table.for_each_shard(|entries| entries.iter().try_for_each(|entry| cache.push(entry)))?;
        let cache = self.runs.end(cache)?;
        self.runs.sync()?;
        let manifest = Manifest {
            key: self.key.clone(),
            height,
            hash: *hash,
            cache,
            runs: self.runs.files().to_vec(),
            twins: self.twins.clone(),
        };
        let kept = manifest.write(&self.options.dir)?;
        self.kept.retain(|earlier| earlier.path != kept.path);
        self.kept.push(kept);
        self.remove_unneeded_runs()
    }

    /// Removes the checkpoints that no start can need any more: the database holds every block up to `height` for
    /// good.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub fn forget_before(&mut self, height: u32) -> Result<(), CoinFileError> {
        let Some(newest) = self.kept.iter().map(|kept| kept.height).filter(|kept| *kept <= height).max()
        else {
            return Ok(());
        };
        let (needed, forgotten): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.kept).into_iter().partition(|kept| kept.height >= newest);
        self.kept = needed;
        for kept in &forgotten {
            std::fs::remove_file(&kept.path).map_err(system("remove", &kept.path))?;
        }
        if forgotten.is_empty() { Ok(()) } else { self.remove_unneeded_runs() }
    }

    /// Returns the height of the checkpoint that the set was resumed from, or made last.
    pub fn checkpoint_height(&self) -> Option<u32> {
        self.kept.last().map(|kept| kept.height)
    }

    /// Returns the number of checkpoints on disk.
    pub fn checkpoint_count(&self) -> usize {
        self.kept.len()
    }

    /// Reads the newest checkpoint back that is whole and that `is_ours` takes by its height and hash; says in the log what
    /// was found. All other files of the directory are removed.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub fn resume(
        options: &UtxoOptions,
        is_ours: impl Fn(u32, &Hash32) -> bool,
    ) -> Result<Option<UtxoSet>, CoinFileError> {
        let mut resumed = None;
        for path in checkpoint::files(&options.dir) {
            if resumed.is_none() {
                resumed = match try_resume(&path, options, &is_ours) {
                    Ok(resumed) => resumed,
                    Err(error @ CoinFileError::System { .. }) => return Err(error),
                    Err(error) => {
                        warn!(%error, "a checkpoint of the UTXO set is not used");
                        None
                    }
                };
            }
            if resumed.as_ref().is_none_or(|set| set.kept[0].path != path) {
                std::fs::remove_file(&path).map_err(system("remove", &path))?;
            }
        }
        match &resumed {
            Some(set) => {
                set.remove_unneeded_runs()?;
                info!(
                    height = set.kept[0].height,
                    coins = set.coin_count(),
                    "the UTXO set resumes warm from its checkpoint"
                );
            }
            None => remove_all(options)?,
        }
        Ok(resumed)
    }
}

/// Returns the height of the newest checkpoint that is not above a height; whether it is whole and of the right block is
/// found out when it is read.
pub fn newest_checkpoint(options: &UtxoOptions, height: u32) -> Option<u32> {
    checkpoint::files(&options.dir)
        .iter()
        .filter_map(|path| checkpoint::height_of(path))
        .filter(|at| *at <= height)
        .max()
}

/// Removes all checkpoints and runs of a directory.
///
/// # Errors
/// [`CoinFileError::System`].
pub fn remove_all(options: &UtxoOptions) -> Result<(), CoinFileError> {
    for path in checkpoint::files(&options.dir) {
        std::fs::remove_file(&path).map_err(system("remove", &path))?;
    }
    super::runs::Runs::new(&options.dir, 0, 0, 0).remove_others(|_| false)
}

fn try_resume(
    path: &Path,
    options: &UtxoOptions,
    is_ours: impl Fn(u32, &Hash32) -> bool,
) -> Result<Option<UtxoSet>, CoinFileError> {
    let manifest = Manifest::read(path)?;
    let height = manifest.height;
    if !is_ours(height, &manifest.hash) {
        let hash = reversed_hex(&manifest.hash);
        info!(height, hash, "a checkpoint of the UTXO set is of another block");
        return Ok(None);
    }
    let run_ids = manifest.run_ids();
    let mut set = UtxoSet::new(options.clone(), manifest.key);
    set.twins = manifest.twins;
    load_cache(&mut set, &manifest.cache)?;
    let coin_count: u64 =
        set.belt.table.coin_count() + manifest.runs.iter().map(|run| run.coin_count).sum::<u64>();
    for run in &manifest.runs {
        // Where the cache has become larger, runs go back into it; a tenth is left for what comes.
        if coin_count <= set.belt.table.coins_max() / 10 * 9 {
            let mut entries = Merged::new(vec![set.runs.source(run)?])?;
            while let Some(entry) = entries.next()? {
                if set.belt.table.insert_entry(&entry).is_err() {
                    set.runs.push(entry)?;
                }
            }
        } else {
            check(&set, run)?;
            set.runs.adopt(*run);
        }
    }
    set.kept.push(checkpoint::Kept { path: path.to_owned(), height, run_ids });
    Ok(Some(set))
}

/// Fills the cache; where it has become too small, its file is one more run.
fn load_cache(set: &mut UtxoSet, cache: &Run) -> Result<(), CoinFileError> {
    if cache.coin_count <= set.belt.table.coins_max() {
        let mut entries = Merged::new(vec![set.runs.source(cache)?])?;
        if set.belt.table.fill_sorted(|| entries.next())?.is_ok() {
            return Ok(());
        }
        set.belt = super::belt::Belt::new(set.options.cache_bytes_max, set.options.buckets);
    }
    check(set, cache)?;
    set.runs.adopt(*cache);
    Ok(())
}

/// Reads a run to its end.
fn check(set: &UtxoSet, run: &Run) -> Result<(), CoinFileError> {
    match set.runs.source(run)? {
        Source::File(mut reader) => reader.check_rest(),
        Source::Memory(_) => Ok(()),
    }
}

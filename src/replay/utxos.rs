//! The UTXO set that a load begins with: empty, warm from its checkpoint, brought forward from an earlier one, or read back
//! from the database.
//!
//! In: the first height to load. Out: the set as the block before left it. Called by the main path only.

use std::sync::Arc;

use deadpool_postgres::Pool;
use tracing::{info, warn};

use super::reader::Chain;
use super::{ReplayError, ReplayOptions};
use crate::chain::hash::Hash32;
use crate::pg::pool;
use crate::prevouts::{self, CoinFileError, FingerprintKey, RebuildError, UtxoOptions, UtxoSet};
use crate::profile::{Figures, Profile};
use crate::status::Step;

/// Damaged files in one run: a disk or memory that damages more is not to be trusted.
const DAMAGES_MAX: u32 = 3;

/// Returns the set before the first block, or that of the block before, if there is a checkpoint of it or of a block before
/// it, from which the rows of the database lead there. `tip_height` is that of the rows that readers see.
///
/// # Errors
/// What the system says of the set's files.
pub(super) async fn resume(
    pool: &Pool,
    chain: &Arc<Chain>,
    height_first: u32,
    tip_height: Option<u32>,
    options: &ReplayOptions,
    profile: &Profile,
) -> Result<Option<UtxoSet>, ReplayError> {
    let Some(height) = height_first.checked_sub(1) else {
        prevouts::remove_all(&options.utxos)?;
        return Ok(Some(UtxoSet::new(options.utxos.clone(), key()?)));
    };
    profile.board().step(Step::ResumeUtxos);
    let phase = profile.phase();
    // Rows of segments that wait for their indexes are not read: only their own checkpoint serves.
    let lowest = if tip_height == Some(height) { lowest_worthwhile(pool, height).await? } else { height };
    let (utxos, shared) = (options.utxos.clone(), Arc::clone(chain));
    let is_ours = move |at: u32, hash: &Hash32| (lowest..=height).contains(&at) && shared.hash(at) == *hash;
    let resumed = tokio::task::spawn_blocking(move || UtxoSet::resume(&utxos, is_ours))
        .await
        .map_err(|error| ReplayError::System { what: "reading the UTXO set", source: error.into() })??;
    let Some(mut set) = resumed else { return Ok(None) };
    let client = pool.get().await.map_err(pool::Error::from)?;
    let from = set.checkpoint_height().unwrap_or(height);
    let mut what = "Resumed the UTXO set from its checkpoint";
    if from < height {
        what = "Brought the UTXO set forward from its checkpoint";
        info!(
            from,
            height, "bringing the UTXO set forward over the blocks that were connected since its checkpoint"
        );
        match prevouts::roll_forward(&client, &mut set, from + 1..=height, options.network).await {
            Ok(()) => {}
            Err(error @ (RebuildError::Broken(_) | RebuildError::Shape)) => {
                warn!(%error, "the UTXO set is rebuilt");
                drop(set);
                prevouts::remove_all(&options.utxos)?;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        set.checkpoint(height, &chain.hash(height))?;
        set.forget_before(height)?;
    }
    profile.ended(&phase, what, figures(&set, height)).record(&client).await;
    Ok(Some(set))
}

/// Returns the lowest height whose checkpoint is worth bringing forward: above it stand at most a quarter of all inputs
/// and outputs, so that reading those is surely quicker than the scan of all.
async fn lowest_worthwhile(pool: &Pool, height: u32) -> Result<u32, ReplayError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let sql = "select coalesce(min(height) - 1, $1) from ( \
           select height, sum(input_count + output_count) over (order by height desc) above, \
             sum(input_count + output_count) over () whole \
           from chain.blocks where height <= $1) b \
         where above * 4 <= whole";
    let what = "reading the sizes of blocks";
    let row = client.query_one(sql, &[&(height as i32)]).await;
    let row = row.map_err(|source| ReplayError::Server { what, source })?;
    Ok(row.get::<_, i32>(0).max(0) as u32)
}

/// Reads the set of the block before from the database, whose segments are all attached.
///
/// # Errors
/// What the server says, or the system of the set's files.
pub(super) async fn rebuild(
    pool: &Pool,
    chain: &Chain,
    height_first: u32,
    options: &UtxoOptions,
    profile: &Profile,
) -> Result<UtxoSet, ReplayError> {
    let height = height_first - 1;
    profile.board().step(Step::RebuildUtxos);
    let phase = profile.phase();
    info!(height, "no checkpoint of the UTXO set is of use: it is rebuilt from the database");
    let client = pool.get().await.map_err(pool::Error::from)?;
    let mut set = prevouts::rebuild(&client, options.clone(), key()?).await?;
    set.checkpoint(height, &chain.hash(height))?;
    let what = "Read the UTXO set back from the database";
    profile.ended(&phase, what, figures(&set, height)).record(&client).await;
    Ok(set)
}

/// Removes the set's files after one of them turned out damaged, so that the set is rebuilt; `damages` counts how often
/// that was so.
///
/// # Errors
/// The damage itself where it comes again and again, and what is no damage but the system's own error: the user must
/// act.
pub(super) fn throw_away(
    error: CoinFileError,
    damages: u32,
    options: &UtxoOptions,
) -> Result<(), ReplayError> {
    if damages > DAMAGES_MAX || !matches!(error, CoinFileError::Damaged { .. }) {
        return Err(error.into());
    }
    warn!(%error, "the UTXO set's files are thrown away; the set is rebuilt from the database");
    Ok(prevouts::remove_all(options)?)
}

fn key() -> Result<FingerprintKey, ReplayError> {
    FingerprintKey::random()
        .map_err(|source| ReplayError::System { what: "drawing a fingerprint key", source })
}

fn figures(set: &UtxoSet, height: u32) -> Figures {
    Figures { height: Some(height), rows: Some(set.coin_count()), ..Figures::default() }
}

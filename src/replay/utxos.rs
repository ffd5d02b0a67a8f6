//! The UTXO set that a load begins with: empty, warm from its checkpoint, or read back from the database.
//!
//! In: the first height to load. Out: the set as the block before left it. Called by the main path only.

use deadpool_postgres::Pool;
use tracing::{info, warn};

use super::ReplayError;
use super::reader::Chain;
use crate::pg::pool;
use crate::prevouts::{self, CoinFileError, FingerprintKey, UtxoOptions, UtxoSet};
use crate::profile::{Figures, Profile};
use crate::status::Step;

/// Damaged files in one run: a disk or memory that damages more is not to be trusted.
const DAMAGES_MAX: u32 = 3;

/// Returns the set before the first block, or the checkpointed one of the block before, if there is a whole one.
///
/// # Errors
/// What the system says of the set's files.
pub(super) async fn resume(
    pool: &Pool,
    chain: &Chain,
    height_first: u32,
    options: &UtxoOptions,
    profile: &Profile,
) -> Result<Option<UtxoSet>, ReplayError> {
    let Some(height) = height_first.checked_sub(1) else {
        prevouts::remove_all(options)?;
        return Ok(Some(UtxoSet::new(options.clone(), key()?)));
    };
    profile.board().step(Step::ResumeUtxos);
    let phase = profile.phase();
    let (options, hash) = (options.clone(), chain.hash(height));
    let resumed = tokio::task::spawn_blocking(move || UtxoSet::resume(&options, height, &hash))
        .await
        .map_err(|error| ReplayError::System { what: "reading the UTXO set", source: error.into() })??;
    if let Some(set) = &resumed {
        let client = pool.get().await.map_err(pool::Error::from)?;
        let what = "Resumed the UTXO set from its checkpoint";
        profile.ended(&phase, what, figures(set, height)).record(&client).await;
    }
    Ok(resumed)
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

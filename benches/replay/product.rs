//! Satgres itself: from raw block files to the same state.

use satgres::profile::Profile;
use satgres::replay::{self, ReplayOptions};

use crate::lab::Lab;
use crate::lab::round::{Round, Watch};

/// A round, and what it left.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub round: Round,
    /// Bytes of the chain's tables, without and with their indexes.
    pub heap_bytes: i64,
    pub all_bytes: i64,
}

/// Replays once.
pub async fn run(lab: &Lab, options: &ReplayOptions) -> anyhow::Result<Product> {
    let pool = lab.fresh_database().await?;
    let profile = Profile::quiet();
    let watch = Watch::start(lab.postmaster());
    let found = replay::scan(options).await?;
    replay::run(&pool, found, options, &profile).await?;
    let client = pool.get().await?;
    // A milestone of the product's own: the time from the start to the last row.
    let loaded = "select seconds from ops.phases where run_id = $1 and phase like 'Entering LIVE sync%'";
    let load_seconds = client.query_one(loaded, &[&profile.run_id()]).await?.get(0);
    let round = watch.ended(load_seconds);
    let sizes = client
        .query_one(
            "select sum(pg_table_size(c.oid))::int8, sum(pg_total_relation_size(c.oid))::int8 from pg_class c \
             where c.relnamespace = 'chain'::regnamespace and c.relkind = 'r'",
            &[],
        )
        .await?;
    Ok(Product { round, heap_bytes: sizes.get(0), all_bytes: sizes.get(1) })
}

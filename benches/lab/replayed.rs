//! Satgres itself: from raw block files to indexed and attached segments, with what it says of its caches.

use deadpool_postgres::Pool;
use satgres::profile::Profile;
use satgres::replay::{self, ReplayOptions, found};
use satgres::stop::Stop;

use super::Lab;
use super::round::{Round, Watch};

/// A replay, and what it left.
#[derive(Clone, Debug)]
pub struct Replayed {
    pub round: Round,
    /// Bytes of the chain's tables, without and with their indexes.
    pub heap_bytes: i64,
    pub all_bytes: i64,
    /// Bytes of each table and index, over all segments, the largest first.
    pub relations: Vec<(String, i64)>,
    pub utxos: Utxos,
}

/// What the UTXO set did, over all segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Utxos {
    pub prevouts: i64,
    pub waited: i64,
    pub settlements: i64,
    pub settlement_seconds: f64,
    pub written_bytes: i64,
    pub read_bytes: i64,
    /// Most bytes of the cache at the end of a segment.
    pub cache_bytes_max: i64,
}

impl Utxos {
    /// Returns the share of spends whose coin the cache had.
    pub fn hit_ratio(&self) -> f64 {
        1.0 - self.waited as f64 / (self.prevouts as f64).max(1.0)
    }
}

/// Replays once into a fresh database.
pub async fn replay(lab: &Lab, options: &ReplayOptions) -> anyhow::Result<Replayed> {
    let pool = lab.fresh_database().await?;
    replay_watched(&pool, options, Watch::start(lab.postmaster())).await
}

/// The same, and looks what the CPU is used for.
pub async fn replay_sampled(lab: &Lab, options: &ReplayOptions) -> anyhow::Result<Replayed> {
    let pool = lab.fresh_database().await?;
    replay_watched(&pool, options, Watch::start_sampling(lab.postmaster())).await
}

async fn replay_watched(pool: &Pool, options: &ReplayOptions, watch: Watch) -> anyhow::Result<Replayed> {
    let profile = Profile::quiet();
    let mut found = found::scan(options).await?;
    replay::run(pool, &mut found, options, &profile, &Stop::on_signals()).await?;
    let seconds = watch.seconds();
    let client = pool.get().await?;
    // A milestone of the product's own: the time from the start to the last row.
    let loaded = "select seconds from ops.phases where run_id = $1 and phase like 'Entering LIVE sync%'";
    let load_seconds: f64 = client.query_one(loaded, &[&profile.run_id()]).await?.get(0);
    let round = watch.ended(load_seconds.min(seconds));
    let sizes = client
        .query_one(
            "select sum(pg_table_size(c.oid))::int8, sum(pg_total_relation_size(c.oid))::int8 from pg_class c \
             where c.relnamespace = 'chain'::regnamespace and c.relkind = 'r'",
            &[],
        )
        .await?;
    let relations = client
        .query(
            "select regexp_replace(c.relname, '_[0-9]{4}', ''), \
             sum(case c.relkind when 'r' then pg_table_size(c.oid) else pg_relation_size(c.oid) end)::int8 \
             from pg_class c where c.relnamespace = 'chain'::regnamespace and c.relkind in ('r', 'i') \
             group by 1 order by 2 desc",
            &[],
        )
        .await?;
    let relations = relations.iter().map(|row| (row.get(0), row.get(1))).collect();
    let figures = client
        .query_one(
            "select sum((detail->>'prevouts')::int8)::int8, sum((detail->>'prevouts_waited')::int8)::int8, \
             sum((detail->>'utxo_settlements')::int8)::int8, sum((detail->>'utxo_settlement_seconds')::float8), \
             sum((detail->>'utxo_written_bytes')::int8)::int8, sum((detail->>'utxo_read_bytes')::int8)::int8, \
             max((detail->>'utxo_cache_bytes')::int8) \
             from ops.phases where run_id = $1 and detail ? 'prevouts'",
            &[&profile.run_id()],
        )
        .await?;
    let utxos = Utxos {
        prevouts: figures.get(0),
        waited: figures.get(1),
        settlements: figures.get(2),
        settlement_seconds: figures.get(3),
        written_bytes: figures.get(4),
        read_bytes: figures.get(5),
        cache_bytes_max: figures.get(6),
    };
    Ok(Replayed { round, heap_bytes: sizes.get(0), all_bytes: sizes.get(1), relations, utxos })
}

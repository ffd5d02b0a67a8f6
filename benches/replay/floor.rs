//! The floor: COPY BINARY FREEZE of ready-made rows, one connection a table, then the same index builds with the same
//! schedule and overlap. This is what an expert's script can reach that gets its rows for nothing.

use anyhow::Context;
use bytes::Bytes;
use deadpool_postgres::Pool;
use futures_util::SinkExt;
use satgres::pg::restore::restore;
use satgres::pg::segments::{self, SegmentRow, copy_sql, create_table_sql};
use satgres::profile::Profile;
use satgres::replay::ReplayOptions;
use satgres::replay::schedule::Segment;
use satgres::rows::{COPY_HEADER, COPY_TRAILER, Table};
use tokio::sync::{mpsc, watch};

use crate::lab::Lab;
use crate::lab::round::{Round, Watch};
use crate::ready::{ReadyRows, ReadySegment};

/// Largest piece sent at once, bytes: as the product sends them.
const PIECE_BYTES: usize = 1 << 20;

/// Loads and restores once.
pub async fn run(lab: &Lab, rows: &ReadyRows, options: &ReplayOptions) -> anyhow::Result<Round> {
    let pool = lab.fresh_database().await?;
    run_with(lab, &pool, rows, options, async |segment| fill(&pool, segment).await).await
}

/// Loads each segment by `fill`, restores while the next one loads.
pub async fn run_with(
    lab: &Lab,
    pool: &Pool,
    rows: &ReadyRows,
    options: &ReplayOptions,
    fill: impl AsyncFn(&ReadySegment) -> anyhow::Result<()>,
) -> anyhow::Result<Round> {
    let watch = Watch::start_sampling(lab.postmaster());
    let (loaded, to_restore) = mpsc::unbounded_channel();
    let (builds, builds_max) = watch::channel(options.builds_while_loading);
    let restoring =
        tokio::spawn(restore(pool.clone(), to_restore, builds_max, options.build_bytes, Profile::quiet()));
    for segment in &rows.segments {
        let mut client = pool.get().await?;
        segments::begin(&client, &segment.segment).await?;
        fill(segment).await?;
        segments::mark_loaded(&mut client, &segment.segment, &segment.counts, &segment.overwritten).await?;
        let heights = &segment.segment.heights;
        loaded.send(SegmentRow {
            id: segment.segment.id,
            height_first: *heights.start(),
            height_last: *heights.end(),
            is_attached: false,
            is_live: false,
            counts: segment.counts,
        })?;
    }
    let load_seconds = watch.seconds();
    builds.send(options.builds_max)?;
    drop(loaded);
    restoring.await??;
    Ok(watch.ended(load_seconds))
}

/// Fills the four tables of a segment side by side.
async fn fill(pool: &Pool, ready: &ReadySegment) -> anyhow::Result<()> {
    let tables = Table::ALL.into_iter().zip(ready.rows.clone()).map(|(table, rows)| {
        // A task each: they run on different threads.
        tokio::spawn(fill_table(pool.clone(), table, ready.segment.clone(), rows))
    });
    for filled in futures_util::future::try_join_all(tables).await? {
        filled?;
    }
    Ok(())
}

async fn fill_table(pool: Pool, table: Table, segment: Segment, rows: Vec<Bytes>) -> anyhow::Result<()> {
    let client = pool.get().await?;
    client.batch_execute(&format!("begin; {}", create_table_sql(table, &segment))).await?;
    let sink = client.copy_in::<_, Bytes>(copy_sql(table, &segment).as_str()).await?;
    let mut sink = std::pin::pin!(sink);
    sink.feed(Bytes::from_static(&COPY_HEADER)).await?;
    for mut rows in rows {
        while !rows.is_empty() {
            sink.feed(rows.split_to(rows.len().min(PIECE_BYTES))).await?;
        }
    }
    sink.feed(Bytes::from_static(&COPY_TRAILER)).await?;
    sink.as_mut().finish().await.with_context(|| format!("filling {}", table.name()))?;
    Ok(client.batch_execute("commit").await?)
}

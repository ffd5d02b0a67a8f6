//! Live segments: partitions that are filled block by block.
//!
//! In: a height that is to be connected. Out: an attached partition of each table that has place for it. Made standing alone,
//! with all declared indexes, and attached while it is empty: that takes no lock that a reader would wait for (PostgreSQL
//! manual, ALTER TABLE, ATTACH PARTITION). A live segment is complete when its last planned height is connected: then it
//! is `attached` like any other. Foreign keys are added at that moment, NOT VALID, and proven in the background: see
//! [`crate::live`] for what they cost before.

use tokio_postgres::{Client, GenericClient, Row, Transaction};
use tracing::info;

use super::LiveError;
use super::tip::Tip;
use crate::pg::objects;
use crate::pg::segments::{self, Counts, attach_partition_sql, create_table_sql, narrow_sql, partition};
use crate::replay::schedule::Segment;
use crate::rows::Table;

const COLUMNS: &str = "segment_id, height_first, height_last, state = 'live'";

/// A segment that has place for a height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveSegment {
    pub(super) id: u32,
    pub(super) height_first: u32,
    /// Planned.
    pub(super) height_last: u32,
    /// Whether it is live; a complete one becomes so by losing blocks.
    pub(super) is_live: bool,
}

fn segment(row: &Row) -> LiveSegment {
    LiveSegment {
        id: row.get::<_, i32>(0) as u32,
        height_first: row.get::<_, i32>(1) as u32,
        height_last: row.get::<_, i32>(2) as u32,
        is_live: row.get(3),
    }
}

/// Returns the segments that readers see and that have a height or one above it, by height.
///
/// # Errors
/// What the server says.
pub(super) async fn from_height(
    client: &impl GenericClient,
    height: u32,
) -> Result<Vec<LiveSegment>, LiveError> {
    let sql = format!(
        "select {COLUMNS} from ops.segments where state in ('live', 'attached') and height_last >= $1 order by height_first"
    );
    let rows =
        client.query(&sql, &[&(height as i32)]).await.map_err(LiveError::server("listing segments"))?;
    Ok(rows.iter().map(segment).collect())
}

/// Returns the segment for a height; makes it where there is none, in the caller's transaction.
///
/// # Errors
/// What the server says.
pub(super) async fn ensure(
    transaction: &Transaction<'_>,
    height: u32,
    blocks: u32,
) -> Result<LiveSegment, LiveError> {
    if let Some(there) =
        from_height(transaction, height).await?.first().filter(|it| it.height_first <= height)
    {
        return Ok(*there);
    }
    let what = "making a live segment";
    let row = transaction
        .query_one(
            "insert into ops.segments (segment_id, height_first, height_last, state, tx_count, input_count, output_count, \
               block_bytes, attached_at) \
             select coalesce(max(segment_id), -1) + 1, $1, $2, 'live', 0, 0, 0, 0, now() from ops.segments \
             returning segment_id",
            &[&(height as i32), &((height + blocks.max(1) - 1) as i32)],
        )
        .await
        .map_err(LiveError::server(what))?;
    let id = row.get::<_, i32>(0) as u32;
    let made =
        LiveSegment { id, height_first: height, height_last: height + blocks.max(1) - 1, is_live: true };
    for statement in statements(&made) {
        transaction.batch_execute(&statement).await.map_err(LiveError::server(what))?;
    }
    Ok(made)
}

/// Returns everything that makes a segment's tables and attaches them.
fn statements(made: &LiveSegment) -> Vec<String> {
    let heights = made.height_first..=made.height_last;
    let planned = Segment { id: made.id, heights, block_bytes: 0 };
    let mut statements: Vec<String> =
        Table::PARTITIONED.iter().map(|table| create_table_sql(*table, &planned)).collect();
    for index in &objects::declared().indexes {
        statements.push(index.create_on_segment(made.id));
        statements.extend(index.promote_on_segment(made.id));
    }
    for table in Table::PARTITIONED {
        statements.push(attach_partition_sql(table, made.id, made.height_first, made.height_last));
    }
    statements
}

/// Counts a connected block; a segment whose last height it has is complete.
///
/// # Errors
/// What the server says.
pub(super) async fn count(
    transaction: &Transaction<'_>,
    segment: &LiveSegment,
    height: u32,
    counts: &Counts,
) -> Result<(), LiveError> {
    let what = "counting a block";
    let is_complete = height == segment.height_last;
    transaction
        .execute(
            "update ops.segments set tx_count = tx_count + $2, input_count = input_count + $3, \
               output_count = output_count + $4, block_bytes = block_bytes + $5, \
               state = case when $6 then 'attached' else 'live' end, \
               loaded_at = case when $6 then now() else loaded_at end where segment_id = $1",
            &[
                &(segment.id as i32),
                &(counts.txs as i64),
                &(counts.inputs as i64),
                &(counts.outputs as i64),
                &(counts.block_bytes as i64),
                &is_complete,
            ],
        )
        .await
        .map_err(LiveError::server(what))?;
    if is_complete { complete(transaction, segment.id).await } else { Ok(()) }
}

/// Adds the foreign keys that a complete segment has, where they are missing.
///
/// # Errors
/// What the server says.
pub(crate) async fn complete(transaction: &Transaction<'_>, id: u32) -> Result<(), LiveError> {
    let what = "adding the foreign keys of a segment";
    for key in &objects::declared().foreign_keys {
        let name = key.segment_name(id);
        let there = "select exists (select from pg_constraint c join pg_namespace n on n.oid = c.connamespace \
             where n.nspname = 'chain' and c.conname = $1)";
        let row = transaction.query_one(there, &[&name]).await.map_err(LiveError::server(what))?;
        if !row.get::<_, bool>(0) {
            transaction.batch_execute(&key.add_on_segment(id)).await.map_err(LiveError::server(what))?;
        }
    }
    Ok(())
}

/// Ends the live segments at the tip, so that others can begin right above: an empty one is dropped, the last one gets
/// the bounds of what it has. Readers wait for one short transaction; the scan that proves the bounds is done before.
/// Repeats what an interrupted call left behind. Called before a bulk load.
///
/// # Errors
/// What the server says; where a reader is in the way for too long, a later call goes on.
pub(crate) async fn close_early(client: &mut Client) -> Result<(), LiveError> {
    let tip = Tip::read(client, None).await?.height;
    for segment in from_height(client, tip + 1).await? {
        let transaction = super::begin(client).await?;
        if segment.height_first > tip {
            segments::drop_segment_in(&transaction, segment.id)
                .await
                .map_err(LiveError::server("dropping an empty segment"))?;
            transaction.commit().await.map_err(LiveError::server("dropping an empty segment"))?;
            continue;
        }
        drop(transaction);
        close_at(client, &segment, tip).await?;
        info!(
            segment = segment.id,
            height_last = tip,
            "a live segment ends here: the next blocks are loaded in bulk"
        );
    }
    Ok(())
}

/// Gives a segment the bounds of what it has.
async fn close_at(client: &mut Client, segment: &LiveSegment, tip: u32) -> Result<(), LiveError> {
    let what = LiveError::server("ending a live segment at the tip");
    let heights = segment.height_first..=tip;
    let closed = Segment { id: segment.id, heights, block_bytes: 0 };
    for table in Table::PARTITIONED {
        for statement in narrow_sql(table, &closed) {
            client.batch_execute(&statement).await.map_err(&what)?;
        }
    }
    let transaction = super::begin(client).await?;
    for table in Table::PARTITIONED {
        let name = partition(table, segment.id);
        let detach = format!("alter table chain.{} detach partition {name}", table.name());
        transaction.batch_execute(&detach).await.map_err(&what)?;
        let attach = attach_partition_sql(table, segment.id, segment.height_first, tip);
        transaction.batch_execute(&attach).await.map_err(&what)?;
    }
    complete(&transaction, segment.id).await?;
    transaction
        .execute(
            "update ops.segments set state = 'attached', height_last = $2, loaded_at = now() where segment_id = $1",
            &[&(segment.id as i32), &(tip as i32)],
        )
        .await
        .map_err(&what)?;
    transaction.commit().await.map_err(&what)
}

//! Segments in the database: their tables, their state, how they become visible.
//!
//! In: bounds and counts. Out: partitions. Called by the replay. Each table of a segment is created and filled in one
//! transaction with COPY FREEZE, standing alone; `ops.segments` says `loaded` once all have committed; attaching makes
//! the rows of every table visible at once. Repair after a crash is dropping the segment that still says `loading`:
//! never a DELETE over a table.

use tokio_postgres::{Client, Transaction};

use super::objects::{self, qualified};
use crate::chain::batch::{Overwritten, tx_num};
use crate::replay::schedule::Segment;
use crate::rows::Table;

/// What a loaded segment holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions.
    pub txs: u64,
    /// Inputs.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Serialised size of the blocks, bytes.
    pub block_bytes: u64,
}

impl Counts {
    /// Returns the rows of one table; `blocks` is not counted here.
    pub fn rows(&self, table: Table) -> u64 {
        match table {
            Table::Blocks => 0,
            Table::Transactions => self.txs,
            Table::Outputs => self.outputs,
            Table::Inputs => self.inputs,
        }
    }
}

/// A segment as `ops.segments` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRow {
    /// Its number.
    pub id: u32,
    /// First height.
    pub height_first: u32,
    /// Last height, inclusive.
    pub height_last: u32,
    /// Whether readers see it; otherwise it is loaded and waits for its indexes.
    pub is_attached: bool,
    /// Whether it is filled block by block: its planned last height may be above `height_last`.
    pub is_live: bool,
    /// What it holds.
    pub counts: Counts,
}

/// Returns the segments that hold blocks for good, by height. Of a live one the last height is that of its last block; one
/// that is made ahead and still empty is left out.
///
/// # Errors
/// What the server says.
pub async fn list(client: &Client) -> Result<Vec<SegmentRow>, tokio_postgres::Error> {
    let rows = client
        .query(
            "select s.segment_id, s.height_first, case s.state when 'live' then least(s.height_last, t.height) \
               else s.height_last end, s.state <> 'loaded', s.state = 'live', s.tx_count, s.input_count, \
               s.output_count, s.block_bytes \
             from ops.segments s cross join (select coalesce(max(height), -1) from chain.blocks) t (height) \
             where s.state in ('loaded', 'attached') or s.state = 'live' and s.height_first <= t.height \
             order by s.height_first",
            &[],
        )
        .await?;
    let count = |row: &tokio_postgres::Row, at: usize| row.get::<_, Option<i64>>(at).unwrap_or(0) as u64;
    Ok(rows
        .iter()
        .map(|row| SegmentRow {
            id: row.get::<_, i32>(0) as u32,
            height_first: row.get::<_, i32>(1) as u32,
            height_last: row.get::<_, i32>(2) as u32,
            is_attached: row.get(3),
            is_live: row.get(4),
            counts: Counts {
                txs: count(row, 5),
                inputs: count(row, 6),
                outputs: count(row, 7),
                block_bytes: count(row, 8),
            },
        })
        .collect())
}

/// Drops what an interrupted load left behind; returns how many segments that were.
///
/// # Errors
/// What the server says.
pub async fn drop_unfinished(client: &mut Client) -> Result<usize, tokio_postgres::Error> {
    let rows = client.query("select segment_id from ops.segments where state = 'loading'", &[]).await?;
    for row in &rows {
        drop_segment(client, row.get::<_, i32>(0) as u32).await?;
    }
    Ok(rows.len())
}

/// Drops a segment with all its rows, in one transaction: an unfinished one, or one that a reorg has left behind.
///
/// # Errors
/// What the server says.
pub async fn drop_segment(client: &mut Client, id: u32) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    drop_segment_in(&transaction, id).await?;
    transaction.commit().await
}

/// Drops a segment with all its rows in the caller's transaction. The lock on the parents keeps readers out until it ends.
///
/// # Errors
/// What the server says.
pub async fn drop_segment_in(transaction: &Transaction<'_>, id: u32) -> Result<(), tokio_postgres::Error> {
    let row = transaction
        .query_opt(
            "select height_first, height_last from ops.segments where segment_id = $1",
            &[&(id as i32)],
        )
        .await?;
    for table in [Table::Inputs, Table::Outputs, Table::Transactions, Table::Blocks] {
        let name = partition(table, id);
        transaction.batch_execute(&format!("drop table if exists {name} cascade")).await?;
    }
    if let Some(row) = row {
        let (first, last): (i32, i32) = (row.get(0), row.get(1));
        let (from, to) = (tx_num(first as u32, 0), tx_num(last as u32 + 1, 0));
        transaction
            .execute("delete from chain.overwritten where by_tx_num >= $1 and by_tx_num < $2", &[&from, &to])
            .await?;
        transaction
            .execute(
                "delete from chain.blocks b using ops.segments s \
                 where s.segment_id = $1 and s.state in ('attached', 'live') and b.height between $2 and $3",
                &[&(id as i32), &first, &last],
            )
            .await?;
    }
    transaction.execute("delete from ops.pending_overwritten where segment_id = $1", &[&(id as i32)]).await?;
    transaction.execute("delete from ops.index_jobs where segment_id = $1", &[&(id as i32)]).await?;
    transaction.execute("delete from ops.segments where segment_id = $1", &[&(id as i32)]).await?;
    Ok(())
}

/// Records that a segment is about to be loaded.
///
/// # Errors
/// What the server says.
pub async fn begin(client: &Client, segment: &Segment) -> Result<(), tokio_postgres::Error> {
    client
        .execute(
            "insert into ops.segments (segment_id, height_first, height_last, state) values ($1, $2, $3, 'loading')",
            &[&(segment.id as i32), &(*segment.heights.start() as i32), &(*segment.heights.end() as i32)],
        )
        .await?;
    Ok(())
}

/// Returns the statement that creates one table of a segment, standing alone; its only constraint is the one that
/// spares a scan when it is attached (PostgreSQL manual, ALTER TABLE, ATTACH PARTITION).
pub fn create_table_sql(table: Table, segment: &Segment) -> String {
    let name = partition(table, segment.id);
    let like = format!("like chain.{} including defaults including storage including comments", table.name());
    if table == Table::Blocks {
        return format!("create table {name} ({like})");
    }
    let (from, to) = bounds(segment);
    let check = objects::quote(&check_name(table, segment.id));
    format!("create table {name} ({like}, constraint {check} check (tx_num >= {from} and tx_num < {to}))")
}

/// Returns the statement that fills one table of a segment from a binary stream.
pub fn copy_sql(table: Table, segment: &Segment) -> String {
    let name = partition(table, segment.id);
    format!("copy {name} ({}) from stdin with (format binary, freeze)", table.columns().join(", "))
}

/// Returns the statement by which a table of a segment that ends early gets its real bounds, in the transaction that
/// fills it. It looks at no row: [`prove_bounds`] does, before the segment is attached.
pub fn rebound_sql(table: Table, segment: &Segment) -> Option<String> {
    if table == Table::Blocks {
        return None;
    }
    let (name, (from, to)) = (partition(table, segment.id), bounds(segment));
    let check = objects::quote(&check_name(table, segment.id));
    Some(format!(
        "alter table {name} drop constraint {check}, \
         add constraint {check} check (tx_num >= {from} and tx_num < {to}) not valid"
    ))
}

/// Returns the statements, one a transaction, by which an attached table gets narrower bounds and proves them, so that it
/// can be attached with them without a scan. Readers wait for none; what an interrupted series left is replaced.
pub fn narrow_sql(table: Table, segment: &Segment) -> [String; 2] {
    let (name, (from, to)) = (partition(table, segment.id), bounds(segment));
    let check = objects::quote(&check_name(table, segment.id));
    [
        format!(
            "alter table {name} drop constraint if exists {check}, \
             add constraint {check} check (tx_num >= {from} and tx_num < {to}) not valid"
        ),
        format!("alter table {name} validate constraint {check}"),
    ]
}

/// Proves the bounds of a segment that ended early, one scan a table; others are proven already.
///
/// # Errors
/// What the server says.
pub async fn prove_bounds(client: &Client, segment: &SegmentRow) -> Result<(), tokio_postgres::Error> {
    for table in Table::PARTITIONED {
        let name = partition(table, segment.id);
        let unproven = "select conname from pg_constraint \
             where conrelid = $1::text::regclass and contype = 'c' and not convalidated";
        for row in client.query(unproven, &[&name]).await? {
            let check = objects::quote(row.get(0));
            client.batch_execute(&format!("alter table {name} validate constraint {check}")).await?;
        }
    }
    Ok(())
}

/// Records that all tables of a segment have committed, and queues its indexes and constraints.
///
/// # Errors
/// What the server says.
pub async fn mark_loaded(
    client: &mut Client,
    segment: &Segment,
    counts: &Counts,
    overwritten: &[Overwritten],
) -> Result<(), tokio_postgres::Error> {
    let id = segment.id as i32;
    let transaction = client.transaction().await?;
    for Overwritten { tx_num, vout, by_tx_num } in overwritten {
        transaction
            .execute(
                "insert into ops.pending_overwritten (segment_id, tx_num, vout, by_tx_num) values ($1, $2, $3, $4)",
                &[&id, tx_num, &(*vout as i32), by_tx_num],
            )
            .await?;
    }
    for (name, table, kind) in jobs(segment.id) {
        let rows = counts.rows(table);
        transaction
            .execute(
                "insert into ops.index_jobs (segment_id, object_name, table_name, kind, row_count) \
                 values ($1, $2, $3, $4, $5)",
                &[&id, &name, &objects::segment_table(table.name(), segment.id), &kind, &(rows as i64)],
            )
            .await?;
    }
    transaction
        .execute(
            "update ops.segments set state = 'loaded', loaded_at = now(), tx_count = $2, input_count = $3, \
             output_count = $4, block_bytes = $5, height_last = $6 where segment_id = $1",
            &[
                &id,
                &(counts.txs as i64),
                &(counts.inputs as i64),
                &(counts.outputs as i64),
                &(counts.block_bytes as i64),
                &(*segment.heights.end() as i32),
            ],
        )
        .await?;
    transaction.commit().await
}

/// Makes a segment visible: its partitions, its rows of `blocks`, its overwritten outputs, all in the caller's
/// transaction. Its indexes must be there, or the server would build them under a lock.
///
/// # Errors
/// What the server says; nothing is visible then.
pub async fn attach(
    transaction: &Transaction<'_>,
    segment: &SegmentRow,
) -> Result<(), tokio_postgres::Error> {
    let id = segment.id as i32;
    let blocks = partition(Table::Blocks, segment.id);
    transaction
        .batch_execute(&format!(
            "insert into chain.blocks select * from {blocks} order by height; drop table {blocks}"
        ))
        .await?;
    for table in Table::PARTITIONED {
        let statement = attach_partition_sql(table, segment.id, segment.height_first, segment.height_last);
        transaction.batch_execute(&statement).await?;
    }
    transaction
        .execute(
            "insert into chain.overwritten (tx_num, vout, by_tx_num) \
             select tx_num, vout, by_tx_num from ops.pending_overwritten where segment_id = $1",
            &[&id],
        )
        .await?;
    transaction.execute("delete from ops.pending_overwritten where segment_id = $1", &[&id]).await?;
    transaction
        .execute(
            "update ops.segments set state = 'attached', attached_at = now() where segment_id = $1",
            &[&id],
        )
        .await?;
    Ok(())
}

/// Returns the statements that make a table of a segment a partition of its parent.
pub fn attach_partition_sql(table: Table, id: u32, height_first: u32, height_last: u32) -> String {
    let (name, parent) = (partition(table, id), table.name());
    let (from, to) = (tx_num(height_first, 0), tx_num(height_last + 1, 0));
    format!(
        "alter table chain.{parent} attach partition {name} for values from ({from}) to ({to}); \
         comment on table {name} is 'Rows of chain.{parent} at heights {height_first} to {height_last}.'"
    )
}

/// Returns the name of a segment's own table, qualified and quoted.
pub fn partition(table: Table, segment_id: u32) -> String {
    qualified(&objects::segment_table(table.name(), segment_id))
}

/// Returns everything that a loaded segment needs: name, table, kind of job.
fn jobs(segment_id: u32) -> Vec<(String, Table, &'static str)> {
    let declared = objects::declared();
    let indexes =
        declared.indexes.iter().map(|index| (index.segment_name(segment_id), &index.table, "index"));
    let keys =
        declared.foreign_keys.iter().map(|key| (key.segment_name(segment_id), &key.table, "constraint"));
    indexes.chain(keys).map(|(name, table, kind)| (name, Table::named(table), kind)).collect()
}

/// Name of the constraint that says which heights a segment's table holds.
fn check_name(table: Table, segment_id: u32) -> String {
    format!("{}_tx_num_check", objects::segment_table(table.name(), segment_id))
}

fn bounds(segment: &Segment) -> (i64, i64) {
    (tx_num(*segment.heights.start(), 0), tx_num(*segment.heights.end() + 1, 0))
}

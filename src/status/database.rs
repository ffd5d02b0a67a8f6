//! What the database itself says of what it holds.
//!
//! In: a connection. Out: [`Database`], as much of it as the server tells before the caller's patience ends. It only
//! reads small tables, the catalogue and the tip, and never takes a lock that anybody would wait for.

use serde::Serialize;
use tokio_postgres::{Client, Error, Row};

use crate::{chain::hash::reversed_hex, pg::builds::Builds};

/// What was read; `None` where it was not.
#[derive(Debug, Default)]
pub(super) struct Database {
    pub(super) server: Option<ServerFacts>,
    /// Whether satgres' schema is there.
    pub(super) is_installed: Option<bool>,
    pub(super) network: Option<String>,
    pub(super) segments: Option<Segments>,
    pub(super) tip: Option<Option<Tip>>,
    pub(super) invalid: Option<(u64, Option<InvalidBlock>)>,
    pub(super) constraints: Option<Constraints>,
    pub(super) builds: Option<Builds>,
    pub(super) reorg: Option<Option<Reorg>>,
    pub(super) confirmed: Option<ConfirmedTip>,
    pub(super) bytes: Option<u64>,
}

#[derive(Debug)]
pub(super) struct ServerFacts {
    pub(super) version: String,
    pub(super) started_at: f64,
    pub(super) is_standby: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Segments {
    pub(super) loading: u64,
    pub(super) loaded: u64,
    pub(super) attached: u64,
    pub(super) height_loaded: Option<u32>,
    pub(super) bytes_last: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tip {
    pub(super) height: u32,
    pub(super) hash: String,
}

/// A block that stands in the files but breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InvalidBlock {
    /// Height in its branch.
    pub height: u32,
    /// Hash, as people know it.
    pub hash: String,
    /// The rule that it breaks.
    pub reason: String,
    /// File that holds it.
    pub file: Option<String>,
    /// Offset of its header in that file.
    pub file_offset_bytes: Option<u64>,
}

/// Constraints of the segments.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Constraints {
    /// All.
    pub total: u64,
    /// Of these, those that were proven to hold for every row.
    pub validated: u64,
    /// Of these, those that were found not to hold.
    pub failed: u64,
}

/// A reorganisation that the database followed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reorg {
    /// When it ended.
    pub at_timestamp_seconds: f64,
    /// Height of the last common block.
    pub fork_height: u32,
    /// Blocks that were disconnected.
    pub depth_blocks: u32,
    /// Tip before, as people know it.
    pub old_tip_hash: String,
    /// Tip after, as people know it.
    pub new_tip_hash: String,
    /// How long it took.
    pub took_seconds: f64,
}

/// What a node has last confirmed of the chain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfirmedTip {
    /// Height of the block up to which it had the same chain.
    pub height: u32,
    /// Hash of that block, as people know it.
    pub hash: String,
    /// The node.
    pub peer: String,
    /// When it said so.
    pub at_timestamp_seconds: f64,
    /// Whether readers still see that block.
    pub is_in_chain: bool,
}

impl Database {
    /// Reads everything, the most important first, so that a caller who waits no longer has that.
    pub(super) async fn read(&mut self, client: &Client) -> Result<(), Error> {
        self.server = Some(server_facts(client).await?);
        let is_installed = "select to_regclass('ops.segments') is not null";
        let is_installed: bool = client.query_one(is_installed, &[]).await?.get(0);
        self.is_installed = Some(is_installed);
        if is_installed {
            let network = "select value from ops.settings where key = 'network'";
            self.network = client.query_opt(network, &[]).await?.map(|row| row.get(0));
            self.segments = Some(segments(client).await?);
            self.tip = Some(tip(client).await?);
            self.invalid = Some(invalid_blocks(client).await?);
            self.constraints = Some(constraints(client).await?);
            self.builds = Some(Builds::read(client).await?);
            self.reorg = Some(reorg(client).await?);
            self.confirmed = confirmed(client).await?;
        }
        let size = client.query_one("select pg_database_size(current_database())", &[]).await?;
        self.bytes = u64::try_from(size.get::<_, i64>(0)).ok();
        Ok(())
    }
}

async fn server_facts(client: &Client) -> Result<ServerFacts, Error> {
    let sql = "select split_part(current_setting('server_version'), ' ', 1), \
         extract(epoch from pg_postmaster_start_time())::float8, pg_is_in_recovery()";
    let row = client.query_one(sql, &[]).await?;
    Ok(ServerFacts { version: row.get(0), started_at: row.get(1), is_standby: row.get(2) })
}

async fn segments(client: &Client) -> Result<Segments, Error> {
    let sql = "select count(*) filter (where state = 'loading'), count(*) filter (where state <> 'loading'), \
           count(*) filter (where state in ('attached', 'live')), \
           greatest((select max(height) from chain.blocks), max(height_last) filter (where state = 'loaded')), \
           (select block_bytes from ops.segments where state in ('loaded', 'attached') order by height_last desc limit 1) \
         from ops.segments";
    let row = client.query_one(sql, &[]).await?;
    Ok(Segments {
        loading: count(&row, 0),
        loaded: count(&row, 1),
        attached: count(&row, 2),
        height_loaded: row.get::<_, Option<i32>>(3).map(|height| height as u32),
        bytes_last: row.get::<_, Option<i64>>(4).unwrap_or(0) as u64,
    })
}

async fn tip(client: &Client) -> Result<Option<Tip>, Error> {
    let sql = "select height, hash from chain.blocks order by height desc limit 1";
    let row = client.query_opt(sql, &[]).await?;
    Ok(row.map(|row| Tip { height: row.get::<_, i32>(0) as u32, hash: hash(&row, 1) }))
}

async fn invalid_blocks(client: &Client) -> Result<(u64, Option<InvalidBlock>), Error> {
    let all = count(&client.query_one("select count(*) from ops.invalid_blocks", &[]).await?, 0);
    let sql = "select height, hash, reason, file, file_offset from ops.invalid_blocks \
         order by height, found_at limit 1";
    let first = client.query_opt(sql, &[]).await?.map(|row| InvalidBlock {
        height: row.get::<_, i32>(0) as u32,
        hash: hash(&row, 1),
        reason: row.get(2),
        file: row.get(3),
        file_offset_bytes: row.get::<_, Option<i64>>(4).map(|offset| offset as u64),
    });
    Ok((all, first))
}

async fn constraints(client: &Client) -> Result<Constraints, Error> {
    // The parents' own constraints, and what they handed down, are no work of their own.
    let sql = "select count(*), count(*) filter (where c.convalidated), \
           (select count(*) from ops.index_jobs where kind = 'validate' and state = 'failed') \
         from pg_constraint c join pg_class t on t.oid = c.conrelid \
         where t.relnamespace = 'chain'::regnamespace and c.contype = 'f' and t.relkind = 'r'";
    let row = client.query_one(sql, &[]).await?;
    Ok(Constraints { total: count(&row, 0), validated: count(&row, 1), failed: count(&row, 2) })
}

async fn reorg(client: &Client) -> Result<Option<Reorg>, Error> {
    let sql = "select extract(epoch from at)::float8, fork_height, depth, old_tip, new_tip, seconds \
         from ops.reorgs order by reorg_id desc limit 1";
    Ok(client.query_opt(sql, &[]).await?.map(|row| Reorg {
        at_timestamp_seconds: row.get(0),
        fork_height: row.get::<_, i32>(1) as u32,
        depth_blocks: row.get::<_, i32>(2) as u32,
        old_tip_hash: hash(&row, 3),
        new_tip_hash: hash(&row, 4),
        took_seconds: row.get(5),
    }))
}

/// An earlier version's database has no such table.
async fn confirmed(client: &Client) -> Result<Option<ConfirmedTip>, Error> {
    let is_there = "select to_regclass('ops.confirmed_tip') is not null";
    if !client.query_one(is_there, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let sql = "select height, hash, peer, extract(epoch from at)::float8, \
           exists (select from chain.blocks b where b.height = c.height and b.hash = c.hash) \
         from ops.confirmed_tip c";
    Ok(client.query_opt(sql, &[]).await?.map(|row| ConfirmedTip {
        height: row.get::<_, i32>(0) as u32,
        hash: hash(&row, 1),
        peer: row.get(2),
        at_timestamp_seconds: row.get(3),
        is_in_chain: row.get(4),
    }))
}

fn count(row: &Row, column: usize) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or(0)
}

fn hash(row: &Row, column: usize) -> String {
    row.get::<_, &[u8]>(column).try_into().map_or_else(|_| "?".to_owned(), |hash| reversed_hex(&hash))
}

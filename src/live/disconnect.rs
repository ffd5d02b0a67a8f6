//! Disconnects blocks from the tip down, from the database's own rows alone.
//!
//! In: the open transaction, the last height that stays. Out: a database that ends there, in which segments wholly above are
//! dropped and the one that straddles is live again, its bounds as they were. The headers of what was disconnected stay
//! in `chain.stale_blocks`, and outputs that one of its blocks overwrote (BIP30) are unspent again. Called by the
//! connector and at a start; everything happens in the caller's transaction.

use tokio_postgres::{GenericClient, Transaction};

use super::LiveError;
use super::segment::{self, LiveSegment};
use crate::chain::batch::tx_num;
use crate::pg::segments::{self, partition};
use crate::rows::Table;

/// The header is rebuilt from the columns and the hash of the block before (BIP: none; `CBlockHeader` in Bitcoin Core).
const KEEP_HEADERS: &str = "insert into chain.stale_blocks (hash, height, header) \
     select b.hash, b.height, chain.le_bytes(b.version, 4) || p.hash || b.merkle_root \
         || chain.le_bytes(extract(epoch from b.time)::int8, 4) || chain.le_bytes(b.bits, 4) || chain.le_bytes(b.nonce, 4) \
     from chain.blocks b join chain.blocks p on p.height = b.height - 1 where b.height > $1 \
     on conflict (hash) do nothing";

const COUNT: &str = "update ops.segments s set state = 'live', \
       changed_at = case when s.state = 'attached' then now() else s.changed_at end, \
       (tx_count, input_count, output_count, block_bytes) = ( \
         select coalesce(sum(b.tx_count), 0), coalesce(sum(b.input_count), 0), coalesce(sum(b.output_count), 0), \
           coalesce(sum(b.size), 0) \
         from chain.blocks b where b.height between s.height_first and $2) \
     where s.segment_id = $1";

/// Keeps the headers of all blocks above a height in `chain.stale_blocks`.
///
/// # Errors
/// What the server says.
pub(crate) async fn keep_headers(
    client: &impl GenericClient,
    fork_height: u32,
) -> Result<u64, tokio_postgres::Error> {
    client.execute(KEEP_HEADERS, &[&(fork_height as i32)]).await
}

/// Disconnects all blocks above `fork_height`; returns how many they were.
///
/// # Errors
/// What the server says; then nothing has changed once the caller's transaction has ended.
pub(crate) async fn disconnect(transaction: &Transaction<'_>, fork_height: u32) -> Result<u32, LiveError> {
    let count = "select count(*) from chain.blocks where height > $1";
    let row = transaction.query_one(count, &[&(fork_height as i32)]).await;
    let depth = row.map_err(LiveError::server("counting blocks"))?.get::<_, i64>(0) as u32;
    keep_headers(transaction, fork_height)
        .await
        .map_err(LiveError::server("keeping disconnected headers"))?;
    for segment in segment::from_height(transaction, fork_height + 1).await?.iter().rev() {
        if segment.height_first > fork_height {
            segments::drop_segment_in(transaction, segment.id)
                .await
                .map_err(LiveError::server("dropping a segment"))?;
        } else {
            cut(transaction, segment, fork_height).await?;
        }
    }
    let what = LiveError::server("disconnecting blocks");
    let from = tx_num(fork_height + 1, 0);
    transaction
        .execute("delete from chain.overwritten where by_tx_num >= $1", &[&from])
        .await
        .map_err(&what)?;
    transaction
        .execute("delete from chain.blocks where height > $1", &[&(fork_height as i32)])
        .await
        .map_err(&what)?;
    Ok(depth)
}

/// Removes the rows of a segment above a height.
async fn cut(
    transaction: &Transaction<'_>,
    segment: &LiveSegment,
    fork_height: u32,
) -> Result<(), LiveError> {
    let what = LiveError::server("cutting a segment");
    let from = tx_num(fork_height + 1, 0);
    for table in [Table::Inputs, Table::Outputs, Table::Transactions] {
        let delete = format!("delete from {} where tx_num >= $1", partition(table, segment.id));
        transaction.execute(&delete, &[&from]).await.map_err(&what)?;
    }
    transaction.execute(COUNT, &[&(segment.id as i32), &(fork_height as i32)]).await.map_err(&what)?;
    Ok(())
}

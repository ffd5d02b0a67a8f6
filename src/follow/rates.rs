//! The rates that a database has seen, from its own records.
//!
//! In: `ops.phases`. Out: [`Rates`], with defaults for what was never measured. A load of a few bytes says nothing about one
//! of many: only large ones count.

use std::time::Duration;

use tokio_postgres::Client;

use super::cost::Rates;
use crate::replay::ReplayError;

/// Fewest bytes of blocks, all together, of which a rate is believed.
const BYTES_MIN: i64 = 20_000_000;
/// The last phases that count.
const PHASES_MAX: i64 = 200;

/// Returns the rates of this database, and the bytes of all blocks that it holds.
///
/// # Errors
/// What the server says.
pub(super) async fn measured(client: &Client) -> Result<(Rates, u64), ReplayError> {
    let server = |source| ReplayError::Server { what: "reading the rates of earlier loads", source };
    let sql = format!(
        "with last as (
           select * from ops.phases where phase like 'Loaded segment %' or phase in ('Restored table indexes', \
             'Read the UTXO set back from the database', 'Connected blocks') order by phase_id desc limit {PHASES_MAX}
         ), loaded as (
           select run_id, sum(bytes)::int8 as bytes, sum(seconds) as seconds from last
           where phase like 'Loaded segment %' group by run_id
         ), held as (select coalesce(sum(block_bytes), 0)::int8 as bytes from ops.segments)
         select held.bytes,
           (select sum(bytes)::int8 from loaded), (select sum(seconds) from loaded),
           (select sum(seconds) from last where phase = 'Restored table indexes' and run_id in (select run_id from loaded)),
           (select seconds from last where phase like 'Read the UTXO set%' order by phase_id desc limit 1),
           (select sum(blocks)::int8 from last where phase = 'Connected blocks'),
           (select sum(bytes)::int8 from last where phase = 'Connected blocks'),
           (select sum(seconds) from last where phase = 'Connected blocks')
         from held"
    );
    let row = client.query_one(&sql, &[]).await.map_err(server)?;
    let held_bytes: i64 = row.get(0);
    let mut rates = Rates::default();
    let (loaded, seconds): (Option<i64>, Option<f64>) = (row.get(1), row.get(2));
    if let (Some(bytes), Some(seconds)) = (loaded.filter(|&bytes| bytes >= BYTES_MIN), seconds) {
        rates.bulk_bytes_per_second = bytes as f64 / seconds.max(1e-3);
        if let Some(restore) = row.get::<_, Option<f64>>(3) {
            rates.restore_seconds_per_byte = restore / bytes as f64;
        }
    }
    if let Some(seconds) = row.get::<_, Option<f64>>(4).filter(|_| held_bytes >= BYTES_MIN) {
        rates.rebuild_seconds_per_byte = seconds / held_bytes as f64;
    }
    let connected: (Option<i64>, Option<i64>, Option<f64>) = (row.get(5), row.get(6), row.get(7));
    if let (Some(blocks), Some(bytes), Some(seconds)) = connected {
        let mut connected = super::cost::Connected::default();
        connected.note(blocks as u64, bytes as u64, Duration::from_secs_f64(seconds.max(0.0)));
        rates = connected.applied_to(rates);
    }
    Ok((rates, held_bytes as u64))
}

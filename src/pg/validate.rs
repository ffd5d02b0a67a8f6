//! Validates constraints that were added NOT VALID, one at a time, and records the result in `ops.index_jobs`.
//!
//! Called in the background of LIVE and by `verify`. A constraint that does not hold stays NOT VALID, and is told.

use std::time::Instant;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::objects;

/// Validates what is not yet validated in one segment; returns a text for each constraint that does not hold.
///
/// # Errors
/// What the server says, other than that a constraint does not hold.
pub async fn validate_segment(
    client: &Client,
    segment_id: u32,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let mut faults = Vec::new();
    for key in &objects::declared().foreign_keys {
        let name = key.segment_name(segment_id);
        let due = "select exists (select from pg_constraint c join pg_namespace n on n.oid = c.connamespace \
             where n.nspname = 'chain' and c.conname = $1 and not c.convalidated)";
        if !client.query_one(due, &[&name]).await?.get::<_, bool>(0) {
            continue;
        }
        let start = Instant::now();
        let fault = match client.batch_execute(&key.validate_on_segment(segment_id)).await {
            Ok(()) => None,
            Err(error) if error.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION) => {
                let said = error.as_db_error().map_or_else(String::new, |error| {
                    format!("{}: {}", error.message(), error.detail().unwrap_or_default())
                });
                Some(format!("{name}: {said}"))
            }
            Err(error) => return Err(error),
        };
        let table = objects::segment_table(&key.table, segment_id);
        let state = if fault.is_some() { "failed" } else { "done" };
        client
            .execute(
                "insert into ops.index_jobs (segment_id, object_name, table_name, kind, state, row_count, started_at, \
                   seconds, error) values ($1, $2 || ' (validate)', $3, 'validate', $4, 0, now(), $5, $6) \
                 on conflict (segment_id, object_name) do update set state = excluded.state, \
                   started_at = excluded.started_at, seconds = excluded.seconds, error = excluded.error",
                &[&(segment_id as i32), &name, &table, &state, &start.elapsed().as_secs_f64(), &fault],
            )
            .await?;
        faults.extend(fault);
    }
    Ok(faults)
}

/// Validates all segments, lowest first; returns what does not hold.
///
/// # Errors
/// As [`validate_segment`].
pub async fn validate_all(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    let mut faults = Vec::new();
    let segments = client
        .query("select segment_id from ops.segments where state in ('attached', 'live') order by 1", &[])
        .await?;
    for row in segments {
        faults.extend(validate_segment(client, row.get::<_, i32>(0) as u32).await?);
    }
    Ok(faults)
}

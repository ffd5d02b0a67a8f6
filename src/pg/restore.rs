//! Restores the indexes of loaded segments and attaches them, while the next segment loads.
//!
//! In: loaded segments. Out: attached ones, in order of height. Jobs stand in `ops.index_jobs`, one autocommitted
//! statement an index, longest first over all segments that wait; the catalogue decides what is left to do, so a kill
//! costs the builds that were running. Schedule (measured, see docs/benchmarks.md): serial builds side by side with little
//! sort memory each; a parallel worker only when fewer builds are left than cores.

use std::collections::VecDeque;

use deadpool_postgres::{ClientWrapper, Pool};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::objects::{self, Index};
use super::pool;
use super::segments::{self, SegmentRow};
use crate::profile::{Figures, Profile};
use crate::rows::Table;

/// Whether the user's own file of the private server says how much sort memory a build shall have. Asked once: the view
/// is built of all settings.
const IS_SORT_MEMORY_SET: &str = "select coalesce(sourcefile, '') like '%/user.conf' from pg_settings \
     where name = 'maintenance_work_mem'";

/// Steps of sort memory, bytes.
const SORT_BYTES: [u64; 4] = [8 << 20, 16 << 20, 32 << 20, 64 << 20];
/// What a row takes in sort memory: an entry of two or three fields and its place (`SortTuple` in `tuplesort.c`).
const SORTED_ROW_BYTES: u64 = 72;
/// Sort memory for each run that is merged, and how many are merged at once (`MERGE_BUFFER_SIZE`, `TAPE_BUFFER_OVERHEAD`
/// and `MAXORDER` in `tuplesort.c`).
const MERGED_RUN_BYTES: u64 = 272 << 10;
const MERGED_RUNS_MAX: u64 = 500;

/// Why indexes could not be restored. Jobs that are done stay done; the next start goes on with the others.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// The server refused or went away.
    #[error("{what}")]
    Server {
        /// What was being done.
        what: String,
        /// What the server said.
        source: tokio_postgres::Error,
    },
}

/// Seconds spent, as PROFILE lines tell them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restored {
    /// Sum of the seconds of all builds.
    pub build_seconds: f64,
    /// Seconds in which constraints were added and segments attached.
    pub attach_seconds: f64,
    /// Segments attached.
    pub segments: usize,
}

struct Job {
    segment: u32,
    index: &'static Index,
    row_count: u64,
}

impl Job {
    fn cost(&self) -> f64 {
        self.index.cost * self.row_count as f64
    }
}

/// An index that is built, with the connection that built it.
struct Built {
    client: ClientWrapper,
    segment: u32,
    seconds: f64,
}

struct Waiting {
    row: SegmentRow,
    jobs_left: usize,
}

/// Returns how much sort memory a build of so many rows gets, of at most `build_bytes`: the least with which the sorted
/// runs are still merged in one pass. Less memory stays in the processor's caches: seven builds on a million
/// transactions took 4.4 s with 8 MB each, 5.0 s with 64 MB.
fn sort_bytes(row_count: u64, build_bytes: u64) -> u64 {
    let runs = |bytes: u64| (row_count * SORTED_ROW_BYTES).div_ceil(bytes);
    let runs_max = |bytes: u64| (bytes / MERGED_RUN_BYTES).min(MERGED_RUNS_MAX);
    let enough = SORT_BYTES.into_iter().find(|&bytes| runs(bytes) <= runs_max(bytes));
    enough.map_or(build_bytes, |bytes| bytes.min(build_bytes))
}

/// Builds until `loaded` is closed and everything is attached; at most `builds_max` builds run at once, which the loader
/// raises when it is done, each with `build_bytes` of sort memory.
///
/// # Errors
/// The first failure; builds that run are given up, and stay queued like the others.
pub async fn restore(
    pool: Pool,
    mut loaded: mpsc::UnboundedReceiver<SegmentRow>,
    builds_max: watch::Receiver<usize>,
    build_bytes: u64,
    profile: Profile,
) -> Result<Restored, RestoreError> {
    let mut queue: Vec<Job> = Vec::new();
    let mut waiting: VecDeque<Waiting> = VecDeque::new();
    let mut running: JoinSet<Result<Built, RestoreError>> = JoinSet::new();
    // Connections of builds that have ended: each carries settings, and can be found and ended by its name.
    let mut idle: Vec<ClientWrapper> = Vec::new();
    let mut builds = builds_max.clone();
    let mut restored = Restored::default();
    let is_set = is_sort_memory_set(&pool).await?;
    let mut is_open = true;
    loop {
        while waiting.front().is_some_and(|segment| segment.jobs_left == 0) {
            let segment = waiting.pop_front().expect("it has a front");
            restored.attach_seconds += attach(&pool, &segment.row, &profile).await?;
            restored.segments += 1;
        }
        while running.len() < *builds.borrow() && !queue.is_empty() {
            let next = (0..queue.len()).max_by(|&a, &b| queue[a].cost().total_cmp(&queue[b].cost()));
            let job = queue.swap_remove(next.expect("the queue is not empty"));
            // Helpers only when the last builds would leave cores idle.
            let workers =
                if is_open { 0 } else { builds.borrow().saturating_sub(running.len() + 1 + queue.len()) };
            let sort_bytes = (!is_set).then(|| sort_bytes(job.row_count, build_bytes));
            running.spawn(build(pool.clone(), idle.pop(), job, workers.min(1), sort_bytes, profile.clone()));
        }
        if !is_open && running.is_empty() && waiting.is_empty() {
            return Ok(restored);
        }
        tokio::select! {
            segment = loaded.recv(), if is_open => match segment {
                Some(row) => {
                    let jobs = missing_jobs(&pool, &row).await?;
                    waiting.push_back(Waiting { row, jobs_left: jobs.len() });
                    queue.extend(jobs);
                }
                None => is_open = false,
            },
            Some(done) = running.join_next(), if !running.is_empty() => {
                let Built { client, segment, seconds } = done.expect("builds never panic")?;
                idle.push(client);
                restored.build_seconds += seconds;
                let segment = waiting.iter_mut().find(|waiting| waiting.row.id == segment);
                segment.expect("a build belongs to a segment that waits").jobs_left -= 1;
            }
            changed = builds.changed(), if is_open => {
                // The loader is gone: what it said last stays.
                if changed.is_err() {
                    is_open = !loaded.is_closed();
                }
            }
        }
    }
}

async fn is_sort_memory_set(pool: &Pool) -> Result<bool, RestoreError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let row = client.query_one(IS_SORT_MEMORY_SET, &[]).await;
    let server = |source| RestoreError::Server { what: "reading maintenance_work_mem".to_owned(), source };
    Ok(row.map_err(server)?.get(0))
}

/// Returns the builds that a segment still needs: what the catalogue lacks, after leftovers have been dropped.
async fn missing_jobs(pool: &Pool, segment: &SegmentRow) -> Result<Vec<Job>, RestoreError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let mut jobs = Vec::new();
    for index in &objects::declared().indexes {
        let name = index.segment_name(segment.id);
        let what = || format!("looking for index {name}");
        let server = |source| RestoreError::Server { what: what(), source };
        let row = client
            .query_opt(
                "select i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid \
                 join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'chain' and c.relname = $1",
                &[&name],
            )
            .await
            .map_err(server)?;
        match row.map(|row| row.get::<_, bool>(0)) {
            Some(true) => mark_done(&client, segment.id, &name, 0.0).await?,
            Some(false) => {
                client.batch_execute(&index.drop_on_segment(segment.id)).await.map_err(server)?;
                jobs.push(job(segment, index));
            }
            None => {
                let queued = "update ops.index_jobs set state = 'queued', started_at = null \
                     where segment_id = $1 and object_name = $2 and state <> 'queued'";
                client.execute(queued, &[&(segment.id as i32), &name]).await.map_err(server)?;
                jobs.push(job(segment, index));
            }
        }
    }
    Ok(jobs)
}

fn job(segment: &SegmentRow, index: &'static Index) -> Job {
    Job { segment: segment.id, index, row_count: segment.counts.rows(Table::named(&index.table)) }
}

/// Builds one index in one autocommitted statement.
async fn build(
    pool: Pool,
    client: Option<ClientWrapper>,
    job: Job,
    workers: usize,
    sort_bytes: Option<u64>,
    profile: Profile,
) -> Result<Built, RestoreError> {
    let client = match client {
        Some(client) => client,
        None => pool::connect_copy(&pool).await?,
    };
    let name = job.index.segment_name(job.segment);
    let server = |source| RestoreError::Server { what: format!("building index {name}"), source };
    let named = format!("set application_name = '{}'", pool::BUILD);
    let mut settings = format!("{named}; set max_parallel_maintenance_workers = {workers}");
    if let Some(bytes) = sort_bytes {
        settings.push_str(&format!("; set maintenance_work_mem = '{}kB'", bytes / 1024));
    }
    client.batch_execute(&settings).await.map_err(server)?;
    let id = job.segment as i32;
    client
        .execute(
            "update ops.index_jobs set state = 'running', started_at = now() \
             where segment_id = $1 and object_name = $2",
            &[&id, &name],
        )
        .await
        .map_err(server)?;
    let phase = profile.phase();
    client.batch_execute(&job.index.create_on_segment(job.segment)).await.map_err(server)?;
    let bytes = client
        .query_one("select pg_relation_size(format('chain.%I', $1::text)::regclass)", &[&name])
        .await
        .map_err(server)?
        .get::<_, i64>(0);
    let figures = Figures { rows: Some(job.row_count), bytes: Some(bytes as u64), ..Figures::default() };
    let row = profile.ended(&phase, &format!("Built index {name}"), figures);
    profile.step_done();
    mark_done(&client, job.segment, &name, row.seconds).await?;
    row.record(&client).await;
    Ok(Built { client, segment: job.segment, seconds: row.seconds })
}

async fn mark_done(
    client: &tokio_postgres::Client,
    segment: u32,
    name: &str,
    seconds: f64,
) -> Result<(), RestoreError> {
    client
        .execute(
            "update ops.index_jobs set state = 'done', seconds = coalesce(nullif($3::float8, 0), seconds, 0), error = null, \
             bytes = pg_relation_size(format('chain.%I', $2::text)::regclass) \
             where segment_id = $1 and object_name = $2",
            &[&(segment as i32), &name, &seconds],
        )
        .await
        .map_err(|source| RestoreError::Server { what: format!("recording index {name}"), source })?;
    Ok(())
}

/// Adds keys and constraints to a segment whose indexes are built, and attaches it, in one transaction.
async fn attach(pool: &Pool, segment: &SegmentRow, profile: &Profile) -> Result<f64, RestoreError> {
    let mut client = pool.get().await.map_err(pool::Error::from)?;
    let server = |source| RestoreError::Server { what: format!("attaching segment {}", segment.id), source };
    let phase = profile.phase();
    segments::prove_bounds(&client, segment).await.map_err(server)?;
    let transaction = client.transaction().await.map_err(server)?;
    let declared = objects::declared();
    for statement in declared.indexes.iter().filter_map(|index| index.promote_on_segment(segment.id)) {
        transaction.batch_execute(&statement).await.map_err(server)?;
    }
    for key in &declared.foreign_keys {
        transaction.batch_execute(&key.add_on_segment(segment.id)).await.map_err(server)?;
    }
    segments::attach(&transaction, segment).await.map_err(server)?;
    transaction
        .execute(
            "update ops.index_jobs set state = 'done', seconds = 0 where segment_id = $1 and kind = 'constraint'",
            &[&(segment.id as i32)],
        )
        .await
        .map_err(server)?;
    transaction.commit().await.map_err(server)?;
    profile.board().attached(segment.height_last);
    profile.step_done();
    let figures = Figures {
        height: Some(segment.height_last),
        blocks: Some(u64::from(segment.height_last - segment.height_first) + 1),
        ..Figures::default()
    };
    let row = profile.ended(&phase, &format!("Attached segment {}", segment.id), figures);
    row.record(&client).await;
    Ok(row.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_gets_the_least_memory_that_merges_in_one_pass() {
        let mib = |rows: u64, most: u64| sort_bytes(rows, most << 20) >> 20;
        assert_eq!([mib(0, 64), mib(3_000_000, 64), mib(10_000_000, 64)], [8, 8, 16]);
        assert_eq!([mib(30_000_000, 64), mib(100_000_000, 64), mib(200_000_000, 64)], [32, 64, 64]);
        // Never more than the plan has, and all of that where even the largest step needs a second pass.
        assert_eq!([mib(100_000_000, 24), mib(1_000, 4)], [24, 4]);
        assert_eq!([mib(2_000_000_000, 64), mib(2_000_000_000, 256)], [64, 256]);
    }
}

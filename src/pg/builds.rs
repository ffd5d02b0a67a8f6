//! Index builds: which run, how far they are, and how long the rest will take.
//!
//! In: the server's view of running builds and the queue `ops.index_jobs`. Out: [`Builds`], and an estimate. Shown while
//! indexes are restored, and by `satgres status`: one source for both. It only reads.

use std::fmt;

use tokio_postgres::Client;

use super::objects;
use crate::replay::progress::Counted;
use crate::rows::Table;

/// Builds shorter than this say nothing about how fast they go, seconds together.
const MEASURED_SECONDS_MIN: f64 = 0.2;

/// The state of all index builds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Builds {
    /// Builds that run now.
    pub running: Vec<Build>,
    /// Indexes of all loaded segments.
    pub total: u64,
    /// Of these, the finished ones.
    pub done: u64,
    /// Of these, the failed ones.
    pub failed: u64,
    /// Of these, the ones that nobody has begun.
    pub queued: u64,
    /// Work of all, core-seconds as `sql/objects.toml` declares it.
    pub cost_total: f64,
    /// Work of the finished ones, and of what running ones have done.
    pub cost_done: f64,
    /// Declared work of those whose time was measured.
    pub cost_measured: f64,
    /// Their time, seconds.
    pub seconds_measured: f64,
}

/// A running build.
#[derive(Clone, Debug, PartialEq)]
pub struct Build {
    /// Name of the index.
    pub name: String,
    /// What the server says it does, such as `building index: scanning table`.
    pub step: String,
    /// How much of the whole build is done, 0 to 1.
    pub done_ratio: f64,
    /// Seconds since it began.
    pub seconds: f64,
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.step.strip_prefix("building index: ").unwrap_or(&self.step);
        write!(f, "{} ({step}, {:.0} %)", self.name, self.done_ratio * 100.0)
    }
}

impl Builds {
    /// Reads the state.
    ///
    /// # Errors
    /// The server's.
    pub async fn read(client: &Client) -> Result<Builds, tokio_postgres::Error> {
        // An index that is being built has no name for others yet: its statement has.
        let running = "select j.segment_id, j.object_name, p.phase, \
               case when p.tuples_total > 0 then p.tuples_done::float8 / p.tuples_total \
                    when p.blocks_total > 0 then p.blocks_done::float8 / p.blocks_total else 0 end, \
               coalesce(extract(epoch from clock_timestamp() - a.query_start), 0)::float8 \
             from pg_stat_progress_create_index p \
             join pg_stat_activity a on a.pid = p.pid \
             join ops.index_jobs j on j.kind = 'index' and strpos(a.query, chr(34) || j.object_name || chr(34) || ' on ') > 0 \
             where p.datname = current_database() and p.command = 'CREATE INDEX' order by 2";
        let jobs = "select segment_id, object_name, state, row_count, coalesce(seconds, 0) \
             from ops.index_jobs where kind = 'index'";
        let mut builds = Builds::default();
        let mut shares = Vec::new();
        for row in client.query(running, &[]).await? {
            let (name, step): (String, String) = (row.get(1), row.get(2));
            let done_ratio = whole_ratio(&step, row.get(3));
            shares.push((row.get::<_, i32>(0), name.clone(), done_ratio));
            builds.running.push(Build { name, step, done_ratio, seconds: row.get(4) });
        }
        for row in client.query(jobs, &[]).await? {
            let (segment, name, state): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
            let (rows, seconds): (i64, f64) = (row.get(3), row.get(4));
            let cost = cost(segment as u32, &name) * rows as f64 / 1e6;
            builds.total += 1;
            builds.cost_total += cost;
            match state.as_str() {
                "done" => {
                    builds.done += 1;
                    builds.cost_done += cost;
                    builds.cost_measured += cost;
                    builds.seconds_measured += seconds;
                }
                "failed" => builds.failed += 1,
                state => {
                    builds.queued += u64::from(state == "queued");
                    let share = shares.iter().find(|(id, job, _)| *id == segment && *job == name);
                    builds.cost_done += cost * share.map_or(0.0, |(_, _, ratio)| *ratio);
                }
            }
        }
        Ok(builds)
    }

    /// Returns how much of the work on loaded segments is done, 0 to 1; `None` where there is none.
    #[must_use]
    pub fn done_ratio(&self) -> Option<f64> {
        if self.total == 0 {
            return None;
        }
        let all = self.done == self.total || self.cost_total <= 0.0;
        Some(if all { 1.0 } else { self.cost_done / self.cost_total })
    }
}

/// Declared cost of an index of a segment, core-microseconds a row; 0 where it is not declared any more.
fn cost(segment_id: u32, name: &str) -> f64 {
    let mut declared = objects::declared().indexes.iter();
    declared.find(|index| index.segment_name(segment_id) == name).map_or(0.0, |index| index.cost)
}

/// How much of a build is done, from its step and how much of that step: scanning, sorting and writing take about as
/// long as each other.
fn whole_ratio(step: &str, step_ratio: f64) -> f64 {
    let step_ratio = step_ratio.clamp(0.0, 1.0);
    match step.strip_prefix("building index: ") {
        Some("scanning table") => step_ratio / 3.0,
        Some(text) if text.starts_with("sorting") => 1.0 / 3.0,
        Some(text) if text.starts_with("loading") => (2.0 + step_ratio) / 3.0,
        _ => 0.0,
    }
}

/// Returns the declared work on indexes for rows, core-seconds.
#[must_use]
pub fn declared_cost(rows: &Counted) -> f64 {
    let count = |table| match table {
        Table::Blocks => 0,
        Table::Transactions => rows.txs,
        Table::Outputs => rows.outputs,
        Table::Inputs => rows.inputs,
    };
    let costs = objects::declared().indexes.iter();
    costs.map(|index| index.cost * count(Table::named(&index.table)) as f64 / 1e6).sum()
}

/// A load that runs beside the builds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// Seconds until it ends.
    pub seconds: f64,
    /// Builds at once until then.
    pub builds: u64,
}

/// Estimates how long restoring takes once everything is loaded, seconds.
///
/// `cost_to_come` is the declared work on rows that are not committed yet, core-seconds; of it `cost_last` is that of
/// the last segment, which no build can begin before the load has ended. What the builds took so far, against what was
/// declared, says how fast they go.
#[must_use]
pub fn restore_seconds(
    builds: &Builds,
    cost_to_come: f64,
    cost_last: f64,
    load: Option<Beside>,
    builds_max: u64,
) -> f64 {
    let is_measured = builds.seconds_measured >= MEASURED_SECONDS_MIN && builds.cost_measured > 0.0;
    let pace = if is_measured { builds.seconds_measured / builds.cost_measured } else { 1.0 };
    let queued = (builds.cost_total - builds.cost_done).max(0.0) * pace;
    let (to_come, last) = (cost_to_come * pace, cost_last.min(cost_to_come) * pace);
    let possible = queued + to_come - last;
    let beside = load.map_or(0.0, |load| load.seconds * load.builds as f64).min(possible);
    (queued + to_come - beside) / builds_max.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builds(cost_total: f64, cost_done: f64) -> Builds {
        Builds { cost_total, cost_done, ..Builds::default() }
    }

    #[test]
    fn without_a_measurement_the_declared_costs_count() {
        assert_eq!(restore_seconds(&builds(100.0, 40.0), 0.0, 0.0, None, 2), 30.0);
        assert_eq!(restore_seconds(&builds(100.0, 100.0), 0.0, 0.0, None, 2), 0.0);
        // Some milliseconds are no measurement.
        let short = Builds { seconds_measured: 0.1, cost_measured: 0.001, ..builds(100.0, 40.0) };
        assert_eq!(restore_seconds(&short, 0.0, 0.0, None, 2), 30.0);
    }

    #[test]
    fn what_builds_took_so_far_says_how_fast_they_go() {
        let slow = Builds { seconds_measured: 80.0, cost_measured: 40.0, ..builds(100.0, 40.0) };
        assert_eq!(restore_seconds(&slow, 0.0, 0.0, None, 4), 30.0);
    }

    #[test]
    fn builds_beside_a_load_shorten_the_rest_but_never_the_last_segment() {
        let load = |seconds| Some(Beside { seconds, builds: 1 });
        // 60 queued and 100 to come, of which 50 in the last segment; one build beside for 40 s.
        assert_eq!(restore_seconds(&builds(100.0, 40.0), 100.0, 50.0, load(40.0), 2), 60.0);
        // However long the load takes, the last segment is left.
        assert_eq!(restore_seconds(&builds(100.0, 40.0), 100.0, 50.0, load(1e6), 2), 25.0);
    }

    #[test]
    fn a_build_is_scanned_sorted_and_written() {
        assert_eq!(whole_ratio("initializing", 0.0), 0.0);
        assert_eq!(whole_ratio("building index: scanning table", 0.75), 0.25);
        assert_eq!(whole_ratio("building index: sorting live tuples", 0.0), 1.0 / 3.0);
        assert_eq!(whole_ratio("building index: loading tuples in tree", 0.25), 0.75);
    }

    #[test]
    fn the_work_of_rows_follows_from_the_declared_indexes() {
        assert_eq!(declared_cost(&Counted { blocks: 9, bytes: 9, ..Counted::default() }), 0.0);
        // transactions: 0.3 for the key, 0.8 for the txid.
        let cost = declared_cost(&Counted { txs: 1_000_000, ..Counted::default() });
        assert!((cost - 1.1).abs() < 1e-9, "{cost}");
        assert_eq!(Builds::default().done_ratio(), None);
        assert_eq!(Builds { total: 2, done: 2, ..Builds::default() }.done_ratio(), Some(1.0));
        assert_eq!(Builds { total: 2, done: 1, ..builds(4.0, 1.0) }.done_ratio(), Some(0.25));
    }
}

//! Is the service alive, and may readers ask: the answer of `/health`, and the values of `/metrics`.
//!
//! In: what the service says of itself now, and the newest look at its database. Out: [`Health`], made in no time at all:
//! it must never wait for anything. Its keys in JSON are an interface, listed in docs/status.md.

use serde::Serialize;

use super::{
    Reorg, Step, Told, between,
    board::Totals,
    eta, heights,
    looks::Look,
    report::{Eta, ServiceReport},
    state::State,
};
use crate::{process::rss_bytes, replay::progress::LoadFigures};

/// An older look at the database is none, seconds.
const LOOK_SECONDS_MAX: f64 = 15.0;

/// How the service is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key")]
pub(super) struct Health {
    pub(super) status: &'static str,
    pub(super) alive: bool,
    pub(super) ready: bool,
    pub(super) reason: Option<String>,
    pub(super) phase: String,
    pub(super) step: String,
    pub(super) step_started_timestamp_seconds: f64,
    pub(super) started_timestamp_seconds: f64,
    pub(super) at_timestamp_seconds: f64,
    pub(super) satgres_version: &'static str,
    pub(super) network: Option<String>,
    pub(super) height: Option<u32>,
    pub(super) files_height: Option<u32>,
    pub(super) loading_height: Option<u32>,
    pub(super) node_height: Option<u32>,
    pub(super) lag_blocks: Option<u32>,
    pub(super) eta_seconds: Option<f64>,
    pub(super) blocks_per_second: f64,
    pub(super) txs_per_second: f64,
    pub(super) rows_per_second: f64,
    pub(super) block_bytes_per_second: f64,
    pub(super) loaded_blocks: u64,
    pub(super) loaded_txs: u64,
    pub(super) loaded_rows: u64,
    pub(super) loaded_block_bytes: u64,
    pub(super) connected_blocks: u64,
    pub(super) reorgs: u64,
    pub(super) connect_seconds: Option<f64>,
    pub(super) utxo_cache_hits: u64,
    pub(super) utxo_cache_misses: u64,
    pub(super) utxo_cache_hit_ratio: Option<f64>,
    pub(super) utxo_cache_coins: Option<u64>,
    pub(super) utxo_cache_bytes: Option<u64>,
    pub(super) index_jobs: Option<IndexJobs>,
    pub(super) last_reorg: Option<Reorg>,
    pub(super) invalid_blocks: Option<u64>,
    pub(super) database: DatabaseHealth,
    pub(super) resident_bytes: Option<u64>,
}

/// Index builds of the loaded segments, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key")]
pub(super) struct IndexJobs {
    pub(super) queued: u64,
    pub(super) running: u64,
    pub(super) done: u64,
    pub(super) failed: u64,
}

/// The server, and how old is what it said.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/status.md tells every key")]
pub(super) struct DatabaseHealth {
    pub(super) state: &'static str,
    pub(super) message: Option<String>,
    pub(super) age_seconds: Option<f64>,
    pub(super) size_bytes: Option<u64>,
}

impl Health {
    /// `told` is `None` in the first moments of the process, `started_at` its beginning.
    pub(super) fn new(told: Option<(State, Totals)>, look: Option<Look>, started_at: f64, at: f64) -> Health {
        let (state, totals) = told.map_or_else(Default::default, |(state, totals)| (Some(state), totals));
        let reason = not_ready(state.as_ref(), look.as_ref(), at);
        let look = look.unwrap_or_default();
        let database = &look.database;
        let told = Told { is_running: state.is_some(), state, service: ServiceReport::default() };
        let heights = heights(&told, database);
        let load = told.state.as_ref().and_then(|state| state.load);
        let Eta { total_seconds, load_seconds, .. } = eta(&told, load.as_ref(), database);
        let state = told.state.as_ref();
        let live = state.and_then(|state| state.live.clone());
        let node_height = live
            .as_ref()
            .and_then(|live| live.node_height)
            .or_else(|| state.and_then(|state| state.node_height));
        let known = node_height.max(heights.files);
        let cache = state.and_then(|state| state.utxo_cache);
        let rate = |of: fn(&LoadFigures) -> f64| load.as_ref().map_or(0.0, of);
        let spends = totals.hits + totals.misses;
        Health {
            status: if reason.is_none() { "ready" } else { "not ready" },
            alive: true,
            ready: reason.is_none(),
            reason,
            phase: state.map_or_else(|| Step::Scan.phase().to_owned(), |state| state.phase.clone()),
            step: state.map_or_else(|| "starting".to_owned(), |state| state.step.clone()),
            step_started_timestamp_seconds: state.map_or(started_at, |state| state.step_started_at),
            started_timestamp_seconds: started_at,
            at_timestamp_seconds: at,
            satgres_version: env!("CARGO_PKG_VERSION"),
            network: state.map(|state| state.network.clone()),
            height: heights.attached,
            files_height: heights.files,
            loading_height: heights.loading,
            node_height,
            lag_blocks: known.map(|known| match heights.attached {
                Some(attached) => known.saturating_sub(attached),
                None => known + 1,
            }),
            eta_seconds: total_seconds.or(load_seconds),
            blocks_per_second: rate(|load| load.blocks_per_second),
            txs_per_second: rate(|load| load.txs_per_second),
            rows_per_second: rate(|load| load.rows_per_second),
            block_bytes_per_second: rate(|load| load.bytes_per_second),
            loaded_blocks: totals.counted.blocks,
            loaded_txs: totals.counted.txs,
            loaded_rows: totals.counted.rows(),
            loaded_block_bytes: totals.counted.bytes,
            connected_blocks: live.as_ref().map_or(0, |live| live.blocks),
            reorgs: live.as_ref().map_or(0, |live| live.reorgs),
            connect_seconds: live.map(|live| live.connect_seconds),
            utxo_cache_hits: totals.hits,
            utxo_cache_misses: totals.misses,
            utxo_cache_hit_ratio: (spends > 0).then(|| totals.hits as f64 / spends as f64),
            utxo_cache_coins: cache.map(|cache| cache.cache_coins),
            utxo_cache_bytes: cache.map(|cache| cache.cache_bytes),
            index_jobs: database.builds.as_ref().map(|builds| IndexJobs {
                queued: builds.queued,
                running: builds.total.saturating_sub(builds.queued + builds.done + builds.failed),
                done: builds.done,
                failed: builds.failed,
            }),
            last_reorg: database.reorg.clone().flatten(),
            invalid_blocks: database.invalid.as_ref().map(|(count, _)| *count),
            database: DatabaseHealth {
                state: if look.began_at > 0.0 { look.server.state } else { "unknown" },
                message: look.server.message.clone(),
                age_seconds: look.database_at.map(|seen_at| between(seen_at, at)),
                size_bytes: database.bytes,
            },
            resident_bytes: rss_bytes(i32::try_from(std::process::id()).unwrap_or(0)),
        }
    }
}

/// Why readers should not ask now.
fn not_ready(state: Option<&State>, look: Option<&Look>, at: f64) -> Option<String> {
    let Some(state) = state else { return Some("the service is starting".to_owned()) };
    let unseen = || Some(format!("the database has not been looked at yet; {}", state.step));
    let Some(look) = look else { return unseen() };
    if look.server.state != "up" {
        let message = look.server.message.as_ref().map(|message| format!(" ({message})"));
        return Some(format!("PostgreSQL is {}{}", look.server.state, message.unwrap_or_default()));
    }
    // Steps in which the server may have gone since.
    let is_moving = [Step::StartServer, Step::EnterLive, Step::WaitForServer]
        .iter()
        .any(|step| step.words() == state.step);
    if is_moving && look.began_at < state.step_started_at {
        return unseen();
    }
    match look.database_at {
        Some(seen_at) if seen_at == look.began_at && between(seen_at, at) <= LOOK_SECONDS_MAX => {}
        Some(seen_at) => {
            return Some(format!("the database last answered {:.0} s ago", between(seen_at, at)));
        }
        None => return unseen(),
    }
    match &look.database.tip {
        Some(Some(_)) => None,
        _ => Some(format!("no block can be queried yet; {}", state.step)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{
        ServerReport,
        database::{Database, Tip},
    };
    use super::*;

    fn look(server: &'static str, has_tip: bool, began_at: f64) -> Look {
        let tip = has_tip.then(|| Tip { height: 7, hash: "ab".to_owned() });
        let database = Database { is_installed: Some(true), tip: Some(tip), ..Database::default() };
        Look {
            began_at,
            server: ServerReport { state: server, ..ServerReport::default() },
            database: Arc::new(database),
            database_at: Some(began_at),
        }
    }

    fn reason(step: Step, look: Option<&Look>) -> Option<String> {
        let mut state = super::super::tests::state(step.phase());
        state.step = step.words().to_owned();
        state.step_started_at = 100.0;
        not_ready(Some(&state), look, 103.0)
    }

    #[test]
    fn readers_may_ask_while_the_server_was_just_seen_with_a_tip() {
        for step in [Step::Load, Step::Restore, Step::Live, Step::WaitForNode, Step::Compare] {
            assert_eq!(reason(step, Some(&look("up", true, 99.0))), None, "{step:?}");
        }
        assert_eq!(reason(Step::WaitForServer, Some(&look("up", true, 101.0))), None);
    }

    #[test]
    fn every_other_state_says_why_not() {
        let said = |step, look: Option<&Look>| reason(step, look).unwrap();
        assert_eq!(not_ready(None, None, 1.0).unwrap(), "the service is starting");
        let unseen = "the database has not been looked at yet; waiting for PostgreSQL, then trying again";
        assert_eq!(said(Step::WaitForServer, None), unseen);
        assert_eq!(said(Step::WaitForServer, Some(&look("up", true, 99.0))), unseen);
        assert_eq!(said(Step::Live, Some(&look("down", true, 102.0))), "PostgreSQL is down");
        assert_eq!(
            said(Step::Load, Some(&look("up", false, 102.0))),
            "no block can be queried yet; loading blocks"
        );
        assert_eq!(said(Step::Live, Some(&look("up", true, 80.0))), "the database last answered 23 s ago");
        let silent = Look { began_at: 102.0, ..look("up", true, 95.0) };
        assert_eq!(said(Step::Live, Some(&silent)), "the database last answered 8 s ago");
    }

    #[test]
    fn before_anything_is_known_there_is_an_answer() {
        let health = Health::new(None, None, 5.0, 6.0);
        assert_eq!((health.status, health.alive, health.phase.as_str()), ("not ready", true, "START"));
        assert_eq!((health.height, health.lag_blocks, health.eta_seconds), (None, None, None));
        assert_eq!(health.database.state, "unknown");
    }
}

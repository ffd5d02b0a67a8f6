//! `satgres status`: what the service, its server and the chain in them are doing, told truly at any moment.
//!
//! In: a data directory, and the user's own database where it is one. Out: [`Report`], which [`render()`] shows to people and serde to programs. Three sources, each
//! asked for what it alone knows: the file in which a running service says what it does ([`Board`]), the kernel's tables
//! (is that process still there, how much memory it has), and the database. It must never start a server, take a lock,
//! change anything, or wait longer than about two seconds; what cannot be found out is told as unknown.

mod board;
mod database;
mod disk;
mod render;
mod report;
mod server;
mod state;

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use tokio::time::{timeout, timeout_at};

pub use self::{
    board::Board,
    database::{Constraints, InvalidBlock, Reorg},
    render::render,
    report::{
        CacheReport, Eta, Heights, Indexes, InvalidBlocks, LiveReport, LoadReport, Memory, PhaseReport,
        Report, RunningBuild, Segments, ServiceReport, TipReport,
    },
    server::ServerReport,
    state::{LiveFigures, Step},
};
use self::{
    database::Database,
    disk::Disk,
    state::{State, now},
};
use crate::{
    config::Settings,
    error::Error,
    pg::builds::{Beside, Builds, declared_cost, restore_seconds},
    pg::{external::Error as ExternalError, target::Target},
    process::{self, Presence, rss_bytes},
    replay::{builds_while_loading, progress::LoadFigures},
};

/// Longest wait for everything.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for a connection, so that something is left for questions.
const CONNECT_PATIENCE: Duration = Duration::from_millis(1_500);
/// A running service whose last word is older is told so, seconds.
const SILENCE_SECONDS: f64 = 10.0;

/// Longest wait for a server that is told goodbye.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(100);

/// Finds out what can be found out about a data directory, and about the user's own database where the settings name one.
///
/// # Errors
/// [`Error::System`] where the directory may not be looked into: then nothing can be told; [`Error::External`] where the
/// connection string cannot be used.
pub async fn collect(settings: &Settings) -> Result<Report, Error> {
    let data_dir = settings.data_dir.as_path();
    let began = Instant::now();
    let deadline = began + PATIENCE;
    let denied = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
    if let Err(source) = State::read(data_dir)
        && denied(&source)
    {
        let what = format!("look into {} (its owner can, or root)", data_dir.display());
        return Err(Error::System { what, source });
    }
    let target = settings.database_url.as_ref().map(|url| Target::external(url.params()));
    let target =
        target.transpose().map_err(ExternalError::from)?.map(|it| it.looking().named("satgres status"));
    let (directory, is_private) = (data_dir.to_owned(), target.is_none());
    let disk = tokio::task::spawn_blocking(move || disk::measure(&directory, is_private, deadline));
    let server::Answer { report: mut server, family, session } = match &target {
        Some(target) => server::look_at(target, CONNECT_PATIENCE).await,
        None => server::look(data_dir, CONNECT_PATIENCE).await,
    };
    let mut notes = Vec::new();
    let mut database = Database::default();
    if let Some(session) = &session {
        match timeout_at(deadline.into(), database.read(&session.client)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => notes.push(format!("the database did not answer everything: {}", said(&error))),
            Err(_) => notes.push("the database did not answer everything in time".to_owned()),
        }
    }
    if let Some(facts) = &database.server {
        server.version = Some(facts.version.clone());
        server.started_timestamp_seconds = Some(facts.started_at);
        if facts.is_standby {
            server.state = "standby";
        }
    } else if session.is_some() {
        server.state = "silent";
    }
    if let Some(session) = session {
        session.close(GOODBYE_PATIENCE).await;
    }
    if server.state == "unknown" {
        notes.extend(server.message.clone());
    }
    let mut disk = match timeout(Duration::from_millis(200), disk).await {
        Ok(Ok(disk)) => disk,
        // A file system that hangs.
        _ => Disk::default(),
    };
    disk.database_bytes = database.bytes;
    // Last, so that it is the newest: what a service says changes faster than what is committed.
    let told = Told::read(data_dir, &mut notes);
    if let Some(state) = &told.state
        && state.database != server.database
    {
        let own = |database: &Option<String>| match database {
            Some(database) => format!("database {database}"),
            None => "the private PostgreSQL".to_owned(),
        };
        notes.push(format!(
            "the service here is one for {}, but {} was looked at: see --database-url",
            own(&state.database),
            own(&server.database)
        ));
    }
    if told.service.state == "never" && !data_dir.exists() {
        notes.push(format!("{} does not exist", data_dir.display()));
    }
    Ok(Report::new(data_dir, told, server, family, &database, disk, notes))
}

fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

/// What the service said, and whether it still lives.
#[derive(Debug)]
struct Told {
    state: Option<State>,
    is_running: bool,
    service: ServiceReport,
}

impl Told {
    fn read(data_dir: &Path, notes: &mut Vec<String>) -> Told {
        let mut read = State::read(data_dir);
        if let Ok(Some(state)) = &read
            && state.ended.is_none()
            && presence(state) == Presence::Gone
        {
            // Between the two looks it may have said its last word.
            read = State::read(data_dir);
        }
        match read {
            Ok(state) => Told::new(state, presence, now()),
            Err(error) => {
                notes.push(format!("status.json cannot be read: {error}"));
                let service = ServiceReport { state: "unknown", ..ServiceReport::default() };
                Told { state: None, is_running: false, service }
            }
        }
    }

    fn new(state: Option<State>, presence: impl FnOnce(&State) -> Presence, at: f64) -> Told {
        let Some(state) = state else {
            let service = ServiceReport { state: "never", ..ServiceReport::default() };
            return Told { state: None, is_running: false, service };
        };
        let ended = state.ended.as_ref();
        let (name, is_running) = match ended.map(|ended| ended.how.as_str()) {
            Some("finished") => ("finished", false),
            Some("stopped") => ("stopped", false),
            Some(_) => ("failed", false),
            None => match presence(&state) {
                Presence::Alive => ("running", true),
                Presence::Gone => ("dead", false),
                Presence::Unseen => ("unseen", at - state.written_at <= SILENCE_SECONDS),
            },
        };
        let service = ServiceReport {
            state: name,
            pid: is_running.then_some(state.process.pid),
            started_timestamp_seconds: Some(state.started_at),
            seen_timestamp_seconds: Some(state.written_at),
            silent_seconds: Some(between(state.written_at, at)),
            last_phase: Some(state.phase.clone()),
            last_step: Some(state.step.clone()),
            exit_code: ended.map(|ended| ended.exit_code),
            error: ended.and_then(|ended| ended.error.clone()),
        };
        Told { state: Some(state), is_running, service }
    }

    /// What is true only while the service runs.
    fn running(&self) -> Option<&State> {
        self.state.as_ref().filter(|_| self.is_running)
    }
}

/// Whole milliseconds from one time to a later one, seconds; a clock that was put back gives none.
fn between(from: f64, to: f64) -> f64 {
    ((to - from).max(0.0) * 1e3).round() / 1e3
}

fn presence(state: &State) -> Presence {
    state.process.look(Duration::from_secs_f64((now() - state.written_at).max(0.0)))
}

impl Report {
    fn new(
        data_dir: &Path,
        told: Told,
        server: ServerReport,
        family: Option<process::Family>,
        database: &Database,
        disk: Disk,
        notes: Vec<String>,
    ) -> Report {
        let state = told.state.as_ref();
        let load = told.running().and_then(|state| state.load);
        let heights = heights(&told, database);
        Report {
            satgres_version: env!("CARGO_PKG_VERSION"),
            data_dir: data_dir.display().to_string(),
            at_timestamp_seconds: now(),
            network: database.network.clone().or_else(|| state.map(|state| state.network.clone())),
            is_ready: matches!(database.tip, Some(Some(_))),
            phase: told.running().map(phase),
            heights,
            tip: tip(state, heights, database),
            live: told
                .running()
                .and_then(|state| state.live.as_ref())
                .map(|live| LiveReport::new(live, now())),
            invalid_blocks: database.invalid.clone().map(|(count, first)| InvalidBlocks { count, first }),
            load: load.as_ref().map(LoadReport::new),
            eta: eta(&told, load.as_ref(), database),
            utxo_cache: told.running().and_then(|state| state.utxo_cache).map(CacheReport::new),
            segments: Segments {
                planned: state.and_then(|state| state.segments_planned),
                loading: database.segments.map(|segments| segments.loading),
                loaded: database.segments.map(|segments| segments.loaded),
                attached: database.segments.map(|segments| segments.attached),
            },
            indexes: database.builds.as_ref().map(Indexes::new),
            constraints: database.constraints,
            disk,
            memory: memory(&told, family),
            last_reorg: database.reorg.clone().flatten(),
            service: told.service,
            server,
            notes,
        }
    }
}

fn phase(state: &State) -> PhaseReport {
    PhaseReport {
        name: state.phase.clone(),
        step: state.step.clone(),
        started_timestamp_seconds: state.step_started_at,
        elapsed_seconds: between(state.step_started_at, now()),
    }
}

/// What the database says of the heights; where it says nothing, what the service said last.
fn heights(told: &Told, database: &Database) -> Heights {
    let state = told.state.as_ref();
    let load = state.and_then(|state| state.load);
    let attached = match &database.tip {
        Some(tip) => tip.as_ref().map(|tip| tip.height),
        None => state.and_then(|state| state.height_attached),
    };
    let loaded = match database.segments {
        Some(segments) => segments.height_loaded,
        None => load.and_then(|load| load.height_committed).or(attached),
    };
    Heights {
        files: state.and_then(|state| state.files_tip.as_ref()).map(|tip| tip.height),
        loading: told.running().and(load).and_then(|load| load.height),
        loaded,
        attached,
    }
}

fn tip(state: Option<&State>, heights: Heights, database: &Database) -> Option<TipReport> {
    // Before a chain is chosen, what readers see is brought in line with it.
    let is_confirmed_by_node = state.is_some_and(|state| state.is_confirmed_by_node);
    if let Some(height) = heights.attached {
        let hash = database.tip.clone().flatten().map(|tip| tip.hash);
        return Some(TipReport { height, hash, source: "database", is_confirmed_by_node });
    }
    let tip = state?.files_tip.clone()?;
    Some(TipReport { height: tip.height, hash: Some(tip.hash), source: "files", is_confirmed_by_node })
}

fn eta(told: &Told, load: Option<&LoadFigures>, database: &Database) -> Eta {
    let Some(state) = told.running() else { return Eta::default() };
    let load_seconds = load.and_then(|load| load.eta_seconds);
    let is_restoring = state.phase == "RESTORE";
    let builds_max = state.plans.iter().find(|plan| plan.phase == "restore").map_or(1, |plan| plan.builds);
    let restore = |builds: &Builds| match (load, load_seconds) {
        (Some(load), Some(seconds)) if load.counted.bytes > 0 => {
            let bytes_left = load.bytes_total.saturating_sub(load.bytes_committed) as f64;
            let cost_to_come = declared_cost(&load.counted) / load.counted.bytes as f64 * bytes_left;
            let loaded = database.segments.map_or(0, |segments| segments.loaded);
            let segments_left = state.segments_planned.unwrap_or(0).saturating_sub(loaded).max(1);
            let cost_last = cost_to_come / segments_left as f64;
            let beside = Beside { seconds, builds: builds_while_loading(builds_max as usize) as u64 };
            Some(restore_seconds(builds, cost_to_come, cost_last, Some(beside), builds_max))
        }
        _ => is_restoring.then(|| restore_seconds(builds, 0.0, 0.0, None, builds_max)),
    };
    let restore_seconds = database.builds.as_ref().and_then(restore);
    let total_seconds = restore_seconds.map(|restore| load_seconds.unwrap_or(0.0) + restore);
    Eta { load_seconds, restore_seconds, total_seconds }
}

fn memory(told: &Told, family: Option<process::Family>) -> Memory {
    let plan_phase = told.service.last_phase.as_deref().map(|phase| match phase {
        "LIVE" => "live",
        // A node is waited for also while the tip is followed.
        "WAIT" if told.state.as_ref().is_some_and(|state| state.live.is_some()) => "live",
        "RESTORE" => "restore",
        _ => "replay",
    });
    let plans = told.state.as_ref().map_or(&[][..], |state| &state.plans);
    let plan = plans.iter().find(|plan| Some(plan.phase.as_str()) == plan_phase);
    Memory {
        service_bytes: told.service.pid.filter(|_| told.service.state == "running").and_then(rss_bytes),
        server_bytes: family.map(|family| family.bytes),
        server_processes: family.map(|family| family.processes),
        plan_phase: plan.map(|plan| plan.phase.clone()),
        plan_service_bytes: plan.map(|plan| plan.service_bytes),
        plan_server_bytes: plan.map(|plan| plan.server_bytes),
        plan_total_bytes: plan.map(|plan| plan.ram_bytes),
    }
}

#[cfg(test)]
mod tests;

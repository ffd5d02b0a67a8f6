//! The board on which a running service writes what it does, for whoever looks.
//!
//! In: single calls of the main path, each at a change. Out: [`State`] in `DATA_DIR/status.json`, rewritten at every step
//! and once a second by one thread, so that it does not depend on the runtime. It must never stop or slow the service: a
//! file that cannot be written is logged once, and readers see that it is old.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use tracing::warn;

use super::state::{Ended, FORMAT, FilesTip, LiveFigures, PlanFigures, State, Step, now};
use crate::{
    chain::hash::reversed_hex,
    error::Error,
    network::Network,
    pg::segments::SegmentRow,
    plan::Plan,
    process::Identity,
    replay::{progress::Progress, reader::Chain, schedule::Segment},
};

/// Longest time between two words.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// A handle to the board; all clones write on one. Until it is published nobody reads it, and calls do nothing.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    shared: Mutex<Shared>,
    changed: Condvar,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Option<State>,
    data_dir: PathBuf,
    progress: Option<Arc<Progress>>,
    is_changed: bool,
    is_closing: bool,
}

impl Board {
    /// Begins to tell: from here on the file says what this process does, with which database of the user's own, if it is
    /// one. Whoever calls it holds the service's lock.
    pub fn publish(&self, data_dir: &Path, network: Network, database: Option<String>, plans: &[&Plan]) {
        let at = now();
        let state = State {
            format: FORMAT,
            satgres_version: env!("CARGO_PKG_VERSION").to_owned(),
            network: network.name().to_owned(),
            process: Identity::own(),
            started_at: at,
            written_at: at,
            phase: Step::Scan.phase().to_owned(),
            step: Step::Scan.words().to_owned(),
            step_started_at: at,
            ended: None,
            database,
            server_pid: None,
            files_tip: None,
            is_confirmed_by_node: false,
            height_attached: None,
            segments_planned: None,
            load: None,
            live: None,
            utxo_cache: None,
            plans: plans.iter().map(|plan| figures(plan)).collect(),
        };
        let mut shared = self.lock();
        shared.state = Some(state);
        shared.data_dir = data_dir.to_owned();
        let mut is_failing = shared.write(false);
        drop(shared);
        let inner = Arc::clone(&self.0);
        let writer = std::thread::Builder::new().name("status".to_owned()).spawn(move || {
            loop {
                let shared = inner.shared.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = inner.changed.wait_timeout_while(shared, WRITE_EVERY, |shared| {
                    !shared.is_changed && !shared.is_closing
                });
                let mut shared = waited.unwrap_or_else(PoisonError::into_inner).0;
                if shared.is_closing {
                    return;
                }
                is_failing = shared.write(is_failing);
            }
        });
        match writer {
            Ok(writer) => *self.0.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer),
            Err(error) => warn!(%error, "`satgres status` will tell only how this began"),
        }
    }

    /// A step begins.
    pub fn step(&self, step: Step) {
        self.begin(step, None);
    }

    /// Loading begins; its figures are read from `progress` until the next step.
    pub fn load(&self, progress: &Arc<Progress>) {
        self.begin(Step::Load, Some(Arc::clone(progress)));
    }

    /// The server that is used.
    pub fn server(&self, pid: Option<i32>) {
        self.change(|state| state.server_pid = pid);
    }

    /// The chain was chosen: what is there of it, and what is to be loaded.
    pub fn planned(&self, chain: &Chain, present: &[SegmentRow], missing: &[Segment]) {
        let height = chain.active.tip_height();
        let attached = present.iter().take_while(|segment| segment.is_attached).last();
        self.change(|state| {
            state.files_tip = Some(FilesTip { height, hash: reversed_hex(&chain.hash(height)) });
            state.is_confirmed_by_node = chain.node.is_some();
            state.segments_planned = Some((present.len() + missing.len()) as u64);
            state.height_attached = attached.map(|segment| segment.height_last);
        });
    }

    /// Readers see the chain up to a height.
    pub fn attached(&self, height: u32) {
        self.change(|state| state.height_attached = Some(height));
    }

    /// The tip that is followed, with the blocks and reorgs since the last call, and who confirmed it, where that has changed.
    pub fn live(&self, figures: &LiveFigures, is_confirmed_by_node: Option<bool>) {
        self.change(|state| {
            let before = state.live.take().unwrap_or_default();
            let (blocks, reorgs) = (before.blocks + figures.blocks, before.reorgs + figures.reorgs);
            state.live = Some(LiveFigures { blocks, reorgs, ..figures.clone() });
            state.height_attached = Some(figures.height);
            if let Some(is_confirmed) = is_confirmed_by_node {
                state.is_confirmed_by_node = is_confirmed;
                state.files_tip = Some(FilesTip { height: figures.height, hash: figures.hash.clone() });
            }
        });
    }

    /// Says the last word; an `Ok` that nobody asked for (`until_synced`) is the end by a signal.
    pub fn ended(&self, ended: &Result<(), Error>, until_synced: bool) {
        self.lock().is_closing = true;
        self.0.changed.notify_all();
        if let Some(writer) = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of the thread's cost no more than newer words.
            let _ = writer.join();
        }
        let mut shared = self.lock();
        if let Some(state) = &mut shared.state {
            state.ended = Some(last_word(ended, until_synced));
        }
        shared.write(false);
    }

    fn begin(&self, step: Step, progress: Option<Arc<Progress>>) {
        let mut shared = self.lock();
        shared.progress = progress;
        shared.is_changed = true;
        if let Some(state) = &mut shared.state {
            (state.load, state.utxo_cache) = (None, None);
            if state.step != step.words() {
                state.phase = step.phase().to_owned();
                state.step = step.words().to_owned();
                state.step_started_at = now();
            }
        }
        drop(shared);
        self.0.changed.notify_all();
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        if let Some(state) = &mut self.lock().state {
            change(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Writes the file; returns whether that failed, and logs it unless it failed the last time too.
    fn write(&mut self, has_failed: bool) -> bool {
        self.is_changed = false;
        let Some(state) = &mut self.state else { return false };
        state.written_at = now();
        if let Some(progress) = &self.progress {
            (state.load, state.utxo_cache) = (Some(progress.figures()), progress.utxo_cache());
        }
        let written = state.write(&self.data_dir);
        if let Err(error) = &written
            && !has_failed
        {
            warn!(%error, "cannot write status.json: `satgres status` tells what is older");
        }
        written.is_err()
    }
}

fn figures(plan: &Plan) -> PlanFigures {
    PlanFigures {
        phase: plan.phase.to_string(),
        ram_bytes: plan.ram_bytes,
        service_bytes: plan.service_bytes(),
        server_bytes: plan.server_bytes(),
        builds: plan.builds as u64,
    }
}

fn last_word(ended: &Result<(), Error>, until_synced: bool) -> Ended {
    let how = match ended {
        Ok(()) if until_synced => "finished",
        Ok(()) | Err(Error::Interrupted) => "stopped",
        Err(_) => "failed",
    };
    let said = |error: &Error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            text.push_str(&format!("; because: {inner}"));
            cause = inner.source();
        }
        text
    };
    Ended {
        how: how.to_owned(),
        exit_code: ended.as_ref().map_or_else(Error::exit_code, |()| 0),
        error: ended.as_ref().err().filter(|_| how == "failed").map(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(board: &Board) -> State {
        board.lock().state.clone().unwrap()
    }

    #[test]
    fn the_last_word_says_how_it_ended() {
        let word = |ended, until_synced| {
            let Ended { how, exit_code, error } = last_word(&ended, until_synced);
            (how, exit_code, error)
        };
        assert_eq!(word(Ok(()), true), ("finished".to_owned(), 0, None));
        assert_eq!(word(Ok(()), false), ("stopped".to_owned(), 0, None));
        assert_eq!(word(Err(Error::Interrupted), true), ("stopped".to_owned(), 130, None));
        let source = std::io::Error::other("no space left");
        let failed = Error::System { what: "write".to_owned(), source };
        let said = "cannot write; because: no space left".to_owned();
        assert_eq!(word(Err(failed), false), ("failed".to_owned(), 1, Some(said)));
    }

    #[test]
    fn every_step_is_in_the_file_and_the_last_word_too() {
        let temp = tempfile::tempdir().unwrap();
        let board = Board::default();
        board.step(Step::Load);
        assert!(State::read(temp.path()).unwrap().is_none(), "nobody asked for a file yet");
        board.publish(temp.path(), Network::Regtest, None, &[]);
        let read = || State::read(temp.path()).unwrap().unwrap();
        assert_eq!((read().phase.as_str(), read().process), ("START", Identity::own()));
        board.attached(7);
        board.step(Step::Restore);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while read().phase != "RESTORE" {
            assert!(std::time::Instant::now() < deadline, "a step is written at once");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(read().height_attached, Some(7));
        board.ended(&Ok(()), true);
        assert_eq!(read().ended.unwrap().how, "finished");
        assert_eq!(read().step, state_of(&board).step);
    }

    #[test]
    fn a_file_that_cannot_be_written_stops_nobody_and_leaves_nothing_half_written() {
        let temp = tempfile::tempdir().unwrap();
        let board = Board::default();
        board.publish(&temp.path().join("none"), Network::Regtest, None, &[]);
        board.step(Step::Live);
        board.ended(&Ok(()), true);
        // In the file's place stands what no file replaces.
        std::fs::create_dir(super::super::state::path(temp.path())).unwrap();
        let board = Board::default();
        board.publish(temp.path(), Network::Regtest, None, &[]);
        board.ended(&Ok(()), true);
        let names: Vec<_> = temp.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["status.json"]);
    }

    #[test]
    fn a_file_of_another_version_or_half_a_file_is_not_believed() {
        let temp = tempfile::tempdir().unwrap();
        let board = Board::default();
        board.publish(temp.path(), Network::Regtest, None, &[]);
        board.ended(&Ok(()), true);
        let path = super::super::state::path(temp.path());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"format\": 1", "\"format\": 2")).unwrap();
        assert!(State::read(temp.path()).unwrap_err().to_string().contains("another version of satgres"));
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(State::read(temp.path()).is_err());
    }
}

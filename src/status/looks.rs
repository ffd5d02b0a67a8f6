//! The database, looked at again and again beside a running service, so that whoever asks never waits for it.
//!
//! In: the settings, the board. Out: the newest [`Look`], with its time. One task of a run keeps it; requests only read
//! what it left. It must never disturb a load: it reads small tables, on a connection of its own, and waits between two
//! looks, but comes at once when a step begins.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{Board, Found, PATIENCE, ServerReport, database::Database, look, state::now, target_of};
use crate::config::Settings;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Least pause, where steps follow each other quickly.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(200);

/// What was seen last.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    /// When the look began, seconds since 1970.
    pub(super) began_at: f64,
    /// The server.
    pub(super) server: ServerReport,
    /// What the database said when it last told everything; it may be of an earlier look.
    pub(super) database: Arc<Database>,
    /// When that was, seconds since 1970.
    pub(super) database_at: Option<f64>,
}

/// Where the newest look is kept; all clones are one.
#[derive(Debug, Clone, Default)]
pub(super) struct Looks(Arc<Mutex<Option<Look>>>);

impl Looks {
    /// The newest one.
    pub(super) fn newest(&self) -> Option<Look> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks for as long as the task lives.
    pub(super) async fn keep(self, settings: Settings, board: Board) {
        // The settings were used before: the run itself would have refused them.
        let Ok(target) = target_of(&settings) else { return };
        loop {
            let began_at = now();
            let found = look(&settings.data_dir, target.as_ref(), Instant::now() + PATIENCE).await;
            self.take(began_at, found);
            sleep(LOOK_EVERY_MIN).await;
            tokio::select! {
                () = sleep(LOOK_EVERY - LOOK_EVERY_MIN) => {}
                () = board.stepped() => {}
            }
        }
    }

    fn take(&self, began_at: f64, found: Found) {
        let Found { server, database, .. } = found;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.take().unwrap_or_default();
        // The size is what is read last.
        let is_whole = database.is_installed == Some(false) || database.bytes.is_some();
        let (database, database_at) = if is_whole {
            (Arc::new(database), Some(began_at))
        } else {
            (before.database, before.database_at)
        };
        *kept = Some(Look { began_at, server, database, database_at });
    }
}

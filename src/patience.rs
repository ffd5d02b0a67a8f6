//! How long `satgres run` puts up with a trouble: the pauses between tries, and when it gives up.
//!
//! In: each failure, and how many steps were done by then. Out: a pause, or the failure back where waiting is over. It
//! keeps no clock of its own but the instants it is told.

use std::path::Path;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::error::Error;
use crate::pg::reaction::Trouble;
use crate::replay::ReplayError;
use crate::resources::disk;
use crate::stop::Stop;

/// Pause before the first try; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Shortest and longest pause while a disk is full: only somebody's hand frees it.
const DISK_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Longest time until the server is first reached: an address may be wrong, or the server is started beside us.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest time without a step done.
const WAIT_MAX: Duration = Duration::from_secs(30 * 60);
/// The same while a disk is full.
const DISK_WAIT_MAX: Duration = Duration::from_secs(2 * 3600);
/// Fewer tries than this are never the end: a step may itself take longer than the wait.
const TRIES_MIN: u32 = 8;

/// The failures since the last step that was done.
#[derive(Debug, Default)]
pub struct Patience {
    steps: u64,
    tries: u32,
    since: Option<Instant>,
    is_reached: bool,
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait this long, then try again.
    Pause(Duration),
    /// It has lasted too long.
    GiveUp {
        /// Tries since the last step that was done.
        tries: u32,
        /// Time since the first of these failures.
        waited: Duration,
    },
}

impl Patience {
    /// Notes that the server was there: from now on a failure is worth a longer wait.
    pub fn reached(&mut self) {
        self.is_reached = true;
    }

    /// Counts a failure; `steps` is the number of steps done in the whole run: segments loaded, indexes built.
    pub fn after(&mut self, trouble: Trouble, steps: u64, now: Instant) -> Next {
        if steps > self.steps {
            *self = Patience { steps, is_reached: true, ..Patience::default() };
        }
        let since = *self.since.get_or_insert(now);
        self.tries += 1;
        let waited = now.saturating_duration_since(since);
        let (first, longest, wait_max) = match trouble {
            Trouble::Disk => (DISK_PAUSE.0, DISK_PAUSE.1, DISK_WAIT_MAX),
            Trouble::Gone if !self.is_reached => (PAUSE_FIRST, PAUSE_MAX, FIRST_WAIT_MAX),
            _ => (PAUSE_FIRST, PAUSE_MAX, WAIT_MAX),
        };
        if waited >= wait_max && self.tries >= TRIES_MIN {
            return Next::GiveUp { tries: self.tries, waited };
        }
        let doubled = first.saturating_mul(1 << (self.tries - 1).min(16));
        Next::Pause(doubled.min(longest))
    }
}

impl Patience {
    /// Tells what happened and what follows, and waits before the next try; a signal ends the wait.
    ///
    /// # Errors
    /// The error itself where waiting cannot help, [`Error::GaveUp`] where it has lasted too long,
    /// [`Error::Interrupted`] after a signal.
    pub async fn wait_out(
        &mut self,
        error: Error,
        steps: u64,
        stop: &Stop,
        data_dir: &Path,
    ) -> Result<(), Error> {
        let trouble = match error.trouble(self.is_reached) {
            Some(_) if stop.is_asked() => return Err(Error::Interrupted),
            Some(trouble) => trouble,
            None if matches!(error, Error::Replay(ReplayError::Stopped)) => return Err(Error::Interrupted),
            None => return Err(error),
        };
        let pause = match self.after(trouble, steps, Instant::now()) {
            Next::Pause(pause) => pause,
            Next::GiveUp { tries, waited } => {
                return Err(Error::GaveUp { tries, seconds: waited.as_secs(), source: Box::new(error) });
            }
        };
        let mut words = trouble.words().to_owned();
        if trouble == Trouble::Disk {
            let room = ["pg", "coins"].map(|dir| disk::room(&data_dir.join(dir)).unwrap_or_default());
            words = format!("{words}: make room. Now {}; {}", room[0], room[1]);
        }
        let seconds = pause.as_secs_f64();
        warn!(
            cause = causes(&error),
            tries = self.tries,
            "{words}; trying again in {seconds} s, from the last finished segment"
        );
        Ok(stop.or(tokio::time::sleep(pause)).await?)
    }
}

/// The whole chain of an error's causes, on one line.
fn causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(next: Next) -> f64 {
        match next {
            Next::Pause(pause) => pause.as_secs_f64(),
            Next::GiveUp { .. } => f64::INFINITY,
        }
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew_after_a_step() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let pauses: Vec<f64> = (0..9).map(|_| seconds(patience.after(Trouble::Gone, 3, now))).collect();
        assert_eq!(pauses, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        assert_eq!(seconds(patience.after(Trouble::Gone, 4, now)), 0.25);
        assert_eq!(seconds(patience.after(Trouble::Disk, 5, now)), 5.0);
        for _ in 0..40 {
            assert!(seconds(patience.after(Trouble::Disk, 5, now)) <= 60.0);
        }
    }

    #[test]
    fn it_ends_after_the_time_and_the_tries_but_never_by_one_alone() {
        let began = Instant::now();
        let minutes = |count: u64| began + Duration::from_secs(count * 60);
        let mut patience = Patience::default();
        for count in 0..7 {
            assert!(seconds(patience.after(Trouble::Starting, 0, minutes(40 * count))).is_finite());
        }
        let ended = patience.after(Trouble::Starting, 0, minutes(40 * 7));
        assert_eq!(ended, Next::GiveUp { tries: 8, waited: Duration::from_secs(280 * 60) });
        let mut patience = Patience::default();
        for _ in 0..100 {
            assert!(seconds(patience.after(Trouble::Gone, 0, began)).is_finite());
        }
        assert!(!seconds(patience.after(Trouble::Gone, 0, minutes(1))).is_finite());
        patience.reached();
        assert!(seconds(patience.after(Trouble::Gone, 0, minutes(29))).is_finite());
        assert!(seconds(patience.after(Trouble::Disk, 0, minutes(119))).is_finite());
        assert!(!seconds(patience.after(Trouble::Gone, 0, minutes(30))).is_finite());
    }
}

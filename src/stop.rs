//! Signals: the first asks for an orderly end, the second ends the process at once.
//!
//! In: SIGINT and SIGTERM. Out: a [`Stop`] that every long step looks at. What is open is closed by its owner: a load ends
//! its segment at the last whole block, a restore ends its builds, everything else is dropped where it stands.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

use crate::error::INTERRUPTED;

/// Tells whether a signal has asked for the end.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: watch::Receiver<bool>,
}

/// A signal came before the work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl Stop {
    /// Listens from now on; where that is impossible, signals keep their default and end the process.
    #[must_use]
    pub fn on_signals() -> Stop {
        let (sender, asked) = watch::channel(false);
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            // The sender must live on: a closed channel would look like a signal.
            std::mem::forget(sender);
            return Stop { asked };
        };
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if *sender.borrow() {
                    info!(
                        "a second signal: ended at once; the same command goes on from the last finished segment"
                    );
                    std::process::exit(i32::from(INTERRUPTED));
                }
                info!("a signal: ending in good order; a second one ends at once");
                let _ = sender.send(true);
            }
        });
        Stop { asked }
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Waits until the end is asked for.
    pub async fn asked(&self) {
        let mut asked = self.asked.clone();
        if asked.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Carries a step out unless the end is asked for first; then the step is dropped where it stands.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn or<T>(&self, step: impl Future<Output = T>) -> Result<T, Stopped> {
        tokio::select! {
            biased;
            done = step => Ok(done),
            () = self.asked() => Err(Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_step_is_dropped_once_the_end_is_asked_for_but_not_before() {
        let (sender, asked) = watch::channel(false);
        let stop = Stop { asked };
        assert_eq!(stop.or(async { 7 }).await, Ok(7));
        let waiting = stop.or(std::future::pending::<()>());
        sender.send(true).unwrap();
        assert_eq!(waiting.await, Err(Stopped));
        assert!(stop.is_asked());
    }
}

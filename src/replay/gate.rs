//! A gate that bounds the bytes on their way through the pipeline.
//!
//! Batches enter in chain order and pay for the memory that they will need; what they paid comes back when their last
//! row has been handed to the server. A batch larger than the whole budget enters alone.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bounds the bytes in flight.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    bytes_peak: u64,
    is_closed: bool,
}

/// Bytes that were let in; they leave when it is dropped.
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Gate>,
    bytes: u64,
}

impl Gate {
    /// Makes a gate for `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Gate { state: Mutex::default(), changed: Condvar::new(), bytes_max })
    }

    /// Waits until `bytes` more fit, or nothing else is inside. Returns `None` once the gate is closed.
    pub fn enter(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_closed && state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return None;
        }
        state.bytes += bytes;
        state.bytes_peak = state.bytes_peak.max(state.bytes);
        Some(Permit { gate: Arc::clone(self), bytes })
    }

    /// Lets nobody in any more: the pipeline stops.
    pub fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.changed.notify_all();
    }

    /// Returns the most bytes that were inside at one time.
    pub fn bytes_peak(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).bytes_peak
    }
}

impl Permit {
    /// Pays for `bytes` in all, if that is more than was paid: what a batch needs is known only once it is parsed. It
    /// never waits; whoever comes next waits the longer.
    pub fn raise(&mut self, bytes: u64) {
        let more = bytes.saturating_sub(self.bytes);
        self.bytes += more;
        let mut state = self.gate.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes += more;
        state.bytes_peak = state.bytes_peak.max(state.bytes);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.state.lock().unwrap_or_else(PoisonError::into_inner).bytes -= self.bytes;
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_holds_and_an_oversized_batch_enters_alone() {
        let gate = Gate::new(100);
        let first = gate.enter(60).unwrap();
        let waiting = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || drop(gate.enter(1_000).unwrap()))
        };
        let second = gate.enter(40).unwrap();
        assert!(!waiting.is_finished());
        drop(first);
        drop(second);
        waiting.join().unwrap();
        assert_eq!(gate.bytes_peak(), 1_000);
    }

    #[test]
    fn who_needs_more_than_was_paid_keeps_the_next_one_out() {
        let gate = Gate::new(100);
        let mut first = gate.enter(40).unwrap();
        first.raise(30);
        first.raise(90);
        let waiting = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || drop(gate.enter(40).unwrap()))
        };
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiting.is_finished());
        drop(first);
        waiting.join().unwrap();
        assert_eq!(gate.bytes_peak(), 90);
    }

    #[test]
    fn a_closed_gate_wakes_whoever_waits() {
        let gate = Gate::new(10);
        let _inside = gate.enter(10).unwrap();
        let waiting = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.enter(1).is_none())
        };
        gate.close();
        assert!(waiting.join().unwrap());
    }
}

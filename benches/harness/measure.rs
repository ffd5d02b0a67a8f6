//! How long one call takes: iterations that fill an epoch, several epochs, and the figures of each.

use std::time::{Duration, Instant};

use super::counters::{Counted, Counters};
use super::options::Options;

/// An epoch lasts this many times what the clock can tell apart.
const CLOCK_MULTIPLE: u32 = 1_000;
/// Longest epoch that is aimed at; a call that takes longer makes an epoch of its own.
const EPOCH_MAX: Duration = Duration::from_millis(100);

/// What the epochs are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// Length of an epoch that is aimed at.
    pub epoch: Duration,
    /// Number of epochs.
    pub epochs: u32,
}

/// The figures of one benchmark: one value an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Calls in each epoch.
    pub calls: u64,
    /// Seconds that one call took, by epoch.
    pub seconds: Vec<f64>,
    /// What the counters counted for one call, by epoch; empty without counters.
    pub counted: Vec<Counted>,
    /// Seconds of everything, the search for the number of calls included.
    pub total_seconds: f64,
}

impl Method {
    /// Returns the method for the precision of this machine's clock.
    pub fn of_this_clock(options: &Options) -> Method {
        let epoch_min = Duration::from_millis(options.epoch_ms);
        let epoch = (clock_resolution() * CLOCK_MULTIPLE).clamp(epoch_min, EPOCH_MAX.max(epoch_min));
        Method { epoch, epochs: options.epochs }
    }
}

/// Returns the least time that two readings of the clock differ by.
pub fn clock_resolution() -> Duration {
    let tick = || {
        let first = Instant::now();
        loop {
            let passed = first.elapsed();
            if !passed.is_zero() {
                return passed;
            }
        }
    };
    (0..100).map(|_| tick()).min().expect("a hundred readings")
}

/// Measures one benchmark.
pub fn measure(method: &Method, mut counters: Option<&mut Counters>, call: &mut dyn FnMut()) -> Measured {
    let began = Instant::now();
    let mut measured = Measured { calls: calls_of_an_epoch(method, call), ..Measured::default() };
    for _ in 0..method.epochs {
        if let Some(counters) = counters.as_deref_mut() {
            counters.begin();
        }
        let seconds = run(measured.calls, call).as_secs_f64();
        if let Some(counted) = counters.as_deref_mut().and_then(Counters::end) {
            measured.counted.push(counted.for_each_of(measured.calls));
        }
        measured.seconds.push(seconds / measured.calls as f64);
    }
    measured.total_seconds = began.elapsed().as_secs_f64();
    measured
}

/// Runs one benchmark until the process is ended.
pub fn endless(name: &str, call: &mut dyn FnMut()) -> ! {
    eprintln!("running {name} until interrupted");
    loop {
        call();
    }
}

/// Finds how many calls fill an epoch; what runs meanwhile warms up.
fn calls_of_an_epoch(method: &Method, call: &mut dyn FnMut()) -> u64 {
    let mut calls = 1;
    loop {
        let passed = run(calls, call);
        if passed * 10 >= method.epoch * 9 {
            return calls;
        }
        let factor = method.epoch.as_secs_f64() / passed.as_secs_f64().max(1e-9);
        // A short run tells little: at most tenfold at once.
        calls = ((calls as f64 * factor.clamp(1.1, 10.0)).ceil()) as u64;
    }
}

fn run(calls: u64, call: &mut dyn FnMut()) -> Duration {
    let began = Instant::now();
    for _ in 0..calls {
        call();
    }
    began.elapsed()
}

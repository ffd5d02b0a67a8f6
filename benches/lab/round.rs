//! One timed round: seconds until every row is in, seconds until every index is there, and the CPU of both together.

use std::time::Instant;

use super::cpu::Cpu;

/// What a round took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    pub load_seconds: f64,
    pub restore_seconds: f64,
    pub cpu: Cpu,
}

impl Round {
    pub fn total_seconds(&self) -> f64 {
        self.load_seconds + self.restore_seconds
    }
}

/// Times a round.
#[derive(Debug)]
pub struct Watch {
    postmaster: i32,
    started: Instant,
    cpu: Cpu,
}

impl Watch {
    pub fn start(postmaster: i32) -> Watch {
        let cpu = Cpu::now(postmaster);
        Watch { postmaster, started: Instant::now(), cpu }
    }

    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Ends a round whose rows were all in after `load_seconds`.
    pub fn ended(self, load_seconds: f64) -> Round {
        let restore_seconds = self.seconds() - load_seconds;
        Round { load_seconds, restore_seconds, cpu: Cpu::now(self.postmaster).since(self.cpu) }
    }
}

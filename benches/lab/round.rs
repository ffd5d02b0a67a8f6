//! One timed round: seconds until every row is in, seconds until every index is there, and the CPU of both together.

use std::time::Instant;

use super::cpu::{Cpu, Sampled, Sampler};

/// What a round took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    pub load_seconds: f64,
    pub restore_seconds: f64,
    pub cpu: Cpu,
    /// CPU seconds by what was being done; empty where nobody asked.
    pub stages: Vec<(String, f64)>,
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
    sampler: Option<Sampler>,
}

impl Watch {
    pub fn start(postmaster: i32) -> Watch {
        Watch { postmaster, sampler: None, cpu: Cpu::now(postmaster), started: Instant::now() }
    }

    /// The same, and looks what the CPU is used for.
    pub fn start_sampling(postmaster: i32) -> Watch {
        Watch { sampler: Some(Sampler::start(postmaster)), ..Watch::start(postmaster) }
    }

    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Ends a round whose rows were all in after `load_seconds`.
    pub fn ended(self, load_seconds: f64) -> Round {
        let restore_seconds = self.seconds() - load_seconds;
        let Sampled { stages, own_seconds } = self.sampler.map(Sampler::stop).unwrap_or_default();
        let mut cpu = Cpu::now(self.postmaster).since(self.cpu);
        cpu.service_seconds -= own_seconds;
        Round { load_seconds, restore_seconds, cpu, stages }
    }
}

//! The processor's own counters, where it has them and lets us: many virtual machines do not.

use perf_event::events::Hardware;
use perf_event::{Builder, Counter, Group};

/// The counters of this thread, which run together.
pub struct Counters {
    group: Group,
    instructions: Counter,
    cycles: Counter,
    branches: Counter,
    misses: Counter,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counters")
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Instructions that were carried out.
    pub instructions: f64,
    /// Cycles that they took.
    pub cycles: f64,
    /// Branches among them.
    pub branches: f64,
    /// Branches that were guessed wrongly.
    pub misses: f64,
}

impl Counters {
    /// Opens the counters.
    ///
    /// # Errors
    /// What the system says: go on without them.
    pub fn open() -> std::io::Result<Counters> {
        let mut group = Group::new()?;
        let mut add = |event| group.add(&Builder::new(event));
        let instructions = add(Hardware::INSTRUCTIONS)?;
        let cycles = add(Hardware::CPU_CYCLES)?;
        let branches = add(Hardware::BRANCH_INSTRUCTIONS)?;
        let misses = add(Hardware::BRANCH_MISSES)?;
        Ok(Counters { group, instructions, cycles, branches, misses })
    }

    /// Begins to count, from 0.
    pub fn begin(&mut self) {
        // A counter that cannot be started counts nothing: `end` sees it.
        let _ = self.group.reset();
        let _ = self.group.enable();
    }

    /// Ends counting; nothing if the counters did not run.
    pub fn end(&mut self) -> Option<Counted> {
        self.group.disable().ok()?;
        let counts = self.group.read().ok()?;
        let of = |counter: &Counter| counts[counter] as f64;
        let counted = Counted {
            instructions: of(&self.instructions),
            cycles: of(&self.cycles),
            branches: of(&self.branches),
            misses: of(&self.misses),
        };
        (counted.cycles > 0.0).then_some(counted)
    }
}

impl Counted {
    /// Returns the share of one of so many calls.
    pub fn for_each_of(self, calls: u64) -> Counted {
        let calls = calls as f64;
        Counted {
            instructions: self.instructions / calls,
            cycles: self.cycles / calls,
            branches: self.branches / calls,
            misses: self.misses / calls,
        }
    }
}

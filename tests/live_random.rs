//! Random steps against a real node: whatever happens in which order, the database is what a fresh replay makes of the chain.
//!
//! Blocks, reorgs, restarts of the node, kills of the service and of PostgreSQL, from a seed. `SATGRES_LIVE_STEPS` sets how
//! many, `SATGRES_LIVE_SEED` which.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "live/mod.rs"]
mod live;
#[path = "support/mod.rs"]
mod support;

use live::Tip;
use support::{Satgres, signal};

/// Steps without a word from the environment.
const STEPS: u64 = 200;
/// Steps between two comparisons with a fresh replay.
const CHECK_EVERY: u64 = 20;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// The generator of Vigna's SplitMix64: enough for choices.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ word >> 31) % bound) as usize
    }
}

#[test]
fn random_steps_end_with_what_a_fresh_replay_gives() {
    let (steps, seed) = (number("SATGRES_LIVE_STEPS", STEPS), number("SATGRES_LIVE_SEED", 1));
    let Some(mut tip) = Tip::start(120, &[], "random steps are followed") else { return };
    let mut random = Random(seed);
    let fresh = Satgres::new();
    tip.follow();
    for step in 1..=steps {
        let what = match random.below(20) {
            0..10 => {
                let count = 1 + random.below(5);
                tip.mine(count);
                format!("mine {count}")
            }
            10..16 => {
                let depth = 1 + random.below(12);
                // Now and then the new branch has less work, or as much.
                let count = if random.below(8) == 0 { depth } else { depth + 1 + random.below(3) };
                tip.reorg(depth, count);
                format!("reorg of {depth} for {count}")
            }
            16 => {
                tip.restart_node();
                "restart of the node".to_owned()
            }
            17 | 18 => {
                tip.kill();
                if random.below(2) == 0 {
                    tip.mine(1);
                }
                tip.follow();
                "kill of the service".to_owned()
            }
            _ => {
                signal(tip.satgres.postmaster(), libc::SIGKILL);
                "kill of PostgreSQL".to_owned()
            }
        };
        eprintln!("step {step} of {steps}, seed {seed}: {what}, height {}", tip.chain.height());
        // Half of the steps wait; the others meet a service that is still at work.
        if random.below(2) == 0 {
            tip.wait();
        }
        if step % CHECK_EVERY == 0 || step == steps {
            tip.check_against_replay(&fresh);
        }
    }
    tip.satgres.verify();
    tip.stop();
}

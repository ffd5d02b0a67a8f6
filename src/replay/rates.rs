//! Rates of a load over the last while, from samples of its counters.
//!
//! In: counts at times. Out: counts a second over a window that ends now. Pure: the caller has the clock.

use std::collections::VecDeque;

use super::progress::Counted;

/// Seconds between two samples.
const SAMPLE_SECONDS: f64 = 1.0;
/// Longest window, seconds.
const KEPT_SECONDS: f64 = 600.0;

/// Samples, a second apart, of the last ten minutes.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    samples: VecDeque<(f64, Counted)>,
}

/// Counts a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerSecond {
    /// Blocks.
    pub blocks: f64,
    /// Transactions.
    pub txs: f64,
    /// Rows of transactions, inputs and outputs.
    pub rows: f64,
    /// Bytes of blocks.
    pub bytes: f64,
}

impl Rates {
    /// Notes the counts at a time, seconds since the load began.
    pub fn note(&mut self, at: f64, counted: &Counted) {
        if self.samples.back().is_some_and(|(last, _)| at - last < SAMPLE_SECONDS) {
            return;
        }
        self.samples.push_back((at, *counted));
        // The first one stays until the second is old enough to begin the longest window.
        while self.samples.get(1).is_some_and(|(second, _)| at - second >= KEPT_SECONDS) {
            self.samples.pop_front();
        }
    }

    /// Returns the rates from `window` seconds ago, or the beginning, to now.
    pub fn over(&self, window: f64, now: f64, counted: &Counted) -> PerSecond {
        let before = self.samples.iter().rev().find(|(at, _)| *at <= now - window);
        // Of a load that is younger than the window everything counts.
        let (since, base) = before.copied().unwrap_or_default();
        let seconds = (now - since).max(1e-3);
        let rate = |count: fn(&Counted) -> u64| count(counted).saturating_sub(count(&base)) as f64 / seconds;
        PerSecond {
            blocks: rate(|counted| counted.blocks),
            txs: rate(|counted| counted.txs),
            rows: rate(Counted::rows),
            bytes: rate(|counted| counted.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(bytes: u64) -> Counted {
        Counted { blocks: bytes / 100, txs: bytes / 10, inputs: bytes / 10, outputs: bytes / 5, bytes }
    }

    #[test]
    fn a_young_load_has_the_rate_since_it_began() {
        let mut rates = Rates::default();
        rates.note(2.0, &counted(1_000));
        let expected = PerSecond { blocks: 5.0, txs: 50.0, rows: 200.0, bytes: 500.0 };
        assert_eq!(rates.over(60.0, 4.0, &counted(2_000)), expected);
    }

    #[test]
    fn the_rate_is_that_of_the_window_not_of_the_beginning() {
        let mut rates = Rates::default();
        // 100 bytes a second for 100 seconds, then 1,000 a second for 60.
        for second in 0_u32..=160 {
            let bytes = u64::from(second.min(100)) * 100 + u64::from(second.saturating_sub(100)) * 1_000;
            rates.note(f64::from(second), &counted(bytes));
        }
        assert_eq!(rates.over(60.0, 160.0, &counted(70_000)).bytes, 1_000.0);
        assert_eq!(rates.over(160.0, 160.0, &counted(70_000)).bytes, 437.5);
    }

    #[test]
    fn a_load_that_stands_still_slows_down() {
        let mut rates = Rates::default();
        rates.note(0.0, &counted(0));
        rates.note(10.0, &counted(10_000));
        assert_eq!(rates.over(60.0, 20.0, &counted(10_000)).bytes, 500.0);
        assert_eq!(rates.over(60.0, 80.0, &counted(10_000)).bytes, 0.0);
    }

    #[test]
    fn samples_are_bounded() {
        let mut rates = Rates::default();
        for tenth in 0..100_000 {
            rates.note(f64::from(tenth) / 10.0, &counted(0));
        }
        assert!(rates.samples.len() <= 602, "{}", rates.samples.len());
    }
}

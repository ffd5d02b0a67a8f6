//! The generator of every random choice in a chain.
//!
//! In: a seed. Out: numbers that are the same on every machine and with every version of every crate, which is why
//! this is written here (xoshiro256**, seeded by splitmix64) and why nothing in it uses floating point.
//! Called by the planner. It must never be used for anything secret.

/// The state of one stream of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: [u64; 4],
}

impl Random {
    /// Starts the stream of `seed`.
    pub(super) fn from_seed(seed: u64) -> Self {
        let mut counter = seed;
        let mut split_mix = || {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = counter;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self { state: [split_mix(), split_mix(), split_mix(), split_mix()] }
    }

    /// Draws 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Draws a number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws an index of a slice of `len` entries, which is not empty.
    pub(super) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Says yes in `per_mille` of 1,000 cases.
    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Counts how often `chance(per_mille)` says yes in a row, at most `max`: the mean is near p / (1 - p).
    pub(super) fn run_length(&mut self, per_mille: u64, max: usize) -> usize {
        let mut length = 0;
        while length < max && self.chance(per_mille) {
            length += 1;
        }
        length
    }

    /// Draws from `first..=last` (1 or more) so that every doubling is as likely as any other.
    pub(super) fn log_uniform(&mut self, first: u64, last: u64) -> u64 {
        debug_assert!(1 <= first && first <= last);
        let (from, to) = (log2(first), log2(last + 1));
        exp2(from + self.below(to - from)).clamp(first, last)
    }
}

/// Logarithms here have 16 binary places and run straight between powers of two.
const PLACES: u32 = 16;

fn log2(x: u64) -> u64 {
    let whole = x.ilog2();
    let part = (u128::from(x) << PLACES >> whole) as u64 - (1 << PLACES);
    (u64::from(whole) << PLACES) + part
}

fn exp2(log: u64) -> u64 {
    let (whole, part) = (log >> PLACES, log & ((1 << PLACES) - 1));
    ((u128::from((1 << PLACES) | part) << whole) >> PLACES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_never_changes() {
        // The first outputs of xoshiro256** seeded by splitmix64(0); every chain depends on them.
        let mut random = Random::from_seed(0);
        assert_eq!(random.bits(), 0x99ec_5f36_cb75_f2b4);
        assert_eq!(random.bits(), 0xbf6e_1f78_4956_452a);
        assert_eq!(random.bits(), 0x1a5f_849d_4933_e6e0);
    }

    #[test]
    fn logarithms_are_exact_at_powers_of_two_and_reversible() {
        assert_eq!(log2(1), 0);
        assert_eq!(log2(2), 65_536);
        assert_eq!(log2(3), 98_304);
        assert_eq!(log2(1024), 655_360);
        for x in [1, 2, 3, 5, 100, 65_535, 65_536] {
            assert_eq!(exp2(log2(x)), x);
        }
    }

    #[test]
    fn log_uniform_gives_each_doubling_the_same_share() {
        let mut random = Random::from_seed(7);
        let mut octaves = [0u32; 10];
        for _ in 0..100_000 {
            let x = random.log_uniform(1, 1023);
            assert!((1..=1023).contains(&x));
            octaves[x.ilog2() as usize] += 1;
        }
        assert!(octaves.iter().all(|&n| (9_500..10_500).contains(&n)), "{octaves:?}");
        assert_eq!(random.log_uniform(5, 5), 5);
    }

    #[test]
    fn run_lengths_have_the_stated_mean() {
        let mut random = Random::from_seed(1);
        let total: usize = (0..100_000).map(|_| random.run_length(800, 50)).sum();
        assert!((390_000..410_000).contains(&total), "{total}");
    }
}

//! How large the UTXO cache is where nobody says so, and when a size that somebody said is too large.
//!
//! Bitcoin Core's rule for a steady state (its RAM-aware `-dbcache`): a quarter of what is left beyond 2 GiB, from 100
//! MiB to 2 GiB. LIVE keeps to it. A replay takes the same slope up to the size of a whole UTXO set and gives it back.

use super::{Overrides, Phase, RAM_BYTES_MIN};
use crate::resources::{Resources, about};

/// Memory left to everything else before the cache grows.
const RESERVED_BYTES: u64 = 2 << 30;
/// Least default.
pub const DEFAULT_BYTES_MIN: u64 = 100 << 20;
/// Largest default in a steady state.
pub const LIVE_BYTES_MAX: u64 = 2 << 30;
/// A whole UTXO set: 40 bytes for each of 214 million coins. Mainnet has about 170 million and never had 200.
pub const WHOLE_SET_BYTES: u64 = 8 << 30;
/// Below this much memory anything beyond the default is too much.
const SMALL_RAM_BYTES: u64 = 4 << 30;

/// The default in a phase. Once loading is over the set need not be whole any more.
#[must_use]
pub fn default_bytes(ram_bytes: u64, phase: Phase) -> u64 {
    let bytes_max = match phase {
        Phase::Replay => WHOLE_SET_BYTES,
        Phase::Restore | Phase::Live => LIVE_BYTES_MAX,
    };
    (ram_bytes.saturating_sub(RESERVED_BYTES) / 4).clamp(DEFAULT_BYTES_MIN, bytes_max)
}

/// Whether a size asked for is too large: above the default with less than 4 GiB of memory, else above 75 % of it.
#[must_use]
pub fn is_oversized(cache_bytes: u64, ram_bytes: u64, phase: Phase) -> bool {
    if ram_bytes < SMALL_RAM_BYTES {
        cache_bytes > default_bytes(ram_bytes, phase)
    } else {
        cache_bytes > ram_bytes / 4 * 3
    }
}

/// Says so of the size that the user gave.
pub(super) fn warning(resources: &Resources, phase: Phase, overrides: &Overrides) -> Vec<String> {
    let ram_bytes = resources.ram_bytes.value;
    let Some(asked) = &overrides.utxo_cache_bytes else { return Vec::new() };
    if !is_oversized(asked.value, ram_bytes, phase) {
        return Vec::new();
    }
    let limit = if ram_bytes < SMALL_RAM_BYTES {
        format!("more than the default of {}", about(default_bytes(ram_bytes.max(RAM_BYTES_MIN), phase)))
    } else {
        "more than 75 % of it".to_owned()
    };
    vec![format!(
        "a UTXO cache of {} ({}) is too large for {} of RAM ({}): it is {limit}",
        about(asked.value),
        asked.source,
        about(ram_bytes),
        resources.ram_bytes.source
    )]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn live_follows_bitcoin_core() {
        for (ram_mib, cache_mib) in [
            (0, 100),
            (1024, 100),
            (2048, 100),
            (2448, 100),
            (3072, 256),
            (4096, 512),
            (8192, 1536),
            (10_240, 2048),
            (16_384, 2048),
            (262_144, 2048),
        ] {
            assert_eq!(default_bytes(ram_mib * MIB, Phase::Live), cache_mib * MIB, "{ram_mib} MiB");
        }
        assert_eq!(default_bytes(u64::MAX, Phase::Live), 2_147_483_648);
    }

    #[test]
    fn a_replay_takes_the_same_slope_up_to_the_whole_set() {
        for (ram_mib, cache_mib) in
            [(512, 100), (4096, 512), (16_384, 3584), (32_768, 7680), (34_816, 8192), (65_536, 8192)]
        {
            assert_eq!(default_bytes(ram_mib * MIB, Phase::Replay), cache_mib * MIB, "{ram_mib} MiB");
        }
    }

    #[test]
    fn oversized_is_above_the_default_on_small_machines_and_three_quarters_on_others() {
        let gib = |n: u64| n << 30;
        assert!(!is_oversized(100 * MIB, gib(1), Phase::Live));
        assert!(is_oversized(100 * MIB + 1, gib(1), Phase::Live));
        assert!(is_oversized(513 * MIB, gib(4) - MIB, Phase::Live));
        assert!(!is_oversized(gib(3), gib(4), Phase::Live));
        assert!(is_oversized(gib(3) + 1, gib(4), Phase::Live));
        assert!(!is_oversized(gib(12), gib(16), Phase::Replay));
        assert!(is_oversized(gib(13), gib(16), Phase::Replay));
        assert!(!is_oversized(0, 0, Phase::Live));
    }

    proptest! {
        #[test]
        fn the_default_never_warns_about_itself(ram_bytes in prop_oneof![0..=u64::MAX, 0..=(64_u64 << 30)]) {
            for phase in Phase::ALL {
                prop_assert!(!is_oversized(default_bytes(ram_bytes, phase), ram_bytes, phase));
            }
        }
    }
}

//! What the headers before a header demand of it: its target and its time.
//!
//! In: the network and the header's ancestors. Out: whether it may follow them. Pure; called wherever headers come from
//! somebody who may be wrong. Proof of work itself is in [`super::header`]. Block versions and times in the future are
//! not looked at.

use bitcoin::pow::{CompactTarget, Target};

use super::header::Header;
use crate::network::Network;

/// Blocks between two changes of the difficulty.
const PERIOD_BLOCKS: u32 = 2016;
/// Seconds that those blocks should take.
const PERIOD_SECONDS: u32 = 14 * 24 * 3600;
/// Seconds without a block after which test networks allow the easiest target.
const MIN_DIFFICULTY_AFTER_SECONDS: u64 = 1200;
/// Most seconds by which the first block of a period may be earlier than the block before (BIP94).
const TIMEWARP_SECONDS_MAX: u32 = 600;
/// Blocks whose times make the median.
const MEDIAN_BLOCKS: usize = 11;

/// What of an ancestor matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Time in its header, seconds since 1970.
    pub time: u32,
    /// Its target in compact form.
    pub bits: u32,
}

/// A rule that a header breaks in the light of those before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Another target is due.
    #[error("target {found:08x} where {due:08x} is due")]
    Difficulty {
        /// The header's, compact form.
        found: u32,
        /// What the network's rules ask for, compact form.
        due: u32,
    },
    /// Not later than half of the eleven blocks before.
    #[error("time {time} is not after the median {median} of the blocks before")]
    TooEarly {
        /// The header's, seconds since 1970.
        time: u32,
        /// Median of its ancestors', seconds since 1970.
        median: u32,
    },
    /// The first of a period lies too far before the last of the one before (BIP94).
    #[error("time {time} is more than ten minutes before the block before, at {before} (BIP94)")]
    Timewarp {
        /// The header's, seconds since 1970.
        time: u32,
        /// The parent's, seconds since 1970.
        before: u32,
    },
}

/// Checks a header at a height against its ancestors, the parent first; 2,016 of them are needed, or all there are
/// (`ContextualCheckBlockHeader` in Bitcoin Core's `validation.cpp`).
///
/// # Errors
/// [`BadHeader`]: whoever sent it is wrong.
///
/// # Panics
/// If there is no parent.
pub fn check_header(
    network: Network,
    height: u32,
    header: &Header,
    past: impl Iterator<Item = Past> + Clone,
) -> Result<(), BadHeader> {
    let parent = past.clone().next().expect("the genesis block is never checked against ancestors");
    let due = required_bits(network, height, header.time, past.clone());
    if header.bits != due {
        return Err(BadHeader::Difficulty { found: header.bits, due });
    }
    let mut times = [0; MEDIAN_BLOCKS];
    let mut count = 0;
    for (slot, past) in times.iter_mut().zip(past) {
        *slot = past.time;
        count += 1;
    }
    times[..count].sort_unstable();
    let median = times[count / 2];
    if header.time <= median {
        return Err(BadHeader::TooEarly { time: header.time, median });
    }
    let is_first_of_period = height.is_multiple_of(PERIOD_BLOCKS);
    if network == Network::Testnet4
        && is_first_of_period
        && header.time < parent.time.saturating_sub(TIMEWARP_SECONDS_MAX)
    {
        return Err(BadHeader::Timewarp { time: header.time, before: parent.time });
    }
    Ok(())
}

/// Returns the target that is due, in compact form (`GetNextWorkRequired` in Bitcoin Core's `pow.cpp`).
fn required_bits(
    network: Network,
    height: u32,
    time: u32,
    mut past: impl Iterator<Item = Past> + Clone,
) -> u32 {
    let limit = network.pow_limit_bits();
    let parent = past.clone().next().expect("the caller has looked");
    if network == Network::Regtest {
        return parent.bits;
    }
    if height.is_multiple_of(PERIOD_BLOCKS) {
        let first = past.nth(PERIOD_BLOCKS as usize - 1).expect("all ancestors of the period are there");
        // BIP94: the first block of a period never has the exceptional target of test networks.
        let base = if network == Network::Testnet4 { first.bits } else { parent.bits };
        return retarget(base, parent.time.saturating_sub(first.time), limit);
    }
    if !matches!(network, Network::Test | Network::Testnet4) {
        return parent.bits;
    }
    if u64::from(time) > u64::from(parent.time) + MIN_DIFFICULTY_AFTER_SECONDS {
        return limit;
    }
    // The last target that was not the exception.
    let mut at = height - 1;
    for past in past {
        if past.bits != limit || at.is_multiple_of(PERIOD_BLOCKS) {
            return past.bits;
        }
        at -= 1;
    }
    limit
}

/// Scales a target by the time that a period took (`CalculateNextWorkRequired`), at most fourfold either way.
fn retarget(bits: u32, seconds: u32, limit: u32) -> u32 {
    let seconds = seconds.clamp(PERIOD_SECONDS / 4, PERIOD_SECONDS * 4);
    let expand = |bits| Target::from_compact(CompactTarget::from_consensus(bits));
    let mut bytes = expand(bits).to_le_bytes();
    // 32 bits at a time. The product fits 256 bits for every target within a network's limit.
    let mut carry: u64 = 0;
    for word in bytes.chunks_exact_mut(4) {
        carry += u64::from(u32::from_le_bytes((&*word).try_into().expect("4 bytes"))) * u64::from(seconds);
        word.copy_from_slice(&(carry as u32).to_le_bytes());
        carry >>= 32;
    }
    let mut rest: u64 = 0;
    for word in bytes.chunks_exact_mut(4).rev() {
        rest = rest << 32 | u64::from(u32::from_le_bytes((&*word).try_into().expect("4 bytes")));
        word.copy_from_slice(&((rest / u64::from(PERIOD_SECONDS)) as u32).to_le_bytes());
        rest %= u64::from(PERIOD_SECONDS);
    }
    Target::from_le_bytes(bytes).min(expand(limit)).to_compact_lossy().to_consensus()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 0x1d00_ffff;

    /// Ancestors of a height, the parent first, each `step` seconds after the one before, all with the same target.
    fn even(height: u32, time_parent: u32, step: u32, bits: u32) -> impl Iterator<Item = Past> + Clone {
        (0..height).map(move |back| Past { time: time_parent.saturating_sub(back * step), bits })
    }

    fn header(time: u32, bits: u32) -> Header {
        Header { version: 1, prev_hash: [0; 32], merkle_root: [0; 32], time, bits, nonce: 0 }
    }

    #[test]
    fn mainnets_own_retargets_are_reproduced() {
        // Heights 32256 (the first change), 30240, 68544 and 40320 of mainnet, from Bitcoin Core's pow_tests.cpp and the chain.
        assert_eq!(retarget(LIMIT, 1_262_152_739 - 1_261_130_161, LIMIT), 0x1d00_d86a);
        assert_eq!(retarget(LIMIT, 1_233_061_996 - 1_231_006_505, LIMIT), LIMIT);
        assert_eq!(retarget(0x1c05_a3f4, 1_279_297_671 - 1_279_008_237, LIMIT), 0x1c01_68fd);
        assert_eq!(retarget(0x1c38_7f6f, 1_269_211_443 - 1_263_163_443, LIMIT), 0x1d00_e1fd);
    }

    #[test]
    fn between_two_periods_mainnet_keeps_its_target() {
        let past = || even(100, 1_000_000, 600, 0x1c05_a3f4);
        assert_eq!(check_header(Network::Main, 100, &header(1_100_000, 0x1c05_a3f4), past()), Ok(()));
        assert_eq!(
            check_header(Network::Main, 100, &header(1_100_000, LIMIT), past()),
            Err(BadHeader::Difficulty { found: LIMIT, due: 0x1c05_a3f4 })
        );
    }

    #[test]
    fn testnets_allow_the_easiest_target_after_twenty_minutes_and_then_go_back() {
        let bits = 0x1c05_a3f4;
        for network in [Network::Test, Network::Testnet4] {
            assert_eq!(required_bits(network, 100, 1_001_201, even(100, 1_000_000, 600, bits)), LIMIT);
            assert_eq!(required_bits(network, 100, 1_001_200, even(100, 1_000_000, 600, bits)), bits);
            let after_easy = even(3, 1_000_000, 600, LIMIT).chain(even(97, 900_000, 600, bits));
            assert_eq!(required_bits(network, 100, 1_000_100, after_easy), bits);
        }
        assert_eq!(required_bits(Network::Signet, 100, 9_999_999, even(100, 1_000_000, 600, bits)), bits);
    }

    #[test]
    fn the_walk_back_ends_at_the_first_block_of_the_period() {
        // 2016 itself has the easiest target: what came before does not count.
        let past = even(3, 1_000_000, 600, LIMIT).chain(even(2016, 900_000, 600, 0x1c05_a3f4));
        assert_eq!(required_bits(Network::Test, 2019, 1_000_100, past), LIMIT);
    }

    #[test]
    fn testnet4_scales_the_first_target_of_the_period_and_testnet3_the_last() {
        // Two weeks to the second, so that the target stays.
        let past = || {
            std::iter::once(Past { time: 5_000_000 + 1_209_600, bits: LIMIT }).chain(
                even(2015, 5_000_000 + 1_209_000, 601, 0x1c05_a3f4)
                    .map(|past| Past { time: past.time.max(5_000_000), ..past }),
            )
        };
        assert_eq!(required_bits(Network::Testnet4, 2016, 6_300_000, past()), 0x1c05_a3f4);
        assert_eq!(required_bits(Network::Test, 2016, 6_300_000, past()), LIMIT);
    }

    #[test]
    fn a_header_is_later_than_the_median_and_bip94_stops_the_timewarp() {
        let bits = 0x207f_ffff;
        let past = || even(11, 1_000, 10, bits);
        assert_eq!(check_header(Network::Regtest, 11, &header(951, bits), past()), Ok(()));
        assert_eq!(
            check_header(Network::Regtest, 11, &header(950, bits), past()),
            Err(BadHeader::TooEarly { time: 950, median: 950 })
        );
        let past = || even(2016, 2_000_000, 600, LIMIT);
        // 2,015 gaps of 600 s are a little short of two weeks.
        let early = header(2_000_000 - 601, 0x1d00_ffde);
        assert_eq!(
            check_header(Network::Testnet4, 2016, &early, past()),
            Err(BadHeader::Timewarp { time: 1_999_399, before: 2_000_000 })
        );
        assert_eq!(check_header(Network::Testnet4, 2016, &header(1_999_400, 0x1d00_ffde), past()), Ok(()));
        assert_eq!(check_header(Network::Test, 2016, &early, past()), Ok(()));
    }

    #[test]
    fn regtest_never_changes_and_signets_easiest_target_can_be_scaled() {
        let bits = 0x207f_ffff;
        assert_eq!(required_bits(Network::Regtest, 2016, 9, even(2016, 5_000_000, 1, bits)), bits);
        let limit = Network::Signet.pow_limit_bits();
        // 0x377ae * 4838400 is a little less than 2^40: the product just fits.
        let slowest = required_bits(Network::Signet, 2016, 9, even(2016, 4_000_000_000, 1_000_000, limit));
        assert_eq!(slowest, 0x1e03_77ae);
    }
}

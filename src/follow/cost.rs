//! Which way a gap is closed: block by block, or in bulk segments.
//!
//! In: how much there is to go, the rates that this database has seen, what the user said. Out: [`Way`]. Pure. Bulk loads
//! many times faster, but it begins with a UTXO set (resumed, or read back from the database: the more it holds the longer)
//! and ends with indexes; a block alone costs one transaction, its rows and their place in every index.

use std::time::Duration;

/// How many blocks are connected before their own rate is believed.
const BLOCKS_MEASURED_MIN: u64 = 20;

/// How a gap is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One transaction per block.
    Live,
    /// Segments by COPY, indexes afterwards.
    Bulk,
}

/// What lies between the database and the chain to be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Blocks to connect.
    pub blocks: u64,
    /// Their bytes, as far as they are known.
    pub bytes: u64,
    /// Bytes of the blocks whose rows the UTXO set is read back from: all that are held, or those since its checkpoint.
    pub set_bytes: u64,
}

/// What work has taken on this database so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes of blocks that a bulk load takes in a second.
    pub bulk_bytes_per_second: f64,
    /// Seconds that restoring indexes takes for a byte of blocks.
    pub restore_seconds_per_byte: f64,
    /// Seconds that reading the UTXO set back takes for a byte of the blocks that are held.
    pub rebuild_seconds_per_byte: f64,
    /// Seconds that a bulk load takes besides: threads, tables, attaching, statistics.
    pub bulk_seconds: f64,
    /// Seconds that a connected block takes, whatever its size.
    pub connect_seconds_per_block: f64,
    /// Seconds that a byte of a connected block takes.
    pub connect_seconds_per_byte: f64,
}

impl Default for Rates {
    /// Two cores and an SSD, rounded: what is believed until something was measured.
    fn default() -> Rates {
        Rates {
            bulk_bytes_per_second: 50e6,
            restore_seconds_per_byte: 20e-9,
            rebuild_seconds_per_byte: 5e-9,
            bulk_seconds: 5.0,
            connect_seconds_per_block: 0.02,
            connect_seconds_per_byte: 200e-9,
        }
    }
}

impl Rates {
    /// Returns how long connecting takes, seconds.
    pub fn live_seconds(&self, gap: &Gap) -> f64 {
        gap.blocks as f64 * self.connect_seconds_per_block + gap.bytes as f64 * self.connect_seconds_per_byte
    }

    /// Returns how long a bulk load takes, seconds.
    pub fn bulk_load_seconds(&self, gap: &Gap) -> f64 {
        self.bulk_seconds
            + gap.set_bytes as f64 * self.rebuild_seconds_per_byte
            + gap.bytes as f64 * (1.0 / self.bulk_bytes_per_second + self.restore_seconds_per_byte)
    }
}

/// Chooses the way; `threshold_blocks` is the user's word, and wins.
pub fn way(gap: &Gap, rates: &Rates, threshold_blocks: Option<u32>) -> Way {
    let is_live = match threshold_blocks {
        Some(threshold) => gap.blocks <= u64::from(threshold),
        None => rates.live_seconds(gap) <= rates.bulk_load_seconds(gap),
    };
    if is_live { Way::Live } else { Way::Bulk }
}

/// What connecting has taken in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Connected {
    blocks: u64,
    bytes: u64,
    seconds: f64,
}

impl Connected {
    /// Counts blocks that were connected.
    pub fn note(&mut self, blocks: u64, bytes: u64, took: Duration) {
        self.blocks += blocks;
        self.bytes += bytes;
        self.seconds += took.as_secs_f64();
    }

    /// Returns the rates with what was measured in the place of what was believed: both parts of a block's time are
    /// stretched alike, since a sum of times cannot tell them apart.
    pub fn applied_to(&self, rates: Rates) -> Rates {
        if self.blocks < BLOCKS_MEASURED_MIN {
            return rates;
        }
        let gap = Gap { blocks: self.blocks, bytes: self.bytes, ..Gap::default() };
        let stretch = self.seconds / rates.live_seconds(&gap);
        Rates {
            connect_seconds_per_block: rates.connect_seconds_per_block * stretch,
            connect_seconds_per_byte: rates.connect_seconds_per_byte * stretch,
            ..rates
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates {
        bulk_bytes_per_second: 50e6,
        restore_seconds_per_byte: 20e-9,
        rebuild_seconds_per_byte: 5e-9,
        bulk_seconds: 5.0,
        connect_seconds_per_block: 0.02,
        connect_seconds_per_byte: 200e-9,
    };

    fn gap(blocks: u64, bytes: u64, set_bytes: u64) -> Gap {
        Gap { blocks, bytes, set_bytes }
    }

    #[test]
    fn a_block_is_connected_and_a_chain_is_loaded() {
        assert_eq!(way(&gap(1, 1_650_000, 700_000_000_000), &RATES, None), Way::Live);
        // A month of mainnet beside all of it: a set of hundreds of gigabytes is not read back for that.
        let month = gap(4_320, 7_128_000_000, 700_000_000_000);
        assert_eq!(
            (RATES.live_seconds(&month).round(), RATES.bulk_load_seconds(&month).round()),
            (1512.0, 3790.0)
        );
        assert_eq!(way(&month, &RATES, None), Way::Live);
        // The same with a checkpoint of a week ago.
        assert_eq!(way(&Gap { set_bytes: 1_663_000_000, ..month }, &RATES, None), Way::Bulk);
        // A year.
        assert_eq!(way(&gap(52_560, 86_724_000_000, 700_000_000_000), &RATES, None), Way::Bulk);
    }

    #[test]
    fn small_chains_are_loaded_in_bulk_beyond_some_hundred_blocks() {
        assert_eq!(way(&gap(240, 240_000, 1_000_000), &RATES, None), Way::Live);
        assert_eq!(way(&gap(260, 260_000, 1_000_000), &RATES, None), Way::Bulk);
    }

    #[test]
    fn the_users_word_wins() {
        assert_eq!(way(&gap(10, 1, 0), &RATES, Some(10)), Way::Live);
        assert_eq!(way(&gap(11, 1, 0), &RATES, Some(10)), Way::Bulk);
        assert_eq!(way(&gap(1_000_000, 1 << 40, 0), &RATES, Some(u32::MAX)), Way::Live);
        assert_eq!(way(&gap(1, 1, 0), &RATES, Some(0)), Way::Bulk);
        // Nothing but blocks to take back.
        assert_eq!(way(&gap(0, 0, 0), &RATES, Some(0)), Way::Live);
    }

    #[test]
    fn what_was_measured_stretches_what_was_believed() {
        let mut connected = Connected::default();
        connected.note(19, 1_900_000, Duration::from_secs(100));
        assert_eq!(connected.applied_to(RATES), RATES);
        // 20 blocks of 100 kB are believed to take 0.8 s.
        connected = Connected::default();
        connected.note(20, 2_000_000, Duration::from_millis(1_600));
        let measured = connected.applied_to(RATES);
        assert_eq!((measured.connect_seconds_per_block, measured.connect_seconds_per_byte), (0.04, 400e-9));
        assert_eq!(measured.bulk_seconds, 5.0);
    }
}

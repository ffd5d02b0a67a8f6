//! How much disk a load needs: one pure function from the bytes of the blocks.
//!
//! In: the bytes of blocks still to be loaded, what is stored of them, and how many indexes are built side by side. Out:
//! bytes for the database, for sorting, and for the files of the UTXO set. Called before anything is loaded. It measures
//! nothing: the ratios were measured on a generated chain of 1,026,843 transactions in 526 MB of blocks, whose mix of
//! scripts is like mainnet's (PostgreSQL 15, docs/benchmarks.md).

use crate::rows::Store;

/// What a load is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of the blocks still to be loaded.
    pub block_bytes: u64,
    /// Bytes of the blocks of its largest segment.
    pub segment_bytes_max: u64,
    /// Bytes of all blocks of the chain, those that are loaded already too.
    pub chain_bytes: u64,
    /// Bytes that the files of the UTXO set have now.
    pub coins_there_bytes: u64,
    /// What is stored of what could be left out.
    pub store: Store,
    /// Indexes that are built side by side.
    pub builds_max: usize,
    /// Sort memory of one build, bytes.
    pub build_bytes: u64,
}

/// Bytes that a load needs at most at one time, beyond what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Rows and indexes, and what the server needs besides.
    pub database_bytes: u64,
    /// Temporary files of the index builds.
    pub sort_bytes: u64,
    /// Files of the UTXO set.
    pub coins_bytes: u64,
}

/// Database for 1,000 bytes of blocks with everything: 2,937 measured.
const DATABASE_PER_MILLE: u64 = 2_950;
/// Of it witnesses: without them 2,586 were measured.
const WITNESS_PER_MILLE: u64 = 340;
/// Of it input scripts: without both 2,371 were measured.
const SCRIPT_SIG_PER_MILLE: u64 = 210;
/// Largest index of a segment, `outputs (script_hash, tx_num)`: 232 for 1,000 bytes of its blocks; a sort that does not
/// fit into memory writes as much.
const INDEX_PER_MILLE: u64 = 240;
/// All indexes of a segment: 1,100 measured.
const INDEXES_PER_MILLE: u64 = 1_100;
/// The UTXO set, 40 bytes a coin: 21.5 measured; mainnet has about 10. It stands there as checkpoint, as runs, and as
/// what both are being merged into.
const COINS_PER_MILLE: u64 = 3 * 22;
/// Write-ahead log, catalogues, the server's own databases: 91 MB measured.
const BASE_BYTES: u64 = 100 << 20;

/// Returns what a load needs; nothing where there is nothing to load.
#[must_use]
pub fn space(load: &Load) -> Space {
    if load.block_bytes == 0 {
        return Space { database_bytes: 0, sort_bytes: 0, coins_bytes: 0 };
    }
    let mut per_mille = DATABASE_PER_MILLE;
    per_mille -= if load.store.witness { 0 } else { WITNESS_PER_MILLE };
    per_mille -= if load.store.script_sig { 0 } else { SCRIPT_SIG_PER_MILLE };
    let sort_per_mille = (load.builds_max as u64 * INDEX_PER_MILLE).min(INDEXES_PER_MILLE);
    // What is there is known better than guessed; merged, it is written anew while the old files stay.
    let coins_bytes = match load.coins_there_bytes {
        0 => share(load.chain_bytes, COINS_PER_MILLE),
        there => there.saturating_mul(2).saturating_add(share(load.block_bytes, COINS_PER_MILLE)),
    };
    let sorts_in_memory = share(load.segment_bytes_max, INDEX_PER_MILLE) <= load.build_bytes;
    Space {
        database_bytes: share(load.block_bytes, per_mille) + BASE_BYTES,
        sort_bytes: if sorts_in_memory { 0 } else { share(load.segment_bytes_max, sort_per_mille) },
        coins_bytes,
    }
}

fn share(bytes: u64, per_mille: u64) -> u64 {
    (u128::from(bytes) * u128::from(per_mille) / 1_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Store = Store { witness: true, script_sig: true };
    const MIB: u64 = 1 << 20;

    #[test]
    fn nothing_to_load_needs_nothing() {
        let load = Load {
            block_bytes: 0,
            segment_bytes_max: 0,
            chain_bytes: 700 << 30,
            coins_there_bytes: 7 << 30,
            store: FULL,
            builds_max: 4,
            build_bytes: 64 * MIB,
        };
        assert_eq!(space(&load), Space { database_bytes: 0, sort_bytes: 0, coins_bytes: 0 });
    }

    #[test]
    fn a_million_transactions_need_what_they_were_measured_to_need() {
        let load = Load {
            block_bytes: 525_655_924,
            segment_bytes_max: 525_655_924,
            chain_bytes: 525_655_924,
            coins_there_bytes: 0,
            store: FULL,
            builds_max: 2,
            build_bytes: 64 * MIB,
        };
        // 1,543,601,511 measured, and 91 MB besides.
        let full = space(&load);
        assert_eq!(
            full,
            Space { database_bytes: 1_655_542_575, sort_bytes: 252_314_843, coins_bytes: 34_693_290 }
        );
        // 1,246,510,439 measured.
        let lean = space(&Load { store: Store { witness: false, script_sig: false }, ..load });
        assert_eq!(lean.database_bytes, 1_366_431_817);
        // Sorts that fit into memory write nothing; many at once write all indexes at most.
        assert_eq!(space(&Load { build_bytes: 130 * MIB, ..load }).sort_bytes, 0);
        assert_eq!(space(&Load { builds_max: 64, ..load }).sort_bytes, 578_221_516);
    }

    #[test]
    fn a_catch_up_needs_room_for_the_coins_of_the_whole_chain() {
        let load = Load {
            block_bytes: 100 * MIB,
            segment_bytes_max: 100 * MIB,
            chain_bytes: 700 << 30,
            coins_there_bytes: 7 << 30,
            store: FULL,
            builds_max: 2,
            build_bytes: 64 * MIB,
        };
        let Space { database_bytes, sort_bytes, coins_bytes } = space(&load);
        assert_eq!((database_bytes, sort_bytes, coins_bytes), (414_187_520, 0, 15_039_306_137));
        // Their files are lost: they are rebuilt.
        assert_eq!(space(&Load { coins_there_bytes: 0, ..load }).coins_bytes, 49_606_872_268);
    }

    #[test]
    fn no_chain_is_too_large_to_be_counted() {
        let load = Load {
            block_bytes: u64::MAX / 4,
            segment_bytes_max: u64::MAX / 4,
            chain_bytes: u64::MAX / 4,
            coins_there_bytes: 0,
            store: FULL,
            builds_max: 1,
            build_bytes: 0,
        };
        assert_eq!(space(&load).coins_bytes, 304371277216207601);
    }
}

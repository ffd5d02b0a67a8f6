//! Chains of hand-made headers: order, ties, exclusion, held blocks, copies.

use super::*;

use crate::chain::hash::Hash32;

/// A tree of regtest blocks given as (seed, parent's seed), in file order; seed 0 is the genesis block.
fn tree(blocks: &[(u8, u8)]) -> HeaderTree {
    let mut tree = HeaderTree::new(Network::Regtest);
    let records = blocks.iter().enumerate().map(|(at, &(seed, parent))| Record {
        hash: hash(seed),
        prev_hash: hash(parent),
        work: 2,
        time: 0,
        bits: 0x207f_ffff,
        offset: at as u64 * 1_000,
        len: 100,
        trust: Trust::Whole,
    });
    tree.add_file(0, FileScan { records: records.collect(), ..FileScan::default() });
    tree.newest = tree.newest_of(0);
    tree.add_genesis();
    tree.link();
    tree
}

fn hash(seed: u8) -> Hash32 {
    if seed == 0 { sha256d(&Network::Regtest.genesis_block()[..80]) } else { [seed; 32] }
}

fn seeds(tree: &HeaderTree, excluded: &[u8], preferred: Option<u8>) -> Vec<u8> {
    let excluded = excluded.iter().map(|&seed| hash(seed)).collect();
    let chain = tree.active_chain(&excluded, preferred.map(hash).as_ref());
    (1..=chain.tip_height()).map(|height| tree.hash(chain.at(height).unwrap())[0]).collect()
}

#[test]
fn children_before_parents_make_the_same_chain() {
    assert_eq!(seeds(&tree(&[(3, 2), (1, 0), (4, 3), (2, 1)]), &[], None), [1, 2, 3, 4]);
    assert_eq!(seeds(&tree(&[(1, 0), (2, 1), (3, 2), (4, 3)]), &[], None), [1, 2, 3, 4]);
}

#[test]
fn equal_work_goes_to_the_first_seen_or_to_the_tip_that_is_held() {
    let tree = tree(&[(1, 0), (5, 1), (2, 1), (3, 2), (6, 5)]);
    assert_eq!(seeds(&tree, &[], None), [1, 2, 3]);
    assert_eq!(seeds(&tree, &[], Some(6)), [1, 5, 6]);
    assert_eq!(seeds(&tree, &[], Some(5)), [1, 2, 3]);
}

#[test]
fn excluded_blocks_take_their_descendants_with_them() {
    let tree = tree(&[(4, 3), (3, 2), (2, 1), (1, 0), (9, 1)]);
    assert_eq!(seeds(&tree, &[3], None), [1, 2]);
    assert_eq!(seeds(&tree, &[2], None), [1, 9]);
    assert_eq!(seeds(&tree, &[2, 9, 1], Some(4)), [] as [u8; 0]);
}

#[test]
fn a_heavier_branch_whose_blocks_are_missing_does_not_count() {
    let tree = tree(&[(1, 0), (2, 1), (14, 13), (15, 14), (16, 15), (17, 16)]);
    let chain = tree.active_chain(&HashSet::new(), None);
    assert_eq!(chain.tip_height(), 2);
    assert!(tree.stale_blocks(&chain).is_empty());
}

#[test]
fn blocks_that_only_the_database_holds_connect_what_a_pruned_node_has() {
    let mut tree = HeaderTree::new(Network::Regtest);
    let record = |seed, parent| Record {
        hash: hash(seed),
        prev_hash: hash(parent),
        work: 2,
        time: 0,
        bits: 0x207f_ffff,
        offset: u64::from(seed) * 1_000,
        len: 100,
        trust: Trust::Whole,
    };
    tree.add_file(0, FileScan { records: vec![record(3, 2), record(4, 3)], ..FileScan::default() });
    for (seed, parent) in [(1, 0), (2, 1), (3, 2)] {
        tree.add_held(&HeldBlock {
            hash: hash(seed),
            prev_hash: hash(parent),
            work: 2,
            time: 0,
            bits: 0x207f_ffff,
        });
    }
    tree.add_genesis();
    tree.link();
    assert_eq!(seeds(&tree, &[], None), [1, 2, 3, 4]);
    let chain = tree.active_chain(&HashSet::new(), None);
    let file = |height| tree.locations(chain.at(height).unwrap()).next().unwrap().file;
    assert_eq!((file(2), file(3)), (Location::HELD, 0));
}

#[test]
fn work_and_stale_blocks_are_told() {
    let tree = tree(&[(1, 0), (2, 1), (3, 1), (4, 2)]);
    let chain = tree.active_chain(&HashSet::new(), None);
    assert_eq!(tree.chainwork(chain.at(3).unwrap()), 8);
    let stale = tree.stale_blocks(&chain);
    assert_eq!((stale.len(), stale[0].hash, stale[0].height), (1, hash(3), 2));
}

#[test]
fn a_whole_copy_is_preferred_to_a_cut_one_wherever_it_stands() {
    let mut tree = tree(&[(1, 0)]);
    let copy = |trust, offset| Record {
        hash: hash(1),
        prev_hash: hash(0),
        work: 2,
        time: 0,
        bits: 0x207f_ffff,
        offset,
        len: 100,
        trust,
    };
    let records = vec![copy(Trust::Cut, 5), copy(Trust::Whole, 700), copy(Trust::Doubtful, 900)];
    tree.add_file(1, FileScan { records, ..FileScan::default() });
    let offsets: Vec<u64> = tree.locations(0).map(|location| location.offset).collect();
    assert_eq!(offsets, [0, 700, 900, 5]);
}

/// A record of a block with a mined header and nothing else that matters.
fn mined_record(prev_hash: &Hash32, seed: u8) -> (Hash32, Vec<u8>) {
    let mut block = Network::Regtest.genesis_block()[..80].to_vec();
    block[4..36].copy_from_slice(prev_hash);
    block[36] = seed;
    while crate::chain::header::checked_work(&block[..].try_into().unwrap(), Network::Regtest).is_none() {
        block[76] += 1;
    }
    let hash = sha256d(&block);
    block.resize(200, seed);
    let length = (block.len() as u32).to_le_bytes();
    (hash, [Network::Regtest.magic().as_slice(), &length, &block].concat())
}

/// Everything that a tree tells of its blocks.
fn told(tree: &HeaderTree) -> Vec<(Hash32, u32, u128, Vec<Location>)> {
    let one = |index| {
        (tree.hash(index), tree.height(index), tree.chainwork(index), tree.locations(index).collect())
    };
    (0..tree.len() as u32).map(one).collect()
}

#[test]
fn a_tree_scanned_again_equals_one_of_a_fresh_scan() {
    let folder = tempfile::tempdir().unwrap();
    let path = |number: u32| folder.path().join(format!("blk{number:05}.dat"));
    let (mut prev, mut records) = (hash(0), Vec::new());
    for seed in 1..=40 {
        let (hash, record) = mined_record(&prev, seed);
        let (_, sibling) = mined_record(&prev, seed + 100);
        records.push(if seed % 7 == 0 { [record, sibling].concat() } else { record });
        prev = hash;
    }
    // Children before parents, a block twice, one whose parent is nowhere.
    std::fs::write(path(0), records[20..30].concat()).unwrap();
    std::fs::write(path(1), records[..20].concat()).unwrap();
    std::fs::write(path(2), [records[34..36].concat(), records[3].clone()].concat()).unwrap();
    std::fs::write(path(3), records[30..32].concat()).unwrap();

    let open = || BlockFiles::open(folder.path(), Network::Regtest).unwrap();
    let mut files = open();
    let mut tree = HeaderTree::scan(&files, 2).unwrap().link(&files, &[]).unwrap();
    assert_eq!(tree.active_chain(&HashSet::new(), None).tip_height(), 32);
    let changes: [&dyn Fn(); 5] = [
        &|| {},
        // Appended: what stood apart is connected.
        &|| std::fs::write(path(3), records[30..34].concat()).unwrap(),
        &|| std::fs::write(path(4), records[36..].concat()).unwrap(),
        // Moved into another file, and removed.
        &|| {
            std::fs::write(path(7), records[20..30].concat()).unwrap();
            std::fs::remove_file(path(0)).unwrap();
        },
        &|| std::fs::remove_file(path(4)).unwrap(),
    ];
    for (change, tip_height) in changes.into_iter().zip([32, 36, 40, 40, 36]) {
        change();
        let now = open();
        tree = tree.scan_again(&files, &now, KeptScan::default(), 2).unwrap().link(&now, &[]).unwrap();
        let fresh = HeaderTree::scan(&now, 2).unwrap().link(&now, &[]).unwrap();
        assert_eq!(told(&tree), told(&fresh));
        assert_eq!(tree.active_chain(&HashSet::new(), None).tip_height(), tip_height);
        assert_eq!(tree.newest, fresh.newest);
        files = now;
    }
}

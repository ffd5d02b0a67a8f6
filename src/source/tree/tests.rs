//! Chains of hand-made headers: order, ties, exclusion, held blocks, copies.

use std::collections::HashSet;

use super::*;
use crate::chain::hash::Hash32;
use crate::source::scan::scan_file;

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

/// A chain of 40 records, every seventh with a sibling behind it.
fn forty_records() -> Vec<Vec<u8>> {
    let (mut prev, mut records) = (hash(0), Vec::new());
    for seed in 1..=40 {
        let (hash, record) = mined_record(&prev, seed);
        let (_, sibling) = mined_record(&prev, seed + 100);
        records.push(if seed % 7 == 0 { [record, sibling].concat() } else { record });
        prev = hash;
    }
    records
}

#[test]
fn a_tree_scanned_again_equals_one_of_a_fresh_scan() {
    let folder = tempfile::tempdir().unwrap();
    let path = |number: u32| folder.path().join(format!("blk{number:05}.dat"));
    let records = forty_records();
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

/// A tree that grows in place is, block by block, what a scan of the files would give.
#[test]
fn a_tree_that_grows_in_place_is_that_of_a_fresh_scan() {
    let folder = tempfile::tempdir().unwrap();
    let path = |number: u32| folder.path().join(format!("blk{number:05}.dat"));
    let records = forty_records();
    std::fs::write(path(0), records[..10].concat()).unwrap();
    // The order is that in which they were seen: here not that of the files.
    let sorted = |tree: &HeaderTree| {
        let mut told = told(tree);
        told.sort();
        told
    };
    let open = || BlockFiles::open(folder.path(), Network::Regtest).unwrap();
    let files = open();
    let mut tree = HeaderTree::scan(&files, 2).unwrap().link(&files, &[]).unwrap();
    let cut = |records: &[Vec<u8>], less: usize| {
        let bytes = records.concat();
        bytes[..bytes.len() - less].to_vec()
    };
    let steps: [(u32, Vec<u8>, u32, Grown); 6] = [
        (0, records[..10].concat(), 10, Grown::Same),
        // The last record is not written to its end yet; then it is.
        (0, cut(&records[..13], 1), 12, Grown::More),
        (0, records[..13].concat(), 13, Grown::More),
        // Children before parents, which come in the next file.
        (1, records[20..40].concat(), 13, Grown::More),
        (2, records[13..20].concat(), 40, Grown::More),
        // A block that is there already.
        (2, records[13..21].concat(), 40, Grown::More),
    ];
    for (file, bytes, tip_height, grown) in steps {
        std::fs::write(path(file), bytes).unwrap();
        let now = open();
        let scan = scan_file(&now.open_file(file).unwrap(), Network::Regtest).unwrap();
        assert_eq!(tree.grow(file, now.paths().len(), &scan), grown, "file {file} to {tip_height}");
        let fresh = HeaderTree::scan(&now, 2).unwrap().link(&now, &[]).unwrap();
        assert_eq!(sorted(&tree), sorted(&fresh));
        assert_eq!(tree.active_chain(&HashSet::new(), None).tip_height(), tip_height);
        assert_eq!(tree.newest.map(|index| tree.hash(index)), fresh.newest.map(|index| fresh.hash(index)));
    }
    // Cut, or with another block in a known one's place: not for this way.
    let before = told(&tree);
    for bytes in [records[..12].concat(), [&records[..9], &records[10..13]].concat().concat()] {
        std::fs::write(path(0), bytes).unwrap();
        let scan = scan_file(&open().open_file(0).unwrap(), Network::Regtest).unwrap();
        assert_eq!(tree.grow(0, 3, &scan), Grown::Rewritten);
        assert_eq!(told(&tree), before);
    }
}

#[test]
fn a_scan_that_was_kept_gives_the_same_tree_and_spares_the_files_that_are_the_same() {
    let (folder, data_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |number: u32| folder.path().join(format!("blk{number:05}.dat"));
    let mut prev = hash(0);
    for number in 0..4 {
        let mut bytes = Vec::new();
        for seed in 1..=5 {
            let (hash, record) = mined_record(&prev, seed);
            bytes.extend(record);
            prev = hash;
        }
        std::fs::write(path(number), bytes).unwrap();
        // Written to a minute ago: nobody writes to it now.
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        std::fs::File::options().write(true).open(path(number)).unwrap().set_modified(then).unwrap();
    }
    let open = || BlockFiles::open(folder.path(), Network::Regtest).unwrap();
    let files = open();
    assert_eq!(KeptScan::read(data_dir.path(), &files).misses(&files), 4, "nothing was kept");
    let fresh = HeaderTree::scan(&files, 2).unwrap().link(&files, &[]).unwrap();
    fresh.keep(data_dir.path(), &files).unwrap();
    let kept = KeptScan::read(data_dir.path(), &files);
    assert_eq!(kept.misses(&files), 0);
    // To prove that they are not read, their bytes are others: the times are as before.
    let times: Vec<_> =
        (0..4).map(|number| std::fs::metadata(path(number)).unwrap().modified().unwrap()).collect();
    for (number, time) in (0..4).zip(times) {
        let len = std::fs::metadata(path(number)).unwrap().len();
        std::fs::write(path(number), vec![0x55; len as usize]).unwrap();
        std::fs::File::options().write(true).open(path(number)).unwrap().set_modified(time).unwrap();
    }
    let now = open();
    let tree = HeaderTree::scan_with(&now, kept, 2).unwrap().link(&now, &[]).unwrap();
    assert_eq!(told(&tree), told(&fresh));

    // A file that has changed since is read; one that is being written is not kept at all.
    let (_, record) = mined_record(&prev, 9);
    std::fs::write(path(3), record).unwrap();
    let now = open();
    assert_eq!(KeptScan::read(data_dir.path(), &now).misses(&now), 1);
    fresh.keep(data_dir.path(), &now).unwrap();
    assert_eq!(KeptScan::read(data_dir.path(), &now).misses(&now), 1);

    // A damaged file, or half of one, is no more than a scan to be made.
    let kept_path = data_dir.path().join("headers.scan");
    let bytes = std::fs::read(&kept_path).unwrap();
    for at in [3, 40, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&kept_path, damaged).unwrap();
        assert_eq!(KeptScan::read(data_dir.path(), &now).misses(&now), 4, "byte {at}");
        std::fs::write(&kept_path, &bytes[..at]).unwrap();
        assert_eq!(KeptScan::read(data_dir.path(), &now).misses(&now), 4, "cut at {at}");
    }
}

//! Blocks whose bytes are not what their header commits to: no success is reported, and a repaired file goes on.

use bitcoin::consensus::encode::serialize;
use bitcoin::{Block, Witness};

use crate::support::blkfiles::{BlkDir, Piece, records};
use crate::support::blocks::{Chain, Draft, mine, outpoint, pay, script, spend};
use crate::support::rows::assert_chain;
use crate::support::{Satgres, sample};

/// Where the damaged block stands in its file.
const INDEX: usize = 5;
const HEIGHT: usize = 105;

/// Loads `chain` with the block at [`HEIGHT`] replaced; it must fail and say where. Returns what was said.
fn assert_refused(satgres: &Satgres, chain: &Chain, bad: Vec<u8>) -> (BlkDir, u64) {
    let blocks_dir = BlkDir::new();
    blocks_dir.write(0, &records(&chain.blocks()[..HEIGHT - INDEX]));
    let mut pieces = records(&chain.blocks()[HEIGHT - INDEX..]);
    pieces[INDEX] = Piece::Record(bad);
    let offset = blocks_dir.write(1, &pieces)[INDEX];
    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    let words = ["blk00001.dat".to_owned(), (offset + 8).to_string(), format!("height {HEIGHT}")];
    for word in words {
        assert!(output.contains(&word), "no word of {word:?} in:\n{output}");
    }
    (blocks_dir, offset)
}

#[test]
fn a_flipped_bit_stops_the_replay_until_it_is_repaired() {
    let chain = sample::chain(110);
    let satgres = Satgres::new();
    let good = serialize(&chain.blocks()[HEIGHT]);
    // The last four bytes are the last transaction's lock time.
    let mut bad = good.clone();
    let at = bad.len() - 2;
    bad[at] ^= 0x10;
    let (blocks_dir, offset) = assert_refused(&satgres, &chain, bad);

    blocks_dir.write_at(1, offset + 8, &good);
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
}

#[test]
fn a_witness_that_is_not_committed_to_stops_the_replay() {
    let chain = sample::chain(110);
    let satgres = Satgres::new();
    let good = chain.blocks()[HEIGHT].clone();

    let mut flipped = good.clone();
    flipped.txdata[3].input[0].witness = Witness::from_slice(&[vec![1; 71], vec![2; 33]]);
    assert_same_header_and_txids(&good, &flipped);
    assert_refused(&satgres, &chain, serialize(&flipped));

    let mut stripped = good.clone();
    for input in stripped.txdata.iter_mut().flat_map(|tx| &mut tx.input) {
        input.witness = Witness::new();
    }
    assert_same_header_and_txids(&good, &stripped);
    assert_refused(&satgres, &chain, serialize(&stripped));

    let mut other_reserved_value = good.clone();
    other_reserved_value.txdata[0].input[0].witness = Witness::from_slice(&[[1; 32]]);
    assert_same_header_and_txids(&good, &other_reserved_value);
    assert_refused(&satgres, &chain, serialize(&other_reserved_value));
}

#[test]
fn a_witness_without_any_commitment_stops_the_replay() {
    let chain = sample::chain(HEIGHT - 1);
    let mut with_witness = spend(&[chain.coinbase_outpoint(4)], vec![pay(1, script(&[0x51]))]);
    with_witness.input[0].witness = Witness::from_slice(&[[7; 10]]);
    let mut bad = chain.build(Draft { transactions: vec![with_witness], ..Draft::default() });
    bad.txdata[0].output.pop();
    bad.txdata[0].input[0].witness = Witness::new();
    mine(&mut bad);
    let blocks_dir = BlkDir::new();
    blocks_dir.write(0, &records(chain.blocks()));
    let offset = blocks_dir.write(1, &records([&bad]))[0];
    let output = Satgres::new().run_expect_failure("regtest", blocks_dir.path(), &[]);
    for word in ["blk00001.dat".to_owned(), (offset + 8).to_string(), format!("height {HEIGHT}")] {
        assert!(output.contains(&word), "no word of {word:?} in:\n{output}");
    }
}

/// Replaces `count` bytes by the compact size 2^60.
fn with_huge_count(bytes: &[u8], at: usize) -> Vec<u8> {
    let huge = [&[0xff], (1_u64 << 60).to_le_bytes().as_slice()].concat();
    [&bytes[..at], &huge, &bytes[at + 1..]].concat()
}

#[test]
fn a_count_of_2_to_the_60_is_refused_and_nothing_is_allocated_for_it() {
    let chain = sample::chain(110);
    let satgres = Satgres::new();
    let good = serialize(&chain.blocks()[HEIGHT]);
    // The number of transactions; the coinbase's number of inputs (behind version, marker and flag), the length of its
    // script; and the length of its only witness item, 33 bytes and a lock time before the next transaction.
    let coinbase_end = 81 + serialize(&chain.blocks()[HEIGHT].txdata[0]).len();
    for at in [80, 81 + 6, 81 + 6 + 1 + 36, coinbase_end - 4 - 33] {
        assert_refused(&satgres, &chain, with_huge_count(&good, at));
    }
}

#[test]
fn a_record_whose_length_is_wrong_stops_the_replay_and_a_whole_copy_saves_it() {
    let chain = sample::chain(110);
    let satgres = Satgres::new();
    let good = serialize(&chain.blocks()[HEIGHT]);
    // Cut, its header alone, with bytes behind it, and with nothing but zeros behind its header.
    let long = [&good[..], &[0x5a; 40]].concat();
    let blank = [&good[..80], vec![0; good.len() - 80].as_slice()].concat();
    for bad in [&good[..good.len() - 50], &good[..81], &long, &blank] {
        let (blocks_dir, _) = assert_refused(&satgres, &chain, bad.to_vec());
        blocks_dir.write(2, &records([&chain.blocks()[HEIGHT]]));
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_chain(&satgres, &chain.rows());
        satgres.forget_chain();
    }
    // Lengths that are impossible, run past the end of the file or swallow the records behind it.
    for claimed in [0, 80, u32::MAX, 3_000_000, u32::try_from(good.len()).unwrap() + 300] {
        let blocks_dir = BlkDir::new();
        let mut pieces = records(chain.blocks());
        let head = [[0xfa, 0xbf, 0xb5, 0xda], claimed.to_le_bytes()].concat();
        pieces[HEIGHT] = Piece::Raw([head, good.clone()].concat());
        blocks_dir.write(0, &pieces);
        let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
        assert!(output.contains(&format!("height {HEIGHT}")), "{claimed}\n{output}");
        blocks_dir.write(2, &records([&chain.blocks()[HEIGHT]]));
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_chain(&satgres, &chain.rows());
        satgres.forget_chain();
    }
}

#[test]
fn damage_on_a_branch_that_does_not_win_hurts_nobody() {
    let chain = sample::chain(110);
    let mut side = chain.fork(104, 1);
    (0..3).for_each(|_| sample::extend(&mut side));
    let mut bad = serialize(&side.blocks()[106]);
    let end = bad.len();
    bad[end - 2] ^= 1;
    let blocks_dir = BlkDir::of(chain.blocks());
    blocks_dir.write(1, &records([&side.blocks()[105]]));
    blocks_dir.append(1, &[Piece::Record(bad)]);
    blocks_dir.append(1, &records([&side.blocks()[107]]));
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    assert_eq!(satgres.value("select count(*) from chain.stale_blocks"), "3");

    // Once it would win, it does.
    (0..5).for_each(|_| sample::extend(&mut side));
    blocks_dir.append(1, &records(&side.blocks()[108..]));
    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    for word in ["blk00001.dat", "height 106"] {
        assert!(output.contains(word), "no word of {word:?} in:\n{output}");
    }
}

/// CVE-2012-2459: the merkle tree of an odd number of transactions is that of the list with the last one twice.
#[test]
fn a_duplicated_tail_stops_the_replay() {
    let mut chain = sample::chain(HEIGHT - 1);
    let first = spend(&[chain.coinbase_outpoint(4)], vec![pay(4_000_000_000, script(&[0x51]))]);
    let second = spend(&[outpoint(&first, 0)], vec![pay(3_000_000_000, script(&[0x51]))]);
    chain.mine_transactions(vec![first, second]);
    chain.mine_empty(2);
    let good = chain.blocks()[HEIGHT].clone();
    let mut bad = good.clone();
    bad.txdata.push(bad.txdata[2].clone());
    assert_eq!(bad.compute_merkle_root(), good.compute_merkle_root());
    assert_refused(&Satgres::new(), &chain, serialize(&bad));
}

fn assert_same_header_and_txids(good: &Block, bad: &Block) {
    assert_eq!(good.header, bad.header);
    assert_eq!(good.compute_merkle_root(), bad.compute_merkle_root());
    assert_ne!(serialize(good), serialize(bad));
}

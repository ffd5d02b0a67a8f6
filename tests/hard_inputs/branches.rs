//! Several branches in the files, at once or one after the other: the one with most work whose blocks are there counts.

use bitcoin::Block;
use bitcoin::consensus::encode::serialize;

use crate::support::blkfiles::{BlkDir, records};
use crate::support::blocks::{Chain, Draft, outpoint, pay, script, spend};
use crate::support::rows::{assert_chain, compare, hex};
use crate::support::{Satgres, sample};

/// Panics unless exactly these blocks are listed as stale, whatever the order.
fn assert_stale(satgres: &Satgres, stale: &[(usize, &Block)]) {
    let mut got =
        satgres.copy("select height, chain.hash_hex(hash), encode(header, 'hex') from chain.stale_blocks");
    got.sort();
    let line = |(height, block): &(usize, &Block)| {
        format!("{height}\t{}\t{}", block.block_hash(), hex(&serialize(&block.header)))
    };
    let mut want: Vec<String> = stale.iter().map(line).collect();
    want.sort();
    compare("stale blocks", &got, want.into_iter());
}

/// Panics unless the database equals a load of the same files into an empty one; leaves the new one behind.
fn assert_as_fresh(satgres: &Satgres, blocks_dir: &BlkDir, options: &[&str]) {
    let digest = satgres.digest();
    satgres.forget_chain();
    satgres.run("regtest", blocks_dir.path(), options);
    assert_eq!(satgres.digest(), digest, "in steps, and at once");
}

#[test]
fn a_heavier_branch_counts_once_all_its_blocks_are_there() {
    let main = sample::chain(110);
    let heavy = heavier_branch(&main);
    let mut sibling = main.fork(107, 1);
    sibling.mine_empty(1);
    let mut short = main.fork(100, 2);
    short.mine_empty(3);

    let blocks_dir = BlkDir::new();
    blocks_dir.write(0, &records(&main.blocks()[..=105]));
    blocks_dir.append(0, &records(&sibling.blocks()[108..]));
    blocks_dir.append(0, &records(&main.blocks()[106..]));
    blocks_dir.write(1, &records(&short.blocks()[101..]));
    blocks_dir.append(1, &records([&heavy.blocks()[106]]));
    blocks_dir.append(1, &records(&heavy.blocks()[108..]));

    let satgres = Satgres::new();
    for options in [[].as_slice(), &["--segment-bytes", "2KiB"]] {
        satgres.run("regtest", blocks_dir.path(), options);
        assert_chain(&satgres, &main.rows());
        let stale_twigs: Vec<_> = [(108, &sibling), (101, &short), (102, &short), (103, &short)]
            .map(|(height, chain)| (height, &chain.blocks()[height]))
            .into();
        // Nobody can tell the heights of those above the gap.
        assert_stale(&satgres, &[stale_twigs.clone(), vec![(106, &heavy.blocks()[106])]].concat());
        assert_eq!(satgres.value("select count(*) from ops.reorgs"), "0");

        let completed = copy_of(&blocks_dir, &[0, 1]);
        completed.append(1, &records([&heavy.blocks()[107]]));
        satgres.run("regtest", completed.path(), options);
        assert_chain(&satgres, &heavy.rows());
        satgres.verify();
        let undone = (106..=110).map(|height| (height, &main.blocks()[height]));
        assert_stale(&satgres, &undone.chain(stale_twigs).collect::<Vec<_>>());
        assert_eq!(
            satgres.copy(
                "select fork_height, depth, chain.hash_hex(old_tip), chain.hash_hex(new_tip) from ops.reorgs"
            ),
            [format!("105\t5\t{}\t{}", main.tip(), heavy.tip())]
        );
        assert_as_fresh(&satgres, &completed, options);
        satgres.forget_chain();
    }
}

/// Leaves `main` after 105 and overtakes it: some of its transactions come later, one conflicts, one never comes.
fn heavier_branch(main: &Chain) -> Chain {
    let transactions = |height: usize| main.blocks()[height].txdata[1..].to_vec();
    let mut heavy = main.fork(105, 3);
    heavy.mine_empty(2);
    heavy.mine_transactions(transactions(106));
    // At 107 `main` splits this coinbase.
    let coinbase = heavy.coinbase_outpoint(107 - 101);
    let conflict = spend(&[coinbase], vec![pay(heavy.value(&coinbase), script(&[0x52]))]);
    heavy.mine_transactions([vec![conflict], transactions(109)].concat());
    heavy.mine_empty(6);
    assert_eq!(heavy.height(), 115);
    heavy
}

fn copy_of(blocks_dir: &BlkDir, numbers: &[u32]) -> BlkDir {
    let copy = BlkDir::new();
    for number in numbers {
        std::fs::copy(blocks_dir.file(*number), copy.file(*number)).unwrap();
    }
    copy
}

#[test]
fn of_two_branches_with_equal_work_the_first_seen_counts() {
    let base = sample::chain(105);
    let (mut a, mut b) = (base.clone(), base.fork(105, 1));
    (0..2).for_each(|_| sample::extend(&mut a));
    b.mine_empty(2);
    let satgres = Satgres::new();
    for (order, winner) in [
        ([(&a, 106), (&a, 107), (&b, 106), (&b, 107)], &a),
        ([(&b, 106), (&b, 107), (&a, 106), (&a, 107)], &b),
        ([(&a, 106), (&b, 106), (&b, 107), (&a, 107)], &b),
    ] {
        let blocks_dir = BlkDir::of(base.blocks());
        blocks_dir.append(0, &records(order.map(|(chain, height)| &chain.blocks()[height])));
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_eq!(satgres.value("select hash from api.blocks where height = 107"), winner.tip().to_string());
        assert_chain(&satgres, &winner.rows());
        satgres.forget_chain();
    }
}

#[test]
fn a_chain_that_goes_back_and_forth_ends_as_if_it_never_had() {
    let base = sample::chain(105);
    let (mut a, mut b) = (base.clone(), base.fork(105, 1));
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::of(base.blocks());
    let grow = |chain: &mut Chain, count: usize, with_transactions: bool| {
        for _ in 0..count {
            if with_transactions {
                sample::extend(chain)
            } else {
                chain.mine_empty(1)
            };
            blocks_dir.append(0, &records([&chain.blocks()[chain.height()]]));
        }
        satgres.run("regtest", blocks_dir.path(), &[]);
    };
    grow(&mut a, 2, true);
    assert_chain(&satgres, &a.rows());
    // A tie: the first seen stays.
    grow(&mut b, 2, false);
    assert_chain(&satgres, &a.rows());
    grow(&mut b, 1, true);
    assert_chain(&satgres, &b.rows());
    grow(&mut a, 3, true);
    assert_chain(&satgres, &a.rows());
    grow(&mut b, 4, true);
    assert_chain(&satgres, &b.rows());
    satgres.verify();
    let depths = satgres.copy("select fork_height, depth from ops.reorgs order by reorg_id");
    assert_eq!(depths, ["105\t2", "105\t3", "105\t5"]);
    assert_as_fresh(&satgres, &blocks_dir, &[]);
}

#[test]
fn a_reorg_that_happened_while_nothing_ran_and_a_new_one_from_it_are_followed() {
    // Both the branch that wins and a deeper fork below it arrive in one step, with coins moved on both sides.
    let main = sample::chain(112);
    let mut middle = main.fork(108, 1);
    (0..6).for_each(|_| sample::extend(&mut middle));
    let mut last = main.fork(103, 2);
    let coinbases: Vec<_> = (3..=4).map(|height| last.coinbase_outpoint(height)).collect();
    let total = coinbases.iter().map(|coinbase| last.value(coinbase)).sum();
    let merge = spend(&coinbases, vec![pay(total, script(&[0x53]))]);
    let merged = outpoint(&merge, 0);
    last.mine_empty(1);
    last.mine(Draft {
        transactions: vec![merge, spend(&[merged], vec![pay(1, script(&[0x54]))])],
        ..Draft::default()
    });
    last.mine_empty(11);
    assert_eq!((middle.height(), last.height()), (114, 116));

    let satgres = Satgres::new();
    let blocks_dir = BlkDir::of(main.blocks());
    satgres.run("regtest", blocks_dir.path(), &[]);
    blocks_dir.append(0, &records(&middle.blocks()[109..]));
    blocks_dir.write(1, &records(last.blocks()[104..].iter().rev()));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &last.rows());
    satgres.verify();
    assert_as_fresh(&satgres, &blocks_dir, &[]);
}

#[test]
fn a_reorg_to_a_lower_height_with_more_work_is_followed() {
    let main = sample::chain(112);
    let mut heavy = main.fork(106, 1);
    // A quarter of the target: four times the work.
    let harder = |transactions| Draft { transactions, bits: Some(0x201f_ffff), ..Draft::default() };
    heavy.mine(harder(main.blocks()[107].txdata[1..].to_vec()));
    heavy.mine(harder(Vec::new()));
    assert_eq!(heavy.height(), 108);
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::of(main.blocks());
    satgres.run("regtest", blocks_dir.path(), &[]);
    blocks_dir.append(0, &records(&heavy.blocks()[107..]));
    let output = satgres.run("regtest", blocks_dir.path(), &[]).output();
    assert!(output.contains("the active chain has changed"), "{output}");
    assert_eq!(satgres.value("select max(height) from chain.blocks"), "108");
    assert_eq!(satgres.copy("select fork_height, depth from ops.reorgs"), ["106\t6"]);
    assert_chain(&satgres, &heavy.rows());
    satgres.verify();
    assert_as_fresh(&satgres, &blocks_dir, &[]);
}

#[test]
fn a_reorg_of_6_000_blocks_ends_as_a_fresh_load() {
    let main = Chain::with_blocks(6_050);
    let mut other = main.fork(50, 1);
    other.mine_empty(6_001);
    let coinbase = other.coinbase_outpoint(60);
    let value = other.value(&coinbase);
    other.mine_transactions(vec![spend(&[coinbase], vec![pay(value, script(&[0x51]))])]);
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::of(main.blocks());
    satgres.run("regtest", blocks_dir.path(), &["--segment-bytes", "200KiB"]);
    blocks_dir.write(1, &records(&other.blocks()[51..]));
    satgres.run("regtest", blocks_dir.path(), &["--segment-bytes", "200KiB"]);
    assert_eq!(satgres.copy("select fork_height, depth from ops.reorgs"), ["50\t6000"]);
    assert_eq!(satgres.value("select max(height) from chain.blocks"), "6052");
    assert_eq!(satgres.value("select count(*) from chain.stale_blocks"), "6000");
    satgres.verify();
    assert_as_fresh(&satgres, &blocks_dir, &[]);
}

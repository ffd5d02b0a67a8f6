//! Blocks that stand in the files, correctly framed and mined, but break a rule that can be checked without scripts.
//!
//! A node writes a block before it has validated it, so the files alone may suggest a chain that nobody follows.

use bitcoin::{Block, Transaction, TxOut};

use crate::support::Satgres;
use crate::support::blkfiles::{BlkDir, records};
use crate::support::blocks::{Chain, Draft, coinbase, mine, outpoint, pay, script, spend};
use crate::support::rows::assert_chain;
use crate::support::sample;

/// Broken children of a chain's tip at 110, each with words of the reason that must be given.
fn broken_children(chain: &Chain) -> Vec<(Block, &'static str)> {
    let child = |transactions: Vec<Transaction>, number: u8| {
        // Claims next to nothing, so that only the rule in question is broken.
        let coinbase = coinbase(script(&[0x01, 0x6f, number]), to_op_true(&[1]));
        chain.build(Draft { transactions, coinbase: Some(coinbase), ..Draft::default() })
    };
    let claims =
        |values: &[u64]| chain.build(Draft { payouts: Some(to_op_true(values)), ..Draft::default() });
    let mature = chain.coinbase_outpoint(10);
    let spends = |outpoint, values: &[u64]| spend(&[outpoint], to_op_true(values));
    let absent = bitcoin::OutPoint { vout: 7, ..mature };
    let op_return = outpoint(&chain.blocks()[105].txdata[1], 2);
    let first = spends(mature, &[3]);
    let second = spends(outpoint(&first, 0), &[3]);
    let mut heavy = spends(mature, &[4]);
    heavy.output.extend((0..112_000).map(|_| pay(0, script(&[]))));
    let mut without_coinbase = child(vec![spends(mature, &[5])], 0);
    without_coinbase.txdata.remove(0);
    mine(&mut without_coinbase);
    let second_coinbase = coinbase(script(&[0x01, 0x6f, 0xff]), to_op_true(&[6]));
    let no_coin = "does not exist or is spent already";
    vec![
        (claims(&[5_000_000_001]), "coinbase claims 5000000001 of 5000000000 sat"),
        (claims(&[1 << 63, 1 << 63]), "amount out of range"),
        (
            child(vec![spends(mature, &[5_000_000_001])], 1),
            "outputs of 5000000001 sat exceed inputs of 5000000000 sat",
        ),
        (child(vec![spends(mature, &[u64::MAX])], 2), "amount out of range"),
        (child(vec![spends(mature, &[1 << 63, 1 << 63])], 3), "amount out of range"),
        (child(vec![spends(mature, &[2_100_000_000_000_001])], 4), "amount out of range"),
        (child(vec![spends(absent, &[0])], 5), no_coin),
        (child(vec![spends(mature, &[1]), spends(mature, &[2])], 6), no_coin),
        (child(vec![spends(op_return, &[0])], 7), no_coin),
        (child(vec![spends(chain.coinbase_outpoint(0), &[1])], 8), no_coin),
        (child(vec![spends(chain.coinbase_outpoint(1), &[1])], 9), no_coin),
        (child(vec![second, first], 10), no_coin),
        (child(vec![spends(chain.coinbase_outpoint(12), &[1])], 11), "coinbase of height 12 too early"),
        (child(vec![heavy], 12), "of at most 4000000 weight units"),
        (without_coinbase, "coinbase missing or misplaced"),
        (child(vec![second_coinbase], 13), "coinbase missing or misplaced"),
    ]
}

fn to_op_true(values: &[u64]) -> Vec<TxOut> {
    values.iter().map(|value| pay(*value, script(&[0x51]))).collect()
}

#[test]
fn a_block_that_breaks_a_rule_is_recorded_and_never_connected() {
    let mut chain = sample::chain(110);
    let broken = broken_children(&chain);
    let blocks_dir = BlkDir::of(chain.blocks());
    let offsets = blocks_dir.write(1, &records(broken.iter().map(|(block, _)| block)));
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    for ((block, reason), offset) in broken.iter().zip(offsets) {
        let got = satgres.psql(&format!(
            "select height, reason, file, file_offset from ops.invalid_blocks where hash = chain.hex_hash('{}')",
            block.block_hash()
        ));
        let [row] = &got[..] else { panic!("{reason}: {got:?}") };
        assert_eq!((row[0].as_str(), row[3].clone()), ("111", (offset + 8).to_string()), "{row:?}");
        assert!(row[1].contains(reason), "{reason}: {row:?}");
        assert!(row[2].ends_with("blk00001.dat"), "{row:?}");
    }
    assert_eq!(satgres.value("select count(*) from ops.invalid_blocks"), "16");

    sample::extend(&mut chain);
    blocks_dir.append(1, &records(&chain.blocks()[111..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
}

#[test]
fn descendants_of_a_block_that_breaks_a_rule_count_for_nothing() {
    let mut chain = sample::chain(110);
    let mut refused = chain.fork(105, 1);
    refused.mine_empty(2);
    // A branch with most work, whose third block claims too much.
    let bad = refused.build(Draft { payouts: Some(to_op_true(&[5_000_000_001])), ..Draft::default() });
    let mut descendants = vec![bad];
    for time in 0..6 {
        let parent = descendants[descendants.len() - 1].header;
        let mut next = refused.build(Draft { time: Some(parent.time + 600 + time), ..Draft::default() });
        next.header.prev_blockhash = parent.block_hash();
        mine(&mut next);
        descendants.push(next);
    }
    let blocks_dir = BlkDir::of(chain.blocks());
    blocks_dir.append(0, &records(&refused.blocks()[106..]));
    blocks_dir.append(0, &records(&descendants));
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_eq!(
        satgres.copy("select height, chain.hash_hex(hash) from ops.invalid_blocks"),
        [format!("108\t{}", descendants[0].block_hash())]
    );

    // The same when it overtakes a chain that is loaded already, in the same place or in another.
    sample::extend(&mut chain);
    blocks_dir.append(0, &records(&chain.blocks()[111..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    let digest = satgres.digest();
    satgres.forget_chain();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    assert_eq!(satgres.digest(), digest);
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    assert_eq!(satgres.digest(), digest);
}

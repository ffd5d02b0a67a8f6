//! Integers at their limits, and amounts from nothing to the most that a chain can hold.

use bitcoin::absolute::LockTime;
use bitcoin::{Sequence, transaction};

use crate::support::blkfiles::BlkDir;
use crate::support::blocks::{Chain, Draft, outpoint, pay, script, spend};
use crate::support::rows::assert_chain;
use crate::support::{Satgres, sample};

#[test]
fn integers_at_their_limits_come_back_exactly() {
    let mut chain = Chain::with_blocks(110);
    let block_versions = [i32::MIN, -1, 0, 1, i32::MAX];
    let nonces = [0x7fff_fff0, 0x8000_0000, 0xc000_0000, 0xffff_ff00, 0];
    let transactions = [
        (-1, 0xffff_ffff, 0xffff_ffff),
        (i32::MIN, 0x8000_0000, 0xffff_ffff),
        (0, 0, 0),
        (1, 0, 0x7fff_ffff),
        (i32::MAX, 0, 0x8000_0000),
    ];
    for (index, (version, locktime, sequence)) in (0..).zip(transactions) {
        let mut transaction = spend(&[chain.coinbase_outpoint(index + 1)], vec![pay(1, script(&[0x51]))]);
        transaction.version = transaction::Version(version);
        transaction.lock_time = LockTime::from_consensus(locktime);
        transaction.input[0].sequence = Sequence(sequence);
        chain.mine(Draft {
            transactions: vec![transaction],
            version: Some(block_versions[index]),
            nonce_first: nonces[index],
            ..Draft::default()
        });
    }
    // Once the greatest time there is, then back below the parent's: only the median of eleven must grow.
    let time = chain.blocks()[110].header.time;
    for time in [u32::MAX, time + 10_000, time + 9_000, 0x8000_0000, time + 9_001] {
        chain.mine(Draft { time: Some(time), ..Draft::default() });
    }

    let satgres = Satgres::new();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_eq!(
        satgres.copy("select version from chain.blocks where height between 111 and 115 order by height"),
        ["-2147483648", "-1", "0", "1", "2147483647"]
    );
    assert_eq!(satgres.value("select count(*) from chain.blocks where nonce > 2147483647"), "3");
    assert_eq!(
        satgres.copy(
            "select t.version, t.locktime, i.sequence from chain.transactions t join chain.inputs i using (tx_num) \
             where tx_num & 65535 = 1 order by tx_num"
        ),
        [
            "4294967295\t4294967295\t4294967295",
            "2147483648\t2147483648\t4294967295",
            "0\t0\t0",
            "1\t0\t2147483647",
            "2147483647\t0\t2147483648"
        ]
    );
    assert_eq!(
        satgres.value("select extract(epoch from time)::bigint from chain.blocks where height = 116"),
        "4294967295"
    );
    assert_eq!(
        satgres.value("select count(*) from chain.inputs where tx_num & 65535 = 0 and prev_vout is null and prev_tx_num is null"),
        "121"
    );
}

#[test]
fn amounts_from_nothing_to_the_most_that_a_chain_can_hold_come_back_exactly() {
    let mut chain = Chain::with_blocks(400);
    let coinbases: Vec<_> = (1..=300).map(|height| chain.coinbase_outpoint(height)).collect();
    // 149 coinbases of 50 BTC, 150 of 25 and one of 12.5.
    let everything =
        spend(&coinbases, vec![pay(1_121_250_000_000, script(&[0x51])), pay(0, script(&[0x52]))]);
    let moved = spend(
        &[outpoint(&everything, 1), outpoint(&everything, 0)],
        vec![pay(0, script(&[])), pay(1, script(&[0x52])), pay(1_121_249_999_999, script(&[0x53]))],
    );
    chain.mine_transactions(vec![everything.clone()]);
    chain.mine_transactions(vec![moved]);
    let satgres = Satgres::new();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_eq!(
        satgres.copy("select value from chain.outputs where tx_num = (402 << 16) + 1 order by vout"),
        ["0", "1", "1121249999999"]
    );
    assert_eq!(
        satgres.copy("select value, fee from chain.inputs join chain.transactions using (tx_num) where tx_num = (402 << 16) + 1 order by vin"),
        ["0\t0", "1121250000000\t0"]
    );
}

#[test]
fn a_coinbase_may_claim_less_or_nothing() {
    let mut chain = sample::chain(105);
    let op_true = || script(&[0x51]);
    let payouts = [
        vec![pay(0, op_true())],
        vec![pay(4_999_999_999, op_true())],
        vec![pay(0, script(&[0x6a]))],
        // Claimed, but burnt.
        vec![pay(5_000_000_000, script(&[0x6a, 0x01, 0x00]))],
        vec![pay(1, op_true()), pay(2, op_true()), pay(0, script(&[0x6a, 0x00]))],
    ];
    for payouts in payouts {
        let coinbase = chain.coinbase_outpoint(chain.height() + 1 - 101);
        let transaction = spend(&[coinbase], vec![pay(chain.value(&coinbase) - 700, op_true())]);
        chain.mine(Draft { transactions: vec![transaction], payouts: Some(payouts), ..Draft::default() });
    }
    let satgres = Satgres::new();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_eq!(
        satgres.copy(
            "select height, fees, subsidy, unclaimed from chain.blocks where height > 104 order by height"
        ),
        [
            "105\t11000\t5000000000\t0",
            "106\t700\t5000000000\t5000000700",
            "107\t700\t5000000000\t701",
            "108\t700\t5000000000\t5000000700",
            "109\t700\t5000000000\t700",
            "110\t700\t5000000000\t5000000697"
        ]
    );
    assert_eq!(satgres.value("select count(*) from chain.transactions where fee < 0"), "0");
}

//! Blocks taken back, and others in their place.

use satgres::live::{Change, Connector, LiveOptions};

use crate::support::Satgres;
use crate::support::blocks::{Chain, Draft, coinbase, outpoint, pay, script, spend};
use crate::support::rows::assert_chain;
use crate::support::sample;
use crate::{COLD, Live, TINY, WARM, change, load};

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_across_segments_ends_as_a_bulk_load_of_the_other_branch() {
    let main = sample::chain(125);
    let mut satgres = Satgres::new();
    for (fork, options) in [(120, &WARM), (109, &TINY), (99, &COLD), (124, &COLD)] {
        let mut other = main.fork(fork, 1);
        while other.height() < 128 {
            if fork >= 101 && other.height().is_multiple_of(2) {
                sample::extend(&mut other)
            } else {
                other.mine_empty(1)
            };
        }
        let mut live = Live::on(satgres, &main.blocks()[..=106], options).await;
        live.follow(&main, 106).await;
        let followed = live.follow(&other, fork).await;
        assert_eq!((followed.depth as usize, followed.blocks as usize), (125 - fork, 128 - fork));
        assert_chain(&live.satgres, &other.rows());
        live.satgres.verify();
        let stale = live.satgres.copy(
            "select height, chain.hash_hex(hash), encode(header, 'hex') from chain.stale_blocks order by height",
        );
        let wanted: Vec<String> = (fork + 1..=125)
            .map(|height| {
                let block = &main.blocks()[height];
                let header = bitcoin::consensus::encode::serialize_hex(&block.header);
                format!("{height}\t{}\t{header}", block.block_hash())
            })
            .collect();
        assert_eq!(stale, wanted);
        let logged = live.satgres.copy(
            "select fork_height, depth, chain.hash_hex(old_tip), chain.hash_hex(new_tip) from ops.reorgs",
        );
        assert_eq!(logged, [format!("{fork}\t{}\t{}\t{}", 125 - fork, main.tip(), other.tip())]);
        // And back: what became active again is stale no more.
        let mut longer = main.clone();
        (0..5).for_each(|_| sample::extend(&mut longer));
        live.follow(&longer, fork).await;
        assert_chain(&live.satgres, &longer.rows());
        live.satgres.verify();
        let stale = live.satgres.value("select count(*) from chain.stale_blocks");
        assert_eq!(stale, (128 - fork).to_string());
        satgres = live.forget();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_to_a_lower_height_and_one_to_the_fork_alone_are_followed() {
    let main = sample::chain(120);
    let mut live = Live::above(&main.blocks()[..=110], &TINY).await;
    live.follow(&main, 110).await;
    let mut heavy = main.fork(112, 1);
    heavy.mine(Draft { bits: Some(0x201f_ffff), ..Draft::default() });
    live.follow(&heavy, 112).await;
    assert_chain(&live.satgres, &heavy.rows());
    let back = main.fork(104, 2);
    let followed = live.try_follow(&Change { fork_height: 104, blocks: Vec::new() }).await.unwrap();
    assert_eq!((followed.height, followed.depth, followed.blocks), (104, 9, 0));
    assert_chain(&live.satgres, &back.rows());
    live.satgres.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_of_a_thousand_blocks_ends_as_a_bulk_load_of_the_other_branch() {
    let fork = 120;
    let mut main = sample::chain(fork + 5);
    main.mine_empty(990);
    (0..5).for_each(|_| sample::extend(&mut main));
    let mut other = main.fork(fork, 1);
    (0..10).for_each(|_| sample::extend(&mut other));
    other.mine_empty(991);
    // A part of it was loaded in bulk, the rest stands in live segments of 50 blocks.
    let options = LiveOptions { segment_blocks: 50, ..TINY };
    let mut live = Live::on(Satgres::new(), &main.blocks()[..=300], &options).await;
    live.follow(&main, 300).await;
    let followed = live.follow(&other, fork).await;
    assert_eq!((followed.depth, followed.blocks), (1_000, 1_001));
    assert_eq!(live.satgres.value("select count(*) from chain.stale_blocks"), "1000");
    live.satgres.verify();
    let fresh = Satgres::new();
    load(&fresh, other.blocks(), "1MiB");
    assert_eq!(live.satgres.digest(), fresh.digest());
}

/// A coinbase that does not name its height, so that it can be mined again.
fn twin() -> bitcoin::Transaction {
    let script_sig = script(&[0x04, 0xff, 0xff, 0x7f, 0x20, 0x01, 0x04]);
    coinbase(script_sig, vec![pay(3_000_000_000, script(&[0x51])), pay(2_000_000_000, script(&[0x52]))])
}

fn mine_twin(chain: &mut Chain) {
    chain.mine(Draft { coinbase: Some(twin()), ..Draft::default() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_twin_overwrites_the_earlier_coins_and_taken_back_it_returns_them() {
    let mut chain = Chain::with_blocks(2);
    mine_twin(&mut chain);
    chain.mine_empty(104);
    // One of the earlier twin's outputs is spent before the later one comes.
    let child = spend(&[outpoint(&twin(), 0)], vec![pay(2_999_999_000, script(&[0x53]))]);
    chain.mine_transactions(vec![child.clone()]);
    let before = chain.clone();
    let mut satgres = Satgres::new();
    for options in [WARM, TINY, COLD] {
        let mut live = Live::on(satgres, &before.blocks()[..=4], &options).await;
        let mut chain = before.clone();
        mine_twin(&mut chain);
        chain.mine_empty(101);
        live.follow(&chain, 4).await;
        assert_chain(&live.satgres, &chain.rows());
        assert_eq!(live.satgres.value("select count(*) from chain.overwritten"), "1");
        // The child repeats too: it spends outputs of twins alone. Its own output was never spent, so it is overwritten.
        chain.mine_transactions(vec![child.clone()]);
        let fork = chain.height() - 1;
        live.follow(&chain, fork).await;
        assert_chain(&live.satgres, &chain.rows());
        assert_eq!(live.satgres.value("select count(*) from chain.overwritten"), "2");
        live.satgres.verify();
        // What both have under one txid is the later one's.
        let mut spent = chain.clone();
        spent.mine_transactions(vec![spend(
            &[outpoint(&child, 0), outpoint(&twin(), 1)],
            vec![pay(4_999_998_000, script(&[0x54]))],
        )]);
        live.follow(&spent, chain.height()).await;
        assert_chain(&live.satgres, &spent.rows());
        // Back before the later twin: the earlier coin is there again, and can be spent.
        let mut other = before.fork(before.height(), 1);
        other.mine_transactions(vec![spend(
            &[outpoint(&twin(), 1), outpoint(&child, 0)],
            vec![pay(4_999_999_000, script(&[0x55]))],
        )]);
        other.mine_empty(2);
        live.follow(&other, before.height()).await;
        assert_chain(&live.satgres, &other.rows());
        assert_eq!(live.satgres.value("select count(*) from chain.overwritten"), "0");
        live.satgres.verify();
        satgres = live.forget();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tip_that_somebody_else_moved_is_noticed() {
    let chain = sample::chain(110);
    let mut live = Live::above(&chain.blocks()[..=105], &WARM).await;
    let mut other = Connector::open(&mut live.client, WARM).await.unwrap();
    let mut one = change(&chain, 105);
    one.blocks.truncate(2);
    other.follow(&mut live.client, &one).await.unwrap();
    let error = live.try_follow(&change(&chain, 105)).await.unwrap_err();
    assert_eq!(error.to_string(), "the fork at height 105 is above the tip at height 107");
    live.follow(&chain, 107).await;
    assert_chain(&live.satgres, &chain.rows());
}

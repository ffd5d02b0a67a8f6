//! What a bulk load finds after live sync, and kills in the middle of it.

use std::time::Duration;

use satgres::live::{Change, Connector};

use crate::support::Satgres;
use crate::support::blkfiles::BlkDir;
use crate::support::blocks::Chain;
use crate::support::rows::assert_chain;
use crate::support::{sample, signal};
use crate::{COLD, Live, TINY, WARM, assert_contiguous, change, connect};

const FORWARD: &str = "PROFILE: Brought the UTXO set forward from its checkpoint: ";

/// Loads a chain in bulk on top of what is there.
fn load_on(live: &Live, chain: &Chain) -> String {
    load_with(live, chain, "64MiB")
}

/// The same with a UTXO cache of some bytes.
fn load_with(live: &Live, chain: &Chain, cache: &str) -> String {
    let blocks_dir = BlkDir::of(chain.blocks());
    let options = ["--segment-bytes", "3KiB", "--utxo-cache", cache, "--live-sync-threshold", "0"];
    live.satgres.run("regtest", blocks_dir.path(), &options).output()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_load_ends_the_live_segment_at_the_tip_and_goes_on_from_there() {
    let chain = sample::chain(150);
    let mut satgres = Satgres::new();
    for (height, options) in [(118, &TINY), (113, &TINY), (125, &WARM), (107, &COLD)] {
        let mut live = Live::on(satgres, &chain.blocks()[..=106], options).await;
        let mut some = change(&chain, 106);
        some.blocks.truncate(height - 106);
        live.try_follow(&some).await.unwrap();
        load_on(&live, &chain);
        assert_chain(&live.satgres, &chain.rows());
        live.satgres.verify();
        assert_contiguous(&live);
        assert_eq!(live.satgres.value("select count(*) from ops.segments where state <> 'attached'"), "0");
        // And live again on top of that.
        let mut longer = chain.clone();
        (0..5).for_each(|_| sample::extend(&mut longer));
        live.connector = Connector::open(&mut live.client, (*options).clone()).await.unwrap();
        live.follow(&longer, 150).await;
        assert_chain(&live.satgres, &longer.rows());
        live.satgres.verify();
        assert_contiguous(&live);
        satgres = live.forget();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_while_nothing_ran_is_cut_out_of_live_segments_in_place() {
    let main = sample::chain(130);
    let mut satgres = Satgres::new();
    for (fork, options) in [(128, &WARM), (120, &TINY), (109, &COLD), (103, &WARM)] {
        let mut live = Live::on(satgres, &main.blocks()[..=108], options).await;
        live.follow(&main, 108).await;
        let mut other = main.fork(fork, 1);
        other.mine_empty(2);
        while other.height() < 133 {
            sample::extend(&mut other);
        }
        load_on(&live, &other);
        assert_chain(&live.satgres, &other.rows());
        live.satgres.verify();
        assert_contiguous(&live);
        let logged = live.satgres.copy("select fork_height, depth from ops.reorgs");
        assert_eq!(logged, [format!("{fork}\t{}", 130 - fork)]);
        satgres = live.forget();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_brought_forward_is_the_set_that_a_rebuild_gives() {
    // Both with everything in the cache, and with coins in runs on disk.
    let mut satgres = Satgres::new();
    for cache in ["64MiB", "2KiB"] {
        let chain = sample::chain(168);
        let mut live = Live::on(satgres, &chain.blocks()[..=155], &TINY).await;
        live.follow(&chain.fork(165, 1), 155).await;
        // A reorg above the checkpoint is no obstacle.
        let mut other = chain.fork(160, 2);
        (0..5).for_each(|_| sample::extend(&mut other));
        other.mine_empty(1);
        live.follow(&other, 160).await;
        let coins = live.satgres.value("select count(*) from chain.utxos");
        let before = other.height();
        (0..6).for_each(|_| sample::extend(&mut other));
        let output = load_with(&live, &other, cache);
        assert!(output.contains(FORWARD), "{output}");
        let rows = live.satgres.value(
            "select rows || ' ' || height from ops.phases where phase = 'Brought the UTXO set forward from its checkpoint'",
        );
        assert_eq!(rows, format!("{coins} {before}"));
        assert_chain(&live.satgres, &other.rows());

        // Below the checkpoint there is nothing to bring forward.
        let mut below = other.fork(150, 3);
        below.mine_empty(3);
        while below.height() < 180 {
            sample::extend(&mut below);
        }
        let output = load_with(&live, &below, cache);
        assert!(!output.contains(FORWARD), "{output}");
        assert_chain(&live.satgres, &below.rows());
        live.satgres.verify();
        satgres = live.forget();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_at_any_moment_leaves_the_old_branch_or_the_new_one() {
    let main = sample::chain(125);
    let mut other = main.fork(108, 1);
    while other.height() < 130 {
        sample::extend(&mut other);
    }
    let mut live = Live::above(&main.blocks()[..=106], &TINY).await;
    live.follow(&main, 106).await;
    let (mut cut, mut pause) = (0, Duration::from_millis(5));
    loop {
        let reorg = change(&other, 108);
        let ended = tokio::time::timeout(pause, live.try_follow(&reorg)).await;
        if ended.is_ok_and(|followed| followed.is_ok()) {
            break;
        }
        cut += 1;
        // The connection is closed with what it was doing.
        live.client = connect(&live.satgres).await;
        live.connector = Connector::open(&mut live.client, TINY).await.unwrap();
        let tip = live.connector.tip().height as usize;
        assert!(tip == 125 || tip == 130, "{tip}");
        if tip == 130 {
            break;
        }
        assert_chain(&live.satgres, &main.rows());
        pause += pause / 2;
    }
    assert!(cut > 3, "cut {cut} times only");
    assert_chain(&live.satgres, &other.rows());
    live.satgres.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_at_any_moment_leaves_whole_blocks() {
    let chain = sample::chain(140);
    let mut live = Live::above(&chain.blocks()[..=104], &TINY).await;
    for milliseconds in [30, 80, 150] {
        let tip = live.connector.tip().height as usize;
        let reorg = tip.saturating_sub(3).max(104);
        let work = change(&chain, reorg);
        let killed = tokio::time::timeout(Duration::from_millis(milliseconds), live.try_follow(&work)).await;
        drop(killed);
        signal(live.satgres.postmaster(), libc::SIGKILL);
        let digest = live.satgres.digest();
        live.client = connect(&live.satgres).await;
        live.connector = Connector::open(&mut live.client, TINY).await.unwrap();
        let tip = live.connector.tip().height as usize;
        let rows = chain.fork(tip, 9).rows();
        assert_chain(&live.satgres, &rows);
        assert_eq!(live.satgres.digest(), digest);
        if tip == 140 {
            live.try_follow(&Change { fork_height: 110, blocks: Vec::new() }).await.unwrap();
        }
    }
    let tip = live.connector.tip().height as usize;
    if tip < 140 {
        live.follow(&chain, tip).await;
    }
    assert_chain(&live.satgres, &chain.rows());
    live.satgres.verify();
}

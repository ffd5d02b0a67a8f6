//! LIVE against a real Bitcoin Core: the tip is followed through reorgs, restarts and absences, on either side.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "live/mod.rs"]
mod live;
#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use live::{LIVE, NOWHERE, Tip};
use support::{Satgres, signal, wait_until};
use tokio_postgres::{AsyncMessage, NoTls};

/// How soon after the node's word rows must be there: generous for a debug build beside other tests.
const SOON: Duration = Duration::from_secs(5);

/// Collects what is told on a channel, until the test ends.
fn listen(satgres: &Satgres, channel: &'static str) -> std::sync::mpsc::Receiver<serde_json::Value> {
    let url = satgres.command(&["url"]).stdout.trim().to_owned();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
            let listening = async {
                client.batch_execute(&format!("listen {channel}")).await.unwrap();
                ready.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            let told = async {
                while let Some(Ok(message)) = messages.next().await {
                    if let AsyncMessage::Notification(told) = message
                        && sender.send(serde_json::from_str(told.payload()).unwrap()).is_err()
                    {
                        return;
                    }
                }
            };
            tokio::select! {
                () = listening => {}
                () = told => {}
            }
        });
    });
    is_ready.recv_timeout(Duration::from_secs(30)).unwrap();
    receiver
}

#[test]
fn blocks_and_reorgs_of_the_node_are_followed_within_seconds() {
    let Some(mut tip) = Tip::start(110, &[], "the node's tip is followed") else { return };
    tip.follow();
    let blocks = listen(&tip.satgres, "satgres_block");
    let reorgs = listen(&tip.satgres, "satgres_reorg");
    for count in [1, 3, 2] {
        tip.mine(count);
        let took = tip.wait();
        assert!(took < SOON, "{took:?}\n{}", tip.said());
        for _ in 0..count {
            let told = blocks.recv_timeout(SOON).unwrap();
            let height = told["height"].as_u64().unwrap() as usize;
            assert_eq!(told["hash"], tip.chain.blocks()[height].block_hash().to_string());
        }
    }
    tip.check();
    for depth in [1, 6, 12] {
        let (old, fork) = (tip.chain.tip().to_string(), tip.chain.height() - depth);
        tip.reorg(depth, depth + 1);
        let took = tip.wait();
        assert!(took < SOON, "{took:?}\n{}", tip.said());
        let told = reorgs.recv_timeout(SOON).unwrap();
        assert_eq!(
            (&told["depth"], &told["fork_height"], &told["old_tip"]),
            (&depth.into(), &fork.into(), &old.into())
        );
        tip.check();
    }
    let depths = tip.satgres.psql("select depth from ops.reorgs order by reorg_id").concat();
    assert_eq!(depths, ["1", "6", "12"]);
    assert_eq!(tip.satgres.value("select count(*) from chain.stale_blocks"), "19");
    let height = tip.chain.height();
    // Rows are seen a moment before the service has written that it is done.
    wait_until("the status has heard of the tip", || {
        let told = &tip.satgres.status()["live"];
        told["height"] == height && told["lag_blocks"] == 0
    });
    let told = tip.satgres.status();
    assert_eq!(told["phase"]["name"], "LIVE");
    assert_eq!((&told["live"]["height"], &told["live"]["node_height"]), (&height.into(), &height.into()));
    assert_eq!((&told["live"]["lag_blocks"], &told["live"]["reorgs"]), (&0.into(), &3.into()));
    assert_eq!(
        (&told["live"]["connected_blocks"], &told["tip"]["is_confirmed_by_node"]),
        (&28.into(), &true.into())
    );

    // The node takes blocks back and has no others: its chain counts, though it has less work.
    let left = tip.chain.blocks()[height - 1].block_hash().to_string();
    let whole = tip.chain.clone();
    tip.chain = whole.fork(height - 2, 200);
    tip.node().cli(&["invalidateblock", &left]);
    tip.check();
    tip.node().cli(&["reconsiderblock", &left]);
    tip.chain = whole;
    tip.check();
    tip.check_against_replay(&Satgres::new());
    tip.satgres.verify();
    let said = tip.stop();
    for line in ["connected block height=111", "the active chain has changed", "followed a reorg height="] {
        assert!(said.contains(line), "{line:?} is not in:\n{said}");
    }
}

#[test]
fn the_node_the_service_and_the_server_may_each_go_away_and_come_back() {
    let Some(mut tip) = Tip::start(106, &[], "absences are followed through") else { return };
    tip.follow();
    tip.restart_node();
    tip.mine(2);
    tip.check();

    // The node is down for a while, and comes back with another branch.
    tip.stop_node();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(tip.satgres.status()["live"]["is_node_connected"], false);
    tip.start_node();
    tip.reorg(3, 5);
    tip.check();
    assert!(
        tip.said().contains("no node is connected") && tip.said().contains("the node is back"),
        "{}",
        tip.said()
    );

    // The service is killed; meanwhile there is a reorg.
    tip.kill();
    tip.reorg(2, 4);
    let began = Instant::now();
    tip.follow();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?} until LIVE again\n{}", tip.said());
    tip.check();
    assert!(
        !tip.said().contains("PROFILE: Loaded segment"),
        "a small gap is connected at once:\n{}",
        tip.said()
    );
    assert!(
        !tip.said().contains("PROFILE: Analyzed tables"),
        "nothing is analysed before LIVE:\n{}",
        tip.said()
    );

    // The server is killed while its tip is followed.
    signal(tip.satgres.postmaster(), libc::SIGKILL);
    tip.mine(2);
    tip.check();
    assert_eq!(tip.said().matches(LIVE).count(), 2, "once, and its log line:\n{}", tip.said());

    // Without its node a synced database is LIVE all the same, and follows once the node is there.
    tip.kill();
    tip.stop_node();
    tip.follow();
    assert!(tip.said().contains("no node is connected"), "{}", tip.said());
    tip.start_node();
    tip.mine(1);
    tip.check();
    tip.check_against_replay(&Satgres::new());
    tip.stop();
}

#[test]
fn a_gap_over_the_threshold_is_loaded_in_bulk_without_a_restart() {
    let Some(mut tip) = Tip::start(104, &["--live-sync-threshold", "8"], "long gaps are loaded in bulk")
    else {
        return;
    };
    tip.follow();
    let segments = "select count(*) from ops.segments where state = 'attached'";
    let before: u32 = tip.satgres.value(segments).parse().unwrap();
    tip.mine(3);
    tip.check();
    // A gap of 30 blocks comes all at once.
    tip.stop_node();
    tip.start_node();
    let from = tip.chain.height() + 1;
    (0..30).for_each(|_| live::extend(&mut tip.chain));
    tip.node().cli(&["setnetworkactive", "false"]);
    tip.submit(from);
    tip.node().cli(&["setnetworkactive", "true"]);
    tip.check();
    let said = tip.said();
    assert!(said.contains("the gap is loaded in bulk"), "{said}");
    assert_eq!(said.matches(LIVE).count(), 4, "twice, and their log lines:\n{said}");
    let after: u32 = tip.satgres.value(segments).parse().unwrap();
    assert!(after > before, "{before} segments, then {after}");
    // And it goes on block by block, and back over the seam of both.
    tip.mine(2);
    tip.check();
    tip.reorg(6, 7);
    tip.check();
    tip.reorg(40, 41);
    tip.check();
    tip.check_against_replay(&Satgres::new());
    tip.satgres.verify();
    tip.stop();
}

#[test]
fn block_files_alone_are_followed_too() {
    let Some(mut tip) = Tip::start(105, &[], "files are followed") else { return };
    let blocks_dir = tip.blocks_dir();
    tip.follow_from(&blocks_dir, &[]);
    for count in [1, 4] {
        tip.mine(count);
        tip.check();
    }
    tip.reorg(3, 4);
    tip.check();
    assert_eq!(tip.satgres.value("select count(*) from chain.stale_blocks"), "3");
    // The service does not scan the files again that it knows.
    tip.stop();
    tip.follow_from(&blocks_dir, &[]);
    tip.mine(1);
    tip.check();
    tip.check_against_replay(&Satgres::new());
    tip.stop();
}

#[test]
fn until_synced_ends_at_the_tip_whichever_way_it_was_reached() {
    let Some(mut tip) = Tip::start(104, &[], "until-synced ends") else { return };
    let nowhere = std::path::Path::new(NOWHERE);
    let address = tip.address.clone();
    tip.satgres.run("regtest", nowhere, &["--peer", &address]);
    tip.mine(3);
    let said = tip.satgres.run("regtest", nowhere, &["--peer", &address]).output();
    assert!(said.contains("connected block") && !said.contains("PROFILE: Loaded segment"), "{said}");
    support::rows::assert_chain(&tip.satgres, &tip.chain.rows());
    tip.reorg(2, 30);
    let said =
        tip.satgres.run("regtest", nowhere, &["--peer", &address, "--live-sync-threshold", "5"]).output();
    assert!(said.contains("the gap is loaded in bulk") && said.contains("PROFILE: Loaded segment"), "{said}");
    support::rows::assert_chain(&tip.satgres, &tip.chain.rows());
    wait_until("the run has said its last word", || tip.satgres.status()["service"]["state"] == "finished");
}

//! Peers that send what no node sends: no wrong row, no hang, no growth; the good peer's chain is reached.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use bitcoin::Block;
use support::blkfiles::{BlkDir, records};
use support::blocks::{Chain, Draft, coinbase, mine, outpoint, pay, script, spend};
use support::peer::{Misdeed, Peer};
use support::rows::assert_chain;
use support::{Running, Satgres, sample};

/// A chain with witnesses, whose last blocks hold three transactions each: their tails can be duplicated.
fn chain() -> Chain {
    let mut chain = sample::chain(112);
    for height in 113..=160 {
        let split = spend(
            &[chain.coinbase_outpoint(height - 101)],
            vec![pay(chain.value(&chain.coinbase_outpoint(height - 101)) - 10, script(&[0x51]))],
        );
        let value = split.output[0].value.to_sat();
        let next = spend(&[outpoint(&split, 0)], vec![pay(value - 10, script(&[0x52]))]);
        chain.mine_transactions(vec![split, next]);
    }
    chain
}

fn run(satgres: &Satgres, peers: &[&Peer], options: &[&str]) -> String {
    let mut args = vec!["--peer-timeout-seconds", "1"];
    peers.iter().for_each(|peer| args.extend(["--peer", peer.address.as_str()]));
    args.extend(options);
    satgres.run("regtest", Path::new("no-such-folder"), &args).output()
}

/// Loads the chain from a hostile and a good peer, for each misdeed; the hostile one must be dropped with a reason.
fn assert_good_peer_wins(misdeeds: &[(Misdeed, &str)]) {
    let chain = chain();
    let satgres = Satgres::new();
    for (misdeed, reason) in misdeeds {
        let bad = Peer::serve(chain.blocks(), *misdeed);
        let good = Peer::serve_beside(chain.blocks(), &bad);
        let began = Instant::now();
        let output = run(&satgres, &[&bad, &good], &[]);
        assert!(began.elapsed() < Duration::from_secs(60), "{misdeed:?} took {:?}", began.elapsed());
        assert_chain(&satgres, &chain.rows());
        let is_told = |line: &str| line.contains("the node: ") && line.contains(*reason);
        let told = output.lines().find(|line| is_told(line) && line.contains(&bad.address));
        assert!(told.is_some(), "{misdeed:?} was not told:\n{output}");
        let peak: u64 = satgres.value("select max(peak_rss_bytes) from ops.phases").parse().unwrap();
        assert!(peak < 300 << 20, "{misdeed:?}: {peak} bytes");
        satgres.forget_chain();
    }
}

#[test]
fn a_peer_that_speaks_wrongly_is_dropped() {
    assert_good_peer_wins(&[
        (Misdeed::OtherMagic, "it is a node of network signet, not of regtest"),
        (Misdeed::NoWitnessService, "it serves no blocks with witnesses"),
        (Misdeed::HugeLength, "message \"block\" of 4294967295 bytes, at most 4000000 are allowed"),
        (Misdeed::Garbage, "its messages begin with [5c, 5c, 5c, 5c]"),
        (Misdeed::NotFound, "it does not have a block of its own chain"),
    ]);
}

#[test]
fn a_peer_that_sends_other_blocks_is_dropped_and_they_are_asked_of_another() {
    assert_good_peer_wins(&[
        (Misdeed::StrippedBlocks, "witness commitment does not match"),
        (Misdeed::DuplicatedTails, "duplicated transactions at the end (CVE-2012-2459)"),
        (Misdeed::FlippedBlocks, "it sent a bad block at height"),
    ]);
}

#[test]
fn a_peer_that_sends_the_wrong_blocks_stalls_drips_or_cuts_the_line_is_dropped() {
    assert_good_peer_wins(&[
        (Misdeed::WrongBlocks, "no block within 1 s"),
        (Misdeed::Stall, "no block within 1 s"),
        (Misdeed::Drip, "no end of a message within 1 s"),
        (Misdeed::CutLine, "it closed the connection"),
    ]);
}

#[test]
fn a_peer_that_floods_or_makes_headers_up_is_dropped() {
    assert_good_peer_wins(&[
        (Misdeed::FloodHeaders, "it floods"),
        (Misdeed::FloodPings, "it floods"),
        (Misdeed::FloodAddresses, "it floods"),
        (Misdeed::UnminedHeaders, "a header without its proof of work"),
        (Misdeed::LooseHeaders, "a header that follows none that is known"),
    ]);
}

#[test]
fn a_longer_chain_whose_blocks_nobody_sends_is_given_up() {
    let chain = chain();
    let mut longer = chain.fork(150, 4);
    longer.mine_empty(30);
    let bad = Peer::serve(longer.blocks(), Misdeed::Stall);
    let good = Peer::serve(chain.blocks(), Misdeed::None);
    let satgres = Satgres::new();
    let output = run(&satgres, &[&bad, &good], &["--segment-bytes", "10KiB"]);
    assert!(bad.blocks_asked() > 0);
    assert!(output.contains("choosing the chain again with the nodes that are left"), "{output}");
    assert_chain(&satgres, &chain.rows());
}

#[test]
fn without_a_good_peer_it_ends_with_the_reasons_and_goes_on_with_one() {
    let chain = chain();
    let bad = [Misdeed::FlippedBlocks, Misdeed::Garbage].map(|misdeed| Peer::serve(chain.blocks(), misdeed));
    let satgres = Satgres::new();
    let (first, second) = (bad[0].address.as_str(), bad[1].address.as_str());
    let args = ["--peer", first, "--peer", second, "--peer-timeout-seconds", "1"];
    let failed = satgres.try_run("regtest", Path::new("no-such-folder"), &args);
    assert_eq!(failed.status.code(), Some(6), "{}", failed.output());
    for word in [first, second, "it sent a bad block at height", "its messages begin with"] {
        assert!(failed.stderr.contains(word), "no word of {word}:\n{}", failed.stderr);
    }
    let good = Peer::serve(chain.blocks(), Misdeed::None);
    run(&satgres, &[&good], &[]);
    assert_chain(&satgres, &chain.rows());
}

#[test]
fn a_bad_peer_does_not_heal_a_damaged_file_and_a_good_one_does() {
    let chain = chain();
    let blocks_dir = BlkDir::new();
    let offsets = blocks_dir.write(0, &records(chain.blocks().iter().collect::<Vec<&Block>>()));
    blocks_dir.write_at(0, offsets[105] + 120, &[0xff; 40]);
    let satgres = Satgres::new();
    let bad = Peer::serve(chain.blocks(), Misdeed::StrippedBlocks);
    let args = ["--peer", bad.address.as_str(), "--peer-timeout-seconds", "1"];
    let failed = satgres.try_run("regtest", blocks_dir.path(), &args);
    assert_eq!(failed.status.code(), Some(6), "{}", failed.output());

    let good = Peer::serve(chain.blocks(), Misdeed::None);
    let args =
        ["--peer", bad.address.as_str(), "--peer", good.address.as_str(), "--peer-timeout-seconds", "1"];
    let output = satgres.run("regtest", blocks_dir.path(), &args).output();
    assert!(output.contains("asking the node for the block"), "{output}");
    assert_chain(&satgres, &chain.rows());
}

#[test]
fn a_peer_that_hangs_up_again_and_again_but_sends_good_blocks_is_enough() {
    let chain = chain();
    let restless = Peer::serve(chain.blocks(), Misdeed::Restless);
    let satgres = Satgres::new();
    let output = run(&satgres, &[&restless], &["--segment-bytes", "10KiB"]);
    assert!(output.matches("lost the node: ").count() >= 15, "{output}");
    assert_chain(&satgres, &chain.rows());
}

#[test]
fn a_peer_that_only_ever_stalls_is_dropped_in_the_end() {
    let chain = chain();
    let stalling = Peer::serve(chain.blocks(), Misdeed::Stall);
    let args = ["--peer", stalling.address.as_str(), "--peer-timeout-seconds", "1"];
    let failed = Satgres::new().try_run("regtest", Path::new("no-such-folder"), &args);
    assert_eq!(failed.status.code(), Some(6), "{}", failed.output());
    let reason = "3 times without sending what was asked for; the last time: no block within 1 s";
    assert!(failed.stderr.contains(reason), "{}", failed.stderr);
}

#[test]
fn a_signal_ends_a_run_whose_node_says_nothing() {
    let chain = chain();
    let stalling = Peer::serve(chain.blocks(), Misdeed::Stall);
    let satgres = Satgres::new();
    let args = ["--peer", stalling.address.as_str(), "--peer-timeout-seconds", "600"];
    let mut running = Running::run(&satgres, Path::new("no-such-folder"), &args);
    running.wait_for("PROFILE: Entered P2P sync from start state: ", 1);
    let began = Instant::now();
    running.signal(15);
    let (status, output) = running.wait();
    assert_eq!(status.code(), Some(130), "{output}");
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
}

#[test]
fn a_heavier_chain_that_breaks_a_rule_is_given_up() {
    let chain = chain();
    let too_much = vec![pay(5_000_000_001, script(&[0x51]))];
    let first = chain.fork(150, 5).build(Draft { payouts: Some(too_much), ..Draft::default() });
    let mut greedy = chain.blocks()[..=150].to_vec();
    greedy.push(first);
    while greedy.len() <= 180 {
        let parent = greedy.last().unwrap();
        let number = u8::try_from(greedy.len()).unwrap();
        let mut block = Block {
            txdata: vec![coinbase(script(&[0x01, number, 0x01, 0x07]), vec![pay(1, script(&[0x51]))])],
            ..parent.clone()
        };
        block.header.prev_blockhash = parent.block_hash();
        block.header.time += 600;
        mine(&mut block);
        greedy.push(block);
    }
    let bad = Peer::serve(&greedy, Misdeed::None);
    let good = Peer::serve(chain.blocks(), Misdeed::None);
    let satgres = Satgres::new();
    let output = run(&satgres, &[&bad, &good], &["--segment-bytes", "10KiB"]);
    assert!(output.contains("which breaks a rule: see ops.invalid_blocks"), "{output}");
    assert_chain(&satgres, &chain.rows());
    assert_eq!(satgres.value("select height from ops.invalid_blocks"), "151");
}

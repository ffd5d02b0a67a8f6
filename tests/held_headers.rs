//! A restart of a synced database reads the headers that it holds: all of mainnet's within a few seconds.
//!
//! A test program of its own with one test, so that nothing else takes its time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use satgres::network::Network;
use satgres::replay::reconcile::held_blocks;
use satgres::source::ScannedHeaders;
use support::Satgres;
use support::blkfiles::BlkDir;
use support::blocks::Chain;
use tokio_postgres::NoTls;

const HEIGHT: u32 = 900_000;

/// In a debug build beside others; a release build is some ten times as fast.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn nine_hundred_thousand_headers_are_read_and_linked_within_seconds() {
    let chain = Chain::with_blocks(3);
    let satgres = Satgres::new();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    let url = satgres.command(&["url"]).stdout.trim().to_owned();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let made = format!(
        "insert into chain.blocks (height, hash, version, merkle_root, time, median_time, bits, nonce, size, weight, \
           tx_count, input_count, output_count, fees, subsidy, unclaimed, chainwork) \
         select made, sha256(int4send(made)), version, merkle_root, time, median_time, bits, nonce, size, weight, \
           tx_count, input_count, output_count, fees, subsidy, unclaimed, decode(lpad(to_hex(2 * (made + 1)), 64, '0'), 'hex') \
         from chain.blocks, generate_series(4, {HEIGHT}) as made where height = 3"
    );
    client.batch_execute(&made).await.unwrap();

    let began = Instant::now();
    let held = held_blocks(&client).await.unwrap();
    let read = began.elapsed();
    let tree = ScannedHeaders::none(Network::Regtest).link_loosely(&held);
    let linked = began.elapsed() - read;
    let active = tree.active_chain(&HashSet::new(), None);
    let chosen = began.elapsed() - read - linked;
    eprintln!("{} headers: read in {read:?}, linked in {linked:?}, chosen in {chosen:?}", held.len());
    assert_eq!((tree.len(), active.tip_height()), (HEIGHT as usize + 1, HEIGHT));
    assert_eq!(tree.chainwork(active.at(HEIGHT).unwrap()), 2 * (u128::from(HEIGHT) + 1));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

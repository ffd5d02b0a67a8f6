//! Blocks on top of the tip.

use futures_util::StreamExt as _;
use satgres::live::{Connector, LiveOptions};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::support::rows::assert_chain;
use crate::support::{Satgres, sample};
use crate::{COLD, Live, TINY, WARM, assert_contiguous, change, load};

#[tokio::test(flavor = "multi_thread")]
async fn blocks_connected_row_by_row_are_those_of_a_bulk_load() {
    let chain = sample::chain(130);
    let bulk = Satgres::new();
    load(&bulk, chain.blocks(), "3KiB");
    assert_chain(&bulk, &chain.rows());
    let digest = bulk.digest();
    let mut satgres = Satgres::new();
    for (height, options) in [(0, &TINY), (101, &COLD), (117, &WARM), (104, &TINY), (129, &COLD)] {
        let mut live = Live::on(satgres, &chain.blocks()[..=height], options).await;
        let followed = live.follow(&chain, height).await;
        assert_eq!((followed.height, followed.blocks as usize), (130, 130 - height));
        assert_eq!(live.satgres.digest(), digest, "connected above {height}: {options:?}");
        assert_chain(&live.satgres, &chain.rows());
        live.satgres.verify();
        assert_segments(&live, options);
        satgres = live.forget();
    }
}

/// Segments follow each other, count their rows, and are live only at the end.
fn assert_segments(live: &Live, options: &LiveOptions) {
    let faults = "select s.segment_id from ops.segments s, lateral ( \
           select count(*) txs, coalesce(sum(input_count), 0) ins, coalesce(sum(output_count), 0) outs \
           from chain.transactions t where t.height between s.height_first and s.height_last) t, lateral ( \
           select coalesce(sum(size), 0) bytes from chain.blocks b where b.height between s.height_first and s.height_last) b \
         where (s.tx_count, s.input_count, s.output_count, s.block_bytes) is distinct from (t.txs, t.ins, t.outs, b.bytes)";
    assert_eq!(live.satgres.copy(faults), [""; 0]);
    let states = live.satgres.copy(
        "select distinct case when height_last <= chain.tip_height() then 'complete' else 'open' end || ' ' || state \
         from ops.segments order by 1",
    );
    assert_eq!(states, ["complete attached", "open live"]);
    let lengths = live
        .satgres
        .copy("select distinct height_last - height_first + 1 from ops.segments where state = 'live'");
    assert_eq!(lengths, [options.segment_blocks.to_string()]);
    assert_contiguous(live);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_caches_find_what_they_were_given_and_the_database_the_rest() {
    let chain = sample::chain(130);
    let mut live = Live::above(&chain.blocks()[..=110], &WARM).await;
    let first = live.follow(&chain.fork(120, 1), 110).await;
    // Each block spends one coinbase a hundred blocks old, and three outputs of its own.
    assert_eq!((first.hits.inputs, first.hits.own_block, first.hits.coin_cache), (40, 30, 0));
    let second = live.follow(&chain, 120).await;
    assert_eq!((second.hits.inputs, second.hits.own_block, second.hits.txnum_cache), (40, 30, 0));
    assert_chain(&live.satgres, &chain.rows());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_connected_block_is_told_to_listeners() {
    let chain = sample::chain(105);
    let mut live = Live::above(&chain.blocks()[..=103], &TINY).await;
    let url = live.satgres.command(&["url"]).stdout;
    let (listener, mut connection) = tokio_postgres::connect(url.trim(), NoTls).await.unwrap();
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(it) = message {
                sender.send(format!("{} {}", it.channel(), it.payload())).unwrap();
            }
        }
    });
    listener.batch_execute("listen satgres_block; listen satgres_reorg").await.unwrap();
    live.follow(&chain, 103).await;
    let mut other = chain.fork(104, 1);
    other.mine_empty(2);
    live.follow(&other, 104).await;
    let hash = |chain: &crate::support::blocks::Chain, height: usize| chain.blocks()[height].block_hash();
    let block =
        |chain, height| format!("satgres_block {{\"hash\":\"{}\",\"height\":{height}}}", hash(chain, height));
    for expected in [
        block(&chain, 104),
        block(&chain, 105),
        format!(
            "satgres_reorg {{\"depth\":1,\"fork_height\":104,\"new_tip\":\"{}\",\"old_tip\":\"{}\"}}",
            other.tip(),
            chain.tip()
        ),
        block(&other, 105),
        block(&other, 106),
    ] {
        assert_eq!(told.recv().await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_opened_again_goes_on_from_what_committed() {
    let chain = sample::chain(120);
    let mut live = Live::above(&chain.blocks()[..=105], &TINY).await;
    for height in 105..120 {
        let mut one = change(&chain, height);
        one.blocks.truncate(1);
        live.try_follow(&one).await.unwrap();
        if height % 3 == 0 {
            live.connector = Connector::open(&mut live.client, TINY).await.unwrap();
            assert_eq!(live.connector.tip().height as usize, height + 1);
        }
    }
    assert_chain(&live.satgres, &chain.rows());
    live.satgres.verify();
}

//! Blocks that break a rule, and what is left of them: nothing.

use bitcoin::{Block, OutPoint, Txid};
use satgres::live::{Change, LiveError};

use crate::support::blocks::{Chain, Draft, mine, outpoint, pay, script, spend};
use crate::support::rows::assert_chain;
use crate::support::sample;
use crate::{COLD, Live, WARM, change, new_block};

/// A block that a test breaks, and what is said of it.
fn broken(chain: &Chain) -> Vec<(&'static str, Block)> {
    use bitcoin::hashes::Hash as _;
    let mature = chain.coinbase_outpoint(chain.height() - 100);
    let value = chain.value(&mature);
    let build = |transactions, payouts| chain.build(Draft { transactions, payouts, ..Draft::default() });
    let reward = Some(vec![pay(1_000, script(&[0x51]))]);
    let take = |outpoint: OutPoint, value| spend(&[outpoint], vec![pay(value, script(&[0x52]))]);
    let nowhere = OutPoint { txid: Txid::from_byte_array([9; 32]), vout: 0 };
    let spent = chain.blocks()[102].txdata[1].input[0].previous_output;
    let op_return = outpoint(&chain.blocks()[102].txdata[1], 2);
    let genesis = chain.coinbase_outpoint(0);
    let young = chain.coinbase_outpoint(chain.height() - 98);
    let twice = vec![take(mature, value), take(mature, value - 1)];
    let later = take(mature, value);
    let missing = "spends an output that does not exist or is spent already (transaction 1)";
    let mut backwards = build(vec![later.clone()], reward.clone());
    backwards.txdata.insert(1, take(outpoint(&later, 0), value));
    mine(&mut backwards);
    // `build` asks the model for fees: broken transactions are put in afterwards.
    let with = |transactions: Vec<bitcoin::Transaction>| {
        let mut block = build(Vec::new(), reward.clone());
        block.txdata.extend(transactions);
        mine(&mut block);
        block
    };
    vec![
        (missing, with(vec![take(nowhere, 0)])),
        (missing, with(vec![take(OutPoint { vout: 7, ..mature }, 0)])),
        (missing, with(vec![take(OutPoint { vout: u32::MAX - 1, ..mature }, 0)])),
        (missing, with(vec![take(spent, 0)])),
        (missing, with(vec![take(op_return, 0)])),
        (missing, with(vec![take(genesis, 0)])),
        ("spends an output that does not exist or is spent already (transaction 2)", with(twice)),
        (missing, backwards),
        ("too early", with(vec![take(young, 0)])),
        ("exceed inputs of", with(vec![take(mature, value + 1)])),
        ("coinbase claims", build(Vec::new(), Some(vec![pay(5_000_000_001, script(&[0x51]))]))),
        ("amount out of range", with(vec![take(mature, 21_000_001 * 100_000_000)])),
    ]
}

/// Everything that a refused block could have changed.
fn state(live: &Live) -> Vec<String> {
    let tables = "select 'segments', s::text from ops.segments s union all select 'overwritten', o::text from chain.overwritten o \
         union all select 'stale', b::text from chain.stale_blocks b union all select 'reorgs', r::text from ops.reorgs r order by 1, 2";
    [live.satgres.digest(), live.satgres.copy(tables)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_block_changes_nothing_and_the_next_valid_one_is_taken() {
    let chain = sample::chain(110);
    for options in [WARM, COLD] {
        let mut live = Live::above(&chain.blocks()[..=104], &options).await;
        live.follow(&chain, 104).await;
        let before = state(&live);
        for (reason, block) in broken(&chain) {
            let blocks = vec![new_block(111, &block)];
            let error = live.try_follow(&Change { fork_height: 110, blocks }).await.unwrap_err();
            let LiveError::Invalid { height: 111, hash, .. } = &error else { panic!("{reason}: {error}") };
            assert_eq!(*hash, *AsRef::<[u8; 32]>::as_ref(&block.block_hash()));
            assert!(error.to_string().contains(reason), "{error}, not {reason}");
        }
        assert_eq!(state(&live), before);

        // In a reorg: nothing of it stays, neither in the database nor in the caches.
        let mut other = chain.fork(106, 1);
        sample::extend(&mut other);
        other.mine_empty(4);
        let (_, bad) = broken(&other).pop().unwrap();
        let mut reorg = change(&other, 106);
        reorg.blocks.push(new_block(112, &bad));
        let error = live.try_follow(&reorg).await.unwrap_err();
        assert!(matches!(error, LiveError::Invalid { height: 112, .. }), "{error}");
        assert_eq!(state(&live), before);
        let mut longer = chain.clone();
        (0..10).for_each(|_| sample::extend(&mut longer));
        live.follow(&longer, 110).await;
        assert_chain(&live.satgres, &longer.rows());
        live.satgres.verify();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_and_unlinked_blocks_are_told_apart_from_invalid_ones() {
    let chain = sample::chain(106);
    let mut live = Live::above(&chain.blocks()[..=104], &WARM).await;
    let whole = new_block(105, &chain.blocks()[105]);
    let mut cases: Vec<(Vec<u8>, &str)> = Vec::new();
    let mut flipped = whole.bytes.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    cases.push((flipped, "merkle root does not match"));
    cases.push((whole.bytes[..whole.bytes.len() - 1].to_vec(), "bytes end at"));
    cases.push((whole.bytes[..79].to_vec(), "it has no header"));
    cases.push((new_block(106, &chain.blocks()[106]).bytes.to_vec(), "names another block before it"));
    let mut nonce = whole.bytes.to_vec();
    while satgres::chain::hash::sha256d(&nonce[..80])[31] < 0x80 {
        nonce[76] = nonce[76].wrapping_add(1);
    }
    cases.push((nonce, "proves no work"));
    for (bytes, said) in cases {
        let blocks = vec![satgres::live::NewBlock { height: 105, bytes: bytes.into() }];
        let error = live.try_follow(&Change { fork_height: 104, blocks }).await.unwrap_err();
        assert!(error.to_string().contains(said), "{error}, not {said}");
        assert!(matches!(error, LiveError::Damaged { .. } | LiveError::Unlinked { .. }), "{error:?}");
    }
    let error = live.try_follow(&Change { fork_height: 105, blocks: Vec::new() }).await.unwrap_err();
    assert_eq!(error.to_string(), "the fork at height 105 is above the tip at height 104");
    live.follow(&chain, 104).await;
    assert_chain(&live.satgres, &chain.rows());
}

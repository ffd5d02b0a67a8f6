//! Random branches of random depth, one after the other: what is left is what the last one says.

use bitcoin::Transaction;
use satgres::live::{Connector, LiveError, LiveOptions};

use crate::support::Satgres;
use crate::support::blocks::{Chain, Draft, coinbase, pay, script};
use crate::support::rows::assert_chain;
use crate::support::sample;
use crate::{COLD, Live, TINY, WARM, change, load};

/// Numbers that only look random (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A coinbase that may be mined again and again.
fn twin(kind: u8) -> Transaction {
    let script_sig = script(&[0x04, 0xff, 0xff, 0x7f, 0x20, 0x01, kind]);
    coinbase(script_sig, vec![pay(1_000_000_000, script(&[0x51])), pay(500_000_000, script(&[0x52, kind]))])
}

/// A branch that leaves a chain and becomes longer: some of its transactions come again, at the same place or another.
fn branch(old: &Chain, fork: usize, number: u8, random: &mut Random) -> Chain {
    let mut new = old.fork(fork, number);
    let mut left: Vec<usize> =
        (fork + 1..=old.height()).filter(|height| old.blocks()[*height].txdata.len() > 1).collect();
    let length = old.height() + 1 + random.below(4);
    while new.height() < length {
        let height = new.height() + 1;
        // The coinbase that a sample block spends; a twin's may have become young again.
        let spent = new.coinbase_outpoint(height - 101);
        let is_twin = [twin(0), twin(1)].contains(&new.blocks()[height - 101].txdata[0]);
        match random.below(6) {
            0 => new.mine_empty(1),
            1 => {
                let coinbase = Some(twin(random.below(2) as u8));
                new.mine(Draft { coinbase, ..Draft::default() });
            }
            2 | 3 if !is_twin && new.is_unspent(&spent) => sample::extend(&mut new),
            _ if left.first().is_some_and(|earlier| *earlier <= height) => {
                let again = &old.blocks()[left.remove(0)].txdata[1..];
                if new.is_unspent(&again[0].input[0].previous_output) {
                    new.mine_transactions(again.to_vec());
                }
            }
            _ => new.mine_empty(1),
        }
    }
    new
}

async fn walk(seed: u64, steps: usize, options: &LiveOptions) {
    let mut random = Random(seed);
    let mut chain = sample::chain(128);
    let mut live = Live::above(&chain.blocks()[..=110], options).await;
    live.follow(&chain, 110).await;
    for step in 0..steps {
        let depth = [0, 1, 1 + random.below(6), 1 + random.below(40)][random.below(4)];
        let fork = (chain.height() - depth).max(101);
        let next = branch(&chain, fork, (step % 250 + 1) as u8, &mut random);
        if random.below(4) == 0 {
            // One that must not be followed to its end.
            let mut bad = change(&next, fork);
            let payouts = Some(vec![pay(5_100_000_000, script(&[0x51]))]);
            let block = next.build(Draft { payouts, ..Draft::default() });
            bad.blocks.push(crate::new_block(next.height() + 1, &block));
            let error = live.try_follow(&bad).await.unwrap_err();
            assert!(matches!(error, LiveError::Invalid { .. }), "{error}");
            if depth == 0 {
                // Those before it are connected.
                assert_eq!(live.connector.tip().height as usize, next.height());
            }
        }
        if random.below(5) == 0 {
            live.connector = Connector::open(&mut live.client, options.clone()).await.unwrap();
        }
        if live.connector.tip().hash != *AsRef::<[u8; 32]>::as_ref(&next.tip()) {
            live.follow(&next, fork).await;
        }
        chain = next;
        let said = format!("seed {seed}, step {step}, depth {depth}");
        assert_eq!(
            live.satgres.value("select max(height) from chain.blocks"),
            chain.height().to_string(),
            "{said}"
        );
        eprintln!("{said}"); // shown where it fails
        assert_chain(&live.satgres, &chain.rows());
    }
    live.satgres.verify();
    let fresh = Satgres::new();
    load(&fresh, chain.blocks(), "100KiB");
    assert_eq!(live.satgres.digest(), fresh.digest());
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reorgs_end_as_a_fresh_load_with_caches() {
    walk(1, 20, &LiveOptions { segment_blocks: 13, ..WARM }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reorgs_end_as_a_fresh_load_with_tiny_caches() {
    walk(2, 20, &TINY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reorgs_end_as_a_fresh_load_without_caches() {
    walk(3, 20, &COLD).await;
}

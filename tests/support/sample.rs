//! An ordinary regtest chain with a bit of everything, for tests that are about something else than its contents.
//!
//! In: a height. Out: a chain. It must stay deterministic, so that two tests can speak of the same blocks.

use bitcoin::Witness;

use super::blocks::{Chain, Draft, outpoint, pay, script, spend};

/// Coins of this height are the first to be spent, at height 101 + this.
const FIRST_SPENT: usize = 1;

/// A chain whose blocks above 101 each hold four transactions: an old coinbase is split, and its outputs are spent in
/// the same block, one with a witness; one output stays, one is an OP_RETURN.
pub fn chain(height: usize) -> Chain {
    let mut chain = Chain::with_blocks(100 + FIRST_SPENT);
    while chain.height() < height {
        extend(&mut chain);
    }
    chain
}

/// Adds one such block.
pub fn extend(chain: &mut Chain) {
    let height = chain.height() + 1;
    let coinbase = chain.coinbase_outpoint(height - 101);
    let value = chain.value(&coinbase);
    let seed = u8::try_from(height % 251).unwrap();
    let key_hash = |kind: u8| script(&[&[0x00, 0x14], [seed ^ kind; 20].as_slice()].concat());
    let split = spend(
        &[coinbase],
        vec![
            pay(1_000_000, script(&[&[0x76, 0xa9, 0x14], [seed; 20].as_slice(), &[0x88, 0xac]].concat())),
            pay(2_000_000, key_hash(1)),
            pay(0, script(&[0x6a, 0x01, seed])),
            pay(value - 3_000_000 - 1_000, script(&[0x51])),
        ],
    );
    let mut with_script_sig = spend(&[outpoint(&split, 0)], vec![pay(999_000, key_hash(2))]);
    with_script_sig.input[0].script_sig = script(&[0x02, seed, 0x00]);
    let mut with_witness =
        spend(&[outpoint(&split, 1), outpoint(&with_script_sig, 0)], vec![pay(2_990_000, key_hash(3))]);
    with_witness.input[0].witness = Witness::from_slice(&[vec![seed; 71], vec![2; 33]]);
    chain.mine(Draft { transactions: vec![split, with_script_sig, with_witness], ..Draft::default() });
}

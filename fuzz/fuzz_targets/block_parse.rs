//! Any bytes as a block, beside the bitcoin crate: both accept the same blocks and see the same in them.

#![no_main]

use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hashes::Hash;
use libfuzzer_sys::fuzz_target;
use satgres::chain::batch::Batch;
use satgres::chain::block::{BlockContext, BlockError, parse_block};
use satgres::prevouts::FingerprintKey;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let segwit_active = choice & 1 == 1;
    check(bytes, segwit_active);
    // No fuzzer finds a merkle root: where the rest is a block, it is given the right one.
    if let Ok(mut block) = deserialize::<bitcoin::Block>(bytes)
        && let Some(root) = block.compute_merkle_root()
    {
        block.header.merkle_root = root;
        check(&serialize(&block), segwit_active);
    }
});

fn check(bytes: &[u8], segwit_active: bool) {
    let key = FingerprintKey::from_bytes(&std::array::from_fn(|at| (at * 37 + 11) as u8));
    let context = BlockContext { height: 500, hash: [1; 32], median_time: 0, chainwork: 0, segwit_active };
    let mut batch = Batch::default();
    batch.raw.extend_from_slice(bytes);
    let parsed = parse_block(&mut batch, 0, &context, &key);
    assert_eq!(batch.raw, bytes, "the bytes stay as they were read");
    let theirs = deserialize::<bitcoin::Block>(bytes);
    match (&parsed, &theirs) {
        (Ok(()), theirs) => {
            let theirs = theirs.as_ref().expect("what we accept is a block");
            assert_eq!(batch.txs.len(), theirs.txdata.len());
            assert_eq!(u64::from(batch.blocks[0].weight), theirs.weight().to_wu());
            assert_eq!(batch.blocks[0].size as usize, bytes.len());
            let (mut inputs, mut outputs) = (batch.inputs.iter(), batch.outputs.iter());
            for (ours, theirs) in batch.txs.iter().zip(&theirs.txdata) {
                assert_eq!(ours.txid, theirs.compute_txid().to_byte_array());
                assert_eq!(u64::from(ours.weight), theirs.weight().to_wu());
                assert_eq!(ours.locktime, theirs.lock_time.to_consensus_u32());
                assert_eq!(ours.version, theirs.version.0 as u32);
                for theirs in &theirs.input {
                    let ours = inputs.next().expect("as many inputs");
                    assert_eq!(ours.script_sig.of(bytes), theirs.script_sig.as_bytes());
                    assert_eq!(ours.sequence, theirs.sequence.0);
                    assert_eq!(ours.prev_vout, theirs.previous_output.vout);
                }
                for theirs in &theirs.output {
                    let ours = outputs.next().expect("as many outputs");
                    assert_eq!(ours.script.of(bytes), theirs.script_pubkey.as_bytes());
                    assert_eq!(ours.value_sat, theirs.value.to_sat());
                }
            }
            assert!(inputs.next().is_none() && outputs.next().is_none());
            assert!(theirs.check_merkle_root());
        }
        // Damage of the bytes themselves, or a rule of ours: the crate knows no witness commitments or amounts.
        (Err(BlockError::Damaged(_) | BlockError::Invalid(_)), _) => {}
    }
}

//! Parsing against the `bitcoin` crate, and blocks that must be refused.

use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hashes::Hash;

use super::*;
use crate::network::Network;

fn key() -> FingerprintKey {
    FingerprintKey::from_bytes(&[9; FingerprintKey::BYTES])
}

fn context() -> BlockContext {
    BlockContext { height: 7, hash: [0; 32], median_time: 0, chainwork: 0, segwit_active: true }
}

fn parse(bytes: &[u8]) -> Result<Batch, BlockError> {
    let mut batch = Batch { raw: bytes.to_vec(), ..Batch::default() };
    parse_block(&mut batch, 0, &context(), &key()).map(|()| batch)
}

/// A block of one coinbase and one spend with a witness, committed to.
fn segwit_block() -> bitcoin::Block {
    use bitcoin::{Block, OutPoint, Txid, transaction};
    let mut block: Block = deserialize(&Network::Regtest.genesis_block()).unwrap();
    let mut spend = block.txdata[0].clone();
    spend.version = transaction::Version::TWO;
    spend.input[0].previous_output = OutPoint::new(Txid::from_byte_array([5; 32]), 3);
    spend.input[0].witness.push([1, 2, 3]);
    spend.input[0].witness.push([]);
    block.txdata.push(spend);
    block.txdata[0].input[0].witness.push([0; 32]);
    commit(&mut block);
    block
}

fn commit(block: &mut bitcoin::Block) {
    let root = block.witness_root().unwrap();
    let commitment = bitcoin::Block::compute_witness_commitment(&root, &[0; 32]);
    let mut script = vec![0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed];
    script.extend_from_slice(commitment.as_byte_array());
    block.txdata[0]
        .output
        .push(bitcoin::TxOut { value: bitcoin::Amount::ZERO, script_pubkey: script.into() });
    block.header.merkle_root = block.compute_merkle_root().unwrap();
}

#[test]
fn every_fact_agrees_with_the_bitcoin_crate() {
    for block in [segwit_block(), deserialize(&Network::Main.genesis_block()).unwrap()] {
        let bytes = serialize(&block);
        let batch = parse(&bytes).unwrap();
        assert_eq!(u64::from(batch.blocks[0].weight), block.weight().to_wu());
        assert_eq!(batch.blocks[0].size as usize, bytes.len());
        assert_eq!(batch.txs.len(), block.txdata.len());
        let (mut inputs, mut outputs) = (batch.inputs.iter(), batch.outputs.iter());
        for (tx, theirs) in batch.txs.iter().zip(&block.txdata) {
            assert_eq!(tx.txid, theirs.compute_txid().to_byte_array());
            assert_eq!(u64::from(tx.weight), theirs.weight().to_wu());
            assert_eq!(tx.size as usize, theirs.total_size());
            for theirs in &theirs.input {
                let input = inputs.next().unwrap();
                assert_eq!(input.script_sig.of(&batch.raw), theirs.script_sig.as_bytes());
                let witness = serialize(&theirs.witness);
                assert_eq!(input.witness.of(&batch.raw), if witness == [0] { &[] } else { &witness[..] });
            }
            for (vout, theirs) in theirs.output.iter().enumerate() {
                let output = outputs.next().unwrap();
                assert_eq!(output.script.of(&batch.raw), theirs.script_pubkey.as_bytes());
                assert_eq!(output.outpoint, key().fingerprint(&tx.txid, vout as u32));
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_damage() {
    let bytes = serialize(&segwit_block());
    for at in (4..36).chain(68..80) {
        // Version, link, time, bits and nonce are for the header's hash to protect.
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(parse(&changed).is_ok(), "offset {at}");
    }
    for at in (36..68).chain(80..bytes.len()) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(matches!(parse(&changed), Err(BlockError::Damaged(_))), "offset {at}: {:?}", parse(&changed));
    }
}

#[test]
fn a_cut_block_is_damage_wherever_it_is_cut() {
    let bytes = serialize(&segwit_block());
    for len in 0..bytes.len() {
        assert!(matches!(parse(&bytes[..len]), Err(BlockError::Damaged(_))), "length {len}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(parse(&longer).unwrap_err(), DamagedBlock::Trailing { count: 1 }.into());
}

#[test]
fn a_block_without_its_witness_and_one_with_uncommitted_witness_are_refused() {
    let mut stripped = segwit_block();
    stripped.txdata[1].input[0].witness.clear();
    assert_eq!(parse(&serialize(&stripped)).unwrap_err(), DamagedBlock::WitnessCommitment.into());

    let mut uncommitted = segwit_block();
    uncommitted.txdata[0].output.pop();
    uncommitted.txdata[0].input[0].witness.clear();
    uncommitted.header.merkle_root = uncommitted.compute_merkle_root().unwrap();
    assert_eq!(parse(&serialize(&uncommitted)).unwrap_err(), DamagedBlock::UnexpectedWitness.into());
}

#[test]
fn the_last_of_several_witness_commitments_counts() {
    let mut block = segwit_block();
    let mut wrong = block.txdata[0].output.last().unwrap().clone();
    let mut script = wrong.script_pubkey.to_bytes();
    script[10] ^= 1;
    wrong.script_pubkey = script.into();
    let at = block.txdata[0].output.len() - 1;
    block.txdata[0].output.insert(at, wrong.clone());
    block.header.merkle_root = block.compute_merkle_root().unwrap();
    assert!(parse(&serialize(&block)).is_ok());

    block.txdata[0].output.push(wrong);
    block.header.merkle_root = block.compute_merkle_root().unwrap();
    assert_eq!(parse(&serialize(&block)).unwrap_err(), DamagedBlock::WitnessCommitment.into());
}

#[test]
fn a_duplicated_tail_is_refused_cve_2012_2459() {
    let mut block = segwit_block();
    let third = {
        let mut tx = block.txdata[1].clone();
        tx.lock_time = bitcoin::absolute::LockTime::from_consensus(9);
        tx
    };
    block.txdata.push(third.clone());
    block.txdata[0].output.pop();
    commit(&mut block);
    assert!(parse(&serialize(&block)).is_ok());
    block.txdata.push(third);
    assert_eq!(parse(&serialize(&block)).unwrap_err(), DamagedBlock::MerkleMutated.into());
}

#[test]
fn broken_rules_name_the_transaction() {
    let mut two_coinbases = segwit_block();
    two_coinbases.txdata[1].input[0].previous_output = bitcoin::OutPoint::null();
    two_coinbases.txdata[0].output.pop();
    commit(&mut two_coinbases);
    assert_eq!(parse(&serialize(&two_coinbases)).unwrap_err(), InvalidBlock::Coinbase { index: 1 }.into());

    let mut rich = segwit_block();
    rich.txdata[1].output[0].value = bitcoin::Amount::from_sat(MONEY_MAX_SAT + 1);
    rich.txdata[0].output.pop();
    commit(&mut rich);
    assert_eq!(parse(&serialize(&rich)).unwrap_err(), InvalidBlock::AmountRange { index: 1 }.into());

    let mut heavy = segwit_block();
    heavy.txdata[1].output[0].script_pubkey = vec![0; 1_000_000].into();
    heavy.txdata[0].output.pop();
    commit(&mut heavy);
    let error = parse(&serialize(&heavy)).unwrap_err();
    assert!(matches!(error, BlockError::Invalid(InvalidBlock::Weight { weight: 4_000_001.. })), "{error}");
}

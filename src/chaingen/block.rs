//! Puts a block together: coinbase, witness commitment, merkle root, proof of work.
//!
//! In: the parent, the signed transactions, what the coinbase may claim. Out: the block's bytes, its hash and the
//! coinbase's txid. Called once a block by `generate`.

use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::consensus::encode::{VarInt, serialize};
use bitcoin::hashes::Hash;
use bitcoin::merkle_tree::calculate_root;
use bitcoin::script::{Builder, ScriptBuf};
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, OutPoint, Sequence, Transaction, TxIn, TxMerkleNode, TxOut,
    Txid, Weight, Witness, WitnessMerkleNode, Wtxid, transaction,
};

use super::draft::push_bytes;
use super::sign::SignedTransaction;

/// The easiest target there is: every second hash meets it.
const BITS: u32 = 0x207f_ffff;
/// Regtest halves the subsidy so often.
const HALVING_INTERVAL_BLOCKS: u32 = 150;
const SUBSIDY_FIRST_SAT: u64 = 5_000_000_000;

/// Everything about a block that is decided before it is put together.
pub(super) struct BlockTemplate<'a> {
    pub(super) height: u32,
    pub(super) parent: BlockHash,
    /// Seconds since 1970.
    pub(super) time: u32,
    /// Stands in the coinbase, so that chains of different seeds share no block.
    pub(super) seed: u64,
    /// Who gets subsidy and fees.
    pub(super) reward_script: ScriptBuf,
    pub(super) fees_sat: u64,
    pub(super) transactions: &'a [SignedTransaction],
}

/// A block with proof of work.
pub(super) struct FinishedBlock {
    pub(super) bytes: Vec<u8>,
    pub(super) hash: BlockHash,
    pub(super) coinbase_txid: Txid,
    /// Subsidy and fees.
    pub(super) reward_sat: u64,
}

/// Returns the subsidy at a height of regtest, in sat.
pub(super) fn subsidy_sat(height: u32) -> u64 {
    SUBSIDY_FIRST_SAT.checked_shr(height / HALVING_INTERVAL_BLOCKS).unwrap_or(0)
}

impl BlockTemplate<'_> {
    /// Builds and mines the block.
    pub(super) fn finish(self) -> FinishedBlock {
        let reward_sat = subsidy_sat(self.height) + self.fees_sat;
        let coinbase = self.coinbase(reward_sat);
        let coinbase_txid = coinbase.compute_txid();
        let txids = std::iter::once(coinbase_txid).chain(self.transactions.iter().map(|signed| signed.txid));
        let merkle_root = calculate_root(txids).expect("a block has a coinbase");
        let mut header = Header {
            version: Version::from_consensus(0x2000_0000),
            prev_blockhash: self.parent,
            merkle_root: TxMerkleNode::from_raw_hash(merkle_root.to_raw_hash()),
            time: self.time,
            bits: CompactTarget::from_consensus(BITS),
            nonce: 0,
        };
        let hash = mine(&mut header);
        self.assert_weight(&coinbase);

        let mut bytes = serialize(&header);
        bytes.extend(serialize(&VarInt::from(self.transactions.len() + 1)));
        bytes.extend(serialize(&coinbase));
        for signed in self.transactions {
            bytes.extend_from_slice(&signed.bytes);
        }
        FinishedBlock { bytes, hash, coinbase_txid, reward_sat }
    }

    fn coinbase(&self, reward_sat: u64) -> Transaction {
        let reserved = [0; 32];
        let wtxids =
            std::iter::once(Wtxid::all_zeros()).chain(self.transactions.iter().map(|signed| signed.wtxid));
        let witness_root = calculate_root(wtxids).expect("a block has a coinbase");
        let witness_root = WitnessMerkleNode::from_raw_hash(witness_root.to_raw_hash());
        let commitment = Block::compute_witness_commitment(&witness_root, &reserved);
        // BIP141: the commitment is marked by these four bytes.
        let mut marked = vec![0xaa, 0x21, 0xa9, 0xed];
        marked.extend_from_slice(commitment.as_ref());
        let script_sig = Builder::new()
            .push_int(i64::from(self.height))
            .push_slice(self.seed.to_le_bytes())
            .push_slice(b"satgres chaingen")
            .into_script();
        Transaction {
            version: transaction::Version::TWO,
            lock_time: LockTime::ZERO,
            input: vec![TxIn {
                previous_output: OutPoint::null(),
                script_sig,
                sequence: Sequence::MAX,
                witness: Witness::from_slice(&[reserved]),
            }],
            output: vec![
                TxOut { value: Amount::from_sat(reward_sat), script_pubkey: self.reward_script.clone() },
                TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new_op_return(push_bytes(marked)) },
            ],
        }
    }

    fn assert_weight(&self, coinbase: &Transaction) {
        let transactions: Weight = self.transactions.iter().map(|signed| signed.weight).sum();
        let weight = Weight::from_vb_unchecked(80 + 3) + coinbase.weight() + transactions;
        assert!(weight <= Weight::MAX_BLOCK, "the plan of block {} weighs {weight}", self.height);
    }
}

fn mine(header: &mut Header) -> BlockHash {
    let target = header.target();
    loop {
        let hash = header.block_hash();
        if target.is_met_by(hash) {
            return hash;
        }
        header.nonce += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subsidy_halves_every_150_blocks_until_nothing_is_left() {
        assert_eq!(subsidy_sat(1), 5_000_000_000);
        assert_eq!(subsidy_sat(149), 5_000_000_000);
        assert_eq!(subsidy_sat(150), 2_500_000_000);
        assert_eq!(subsidy_sat(4_949), 1);
        assert_eq!(subsidy_sat(4_950), 0);
        assert_eq!(subsidy_sat(9_600), 0);
        assert_eq!(subsidy_sat(500_000), 0);
    }

    #[test]
    fn a_block_of_a_coinbase_alone_satisfies_the_reference_decoder() {
        let template = BlockTemplate {
            height: 17,
            parent: BlockHash::all_zeros(),
            time: 1_300_000_000,
            seed: 1,
            reward_script: ScriptBuf::new(),
            fees_sat: 5,
            transactions: &[],
        };
        let finished = template.finish();
        let block: Block = bitcoin::consensus::deserialize(&finished.bytes).unwrap();
        assert!(block.check_merkle_root() && block.check_witness_commitment());
        assert_eq!(block.bip34_block_height(), Ok(17));
        assert_eq!(block.header.validate_pow(block.header.target()), Ok(finished.hash));
        assert_eq!(block.txdata[0].output[0].value, Amount::from_sat(5_000_000_005));
    }
}

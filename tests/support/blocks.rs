//! Regtest chains made by hand: every field of a block can be chosen, and a model keeps the rows that must come out.
//!
//! In: transactions and drafts of blocks. Out: mined blocks (for `blkfiles.rs`) and expected rows. Scripts need not
//! be satisfied, since nobody here runs them; all else obeys Bitcoin's rules unless a test breaks one on purpose.

use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::hashes::Hash;
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, Network, OutPoint, ScriptBuf, Sequence, Transaction, TxIn,
    TxMerkleNode, TxOut, Witness, transaction,
};

use super::model::{Model, subsidy};
use super::rows::Rows;

/// Blocks from genesis on, and what they should give.
#[derive(Debug, Clone)]
pub struct Chain {
    blocks: Vec<Block>,
    model: Model,
    /// Stands in every coinbase, so that blocks of two branches differ.
    branch: u8,
}

/// What is special about the next block; the default is an ordinary one that holds only its coinbase.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    pub transactions: Vec<Transaction>,
    /// Default: 0x20000000.
    pub version: Option<i32>,
    /// Default: ten minutes after the parent.
    pub time: Option<u32>,
    /// Target; default: 0x207fffff, two hashes mine a block.
    pub bits: Option<u32>,
    /// Where mining starts: the nonce will be this or a little more.
    pub nonce_first: u32,
    /// Outputs of the coinbase; default: everything that may be claimed goes to the script OP_TRUE.
    pub payouts: Option<Vec<TxOut>>,
    /// Commitments to nothing that stand before the right one; only the last counts (BIP141).
    pub decoy_commitments: usize,
    /// The whole coinbase, as it is.
    pub coinbase: Option<Transaction>,
}

impl Chain {
    /// Genesis alone.
    pub fn regtest() -> Self {
        let genesis = bitcoin::constants::genesis_block(Network::Regtest);
        let mut model = Model::default();
        model.connect(&genesis);
        Self { blocks: vec![genesis], model, branch: 0 }
    }

    /// A chain of `count` blocks after genesis that hold only a coinbase each.
    pub fn with_blocks(count: usize) -> Self {
        let mut chain = Self::regtest();
        chain.mine_empty(count);
        chain
    }

    /// This chain up to a height; its next blocks will differ from ours.
    pub fn fork(&self, height: usize, branch: u8) -> Self {
        assert!(branch != self.branch, "a branch needs a number of its own");
        let mut model = Model::default();
        for block in &self.blocks[..=height] {
            model.connect(block);
        }
        Self { blocks: self.blocks[..=height].to_vec(), model, branch }
    }

    /// All blocks; the index is the height.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub fn height(&self) -> usize {
        self.blocks.len() - 1
    }

    pub fn tip(&self) -> BlockHash {
        self.blocks[self.height()].block_hash()
    }

    /// The rows that a database of this chain holds.
    pub fn rows(&self) -> Rows {
        self.model.rows()
    }

    /// The amount of an unspent output, in satoshis.
    pub fn value(&self, outpoint: &OutPoint) -> u64 {
        self.model.coin(outpoint).value
    }

    /// Whether an outpoint is unspent.
    pub fn is_unspent(&self, outpoint: &OutPoint) -> bool {
        self.model.has_coin(outpoint)
    }

    /// The first output of a block's coinbase.
    pub fn coinbase_outpoint(&self, height: usize) -> OutPoint {
        OutPoint { txid: self.blocks[height].txdata[0].compute_txid(), vout: 0 }
    }

    pub fn mine_empty(&mut self, count: usize) {
        for _ in 0..count {
            self.mine(Draft::default());
        }
    }

    /// Adds a block with these transactions in this order.
    pub fn mine_transactions(&mut self, transactions: Vec<Transaction>) -> BlockHash {
        self.mine(Draft { transactions, ..Draft::default() })
    }

    /// Adds a block.
    pub fn mine(&mut self, draft: Draft) -> BlockHash {
        let block = self.build(draft);
        self.model.connect(&block);
        self.blocks.push(block);
        self.tip()
    }

    /// A mined block on our tip that does not become part of this chain.
    pub fn build(&self, draft: Draft) -> Block {
        let parent = &self.blocks[self.height()].header;
        let height = u32::try_from(self.blocks.len()).unwrap();
        let coinbase = draft.coinbase.clone().unwrap_or_else(|| self.coinbase(height, &draft));
        let mut block = Block {
            header: Header {
                version: Version::from_consensus(draft.version.unwrap_or(0x2000_0000)),
                prev_blockhash: parent.block_hash(),
                merkle_root: TxMerkleNode::all_zeros(),
                time: draft.time.unwrap_or_else(|| parent.time.saturating_add(600)),
                bits: CompactTarget::from_consensus(draft.bits.unwrap_or(0x207f_ffff)),
                nonce: draft.nonce_first,
            },
            txdata: [vec![coinbase], draft.transactions].concat(),
        };
        if draft.coinbase.is_none() {
            commit_to_witness(&mut block, draft.decoy_commitments);
        }
        mine(&mut block);
        block
    }

    fn coinbase(&self, height: u32, draft: &Draft) -> Transaction {
        let everything = || {
            let fees = draft.transactions.iter().enumerate();
            let fees: u64 = fees.map(|(at, tx)| self.model.fee(tx, &draft.transactions[..at])).sum();
            vec![pay(subsidy(height) + fees, script(&[0x51]))]
        };
        coinbase(
            bip34_script_sig(height, &[b'h', b't', self.branch]),
            draft.payouts.clone().unwrap_or_else(everything),
        )
    }
}

/// A coinbase transaction as it is before a witness commitment is added.
pub fn coinbase(script_sig: ScriptBuf, output: Vec<TxOut>) -> Transaction {
    let input = TxIn {
        previous_output: OutPoint::null(),
        script_sig,
        sequence: Sequence::MAX,
        witness: Witness::new(),
    };
    Transaction { version: transaction::Version(2), lock_time: LockTime::ZERO, input: vec![input], output }
}

/// The height, as BIP34 wants it, and some more bytes as one push.
fn bip34_script_sig(height: u32, extra: &[u8]) -> ScriptBuf {
    let extra: &bitcoin::script::PushBytes = extra.try_into().unwrap();
    ScriptBuf::builder().push_int(i64::from(height)).push_slice(extra).into_script()
}

/// A transaction that spends these outpoints, without any signature.
pub fn spend(outpoints: &[OutPoint], output: Vec<TxOut>) -> Transaction {
    let input = |outpoint: &OutPoint| TxIn {
        previous_output: *outpoint,
        script_sig: ScriptBuf::new(),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    };
    Transaction {
        version: transaction::Version(2),
        lock_time: LockTime::ZERO,
        input: outpoints.iter().map(input).collect(),
        output,
    }
}

pub fn pay(value: u64, script_pubkey: ScriptBuf) -> TxOut {
    TxOut { value: Amount::from_sat(value), script_pubkey }
}

pub fn script(bytes: &[u8]) -> ScriptBuf {
    ScriptBuf::from_bytes(bytes.to_vec())
}

pub fn outpoint(transaction: &Transaction, vout: u32) -> OutPoint {
    OutPoint { txid: transaction.compute_txid(), vout }
}

/// Adds the commitment that a block with witnesses needs, after `decoys` that commit to something else.
fn commit_to_witness(block: &mut Block, decoys: usize) {
    if decoys == 0 && block.txdata.iter().all(|tx| tx.input.iter().all(|input| input.witness.is_empty())) {
        return;
    }
    let reserved = [0; 32];
    block.txdata[0].input[0].witness = Witness::from_slice(&[reserved]);
    let root = block.witness_root().unwrap();
    let commitment = Block::compute_witness_commitment(&root, &reserved).to_byte_array();
    let decoys = (0..decoys).map(|number| [u8::try_from(number).unwrap(); 32]);
    for hash in decoys.chain([commitment]) {
        let script_pubkey = script(&[&[0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed], hash.as_slice()].concat());
        block.txdata[0].output.push(pay(0, script_pubkey));
    }
}

/// Sets the merkle root and searches a nonce, upwards.
pub fn mine(block: &mut Block) {
    block.header.merkle_root = block.compute_merkle_root().unwrap();
    while block.header.validate_pow(block.header.target()).is_err() {
        block.header.nonce = block.header.nonce.wrapping_add(1);
    }
}

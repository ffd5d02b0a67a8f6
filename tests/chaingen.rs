//! Chains made by `chaingen`: the same bytes for the same options, the promised mix, and a real node that accepts them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::fs;

use bitcoin::hashes::Hash;
use bitcoin::script::Instruction;
use bitcoin::secp256k1::{Message, Secp256k1, VerifyOnly, schnorr};
use bitcoin::sighash::{EcdsaSighashType, Prevouts, SighashCache, TapSighashType};
use bitcoin::{Block, OutPoint, PublicKey, Script, TxOut, Weight, XOnlyPublicKey, ecdsa};
use satgres::chaingen::{ChaingenError, Mix, Options, ScriptKind, generate, generate_on};
use support::node::Node;
use tempfile::TempDir;

/// Generates a chain below a folder that is removed with the guard.
fn chain(blocks: u32, txs_per_block: u32, seed: u64, threads: usize) -> (TempDir, Mix) {
    let dir = TempDir::new().unwrap();
    let mix = generate_on(&options(&dir, blocks, txs_per_block, seed), threads).unwrap();
    (dir, mix)
}

fn options(dir: &TempDir, blocks: u32, txs_per_block: u32, seed: u64) -> Options {
    Options { blocks, txs_per_block, seed, out: dir.path().join("chain") }
}

fn block_file(dir: &TempDir) -> Vec<u8> {
    fs::read(dir.path().join("chain/blk00000.dat")).unwrap()
}

/// Decodes all blocks of a file with the bitcoin crate.
fn decode(mut file: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        assert_eq!(file[..4], [0xfa, 0xbf, 0xb5, 0xda]);
        let length = u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
        blocks.push(bitcoin::consensus::deserialize(&file[8..8 + length]).unwrap());
        file = &file[8 + length..];
    }
    blocks
}

#[test]
fn the_same_options_give_the_same_bytes_on_any_number_of_threads() {
    let (one, mix) = chain(150, 30, 7, 1);
    let (again, mix_again) = chain(150, 30, 7, 3);
    let (other, _) = chain(150, 30, 8, 2);
    assert!(mix.transactions > 500, "{mix}");
    assert_eq!(mix, mix_again);
    assert!(block_file(&one) == block_file(&again), "threads change the bytes");
    let (one, other) = (decode(&block_file(&one)), decode(&block_file(&other)));
    assert_eq!(one[0], other[0], "there is one regtest genesis");
    assert!(one[1..].iter().zip(&other[1..]).all(|(one, other)| one.txdata[0] != other.txdata[0]));
}

#[test]
fn the_bytes_of_this_format_stay_what_they_are() {
    // Whoever changes these must count `FORMAT` up: caches of chains rely on it.
    let (_dir, mix) = chain(140, 20, 1, 2);
    assert_eq!(mix.tip_hash, "585784356062b73d1dd8b77f935dc8bced4eb2a2afe6e3ba88c062099c568e18");
    assert_eq!(mix.utxo_hash, "e1c5fbf6e5c6a2c6c7a0e4b68865cab950000b074f887e613ea70591e1d4bf70");
}

#[test]
fn a_chain_without_mature_coins_is_coinbases_alone() {
    let (dir, mix) = chain(100, 20, 1, 1);
    assert_eq!((mix.transactions, mix.inputs, mix.outputs, mix.ramp_up_height_last), (0, 0, 0, 0));
    assert_eq!((mix.utxo_count, mix.utxo_total_sat), (100, 500_000_000_000));
    assert_eq!(decode(&block_file(&dir)).len(), 101);

    let (dir, mix) = chain(0, 20, 1, 1);
    assert_eq!(mix.tip_hash, "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206");
    assert_eq!((mix.bytes, decode(&block_file(&dir)).len()), (293, 1));
}

#[test]
fn blocks_keep_the_rules_that_need_no_script() {
    let (dir, mix) = chain(330, 40, 5, 2);
    let blocks = decode(&block_file(&dir));
    assert_eq!(blocks.len(), 331);
    assert_eq!(blocks[330].block_hash().to_string(), mix.tip_hash);
    for (height, pair) in (1u64..).zip(blocks.windows(2)) {
        let [parent, block] = pair else { unreachable!() };
        assert_eq!(block.header.prev_blockhash, parent.block_hash());
        assert!((300..=900).contains(&(block.header.time - parent.header.time)));
        assert_eq!(block.header.bits.to_consensus(), 0x207f_ffff);
        block.header.validate_pow(block.header.target()).unwrap();
        assert!(block.check_merkle_root() && block.check_witness_commitment(), "block {height}");
        assert!(block.weight() <= Weight::MAX_BLOCK);
        // The bitcoin crate does not read heights of 16 and less, which are one opcode.
        if height > 16 {
            assert_eq!(block.bip34_block_height(), Ok(height));
        } else {
            assert_eq!(block.txdata[0].input[0].script_sig.as_bytes()[0], 0x50 + height as u8);
        }
    }
}

#[test]
fn every_signature_is_valid_and_no_coin_is_spent_twice() {
    let (dir, mix) = chain(210, 40, 3, 2);
    let verifier = Verifier { secp: Secp256k1::verification_only() };
    let mut coins: HashMap<OutPoint, TxOut> = HashMap::new();
    let (mut fees_sat, mut signatures) = (0, 0);
    for block in &decode(&block_file(&dir))[1..] {
        for (index, transaction) in block.txdata.iter().enumerate() {
            if index > 0 {
                let prevouts: Vec<TxOut> = transaction
                    .input
                    .iter()
                    .map(|input| {
                        coins.remove(&input.previous_output).expect("the coin exists and is unspent")
                    })
                    .collect();
                signatures += verifier.verify(transaction, &prevouts);
                let sum = |outputs: &[TxOut]| outputs.iter().map(|output| output.value.to_sat()).sum::<u64>();
                fees_sat +=
                    sum(&prevouts).checked_sub(sum(&transaction.output)).expect("no value is created");
            }
            let txid = transaction.compute_txid();
            for (vout, output) in (0u32..).zip(&transaction.output) {
                if !output.script_pubkey.is_op_return() {
                    coins.insert(OutPoint { txid, vout }, output.clone());
                }
            }
        }
    }
    assert_eq!((fees_sat, signatures), (mix.fees_sat, mix.signatures));
    assert_eq!(coins.len() as u64, mix.utxo_count);
    assert_eq!(coins.values().map(|coin| coin.value.to_sat()).sum::<u64>(), mix.utxo_total_sat);
}

struct Verifier {
    secp: Secp256k1<VerifyOnly>,
}

impl Verifier {
    /// Checks all inputs of a transaction against the outputs that they spend; returns the number of signatures.
    fn verify(&self, transaction: &bitcoin::Transaction, prevouts: &[TxOut]) -> u64 {
        let mut cache = SighashCache::new(transaction);
        let all = EcdsaSighashType::All;
        let mut signatures = 0;
        for (index, (input, prevout)) in transaction.input.iter().zip(prevouts).enumerate() {
            let script = &prevout.script_pubkey;
            let witness: Vec<&[u8]> = input.witness.iter().collect();
            let pushes: Vec<&[u8]> = input.script_sig.instructions().map(push).collect();
            signatures += 1;
            if script.is_p2tr() {
                let hash = cache
                    .taproot_key_spend_signature_hash(
                        index,
                        &Prevouts::All(prevouts),
                        TapSighashType::Default,
                    )
                    .unwrap();
                let key = XOnlyPublicKey::from_slice(&script.as_bytes()[2..]).unwrap();
                let signature = schnorr::Signature::from_slice(witness[0]).unwrap();
                let message = Message::from_digest(hash.to_byte_array());
                self.secp.verify_schnorr(&signature, &message, &key).unwrap();
            } else if script.is_p2wsh() {
                let witness_script = Script::from_bytes(witness[3]);
                assert_eq!(*script, witness_script.to_p2wsh());
                let hash = cache.p2wsh_signature_hash(index, witness_script, prevout.value, all).unwrap();
                // 2 <key> <key> <key> 3 OP_CHECKMULTISIG; the first two keys signed.
                self.verify_ecdsa(hash.to_byte_array(), witness[1], &witness[3][2..35]);
                self.verify_ecdsa(hash.to_byte_array(), witness[2], &witness[3][36..69]);
                signatures += 1;
            } else if script.is_p2wpkh() || script.is_p2sh() {
                let program = pushes.first().map_or(script.as_script(), |push| Script::from_bytes(push));
                assert!(*script == *program || *script == program.to_p2sh());
                let hash = cache.p2wpkh_signature_hash(index, program, prevout.value, all).unwrap();
                let key = PublicKey::from_slice(witness[1]).unwrap();
                assert_eq!(program.as_bytes()[2..], key.wpubkey_hash().unwrap().to_byte_array());
                self.verify_ecdsa(hash.to_byte_array(), witness[0], witness[1]);
            } else {
                let hash = cache.legacy_signature_hash(index, script, all.to_u32()).unwrap().to_byte_array();
                if script.is_p2pkh() {
                    let key = PublicKey::from_slice(pushes[1]).unwrap();
                    assert_eq!(script.as_bytes()[3..23], key.pubkey_hash().to_byte_array());
                    self.verify_ecdsa(hash, pushes[0], pushes[1]);
                } else if script.is_p2pk() {
                    self.verify_ecdsa(hash, pushes[0], &script.as_bytes()[1..34]);
                } else {
                    assert!(script.is_multisig());
                    self.verify_ecdsa(hash, pushes[1], &script.as_bytes()[2..35]);
                }
            }
        }
        signatures
    }

    fn verify_ecdsa(&self, digest: [u8; 32], signature: &[u8], key: &[u8]) {
        let signature = ecdsa::Signature::from_slice(signature).unwrap();
        let key = PublicKey::from_slice(key).unwrap();
        assert_eq!(signature.sighash_type, EcdsaSighashType::All);
        self.secp.verify_ecdsa(&Message::from_digest(digest), &signature.signature, &key.inner).unwrap();
    }
}

#[test]
fn the_mix_is_like_mainnets() {
    let (_dir, mix) = chain(1500, 14, 1, 2);
    let near = |found: f64, wanted: f64, tolerance: f64| {
        assert!((found - wanted).abs() <= tolerance, "{found} is not {wanted}:\n{mix}");
    };
    assert!(mix.transactions > 18_000, "{mix}");
    near(mix.inputs_per_transaction(), 2.6, 0.1);
    near(mix.outputs_per_transaction(), 2.9, 0.1);
    near(mix.young_share(), 0.5, 0.02);
    near(mix.same_block_share(), 0.06, 0.015);
    near(mix.busy_share(), 0.01, 0.002);
    let shares = [
        (ScriptKind::P2pk, 0.010, 0.003),
        (ScriptKind::P2pkh, 0.28, 0.015),
        (ScriptKind::P2shP2wpkh, 0.16, 0.015),
        (ScriptKind::P2wpkh, 0.34, 0.015),
        (ScriptKind::P2wsh, 0.05, 0.01),
        (ScriptKind::P2tr, 0.12, 0.015),
        (ScriptKind::BareMultisig, 0.010, 0.003),
    ];
    for (kind, share, tolerance) in shares {
        near(mix.output_share(kind), share, tolerance);
        near(mix.input_share(kind), share, tolerance + 0.01);
    }
    near(mix.output_share(ScriptKind::OpReturn), 0.028, 0.005);
    assert_eq!(mix.inputs_by_kind[ScriptKind::OpReturn as usize], 0);
    // Ages of 100 to 199, 200 to 499, 500 to 999 and 1,000 or more: all of them occur, the younger more often.
    let [.., to_200, to_500, to_1000, older, _] = mix.inputs_by_age;
    assert!(to_200 > to_500 && to_500 > to_1000 && to_1000 > older && older > 0, "{mix}");
    let text = mix.to_string();
    assert!(
        text.contains("P2WSH 2-of-3") && text.contains("busy address") && text.contains(&mix.tip_hash),
        "{text}"
    );
}

#[test]
fn a_finished_chain_is_found_again_and_nothing_else_is_touched() {
    let dir = TempDir::new().unwrap();
    let wanted = options(&dir, 20, 5, 1);
    let mix = generate(&wanted).unwrap();
    let file = wanted.out.join("blk00000.dat");
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    assert_eq!(generate(&wanted).unwrap(), mix);
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), modified);

    let error = generate(&Options { seed: 2, ..wanted.clone() }).unwrap_err();
    assert!(matches!(error, ChaingenError::OtherChain { .. }), "{error}");
    assert!(error.to_string().contains("--blocks 20 --txs-per-block 5 --seed 1"), "{error}");

    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(100).unwrap();
    let error = generate(&wanted).unwrap_err();
    assert!(matches!(error, ChaingenError::Changed { found: Some(100), .. }), "{error}");
}

#[test]
fn foreign_files_stay() {
    let dir = TempDir::new().unwrap();
    let wanted = options(&dir, 2, 0, 1);
    fs::create_dir(&wanted.out).unwrap();
    fs::write(wanted.out.join("blk00000.dat"), "precious").unwrap();
    let error = generate(&wanted).unwrap_err();
    assert!(matches!(&error, ChaingenError::NotEmpty { entry, .. } if entry == "blk00000.dat"), "{error}");
    assert_eq!(fs::read(wanted.out.join("blk00000.dat")).unwrap(), b"precious");
}

#[test]
fn what_an_interrupted_run_left_is_replaced() {
    let dir = TempDir::new().unwrap();
    let wanted = options(&dir, 20, 5, 1);
    let partial = wanted.out.join("chaingen.partial");
    fs::create_dir_all(&partial).unwrap();
    fs::write(partial.join("blk00001.dat"), "half").unwrap();
    fs::write(wanted.out.join("blk00000.dat"), "moved up already").unwrap();
    let mix = generate(&wanted).unwrap();
    let mut names: Vec<_> = fs::read_dir(&wanted.out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["blk00000.dat", "chaingen.json"]);
    assert_eq!(fs::metadata(wanted.out.join("blk00000.dat")).unwrap().len(), mix.bytes);
}

#[test]
fn two_runs_do_not_share_a_folder() {
    let dir = TempDir::new().unwrap();
    let wanted = options(&dir, 2, 0, 1);
    fs::create_dir(&wanted.out).unwrap();
    let other_run = fs::File::open(&wanted.out).unwrap();
    other_run.lock().unwrap();
    assert!(matches!(generate(&wanted).unwrap_err(), ChaingenError::InUse { .. }));
    other_run.unlock().unwrap();
    generate(&wanted).unwrap();
}

#[test]
fn options_out_of_range_are_refused() {
    let dir = TempDir::new().unwrap();
    let error = generate(&options(&dir, 1, 2_001, 1)).unwrap_err();
    assert!(matches!(error, ChaingenError::TooManyTransactions { txs_per_block: 2_001 }), "{error}");
    let error = generate(&options(&dir, 500_001, 1, 1)).unwrap_err();
    assert!(matches!(error, ChaingenError::TooManyBlocks { blocks: 500_001 }), "{error}");
    assert!(!dir.path().join("chain").exists());
}

#[test]
fn bitcoin_core_accepts_the_chain_and_agrees_on_the_utxo_set() {
    let (dir, mix) = chain(260, 20, 42, 2);
    let data_dir = dir.path().join("node");
    fs::create_dir_all(data_dir.join("regtest/blocks")).unwrap();
    fs::copy(dir.path().join("chain/blk00000.dat"), data_dir.join("regtest/blocks/blk00000.dat")).unwrap();
    let Some(node) = Node::start(&data_dir, &["-reindex", "-blocksxor=0"], "a node judges the chain") else {
        return;
    };
    node.wait_for_height(260);
    let log = fs::read_to_string(data_dir.join("regtest/debug.log")).unwrap();
    let failure = log.lines().find(|line| line.contains("[error]") || line.contains("ERROR"));
    assert!(failure.is_none(), "the node says: {failure:?}");
    assert_eq!(node.cli(&["getblockcount"]), "260");
    assert_eq!(node.cli(&["getbestblockhash"]), mix.tip_hash);
    let text = node.cli(&["gettxoutsetinfo"]);
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["txouts"].as_u64(), Some(mix.utxo_count));
    assert_eq!(info["hash_serialized_3"].as_str(), Some(mix.utxo_hash.as_str()));
    // 149 blocks of 50 BTC and 111 of 25; nobody claims less, and no OP_RETURN holds value.
    assert_eq!(mix.utxo_total_sat, 1_022_500_000_000);
    assert!(text.contains("\"total_amount\": 10225.00000000,"), "{text}");
    for kind in ScriptKind::ALL.into_iter().filter(|kind| *kind != ScriptKind::OpReturn) {
        assert!(mix.inputs_by_kind[kind as usize] > 0, "the node saw no spend of {}", kind.name());
    }
    assert!(mix.inputs_by_age[0] > 100, "the node saw few spends inside a block");
}

fn push(instruction: Result<Instruction<'_>, bitcoin::script::Error>) -> &[u8] {
    match instruction {
        Ok(Instruction::PushBytes(bytes)) => bytes.as_bytes(),
        other => panic!("a scriptSig that does not only push: {other:?}"),
    }
}

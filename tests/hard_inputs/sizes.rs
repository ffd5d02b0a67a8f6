//! The widest transactions and the largest witnesses that fit into a block.

use bitcoin::{OutPoint, Witness};

use crate::support::blkfiles::BlkDir;
use crate::support::blocks::{Chain, Draft, outpoint, pay, script, spend};
use crate::support::rows::assert_chain;
use crate::support::{Satgres, sample};

fn assert_modest_memory(satgres: &Satgres) {
    let peak_rss_bytes: u64 = satgres.value("select max(peak_rss_bytes) from ops.phases").parse().unwrap();
    assert!((1..1 << 30).contains(&peak_rss_bytes), "peak RSS of {peak_rss_bytes} bytes");
}

#[test]
fn a_transaction_of_110_000_outputs_and_one_that_spends_20_000() {
    let mut chain = Chain::with_blocks(101);
    // The smallest output there is: an amount and an empty script.
    let outputs = (0..110_000).map(|vout| pay(vout % 90_000, script(&[]))).collect();
    let wide = spend(&[chain.coinbase_outpoint(1)], outputs);
    let txid = wide.compute_txid();
    let some: Vec<_> = (0..20_000).map(|index| OutPoint { txid, vout: 109_999 - index * 5 }).collect();
    chain.mine_transactions(vec![wide]);
    let value = some.iter().map(|outpoint| chain.value(outpoint)).sum();
    chain.mine_transactions(vec![spend(&some, vec![pay(value, script(&[0x51]))])]);
    assert!(chain.blocks()[102].weight().to_wu() > 3_900_000);
    assert!(chain.blocks()[103].weight().to_wu() > 3_200_000);

    let satgres = Satgres::new();
    let blocks_dir = BlkDir::of(chain.blocks());
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_modest_memory(&satgres);
    assert_eq!(
        satgres.value("select count(*) from chain.utxos where script_hash = chain.script_hash('')"),
        "90000"
    );
    let digest = satgres.digest();

    satgres.forget_chain();
    satgres.run(
        "regtest",
        blocks_dir.path(),
        &["--threads", "8", "--batch-bytes", "1", "--segment-bytes", "1MiB"],
    );
    assert_eq!(satgres.digest(), digest);
}

#[test]
fn witnesses_large_odd_and_many_come_back_exactly() {
    let mut chain = sample::chain(110);
    let annex = [&[0x50_u8, 0xff, 0x00][..], &[9; 300]].concat();
    let witnesses = [
        vec![bytes(3_900_000)],
        vec![vec![1; 64], annex],
        vec![Vec::new(); 70_000],
        vec![Vec::new()],
        (0..600).map(bytes).collect(),
    ];
    let mut transactions = Vec::new();
    for items in witnesses {
        let height = chain.height() + 1;
        let mut transaction = spend(&[chain.coinbase_outpoint(height - 101)], vec![pay(5, script(&[0x51]))]);
        transaction.input[0].witness = Witness::from_slice(&items);
        transactions.push((height, transaction.clone()));
        // Only the last commitment counts.
        let decoy_commitments = (height - 111) % 3;
        chain.mine(Draft { transactions: vec![transaction], decoy_commitments, ..Draft::default() });
    }
    // One transaction whose inputs have a witness, none, and a script_sig.
    let coins =
        [chain.coinbase_outpoint(15), outpoint(&transactions[0].1, 0), outpoint(&transactions[1].1, 0)];
    let mut mixed = spend(&coins, vec![pay(6, script(&[0x51]))]);
    mixed.input[0].witness = Witness::from_slice(&[[3; 3]]);
    mixed.input[2].script_sig = script(&bytes(9_999));
    transactions.push((116, mixed.clone()));
    chain.mine_transactions(vec![mixed]);
    assert!(chain.blocks()[111].weight().to_wu() > 3_900_000);

    let satgres = Satgres::new();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_modest_memory(&satgres);
    for (height, transaction) in transactions {
        let got = satgres.copy(&format!(
            "select chain.txid_hex(txid), chain.txid_hex(chain.wtxid(tx_num)) from chain.transactions \
             where tx_num = chain.first_tx_num({height}) + 1"
        ));
        assert_eq!(
            got,
            [format!("{}\t{}", transaction.compute_txid(), transaction.compute_wtxid())],
            "{height}"
        );
    }
    assert_eq!(
        satgres.copy(
            "select cardinality(chain.witness_items(witness)), octet_length((chain.witness_items(witness))[1]) \
             from chain.inputs where tx_num in ((111 << 16) + 1, (113 << 16) + 1, (114 << 16) + 1) order by tx_num"
        ),
        ["1\t3900000", "70000\t0", "1\t0"]
    );
}

/// Bytes of every value, NUL and invalid UTF-8 among them.
fn bytes(length: usize) -> Vec<u8> {
    (0..=255).cycle().take(length).collect()
}

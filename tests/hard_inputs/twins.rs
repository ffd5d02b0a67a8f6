//! Transactions that stand in the chain twice (BIP30), and the first of all, which nobody can spend.

use bitcoin::{Transaction, Txid};

use crate::support::Satgres;
use crate::support::blkfiles::{BlkDir, records};
use crate::support::blocks::{Chain, Draft, coinbase, outpoint, pay, script, spend};
use crate::support::rows::assert_chain;

/// A coinbase that does not name its height, as before BIP34, so that it can be mined again.
fn twin() -> Transaction {
    let script_sig = script(&[0x04, 0xff, 0xff, 0x7f, 0x20, 0x01, 0x04]);
    coinbase(script_sig, vec![pay(3_000_000_000, script(&[0x51])), pay(2_000_000_000, script(&[0x52]))])
}

fn mine_coinbase(chain: &mut Chain, coinbase: &Transaction) {
    chain.mine(Draft { coinbase: Some(coinbase.clone()), ..Draft::default() });
}

/// `height:index` of every transaction that a look-up of the txid gives, in its order.
fn look_up(satgres: &Satgres, txid: Txid) -> Vec<String> {
    satgres.copy(&format!("select height || ':' || (tx_num & 65535) from api.transaction('{txid}')"))
}

#[test]
fn a_coinbase_mined_twice_overwrites_its_unspent_twin() {
    let mut chain = Chain::with_blocks(9);
    mine_coinbase(&mut chain, &twin());
    chain.mine_empty(29);
    mine_coinbase(&mut chain, &twin());
    chain.mine_empty(20);
    let blocks_dir = BlkDir::of(chain.blocks());
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_eq!(look_up(&satgres, twin().compute_txid()), ["40:0", "10:0"]);
    let coins = satgres
        .copy("select chain.height(tx_num), vout from chain.utxos where value in (3000000000, 2000000000)");
    assert_eq!(coins, ["40\t0", "40\t1"]);
    assert_eq!(
        satgres.copy("select tx_num, vout, by_tx_num from chain.overwritten order by 1, 2"),
        ["655360\t0\t2621440", "655360\t1\t2621440"]
    );
    // Sixty blocks of 50 BTC each, without the coinbase that was overwritten.
    assert_eq!(satgres.value("select sum(value) from chain.utxos"), "295000000000");

    // What is spent later is the later one's.
    chain.mine_empty(80);
    chain.mine_transactions(vec![spend(&[outpoint(&twin(), 1)], vec![pay(1_999_999_000, script(&[0x53]))])]);
    blocks_dir.append(0, &records(&chain.blocks()[61..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    assert_eq!(
        satgres.value("select prev_tx_num from chain.inputs where tx_num = (141 << 16) + 1"),
        "2621440"
    );
    let digest = satgres.digest();

    // Also when the twins stand in different segments, and in one load.
    satgres.forget_chain();
    satgres.run("regtest", blocks_dir.path(), &["--segment-bytes", "2KiB"]);
    assert_chain(&satgres, &chain.rows());
    assert_eq!(satgres.digest(), digest);
}

#[test]
fn a_txid_may_return_once_it_is_spent() {
    // The first pair of twins is spent in between, and so is the transaction that spends it, which returns as well.
    let mut chain = Chain::with_blocks(4);
    mine_coinbase(&mut chain, &twin());
    chain.mine_empty(100);
    let spender = spend(
        &[outpoint(&twin(), 0), outpoint(&twin(), 1)],
        vec![pay(4_999_990_000, script(&[0x53])), pay(0, script(&[0x6a]))],
    );
    let last = spend(&[outpoint(&spender, 0)], vec![pay(4_999_980_000, script(&[0x54]))]);
    chain.mine_transactions(vec![spender.clone()]);
    chain.mine_transactions(vec![last]);
    mine_coinbase(&mut chain, &twin());
    chain.mine_empty(100);
    chain.mine_transactions(vec![spender.clone()]);
    chain.mine_empty(1);
    let blocks_dir = BlkDir::of(chain.blocks());
    let satgres = Satgres::new();
    for options in [[].as_slice(), &["--segment-bytes", "2KiB"]] {
        satgres.run("regtest", blocks_dir.path(), options);
        assert_chain(&satgres, &chain.rows());
        satgres.verify();
        assert_eq!(satgres.value("select count(*) from chain.overwritten"), "0");
        assert_eq!(look_up(&satgres, twin().compute_txid()), ["108:0", "5:0"]);
        assert_eq!(look_up(&satgres, spender.compute_txid()), ["209:1", "106:1"]);
        satgres.forget_chain();
    }
}

#[test]
fn disconnecting_the_later_twin_brings_the_first_back() {
    let mut chain = Chain::with_blocks(9);
    mine_coinbase(&mut chain, &twin());
    chain.mine_empty(29);
    let mut without = chain.fork(39, 1);
    let mut again = chain.fork(39, 2);
    mine_coinbase(&mut chain, &twin());
    chain.mine_empty(5);
    without.mine_empty(7);
    again.mine_empty(2);
    mine_coinbase(&mut again, &twin());
    again.mine_empty(6);

    let blocks_dir = BlkDir::of(chain.blocks());
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());

    blocks_dir.append(0, &records(&without.blocks()[40..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_eq!(satgres.value("select count(*) from chain.overwritten"), "0");
    let coins = satgres
        .copy("select chain.height(tx_num), vout from chain.utxos where value in (3000000000, 2000000000)");
    assert_eq!(coins, ["10\t0", "10\t1"]);
    assert_chain(&satgres, &without.rows());

    blocks_dir.append(0, &records(&again.blocks()[40..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &again.rows());
    satgres.verify();
}

#[test]
fn the_genesis_coinbase_is_there_but_no_coin() {
    let mut chain = Chain::regtest();
    let blocks_dir = BlkDir::of(chain.blocks());
    let satgres = Satgres::new();
    let check = |chain: &Chain, supply: &str| {
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_chain(&satgres, &chain.rows());
        satgres.verify();
        assert_eq!(
            satgres.copy(
                "select tx_num, vout, value, txid, type, is_unspendable from api.outputs where tx_num < 65536"
            ),
            ["0\t0\t5000000000\t4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b\tpubkey\tt"]
        );
        assert_eq!(satgres.value("select coalesce(sum(value), 0) from chain.utxos"), supply);
    };
    // A new node has this block alone.
    check(&chain, "0");
    chain.mine_empty(2);
    blocks_dir.append(0, &records(&chain.blocks()[1..]));
    check(&chain, "10000000000");
}

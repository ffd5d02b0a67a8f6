//! Inputs that broke others: twins, the genesis output, extreme numbers, wide transactions, rows above the tip.

use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::hashes::Hash;
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxMerkleNode,
    TxOut, Txid, Witness, consensus, transaction,
};
use tokio_postgres::Client;

use crate::postgres::database;
use crate::rows::{Loader, Position, create_indexes, create_segment};

/// Pays to the key hash 0000…00 and the last byte.
fn key_hash(last: u8) -> ScriptBuf {
    ScriptBuf::from_bytes([&[0x76, 0xa9, 20][..], &[0; 19], &[last, 0x88, 0xac]].concat())
}

fn output(value: u64, script_pubkey: ScriptBuf) -> TxOut {
    TxOut { value: Amount::from_sat(value), script_pubkey }
}

fn transaction(inputs: Vec<OutPoint>, output: Vec<TxOut>) -> Transaction {
    let input = |previous_output| TxIn {
        previous_output,
        script_sig: ScriptBuf::from_bytes(vec![0, 0xff, 0]),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    };
    Transaction {
        version: transaction::Version(1),
        lock_time: LockTime::ZERO,
        input: inputs.into_iter().map(input).collect(),
        output,
    }
}

fn coinbase(output: Vec<TxOut>) -> Transaction {
    transaction(vec![OutPoint::null()], output)
}

fn block(nonce: u32, txdata: Vec<Transaction>) -> Block {
    let header = Header {
        version: Version::from_consensus(4),
        prev_blockhash: BlockHash::all_zeros(),
        merkle_root: TxMerkleNode::all_zeros(),
        time: 1_300_000_000 + nonce,
        bits: CompactTarget::from_consensus(0x207f_ffff),
        nonce,
    };
    Block { header, txdata }
}

fn position(height: u32) -> Position {
    Position { height, median_time: 4_294_967_295, chainwork: vec![0xff; 32], subsidy: 5_000_000_000 }
}

/// Loads blocks from height 0 into a regtest database.
async fn load(name: &str, blocks: &[Block]) -> Client {
    let client = database(name).await;
    client
        .batch_execute("insert into ops.settings values ('network', 'regtest'); set timezone = 'UTC'")
        .await
        .unwrap();
    create_segment(&client, 0, 0, 99).await;
    let mut loader = Loader::new(&client);
    for (height, block) in blocks.iter().enumerate() {
        loader.connect_block(&position(height as u32), block).await;
    }
    loader.flush().await;
    create_indexes(&client).await;
    client
}

/// Rows of a query, their columns joined by spaces.
async fn lines(client: &Client, query: &str) -> Vec<String> {
    let query = format!(
        "select concat_ws(' ', variadic array(select value from json_each_text(to_json(q)))) from ({query}) q"
    );
    client.query(&query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn twins_are_two_transactions_and_one_coin() {
    let twin = coinbase(vec![output(5_000_000_000, key_hash(1))]);
    let other = |nonce| block(nonce, vec![coinbase(vec![output(1, key_hash(nonce as u8))])]);
    let blocks =
        [other(10), block(1, vec![twin.clone()]), other(12), block(3, vec![twin.clone()]), other(14)];
    let client = load("twins_are_two_transactions_and_one_coin", &blocks).await;
    let txid = twin.compute_txid();
    let address = "mfWxJ45yp2SFn7UciZyNpvDKrzbi36LaVX";
    let found =
        lines(&client, &format!("select height, tx_index, txid from api.transaction('{txid}')")).await;
    assert_eq!(found, [format!("3 0 {txid}"), format!("1 0 {txid}")]);
    let found =
        lines(&client, "select height, address, is_overwritten from api.outputs where value > 1 order by 1")
            .await;
    assert_eq!(found, [format!("1 {address} true"), format!("3 {address} false")]);
    let utxos =
        "select height, value, confirmations from api.address_utxos('mfWxJ45yp2SFn7UciZyNpvDKrzbi36LaVX')";
    assert_eq!(lines(&client, utxos).await, ["3 5000000000 2"]);
    let balance = "select * from api.address_balance('mfWxJ45yp2SFn7UciZyNpvDKrzbi36LaVX')";
    assert_eq!(lines(&client, balance).await, ["5000000000 5000000000 0 1 0 1"]);
    let history = "select height, change from api.address_history('mfWxJ45yp2SFn7UciZyNpvDKrzbi36LaVX')";
    assert_eq!(lines(&client, history).await, ["3 5000000000", "1 5000000000"]);
    assert_eq!(lines(&client, "select count(*) from chain.utxos where value > 1").await, ["1"]);
    assert_eq!(
        lines(&client, "select count(distinct chain.wtxid(tx_num)) from api.transactions").await,
        ["4"]
    );
    // Disconnecting the later one brings the earlier one back.
    client
        .batch_execute(
            "delete from chain.overwritten where by_tx_num >= chain.first_tx_num(3);
             delete from chain.inputs where tx_num >= chain.first_tx_num(3);
             delete from chain.outputs where tx_num >= chain.first_tx_num(3);
             delete from chain.transactions where tx_num >= chain.first_tx_num(3);
             delete from chain.blocks where height >= 3",
        )
        .await
        .unwrap();
    assert_eq!(lines(&client, utxos).await, ["1 5000000000 2"]);
    assert_eq!(lines(&client, balance).await, ["5000000000 5000000000 0 1 0 1"]);
}

#[tokio::test]
async fn what_nobody_can_spend_is_outside_the_utxo_set() {
    let script = |bytes: Vec<u8>| ScriptBuf::from_bytes(bytes);
    let outputs = vec![
        output(1, script(vec![])),
        output(2, script(vec![0x6a])),
        output(3, script(vec![0x51, 0x6a])),
        output(4, script(vec![0x51; 10_000])),
        output(5, script(vec![0x51; 10_001])),
        output(6, script([&[0x6a, 0x4e, 0xa0, 0x86, 1, 0][..], &[7; 100_000]].concat())),
        output(0, key_hash(1)),
    ];
    let blocks = [block(0, vec![coinbase(vec![output(7, key_hash(2))])]), block(1, vec![coinbase(outputs)])];
    let client = load("what_nobody_can_spend_is_outside_the_utxo_set", &blocks).await;
    let rows = lines(
        &client,
        "select o.height, o.value, o.type, octet_length(o.script), o.is_unspendable,
             exists (select from chain.utxos u where (u.tx_num, u.vout) = (o.tx_num, o.vout))
         from api.outputs o order by o.height, o.vout",
    )
    .await;
    assert_eq!(
        rows,
        [
            "0 7 pubkeyhash 25 true false",
            "1 1 nonstandard 0 false true",
            "1 2 nulldata 1 true false",
            "1 3 nonstandard 2 false true",
            "1 4 nonstandard 10000 false true",
            "1 5 nonstandard 10001 true false",
            "1 6 nulldata 100006 true false",
            "1 0 pubkeyhash 25 false true",
        ]
    );
    let address = "mfWxJ45yp2SFn7UciZyNpvDKrzbiCHuhTF";
    assert_eq!(lines(&client, "select address from api.outputs where height = 0").await, [address]);
    let genesis = format!("select * from api.address_balance('{address}')");
    assert_eq!(lines(&client, &genesis).await, ["0 0 0 0 0 0"]);
}

#[tokio::test]
async fn extreme_numbers_round_trip() {
    let mut widest = coinbase(vec![output(2_100_000_000_000_000, key_hash(1)), output(0, key_hash(2))]);
    widest.version = transaction::Version(-1);
    widest.lock_time = LockTime::from_consensus(u32::MAX);
    let mut high = block(0, vec![widest]);
    high.header.version = Version::from_consensus(i32::MIN);
    high.header.time = u32::MAX;
    high.header.nonce = u32::MAX;
    let mut low = block(1, vec![coinbase(vec![output(1, key_hash(3))])]);
    low.header.version = Version::from_consensus(-1);
    low.header.time = 0;
    low.header.nonce = 0x8000_0000;
    let client = load("extreme_numbers_round_trip", &[high.clone(), low]).await;
    let rows = "select height, version, time::text, median_time::text, nonce, bits, chainwork from api.blocks order by 1";
    assert_eq!(
        lines(&client, rows).await,
        [
            format!(
                "0 -2147483648 2106-02-07 06:28:15+00 2106-02-07 06:28:15+00 4294967295 207fffff {}",
                "ff".repeat(32)
            ),
            format!(
                "1 -1 1970-01-01 00:00:00+00 2106-02-07 06:28:15+00 2147483648 207fffff {}",
                "ff".repeat(32)
            ),
        ]
    );
    let rows = "select version, locktime, fee is null, fee_rate is null, block_time::text from api.transactions where height = 0";
    assert_eq!(lines(&client, rows).await, ["4294967295 4294967295 true true 2106-02-07 06:28:15+00"]);
    let rows = "select sequence, prev_tx_num is null, prev_vout is null, script_sig, witness from api.inputs where height = 0";
    assert_eq!(lines(&client, rows).await, ["4294967295 true true \\x00ff00 []"]);
    let rows = "select value from api.outputs where height = 0 order by vout";
    assert_eq!(lines(&client, rows).await, ["2100000000000000", "0"]);
    let raw = client.query_one("select chain.raw_transaction(0)", &[]).await.unwrap();
    assert_eq!(raw.get::<_, Vec<u8>>(0), consensus::serialize(&high.txdata[0]));
}

#[tokio::test]
async fn a_wide_transaction_comes_back_whole() {
    let wide =
        coinbase((0..110_000u32).map(|vout| output(u64::from(vout), key_hash((vout % 251) as u8))).collect());
    let txid = wide.compute_txid();
    let spends = (0..20_000u32).map(|at| OutPoint { txid, vout: at * 5 }).collect();
    let spender = transaction(spends, vec![output(1, key_hash(9))]);
    let blocks = [
        block(0, vec![coinbase(vec![output(1, key_hash(1))])]),
        block(1, vec![wide.clone()]),
        block(2, vec![coinbase(vec![output(1, key_hash(1))]), spender.clone()]),
    ];
    let client = load("a_wide_transaction_comes_back_whole", &blocks).await;
    for (tx_num, tx) in [(65_536i64, &wide), (131_073, &spender)] {
        let row = client.query_one("select chain.raw_transaction($1)", &[&tx_num]).await.unwrap();
        assert!(row.get::<_, &[u8]>(0) == consensus::serialize(tx), "{tx_num}");
    }
    // 0 + 5 + … + 99,995, less 1.
    assert_eq!(lines(&client, "select fee from api.transactions where tx_index = 1").await, ["999949999"]);
    let rows = "select count(*) from api.outputs where spent_by_vin is not null and vout = spent_by_vin * 5";
    assert_eq!(lines(&client, rows).await, ["20000"]);
    assert_eq!(lines(&client, "select count(*) from chain.utxos").await, ["90002"]);
}

#[tokio::test]
async fn rows_above_the_tip_are_not_in_the_picture() {
    // What a REPEATABLE READ reader sees while a segment is attached: its rows, and not its blocks.
    let first = coinbase(vec![output(10, key_hash(1)), output(20, key_hash(1))]);
    let spender = transaction(
        vec![OutPoint { txid: first.compute_txid(), vout: 0 }],
        vec![output(4, key_hash(1)), output(1, key_hash(2))],
    );
    let blocks = [
        block(0, vec![coinbase(vec![output(1, key_hash(7))])]),
        block(1, vec![first.clone()]),
        block(2, vec![coinbase(vec![output(3, key_hash(1))]), spender.clone()]),
    ];
    let client = load("rows_above_the_tip_are_not_in_the_picture", &blocks).await;
    let address: &str = "mfWxJ45yp2SFn7UciZyNpvDKrzbi36LaVX";
    let pictures = [
        "select count(*), max(height) from api.transactions".to_owned(),
        "select count(*), max(height), count(spent_by_txid) from api.outputs".to_owned(),
        "select count(*), max(height) from api.inputs".to_owned(),
        "select count(*), sum(value) from chain.utxos".to_owned(),
        format!("select * from api.address_balance('{address}')"),
        format!("select string_agg(concat(height, ':', change), ' ') from api.address_history('{address}')"),
        format!("select sum(value) from api.address_utxos('{address}')"),
        "select string_agg(txid, ' ') from api.largest_fees(5)".to_owned(),
        format!("select count(*) from api.transaction('{}')", spender.compute_txid()),
    ];
    let with = ["4 2", "6 2 1", "4 2", "4 28", "27 37 10 4 1 3", "2:-6 2:3 1:30", "27"];
    let without = ["2 1", "3 1 0", "2 1", "2 30", "30 30 0 2 0 2", "1:30", "30", "", "0"];
    let fee = spender.compute_txid().to_string();
    for (picture, expected) in pictures.iter().zip(with.into_iter().chain([fee.as_str(), "1"])) {
        assert_eq!(lines(&client, picture).await, [expected], "{picture}");
    }
    client.execute("delete from chain.blocks where height = 2", &[]).await.unwrap();
    for (picture, expected) in pictures.iter().zip(without) {
        assert_eq!(lines(&client, picture).await, [expected], "{picture}");
    }
    // Without any block there is nothing at all.
    client.execute("delete from chain.blocks", &[]).await.unwrap();
    assert_eq!(lines(&client, "select count(*) from api.outputs").await, ["0"]);
    assert_eq!(lines(&client, "select count(*) from chain.utxos").await, ["0"]);
}

#[tokio::test]
async fn without_stored_scripts_the_views_show_null() {
    let blocks = [block(0, vec![coinbase(vec![output(1, key_hash(1))])])];
    let client = load("without_stored_scripts_the_views_show_null", &blocks).await;
    client.execute("update chain.inputs set script_sig = null, witness = null", &[]).await.unwrap();
    let rows = "select script_sig is null, witness is null from api.inputs";
    assert_eq!(lines(&client, rows).await, ["true true"]);
}

#[tokio::test]
async fn an_unknown_txid_is_no_row_and_a_wrong_one_an_error() {
    let client = load("an_unknown_txid_is_no_row_and_a_wrong_one_an_error", &[]).await;
    let unknown = format!("select * from api.transaction('{}')", Txid::all_zeros());
    assert!(client.query(&unknown, &[]).await.unwrap().is_empty());
    let error = client.query("select * from api.transaction('xyz')", &[]).await.expect_err("no hex");
    assert_eq!(
        crate::postgres::describe(&error).trim(),
        "22023 invalid txid \"xyz\": expected 64 hexadecimal digits"
    );
}

//! Transactions rebuilt from the tables: bytes and wtxids of real mainnet blocks, and what cannot be rebuilt.

use std::collections::BTreeMap;

use bitcoin::hashes::Hash;
use bitcoin::{Block, consensus};
use tokio_postgres::Client;

use crate::postgres::{database, describe, shared_data};
use crate::rows::{Loader, Position, analyze, create_indexes, create_segment};

/// Loads single mainnet blocks, given as wire bytes by height, into one segment.
async fn load(client: &Client, blocks: &BTreeMap<u32, Block>) {
    create_segment(client, 0, 0, 999_999).await;
    let mut loader = Loader::new(client);
    for (&height, block) in blocks {
        let position = Position { height, median_time: 0, chainwork: vec![0; 32], subsidy: 0 };
        loader.connect_block(&position, block).await;
    }
    loader.flush().await;
    create_indexes(client).await;
    analyze(client).await;
}

#[tokio::test]
async fn real_transactions_come_back_byte_for_byte() {
    let Some(data) = shared_data("real transactions come back byte for byte") else { return };
    let client = database("real_transactions_come_back_byte_for_byte").await;
    let mut blocks = BTreeMap::new();
    for entry in std::fs::read_dir(data.join("mainnet-blocks")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            let height = path.file_name().unwrap().to_str().unwrap()[..7].parse().unwrap();
            blocks.insert(height, consensus::deserialize::<Block>(&std::fs::read(&path).unwrap()).unwrap());
        }
    }
    load(&client, &blocks).await;
    let (mut transactions, mut with_witness) = (0, 0);
    for (&height, block) in &blocks {
        let rows = client
            .query(
                "select chain.raw_transaction(tx_num), case when tx_num % 5 = 0 then chain.wtxid(tx_num) end
                 from chain.transactions
                 where tx_num >= chain.first_tx_num($1) and tx_num < chain.first_tx_num($1 + 1) order by tx_num",
                &[&(height as i32)],
            )
            .await
            .unwrap_or_else(|error| panic!("{height}: {}", describe(&error)));
        assert_eq!(rows.len(), block.txdata.len(), "{height}");
        for (tx, row) in block.txdata.iter().zip(rows) {
            let bytes = consensus::serialize(tx);
            assert!(row.get::<_, &[u8]>(0) == bytes, "{height} {}", tx.compute_txid());
            if let Some(wtxid) = row.get::<_, Option<&[u8]>>(1) {
                assert_eq!(wtxid, tx.compute_wtxid().as_byte_array(), "{}", tx.compute_txid());
            }
            transactions += 1;
            with_witness += usize::from(bytes[4] == 0);
        }
    }
    assert_eq!((blocks.len(), transactions, with_witness), (14, 13_363, 7_001));
}

/// The genesis block and one that spends from an unknown transaction.
async fn two_blocks(name: &str) -> Client {
    let client = database(name).await;
    let genesis = bitcoin::constants::genesis_block(bitcoin::Network::Regtest);
    let mut block = genesis.clone();
    let mut tx = genesis.txdata[0].clone();
    tx.input[0].previous_output.vout = 7;
    tx.input[0].witness = bitcoin::Witness::from_slice(&[vec![], vec![0xab; 300]]);
    block.txdata = vec![genesis.txdata[0].clone(), tx];
    load(&client, &BTreeMap::from([(1, block)])).await;
    client
}

#[tokio::test]
async fn the_genesis_transaction_is_known_by_its_bytes() {
    let client = two_blocks("the_genesis_transaction_is_known_by_its_bytes").await;
    let row = client
        .query_one(
            "select encode(chain.raw_transaction(65536), 'hex'), chain.hash_hex(chain.wtxid(65536)),
                 chain.raw_transaction(65538) is null, chain.raw_transaction(null) is null",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        row.get::<_, &str>(0),
        "01000000010000000000000000000000000000000000000000000000000000000000000000ffffffff4d04ffff001d010445\
         5468652054696d65732030332f4a616e2f32303039204368616e63656c6c6f72206f6e206272696e6b206f66207365636f6e\
         64206261696c6f757420666f722062616e6b73ffffffff0100f2052a01000000434104678afdb0fe5548271967f1a67130b7\
         105cd6a828e03909a67962e0ea1f61deb649f6bc3f4cef38c4f35504e51ec112de5c384df7ba0b8d578a4c702b6bf11d5fac\
         00000000"
    );
    assert_eq!(row.get::<_, &str>(1), "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b");
    assert!(row.get::<_, bool>(2) && row.get::<_, bool>(3));
}

#[tokio::test]
async fn what_was_not_stored_is_an_error() {
    let client = two_blocks("what_was_not_stored_is_an_error").await;
    for (statement, expected) in [
        (
            "update chain.inputs set witness = null",
            "55000 the bytes of transaction 65537 are not in this database Its witness is NULL.",
        ),
        (
            "update chain.inputs set script_sig = null",
            "55000 the bytes of transaction 65537 are not in this database Its script_sig is NULL.",
        ),
        (
            "delete from chain.transactions where tx_num = 0",
            "XX001 transaction 65537 is not whole: 1 of 1 inputs, 1 of 1 outputs, 1 previous transactions missing",
        ),
        (
            "delete from chain.outputs where tx_num = 65537",
            "XX001 transaction 65537 is not whole: 1 of 1 inputs, 0 of 1 outputs, 0 previous transactions missing",
        ),
        (
            "delete from chain.inputs where tx_num = 65537",
            "XX001 transaction 65537 is not whole: 0 of 1 inputs, 1 of 1 outputs, 0 previous transactions missing",
        ),
    ] {
        client.batch_execute("begin").await.unwrap();
        assert!(client.execute(statement, &[]).await.unwrap() > 0, "{statement}");
        for function in ["raw_transaction", "wtxid"] {
            client.batch_execute("savepoint before").await.unwrap();
            let error =
                client.query(&format!("select chain.{function}(65537)"), &[]).await.expect_err(statement);
            assert_eq!(describe(&error).trim(), expected, "{statement}");
            client.batch_execute("rollback to before").await.unwrap();
        }
        client.batch_execute("rollback").await.unwrap();
    }
}

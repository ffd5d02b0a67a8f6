//! Numbers, bytes and hashes: literal values.

use crate::postgres::{database, describe};

/// The single text value of a query.
async fn text(client: &tokio_postgres::Client, query: &str) -> String {
    client.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {}", describe(&error))).get(0)
}

/// Each query gives the text beside it.
async fn assert_texts(client: &tokio_postgres::Client, cases: &[(&str, &str)]) {
    for (query, expected) in cases {
        assert_eq!(
            text(client, &format!("select coalesce(({query})::text, 'NULL')")).await,
            *expected,
            "{query}"
        );
    }
}

/// Each query fails with this SQLSTATE and message.
async fn assert_errors(client: &tokio_postgres::Client, cases: &[(&str, &str)]) {
    for (query, expected) in cases {
        let error = client.query(&format!("select {query}"), &[]).await.expect_err(query);
        assert_eq!(describe(&error).trim(), *expected, "{query}");
    }
}

#[tokio::test]
async fn heights_and_tx_nums() {
    let client = database("heights_and_tx_nums").await;
    assert_texts(
        &client,
        &[
            ("chain.first_tx_num(0)", "0"),
            ("chain.first_tx_num(1)", "65536"),
            ("chain.first_tx_num(481824)", "31576817664"),
            ("chain.first_tx_num(2147483647)", "140737488289792"),
            ("chain.first_tx_num(null)", "NULL"),
            ("chain.height(0)", "0"),
            ("chain.height(65535)", "0"),
            ("chain.height(65536)", "1"),
            ("chain.height(31576817664 + 16666)", "481824"),
            ("chain.height(140737488355327)", "2147483647"),
            ("chain.tip_height()", "NULL"),
        ],
    )
    .await;
}

#[tokio::test]
async fn subsidies_and_difficulties() {
    let client = database("subsidies_and_difficulties").await;
    assert_texts(
        &client,
        &[
            ("chain.subsidy(0, 'main')", "5000000000"),
            ("chain.subsidy(209999, 'main')", "5000000000"),
            ("chain.subsidy(210000, 'main')", "2500000000"),
            ("chain.subsidy(840000, 'main')", "312500000"),
            ("chain.subsidy(840000, 'signet')", "312500000"),
            ("chain.subsidy(32 * 210000, 'test')", "1"),
            ("chain.subsidy(33 * 210000, 'testnet4')", "0"),
            ("chain.subsidy(64 * 210000, 'main')", "0"),
            ("chain.subsidy(2147483647, 'regtest')", "0"),
            ("chain.subsidy(149, 'regtest')", "5000000000"),
            ("chain.subsidy(150, 'regtest')", "2500000000"),
            ("chain.subsidy(null, 'main')", "NULL"),
            ("chain.difficulty(x'1d00ffff'::bigint)", "1"),
            ("chain.difficulty(x'1b0404cb'::bigint)", "16307.420938523983"),
            ("chain.difficulty(x'170331db'::bigint)", "88104191118793.16"),
            ("chain.difficulty(x'207fffff'::bigint)", "4.6565423739069247e-10"),
        ],
    )
    .await;
    assert_errors(
        &client,
        &[
            (
                "chain.subsidy(1, 'mainnet')",
                "22023 unknown network \"mainnet\": expected main, test, testnet4, signet or regtest",
            ),
            ("chain.subsidy(-1, 'main')", "22023 invalid height -1: expected 0 or more"),
        ],
    )
    .await;
}

#[tokio::test]
async fn little_endian_numbers_and_compact_sizes() {
    let client = database("little_endian_numbers_and_compact_sizes").await;
    assert_texts(
        &client,
        &[
            ("chain.le_bytes(4294967295, 4)", "\\xffffffff"),
            ("chain.le_bytes(1, 4)", "\\x01000000"),
            ("chain.le_bytes(2100000000000000, 8)", "\\x0040075af0750700"),
            ("chain.le_bytes(-1, 8)", "\\xffffffffffffffff"),
            ("chain.compact_size(0)", "\\x00"),
            ("chain.compact_size(252)", "\\xfc"),
            ("chain.compact_size(253)", "\\xfdfd00"),
            ("chain.compact_size(65535)", "\\xfdffff"),
            ("chain.compact_size(65536)", "\\xfe00000100"),
            ("chain.compact_size(4294967295)", "\\xfeffffffff"),
            ("chain.compact_size(4294967296)", "\\xff0000000001000000"),
            ("chain.compact_size(null)", "NULL"),
            ("chain.compact_size_at('\\x00fc', 1)", "252"),
            ("chain.compact_size_at('\\xfdfd00', 0)", "253"),
            ("chain.compact_size_at('\\xfe00000100', 0)", "65536"),
            ("chain.compact_size_at('\\xff0000000001000000', 0)", "4294967296"),
        ],
    )
    .await;
    assert_errors(
        &client,
        &[
            ("chain.compact_size(-1)", "22023 invalid count -1: expected 0 or more"),
            (
                "chain.compact_size_at('\\xfdfd', 0)",
                "22023 invalid compact size at byte 0: the 2 bytes end before it does",
            ),
            (
                "chain.compact_size_at('', 0)",
                "22023 invalid compact size at byte 0: the 0 bytes end before it does",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn hashes_and_their_hex() {
    let client = database("hashes_and_their_hex").await;
    let genesis = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f";
    let internal = "\\x6fe28c0ab6f1b372c1a6a246ae63f74f931e8365e15a089c68d6190000000000";
    assert_texts(
        &client,
        &[
            (&format!("chain.hash_hex('{internal}')"), genesis),
            (&format!("chain.txid_hex('{internal}')"), genesis),
            (&format!("chain.hex_hash('{genesis}')"), internal),
            (&format!("chain.hex_txid('{}')", genesis.to_uppercase()), internal),
            (&format!("chain.reverse_hash(chain.reverse_hash('{internal}'))"), internal),
            ("chain.hash_hex(null)", "NULL"),
            ("chain.hex_txid(null)", "NULL"),
            // sha256 of the empty string, and of one zero byte.
            ("chain.script_hash('')", "e3b0c442-98fc-1c14-9afb-f4c8996fb924"),
            ("chain.script_hash('\\x00')", "6e340b9c-ffb3-7a98-9ca5-44e6bb780a2c"),
            ("chain.script_hash(null)", "NULL"),
        ],
    )
    .await;
    assert_errors(
        &client,
        &[
            ("chain.hash_hex('\\x00')", "22023 invalid hash: expected 32 bytes, got 1"),
            ("chain.txid_hex(sha512(''))", "22023 invalid hash: expected 32 bytes, got 64"),
            ("chain.hex_txid('abc')", "22023 invalid txid \"abc\": expected 64 hexadecimal digits"),
            ("chain.hex_hash('')", "22023 invalid hash \"\": expected 64 hexadecimal digits"),
            (
                &format!("chain.hex_hash('{}g')", &genesis[1..]),
                &format!("22023 invalid hash \"{}g\": expected 64 hexadecimal digits", &genesis[1..]),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn witnesses_split_into_their_items() {
    let client = database("witnesses_split_into_their_items").await;
    assert_texts(
        &client,
        &[
            ("chain.witness_items('')", "{}"),
            ("chain.witness_items('\\x00')", "{}"),
            ("chain.witness_items('\\x0100')", "{\"\\\\x\"}"),
            ("chain.witness_items('\\x0302aabb0001cc')", "{\"\\\\xaabb\",\"\\\\x\",\"\\\\xcc\"}"),
            ("chain.witness_items(null)", "NULL"),
            // An item of 3,900,000 bytes: fe and 4 bytes of its length.
            (
                "octet_length((chain.witness_items('\\x01fe60823b00'::bytea
                     || decode(repeat('ab', 3900000), 'hex')))[1])",
                "3900000",
            ),
        ],
    )
    .await;
    assert_errors(
        &client,
        &[
            (
                "chain.witness_items('\\x0102aa')",
                "22023 invalid witness: item 1 of 1 has 2 bytes, 1 are left",
            ),
            ("chain.witness_items('\\x0101aabb')", "22023 invalid witness: 1 bytes after its last item"),
            (
                "chain.witness_items('\\xff0000000000000010')",
                "22023 invalid witness: 1152921504606846976 items in 9 bytes",
            ),
        ],
    )
    .await;
}

//! Addresses: the vectors of BIP173 and BIP350, base58check, every network, and what is said of wrong ones.

use crate::postgres::{database, describe};

/// An address and its scriptPubKey; the valid segwit addresses are BIP350's.
const VALID: &[(&str, &str)] = &[
    ("BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4", "0014751e76e8199196d454941c45d1b3a323f1433bd6"),
    (
        "tb1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3q0sl5k7",
        "00201863143c14c5166804bd19203356da136c985678cd4d27a1b8c6329604903262",
    ),
    (
        "bc1pw508d6qejxtdg4y5r3zarvary0c5xw7kw508d6qejxtdg4y5r3zarvary0c5xw7kt5nd6y",
        "5128751e76e8199196d454941c45d1b3a323f1433bd6751e76e8199196d454941c45d1b3a323f1433bd6",
    ),
    ("BC1SW50QGDZ25J", "6002751e"),
    ("bc1zw508d6qejxtdg4y5r3zarvaryvaxxpcs", "5210751e76e8199196d454941c45d1b3a323"),
    (
        "tb1qqqqqp399et2xygdj5xreqhjjvcmzhxw4aywxecjdzew6hylgvsesrxh6hy",
        "0020000000c4a5cad46221b2a187905e5266362b99d5e91c6ce24d165dab93e86433",
    ),
    (
        "tb1pqqqqp399et2xygdj5xreqhjjvcmzhxw4aywxecjdzew6hylgvsesf3hn0c",
        "5120000000c4a5cad46221b2a187905e5266362b99d5e91c6ce24d165dab93e86433",
    ),
    (
        "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
        "512079be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
    ),
    ("bc1pfeessrawgf", "51024e73"),
    ("bcrt1pfeesnyr2tx", "51024e73"),
    ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "76a91462e907b15cbf27d5425399ebf6f0fb50ebb88f1888ac"),
    ("1111111111111111111114oLvT2", "76a914000000000000000000000000000000000000000088ac"),
    ("1QLbz7JHiBTspS962RLKV8GndWFwi5j6Qr", "76a914ffffffffffffffffffffffffffffffffffffffff88ac"),
    ("3P14159f73E4gFr7JterCCQh9QjiTjiZrG", "a914e9c3dd0c07aac76179ebc76a6c78d4d67c6c160a87"),
    ("mipcBbFg9gMiCh81Kj8tqqdgoZub1ZJRfn", "76a914243f1394f44554f4ce3fd68649c19adc483ce92488ac"),
    ("2MzQwSSnBHWHqSAqtTVQ6v47XtaisrJa1Vc", "a9144e9f39ca4688ff102128ea4ccda34105324305b087"),
];

/// A wrong address and what is said of it, after `invalid address "…": `.
const INVALID: &[(&str, &str)] = &[
    // BIP350's and BIP173's.
    (
        "tc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vq5zuyut",
        "expected base58, or bech32 beginning with bc1, tb1 or bcrt1",
    ),
    (
        "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqh2y7hd",
        "witness version 1 has a bech32 checksum, expected bech32m (BIP350)",
    ),
    (
        "tb1z0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqglt7rf",
        "witness version 2 has a bech32 checksum, expected bech32m (BIP350)",
    ),
    (
        "BC1S0XLXVLHEMJA6C4DQV22UAPCTQUPFHLXM9H8Z3K2E72Q4K9HCZ7VQ54WELL",
        "witness version 16 has a bech32 checksum, expected bech32m (BIP350)",
    ),
    (
        "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kemeawh",
        "witness version 0 has a bech32m checksum, expected bech32 (BIP173)",
    ),
    (
        "tb1q0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vq24jc47",
        "witness version 0 has a bech32m checksum, expected bech32 (BIP173)",
    ),
    ("bc1p38j9r5y49hruaue7wxjce0updqjuyyx0kh56v8s25huc6995vvpql3jow4", "\"o\" is no bech32 character"),
    (
        "BC130XLXVLHEMJA6C4DQV22UAPCTQUPFHLXM9H8Z3K2E72Q4K9HCZ7VQ7ZWS8R",
        "unknown witness version 17, expected 0 to 16",
    ),
    ("bc1pw5dgrnzv", "12 characters, expected 14 to 90"),
    (
        "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7v8n0nx0muaewav253zgeav",
        "witness program of 41 bytes, expected 2 to 40",
    ),
    ("BC1QR508D6QEJXTDG4Y5R3ZARVARYV98GJ9P", "witness program of 16 bytes, expected 20 or 32 for version 0"),
    ("tb1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vq47Zagq", "mixed upper and lower case"),
    (
        "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7v07qwwzcrf",
        "its last bits are no whole byte and not zero",
    ),
    (
        "tb1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vpggkg4j",
        "its last bits are no whole byte and not zero",
    ),
    ("bc1gmk9yu", "9 characters, expected 14 to 90"),
    ("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5", "wrong bech32 checksum"),
    ("tb1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3q0sL5k7", "mixed upper and lower case"),
    ("BC1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", "mixed upper and lower case"),
    ("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4 ", "\" \" is no bech32 character"),
    ("bc1qw508d6qejxtdg4y5r3zarvary0c5xw1kv8f3t4", "\"1\" is no bech32 character"),
    // Base58check.
    ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb", "wrong base58 checksum"),
    ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfN", "wrong base58 checksum"),
    ("11A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "its base58 does not decode to 25 bytes"),
    ("111111111111111111114oLvT2", "its base58 does not decode to 25 bytes"),
    ("11111111111111111111114oLvT2", "its base58 does not decode to 25 bytes"),
    ("zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", "its base58 does not decode to 25 bytes"),
    ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfN0", "expected base58, or bech32 beginning with bc1, tb1 or bcrt1"),
    (" 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "expected base58, or bech32 beginning with bc1, tb1 or bcrt1"),
    ("", "expected base58, or bech32 beginning with bc1, tb1 or bcrt1"),
    // A private key in its usual form; version byte 30.
    ("5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTJ", "51 characters, expected 25 to 35 of base58"),
    ("D596YFweJQuHY1BbjazZYmAbt8jJPbKehC", "unknown version byte 30, expected 0, 5, 111 or 196"),
];

#[tokio::test]
async fn valid_addresses_give_their_script() {
    let client = database("valid_addresses_give_their_script").await;
    for (address, script) in VALID {
        let row = client.query_one("select encode(chain.address_script($1), 'hex')", &[address]).await;
        let row = row.unwrap_or_else(|error| panic!("{address}: {}", describe(&error)));
        assert_eq!(row.get::<_, &str>(0), *script, "{address}");
    }
}

#[tokio::test]
async fn wrong_addresses_are_errors_that_say_why() {
    let client = database("wrong_addresses_are_errors_that_say_why").await;
    for (address, reason) in INVALID {
        let error = client.query("select chain.address_script($1)", &[address]).await.expect_err(address);
        let expected = format!("22023 invalid address \"{address}\": {reason}");
        assert_eq!(describe(&error).trim(), expected, "{address}");
    }
    let long = "bc1".to_owned() + &"q".repeat(10_000);
    let error = client.query("select chain.address_script($1)", &[&long]).await.expect_err("a long address");
    let expected = format!("22023 invalid address \"{}\": 10003 characters, expected 14 to 90", &long[..100]);
    assert_eq!(describe(&error).trim(), expected);
    let null = client.query_one("select chain.address_script(null) is null", &[]).await.unwrap();
    assert!(null.get::<_, bool>(0));
}

#[tokio::test]
async fn every_network_has_its_addresses() {
    let client = database("every_network_has_its_addresses").await;
    let scripts = [
        "76a914243f1394f44554f4ce3fd68649c19adc483ce92488ac",
        "a9144e9f39ca4688ff102128ea4ccda34105324305b087",
        "0014751e76e8199196d454941c45d1b3a323f1433bd6",
        "51024e73",
    ];
    let test = [
        "mipcBbFg9gMiCh81Kj8tqqdgoZub1ZJRfn",
        "2MzQwSSnBHWHqSAqtTVQ6v47XtaisrJa1Vc",
        "tb1qw508d6qejxtdg4y5r3zarvary0c5xw7kxpjzsx",
        "tb1pfees9rn5nz",
    ];
    let main = [
        "14JetYAhLevTRaePcAAX1vRMwaJt2QGRzp",
        "38rjNhr9g3nVEPDLnMnEJ78GgEWi6yM4He",
        "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4",
        "bc1pfeessrawgf",
    ];
    let regtest = [test[0], test[1], "bcrt1qw508d6qejxtdg4y5r3zarvary0c5xw7kygt080", "bcrt1pfeesnyr2tx"];
    let shared = "test,testnet4,signet,regtest";
    for (network, expected) in
        [("main", main), ("test", test), ("testnet4", test), ("signet", test), ("regtest", regtest)]
    {
        client
            .execute(
                "insert into ops.settings values ('network', $1) on conflict (key) do update set value = $1",
                &[&network],
            )
            .await
            .unwrap();
        for (script, address) in scripts.iter().zip(expected) {
            let row = client
                .query_one(
                    "select chain.script_address(s, $2), chain.script_address(s), chain.script_hash(s)
                         = chain.address_script_hash($3), array_to_string(chain.address_networks($3), ',')
                     from decode($1, 'hex') s",
                    &[script, &network, &address],
                )
                .await
                .unwrap();
            assert_eq!(row.get::<_, &str>(0), address, "{network}");
            assert_eq!(row.get::<_, &str>(1), address, "{network}, of the database");
            assert!(row.get::<_, bool>(2), "{network} {address}");
            let networks = match (network, address.chars().next()) {
                ("main", _) => "main",
                (_, Some('m' | '2')) => shared,
                ("regtest", _) => "regtest",
                _ => "test,testnet4,signet",
            };
            assert_eq!(row.get::<_, &str>(3), networks, "{network} {address}");
        }
    }
    let error = client
        .query("select chain.script_address('\\x51024e73', 'mainnet')", &[])
        .await
        .expect_err("a network");
    assert_eq!(
        describe(&error).trim(),
        "22023 unknown network \"mainnet\": expected main, test, testnet4, signet or regtest"
    );
    let error = client
        .query("select chain.address_script_hash('bc1pfeessrawgf')", &[])
        .await
        .expect_err("another network");
    assert_eq!(
        describe(&error).trim(),
        "22023 address \"bc1pfeessrawgf\" belongs to network main, this database holds regtest"
    );
    client.execute("delete from ops.settings", &[]).await.unwrap();
    let error =
        client.query("select chain.script_address('\\x51024e73')", &[]).await.expect_err("no network");
    assert_eq!(
        describe(&error).trim(),
        "55000 the network of this database is not known: ops.settings has no row 'network'"
    );
}

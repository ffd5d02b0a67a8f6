//! Script types: every kind that Bitcoin Core tells apart, the edges between them, and the names it prints.

use crate::postgres::database;

const KEY_2: &str = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
const KEY_3: &str = "03f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9";
const POINT: &str = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798\
                     483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8";

/// What the node says about a script: its type, and its address on mainnet where it has one.
struct Case {
    name: &'static str,
    script: String,
    kind: &'static str,
    address: Option<&'static str>,
}

fn case(name: &'static str, script: impl Into<String>, kind: &'static str) -> Case {
    Case { name, script: script.into(), kind, address: None }
}

fn with_address(name: &'static str, script: &str, kind: &'static str, address: &'static str) -> Case {
    Case { name, script: script.into(), kind, address: Some(address) }
}

/// m-of-n with compressed keys, the counts given as they stand in the script.
fn multisig(required: &str, keys: usize, count: &str) -> String {
    format!("{required}{}{count}ae", format!("21{KEY_3}").repeat(keys))
}

fn witness_programs() -> Vec<Case> {
    let zeros = |count: usize| "00".repeat(count);
    vec![
        with_address(
            "v0 key hash",
            "0014751e76e8199196d454941c45d1b3a323f1433bd6",
            "witness_v0_keyhash",
            "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4",
        ),
        with_address(
            "v0 script hash",
            "00201863143c14c5166804bd19203356da136c985678cd4d27a1b8c6329604903262",
            "witness_v0_scripthash",
            "bc1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3qccfmv3",
        ),
        case("v0 of 2 bytes", "00020000", "nonstandard"),
        case("v0 of 19 bytes", format!("0013{}", zeros(19)), "nonstandard"),
        case("v0 of 21 bytes", format!("0015{}", zeros(21)), "nonstandard"),
        case("v0 of 40 bytes", format!("0028{}", zeros(40)), "nonstandard"),
        with_address(
            "v1 of 32 bytes",
            "512079be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
            "witness_v1_taproot",
            "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
        ),
        with_address("pay to anchor", "51024e73", "anchor", "bc1pfeessrawgf"),
        with_address("v1 of 2 other bytes", "51024e74", "witness_unknown", "bc1pfe6q5vy3qs"),
        with_address(
            "v1 of 20 bytes",
            "5114751e76e8199196d454941c45d1b3a323f1433bd6",
            "witness_unknown",
            "bc1pw508d6qejxtdg4y5r3zarvary0c5xw7kj9wkru",
        ),
        with_address("v2 of anchor's bytes", "52024e73", "witness_unknown", "bc1zfeesuqhy82"),
        with_address("v16 of 2 bytes", "6002751e", "witness_unknown", "bc1sw50qgdz25j"),
        with_address(
            "v1 of 40 bytes",
            "5128751e76e8199196d454941c45d1b3a323f1433bd6751e76e8199196d454941c45d1b3a323f1433bd6",
            "witness_unknown",
            "bc1pw508d6qejxtdg4y5r3zarvary0c5xw7kw508d6qejxtdg4y5r3zarvary0c5xw7kt5nd6y",
        ),
        case("v1 of 1 byte", "510100", "nonstandard"),
        case("v1 of 41 bytes", format!("5129{}", zeros(41)), "nonstandard"),
        case("v17 does not exist", "6102751e", "nonstandard"),
        case("OP_1NEGATE is no version", "4f02751e", "nonstandard"),
        case("program pushed by OP_PUSHDATA1", format!("514c20{}", zeros(32)), "nonstandard"),
        case("program one byte short", format!("5120{}", zeros(31)), "nonstandard"),
        case("program and one byte more", format!("5120{}", zeros(33)), "nonstandard"),
    ]
}

fn data_carriers() -> Vec<Case> {
    vec![
        case("OP_RETURN alone", "6a", "nulldata"),
        case("OP_RETURN OP_0", "6a00", "nulldata"),
        case("OP_RETURN OP_16", "6a60", "nulldata"),
        case("OP_RETURN OP_RESERVED", "6a50", "nulldata"),
        case("OP_RETURN OP_NOP", "6a61", "nonstandard"),
        case("OP_RETURN and a push", "6a0548656c6c6f", "nulldata"),
        case("OP_RETURN and a push with a byte missing", "6a0548656c6c", "nonstandard"),
        case("OP_RETURN and several pushes", "6a0148016501004c026c6c4d01006f4e0100000021", "nulldata"),
        case("OP_RETURN and 75 bytes", format!("6a4b{}", "ab".repeat(75)), "nulldata"),
        case("OP_RETURN and 76 bytes", format!("6a4c4c{}", "ab".repeat(76)), "nulldata"),
        case("OP_RETURN and 100,000 bytes", format!("6a4ea0860100{}", "ab".repeat(100_000)), "nulldata"),
        case(
            "OP_RETURN and 99,999 bytes of 100,000",
            format!("6a4ea0860100{}", "ab".repeat(99_999)),
            "nonstandard",
        ),
        case("OP_RETURN and 100,000 OP_0", format!("6a{}", "00".repeat(100_000)), "nulldata"),
        case("OP_PUSHDATA1 without its length", "6a4c", "nonstandard"),
        case("OP_PUSHDATA1 of nothing", "6a4c00", "nulldata"),
        case("OP_PUSHDATA2 with half its length", "6a4d01", "nonstandard"),
        case("OP_PUSHDATA4 with a part of its length", "6a4e010000", "nonstandard"),
        case("OP_PUSHDATA4 of 4,294,967,295 bytes", "6a4effffffff00", "nonstandard"),
        with_address("OP_RETURN not first", "51026a00", "witness_unknown", "bc1pdgqqjxpgnv"),
        case("OP_RETURN after a push", "01026a00", "nonstandard"),
        case("a runestone, a byte cut", "6a5d0c1600d0ac1100b0cf6a14c0", "nonstandard"),
        case("a runestone", "6a5d0b00c0a2330380cab5ee0114", "nulldata"),
        case("a witness commitment", format!("6a24aa21a9ed{}", "cd".repeat(32)), "nulldata"),
    ]
}

fn keys_and_hashes() -> Vec<Case> {
    let hash = "62e907b15cbf27d5425399ebf6f0fb50ebb88f18";
    let zeros = "0000000000000000000000000000000000000000";
    vec![
        case("compressed key, even", format!("21{KEY_2}ac"), "pubkey"),
        case("compressed key, odd", format!("21{KEY_3}ac"), "pubkey"),
        case("uncompressed key", format!("4104{POINT}ac"), "pubkey"),
        case("hybrid key, even", format!("4106{POINT}ac"), "pubkey"),
        case("hybrid key, odd", format!("4107{POINT}ac"), "pubkey"),
        case("33 bytes beginning with 4", format!("2104{}ac", &KEY_2[2..]), "nonstandard"),
        case("65 bytes beginning with 2", format!("4102{POINT}ac"), "nonstandard"),
        case("65 bytes beginning with 5", format!("4105{POINT}ac"), "nonstandard"),
        case("key pushed by OP_PUSHDATA1", format!("4c21{KEY_2}ac"), "nonstandard"),
        case("key without OP_CHECKSIG", format!("21{KEY_2}"), "nonstandard"),
        case("key with OP_CHECKSIGVERIFY", format!("21{KEY_2}ad"), "nonstandard"),
        case("key that is no point", format!("2102{}ac", "ff".repeat(32)), "pubkey"),
        with_address(
            "key hash",
            &format!("76a914{hash}88ac"),
            "pubkeyhash",
            "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa",
        ),
        with_address(
            "key hash of zeros",
            &format!("76a914{zeros}88ac"),
            "pubkeyhash",
            "1111111111111111111114oLvT2",
        ),
        case("key hash of 19 bytes", format!("76a913{}88ac", &hash[2..]), "nonstandard"),
        case("key hash and OP_NOP", format!("76a914{hash}88ac61"), "nonstandard"),
        case("key hash, OP_EQUAL in place of OP_EQUALVERIFY", format!("76a914{hash}87ac"), "nonstandard"),
        with_address(
            "script hash",
            "a914e9c3dd0c07aac76179ebc76a6c78d4d67c6c160a87",
            "scripthash",
            "3P14159f73E4gFr7JterCCQh9QjiTjiZrG",
        ),
        case("script hash with OP_EQUALVERIFY", format!("a914{hash}88"), "nonstandard"),
        case("script hash pushed by OP_PUSHDATA1", format!("a94c14{hash}87"), "nonstandard"),
        case("script hash of 32 bytes by OP_HASH256", format!("aa20{}87", "00".repeat(32)), "nonstandard"),
    ]
}

fn multisigs() -> Vec<Case> {
    vec![
        case("1 of 1", multisig("51", 1, "51"), "multisig"),
        case("1 of 3", multisig("51", 3, "53"), "multisig"),
        case("3 of 3", multisig("53", 3, "53"), "multisig"),
        case("4 of 3", multisig("54", 3, "53"), "nonstandard"),
        case("0 of 3", multisig("00", 3, "53"), "nonstandard"),
        case("0 of 0", multisig("00", 0, "00"), "nonstandard"),
        case("1 of 0", multisig("51", 0, "51"), "nonstandard"),
        case("15 of 16", multisig("5f", 16, "60"), "multisig"),
        case("15 of 17", multisig("5f", 17, "0111"), "multisig"),
        case("15 of 20", multisig("5f", 20, "0114"), "multisig"),
        case("20 of 20", multisig("0114", 20, "0114"), "multisig"),
        case("17 of 16", multisig("0111", 16, "60"), "nonstandard"),
        case("1 of 21", multisig("51", 21, "0115"), "nonstandard"),
        case("21 of 21", multisig("0115", 21, "0115"), "nonstandard"),
        case("3 pushed as a byte", multisig("51", 3, "0103"), "nonstandard"),
        case("16 pushed as a byte", multisig("51", 16, "0110"), "nonstandard"),
        case("17 pushed as two bytes", multisig("51", 17, "021100"), "nonstandard"),
        case("17 pushed by OP_PUSHDATA1", multisig("51", 17, "4c0111"), "nonstandard"),
        case("says 2, has 3", multisig("51", 3, "52"), "nonstandard"),
        case("says 3, has 2", multisig("51", 2, "53"), "nonstandard"),
        case("mixed keys", format!("5121{KEY_2}4104{POINT}4106{POINT}53ae"), "multisig"),
        case(
            "a key by OP_PUSHDATA1",
            format!("514c21{KEY_2}4d410004{POINT}4e21000000{KEY_3}53ae"),
            "multisig",
        ),
        case("a key of 33 bytes beginning with 4", format!("512104{}51ae", &KEY_2[2..]), "nonstandard"),
        case("a key of 32 bytes", format!("5120{}51ae", &KEY_2[2..]), "nonstandard"),
        case("the last key cut", format!("5121{KEY_2}21{}", &KEY_2[..64]), "nonstandard"),
        case("no count of keys", format!("5121{KEY_2}ae"), "nonstandard"),
        case("OP_CHECKMULTISIGVERIFY", format!("5121{KEY_2}51af"), "nonstandard"),
        case("OP_NOP before the end", format!("5121{KEY_2}5161ae"), "nonstandard"),
        case("OP_CHECKMULTISIG twice", format!("5121{KEY_2}51aeae"), "nonstandard"),
        case("OP_1NEGATE of 1", multisig("4f", 1, "51"), "nonstandard"),
        case("OP_CHECKMULTISIG alone", "ae", "nonstandard"),
    ]
}

fn others() -> Vec<Case> {
    vec![
        case("empty", "", "nonstandard"),
        case("one byte, OP_1", "51", "nonstandard"),
        case("one byte, a push without its data", "01", "nonstandard"),
        case("truncated OP_PUSHDATA1", "4cff00", "nonstandard"),
        case("truncated OP_PUSHDATA2", "4dffff", "nonstandard"),
        case("truncated OP_PUSHDATA4", "4e", "nonstandard"),
        case("10,000 bytes", "51".repeat(10_000), "nonstandard"),
        case("10,001 bytes", "51".repeat(10_001), "nonstandard"),
        case("10,000 bytes that end like a multisig", format!("{}ae", "51".repeat(9_999)), "nonstandard"),
        case("NUL bytes", "0000000000", "nonstandard"),
    ]
}

#[tokio::test]
async fn the_script_zoo_has_core_s_types_and_addresses() {
    let client = database("the_script_zoo_has_core_s_types_and_addresses").await;
    let zoo: Vec<Case> = [witness_programs(), data_carriers(), keys_and_hashes(), multisigs(), others()]
        .into_iter()
        .flatten()
        .collect();
    let scripts: Vec<&str> = zoo.iter().map(|case| case.script.as_str()).collect();
    let rows = client
        .query(
            "select chain.script_type(script), chain.script_address(script, 'main')
             from unnest($1::text[]) with ordinality u (hex, n), decode(hex, 'hex') script order by n",
            &[&scripts],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), zoo.len());
    for (case, row) in zoo.iter().zip(rows) {
        let (kind, address): (&str, Option<&str>) = (row.get(0), row.get(1));
        assert_eq!((kind, address), (case.kind, case.address), "{}", case.name);
    }
}

#[tokio::test]
async fn each_of_the_zoo_is_the_same_as_a_literal() {
    // A literal is folded when the statement is planned: no branch that does not apply may be evaluated then.
    let client = database("each_of_the_zoo_is_the_same_as_a_literal").await;
    let zoo = [witness_programs(), data_carriers(), keys_and_hashes(), multisigs(), others()];
    for case in zoo.iter().flatten().filter(|case| case.script.len() < 2_000) {
        let query = format!("select chain.script_type('\\x{}')", case.script);
        let kind: String = client.query_one(&query, &[]).await.expect(case.name).get(0);
        assert_eq!(kind, case.kind, "{}", case.name);
    }
}

#[tokio::test]
async fn null_scripts_give_null() {
    let client = database("null_scripts_give_null").await;
    let row = client
        .query_one(
            "select chain.script_type(null) is null and chain.script_address(null, 'main') is null
                 and chain.script_address('\\x51024e73', null) is null and chain.script_hash(null) is null",
            &[],
        )
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0));
}

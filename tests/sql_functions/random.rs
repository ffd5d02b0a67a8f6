//! Random scripts and addresses: the same answers as the bitcoin crate's, and as Bitcoin Core's rules read literally.

use bitcoin::opcodes::all as op;
use bitcoin::script::Instruction;
use bitcoin::{Address, Network, Script, ScriptBuf};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::postgres::{database, describe};

const NETWORKS: [(&str, Network); 5] = [
    ("main", Network::Bitcoin),
    ("test", Network::Testnet),
    ("testnet4", Network::Testnet4),
    ("signet", Network::Signet),
    ("regtest", Network::Regtest),
];

/// What the standard forms consist of: keys of right and wrong kinds, counts, hashes, and the opcodes around them.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let prefixed = |prefix: Vec<u8>, first: Vec<u8>, size: usize| {
        (Just(prefix), proptest::sample::select(first), vec(any::<u8>(), size))
            .prop_map(|(prefix, first, rest)| [prefix, vec![first], rest].concat())
    };
    prop_oneof![
        4 => prefixed(vec![33], vec![2, 3, 2, 3, 2, 3, 4], 32),
        2 => prefixed(vec![65], vec![4, 6, 7, 4, 6, 7, 2], 64),
        1 => prefixed(vec![0x4c, 33], vec![2, 3], 32),
        1 => prefixed(vec![0x4d, 65, 0], vec![4, 6, 7], 64),
        4 => (0x4f..=0x61u8).prop_map(|opcode| vec![opcode]),
        1 => (0..=22u8).prop_map(|number| vec![1, number]),
        1 => vec(any::<u8>(), 0..=80).prop_map(|data| [vec![data.len() as u8], data].concat()),
        1 => vec(any::<u8>(), 0..=300).prop_map(|data| [vec![0x4d, data.len() as u8, (data.len() >> 8) as u8], data].concat()),
        3 => proptest::sample::select(vec![0xae, 0xac, 0x6a, 0x00, 0xaf]).prop_map(|opcode| vec![opcode]),
    ]
}

/// Whole standard scripts, witness programs of any version and length, lists of pieces, and noise; some damaged.
fn script() -> impl Strategy<Value = Vec<u8>> {
    let multisig =
        (1..=21usize, vec(any::<[u8; 32]>(), 1..=21), -1..=1i64).prop_map(|(required, keys, error)| {
            let number = |count: i64| match count {
                1..=16 => vec![80 + count as u8],
                _ => vec![1, count as u8],
            };
            let mut script = number(required.min(keys.len()) as i64);
            keys.iter().for_each(|key| script.extend([vec![33, 2], key.to_vec()].concat()));
            script.extend(number(keys.len() as i64 + if keys.len() % 3 == 0 { error } else { 0 }));
            script.push(0xae);
            script
        });
    let whole = prop_oneof![
        1 => any::<[u8; 20]>().prop_map(|hash| [&[0x76, 0xa9, 20][..], &hash, &[0x88, 0xac]].concat()),
        1 => any::<[u8; 20]>().prop_map(|hash| [&[0xa9, 20][..], &hash, &[0x87]].concat()),
        3 => (prop_oneof![Just(0u8), 0x50..=0x61u8], vec(any::<u8>(), 1..=42))
            .prop_map(|(version, program)| [vec![version, program.len() as u8], program].concat()),
        2 => (prop_oneof![Just(0u8), Just(0x51u8)], prop_oneof![vec(any::<u8>(), 20), vec(any::<u8>(), 32)])
            .prop_map(|(version, program)| [vec![version, program.len() as u8], program].concat()),
        2 => vec(piece(), 0..8).prop_map(|pieces| [vec![0x6a], pieces.concat()].concat()),
        2 => multisig,
        2 => piece().prop_map(|key| [key, vec![0xac]].concat()),
        4 => vec(piece(), 0..8).prop_map(|pieces| pieces.concat()),
        1 => vec(any::<u8>(), 0..60),
    ];
    (whole, 0..10u8, any::<proptest::sample::Index>(), any::<u8>()).prop_map(
        |(mut script, damage, at, byte)| {
            match damage {
                0 if !script.is_empty() => {
                    let at = at.index(script.len());
                    script[at] = byte;
                }
                1 => script.truncate(at.index(script.len() + 1)),
                2 => script.push(byte),
                _ => {}
            }
            script
        },
    )
}

/// Bitcoin Core's Solver, over the crate's reader of instructions.
fn kind(script: &Script) -> &'static str {
    let bytes = script.as_bytes();
    if script.is_p2sh() {
        return "scripthash";
    }
    if let Some(version) = script.witness_version() {
        return match (version.to_num(), bytes.len() - 2) {
            (0, 20) => "witness_v0_keyhash",
            (0, 32) => "witness_v0_scripthash",
            (0, _) => "nonstandard",
            (1, 32) => "witness_v1_taproot",
            (1, 2) if bytes[2..] == [0x4e, 0x73] => "anchor",
            _ => "witness_unknown",
        };
    }
    if bytes.first() == Some(&0x6a) {
        let pushes = Script::from_bytes(&bytes[1..]).instructions().all(|instruction| match instruction {
            Ok(Instruction::PushBytes(_)) => true,
            Ok(Instruction::Op(opcode)) => opcode.to_u8() <= 0x60,
            Err(_) => false,
        });
        return if pushes { "nulldata" } else { "nonstandard" };
    }
    let is_key = |bytes: &[u8]| match bytes.first() {
        Some(2 | 3) => bytes.len() == 33,
        Some(4 | 6 | 7) => bytes.len() == 65,
        _ => false,
    };
    if let [size @ (33 | 65), key @ .., 0xac] = bytes
        && key.len() == *size as usize
        && is_key(key)
    {
        return "pubkey";
    }
    if script.is_p2pkh() {
        return "pubkeyhash";
    }
    if is_multisig(script, is_key) { "multisig" } else { "nonstandard" }
}

/// Core's MatchMultisig: count of signatures, keys, count of keys, OP_CHECKMULTISIG, and nothing more.
fn is_multisig(script: &Script, is_key: impl Fn(&[u8]) -> bool) -> bool {
    // A count above 16 must be one byte pushed directly, and that push takes two bytes of the script.
    let number = |instruction: &Instruction, size: usize| match instruction {
        Instruction::Op(opcode) => {
            (81..=96).contains(&opcode.to_u8()).then(|| usize::from(opcode.to_u8()) - 80)
        }
        Instruction::PushBytes(data) => match data.as_bytes() {
            [count @ 17..=20] if size == 2 => Some(usize::from(*count)),
            _ => None,
        },
    };
    let Ok(instructions) = script.instruction_indices().collect::<Result<Vec<_>, _>>() else { return false };
    let size = |index: usize| {
        let end = instructions.get(index + 1).map_or(script.len(), |(position, _)| *position);
        end - instructions[index].0
    };
    let count = instructions.len();
    if count < 4 || !matches!(instructions[count - 1].1, Instruction::Op(op::OP_CHECKMULTISIG)) {
        return false;
    }
    let required = number(&instructions[0].1, size(0));
    let total = number(&instructions[count - 2].1, size(count - 2));
    let keys = &instructions[1..count - 2];
    let all_keys =
        keys.iter().all(|(_, key)| matches!(key, Instruction::PushBytes(key) if is_key(key.as_bytes())));
    all_keys && total == Some(keys.len()) && required.is_some_and(|required| required <= keys.len())
}

/// The same values at every run.
fn sample<S: Strategy>(strategy: S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("no filter refuses").current()).collect()
}

#[tokio::test]
async fn random_scripts_agree_with_the_bitcoin_crate() {
    let client = database("random_scripts_agree_with_the_bitcoin_crate").await;
    let scripts = sample(script(), 20_000);
    let mut seen = std::collections::BTreeMap::new();
    for (name, network) in NETWORKS {
        let rows = client
            .query(
                "select chain.script_type(s), chain.script_address(s, $2),
                     chain.address_script(chain.script_address(s, $2)), chain.script_hash(s)::text
                 from unnest($1::bytea[]) with ordinality u (s, n) order by n",
                &[&scripts, &name],
            )
            .await
            .unwrap_or_else(|error| panic!("{}", describe(&error)));
        for (script, row) in scripts.iter().zip(rows) {
            let script = Script::from_bytes(script);
            let expected = kind(script);
            assert_eq!(row.get::<_, &str>(0), expected, "{:x}", script);
            let address = Address::from_script(script, network).ok().map(|address| address.to_string());
            assert_eq!(row.get::<_, Option<&str>>(1), address.as_deref(), "{:x}", script);
            let back = address.as_ref().map(|_| script.as_bytes());
            assert_eq!(row.get::<_, Option<&[u8]>>(2), back, "{:x}", script);
            let hash = row.get::<_, &str>(3).replace('-', "");
            assert_eq!(hash, sha256_hex(script.as_bytes())[..32], "{:x}", script);
            *seen.entry(expected).or_insert(0) += 1;
        }
    }
    // Anchors are one script; the literal tests have them.
    for kind in
        ["pubkey", "pubkeyhash", "scripthash", "multisig", "nulldata", "witness_v0_keyhash", "nonstandard"]
    {
        assert!(seen[kind] > 500, "{kind}: too few to say anything, {seen:?}");
    }
}

#[tokio::test]
async fn damaged_addresses_are_refused_like_the_crate_refuses_them() {
    let client = database("damaged_addresses_are_refused_like_the_crate_refuses_them").await;
    client
        .batch_execute(
            "create function pg_temp.try(address text) returns text language plpgsql as $$
             begin return encode(chain.address_script(address), 'hex');
             exception when invalid_parameter_value then return null; end $$",
        )
        .await
        .unwrap();
    let damage = (script(), 0..5usize, 0..4u8, any::<proptest::sample::Index>(), "[0-9A-Za-z]");
    let mut addresses = Vec::new();
    for (script, network, damage, at, character) in sample(damage, 12_000) {
        let Ok(address) = Address::from_script(Script::from_bytes(&script), NETWORKS[network].1) else {
            continue;
        };
        let mut text = address.to_string();
        let at = at.index(text.len());
        match damage {
            0 => text.replace_range(at..=at, &character),
            1 => text.insert_str(at, &character),
            2 => drop(text.remove(at)),
            _ => text = text.to_uppercase(),
        }
        addresses.push(text);
    }
    assert!(addresses.len() > 2_000, "only {} addresses", addresses.len());
    let rows = client
        .query(
            "select pg_temp.try(a) from unnest($1::text[]) with ordinality u (a, n) order by n",
            &[&addresses],
        )
        .await
        .unwrap_or_else(|error| panic!("{}", describe(&error)));
    let mut valid = 0;
    for (address, row) in addresses.iter().zip(rows) {
        let expected: Option<ScriptBuf> =
            address.parse::<Address<_>>().ok().map(|address| address.assume_checked().script_pubkey());
        let expected = expected.map(|script| script.to_hex_string());
        assert_eq!(row.get::<_, Option<&str>>(0), expected.as_deref(), "{address}");
        valid += usize::from(expected.is_some());
    }
    assert!(valid > 100, "upper-case bech32 stays valid, only {valid} were");
}

/// sha256 by the crate, hex.
fn sha256_hex(bytes: &[u8]) -> String {
    use bitcoin::hashes::Hash;
    bitcoin::hashes::sha256::Hash::hash(bytes).to_string()
}

//! Output scripts of every kind and every near miss, with the type and address that Bitcoin Core gives them.

use crate::support::blkfiles::{BlkDir, records};
use crate::support::blocks::{Chain, outpoint, pay, script, spend};
use crate::support::rows::{NULL, assert_chain, compare, script_hash};
use crate::support::{Satgres, sample};

/// Name, script, type and address. The last two are what `decodescript` of a regtest node answers.
type Kind = (&'static str, Vec<u8>, &'static str, Option<&'static str>);

fn kinds() -> Vec<Kind> {
    [odd_scripts(), keys_and_hashes(), multisigs(), witness_programs(), data()].concat()
}

fn odd_scripts() -> Vec<Kind> {
    [
        ("empty", vec![]),
        ("one byte, a number", vec![0x51]),
        ("one byte, an opcode", vec![0xac]),
        ("one byte, a push of one byte that is missing", vec![0x01]),
        ("truncated PUSHDATA1", vec![0x4c, 0x05, 0xaa]),
        ("PUSHDATA1 without length", vec![0x4c]),
        ("truncated PUSHDATA2", vec![0x4d, 0xff, 0xff, 0x00]),
        ("PUSHDATA2 without length", vec![0x4d, 0xff]),
        ("truncated PUSHDATA4", vec![0x4e, 0xff, 0xff, 0xff, 0x7f, 0x00]),
        ("PUSHDATA4 without length", vec![0x4e, 0x00, 0x00]),
        ("10,000 bytes", vec![0x51; 10_000]),
        ("10,001 bytes", vec![0x51; 10_001]),
        ("not UTF-8, with NUL, quotes and a backslash", b"\x00\xff\xfe'\"\\\n\t".to_vec()),
    ]
    .map(|(name, script)| (name, script, "nonstandard", None))
    .into()
}

fn keys_and_hashes() -> Vec<Kind> {
    let pay_to_key = |key: Vec<u8>| [&push(&key)[..], &[0xac]].concat();
    let key_hash = [&[0x76, 0xa9, 0x14][..], &[0x33; 20], &[0x88, 0xac]].concat();
    let script_hash = |push: &[u8], last: u8| [&[0xa9], push, &[0x44; 20], &[last]].concat();
    vec![
        ("P2PK compressed", pay_to_key(short_key(3, 0x22)), "pubkey", None),
        ("P2PK uncompressed", pay_to_key(long_key(4)), "pubkey", None),
        ("P2PK hybrid, even", pay_to_key(long_key(6)), "pubkey", None),
        ("P2PK hybrid, odd", pay_to_key(long_key(7)), "pubkey", None),
        ("P2PK of an unknown kind of key", pay_to_key(short_key(5, 0x22)), "nonstandard", None),
        ("P2PK of a long key that says it is short", pay_to_key(long_key(2)), "nonstandard", None),
        ("P2PK of a short key that says it is long", pay_to_key(short_key(4, 0x22)), "nonstandard", None),
        ("P2PKH", key_hash.clone(), "pubkeyhash", Some("mkBg6GwqZ4XdYQ72vTEqiwfgb6T6WRSDm5")),
        ("P2PKH and one more opcode", [key_hash, vec![0x61]].concat(), "nonstandard", None),
        ("P2SH", script_hash(&[0x14], 0x87), "scripthash", Some("2MyUBiaZwpQcZeLVsQQe5ucHfzfy57qsyV8")),
        ("P2SH with EQUALVERIFY", script_hash(&[0x14], 0x88), "nonstandard", None),
        ("P2SH pushed by PUSHDATA1", script_hash(&[0x4c, 0x14], 0x87), "nonstandard", None),
    ]
}

fn multisigs() -> Vec<Kind> {
    let keys = |count: u8| (0..count).map(|index| short_key(2 + index % 2, 0x10 + index)).collect::<Vec<_>>();
    let of = |required: &[u8], keys: &[Vec<u8>], total: &[u8]| {
        [required, &keys.iter().flat_map(|key| push(key)).collect::<Vec<_>>(), total, &[0xae]].concat()
    };
    let by_pushdata1 = [&[0x51, 0x4c][..], &push(&short_key(2, 0x10)), &[0x51, 0xae]].concat();
    let mixed = [short_key(2, 0x10), long_key(4)];
    vec![
        ("multisig 1 of 3", of(&[0x51], &keys(3), &[0x53]), "multisig", None),
        ("multisig 15 of 20", of(&[0x5f], &keys(20), &[0x01, 20]), "multisig", None),
        ("multisig 17 of 17", of(&[0x01, 17], &keys(17), &[0x01, 17]), "multisig", None),
        ("multisig 1 of 21", of(&[0x51], &keys(21), &[0x01, 21]), "nonstandard", None),
        ("multisig 2 of 1", of(&[0x52], &keys(1), &[0x51]), "nonstandard", None),
        ("multisig 0 of 1", of(&[0x00], &keys(1), &[0x51]), "nonstandard", None),
        ("multisig 1 of none", of(&[0x51], &[], &[0x50]), "nonstandard", None),
        ("multisig 0 of 0", of(&[0x00], &[], &[0x00]), "nonstandard", None),
        ("multisig that counts wrong", of(&[0x51], &keys(2), &[0x53]), "nonstandard", None),
        ("multisig with an uncompressed key", of(&[0x51], &mixed, &[0x52]), "multisig", None),
        ("multisig with keys by PUSHDATA1", by_pushdata1, "multisig", None),
        ("multisig with an invalid key", of(&[0x51], &[short_key(5, 1)], &[0x51]), "nonstandard", None),
        ("multisig with a number not minimal", of(&[0x51], &keys(1), &[0x01, 1]), "nonstandard", None),
        ("multisig 16 of 16, as a push", of(&[0x01, 16], &keys(16), &[0x60]), "nonstandard", None),
        (
            "multisig and one more opcode",
            [of(&[0x51], &keys(1), &[0x51]), vec![0x61]].concat(),
            "nonstandard",
            None,
        ),
    ]
}

fn witness_programs() -> Vec<Kind> {
    let program = |version: u8, bytes: &[u8]| [&[version][..], &push(bytes)].concat();
    let by_pushdata1 = [&[0x51, 0x4c][..], &push(&[0x77; 32])].concat();
    let v0_20 = Some("bcrt1q2424242424242424242424242424242406xw5p");
    let v0_32 = Some("bcrt1qvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenqlh7hjz");
    let v1_20 = Some("bcrt1pwamhwamhwamhwamhwamhwamhwamhwamhvmnjpd");
    let v1_32 = Some("bcrt1pwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamsw4jnqs");
    let v1_40 = Some("bcrt1pwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhwamhvadr3w");
    let v2_32 = Some("bcrt1z3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyqykgd8v");
    let v16_40 = Some("bcrt1snxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxvenxveczvlxg");
    vec![
        ("v0 of 20 bytes", program(0, &[0x55; 20]), "witness_v0_keyhash", v0_20),
        ("v0 of 32 bytes", program(0, &[0x66; 32]), "witness_v0_scripthash", v0_32),
        ("v0 of 2 bytes", program(0, &[0x55; 2]), "nonstandard", None),
        ("v0 of 21 bytes", program(0, &[0x55; 21]), "nonstandard", None),
        ("v0 of 40 bytes", program(0, &[0x55; 40]), "nonstandard", None),
        ("v0 of 41 bytes", program(0, &[0x55; 41]), "nonstandard", None),
        ("v1 of 32 bytes", program(0x51, &[0x77; 32]), "witness_v1_taproot", v1_32),
        ("P2A", vec![0x51, 0x02, 0x4e, 0x73], "anchor", Some("bcrt1pfeesnyr2tx")),
        ("v1 of 2 other bytes", vec![0x51, 0x02, 0x4e, 0x74], "witness_unknown", Some("bcrt1pfe6qht64rl")),
        ("v1 of 20 bytes", program(0x51, &[0x77; 20]), "witness_unknown", v1_20),
        ("v1 of 40 bytes", program(0x51, &[0x77; 40]), "witness_unknown", v1_40),
        ("v1 of 1 byte", program(0x51, &[0x77]), "nonstandard", None),
        ("v1 of 41 bytes", program(0x51, &[0x77; 41]), "nonstandard", None),
        ("v1 pushed by PUSHDATA1", by_pushdata1, "nonstandard", None),
        ("v2 of 2 bytes", vec![0x52, 0x02, 0x4e, 0x73], "witness_unknown", Some("bcrt1zfeesl8fqy9")),
        ("v2 of 32 bytes", program(0x52, &[0x88; 32]), "witness_unknown", v2_32),
        ("v16 of 2 bytes", program(0x60, &[0x99; 2]), "witness_unknown", Some("bcrt1snxvs2erlnx")),
        ("v16 of 40 bytes", program(0x60, &[0x99; 40]), "witness_unknown", v16_40),
        ("v17, which is none", program(0x61, &[0x99; 2]), "nonstandard", None),
        ("OP_1NEGATE as a version", program(0x4f, &[0x99; 2]), "nonstandard", None),
    ]
}

fn data() -> Vec<Kind> {
    let hundred_kb = [&[0x6a, 0x4e][..], &100_000_u32.to_le_bytes(), &[0xab; 100_000]].concat();
    let just_too_long = [&[0x6a, 0x4d][..], &9_997_u16.to_le_bytes(), &[0xab; 9_997]].concat();
    vec![
        ("OP_RETURN alone", vec![0x6a], "nulldata", None),
        ("OP_RETURN and data", vec![0x6a, 0x04, 0x00, 0xff, 0xfe, 0x0a], "nulldata", None),
        ("OP_RETURN and numbers", vec![0x6a, 0x00, 0x4f, 0x51, 0x60], "nulldata", None),
        ("OP_RETURN and OP_RESERVED", vec![0x6a, 0x50], "nulldata", None),
        ("OP_RETURN and an opcode", vec![0x6a, 0x61], "nonstandard", None),
        ("OP_RETURN and a truncated push", vec![0x6a, 0x4c], "nonstandard", None),
        ("OP_RETURN twice", vec![0x6a, 0x6a], "nonstandard", None),
        ("OP_RETURN not first", vec![0x51, 0x6a], "nonstandard", None),
        ("OP_RETURN of 100 kB", hundred_kb, "nulldata", None),
        ("OP_RETURN of 10,001 bytes", just_too_long, "nulldata", None),
    ]
}

/// Data behind its length, for up to 75 bytes.
fn push(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn short_key(prefix: u8, fill: u8) -> Vec<u8> {
    [&[prefix][..], &[fill; 32]].concat()
}

fn long_key(prefix: u8) -> Vec<u8> {
    [&[prefix][..], &[0x11; 64]].concat()
}

#[test]
fn every_kind_of_script_has_the_type_and_address_that_the_node_gives_it() {
    let kinds = kinds();
    let mut chain = sample::chain(102);
    let outputs = kinds.iter().enumerate().map(|(index, (_, bytes, ..))| {
        // Values differ; some of them, also of what nobody can spend, are zero.
        let value = if index % 5 == 0 { 0 } else { u64::try_from(index).unwrap() };
        pay(value, script(bytes))
    });
    let zoo = spend(&[chain.coinbase_outpoint(2)], outputs.collect());
    chain.mine_transactions(vec![zoo.clone()]);
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::of(chain.blocks());
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();

    let want = kinds.iter().enumerate().map(|(vout, (_, bytes, kind, address))| {
        let unspendable = if bytes.first() == Some(&0x6a) || bytes.len() > 10_000 { "t" } else { "f" };
        format!("{vout}\t{kind}\t{}\t{unspendable}\t{}", address.unwrap_or(NULL), bytes.len())
    });
    let got = satgres.copy(
        "select vout, type, address, is_unspendable, octet_length(script) from api.outputs \
         where tx_num = chain.first_tx_num(103) + 1 order by vout",
    );
    compare("the zoo", &got, want.collect::<Vec<_>>().into_iter());

    let scripts: Vec<_> = chain.rows().outputs.into_iter().map(|output| output.script).collect();
    assert_found(&satgres, &kinds, "outputs", &scripts);
    assert_eq!(
        satgres.value("select count(*) from chain.outputs where script_hash <> chain.script_hash(script)"),
        "0"
    );

    spend_all(&mut chain, &kinds, &zoo);
    blocks_dir.append(0, &records(&chain.blocks()[104..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    let spent: Vec<Kind> = kinds.into_iter().filter(|(_, bytes, ..)| is_spendable(bytes)).collect();
    let scripts: Vec<_> =
        chain.rows().inputs.into_iter().filter_map(|input| Some(input.prevout?.script)).collect();
    assert_found(&satgres, &spent, "inputs", &scripts);
}

fn is_spendable(bytes: &[u8]) -> bool {
    bytes.first() != Some(&0x6a) && bytes.len() <= 10_000
}

fn spend_all(chain: &mut Chain, kinds: &[Kind], zoo: &bitcoin::Transaction) {
    let spendable = (0..).zip(kinds).filter(|(_, (_, bytes, ..))| is_spendable(bytes));
    let outpoints: Vec<_> = spendable.map(|(vout, _)| outpoint(zoo, vout)).collect();
    assert_eq!((kinds.len(), outpoints.len()), (70, 60));
    chain.mine_transactions(vec![spend(&outpoints, vec![pay(0, script(&[0x51]))])]);
}

/// Panics unless a look-up by script hash finds every row of a table with each of these scripts.
fn assert_found(satgres: &Satgres, kinds: &[Kind], table: &str, scripts: &[Vec<u8>]) {
    let hashes: Vec<String> = kinds.iter().map(|(_, bytes, ..)| script_hash(bytes)).collect();
    let got = satgres.copy(&format!(
        "select count(tx_num) from unnest('{{{}}}'::uuid[]) with ordinality as kinds (script_hash, n) \
         left join chain.{table} using (script_hash) group by n order by n",
        hashes.join(",")
    ));
    let count = |(_, bytes, ..): &Kind| scripts.iter().filter(|script| *script == bytes).count().to_string();
    compare(table, &got, kinds.iter().map(count));
}

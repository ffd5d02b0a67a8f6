//! Every scriptPubKey in the shared chain data: type, address and the way back equal the node's answer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::postgres::{database, describe, shared_data};

/// scriptPubKey hex -> type and address, as the node printed them.
type Answers = BTreeMap<String, (String, Option<String>)>;

/// Collects every `scriptPubKey` object of a `getblock` answer, those of the outputs spent included.
fn collect(value: &Value, answers: &mut Answers) {
    match value {
        Value::Object(fields) => {
            if let (Some(hex), Some(kind)) = (fields.get("hex"), fields.get("type")) {
                let kind = kind.as_str().unwrap();
                // Nodes before 22.0 list the addresses of the keys in pubkey and multisig, which are not the script's.
                let address = match (fields.get("address"), fields.get("addresses")) {
                    (Some(address), _) => Some(address),
                    (None, Some(addresses)) if !["pubkey", "multisig"].contains(&kind) => addresses.get(0),
                    _ => None,
                };
                let address = address.map(|address| address.as_str().unwrap().to_owned());
                answers.insert(hex.as_str().unwrap().to_owned(), (kind.to_owned(), address));
            }
            fields.values().for_each(|value| collect(value, answers));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, answers)),
        _ => {}
    }
}

/// Asks the database about all of them at once; returns how many there are of each type.
async fn compare(database_name: &str, network: &str, answers: &Answers) -> BTreeMap<String, usize> {
    let client = database(database_name).await;
    let scripts: Vec<&String> = answers.keys().collect();
    let rows = client
        .query(
            "select hex, chain.script_type(s), chain.script_address(s, $2),
                 encode(chain.address_script(chain.script_address(s, $2)), 'hex')
             from unnest($1::text[]) with ordinality u (hex, n), decode(hex, 'hex') s order by n",
            &[&scripts, &network],
        )
        .await
        .unwrap_or_else(|error| panic!("{}", describe(&error)));
    assert_eq!(rows.len(), answers.len());
    let mut counts = BTreeMap::new();
    for row in rows {
        let (hex, kind): (&str, &str) = (row.get(0), row.get(1));
        let (expected_kind, expected_address) = &answers[hex];
        assert_eq!(kind, expected_kind, "{hex}");
        assert_eq!(row.get::<_, Option<&str>>(2), expected_address.as_deref(), "{hex}");
        assert_eq!(row.get::<_, Option<&str>>(3), expected_address.as_ref().map(|_| hex), "{hex}");
        *counts.entry(kind.to_owned()).or_insert(0) += 1;
    }
    counts
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
}

fn read_lines(path: &Path) -> Answers {
    let mut answers = Answers::new();
    for line in BufReader::new(GzDecoder::new(File::open(path).unwrap())).lines() {
        collect(&serde_json::from_str(&line.unwrap()).unwrap(), &mut answers);
    }
    answers
}

#[tokio::test]
async fn every_script_of_the_regtest_chain() {
    let Some(data) = shared_data("every script of the regtest chain") else { return };
    let answers = read_lines(&data.join("regtest/ground-truth/blocks-verbosity3.jsonl.gz"));
    let seen = compare("every_script_of_the_regtest_chain", "regtest", &answers).await;
    assert_eq!(
        seen,
        counts(&[
            ("anchor", 1),
            ("multisig", 2),
            ("nonstandard", 10),
            ("nulldata", 408),
            ("pubkey", 3),
            ("pubkeyhash", 1228),
            ("scripthash", 1265),
            ("witness_unknown", 2),
            ("witness_v0_keyhash", 1227),
            ("witness_v0_scripthash", 3),
            ("witness_v1_taproot", 1440)
        ])
    );
}

#[tokio::test]
async fn every_script_of_mainnet_0_to_4312() {
    let Some(data) = shared_data("every script of mainnet 0 to 4312") else { return };
    let answers = read_lines(&data.join("mainnet-0-4312/ground-truth/blocks-verbosity3.jsonl.gz"));
    let seen = compare("every_script_of_mainnet_0_to_4312", "main", &answers).await;
    assert_eq!(seen, counts(&[("pubkey", 4352), ("pubkeyhash", 7)]));
}

#[tokio::test]
async fn every_script_of_single_mainnet_blocks() {
    let Some(data) = shared_data("every script of single mainnet blocks") else { return };
    let mut answers = Answers::new();
    for entry in std::fs::read_dir(data.join("mainnet-blocks")).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().ends_with(".json.gz") {
            let mut text = String::new();
            GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
            collect(&serde_json::from_str(&text).unwrap(), &mut answers);
        }
    }
    let seen = compare("every_script_of_single_mainnet_blocks", "main", &answers).await;
    assert_eq!(
        seen,
        counts(&[
            ("multisig", 84),
            ("nonstandard", 2),
            ("nulldata", 70),
            ("pubkey", 4),
            ("pubkeyhash", 6969),
            ("scripthash", 1262),
            ("witness_v0_keyhash", 154),
            ("witness_v0_scripthash", 10)
        ])
    );
}

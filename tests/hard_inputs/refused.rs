//! Folders that `run` must refuse, and what it must say.

use std::fs;

use bitcoin::Network;

use crate::support::blkfiles::{BlkDir, MAINNET, records};
use crate::support::{Satgres, sample};

fn assert_says(output: &str, words: &[&str]) {
    for word in words {
        assert!(output.contains(word), "no word of {word:?} in:\n{output}");
    }
}

#[test]
fn a_missing_or_empty_blocks_folder_is_refused() {
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::new();
    let missing = blocks_dir.path().join("not-there");
    let output = satgres.run_expect_failure("regtest", &missing, &[]);
    assert_says(&output, &[missing.to_str().unwrap()]);

    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    assert_says(&output, &[blocks_dir.path().to_str().unwrap()]);

    // Undo files are no block files.
    fs::write(blocks_dir.path().join("rev00000.dat"), [0; 100]).unwrap();
    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    assert_says(&output, &[blocks_dir.path().to_str().unwrap()]);

    // Nor is a folder a file.
    fs::write(blocks_dir.file(0), [0; 1 << 16]).unwrap();
    let file = blocks_dir.file(0);
    let output = satgres.run_expect_failure("regtest", &file, &[]);
    assert_says(&output, &[file.to_str().unwrap()]);
}

#[test]
fn an_obfuscation_key_of_another_length_is_refused() {
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::of(sample::chain(102).blocks());
    for length in [7, 0, 9] {
        fs::write(blocks_dir.path().join("xor.dat"), vec![0; length]).unwrap();
        let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
        assert_says(&output, &["xor.dat", &format!("{length} bytes"), "8"]);
    }
}

#[test]
fn obfuscated_files_without_their_key_or_with_another_are_refused() {
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::with_key([0xb5, 0xdd, 0x10, 0x29, 0x5b, 0xf9, 0x19, 0x82]);
    blocks_dir.write(0, &records(sample::chain(102).blocks()));
    blocks_dir.preallocate(0, 1 << 16);
    let key = blocks_dir.path().join("xor.dat");
    fs::write(&key, [0x11, 0x83, 0xc0, 0x5e, 0x72, 0x0a, 0xee, 0x4d]).unwrap();
    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    assert_says(&output, &["no block of network regtest", "xor.dat"]);
    fs::remove_file(&key).unwrap();
    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    assert_says(&output, &["no block of network regtest", "xor.dat"]);
}

#[test]
fn a_pruned_folder_is_refused_with_the_first_height_that_is_there() {
    let satgres = Satgres::new();
    let chain = sample::chain(119);
    let blocks_dir = BlkDir::new();
    for (number, blocks) in (0..).zip(chain.blocks().chunks(20)) {
        blocks_dir.write(number, &records(blocks));
    }
    fs::remove_file(blocks_dir.file(0)).unwrap();
    fs::remove_file(blocks_dir.file(1)).unwrap();
    let output = satgres.run_expect_failure("regtest", blocks_dir.path(), &[]);
    assert_says(&output, &["pruned", "height 40"]);
}

#[test]
fn files_of_another_network_are_refused() {
    let satgres = Satgres::new();
    let regtest = BlkDir::of(sample::chain(102).blocks());
    let mainnet = BlkDir::of_network(MAINNET);
    mainnet.write(0, &records([&bitcoin::constants::genesis_block(Network::Bitcoin)]));

    let output = Satgres::new().run_expect_failure("main", regtest.path(), &[]);
    assert_says(&output, &["main", "regtest", "--network"]);
    let output = satgres.run_expect_failure("regtest", mainnet.path(), &[]);
    assert_says(&output, &["main", "regtest", "--network"]);
    // The mistake must not bind the data directory to the wrong network.
    satgres.run("main", mainnet.path(), &[]);
    let digest = satgres.digest();

    // A database holds one network for good.
    let output = satgres.run_expect_failure("regtest", regtest.path(), &[]);
    assert_says(&output, &["main", "regtest", "--data-dir"]);
    assert_eq!(satgres.digest(), digest);
}

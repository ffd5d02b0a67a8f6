//! Block files in every layout that a node leaves behind: the same chain must come out.

use std::fs;
use std::time::Duration;

use bitcoin::consensus::encode::serialize;

use crate::support::blkfiles::{BlkDir, Piece, REGTEST, record, records, shuffle};
use crate::support::blocks::Chain;
use crate::support::rows::assert_chain;
use crate::support::{Satgres, sample};

/// Obfuscation key with all bytes different and one zero.
const KEY: [u8; 8] = [0xb5, 0xdd, 0x00, 0x29, 0x5b, 0xf9, 0x19, 0x82];

#[test]
fn obfuscated_files_and_preallocated_tails_give_the_same_chain() {
    let chain = sample::chain(120);
    let satgres = Satgres::new();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    let digest = satgres.digest();

    let zero_key = BlkDir::with_key([0; 8]);
    zero_key.write(0, &records(chain.blocks()));
    let plain_tail = BlkDir::of(chain.blocks());
    plain_tail.preallocate(0, 1 << 20);
    for (what, blocks_dir) in [
        ("key", obfuscated(&chain, 0)),
        ("key and raw zeros", obfuscated(&chain, 1 << 20)),
        ("zero key", zero_key),
        ("zeros", plain_tail),
    ] {
        satgres.forget_chain();
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_eq!(satgres.digest(), digest, "{what}");
    }
}

/// Several files whose lengths are no multiples of the key's, so that its phase differs from record to record.
fn obfuscated(chain: &Chain, preallocated: u64) -> BlkDir {
    let blocks_dir = BlkDir::with_key(KEY);
    for (number, blocks) in (0..).zip(chain.blocks().chunks(50)) {
        blocks_dir.write(number, &records(blocks));
        blocks_dir.preallocate(number, preallocated);
    }
    blocks_dir
}

#[test]
fn any_order_of_the_records_gives_the_same_chain() {
    let chain = sample::chain(120);
    let satgres = Satgres::new();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &[]);
    let digest = satgres.digest();
    for (what, blocks_dir) in [
        ("children in earlier files", children_first(&chain)),
        ("shuffled", shuffled(&chain)),
        ("gaps in file numbers", gaps(&chain)),
        ("duplicates", duplicates(&chain)),
        ("garbage between records", garbage(&chain)),
        ("records that only seem to be", false_records(&chain)),
    ] {
        satgres.forget_chain();
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_eq!(satgres.digest(), digest, "{what}");
        assert_eq!(satgres.value("select count(*) from chain.stale_blocks"), "0", "{what}");
    }
    // The last one was the hardest.
    assert_chain(&satgres, &chain.rows());
}

fn children_first(chain: &Chain) -> BlkDir {
    let blocks_dir = BlkDir::new();
    for (number, blocks) in (0..).zip(chain.blocks().chunks(30).rev()) {
        blocks_dir.write(number, &records(blocks.iter().rev()));
    }
    blocks_dir
}

fn shuffled(chain: &Chain) -> BlkDir {
    let mut pieces = records(chain.blocks());
    shuffle(&mut pieces, 7);
    let blocks_dir = BlkDir::with_key(KEY);
    for (number, pieces) in (0..).zip(pieces.chunks(7)) {
        blocks_dir.write(number, pieces);
    }
    blocks_dir
}

fn gaps(chain: &Chain) -> BlkDir {
    let blocks_dir = BlkDir::new();
    for (number, blocks) in [2, 3, 17, 40_000, 99_999].into_iter().zip(chain.blocks().chunks(25)) {
        blocks_dir.write(number, &records(blocks));
    }
    blocks_dir
}

fn duplicates(chain: &Chain) -> BlkDir {
    let blocks_dir = BlkDir::new();
    blocks_dir.write(0, &records(&chain.blocks()[..60]));
    let twice = chain.blocks()[40..].iter().flat_map(|block| [block, block]);
    blocks_dir.write(1, &records(twice));
    blocks_dir
}

fn garbage(chain: &Chain) -> BlkDir {
    let blocks_dir = BlkDir::with_key(KEY);
    let mut pieces = vec![Piece::Raw(vec![0; 3])];
    for (index, block) in chain.blocks().iter().enumerate() {
        pieces.push(record(block));
        match index % 4 {
            0 => pieces.push(Piece::Raw(vec![0xda; index])),
            1 => pieces.push(Piece::Raw(vec![0xfa, 0xbf, 0xb5])),
            2 => pieces.push(Piece::Raw(vec![0; 5_000])),
            _ => {}
        }
    }
    blocks_dir.write(0, &pieces);
    blocks_dir
}

/// The magic followed by lengths that would swallow the true records behind it, and records that hold no block.
fn false_records(chain: &Chain) -> BlkDir {
    let false_start = |length: u32| Piece::Raw([[0xfa, 0xbf, 0xb5, 0xda], length.to_le_bytes()].concat());
    let mut pieces = records(&chain.blocks()[..30]);
    pieces.push(false_start(u32::MAX));
    pieces.extend(records(&chain.blocks()[30..60]));
    pieces.push(false_start(4_000));
    pieces.extend(records(&chain.blocks()[60..90]));
    pieces.push(false_start(0));
    pieces.push(Piece::Record(vec![0x5a; 300]));
    pieces.push(Piece::Record(vec![0x01]));
    pieces.extend(records(&chain.blocks()[90..]));
    let blocks_dir = BlkDir::new();
    blocks_dir.write(0, &pieces);
    blocks_dir
}

#[test]
fn a_cut_last_record_is_not_yet_written() {
    let chain = sample::chain(104);
    let satgres = Satgres::new();
    let blocks_dir = BlkDir::with_key(KEY);
    blocks_dir.write(0, &records(&chain.blocks()[..50]));
    blocks_dir.write(1, &records(&chain.blocks()[50..=100]));
    let mut offset = fs::metadata(blocks_dir.file(1)).unwrap().len();
    // In the middle of the body, of the header, and of the length.
    for (height, bytes_there) in [(101, 150), (102, 8 + 40), (103, 6)] {
        let bytes = record_bytes(&chain, height);
        blocks_dir.write_at(1, offset, &bytes[..bytes_there]);
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_eq!(tip_height(&satgres), height - 1);

        blocks_dir.write_at(1, offset, &bytes);
        offset += u64::try_from(bytes.len()).unwrap();
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_eq!(tip_height(&satgres), height);
    }
    // In a preallocated file the part not yet written is there, as raw zeros.
    let bytes = record_bytes(&chain, 104);
    for bytes_there in [8 + 80, 200] {
        blocks_dir.write_at(1, offset, &bytes[..bytes_there]);
        blocks_dir.preallocate(1, 1 << 16);
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_eq!(tip_height(&satgres), 103);
        satgres.forget_chain();
        satgres.run("regtest", blocks_dir.path(), &[]);
        assert_eq!(tip_height(&satgres), 103);
    }
    blocks_dir.write_at(1, offset, &bytes);
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
    let digest = satgres.digest();

    satgres.forget_chain();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_eq!(satgres.digest(), digest, "grown in steps, and at once");
}

#[test]
fn threads_batches_and_segments_change_nothing() {
    let chain = sample::chain(130);
    let blocks_dir = BlkDir::of(chain.blocks());
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    let digest = satgres.digest();
    for options in [
        ["--threads", "1"].as_slice(),
        &["--threads", "8"],
        &["--batch-bytes", "1"],
        &["--batch-bytes", "64MiB"],
        &["--threads", "8", "--batch-bytes", "1", "--segment-bytes", "4KiB"],
    ] {
        satgres.forget_chain();
        satgres.run("regtest", blocks_dir.path(), options);
        assert_eq!(satgres.digest(), digest, "{options:?}");
    }
    satgres.verify();

    // As many segments as blocks.
    let chain = Chain::with_blocks(12);
    satgres.forget_chain();
    satgres.run("regtest", BlkDir::of(chain.blocks()).path(), &["--segment-bytes", "0"]);
    assert_chain(&satgres, &chain.rows());
    assert_eq!(satgres.value("select count(*) from ops.segments where state = 'attached'"), "13");
}

#[test]
fn a_second_run_changes_nothing_and_is_quick() {
    const STATE: &str =
        "select segment_id, height_first, height_last, state, attached_at from ops.segments order by 1";
    let chain = sample::chain(120);
    let blocks_dir = BlkDir::of(chain.blocks());
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    let (digest, state) = (satgres.digest(), satgres.copy(STATE));

    let finished = satgres.run("regtest", blocks_dir.path(), &[]);
    assert!(finished.elapsed < Duration::from_secs(5), "{:?}", finished.elapsed);
    for work in ["PROFILE: Loaded segment", "PROFILE: Built index", "PROFILE: Analyzed tables"] {
        assert!(!finished.output().contains(work), "{}", finished.output());
    }
    assert_eq!(satgres.digest(), digest);
    assert_eq!(satgres.copy(STATE), state);

    // Also when the server is down, as after a restart of the machine.
    assert!(satgres.command(&["pg", "stop"]).status.success());
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_eq!(satgres.digest(), digest);
    assert_eq!(satgres.copy(STATE), state);

    // And after the chain has grown.
    let mut longer = chain.clone();
    (0..5).for_each(|_| sample::extend(&mut longer));
    blocks_dir.append(0, &records(&longer.blocks()[121..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &longer.rows());
    satgres.verify();
}

#[test]
fn blocks_that_vanish_from_the_files_stay() {
    let mut chain = sample::chain(120);
    let blocks_dir = BlkDir::new();
    for (number, blocks) in (0..).zip(chain.blocks().chunks(40)) {
        blocks_dir.write(number, &records(blocks));
    }
    let satgres = Satgres::new();
    satgres.run("regtest", blocks_dir.path(), &[]);
    let digest = satgres.digest();

    // The newest files are gone, as in an older copy of the folder: what we have weighs more.
    let older = BlkDir::of(&chain.blocks()[..100]);
    satgres.run("regtest", older.path(), &[]);
    assert_eq!(tip_height(&satgres), 120);
    assert_eq!(satgres.digest(), digest);

    // Another chain with less work is no reason either.
    let mut lighter = chain.fork(50, 1);
    lighter.mine_empty(60);
    satgres.run("regtest", BlkDir::of(lighter.blocks()).path(), &[]);
    assert_eq!(tip_height(&satgres), 120);
    assert_eq!(satgres.digest(), digest);
    assert_eq!(satgres.value("select count(*) from ops.reorgs"), "0");

    // The whole folder goes on where it was.
    sample::extend(&mut chain);
    blocks_dir.append(3, &records(&chain.blocks()[121..]));
    satgres.run("regtest", blocks_dir.path(), &[]);
    assert_chain(&satgres, &chain.rows());
    satgres.verify();
}

fn tip_height(satgres: &Satgres) -> usize {
    satgres.value("select max(height) from chain.blocks").parse().unwrap()
}

/// Magic, length and block, plain.
fn record_bytes(chain: &Chain, height: usize) -> Vec<u8> {
    let block = serialize(&chain.blocks()[height]);
    let length = u32::try_from(block.len()).unwrap().to_le_bytes();
    [REGTEST.as_slice(), &length, &block].concat()
}

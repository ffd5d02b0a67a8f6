//! Any bytes as a block file: records are found where they are, nothing panics, and no length is believed.

#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use satgres::network::Network;
use satgres::source::blk::BlockFiles;
use satgres::source::scan::{Trust, scan_file};

/// Magic and length before each block.
const RECORD_HEAD_BYTES: u64 = 8;

fn dir() -> &'static PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        // scripts/fuzz has it in memory, and removes it.
        tempfile::Builder::new().prefix("satgres-fuzz").tempdir().expect("a folder").keep()
    })
}

fuzz_target!(|bytes: &[u8]| {
    // The first byte says whether the file is xored, and by what.
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    // Regtest's magic before every "record": four bytes that the fuzzer would have to find by chance.
    let mut file = Vec::with_capacity(bytes.len() + 64);
    for (index, part) in bytes.split(|&byte| byte == 0xfa).enumerate() {
        if index > 0 {
            file.extend_from_slice(&[0xfa, 0xbf, 0xb5, 0xda]);
        }
        file.extend_from_slice(part);
    }
    let key: [u8; 8] = if choice & 1 == 0 { [0; 8] } else { [choice, 3, 5, 7, 11, 13, 17, 19] };
    let stored: Vec<u8> = file.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
    let dir = dir();
    std::fs::write(dir.join("xor.dat"), key).expect("the folder is ours");
    std::fs::write(dir.join("blk00000.dat"), stored).expect("the folder is ours");

    let files = BlockFiles::open(dir, Network::Regtest).expect("a key and a file");
    let block_file = files.open_file(0).expect("the file just written");
    let scan = scan_file(&block_file, Network::Regtest).expect("it can be read");
    let end = file.len() as u64;
    let mut before = None;
    for record in &scan.records {
        assert!(before.is_none_or(|before| before < record.offset), "by offset, each once");
        before = Some(record.offset);
        assert!(record.offset >= RECORD_HEAD_BYTES && record.offset + 80 <= end, "its header is in the file");
        let magic = (record.offset - RECORD_HEAD_BYTES) as usize;
        assert_eq!(file[magic..magic + 4], [0xfa, 0xbf, 0xb5, 0xda]);
        let header = &file[record.offset as usize..record.offset as usize + 80];
        assert_eq!(record.hash, satgres::chain::hash::sha256d(header));
        if record.trust == Trust::Whole {
            assert!(record.offset + u64::from(record.len) <= end, "a whole record is in the file");
        }
    }
    assert!(scan.breaks.iter().all(|at| *at <= end));
});

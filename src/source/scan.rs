//! Finds the block records of one file, by their headers alone.
//!
//! Records normally follow each other; then one small read a block is enough. Where the chain of records breaks
//! (garbage, a damaged length), the scan looks for the next magic, and also inside the record before the break, whose
//! length may have swallowed others. What it finds in there may be bytes that somebody put into a script: it is marked
//! doubtful and only used where no other copy of the block is whole. A header counts only with its proof of work.

use super::blk::{BlockFile, RECORD_HEAD_BYTES, SourceError};
use crate::chain::hash::Hash32;
use crate::chain::header::{HEADER_BYTES, Header, checked_work};
use crate::network::Network;

/// Longest block that a record may hold, bytes (`MAX_BLOCK_SERIALIZED_SIZE` in Bitcoin Core).
pub const BLOCK_BYTES_MAX: u64 = 4_000_000;
/// Shortest block: a header and the count of its transactions.
const BLOCK_BYTES_MIN: u64 = HEADER_BYTES as u64 + 1;
const PROBE_BYTES: u64 = RECORD_HEAD_BYTES + HEADER_BYTES as u64;
const SEARCH_BYTES: u64 = 1 << 20;

/// How far a record can be trusted before its block is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// It stands in an unbroken chain of records.
    Whole,
    /// It was found behind a break, or inside another record.
    Doubtful,
    /// Its length is impossible, or runs past the end of the file.
    Cut,
}

/// A block record: where it is, and what its header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Block hash, internal byte order.
    pub hash: Hash32,
    /// Hash of the block before, internal byte order.
    pub prev_hash: Hash32,
    /// Work of this block alone.
    pub work: u128,
    /// Time in the header, seconds since 1970.
    pub time: u32,
    /// Target in the header, compact form.
    pub bits: u32,
    /// Offset of the header in the file, bytes.
    pub offset: u64,
    /// Length of the block as the record says, bytes.
    pub len: u32,
    /// How far it can be trusted.
    pub trust: Trust,
}

/// What one file holds.
#[derive(Debug, Default)]
pub struct FileScan {
    /// Records, by offset.
    pub records: Vec<Record>,
    /// Offsets at which the chain of records broke, bytes.
    pub breaks: Vec<u64>,
    /// Another network whose magic begins the file.
    pub other_network: Option<Network>,
    /// Whether the file could not be read.
    pub is_unread: bool,
}

/// Scans one file.
///
/// # Errors
/// [`SourceError::Read`]: what the operating system says; nothing in the file's bytes is an error.
pub fn scan_file(file: &BlockFile<'_>, network: Network) -> Result<FileScan, SourceError> {
    let mut scan = Scanner { window: Window::new(file), network, found: FileScan::default() };
    scan.run()?;
    let mut found = scan.found;
    found.records.sort_by_key(|record| record.offset);
    Ok(found)
}

struct Scanner<'a> {
    window: Window<'a>,
    network: Network,
    found: FileScan,
}

/// What stands at an offset.
enum Probe {
    Record(Record),
    /// The file's tail, preallocated and not written yet.
    Zeros,
    /// The magic without a header that proves its work.
    BadHeader,
    /// The file ends before the header does.
    End,
    Other,
}

impl Scanner<'_> {
    fn run(&mut self) -> Result<(), SourceError> {
        let end = self.window.file.len();
        let mut at = 0;
        let mut before: Option<u64> = None;
        while at + RECORD_HEAD_BYTES <= end {
            match self.probe(at)? {
                Probe::Record(record) => {
                    let is_cut = record.trust == Trust::Cut;
                    let after = record.offset + u64::from(record.len);
                    self.found.records.push(record);
                    if is_cut {
                        before = None;
                        at = self.find_magic(at + PROBE_BYTES, end)?;
                    } else {
                        before = Some(at);
                        at = after;
                    }
                }
                Probe::End => {
                    break;
                }
                Probe::Zeros => {
                    before = None;
                    at = self.skip_zeros(at)?;
                }
                Probe::BadHeader | Probe::Other => {
                    if at == 0 {
                        self.found.other_network = self.network_at(0)?;
                    }
                    self.found.breaks.push(at);
                    if let Some(record_at) = before.take() {
                        self.search_inside(record_at + PROBE_BYTES, at)?;
                    }
                    at = self.find_magic(at + 1, end)?;
                }
            }
        }
        Ok(())
    }

    /// Looks for records that a wrong length swallowed.
    fn search_inside(&mut self, from: u64, to: u64) -> Result<(), SourceError> {
        if let Some(last) = self.found.records.last_mut() {
            last.trust = last.trust.max(Trust::Doubtful);
        }
        let mut at = self.find_magic(from, to)?;
        while at < to {
            if let Probe::Record(record) = self.probe(at)? {
                self.found.records.push(Record { trust: record.trust.max(Trust::Doubtful), ..record });
            }
            at = self.find_magic(at + 1, to)?;
        }
        Ok(())
    }

    fn probe(&mut self, at: u64) -> Result<Probe, SourceError> {
        let end = self.window.file.len();
        let magic = self.network.magic();
        let bytes = self.window.bytes(at, PROBE_BYTES.min(end - at))?;
        if bytes[..4] != magic {
            let is_zero = self.window.is_raw_zero(at, PROBE_BYTES.min(end - at));
            return Ok(if is_zero { Probe::Zeros } else { Probe::Other });
        }
        let Some(header) = bytes.get(8..PROBE_BYTES as usize) else {
            return Ok(Probe::End);
        };
        let len = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
        let header: [u8; HEADER_BYTES] = header.try_into().expect("80 bytes");
        let Some((hash, work)) = checked_work(&header, self.network) else {
            return Ok(Probe::BadHeader);
        };
        let offset = at + RECORD_HEAD_BYTES;
        let is_whole =
            (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&u64::from(len)) && offset + u64::from(len) <= end;
        self.window.expect_next(len);
        let header = Header::parse(&header);
        Ok(Probe::Record(Record {
            hash,
            prev_hash: header.prev_hash,
            work,
            time: header.time,
            bits: header.bits,
            offset,
            len,
            trust: if is_whole { Trust::Whole } else { Trust::Cut },
        }))
    }

    /// Returns the offset of the next magic in `from..to`, or `to`.
    fn find_magic(&mut self, from: u64, to: u64) -> Result<u64, SourceError> {
        let magic = self.network.magic();
        let mut at = from;
        while at + 4 <= to {
            let len = SEARCH_BYTES.min(to - at);
            let bytes = self.window.bytes(at, len)?;
            if let Some(found) = bytes.windows(4).position(|window| window == magic) {
                return Ok(at + found as u64);
            }
            at += len - 3;
        }
        Ok(to)
    }

    /// Returns the offset at which something else than raw zeros stands, a little early as a zero may be coded data.
    fn skip_zeros(&mut self, from: u64) -> Result<u64, SourceError> {
        let end = self.window.file.len();
        let mut at = from;
        while at < end {
            let len = SEARCH_BYTES.min(end - at);
            self.window.bytes(at, len)?;
            if let Some(other) = self.window.raw(at, len).iter().position(|&byte| byte != 0) {
                let other = at + other as u64;
                return self.find_magic((other.saturating_sub(3)).max(from + 1), end);
            }
            at += len;
        }
        Ok(end)
    }

    fn network_at(&mut self, at: u64) -> Result<Option<Network>, SourceError> {
        let bytes = self.window.bytes(at, 4)?;
        Ok(Network::ALL.into_iter().find(|network| bytes == network.magic()))
    }
}

/// A window of a file, raw and decoded: large while blocks are small, so that a read serves many.
struct Window<'a> {
    file: &'a BlockFile<'a>,
    start: u64,
    raw: Vec<u8>,
    plain: Vec<u8>,
    ahead: u64,
}

impl<'a> Window<'a> {
    const SMALL_BLOCK_BYTES: u32 = 16 << 10;
    const AHEAD_BYTES: u64 = 64 << 10;

    fn new(file: &'a BlockFile<'a>) -> Self {
        Window { file, start: 0, raw: Vec::new(), plain: Vec::new(), ahead: Self::AHEAD_BYTES }
    }

    fn expect_next(&mut self, block_len: u32) {
        self.ahead = if block_len < Self::SMALL_BLOCK_BYTES { Self::AHEAD_BYTES } else { PROBE_BYTES };
    }

    /// Returns decoded bytes; the caller keeps `offset + len` within the file.
    fn bytes(&mut self, offset: u64, len: u64) -> Result<&[u8], SourceError> {
        if offset < self.start || offset + len > self.start + self.plain.len() as u64 {
            let want = len.max(self.ahead).min(self.file.len() - offset) as usize;
            self.raw.clear();
            self.raw.resize(want, 0);
            self.file.read_raw(offset, &mut self.raw)?;
            self.plain.clear();
            self.plain.extend_from_slice(&self.raw);
            self.file.decode(offset, &mut self.plain);
            self.start = offset;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.plain[from..from + len as usize])
    }

    /// Returns the raw bytes of what [`Window::bytes`] gave last.
    fn raw(&self, offset: u64, len: u64) -> &[u8] {
        let from = (offset - self.start) as usize;
        &self.raw[from..from + len as usize]
    }

    fn is_raw_zero(&self, offset: u64, len: u64) -> bool {
        self.raw(offset, len).iter().all(|&byte| byte == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::source::BlockFiles;

    const KEY: [u8; 8] = [0x5a, 0, 0x11, 0xc3, 0xfa, 0x91, 0x07, 0x66];

    /// A regtest block with a mined header and a body of `len` bytes of `fill`; the scan does not read bodies.
    fn block(seed: u8, len: usize, fill: u8) -> Vec<u8> {
        let mut bytes = Network::Regtest.genesis_block()[..HEADER_BYTES].to_vec();
        bytes[4] = seed;
        while checked_work(&bytes[..].try_into().unwrap(), Network::Regtest).is_none() {
            bytes[76] += 1;
        }
        bytes.resize(HEADER_BYTES + len, fill);
        bytes
    }

    fn record(block: &[u8], claimed: u32) -> Vec<u8> {
        let mut bytes = Network::Regtest.magic().to_vec();
        bytes.extend_from_slice(&claimed.to_le_bytes());
        bytes.extend_from_slice(block);
        bytes
    }

    fn whole(block: &[u8]) -> Vec<u8> {
        record(block, block.len() as u32)
    }

    fn scan(bytes: &[u8], xor: bool, zero_tail: usize) -> FileScan {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = bytes.to_vec();
        if xor {
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= KEY[at % 8]);
            fs::write(folder.path().join("xor.dat"), KEY).unwrap();
        }
        bytes.resize(bytes.len() + zero_tail, 0);
        fs::write(folder.path().join("blk00000.dat"), bytes).unwrap();
        let files = BlockFiles::open(folder.path(), Network::Regtest).unwrap();
        scan_file(&files.open_file(0).unwrap(), Network::Regtest).unwrap()
    }

    fn seeds(scan: &FileScan) -> Vec<(u8, Trust)> {
        scan.records.iter().map(|record| (record.prev_hash[0], record.trust)).collect()
    }

    #[test]
    fn every_block_once_and_the_zero_tail_ignored_xored_or_not() {
        let blocks = [block(1, 1, 9), block(2, 100_000, 9), block(3, 300, 9)];
        let bytes: Vec<u8> = blocks.iter().flat_map(|block| whole(block)).collect();
        for xor in [false, true] {
            for zero_tail in [0, 1, 7, 8, 88, 3 << 20] {
                let scan = scan(&bytes, xor, zero_tail);
                assert_eq!(seeds(&scan), [(1, Trust::Whole), (2, Trust::Whole), (3, Trust::Whole)]);
                assert!(scan.breaks.is_empty(), "{:?}", scan.breaks);
                assert_eq!(scan.records[1].len, 100_080);
            }
        }
    }

    #[test]
    fn garbage_between_records_is_stepped_over() {
        for garbage in [1, 5, 200, 70_000] {
            let bytes = [whole(&block(1, 50, 9)), vec![0xee; garbage], whole(&block(2, 50, 9))].concat();
            assert_eq!(seeds(&scan(&bytes, true, 0)), [(1, Trust::Doubtful), (2, Trust::Whole)], "{garbage}");
        }
    }

    #[test]
    fn a_length_too_long_swallows_nothing() {
        let bytes = [
            record(&block(1, 50, 9), 300),
            whole(&block(2, 50, 9)),
            whole(&block(3, 50, 9)),
            whole(&block(4, 50, 9)),
        ]
        .concat();
        let found = scan(&bytes, false, 100);
        let mut found: Vec<u8> = found.records.iter().map(|record| record.prev_hash[0]).collect();
        found.dedup();
        assert_eq!(found, [1, 2, 3, 4]);
    }

    #[test]
    fn lengths_too_short_huge_or_past_the_end_keep_the_header() {
        let second = whole(&block(2, 50, 9));
        let bytes = [record(&block(1, 500, 9), 100), second.clone()].concat();
        assert_eq!(seeds(&scan(&bytes, true, 0)), [(1, Trust::Doubtful), (2, Trust::Whole)]);
        for claimed in [0, 80, 4_000_001, u32::MAX] {
            let bytes = [record(&block(1, 500, 9), claimed), second.clone()].concat();
            assert_eq!(seeds(&scan(&bytes, true, 0)), [(1, Trust::Cut), (2, Trust::Whole)], "{claimed}");
        }
        let cut = &whole(&block(3, 500, 9))[..300];
        assert_eq!(seeds(&scan(&[&second, cut].concat(), false, 0)), [(2, Trust::Whole), (3, Trust::Cut)]);
        assert_eq!(seeds(&scan(&[&second, &cut[..40]].concat(), false, 0)), [(2, Trust::Whole)]);
    }

    #[test]
    fn a_record_inside_a_body_is_not_seen_while_the_chain_of_records_holds() {
        let mut outer = block(1, 50, 9);
        outer.extend(whole(&block(7, 50, 9)));
        let bytes = [whole(&outer), whole(&block(2, 50, 9))].concat();
        assert_eq!(seeds(&scan(&bytes, false, 10)), [(1, Trust::Whole), (2, Trust::Whole)]);
    }

    #[test]
    fn a_header_without_work_is_no_record() {
        let mut bad = block(1, 50, 9);
        while checked_work(&bad[..80].try_into().unwrap(), Network::Regtest).is_some() {
            bad[76] += 1;
        }
        let bytes = [whole(&bad), whole(&block(2, 50, 9))].concat();
        let scan = scan(&bytes, false, 0);
        assert_eq!(seeds(&scan), [(2, Trust::Whole)]);
        assert_eq!(scan.breaks, [0]);
    }

    #[test]
    fn files_of_another_network_are_told() {
        let bytes = [Network::Main.magic().to_vec(), vec![1; 200]].concat();
        assert_eq!(scan(&bytes, true, 0).other_network, Some(Network::Main));
        assert_eq!(scan(&[], false, 5_000).other_network, None);
    }
}

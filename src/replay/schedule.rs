//! What the replay is about to do: segments of heights, and the batches that fill them.
//!
//! In: the heights that are missing and the bytes of each block. Out: bounds that are fixed before the first row is
//! written. Pure, so that the same chain is cut alike on every run.

use std::ops::RangeInclusive;

/// A segment to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number, part of its partitions' names.
    pub id: u32,
    /// Its heights.
    pub heights: RangeInclusive<u32>,
    /// Bytes of its blocks, as their records say.
    pub block_bytes: u64,
}

/// Consecutive blocks of one segment, read and parsed by one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Place in the order of batches, from 0.
    pub seq: u64,
    /// Index of the segment in the list.
    pub segment: usize,
    /// Its heights.
    pub heights: RangeInclusive<u32>,
    /// Bytes of its blocks, as their records say.
    pub block_bytes: u64,
}

/// Most blocks in a batch: early blocks are tiny, and progress should still be steady.
const BATCH_BLOCKS_MAX: u32 = 2_000;

/// Cuts heights into segments of about `segment_bytes` bytes of blocks, at least one block each.
pub fn segments(
    heights: RangeInclusive<u32>,
    id_first: u32,
    segment_bytes: u64,
    block_bytes: impl Fn(u32) -> u64,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for height in heights {
        let bytes = block_bytes(height);
        match segments.last_mut() {
            Some(last) if last.block_bytes + bytes <= segment_bytes => {
                last.heights = *last.heights.start()..=height;
                last.block_bytes += bytes;
            }
            _ => segments.push(Segment {
                id: id_first + segments.len() as u32,
                heights: height..=height,
                block_bytes: bytes,
            }),
        }
    }
    segments
}

/// Hands out the batches of a list of segments, in order.
#[derive(Debug)]
pub struct Batches {
    segments: Vec<Segment>,
    segment: usize,
    height_next: u32,
    seq_next: u64,
    batch_bytes: u64,
}

impl Batches {
    /// Begins at the first height of the first segment; a batch holds about `batch_bytes` bytes of blocks.
    pub fn new(segments: Vec<Segment>, batch_bytes: u64) -> Self {
        let height_next = segments.first().map_or(0, |segment| *segment.heights.start());
        Batches { segments, segment: 0, height_next, seq_next: 0, batch_bytes }
    }

    /// Returns the first height of the next batch.
    pub fn height_next(&self) -> Option<u32> {
        self.segments.get(self.segment).map(|_| self.height_next)
    }

    /// Returns the next batch; it never crosses the end of a segment.
    pub fn next(&mut self, block_bytes: impl Fn(u32) -> u64) -> Option<BatchPlan> {
        let segment = self.segments.get(self.segment)?;
        let first = self.height_next;
        let mut last = first;
        let mut bytes = block_bytes(first);
        while last < *segment.heights.end() && last - first + 1 < BATCH_BLOCKS_MAX {
            let more = block_bytes(last + 1);
            if bytes + more > self.batch_bytes {
                break;
            }
            bytes += more;
            last += 1;
        }
        let plan = BatchPlan {
            seq: self.seq_next,
            segment: self.segment,
            heights: first..=last,
            block_bytes: bytes,
        };
        self.seq_next += 1;
        self.height_next = last + 1;
        if last == *segment.heights.end() {
            self.segment += 1;
        }
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_adjacent_and_hold_at_least_one_block() {
        let sizes = [10, 10, 10, 500, 10, 90, 1];
        let cut = segments(0..=6, 4, 100, |height| sizes[height as usize]);
        let heights: Vec<_> = cut.iter().map(|segment| (segment.id, segment.heights.clone())).collect();
        assert_eq!(heights, [(4, 0..=2), (5, 3..=3), (6, 4..=5), (7, 6..=6)]);
        assert_eq!(cut[2].block_bytes, 100);
    }

    #[test]
    fn batches_cover_every_height_once_and_stay_in_their_segment() {
        let sizes = |height: u32| u64::from(height % 7) * 10 + 1;
        let cut = segments(3..=9_000, 0, 40_000, sizes);
        let mut batches = Batches::new(cut.clone(), 1_000);
        let mut next = 3;
        let mut seq = 0;
        while let Some(batch) = batches.next(sizes) {
            assert_eq!((*batch.heights.start(), batch.seq), (next, seq));
            assert!(cut[batch.segment].heights.contains(batch.heights.end()));
            assert!(batch.block_bytes <= 1_000);
            next = batch.heights.end() + 1;
            seq += 1;
        }
        assert_eq!(next, 9_001);
    }

    #[test]
    fn a_batch_size_of_one_byte_gives_single_blocks() {
        let cut = segments(0..=5, 0, 1 << 40, |_| 300);
        let mut batches = Batches::new(cut, 1);
        let mut count = 0;
        while batches.next(|_| 300).is_some() {
            count += 1;
        }
        assert_eq!(count, 6);
    }
}

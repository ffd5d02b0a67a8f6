//! Sorts more records than memory should hold, and merges sorted sources.
//!
//! In: records of `N` words in any order. Out: the same records in ascending order, word by word. Full buffers are
//! sorted and written to unnamed files; at the end all are merged in one sequential pass. Called for the waiting
//! spends (by fingerprint), for their coins (back in chain order) and, merging only, for the coin runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::Seek;
use std::path::{Path, PathBuf};

use super::sealed::{CoinFileError, Seal, SealedReader, SealedWriter, system};

/// Collects records.
#[derive(Debug)]
pub(super) struct Sorter<const N: usize> {
    path: PathBuf,
    records: Vec<[u64; N]>,
    records_max: usize,
    chunks: Vec<(File, Seal)>,
    count: u64,
    chunk_bytes: u64,
}

impl<const N: usize> Sorter<N> {
    /// Makes a sorter that holds at most `bytes_max` bytes of records in memory. `path` is the name that its files
    /// have while they are made.
    pub(super) fn new(path: PathBuf, bytes_max: u64) -> Self {
        let records_max = (bytes_max as usize / (N * 8)).max(1);
        Sorter { path, records: Vec::new(), records_max, chunks: Vec::new(), count: 0, chunk_bytes: 0 }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    #[inline]
    pub(super) fn push(&mut self, record: [u64; N]) -> Result<(), CoinFileError> {
        if self.records.len() == self.records_max {
            self.write_chunk()?;
        }
        self.records.push(record);
        self.count += 1;
        Ok(())
    }

    /// Returns the number of records.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of files.
    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the bytes written to files.
    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Ends collecting.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn finish(mut self) -> Result<Merged<N>, CoinFileError> {
        self.records.sort_unstable();
        let mut sources = vec![Source::Memory(std::mem::take(&mut self.records).into_iter())];
        for (mut file, seal) in self.chunks {
            file.rewind().map_err(system("rewind", &self.path))?;
            sources.push(Source::File(SealedReader::new(file, &self.path, SEED, Some(seal))));
        }
        Merged::new(sources)
    }

    #[cold]
    fn write_chunk(&mut self) -> Result<(), CoinFileError> {
        self.records.sort_unstable();
        let mut writer = SealedWriter::create_unnamed(&self.path, SEED)?;
        for record in self.records.drain(..) {
            writer.write_words(&record)?;
        }
        let (file, seal) = writer.finish()?;
        self.chunk_bytes += seal.file_bytes;
        self.chunks.push((file, seal));
        Ok(())
    }
}

/// Unnamed files live and die with the process: their checksums need no key.
const SEED: u64 = 0;

/// Where sorted records come from.
#[derive(Debug)]
pub(super) enum Source<const N: usize> {
    /// Memory.
    Memory(std::vec::IntoIter<[u64; N]>),
    /// A file.
    File(SealedReader),
}

impl<const N: usize> Source<N> {
    #[inline]
    fn next(&mut self) -> Result<Option<[u64; N]>, CoinFileError> {
        match self {
            Source::Memory(records) => Ok(records.next()),
            Source::File(reader) => reader.next_words(),
        }
    }
}

/// Sorted sources as one.
#[derive(Debug)]
pub(super) struct Merged<const N: usize> {
    sources: Vec<Source<N>>,
    heap: BinaryHeap<Reverse<([u64; N], usize)>>,
}

impl<const N: usize> Merged<N> {
    /// Begins reading.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn new(mut sources: Vec<Source<N>>) -> Result<Self, CoinFileError> {
        let mut heap = BinaryHeap::with_capacity(sources.len());
        for (index, source) in sources.iter_mut().enumerate() {
            if let Some(record) = source.next()? {
                heap.push(Reverse((record, index)));
            }
        }
        Ok(Merged { sources, heap })
    }

    /// Returns the next record without taking it.
    #[inline]
    pub(super) fn peek(&self) -> Option<&[u64; N]> {
        self.heap.peek().map(|Reverse((record, _))| record)
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// [`CoinFileError`], also for a source that is not sorted.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<[u64; N]>, CoinFileError> {
        let Some(Reverse((record, index))) = self.heap.peek().copied() else { return Ok(None) };
        let following = self.sources[index].next()?;
        if following.is_some_and(|following| following < record) {
            return Err(self.unsorted(index));
        }
        let top = self.heap.peek_mut().expect("it was just peeked at");
        match following {
            Some(following) => *{ top } = Reverse((following, index)),
            None => drop(PeekMut::pop(top)),
        }
        Ok(Some(record))
    }

    /// Returns the bytes read from files so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| match source {
                Source::Memory(_) => 0,
                Source::File(reader) => reader.bytes(),
            })
            .sum()
    }

    fn unsorted(&self, index: usize) -> CoinFileError {
        match &self.sources[index] {
            Source::File(reader) => reader.damaged("its records are not sorted"),
            Source::Memory(_) => unreachable!("memory is sorted before it is merged"),
        }
    }
}

/// Opens a named file of sorted records as a source.
///
/// # Errors
/// [`CoinFileError`].
pub(super) fn open_source<const N: usize>(
    path: &Path,
    seed: u64,
    seal: Seal,
) -> Result<Source<N>, CoinFileError> {
    Ok(Source::File(SealedReader::open(path, seed, Some(seal))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_sorted_from_memory_and_files() {
        let dir = tempfile::tempdir().unwrap();
        for (count, bytes_max, chunk_count) in
            [(0, 1_000, 0), (40, 1_000, 0), (1_000, 1_000, 24), (1_000, 0, 999)]
        {
            let mut sorter = Sorter::<3>::new(dir.path().join("sort"), bytes_max);
            for at in 0..count {
                sorter.push([(at * 7_919) % 1_009, at, 5]).unwrap();
            }
            assert_eq!((sorter.count(), sorter.chunk_count()), (count, chunk_count));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
            let mut merged = sorter.finish().unwrap();
            let mut expected: Vec<[u64; 3]> = (0..count).map(|at| [(at * 7_919) % 1_009, at, 5]).collect();
            expected.sort_unstable();
            for record in expected {
                assert_eq!(merged.peek(), Some(&record));
                assert_eq!(merged.next().unwrap(), Some(record));
            }
            assert_eq!(merged.next().unwrap(), None);
        }
    }
}

//! Coin runs: files of sorted entries that hold the coins which the budget has no place for.
//!
//! In: entries that fell off the belt, in any order. Out: files, and all their entries as one sorted source for the
//! merge. Entries are collected in a buffer, so that small evictions do not make small files; when there are too many
//! files the smallest are joined. An outpoint may stand in several runs (BIP30 twins): only the merge settles that.
//! A file is never changed; files that neither the set nor a kept checkpoint refers to are removed by `remove_others`.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::entry::{ENTRY_BYTES, Entry};
use super::sealed::{CoinFileError, Seal, SealedWriter, checksum, system};
use super::sort::{Merged, Source, open_source};

/// One file of sorted entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Its number: part of its name, and of its checksums' key.
    pub(super) id: u64,
    /// Entries in it.
    pub(super) coin_count: u64,
    /// What the file must be.
    pub(super) seal: Seal,
}

/// The runs of a set.
#[derive(Debug)]
pub(super) struct Runs {
    dir: PathBuf,
    seed: u64,
    runs: Vec<Run>,
    unsynced: Vec<u64>,
    pending: Vec<Entry>,
    pending_max: usize,
    runs_max: usize,
    id_next: u64,
    written_bytes: u64,
    read_bytes: u64,
}

/// A run being written.
#[derive(Debug)]
pub(super) struct RunWriter {
    writer: SealedWriter,
    id: u64,
    coin_count: u64,
}

impl RunWriter {
    /// Appends an entry; the caller gives them in order.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    #[inline]
    pub(super) fn push(&mut self, entry: &Entry) -> Result<(), CoinFileError> {
        self.coin_count += 1;
        self.writer.write_words(entry)
    }
}

impl Runs {
    /// Begins without runs in a directory that is made when the first file is.
    pub(super) fn new(dir: &Path, seed: u64, pending_bytes_max: u64, runs_max: usize) -> Self {
        Runs {
            dir: dir.to_owned(),
            seed,
            runs: Vec::new(),
            unsynced: Vec::new(),
            pending: Vec::new(),
            pending_max: (pending_bytes_max / ENTRY_BYTES).max(1) as usize,
            runs_max: runs_max.max(2),
            id_next: files(dir).map(|(id, _)| id + 1).max().unwrap_or(0),
            written_bytes: 0,
            read_bytes: 0,
        }
    }

    /// Returns whether every coin is in the table.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.pending.is_empty()
    }

    /// Returns the files.
    pub(super) fn files(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the number of entries.
    pub(super) fn coin_count(&self) -> u64 {
        self.runs.iter().map(|run| run.coin_count).sum::<u64>() + self.pending.len() as u64
    }

    /// Returns the bytes of the files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.seal.file_bytes).sum()
    }

    /// Returns the bytes written to and read from run files since the last call.
    pub(super) fn take_traffic_bytes(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.written_bytes), std::mem::take(&mut self.read_bytes))
    }

    /// Counts bytes that a merge has read.
    pub(super) fn count_read(&mut self, bytes: u64) {
        self.read_bytes += bytes;
    }

    /// Takes one entry.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn push(&mut self, entry: Entry) -> Result<(), CoinFileError> {
        self.pending.push(entry);
        if self.pending.len() < self.pending_max { Ok(()) } else { self.flush() }
    }

    /// Returns whether so many sorted entries should become a run of their own.
    pub(super) fn is_worth_a_run(&self, coin_count: u64) -> bool {
        coin_count * 2 >= self.pending_max as u64
    }

    /// Writes the buffered entries to a run.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn flush(&mut self) -> Result<(), CoinFileError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_unstable();
        let mut writer = self.begin()?;
        for entry in &pending {
            writer.push(entry)?;
        }
        pending.clear();
        self.pending = pending;
        self.add(writer)
    }

    /// Begins a run.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn begin(&mut self) -> Result<RunWriter, CoinFileError> {
        make_dir(&self.dir)?;
        let id = self.id_next;
        self.id_next += 1;
        let writer = SealedWriter::create(&self.path(id), self.seed_of(id))?;
        Ok(RunWriter { writer, id, coin_count: 0 })
    }

    /// Ends a run that is not part of the set.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn end(&mut self, writer: RunWriter) -> Result<Run, CoinFileError> {
        let RunWriter { writer, id, coin_count } = writer;
        let (_, seal) = writer.finish()?;
        self.written_bytes += seal.file_bytes;
        self.unsynced.push(id);
        Ok(Run { id, coin_count, seal })
    }

    /// Ends a run and adds it to the set; joins the smaller half when there are too many.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn add(&mut self, writer: RunWriter) -> Result<(), CoinFileError> {
        let run = self.end(writer)?;
        self.adopt(run);
        if self.runs.len() < self.runs_max {
            return Ok(());
        }
        self.runs.sort_by_key(|run| std::cmp::Reverse(run.coin_count));
        let smaller = self.runs.split_off(self.runs.len() / 2);
        let mut merged = Merged::new(smaller.iter().map(|run| self.source(run)).collect::<Result<_, _>>()?)?;
        let mut writer = self.begin()?;
        while let Some(entry) = merged.next()? {
            writer.push(&entry)?;
        }
        self.read_bytes += merged.bytes_read();
        let joined = self.end(writer)?;
        self.adopt(joined);
        Ok(())
    }

    /// Makes a file part of the set; an empty one is left out.
    pub(super) fn adopt(&mut self, run: Run) {
        if run.coin_count > 0 {
            self.runs.push(run);
        }
    }

    /// Forgets all entries: they have been merged.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.pending.clear();
    }

    /// Returns all entries, sorted.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn open_all(&mut self) -> Result<Merged<5>, CoinFileError> {
        self.pending.sort_unstable();
        let mut sources = vec![Source::Memory(self.pending.clone().into_iter())];
        for run in &self.runs {
            sources.push(self.source(run)?);
        }
        Merged::new(sources)
    }

    /// Opens one file.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn source(&self, run: &Run) -> Result<Source<5>, CoinFileError> {
        open_source(&self.path(run.id), self.seed_of(run.id), run.seal)
    }

    /// Lets the disk have all files for good.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn sync(&mut self) -> Result<(), CoinFileError> {
        for id in std::mem::take(&mut self.unsynced) {
            let path = self.path(id);
            // Joined runs may be gone already.
            if path.exists() {
                File::open(&path).and_then(|file| file.sync_all()).map_err(system("flush", &path))?;
            }
        }
        Ok(())
    }

    /// Removes every run file that neither the set nor the caller needs.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn remove_others(&self, is_needed: impl Fn(u64) -> bool) -> Result<(), CoinFileError> {
        for (id, path) in files(&self.dir) {
            if !is_needed(id) && !self.runs.iter().any(|run| run.id == id) {
                std::fs::remove_file(&path).map_err(system("remove", &path))?;
            }
        }
        Ok(())
    }

    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("run-{id:016x}.coins"))
    }

    fn seed_of(&self, id: u64) -> u64 {
        checksum(self.seed, &id.to_le_bytes())
    }
}

/// Makes the directory if it is missing, for the owner alone: the checkpoint holds the key.
pub(super) fn make_dir(dir: &Path) -> Result<(), CoinFileError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(system("make the directory", dir))
}

/// Returns the run files of a directory with their numbers.
fn files(dir: &Path) -> impl Iterator<Item = (u64, PathBuf)> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let hex = name.to_str()?.strip_prefix("run-")?.strip_suffix(".coins")?;
        Some((u64::from_str_radix(hex, 16).ok()?, entry.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(runs: &mut Runs) -> Vec<Entry> {
        let mut merged = runs.open_all().unwrap();
        let mut entries = Vec::new();
        while let Some(entry) = merged.next().unwrap() {
            entries.push(entry);
        }
        entries
    }

    #[test]
    fn entries_in_any_order_come_back_sorted_from_few_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut runs = Runs::new(&dir.path().join("coins"), 5, 10 * ENTRY_BYTES, 6);
        assert!(runs.is_empty());
        let mut expected = Vec::new();
        for at in 0..1_000_u64 {
            let entry = [at * 7_919 % 1_009, 1 << 32, at, 0, 0];
            runs.push(entry).unwrap();
            expected.push(entry);
            assert!(runs.files().len() < 6);
        }
        expected.sort_unstable();
        assert_eq!(runs.coin_count(), 1_000);
        assert_eq!(all(&mut runs), expected);
        runs.push([3; 5]).unwrap();
        assert_eq!(all(&mut runs).len(), 1_001);
        runs.sync().unwrap();
        runs.remove_others(|_| false).unwrap();
        assert_eq!(files(&dir.path().join("coins")).count(), runs.files().len());
        runs.flush().unwrap();
        let kept = runs.files()[0];
        runs.clear();
        assert!(runs.is_empty());
        runs.remove_others(|id| id == kept.id).unwrap();
        let ids: Vec<u64> = files(&dir.path().join("coins")).map(|(id, _)| id).collect();
        assert_eq!(ids, [kept.id]);
        // Another key, and another file under this name, are noticed.
        let other = Runs::new(&dir.path().join("coins"), 6, 400, 6);
        assert!(Merged::new(vec![other.source(&kept).unwrap()]).is_err());
        std::fs::rename(runs.path(kept.id), runs.path(kept.id + 1)).unwrap();
        assert!(runs.source(&kept).is_err());
        assert!(Merged::new(vec![runs.source(&Run { id: kept.id + 1, ..kept }).unwrap()]).is_err());
    }
}

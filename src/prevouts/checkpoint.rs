//! The set on disk after a block, so that a killed replay resumes warm.
//!
//! A checkpoint is one small file that names the runs of the set, one of which holds what was in the cache, with the
//! key of the fingerprints and the block. It is written under a temporary name, flushed, then renamed. It depends on
//! the chain alone: whoever's last block it is may use it. Read back, every byte of every file is proven by checksums
//! before anything is used.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::runs::{Run, make_dir};
use super::sealed::{CoinFileError, Seal, SealedReader, SealedWriter, system};
use super::twins::Twins;
use super::{Fingerprint, FingerprintKey};
use crate::chain::hash::Hash32;

/// Changes with the format of checkpoints, runs or entries.
const MAGIC: [u8; 16] = *b"satgres coins 01";
/// The checkpoint holds the key of everything else, so its own checksums have none.
const SEED: u64 = u64::from_le_bytes(*b"satgres.");

/// What a checkpoint file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Key of the fingerprints.
    pub(super) key: FingerprintKey,
    /// The last block whose coins are in it.
    pub(super) height: u32,
    /// Its hash, internal byte order.
    pub(super) hash: Hash32,
    /// The run that holds what was in the cache.
    pub(super) cache: Run,
    /// The other runs.
    pub(super) runs: Vec<Run>,
    /// What is needed to recognise twins.
    pub(super) twins: Twins,
}

/// A checkpoint in the directory.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Its file.
    pub(super) path: PathBuf,
    /// Its height.
    pub(super) height: u32,
    /// The run files that it needs.
    pub(super) run_ids: Vec<u64>,
}

impl Manifest {
    /// Writes the checkpoint for good; the files of its runs are flushed already.
    ///
    /// # Errors
    /// [`CoinFileError::System`].
    pub(super) fn write(&self, dir: &Path) -> Result<Kept, CoinFileError> {
        make_dir(dir)?;
        let path = path(dir, self.height);
        let temporary = dir.join("checkpoint.tmp");
        let mut writer = SealedWriter::create(&temporary, SEED)?;
        writer.write(&MAGIC)?;
        writer.write(&self.key.to_bytes())?;
        writer.write(&self.height.to_le_bytes())?;
        writer.write(&self.hash)?;
        writer.write(&(self.runs.len() as u64).to_le_bytes())?;
        for run in std::iter::once(&self.cache).chain(&self.runs) {
            for number in [run.id, run.coin_count, run.seal.file_bytes, run.seal.checksum] {
                writer.write(&number.to_le_bytes())?;
            }
        }
        writer.write(&(self.twins.coinbases().len() as u64).to_le_bytes())?;
        for low in self.twins.coinbases() {
            writer.write(&low.to_le_bytes())?;
        }
        writer.write(&(self.twins.outputs().len() as u64).to_le_bytes())?;
        for outpoint in self.twins.outputs() {
            writer.write(&outpoint.low.to_le_bytes())?;
            writer.write(&outpoint.high.to_le_bytes())?;
        }
        let (file, _) = writer.finish()?;
        file.sync_all().map_err(system("flush", &temporary))?;
        std::fs::rename(&temporary, &path).map_err(system("rename", &temporary))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(system("flush", dir))?;
        Ok(Kept { path, height: self.height, run_ids: self.run_ids() })
    }

    /// Reads a checkpoint file.
    ///
    /// # Errors
    /// [`CoinFileError`].
    pub(super) fn read(path: &Path) -> Result<Manifest, CoinFileError> {
        let mut reader = SealedReader::open(path, SEED, None)?;
        let magic: [u8; 16] = reader.read_array()?;
        if magic != MAGIC {
            return Err(reader.damaged("it was written by another version"));
        }
        let key = FingerprintKey::from_bytes(&reader.read_array()?);
        let height = u32::from_le_bytes(reader.read_array()?);
        let hash = reader.read_array()?;
        let run_count = u64::from_le_bytes(reader.read_array()?);
        let cache = read_run(&mut reader)?;
        let runs = (0..run_count).map(|_| read_run(&mut reader)).collect::<Result<_, _>>()?;
        let mut twins = Twins::default();
        for _ in 0..u64::from_le_bytes(reader.read_array()?) {
            twins.add_coinbase(u64::from_le_bytes(reader.read_array()?));
        }
        for _ in 0..u64::from_le_bytes(reader.read_array()?) {
            let low = u64::from_le_bytes(reader.read_array()?);
            twins.add_output(Fingerprint { low, high: u32::from_le_bytes(reader.read_array()?) });
        }
        reader.check_rest()?;
        Ok(Manifest { key, height, hash, cache, runs, twins })
    }

    /// Returns the run files that the checkpoint needs.
    pub(super) fn run_ids(&self) -> Vec<u64> {
        std::iter::once(&self.cache).chain(&self.runs).map(|run| run.id).collect()
    }
}

/// Returns where the checkpoint of a height stands.
pub(super) fn path(dir: &Path, height: u32) -> PathBuf {
    dir.join(format!("checkpoint-{height:08}"))
}

/// Returns the height in the name of a checkpoint file.
pub(super) fn height_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok()
}

fn read_run(reader: &mut SealedReader) -> Result<Run, CoinFileError> {
    let mut number = || Ok::<_, CoinFileError>(u64::from_le_bytes(reader.read_array()?));
    let (id, coin_count) = (number()?, number()?);
    Ok(Run { id, coin_count, seal: Seal { file_bytes: number()?, checksum: number()? } })
}

/// Returns the checkpoint files of a directory, newest first.
pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("checkpoint-"))
        })
        .collect();
    paths.sort_unstable();
    paths.reverse();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(height: u32) -> Manifest {
        let run = |id| Run { id, coin_count: id * 10, seal: Seal { file_bytes: id * 400, checksum: !id } };
        let mut twins = Twins::default();
        (0..1_000).for_each(|low| twins.add_coinbase(low * 3));
        twins.add_output(Fingerprint { low: 9, high: 8 });
        let key = FingerprintKey::from_bytes(&std::array::from_fn(|at| at as u8));
        Manifest { key, height, hash: [7; 32], cache: run(3), runs: vec![run(1), run(2)], twins }
    }

    #[test]
    fn a_checkpoint_is_read_back_and_any_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let coins = dir.path().join("data/coins");
        let kept = manifest(99).write(&coins).unwrap();
        manifest(100).write(&coins).unwrap();
        assert_eq!((kept.height, kept.run_ids), (99, vec![3, 1, 2]));
        assert_eq!(files(&coins), [coins.join("checkpoint-00000100"), coins.join("checkpoint-00000099")]);
        assert_eq!(Manifest::read(&kept.path).unwrap(), manifest(99));
        let whole = std::fs::read(&kept.path).unwrap();
        for place in (0..whole.len()).step_by(53) {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x10;
            std::fs::write(&kept.path, &bytes).unwrap();
            assert!(matches!(Manifest::read(&kept.path), Err(CoinFileError::Damaged { .. })), "{place}");
            std::fs::write(&kept.path, &whole[..place]).unwrap();
            assert!(matches!(Manifest::read(&kept.path), Err(CoinFileError::Damaged { .. })), "{place}");
        }
    }

    #[test]
    fn the_key_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let coins = dir.path().join("coins");
        manifest(1).write(&coins).unwrap();
        assert_eq!(std::fs::metadata(&coins).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

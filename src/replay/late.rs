//! Rows that wait for a coin: spilled to a file with their batch, completed when the set has found the coins.
//!
//! In: resolved batches, in chain order. Out: the completed rows, in pieces that the loader sends after the others of
//! their segment: physical order may differ, rows may not. Called by the resolver. Only one piece is in memory here.

use std::io::Seek;
use std::path::PathBuf;

use super::pipeline::PipelineError;
use crate::chain::batch::{Batch, Overwritten};
use crate::prevouts::sealed::{SealedReader, SealedWriter};
use crate::prevouts::{CoinFileError, Settled, UtxoSet};
use crate::rows::{Encoded, Store, Table, encode_waiting, set_fee, set_prevout, set_rewards};

/// About how many bytes of completed rows travel together.
const PIECE_BYTES: usize = 1 << 20;
/// The file has no name: it lives and dies with the process, and its checksums need no key.
const SEED: u64 = 1;

/// The rows that wait.
#[derive(Debug)]
pub(super) struct LateRows {
    path: PathBuf,
    store: Store,
    spill: Option<SealedWriter>,
}

impl LateRows {
    /// Begins without rows.
    pub(super) fn new(set: &UtxoSet, store: Store) -> Self {
        LateRows { path: set.dir().join("rows.tmp"), store, spill: None }
    }

    /// Returns the bytes that wait on disk.
    pub(super) fn spilled_bytes(&self) -> u64 {
        self.spill.as_ref().map_or(0, SealedWriter::bytes)
    }

    /// Keeps the rows of a batch that wait.
    ///
    /// # Errors
    /// A file that failed.
    pub(super) fn spill(&mut self, batch: &Batch) -> Result<(), CoinFileError> {
        let (spill, path) = (&mut self.spill, &self.path);
        encode_waiting(batch, self.store, |table, row| {
            let writer = match spill {
                Some(writer) => writer,
                None => spill.insert(SealedWriter::create_unnamed(path, SEED)?),
            };
            writer.write(&[table as u8])?;
            writer.write(&(row.len() as u32).to_le_bytes())?;
            writer.write(row)
        })
    }

    /// Settles what waits and hands the completed rows out, piece by piece, each in buffers of `empty`.
    ///
    /// # Errors
    /// The first rule that a waiting spend breaks, a file that failed, or what `send` gives.
    pub(super) fn complete(
        &mut self,
        set: &mut UtxoSet,
        overwritten: &mut Vec<Overwritten>,
        empty: impl Fn() -> Encoded,
        mut send: impl FnMut(Encoded) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let Some(spill) = self.spill.take() else {
            return set.settle(overwritten, |_| Ok::<_, PipelineError>(()));
        };
        let (mut file, seal) = spill.finish()?;
        file.rewind().map_err(|source| CoinFileError::System {
            what: "rewind",
            path: self.path.clone(),
            source,
        })?;
        let mut reader = SealedReader::new(file, &self.path, SEED, Some(seal));
        let mut piece = empty();
        set.settle::<PipelineError>(overwritten, |settled| {
            let table = match settled {
                Settled::Input { .. } => Table::Inputs,
                Settled::Transaction { .. } => Table::Transactions,
                Settled::Block { .. } => Table::Blocks,
            };
            let kind = reader.read_array::<1>()?[0];
            assert_eq!(kind, table as u8, "rows and facts wait in the same order");
            let row_bytes = u32::from_le_bytes(reader.read_array()?) as usize;
            let rows = &mut piece.buffers[table as usize];
            let at = rows.len();
            reader.read_to(row_bytes, rows)?;
            match settled {
                Settled::Input { coin, .. } => set_prevout(&mut rows[at..], &coin),
                Settled::Transaction { fee_sat, .. } => set_fee(&mut rows[at..], fee_sat),
                Settled::Block { fees_sat, unclaimed_sat, .. } => {
                    set_rewards(&mut rows[at..], fees_sat, unclaimed_sat);
                }
            }
            if piece.buffers.iter().map(Vec::len).sum::<usize>() >= PIECE_BYTES {
                send(std::mem::replace(&mut piece, empty()))?;
            }
            Ok(())
        })?;
        send(piece)
    }
}

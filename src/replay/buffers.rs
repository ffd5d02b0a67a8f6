//! Buffers that travel to a socket and come back: the rows of one batch for one table.

use std::sync::Arc;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};

use super::gate::Permit;

/// Keeps empty buffers for their next use.
#[derive(Clone, Debug)]
pub struct BufferPool {
    give: Sender<Vec<u8>>,
    take: Receiver<Vec<u8>>,
    /// Larger ones are not kept.
    capacity_max: usize,
}

impl BufferPool {
    /// Makes a pool that keeps at most `count_max` buffers of at most `capacity_max` bytes each.
    pub fn new(count_max: usize, capacity_max: usize) -> Self {
        let (give, take) = crossbeam_channel::bounded(count_max);
        BufferPool { give, take, capacity_max }
    }

    /// Returns an empty buffer, with the capacity that its last use left.
    pub fn take(&self) -> Vec<u8> {
        self.take.try_recv().unwrap_or_default()
    }

    /// Hands a filled buffer over to the network; it comes back to the pool, and its share of the permit ends, when the
    /// last byte has been sent.
    pub fn lend(&self, buffer: Vec<u8>, permit: Arc<Permit>) -> Bytes {
        Bytes::from_owner(Lent { buffer, pool: self.clone(), _permit: permit })
    }
}

struct Lent {
    buffer: Vec<u8>,
    pool: BufferPool,
    _permit: Arc<Permit>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        // A full pool has enough: this buffer's memory is given back. So is that of one which unusual blocks made large.
        if buffer.capacity() <= self.pool.capacity_max {
            let _ = self.pool.give.try_send(buffer);
        }
    }
}

//! The array of a shard: zeroed memory that is touched only as it fills and given back as soon as it is dropped.
//!
//! Large arrays are mappings of their own, so that what the table says it allocates is what the process has; small
//! ones come from the heap, where a mapping would cost more than the array.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::entry::Entry;

/// From here on an array is a mapping.
const MAPPED_BYTES_MIN: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;

/// A fixed number of slots, empty at first.
#[derive(Debug)]
pub(super) struct Slots {
    first: NonNull<Entry>,
    slot_count: usize,
}

// SAFETY: the memory belongs to this value alone, and entries are plain numbers.
unsafe impl Send for Slots {}
// SAFETY: shared references only read.
unsafe impl Sync for Slots {}

impl Slots {
    /// Makes `slot_count` empty slots; none at all take no memory.
    ///
    /// # Panics
    /// If the system has no memory left, as for any allocation.
    pub(super) fn new(slot_count: usize) -> Self {
        if slot_count == 0 {
            return Slots { first: NonNull::dangling(), slot_count };
        }
        let layout = layout(slot_count);
        let first = if is_mapped(slot_count) {
            // SAFETY: a new anonymous mapping overlaps nothing; its pages read as zeros.
            let address = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    layout.size(),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if address == libc::MAP_FAILED { std::ptr::null_mut() } else { address.cast() }
        } else {
            // SAFETY: the layout is not empty.
            unsafe { alloc_zeroed(layout).cast() }
        };
        let Some(first) = NonNull::new(first) else { handle_alloc_error(layout) };
        Slots { first, slot_count }
    }

    /// Returns what `slot_count` slots occupy once they are all touched, bytes.
    pub(super) fn allocated_bytes(slot_count: usize) -> u64 {
        let bytes = slot_count * size_of::<Entry>();
        (if is_mapped(slot_count) { bytes.next_multiple_of(PAGE_BYTES) } else { bytes }) as u64
    }
}

fn layout(slot_count: usize) -> Layout {
    Layout::array::<Entry>(slot_count).expect("a length below isize::MAX")
}

fn is_mapped(slot_count: usize) -> bool {
    slot_count * size_of::<Entry>() >= MAPPED_BYTES_MIN
}

impl Drop for Slots {
    fn drop(&mut self) {
        let address = self.first.as_ptr();
        if is_mapped(self.slot_count) {
            // SAFETY: exactly what `new` mapped; nobody holds a reference into it any more.
            unsafe { libc::munmap(address.cast(), layout(self.slot_count).size()) };
        } else if self.slot_count > 0 {
            // SAFETY: `new` allocated it with this layout.
            unsafe { dealloc(address.cast(), layout(self.slot_count)) };
        }
    }
}

impl Deref for Slots {
    type Target = [Entry];

    #[inline]
    fn deref(&self) -> &[Entry] {
        // SAFETY: `first` points to `slot_count` aligned entries, zeroed at first, that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.slot_count) }
    }
}

impl DerefMut for Slots {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Entry] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.slot_count) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::EMPTY;
    use super::*;

    #[test]
    fn both_kinds_are_empty_at_first_and_keep_what_is_written() {
        for slot_count in [1, 16, 6_553, 6_554, 100_000] {
            let mut slots = Slots::new(slot_count);
            assert_eq!(slots.len(), slot_count);
            assert!(slots.iter().all(|entry| *entry == EMPTY));
            slots[slot_count - 1] = [1, 2, 3, 4, 5];
            assert_eq!(slots[slot_count - 1], [1, 2, 3, 4, 5]);
        }
        assert!(Slots::new(0).is_empty());
        assert_eq!(Slots::allocated_bytes(100), 4_000);
        assert_eq!(Slots::allocated_bytes(10_000), 401_408);
    }
}

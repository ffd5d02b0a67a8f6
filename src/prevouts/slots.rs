//! The arrays of the shards: zeroed memory that is touched only as it fills.
//!
//! Without a budget every array is an allocation of its own: large ones are mappings, given back as soon as they are
//! dropped; small ones come from the heap, where a mapping would cost more than the array. Within a budget all arrays
//! lie in one mapping, each with its place to grow, so that no allocator keeps holes: what the table says it takes is
//! what the process has. What of an array fills whole huge pages lies in such, where the system has them (madvise(2),
//! MADV_HUGEPAGE): in a table of gigabytes nearly every look-up misses the processor's table of small pages.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::entry::{Words, empty};

/// From here on an array of its own is a mapping.
const MAPPED_BYTES_MIN: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A fixed number of slots, empty at first.
#[derive(Debug)]
pub(super) struct Slots<const N: usize> {
    first: NonNull<Words<N>>,
    slot_count: usize,
    memory: Memory,
}

/// Where slots lie, and so how they are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Nowhere: there are none.
    None,
    Heap,
    Mapping,
    /// In a region, which outlives them.
    Region,
}

// SAFETY: the memory belongs to this value alone, and entries are plain numbers.
unsafe impl<const N: usize> Send for Slots<N> {}
// SAFETY: shared references only read.
unsafe impl<const N: usize> Sync for Slots<N> {}

/// One mapping for the arrays of all shards, whole pages apart, huge ones where an array may fill one.
#[derive(Debug)]
pub(super) struct Region {
    mapping: NonNull<u8>,
    mapped_bytes: usize,
    /// The array of the first shard, where a page begins as large as those between the arrays.
    first: NonNull<u8>,
    stride_bytes: usize,
    shard_count: usize,
}

// SAFETY: the region itself is only an address; its parts are handed out once each.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl<const N: usize> Slots<N> {
    /// Makes `slot_count` empty slots; none at all take no memory.
    ///
    /// # Panics
    /// If the system has no memory left, as for any allocation.
    pub(super) fn new(slot_count: usize) -> Self {
        if slot_count == 0 {
            return Slots { first: NonNull::dangling(), slot_count, memory: Memory::None };
        }
        let layout = layout::<N>(slot_count);
        if is_mapped::<N>(slot_count) {
            return Slots { first: map(layout).cast(), slot_count, memory: Memory::Mapping };
        }
        // SAFETY: the layout is not empty.
        let first = NonNull::new(unsafe { alloc_zeroed(layout).cast() });
        let Some(first) = first else { handle_alloc_error(layout) };
        Slots { first, slot_count, memory: Memory::Heap }
    }

    /// Returns what `slot_count` slots of their own occupy once they are all touched, bytes.
    pub(super) fn allocated_bytes(slot_count: usize) -> u64 {
        let bytes = slot_count * size_of::<Words<N>>();
        (if is_mapped::<N>(slot_count) { bytes.next_multiple_of(PAGE_BYTES) } else { bytes }) as u64
    }
}

impl Region {
    /// Reserves place for `shard_count` arrays of up to `slots_max` slots; nothing is touched yet.
    ///
    /// # Panics
    /// If the system has no memory left, as for any allocation.
    pub(super) fn new<const N: usize>(shard_count: usize, slots_max: usize) -> Self {
        let bytes_max = Region::stride_bytes::<N>(slots_max);
        let page_bytes = if bytes_max >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let stride_bytes = bytes_max.next_multiple_of(page_bytes);
        // Place is not memory: nothing beyond an array is ever touched.
        let mapped_bytes = stride_bytes * shard_count + page_bytes - PAGE_BYTES;
        let mapping = map(Layout::array::<u8>(mapped_bytes).expect("a length below isize::MAX"));
        let before = mapping.as_ptr().align_offset(page_bytes);
        // SAFETY: a mapping begins at a page, and has place for one larger page less a small one before the arrays.
        let first = unsafe { mapping.add(before) };
        Region { mapping, mapped_bytes, first, stride_bytes, shard_count }
    }

    /// Returns what an array of `slots_max` slots takes in a region, bytes.
    pub(super) fn stride_bytes<const N: usize>(slots_max: usize) -> usize {
        (slots_max * size_of::<Words<N>>()).next_multiple_of(PAGE_BYTES)
    }

    /// Returns the first `slot_count` slots of a shard's place, all empty; `used_count` may have been written to.
    ///
    /// # Safety
    /// No other slots of this shard may be in use, and the region must outlive these.
    pub(super) unsafe fn slots<const N: usize>(
        &self,
        shard: usize,
        slot_count: usize,
        used_count: usize,
    ) -> Slots<N> {
        let bytes = |slot_count: usize| slot_count * size_of::<Words<N>>();
        assert!(shard < self.shard_count && bytes(slot_count.max(used_count)) <= self.stride_bytes);
        // SAFETY: the offset lies inside the mapping, as just checked.
        let first = unsafe { self.first.add(shard * self.stride_bytes) };
        let huge_bytes = bytes(slot_count) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if huge_bytes > 0 {
            let address = first.as_ptr().cast();
            // SAFETY: private pages of this mapping to which nobody refers: dropped, they read as zeros. Where the system
            // has no huge pages, the small ones do.
            unsafe {
                libc::madvise(address, bytes(used_count).next_multiple_of(PAGE_BYTES), libc::MADV_DONTNEED);
                libc::madvise(address, huge_bytes, libc::MADV_HUGEPAGE);
            }
        }
        let slot_count_max = slot_count.max(used_count);
        let mut slots = Slots { first: first.cast(), slot_count: slot_count_max, memory: Memory::Region };
        // A page that is read before it is written to is mapped twice, and the second time all processors must be told.
        slots.fill(empty());
        Slots { slot_count, ..slots }
    }
}

/// Maps zeroed pages that are not touched yet.
fn map(layout: Layout) -> NonNull<u8> {
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
    if address == libc::MAP_FAILED {
        handle_alloc_error(layout);
    }
    NonNull::new(address.cast()).expect("a mapping is never at address 0")
}

fn layout<const N: usize>(slot_count: usize) -> Layout {
    Layout::array::<Words<N>>(slot_count).expect("a length below isize::MAX")
}

fn is_mapped<const N: usize>(slot_count: usize) -> bool {
    slot_count * size_of::<Words<N>>() >= MAPPED_BYTES_MIN
}

impl<const N: usize> Drop for Slots<N> {
    fn drop(&mut self) {
        let layout = layout::<N>(self.slot_count);
        match self.memory {
            Memory::None | Memory::Region => {}
            // SAFETY: `new` allocated it with this layout.
            Memory::Heap => unsafe { dealloc(self.first.as_ptr().cast(), layout) },
            // SAFETY: exactly what `new` mapped; nobody holds a reference into it any more.
            Memory::Mapping => unsafe {
                libc::munmap(self.first.as_ptr().cast(), layout.size());
            },
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; whoever took slots has dropped them.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapped_bytes) };
    }
}

impl<const N: usize> Deref for Slots<N> {
    type Target = [Words<N>];

    #[inline]
    fn deref(&self) -> &[Words<N>] {
        // SAFETY: `first` points to `slot_count` aligned entries, zeroed at first, that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.slot_count) }
    }
}

impl<const N: usize> DerefMut for Slots<N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Words<N>] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.slot_count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_empty_at_first_and_keep_what_is_written() {
        for slot_count in [1, 16, 6_553, 6_554, 100_000] {
            let mut slots = Slots::<5>::new(slot_count);
            assert_eq!(slots.len(), slot_count);
            assert!(slots.iter().all(|entry| *entry == [0; 5]));
            slots[slot_count - 1] = [1, 2, 3, 4, 5];
            assert_eq!(slots[slot_count - 1], [1, 2, 3, 4, 5]);
        }
        assert!(Slots::<5>::new(0).is_empty());
        let region = Region::new::<5>(3, 200);
        // SAFETY: each shard's slots are dropped before others are taken.
        let take = |shard, slot_count, used| unsafe { region.slots::<5>(shard, slot_count, used) };
        take(1, 100, 0).fill([1; 5]);
        assert!(take(1, 50, 100).iter().all(|entry| *entry == [0; 5]));
        assert!(take(1, 200, 50).iter().all(|entry| *entry == [0; 5]));
        take(1, 200, 200).fill([1; 5]);
        assert!(take(0, 200, 0).iter().chain(take(2, 200, 0).iter()).all(|entry| *entry == [0; 5]));
        assert_eq!(Slots::<5>::allocated_bytes(100), 4_000);
        assert_eq!(Slots::<5>::allocated_bytes(10_000), 401_408);
    }

    #[test]
    fn arrays_that_outgrow_a_huge_page_are_empty_and_apart() {
        let region = Region::new::<5>(3, 200_000);
        // SAFETY: each shard's slots are dropped before others are taken.
        let take = |shard, slot_count, used| unsafe { region.slots::<5>(shard, slot_count, used) };
        for (slot_count, used) in [(1_000, 0), (60_000, 1_000), (130_000, 60_000), (200_000, 130_000)] {
            for shard in 0..3 {
                let mut slots = take(shard, slot_count, used);
                assert_eq!(slots.as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
                assert!(slots.iter().all(|entry| *entry == [0; 5]));
                slots.fill([1 + shard as u64; 5]);
            }
        }
        for shard in 0..3 {
            // As they were left.
            let slots = take(shard, 0, 0);
            let left = Slots { slot_count: 200_000, ..slots };
            assert!(left.iter().all(|entry| *entry == [1 + shard as u64; 5]));
        }
    }
}

//! Gives memory that nobody uses any more back to the system.
//!
//! In: nothing. Out: what the process still has. Set up when the service starts; called once when a load has ended and
//! once on entering LIVE, never on a path that is taken often. The large caches are mappings, which go with their owners;
//! what remains is the heap. glibc keeps what was freed for the next allocation, in an arena for each thread that ever
//! was: after a load that is most of the pipeline's memory, though all its threads have ended.

/// From here on an allocation is a mapping of its own, and no arena keeps more than this free at its end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LEFTOVER_BYTES_MAX: libc::c_int = 4 << 20;

/// Keeps glibc from raising, as it does by itself, the size from which allocations are mappings (up to 32 MiB) and with
/// it twice that size as what every arena may keep at its end, where not even [`give_back`] reaches: 80 MB stayed after
/// a load on two cores. The load's large buffers are used again and again, so that mapping them costs nothing.
pub fn bound_leftovers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets two numbers of the allocator's (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LEFTOVER_BYTES_MAX);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LEFTOVER_BYTES_MAX);
    }
}

/// Gives back every free page of the heap, in all arenas; returns the resident memory that is left, bytes, where the
/// system tells. Takes milliseconds, longer after gigabytes: not for a thread that others wait for.
pub fn give_back() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only hands free pages to the system; glibc locks each arena meanwhile (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
    resident_bytes()
}

/// Returns the resident memory of this process, bytes (proc(5), status).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Memory that a thread leaves when it has freed what it allocated in blocks of one size, bytes.
    fn left_by_a_thread(block_bytes: usize, keeps_last: bool) -> u64 {
        let before = give_back().unwrap();
        let kept = std::thread::spawn(move || {
            let mut blocks: Vec<Vec<u8>> =
                (0..(64 << 20) / block_bytes).map(|_| vec![7; block_bytes]).collect();
            assert!(resident_bytes().unwrap() > before + (60 << 20));
            // The last stays, so that what is below it is no free end.
            keeps_last.then(|| blocks.pop())
        });
        let kept = kept.join().unwrap();
        let left = give_back().unwrap().saturating_sub(before);
        drop(kept);
        left
    }

    /// One test, since resident memory is the whole process's.
    #[test]
    fn what_threads_left_free_goes_back() {
        bound_leftovers();
        for (block_bytes, keeps_last) in
            [(4 << 10, true), (4 << 10, false), (3 << 20, true), (3 << 20, false)]
        {
            let left = left_by_a_thread(block_bytes, keeps_last);
            assert!(left < 12 << 20, "{left} bytes of 64 MiB are left, freed in blocks of {block_bytes}");
        }
    }
}

//! What the size of a batch is worth when headers come from a node: time and memory a header.
//!
//! `cargo bench --bench headers` mines a million regtest headers that follow each other, then puts them into a tree that
//! holds none, as the header sync does, with batches of several sizes. Memory is what the allocator handed out at most,
//! the tree and the sorting together; the headers themselves come from elsewhere and are not counted.

#![allow(missing_docs, unreachable_pub)]

mod harness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use satgres::chain::hash::sha256d;
use satgres::chain::header::checked_work;
use satgres::network::Network;
use satgres::source::ScannedHeaders;

const BATCHES: [usize; 6] = [1, 2_000, 10_000, 100_000, 500_000, 1_000_000];

/// Counts what is allocated, and the most that ever was.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    PEAK.fetch_max(NOW.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Large blocks are moved by remapping: the old one is not there beside the new one.
        if size > layout.size() {
            grown(size - layout.size())
        } else {
            NOW.fetch_sub(layout.size() - size, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Puts headers into the tree in batches of several sizes", disable_version_flag = true)]
struct Options {
    /// Headers.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    headers: usize,
    /// Rounds, each with all sizes.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    harness::machine::print_warnings();
    let headers = mined(options.headers);
    let mut figures: Vec<Vec<(Duration, usize)>> = vec![Vec::new(); BATCHES.len()];
    for _ in 0..options.rounds {
        for (of, batch) in figures.iter_mut().zip(BATCHES) {
            of.push(filled(&headers, batch));
        }
    }
    println!("| batch | seconds | ns a header | peak bytes a header |\n|---:|---:|---:|---:|");
    for (of, batch) in figures.iter_mut().zip(BATCHES) {
        of.sort_unstable();
        let (median, peak) = (of[of.len() / 2].0, of.iter().map(|(_, peak)| *peak).max().unwrap_or(0));
        println!(
            "| {batch} | {:.3} | {:.0} | {:.1} |",
            median.as_secs_f64(),
            median.as_nanos() as f64 / headers.len() as f64,
            peak as f64 / headers.len() as f64
        );
    }
}

/// Headers of a chain on regtest, in order.
fn mined(count: usize) -> Vec<[u8; 80]> {
    let mut last: [u8; 80] = Network::Regtest.genesis_block()[..80].try_into().expect("80 bytes");
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let (hash, time) = (sha256d(&last), u32::from_le_bytes(last[68..72].try_into().expect("4 bytes")));
        last[4..36].copy_from_slice(&hash);
        last[68..72].copy_from_slice(&(time + 1).to_le_bytes());
        while checked_work(&last, Network::Regtest).is_none() {
            last[76] = last[76].wrapping_add(1);
        }
        headers.push(last);
    }
    headers
}

/// Fills a tree; returns the time and the most bytes that were allocated meanwhile.
fn filled(headers: &[[u8; 80]], batch: usize) -> (Duration, usize) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut tree = ScannedHeaders::none(Network::Regtest).link_loosely(&[]);
    let start = Instant::now();
    for header in headers {
        tree.append_header(header, batch).expect("each follows the one before");
    }
    tree.index_headers();
    let took = start.elapsed();
    let last = headers.last().map(|header| sha256d(header)).and_then(|hash| tree.find(&hash));
    assert_eq!(last.map(|index| tree.height(index) as usize), Some(headers.len()), "every header is found");
    (took, PEAK.load(Ordering::Relaxed) - before)
}

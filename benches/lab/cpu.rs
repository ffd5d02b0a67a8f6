//! Who used how much CPU: this process by thread, the server by what its processes were doing.
//!
//! Totals are exact (`/proc/PID/stat` of the postmaster counts every backend that has ended); the split is sampled
//! every 20 ms from `schedstat`, and what a thread or process did after its last sample is missing from it. What sampling
//! itself takes is told, so that nobody counts it as the service's.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(20);
const SAMPLER: &str = "sampler";

/// CPU seconds of this process and of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    pub service_seconds: f64,
    pub server_seconds: f64,
}

impl Cpu {
    /// Reads both clocks.
    pub fn now(postmaster: i32) -> Cpu {
        // SAFETY: both calls fill plain structures or return a constant.
        let (own, tick) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            (usage, libc::sysconf(libc::_SC_CLK_TCK) as f64)
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        let ended = times(postmaster)
            .map_or(0, |[user, system, ended_user, ended_system]| user + system + ended_user + ended_system);
        let running: u64 =
            children(postmaster).iter().filter_map(|&pid| times(pid)).map(|times| times[0] + times[1]).sum();
        Cpu {
            service_seconds: seconds(own.ru_utime) + seconds(own.ru_stime),
            server_seconds: (ended + running) as f64 / tick,
        }
    }

    /// Returns what was used since an earlier reading.
    pub fn since(self, earlier: Cpu) -> Cpu {
        Cpu {
            service_seconds: self.service_seconds - earlier.service_seconds,
            server_seconds: self.server_seconds - earlier.server_seconds,
        }
    }

    pub fn seconds(self) -> f64 {
        self.service_seconds + self.server_seconds
    }
}

/// Samples until it is stopped.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Sampled>,
}

/// What a sampler saw.
#[derive(Debug, Default)]
pub struct Sampled {
    /// CPU seconds by what was being done.
    pub stages: Vec<(String, f64)>,
    /// CPU seconds that sampling took; in no stage.
    pub own_seconds: f64,
}

impl Sampler {
    /// Begins to sample this process and a server.
    pub fn start(postmaster: i32) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(SAMPLER.to_owned()).spawn(move || {
            let mut before = HashMap::new();
            let mut seconds = HashMap::new();
            let mut is_first = true;
            while !ends.load(Ordering::Relaxed) {
                sample(postmaster, &mut before, &mut seconds, is_first);
                is_first = false;
                std::thread::sleep(INTERVAL);
            }
            sample(postmaster, &mut before, &mut seconds, false);
            Sampled { stages: seconds.into_iter().collect(), own_seconds: thread_cpu_seconds() }
        });
        Sampler { stop, thread: thread.expect("the system can start a thread") }
    }

    /// Ends sampling.
    pub fn stop(self) -> Sampled {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sampler runs to its end")
    }
}

fn sample(
    postmaster: i32,
    before: &mut HashMap<i32, u64>,
    seconds: &mut HashMap<String, f64>,
    is_first: bool,
) {
    let own = std::process::id();
    let threads = numbers(&format!("/proc/{own}/task"));
    let threads = threads.into_iter().filter_map(|tid| {
        let name = fs::read_to_string(format!("/proc/{own}/task/{tid}/comm")).ok()?;
        if name.trim() == SAMPLER {
            return None;
        }
        Some((
            tid,
            format!("/proc/{own}/task/{tid}/schedstat"),
            format!("service: {}", thread_kind(name.trim())),
        ))
    });
    let processes = children(postmaster).into_iter().filter_map(|pid| {
        let title = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((
            pid,
            format!("/proc/{pid}/schedstat"),
            format!("server: {}", process_kind(&String::from_utf8_lossy(&title))),
        ))
    });
    for (id, path, kind) in threads.chain(processes) {
        let Some(nanoseconds) =
            fs::read_to_string(path).ok().and_then(|text| text.split(' ').next()?.parse().ok())
        else {
            continue;
        };
        // What ran before the first sample is not of this round; what comes later started within it.
        let earlier = before.insert(id, nanoseconds).unwrap_or(if is_first { nanoseconds } else { 0 });
        *seconds.entry(kind).or_default() += nanoseconds.saturating_sub(earlier) as f64 * 1e-9;
    }
}

fn thread_kind(name: &str) -> &'static str {
    match name {
        name if name.starts_with("parse-") => "read and parse",
        "resolve" => "resolve prevouts",
        name if name.starts_with("encode-") => "encode rows",
        name if name.starts_with("tokio") => "send rows",
        _ => "others",
    }
}

fn process_kind(title: &str) -> &'static str {
    match title {
        title if title.contains("COPY") => "COPY",
        title if title.contains("CREATE INDEX") || title.contains("parallel worker") => "index builds",
        title if title.contains("COMMIT") => "commits",
        title if title.contains("ALTER TABLE") => "constraints and attaching",
        title if title.contains("checkpointer") || title.contains("writer") => "background writing",
        _ => "others",
    }
}

fn thread_cpu_seconds() -> f64 {
    // SAFETY: the call fills a plain structure.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn children(postmaster: i32) -> Vec<i32> {
    fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"))
        .map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
        .unwrap_or_default()
}

/// User and system time of a process and of those of its children that have ended, clock ticks (proc(5), stat).
fn times(pid: i32) -> Option<[u64; 4]> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|field| field.parse().ok());
    Some([field(11)?, field(12)?, field(13)?, field(14)?])
}

fn numbers(dir: &str) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

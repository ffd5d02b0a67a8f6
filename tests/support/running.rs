//! A `satgres` that runs while the test goes on: what it says can be waited for, and it can be sent signals.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::Satgres;

/// Nothing in the tests takes nearly as long.
const DEADLINE: Duration = Duration::from_secs(600);

/// A running command; it is killed when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    said: Arc<Mutex<String>>,
    began: Instant,
    /// Times from the start to the lines that say that rows come in: one for each load.
    marked: Arc<Mutex<Vec<Duration>>>,
}

impl Running {
    /// What says that rows come in.
    const MARK: &'static str = "first new rows are on their way";

    /// Starts a command with `--data-dir`.
    pub fn start(satgres: &Satgres, args: &[&str]) -> Running {
        Running::of(satgres.start(args))
    }

    /// Watches a command whose two streams are piped.
    pub fn of(mut child: Child) -> Running {
        let said = Arc::new(Mutex::new(String::new()));
        let marked = Arc::new(Mutex::new(Vec::new()));
        let began = Instant::now();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let (said, marked) = (Arc::clone(&said), Arc::clone(&marked));
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if line.contains(Running::MARK) {
                        marked.lock().unwrap().push(began.elapsed());
                    }
                    let mut said = said.lock().unwrap();
                    said.push_str(&line);
                    said.push('\n');
                }
            });
        }
        Running { child, said, began, marked }
    }

    /// Starts `run` on a folder of regtest blocks, to end once everything is queryable.
    pub fn run(satgres: &Satgres, blocks_dir: &std::path::Path, options: &[&str]) -> Running {
        let blocks_dir = blocks_dir.to_str().unwrap();
        let args = ["run", "--network", "regtest", "--blocks-dir", blocks_dir, "--until-synced"];
        Running::start(satgres, &[&args, options].concat())
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Everything that it has said so far.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Time from then to the first rows of a load that began after it, if they came; `since` counts from the start.
    pub fn first_rows_after(&self, since: Duration) -> Option<Duration> {
        let marked = self.marked.lock().unwrap();
        marked.iter().find(|at| **at > since).map(|at| *at - since)
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until it has said something `count` times.
    pub fn wait_for(&mut self, text: &str, count: usize) {
        let began = Instant::now();
        while self.said().matches(text).count() < count {
            let is_over = !self.is_running() || began.elapsed() > DEADLINE;
            if is_over && self.said().matches(text).count() < count {
                thread::sleep(Duration::from_millis(200));
                let said = self.said();
                assert!(said.matches(text).count() >= count, "it never said {text:?}:\n{said}");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, signal: i32) {
        super::signal(self.pid(), signal);
    }

    /// Waits for its end; returns how it ended and what it said.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let began = Instant::now();
        while self.is_running() {
            assert!(began.elapsed() < DEADLINE, "it does not end:\n{}", self.said());
            thread::sleep(Duration::from_millis(2));
        }
        // Its last lines are on their way.
        thread::sleep(Duration::from_millis(100));
        (self.child.wait().unwrap(), self.said())
    }

    /// Kills it; whatever PostgreSQL does for it goes on.
    pub fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

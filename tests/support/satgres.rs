//! Runs the built `satgres` against a private data directory of its own, and reads its database.
//!
//! In: options of the command line. Out: what it printed, and rows. Dropping a [`Satgres`] stops the private server and
//! removes the directory. It must never see the settings of whoever runs the tests.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::MemoryCgroup;

/// No command takes nearly as long, unless a test says so.
const DEADLINE: Duration = Duration::from_secs(180);

/// A private data directory and, once something ran, its PostgreSQL server.
#[derive(Debug)]
pub struct Satgres {
    dir: TempDir,
    /// Variables of every command, such as SATGRES_DATABASE_URL.
    env: Vec<(String, String)>,
    /// How long a command may take.
    deadline: Duration,
    /// What every command is a member of; removed after the server has ended.
    cgroup: Option<MemoryCgroup>,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub elapsed: Duration,
}

impl Satgres {
    /// A data directory that is not there yet.
    pub fn new() -> Self {
        // The server may run as another user, who has to get through here.
        let permissions = std::fs::Permissions::from_mode(0o755);
        Self {
            dir: tempfile::Builder::new().prefix("satgres-test-").permissions(permissions).tempdir().unwrap(),
            env: Vec::new(),
            cgroup: None,
            deadline: DEADLINE,
        }
    }

    /// The same with a variable in the environment of every command.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// The same inside a cgroup: every command, and the server that it starts.
    pub fn within(mut self, cgroup: MemoryCgroup) -> Self {
        self.cgroup = Some(cgroup);
        self
    }

    /// The cgroup that every command is a member of.
    pub fn cgroup(&self) -> Option<&MemoryCgroup> {
        self.cgroup.as_ref()
    }

    /// The same with more time for every command.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// A data directory below a folder that is there, such as a small disk's.
    pub fn at(folder: &Path) -> Self {
        let permissions = std::fs::Permissions::from_mode(0o755);
        Self {
            dir: tempfile::Builder::new().permissions(permissions).tempdir_in(folder).unwrap(),
            env: Vec::new(),
            cgroup: None,
            deadline: DEADLINE,
        }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The private server's first process.
    pub fn postmaster(&self) -> i32 {
        let text = std::fs::read_to_string(self.data_dir().join("pg/postmaster.pid")).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }

    /// Replays a blocks folder until it is synced; panics unless it succeeds.
    pub fn run(&self, network: &str, blocks_dir: &Path, options: &[&str]) -> Finished {
        let finished = self.try_run(network, blocks_dir, options);
        assert!(finished.status.success(), "run failed: {}\n{}", finished.status, finished.stderr);
        assert!(
            finished.output().contains("PROFILE: Entered LIVE sync from start state: "),
            "run did not say that it is synced:\n{}",
            finished.output()
        );
        finished
    }

    /// Panics if a replay succeeds; returns what it said.
    pub fn run_expect_failure(&self, network: &str, blocks_dir: &Path, options: &[&str]) -> String {
        let finished = self.try_run(network, blocks_dir, options);
        let output = finished.output();
        assert!(
            finished.status.code().is_some_and(|code| code != 0),
            "{}, not a failure:\n{output}",
            finished.status
        );
        assert!(!output.contains("panicked at"), "it panicked:\n{output}");
        assert!(!output.contains("Entered LIVE sync"), "it said that it is synced:\n{output}");
        output
    }

    /// Replays, and returns how that ended.
    pub fn try_run(&self, network: &str, blocks_dir: &Path, options: &[&str]) -> Finished {
        let blocks_dir = blocks_dir.to_str().unwrap();
        let mut args = vec!["run", "--network", network, "--blocks-dir", blocks_dir, "--until-synced"];
        args.extend(options);
        self.command(&args)
    }

    /// Rows of a query, NULL as `\N`.
    pub fn psql(&self, sql: &str) -> Vec<Vec<String>> {
        let options = ["-F", "\u{1f}", "-P", "null=\\N", "-v", "ON_ERROR_STOP=1"];
        let lines = self.psql_lines(&options, sql);
        lines.iter().map(|line| line.split('\u{1f}').map(str::to_owned).collect()).collect()
    }

    /// The only value of a query's only row.
    pub fn value(&self, sql: &str) -> String {
        let mut rows = self.psql(sql);
        assert!(rows.len() == 1 && rows[0].len() == 1, "not one value: {rows:?}\n{sql}");
        rows.remove(0).remove(0)
    }

    /// Lines of a query in the text format of `COPY`: fields by tabs, NULL as `\N`.
    pub fn copy(&self, query: &str) -> Vec<String> {
        self.psql_lines(&["-v", "ON_ERROR_STOP=1"], &format!("copy ({query}) to stdout"))
    }

    fn psql_lines(&self, options: &[&str], sql: &str) -> Vec<String> {
        let args = [&["psql", "--", "-X", "-A", "-t", "-q"], options, &["-c", sql]].concat();
        let finished = self.command(&args);
        assert!(finished.status.success(), "{sql}\n{}", finished.stderr);
        finished.stdout.lines().map(str::to_owned).collect()
    }

    /// What `satgres status --json` tells.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.command(&["status", "--json"]).stdout).unwrap()
    }

    /// The four lines of `verify --digest`.
    pub fn digest(&self) -> Vec<String> {
        let finished = self.command(&["verify", "--digest"]);
        assert!(finished.status.success(), "verify --digest: {}\n{}", finished.status, finished.stderr);
        let lines: Vec<String> = finished.stdout.lines().map(str::to_owned).collect();
        let names: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, ["blocks", "transactions", "outputs", "inputs"], "{}", finished.stdout);
        assert!(
            lines.iter().all(|line| line.split(' ').nth(1).is_some_and(|hash| hash.len() == 64)),
            "{lines:?}"
        );
        lines
    }

    /// Panics unless `verify` finds that the database holds what it should.
    pub fn verify(&self) {
        let finished = self.command(&["verify"]);
        assert!(finished.status.success(), "verify: {}\n{}", finished.status, finished.output());
    }

    /// Removes the database but keeps the server: as a new data directory, without the time that initdb takes.
    pub fn forget_chain(&self) {
        let database = self.value("select current_database()");
        let drop = format!("drop database \"{database}\" with (force)");
        let finished = self.command(&["psql", "--", "-X", "-q", "-d", "postgres", "-c", &drop]);
        assert!(finished.status.success(), "{drop}\n{}", finished.stderr);
    }

    /// Starts the binary with `--data-dir` and leaves it to the caller, with both streams to read.
    pub fn start(&self, args: &[&str]) -> Child {
        self.prepare(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs the binary with `--data-dir`; panics if it or its output does not end.
    pub fn command(&self, args: &[&str]) -> Finished {
        let start = Instant::now();
        let mut command = self.prepare(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap()));
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() > self.deadline => {
                    child.kill().unwrap();
                    panic!("satgres {args:?} did not end in {:?}", self.deadline);
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let elapsed = start.elapsed();
        Finished { status, stdout: collect(stdout, args), stderr: collect(stderr, args), elapsed }
    }

    fn prepare(&self, args: &[&str]) -> Command {
        // The big kill matrix is for a release build.
        let binary = std::env::var_os("SATGRES_KILL_BINARY").filter(|path| !path.is_empty());
        // It is started in another directory than the tests.
        let binary = binary.map_or_else(
            || PathBuf::from(env!("CARGO_BIN_EXE_satgres")),
            |path| std::path::absolute(path).unwrap(),
        );
        let mut command = match &self.cgroup {
            None => Command::new(binary),
            Some(cgroup) => {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", "echo $$ >\"$1\" && shift && exec \"$@\"", "sh"])
                    .arg(cgroup.procs())
                    .arg(binary);
                shell
            }
        };
        // Our option stands behind the command's name, since psql's own options may follow.
        let (name, rest) = args.split_at(if args[0] == "pg" { 2 } else { 1 });
        command.args(name).arg("--data-dir").arg(self.data_dir()).args(rest);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            if name.starts_with("SATGRES_") || (name.starts_with("PG") && name != "PG_BIN") {
                command.env_remove(&key);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Finished {
    /// Both streams, for tests that do not care which one it was.
    pub fn output(&self) -> String {
        format!("{}{}", self.stderr, self.stdout)
    }
}

impl Drop for Satgres {
    fn drop(&mut self) {
        // A data directory beside a server of the test's own has none to stop.
        if self.data_dir().join("pg").exists() {
            self.env.retain(|(name, _)| name != "SATGRES_DATABASE_URL");
            let stopped = self.prepare(&["pg", "stop"]).stdout(Stdio::null()).status();
            // Not a panic: it would hide the one that may have brought us here.
            if !stopped.as_ref().is_ok_and(ExitStatus::success) {
                eprintln!("pg stop: {stopped:?}");
            }
        }
    }
}

fn drain(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// What the child wrote. A server that inherited its stream would keep it open for ever: a user's pipe would hang.
fn collect(reader: JoinHandle<Vec<u8>>, args: &[&str]) -> String {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !reader.is_finished() {
        assert!(Instant::now() < deadline, "satgres {args:?} ended, but something keeps its output open");
        thread::sleep(Duration::from_millis(1));
    }
    String::from_utf8(reader.join().unwrap()).unwrap()
}

//! A real Bitcoin Core on regtest that ends with the test.
//!
//! In: a data directory. Out: answers of its RPC. Where no node was built it is `None`, and the test says that it is
//! skipped.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// An address whose key nobody needs.
pub const ADDRESS: &str = "bcrt1qw508d6qejxtdg4y5r3zarvary0c5xw7kygt080";

/// A running node.
#[derive(Debug)]
pub struct Node {
    daemon: Child,
    cli: Command,
    programs: PathBuf,
    data_dir: PathBuf,
}

impl Node {
    /// Starts a node on a data directory and waits until it answers; `why` is the promise that is not tested otherwise.
    pub fn start(data_dir: &Path, options: &[&str], why: &str) -> Option<Node> {
        let Some(programs) = programs() else {
            eprintln!(
                "SKIPPED: {why}: no Bitcoin Core; build it with scripts/bitcoind or set SATGRES_BITCOIND_DIR"
            );
            return None;
        };
        Some(Self::start_with(programs, data_dir.to_owned(), options))
    }

    fn start_with(programs: PathBuf, data_dir: PathBuf, options: &[&str]) -> Node {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let shared =
            ["-regtest".to_owned(), format!("-datadir={}", data_dir.display()), format!("-rpcport={port}")];
        let daemon = Command::new(programs.join("bitcoind"))
            .args(&shared)
            .args(["-server", "-listen=0", "-connect=0", "-dnsseed=0", "-fixedseeds=0"])
            .args(["-maxtipage=3153600000", "-minimumchainwork=0", "-assumevalid=0"])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut cli = Command::new(programs.join("bitcoin-cli"));
        cli.args(&shared).args(["-rpcwait", "-rpcwaittimeout=60"]);
        let node = Node { daemon, cli, programs, data_dir };
        node.cli(&["getblockcount"]);
        node
    }

    /// Stops it and starts it again with other options.
    pub fn restart(mut self, options: &[&str]) -> Node {
        self.cli(&["stop"]);
        self.daemon.wait().unwrap();
        Self::start_with(self.programs.clone(), self.data_dir.clone(), options)
    }

    /// Stops it in good order.
    pub fn stop(mut self) {
        self.cli(&["stop"]);
        self.daemon.wait().unwrap();
    }

    /// Waits until its tip has this height.
    pub fn wait_for_height(&self, height: usize) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.cli(&["getblockcount"]) != height.to_string() {
            assert!(Instant::now() < deadline, "the node did not reach height {height}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What an RPC call returns.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.cli_stdin(arguments, "")
    }

    /// The same with a last argument that is too long for a command line.
    pub fn cli_stdin(&self, arguments: &[&str], last: &str) -> String {
        let mut command = Command::new(self.cli.get_program());
        command.args(self.cli.get_args()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if !last.is_empty() {
            command.arg("-stdin");
        }
        let mut child = command.args(arguments).spawn().unwrap();
        child.stdin.take().unwrap().write_all(last.as_bytes()).unwrap();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        assert!(status.success(), "bitcoin-cli {arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// The folder of bitcoind and bitcoin-cli.
fn programs() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("SATGRES_BITCOIND_DIR") {
        return Some(PathBuf::from(dir));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/bitcoind");
    let Output { status, stdout, .. } = Command::new(script).arg("--check").output().ok()?;
    status.success().then(|| PathBuf::from(String::from_utf8(stdout).unwrap().trim()))
}

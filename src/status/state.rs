//! What a running `satgres run` says of itself, as a small file that anybody who may read the data directory can read.
//!
//! `DATA_DIR/status.json`, replaced as a whole by rename. A file, not a socket: it still tells what was last known once
//! its writer is dead, and needs nobody who listens. It is no interface: `satgres status --json` is.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::process::Identity;
use crate::{prevouts::UtxoGauges, replay::progress::LoadFigures};

/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Version of the file: another one is not read.
pub(super) const FORMAT: u32 = 1;

/// What the service is doing; the words are an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Looking at the block files.
    Scan,
    /// Making, starting or adopting the server.
    StartServer,
    /// Bringing the schema up to date.
    Install,
    /// Choosing the chain, dropping what an interrupted load or a reorg left.
    Compare,
    /// Reading the checkpoint of the UTXO set.
    ResumeUtxos,
    /// Reading the UTXO set back from the database.
    RebuildUtxos,
    /// Loading blocks.
    Load,
    /// Building what indexes are left.
    Restore,
    /// Gathering statistics.
    Analyze,
    /// Giving the server its settings for LIVE.
    EnterLive,
    /// Waiting for the server before the next try.
    WaitForServer,
    /// Waiting for a node that is in initial download or behind.
    WaitForNode,
    /// Everything that the files hold can be queried.
    Live,
}

impl Step {
    /// The phase, in the Hive Application Framework's words: START, REINDEX, RESTORE (entering LIVE sync) or LIVE; WAIT while a
    /// node is waited for.
    #[must_use]
    pub fn phase(self) -> &'static str {
        match self {
            Step::Scan | Step::StartServer | Step::Install | Step::Compare | Step::WaitForServer => "START",
            Step::WaitForNode => "WAIT",
            Step::ResumeUtxos | Step::RebuildUtxos | Step::Load => "REINDEX",
            Step::Restore | Step::Analyze | Step::EnterLive => "RESTORE",
            Step::Live => "LIVE",
        }
    }

    /// The step, for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Step::Scan => "scanning the headers of the block files",
            Step::StartServer => "starting PostgreSQL",
            Step::Install => "installing the schema",
            Step::Compare => "comparing the files with the database",
            Step::ResumeUtxos => "reading the UTXO set's checkpoint",
            Step::RebuildUtxos => "reading the UTXO set back from the database",
            Step::Load => "loading blocks",
            Step::Restore => "creating indexes and constraints as needed",
            Step::Analyze => "gathering statistics",
            Step::EnterLive => "giving PostgreSQL its settings for LIVE",
            Step::WaitForServer => "waiting for PostgreSQL, then trying again",
            Step::WaitForNode => "waiting for the node, which is behind",
            Step::Live => "following the tip: all that is known of the chain is queryable",
        }
    }
}

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of satgres.
    pub satgres_version: String,
    /// The chain.
    pub network: String,
    /// The writer.
    pub process: Identity,
    /// When the service began, seconds since 1970.
    pub started_at: f64,
    /// When this was written, seconds since 1970.
    pub written_at: f64,
    /// [`Step::phase`].
    pub phase: String,
    /// [`Step::words`].
    pub step: String,
    /// When the step began, seconds since 1970.
    pub step_started_at: f64,
    /// How it ended; absent while it runs, and where it was killed.
    pub ended: Option<Ended>,
    /// The user's own database, with host and port; absent where the service works with the private one.
    #[serde(default)]
    pub database: Option<String>,
    /// Process id of the private server.
    pub server_pid: Option<i32>,
    /// The best chain in the files.
    pub files_tip: Option<FilesTip>,
    /// Whether a node chose that chain, and so everything that readers see.
    #[serde(default)]
    pub is_confirmed_by_node: bool,
    /// Height that readers see.
    pub height_attached: Option<u32>,
    /// Segments that there will be, those that are there included.
    pub segments_planned: Option<u64>,
    /// The running load.
    pub load: Option<LoadFigures>,
    /// The tip as it is followed.
    #[serde(default)]
    pub live: Option<LiveFigures>,
    /// The UTXO set, while it is in memory.
    pub utxo_cache: Option<UtxoGauges>,
    /// The memory plans.
    pub plans: Vec<PlanFigures>,
}

/// What is known of the tip while it is followed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveFigures {
    /// Its height.
    pub height: u32,
    /// Its hash, as people know it.
    pub hash: String,
    /// Time in its header, seconds since 1970.
    pub block_timestamp_seconds: u32,
    /// Height of the best node's tip, when it was last asked.
    pub node_height: Option<u32>,
    /// Whether a node is connected; absent where the files alone are followed.
    pub is_node_connected: Option<bool>,
    /// Blocks connected one by one since the service began.
    pub blocks: u64,
    /// Reorgs among that.
    pub reorgs: u64,
    /// How long the last block, or the last reorg, took, seconds.
    pub connect_seconds: f64,
}

/// How a service ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    /// `finished`, `stopped` (by a signal) or `failed`.
    pub how: String,
    /// Its exit code.
    pub exit_code: u8,
    /// What it said.
    pub error: Option<String>,
}

/// The best chain in the files: most work, of blocks that are there and break no rule that is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FilesTip {
    /// Its height.
    pub height: u32,
    /// Its hash, as people know it.
    pub hash: String,
}

/// What the memory plan of a phase allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlanFigures {
    /// `replay`, `restore` or `live`.
    pub phase: String,
    /// Memory planned for, bytes.
    pub ram_bytes: u64,
    /// The service's share, bytes.
    pub service_bytes: u64,
    /// The server's share, without the page cache, bytes.
    pub server_bytes: u64,
    /// Index builds at once.
    pub builds: u64,
}

impl State {
    /// Writes the file in place of an older one, whole or not at all.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, data_dir: &Path) -> io::Result<()> {
        let (path, new) = (path(data_dir), data_dir.join("status.json.new"));
        let text = serde_json::to_string_pretty(self)?;
        let written = replace(&new, text.as_bytes()).and_then(|()| fs::rename(&new, path));
        if written.is_err() {
            // A full disk: the older file stays, its half successor does not.
            let _ = fs::remove_file(&new);
        }
        written
    }

    /// Reads the file; `None` where there is none.
    ///
    /// # Errors
    /// The system's, and what is wrong with the file.
    pub(super) fn read(data_dir: &Path) -> io::Result<Option<State>> {
        let mut options = fs::OpenOptions::new();
        // Whoever owns the directory may put anything there: a pipe would block.
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(path(data_dir)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        let state: State = serde_json::from_str(&text)?;
        if state.format == FORMAT {
            Ok(Some(state))
        } else {
            Err(io::Error::other(format!("another version of satgres ({}) wrote it", state.satgres_version)))
        }
    }
}

/// Writes a new file, never through a link that stands there: as root this is another user's directory.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    // Whoever may enter the directory may read it, whatever the umask.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(bytes)
}

/// The file's place.
#[must_use]
pub(super) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("status.json")
}

/// Now, seconds since 1970.
#[must_use]
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Whole milliseconds, so that they are short in JSON.
    since.as_millis() as f64 / 1e3
}

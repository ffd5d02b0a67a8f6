//! The server process: is it there, start it, stop it, and clear what a killed one left behind.
//!
//! In: a cluster's directory. Out: a running server's process id, port and socket directory, as `postmaster.pid`
//! tells them. The file alone is never believed: a process counts as the server of a directory only if its program
//! is `postgres` and it works in that directory, so neither a stale file nor a reused process id deceives.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    sync::mpsc,
    time::{Duration, Instant},
};

use tracing::{debug, info, warn};

use super::{
    account::{self, Account},
    data_dir::{self, Reach},
};
use crate::process::start_ticks;

/// Longest wait for a server that recovers from a crash.
const READY_WAIT_MAX: Duration = Duration::from_secs(3600);
/// Waits of a stop: a fast one writes a checkpoint first.
pub(super) const STOP_WAITS: StopWaits = StopWaits {
    fast: Duration::from_secs(120),
    sessions: Duration::from_secs(30),
    recovering: Duration::from_secs(10),
    harder: Duration::from_secs(15),
};
/// How long processes that survived their server may take before they are told again, harder each time.
const LEFTOVER_WAIT: Duration = Duration::from_secs(3);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(10);
/// Part of the server's log that a failed start shows, bytes.
const LOG_TAIL_BYTES: u64 = 2000;

/// Why the server process cannot be started, found or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It ended before it was ready.
    #[error("PostgreSQL did not start ({status}); its log {} ends with:\n{tail}", log.display())]
    Died {
        /// How it ended.
        status: String,
        /// The log file.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// It neither became ready nor ended.
    #[error("PostgreSQL (process {pid}) is not ready after {seconds} s; see its log {}", log.display())]
    NotReady {
        /// The server's process.
        pid: i32,
        /// How long it was waited for.
        seconds: u64,
        /// The log file.
        log: PathBuf,
    },
    /// It listens nowhere.
    #[error(
        "PostgreSQL (process {pid}) has no Unix socket: unix_socket_directories is empty\n  help: take that setting out of user.conf, then kill -INT {pid}"
    )]
    NoSocket {
        /// The server's process.
        pid: i32,
    },
    /// It does not stop.
    #[error(
        "PostgreSQL (process {pid}) has not stopped within {seconds} s\n  help: see its log, or stop it at once: kill -QUIT {pid}"
    )]
    NotStopped {
        /// The server's process.
        pid: i32,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Processes of a server that was killed do not go away.
    #[error("processes {pids:?} of a PostgreSQL that was killed still use {}\n  help: kill -9 them", pg_dir.display())]
    Leftovers {
        /// The processes.
        pids: Vec<i32>,
        /// The cluster.
        pg_dir: PathBuf,
    },
    /// A file or process operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or program.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file cannot be handed over.
    #[error(transparent)]
    Account(#[from] account::Error),
}

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postmaster {
    /// Process id.
    pub pid: i32,
    /// Port number: it names the socket's file.
    pub port: u16,
    /// Directory of its Unix socket.
    pub socket_dir: PathBuf,
}

/// What `postmaster.pid` says.
#[derive(Debug, PartialEq, Eq)]
struct PidFile {
    pid: i32,
    port: Option<u16>,
    socket_dir: Option<PathBuf>,
    ready: bool,
}

/// Reads the lines of `postmaster.pid`: pid, data directory, start time, port, socket directory, listen address,
/// shared memory key, status; a starting server has written only the first ones.
fn parse_pid_file(text: &str) -> Option<PidFile> {
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok().filter(|pid| *pid > 0)?;
    let port = lines.nth(2).and_then(|line| line.trim().parse().ok());
    let socket_dir = lines.next().map(str::trim).filter(|line| !line.is_empty()).map(PathBuf::from);
    let ready = lines.nth(2).is_some_and(|line| line.trim() == "ready");
    Some(PidFile { pid, port, socket_dir, ready })
}

fn read_pid_file(pg_dir: &Path) -> Result<Option<PidFile>, Error> {
    let path = pg_dir.join("postmaster.pid");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(parse_pid_file(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { what: "read", path, source }),
    }
}

/// Whether a live process runs `postgres` in the cluster's directory.
pub(super) fn works_in(pid: i32, pg_dir: &Path, account: &Account) -> bool {
    // The account need not be able to reach the directory by its path.
    let Ok(dir) = fs::metadata(pg_dir) else { return false };
    account.look(|| is_server_in(pid, &dir))
}

fn is_server_in(pid: i32, dir: &Metadata) -> bool {
    let proc_dir = PathBuf::from(format!("/proc/{pid}"));
    let Ok(program) = fs::read_link(proc_dir.join("exe")) else { return false };
    // After a package upgrade the link reads "…/postgres (deleted)".
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    if name != "postgres" && name != "postgres (deleted)" {
        return false;
    }
    fs::metadata(proc_dir.join("cwd")).is_ok_and(|cwd| cwd.dev() == dir.dev() && cwd.ino() == dir.ino())
}

/// Process id of the cluster's server, ready or not; `None` where none runs.
pub(super) fn running(pg_dir: &Path, account: &Account) -> Result<Option<i32>, Error> {
    Ok(read_pid_file(pg_dir)?.map(|file| file.pid).filter(|pid| works_in(*pid, pg_dir, account)))
}

/// The cluster's server as its file tells it now: its socket once it has one, whether it was ready, and its process id
/// where that process is there.
#[expect(clippy::type_complexity, reason = "taken apart by its only caller")]
pub(super) fn glance(
    pg_dir: &Path,
    account: &Account,
) -> Result<Option<(Option<i32>, Option<Postmaster>, bool)>, Error> {
    let Some(file) = read_pid_file(pg_dir)? else { return Ok(None) };
    let pid = file.pid;
    let socket = file.port.zip(file.socket_dir).map(|(port, socket_dir)| Postmaster {
        pid,
        port,
        socket_dir: data_dir::resolve(pg_dir, &socket_dir),
    });
    Ok(Some((works_in(pid, pg_dir, account).then_some(pid), socket, file.ready)))
}

/// All processes that run `postgres` in the cluster's directory.
fn processes(pg_dir: &Path, account: &Account) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| works_in(*pid, pg_dir, account)).collect()
}

/// Makes sure that nothing of an earlier server is in the way: waits for its orphaned backends, ends those that
/// stay, removes a pid file whose process id is taken. Only where no server runs.
///
/// # Errors
/// [`Error::Leftovers`].
pub(super) fn clear_leftovers(pg_dir: &Path, account: &Account) -> Result<(), Error> {
    // Their server is dead, so crash recovery is due anyway and ending them the hard way loses nothing.
    for signal in [None, Some(libc::SIGQUIT), Some(libc::SIGKILL)] {
        let found = processes(pg_dir, account);
        if let Some(signal) = signal {
            for pid in &found {
                warn!(pid, signal, "ending a process of a PostgreSQL that was killed");
                // SAFETY: sends a signal to a process that was just seen to be one of this cluster's.
                unsafe { libc::kill(*pid, signal) };
            }
        }
        let began = Instant::now();
        while !processes(pg_dir, account).is_empty() && began.elapsed() < LEFTOVER_WAIT {
            std::thread::sleep(POLL * 5);
        }
    }
    let pids = processes(pg_dir, account);
    if !pids.is_empty() {
        return Err(Error::Leftovers { pids, pg_dir: pg_dir.to_owned() });
    }
    let path = pg_dir.join("postmaster.pid");
    if let Some(file) = read_pid_file(pg_dir)?
        && Path::new(&format!("/proc/{}", file.pid)).exists()
    {
        // PostgreSQL itself removes a stale file, but not one whose number is in use: by another program, or by the
        // dead server's own entry where nobody reaps it (as in many containers).
        info!(pid = file.pid, "removing a stale pid file whose process id is taken");
        fs::remove_file(&path).map_err(|source| Error::Io { what: "remove", path, source })?;
    }
    Ok(())
}

/// Removes the socket's lock file that a killed server left: it names the same process id. Only where no server
/// runs, and only in a directory that no other server uses.
pub(super) fn clear_socket_locks(socket_dir: &Path) -> Result<(), Error> {
    let read = fs::read_dir(socket_dir);
    let entries = read.map_err(|source| Error::Io { what: "read", path: socket_dir.to_owned(), source })?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(".s.PGSQL.") && name.ends_with(".lock") {
            fs::remove_file(&path).map_err(|source| Error::Io {
                what: "remove",
                path: path.clone(),
                source,
            })?;
        }
    }
    Ok(())
}

/// Starts the server in a session of its own, so that it outlives satgres and Ctrl-C, and waits until it is ready.
///
/// # Errors
/// [`Error::Died`] with the end of its log, [`Error::NotReady`].
pub(super) fn spawn(
    program: &Path,
    pg_dir: &Path,
    log: &Path,
    account: &Account,
    reach: Reach,
) -> Result<Postmaster, Error> {
    let io_error = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { what, path, source }
    };
    let mut options = fs::OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let log_file = options.open(log).map_err(io_error("open", log))?;
    account.hand_over(log)?;
    let log_start = log_file.metadata().map_err(io_error("look at", log))?.len();
    let log_too = log_file.try_clone().map_err(io_error("open", log))?;

    let mut command = account.command(program);
    command.stdout(log_file).stderr(log_too);
    // SAFETY: setsid and close_range are async-signal-safe and touch nothing of the parent.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            // Files that satgres inherited must not stay open for as long as the server lives.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    // After the closing of all others, so that this one stays open.
    let told = reach.add_directory(&mut command, pg_dir).map_err(io_error("open directory", pg_dir))?;
    let mut child = command.spawn().map_err(io_error("run", program))?;
    let pid = i32::try_from(child.id()).expect("the kernel's process ids fit 31 bits");
    debug!(pid, "PostgreSQL spawned");
    let (ended_sender, ended) = mpsc::channel();
    // Reaps the server if it ends while satgres lives, so that no zombie passes for a running one.
    std::thread::Builder::new()
        .name("postmaster".to_owned())
        .spawn(move || ended_sender.send(child.wait()))
        .map_err(io_error("watch", program))?;
    wait_ready(pid, pg_dir, log, || match ended.try_recv() {
        Ok(Ok(status)) => Some(status.to_string()),
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => None,
    })
    .map_err(|error| match error {
        Error::Died { status, log, .. } => {
            // The reader knows the directory by its path.
            let path = pg_dir.to_string_lossy();
            let tail = tail(&log, log_start).replace(told.to_string_lossy().as_ref(), &path);
            Error::Died { status, log, tail }
        }
        other => other,
    })
}

/// Waits until a server that somebody else started is ready.
pub(super) fn adopt(pid: i32, pg_dir: &Path, log: &Path, account: &Account) -> Result<Postmaster, Error> {
    wait_ready(pid, pg_dir, log, || (!works_in(pid, pg_dir, account)).then(|| "it ended".to_owned()))
}

fn wait_ready(
    pid: i32,
    pg_dir: &Path,
    log: &Path,
    mut ended: impl FnMut() -> Option<String>,
) -> Result<Postmaster, Error> {
    let began = Instant::now();
    let mut told = Duration::ZERO;
    loop {
        if let Some(PidFile { port: Some(port), socket_dir, ready: true, .. }) =
            read_pid_file(pg_dir)?.filter(|file| file.pid == pid)
        {
            let socket_dir = socket_dir.ok_or(Error::NoSocket { pid })?;
            return Ok(Postmaster { pid, port, socket_dir: data_dir::resolve(pg_dir, &socket_dir) });
        }
        if let Some(status) = ended() {
            return Err(Error::Died { status, log: log.to_owned(), tail: tail(log, 0) });
        }
        let waited = began.elapsed();
        if waited > READY_WAIT_MAX {
            return Err(Error::NotReady { pid, seconds: waited.as_secs(), log: log.to_owned() });
        }
        if waited >= told + Duration::from_secs(10) {
            told = waited;
            info!(seconds = waited.as_secs(), "PostgreSQL is recovering from a crash");
        }
        std::thread::sleep(POLL);
    }
}

/// How long each step of a stop may take before the next, harder one.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopWaits {
    /// Fast: sessions are ended, a checkpoint is written.
    pub(super) fast: Duration,
    /// Until that checkpoint has begun: sessions end at once but for what they cannot leave half done.
    pub(super) sessions: Duration,
    /// The whole of it where the server recovers from a crash: it has no sessions, and its recovery is due again anyway.
    /// PostgreSQL 15 may wait for ever for its checkpointer then.
    pub(super) recovering: Duration,
    /// Immediate, and killed: the next start recovers.
    pub(super) harder: Duration,
}

/// Stops the server: fast, and harder where that does not end. Nothing that was committed is lost by it.
///
/// # Errors
/// [`Error::NotStopped`].
pub(super) fn stop(pid: i32, pg_dir: &Path, account: &Account, waits: &StopWaits) -> Result<(), Error> {
    // A number that another process gets while this one waits is told by its start.
    let Some(start) = start_ticks(pid) else { return Ok(()) };
    let is_ended = || start_ticks(pid).is_none_or(|time| time != start);
    let began = Instant::now();
    for (signal, wait) in
        [(libc::SIGINT, waits.fast), (libc::SIGQUIT, waits.harder), (libc::SIGKILL, waits.harder)]
    {
        if signal != libc::SIGINT {
            let how = if signal == libc::SIGQUIT { "immediate stop" } else { "kill" };
            warn!(
                pid,
                seconds = began.elapsed().as_secs(),
                "PostgreSQL does not stop: {how}, it recovers at its next start"
            );
        }
        // Those of a killed server would end by themselves, unless they are what hangs.
        let children = if signal == libc::SIGKILL { processes(pg_dir, account) } else { Vec::new() };
        for pid in [pid].into_iter().chain(children) {
            kill(pid, signal, pg_dir)?;
        }
        let told = Instant::now();
        // A server that a backend's death has just hit says only later that it recovers, so it is asked all the time.
        let is_due = || match state(pg_dir) {
            _ if signal != libc::SIGINT => wait,
            Some(State::Recovering) => waits.recovering.min(wait),
            Some(State::ShuttingDown) => wait,
            _ => waits.sessions.min(wait),
        };
        while !is_ended() && told.elapsed() <= is_due() {
            std::thread::sleep(POLL);
        }
        if is_ended() {
            return if signal == libc::SIGINT { Ok(()) } else { clear_leftovers(pg_dir, account) };
        }
    }
    Err(Error::NotStopped { pid, seconds: began.elapsed().as_secs() })
}

/// Sends a signal to a process that was just seen to be one of this cluster's; one that has ended is no error.
fn kill(pid: i32, signal: i32, pg_dir: &Path) -> Result<(), Error> {
    // SAFETY: as above.
    if unsafe { libc::kill(pid, signal) } != 0 {
        let source = io::Error::last_os_error();
        if source.raw_os_error() != Some(libc::ESRCH) {
            return Err(Error::Io { what: "stop the server of", path: pg_dir.to_owned(), source });
        }
    }
    Ok(())
}

/// What a server is doing, as far as a stop cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It writes its last checkpoint, or has written it.
    ShuttingDown,
    /// It recovers from a crash.
    Recovering,
    /// Anything else.
    Other,
}

/// What the control file says: the state, a 32-bit number of this machine's byte order, stands at byte 16 in every version
/// (PostgreSQL source, catalog/pg_control.h, `DBState`).
fn state(pg_dir: &Path) -> Option<State> {
    let control = fs::read(pg_dir.join("global/pg_control")).ok()?;
    Some(match u32::from_ne_bytes(control.get(16..20)?.try_into().ok()?) {
        1..=3 => State::ShuttingDown,
        4 => State::Recovering,
        _ => State::Other,
    })
}

/// The last lines that were written to the log since `from`, each indented.
fn tail(log: &Path, from: u64) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> io::Result<Vec<u8>> {
        let mut file = fs::File::open(log)?;
        let start = file.metadata()?.len().saturating_sub(LOG_TAIL_BYTES).max(from);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_files_of_starting_and_ready_servers_are_read() {
        let ready = "4711\n/data/pg\n1764495780\n5432\n/data/run\n\n  5432001    229376\nready   \n";
        let expected =
            PidFile { pid: 4711, port: Some(5432), socket_dir: Some("/data/run".into()), ready: true };
        assert_eq!(parse_pid_file(ready), Some(expected));
        let starting = parse_pid_file("4711\n/data/pg\n1764495780\n5432\n").unwrap();
        assert_eq!(starting, PidFile { pid: 4711, port: Some(5432), socket_dir: None, ready: false });
        assert!(!parse_pid_file(&ready.replace("ready   ", "stopping")).unwrap().ready);
        assert_eq!(parse_pid_file(""), None);
        assert_eq!(parse_pid_file("-4711\n"), None);
    }

    #[test]
    fn this_process_is_no_server() {
        let here = fs::metadata(std::env::current_dir().unwrap()).unwrap();
        assert!(!is_server_in(i32::try_from(std::process::id()).unwrap(), &here));
    }
}

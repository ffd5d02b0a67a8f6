//! A PostgreSQL server that is not satgres' own: made by a test, as an administrator would, and ended with it.
//!
//! In: settings and rules of access. Out: a server with a superuser `postgres` on its socket, reachable by TCP on a port
//! of its own. Also finds servers of other major versions (scripts/postgresql fetches them).

use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use satgres::pg::binaries::Binaries;

use super::{is_root, open, signal, wait_until};

/// A running server.
#[derive(Debug)]
pub struct ExternalServer {
    dir: tempfile::TempDir,
    bin: PathBuf,
    process: Child,
    pub port: u16,
}

impl ExternalServer {
    /// Makes and starts one of the installed version; `conf` is appended to postgresql.conf, `hba` comes after the
    /// superuser's own line in pg_hba.conf.
    pub fn start(conf: &str, hba: &str) -> ExternalServer {
        ExternalServer::of(&Binaries::find(None, None).unwrap().dir, conf, hba)
    }

    /// The same of the programs in a directory, which its user must be able to enter.
    pub fn of(bin: &Path, conf: &str, hba: &str) -> ExternalServer {
        let dir = tempfile::Builder::new().prefix("satgres-test-").tempdir().unwrap();
        open(dir.path());
        let home = dir.path().join("server");
        fs::create_dir(&home).unwrap();
        if is_root() {
            let (uid, gid) = server_user();
            std::os::unix::fs::chown(&home, Some(uid), Some(gid)).unwrap();
        }
        let data = home.join("data");
        let mut initdb = as_server_user(&bin.join("initdb"), &home);
        initdb.args(["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D"]);
        let made = initdb.arg(&data).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        // Free now; nobody else on this machine is likely to take it before the server does.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut text = fs::read_to_string(data.join("postgresql.conf")).unwrap();
        text.push_str(&format!(
            "\nlisten_addresses = 'localhost'\nport = {port}\nunix_socket_directories = '{}'\nfsync = off\n{conf}\n",
            home.display()
        ));
        fs::write(data.join("postgresql.conf"), text).unwrap();
        fs::write(data.join("pg_hba.conf"), format!("local all postgres trust\n{hba}\n")).unwrap();
        let process = spawn(bin, &home);
        let server = ExternalServer { dir, bin: bin.to_owned(), process, port };
        wait_until("the server answers", || server.try_sql("postgres", "select 1").is_ok());
        server
    }

    /// The directory of the socket, the log and `data`.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("server")
    }

    pub fn data(&self) -> PathBuf {
        self.home().join("data")
    }

    /// Runs statements as superuser, each by itself; returns the lines of the answer.
    pub fn sql(&self, database: &str, sql: &str) -> Vec<String> {
        self.try_sql(database, sql).unwrap_or_else(|said| panic!("{sql}\n{said}"))
    }

    fn try_sql(&self, database: &str, sql: &str) -> Result<Vec<String>, String> {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database]);
        psql.arg("-h").arg(self.home()).arg("-p").arg(self.port.to_string());
        for statement in sql.split(";\n") {
            psql.arg("-c").arg(statement);
        }
        let output = psql.stdin(Stdio::null()).output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
    }

    /// A URL by TCP, with or without `?…` at its end.
    pub fn url(&self, user: &str, rest: &str) -> String {
        format!("postgresql://{user}@localhost:{}/{rest}", self.port)
    }

    /// A file of the server's own user, closed to others.
    pub fn put(&self, name: &str, from: &Path) {
        let to = self.data().join(name);
        fs::copy(from, &to).unwrap();
        super::close(&to);
        if is_root() {
            let owner = fs::metadata(self.data()).unwrap();
            std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
    }

    /// Stops the server and starts it again.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Starts it after [`ExternalServer::stop`].
    pub fn start_again(&mut self) {
        self.process = spawn(&self.bin, &self.home());
        wait_until("the server answers again", || self.try_sql("postgres", "select 1").is_ok());
    }

    /// Stops the server; its files stay.
    pub fn stop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            signal(i32::try_from(self.process.id()).unwrap(), libc::SIGINT);
        }
        self.process.wait().unwrap();
    }
}

impl Drop for ExternalServer {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(i32::try_from(self.process.id()).unwrap(), libc::SIGQUIT);
        }
        let _ = self.process.wait();
    }
}

fn spawn(bin: &Path, home: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(home.join("log")).unwrap();
    let mut postgres = as_server_user(&bin.join("postgres"), home);
    postgres.arg("-D").arg(home.join("data")).stdout(log.try_clone().unwrap()).stderr(log);
    postgres.spawn().unwrap()
}

/// A program that runs as the server's user, which root must become.
fn as_server_user(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(home).stdin(Stdio::null());
    if is_root() {
        let (uid, gid) = server_user();
        command.uid(uid).gid(gid);
    }
    command
}

fn server_user() -> (u32, u32) {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line =
        passwd.lines().find(|line| line.starts_with("postgres:")).expect("as root, a user named postgres");
    let mut fields = line.split(':').skip(2).map(|field| field.parse().unwrap());
    (fields.next().unwrap(), fields.next().unwrap())
}

/// Programs of another major version, where the server's user can run them; `None`, with the reason said, where they
/// are not to be had. With SATGRES_SKIP=never that is a failure.
pub struct OtherVersion {
    _dir: tempfile::TempDir,
    pub bin: PathBuf,
}

impl OtherVersion {
    pub fn find(major: u32) -> Option<OtherVersion> {
        let name = format!("SATGRES_POSTGRESQL_{major}_DIR");
        let Some(from) = std::env::var_os(&name) else {
            assert!(
                std::env::var_os("SATGRES_SKIP").is_none_or(|skip| skip != "never"),
                "{name} is not set: PostgreSQL {major} is missing"
            );
            eprintln!(
                "SKIPPED: no PostgreSQL {major} ({name} names its folder; scripts/postgresql {major} fetches it)"
            );
            return None;
        };
        // The cache may lie where the server's user has no access.
        let dir = tempfile::Builder::new().prefix("satgres-test-").tempdir().unwrap();
        open(dir.path());
        let to = dir.path().join("postgresql");
        let copied = Command::new("cp").arg("-R").arg(&from).arg(&to).status().unwrap();
        assert!(copied.success(), "cp {}", from.display());
        open(&to);
        Some(OtherVersion { _dir: dir, bin: to.join("bin") })
    }
}

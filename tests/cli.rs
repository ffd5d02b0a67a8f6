//! The command line as a user meets it: output, exit codes, layers, and what happens when commands collide or die.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use support::{DataDir, is_postgres, is_root, signal, wait_until};

const SATGRES: &str = env!("CARGO_BIN_EXE_satgres");

/// The command in a directory without a configuration file, and without the caller's own settings.
fn satgres(args: &[&str]) -> Command {
    let mut command = Command::new(SATGRES);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SATGRES_")) {
        command.env_remove(name);
    }
    command.args(args).current_dir("/").stdin(Stdio::null());
    command
}

fn run(dir: &DataDir, args: &[&str]) -> Output {
    satgres(args).arg(format!("--data-dir={}", dir.path().display())).output().unwrap()
}

fn psql(dir: &DataDir, args: &[&str]) -> Output {
    let mut all = vec!["psql", "--data-dir", dir.path().to_str().unwrap(), "--"];
    all.extend(args);
    satgres(&all).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn psql_gives_its_own_output_and_exit_status_and_nothing_else() {
    let dir = DataDir::new();
    let first = psql(&dir, &["-Atc", "select 1"]);
    assert_eq!((stdout(&first).as_str(), first.status.code()), ("1\n", Some(0)), "{}", stderr(&first));
    assert!(stderr(&first).contains("PostgreSQL started"), "logs go to stderr: {}", stderr(&first));
    let again = psql(&dir, &["-Atc", "select current_database(), current_user"]);
    assert_eq!((stdout(&again).as_str(), stderr(&again).as_str()), ("satgres|satgres\n", ""));
    let failed = psql(&dir, &["-v", "ON_ERROR_STOP=1", "-f", "/dev/stdin"]);
    assert_eq!(failed.status.code(), Some(0), "an empty script succeeds");
    let script = dir.parent().join("script.sql");
    fs::write(&script, "select 1/0;\n").unwrap();
    let failed = psql(&dir, &["-q", "-v", "ON_ERROR_STOP=1", "-f", script.to_str().unwrap()]);
    assert_eq!((stdout(&failed).as_str(), failed.status.code()), ("", Some(3)));
    assert!(stderr(&failed).contains("division by zero"));
    // Another database is still one of the same server, whatever the caller's environment says.
    let mut other = satgres(&["psql", "--data-dir", dir.path().to_str().unwrap(), "--"]);
    other.args(["-Atc", "select current_database()", "postgres"]).env("PGHOST", "nowhere").env("PGPORT", "1");
    assert_eq!(stdout(&other.output().unwrap()), "postgres\n");
}

#[test]
fn url_serves_any_psql_and_pg_stop_and_start_do_what_they_say() {
    let dir = DataDir::new();
    let url = run(&dir, &["url"]);
    assert!(url.status.success(), "{}", stderr(&url));
    let url = stdout(&url);
    assert!(url.starts_with("postgresql://satgres@/satgres?host=") && url.lines().count() == 1, "{url}");
    let psql = Command::new("psql").arg(url.trim()).args(["-Atc", "select 6 * 7"]).output().unwrap();
    assert_eq!(stdout(&psql), "42\n", "{}", stderr(&psql));

    let pid = dir.pid().unwrap();
    let stopped = run(&dir, &["pg", "stop"]);
    assert_eq!((stopped.status.code(), stdout(&stopped).as_str()), (Some(0), ""));
    assert!(!is_postgres(pid));
    let nothing = run(&dir, &["pg", "stop"]);
    assert_eq!(nothing.status.code(), Some(0));
    assert!(stderr(&nothing).contains("no PostgreSQL was running"));
    let started = run(&dir, &["pg", "start"]);
    assert_eq!((started.status.code(), stdout(&started).as_str()), (Some(0), ""));
    assert!(is_postgres(dir.pid().unwrap()));
}

#[test]
fn the_server_outlives_satgres_and_its_terminal() {
    let dir = DataDir::new();
    assert!(run(&dir, &["pg", "start"]).status.success());
    let pid = dir.pid().unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name: state, parent, process group, session.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let expected = pid.to_string();
    assert_eq!((fields[2], fields[3]), (expected.as_str(), expected.as_str()), "a session of its own");
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let file = fs::read_link(descriptor.path()).unwrap_or_default();
        let file = file.to_string_lossy();
        assert!(!file.contains("satgres.lock"), "the server holds {file}");
    }
}

#[test]
fn two_commands_at_once_make_one_server() {
    let dir = DataDir::new();
    let spawn = || {
        let mut command = satgres(&["url", "--data-dir", dir.path().to_str().unwrap()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children = [spawn(), spawn(), spawn()];
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    for output in &outputs {
        assert!(output.status.success(), "{}", stderr(output));
        assert_eq!(output.stdout, outputs[0].stdout);
    }
    let started: usize =
        outputs.iter().map(|output| stderr(output).matches("PostgreSQL started").count()).sum();
    assert_eq!(started, 1);
}

#[test]
fn a_satgres_killed_while_it_makes_the_cluster_leaves_nothing_in_the_way() {
    killed_while_it_makes_the_cluster(&DataDir::new());
    killed_while_it_makes_the_cluster(&DataDir::below_a_closed_one());
}

fn killed_while_it_makes_the_cluster(dir: &DataDir) {
    let arg = format!("--data-dir={}", dir.path().display());
    // At several moments: the directory just made, half filled, nearly done.
    for file in ["pg.new", "pg.new/base", "pg.new/global/pg_control"] {
        let mut child = satgres(&["pg", "start"]).arg(&arg).stderr(Stdio::null()).spawn().unwrap();
        wait_until("initdb is at work", || dir.path().join(file).exists());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!dir.pg_dir().exists(), "killed too late at {file}");
    }
    let output = psql(dir, &["-Atc", "select 'up'"]);
    assert_eq!(stdout(&output), "up\n", "{}", stderr(&output));
    assert!(
        stderr(&output).contains("removed a cluster whose making was interrupted"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_killed_server_is_back_for_the_next_command() {
    let dir = DataDir::new();
    assert!(psql(&dir, &["-qc", "create table kept as select 42 as n"]).status.success());
    let pid = dir.pid().unwrap();
    signal(pid, libc::SIGKILL);
    let output = psql(&dir, &["-Atc", "select n from kept"]);
    assert_eq!(stdout(&output), "42\n", "{}", stderr(&output));
    assert_ne!(dir.pid(), Some(pid));
}

/// In a container root may not see which program another user's process runs.
#[test]
fn root_of_a_container_adopts_and_stops_its_server() {
    if !is_root() {
        eprintln!("skipped: only root runs the server as another user");
        return;
    }
    adopted_and_stopped_in_a_container(&DataDir::new());
    adopted_and_stopped_in_a_container(&DataDir::below_a_closed_one());
}

fn adopted_and_stopped_in_a_container(dir: &DataDir) {
    let contained = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", SATGRES]).args(args);
        command.args(["--data-dir", dir.path().to_str().unwrap()]).current_dir("/").output().unwrap()
    };
    let first = contained(&["url"]);
    assert!(first.status.success(), "{}", stderr(&first));
    let pid = dir.pid().unwrap();
    let sees = Command::new("setpriv")
        .args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "readlink"])
        .arg(format!("/proc/{pid}/exe"))
        .output()
        .unwrap();
    assert!(!sees.status.success(), "the test takes the capability away");
    let second = contained(&["url"]);
    assert_eq!((second.status.code(), &second.stdout), (Some(0), &first.stdout), "{}", stderr(&second));
    assert_eq!(dir.pid(), Some(pid));
    // Its leftovers are seen too.
    signal(pid, libc::SIGKILL);
    assert!(contained(&["pg", "start"]).status.success());
    let pid = dir.pid().unwrap();
    let stopped = contained(&["pg", "stop"]);
    assert!(stopped.status.success() && !is_postgres(pid), "{}", stderr(&stopped));
}

#[test]
fn settings_come_from_the_command_line_the_environment_the_file_and_defaults_in_this_order() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("config")).unwrap();
    let file = "network = \"signet\"\n[replay]\nthreads = 3\nbatch_bytes = \"1MiB\"\nsegment_bytes = 5\n";
    fs::write(temp.path().join("config/satgres.toml"), file).unwrap();
    let config = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = satgres(&["config"]);
        let output = command.args(args).envs(env.iter().copied()).current_dir(temp.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let env =
        [("SATGRES_THREADS", "5"), ("SATGRES_REPLAY_SEGMENT_BYTES", "64KiB"), ("SATGRES_NETWORK", "test")];
    let text = config(&["--network", "regtest"], &env);
    for line in [
        "network = regtest  (--network)\n",
        "replay.threads = 5  (SATGRES_THREADS)\n",
        "replay.segment_bytes = 64KiB  (SATGRES_REPLAY_SEGMENT_BYTES)\n",
        "replay.batch_bytes = 1MiB  (config/satgres.toml, replay.batch_bytes)\n",
        "replay.pipeline_bytes = auto  (default)\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    // Another file in its place, named on the command line or in the environment.
    fs::write(temp.path().join("other.toml"), "network = \"testnet4\"\n").unwrap();
    assert!(config(&["--config", "other.toml"], &[]).contains("network = testnet4  (other.toml, network)"));
    let named = config(&[], &[("SATGRES_CONFIG", "other.toml")]);
    assert!(
        named.contains("network = testnet4") && named.contains("batch_bytes = 4MiB  (default)"),
        "{named}"
    );
}

#[test]
fn mistakes_in_usage_and_configuration_give_exit_code_2() {
    let temp = tempfile::tempdir().unwrap();
    let bad = temp.path().join("bad.toml");
    fs::write(&bad, "[replay]\nsegment_byte = 1\n").unwrap();
    let bad = bad.to_str().unwrap();
    for (args, says) in [
        (&["run", "--network", "bitcoin"][..], "use main, test, testnet4, signet or regtest"),
        (
            &["run", "--segment-bytes", "2GB"],
            "--segment-bytes: \"2GB\" is no valid value: unknown unit \"GB\"",
        ),
        (&["config", "--config", bad], "segment_byte"),
        (&["config", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["run", "--log", "loud"], "--log: \"loud\" is no valid value"),
        (&["run", "--nonsense"], "--nonsense"),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ] {
        let output = satgres(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_missing_or_wrong_server_gives_exit_code_4() {
    let dir = DataDir::new();
    let output = run(&dir, &["url", "--pg-bin", "/nonexistent"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(4), ""));
    assert!(
        stderr(&output)
            .starts_with("error: --pg-bin names /nonexistent, but there is no PostgreSQL server in it")
    );

    let old = dir.parent().join("old");
    fs::create_dir(&old).unwrap();
    for (program, prints) in
        [("postgres", "postgres (PostgreSQL) 14.9"), ("initdb", "initdb (PostgreSQL) 14.9")]
    {
        let path = old.join(program);
        fs::write(&path, format!("#!/bin/sh\necho '{prints}'\n")).unwrap();
        support::open(&path);
    }
    let mut command = satgres(&["url", "--data-dir", dir.path().to_str().unwrap()]);
    let output = command.env("PG_BIN", &old).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("the newest PostgreSQL found is 14.9"), "{}", stderr(&output));
    assert!(stderr(&output).contains("help: sudo apt-get install postgresql"), "{}", stderr(&output));
    assert!(!dir.pg_dir().exists());
}

#[test]
fn help_tells_the_exit_codes_and_gives_examples() {
    for args in [&["--help"][..], &["run", "--help"], &["verify", "--help"], &["help"]] {
        let output = satgres(args).output().unwrap();
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0));
        for line in
            ["Exit codes:", "  0  success", "  2  wrong usage", "  3  the block files", "  5  verify found"]
        {
            assert!(text.contains(line), "{args:?} lacks {line:?}:\n{text}");
        }
    }
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["psql", "--help"],
        &["url", "--help"],
        &["chaingen", "--help"],
    ] {
        assert!(stdout(&satgres(args).output().unwrap()).contains("Example"), "{args:?}");
    }
    for command in ["run", "psql", "url", "pg", "verify"] {
        assert!(stdout(&satgres(&[command, "--help"]).output().unwrap()).contains("--data-dir"), "{command}");
    }
}

/// What root's tests cannot show: an ordinary user's server is the user's own process.
#[test]
fn an_ordinary_user_runs_a_server_of_their_own() {
    if !is_root() {
        eprintln!("skipped: the other tests run as an ordinary user already");
        return;
    }
    let temp = tempfile::Builder::new().prefix("satgres-test-").tempdir().unwrap();
    support::open(temp.path());
    let program = temp.path().join("satgres");
    fs::copy(SATGRES, &program).unwrap();
    let home = temp.path().join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(args);
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_RUNTIME_DIR").env("HOME", &home);
        command.current_dir("/").output().unwrap()
    };
    let output = as_nobody(&["psql", "--", "-Atc", "select current_user"]);
    assert_eq!(stdout(&output), "satgres\n", "{}", stderr(&output));
    let data_dir = home.join(".local/share/satgres");
    assert!(data_dir.join("pg/PG_VERSION").exists(), "the default data directory of a user");
    let pid = fs::read_to_string(data_dir.join("pg/postmaster.pid")).unwrap();
    let pid: i32 = pid.lines().next().unwrap().parse().unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), 65534);

    // root adopts it, as the user who owns it.
    let as_root = satgres(&["psql", "--data-dir", data_dir.to_str().unwrap(), "--", "-Atc", "select 1"]);
    assert_eq!(stdout(&{ as_root }.output().unwrap()), "1\n");
    assert_eq!(as_nobody(&["pg", "stop"]).status.code(), Some(0));
    assert!(!is_postgres(pid));

    // Another user's data directory is refused.
    let theirs = DataDir::new();
    assert!(run(&theirs, &["pg", "start"]).status.success());
    let output = as_nobody(&["url", "--data-dir", theirs.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
    assert!(Path::new(&program).exists());
}

//! The memory plan as a user meets it: what `tune` prints, and what the private server is really given, and when.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use satgres::{
    chaingen,
    pg::{cluster::Cluster, conf, pool},
};
use serde_json::Value;
use support::{DataDir, MemoryCgroup};

fn satgres(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_satgres"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SATGRES_")) {
        command.env_remove(name);
    }
    command.args(args).current_dir("/").stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = satgres(&[&["tune", "--format", "json"], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn tune_simulates_other_machines_and_prints_the_format_alone() {
    let dir = DataDir::new();
    let data_dir = dir.path().to_str().unwrap();
    let machine = ["--ram", "16GiB", "--cpus", "8", "--disk", "ssd", "--data-dir", data_dir];
    let live = json(&[&machine[..], &["--phase", "live"]].concat());
    for (key, value) in [
        ("utxo_cache_bytes", 2_147_483_648_u64),
        ("txnum_cache_bytes", 10_000_000),
        ("pipeline_bytes", 67_108_864),
        ("shared_buffers", 3_570_401_280),
        ("work_mem", 14_680_064),
        ("max_wal_size", 4_294_967_296),
        ("max_parallel_workers_per_gather", 4),
    ] {
        assert_eq!(live[key]["value"], value, "{key}");
        assert!(live[key]["origin"].is_string() && live[key]["why"].is_string(), "{key}");
    }
    assert_eq!(live["shared_buffers"]["origin"], "PGTune (mixed), RAM from --ram");
    assert_eq!(live["max_worker_processes"]["origin"], "PGTune, CPUs from --cpus");
    assert_eq!(live["random_page_cost"]["origin"], "PGTune, disk from --disk");
    let all = json(&machine);
    assert_eq!(all.as_object().unwrap().keys().collect::<Vec<_>>(), ["live", "replay", "restore"]);
    assert_eq!(all["live"], live);
    assert_eq!(all["replay"]["utxo_cache_bytes"]["value"], 3_758_096_384_u64);

    for format in ["table", "postgresql.conf", "json"] {
        let output = satgres(&[&["tune", "--format", format], &machine[..]].concat());
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{format}");
        assert!(stdout(&output).len() > 1_000, "{format}");
    }
    assert!(!dir.path().exists(), "tune needs no database and makes none");
}

#[test]
fn the_default_is_silent_and_what_is_too_large_is_said() {
    for ram in ["0", "1", "64MiB", "512MiB", "1GiB", "2GiB", "4GiB", "8GiB", "64GiB", "1TiB", "17179869184"] {
        let output = satgres(&["tune", "--ram", ram]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{ram}");
    }
    let small = satgres(&["tune", "--ram", "2GiB", "--utxo-cache", "101MiB", "--format", "json"]);
    assert!(stderr(&small).contains("WARN"), "{}", stderr(&small));
    assert!(stderr(&small).contains("101MiB (--utxo-cache) is too large for 2GiB of RAM (--ram)"));
    let plan: Value = serde_json::from_slice(&small.stdout).unwrap();
    assert_eq!(plan["live"]["utxo_cache_bytes"]["value"], 105_906_176);
    assert_eq!(plan["live"]["utxo_cache_bytes"]["origin"], "--utxo-cache");
    let fits = satgres(&["tune", "--ram", "8GiB", "--utxo-cache", "3GiB"]);
    assert_eq!(stderr(&fits), "");
    let large = satgres(&["tune", "--ram", "8GiB", "--utxo-cache", "7GiB"]);
    assert!(stderr(&large).contains("more than 75 % of it"), "{}", stderr(&large));
    let belt = ["--txnum-cache-buckets", "100", "--txnum-cache-bucket-size", "10000", "--phase", "live"];
    assert_eq!(json(&belt)["txnum_cache_bytes"]["value"], 40_000_000);
}

#[test]
fn wrong_values_are_wrong_usage() {
    for args in [
        ["--ram", "16GB"],
        ["--ram", "-1"],
        ["--cpus", "0"],
        ["--disk", "tape"],
        ["--phase", "LIVE"],
        ["--format", "yaml"],
        ["--utxo-cache", "much"],
    ] {
        let output = satgres(&[&["tune"], &args[..]].concat());
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{args:?}");
        assert!(stderr(&output).contains(args[1]), "{}", stderr(&output));
    }
}

#[test]
fn the_limit_of_a_real_cgroup_is_found_and_named() {
    let Some(cgroup) = MemoryCgroup::new(1 << 30) else { return };
    let script = "echo $$ > \"$1\" && exec \"$2\" tune --cpus 2";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([cgroup.procs().as_os_str(), env!("CARGO_BIN_EXE_satgres").as_ref()])
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = format!("RAM 1GiB ({})", cgroup.source());
    assert!(stdout(&output).starts_with(&expected), "{}", stdout(&output));
    assert!(stdout(&output).contains(" = 1GiB of 1GiB\n"));
}

async fn values(cluster: &Cluster, sql: &str) -> Vec<String> {
    let pool = pool::pool(cluster.pg_config(), 1).unwrap();
    let client = pool.get().await.unwrap();
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_real_server_knows_every_key_and_takes_every_file() {
    let dir = DataDir::new();
    let options = satgres::pg::cluster::Options { settings: conf::fixed(), ..dir.options() };
    let mut cluster = Cluster::start(options.clone()).await.unwrap();
    let known = values(&cluster, "select name from pg_settings").await;
    let ours = ["utxo_cache_bytes", "txnum_cache_bytes", "pipeline_bytes"];
    for (phase, plan) in json(&["--ram", "2GiB"]).as_object().unwrap() {
        let keys: Vec<&String> = plan.as_object().unwrap().keys().collect();
        assert!(ours.iter().all(|key| keys.iter().any(|have| have == key)), "{phase}: {keys:?}");
        let unknown: Vec<_> =
            keys.iter().filter(|key| !ours.contains(&key.as_str()) && !known.contains(**key)).collect();
        assert!(unknown.is_empty(), "{phase}: {unknown:?}");
    }
    for (phase, wal_level) in [("replay", "minimal"), ("restore", "minimal"), ("live", "replica")] {
        for ram in ["1", "600MiB", "3GiB"] {
            let file = satgres(&[
                "tune",
                "--phase",
                phase,
                "--ram",
                ram,
                "--cpus",
                "2",
                "--format",
                "postgresql.conf",
            ]);
            fs::write(dir.pg_dir().join("user.conf"), stdout(&file)).unwrap();
            cluster.reconfigure(options.settings.clone()).await.unwrap();
            let errors = "select coalesce(name, '') || coalesce(error, '') from pg_file_settings where error is not null";
            assert_eq!(values(&cluster, errors).await, [""; 0], "{phase} {ram}");
            assert_eq!(values(&cluster, "show wal_level").await, [wal_level], "{phase} {ram}");
        }
    }
    assert_eq!(values(&cluster, "show effective_cache_size").await, ["1816MB"]);
}

/// Replays a chain until it is synced.
fn run(dir: &DataDir, blocks: &Path, options: &[&str]) -> Output {
    let (data_dir, blocks) = (dir.path().to_str().unwrap(), blocks.to_str().unwrap());
    let args =
        ["run", "--network", "regtest", "--until-synced", "--data-dir", data_dir, "--blocks-dir", blocks];
    let output = satgres(&[&args[..], options].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

fn show(dir: &DataDir, names: &[&str]) -> Vec<String> {
    let list: Vec<String> = names.iter().map(|name| format!("current_setting('{name}')")).collect();
    let query = format!("select {}", list.join(", "));
    let output =
        satgres(&["psql", "--data-dir", dir.path().to_str().unwrap(), "--", "-XAt", "-F", ";", "-c", &query]);
    stdout(&output).trim_end().split(';').map(str::to_owned).collect()
}

#[test]
fn the_private_server_restarts_once_between_replay_and_live_and_never_again() {
    let dir = DataDir::new();
    let blocks = dir.parent().join("chain");
    let chain = chaingen::Options { blocks: 130, txs_per_block: 10, seed: 4, out: blocks.clone() };
    chaingen::generate(&chain).unwrap();

    let first = run(&dir, &blocks, &[]);
    let log = stderr(&first);
    assert!(log.contains("memory plan for RAM "), "{log}");
    assert!(log.contains("memory plan, replay: UTXO cache "), "{log}");
    assert!(log.contains("wal_level: minimal -> replica"), "{log}");
    assert_eq!(log.matches("settings of PostgreSQL changed").count(), 1, "{log}");
    assert_eq!(log.matches("restarting PostgreSQL").count(), 1, "{log}");
    assert!(!log.contains("WARN"), "{log}");
    let before_live = log.split("restarting PostgreSQL").next().unwrap();
    assert!(!before_live.contains("Entered LIVE sync"), "{log}");
    assert_eq!(
        show(&dir, &["wal_level", "max_wal_senders", "checkpoint_timeout"]),
        ["replica", "10", "15min"]
    );
    let pid = dir.pid().unwrap();

    // Nothing to load: nothing is restarted, whatever cache is asked for.
    for options in [&[][..], &["--utxo-cache", "0"]] {
        let log = run(&dir, &blocks, options);
        assert_eq!(dir.pid(), Some(pid), "{}", stderr(&log));
        assert!(!stderr(&log).contains("restarting PostgreSQL"), "{}", stderr(&log));
    }

    // The server starts with the settings of LIVE again; the user's own win.
    let planned = show(&dir, &["shared_buffers"]);
    assert!(satgres(&["pg", "stop", "--data-dir", dir.path().to_str().unwrap()]).status.success());
    fs::write(dir.pg_dir().join("user.conf"), "work_mem = '7MB'\nmax_wal_senders = 3\n").unwrap();
    assert_eq!(show(&dir, &["wal_level", "work_mem", "max_wal_senders"]), ["replica", "7MB", "3"]);
    assert_eq!(show(&dir, &["shared_buffers"]), planned);
}

#[test]
fn tune_off_leaves_the_settings_to_the_user() {
    let dir = DataDir::new();
    let blocks = dir.parent().join("chain");
    let chain = chaingen::Options { blocks: 3, txs_per_block: 1, seed: 4, out: blocks.clone() };
    chaingen::generate(&chain).unwrap();
    let output = run(&dir, &blocks, &["--tune", "off"]);
    assert!(!stderr(&output).contains("restarting PostgreSQL"), "{}", stderr(&output));
    let text = fs::read_to_string(dir.pg_dir().join("satgres.conf")).unwrap();
    assert!(!text.contains("shared_buffers") && !text.contains("wal_level"), "{text}");
    assert!(text.contains("client_connection_check_interval"), "{text}");
}

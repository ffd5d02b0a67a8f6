//! `/health` and `/metrics` of a real run: from its first moment, while it loads, while PostgreSQL is dead, and in front of
//! clients who mean no good.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::{HashMap, HashSet},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use satgres::chaingen::{self, Options};
use serde_json::Value;
use support::{Running, Satgres, hold, is_postgres, release, signal, wait_until};

/// An answer takes microseconds; a machine that is busy takes its time to run anybody at all.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(3);

/// A chain of its own, and a data directory that is not there yet.
struct Ground {
    satgres: Satgres,
    chain: tempfile::TempDir,
}

impl Ground {
    fn new(blocks: u32, txs_per_block: u32) -> Ground {
        let chain = tempfile::tempdir().unwrap();
        let out = chain.path().join("blocks");
        chaingen::generate(&Options { blocks, txs_per_block, seed: 1, out }).unwrap();
        Ground { satgres: Satgres::new(), chain }
    }

    fn blocks_dir(&self) -> PathBuf {
        self.chain.path().join("blocks")
    }

    fn start(&self, listen: &str, options: &[&str]) -> Running {
        let blocks_dir = self.blocks_dir();
        let args =
            ["run", "--network", "regtest", "--blocks-dir", blocks_dir.to_str().unwrap(), "--listen", listen];
        Running::start(&self.satgres, &[&args, options].concat())
    }

    /// Where it listens, as its status file says.
    fn address(&self) -> String {
        let file = self.satgres.data_dir().join("status.json");
        let told = || {
            serde_json::from_slice::<Value>(&std::fs::read(&file).ok()?).ok()?["listen"]
                .as_str()
                .map(str::to_owned)
        };
        wait_until("the address is told", || told().is_some());
        told().unwrap()
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

/// Sends bytes and reads until the other side closes; `None` where nobody listens.
fn exchange(address: &str, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The other side may have said no and hung up before all was sent.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
    let headers = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    Some(Answer { status, headers, body: body.to_owned() })
}

fn get(address: &str, path: &str) -> Option<Answer> {
    let began = Instant::now();
    let answer = exchange(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert!(began.elapsed() < ANSWER_WAIT_MAX, "{path} took {:?}", began.elapsed());
    answer
}

/// The health as JSON; its status code and what it says must agree.
fn health(address: &str) -> Option<Value> {
    let answer = get(address, "/health")?;
    let health: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["cache-control"], "no-store");
    let is_ready = health["ready"].as_bool().unwrap();
    assert_eq!(answer.status, if is_ready { 200 } else { 503 }, "{health:#}");
    assert_eq!((health["status"] == "ready", health["reason"].is_null()), (is_ready, is_ready), "{health:#}");
    assert_eq!(health["alive"], true);
    Some(health)
}

fn health_when(address: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let health = health(address).unwrap();
        if wanted(&health) {
            return health;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "waited in vain until {what}: {health:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

type Samples = HashMap<String, f64>;

/// Reads the text format (0.0.4) and accepts nothing that it does not allow: each sample belongs to the metric whose HELP
/// and TYPE stand before it, none comes twice, names and numbers are well-formed. Gives samples by name and labels.
fn parse_metrics(text: &str) -> Samples {
    let is_name = |name: &str| {
        let mut chars = name.chars();
        chars.next().is_some_and(|first| first.is_ascii_lowercase())
            && chars.all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
    };
    let (mut samples, mut seen) = (Samples::new(), HashSet::new());
    let mut helped = None;
    let mut typed: Option<(String, String)> = None;
    let mut is_sampled = true;
    assert!(text.ends_with('\n'), "the last line ends");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(is_sampled, "a metric without samples before {line:?}");
            assert!(is_name(name) && name.starts_with("satgres_") && !help.is_empty(), "{line:?}");
            assert!(seen.insert(name.to_owned()), "{name} comes twice");
            helped = Some(name.to_owned());
            typed = None;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(helped.as_deref(), Some(name), "HELP stands before TYPE");
            assert!(["gauge", "counter"].contains(&kind), "{line:?}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line:?}");
            typed = Some((name.to_owned(), kind.to_owned()));
            is_sampled = false;
        } else {
            let (key, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = key.split_once('{').map_or((key, None), |(name, rest)| (name, Some(rest)));
            let (family, kind) = typed.as_ref().unwrap_or_else(|| panic!("no TYPE before {line:?}"));
            assert_eq!(name, family, "a sample of another metric");
            if let Some(labels) = labels {
                for label in labels.strip_suffix('}').unwrap().split(',') {
                    let (label, value) = label.split_once('=').unwrap();
                    assert!(is_name(label) && value.len() >= 2, "{line:?}");
                    assert!(value.starts_with('"') && value.ends_with('"'), "{line:?}");
                }
            }
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite() && (kind != "counter" || value >= 0.0), "{line:?}");
            assert!(samples.insert(key.to_owned(), value).is_none(), "{key} comes twice");
            is_sampled = true;
        }
    }
    assert!(is_sampled && !samples.is_empty(), "{text}");
    samples
}

fn metrics(address: &str) -> Samples {
    let answer = get(address, "/metrics").unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    parse_metrics(&answer.body)
}

#[test]
fn a_run_is_told_from_second_0_through_its_load_and_the_death_of_its_server() {
    let ground = Ground::new(150, 200);
    let satgres = &ground.satgres;

    // From second 0: nothing is there yet, not even the data directory.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let running = ground.start(&address, &["--until-synced"]);
    let began = Instant::now();
    let first = loop {
        if let Some(health) = health(&address) {
            break health;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "nobody listens");
    };
    assert_eq!((&first["ready"], &first["phase"]), (&false.into(), &"START".into()), "{first:#}");
    let reason = first["reason"].as_str().unwrap();
    assert!(
        reason.contains("starting") || reason.contains("looked at") || reason.contains("absent"),
        "{reason}"
    );
    let early = metrics(&address);
    assert_eq!((early["satgres_alive"], early["satgres_ready"]), (1.0, 0.0));
    assert_eq!(early["satgres_phase{phase=\"START\"}"], 1.0);
    assert!(!early.contains_key("satgres_height_blocks"), "{early:?}");
    let (status, output) = running.wait();
    assert!(status.success(), "{output}");
    assert!(output.contains("answering /health and /metrics") && output.contains(&address), "{output}");
    assert!(health(&address).is_none(), "it ends with the run");
    satgres.forget_chain();

    // While it loads: nothing can be queried yet, then an attached segment can.
    let genesis = tempfile::tempdir().unwrap();
    chaingen::generate(&Options { blocks: 0, txs_per_block: 0, seed: 1, out: genesis.path().into() })
        .unwrap();
    satgres.run("regtest", genesis.path(), &[]);
    let holders = ["ops.index_jobs", "chain.blocks"].map(|table| (table, hold(satgres, table)));
    let options = ["--segment-bytes", "3000000", "--utxo-cache", "1MiB", "--live-sync-threshold", "0"];
    let running = ground.start("127.0.0.1:0", &options);
    let address = ground.address();
    let loading = health_when(&address, "rows are loaded and what is there can be queried", |health| {
        health["ready"] == true
            && health["phase"] == "REINDEX"
            && health["rows_per_second"].as_f64().unwrap() > 0.0
            && health["loading_height"].as_u64() > Some(0)
    });
    assert_eq!((&loading["height"], &loading["files_height"]), (&0.into(), &150.into()), "{loading:#}");
    assert_eq!((&loading["lag_blocks"], &loading["node_height"]), (&150.into(), &Value::Null), "{loading:#}");
    assert!(loading["eta_seconds"].as_f64().unwrap() > 0.0, "{loading:#}");
    let values = metrics(&address);
    assert_eq!((values["satgres_height_blocks"], values["satgres_lag_blocks"]), (0.0, 150.0));
    assert_eq!(values["satgres_phase{phase=\"REINDEX\"}"], 1.0);
    assert!(values["satgres_rows_per_second"] > 0.0 && values["satgres_loaded_rows_total"] > 1000.0);
    assert!(values["satgres_utxo_cache_hits_total"] > 0.0, "{values:?}");
    assert_eq!(values["satgres_index_jobs{state=\"done\"}"], 7.0);
    for (table, holder) in holders {
        release(satgres, table, holder);
    }

    // LIVE.
    let live =
        health_when(&address, "it is LIVE", |health| health["phase"] == "LIVE" && health["height"] == 150);
    let live = if live["ready"] == true {
        live
    } else {
        health_when(&address, "ready", |health| health["ready"] == true)
    };
    assert_eq!((&live["lag_blocks"], &live["last_reorg"]), (&0.into(), &Value::Null), "{live:#}");
    let whole = health_when(&address, "all indexes are told", |health| health["index_jobs"]["done"] == 21);
    assert_eq!(whole["index_jobs"], serde_json::json!({"queued": 0, "running": 0, "done": 21, "failed": 0}));
    let rows = "insert into ops.reorgs (at, fork_height, depth, old_tip, new_tip, seconds) values
        (to_timestamp(1700000000), 138, 3, decode(repeat('aa', 32), 'hex'), decode(repeat('bb', 32), 'hex'), 0.5)";
    assert!(satgres.command(&["psql", "--", "-qc", rows]).status.success());
    health_when(&address, "the reorg is told", |health| health["last_reorg"]["depth_blocks"] == 3);
    let values = metrics(&address);
    assert_eq!(values["satgres_last_reorg_height_blocks"], 138.0);
    assert_eq!(values["satgres_last_reorg_depth_blocks"], 3.0);
    assert_eq!(values["satgres_last_reorg_timestamp_seconds"], 1_700_000_000.0);
    // What the load did is told after its end.
    assert!(values["satgres_loaded_rows_total"] > 10_000.0, "{values:?}");
    assert_eq!(values["satgres_loaded_blocks_total"], 150.0);
    let spends = values["satgres_utxo_cache_hits_total"] + values["satgres_utxo_cache_misses_total"];
    assert!(spends > 1_000.0, "{values:?}");

    // Its PostgreSQL hangs: answers do not.
    let server = satgres.postmaster();
    let family: Vec<i32> = children(server).into_iter().chain([server]).collect();
    family.iter().for_each(|&pid| signal(pid, libc::SIGSTOP));
    let silent = health_when(&address, "it is silent", |health| health["ready"] == false);
    assert_eq!(silent["height"], 150, "what was known stays: {silent:#}");
    assert!(silent["reason"].as_str().unwrap().contains("silent"), "{silent:#}");
    family.iter().for_each(|&pid| signal(pid, libc::SIGCONT));
    health_when(&address, "it answers again", |health| health["ready"] == true);

    // It is killed, and comes back by the run's own doing.
    let server = satgres.postmaster();
    signal(server, libc::SIGKILL);
    let dead = health_when(&address, "it is dead", |health| health["ready"] == false);
    assert_eq!(dead["height"], 150, "{dead:#}");
    let values = metrics(&address);
    assert_eq!((values["satgres_alive"], values["satgres_height_blocks"]), (1.0, 150.0));
    let back =
        health_when(&address, "it is back", |health| health["ready"] == true && health["phase"] == "LIVE");
    assert_ne!(satgres.postmaster(), server);
    assert_eq!((&back["height"], &back["database"]["state"]), (&150.into(), &"up".into()));
    running.signal(15);
    let (status, output) = running.wait();
    assert!(status.success(), "{output}");
    assert!(health(&address).is_none(), "it ends with the run");
}

fn children(pid: i32) -> Vec<i32> {
    let output = Command::new("ps").args(["-o", "pid=", "--ppid", &pid.to_string()]).output().unwrap();
    let pids = String::from_utf8(output.stdout).unwrap();
    pids.split_whitespace().map(|pid| pid.parse().unwrap()).filter(|&pid| is_postgres(pid)).collect()
}

fn rss_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn clients_that_mean_no_good_are_refused_and_hinder_nobody() {
    let ground = Ground::new(5, 1);
    let running = ground.start("0.0.0.0:0", &[]);
    let address = ground.address().replace("0.0.0.0", "127.0.0.1");
    health_when(&address, "it is LIVE", |health| health["phase"] == "LIVE" && health["ready"] == true);
    assert!(running.said().contains("--listen is no loopback address"), "{}", running.said());

    let status = |request: &str| exchange(&address, request.as_bytes()).map(|answer| answer.status);
    assert_eq!(status("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), Some(404));
    assert_eq!(status("GET /health/ HTTP/1.1\r\nHost: x\r\n\r\n"), Some(404));
    assert_eq!(status("GET /health?verbose=1 HTTP/1.1\r\nHost: x\r\n\r\n"), Some(200));
    assert_eq!(status("GET /metrics HTTP/1.0\r\n\r\n"), Some(200));
    assert_eq!(status("DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some(405));
    let posted =
        exchange(&address, b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000000\r\n\r\nabc")
            .unwrap();
    assert_eq!((posted.status, posted.headers["allow"].as_str()), (405, "GET, HEAD"));
    let head = exchange(&address, b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert!(head.headers["content-length"].parse::<usize>().unwrap() > 100);

    for garbage in
        ["\0\x01\x02\x03\r\n\r\n", "GET\r\n\r\n", "hello there\r\n\r\n", "GET /health HTTP/9.9\r\n\r\n"]
    {
        assert_eq!(status(garbage), Some(400), "{garbage:?}");
    }
    let large = format!("GET /health HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert!(matches!(status(&large), None | Some(400 | 431)), "{:?}", status(&large));
    let many: String = (0..200).map(|number| format!("X{number}: y\r\n")).collect();
    assert_eq!(status(&format!("GET /health HTTP/1.1\r\nHost: x\r\n{many}\r\n")), Some(431));
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000));
    assert!(matches!(status(&long), None | Some(400 | 414 | 431)), "{:?}", status(&long));

    // More connections than are kept, silent or dripping: whoever asks is answered all the same.
    let before = rss_kib(running.pid());
    let mut idle: Vec<TcpStream> = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(&address).unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET /health HTTP/1.1\r\nX: ").unwrap();
        }
        idle.push(stream);
    }
    health(&address).unwrap();
    metrics(&address);
    let open = std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count();
    assert!(open < 64 + 60, "{open} descriptors are open");
    assert!(rss_kib(running.pid()) < before + (20 << 10), "it grows: {before} KiB before");
    // The slow are not waited for.
    let began = Instant::now();
    let mut last = idle.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    while began.elapsed() < Duration::from_secs(60) && last.write_all(b"x").is_ok() {
        last.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut byte = [0; 1];
        match last.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => rest.push(byte[0]),
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    assert!(began.elapsed() < Duration::from_secs(40), "it was waited for {:?}", began.elapsed());
    health(&address).unwrap();
}

#[test]
fn an_address_in_use_ends_the_run_before_anything_is_changed() {
    let ground = Ground::new(1, 0);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let finished = ground.satgres.try_run("regtest", &ground.blocks_dir(), &["--listen", &address]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.output());
    let told = format!("error: cannot listen on {address}\n  help: ");
    assert!(
        finished.stderr.contains(&told) && finished.stderr.contains("Address already in use"),
        "{}",
        finished.stderr
    );
    assert!(!ground.satgres.data_dir().exists());
    let wrong = ground.satgres.try_run("regtest", &ground.blocks_dir(), &["--listen", "9332"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", wrong.output());
    assert!(wrong.stderr.contains("--listen: \"9332\" is no valid value: use IP:PORT"), "{}", wrong.stderr);
}

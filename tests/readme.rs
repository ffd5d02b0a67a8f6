//! The README against the program: its queries run on a small chain, its commands are accepted, its tables are those of
//! the code.
//!
//! The queries name heights, a transaction and an address of mainnet; the chain here is a generated one, so those are
//! replaced by its own. Everything else is executed as it stands.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use satgres::{
    chaingen::{self, Options},
    config::OPTIONS,
    pg::binaries::Binaries,
};
use support::Satgres;

/// Names in the README, and those of the test's chain; of the other two see [`replacements`].
const HEIGHTS: [(&str, &str); 3] = [("840000", "150"), ("840999", "179"), ("841000", "180")];
const TXID: &str = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16";
const ADDRESS: &str = "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa";

fn readme() -> String {
    read("README.md")
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The contents of the fenced blocks of a language.
fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let parts: Vec<&str> = markdown.split("```").collect();
    assert_eq!(parts.len() % 2, 1, "a fence is not closed");
    let fenced = parts.iter().skip(1).step_by(2);
    fenced.filter_map(|block| block.strip_prefix(&format!("{language}\n"))).map(str::to_owned).collect()
}

/// The statements of all SQL blocks.
fn queries() -> Vec<String> {
    let text = blocks(&readme(), "sql").concat();
    text.split_inclusive(";\n").map(|query| query.trim().to_owned()).collect()
}

/// The command lines of all shell blocks, without their comments.
fn command_lines(markdown: &str) -> Vec<String> {
    let text = blocks(markdown, "sh").concat();
    let code = |line: &str| line.split("  #").next().unwrap_or(line).trim().to_owned();
    text.lines().map(code).filter(|line| !line.is_empty()).collect()
}

/// A loaded chain of 200 blocks.
struct Loaded {
    satgres: Satgres,
    chain: tempfile::TempDir,
}

impl Loaded {
    fn new() -> Loaded {
        let chain = tempfile::tempdir().unwrap();
        let blocks_dir = chain.path().join("blocks");
        chaingen::generate(&Options { blocks: 200, txs_per_block: 30, seed: 1, out: blocks_dir.clone() })
            .unwrap();
        let satgres = Satgres::new();
        satgres.run("regtest", &blocks_dir, &[]);
        Loaded { satgres, chain }
    }

    fn blocks_dir(&self) -> PathBuf {
        self.chain.path().join("blocks")
    }

    /// What stands here for the README's transaction and address.
    fn replacements(&self) -> Vec<(String, String)> {
        let txid = self.satgres.value(
            "select txid from api.transactions where height = 160 and not is_coinbase order by tx_num limit 1",
        );
        let address = self.satgres.value(
            "select chain.script_address((array_agg(o.script))[1]) from chain.utxos o
             group by o.script_hash order by count(*) desc limit 1",
        );
        let mut all = vec![(TXID.to_owned(), txid), (ADDRESS.to_owned(), address)];
        all.extend(HEIGHTS.iter().map(|(readme, here)| ((*readme).to_owned(), (*here).to_owned())));
        all
    }

    /// Runs a line of the README in a shell that finds `satgres` and psql.
    fn shell(&self, line: &str) -> Output {
        let bin = Path::new(env!("CARGO_BIN_EXE_satgres")).parent().unwrap();
        let server = Binaries::find(None, None).unwrap().dir;
        let path = format!("{}:{}:{}", bin.display(), server.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SATGRES_"))
        {
            command.env_remove(name);
        }
        command
            .args(["-euo", "pipefail", "-c", line])
            .env("PATH", path)
            .env("SATGRES_DATA_DIR", self.satgres.data_dir())
            .env("SATGRES_NETWORK", "regtest")
            .env("SATGRES_BLOCKS_DIR", self.blocks_dir())
            .current_dir(self.chain.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

#[test]
fn every_query_runs_and_finds_something() {
    let loaded = Loaded::new();
    let replacements = loaded.replacements();
    let queries = queries();
    assert!(queries.len() >= 12, "the README shows only {} queries", queries.len());
    let mut unused: BTreeSet<&str> = replacements.iter().map(|(readme, _)| readme.as_str()).collect();
    for query in queries {
        assert!(query.ends_with(';'), "a query without its end: {query}");
        let mut here = query.clone();
        for (readme, replacement) in &replacements {
            if here.contains(readme.as_str()) {
                unused.remove(readme.as_str());
                here = here.replace(readme, replacement);
            }
        }
        let rows = loaded.satgres.psql(&here);
        assert!(!rows.is_empty(), "no row: {here}");
        assert!(rows.iter().flatten().any(|value| value != "\\N" && value != "0"), "{rows:?}\n{here}");
    }
    assert_eq!(unused, BTreeSet::new(), "no query names these any more");
}

#[test]
fn every_command_is_accepted() {
    let loaded = Loaded::new();
    let mut executed = 0;
    let mut commands = command_lines(&readme());
    commands.extend(command_lines(&read("CONTRIBUTING.md")));
    for line in commands {
        let program = line.split_whitespace().next().unwrap();
        let tried = if program.contains('/') {
            assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(program).is_file(), "there is no {program}");
            continue;
        } else if program == "cargo" {
            continue;
        } else if line.starts_with("satgres run") {
            // The same options; it shows what they mean instead of loading a chain.
            line.replacen("satgres run", "satgres config", 1)
        } else if line.starts_with("satgres chaingen") {
            // Its help comes once all options before it have been read.
            format!("{line} --help")
        } else if line == "satgres psql" {
            // Without input it ends at once.
            line.clone()
        } else {
            assert!(line.contains("satgres "), "a command that nobody knows: {line}");
            line.clone()
        };
        let output = loaded.shell(&tried);
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        executed += 1;
    }
    assert!(executed >= 10, "only {executed} commands of the README were executed");
    // A misspelt option does not pass: what was checked above can fail.
    assert_eq!(loaded.shell("satgres config --segment-byte 1GiB").status.code(), Some(2));
    assert_eq!(loaded.shell("satgres chaingen --block 1000 --help").status.code(), Some(2));
}

#[test]
fn the_tables_are_those_of_the_database() {
    let readme = readme();
    let text = blocks(&readme, "text").into_iter().find(|block| block.starts_with("chain.blocks")).unwrap();
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut table = String::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().peekable();
        if let Some(name) = words.next_if(|_| line.starts_with("chain.")) {
            name.clone_into(&mut table);
        }
        let columns = words.map(|word| word.trim_end_matches(',').to_owned());
        told.entry(table.clone()).or_default().extend(columns);
    }

    let satgres = Satgres::new();
    let blocks_dir = tempfile::tempdir().unwrap();
    let out = blocks_dir.path().join("blocks");
    chaingen::generate(&Options { blocks: 1, txs_per_block: 0, seed: 1, out: out.clone() }).unwrap();
    satgres.run("regtest", &out, &[]);
    let rows = satgres.psql(
        "select c.oid::regclass, string_agg(a.attname, ' ' order by a.attnum)
         from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
         where c.relnamespace = 'chain'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
         group by c.oid",
    );
    let found: BTreeMap<String, Vec<String>> = rows
        .into_iter()
        .map(|row| (row[0].clone(), row[1].split(' ').map(str::to_owned).collect()))
        .collect();
    assert_eq!(told, found);

    let views_and_functions = satgres.psql(
        "select 'api.' || relname from pg_class where relnamespace = 'api'::regnamespace and relkind = 'v'
         union all select 'api.' || proname from pg_proc where pronamespace = 'api'::regnamespace",
    );
    for row in views_and_functions {
        assert!(readme.contains(&format!("`{}`", row[0])), "the README does not name {}", row[0]);
    }
}

#[test]
fn the_settings_and_exit_codes_are_those_of_the_program() {
    let readme = readme();
    for option in OPTIONS {
        let default = option.default.trim_matches('"');
        let row = format!("| `{}` | `{}` | {default} | ", option.key, option.flag());
        assert!(readme.contains(&row), "the README has no row {row}");
    }
    let rows = readme.lines().filter(|line| line.starts_with("| `") && line.contains("| `--")).count();
    assert_eq!(rows, OPTIONS.len());

    let codes: Vec<(&str, &str)> = satgres::exit_codes!()
        .lines()
        .filter_map(|line| line.trim().split_once("  ").or_else(|| line.trim().split_once(' ')))
        .filter(|(code, _)| code.parse::<u8>().is_ok())
        .collect();
    assert_eq!(codes.len(), 8, "{codes:?}");
    for (code, meaning) in codes {
        let row = format!("| {code} | {meaning} |");
        assert!(readme.contains(&row), "the README has no row {row}");
    }
}

#[test]
fn every_file_that_is_linked_exists() {
    for name in
        ["README.md", "CONTRIBUTING.md", "docs/operations.md", "docs/configuration.md", "docs/status.md"]
    {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).parent().unwrap().to_owned();
        for link in read(name).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.starts_with("http") {
                let file = link.split('#').next().unwrap();
                assert!(folder.join(file).exists(), "{name} links to {link}");
            }
        }
    }
}

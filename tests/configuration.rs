//! docs/configuration.md against the program: every option with its name and default, and its examples.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    process::{Command, Output},
};

use satgres::config::OPTIONS;

fn page() -> String {
    fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md")).unwrap()
}

/// The contents of the fenced blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// `satgres config`, where nothing else is set.
fn config(shell: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_satgres")).parent().unwrap();
    Command::new("bash")
        .args(["-euc", shell])
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", program.display()))
        .env("HOME", directory.path())
        .current_dir(directory.path())
        .output()
        .unwrap()
}

fn shown(shell: &str) -> String {
    let output = config(shell);
    assert!(output.status.success(), "{shell}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_option_has_its_section_with_name_and_default_and_no_other_has_one() {
    let page = page();
    let sections: Vec<&str> = page.split("\n### ").skip(1).collect();
    let headings: Vec<&str> = sections.iter().map(|section| section.lines().next().unwrap()).collect();
    let mut expected: Vec<String> = OPTIONS.iter().map(|option| format!("`{}`", option.key)).collect();
    let mut found: Vec<String> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    for option in OPTIONS {
        let heading = format!("`{}`\n\n", option.key);
        let section = sections.iter().find(|section| section.starts_with(&heading)).unwrap();
        let begins =
            format!("{heading}`{}`, default `{}`. ", option.flag(), option.default.trim_matches('"'));
        assert!(section.starts_with(&begins), "{begins:?} is not the beginning of:\n{section}");
    }
}

#[test]
fn the_examples_are_accepted() {
    let page = page();
    let lines: Vec<&str> = blocks(&page, "sh").iter().flat_map(|block| block.lines()).collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        shown(line);
    }
    for file in blocks(&page, "toml") {
        let said =
            shown(&format!("cat >satgres.toml <<'END'\n{file}END\nsatgres config --config satgres.toml"));
        assert!(said.contains("\nreplay.utxo_cache = 4GiB  (satgres.toml, replay.utxo_cache)\n"), "{said}");
        assert!(said.contains("\nstore.witness = none  ("), "{said}");
    }
}

#[test]
fn what_wins_is_what_the_page_says() {
    let file = "mkdir config; printf '[replay]\\nsegment_bytes = \"1GiB\"\\n' >config/satgres.toml; ";
    let value = |shell: &str| {
        let said = shown(&format!("{file}{shell}"));
        said.lines().find(|line| line.starts_with("replay.segment_bytes")).unwrap().to_owned()
    };
    assert_eq!(
        value("satgres config"),
        "replay.segment_bytes = 1GiB  (config/satgres.toml, replay.segment_bytes)"
    );
    assert_eq!(
        value("SATGRES_REPLAY_SEGMENT_BYTES=2gib satgres config"),
        "replay.segment_bytes = 2GiB  (SATGRES_REPLAY_SEGMENT_BYTES)"
    );
    assert_eq!(
        value("SATGRES_REPLAY_SEGMENT_BYTES=2GiB SATGRES_SEGMENT_BYTES=3GiB satgres config"),
        "replay.segment_bytes = 3GiB  (SATGRES_SEGMENT_BYTES)"
    );
    assert_eq!(
        value("SATGRES_SEGMENT_BYTES= satgres config"),
        "replay.segment_bytes = 1GiB  (config/satgres.toml, replay.segment_bytes)"
    );
    assert_eq!(
        value("SATGRES_SEGMENT_BYTES=3GiB satgres config --segment-bytes 4GiB"),
        "replay.segment_bytes = 4GiB  (--segment-bytes)"
    );
    for wrong in ["satgres config --segment-bytes 1GB", "echo 'segments = 1' >a; satgres config --config a"] {
        assert_eq!(config(wrong).status.code(), Some(2), "{wrong}");
    }
}

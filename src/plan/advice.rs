//! What a server that is not ours could do better: its settings compared with the plan, the five that matter most.
//!
//! In: the settings as `pg_settings` has them, and the plans for REPLAY and LIVE. Out: [`Advice`], the weightiest first.
//! Called by `run` and by `tune` where a `--database-url` is given. Pure, and advice only: nothing is changed. It never
//! advises against durability. What a session may set itself (the sort memory of an index build, jit of our own queries) is
//! set by satgres, so it is no advice.

use std::{collections::BTreeMap, fmt};

use super::{Plan, Value, pgtune};
use crate::resources::ServerPlace;

/// Most that are told: who is given twenty lines changes none.
pub const ADVICE_MAX: usize = 5;

/// The settings that are looked at.
pub const NAMES: &[&str] = &[
    "archive_mode",
    "autovacuum",
    "checkpoint_timeout",
    "effective_cache_size",
    "effective_io_concurrency",
    "fsync",
    "full_page_writes",
    "jit",
    "max_wal_size",
    "random_page_cost",
    "shared_buffers",
    "wal_compression",
    "wal_level",
    "work_mem",
];

/// A setting as `pg_settings` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Column `setting`: a number without its unit, or a word.
    pub setting: String,
    /// Column `unit`: `8kB`, `kB`, `MB`, `s`, …
    pub unit: Option<String>,
}

/// The settings of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Running {
    /// By name.
    pub settings: BTreeMap<String, Reading>,
    /// Whether a replica or a backup holds a replication slot.
    pub has_slots: bool,
}

impl Running {
    fn text(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(|reading| reading.setting.as_str())
    }

    /// A number in bytes or seconds, where it has such a unit; -1 and its like are no number.
    fn number(&self, name: &str) -> Option<f64> {
        let reading = self.settings.get(name)?;
        let number: f64 = reading.setting.parse().ok()?;
        let unit = match reading.unit.as_deref() {
            None | Some("") | Some("B") | Some("s") => 1.0,
            Some("kB") => 1024.0,
            Some("8kB") => 8192.0,
            Some("MB") => 1_048_576.0,
            Some("min") => 60.0,
            Some("ms") => 0.001,
            Some(_) => return None,
        };
        (number >= 0.0).then_some(number * unit)
    }

    /// The value for people, as `show` would print it.
    fn shown(&self, name: &str) -> String {
        let Some(reading) = self.settings.get(name) else { return "unknown".to_owned() };
        match (reading.unit.as_deref(), self.number(name)) {
            (Some("B" | "kB" | "8kB" | "MB"), Some(bytes)) => pgtune::format_kb(bytes as u64 / 1024),
            (Some("s"), Some(seconds)) if (seconds as u64).is_multiple_of(60) => {
                format!("{}min", seconds as u64 / 60)
            }
            (unit, _) => format!("{}{}", reading.setting, unit.unwrap_or_default()),
        }
    }
}

/// One setting that should be another, and what that would bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// Name of the setting.
    pub setting: &'static str,
    /// What it is.
    pub now: String,
    /// What it should be.
    pub wanted: String,
    /// What that brings.
    pub effect: String,
    /// How it takes effect: `a reload`, `a restart`.
    pub takes: &'static str,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}; {} would be better: {} ({})",
            self.setting, self.now, self.wanted, self.effect, self.takes
        )
    }
}

/// Compares a server with the plans and returns at most [`ADVICE_MAX`], the weightiest first.
///
/// The memory of another host is not known: there only what does not depend on it is compared.
#[must_use]
pub fn advise(running: &Running, replay: &Plan, live: &Plan, place: ServerPlace) -> Vec<Advice> {
    let mut found: Vec<(u32, Advice)> = Vec::new();
    durability(running, &mut found);
    wal(running, replay, live, &mut found);
    memory(running, live, place, &mut found);
    planner(running, live, place, &mut found);
    found.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    found.into_iter().take(ADVICE_MAX).map(|(_, advice)| advice).collect()
}

const RELOAD: &str = "alter system, then pg_reload_conf()";
const RESTART: &str = "alter system, then a restart of the server";

fn advice(
    running: &Running,
    setting: &'static str,
    wanted: String,
    effect: String,
    takes: &'static str,
) -> Advice {
    Advice { setting, now: running.shown(setting), wanted, effect, takes }
}

/// What satgres counts on.
fn durability(running: &Running, found: &mut Vec<(u32, Advice)>) {
    let mut off = |weight, setting, effect: &str| {
        if running.text(setting) == Some("off") {
            found.push((weight, advice(running, setting, "on".to_owned(), effect.to_owned(), RELOAD)));
        }
    };
    off(
        1000,
        "fsync",
        "a crash of the machine can destroy the whole database, and a resumed load would not notice",
    );
    off(
        900,
        "full_page_writes",
        "a page torn by a crash is not repaired, unless the file system never tears one",
    );
    off(300, "autovacuum", "statistics grow old and transaction numbers run out");
}

/// A planned number: bytes, or seconds of a time in minutes.
fn planned(plan: &Plan, key: &str) -> Option<(f64, String)> {
    let value = &plan.entry(key)?.value;
    let number = match value {
        Value::Bytes(number) | Value::Count(number) => *number as f64,
        Value::Number(number) => *number,
        Value::Text(text) => text.strip_suffix("min")?.parse::<f64>().ok()? * 60.0,
    };
    Some((number, value.to_postgres()))
}

/// Whether a setting is less than half of what is planned, and the plan.
fn too_small(running: &Running, plan: &Plan, key: &str) -> Option<String> {
    let (wanted, text) = planned(plan, key)?;
    (running.number(key)? < wanted / 2.0).then_some(text)
}

fn wal(running: &Running, replay: &Plan, live: &Plan, found: &mut Vec<(u32, Advice)>) {
    if let Some(wanted) = too_small(running, replay, "max_wal_size") {
        let effect = "a load or an index build then forces fewer checkpoints, each of which is paid twice: all pages \
                      are written out, and the next change of each is logged as a whole";
        found.push((200, advice(running, "max_wal_size", wanted, effect.to_owned(), RELOAD)));
    }
    let is_logged = running.text("wal_level").is_some_and(|level| level != "minimal");
    // Replicas, backups and archives need the log.
    let is_needed = running.has_slots || running.text("archive_mode").is_some_and(|mode| mode != "off");
    if is_logged && !is_needed {
        let effect = "with max_wal_senders = 0 and while blocks are loaded, if no replica or backup needs the log: COPY \
                      then writes no WAL, loads run 1.1 to 1.5 times as fast";
        found.push((190, advice(running, "wal_level", "minimal".to_owned(), effect.to_owned(), RESTART)));
    }
    if let Some(wanted) = too_small(running, live, "checkpoint_timeout") {
        let effect =
            "after every checkpoint the first change of a page logs all of it: fewer checkpoints, less WAL";
        found.push((150, advice(running, "checkpoint_timeout", wanted, effect.to_owned(), RELOAD)));
    }
    if is_logged && running.text("wal_compression") == Some("off") {
        let effect = "index builds and checkpoints log whole pages: these get smaller for a few cycles of the processor \
                      (on, where the server has no lz4)";
        found.push((140, advice(running, "wal_compression", "lz4".to_owned(), effect.to_owned(), RELOAD)));
    }
}

fn memory(running: &Running, live: &Plan, place: ServerPlace, found: &mut Vec<(u32, Advice)>) {
    let buffers = "shared_buffers";
    let effect = "look-ups by txid and script find their index pages in memory; loading gains nothing: 128MB and 8GB \
                  load alike";
    match place {
        ServerPlace::ThisHost => {
            if let Some(wanted) = too_small(running, live, buffers) {
                found.push((160, advice(running, buffers, wanted, effect.to_owned(), RESTART)));
            }
            if let Some(wanted) = too_small(running, live, "effective_cache_size") {
                let effect = "the planner then counts on the page cache and takes indexes more often";
                let advice = advice(running, "effective_cache_size", wanted, effect.to_owned(), RELOAD);
                found.push((110, advice));
            }
            if let Some(wanted) = too_small(running, live, "work_mem") {
                let effect = "sorts and hashes of reports over the chain stay in memory";
                found.push((60, advice(running, "work_mem", wanted, effect.to_owned(), RELOAD)));
            }
        }
        // PostgreSQL's default, which nobody can have meant for a chain.
        ServerPlace::OtherHost if running.number(buffers).is_some_and(|bytes| bytes <= 134_217_728.0) => {
            let wanted = "a quarter of that host's memory, which is not known here,".to_owned();
            found.push((160, advice(running, buffers, wanted, effect.to_owned(), RESTART)));
        }
        ServerPlace::OtherHost => {}
    }
}

fn planner(running: &Running, live: &Plan, place: ServerPlace, found: &mut Vec<(u32, Advice)>) {
    let here = place == ServerPlace::ThisHost;
    let disk = if here { "" } else { ", if that host's disk is solid state" };
    let planned_cost = if here { planned(live, "random_page_cost") } else { Some((1.1, "1.1".to_owned())) };
    if let (Some(cost), Some((wanted, text))) = (running.number("random_page_cost"), planned_cost)
        && cost > wanted * 2.0
    {
        let effect = format!("the planner then takes an index where it now reads a whole segment{disk}");
        found.push((130, advice(running, "random_page_cost", text, effect, RELOAD)));
    }
    if running.text("jit") == Some("on") {
        let effect = "queries over many segments: compiling their plans costs more than it gives";
        let takes = "alter database … set jit = off, by its owner";
        found.push((120, advice(running, "jit", "off".to_owned(), effect.to_owned(), takes)));
    }
    if here && let Some(wanted) = too_small(running, live, "effective_io_concurrency") {
        let effect = "more reads at once for queries that fetch many scattered rows";
        found.push((50, advice(running, "effective_io_concurrency", wanted, effect.to_owned(), RELOAD)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{Overrides, Phase},
        resources::{Found, Resources},
    };

    /// PostgreSQL 15 as it comes.
    fn default_server() -> Running {
        let settings = [
            ("archive_mode", "off", ""),
            ("autovacuum", "on", ""),
            ("checkpoint_timeout", "300", "s"),
            ("effective_cache_size", "524288", "8kB"),
            ("effective_io_concurrency", "1", ""),
            ("fsync", "on", ""),
            ("full_page_writes", "on", ""),
            ("jit", "on", ""),
            ("max_wal_size", "1024", "MB"),
            ("random_page_cost", "4", ""),
            ("shared_buffers", "16384", "8kB"),
            ("wal_compression", "off", ""),
            ("wal_level", "replica", ""),
            ("work_mem", "4096", "kB"),
        ];
        let mut running = Running::default();
        for (name, setting, unit) in settings {
            set(&mut running, name, setting, unit);
        }
        running
    }

    fn set(running: &mut Running, name: &str, setting: &str, unit: &str) {
        let unit = (!unit.is_empty()).then(|| unit.to_owned());
        running.settings.insert(name.to_owned(), Reading { setting: setting.to_owned(), unit });
    }

    fn told(running: &Running, place: ServerPlace) -> Vec<String> {
        let resources = Resources {
            ram_bytes: Found::new(16 << 30, "--ram"),
            server: Found::new(place, "a test"),
            ..Resources::unknown(4)
        };
        let plan = |phase| Plan::new(&resources, phase, &Overrides::default());
        let advice = advise(running, &plan(Phase::Replay), &plan(Phase::Live), place);
        advice.iter().map(|it| format!("{}: {} -> {}", it.setting, it.now, it.wanted)).collect()
    }

    #[test]
    fn a_server_as_it_comes_gets_the_five_that_matter_most() {
        let running = default_server();
        assert_eq!(NAMES, running.settings.keys().collect::<Vec<_>>());
        let expected = [
            "max_wal_size: 1GB -> 4GB",
            "wal_level: replica -> minimal",
            "shared_buffers: 128MB -> 3405MB",
            "checkpoint_timeout: 5min -> 15min",
            "wal_compression: off -> lz4",
        ];
        assert_eq!(told(&running, ServerPlace::ThisHost), expected);
    }

    #[test]
    fn of_another_host_the_memory_is_not_guessed() {
        let mut running = default_server();
        let there = told(&running, ServerPlace::OtherHost);
        assert_eq!(
            there[2],
            "shared_buffers: 128MB -> a quarter of that host's memory, which is not known here,"
        );
        set(&mut running, "shared_buffers", "131072", "8kB");
        let there = told(&running, ServerPlace::OtherHost);
        assert_eq!(
            there[2..],
            [
                "checkpoint_timeout: 5min -> 15min",
                "wal_compression: off -> lz4",
                "random_page_cost: 4 -> 1.1"
            ]
        );
    }

    #[test]
    fn a_log_that_somebody_needs_is_left_alone() {
        let mut running = default_server();
        running.has_slots = true;
        assert!(!told(&running, ServerPlace::ThisHost).concat().contains("wal_level"));
        running.has_slots = false;
        set(&mut running, "archive_mode", "on", "");
        assert!(!told(&running, ServerPlace::ThisHost).concat().contains("wal_level"));
    }

    #[test]
    fn a_server_that_follows_the_plan_gets_no_advice() {
        let mut running = default_server();
        for (name, setting, unit) in [
            ("checkpoint_timeout", "900", "s"),
            ("effective_cache_size", "1500000", "8kB"),
            ("effective_io_concurrency", "200", ""),
            ("jit", "off", ""),
            ("max_wal_size", "4096", "MB"),
            ("random_page_cost", "1.1", ""),
            ("shared_buffers", "400000", "8kB"),
            ("wal_compression", "lz4", ""),
            ("wal_level", "minimal", ""),
            ("work_mem", "65536", "kB"),
        ] {
            set(&mut running, name, setting, unit);
        }
        assert_eq!(told(&running, ServerPlace::ThisHost), [""; 0]);
        assert_eq!(advise(&Running::default(), &plan(), &plan(), ServerPlace::ThisHost), []);
    }

    fn plan() -> Plan {
        Plan::new(&Resources::unknown(2), Phase::Live, &Overrides::default())
    }

    #[test]
    fn durability_comes_first_and_is_never_advised_away() {
        let mut running = default_server();
        set(&mut running, "fsync", "off", "");
        set(&mut running, "full_page_writes", "off", "");
        let first = &told(&running, ServerPlace::OtherHost)[..2];
        assert_eq!(first, ["fsync: off -> on", "full_page_writes: off -> on"]);
        for (name, _) in default_server().settings {
            set(&mut running, &name, "on", "");
        }
        assert!(!told(&running, ServerPlace::ThisHost).concat().contains("fsync"));
    }

    #[test]
    fn an_advice_is_one_sentence_with_its_effect() {
        let resources = Resources::unknown(2);
        let plan = |phase| Plan::new(&resources, phase, &Overrides::default());
        let all = advise(&default_server(), &plan(Phase::Replay), &plan(Phase::Live), ServerPlace::OtherHost);
        assert!(
            all[1]
                .to_string()
                .starts_with("wal_level is replica; minimal would be better: with max_wal_senders = 0")
        );
        assert!(all[1].effect.ends_with("loads run 1.1 to 1.5 times as fast"));
    }
}

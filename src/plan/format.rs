//! Plans as text: a table for people, lines for a `postgresql.conf`, JSON for programs.
//!
//! In: plans. Out: the whole text, ended by a newline. The JSON is an interface: its keys are PostgreSQL's names of
//! settings and `utxo_cache_bytes`, `txnum_cache_bytes`, `pipeline_bytes`, nothing else.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::{Entry, Kind, Phase, Plan};
use crate::{
    pg::conf::Otherwise,
    resources::{Resources, about},
};

/// How `tune` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table,
    /// For PostgreSQL.
    PostgresqlConf,
    /// For programs.
    Json,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        match text {
            "table" => Ok(Format::Table),
            "postgresql.conf" => Ok(Format::PostgresqlConf),
            "json" => Ok(Format::Json),
            _ => Err("use table, postgresql.conf or json".to_owned()),
        }
    }
}

/// Writes the plans of one phase or of all: JSON is one object a phase where several are given, and a
/// `postgresql.conf` has room for one phase only, the last one given.
#[must_use]
pub fn render(resources: &Resources, plans: &[Plan], format: Format) -> String {
    match format {
        Format::Table => {
            let tables: Vec<String> = plans.iter().map(table).collect();
            format!("{resources}\n\n{}", tables.join("\n"))
        }
        Format::PostgresqlConf => plans.last().map_or_else(String::new, |plan| conf(resources, plan)),
        Format::Json => {
            let value = match plans {
                [plan] => json(plan),
                _ => Json::Object(plans.iter().map(|plan| (plan.phase.to_string(), json(plan))).collect()),
            };
            format!("{value:#}\n")
        }
    }
}

/// One plan as an object: `{"shared_buffers": {"value": 134217728, "origin": …, "why": …}, …}`.
#[must_use]
pub fn json(plan: &Plan) -> Json {
    let entries = plan.entries.iter().filter(|entry| entry.kind != Kind::Work);
    let object: Map<String, Json> = entries
        .map(|entry| {
            let value = entry.value.to_json();
            (entry.key.to_owned(), json!({ "value": value, "origin": entry.origin, "why": entry.why }))
        })
        .collect();
    Json::Object(object)
}

fn table(plan: &Plan) -> String {
    let mut rows: Vec<[&str; 4]> = Vec::new();
    let values: Vec<String> = plan.entries.iter().map(shown).collect();
    for (entry, value) in plan.entries.iter().zip(&values) {
        rows.push([entry.key, value, &entry.why, &entry.origin]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (key_width, value_width, why_width) = (width(0), width(1), width(2));
    let what = match plan.phase {
        Phase::Replay => "loading blocks in bulk",
        Phase::Restore => "building what indexes are left",
        Phase::Live => "following the tip, serving readers",
    };
    let mut text = format!("{}: {what}\n", plan.phase.name().to_uppercase());
    for [key, value, why, origin] in rows {
        let line = format!("  {key:key_width$}  {value:>value_width$}  {why:why_width$}  [{origin}]");
        writeln!(text, "{}", line.trim_end()).expect("a String takes any text");
    }
    let parts = plan.parts.iter().filter(|part| part.bytes > 0);
    let parts: Vec<String> = parts.map(|part| format!("{} {}", part.name, about(part.bytes))).collect();
    let sum = super::shares::sum(plan.parts.iter().map(|part| part.bytes));
    writeln!(text, "  memory: {} = {} of {}", parts.join(" + "), about(sum), about(plan.ram_bytes))
        .expect("a String takes any text");
    text
}

fn shown(entry: &Entry) -> String {
    match entry.kind {
        Kind::Setting => entry.value.to_postgres(),
        Kind::Cache | Kind::Work => entry.value.to_text(),
    }
}

/// Lines that every supported server accepts: what needs a probe is a comment.
fn conf(resources: &Resources, plan: &Plan) -> String {
    let mut text = format!("# satgres tune: {} on this machine: {resources}\n", plan.phase);
    if plan.phase == Phase::Live {
        text.push_str("# For loading blocks use --phase replay.\n");
    }
    for entry in &plan.entries {
        let value = entry.value.to_postgres();
        let line = format!("{} = {}", entry.key, quoted(&value));
        let lines = match (entry.kind, &entry.otherwise) {
            (Kind::Setting, Otherwise::Required) => line,
            (Kind::Setting, Otherwise::Use(other)) => {
                format!("{} = {}\n#{line}  # if the server was built with it", entry.key, quoted(other))
            }
            (Kind::Setting, Otherwise::Omit) => format!("#{line}  # if the server was built with it"),
            (Kind::Cache | Kind::Work, _) => format!("# {} {}", entry.key, entry.value.to_text()),
        };
        write!(text, "\n# {} [{}]\n{lines}\n", entry.why, entry.origin).expect("a String takes any text");
    }
    text
}

/// Numbers stand as they are; everything else in quotes.
fn quoted(value: &str) -> String {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number { value.to_owned() } else { format!("'{value}'") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::Overrides,
        resources::{Found, Resources},
    };

    fn machine() -> Resources {
        Resources { ram_bytes: Found::new(16 << 30, "--ram"), ..Resources::unknown(8) }
    }

    fn plans() -> Vec<Plan> {
        Phase::ALL.map(|phase| Plan::new(&machine(), phase, &Overrides::default())).to_vec()
    }

    #[test]
    fn json_is_one_object_a_phase_or_just_one() {
        let all: Json = serde_json::from_str(&render(&machine(), &plans(), Format::Json)).unwrap();
        let names: Vec<&String> = all.as_object().unwrap().keys().collect();
        assert_eq!(names, ["live", "replay", "restore"]);
        let one: Json = serde_json::from_str(&render(&machine(), &plans()[2..], Format::Json)).unwrap();
        assert_eq!(one, all["live"]);
        assert_eq!(one["utxo_cache_bytes"]["value"], 2_147_483_648_u64);
        assert_eq!(one["txnum_cache_bytes"]["value"], 10_000_000);
        assert_eq!(one["max_wal_size"]["value"], 4_294_967_296_u64);
        assert_eq!(one["random_page_cost"]["value"], 1.1);
        assert_eq!(one["wal_level"]["value"], "replica");
        assert_eq!(one["utxo_cache_bytes"]["origin"], "Bitcoin Core's rule, RAM from --ram");
        for phase in ["replay", "restore", "live"] {
            for (key, value) in all[phase].as_object().unwrap() {
                let fields: Vec<&String> = value.as_object().unwrap().keys().collect();
                assert_eq!(fields, ["origin", "value", "why"], "{key}");
            }
        }
        assert!(one.get("threads").is_none());
    }

    #[test]
    fn a_configuration_file_has_one_phase_and_only_what_every_server_accepts() {
        let text = render(&machine(), &plans(), Format::PostgresqlConf);
        assert!(text.contains("\nwal_level = 'replica'\n") && !text.contains("minimal'"), "{text}");
        assert!(text.contains("\nwal_compression = 'pglz'\n#wal_compression = 'lz4'  #"), "{text}");
        assert!(text.contains("\n#default_toast_compression = 'lz4'  #"), "{text}");
        assert!(text.contains("\nrandom_page_cost = 1.1\n"), "{text}");
        let active: Vec<&str> =
            text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert!(active.iter().all(|line| line.split(" = ").count() == 2), "{active:#?}");
    }

    #[test]
    fn the_table_names_every_value_and_the_sum() {
        let text = render(&machine(), &plans(), Format::Table);
        assert!(text.starts_with("RAM 16GiB (--ram), CPUs 8 (given)"), "{text}");
        assert!(text.contains("\nREPLAY: loading blocks in bulk\n"), "{text}");
        assert_eq!(text.matches(" = 16GiB of 16GiB\n").count(), 3, "{text}");
        for plan in plans() {
            for entry in plan.entries {
                assert!(text.contains(&format!("\n  {} ", entry.key)), "{}", entry.key);
            }
        }
    }
}

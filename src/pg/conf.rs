//! The settings of the private server: declared as values with their reasons, rendered into `satgres.conf`.
//!
//! In: a list of [`Setting`], most of them from the memory plan, and a way to ask the server whether it knows a value.
//! Out: the text of the file, which `postgresql.conf` includes before the user's own `user.conf`. Called by
//! [`super::cluster`] at every start. It must never switch fsync off.

use std::{borrow::Cow, fmt::Write as _};

use crate::{
    plan::{Overrides, Phase, Plan},
    resources::Resources,
};

/// What to do where the server refuses a setting's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Otherwise {
    /// Every supported server has it.
    Required,
    /// Use this value, which every supported server has.
    Use(&'static str),
    /// Leave the setting out.
    Omit,
}

/// One line of `satgres.conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// PostgreSQL's name for it.
    pub name: &'static str,
    /// Value, unquoted.
    pub value: String,
    /// Why it differs from PostgreSQL's default, for whoever reads the file.
    pub why: Cow<'static, str>,
    /// What to do where the server refuses `value`: anything but [`Otherwise::Required`] is probed.
    pub otherwise: Otherwise,
}

impl Setting {
    /// Makes a setting that every supported server has.
    pub fn new(name: &'static str, value: impl Into<String>, why: &'static str) -> Setting {
        Setting { name, value: value.into(), why: Cow::Borrowed(why), otherwise: Otherwise::Required }
    }
}

/// The settings of a server that is tuned by a plan.
#[must_use]
pub fn planned(plan: &Plan) -> Vec<Setting> {
    let mut settings = plan.settings();
    settings.extend(fixed());
    settings
}

/// The settings of a replay on a machine of which nothing is known but its cores.
#[must_use]
pub fn replay(cpus: usize) -> Vec<Setting> {
    planned(&Plan::new(&Resources::unknown(cpus), Phase::Replay, &Overrides::default()))
}

/// The settings that no machine and no phase changes; a server that is not tuned has these alone.
#[must_use]
pub fn fixed() -> Vec<Setting> {
    vec![
        Setting::new("synchronous_commit", "on", "a segment counts once it is on disk"),
        Setting::new("autovacuum", "on", "small tables live; loaded segments are frozen already"),
        Setting::new(
            "client_connection_check_interval",
            "1s",
            "a killed service must not leave its statements running",
        ),
        Setting::new("track_io_timing", "off", "two clock calls per block read"),
        Setting::new("log_min_messages", "warning", "the log is for people"),
        Setting::new("log_line_prefix", "%m [%p] %a ", "when, which process, which program"),
        Setting::new("log_lock_waits", "on", "an operator should see them"),
        Setting::new("cluster_name", "satgres", "shown by ps"),
    ]
}

/// Settles what the server cannot do: `knows(name, value)` says whether it accepts a value.
pub fn settle(settings: &[Setting], mut knows: impl FnMut(&str, &str) -> bool) -> Vec<Setting> {
    settings
        .iter()
        .filter_map(|setting| match setting.otherwise {
            Otherwise::Required => Some(setting.clone()),
            _ if knows(setting.name, &setting.value) => Some(setting.clone()),
            Otherwise::Use(value) => Some(Setting { value: value.to_owned(), ..setting.clone() }),
            Otherwise::Omit => None,
        })
        .collect()
}

/// Renders the file, one setting a line, each under its reason.
#[must_use]
pub fn render(settings: &[Setting]) -> String {
    let mut text = String::from(
        "# Written by satgres at every start: changes here are lost. Put your own into user.conf, which wins.\n",
    );
    for setting in settings {
        let value = setting.value.replace('\\', "\\\\").replace('\'', "''");
        write!(text, "\n# {}\n{} = '{value}'\n", setting.why, setting.name).expect("a String takes any text");
    }
    text
}

/// Value of a setting in a rendered file.
#[must_use]
pub fn value_in(text: &str, name: &str) -> Option<String> {
    rendered(text).find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// The settings that differ between two rendered files, for the log: `wal_level: minimal -> replica`.
#[must_use]
pub fn changes(before: &str, after: &str) -> Vec<String> {
    let unset = || "unset".to_owned();
    let now =
        rendered(after).map(|(name, value)| (name, value_in(before, name).unwrap_or_else(unset), value));
    let gone = rendered(before).filter(|(name, _)| value_in(after, name).is_none());
    let all = now.chain(gone.map(|(name, value)| (name, value, unset())));
    all.filter(|(_, from, to)| from != to).map(|(name, from, to)| format!("{name}: {from} -> {to}")).collect()
}

/// Names and values of a rendered file.
fn rendered(text: &str) -> impl Iterator<Item = (&str, String)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (name, value) = line.split_once(" = '")?;
        Some((name, value.strip_suffix('\'')?.replace("''", "'").replace("\\\\", "\\")))
    })
}

/// What a fresh `user.conf` says.
pub const USER_CONF: &str = "\
# Your own PostgreSQL settings for this cluster. They win over satgres.conf and satgres never changes this file.
# They take effect at the next start of `satgres run`, or after `satgres pg stop`.
# This server trusts whoever can connect: before you set listen_addresses, change pg_hba.conf beside this file.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_and_reasons_stand_above() {
        let settings = [
            Setting::new("unix_socket_directories", "/tmp/it's", "private"),
            Setting::new("wal_level", "minimal", "no WAL"),
        ];
        let text = render(&settings);
        assert!(text.ends_with(
            "\n# private\nunix_socket_directories = '/tmp/it''s'\n\n# no WAL\nwal_level = 'minimal'\n"
        ));
    }

    #[test]
    fn a_server_without_lz4_gets_pglz_and_no_toast_setting() {
        let value = |settings: &[Setting], name: &str| {
            settings.iter().find(|it| it.name == name).map(|it| it.value.clone())
        };
        let with = settle(&replay(2), |_, _| true);
        assert_eq!(value(&with, "wal_compression").as_deref(), Some("lz4"));
        assert_eq!(value(&with, "default_toast_compression").as_deref(), Some("lz4"));
        let without = settle(&replay(2), |_, value| value != "lz4");
        assert_eq!(value(&without, "wal_compression").as_deref(), Some("pglz"));
        assert_eq!(value(&without, "default_toast_compression"), None);
    }

    #[test]
    fn a_rendered_file_is_read_back_and_compared() {
        let before = render(&[
            Setting::new("unix_socket_directories", "/tmp/it's", "private"),
            Setting::new("wal_level", "minimal", "no WAL"),
            Setting::new("jit", "off", "fixed"),
        ]);
        let after = render(&[
            Setting::new("unix_socket_directories", "/tmp/it's", "private = ''"),
            Setting::new("wal_level", "replica", "backups"),
            Setting::new("max_wal_senders", "10", "backups"),
        ]);
        assert_eq!(value_in(&before, "unix_socket_directories").as_deref(), Some("/tmp/it's"));
        assert_eq!(value_in(&before, "wal"), None);
        let expected = ["wal_level: minimal -> replica", "max_wal_senders: unset -> 10", "jit: off -> unset"];
        assert_eq!(changes(&before, &after), expected);
        assert_eq!(changes(&after, &after), [""; 0]);
    }

    #[test]
    fn durability_is_never_traded() {
        let settings = replay(8);
        assert!(settings.iter().all(|it| it.name != "fsync" && it.name != "full_page_writes"));
        assert!(settings.iter().any(|it| it.name == "synchronous_commit" && it.value == "on"));
    }
}

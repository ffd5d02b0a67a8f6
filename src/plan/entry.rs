//! One planned value with its origin and reason, as every output shows it.

use crate::{
    pg::conf::{Otherwise, Setting},
    resources::about,
};

/// A planned value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Bytes.
    Bytes(u64),
    /// A number of things.
    Count(u64),
    /// A number with a fraction.
    Number(f64),
    /// A word, or a time with its unit.
    Text(&'static str),
}

/// Whose value it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A setting of PostgreSQL's.
    Setting,
    /// A cache or buffer of ours.
    Cache,
    /// Something else of ours: threads, builds.
    Work,
}

/// A value, where it comes from, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// PostgreSQL's name of the setting, or ours.
    pub key: &'static str,
    /// Whose it is.
    pub kind: Kind,
    /// The value.
    pub value: Value,
    /// The rule or option that it comes from.
    pub origin: String,
    /// The reason, with the numbers that went in.
    pub why: String,
    /// What a server gets that refuses the value.
    pub otherwise: Otherwise,
}

/// A share of this host's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Who has it.
    pub name: &'static str,
    /// How much.
    pub bytes: u64,
}

impl Value {
    /// The value as PostgreSQL reads it: sizes in the largest unit that divides them, cut to whole kB.
    #[must_use]
    pub fn to_postgres(&self) -> String {
        match self {
            Value::Bytes(bytes) => super::pgtune::format_kb(bytes / 1024),
            Value::Count(count) => count.to_string(),
            Value::Number(number) => number.to_string(),
            Value::Text(text) => (*text).to_owned(),
        }
    }

    /// The value for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Value::Bytes(bytes) => about(*bytes),
            other => other.to_postgres(),
        }
    }

    /// The value in JSON; sizes are numbers of bytes.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Bytes(number) | Value::Count(number) => (*number).into(),
            Value::Number(number) => (*number).into(),
            Value::Text(text) => (*text).into(),
        }
    }
}

impl Entry {
    /// The entry as a line of the server's configuration, if it is one.
    #[must_use]
    pub fn setting(&self) -> Option<Setting> {
        (self.kind == Kind::Setting).then(|| Setting {
            name: self.key,
            value: self.value.to_postgres(),
            why: format!("{} ({})", self.why, self.origin).into(),
            otherwise: self.otherwise.clone(),
        })
    }
}

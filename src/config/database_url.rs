//! The connection string of a server of the user's own: parsed once, told without its password.

use std::fmt;

use crate::pg::target::conninfo::{ConninfoError, Params};

/// A connection string, as libpq understands it.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    given: String,
    params: Params,
}

impl DatabaseUrl {
    /// Reads a URL or key=value pairs; `env` gives PGHOST and its like.
    ///
    /// # Errors
    /// [`ConninfoError`], which never tells a password.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<DatabaseUrl, ConninfoError> {
        Ok(DatabaseUrl { given: text.trim().to_owned(), params: Params::parse(text, env)? })
    }

    /// The text, password and all: for clients, never for a log.
    #[must_use]
    pub fn given(&self) -> &str {
        &self.given
    }

    /// What it means.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }
}

impl fmt::Display for DatabaseUrl {
    /// As pairs of key=value, without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            self.params.iter().map(|(key, value)| (key, if key == "password" { "***" } else { value }));
        for (at, (key, value)) in shown.enumerate() {
            write!(f, "{}{key}={value}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

//! The log: on standard error, for people.
//!
//! In: a filter such as `info` or `info,satgres=debug`. Called once by the command line. Standard output belongs to
//! the commands' results and the PROFILE lines; nothing is ever logged there.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Checks a filter and returns it.
///
/// # Errors
/// What is wrong with it, as text.
pub fn check(filter: &str) -> Result<String, String> {
    let parsed = EnvFilter::builder().parse(filter);
    // A lone word that is no level would pass as a target's name and silence everything.
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let is_lone_word = !filter.contains(['=', ',', '[']);
    if filter.is_empty() || is_lone_word && !levels.contains(&filter.to_lowercase().as_str()) {
        return Err(format!("use one of {}, or a filter such as info,satgres=debug", levels.join(", ")));
    }
    parsed.map(|_| filter.to_owned()).map_err(|error| error.to_string())
}

/// Starts logging to standard error, coloured on a terminal. Later calls change nothing.
pub fn start(filter: &str) {
    // sqlx tells every notice of the server at INFO: what a user wants of it, they name.
    let filter = if filter.contains("sqlx") { filter.to_owned() } else { format!("{filter},sqlx=warn") };
    let filter = EnvFilter::builder().parse_lossy(filter);
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .compact();
    // An error means that a test has a subscriber already.
    let _ = subscriber.try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_pass_and_misspellings_do_not() {
        for filter in ["info", "DEBUG", "off", "info,satgres=debug", "satgres::pg=trace"] {
            assert_eq!(check(filter).as_deref(), Ok(filter));
        }
        assert!(check("inof").unwrap_err().contains("use one of off, error, warn"));
        assert!(check("satgres=loud").is_err());
        assert!(check("").is_err());
    }
}

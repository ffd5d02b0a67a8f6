//! What the text of each value means, and what is told where it means nothing.

use std::{fmt::Display, net::SocketAddr, ops::RangeInclusive, path::PathBuf, str::FromStr};

use super::{Detail, Tune, parse_size};
use crate::network::Network;

pub(super) fn network(text: &str) -> Result<Network, String> {
    text.parse().map_err(|error: crate::network::UnknownNetwork| error.to_string())
}

/// An absolute path; `~/` is the home directory, which shells expand but files do not.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("a directory is needed".to_owned());
    }
    let path = match (text.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    };
    std::path::absolute(path).map_err(|error| error.to_string())
}

pub(super) fn bool(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("use true or false".to_owned()),
    }
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    bool(text).map_err(|_| "use on or off".to_owned())
}

pub(super) fn detail(text: &str) -> Result<Detail, String> {
    match text {
        "full" => Ok(Detail::Full),
        "none" => Ok(Detail::None),
        _ => Err("use full or none".to_owned()),
    }
}

/// A value; `auto` leaves it to others.
fn or_auto<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    if text == "auto" { Ok(None) } else { parse(text).map(Some) }
}

/// A number of index builds; `auto` leaves it to the machine.
pub(super) fn builds(text: &str) -> Result<Option<usize>, String> {
    or_auto(text, |text| match text.parse() {
        Ok(builds @ 0..=32) => Ok(builds),
        _ => Err(format!("{text:?} is neither auto nor a number from 0 to 32")),
    })
}

/// A number of threads; 0 and `auto` leave it to the machine.
pub(super) fn threads(text: &str) -> Result<Option<usize>, String> {
    let threads = or_auto(text, |text| match text.parse() {
        Ok(threads @ 0..=1024_usize) => Ok(threads),
        _ => Err("use a number from 1 to 1024, or auto for one per core".to_owned()),
    });
    threads.map(|threads| threads.filter(|threads| *threads > 0))
}

/// Addresses of nodes, separated by commas; `none` for none.
pub(super) fn peers(text: &str) -> Result<Vec<String>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let addresses = text.split(',').map(str::trim).map(|address| {
        let is_whole = address.rsplit_once(':').is_some_and(|(host, port)| {
            // An IPv6 address stands in brackets.
            let is_host =
                !host.is_empty() && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
            is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if is_whole {
            Ok(address.to_owned())
        } else {
            Err(format!(
                "{address:?} is no HOST:PORT; the port is 8333 on main, 38333 on signet, 18444 on regtest"
            ))
        }
    });
    addresses.collect()
}

/// An address of this machine; `none` for none.
pub(super) fn listen(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "none" {
        return Ok(None);
    }
    let wanted = "use IP:PORT, such as 127.0.0.1:9332 or [::1]:9332, or none";
    text.parse().map(Some).map_err(|_| wanted.to_owned())
}

/// A number within bounds.
fn number<T: FromStr + PartialOrd + Display>(
    text: &str,
    what: &str,
    bounds: RangeInclusive<T>,
) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| bounds.contains(number));
    number.ok_or_else(|| format!("use a {what} from {} to {}", bounds.start(), bounds.end()))
}

pub(super) fn seconds(text: &str) -> Result<u64, String> {
    number(text, "number of seconds", 1..=3600)
}

/// A number of buckets.
pub(super) fn buckets(text: &str) -> Result<u64, String> {
    number(text, "number", 1..=1000)
}

/// A number of headers.
pub(super) fn headers_batch(text: &str) -> Result<usize, String> {
    number(text, "number", 1..=1_000_000)
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

pub(super) fn size_not_zero(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("it must be more than 0".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(super) fn pipeline_bytes(text: &str) -> Result<Option<u64>, String> {
    or_auto(text, size_not_zero)
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "use a whole number".to_owned())
}

pub(super) fn threshold(text: &str) -> Result<Option<u32>, String> {
    or_auto(text, |text| text.parse().map_err(|_| "use a number of blocks, or auto".to_owned()))
}

pub(super) fn tune(text: &str) -> Result<Tune, String> {
    match text {
        "auto" => Ok(Tune::Auto),
        "off" => Ok(Tune::Off),
        _ => Err("use auto or off".to_owned()),
    }
}

pub(super) fn size_or_auto(text: &str) -> Result<Option<u64>, String> {
    or_auto(text, size)
}

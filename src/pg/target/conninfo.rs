//! A connection string as libpq reads it: a URL or key=value pairs, then the environment, then the password file.
//!
//! In: the text, and the variables of the environment. Out: [`Params`]: each parameter by libpq's name for it (PostgreSQL
//! manual, "Parameter Key Words" and "Environment Variables"). Pure but for [`password_from_file`]. It must never put a
//! password into an error or a log.

use std::{collections::BTreeMap, fmt, os::unix::fs::PermissionsExt as _, path::Path};

use crate::percent::{self, Fault};

/// Why a connection string cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConninfoError(String);

fn wrong<T>(reason: impl Into<String>) -> Result<T, ConninfoError> {
    Err(ConninfoError(reason.into()))
}

/// The parameters that are understood, with the variable that gives each a default; "" where libpq has none.
const KNOWN: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("dbname", "PGDATABASE"),
    ("options", "PGOPTIONS"),
    ("application_name", "PGAPPNAME"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("keepalives", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("keepalives_count", ""),
    ("tcp_user_timeout", ""),
];

/// Parameters that change nothing here: satgres does not use GSSAPI, and sends no other encoding than UTF-8.
const IGNORED: &[&str] =
    &["gssencmode", "krbsrvname", "gsslib", "client_encoding", "fallback_application_name", "sslcompression"];

/// Parameters by libpq's names; those not given are absent.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Params {
    values: BTreeMap<&'static str, String>,
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            self.values.iter().map(|(key, value)| (key, if *key == "password" { "***" } else { value }));
        f.debug_map().entries(shown).finish()
    }
}

impl Params {
    /// Reads a URL (`postgresql://…`, `postgres://…`) or key=value pairs; the environment fills what they leave open.
    ///
    /// # Errors
    /// [`ConninfoError`], which never tells a password.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Params, ConninfoError> {
        let text = text.trim();
        let mut params = Params::default();
        match text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://")) {
            Some(rest) => params.read_url(rest)?,
            None if text.contains("://") => {
                return wrong("a URL must begin with postgresql:// or postgres://");
            }
            None => params.read_pairs(text)?,
        }
        for (key, variable) in KNOWN {
            if !params.values.contains_key(key)
                && !variable.is_empty()
                && let Some(value) = env(variable).filter(|value| !value.is_empty())
            {
                params.values.insert(key, value);
            }
        }
        Ok(params)
    }

    /// Value of a parameter; an empty one counts as not given.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All that are given and not empty.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.iter().map(|(key, value)| (*key, value.as_str())).filter(|(_, value)| !value.is_empty())
    }

    /// Gives a parameter a value.
    pub fn set(&mut self, key: &'static str, value: impl Into<String>) {
        debug_assert!(KNOWN.iter().any(|(known, _)| *known == key), "{key}");
        self.values.insert(key, value.into());
    }

    /// The variables of the environment that say the same to psql; those absent must be unset there.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        KNOWN.iter().filter(|(_, name)| !name.is_empty()).map(|(key, name)| (*name, self.get(key)))
    }

    fn take(&mut self, key: &str, value: String) -> Result<(), ConninfoError> {
        match KNOWN.iter().find(|(known, _)| *known == key) {
            Some((known, _)) => {
                self.values.insert(known, value);
                Ok(())
            }
            None if IGNORED.contains(&key) => Ok(()),
            None if matches!(key, "service" | "servicefile") => {
                wrong("`service` is not supported: give host, port, dbname and user themselves")
            }
            None if matches!(key, "sslcrl" | "sslcrldir" | "sslpassword") => {
                wrong(format!("`{key}` is not supported"))
            }
            None => wrong(format!("unknown parameter `{key}`")),
        }
    }

    /// `[user[:password]@][host[:port],…][/dbname][?key=value&…]`, percent-encoded.
    fn read_url(&mut self, rest: &str) -> Result<(), ConninfoError> {
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = before.split_once('/').unwrap_or((before, ""));
        // A password may hold an @ that nobody encoded: the last one counts.
        let (user_info, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
        if let Some(user_info) = user_info {
            let (user, password) = user_info
                .split_once(':')
                .map_or((user_info, None), |(user, password)| (user, Some(password)));
            if !user.is_empty() {
                self.take("user", decode(user, "user")?)?;
            }
            if let Some(password) = password {
                self.take("password", decode(password, "password")?)?;
            }
        }
        let (mut names, mut ports) = (Vec::new(), Vec::new());
        for entry in hosts.split(',').filter(|_| !hosts.is_empty()) {
            let (host, port) = split_host(entry)?;
            names.push(decode(host, "host")?);
            ports.push(port.to_owned());
        }
        if names.iter().any(|name| !name.is_empty()) {
            self.take("host", names.join(","))?;
        }
        if ports.iter().any(|port| !port.is_empty()) {
            self.take("port", ports.join(","))?;
        }
        if !database.is_empty() {
            self.take("dbname", decode(database, "database name")?)?;
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return wrong("a parameter of the URL has no value");
            };
            let (key, value) = (decode(key, "parameter")?, decode(value, "parameter's value")?);
            // JDBC's word for sslmode=require, which libpq takes too.
            if key == "ssl" && value == "true" {
                self.take("sslmode", "require".to_owned())?;
            } else {
                self.take(&key, value)?;
            }
        }
        Ok(())
    }

    /// `key = value key='a \'quoted\' value'`.
    fn read_pairs(&mut self, text: &str) -> Result<(), ConninfoError> {
        let mut chars = text.chars().peekable();
        loop {
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            let mut key = String::new();
            while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
                key.push(c);
            }
            if key.is_empty() && chars.peek().is_none() {
                return Ok(());
            }
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            if key.is_empty() || chars.next_if_eq(&'=').is_none() {
                return wrong("neither a URL nor pairs of key=value");
            }
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            let quoted = chars.next_if_eq(&'\'').is_some();
            let (mut value, mut closed) = (String::new(), !quoted);
            while let Some(c) = chars.next_if(|c| quoted || !c.is_whitespace()) {
                match c {
                    '\\' => value.extend(chars.next()),
                    '\'' if quoted => {
                        closed = true;
                        break;
                    }
                    c => value.push(c),
                }
            }
            if !closed {
                return wrong(format!("the quote of `{key}` is not closed"));
            }
            self.take(&key, value)?;
        }
    }
}

/// Splits `host:port`, `[::1]:port` and what lacks one of them.
fn split_host(entry: &str) -> Result<(&str, &str), ConninfoError> {
    if let Some(rest) = entry.strip_prefix('[') {
        let Some((address, after)) = rest.split_once(']') else {
            return wrong("an IPv6 address has no closing ]");
        };
        return match after.strip_prefix(':') {
            Some(port) => Ok((address, port)),
            None if after.is_empty() => Ok((address, "")),
            None => wrong("something other than a port follows the IPv6 address"),
        };
    }
    Ok(entry.rsplit_once(':').unwrap_or((entry, "")))
}

/// Decodes %XX; the error names the part only, since it may be a password.
fn decode(text: &str, part: &str) -> Result<String, ConninfoError> {
    percent::decode(text).map_err(|fault| {
        ConninfoError(match fault {
            Fault::Escape => {
                format!("the {part} has a % without two hexadecimal digits: write %25 for % itself")
            }
            Fault::Utf8 => format!("the {part} is not UTF-8"),
        })
    })
}

/// Looks a password up in a file such as `~/.pgpass` (PostgreSQL manual, "The Password File"): lines of
/// host:port:database:user:password, the first that fits. Others must not be able to read it: then it is not used, and
/// the error says so.
///
/// # Errors
/// [`ConninfoError`] where others can read the file.
pub fn password_from_file(path: &Path, wanted: [&str; 4]) -> Result<Option<String>, ConninfoError> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(None) };
    if !metadata.is_file() {
        return Ok(None);
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return wrong(format!("{} can be read by others, so it is not used: chmod 600 it", path.display()));
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    Ok(text.lines().filter(|line| !line.starts_with('#')).find_map(|line| password_in(line, wanted)))
}

fn password_in(line: &str, wanted: [&str; 4]) -> Option<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => fields.last_mut()?.extend(chars.next()),
            // What follows the fourth colon is the password, colons and all.
            ':' if fields.len() < 5 => fields.push(String::new()),
            c => fields.last_mut()?.push(c),
        }
    }
    let password = fields.get(4)?.clone();
    let fits = fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
    fits.then_some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Params {
        Params::parse(text, &|_| None).unwrap()
    }

    fn refused(text: &str) -> String {
        Params::parse(text, &|_| None).unwrap_err().to_string()
    }

    fn pairs(params: &Params) -> Vec<(&str, &str)> {
        params.values.iter().map(|(key, value)| (*key, value.as_str())).collect()
    }

    #[test]
    fn urls_are_read_as_libpq_does() {
        let full =
            "postgres://me:p%40ss%3A@db.example:5433/chain%20main?sslmode=verify-full&connect_timeout=5";
        assert_eq!(
            pairs(&parse(full)),
            [
                ("connect_timeout", "5"),
                ("dbname", "chain main"),
                ("host", "db.example"),
                ("password", "p@ss:"),
                ("port", "5433"),
                ("sslmode", "verify-full"),
                ("user", "me")
            ]
        );
        assert_eq!(pairs(&parse("postgresql://[::1]:5433")), [("host", "::1"), ("port", "5433")]);
        assert_eq!(pairs(&parse("postgresql://%2Frun%2Fpg/x")), [("dbname", "x"), ("host", "/run/pg")]);
        assert_eq!(
            pairs(&parse("postgresql://satgres@/satgres?host=/run/pg&port=5432")),
            [("dbname", "satgres"), ("host", "/run/pg"), ("port", "5432"), ("user", "satgres")]
        );
        assert_eq!(
            pairs(&parse("postgresql://a:1,b:2/x?target_session_attrs=read-write")),
            [("dbname", "x"), ("host", "a,b"), ("port", "1,2"), ("target_session_attrs", "read-write")]
        );
        assert_eq!(pairs(&parse("postgresql://")), []);
        assert_eq!(parse("postgresql://h/?ssl=true").get("sslmode"), Some("require"));
    }

    #[test]
    fn pairs_are_read_as_libpq_does() {
        assert_eq!(
            pairs(&parse(r"host = /run/pg  dbname='it\'s' user=a\ b password=''")),
            [("dbname", "it's"), ("host", "/run/pg"), ("password", ""), ("user", "a b")]
        );
        assert_eq!(pairs(&parse("")), []);
    }

    #[test]
    fn the_environment_fills_what_was_not_given() {
        let env = |name: &str| match name {
            "PGHOST" => Some("elsewhere".to_owned()),
            "PGUSER" => Some("me".to_owned()),
            "PGPORT" => Some(String::new()),
            _ => None,
        };
        let params = Params::parse("host=here", &env).unwrap();
        assert_eq!(pairs(&params), [("host", "here"), ("user", "me")]);
        let told: Vec<_> = params.environment().filter(|(_, value)| value.is_some()).collect();
        assert_eq!(told, [("PGHOST", Some("here")), ("PGUSER", Some("me"))]);
        assert!(params.environment().any(|pair| pair == ("PGSSLMODE", None)));
    }

    #[test]
    fn mistakes_are_named_but_never_a_password() {
        assert_eq!(refused("mysql://h/x"), "a URL must begin with postgresql:// or postgres://");
        assert_eq!(refused("secret"), "neither a URL nor pairs of key=value");
        assert_eq!(refused("hots=x"), "unknown parameter `hots`");
        assert_eq!(refused("password='secret"), "the quote of `password` is not closed");
        let percent = refused("postgresql://me:50%secret@h/x");
        assert_eq!(percent, "the password has a % without two hexadecimal digits: write %25 for % itself");
        assert!(refused("service=mine").starts_with("`service` is not supported"));
        let shown = format!("{:?}", parse("password=secret host=h"));
        assert_eq!(shown, r#"{"host": "h", "password": "***"}"#);
    }

    #[test]
    fn the_password_file_is_read_as_libpq_does_unless_others_can_read_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = "# a comment\nh:5432:other:me:no\nh:*:chain:me:se\\:cr\\\\et:s\n*:*:*:*:last\n";
        std::fs::write(file.path(), lines).unwrap();
        let look_up = |wanted| password_from_file(file.path(), wanted);
        assert_eq!(look_up(["h", "5432", "chain", "me"]).unwrap().as_deref(), Some("se:cr\\et:s"));
        assert_eq!(look_up(["h", "5432", "other", "me"]).unwrap().as_deref(), Some("no"));
        assert_eq!(look_up(["x", "1", "y", "z"]).unwrap().as_deref(), Some("last"));
        assert_eq!(password_from_file(Path::new("/nonexistent"), ["h", "5432", "chain", "me"]), Ok(None));
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(look_up(["h", "5432", "chain", "me"]).unwrap_err().to_string().contains("chmod 600"));
    }
}

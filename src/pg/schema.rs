//! Brings the database to this version's schema: migrations, then code (functions and views), then the facts.
//!
//! In: a connection and what this data directory shall hold. Out: schemas `chain`, `ops` and `api` as this
//! version wants them. Called by `run` before anything is loaded. Migrations only go forward; code is replaced as a
//! whole when its text has changed. It never alters the network or the store settings of a database that has them.

use bitcoin::hashes::{Hash, HashEngine, sha256};
use tokio_postgres::Client;
use tracing::{debug, info};

use super::migrations;
use crate::{config::Detail, network::Network};

/// Functions that belong to the tables; run once per change.
const FUNCTIONS: &str = include_str!("../../sql/functions.sql");
/// The views and functions for readers; schema `api` is dropped before it is run.
const API: &str = include_str!("../../sql/api.sql");
/// Key of the advisory lock that serialises installations, `satgres` in ASCII.
const LOCK_KEY: i64 = 0x0073_6174_6772_6573;

/// Why the schema cannot be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database holds something else.
    #[error(
        "the database holds {key} = {recorded}, but {asked} was asked for\n  help: ask for {recorded}, or choose another --data-dir or --database-url"
    )]
    Mismatch {
        /// `network`, `store_witness` or `store_script_sig`.
        key: &'static str,
        /// What the database was made with.
        recorded: String,
        /// What this run wants.
        asked: String,
    },
    /// The migrations.
    #[error(transparent)]
    Migrations(#[from] migrations::Error),
    /// A statement failed.
    #[error("cannot {what}")]
    Statement {
        /// What was tried.
        what: &'static str,
        /// The server's answer.
        source: tokio_postgres::Error,
    },
}

/// What is fixed when a database is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The chain.
    pub network: Network,
    /// Whether witnesses are stored.
    pub store_witness: Detail,
    /// Whether scriptSigs are stored.
    pub store_script_sig: Detail,
}

impl Facts {
    fn settings(&self) -> [(&'static str, &'static str); 3] {
        [
            ("network", self.network.name()),
            ("store_witness", self.store_witness.name()),
            ("store_script_sig", self.store_script_sig.name()),
        ]
    }
}

/// Installs what is missing or has changed; refuses a database that holds something else.
///
/// # Errors
/// [`Error::Mismatch`] and [`migrations::Error::Newer`] for the user to resolve; the others are the server's.
pub async fn install(client: &mut Client, facts: &Facts) -> Result<(), Error> {
    check_facts(client, facts).await?;
    migrations::migrate(client, LOCK_KEY).await?;
    record_facts(client, facts).await?;
    check_facts(client, facts).await?;
    install_code(client, FUNCTIONS, API).await
}

/// The network that the database was made for; `None` where nothing is installed yet.
///
/// # Errors
/// [`Error::Statement`].
pub async fn recorded_network(client: &Client) -> Result<Option<Network>, Error> {
    let recorded = recorded(client, "network").await?;
    Ok(recorded.and_then(|text| text.parse().ok()))
}

async fn recorded(client: &Client, key: &str) -> Result<Option<String>, Error> {
    let failed = |source| Error::Statement { what: "read ops.settings", source };
    let there =
        client.query_one("select to_regclass('ops.settings') is not null", &[]).await.map_err(failed)?;
    if !there.get::<_, bool>(0) {
        return Ok(None);
    }
    let row =
        client.query_opt("select value from ops.settings where key = $1", &[&key]).await.map_err(failed)?;
    Ok(row.map(|row| row.get(0)))
}

async fn check_facts(client: &Client, facts: &Facts) -> Result<(), Error> {
    for (key, asked) in facts.settings() {
        match recorded(client, key).await? {
            Some(recorded) if recorded != asked => {
                return Err(Error::Mismatch { key, recorded, asked: asked.to_owned() });
            }
            _ => {}
        }
    }
    Ok(())
}

async fn record_facts(client: &Client, facts: &Facts) -> Result<(), Error> {
    for (key, value) in facts.settings() {
        let sql = "insert into ops.settings (key, value) values ($1, $2) on conflict (key) do nothing";
        let done = client.execute(sql, &[&key, &value]).await;
        done.map_err(|source| Error::Statement { what: "write ops.settings", source })?;
    }
    Ok(())
}

/// Runs the code where its digest differs from the recorded one, all in one transaction.
async fn install_code(client: &mut Client, functions: &str, api: &str) -> Result<(), Error> {
    let digest = code_digest(functions, api);
    if recorded(client, "code_digest").await?.as_deref() == Some(&digest) {
        debug!("functions and views are up to date");
        return Ok(());
    }
    let failed = |what| move |source| Error::Statement { what, source };
    let transaction = client.transaction().await.map_err(failed("begin"))?;
    let lock = transaction.execute("select pg_advisory_xact_lock($1)", &[&LOCK_KEY]).await;
    lock.map_err(failed("wait for another installation"))?;
    transaction.batch_execute(functions).await.map_err(failed("install sql/functions.sql"))?;
    let drop = transaction.batch_execute("drop schema if exists api cascade").await;
    drop.map_err(failed("drop schema api"))?;
    transaction.batch_execute(api).await.map_err(failed("install sql/api.sql"))?;
    let sql = "insert into ops.settings (key, value) values ('code_digest', $1)
               on conflict (key) do update set value = excluded.value";
    transaction.execute(sql, &[&digest]).await.map_err(failed("write ops.settings"))?;
    transaction.commit().await.map_err(failed("commit functions and views"))?;
    info!("functions and views installed");
    Ok(())
}

/// SHA-256 of both texts, each after its length.
fn code_digest(functions: &str, api: &str) -> String {
    let mut engine = sha256::Hash::engine();
    for text in [functions, api] {
        engine.input(&(text.len() as u64).to_be_bytes());
        engine.input(text.as_bytes());
    }
    sha256::Hash::from_engine(engine).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_tells_where_one_text_ends() {
        let digest = code_digest("ab", "c");
        assert_eq!(digest.len(), 64);
        assert_ne!(digest, code_digest("a", "bc"));
    }
}

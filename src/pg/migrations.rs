//! Applies the migrations that a database lacks, over a connection that is open already.
//!
//! In: the files of `migrations/`, read at compile time by sqlx, with its checksums. Out: their tables, and one record each,
//! in the layout of sqlx. Called by [`super::schema`]. All in one transaction under an advisory lock: nothing is ever half
//! applied, and of two that start at once the second finds everything done. sqlx's own connection is not used: there must be
//! one way of connecting only, with its TLS, its passwords and its several hosts.

use std::time::Instant;

use sqlx::migrate::Migrator;
use tokio_postgres::{Client, Transaction, types::ToSql};
use tracing::info;

/// The migrations of this version, by number.
static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");
/// The records of what is applied. A role that may only create schemas cannot write to `public`.
const RECORDS: &str = "ops._satgres_migrations";
/// Makes the table of records, in the layout of sqlx.
const CREATE_RECORDS: &str = "
create table ops._satgres_migrations (
    version bigint primary key,
    description text not null,
    installed_on timestamptz not null default now(),
    success boolean not null,
    checksum bytea not null,
    execution_time bigint not null
);
comment on table ops._satgres_migrations is 'Migrations of this database, in the layout of sqlx.';
comment on column ops._satgres_migrations.version is 'Number of the migration.';
comment on column ops._satgres_migrations.description is 'Its name.';
comment on column ops._satgres_migrations.installed_on is 'When it was applied.';
comment on column ops._satgres_migrations.success is 'Always true: a migration that fails leaves no row.';
comment on column ops._satgres_migrations.checksum is 'SHA-384 of its text, 48 bytes.';
comment on column ops._satgres_migrations.execution_time is 'How long it took, nanoseconds.'";
/// Where earlier versions kept them; they stay there.
const RECORDS_EARLIER: &str = "public._satgres_migrations";

/// Why migrations could not be applied. The database is as it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer satgres made it.
    #[error(
        "the database was made by a newer satgres: it has migration {version}, which this one does not know\n  help: use that version, or choose another --data-dir or --database-url"
    )]
    Newer {
        /// Number of the migration.
        version: i64,
    },
    /// A file was changed after it had been applied: a defect.
    #[error("migration {version} of this version differs from what the database was made with")]
    Changed {
        /// Number of the migration.
        version: i64,
    },
    /// The server refused or went away.
    #[error("cannot {what}")]
    Server {
        /// What was tried.
        what: String,
        /// The server's answer.
        source: tokio_postgres::Error,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Error {
    let what = what.into();
    move |source| Error::Server { what, source }
}

/// Applies what is missing.
///
/// # Errors
/// [`Error::Newer`] for the user to resolve; the others are the server's, or a defect.
pub(super) async fn migrate(client: &mut Client, lock_key: i64) -> Result<(), Error> {
    let transaction = client.transaction().await.map_err(failed("begin"))?;
    let lock = transaction.execute("select pg_advisory_xact_lock($1)", &[&lock_key]).await;
    lock.map_err(failed("wait for another installation"))?;
    let records = records(&transaction).await?;
    let applied = match records {
        Some(table) => applied(&transaction, table).await?,
        None => Vec::new(),
    };
    let mut missing = Vec::new();
    for migration in MIGRATIONS.iter() {
        match applied.iter().find(|(version, _)| *version == migration.version) {
            Some((version, checksum)) if checksum[..] != migration.checksum[..] => {
                return Err(Error::Changed { version: *version });
            }
            Some(_) => {}
            None => missing.push(migration),
        }
    }
    if let Some((version, _)) = applied.iter().find(|(version, _)| !MIGRATIONS.version_exists(*version)) {
        return Err(Error::Newer { version: *version });
    }
    let mut nanoseconds = Vec::new();
    for migration in &missing {
        let began = Instant::now();
        let run = transaction.batch_execute(migration.sql.as_str()).await;
        run.map_err(failed(format!("apply migration {} ({})", migration.version, migration.description)))?;
        nanoseconds.push(i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX));
    }
    // Only now is its schema there.
    let table = records.unwrap_or(RECORDS);
    if records.is_none() {
        transaction.batch_execute(CREATE_RECORDS).await.map_err(failed("record migrations"))?;
    }
    let insert = format!(
        "insert into {table} (version, description, success, checksum, execution_time) values ($1, $2, true, $3, $4)"
    );
    for (migration, nanoseconds) in missing.iter().zip(&nanoseconds) {
        let (description, checksum) = (&*migration.description, &*migration.checksum);
        let record: [&(dyn ToSql + Sync); 4] = [&migration.version, &description, &checksum, nanoseconds];
        transaction.execute(&insert, &record).await.map_err(failed("record a migration"))?;
    }
    transaction.commit().await.map_err(failed("commit migrations"))?;
    if !missing.is_empty() {
        info!(count = missing.len(), "migrations applied");
    }
    Ok(())
}

/// The table of records, if there is one.
async fn records(transaction: &Transaction<'_>) -> Result<Option<&'static str>, Error> {
    for table in [RECORDS, RECORDS_EARLIER] {
        // Not to_regclass: it takes no lock, so it may answer from before the wait for the other installation.
        let sql = "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                   where n.nspname || '.' || c.relname = $1)";
        let row = transaction.query_one(sql, &[&table]).await;
        if row.map_err(failed("look for applied migrations"))?.get(0) {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Numbers and checksums of what was applied.
async fn applied(transaction: &Transaction<'_>, table: &str) -> Result<Vec<(i64, Vec<u8>)>, Error> {
    let rows =
        transaction.query(&format!("select version, checksum from {table} order by version"), &[]).await;
    let rows = rows.map_err(failed("read the applied migrations"))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_migrations_run_inside_a_transaction() {
        assert!(MIGRATIONS.iter().all(|migration| !migration.no_tx));
        let versions: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert_eq!(versions[..2], [1, 2]);
        assert!(versions.is_sorted());
    }
}

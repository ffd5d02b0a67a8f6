//! A server that is not satgres' own: a role without privileges, hostile defaults, every refusal, other major versions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
};

use satgres::chaingen::{self, Options};
use support::{ExternalServer, OtherVersion, Satgres};

/// A small chain, the same for all tests here.
struct Blocks {
    dir: tempfile::TempDir,
}

impl Blocks {
    fn new() -> Blocks {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("blocks");
        chaingen::generate(&Options { blocks: 130, txs_per_block: 20, seed: 7, out }).unwrap();
        Blocks { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("blocks")
    }
}

/// Several segments, whatever the size of the chain.
const SEGMENTS: [&str; 2] = ["--segment-bytes", "100KiB"];

/// The digest of that chain, as a private server has it.
fn private_digest(blocks: &Path) -> Vec<String> {
    let satgres = Satgres::new();
    satgres.run("regtest", blocks, &SEGMENTS);
    satgres.digest()
}

/// What an administrator does for satgres: a role and a database, nothing else.
fn grant(server: &ExternalServer, locale: &str) {
    server.sql(
        "postgres",
        &format!(
            "create role alice login password 'wonder land'
;\ncreate database chain template template0 encoding 'UTF8' {locale}
;\ngrant create on database chain to alice"
        ),
    );
}

#[test]
fn a_role_that_may_only_create_schemas_gets_the_same_rows() {
    let server = ExternalServer::start(
        "wal_level = replica\nmax_connections = 20\nmax_wal_size = 64MB",
        "host all all localhost scram-sha-256",
    );
    // A collation that sorts otherwise than ours.
    grant(&server, "locale_provider icu icu_locale 'en-US' locale 'C'");
    // What administrators set for short statements, and what somebody may have set for other reasons.
    server.sql(
        "postgres",
        "alter role alice set statement_timeout = '150ms'
;\nalter role alice set idle_in_transaction_session_timeout = '100ms'
;\nalter role alice set idle_session_timeout = '100ms'
;\nalter role alice set lock_timeout = '100ms'
;\nalter role alice set default_transaction_isolation = 'serializable'
;\nalter role alice set standard_conforming_strings = off
;\nalter role alice set bytea_output = 'escape'
;\nalter role alice set datestyle = 'German'
;\nalter role alice set timezone = 'Asia/Kathmandu'
;\nalter role alice set search_path = ''
;\nalter database chain set synchronous_commit = off",
    );
    let blocks = Blocks::new();
    let satgres = Satgres::new()
        .with("SATGRES_DATABASE_URL", server.url("alice", "chain"))
        .with("PGPASSWORD", "wonder land");
    let said = satgres.run("regtest", &blocks.path(), &SEGMENTS).output();
    assert!(said.contains("advice: max_wal_size is 64MB; "), "{said}");
    assert!(said.contains("advice: wal_level is replica; minimal would be better: "), "{said}");
    assert!(said.contains("WARN satgres::pg::external: advice: fsync is off; on would be better"), "{said}");
    assert_eq!(said.matches("advice: ").count(), 5, "{said}");
    assert!(!said.contains("wonder land"), "{said}");
    assert_eq!(satgres.digest(), private_digest(&blocks.path()));
    satgres.verify();
    assert_eq!(satgres.value("select count(*) from chain.blocks"), "131");
    assert_eq!(satgres.value("select current_user"), "alice");
    // COPY FREEZE holds without wal_level = minimal too.
    let frozen = "select bool_and(relallvisible = relpages and relpages > 0) from pg_class
                  where relnamespace = 'chain'::regnamespace and relkind = 'r' and relname like 'outputs\\_0%'";
    assert_eq!(satgres.value(frozen), "t");
    let segments: u32 = satgres.value("select count(*) from ops.segments").parse().unwrap();
    assert!(segments >= 3, "{segments}");

    // Nothing of the server's was changed, and nothing private was made.
    assert!(!satgres.data_dir().join("pg").exists());
    assert_eq!(fs::read_to_string(server.data().join("postgresql.auto.conf")).unwrap().lines().count(), 2);
    assert_eq!(
        server.sql("chain", "select count(*) from pg_class where relnamespace = 'public'::regnamespace"),
        ["0"]
    );
    let again = satgres.run("regtest", &blocks.path(), &SEGMENTS).output();
    assert!(!again.contains("Loaded segment"), "{again}");

    // The other commands.
    assert_eq!(satgres.command(&["url"]).stdout, format!("{}\n", server.url("alice", "chain")));
    let stopped = satgres.command(&["pg", "stop"]);
    assert_eq!(stopped.status.code(), Some(2));
    assert!(stopped.stderr.contains("not satgres' own"), "{}", stopped.stderr);
    let tuned = satgres.command(&["tune"]).stdout;
    assert!(
        tuned.contains(&format!("\nADVICE for database \"chain\" at localhost:{}, PostgreSQL ", server.port)),
        "{tuned}"
    );
    assert!(tuned.contains("\n  max_wal_size is 64MB; "), "{tuned}");
    let json = satgres.command(&["tune", "--format", "json"]);
    assert!(
        json.stdout.trim_end().ends_with('}') && json.stderr.contains("advice: max_wal_size"),
        "{json:?}"
    );
    let config = satgres.command(&["config"]).stdout;
    assert!(config.contains("password=***") && !config.contains("wonder"), "{config}");
}

#[test]
fn whatever_is_missing_is_told_with_the_statement_that_mends_it() {
    let mut server = ExternalServer::start("", "host all all localhost trust");
    server.sql("postgres", "create role bob login\n;\ncreate role carol login");
    let blocks = Blocks::new();
    let refused = |rest: &str| {
        let satgres = Satgres::new().with("SATGRES_DATABASE_URL", server.url("bob", rest));
        satgres.run_expect_failure("regtest", &blocks.path(), &[])
    };
    let mend = |statement: &str| server.sql("postgres", statement);

    let said = refused("chain");
    assert!(said.contains("there is no database \"chain\" on that server"), "{said}");
    mend(&help(&said, "let its administrator run: ").replace(" owner \"bob\"", ""));
    let said = refused("chain");
    assert!(said.contains("role \"bob\" may not create schemas in database \"chain\""), "{said}");
    mend(&help(&said, "let its owner run: "));

    mend("alter role bob in database chain set default_transaction_read_only = on");
    let said = refused("chain");
    assert!(said.contains("transactions of role \"bob\" in database \"chain\" are read-only"), "{said}");
    mend(&help(&said, "help: "));

    mend("alter role bob connection limit 5");
    let said = refused("chain");
    assert!(said.contains("has 5 connections left for role \"bob\", but a load needs 12"), "{said}");
    mend(&format!("alter {}", said.split("lift the limit: alter ").nth(1).unwrap().lines().next().unwrap()));

    // A schema that PostgREST's users like too: it would be dropped.
    server.sql("chain", "create schema api\n;\ncreate table api.precious (n int)");
    let said = refused("chain");
    assert!(said.contains("has a schema api that satgres did not make"), "{said}");
    assert_eq!(server.sql("chain", "select count(*) from api.precious"), ["0"]);
    server.sql("chain", "drop schema api cascade");

    server.sql("chain", "revoke usage on language plpgsql from public");
    let said = refused("chain");
    assert!(said.contains("role \"bob\" cannot use PL/pgSQL"), "{said}");
    for statement in help(&said, "let its owner run: ").split("; ") {
        server.sql("chain", statement);
    }

    mend("create database latin template template0 encoding 'LATIN1' locale 'C'");
    let said = refused("latin");
    assert!(said.contains("database \"latin\" has encoding LATIN1"), "{said}");

    // Now nothing is missing; but what bob made is not carol's.
    let bob = Satgres::new().with("SATGRES_DATABASE_URL", server.url("bob", "chain"));
    bob.run("regtest", &blocks.path(), &[]);
    mend("grant create on database chain to carol");
    let carol = Satgres::new().with("SATGRES_DATABASE_URL", server.url("carol", "chain"));
    let said = carol.run_expect_failure("regtest", &blocks.path(), &[]);
    assert!(
        said.contains("schema api of database \"chain\" belongs to role \"bob\", not to \"carol\""),
        "{said}"
    );

    // A chain that is not there, and an address where nobody is.
    mend("create database empty");
    let empty = Satgres::new().with("SATGRES_DATABASE_URL", server.url("bob", "empty"));
    let digest = empty.command(&["verify", "--digest"]);
    assert_eq!(digest.status.code(), Some(1));
    assert!(digest.stderr.contains("holds no chain yet"), "{}", digest.stderr);

    // A standby repeats only: the digest can be had there, a load cannot.
    let loaded = bob.digest();
    fs::write(server.data().join("standby.signal"), "").unwrap();
    server.restart();
    let said = bob.run_expect_failure("regtest", &blocks.path(), &[]);
    assert!(said.contains("the server is a standby"), "{said}");
    assert_eq!(bob.digest(), loaded);
    let port = server.port;
    drop(server);
    let nobody = format!("postgresql://bob:s3cret@localhost:{port}/chain");
    let satgres = Satgres::new().with("SATGRES_DATABASE_URL", nobody);
    let gone = satgres.command(&["verify"]);
    assert_eq!(gone.status.code(), Some(4), "{}", gone.stderr);
    assert!(gone.stderr.contains("onnection refused") && !gone.stderr.contains("s3cret"), "{}", gone.stderr);
    let wrong =
        Satgres::new().with("SATGRES_DATABASE_URL", "postgresql://bob:5%s3cret@h/chain").command(&["url"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("SATGRES_DATABASE_URL: no valid connection string"), "{}", wrong.stderr);
    assert!(!wrong.stderr.contains("s3cret"), "{}", wrong.stderr);
}

/// The statement after a word of the help.
fn help(said: &str, before: &str) -> String {
    let rest = said.rsplit_once(before).unwrap_or_else(|| panic!("no {before:?} in {said}")).1;
    rest.lines().next().unwrap().trim_end().to_owned()
}

#[test]
fn other_major_versions_give_the_same_rows_private_or_not() {
    let blocks = Blocks::new();
    let expected = private_digest(&blocks.path());
    for major in [17, 18] {
        let Some(other) = OtherVersion::find(major) else { continue };
        let private = Satgres::new().with("PG_BIN", other.bin.to_str().unwrap());
        private.run("regtest", &blocks.path(), &SEGMENTS);
        assert!(private.value("show server_version").starts_with(&major.to_string()));
        assert_eq!(private.digest(), expected, "private, {major}");
        private.verify();

        let server =
            ExternalServer::of(&other.bin, "wal_level = replica", "host all all localhost scram-sha-256");
        grant(&server, "locale 'C'");
        server.sql("postgres", "alter role alice set statement_timeout = '150ms'");
        if major >= 17 {
            server.sql("postgres", "alter role alice set transaction_timeout = '200ms'");
        }
        let external = Satgres::new().with(
            "SATGRES_DATABASE_URL",
            format!("host=localhost port={} user=alice dbname=chain password='wonder land'", server.port),
        );
        external.run("regtest", &blocks.path(), &SEGMENTS);
        assert_eq!(external.digest(), expected, "external, {major}");
        external.verify();
    }
}

#[test]
fn a_data_directory_of_another_major_version_is_refused_in_both_directions() {
    let Some(other) = OtherVersion::find(18) else { return };
    let here = Satgres::new();
    assert!(here.command(&["pg", "start"]).status.success());
    assert!(here.command(&["pg", "stop"]).status.success());
    let version = fs::read_to_string(here.data_dir().join("pg/PG_VERSION")).unwrap().trim().to_owned();
    assert_ne!(version, "18");
    let bin = other.bin.to_str().unwrap();
    let said = here.command(&["pg", "start", "--pg-bin", bin]);
    assert_eq!(said.status.code(), Some(4));
    let expected = format!("was made by PostgreSQL {version}, but the programs in {bin} are version 18");
    assert!(said.stderr.contains(&expected), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("install PostgreSQL {version}")), "{}", said.stderr);

    let there = Satgres::new();
    assert!(there.command(&["pg", "start", "--pg-bin", bin]).status.success());
    assert!(there.command(&["pg", "stop"]).status.success());
    let said = there.command(&["pg", "start"]);
    assert_eq!(said.status.code(), Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("was made by PostgreSQL 18, but the programs in "), "{}", said.stderr);
    assert!(there.command(&["pg", "start", "--pg-bin", bin]).status.success());
}

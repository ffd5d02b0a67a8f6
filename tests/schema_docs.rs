//! docs/schema.md against the database: it is made from the catalogue and its comments, and this test fails when it is
//! not what the catalogue gives. `scripts/schema-docs` (SATGRES_WRITE_EXPECTED=1) writes it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{fmt::Write as _, fs, path::Path};

use satgres::{
    config::Detail,
    network::Network,
    pg::{
        cluster::Cluster,
        objects, pool,
        schema::{self, Facts},
    },
};
use support::DataDir;
use tokio_postgres::Client;

const HEAD: &str = "# The schema\n\n\
    Made by `scripts/schema-docs` from the comments in the database; psql shows the same with `\\d+ chain.*`, `\\d+ api.*` and \
    `\\df+ api.*`.\n";

/// Tables and views, partitions aside: name, kind, comment, identity.
const RELATIONS: &str =
    "select c.oid::regclass::text, case c.relkind when 'v' then 'view' when 'p' then 'partitioned table' else 'table' end,
            obj_description(c.oid, 'pg_class'), c.oid
     from pg_class c
     where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
     order by c.relkind = 'v', c.relname";

/// Name, type, and comment of each column.
const COLUMNS: &str =
    "select a.attname::text, format_type(a.atttypid, a.atttypmod) || case when a.attnotnull or c.relkind = 'v' then '' else ', or NULL' end,
            col_description(a.attrelid, a.attnum)
     from pg_attribute a join pg_class c on c.oid = a.attrelid
     where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
     order by a.attnum";

/// Keys and indexes, as `create index` would say it.
const INDEXES: &str = "select i.indexrelid::regclass::text,
            case when i.indisprimary then 'primary key' when i.indisunique then 'unique' else 'index' end
                || substring(pg_get_indexdef(i.indexrelid) from ' \\(.*')
     from pg_index i
     where i.indrelid = $1
     order by not i.indisprimary, i.indexrelid::regclass::text";

/// Signature, result, volatility, and comment of each function.
const FUNCTIONS: &str =
    "select p.pronamespace::regnamespace || '.' || p.proname || '(' || pg_get_function_arguments(p.oid) || ')',
            pg_get_function_result(p.oid),
            case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
            obj_description(p.oid, 'pg_proc')
     from pg_proc p
     where p.pronamespace = $1::text::regnamespace
     order by p.proname, 1";

#[tokio::test]
async fn the_schema_is_documented_as_it_is() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let pool = pool::pool(cluster.pg_config(), 1).unwrap();
    let mut client = pool::connect_copy(&pool).await.unwrap();
    let facts =
        Facts { network: Network::Regtest, store_witness: Detail::Full, store_script_sig: Detail::Full };
    schema::install(&mut client, &facts).await.unwrap();
    objects::ensure_parents(&client).await.unwrap();
    let mut text = HEAD.to_owned();
    for schema in ["chain", "api", "ops"] {
        document(&client, schema, &mut text).await;
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema.md");
    if std::env::var_os("SATGRES_WRITE_EXPECTED").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    let differs = text.lines().zip(written.lines()).find(|(found, written)| found != written);
    assert!(
        text == written,
        "docs/schema.md is not the schema's; scripts/schema-docs writes it: {differs:?}"
    );
}

/// Appends a schema. Everything in it must have a comment.
async fn document(client: &Client, schema: &str, text: &mut String) {
    let comment = "select obj_description($1::text::regnamespace, 'pg_namespace')";
    let comment: String = client.query_one(comment, &[&schema]).await.unwrap().get(0);
    write!(text, "\n## Schema {schema}\n\n{comment}\n").unwrap();
    for row in client.query(RELATIONS, &[&schema]).await.unwrap() {
        let [name, kind, comment]: [String; 3] = [row.get(0), row.get(1), row.get(2)];
        let oid: u32 = row.get(3);
        write!(text, "\n### {name}\n\n({kind}) {comment}\n\n| column | type | |\n|---|---|---|\n").unwrap();
        for row in client.query(COLUMNS, &[&oid]).await.unwrap() {
            let [column, data_type, comment]: [String; 3] = [row.get(0), row.get(1), row.get(2)];
            writeln!(text, "| {column} | {data_type} | {} |", comment.replace('|', "\\|")).unwrap();
        }
        let indexes = client.query(INDEXES, &[&oid]).await.unwrap();
        if !indexes.is_empty() {
            text.push('\n');
        }
        for row in indexes {
            let [name, definition]: [String; 2] = [row.get(0), row.get(1)];
            writeln!(text, "- `{name}`: {definition}").unwrap();
        }
    }
    let functions = client.query(FUNCTIONS, &[&schema]).await.unwrap();
    if !functions.is_empty() {
        write!(text, "\n### Functions of {schema}\n").unwrap();
    }
    for row in functions {
        let [signature, result, volatility, comment]: [String; 4] =
            [row.get(0), row.get(1), row.get(2), row.get(3)];
        write!(text, "\n`{signature}`\nreturns `{result}`, {volatility}. {comment}\n").unwrap();
    }
}

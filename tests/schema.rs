//! The schema against the real server: installed, installed again, refused; declared objects against the catalogue.

#![allow(clippy::unwrap_used)]

mod support;

use satgres::{
    config::Detail,
    network::Network,
    pg::{
        cluster::Cluster,
        objects::{self, DifferenceKind, SEGMENTED},
        pool,
        schema::{self, Facts},
    },
    profile::{Figures, Profile},
};
use support::DataDir;

const FACTS: Facts =
    Facts { network: Network::Regtest, store_witness: Detail::Full, store_script_sig: Detail::Full };

async fn installed() -> (DataDir, Cluster, deadpool_postgres::ClientWrapper) {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let pool = pool::pool(cluster.pg_config(), 1).unwrap();
    let mut client = pool::connect_copy(&pool).await.unwrap();
    schema::install(&mut client, &FACTS).await.unwrap();
    (dir, cluster, client)
}

async fn text(client: &tokio_postgres::Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn the_schema_is_installed_once_and_remembers_what_it_holds() {
    let (_dir, _cluster, mut client) = installed().await;
    assert_eq!(schema::recorded_network(&client).await.unwrap(), Some(Network::Regtest));
    let count = "select count(*)::text || ' ' || bool_and(success)::text from ops._satgres_migrations";
    let migrations = text(&client, count).await;
    assert!(migrations.ends_with(" true"), "{migrations}");
    let stamp = "select max(installed_on)::text || (select value from ops.settings where key = 'code_digest')
                 from ops._satgres_migrations";
    let before = text(&client, stamp).await;
    schema::install(&mut client, &FACTS).await.unwrap();
    assert_eq!(text(&client, stamp).await, before);

    // Code is replaced where its digest differs.
    client.batch_execute("update ops.settings set value = 'old' where key = 'code_digest'").await.unwrap();
    schema::install(&mut client, &FACTS).await.unwrap();
    assert_eq!(text(&client, stamp).await, before);
}

#[tokio::test]
async fn another_network_or_store_setting_is_refused_with_the_way_out() {
    let (_dir, _cluster, mut client) = installed().await;
    let main = Facts { network: Network::Main, ..FACTS };
    let error = schema::install(&mut client, &main).await.unwrap_err().to_string();
    let expected = "the database holds network = regtest, but main was asked for\n  help: ask for regtest, or choose another --data-dir or --database-url";
    assert_eq!(error, expected);
    let none = Facts { store_witness: Detail::None, ..FACTS };
    let error = schema::install(&mut client, &none).await.unwrap_err().to_string();
    assert!(error.starts_with("the database holds store_witness = full, but none was asked for"), "{error}");
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let (_dir, _cluster, mut client) = installed().await;
    let sql = "insert into ops._satgres_migrations (version, description, success, checksum, execution_time)
               values (9999, 'from the future', true, '\\x00', 0)";
    client.batch_execute(sql).await.unwrap();
    let error = schema::install(&mut client, &FACTS).await.unwrap_err().to_string();
    assert!(error.contains("made by a newer satgres: it has migration 9999"), "{error}");
}

#[tokio::test]
async fn migrations_recorded_where_earlier_versions_did_are_found() {
    let (_dir, _cluster, mut client) = installed().await;
    client.batch_execute("alter table ops._satgres_migrations set schema public").await.unwrap();
    schema::install(&mut client, &FACTS).await.unwrap();
    let found = "select coalesce(to_regclass('ops._satgres_migrations')::text, 'none')";
    assert_eq!(text(&client, found).await, "none");
}

#[tokio::test]
async fn two_installations_at_once_both_succeed() {
    let dir = DataDir::new();
    let cluster = Cluster::start(dir.options()).await.unwrap();
    let pool = pool::pool(cluster.pg_config(), 2).unwrap();
    let (mut one, mut other) =
        (pool::connect_copy(&pool).await.unwrap(), pool::connect_copy(&pool).await.unwrap());
    let (first, second) =
        tokio::join!(schema::install(&mut one, &FACTS), schema::install(&mut other, &FACTS));
    first.unwrap();
    second.unwrap();
}

/// Makes a segment as the restore does: standing alone, indexed, promoted, constrained, attached.
async fn make_segment(client: &tokio_postgres::Client, id: u32) {
    for table in SEGMENTED {
        let partition = objects::qualified(&objects::segment_table(table, id));
        let parent = objects::qualified(table);
        client.batch_execute(&format!("create table {partition} (like {parent})")).await.unwrap();
    }
    for index in &objects::declared().indexes {
        client.batch_execute(&index.create_on_segment(id)).await.unwrap();
        if let Some(sql) = index.promote_on_segment(id) {
            client.batch_execute(&sql).await.unwrap();
        }
    }
    for key in &objects::declared().foreign_keys {
        client.batch_execute(&key.add_on_segment(id)).await.unwrap();
        client.batch_execute(&key.validate_on_segment(id)).await.unwrap();
    }
    for table in SEGMENTED {
        let partition = objects::qualified(&objects::segment_table(table, id));
        let (from, to) = (i64::from(id) << 16, i64::from(id + 1) << 16);
        let parent = objects::qualified(table);
        let sql =
            format!("alter table {parent} attach partition {partition} for values from ({from}) to ({to})");
        client.batch_execute(&sql).await.unwrap();
    }
    let sql = "insert into ops.segments (segment_id, height_first, height_last, state)
               values ($1::int4, $1::int4, $1::int4, 'attached')";
    client.execute(sql, &[&id.cast_signed()]).await.unwrap();
}

async fn differences(client: &tokio_postgres::Client) -> Vec<(String, DifferenceKind)> {
    let found = objects::catalogue_differences(client).await.unwrap();
    found.into_iter().map(|it| (it.object, it.kind)).collect()
}

#[tokio::test]
async fn the_catalogue_is_compared_with_the_declared_list() {
    let (_dir, _cluster, client) = installed().await;
    let keyed = "select exists (select from pg_index where indrelid = 'chain.blocks'::regclass and indisprimary)::text";
    if text(&client, keyed).await == "false" {
        client.batch_execute("alter table chain.blocks add primary key (height)").await.unwrap();
    }
    assert_eq!(differences(&client).await.len(), 7, "no index on the parents yet");
    objects::ensure_parents(&client).await.unwrap();
    objects::ensure_parents(&client).await.unwrap();
    assert_eq!(differences(&client).await, []);
    make_segment(&client, 0).await;
    make_segment(&client, 12345).await;
    assert_eq!(differences(&client).await, []);

    let run = async |sql: &str| client.batch_execute(sql).await.unwrap();
    // Missing and extra.
    run("alter table chain.outputs_0000 drop constraint outputs_0000_tx_num_fkey").await;
    run("create index mine on chain.inputs_0000 (value)").await;
    let found = differences(&client).await;
    let extra = "CREATE INDEX mine ON chain.inputs_0000 USING btree (value)".to_owned();
    assert_eq!(
        found,
        [
            ("mine".to_owned(), DifferenceKind::Extra { found: extra }),
            ("outputs_0000_tx_num_fkey".to_owned(), DifferenceKind::Missing),
        ]
    );
    run("drop index chain.mine").await;
    // Different: the same name on other columns.
    run("alter table chain.outputs_0000 add constraint outputs_0000_tx_num_fkey
         foreign key (tx_num) references chain.transactions_12345 (tx_num) on delete cascade")
    .await;
    let declared = "foreign key (tx_num) references chain.transactions_0000 (tx_num)".to_owned();
    let other = "foreign key (tx_num) references chain.transactions_12345 (tx_num) with actions".to_owned();
    let kind = DifferenceKind::Different { declared, found: other };
    assert_eq!(differences(&client).await, [("outputs_0000_tx_num_fkey".to_owned(), kind)]);
    run("alter table chain.outputs_0000 drop constraint outputs_0000_tx_num_fkey").await;
    run(&objects::declared().foreign_keys[0].add_on_segment(0)).await;
    assert_eq!(differences(&client).await, [], "not validated yet is no difference");
    // Invalid: what a failed concurrent build leaves.
    run("update pg_index set indisvalid = false where indexrelid = 'chain.inputs_0000_pkey'::regclass").await;
    assert_eq!(differences(&client).await, [("inputs_0000_pkey".to_owned(), DifferenceKind::Invalid)]);
    run("update pg_index set indisvalid = true where indexrelid = 'chain.inputs_0000_pkey'::regclass").await;
    // Not attached: a table that readers no longer see.
    run("alter table chain.outputs detach partition chain.outputs_12345").await;
    let found = differences(&client).await;
    assert_eq!(found[0], ("outputs_12345".to_owned(), DifferenceKind::NotAttached));
    assert!(found.contains(&("outputs_12345_pkey".to_owned(), DifferenceKind::NotAttached)), "{found:?}");
    assert_eq!(found.len(), 3);
    // Attached, but of no segment that is.
    run("delete from ops.segments where segment_id = 0").await;
    let found = differences(&client).await;
    let kind = DifferenceKind::Extra { found: "partition of a segment that is not attached".to_owned() };
    assert!(found.contains(&("inputs_0000".to_owned(), kind)), "{found:?}");
}

#[tokio::test]
async fn a_parents_index_waits_for_its_segments_and_is_then_valid() {
    let (_dir, _cluster, client) = installed().await;
    objects::ensure_parents(&client).await.unwrap();
    if text(&client, "select exists (select from pg_index where indrelid = 'chain.blocks'::regclass and indisprimary)::text").await == "false" {
        client.batch_execute("alter table chain.blocks add primary key (height)").await.unwrap();
    }
    make_segment(&client, 0).await;
    // An index that a later version declares: the parent's is made first, the segment's is built and attached.
    client.batch_execute("drop index chain.transactions_txid_idx").await.unwrap();
    objects::ensure_parents(&client).await.unwrap();
    let valid =
        "select indisvalid::text from pg_index where indexrelid = 'chain.transactions_txid_idx'::regclass";
    assert_eq!(text(&client, valid).await, "false");
    let index = objects::declared().indexes.iter().find(|it| it.name == "transactions_txid_idx").unwrap();
    client.batch_execute(&index.create_on_segment(0)).await.unwrap();
    client.batch_execute(&index.attach_on_segment(0)).await.unwrap();
    assert_eq!(text(&client, valid).await, "true");
    assert_eq!(differences(&client).await, []);
}

#[tokio::test]
async fn a_phase_becomes_a_row() {
    let (_dir, _cluster, client) = installed().await;
    let profile = Profile::start();
    let figures = Figures {
        height: Some(840_000),
        blocks: Some(840_001),
        rows: Some(5),
        bytes: Some(600 << 30),
        cache_hit_ratio: Some(0.5),
        detail: Some(serde_json::json!({"indexes": 7})),
    };
    let row = profile.ended(&profile.phase(), "Restored table indexes", figures);
    row.insert(&client).await.unwrap();
    profile.reached("Entered LIVE sync from start state", Figures::default()).insert(&client).await.unwrap();
    let sql =
        "select concat_ws(' ', phase, height, blocks, rows, bytes, cache_hit_ratio, detail ->> 'indexes',
                   seconds < 60, peak_rss_bytes > 0, cpu_seconds >= 0, started > now() - interval '1 minute')
               from ops.phases order by phase_id limit 1";
    let expected = "Restored table indexes 840000 840001 5 644245094400 0.5 7 t t t t";
    assert_eq!(text(&client, sql).await, expected);
    assert_eq!(
        text(&client, "select count(distinct run_id)::text || count(*)::text from ops.phases").await,
        "12"
    );
}

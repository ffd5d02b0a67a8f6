//! What the catalogue says of the functions, tables and views: comments, volatility, parallel safety, search_path.

use crate::postgres::database;

/// The first column of a query, one line a row.
async fn lines(client: &tokio_postgres::Client, query: &str) -> Vec<String> {
    client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn every_object_has_a_comment() {
    let client = database("every_object_has_a_comment").await;
    let objects = "
        select 'schema ' || nspname as object, obj_description(oid, 'pg_namespace') as comment
        from pg_namespace where nspname in ('chain', 'ops', 'api')
        union all
        select 'relation ' || c.oid::regclass, obj_description(c.oid, 'pg_class')
        from pg_class c where c.relnamespace::regnamespace::text in ('chain', 'ops', 'api')
            and c.relkind in ('r', 'p', 'v', 'm') and not c.relispartition
        union all
        select 'column ' || c.oid::regclass || '.' || a.attname, col_description(c.oid, a.attnum)
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace::regnamespace::text in ('chain', 'ops', 'api')
            and c.relkind in ('r', 'p', 'v', 'm') and not c.relispartition
        union all
        select 'function ' || p.oid::regprocedure, obj_description(p.oid, 'pg_proc')
        from pg_proc p where p.pronamespace::regnamespace::text in ('chain', 'ops', 'api')";
    let all = lines(&client, &format!("select object from ({objects}) o")).await;
    for object in [
        "schema api",
        "relation api.outputs",
        "column chain.utxos.script",
        "function chain.first_tx_num(integer)",
    ] {
        assert!(all.iter().any(|name| name == object), "{object} is not there");
    }
    let bare =
        lines(&client, &format!("select object from ({objects}) o where coalesce(comment, '') = ''")).await;
    assert_eq!(bare, Vec::<String>::new());
}

#[tokio::test]
async fn functions_are_not_volatile_and_may_run_in_parallel() {
    let client = database("functions_are_not_volatile_and_may_run_in_parallel").await;
    let wrong = lines(
        &client,
        "select p.oid::regprocedure::text from pg_proc p
         where p.pronamespace::regnamespace::text in ('chain', 'api') and (p.provolatile = 'v' or p.proparallel <> 's')",
    )
    .await;
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test]
async fn no_function_depends_on_the_reader_s_search_path() {
    let client = database("no_function_depends_on_the_reader_s_search_path").await;
    // The body is bound at creation (prosqlbody), or search_path is set for the call.
    let wrong = lines(
        &client,
        "select p.oid::regprocedure::text from pg_proc p
         where p.pronamespace::regnamespace::text in ('chain', 'api')
             and p.prosqlbody is null and coalesce(p.proconfig, '{}') <> '{search_path=pg_catalog}'",
    )
    .await;
    assert_eq!(wrong, Vec::<String>::new());
    // An operator put in front of pg_catalog's changes nothing.
    client
        .batch_execute(
            "create schema evil;
             create function evil.shifted(bigint, integer) returns bigint language sql immutable as 'select 666';
             create operator evil.<< (leftarg = bigint, rightarg = integer, function = evil.shifted);
             set search_path = evil, pg_catalog",
        )
        .await
        .unwrap();
    let row = client.query_one("select chain.first_tx_num(2), 2::bigint << 16", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (131_072, 666));
}

#[tokio::test]
async fn the_code_can_be_installed_again() {
    let client = database("the_code_can_be_installed_again").await;
    let functions = lines(
        &client,
        "select oid::regprocedure::text from pg_proc where pronamespace = 'chain'::regnamespace",
    )
    .await;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["sql/functions.sql", "sql/api.sql", "sql/functions.sql", "sql/api.sql"] {
        client.batch_execute(&std::fs::read_to_string(root.join(file)).unwrap()).await.expect(file);
    }
    let again = lines(
        &client,
        "select oid::regprocedure::text from pg_proc where pronamespace = 'chain'::regnamespace",
    )
    .await;
    assert_eq!(functions.len(), again.len());
}

#[tokio::test]
async fn an_ordinary_role_can_install_everything() {
    let client = database("an_ordinary_role_can_install_everything").await;
    // As on a managed server: a role that owns its database and is no superuser.
    client
        .batch_execute(
            "drop schema api cascade; drop schema chain cascade; drop schema ops cascade;
             create role owner_of_one; grant create on database an_ordinary_role_can_install_everything to owner_of_one;
             set role owner_of_one",
        )
        .await
        .unwrap();
    crate::postgres::install(&client).await;
    let row = client.query_one("select count(*) from api.blocks", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

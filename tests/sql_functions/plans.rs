//! The plans of the documented queries: partitions pruned, indexes used, nothing computed that is not asked for.

use tokio_postgres::Client;

use crate::postgres::{database, describe};
use crate::rows::{analyze, create_indexes, create_segment};

/// An address with 1 % of all outputs, and a rare one: v0 key hashes that end in 0 and 77.
const BUSY: &str = "bcrt1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqdku202";
const RARE: &str = "bcrt1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqzdldsg4n";

/// 80 blocks of 200 transactions of 2 outputs in 8 segments, and empty ones up to 4,999; every transaction spends an
/// output of the transaction 600 places before it.
async fn chain(name: &str) -> Client {
    let client = database(name).await;
    for segment_id in 0..8u32 {
        create_segment(&client, segment_id, i64::from(segment_id) * 10, i64::from(segment_id) * 10 + 9).await;
    }
    client
        .batch_execute(
            r"insert into ops.settings values ('network', 'regtest');
              insert into chain.blocks
              select h, sha256(int4send(h)), 4, sha256(''), to_timestamp(h * 600), to_timestamp(h * 600), 545259519, 0,
                  1000, 4000, 200, 200, 400, 0, 0, 0, sha256('')
              from generate_series(0, 4999) h;
              insert into chain.transactions
              select (h::bigint << 16) + i, case when i > 0 then (h * 7919 + i * 104729) % 10007 end, 0, h, 2, 250, 1000,
                  1, 2, sha256(int8send((h::bigint << 16) + i))
              from generate_series(0, 79) h, generate_series(0, 199) i;
              insert into chain.outputs
              select tx_num, 1000, chain.script_hash(script), vout, script
              from (
                  select t.tx_num, vout, '\x0014'::bytea || substr(int8send(0) || int8send(0) || int4send(
                      case when (t.tx_num * 2 + vout) % 100 = 0 then 0 else ((t.tx_num * 31 + vout) % 5000)::integer end),
                      1, 20) as script
                  from chain.transactions t, generate_series(0, 1) vout) o;
              insert into chain.inputs
              select t.tx_num, p.tx_num, o.value, o.script_hash, 4294967295, 0, 0, '', ''
              from (select tx_num, row_number() over (order by tx_num) as n from chain.transactions) t
              left join (select tx_num, row_number() over (order by tx_num) as n from chain.transactions) p
                  on p.n = t.n - 600 and t.tx_num & 65535 > 0
              left join chain.outputs o on o.tx_num = p.tx_num and o.vout = 0",
        )
        .await
        .unwrap_or_else(|error| panic!("{}", describe(&error)));
    create_indexes(&client).await;
    client
}

/// The plan as text, one line a node or detail.
async fn explain(client: &Client, options: &str, query: &str) -> Vec<String> {
    let rows = client.query(&format!("explain ({options}) {query}"), &[]).await;
    rows.unwrap_or_else(|error| panic!("{query}: {}", describe(&error)))
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Tables that the plan scans, sorted, each once.
fn tables(plan: &[String]) -> Vec<&str> {
    let mut tables: Vec<&str> = plan
        .iter()
        .filter(|line| line.contains("Scan") && line.contains(" on ") && !line.contains("Bitmap Index Scan"))
        .map(|line| line.split(" on ").nth(1).unwrap().split(' ').next().unwrap())
        .collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}

/// Asserts that the plan reads no segment as a whole, and mentions each of `needles`.
fn assert_by_index(query: &str, plan: &[String], needles: &[&str]) {
    let text = plan.join("\n");
    for table in ["transactions", "outputs", "inputs"] {
        assert!(!text.contains(&format!("Seq Scan on {table}_")), "{query} reads all of {table}:\n{text}");
    }
    for needle in needles {
        assert!(text.contains(needle), "{query} has no {needle}:\n{text}");
    }
}

#[tokio::test]
async fn a_range_of_heights_reads_one_partition_by_its_key() {
    let client = chain("a_range_of_heights_reads_one_partition_by_its_key").await;
    for _ in ["without statistics", "with statistics"] {
        for (query, table) in [
            ("select sum(value) from chain.outputs", "outputs_0002"),
            ("select sum(value) from api.outputs", "outputs_0002"),
            ("select max(type), max(address) from api.outputs", "outputs_0002"),
            ("select sum(value) from api.inputs", "inputs_0002"),
            ("select max(txid), sum(fee) from api.transactions", "transactions_0002"),
        ] {
            let query = format!(
                "{query} where tx_num >= chain.first_tx_num(25) and tx_num < chain.first_tx_num(25 + 1)"
            );
            let plan = explain(&client, "costs off", &query).await;
            assert_eq!(tables(&plan), [table], "{query}:\n{}", plan.join("\n"));
            let bounds = "((tx_num >= '1638400'::bigint) AND (tx_num < '1703936'::bigint))";
            assert_by_index(&query, &plan, &[bounds]);
        }
        analyze(&client).await;
    }
}

#[tokio::test]
async fn one_line_functions_are_inlined() {
    let client = chain("one_line_functions_are_inlined").await;
    let query = "select chain.height(tx_num), chain.first_tx_num(vout), chain.script_hash(script),
                     chain.script_type(script), chain.hash_hex(script), chain.txid_hex(script) from chain.outputs";
    let text = explain(&client, "verbose, costs off", query).await.join("\n");
    for name in
        ["height", "first_tx_num", "script_hash", "script_type", "hash_hex", "txid_hex", "reverse_hash"]
    {
        assert!(!text.contains(&format!("chain.{name}(")), "{name} is not inlined:\n{text}");
    }
    assert!(text.contains("CASE WHEN ((octet_length("), "{text}");
}

#[tokio::test]
async fn look_ups_use_the_indexes() {
    let client = chain("look_ups_use_the_indexes").await;
    let txid = "select chain.txid_hex(txid) from chain.transactions where tx_num = 1638401";
    let txid: String = client.query_one(txid, &[]).await.unwrap().get(0);
    for _ in ["without statistics", "with statistics"] {
        let cases: [(String, &[&str]); 9] = [
            (
                format!("select * from api.transaction('{txid}')"),
                &["transactions_0000_txid_idx", "transactions_0007_txid_idx", "transactions_0007_pkey"],
            ),
            ("select * from api.block(5)".to_owned(), &["blocks_pkey"]),
            (
                format!("select * from api.block_by_hash('{}')", "00".repeat(32)),
                &["blocks_pkey", "blocks_hash_key"],
            ),
            (
                format!("select * from api.address_balance('{BUSY}')"),
                &["outputs_0007_script_hash_tx_num_idx", "inputs_0007_script_hash_tx_num_idx"],
            ),
            (
                format!("select * from api.address_utxos('{BUSY}')"),
                &["outputs_0007_script_hash_tx_num_idx", "hashed SubPlan"],
            ),
            (
                format!("select * from api.address_history('{BUSY}', 20)"),
                &[
                    "Backward using outputs_0007_script_hash_tx_num_idx",
                    "Backward using inputs_0007_script_hash_tx_num_idx",
                ],
            ),
            (
                "select * from api.outputs where tx_num = 1638401".to_owned(),
                &["outputs_0002_pkey", "prev_tx_num_prev_vout_idx"],
            ),
            (
                "select * from api.inputs where tx_num = 1638401".to_owned(),
                &["inputs_0002_pkey", "outputs_0002_pkey"],
            ),
            (
                format!(
                    "select * from chain.utxos where script_hash = chain.script_hash(chain.address_script('{RARE}'))"
                ),
                &["outputs_0007_script_hash_tx_num_idx", "inputs_0007_prev_tx_num_prev_vout_idx"],
            ),
        ];
        for (query, needles) in cases {
            // A recursive query shows its subplans only when it runs.
            let plan = explain(&client, "analyze, costs off, timing off, summary off", &query).await;
            assert_by_index(&query, &plan, needles);
        }
        analyze(&client).await;
    }
}

#[tokio::test]
async fn a_page_of_a_busy_history_reads_a_page() {
    let client = chain("a_page_of_a_busy_history_reads_a_page").await;
    analyze(&client).await;
    let (outputs, page) = (
        format!("select count(*) from chain.outputs where script_hash = chain.address_script_hash('{BUSY}')"),
        format!("select * from api.address_history('{BUSY}', 20)"),
    );
    assert!(client.query_one(&outputs, &[]).await.unwrap().get::<_, i64>(0) > 300);
    assert_eq!(client.query(&page, &[]).await.unwrap().len(), 20);
    let plan = explain(&client, "analyze, costs off, timing off, summary off", &page).await;
    // Only the newest segment is opened, at 20 rows a page and one for the end.
    let opened = plan.iter().filter(|line| line.contains("Index") && line.contains("_0000_"));
    assert!(opened.clone().count() > 0, "{}", plan.join("\n"));
    for line in opened {
        assert!(line.contains("(never executed)"), "{line}");
    }
    let rows = plan
        .iter()
        .filter_map(|line| line.split("actual rows=").nth(1)?.split([' ', '.']).next()?.parse().ok());
    assert!(rows.max() <= Some(21u64), "{}", plan.join("\n"));
}

#[tokio::test]
async fn a_spender_is_not_looked_for_in_earlier_segments() {
    let client = chain("a_spender_is_not_looked_for_in_earlier_segments").await;
    analyze(&client).await;
    let query = "select spent_by_vin from api.outputs where tx_num = chain.first_tx_num(65) + 1";
    let plan = explain(&client, "analyze, costs off, timing off, summary off", query).await;
    let opened: Vec<&String> = plan
        .iter()
        .filter(|line| line.contains("prev_tx_num_prev_vout_idx") && !line.contains("never executed"))
        .collect();
    assert_eq!(opened.len(), 2, "{}", plan.join("\n"));
    assert!(opened[0].contains("inputs_0006") && opened[1].contains("inputs_0007"), "{}", plan.join("\n"));
}

#[tokio::test]
async fn the_whole_utxo_set_is_one_hash_anti_join() {
    let client = chain("the_whole_utxo_set_is_one_hash_anti_join").await;
    for _ in ["without statistics", "with statistics"] {
        let query = "select count(*), sum(value) from chain.utxos";
        let text = explain(&client, "costs off", query).await.join("\n");
        assert!(text.contains("Hash Anti Join") || text.contains("Hash Right Anti Join"), "{text}");
        assert!(
            text.contains("hashed SubPlan") && !text.contains("Nested Loop") && !text.contains("Sort"),
            "{text}"
        );
        analyze(&client).await;
    }
    // Every transaction but the coinbases, from the 601st on, spends one output of two.
    let row = client.query_one("select count(*), sum(value)::bigint from chain.utxos", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (16_675, 16_675_000));
}

#[tokio::test]
async fn columns_that_are_not_asked_for_cost_nothing() {
    let client = chain("columns_that_are_not_asked_for_cost_nothing").await;
    analyze(&client).await;
    for (query, prefix) in [
        ("select count(*), sum(value) from api.outputs", "outputs_"),
        ("select count(*), sum(value), max(sequence) from api.inputs", "inputs_"),
        ("select count(*), sum(fee), max(txid) from api.transactions", "transactions_"),
        ("select count(*), sum(fees), max(hash) from api.blocks", "blocks"),
    ] {
        let plan = explain(&client, "costs off", query).await;
        let others: Vec<&str> =
            tables(&plan).into_iter().filter(|table| !table.starts_with(prefix)).collect();
        assert_eq!(others, Vec::<&str>::new(), "{query}:\n{}", plan.join("\n"));
    }
}

//! How long look-ups take on the database as it is: what an API asks for, one statement each, pages cached.

use std::time::Instant;

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::harness::stats::median;

/// Keys that are looked up, each twice: the first time warms.
const KEYS: i64 = 1000;

/// A look-up: its name, the statement, and one that gives random keys for it, as text.
#[derive(Clone, Debug)]
pub struct LookUp {
    pub name: &'static str,
    pub statement: String,
    pub keys: String,
}

/// What an API asks for. The keys are the same in every round of a chain: their order is that of a hash.
pub fn all() -> Vec<LookUp> {
    let txid = LookUp {
        name: "txid",
        statement: "select tx_num, fee from chain.transactions where txid = decode($1, 'hex')".to_owned(),
        keys: "select encode(txid, 'hex') from chain.transactions order by md5(tx_num::text) limit $1"
            .to_owned(),
    };
    let spender = LookUp {
        name: "spender",
        statement: "select tx_num, vin from chain.inputs where prev_tx_num = $1::text::int8 \
                    and prev_vout = $2::text::int4 and tx_num >= $1::text::int8"
            .to_owned(),
        keys: "select prev_tx_num::text, prev_vout::text from chain.inputs where prev_tx_num is not null \
               order by md5(tx_num::text || vin) limit $1"
            .to_owned(),
    };
    let [script, transaction] = of_outputs("chain.outputs");
    vec![txid, spender, script, transaction]
}

/// What is asked of a table like `chain.outputs`.
pub fn of_outputs(table: &str) -> [LookUp; 2] {
    let script = LookUp {
        name: "script",
        statement: format!("select tx_num, vout, value from {table} where script_hash = $1::text::uuid"),
        keys: format!("select script_hash::text from {table} order by md5(tx_num::text || vout) limit $1"),
    };
    let transaction = LookUp {
        name: "outputs of a transaction",
        statement: format!("select vout, value, script from {table} where tx_num = $1::text::int8"),
        keys: format!("select tx_num::text from {table} where vout = 0 order by md5(tx_num::text) limit $1"),
    };
    [script, transaction]
}

/// The median time of each kind of look-up, microseconds.
pub type Latencies = Vec<(&'static str, f64)>;

/// Returns the time that telling the type of a script takes in SQL, microseconds, over many scripts.
pub async fn script_type(client: &Client) -> anyhow::Result<f64> {
    let scripts = "(select script from chain.outputs limit 100000) scripts";
    let seconds_of = async |column: &str| {
        let began = Instant::now();
        let counted =
            client.query_one(&format!("select count({column}), count(*) from {scripts}"), &[]).await?;
        anyhow::Ok((began.elapsed().as_secs_f64(), counted.get::<_, i64>(1)))
    };
    seconds_of("script").await?;
    let (without, _) = seconds_of("script").await?;
    let (with, scripts) = seconds_of("chain.script_type(script)").await?;
    Ok((with - without) / scripts as f64 * 1e6)
}

/// Measures each kind of look-up; statistics are gathered.
pub async fn measure(client: &Client, look_ups: &[LookUp]) -> anyhow::Result<Latencies> {
    let mut latencies = Vec::new();
    for LookUp { name, statement, keys } in look_ups {
        let rows = client.query(keys.as_str(), &[&KEYS]).await?;
        let statement = client.prepare(statement.as_str()).await?;
        let mut microseconds = Vec::new();
        for pass in 0..2 {
            for row in &rows {
                let key: Vec<&str> = (0..row.len()).map(|at| row.get(at)).collect();
                let key: Vec<&(dyn ToSql + Sync)> = key.iter().map(|key| key as _).collect();
                let began = Instant::now();
                client.query(&statement, &key).await?;
                if pass == 1 {
                    microseconds.push(began.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
        latencies.push((*name, median(microseconds)));
    }
    Ok(latencies)
}

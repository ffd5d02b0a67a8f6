//! The checks: each one a set-based statement or one ordered pass, each recorded in `ops.checks`.
//!
//! Every statement returns a row for each thing that does not hold, with a text that says where; none means that it holds.
//! Statements over rows run segment by segment, so that they sort and hash within bounds.

use std::time::Instant;

use deadpool_postgres::{Object, Pool};
use futures_util::TryStreamExt;

use super::{VerifyError, server};
use crate::chain::batch::tx_num;
use crate::chain::hash::{Hash32, sha256d};
use crate::pg::objects::{self, DifferenceKind};
use crate::pg::pool;
use crate::pg::segments::{self, SegmentRow};

/// How many faults of one check are told; the others are counted.
const FAULTS_TOLD_MAX: usize = 5;

/// The result of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How long it took.
    pub seconds: f64,
    /// What does not hold, and where; empty if all holds.
    pub faults: Vec<String>,
    /// Further faults that are not told.
    pub more: u64,
}

impl Check {
    /// Returns whether all holds.
    pub fn is_ok(&self) -> bool {
        self.faults.is_empty()
    }

    /// Keeps the result in `ops.checks`.
    pub(super) async fn record(&self, client: &Object) -> Result<(), VerifyError> {
        let detail = (!self.is_ok()).then(|| self.detail());
        client
            .execute(
                "insert into ops.checks (name, seconds, ok, detail) values ($1, $2, $3, $4)",
                &[&self.name, &self.seconds, &self.is_ok(), &detail],
            )
            .await
            .map_err(server("recording a check"))?;
        Ok(())
    }

    fn detail(&self) -> String {
        let more = if self.more > 0 { format!("; and {} more", self.more) } else { String::new() };
        format!("{}{more}", self.faults.join("; "))
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_ok() {
            write!(f, "ok      {} ({:.1} s)", self.name, self.seconds)
        } else {
            write!(f, "FAILED  {} ({:.1} s): {}", self.name, self.seconds, self.detail())
        }
    }
}

/// Statements over the whole of the small tables. `$1` is the tip's height.
const WHOLE: &[(&str, &str)] = &[
    (
        "heights follow each other from 0",
        "select 'height ' || h || ' is missing' from generate_series(0, $1::int) h \
         where not exists (select from chain.blocks b where b.height = h)",
    ),
    (
        "segments follow each other and hold their blocks",
        "select 'segment ' || segment_id || ' begins at height ' || height_first || ' after ' || coalesce(before::text, 'none') \
         from (select segment_id, height_first, lag(height_last) over (order by height_first) before \
               from ops.segments where state in ('attached', 'live')) s \
         where height_first is distinct from coalesce(before + 1, 0) and $1::int >= 0",
    ),
    (
        "rewards: unclaimed = subsidy + fees - coinbase outputs, not negative",
        "select 'block ' || b.height || ' leaves ' || b.unclaimed || ' unclaimed of ' || (b.subsidy + b.fees) \
         from chain.blocks b \
         left join (select tx_num, sum(value) as claimed from chain.outputs where (tx_num & 65535) = 0 group by tx_num) o \
           on o.tx_num = b.height::bigint << 16 \
         where b.height <= $1::int \
           and (b.unclaimed < 0 or b.unclaimed <> b.subsidy + b.fees - coalesce(o.claimed, 0))",
    ),
    (
        "overwritten outputs exist, have a twin, and are not spent after it",
        "select 'overwritten output ' || w.tx_num || ':' || w.vout from chain.overwritten w \
         left join chain.transactions a on a.tx_num = w.tx_num \
         left join chain.transactions b on b.tx_num = w.by_tx_num \
         where (a.txid is distinct from b.txid or a.txid is null \
           or exists (select from chain.inputs i where i.prev_tx_num = w.tx_num and i.prev_vout = w.vout)) \
           and $1::int >= 0",
    ),
];

/// Statements over one segment. `$1` and `$2` bound `tx_num`, `$3` and `$4` the heights.
const BY_SEGMENT: &[(&str, &str)] = &[
    (
        "blocks count their transactions, inputs, outputs, sizes and fees",
        "select 'block ' || height || ' does not count its rows' from ( \
           select height, count(*)::int, sum(input_count)::int, sum(output_count)::int, coalesce(sum(fee), 0)::bigint, \
             (80 + case when count(*) < 253 then 1 when count(*) < 65536 then 3 else 5 end + sum(size))::int, \
             (4 * (80 + case when count(*) < 253 then 1 when count(*) < 65536 then 3 else 5 end) + sum(weight))::int \
           from chain.transactions where tx_num >= $1::bigint and tx_num < $2::bigint group by height \
           except \
           select height, tx_count, input_count, output_count, fees, size, weight \
           from chain.blocks where height between $3::int and $4::int) t",
    ),
    (
        "every block of a segment has its rows",
        "select 'block ' || b.height || ' has no transactions' from chain.blocks b \
         where b.height between $3::int and $4::int and not exists ( \
           select from chain.transactions t where t.tx_num >= $1::bigint and t.tx_num < $2::bigint \
             and t.tx_num = b.height::bigint << 16)",
    ),
    (
        "transactions are numbered by height and place, without gaps",
        "select 'transaction ' || tx_num || ' follows ' || coalesce(before::text, 'none') from ( \
           select tx_num, height, lag(tx_num) over (order by tx_num) before \
           from chain.transactions where tx_num >= $1::bigint and tx_num < $2::bigint) t \
         where height <> tx_num >> 16 or ((tx_num & 65535) <> 0 and before is distinct from tx_num - 1) \
           or tx_num >> 16 not between $3::int and $4::int",
    ),
    (
        "transactions count their inputs",
        "select 'transaction ' || coalesce(t.tx_num, i.tx_num) || ' does not count its inputs' from ( \
           select tx_num, input_count from chain.transactions where tx_num >= $1::bigint and tx_num < $2::bigint) t \
         full join (select tx_num, count(*) n, min(vin) low, max(vin) high from chain.inputs \
           where tx_num >= $1::bigint and tx_num < $2::bigint group by tx_num) i using (tx_num) \
         where (i.n is distinct from t.input_count::bigint or i.low <> 0 or i.high <> i.n - 1) and $3::int <= $4::int",
    ),
    (
        "transactions count their outputs",
        "select 'transaction ' || coalesce(t.tx_num, o.tx_num) || ' does not count its outputs' from ( \
           select tx_num, output_count from chain.transactions where tx_num >= $1::bigint and tx_num < $2::bigint) t \
         full join (select tx_num, count(*) n, min(vout) low, max(vout) high from chain.outputs \
           where tx_num >= $1::bigint and tx_num < $2::bigint group by tx_num) o using (tx_num) \
         where (o.n is distinct from t.output_count::bigint or o.low <> 0 or o.high <> o.n - 1) and $3::int <= $4::int",
    ),
    (
        "fees: inputs - outputs of each transaction, not negative, and none for a coinbase",
        "select 'transaction ' || t.tx_num || ' has fee ' || coalesce(t.fee::text, 'null') \
         from chain.transactions t \
         join (select tx_num, sum(value) v from chain.outputs \
           where tx_num >= $1::bigint and tx_num < $2::bigint group by tx_num) o using (tx_num) \
         join (select tx_num, sum(value) v from chain.inputs \
           where tx_num >= $1::bigint and tx_num < $2::bigint group by tx_num) i using (tx_num) \
         where t.tx_num >= $1::bigint and t.tx_num < $2::bigint and $3::int <= $4::int \
           and (t.fee is distinct from (case when (t.tx_num & 65535) = 0 then null else i.v - o.v end) or t.fee < 0)",
    ),
    (
        "inputs spend an output that exists, is older, and has their value and script",
        "select 'input ' || i.tx_num || ':' || i.vin || ' spends ' || coalesce(i.prev_tx_num || ':' || i.prev_vout, 'nothing') \
         from chain.inputs i left join chain.outputs o on o.tx_num = i.prev_tx_num and o.vout = i.prev_vout \
         where i.tx_num >= $1::bigint and i.tx_num < $2::bigint and $3::int <= $4::int \
           and case when (i.tx_num & 65535) = 0 \
                 then num_nonnulls(i.prev_tx_num, i.prev_vout, i.value, i.script_hash) > 0 \
                 else o.tx_num is null or o.tx_num >= i.tx_num or o.value is distinct from i.value \
                   or o.script_hash is distinct from i.script_hash end",
    ),
    (
        "no output is spent twice",
        "select 'output ' || prev_tx_num || ':' || prev_vout || ' is spent ' || count(*) || ' times' \
         from chain.inputs where prev_tx_num >= $1::bigint and prev_tx_num < $2::bigint and $3::int <= $4::int \
         group by prev_tx_num, prev_vout having count(*) > 1",
    ),
    (
        "script hashes are those of the scripts",
        "select 'output ' || tx_num || ':' || vout || ' has another script hash' from chain.outputs \
         where tx_num >= $1::bigint and tx_num < $2::bigint and $3::int <= $4::int \
           and script_hash <> encode(substr(sha256(script), 1, 16), 'hex')::uuid",
    ),
];

/// Runs every check and records it; `each` is told as they end.
///
/// # Errors
/// [`VerifyError`]: a check that could not be carried out. What a check finds is in its result.
pub async fn verify(pool: &Pool, mut each: impl FnMut(&Check)) -> Result<Vec<Check>, VerifyError> {
    let client = pool.get().await.map_err(pool::Error::from)?;
    let segments: Vec<SegmentRow> = segments::list(&client)
        .await
        .map_err(server("listing segments"))?
        .into_iter()
        .filter(|segment| segment.is_attached)
        .collect();
    let tip_height = segments.last().map_or(-1, |segment| segment.height_last as i32);
    let mut checks = Vec::new();
    let mut done = async |check: Check| {
        check.record(&client).await?;
        each(&check);
        checks.push(check);
        Ok::<(), VerifyError>(())
    };
    done(headers(&client, tip_height).await?).await?;
    for &(name, statement) in WHOLE {
        let mut running = Running::new(name);
        running.add(&client, statement, &[&tip_height]).await?;
        done(running.end()).await?;
    }
    for &(name, statement) in BY_SEGMENT {
        let mut running = Running::new(name);
        for segment in &segments {
            let (first, last) = (segment.height_first as i32, segment.height_last as i32);
            let (from, to) = (tx_num(segment.height_first, 0), tx_num(segment.height_last + 1, 0));
            running.add(&client, statement, &[&from, &to, &first, &last]).await?;
        }
        done(running.end()).await?;
    }
    done(catalogue(&client).await?).await?;
    done(constraints(&client, &segments).await?).await?;
    Ok(checks)
}

/// A check at work.
pub(super) struct Running {
    check: Check,
    start: Instant,
}

impl Running {
    pub(super) fn new(name: &'static str) -> Self {
        let check = Check { name, seconds: 0.0, faults: Vec::new(), more: 0 };
        Running { check, start: Instant::now() }
    }

    pub(super) fn fault(&mut self, text: String) {
        if self.check.faults.len() < FAULTS_TOLD_MAX {
            self.check.faults.push(text);
        } else {
            self.check.more += 1;
        }
    }

    async fn add(
        &mut self,
        client: &Object,
        statement: &str,
        parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<(), VerifyError> {
        let what = || server(format!("checking that {}", self.check.name));
        let parameters = parameters.iter().copied();
        let stream = client.query_raw(statement, parameters).await.map_err(what())?;
        let what = format!("checking that {}", self.check.name);
        let mut stream = std::pin::pin!(stream);
        while let Some(row) = stream.try_next().await.map_err(server(what.clone()))? {
            self.fault(row.get(0));
        }
        Ok(())
    }

    pub(super) fn end(self) -> Check {
        Check { seconds: self.start.elapsed().as_secs_f64(), ..self.check }
    }
}

/// Rebuilds every header from its columns and the hash before, and hashes it: links, hashes and header fields at once.
async fn headers(client: &Object, tip_height: i32) -> Result<Check, VerifyError> {
    let mut running = Running::new("headers hash to their blocks' hashes and link to the block before");
    let what = || server("reading chain.blocks");
    let statement = "select height, hash, version, merkle_root, extract(epoch from time)::int8, bits, nonce \
         from chain.blocks where height <= $1 order by height";
    let mut rows = std::pin::pin!(client.query_raw(statement, [tip_height]).await.map_err(what())?);
    let mut before: Hash32 = [0; 32];
    while let Some(row) = rows.try_next().await.map_err(what())? {
        let (hash, merkle_root): (&[u8], &[u8]) = (row.get(1), row.get(3));
        let (version, time): (i32, i64) = (row.get(2), row.get(4));
        let (bits, nonce): (i64, i64) = (row.get(5), row.get(6));
        let mut header = Vec::with_capacity(80);
        header.extend_from_slice(&version.to_le_bytes());
        header.extend_from_slice(&before);
        header.extend_from_slice(merkle_root);
        for word in [time, bits, nonce] {
            header.extend_from_slice(&(word as u32).to_le_bytes());
        }
        if sha256d(&header) != hash {
            running.fault(format!("block {}", row.get::<_, i32>(0)));
        }
        before = hash.try_into().unwrap_or([0; 32]);
    }
    Ok(running.end())
}

/// The catalogue against the declared list; invalid indexes are among the differences.
async fn catalogue(client: &Object) -> Result<Check, VerifyError> {
    let mut running = Running::new("indexes and constraints are the declared ones, and valid");
    let differences =
        objects::catalogue_differences(client).await.map_err(server("reading the catalogue"))?;
    for difference in differences {
        // The constraints of segments that are being restored come and go.
        if difference.kind != DifferenceKind::NotAttached {
            running.fault(difference.to_string());
        }
    }
    Ok(running.end())
}

/// Validates the constraints that were added NOT VALID (PostgreSQL manual, ALTER TABLE, VALIDATE CONSTRAINT).
async fn constraints(client: &Object, segments: &[SegmentRow]) -> Result<Check, VerifyError> {
    let mut running = Running::new("constraints hold for every row");
    for segment in segments {
        for fault in crate::pg::validate::validate_segment(client, segment.id)
            .await
            .map_err(server(format!("validating constraints of segment {}", segment.id)))?
        {
            running.fault(fault);
        }
    }
    Ok(running.end())
}

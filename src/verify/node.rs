//! Is our UTXO set the node's? Count, total amount and `hash_serialized_3` at the same block.
//!
//! In: the database, a node's RPC. Out: one check. A node hashes its set at its own tip only (`gettxoutsetinfo`; an index of
//! coin statistics knows other hashes), so both must stand at one block: a little difference is waited for, a large one is
//! told with what to do. It never changes a row of the chain, and never compares what does not stand at one block.

use std::time::{Duration, Instant};

use deadpool_postgres::{Object, Pool};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tracing::info;

use super::checks::{Check, Running};
use super::rpc::{NodeRpc, RpcError};
use super::utxo_hash::{UtxoSetInfo, info_of};
use super::{VerifyError, server};
use crate::chain::hash::{Hash32, reversed_hex};
use crate::network::Network;
use crate::pg::pool;

/// What is checked.
const NAME: &str = "the UTXO set is the node's: count, amount, hash_serialized_3";
/// How long a short question may take: the node may be connecting a block.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(120);
/// How long the hash of all coins may take, on the slowest of disks.
const HASH_WAIT_MAX: Duration = Duration::from_secs(6 * 60 * 60);
/// How long both may take to meet at one block, where the service follows the node.
const MEET_WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks whether they have met.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it is begun anew because a block came meanwhile.
const ROUNDS_MAX: u32 = 5;
/// Between two words about the wait.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The node does not answer.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// It is a node of another network.
    #[error(
        "the node is one of network {found}, the database holds {asked}: give the --node of a node of {asked}"
    )]
    OtherNetwork {
        /// The node's.
        found: String,
        /// The database's.
        asked: Network,
    },
    /// Its tip is above ours.
    #[error(
        "the node is ahead by {blocks} blocks: its tip has height {node_height}, the database's {height}, and it hashes its \
         UTXO set at its own tip only\n  help: let `satgres run` catch up first; if it does not keep up, stop the node's \
         network for the time of the check: `bitcoin-cli setnetworkactive false`"
    )]
    Ahead {
        /// How many blocks.
        blocks: u32,
        /// Height of its tip.
        node_height: u32,
        /// Height of ours.
        height: u32,
    },
    /// Its tip is below ours.
    #[error(
        "the node is behind by {blocks} blocks: its tip has height {node_height}, the database's {height}{why}\n  help: \
         check again once it has caught up"
    )]
    Behind {
        /// How many blocks.
        blocks: u32,
        /// Height of its tip.
        node_height: u32,
        /// Height of ours.
        height: u32,
        /// That it is in initial download, if it is.
        why: &'static str,
    },
    /// Its active chain is another one.
    #[error(
        "the node's active chain has another block at height {height}: {theirs} there, {ours} here\n  help: `satgres run \
         --peer` with this node follows it; then check again"
    )]
    OtherBranch {
        /// Height of the lower of both tips.
        height: u32,
        /// Its block there.
        theirs: String,
        /// Ours.
        ours: String,
    },
    /// The database holds no block.
    #[error("the database holds no block yet: `satgres run` loads them")]
    NoBlock,
    /// Blocks came while both were read, again and again.
    #[error("blocks came {times} times while both UTXO sets were read: check again when it is quiet")]
    Moving {
        /// How often.
        times: u32,
    },
}

/// The answer of `getblockchaininfo`, as far as it is needed.
#[derive(Debug, Deserialize)]
struct NodeTip {
    chain: String,
    blocks: u32,
    bestblockhash: String,
    initialblockdownload: bool,
}

/// The answer of `gettxoutsetinfo`.
#[derive(Debug, Deserialize)]
struct NodeSet {
    bestblock: String,
    txouts: u64,
    /// Bitcoin, as the text that it came as: an amount never goes through a float.
    total_amount: Box<RawValue>,
    hash_serialized_3: String,
}

/// Our tip.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OurTip {
    height: u32,
    hash: Hash32,
}

/// Compares our UTXO set with the node's and records the result.
///
/// # Errors
/// [`VerifyError::Node`] where there was nothing to compare; others if ours could not be read.
pub async fn verify_with_node(pool: &Pool, network: Network, node: &NodeRpc) -> Result<Check, VerifyError> {
    let mut running = Running::new(NAME);
    let client = pool.get().await.map_err(pool::Error::from)?;
    for _ in 0..ROUNDS_MAX {
        meet(&client, network, node).await?;
        info!("the node hashes its UTXO set: minutes on main");
        let (ours, theirs) = tokio::try_join!(read_ours(&client), read_theirs(network, node))?;
        let Some((tip, info)) = ours else { continue };
        if theirs.bestblock != reversed_hex(&tip.hash) {
            info!(block = theirs.bestblock, "a block came meanwhile: both are read again");
            continue;
        }
        compare(&mut running, &tip, &info, &theirs);
        let check = running.end();
        check.record(&client).await?;
        return Ok(check);
    }
    Err(NodeError::Moving { times: ROUNDS_MAX }.into())
}

/// Waits until both have the same tip.
async fn meet(client: &Object, network: Network, node: &NodeRpc) -> Result<(), VerifyError> {
    let began = Instant::now();
    loop {
        let theirs: NodeTip = node.call(network, "getblockchaininfo", json!([]), ANSWER_WAIT_MAX).await?;
        if theirs.chain != network.name() {
            return Err(NodeError::OtherNetwork { found: theirs.chain, asked: network }.into());
        }
        let ours = tip(client).await?;
        if theirs.bestblockhash == reversed_hex(&ours.hash) {
            return Ok(());
        }
        if began.elapsed() > MEET_WAIT_MAX {
            return Err(difference(client, network, node, &theirs, &ours).await?.into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How their tip and ours lie to each other.
async fn difference(
    client: &Object,
    network: Network,
    node: &NodeRpc,
    theirs: &NodeTip,
    ours: &OurTip,
) -> Result<NodeError, VerifyError> {
    let height = theirs.blocks.min(ours.height);
    let their_block: String = node.call(network, "getblockhash", json!([height]), ANSWER_WAIT_MAX).await?;
    let what = || server("reading chain.blocks");
    let row = client.query_one("select hash from chain.blocks where height = $1", &[&(height as i32)]).await;
    let our_block = reversed_hex(&hash_of(&row.map_err(what())?, 0));
    let (node_height, our_height) = (theirs.blocks, ours.height);
    Ok(if their_block != our_block {
        NodeError::OtherBranch { height, theirs: their_block, ours: our_block }
    } else if node_height > our_height {
        NodeError::Ahead { blocks: node_height - our_height, node_height, height: our_height }
    } else {
        let why = if theirs.initialblockdownload { "; it is in initial download" } else { "" };
        NodeError::Behind { blocks: our_height - node_height, node_height, height: our_height, why }
    })
}

/// Reads tip and set in one snapshot; `None` where segments were attached meanwhile: their rows are frozen, so an older
/// snapshot sees them too.
async fn read_ours(client: &Object) -> Result<Option<(OurTip, UtxoSetInfo)>, VerifyError> {
    let what = || server("reading chain.utxos");
    let before = segments(client).await?;
    client.batch_execute("begin isolation level repeatable read read only").await.map_err(what())?;
    let tip = tip(client).await?;
    let info = info_of(client).await?;
    client.batch_execute("commit").await.map_err(what())?;
    Ok((segments(client).await? == before).then_some((tip, info)))
}

async fn read_theirs(network: Network, node: &NodeRpc) -> Result<NodeSet, VerifyError> {
    let (began, mut tell) = (Instant::now(), tokio::time::interval(TELL_EVERY));
    tell.reset();
    let mut asking =
        std::pin::pin!(node.call(network, "gettxoutsetinfo", json!(["hash_serialized_3"]), HASH_WAIT_MAX));
    loop {
        tokio::select! {
            answer = &mut asking => return Ok(answer?),
            _ = tell.tick() => {
                info!(seconds = began.elapsed().as_secs(), "waiting for the node's UTXO set hash");
            }
        }
    }
}

fn compare(running: &mut Running, tip: &OurTip, ours: &UtxoSetInfo, theirs: &NodeSet) {
    let height = tip.height;
    if ours.count != theirs.txouts {
        running
            .fault(format!("at height {height} {} outputs here, {} at the node", ours.count, theirs.txouts));
    }
    let amount = theirs.total_amount.get();
    if sat(amount) != Some(ours.amount_sat) {
        let theirs = sat(amount).map_or_else(|| format!("{amount} bitcoin"), |sat| format!("{sat} sat"));
        running.fault(format!(
            "at height {height} they are worth {} sat here, {theirs} at the node",
            ours.amount_sat
        ));
    }
    let hash = reversed_hex(&ours.hash);
    if hash != theirs.hash_serialized_3 {
        let theirs = &theirs.hash_serialized_3;
        running.fault(format!("at height {height} hash_serialized_3 is {hash} here, {theirs} at the node"));
    }
}

/// Satoshis in a decimal number of bitcoin.
fn sat(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 8 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    format!("{whole}{fraction:0<8}").parse().ok()
}

async fn tip(client: &Object) -> Result<OurTip, VerifyError> {
    let statement = "select height, hash from chain.blocks order by height desc limit 1";
    let row = client.query_opt(statement, &[]).await.map_err(server("reading the tip"))?;
    let row = row.ok_or(NodeError::NoBlock)?;
    Ok(OurTip { height: row.get::<_, i32>(0) as u32, hash: hash_of(&row, 1) })
}

async fn segments(client: &Object) -> Result<(i64, Option<String>), VerifyError> {
    let statement = "select count(*), max(attached_at)::text from ops.segments where state = 'attached'";
    let row = client.query_one(statement, &[]).await.map_err(server("reading ops.segments"))?;
    Ok((row.get(0), row.get(1)))
}

fn hash_of(row: &tokio_postgres::Row, column: usize) -> Hash32 {
    row.get::<_, &[u8]>(column).try_into().expect("hash columns hold 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitcoin_become_satoshis_without_a_float() {
        assert_eq!(sat("12661.49154137"), Some(1_266_149_154_137));
        assert_eq!(sat("20999999.97690000"), Some(2_099_999_997_690_000));
        assert_eq!([sat("0"), sat("0.00000001"), sat("50.0")], [Some(0), Some(1), Some(5_000_000_000)]);
        for wrong in ["", ".5", "-1.0", "1e3", "1.123456789", "1.2.3", "\"1\""] {
            assert_eq!(sat(wrong), None, "{wrong}");
        }
    }
}

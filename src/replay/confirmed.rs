//! What the nodes have said of our chain, kept in the database: `ops.confirmed_tip`.
//!
//! In: the chain that readers see, the nodes' tips. Out: one row. Called when everything is loaded, and whenever a block of
//! a node's chain is connected. It must never say that a node has confirmed what only the files suggest.

use tokio_postgres::Client;

use super::ReplayError;
use super::found::FoundBlocks;
use super::reconcile::Tip;
use crate::chain::hash::Hash32;
use crate::source::NodeTip;

/// Records that a node's active chain holds a block, and so all before it.
///
/// # Errors
/// What the server says.
pub async fn record(client: &Client, height: u32, hash: &Hash32, peer: &str) -> Result<(), ReplayError> {
    let statement = "insert into ops.confirmed_tip (height, hash, peer, at) values ($1, $2, $3, now()) \
         on conflict (is_only_row) do update \
         set height = excluded.height, hash = excluded.hash, peer = excluded.peer, at = excluded.at";
    client
        .execute(statement, &[&(height as i32), &hash.as_slice(), &peer])
        .await
        .map_err(|source| ReplayError::Server { what: "recording what the node has confirmed", source })?;
    Ok(())
}

impl FoundBlocks {
    /// Records that the chain up to a tip is in a node's, if it is.
    ///
    /// # Errors
    /// What the server says.
    pub(crate) async fn record_confirmed(&mut self, client: &Client, tip: &Tip) -> Result<(), ReplayError> {
        let Some(node) = self.node.clone() else { return Ok(()) };
        let tree = self.tree(client).await?;
        let Some(held) = tree.find(&tip.hash) else { return Ok(()) };
        let holds_it = |known: &&NodeTip| {
            tree.height(known.index) >= tip.height && tree.ancestor(known.index, tip.height) == held
        };
        match self.tips.iter().find(holds_it) {
            Some(known) => record(client, tip.height, &tip.hash, node.address(known.peer)).await,
            None => Ok(()),
        }
    }
}

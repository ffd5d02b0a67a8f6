//! Does the database hold what it should?
//!
//! In: a database with attached segments. Out: the result of every check, also as rows of `ops.checks`; a digest of each
//! table; the hash of the UTXO set as Bitcoin Core computes it, compared with a node's. Everything is bounded by the tip of one look, so that a
//! running service does not disturb it. It never changes a row of the chain.

mod checks;
mod digest;
mod node;
mod rpc;
mod utxo_hash;

pub use checks::{Check, verify};
pub use digest::{TableDigest, digest};
pub use node::{NodeError, verify_with_node};
pub use rpc::{NodeRpc, RpcError};
pub use utxo_hash::{UtxoSetInfo, utxo_set_info};

use crate::pg::pool;

impl From<RpcError> for VerifyError {
    fn from(error: RpcError) -> Self {
        NodeError::Rpc(error).into()
    }
}

/// Why a verification could not be carried out; what it finds is no error.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// No connection.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// There was nothing to compare with.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The server refused or went away.
    #[error("{what}")]
    Server {
        /// What was being done.
        what: String,
        /// What the server said.
        source: tokio_postgres::Error,
    },
}

fn server(what: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> VerifyError {
    let what = what.into();
    move |source| VerifyError::Server { what, source }
}

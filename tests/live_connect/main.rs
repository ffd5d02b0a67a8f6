//! Live sync against a real server: connected and disconnected row by row, the database equals a bulk load of the chain.
//!
//! In: hand-made regtest chains. Out: comparisons of rows, digests, segments. Replays go through the binary; the connector
//! is the library's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod connect;
mod random;
mod refused;
mod reorg;
mod start;

use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use satgres::live::{Change, Connector, Followed, LiveError, LiveOptions, NewBlock};
use satgres::network::Network;
use satgres::rows::Store;
use tokio_postgres::{Client, NoTls};

use support::Satgres;
use support::blkfiles::BlkDir;
use support::blocks::Chain;

/// Remembers all that these chains have.
pub(crate) const WARM: LiveOptions = LiveOptions {
    network: Network::Regtest,
    store: Store { witness: true, script_sig: true },
    segment_blocks: satgres::live::SEGMENT_BLOCKS,
    coin_cache_bytes: 4 << 20,
    txnum_cache_buckets: 10,
    txnum_cache_bucket_size: 1_000,
};

/// Remembers a little: entries fall off all the time.
pub(crate) const TINY: LiveOptions = LiveOptions {
    segment_blocks: 7,
    coin_cache_bytes: 1 << 10,
    txnum_cache_buckets: 3,
    txnum_cache_bucket_size: 4,
    ..WARM
};

/// Remembers nothing.
pub(crate) const COLD: LiveOptions =
    LiveOptions { segment_blocks: 3, coin_cache_bytes: 0, txnum_cache_buckets: 0, ..WARM };

/// A database that bulk loads the blocks of a chain up to a height, in small segments.
pub(crate) fn load(satgres: &Satgres, blocks: &[Block], segment_bytes: &str) {
    let blocks_dir = BlkDir::of(blocks);
    satgres.run("regtest", blocks_dir.path(), &["--segment-bytes", segment_bytes]);
}

/// A connection to the private server.
pub(crate) async fn connect(satgres: &Satgres) -> Client {
    let finished = satgres.command(&["url"]);
    let (client, connection) = tokio_postgres::connect(finished.stdout.trim(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The blocks of a chain above a height.
pub(crate) fn change(chain: &Chain, fork_height: usize) -> Change {
    let blocks = (fork_height + 1..).zip(&chain.blocks()[fork_height + 1..]);
    let blocks = blocks.map(|(height, block)| new_block(height, block)).collect();
    Change { fork_height: fork_height as u32, blocks }
}

pub(crate) fn new_block(height: usize, block: &Block) -> NewBlock {
    NewBlock { height: height as u32, bytes: serialize(block).into() }
}

/// The segments follow each other without a gap.
pub(crate) fn assert_contiguous(live: &Live) {
    let gaps = "select height_first from (select height_first, lag(height_last, 1, -1) over (order by height_first) before \
         from ops.segments) s where height_first <> before + 1";
    assert_eq!(live.satgres.copy(gaps), [""; 0]);
}

/// A live database and its connector.
pub(crate) struct Live {
    pub(crate) satgres: Satgres,
    pub(crate) client: Client,
    pub(crate) connector: Connector,
}

impl Live {
    /// Loads blocks in bulk, then opens a connector.
    pub(crate) async fn above(blocks: &[Block], options: &LiveOptions) -> Live {
        Live::on(Satgres::new(), blocks, options).await
    }

    /// The same on a server that is there already, with an empty database.
    pub(crate) async fn on(satgres: Satgres, blocks: &[Block], options: &LiveOptions) -> Live {
        load(&satgres, blocks, "3KiB");
        let mut client = connect(&satgres).await;
        let connector = Connector::open(&mut client, options.clone()).await.unwrap();
        Live { satgres, client, connector }
    }

    /// Removes the database; the server stays, for the next one.
    pub(crate) fn forget(self) -> Satgres {
        self.satgres.forget_chain();
        self.satgres
    }

    /// Follows a chain that leaves ours after a height.
    pub(crate) async fn follow(&mut self, chain: &Chain, fork_height: usize) -> Followed {
        self.try_follow(&change(chain, fork_height)).await.unwrap()
    }

    pub(crate) async fn try_follow(&mut self, change: &Change) -> Result<Followed, LiveError> {
        self.connector.follow(&mut self.client, change).await
    }
}

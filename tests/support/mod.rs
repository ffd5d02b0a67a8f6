//! What the tests stand on: data directories with a server, hand-made chains, block files, the built binary, a real
//! node's answers.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unused_imports, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared by test binaries that are crates of their own")]

mod cgroup;
mod data_dir;
mod external;
mod held_table;
mod kept_chain;
mod running;
mod satgres;

pub use cgroup::{Counted, MemoryCgroup};
pub use data_dir::{DataDir, close, is_postgres, is_root, open, signal, wait_until};
pub use external::{ExternalServer, OtherVersion};
pub use held_table::{hold, release};
pub use kept_chain::KeptChain;
pub use running::Running;
pub use satgres::Satgres;

pub mod blkfiles;
pub mod blocks;
pub mod ground_truth;
pub mod model;
pub mod node;
pub mod peer;
pub mod rows;
pub mod sample;

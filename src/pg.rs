//! PostgreSQL: the private server or the user's own, its settings, connections, schema and declared objects; segments and what fills them.

pub mod binaries;
pub mod builds;
pub mod cluster;
pub mod conf;
pub mod copy;
pub mod external;
pub mod leaked;
mod migrations;
pub mod objects;
pub mod pool;
pub mod reaction;
pub mod restore;
pub mod run_lock;
pub mod schema;
pub mod segments;
pub mod server;
pub mod target;
pub mod tls;
pub mod validate;

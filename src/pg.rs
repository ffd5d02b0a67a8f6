//! PostgreSQL: the private server, its settings, connections, schema and declared objects; segments and what fills them.

pub mod binaries;
pub mod cluster;
pub mod conf;
pub mod copy;
pub mod leaked;
pub mod objects;
pub mod pool;
pub mod restore;
pub mod schema;
pub mod segments;
pub mod validate;

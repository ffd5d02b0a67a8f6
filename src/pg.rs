//! PostgreSQL: the private server, its settings, connections, schema and declared objects.

pub mod binaries;
pub mod cluster;
pub mod conf;
pub mod objects;
pub mod pool;
pub mod schema;

//! PostgreSQL.
pub mod copy;
pub mod objects;
pub mod pool;
pub mod restore;
pub mod segments;
pub mod validate;

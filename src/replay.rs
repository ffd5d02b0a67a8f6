//! The main path.

pub mod buffers;
pub mod gate;
pub mod pipeline;
pub mod reader;
pub mod schedule;

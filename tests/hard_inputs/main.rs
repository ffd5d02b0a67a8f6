//! Inputs that broke other indexers, each built by hand, loaded by the built binary, and compared with what is right.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod branches;
mod damage;
mod files;
mod moving;
mod numbers;
mod refused;
mod rules;
mod scripts;
mod sizes;
#[path = "../support/mod.rs"]
mod support;
mod twins;

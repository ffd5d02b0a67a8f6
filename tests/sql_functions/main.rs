//! The SQL functions and views against a real PostgreSQL, with a real node's answers, literal values, and the bitcoin
//! crate as witnesses.

// What serves the tests belongs to them: a wrong answer of the server ends a test where it is read.
#![allow(clippy::unwrap_used)]

#[path = "../support/postgres.rs"]
mod postgres;

mod addresses;
mod catalogue;
mod edges;
mod ground_truth;
mod numbers;
mod plans;
mod random;
mod rows;
mod scripts;
mod transactions;
mod views;

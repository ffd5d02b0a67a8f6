//! The SQL functions and views against a real PostgreSQL, with a real node's answers, literal values, and the bitcoin
//! crate as witnesses.

#[path = "../support/postgres.rs"]
mod postgres;

mod addresses;
mod catalogue;
mod ground_truth;
mod numbers;
mod plans;
mod random;
mod rows;
mod scripts;
mod transactions;
mod views;

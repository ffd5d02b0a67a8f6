//! Satgres
fn main() {}

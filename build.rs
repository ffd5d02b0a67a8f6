//! Rebuilds when a migration is added: the macro that embeds them only follows the ones it knew.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}

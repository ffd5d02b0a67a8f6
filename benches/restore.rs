//! Restoring indexes and constraints: by the number of builds side by side, valid against NOT VALID, and how long a
//! restart of a synced database takes.
//!
//! `cargo bench --bench restore` loads a million transactions once for each number of builds.

#![allow(missing_docs, unreachable_pub)]

mod harness;
mod lab;

use std::process::Stdio;
use std::time::Instant;

use anyhow::ensure;
use clap::Parser;
use harness::stats::median;
use lab::replayed::replay;
use lab::{Chain, ChainArgs, Lab};
use satgres::pg::validate::validate_all;
use tokio::process::Command;

/// Options of this bench.
#[derive(Clone, Debug, Parser)]
#[command(about = "Restores indexes and constraints in several ways", disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    chain: ChainArgs,
    /// Rounds of each number of builds, alternating.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let (chain, lab) = options.chain.open().await?;
    let cores = std::thread::available_parallelism()?.get();
    let builds: Vec<usize> = [1, 2, 4, 8].into_iter().filter(|builds| *builds <= cores.max(2)).collect();
    let mut restored = vec![Vec::new(); builds.len()];
    let (mut not_valid, mut validated) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        for (at, &builds) in builds.iter().enumerate() {
            // One segment: nothing is built while it loads.
            let mut replay_options = lab.replay_options(&chain, u64::MAX);
            replay_options.builds_max = builds;
            let replayed = replay(&lab, &replay_options).await?;
            restored[at].push(replayed.round.restore_seconds);
        }
        let pool = lab.pool()?;
        let client = pool.get().await?;
        let added = "select seconds from ops.phases where phase = 'Restored constraints' order by phase_id desc limit 1";
        not_valid.push(client.query_one(added, &[]).await?.get::<_, f64>(0));
        let began = Instant::now();
        let faults = validate_all(&client).await?;
        ensure!(faults.is_empty(), "constraints do not hold: {faults:?}");
        validated.push(began.elapsed().as_secs_f64());
    }
    println!("\n| builds side by side | restore, s |\n|---|---|");
    for (builds, seconds) in builds.iter().zip(restored) {
        println!("| {builds} | {:.2} |", median(seconds));
    }
    println!("\n| constraints | s |\n|---|---|");
    let (not_valid, validated) = (median(not_valid), median(validated));
    println!(
        "| added NOT VALID, and everything attached | {not_valid:.3} |\n| validated, in the background | {validated:.2} |"
    );
    let restart = restart_seconds(&lab, &chain).await?;
    println!("\nrestart_s={restart:.2} not_valid_s={not_valid:.3} validate_s={validated:.2}");
    lab.close().await
}

/// Returns how long `run` takes on a database that is synced already: the second of two runs, server up.
async fn restart_seconds(lab: &Lab, chain: &Chain) -> anyhow::Result<f64> {
    let mut seconds = 0.0;
    for _ in 0..2 {
        let began = Instant::now();
        let status = Command::new(env!("CARGO_BIN_EXE_satgres"))
            .args(["run", "--network", "regtest", "--until-synced", "--log", "warn", "--blocks-dir"])
            .arg(&chain.dir)
            .arg("--data-dir")
            .arg(&lab.settings.data_dir)
            .stdout(Stdio::null())
            .status()
            .await?;
        ensure!(status.success(), "satgres run ended with {status}");
        seconds = began.elapsed().as_secs_f64();
    }
    Ok(seconds)
}

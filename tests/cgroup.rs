//! A replay inside a cgroup that allows less memory than the machine has: service and private server are in it, the plan
//! knows the limit and where it comes from, nobody is killed, and what only ending a process gives back stays in the plan.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use satgres::chaingen;
use satgres::plan::{Overrides, Phase, Plan};
use satgres::resources::{Found, Resources};
use support::{KeptChain, MemoryCgroup, Satgres};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// A debug build on two cores that others use too takes two minutes for a million transactions.
const DEADLINE: Duration = Duration::from_secs(600);

/// Memory of service and server together that the plan allows in any phase of a load, without the page cache, bytes.
fn planned_bytes(limit_bytes: u64) -> (u64, u64) {
    let resources =
        Resources { ram_bytes: Found::new(limit_bytes, "test"), ..Resources::detect(Path::new("/tmp")) };
    let plans = Phase::ALL.map(|phase| Plan::new(&resources, phase, &Overrides::default()));
    let most = |bytes: fn(&Plan) -> u64| plans.iter().map(bytes).max().unwrap();
    (most(Plan::service_bytes), most(|plan| plan.service_bytes() + plan.server_bytes()))
}

/// Replays a chain inside a limit; checks everything but the rows.
fn replay_within(limit_bytes: u64, blocks_dir: &Path, options: &[&str]) -> Option<Satgres> {
    let cgroup = MemoryCgroup::new(limit_bytes)?;
    let satgres = Satgres::new().deadline(DEADLINE).within(cgroup);
    let cgroup = satgres.cgroup().unwrap();
    let (service_bytes, all_bytes) = planned_bytes(limit_bytes);

    let tuned = satgres.command(&["tune"]);
    let ram = format!("RAM {}MiB ({})", limit_bytes / MIB, cgroup.source()).replace("1024MiB", "1GiB");
    assert!(tuned.stdout.starts_with(&ram), "{}", tuned.stdout);

    let watch = cgroup.watch();
    let finished = satgres.run("regtest", blocks_dir, options);
    let counted = watch.end();
    eprintln!("{:?} in {:.1} s; planned {all_bytes}", counted, finished.elapsed.as_secs_f64());
    assert!(finished.stderr.contains(&format!("memory plan for {ram}")), "{}", finished.stderr);
    assert!(!finished.stderr.contains(" WARN satgres::service"), "{}", finished.stderr);
    assert_eq!(counted.oom_kills, 0, "{}", finished.stderr);
    assert!(counted.unreclaimable_bytes_max > limit_bytes / 10, "nothing was in it: {counted:?}");
    assert!(counted.unreclaimable_bytes_max <= all_bytes, "{counted:?}, planned {all_bytes}");
    // An allocation of the kernel's own that may not fail goes a few pages over the limit.
    assert!(counted.usage_bytes_max.is_none_or(|bytes| bytes <= limit_bytes + MIB), "{counted:?}");
    let peak: u64 = satgres.value("select max(peak_rss_bytes) from ops.phases").parse().unwrap();
    assert!(peak <= service_bytes, "the service took {peak} bytes, planned {service_bytes}");
    Some(satgres)
}

#[test]
fn a_million_transactions_replay_in_a_gibibyte() {
    let chain = KeptChain::of(1_000_000).unwrap();
    assert!(chain.txs >= 1_000_000, "{} transactions", chain.txs);
    // Segments enough that indexes are built while rows come in.
    let Some(satgres) = replay_within(GIB, &chain.dir, &["--segment-bytes", "40MiB"]) else { return };
    assert_eq!(satgres.value("select count(*) from chain.transactions"), chain.txs.to_string());
    assert_eq!(satgres.value("select count(*) from chain.utxos"), chain.mix.utxo_count.to_string());
}

#[test]
fn a_small_chain_replays_in_192_mebibytes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("chain");
    let mix =
        chaingen::generate(&chaingen::Options { blocks: 300, txs_per_block: 60, seed: 4, out: out.clone() });
    let mix = mix.unwrap();
    let options = ["--segment-bytes", "1MiB", "--utxo-cache", "64KiB"];
    let Some(satgres) = replay_within(192 * MIB, &out, &options) else { return };
    assert_eq!(satgres.value("select count(*) from chain.utxos"), mix.utxo_count.to_string());
    satgres.verify();
}

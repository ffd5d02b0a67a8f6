//! What the bench prints: the rounds as they end, then medians, ratios, stages, and one line for programs.

use std::collections::BTreeMap;

use satgres::rows::Table;

use crate::harness::stats::{median, median_ratio};
use crate::lab::lookups::Latencies;
use crate::lab::replayed::Replayed;
use crate::lab::round::Round;
use crate::lab::{Chain, Lab};
use crate::ready::ReadyRows;

/// One figure of a round.
type Figure = fn(&Round) -> f64;

pub fn head(chain: &Chain, rows: &ReadyRows, lab: &Lab) {
    println!(
        "{} transactions, {} rows, {:.1} MB of blocks, {} segments; {:.1} MB of rows (outputs {:.1}, inputs {:.1})",
        rows.tx_count(),
        rows.row_count(),
        chain.bytes as f64 / 1e6,
        rows.segments.len(),
        Table::ALL.iter().map(|table| rows.bytes(*table)).sum::<usize>() as f64 / 1e6,
        rows.bytes(Table::Outputs) as f64 / 1e6,
        rows.bytes(Table::Inputs) as f64 / 1e6,
    );
    println!("{}\n", lab.plan.summary());
    println!("| round | floor load | restore | all | CPU | satgres load | restore | all | CPU | ratio |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
}

pub fn round(number: usize, floor: &Round, product: &Round) {
    let one = |round: &Round| {
        format!(
            "{:.2} s | {:.2} s | {:.2} s | {:.1} s",
            round.load_seconds,
            round.restore_seconds,
            round.total_seconds(),
            round.cpu.seconds()
        )
    };
    let ratio = product.total_seconds() / floor.total_seconds();
    println!("| {} | {} | {} | {ratio:.3} |", number + 1, one(floor), one(product));
}

pub fn summary(
    chain: &Chain,
    rows: &ReadyRows,
    rounds: &[(Round, Replayed)],
    extras: &[(&str, Round)],
    latencies: &[Latencies],
) {
    let floor = |of: Figure| median(rounds.iter().map(|(floor, _)| of(floor)));
    let satgres = |of: Figure| median(rounds.iter().map(|(_, product)| of(&product.round)));
    let ratio =
        |of: Figure| median_ratio(rounds.iter().map(|(floor, product)| (of(&product.round), of(floor))));
    let lines: [(&str, Figure); 6] = [
        ("load, s", |round| round.load_seconds),
        ("restore, s", |round| round.restore_seconds),
        ("load and restore, s", Round::total_seconds),
        ("CPU of the service, s", |round| round.cpu.service_seconds),
        ("CPU of the server, s", |round| round.cpu.server_seconds),
        ("CPU of both, s", |round| round.cpu.seconds()),
    ];
    println!("\n| medians | floor | satgres | ratio of pairs |\n|---|---|---|---|");
    for (name, of) in lines {
        println!("| {name} | {:.2} | {:.2} | {:.3} |", floor(of), satgres(of), ratio(of));
    }
    for (name, round) in extras {
        println!(
            "| {name}: load, restore, all, CPU | {:.2}, {:.2}, {:.2}, {:.1} | | |",
            round.load_seconds,
            round.restore_seconds,
            round.total_seconds(),
            round.cpu.seconds()
        );
    }
    let txs = rows.tx_count() as f64;
    print_stages(rounds, txs);
    print_latencies(latencies);
    let product = &rounds.last().expect("at least one round").1;
    print_sizes(product, txs);
    let load = satgres(|round| round.load_seconds);
    println!(
        "\nloading: {:.0} tx/s, {:.2} M rows/s, {:.1} MB/s of blocks; database {:.0} B/tx of heap, {:.0} of indexes, {:.2} bytes a byte of block",
        txs / load,
        rows.row_count() as f64 / load / 1e6,
        chain.bytes as f64 / load / 1e6,
        product.heap_bytes as f64 / txs,
        (product.all_bytes - product.heap_bytes) as f64 / txs,
        product.all_bytes as f64 / chain.bytes as f64,
    );
    let share = median(
        rounds.iter().map(|(_, product)| product.round.cpu.service_seconds / product.round.cpu.seconds()),
    );
    println!(
        "ratio_total={:.3} ratio_load={:.3} ratio_restore={:.3} service_cpu_share={share:.3} core_us_per_tx={:.2} tx_per_s={:.0}",
        ratio(Round::total_seconds),
        ratio(|round| round.load_seconds),
        ratio(|round| round.restore_seconds),
        satgres(|round| round.cpu.seconds()) / txs * 1e6,
        txs / load,
    );
}

/// Prints the median over the rounds of each stage's CPU.
fn print_stages(rounds: &[(Round, Replayed)], txs: f64) {
    let floor = stages(rounds.iter().map(|(floor, _)| floor));
    let satgres = stages(rounds.iter().map(|(_, product)| &product.round));
    let mut names: Vec<&str> = satgres.keys().copied().collect();
    names.sort_by(|a, b| satgres[b].total_cmp(&satgres[a]));
    let all: f64 = satgres.values().sum();
    println!("\n| stage (sampled) | floor, core-µs a transaction | satgres | share |\n|---|---|---|---|");
    for name in names {
        let [floor, satgres] = [&floor, &satgres].map(|stages| stages.get(name).copied().unwrap_or_default());
        let (us, share) = (1e6 / txs, satgres / all * 100.0);
        println!("| {name} | {:.2} | {:.2} | {share:.1} % |", floor * us, satgres * us);
    }
}

/// Medians over the rounds of the CPU seconds of each stage.
fn stages<'a>(rounds: impl Iterator<Item = &'a Round>) -> BTreeMap<&'a str, f64> {
    let mut by_name: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, seconds) in rounds.flat_map(|round| &round.stages) {
        by_name.entry(name).or_default().push(*seconds);
    }
    by_name.into_iter().map(|(name, seconds)| (name, median(seconds))).collect()
}

/// Prints the medians over the rounds of each kind of look-up.
fn print_latencies(rounds: &[Latencies]) {
    println!("\n| look-up | µs |\n|---|---|");
    for (at, (name, _)) in rounds.first().into_iter().flatten().enumerate() {
        println!("| {name} | {:.1} |", median(rounds.iter().map(|round| round[at].1)));
    }
}

/// Prints how large each table and index is.
fn print_sizes(replayed: &Replayed, txs: f64) {
    println!("\n| table or index | bytes a transaction |\n|---|---|");
    for (name, bytes) in &replayed.relations {
        let bytes = *bytes as f64 / txs;
        if bytes >= 1.0 {
            println!("| {name} | {bytes:.0} |");
        }
    }
}

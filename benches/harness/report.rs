//! How figures are shown: a markdown table as nanobench prints it, the fits below it, or JSON.

use std::fmt::Write;

use super::Unit;
use super::fit::Fit;
use super::measure::Measured;
use super::stats::{median, median_absolute_error};

/// Above this share of error a line is marked.
const UNSTABLE: f64 = 0.05;

/// One benchmark's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The benchmark.
    pub name: String,
    /// What it counts.
    pub unit: &'static str,
    /// Median of the epochs, nanoseconds a unit.
    pub ns: f64,
    /// The same a call.
    pub ns_per_call: f64,
    /// Median absolute error, a fraction.
    pub error: f64,
    /// Instructions, cycles, branches a unit, and the share of branches guessed wrongly, if they were counted.
    pub counters: Option<[f64; 4]>,
    /// Seconds of the whole benchmark.
    pub total_seconds: f64,
}

impl Line {
    /// Sums up a benchmark.
    pub fn new(name: &str, unit: &Unit, measured: &Measured) -> Line {
        let ns_per_call = median(measured.seconds.iter().copied()) * 1e9;
        let counters = (!measured.counted.is_empty()).then(|| {
            let middle = |of: fn(&super::counters::Counted) -> f64| median(measured.counted.iter().map(of));
            let branches = middle(|counted| counted.branches);
            [
                middle(|counted| counted.instructions) / unit.per_call,
                middle(|counted| counted.cycles) / unit.per_call,
                branches / unit.per_call,
                middle(|counted| counted.misses) / branches.max(f64::MIN_POSITIVE),
            ]
        });
        Line {
            name: name.to_owned(),
            unit: unit.name,
            ns: ns_per_call / unit.per_call,
            ns_per_call,
            error: median_absolute_error(&measured.seconds),
            counters,
            total_seconds: measured.total_seconds,
        }
    }

    fn is_unstable(&self) -> bool {
        self.error > UNSTABLE
    }
}

/// Returns the head of a table.
pub fn head(unit: &str, has_counters: bool) -> String {
    let (columns, rule) = if has_counters {
        let columns = format!(
            " {:>14} | {:>14} | {:>6} | {:>14} | {:>7} |",
            format!("ins/{unit}"),
            format!("cyc/{unit}"),
            "IPC",
            format!("bra/{unit}"),
            "miss%"
        );
        (columns, "---------------:|---------------:|-------:|---------------:|--------:|")
    } else {
        (String::new(), "")
    };
    format!(
        "\n| {:>19} | {:>19} | {:>7} |{columns} {:>9} | benchmark\n|--------------------:|--------------------:|--------:|{rule}----------:|:----------\n",
        format!("ns/{unit}"),
        format!("{unit}/s"),
        "err%",
        "total"
    )
}

/// Returns one line of a table.
pub fn line(line: &Line, has_counters: bool) -> String {
    let mut text = format!(
        "| {:>19} | {:>19} | {:>6.1}% |",
        grouped(line.ns),
        grouped(1e9 / line.ns),
        line.error * 100.0
    );
    if has_counters {
        match line.counters {
            Some([instructions, cycles, branches, missed]) => {
                let _ = write!(
                    text,
                    " {:>14} | {:>14} | {:>6.3} | {:>14} | {:>6.1}% |",
                    grouped(instructions),
                    grouped(cycles),
                    instructions / cycles,
                    grouped(branches),
                    missed * 100.0
                );
            }
            None => text.push_str("                |                |        |                |         |"),
        }
    }
    let mark = if line.is_unstable() {
        " (unstable: run it longer, with --epoch-ms, on a quiet machine)"
    } else {
        ""
    };
    let _ = writeln!(text, " {:>9.2} | `{}`{mark}", line.total_seconds, line.name);
    text
}

/// Returns the table of fits.
pub fn fits(name: &str, fits: &[Fit]) -> String {
    let mut text = format!(
        "\n| {:>11} | {:>7} | complexity of `{name}`\n|------------:|--------:|:----------\n",
        "factor, s", "err%"
    );
    for fit in fits {
        let _ = writeln!(text, "| {:>11.3e} | {:>6.1}% | {}", fit.factor, fit.error * 100.0, fit.name);
    }
    text
}

/// Renders how much the results of repeated runs vary, with the median of all; nothing where none was repeated.
pub fn variations(variations: &[(String, f64)]) -> String {
    if variations.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n|  variation | benchmark\n|-----------:|:----------\n");
    for (name, coefficient) in variations {
        text.push_str(&format!("|     {:>5.2}% | `{name}`\n", coefficient * 100.0));
    }
    let median = super::stats::median(variations.iter().map(|variation| variation.1));
    text.push_str(&format!("\nmedian_variation_percent={:.2}\n", median * 100.0));
    text
}

/// Returns all lines as JSON.
pub fn json(lines: &[Line]) -> String {
    let results: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| {
            let counters = line.counters.map(|[instructions, cycles, branches, missed]| {
                serde_json::json!({
                    "instructions": instructions, "cycles": cycles, "branches": branches, "branch_miss_share": missed,
                })
            });
            serde_json::json!({
                "name": line.name,
                "unit": line.unit,
                "ns_per_unit": line.ns,
                "units_per_s": 1e9 / line.ns,
                "error_share": line.error,
                "counters": counters,
                "total_s": line.total_seconds,
            })
        })
        .collect();
    serde_json::to_string_pretty(&serde_json::json!({ "results": results })).expect("plain values")
}

/// Returns a number with commas between thousands, and two decimals below 10,000.
fn grouped(value: f64) -> String {
    let text = if value < 10_000.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !decimals.is_empty() {
        grouped.push('.');
        grouped.push_str(decimals);
    }
    grouped
}

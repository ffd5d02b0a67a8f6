//! The benchmark harness itself: what it measures, fits and prints must be right before any figure is.

#[path = "../benches/harness/mod.rs"]
mod harness;

use std::time::{Duration, Instant};

use clap::Parser;
use harness::fit::{Point, fit};
use harness::machine::warnings_from;
use harness::measure::{Measured, Method, clock_resolution, measure};
use harness::options::Options;
use harness::report::{self, Line};
use harness::stats::{coefficient_of_variation, median, median_absolute_error, median_ratio};
use harness::{counters::Counted, unit};

const SIZES: [f64; 7] = [25.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0];

/// Times of a known growth, each off by up to 2 %, always the same way.
fn synthetic(growth: fn(f64) -> f64) -> Vec<Point> {
    let off = [0.99, 1.02, 0.98, 1.01, 1.0, 0.985, 1.015];
    SIZES.iter().zip(off).map(|(&n, off)| Point { n, seconds: 3e-9 * growth(n) * off }).collect()
}

#[test]
fn fits_recover_known_complexities() {
    type Growth = fn(f64) -> f64;
    let cases: [(&str, Growth); 6] = [
        ("O(1)", |_| 1.0),
        ("O(log n)", f64::log2),
        ("O(n)", |n| n),
        ("O(n log n)", |n| n * n.log2()),
        ("O(n^2)", |n| n * n),
        ("O(n^3)", |n| n * n * n),
    ];
    for (name, growth) in cases {
        let fits = fit(&synthetic(growth));
        assert_eq!(fits[0].name, name, "{fits:?}");
        assert!((fits[0].factor / 3e-9 - 1.0).abs() < 0.02, "{fits:?}");
        assert!(fits[0].error < 0.03 && fits[1].error > 0.05, "{fits:?}");
        assert_eq!(fits.len(), 6);
    }
}

#[test]
fn the_error_of_a_fit_is_the_root_mean_square_by_the_mean() {
    // A constant 2 for the times 1 and 3: both are off by 1, and the mean is 2.
    let fits = fit(&[Point { n: 1.0, seconds: 1.0 }, Point { n: 1.0, seconds: 3.0 }]);
    let constant = fits.iter().find(|fit| fit.name == "O(1)").unwrap();
    assert_eq!((constant.factor, constant.error), (2.0, 0.5));
}

#[test]
fn medians_and_spreads() {
    assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    // Off by 1/4, 0, 0, 1/5 and 9/10.
    assert_eq!(median_absolute_error(&[80.0, 100.0, 100.0, 125.0, 1000.0]), 0.2);
    assert_eq!(median_absolute_error(&[5.0, 5.0, 5.0]), 0.0);
    assert_eq!(coefficient_of_variation(&[1.0, 3.0]), std::f64::consts::SQRT_2 / 2.0);
    assert_eq!(median_ratio([(2.0, 1.0), (30.0, 10.0), (4.0, 1.0)]), 3.0);
}

#[test]
fn an_epoch_is_filled_with_calls_and_the_time_of_one_is_shown() {
    let method = Method { epoch: Duration::from_millis(4), epochs: 5 };
    let mut calls = 0_u64;
    let mut wait = || {
        calls += 1;
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(50) {}
    };
    let measured = measure(&method, None, &mut wait);
    assert_eq!(measured.seconds.len(), 5);
    // Each call takes at least 50 us, so at most 80 fill 4 ms; fewer where something else held the processor.
    assert!((1..=80).contains(&measured.calls), "{measured:?}");
    assert!(measured.seconds.iter().all(|seconds| *seconds >= 50e-6), "{measured:?}");
    assert!(calls >= 5 * measured.calls);
}

#[test]
fn a_call_longer_than_an_epoch_is_called_once_in_each() {
    let method = Method { epoch: Duration::from_millis(1), epochs: 3 };
    let measured = measure(&method, None, &mut || std::thread::sleep(Duration::from_millis(3)));
    assert_eq!(measured.calls, 1);
    assert!(measured.seconds.iter().all(|seconds| *seconds >= 3e-3));
}

#[test]
fn the_clock_and_the_options_set_the_length_of_an_epoch() {
    let options = Options::parse_from(["bench", "--bench", "--epoch-ms", "7", "--epochs", "3"]);
    let resolution = clock_resolution();
    assert!(resolution > Duration::ZERO && resolution < Duration::from_micros(7), "{resolution:?}");
    // A thousand times less than 7 us is less than 7 ms.
    assert_eq!(Method::of_this_clock(&options), Method { epoch: Duration::from_millis(7), epochs: 3 });
}

fn line(counted: Vec<Counted>) -> Line {
    let measured = Measured { calls: 10, seconds: vec![2e-6, 2e-6, 2.2e-6], counted, total_seconds: 0.125 };
    Line::new("block parse", &unit("byte", 1_000_usize), &measured)
}

#[test]
fn a_table_without_counters() {
    assert_eq!(
        report::head("byte", false),
        "\n|             ns/byte |              byte/s |    err% |     total | benchmark\n\
         |--------------------:|--------------------:|--------:|----------:|:----------\n"
    );
    assert_eq!(
        report::line(&line(Vec::new()), false),
        "|                2.00 |         500,000,000 |    0.0% |      0.12 | `block parse`\n"
    );
}

#[test]
fn a_table_with_counters() {
    let counted = Counted { instructions: 9e3, cycles: 6e3, branches: 1e3, misses: 20.0 };
    assert_eq!(
        report::head("byte", true).lines().nth(1).unwrap(),
        "|             ns/byte |              byte/s |    err% |       ins/byte |       cyc/byte |    IPC |       \
         bra/byte |   miss% |     total | benchmark"
    );
    assert_eq!(
        report::line(&line(vec![counted; 3]), true),
        "|                2.00 |         500,000,000 |    0.0% |           9.00 |           6.00 |  1.500 |           \
         1.00 |    2.0% |      0.12 | `block parse`\n"
    );
}

#[test]
fn an_unsteady_benchmark_is_marked() {
    let measured = Measured { calls: 1, seconds: vec![1.0, 2.0, 3.0], ..Measured::default() };
    let text = report::line(&Line::new("x", &harness::OP, &measured), false);
    assert!(text.contains("| `x` (unstable"), "{text}");
}

#[test]
fn json_holds_plain_numbers() {
    let json: serde_json::Value = serde_json::from_str(&report::json(&[line(Vec::new())])).unwrap();
    assert_eq!(json["results"][0]["name"], "block parse");
    assert_eq!(json["results"][0]["unit"], "byte");
    assert_eq!(json["results"][0]["ns_per_unit"], 2.0);
    assert_eq!(json["results"][0]["counters"], serde_json::Value::Null);
}

#[test]
fn a_filter_lets_through_what_holds_its_text() {
    let options = Options::parse_from([
        "micro",
        "--bench",
        "--filter",
        "sha",
        "--filter",
        "merkle",
        "--asymptote=25,50,100",
    ]);
    assert!(options.is_wanted("sha256d, 64 bytes") && options.is_wanted("merkle root"));
    assert!(!options.is_wanted("txid"));
    assert_eq!(options.asymptote, [25, 50, 100]);
    assert!(Options::parse_from(["micro"]).is_wanted("anything"));
    assert!(!Options::parse_from(["micro", "row"]).is_wanted("txid"));
}

#[test]
fn an_unfit_machine_is_told() {
    let cpus = tempfile::tempdir().unwrap();
    assert_eq!(warnings_from(cpus.path(), "0.10 0.1 0.1 1/100 1", false), Vec::<String>::new());
    let scaling = cpus.path().join("cpu0/cpufreq");
    std::fs::create_dir_all(&scaling).unwrap();
    std::fs::create_dir_all(cpus.path().join("intel_pstate")).unwrap();
    std::fs::write(scaling.join("scaling_governor"), "powersave\n").unwrap();
    std::fs::write(scaling.join("scaling_min_freq"), "800000\n").unwrap();
    std::fs::write(scaling.join("scaling_max_freq"), "3000000\n").unwrap();
    std::fs::write(cpus.path().join("intel_pstate/no_turbo"), "0\n").unwrap();
    let warnings = warnings_from(cpus.path(), "1.75 0.1 0.1 1/100 1", true).join("\n");
    for part in
        ["debug build", "governor powersave", "between 800000 and 3000000 kHz", "turbo is on", "load 1.75"]
    {
        assert!(warnings.contains(part), "{part}: {warnings}");
    }
}

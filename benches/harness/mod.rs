//! A small benchmark harness after nanobench's method, for `cargo bench` without the test harness.
//!
//! In: closures, each with a name and a unit. Out: one line of a markdown table a benchmark, or JSON. Read [`Runner`]
//! from top to bottom: options, the machine's state, then each benchmark: iterations that fill an epoch, 11 epochs, the
//! median. Used by the programs in `benches/`; nothing here knows Bitcoin or PostgreSQL.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::needless_pass_by_value)]

pub mod counters;
pub mod fit;
pub mod machine;
pub mod measure;
pub mod options;
pub mod report;
pub mod stats;

use std::hint::black_box;

use self::counters::Counters;
use self::measure::{Measured, Method, endless, measure};
use self::options::Options;
use self::report::Line;

/// What one operation is counted in.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Its name, in the singular: `op`, `byte`, `tx`, `row`.
    pub name: &'static str,
    /// How many of it one call makes.
    pub per_call: f64,
}

/// One call is one operation.
pub const OP: Unit = Unit { name: "op", per_call: 1.0 };

/// Returns a unit.
pub fn unit(name: &'static str, per_call: impl IntoCount) -> Unit {
    Unit { name, per_call: per_call.into_count() }
}

/// Whatever counts units.
pub trait IntoCount {
    /// Returns the count.
    fn into_count(self) -> f64;
}
impl IntoCount for u64 {
    fn into_count(self) -> f64 {
        self as f64
    }
}
impl IntoCount for usize {
    fn into_count(self) -> f64 {
        self as f64
    }
}

/// Runs benchmarks one after the other and prints their lines.
#[derive(Debug)]
pub struct Runner {
    options: Options,
    method: Method,
    counters: Option<Counters>,
    lines: Vec<Line>,
    /// Unit of the table whose head was printed last.
    head: Option<&'static str>,
    total_seconds: f64,
    /// Coefficient of variation of each benchmark that ran several times.
    variations: Vec<(String, f64)>,
}

impl Runner {
    /// Takes the options, measures the clock, opens the counters, and says what makes this machine unfit.
    pub fn new(options: Options) -> Runner {
        let (counters, reason) = match Counters::open() {
            Ok(counters) => (Some(counters), None),
            Err(error) => (None, Some(error)),
        };
        if !options.json {
            if let Some(reason) = reason {
                println!("No hardware counters here ({reason}): their columns are left out.");
            }
            machine::print_warnings();
            println!();
        }
        let method = Method::of_this_clock(&options);
        Runner {
            options,
            method,
            counters,
            lines: Vec::new(),
            head: None,
            total_seconds: 0.0,
            variations: Vec::new(),
        }
    }

    /// Runs one benchmark, if the filter lets it.
    pub fn bench<T>(&mut self, name: &str, unit: Unit, mut call: impl FnMut() -> T) {
        self.bench_with(name, unit, || (), |()| call());
    }

    /// Runs one benchmark on a state that is made only if the filter lets it.
    pub fn bench_with<S, T>(
        &mut self,
        name: &str,
        unit: Unit,
        make: impl FnOnce() -> S,
        mut call: impl FnMut(&mut S) -> T,
    ) {
        if !self.options.is_wanted(name) {
            return;
        }
        let mut state = make();
        let mut once = || {
            black_box(call(black_box(&mut state)));
        };
        if self.options.endless {
            endless(name, &mut once);
        }
        let mut results = Vec::new();
        for _ in 0..self.options.repeat {
            let measured = measure(&self.method, self.counters.as_mut(), &mut once);
            self.line(name, &unit, &measured);
            results.push(self.lines.last().expect("just added").ns_per_call);
        }
        if results.len() > 1 {
            self.variations.push((name.to_owned(), stats::coefficient_of_variation(&results)));
        }
    }

    /// Runs one benchmark at several sizes: at `sizes`, or at those of `--asymptote`, which also fits its complexity.
    /// `unit` tells the unit from a size.
    pub fn bench_sizes<S, T>(
        &mut self,
        name: &str,
        sizes: &[u64],
        unit: impl Fn(u64) -> Unit,
        make: impl Fn(u64) -> S,
        mut call: impl FnMut(&mut S) -> T,
    ) {
        let is_fitted = !self.options.asymptote.is_empty();
        let sizes = if is_fitted { self.options.asymptote.clone() } else { sizes.to_vec() };
        let lines_before = self.lines.len();
        for &size in &sizes {
            let name = format!("{name}, {size}");
            self.bench_with(&name, unit(size), || make(size), &mut call);
        }
        let points: Vec<fit::Point> = sizes
            .iter()
            .zip(self.lines[lines_before..].chunks(self.options.repeat as usize).flat_map(<[Line]>::first))
            .map(|(&size, line)| fit::Point { n: size as f64, seconds: line.ns_per_call * 1e-9 })
            .collect();
        if is_fitted && points.len() >= 3 && !self.options.json {
            print!("{}", report::fits(name, &fit::fit(&points)));
            self.head = None;
        }
    }

    /// Prints what is still to be said.
    pub fn finish(self) {
        if self.options.json {
            println!("{}", report::json(&self.lines));
        } else {
            println!("\n{} benchmarks in {:.1} s", self.lines.len(), self.total_seconds);
            print!("{}", report::variations(&self.variations));
        }
    }

    fn line(&mut self, name: &str, unit: &Unit, measured: &Measured) {
        let line = Line::new(name, unit, measured);
        self.total_seconds += line.total_seconds;
        if !self.options.json {
            if self.head != Some(unit.name) {
                print!("{}", report::head(unit.name, self.counters.is_some()));
                self.head = Some(unit.name);
            }
            print!("{}", report::line(&line, self.counters.is_some()));
        }
        self.lines.push(line);
    }
}

//! The command line of a benchmark program.

use clap::Parser;

/// Options of a table of benchmarks.
#[derive(Clone, Debug, Default, Parser)]
#[command(about = "Runs benchmarks and prints a table of them", disable_version_flag = true)]
pub struct Options {
    /// Runs only the benchmarks whose name holds this text; several may be given.
    #[arg(long, value_name = "TEXT")]
    pub filter: Vec<String>,
    /// The same, as the first argument.
    #[arg(value_name = "TEXT")]
    pub name: Option<String>,
    /// Runs sized benchmarks at these sizes and fits their complexity.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub asymptote: Vec<u64>,
    /// Prints one JSON document in place of tables.
    #[arg(long)]
    pub json: bool,
    /// Runs the first benchmark that the filter lets through until it is interrupted: for profilers.
    #[arg(long)]
    pub endless: bool,
    /// Runs each benchmark so many times and tells how much the results vary.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeat: u32,
    /// Epochs of each benchmark; the median of them is shown.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub epochs: u32,
    /// Least length of an epoch, milliseconds: longer ones are steadier.
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub epoch_ms: u64,
    /// Given by `cargo bench`; means nothing.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Options {
    /// Returns whether a benchmark of this name is to run.
    pub fn is_wanted(&self, name: &str) -> bool {
        let mut wanted = self.filter.iter().chain(&self.name).peekable();
        wanted.peek().is_none() || wanted.any(|text| name.contains(text.as_str()))
    }
}

//! The command `satgres`.

fn main() -> std::process::ExitCode {
    satgres::cli::main()
}

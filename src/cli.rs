//! The command line: which part of the service does what was typed.
//!
//! In: the arguments. Out: one call per command, an exit code. Only the results of commands go to standard output;
//! everything said to people goes to standard error.

mod args;
mod tune;

use std::{error::Error as _, io::Write as _, os::unix::process::CommandExt as _, process::ExitCode};

use clap::Parser as _;

use self::args::{ChaingenArgs, Cli, Command, PgCommand, VerifyArgs, low_args};
use crate::{
    chaingen,
    config::Settings,
    error::Error,
    logging,
    pg::{cluster::Cluster, external::Purpose, server::Server},
    service,
    verify::NodeRpc,
};

/// Runs the command that was typed and returns its exit code.
pub fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Says what happened, and why as far as it is known.
fn report(error: &Error) {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!("\n  because: {inner}"));
        cause = inner.source();
    }
    // Where standard error is closed nobody is left to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn dispatch(cli: Cli) -> Result<(), Error> {
    let settings = Settings::resolve(&low_args(&cli))?;
    logging::start(&settings.log);
    match cli.command {
        Command::Config(_) => print_config(&settings),
        Command::Tune(args) => tune::tune(&settings, &args),
        Command::Run(_) => block_on(service::run(&settings)),
        Command::Status { json, check } => block_on(status(&settings, json, check)),
        Command::Verify(args) => block_on(verify(&settings, &args)),
        Command::Chaingen(args) => chaingen(&args),
        Command::Psql { args } => psql(&settings, &args),
        Command::Url => {
            let server = block_on(start(&settings))?;
            print(&format!("{}\n", server.url()))
        }
        Command::Pg { .. } if settings.database_url.is_some() => {
            Err(Error::NotOurs { help: "for the private one: satgres pg --database-url none start" })
        }
        Command::Pg { command: PgCommand::Start } => block_on(start(&settings)).map(|_| ()),
        Command::Pg { command: PgCommand::Stop } => block_on(stop(&settings)),
    }
}

/// `satgres status`: the report goes to standard output.
async fn status(settings: &Settings, json: bool, check: bool) -> Result<(), Error> {
    let report = crate::status::collect(settings).await?;
    if json {
        let text = serde_json::to_string_pretty(&report).expect("a report has text keys only");
        print(&format!("{text}\n"))?;
    } else {
        print(&crate::status::render(&report))?;
    }
    if check && !report.service.is_at_work() {
        return Err(Error::NotAtWork { state: report.service.state });
    }
    Ok(())
}

/// `satgres verify`: what was found goes to standard output.
async fn verify(settings: &Settings, args: &VerifyArgs) -> Result<(), Error> {
    if args.digest {
        for digest in service::digest(settings).await? {
            print(&format!("{digest}\n"))?;
        }
    }
    if args.utxo_hash {
        print(&format!("{}\n", service::utxo_set_info(settings).await?))?;
    }
    if args.digest || args.utxo_hash {
        return Ok(());
    }
    let mut written = Ok(());
    let node = args.node.as_ref().map(|url| NodeRpc::parse(url, args.cookie.as_deref())).transpose()?;
    let verified = service::verify(settings, node.as_ref(), |check| {
        if written.is_ok() {
            written = print(&format!("{check}\n"));
        }
    })
    .await;
    verified.and(written)
}

/// `satgres chaingen`: the mix that was reached goes to standard output.
fn chaingen(args: &ChaingenArgs) -> Result<(), Error> {
    let options = chaingen::Options {
        blocks: args.blocks,
        txs_per_block: args.txs_per_block,
        seed: args.seed,
        out: args.out.clone(),
    };
    print(&format!("{}\n", chaingen::generate(&options)?))
}

/// Starts the private server if it is down; a running one, and the user's own, are taken as they are.
async fn start(settings: &Settings) -> Result<Server, Error> {
    Ok(Server::start(settings, Purpose::Read).await?)
}

async fn stop(settings: &Settings) -> Result<(), Error> {
    if !Cluster::stop(settings.data_dir.clone()).await? {
        tracing::info!(data_dir = %settings.data_dir.display(), "no PostgreSQL was running");
    }
    Ok(())
}

/// Becomes psql, connected to the database: its output, signals and exit code are untouched.
fn psql(settings: &Settings, args: &[std::ffi::OsString]) -> Result<(), Error> {
    let mut command = block_on(start(settings))?.psql(settings);
    let source = command.args(args).exec();
    let program = std::path::Path::new(command.get_program());
    let what = format!("run {} (sudo apt-get install postgresql-client brings it)", program.display());
    Err(Error::System { what, source })
}

/// `satgres config`: one line an option.
fn print_config(settings: &Settings) -> Result<(), Error> {
    let mut text = String::new();
    for (option, value, origin) in settings.listing() {
        text.push_str(&format!("{} = {value}  ({origin})\n", option.key));
    }
    print(&text)
}

fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|source| Error::System { what: "write to standard output".to_owned(), source })
}

/// Runs a command's async part to its end.
fn block_on<T>(command: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { what: "start the runtime".to_owned(), source })?;
    let result = runtime.block_on(command);
    // A command that was interrupted must not wait for a scan that nobody wants any more.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}

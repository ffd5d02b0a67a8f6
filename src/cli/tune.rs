//! `satgres tune`: the memory plan of this machine or another one, and what the user's own server could do better.
//!
//! In: settings and the machine to plan for. Out: the plan on standard output, in the format asked for; warnings in the log.

use super::{args::TuneArgs, block_on, print};
use crate::{
    config::Settings,
    error::Error,
    pg::{
        external::{Error as ExternalError, External, Purpose, log_advice},
        server,
    },
    plan::{self, Format, Phase, Plan},
    resources::{Found, Resources, ServerPlace},
};

/// `satgres tune`: the plan goes to standard output, what is wrong with it to the log.
pub(super) fn tune(settings: &Settings, args: &TuneArgs) -> Result<(), Error> {
    let mut resources = server::resources(settings)?;
    if let Some(bytes) = args.ram {
        let here = resources;
        resources =
            Resources { cpus: here.cpus, disk: here.disk, server: here.server, ..Resources::unknown(1) };
        if bytes > 0 {
            resources.ram_bytes = Found::new(bytes, "--ram");
        }
    }
    if let Some(cpus) = args.cpus {
        resources.cpus = Found::new(cpus as usize, "--cpus");
    }
    if let Some(disk) = args.disk {
        resources.disk = Found::new(disk, "--disk");
    }
    let phases = args.phase.map_or_else(|| Phase::ALL.to_vec(), |phase| vec![phase]);
    let overrides = settings.overrides();
    let plans: Vec<Plan> = phases.iter().map(|phase| Plan::new(&resources, *phase, &overrides)).collect();
    let mut warnings: Vec<&String> = plans.iter().flat_map(|plan| &plan.warnings).collect();
    warnings.dedup();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    print(&plan::render(&resources, &plans, args.format))?;
    advise(settings, &resources, args.format)
}

/// What the user's own server could do better: part of the table, and beside any other format.
fn advise(settings: &Settings, resources: &Resources, format: Format) -> Result<(), Error> {
    let Some(url) = &settings.database_url else { return Ok(()) };
    let server = match block_on(async { Ok(External::connect(url.params(), Purpose::Read).await) })? {
        Ok(server) => server,
        Err(error @ ExternalError::Target(_)) => return Err(error.into()),
        Err(error) => {
            // The plan needs no database.
            tracing::warn!("no advice: {error}");
            return Ok(());
        }
    };
    let plan = |phase| Plan::new(resources, phase, &settings.overrides());
    let place = resources.server.value;
    let advice = plan::advice::advise(server.running(), &plan(Phase::Replay), &plan(Phase::Live), place);
    if format != Format::Table {
        log_advice(&advice);
        return Ok(());
    }
    let mut text = format!("\nADVICE for database {}, PostgreSQL {}", server.target(), server.version());
    if place == ServerPlace::OtherHost {
        text.push_str(" on another host, whose memory is not known");
    }
    text.push_str(if advice.is_empty() { ": none, its settings are near the plan\n" } else { "\n" });
    for line in advice {
        text.push_str(&format!("  {line}\n"));
    }
    print(&text)
}

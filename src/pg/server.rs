//! The server that a command works with: the private one, or the user's own.
//!
//! In: settings. Out: [`Server`], running and fit, with its database. Called by every command. What only the private one has
//! (its process, its configuration, its restart) is asked for by [`Server::private_mut`]; whoever gets `None` goes on without.

use std::{path::PathBuf, process::Command};

use super::{
    cluster::{self, Cluster, DATABASE, USER},
    external::{self, External, Purpose},
    target::Target,
};
use crate::{
    config::Settings,
    plan::{
        Phase, Plan,
        advice::{Advice, advise},
    },
    resources::{Resources, ServerPlace},
};

/// Connections at most: four fill tables, two build indexes a core, the others control.
const CONNECTIONS_MAX: usize = 40;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The private one.
    #[error(transparent)]
    Private(#[from] cluster::Error),
    /// The user's own.
    #[error(transparent)]
    External(#[from] external::Error),
}

/// A running server.
#[derive(Debug, Clone)]
pub enum Server {
    /// Ours, below the data directory.
    Private(Cluster),
    /// Somebody else's.
    External {
        /// What is known of it.
        server: Box<External>,
        /// The connection string, as it was given.
        url: String,
    },
}

impl Server {
    /// Makes or starts the private server, or connects to the one that `--database-url` names and checks it.
    ///
    /// # Errors
    /// [`Error`], whose text says what to do.
    pub async fn start(settings: &Settings, purpose: Purpose) -> Result<Server, Error> {
        Server::start_with(settings, purpose, None).await
    }

    /// The same; a private server gets the settings of a plan in place of those of the phase that it is in.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start_with(
        settings: &Settings,
        purpose: Purpose,
        plan: Option<&Plan>,
    ) -> Result<Server, Error> {
        match &settings.database_url {
            Some(url) => {
                let server = Box::new(External::connect(url.params(), purpose).await?);
                tracing::info!(
                    version = server.version(),
                    "PostgreSQL of your own: database {}",
                    server.target()
                );
                Ok(Server::External { server, url: url.given().to_owned() })
            }
            None => {
                let mut options = settings.cluster_options();
                if let Some(plan) = plan {
                    options.settings = settings.server_settings(plan);
                }
                let reconfigure = purpose == Purpose::Load;
                Ok(Server::Private(Cluster::start(cluster::Options { reconfigure, ..options }).await?))
            }
        }
    }

    /// How to connect.
    #[must_use]
    pub fn target(&self) -> Target {
        match self {
            Server::Private(cluster) => cluster.pg_config().into(),
            Server::External { server, .. } => server.target().clone(),
        }
    }

    /// The private server, where it is that.
    pub fn private_mut(&mut self) -> Option<&mut Cluster> {
        match self {
            Server::Private(cluster) => Some(cluster),
            Server::External { .. } => None,
        }
    }

    /// The private server's first process.
    #[must_use]
    pub fn postmaster_pid(&self) -> Option<i32> {
        match self {
            Server::Private(cluster) => Some(cluster.postmaster().pid),
            Server::External { .. } => None,
        }
    }

    /// Connections that a pool may open.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        match self {
            Server::Private(_) => CONNECTIONS_MAX,
            Server::External { server, .. } => server.connections_max(CONNECTIONS_MAX),
        }
    }

    /// Index builds at once, of those planned.
    #[must_use]
    pub fn builds_max(&self, planned: usize) -> usize {
        match self {
            Server::Private(_) => planned,
            Server::External { server, .. } => server.builds_max(planned),
        }
    }

    /// What the server could do better; nothing of the private one, which gets the plan itself.
    #[must_use]
    pub fn advice(&self, resources: &Resources, replay: &Plan, live: &Plan) -> Vec<Advice> {
        debug_assert!(replay.phase == Phase::Replay && live.phase == Phase::Live);
        match self {
            Server::Private(_) => Vec::new(),
            Server::External { server, .. } => advise(server.running(), replay, live, resources.server.value),
        }
    }

    /// The connection string, for psql and every other client of libpq.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Server::Private(cluster) => cluster.url(),
            Server::External { url, .. } => url.clone(),
        }
    }

    /// The command that opens psql on the database; passwords stand in its environment, where others cannot see them.
    #[must_use]
    pub fn psql(&self, settings: &Settings) -> Command {
        let mut command = match self {
            Server::Private(cluster) => {
                let beside = cluster.binaries().program("psql");
                let mut command = Command::new(if beside.exists() { beside } else { PathBuf::from("psql") });
                let server = cluster.postmaster();
                command.env("PGHOST", &server.socket_dir).env("PGPORT", server.port.to_string());
                command.env("PGUSER", USER).env("PGDATABASE", DATABASE).env_remove("PGHOSTADDR");
                command
            }
            Server::External { .. } => {
                let beside = settings.pg_bin.as_ref().map(|dir| dir.join("psql")).filter(|it| it.exists());
                Command::new(beside.unwrap_or_else(|| PathBuf::from("psql")))
            }
        };
        if let Some(url) = &settings.database_url {
            for (name, value) in url.params().environment() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
        }
        command.env_remove("PGSERVICE");
        command
    }
}

/// The user's own database, with host and port; `None` where the private one is meant.
///
/// # Errors
/// A connection string that cannot be used.
pub fn external_database(settings: &Settings) -> Result<Option<String>, external::Error> {
    let Some(url) = &settings.database_url else { return Ok(None) };
    Ok(Some(Target::external(url.params())?.to_string()))
}

/// What this machine gives, and whether the server shares it.
///
/// # Errors
/// A connection string that cannot be used.
pub fn resources(settings: &Settings) -> Result<Resources, external::Error> {
    let mut resources = Resources::detect(&settings.data_dir);
    if let Some(url) = &settings.database_url {
        resources.server = Target::external(url.params())?.place();
        if resources.server.value == ServerPlace::OtherHost {
            // This host's disk says nothing about the log of that one.
            resources.disk_free_bytes = None;
        }
    }
    Ok(resources)
}

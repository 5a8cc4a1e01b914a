//! `gpumeter fleet`: serves what the exports of any number of nodes cost.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, misconfigured};
use crate::agent::app::{FleetLaunch, listen_address, run_fleet};
use crate::config::{Config, ConfigFile, ListenAddress};

/// Where the costs of a fleet are served unless told otherwise: beside the port of an agent.
const LISTEN: &str = "127.0.0.1:9856";

#[derive(Args, Debug)]
pub(super) struct FleetCommand {
    /// Directory of exports (ledger.export.directory) of any number of nodes. It is only read.
    #[arg(long, value_name = "DIRECTORY")]
    exports: PathBuf,
    /// Directory of closed statements, beside which their months are shown.
    #[arg(long, value_name = "DIRECTORY")]
    statements: Option<PathBuf>,
    /// List of all nodes, as gpumeter bill --expect has it: for advice on nodes that nobody needs, commitments and replicas.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Configuration file, of which web, billing and advice.dismiss are used; without one the defaults apply.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to serve on; may be repeated. By default those of web.listen of the configuration file, else 127.0.0.1:9856.
    #[arg(long, visible_alias = "web.listen-address", value_name = "ADDR", value_parser = listen_address)]
    listen: Vec<ListenAddress>,
    /// Web configuration file: TLS, users, headers and rate limit in the form of Prometheus' exporters.
    #[arg(long = "web.config.file", value_name = "FILE")]
    web_file: Option<PathBuf>,
}

impl FleetCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        let (source, config) = match &self.config {
            Some(path) => ConfigFile::open(path)
                .map(|(source, config)| (Some(source), config))
                .map_err(misconfigured)?,
            None => (None, Config::default()),
        };
        let mut listen = self.listen;
        if listen.is_empty() && source.as_ref().is_some_and(|source| source.gives("web.listen")) {
            listen.clone_from(&config.web.listen);
        }
        if listen.is_empty() {
            listen.extend(listen_address(LISTEN));
        }
        let Self { exports, statements, expect: expected, web_file, .. } = self;
        run_fleet(FleetLaunch { config, source, web_file, listen, exports, statements, expected })
            .map_err(|error| Failure::of_agent(&error, error.wants_restart()))
    }
}

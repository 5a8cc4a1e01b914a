//! `gpumeter ledger`: restores the ledger file while no agent uses it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Failure, print, read_config};
use crate::ledger;

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct LedgerCommand {
    #[command(subcommand)]
    action: LedgerAction,
    /// Configuration file of the agent whose ledger is restored.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the ledger, instead of the configured one.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "config")]
    ledger: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum LedgerAction {
    /// Restore the copy that an upgrade saved as LEDGER.v1, LEDGER.v2 ..., so that an earlier release can use it.
    Restore {
        /// Schema version of the copy; by default the newest one before the current version.
        #[arg(long, value_name = "VERSION")]
        to: Option<i64>,
    },
}

impl LedgerCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let path = match &self.ledger {
            Some(path) => path.clone(),
            None => read_config(self.config.as_ref())?.ledger.path,
        };
        let LedgerAction::Restore { to } = self.action;
        print(&ledger::restore(&path, to).map_err(Failure::wrong)?.to_string())
    }
}

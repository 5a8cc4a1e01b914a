//! `gpumeter ledger`: copies the ledger file, and shrinks or restores it while no agent uses it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Failure, print, read_config};
use crate::accounting::ledger;

#[derive(Args, Debug)]
pub(super) struct LedgerCommand {
    #[command(subcommand)]
    action: LedgerAction,
    /// Configuration file of the agent whose ledger it is.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the ledger, instead of the configured one.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "config")]
    ledger: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum LedgerAction {
    /// Write a consistent copy of the ledger into a new file, which any sqlite3 opens; the agent may run.
    Snapshot {
        /// The new file.
        file: PathBuf,
    },
    /// Give the space of deleted rows back to the disk; the agent must not run. It needs as much free space as the ledger
    /// takes.
    Compact,
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
        let done = match &self.action {
            LedgerAction::Snapshot { file } => ledger::snapshot(&path, file),
            LedgerAction::Compact => ledger::compact(&path),
            LedgerAction::Restore { to } => ledger::restore(&path, *to),
        };
        print(&done.map_err(Failure::wrong)?)
    }
}

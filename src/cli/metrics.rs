//! `gpumeter metrics`: the catalogue, for people, for documentation, for programs.

use super::{Failure, print};
use crate::catalogue::reference;
use clap::{Args, ValueEnum};

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct MetricsCommand {
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Markdown,
    Json,
}

impl MetricsCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        print(&match self.format {
            Format::Text => reference::text(),
            Format::Markdown => reference::markdown(),
            Format::Json => reference::json(),
        })
    }
}

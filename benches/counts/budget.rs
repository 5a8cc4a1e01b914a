//! Reads `benches/budgets.toml` and makes each section a benchmark's hard limits.

use gungraun::prelude::*;
use gungraun::{Callgrind, Dhat, DhatMetric, EventKind};

const BUDGETS: &str = include_str!("../budgets.toml");

/// The limits of a section for this many units of work; the run fails above them.
pub fn budget(name: &str, units: u64) -> LibraryBenchmarkConfig {
    let instructions = units * number(name, "instructions");
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, instructions)]));
    config.tool(Dhat::default().hard_limits([(DhatMetric::TotalBlocks, number(name, "allocations"))]));
    config
}

/// A number of a section, as much of TOML as the file uses.
fn number(section: &str, key: &str) -> u64 {
    let head = format!("[{section}]");
    let lines = BUDGETS.lines().skip_while(|line| *line != head).skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| name.trim() == key)
        .and_then(|(_, value)| value.trim().replace('_', "").parse().ok())
        .unwrap_or_else(|| panic!("benches/budgets.toml: [{section}] has no number {key}"))
}

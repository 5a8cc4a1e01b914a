//! Golden nodes: the pages of whole nodes, compared with committed pages.
//!
//! Each node of `tests/golden/nodes` is a scenario, some with a script of driver faults; beside it are its page at level full
//! and its page with dcgm-exporter's names after half a minute of held time, so that every value is the same on every machine.
//! Lean and standard are not committed: they must be that page's families of their level, no more and no less.
//! `UPDATE=1 cargo test --lib cli::` writes the pages. What a running agent adds to them, `tests/agent/own_families.rs` names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::held::HeldNode;
use crate::meter::source_level;
use crate::model::catalogue::{self, AccountRows, Level, Rows};

/// Long enough for a window of the account to close.
const TICKS: u64 = 27;

fn nodes() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/nodes");
    let mut nodes: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    nodes.sort();
    assert!(!nodes.is_empty());
    nodes
}

#[test]
fn every_node_shows_its_committed_page() {
    let mut differences = Vec::new();
    for scenario in nodes() {
        let pages = HeldNode::new(&scenario, Level::Full, TICKS).pages();
        for (page, extension) in [(masked(&pages.native), "prom"), (pages.dcgm, "dcgm.prom")] {
            let golden = scenario.with_extension(extension);
            if std::env::var_os("UPDATE").is_some() {
                std::fs::write(&golden, &page).unwrap();
            }
            let committed = std::fs::read_to_string(&golden).unwrap_or_default();
            differences.extend(difference(&golden, &committed, &page));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn lean_and_standard_are_the_full_page_without_the_families_above_them() {
    for scenario in nodes() {
        let full = series(&std::fs::read_to_string(scenario.with_extension("prom")).unwrap());
        for level in [Level::Lean, Level::Standard] {
            let shown = series(&masked(&HeldNode::new(&scenario, level, TICKS).pages().native));
            let expected: BTreeSet<String> =
                full.iter().filter(|name| level_of(name).is_none_or(|of| of <= level)).cloned().collect();
            let name = scenario.display();
            let missing: Vec<_> = expected.difference(&shown).collect();
            let surplus: Vec<_> = shown.difference(&expected).collect();
            assert!(missing.is_empty(), "{name} at {}: not there: {missing:#?}", level.name());
            assert!(surplus.is_empty(), "{name} at {}: too much: {surplus:#?}", level.name());
        }
    }
}

/// The names of the series with labels, without absence reasons of families above the level.
fn series(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// The level of a series: that of its family, or of the family in its `metric` label.
fn level_of(series: &str) -> Option<Level> {
    // Below level full workloads have counters only where the configuration asks for them, which no node here does.
    let of = |name: &str| {
        catalogue::family(name).map(|family| match family.rows {
            Rows::Account(AccountRows::Workload(_)) => Level::Full,
            _ => family.level,
        })
    };
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let name = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .filter(|base| of(base).is_some())
        .unwrap_or(name);
    let value = |label| Some(labels.split_once(label)?.1.split('"').next().unwrap_or_default());
    let spoken = value("family=\"").and_then(of);
    let metered = value("metric=\"").and_then(catalogue::family).map(source_level);
    of(name).max(spoken).max(metered)
}

/// Families whose values depend on the machine, which times driver calls, or on SQLite's version.
const MASKED: [&str; 2] = ["gpumeter_driver_call_duration_seconds", "gpumeter_ledger_bytes"];

fn masked(page: &str) -> String {
    page.lines()
        .map(|line| match line.rsplit_once(' ') {
            Some((series, _)) if MASKED.iter().any(|name| line.starts_with(name)) => format!("{series} *\n"),
            _ => format!("{line}\n"),
        })
        .collect()
}

/// The first few lines that differ.
fn difference(path: &Path, committed: &str, page: &str) -> Option<String> {
    const MOST: usize = 20;
    if committed == page {
        return None;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (old, new) = (lines(committed), lines(page));
    let removed = old.difference(&new).take(MOST).map(|line| format!("- {line}"));
    let added = new.difference(&old).take(MOST).map(|line| format!("+ {line}"));
    let lines: Vec<_> = removed.chain(added).collect();
    Some(format!(
        "{}: run `UPDATE=1 cargo test --lib cli::` if this is right:\n{}",
        path.display(),
        lines.join("\n")
    ))
}

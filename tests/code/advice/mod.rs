//! Advice over made-up pasts: per kind what must be found, what looks almost like it, and what must stay unsaid.

mod acme;
mod fleet;
mod node;
mod quantiles;
mod scenario;
mod serving;
mod smaller;
mod whole_fleet;

use std::collections::{BTreeMap, BTreeSet};

use gpumeter::accounting::advice::{Advice, AdviceRequest};

/// What was found: tenant, and the code that begins the id.
fn found(advice: &Advice) -> BTreeSet<(String, String)> {
    let code = |id: &str| id.split('-').next().unwrap().to_owned();
    advice.findings.iter().map(|finding| (finding.tenant.clone(), code(&finding.id))).collect()
}

fn explaining(id: &str) -> AdviceRequest {
    AdviceRequest { explain: Some(id.to_owned()), ..AdviceRequest::default() }
}

/// Asserts that docs/advice.md has the row of a generated fleet: how many findings of each kind there are per 1,000 of its runs.
fn shown_in_document(name: &str, runs: &str, findings: &BTreeMap<&str, usize>, count: usize) {
    const DOCUMENT: &str = include_str!("../../../docs/advice.md");
    let of_kind = |kind: &str| findings.get(kind).map_or(0.0, |found| *found as f64 * 1_000.0 / count as f64);
    let cells = ["A1", "A2", "A3", "A8", "A10", "A11", "A14"].map(|kind| format!("{:.1}", of_kind(kind)));
    let row = format!("| {name} | {runs} | {} |", cells.join(" | ").replace("0.0", "0"));
    assert!(DOCUMENT.contains(&row), "docs/advice.md has no row\n{row}");
}

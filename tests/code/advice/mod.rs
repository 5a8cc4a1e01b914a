//! Advice over made-up pasts: per kind what must be found, what looks almost like it, and what must stay unsaid.

mod fleet;
mod node;
mod scenario;
mod whole_fleet;

use std::collections::BTreeSet;

use gpumeter::accounting::advice::{Advice, AdviceRequest};

/// What was found: tenant, and the code that begins the id.
fn found(advice: &Advice) -> BTreeSet<(String, String)> {
    let code = |id: &str| id.split('-').next().unwrap().to_owned();
    advice.findings.iter().map(|finding| (finding.tenant.clone(), code(&finding.id))).collect()
}

fn explaining(id: &str) -> AdviceRequest {
    AdviceRequest { explain: Some(id.to_owned()), ..AdviceRequest::default() }
}

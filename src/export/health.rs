//! The body of `/api/v1/health`: every GPU's verdict with its reasons, as one JSON object.
//!
//! `{"at": RFC 3339, "simulated": bool, "remembered": bool, "state": the worst, "gpus": [{"gpu", "uuid", "model",
//! "state", "action", "reasons": [{"rule", "state", "action", "what", "evidence", "since", "clears"}]}]}`. Reasons
//! stand worst first; without a GPU the state is `unknown`. `remembered`: there is a ledger, by which a verdict
//! that only a reset ends outlives the agent.

use serde_json::{Value, json};

use super::json::{moment, simulated};
use crate::model::snapshot::{GpuEntry, Snapshot};
use crate::model::{HealthState, Reason, Verdict};

/// The verdicts of a snapshot.
pub fn health(snapshot: &Snapshot) -> String {
    let gpus = snapshot.roster.gpus.iter().zip(&snapshot.gpus);
    let worst = snapshot.gpus.iter().map(|state| state.health.state).max().unwrap_or(HealthState::Unknown);
    let gpus: Vec<Value> = gpus.map(|(entry, state)| gpu(entry, &state.health)).collect();
    let body = json!({
        "at": moment(snapshot.at.utc),
        "simulated": simulated(snapshot),
        "remembered": snapshot.ledger_started.is_some(),
        "state": worst.name(),
        "gpus": gpus,
    });
    format!("{body}\n")
}

fn gpu(entry: &GpuEntry, verdict: &Verdict) -> Value {
    json!({
        "gpu": entry.id.index,
        "uuid": &*entry.id.uuid,
        "model": &*entry.identity.model,
        "state": verdict.state.name(),
        "action": verdict.remedy.name(),
        "reasons": verdict.reasons.iter().map(reason).collect::<Vec<_>>(),
    })
}

fn reason(reason: &Reason) -> Value {
    json!({
        "rule": reason.rule,
        "state": reason.state.name(),
        "action": reason.remedy.name(),
        "what": reason.what,
        "evidence": &*reason.evidence,
        "since": moment(reason.since),
        "clears": reason.clears,
    })
}

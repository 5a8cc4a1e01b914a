//! The body of `/api/v1/health`: every GPU's verdict with its reasons, as one JSON object.
//!
//! `{"at": RFC 3339, "simulated": bool, "node": {"name", "cluster"}, "remembered": bool, "state": the worst,
//! "gpus": [{"gpu", "uuid", "model", "state", "action", "reasons": [{"rule", "state", "action", "what", "evidence",
//! "since", "clears"}]}]}`. Reasons are sorted worst first; without a GPU the state is `unknown`. `remembered` says that a
//! ledger keeps verdicts that only a reset ends over restarts of the agent. While the driver is released on request, the
//! reason of a GPU that is not read is `quiesced`.

use serde_json::{Value, json};

use super::json::{moment, node, simulated};
use crate::model::snapshot::{GpuEntry, Snapshot};
use crate::model::{HealthState, Reason, Utc, Verdict};

/// The driver's release on request.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// When the agent uses the driver again without being asked.
    pub until: Utc,
    /// Unix user id of the one who asked for it.
    pub user: u32,
}

/// The verdicts of a snapshot; `release` is given while the driver is released.
pub fn health(snapshot: &Snapshot, release: Option<Release>) -> String {
    let gpus = snapshot.roster.gpus.iter().zip(&snapshot.gpus);
    let worst = snapshot.gpus.iter().map(|state| state.health.state).max().unwrap_or(HealthState::Unknown);
    let gpus: Vec<Value> = gpus.map(|(entry, state)| gpu_json(entry, &state.health, release)).collect();
    let body = json!({
        "at": moment(snapshot.at.utc),
        "simulated": simulated(snapshot),
        "node": node(snapshot),
        "remembered": snapshot.ledger_started.is_some(),
        "state": worst.name(),
        "gpus": gpus,
    });
    format!("{body}\n")
}

fn gpu_json(entry: &GpuEntry, verdict: &Verdict, release: Option<Release>) -> Value {
    let reasons = verdict.reasons.iter().map(|reason| match release {
        Some(release) if is_unread(reason) => released_json(reason, release),
        _ => reason_json(reason),
    });
    json!({
        "gpu": entry.id.index,
        "uuid": &*entry.id.uuid,
        "model": &*entry.identity.model,
        "state": verdict.state.name(),
        "action": verdict.remedy.name(),
        "reasons": reasons.collect::<Vec<_>>(),
    })
}

/// Whether the reason is only that the GPU is not read.
fn is_unread(reason: &Reason) -> bool {
    matches!(reason.rule, "silent" | "unread")
}

/// The reason for a GPU that is not read because the driver is released.
fn released_json(reason: &Reason, release: Release) -> Value {
    let Release { until, user } = release;
    let user = if user == 0 { "root".to_owned() } else { format!("user {user}") };
    let until = jiff::Timestamp::from_nanosecond(i128::from(until.0))
        .map_or_else(|_| String::new(), |until| format!(" until {until:.0}"));
    let mut value = reason_json(reason);
    value["rule"] = "quiesced".into();
    value["what"] =
        format!("the driver is released on request{until}, asked for by {user} (gpumeter_quiesced is 1)")
            .into();
    value["clears"] = "gpumeter resume, or by itself at that time".into();
    value
}

fn reason_json(reason: &Reason) -> Value {
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

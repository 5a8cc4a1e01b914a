//! The body of `/api/v1/health`: every GPU's verdict with its reasons, as one JSON object.
//!
//! `{"at": RFC 3339, "simulated": bool, "node": {"name", "cluster"}, "remembered": bool, "state": the worst,
//! "gpus": [{"gpu", "uuid", "model", "state", "action", "reasons": [{"rule", "state", "action", "what", "evidence",
//! "since", "clears"}]}]}`. Reasons are sorted worst first; without a GPU the state is `unknown`. `remembered` says that a
//! ledger keeps verdicts that only a reset ends over restarts of the agent. While the driver is released on request, the
//! reason of a GPU that is not read is `quiesced`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::json::{node, simulated};
use super::summarize::View;
use crate::model::snapshot::{GpuEntry, GpuState, Snapshot};
use crate::model::{HealthState, Reason, Release, Utc, Verdict, VisibleAccount};

/// The verdict of a GPU, as in the API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportedVerdict {
    pub state: String,
    pub action: String,
    /// All reasons, the worst first.
    pub reasons: Vec<ReportedReason>,
}

/// A problem of a GPU, as in the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedReason {
    #[serde(default)]
    pub rule: String,
    /// The resulting state of the GPU.
    pub state: String,
    pub action: String,
    pub what: String,
    /// What was observed, with numbers.
    pub evidence: String,
    /// Since when, in RFC 3339.
    pub since: Option<String>,
    pub clears: String,
}

/// The verdicts of a snapshot as a reader may see them: evidence and times only of GPUs that are his alone, and since they are.
/// `release` is given while the driver is released.
pub fn health(snapshot: &Snapshot, release: Option<Release>, visible: &VisibleAccount) -> String {
    let view = View::new(snapshot, visible);
    let gpus = snapshot.roster.gpus.iter().zip(&snapshot.gpus).enumerate();
    let worst = snapshot.gpus.iter().map(|state| state.health.state).max().unwrap_or(HealthState::Unknown);
    let verdict = |(position, (entry, state)): (usize, (&GpuEntry, &GpuState))| {
        gpu_json(entry, report(&state.health, release, view.shown_since(position, None)))
    };
    let gpus: Vec<Value> = gpus.map(verdict).collect();
    let body = json!({
        "at": snapshot.at.utc.to_string(),
        "simulated": simulated(snapshot),
        "node": node(snapshot),
        "remembered": snapshot.ledger_started.is_some(),
        "state": worst.name(),
        "gpus": gpus,
    });
    format!("{body}\n")
}

fn gpu_json(entry: &GpuEntry, verdict: ReportedVerdict) -> Value {
    let ReportedVerdict { state, action, reasons } = verdict;
    json!({
        "gpu": entry.id.index,
        "uuid": &*entry.id.uuid,
        "model": &*entry.identity.model,
        "state": state,
        "action": action,
        "reasons": reasons,
    })
}

/// A verdict as in the API, with evidence and times of what began at `since` or later. `release` is given while the driver is
/// released.
pub(super) fn report(verdict: &Verdict, release: Option<Release>, since: Option<Utc>) -> ReportedVerdict {
    let reasons = verdict.reasons.iter().map(|reason| {
        let reported = match release {
            Some(release) if is_unread(reason) => report_release(reason, release),
            _ => report_reason(reason),
        };
        match since.is_some_and(|since| reason.since >= since) {
            true => reported,
            false => ReportedReason { evidence: String::new(), since: None, ..reported },
        }
    });
    ReportedVerdict {
        state: verdict.state.name().to_owned(),
        action: verdict.remedy.name().to_owned(),
        reasons: reasons.collect(),
    }
}

/// Whether the reason is only that the GPU is not read.
fn is_unread(reason: &Reason) -> bool {
    matches!(reason.rule, "silent" | "unread")
}

/// The reason for a GPU that is not read because the driver is released.
fn report_release(reason: &Reason, release: Release) -> ReportedReason {
    ReportedReason {
        rule: "quiesced".to_owned(),
        what: format!("the driver is released on request{} (gpumeter_quiesced is 1)", release.words()),
        clears: "gpumeter resume, or by itself at that time".to_owned(),
        ..report_reason(reason)
    }
}

fn report_reason(reason: &Reason) -> ReportedReason {
    ReportedReason {
        rule: reason.rule.to_owned(),
        state: reason.state.name().to_owned(),
        action: reason.remedy.name().to_owned(),
        what: reason.what.to_owned(),
        evidence: (*reason.evidence).to_owned(),
        since: Some(reason.since.to_string()),
        clears: reason.clears.to_owned(),
    }
}

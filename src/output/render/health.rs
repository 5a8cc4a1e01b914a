//! The body of `/api/v1/health`: every GPU's verdict with its reasons, as one JSON object.
//!
//! `{"at": RFC 3339, "simulated": bool, "node": {"name", "cluster"}, "remembered": bool, "state": the worst,
//! "gpus": [{"gpu", "uuid", "model", "state", "action", "reasons": [{"rule", "state", "action", "what", "evidence",
//! "since", "clears"}]}]}`. Reasons are sorted worst first; without a GPU the state is `unknown`. `remembered` says that a
//! ledger keeps verdicts that only a reset ends over restarts of the agent. While the driver is released on request, the
//! reason of a GPU that is not read is `quiesced`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::{node, simulated, to_json};
use super::summarize::View;
use crate::model::snapshot::Snapshot;
use crate::model::{HealthState, Reason, Release, Utc, Verdict, VisibleAccount};

/// The whole body. What a command reads of an earlier agent may lack what has a default.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HealthReport {
    #[serde(default)]
    pub at: String,
    pub simulated: bool,
    #[serde(default)]
    pub node: BTreeMap<String, String>,
    #[serde(default)]
    pub remembered: bool,
    /// The worst of all GPUs.
    #[serde(default)]
    pub state: String,
    pub gpus: Vec<ReportedGpu>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportedGpu {
    pub gpu: u32,
    pub uuid: String,
    pub model: String,
    #[serde(flatten)]
    pub verdict: ReportedVerdict,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportedVerdict {
    pub state: String,
    pub action: String,
    /// All reasons, the worst first.
    pub reasons: Vec<ReportedReason>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedReason {
    #[serde(default)]
    pub rule: String,
    pub state: String,
    pub action: String,
    pub what: String,
    pub evidence: String,
    /// Since when, in RFC 3339.
    pub since: Option<String>,
    pub clears: String,
}

/// The verdicts of a snapshot as a reader may see them: evidence and times only of GPUs that are his alone, and since they are.
/// `release` is given while the driver is released.
pub fn health(snapshot: &Snapshot, release: Option<Release>, visible: &VisibleAccount) -> Vec<u8> {
    let view = View::new(snapshot, visible);
    let gpus = snapshot.roster.gpus.iter().zip(&snapshot.gpus).enumerate();
    let worst = snapshot.gpus.iter().map(|state| state.health.state).max().unwrap_or(HealthState::Unknown);
    let node = node(snapshot).into_iter().map(|(key, name)| (key.to_owned(), name.to_owned()));
    let gpus = gpus.map(|(position, (entry, state))| ReportedGpu {
        gpu: entry.id.index,
        uuid: entry.id.uuid.to_string(),
        model: entry.identity.model.to_string(),
        verdict: report(&state.health, release, view.shown_since(position, None)),
    });
    to_json(&HealthReport {
        at: snapshot.at.utc.to_string(),
        simulated: simulated(snapshot),
        node: node.collect(),
        remembered: snapshot.ledger_started.is_some(),
        state: worst.name().to_owned(),
        gpus: gpus.collect(),
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

fn is_unread(reason: &Reason) -> bool {
    matches!(reason.rule, "silent" | "unread")
}

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

//! `gpumeter health`: prints the verdicts of the running agent, which it asks over HTTP or over the local socket.
//!
//! Exit status: 0 ok, 1 a GPU has the state `--fail-on` or worse, 2 wrong use, no agent, a GPU of unknown health, or a
//! simulated node.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::agent::RunningAgent;
use super::socket::send_request;
use super::{Failure, print, print_data, read_config};
use crate::agent::control::ControlRequest;
use crate::model::shown;
use crate::output::render::{HealthReport, ReportedGpu, ReportedReason, ReportedVerdict};

#[derive(Args, Debug)]
pub(super) struct HealthCommand {
    #[command(flatten)]
    agent: RunningAgent,
    /// Ask over the agent's local socket (for root and the agent's user), where no other program can answer, instead of
    /// --url; without PATH over the default one.
    #[arg(long, value_name = "PATH", num_args = 0..=1, conflicts_with = "url")]
    #[allow(clippy::option_option, reason = "an option whose value may be left out")]
    socket: Option<Option<PathBuf>>,
    /// Accept the made-up verdicts of a demo or replay; without this they are status 2.
    #[arg(long)]
    simulated: bool,
    /// Print the agent's JSON: every reason with its evidence.
    #[arg(long)]
    json: bool,
    /// Least severe state for which the exit status is 1.
    #[arg(long, value_enum, default_value_t = FailOn::Degraded, value_name = "STATE")]
    fail_on: FailOn,
}

const PATH: &str = "/api/v1/health";

const WITHOUT_LEDGER: &str =
    "the agent keeps no ledger, so faults from before its start are missing here; set ledger.enabled: true\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Degraded,
    Failed,
}

impl HealthCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (from, body) = match &self.socket {
            Some(path) => self.ask_socket(path.as_deref())?,
            None => (self.agent.url.clone() + PATH, self.agent.get(PATH)?),
        };
        let report: HealthReport = serde_json::from_str(&body).map_err(|error| {
            Failure::wrong(format!("{from}: the response is not a health report: {error}"))
        })?;
        if self.json { print_data(&body) } else { print(&page(&report)) }?;
        if report.simulated && !self.simulated {
            return Err(Failure::wrong(
                "the node is simulated, so its health is unknown; --simulated accepts the verdicts of a demo or replay",
            ));
        }
        judge(&report, self.fail_on)
    }

    fn ask_socket(&self, path: Option<&Path>) -> Result<(String, String), Failure> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => read_config(None)?.web.control.unwrap_or_default(),
        };
        let name = path.display().to_string();
        let reply = send_request(&path, &ControlRequest::Health)
            .map_err(|failure| Failure::wrong(failure.message))?;
        let report = reply
            .health
            .ok_or_else(|| Failure::wrong(format!("{name}: the agent there is an earlier version")))?;
        Ok((name, report))
    }
}

fn judge(report: &HealthReport, fail_on: FailOn) -> Result<(), Failure> {
    let bad: &[&str] = if fail_on == FailOn::Failed { &["failed"] } else { &["degraded", "failed"] };
    let count =
        |states: &[&str]| report.gpus.iter().filter(|gpu| states.contains(&&*gpu.verdict.state)).count();
    match (count(bad), report.gpus.len() - count(&["ok", "degraded", "failed"])) {
        (0, 0) if report.gpus.is_empty() => {
            Err(Failure::wrong("the agent knows no GPU; try gpumeter doctor"))
        }
        (0, 0) => Ok(()),
        (0, 1) => Err(Failure::wrong("health of 1 GPU is unknown")),
        (0, unknown) => Err(Failure::wrong(format!("health of {unknown} GPUs is unknown"))),
        (1, _) => Err(Failure::found("1 GPU is not ok")),
        (bad, _) => Err(Failure::found(format!("{bad} GPUs are not ok"))),
    }
}

fn page(report: &HealthReport) -> String {
    let head = if report.simulated { "a simulated node: every verdict is made up\n" } else { "" };
    let page = report.gpus.iter().fold(head.to_owned(), |page, gpu| page + &lines(gpu));
    if report.remembered { page } else { page + WITHOUT_LEDGER }
}

fn lines(gpu: &ReportedGpu) -> String {
    let ReportedGpu { gpu, uuid, model, verdict: ReportedVerdict { state, action, reasons } } = gpu;
    let action = if action == "none" { String::new() } else { format!(", action {action}") };
    let head = format!("GPU {gpu} {} {}: {state}{action}\n", shown(uuid), shown(model));
    reasons.iter().fold(head, |lines, reason| lines + &line(reason))
}

fn line(reason: &ReportedReason) -> String {
    let ReportedReason { state, action, what, evidence, since, clears, .. } = reason;
    let evidence = if evidence.is_empty() { String::new() } else { format!(": {evidence}") };
    let since = since.as_deref().map(|since| format!(", since {}", in_seconds(since))).unwrap_or_default();
    format!("  {state}, {action}: {what}{evidence}{since}; ends with {clears}\n")
}

fn in_seconds(time: &str) -> String {
    time.parse::<jiff::Timestamp>().map_or_else(|_| time.to_owned(), |at| format!("{at:.0}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn times_on_the_page_are_in_whole_seconds() {
        assert_eq!(in_seconds("2026-11-22T01:34:38.963064527Z"), "2026-11-22T01:34:38Z");
        assert_eq!(in_seconds("yesterday"), "yesterday");
    }

    fn report(states: &[&str]) -> HealthReport {
        let gpu = |state: &&str| serde_json::json!({"gpu": 0, "uuid": "GPU-1", "model": "H100", "state": state, "action": "none", "reasons": []});
        let gpus: Vec<_> = states.iter().map(gpu).collect();
        serde_json::from_value(serde_json::json!({"simulated": false, "gpus": gpus})).unwrap()
    }

    #[test]
    fn the_exit_status_distinguishes_ok_bad_and_unknown() {
        use FailOn::{Degraded, Failed};
        for (states, fail_on, status) in [
            (&["ok", "ok"][..], Degraded, 0),
            (&["ok", "degraded"], Degraded, 1),
            (&["ok", "degraded"], Failed, 0),
            (&["failed", "unknown"], Failed, 1),
            (&["unknown", "degraded"], Failed, 2),
            (&["ok", "unknown"], Degraded, 2),
            (&["ok", "of a later version"], Degraded, 2),
            (&[], Degraded, 2),
        ] {
            let judged = judge(&report(states), fail_on).map_or_else(|failure| failure.status, |()| 0);
            assert_eq!(judged, status, "{states:?} {fail_on:?}");
        }
    }
}

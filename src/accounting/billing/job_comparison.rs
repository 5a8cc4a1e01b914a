//! Compares the GPU time of jobs as Slurm accounts for it with that of the ledger.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::explanation::{Explanation, GpuEventKind};
use super::job_summary::{ExplainedJob, explained_jobs};
use super::json;
use super::sacct::SacctJob;
use crate::model::{Fact, MINUTE, Nanoseconds, QUARTER_HOUR, TimeSum, Utc};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobComparison {
    /// The jobs of this node in this period, in the order of their ids.
    pub jobs: Vec<ComparedJob>,
    /// How many jobs of the file were on other nodes only.
    pub elsewhere: usize,
    /// How many were before or after the period.
    pub outside: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ComparedJob {
    /// The id as Slurm prints it.
    pub job: String,
    pub user: Option<String>,
    pub account: Option<String>,
    pub gpus: u64,
    /// GPU time by Slurm; none where the file does not have the job.
    #[serde(with = "json::optional_integer")]
    pub slurm_ns: Option<TimeSum>,
    /// Held time of the account; none where that does not have the job.
    #[serde(with = "json::optional_integer")]
    pub held_ns: Option<TimeSum>,
    pub reasons: Vec<String>,
    /// Whether they differ by more than the tolerance, or in the account that pays.
    pub differs: bool,
}

const NOT_IN_FILE: &str = "the file does not have it";

/// Compares the jobs; `tolerance` is accepted per GPU of a job.
pub fn compare_jobs(slurm: &[SacctJob], explanation: &Explanation, tolerance: Nanoseconds) -> JobComparison {
    let own = explained_jobs(explanation);
    let mut comparison = JobComparison { jobs: Vec::new(), elsewhere: 0, outside: 0 };
    let mut runs = BTreeMap::<(Option<&str>, &str), Vec<&SacctJob>>::new();
    for job in slurm {
        runs.entry((job.cluster.as_deref(), &job.id)).or_default().push(job);
    }
    let mut seen = BTreeSet::new();
    for runs in runs.into_values() {
        let known = own.iter().position(|job| is_same(job, runs[0]));
        seen.extend(known);
        let known = known.map(|place| &own[place]);
        let here = runs.iter().filter(|run| run.is_on(&explanation.bill.node) != Some(false));
        let here: Vec<SacctRun<'_>> = here.map(|run| SacctRun::new(run, explanation)).collect();
        if known.is_none() && here.is_empty() {
            comparison.elsewhere += 1;
        } else if known.is_none() && here.iter().all(|run| run.time == Some(0)) {
            comparison.outside += 1;
        } else {
            comparison.jobs.push(compare(runs[0], &here, known, explanation));
        }
    }
    let missing = own.iter().enumerate().filter(|(place, _)| !seen.contains(place));
    comparison.jobs.extend(missing.map(|(_, job)| not_in_file(job)));
    comparison.jobs.retain(|job| job.slurm_ns.max(job.held_ns) > Some(TimeSum(0)));
    for job in &mut comparison.jobs {
        job.decide(tolerance);
    }
    comparison.jobs.sort_by(|left, right| job_order(&left.job).cmp(&job_order(&right.job)));
    comparison
}

fn job_order(id: &str) -> (Vec<u64>, &str) {
    (id.split(['_', '+']).map(|part| part.parse().unwrap_or(u64::MAX)).collect(), id)
}

fn is_same(job: &ExplainedJob<'_>, slurm: &SacctJob) -> bool {
    let is_cluster = slurm.cluster.is_none() || job.cluster == slurm.cluster.as_deref();
    let raw_id = slurm.raw_id.as_deref().unwrap_or(&slurm.id);
    is_cluster && (job.raw_id == raw_id || job.summary.job == slurm.id)
}

struct SacctRun<'a> {
    job: &'a SacctJob,
    /// Its time in the period without suspensions, in seconds; none where its times are not known.
    time: Option<u64>,
    is_cut: bool,
    gpus: u64,
}

impl<'a> SacctRun<'a> {
    fn new(job: &'a SacctJob, explanation: &Explanation) -> Self {
        let (from, to) = (explanation.bill.from, explanation.bill.to);
        let gpus = job.gpus / job.nodes;
        let Some(start) = job.start else { return Self { job, time: None, is_cut: false, gpus } };
        let end = job.end.unwrap_or(Utc(u64::MAX));
        let is_cut = start < from || end > to;
        let inside = end.min(to).since(start.max(from)).0 / Nanoseconds::SECOND.0;
        // Slurm's own sum, which has no time in which it was suspended, where all of it is in the bill.
        Self { job, time: Some(if is_cut { inside } else { job.elapsed }), is_cut, gpus }
    }

    fn slurm_ns(&self) -> u128 {
        // Neither has more than 34 bits, see `parse_sacct`.
        let seconds = self.time.unwrap_or(self.job.elapsed);
        [seconds, self.gpus, Nanoseconds::SECOND.0].map(u128::from).iter().product()
    }
}

fn compare(
    first: &SacctJob,
    runs: &[SacctRun<'_>],
    known: Option<&ExplainedJob<'_>>,
    explanation: &Explanation,
) -> ComparedJob {
    let mut reasons = slurm_reasons(runs);
    if runs.is_empty() {
        let node = &explanation.bill.node;
        reasons.push(format!("its NodeList does not have {node}: is that another NodeName in Slurm?"));
    }
    match known {
        None if first.node_list.is_none() => reasons.push(
            "the account of this node does not have it: it was on another node (print the column NodeList), or the prolog \
             made no record"
                .to_owned(),
        ),
        None => {
            reasons.push("the account of this node does not have it: the prolog made no record".to_owned());
        }
        Some(job) => {
            reasons.extend(account_reasons(job, runs, explanation));
            reasons.extend(other_account(first, job));
        }
    }
    ComparedJob {
        job: first.id.clone(),
        user: first.user.clone(),
        account: first.account.clone(),
        gpus: runs.iter().map(|run| run.gpus).max().unwrap_or(0),
        slurm_ns: Some(TimeSum(runs.iter().map(SacctRun::slurm_ns).sum())),
        held_ns: known.map(|job| job.summary.total.held_ns),
        reasons,
        differs: known.is_some_and(|job| other_account(first, job).is_some()),
    }
}

fn not_in_file(job: &ExplainedJob<'_>) -> ComparedJob {
    let label = |fact: Fact| {
        let labels = job.summary.labels.iter().find(|(name, _)| name == fact.label());
        labels.map(|(_, value)| value.clone())
    };
    ComparedJob {
        job: job.summary.job.clone(),
        user: label(Fact::SlurmUser),
        account: label(Fact::SlurmAccount),
        gpus: job.summary.gpus.len() as u64,
        slurm_ns: None,
        held_ns: Some(job.summary.total.held_ns),
        reasons: vec![NOT_IN_FILE.to_owned()],
        differs: false,
    }
}

fn other_account(slurm: &SacctJob, job: &ExplainedJob<'_>) -> Option<String> {
    let account = slurm.account.as_ref()?;
    let billed = job.summary.labels.iter().filter(|(name, _)| name == Fact::SlurmAccount.label());
    let billed: Vec<&str> = billed.map(|(_, value)| &**value).collect();
    let is_other = billed.iter().any(|name| name != account);
    is_other.then(|| format!("its account was {} when it held, and is {account} in Slurm", billed.join(", ")))
}

fn slurm_reasons(runs: &[SacctRun<'_>]) -> Vec<String> {
    let mut reasons = Vec::new();
    let suspended: u64 = runs.iter().map(|run| run.job.suspended).sum();
    if suspended > 0 {
        reasons.push(format!("it was suspended for {suspended} s, in which it kept its GPUs"));
    }
    if let Some(run) = runs.iter().find(|run| run.job.nodes > 1) {
        let SacctJob { gpus, nodes, .. } = run.job;
        let uneven = if gpus % nodes > 0 { ", unevenly, so that its share here is not known" } else { "" };
        reasons.push(format!("it had {gpus} GPUs on {nodes} nodes{uneven}"));
    }
    if runs.iter().any(|run| run.gpus == 0) {
        reasons.push(
            "sacct names no gres/gpu for it: it had shards or MPS, or AccountingStorageTRES lacks gres/gpu"
                .into(),
        );
    }
    if runs.iter().any(|run| run.is_cut) {
        reasons.push("only its part within the period is compared".into());
    }
    if runs.iter().any(|run| run.time.is_none()) {
        reasons.push(
            "the columns Start and End are missing: it may have been outside the period in part".into(),
        );
    }
    reasons
}

fn account_reasons(job: &ExplainedJob<'_>, runs: &[SacctRun<'_>], explanation: &Explanation) -> Vec<String> {
    let mut reasons = Vec::new();
    let (start, end) = (job.summary.total.start, job.summary.total.end);
    let grid = |at: Utc| {
        if explanation.quarter_hours_until.is_some_and(|until| at < until) { QUARTER_HOUR } else { MINUTE }
    };
    let began = runs.iter().filter_map(|run| run.job.start).min();
    let began = began.map(|began| began.max(explanation.bill.from)).map(|began| began.floor(grid(began)));
    if let Some(began) = began.filter(|began| *began < start) {
        reasons.push(format!("its first minute here is {start}, and for Slurm {began}"));
    }
    if let Some(began) = began.filter(|began| *began > start) {
        reasons.push(format!(
            "its first minute here is {start}, before Slurm's {began}: an earlier run needs --duplicates"
        ));
    }
    let ended = runs.iter().map(|run| run.job.end).collect::<Option<Vec<_>>>();
    if let Some(ended) = ended.and_then(|ends| ends.into_iter().max())
        && ended.plus(grid(ended)) < end
    {
        reasons.push(format!("it held until {end} here, and ended {ended} for Slurm: did the epilog run?"));
    }
    let spans = || job.lines.iter().flat_map(|line| &line.spans);
    if spans().any(|span| span.others.0 > 0) {
        reasons.push("others held a part of its GPUs at the same time".to_owned());
    }
    let mine: BTreeSet<&str> = job.lines.iter().map(|line| &*line.line.gpu.uuid).collect();
    for gpu in explanation.gpus.iter().filter(|gpu| mine.contains(&*gpu.gpu.uuid)) {
        let gaps = gpu.events.iter().filter(|event| event.kind == GpuEventKind::Unobserved);
        let gaps = gaps.filter(|event| event.from < end && start < event.to);
        let seconds: u64 = gaps.map(|event| event.time.0 / Nanoseconds::SECOND.0).sum();
        if seconds > 0 {
            reasons.push(format!("no agent watched GPU {} for {seconds} s in that time", gpu.gpu.index));
        }
    }
    reasons
}

impl ComparedJob {
    /// Account less Slurm, in nanoseconds.
    pub fn difference_ns(&self) -> i128 {
        self.held_ns.unwrap_or_default().difference(self.slurm_ns.unwrap_or_default())
    }

    fn decide(&mut self, tolerance: Nanoseconds) {
        let accepted = u128::from(tolerance.0) * u128::from(self.gpus.max(1));
        self.differs |= self.difference_ns().unsigned_abs() > accepted;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    use super::super::sacct::parse_sacct;
    use super::*;

    const MINUTE: u64 = super::MINUTE.0;

    /// A job that held a whole GPU for ten minutes from 08:00 on, less that many seconds, and with these labels besides.
    fn line(job: &str, gpu: u32, missing: u64, labels: &[(&str, &str)]) -> Value {
        let held = 10 * MINUTE - missing * 1_000_000_000;
        let mut line = json!({"tenant": "phys", "holder": format!("slurm:alpha/{job}"), "labels": {"slurm_cluster": "alpha",
            "slurm_job_id": job, "slurm_account": "phys", "slurm_user": "ada"}, "gpu": gpu, "uuid": format!("GPU-{gpu}"),
            "held_ns": held, "within_ns": 0, "lent_ns": 0, "idle_ns": held, "unmeasured_ns": 0, "unavailable_ns": 0,
            "used_ns": 0, "beyond_share_ns": 0, "outside_holding_ns": 0, "unheld_ns": 0, "energy_static_uj": null,
            "energy_dynamic_uj": null, "grade": "measured", "measured_ns": 0, "method": "observed", "sources": [],
            "first_seen": null, "started": null, "holding": null, "spans": [], "tenancies": [], "charges": []});
        for (name, value) in labels {
            line["labels"][name] = (*value).into();
        }
        line
    }

    /// The hour from 08:00 on of these lines. No agent watched GPU 1 from 08:05 to 08:06.
    fn explanation(lines: Vec<Value>) -> Explanation {
        let at = |minute: u64| format!("2026-11-01T08:{minute:02}:00Z");
        let usage: Vec<Value> = lines
            .iter()
            .map(|line| {
                json!({"workload": line["holder"], "gpu": line["gpu"], "uuid": line["uuid"], "from": at(0), "to": at(10),
                    "memory_peak_bytes": 0, "busy_ns": 0, "measured_slot_ns": 0})
            })
            .collect();
        serde_json::from_value(json!({
            "bill": {"node": "gpu7", "from": at(0), "to": "2026-11-01T09:00:00Z", "closed_until": at(0), "currency": null,
                "time_zone": "UTC", "lines": [], "gpus": [], "reconciliation": {"slot_ns": 0, "held_ns": 0,
                "imbalance_ns": "0", "gpu_money": "0.000000000", "line_money": "0.000000000",
                "imbalance_money": "0.000000000"}},
            "lines": lines, "usage": usage, "clock_steps": [], "boots": [],
            "gpus": [{"gpu": 1, "uuid": "GPU-1", "model": "H100", "remarks": [], "xids": [],
                "events": [{"from": at(5), "to": at(6), "kind": "unobserved", "time_ns": MINUTE}]}]}))
        .unwrap()
    }

    fn compared(lines: Vec<Value>, sacct: &[&str]) -> JobComparison {
        let head = "JobID|Elapsed|AllocTRES|NodeList|Start|End|Account|Suspended\n";
        let text = head.to_owned() + &sacct.join("\n");
        let jobs = parse_sacct(&text, &TimeZone::UTC).unwrap();
        compare_jobs(&jobs, &explanation(lines), Nanoseconds::from_seconds(30))
    }

    fn reasons(comparison: &JobComparison) -> String {
        comparison.jobs.iter().flat_map(|job| job.reasons.clone()).collect::<Vec<_>>().join("; ")
    }

    const SAME: &str =
        "7|00:10:00|gres/gpu=1,node=1|gpu7|2026-11-01T08:00:00|2026-11-01T08:10:00|phys|00:00:00";

    #[test]
    fn jobs_that_agree_within_the_tolerance_do_not_differ() {
        for missing in [0, 30] {
            let found = compared(vec![line("7", 0, missing, &[])], &[SAME]);
            let [job] = &found.jobs[..] else { panic!("{found:?}") };
            assert!(!job.differs && job.reasons.is_empty(), "{job:?}");
            assert_eq!(job.difference_ns(), -i128::from(missing) * 1_000_000_000);
        }
        let found = compared(vec![line("7", 0, 31, &[])], &[SAME]);
        assert!(found.jobs[0].differs, "{found:?}");
    }

    #[test]
    fn a_difference_has_the_reasons_that_both_sides_know() {
        let of = |line: Value, sacct: &str| {
            let found = compared(vec![line], &[sacct]);
            (found.jobs[0].differs, reasons(&found))
        };
        let (is_other, told) = of(line("7", 1, 60, &[]), SAME);
        assert!(is_other && told == "no agent watched GPU 1 for 60 s in that time", "{told}");
        let suspended = SAME.replace("00:10:00|", "00:08:00|").replace("phys|00:00:00", "phys|00:02:00");
        let (is_other, told) = of(line("7", 0, 0, &[]), &suspended);
        assert!(is_other && told.contains("it was suspended for 120 s"), "{told}");
        let (is_other, told) = of(line("7", 0, 0, &[]), &SAME.replace("phys", "bio"));
        assert!(is_other && told == "its account was phys when it held, and is bio in Slurm", "{told}");
        let long = SAME.replace("|00:10:00|", "|01:10:00|").replace("T08:00:00", "T07:00:00");
        let (is_other, told) = of(line("7", 0, 0, &[]), &long);
        assert!(!is_other && told == "only its part within the period is compared", "{told}");
        let early = SAME.replace("T08:00:00", "T08:05:00");
        assert!(of(line("7", 0, 0, &[]), &early).1.contains("an earlier run needs --duplicates"));
        let late = SAME.replace("T08:10:00", "T08:02:00");
        assert!(of(line("7", 0, 0, &[]), &late).1.contains("did the epilog run?"));
        // Where only the quarter hour is kept, nothing is known of the minutes in it.
        for (sacct, elapsed) in [(&early, "00:05:00"), (&late, "00:02:00")] {
            let jobs = format!("JobID|Elapsed|AllocTRES|NodeList|Start|End|Account|Suspended\n{sacct}");
            let jobs =
                parse_sacct(&jobs.replace("00:10:00|gres", &format!("{elapsed}|gres")), &TimeZone::UTC);
            let mut rolled = explanation(vec![line("7", 0, 0, &[])]);
            rolled.quarter_hours_until = Some(rolled.bill.to);
            let found = compare_jobs(&jobs.unwrap(), &rolled, Nanoseconds::from_seconds(30));
            assert!(found.jobs[0].differs, "{found:?}");
            let told = reasons(&found);
            assert!(!told.contains("--duplicates") && !told.contains("epilog"), "{told}");
        }
        let two = SAME.replace("gres/gpu=1,node=1|gpu7", "gres/gpu=2,node=2|gpu[7-8]");
        assert_eq!(of(line("7", 0, 0, &[]), &two), (false, "it had 2 GPUs on 2 nodes".to_owned()));
        let none = SAME.replace("gres/gpu=1", "gres/shard=1");
        assert!(of(line("7", 0, 0, &[]), &none).1.contains("it had shards or MPS"));
        let elsewhere = SAME.replace("gpu7", "gpu9");
        assert!(of(line("7", 0, 0, &[]), &elsewhere).1.contains("its NodeList does not have gpu7"));
    }

    #[test]
    fn jobs_of_other_nodes_and_times_are_counted_and_those_of_one_side_are_listed() {
        let row = |id: &str, node: &str, start: &str| {
            format!(
                "{id}|00:10:00|gres/gpu=1|{node}|2026-11-01T{start}:00|2026-11-01T{start}:59|phys|00:00:00"
            )
        };
        let rows =
            [("1", "gpu8", "08:00"), ("2", "gpu7", "03:00"), ("3", "gpu7", "08:00"), ("4", "gpu7", "08:00")];
        let mut rows: Vec<String> = rows.iter().map(|(id, node, start)| row(id, node, start)).collect();
        rows.push(rows[3].replace("4|", "5|").replace("gres/gpu=1", "cpu=4"));
        let task = [("slurm_array_job_id", "200"), ("slurm_array_task_id", "4")];
        let lines = vec![line("3", 0, 0, &[]), line("204", 1, 0, &task)];
        let found = compared(lines, &rows.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((found.elsewhere, found.outside), (1, 1));
        let jobs: Vec<_> =
            found.jobs.iter().map(|job| (&*job.job, job.slurm_ns.is_some(), job.held_ns.is_some())).collect();
        assert_eq!(jobs, [("3", true, true), ("4", true, false), ("200_4", false, true)]);
        assert!(found.jobs[1].differs && found.jobs[2].differs, "{found:?}");
        let told = reasons(&found);
        assert!(told.contains("the prolog made no record") && told.contains(NOT_IN_FILE), "{told}");
    }

    #[test]
    fn runs_of_a_requeued_job_are_added_up() {
        let first = SAME.replace("|00:10:00|", "|00:04:00|").replace("T08:10:00", "T08:04:00");
        let second = SAME.replace("|00:10:00|", "|00:06:00|").replace("T08:00:00", "T08:04:00");
        let found = compared(vec![line("7", 0, 0, &[])], &[&first, &second]);
        assert_eq!((found.jobs.len(), found.jobs[0].differs, found.jobs[0].difference_ns()), (1, false, 0));
    }
}

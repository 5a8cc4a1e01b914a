//! What a job held, used and cost: on each GPU, in each step, of an array in each task, of a controller of pods in each pod, and in all.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::bill::BillLine;
use super::explanation::{ExplainedLine, Explanation, GpuIncident};
use super::job_id::JobId;
use super::job_usage::JobUsage;
use super::json;
use crate::model::{Fact, HolderId, MINUTE, Nanoseconds, QUARTER_HOUR, Utc, WorkloadClass};

/// The version of the JSON; fields are added without a new one.
pub(super) const SCHEMA: u32 = 1;

/// The summary of a job on one node, or on several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    #[serde(default = "first_schema")]
    pub schema: u32,
    /// Its id, as it was asked for.
    pub job: String,
    /// What it is for, by `advice.classes` or by default.
    #[serde(default)]
    pub class: WorkloadClass,
    /// Labels of the job with their values.
    pub labels: Vec<(String, String)>,
    pub nodes: Vec<String>,
    /// Up to where the account of each node goes; later usage is not in the sums.
    #[serde(default)]
    pub settled: Vec<SettledNode>,
    pub simulated: bool,
    /// Whether the prices are gpumeter's example prices.
    #[serde(default)]
    pub example_prices: bool,
    /// End of the account, of several nodes the earliest.
    #[serde(with = "json::time")]
    pub accounted_until: Utc,
    /// How exact begins and ends are: those of minutes, or over exports of quarter hours.
    #[serde(default = "minute", with = "json::integer")]
    pub resolution_ns: Nanoseconds,
    /// Time zone of the bills; UTC where they have several.
    pub time_zone: String,
    pub currency: Option<String>,
    /// What its holder may change.
    #[serde(default)]
    pub notes: Vec<JobNote>,
    pub total: JobUsage,
    pub gpus: Vec<JobGpu>,
    /// Of a single job of Slurm, in the order in which they began.
    pub steps: Vec<JobStep>,
    /// The tasks of an array, or the pods of a controller, in the order in which they began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Self>,
    /// The lines of the bill; a summary may leave them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<BillLine>,
}

/// The first one had no number.
const fn first_schema() -> u32 {
    SCHEMA
}

const fn minute() -> Nanoseconds {
    MINUTE
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledNode {
    pub node: String,
    #[serde(with = "json::time")]
    pub until: Utc,
}

/// A fact about a job in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobNote {
    /// `unused_gpus`, `never_used`, `idle_end`, `memory`, `fault` or `heat`.
    pub kind: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobGpu {
    pub node: String,
    pub gpu: u32,
    /// UUID of the GPU.
    pub uuid: String,
    /// Product name.
    #[serde(default)]
    pub model: String,
    /// All memory of the GPU, or of the MIG instances of the job on it; absent where it was never reported.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::optional_integer")]
    pub memory_total_bytes: Option<u64>,
    /// Its faults, while the job had it alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<GpuIncident>,
    /// What the job held and used of it.
    #[serde(flatten)]
    pub usage: JobUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStep {
    /// A number, batch, extern or interactive.
    pub step: String,
    pub gpus: usize,
    /// What it used, and what it held within the job.
    #[serde(flatten)]
    pub usage: JobUsage,
}

#[derive(Clone, Debug)]
pub struct ExplainedJob<'a> {
    pub cluster: Option<&'a str>,
    /// The number by which Slurm knows it.
    pub raw_id: &'a str,
    pub lines: Vec<&'a ExplainedLine>,
    /// Its summary, under the id that Slurm prints, without lines.
    pub summary: JobSummary,
}

/// The jobs of an explanation, in the order in which they began.
pub fn explained_jobs(explanation: &Explanation) -> Vec<ExplainedJob<'_>> {
    let mut by_job = BTreeMap::<(Option<&str>, &str), Vec<&ExplainedLine>>::new();
    for line in &explanation.lines {
        let label = |fact: Fact| line.line.labels.get(fact.label()).map(String::as_str);
        let job = label(Fact::SlurmJob).unwrap_or_default();
        by_job.entry((label(Fact::SlurmCluster), job)).or_default().push(line);
    }
    let jobs = by_job.into_iter().map(|((cluster, raw_id), lines)| {
        let summary = JobSummary::new(printed_id(&lines, raw_id), explanation, &lines);
        ExplainedJob { cluster, raw_id, lines, summary }
    });
    let mut jobs: Vec<ExplainedJob<'_>> = jobs.collect();
    jobs.sort_by(|left, right| {
        (left.summary.total.start, &left.summary.job).cmp(&(right.summary.total.start, &right.summary.job))
    });
    jobs
}

/// What the workload of these lines was for at last.
fn last_class<'a>(lines: impl Iterator<Item = &'a ExplainedLine>) -> WorkloadClass {
    let tenancies = lines.flat_map(|line| &line.tenancies);
    tenancies.max_by_key(|tenancy| tenancy.to).map(|tenancy| tenancy.class).unwrap_or_default()
}

/// The id as Slurm prints it. Lines that were stored before the ids of an array were known have only that of the job.
fn printed_id(lines: &[&ExplainedLine], raw_id: &str) -> String {
    let label = |fact: Fact| lines.iter().find_map(|line| line.line.labels.get(fact.label()));
    if let (Some(array), Some(task)) = (label(Fact::SlurmArrayJob), label(Fact::SlurmArrayTask)) {
        return format!("{array}_{task}");
    }
    let leader = label(Fact::SlurmHetJob).and_then(|leader| leader.parse::<u32>().ok());
    let component = leader.and_then(|leader| raw_id.parse::<u32>().ok()?.checked_sub(leader));
    match leader.zip(component) {
        Some((leader, component)) => format!("{leader}+{component}"),
        None => raw_id.to_owned(),
    }
}

/// What a job is told apart by from others of its id: its cluster, and the kind of what controls its pods.
type JobGroup<'a> = (Option<&'a str>, &'a str);

/// The jobs of an id, of which there are several where several clusters, or kinds of controllers, have one of that id; without an id
/// all jobs of Slurm, in the order in which they began.
pub fn jobs(explanation: &Explanation, id: Option<&JobId>) -> Vec<JobSummary> {
    let Some(id) = id else {
        return explained_jobs(explanation).into_iter().map(|job| job.summary).collect();
    };
    let mut groups = BTreeMap::<JobGroup<'_>, Vec<&ExplainedLine>>::new();
    for line in &explanation.lines {
        let cluster = match id.is_of_slurm() {
            true => line.line.labels.get(Fact::SlurmCluster.label()),
            false => line.line.node.as_ref().and_then(|node| node.cluster.as_ref()),
        };
        let kind = id.kind_of(&line.line).unwrap_or_default();
        groups.entry((cluster.map(String::as_str), kind)).or_default().push(line);
    }
    let jobs = groups.into_iter().map(|((_, kind), lines)| {
        let mut job = JobSummary::new(id.to_string(), explanation, &lines);
        if let Some(name) = id.with_kind(kind) {
            job.job = name;
        }
        job.lines = lines.into_iter().map(|line| line.line.clone()).collect();
        job
    });
    jobs.collect()
}

/// The workloads of a job, as the tasks of an array and the pods of a controller; none of one that is a single workload.
fn members(explanation: &Explanation, lines: &[&ExplainedLine]) -> Vec<JobSummary> {
    let mut by_workload = BTreeMap::<HolderId, Vec<&ExplainedLine>>::new();
    for line in lines {
        by_workload.entry(line.line.holder.whole()).or_default().push(line);
    }
    if by_workload.len() < 2 {
        return Vec::new();
    }
    let members = by_workload.into_iter().map(|(workload, lines)| {
        let labels = &lines[0].line.labels;
        let label = |fact: Fact| labels.get(fact.label());
        let name = match (label(Fact::Namespace), label(Fact::Pod)) {
            (Some(namespace), Some(pod)) => format!("{namespace}/{pod}"),
            _ => {
                let of_job = workload.facts().get(Fact::SlurmJob).map(ToString::to_string);
                printed_id(&lines, &of_job.unwrap_or_default())
            }
        };
        JobSummary::new(name, explanation, &lines)
    });
    let mut members: Vec<JobSummary> = members.collect();
    members.sort_by(|one, other| (one.total.start, &one.job).cmp(&(other.total.start, &other.job)));
    members
}

/// The parts of the faults of a GPU in times in which a job had it alone.
fn own_faults(incidents: &[GpuIncident], alone: &[[Utc; 2]]) -> Vec<GpuIncident> {
    let parts = |incident: &GpuIncident| {
        let incident = incident.clone();
        alone.iter().filter_map(move |[from, to]| incident.clone().between(*from, *to))
    };
    let mut found: Vec<GpuIncident> = incidents.iter().flat_map(parts).collect();
    found.sort();
    found.dedup();
    found
}

/// The memory of a GPU, or of the MIG instances of it that lines are of; none where they are of different sizes.
fn memory_of(lines: &[&BillLine], whole: Option<u64>) -> Option<u64> {
    let sizes =
        lines.iter().map(|line| line.slot.profile.as_ref().map(|profile| (profile.size, profile.total)));
    let sizes: BTreeSet<Option<(u64, u64)>> = sizes.collect();
    match *sizes.first().filter(|_| sizes.len() == 1)? {
        None => whole,
        Some((size, total)) => {
            u64::try_from((u128::from(whole?) * u128::from(size)).checked_div(total.into())?).ok()
        }
    }
}

impl JobGpu {
    /// What the workloads had of a GPU, on a node, with an index and a UUID, by their lines.
    fn new(
        explanation: &Explanation,
        (node, gpu, uuid): (String, u32, String),
        lines: &[&BillLine],
        jobs: &BTreeSet<HolderId>,
    ) -> Self {
        let usage = explanation.usage.iter();
        let own = || usage.clone().filter(|one| *one.gpu.uuid == *uuid && jobs.contains(&one.workload));
        let record = explanation.gpus.iter().find(|record| *record.gpu.uuid == *uuid);
        let incidents = record.map_or(&[][..], |record| &record.incidents);
        let alone: Vec<[Utc; 2]> = own().flat_map(|one| one.alone.iter().copied()).collect();
        Self {
            model: record.map(|record| record.model.clone()).unwrap_or_default(),
            memory_total_bytes: memory_of(
                lines,
                record.and_then(|record| record.memory).map(|memory| memory.0),
            ),
            faults: own_faults(incidents, &alone),
            usage: JobUsage::new(lines, own()),
            node,
            gpu,
            uuid,
        }
    }
}

impl JobSummary {
    /// The summary of a job by the lines of the job and its steps, without these lines.
    pub fn new(job: String, explanation: &Explanation, own: &[&ExplainedLine]) -> Self {
        let Explanation { bill, usage, .. } = explanation;
        let lines: Vec<BillLine> = own.iter().map(|line| line.line.clone()).collect();
        let mut gpus = BTreeMap::<(String, u32, String), Vec<&BillLine>>::new();
        let mut steps = BTreeMap::<HolderId, Vec<&BillLine>>::new();
        let mut jobs = BTreeSet::new();
        for line in &lines {
            let workload = HolderId::new(line.holder.name());
            // Only a bill over exports is of several nodes.
            let node = line.node.as_ref().map_or(&bill.node, |node| &node.name).clone();
            gpus.entry((node, line.gpu.index, line.gpu.uuid.to_string())).or_default().push(line);
            jobs.insert(workload.whole());
            steps.entry(workload).or_default().push(line);
        }
        let gpus = gpus.into_iter().map(|(of, lines)| JobGpu::new(explanation, of, &lines, &jobs));
        let gpus: Vec<JobGpu> = gpus.collect();
        let mut nodes: Vec<String> = gpus.iter().map(|gpu| gpu.node.clone()).collect();
        nodes.dedup();
        let steps = steps.iter().filter(|_| jobs.len() == 1).filter_map(|(holder, lines)| {
            let own = usage.iter().filter(|one| one.workload == *holder);
            let uuids: BTreeSet<&str> = lines.iter().map(|line| &*line.gpu.uuid).collect();
            let step = holder.facts().get(Fact::SlurmStep)?.to_string();
            Some(JobStep { step, gpus: uuids.len(), usage: JobUsage::new(lines, own) })
        });
        let until = |node: &String| explanation.settled.get(node).copied().unwrap_or(bill.to).min(bill.to);
        let mut summary = Self {
            schema: SCHEMA,
            job,
            class: last_class(own.iter().copied()),
            labels: labels(&lines),
            settled: nodes
                .iter()
                .map(|node| SettledNode { node: node.clone(), until: until(node) })
                .collect(),
            simulated: bill.simulated,
            example_prices: bill.example_prices,
            accounted_until: nodes.iter().map(until).min().unwrap_or(bill.to),
            resolution_ns: MINUTE,
            time_zone: bill.time_zone.clone(),
            currency: bill.currency.clone(),
            notes: Vec::new(),
            total: JobUsage::default(),
            steps: steps.collect(),
            members: members(explanation, own),
            gpus,
            nodes,
            lines: Vec::new(),
        };
        summary.add_up();
        if explanation.quarter_hours_until.is_some_and(|until| summary.total.start < until) {
            summary.resolution_ns = QUARTER_HOUR;
        }
        summary
    }

    /// Whether it was still there where the account of one of its nodes ends.
    pub fn goes_on(&self) -> bool {
        let until =
            |node: &str| self.settled.iter().find(|known| known.node == *node).map(|known| known.until);
        self.gpus.iter().any(|gpu| gpu.usage.end >= until(&gpu.node).unwrap_or(self.accounted_until))
    }

    /// Adds the summary of another node. The sum has no members and no notes of them.
    pub fn add(&mut self, other: Self) {
        self.labels.extend(other.labels);
        self.labels.sort();
        self.labels.dedup();
        self.nodes.extend(other.nodes);
        if self.class == WorkloadClass::Unknown {
            self.class = other.class;
        }
        self.settled.extend(other.settled);
        self.resolution_ns = self.resolution_ns.max(other.resolution_ns);
        self.accounted_until = self.accounted_until.min(other.accounted_until);
        self.simulated |= other.simulated;
        self.example_prices |= other.example_prices;
        if self.time_zone != other.time_zone {
            self.time_zone = "UTC".to_owned();
        }
        self.gpus.extend(other.gpus);
        for step in other.steps {
            match self.steps.iter_mut().find(|known| known.step == step.step) {
                Some(known) => {
                    known.gpus += step.gpus;
                    known.usage.add(&step.usage);
                }
                None => self.steps.push(step),
            }
        }
        self.lines.extend(other.lines);
        // A node with one task of an array has none, so that a list of some would look like all.
        self.members.clear();
        self.add_up();
    }

    /// Sets the total, and the order of the steps.
    fn add_up(&mut self) {
        let gpus: Vec<&JobUsage> = self.gpus.iter().map(|gpu| &gpu.usage).collect();
        self.total = JobUsage::sum(&gpus);
        self.steps
            .sort_by(|left, right| (left.usage.start, &left.step).cmp(&(right.usage.start, &right.step)));
    }
}

/// The labels of a job, each value of any of its lines once; labels of a single step or container are left out, as are the names of
/// pods where there are several.
fn labels(lines: &[BillLine]) -> Vec<(String, String)> {
    let shown = [
        Fact::SlurmCluster,
        Fact::SlurmAccount,
        Fact::SlurmUser,
        Fact::SlurmPartition,
        Fact::SlurmQos,
        Fact::SlurmJobName,
        Fact::Namespace,
        Fact::Pod,
        Fact::OwnerKind,
        Fact::OwnerName,
    ];
    let values = |fact: Fact| {
        let values: BTreeSet<&String> =
            lines.iter().filter_map(|line| line.labels.get(fact.label())).collect();
        let is_shown = fact != Fact::Pod || values.len() == 1;
        values
            .into_iter()
            .filter(move |_| is_shown)
            .map(move |value| (fact.label().to_owned(), value.clone()))
    };
    shown.into_iter().flat_map(values).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::accounting::billing::made;
    use crate::accounting::billing::{GpuRecord, WorkloadUsage};
    use crate::model::{Amounts, Bytes, GpuId, Nanoseconds, Parts, Use};

    fn line(holder: &str, labels: &[(Fact, &str)], parts: Parts, used: Use) -> ExplainedLine {
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        let amounts = Amounts { parts, used, ..Amounts::default() };
        let mut line = BillLine { amounts, ..BillLine::empty(gpu, HolderId::new(holder)) };
        line.labels.extend(labels.iter().map(|(fact, text)| (fact.label().to_owned(), (*text).to_owned())));
        ExplainedLine::new(line, Vec::new())
    }

    fn usage(workload: &str, [from, to]: [u64; 2], memory_peak_bytes: u64) -> WorkloadUsage {
        WorkloadUsage {
            workload: HolderId::new(workload),
            gpu: GpuId { index: 0, uuid: "GPU-0".into() },
            from: Utc(from),
            to: Utc(to),
            memory_peak_bytes,
            busy: Nanoseconds(1),
            measured_slot: Nanoseconds(4),
            ..WorkloadUsage::default()
        }
    }

    fn explanation(usage: Vec<WorkloadUsage>, lines: Vec<ExplainedLine>) -> Explanation {
        let bill = made::bill(&serde_json::json!({"to": "2026-11-01T02:00:00Z"}));
        Explanation {
            settled: [(bill.node.clone(), bill.to)].into(),
            bill,
            usage,
            lines,
            ..Explanation::default()
        }
    }

    const IDLE: Parts = Parts { within: 0, lent: 0, idle: 3, unmeasured: 0, unavailable: 0 };
    const USED: Use = Use { within: 2, beyond: 0, outside: 0, unheld: 0 };

    #[test]
    fn a_job_has_the_times_and_the_memory_of_all_its_steps_and_each_step_its_own() {
        let found = vec![
            usage("slurm:c/1", [60, 300], 9),
            usage("slurm:c/1.0", [60, 120], 5),
            usage("slurm:c/1.1", [120, 240], 7),
            usage("slurm:c/2", [0, 900], 99),
        ];
        let lines = vec![
            line("slurm:c/1", &[], IDLE, Use::default()),
            line("slurm:c/1.1", &[], Parts::default(), USED),
            line("slurm:c/1.0", &[], Parts::default(), USED),
        ];
        let explanation = explanation(found, lines);
        let job = JobSummary::new("1".into(), &explanation, &explanation.lines.iter().collect::<Vec<_>>());
        let total = &job.total;
        assert_eq!((total.start, total.end, total.memory_peak_bytes), (Utc(60), Utc(300), 9));
        assert_eq!((total.held_ns.0, total.used_ns.0, total.activity), (3, 4, Some(0.25)));
        let steps: Vec<_> =
            job.steps.iter().map(|step| (&*step.step, step.usage.memory_peak_bytes)).collect();
        assert_eq!(steps, [("0", 5), ("1", 7)]);
        assert_eq!((job.gpus.len(), job.accounted_until), (1, explanation.bill.to));
        assert!(job.members.is_empty());
    }

    #[test]
    fn a_fault_is_that_of_a_job_only_while_nobody_else_was_on_the_gpu() {
        let own = WorkloadUsage {
            alone: vec![[Utc(60), Utc(120)], [Utc(200), Utc(300)]],
            ..usage("slurm:c/1", [60, 300], 9)
        };
        let incident = |from: u64, to: u64, kind: &str| GpuIncident {
            from: Utc(from),
            to: Utc(to),
            kind: kind.to_owned(),
            code: None,
        };
        let incidents = vec![
            incident(0, 80, "hw_thermal"),
            incident(130, 180, "lost"),
            incident(250, 250, "xid"),
            incident(110, 210, "nvlink_down"),
        ];
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        let record = GpuRecord { gpu, incidents, memory: Some(Bytes(80)), ..GpuRecord::default() };
        let mut explanation = explanation(vec![own], vec![line("slurm:c/1", &[], IDLE, USED)]);
        explanation.gpus = vec![record];
        let job = JobSummary::new("1".into(), &explanation, &explanation.lines.iter().collect::<Vec<_>>());
        let found: Vec<_> =
            job.gpus[0].faults.iter().map(|fault| (&*fault.kind, fault.from.0, fault.to.0)).collect();
        assert_eq!(
            found,
            [("hw_thermal", 60, 80), ("nvlink_down", 110, 120), ("nvlink_down", 200, 210), ("xid", 250, 250)]
        );
        assert_eq!(job.gpus[0].memory_total_bytes, Some(80));
    }

    #[test]
    fn an_array_is_one_job_with_its_tasks_and_the_pods_of_a_cluster_are_one_job() {
        let task = |raw: &'static str, task: &'static str| {
            let labels = [
                (Fact::SlurmCluster, "c"),
                (Fact::SlurmJob, raw),
                (Fact::SlurmArrayJob, "9"),
                (Fact::SlurmArrayTask, task),
            ];
            line(&format!("slurm:c/{raw}"), &labels, IDLE, USED)
        };
        let pod = |uid: &str, name: &'static str| {
            let labels = [
                (Fact::Namespace, "ml"),
                (Fact::Pod, name),
                (Fact::OwnerKind, "RayCluster"),
                (Fact::OwnerName, "ray"),
            ];
            line(&format!("k8s:{uid}/main"), &labels, IDLE, USED)
        };
        let found = vec![
            usage("slurm:c/7", [60, 120], 1),
            usage("slurm:c/9", [120, 180], 2),
            usage("k8s:u1", [5, 6], 3),
            usage("k8s:u2", [5, 7], 3),
        ];
        let lines = vec![task("9", "2"), task("7", "1"), pod("u1", "ray-a"), pod("u2", "ray-b")];
        let explanation = explanation(found, lines);
        let jobs = |id: &str| {
            let id = JobId::parse(id).unwrap();
            let mut explanation = explanation.clone();
            explanation.lines.retain(|line| id.names(&line.line));
            jobs(&explanation, Some(&id))
        };
        let of = |id: &str| {
            let found = jobs(id);
            assert_eq!(found.len(), 1, "{id}");
            let members: Vec<String> = found[0].members.iter().map(|member| member.job.clone()).collect();
            (found[0].job.clone(), members, found[0].total.held_ns.0)
        };
        let members = |names: [&str; 2]| names.map(str::to_owned).to_vec();
        assert_eq!(of("9"), ("9".to_owned(), members(["9_1", "9_2"]), 6));
        assert_eq!(of("9_2"), ("9_2".to_owned(), Vec::new(), 3));
        assert_eq!(of("ml/ray"), ("RayCluster/ml/ray".to_owned(), members(["ml/ray-a", "ml/ray-b"]), 6));
        assert_eq!(of("ml/ray-b"), ("Pod/ml/ray-b".to_owned(), Vec::new(), 3));
        assert_eq!(jobs("ml/other").len(), 0);
    }
}

//! Slurm jobs: which job holds which GPUs, and to which job and step a process belongs.
//!
//! In: the records that the prolog of Slurm wrote, the cgroups of jobs with the environment of their steps, the GPUs' minor
//! numbers. Out: [`JobMap`] and the holdings of jobs, with a reason for each record and GPU that holds nothing. A process
//! belongs to a job by its cgroup; the environment, which the user controls, says only what no record does, and only of the
//! job that the cgroup names. It reads no file itself and knows no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::gres::Gres;
use super::job_environment;
use super::pod_devices::is_uuid;
use super::workloads::Allocation;
use crate::host::slurm::{JobCgroup, RecordFile, StepEnvironment};
use crate::model::{Fact, Facts, Fraction, Holder, HolderKind, HoldingSource, Nanoseconds};

/// A job that has had no cgroup for so long after its record has ended without an epilog.
const WITHOUT_CGROUP: Nanoseconds = Nanoseconds::from_seconds(60);

/// Largest number of GPUs that a record names.
const MOST_GPUS: usize = 256;

/// A record of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// The job with all facts.
    pub holder: Holder,
    /// Number of the job.
    pub job: String,
    /// SLUID of the job, which Slurm 26.05 names cgroups by.
    pub sluid: Option<String>,
    /// What it holds, as the prolog found it: right where Slurm numbers GPUs as their device files.
    pub gpus: Vec<RecordedGpu>,
    /// Positions of the same GPUs in `gres.conf`.
    pub positions: Vec<u32>,
    /// How much it holds of each.
    pub fraction: Fraction,
    /// The node, where the prolog was told its name.
    pub node: Option<String>,
    /// Where slurmd has its configuration.
    pub configuration: Option<String>,
}

/// A GPU as a record names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordedGpu {
    /// By UUID: of a GPU, as the prolog found it in the agent's map, or of a MIG instance, as Slurm told it.
    Uuid(String),
    /// By number of the device file, where the prolog found none.
    Minor(u32),
}

impl JobRecord {
    /// Parses a record: lines `key=value`. Keys that are not known here are of a newer prolog.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        if !text.ends_with('\n') {
            return Err("its last line has no end".to_owned());
        }
        let mut values = BTreeMap::new();
        for line in text.lines() {
            let (key, value) = line.split_once('=').ok_or_else(|| format!("{line:.80?} is not key=value"))?;
            if value.len() > 256 && !key.starts_with("gpu") || value.chars().any(char::is_control) {
                return Err(format!("the value of {key:.40?} is too long or has control characters"));
            }
            if values.insert(key, value).is_some() {
                return Err(format!("{key:.40?} stands there twice"));
            }
        }
        values.retain(|_, value| !value.is_empty());
        Self::of(&values)
    }

    fn of(values: &BTreeMap<&str, &str>) -> Result<Self, String> {
        let number = |key: &str| match values.get(key) {
            Some(value) if !is_number(value) => Err(format!("{key} is {value:.40?}, which is no number")),
            value => Ok(value.copied()),
        };
        let required = |value: Option<_>, key: &str| value.ok_or_else(|| format!("it has no {key}"));
        let job = required(number("job_id")?, "job_id")?;
        let cluster = required(values.get("cluster").copied(), "cluster")?;
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !cluster.chars().all(is_name) {
            return Err(format!("cluster is {cluster:.40?}, which is no name of a cluster"));
        }
        let uid = number("uid")?.and_then(|uid| uid.parse().ok());
        let mut facts = Facts::new([(Fact::SlurmCluster, cluster), (Fact::SlurmJob, job)]).with_uid(uid);
        for (fact, key) in [
            (Fact::SlurmArrayJob, "array_job_id"),
            (Fact::SlurmArrayTask, "array_task_id"),
            (Fact::SlurmHetJob, "het_job_id"),
        ] {
            facts.set(fact, number(key)?.unwrap_or_default().into());
        }
        for (fact, key) in [
            (Fact::SlurmAccount, "account"),
            (Fact::SlurmUser, "user"),
            (Fact::SlurmPartition, "partition"),
            (Fact::SlurmQos, "qos"),
        ] {
            facts.set(fact, values.get(key).copied().unwrap_or_default().into());
        }
        Ok(Self {
            holder: Holder::new(HolderKind::Slurm, facts),
            job: job.to_owned(),
            sluid: values.get("sluid").map(|sluid| (*sluid).to_owned()),
            gpus: gpus(values)?,
            positions: positions(values)?,
            fraction: fraction(number("mps_percentage")?)?,
            node: values.get("node").map(|node| (*node).to_owned()),
            configuration: values.get("configuration").map(|path| (*path).to_owned()),
        })
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|number| number.to_string() == text)
}

/// The share that a percentage of `gres/mps` is; without one a job holds whole GPUs.
fn fraction(percentage: Option<&str>) -> Result<Fraction, String> {
    let Some(percentage) = percentage else { return Ok(Fraction::WHOLE) };
    match percentage.parse() {
        Ok(numerator @ 1..=100) => Ok(Fraction { numerator, denominator: 100 }),
        _ => Err(format!("mps_percentage is {percentage}, and not 1 to 100")),
    }
}

fn positions(values: &BTreeMap<&str, &str>) -> Result<Vec<u32>, String> {
    let list = values.get("gpu_positions").into_iter().flat_map(|list| list.split(',')).take(MOST_GPUS);
    let position = |text: &str| text.parse().ok().filter(|_| is_number(text));
    list.map(|text| {
        position(text).ok_or_else(|| format!("gpu_positions has {text:.80?}, which is no number"))
    })
    .collect()
}

fn gpus(values: &BTreeMap<&str, &str>) -> Result<Vec<RecordedGpu>, String> {
    let list = |key: &str| values.get(key).into_iter().flat_map(|list| list.split(','));
    let mut gpus = BTreeSet::new();
    for uuid in list("gpus") {
        // A MIG instance is numbered like a GPU.
        let as_gpu = uuid.strip_prefix("MIG-").map(|rest| format!("GPU-{rest}"));
        if !is_uuid(as_gpu.as_deref().unwrap_or(uuid)) {
            return Err(format!("{uuid:.80?} is not the UUID of a GPU or of a MIG instance"));
        }
        gpus.insert(RecordedGpu::Uuid(uuid.to_owned()));
    }
    for minor in list("gpu_minors") {
        let number = minor.parse().ok().filter(|_| is_number(minor));
        gpus.insert(RecordedGpu::Minor(number.ok_or_else(|| format!("{minor:.80?} is no minor number"))?));
    }
    if gpus.len() > MOST_GPUS {
        return Err(format!("it names more than {MOST_GPUS} GPUs"));
    }
    Ok(gpus.into_iter().collect())
}

/// To which jobs processes belong, as last published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobMap {
    /// By number, and by SLUID where it is known.
    jobs: BTreeMap<String, Holder>,
}

impl JobMap {
    /// Whose process runs in that step of the job with that number or SLUID.
    pub(super) fn holder(&self, job: &str, step: &str) -> Option<Holder> {
        let holder = self.jobs.get(job)?;
        if !(is_number(step) || matches!(step, "batch" | "extern" | "interactive")) {
            return Some(holder.clone());
        }
        let mut facts = holder.facts.clone();
        facts.set(Fact::SlurmStep, step.into());
        Some(Holder::new(HolderKind::Slurm, facts))
    }
}

/// What one round has found.
#[derive(Clone, Copy, Debug)]
pub struct JobObservation<'a> {
    /// The records.
    pub records: &'a [RecordFile],
    /// The cgroups of jobs; none where none can be seen on this node.
    pub cgroups: Option<&'a [JobCgroup]>,
    /// The environment of a process of each step, by number of the job, where one could be read.
    pub environments: &'a BTreeMap<String, Vec<StepEnvironment>>,
    /// The text of `gres.conf`, as the prolog copied it.
    pub gres: Option<&'a str>,
    /// UUIDs of GPUs by minor number.
    pub minors: &'a BTreeMap<u32, String>,
    /// Time since boot.
    pub now: Nanoseconds,
}

/// What is known after a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobHoldings {
    /// To which jobs processes belong.
    pub map: JobMap,
    /// What jobs hold.
    pub allocations: Vec<Allocation>,
    /// Why records or GPUs hold nothing.
    pub problems: BTreeSet<String>,
}

/// Follows the jobs of a node from round to round.
#[derive(Debug, Default)]
pub struct Jobs {
    /// By name of the record.
    followed: BTreeMap<String, Followed>,
    /// Numbers of the jobs that have had a record and still have processes: one whose epilog has run is not held again by
    /// its environment.
    recorded: BTreeSet<String>,
}

/// A record that is followed.
#[derive(Debug)]
struct Followed {
    /// Changes when the record is written anew, as for a job that was requeued.
    version: (u64, i64, i64),
    since: Nanoseconds,
    /// Whether the job's cgroup was seen.
    was_running: bool,
    /// In how many rounds in a row the cgroup was missing.
    missing: u8,
}

impl Followed {
    /// Whether the job has ended although its record is still there: an epilog was lost.
    fn has_ended(&mut self, runs: Option<bool>, now: Nanoseconds) -> bool {
        match runs {
            Some(true) => (self.was_running, self.missing) = (true, 0),
            Some(false) if self.was_running || now >= self.since + WITHOUT_CGROUP => {
                self.missing = self.missing.saturating_add(1);
            }
            Some(false) | None => {}
        }
        self.missing >= 2
    }
}

impl Jobs {
    /// Takes what a round has found. A holding begins with its record, and ends with it or when the job's cgroup is gone in
    /// two rounds.
    pub fn observe(&mut self, seen: JobObservation<'_>) -> JobHoldings {
        let mut known = JobHoldings::default();
        self.followed.retain(|name, _| seen.records.iter().any(|file| file.name == *name));
        let records = self.records_in_force(&seen, &mut known.problems);
        let named: BTreeSet<&str> = records.iter().flat_map(|record| uuids(record, seen.minors)).collect();
        self.recorded.extend(records.iter().map(|record| record.job.clone()));
        let unrecorded = seen.environments.iter().filter(|(job, _)| !self.recorded.contains(*job));
        let unrecorded: Vec<JobRecord> = unrecorded
            .filter_map(|(job, steps)| unrecorded_job(job, steps.first()?, &seen, &named))
            .collect();
        for record in &unrecorded {
            known.problems.insert(format!(
                "{} has no record, so its account is not known, and its GPUs are those that its environment names; does the \
                 prolog run?",
                record.holder.id
            ));
        }
        let amended: Vec<JobRecord> =
            records.iter().map(|record| amend(record.clone(), &seen, &named)).collect();
        for record in amended.into_iter().chain(unrecorded) {
            hold(record, &seen, &mut known);
        }
        self.recorded.retain(|job| {
            seen.environments.contains_key(job) || records.iter().any(|record| record.job == *job)
        });
        known
    }

    /// The records whose jobs have not ended.
    fn records_in_force(
        &mut self,
        seen: &JobObservation<'_>,
        problems: &mut BTreeSet<String>,
    ) -> Vec<JobRecord> {
        let mut records = Vec::new();
        for file in seen.records {
            let record = file.bytes.as_deref().map_err(String::clone).and_then(JobRecord::parse);
            let record = match record {
                Ok(record) => record,
                Err(reason) => {
                    problems.insert(format!("the record {:?} holds nothing: {reason}", file.name));
                    continue;
                }
            };
            let fresh =
                || Followed { version: file.version, since: seen.now, was_running: false, missing: 0 };
            let followed = self.followed.entry(file.name.clone()).or_insert_with(fresh);
            if followed.version != file.version {
                *followed = fresh();
            }
            if followed.has_ended(runs(&record, seen.cgroups, followed.was_running), seen.now) {
                let id = &record.holder.id;
                problems.insert(format!(
                    "{id} holds nothing: it has no cgroup any more and its record {:?} is still there; does the epilog run? \
                     Between its steps a job has a cgroup only with PrologFlags=Contain",
                    file.name
                ));
                continue;
            }
            records.push(with_device_files(record, seen));
        }
        records
    }
}

/// The record with the GPUs at its positions, where `gres.conf` has device files at all of them.
fn with_device_files(mut record: JobRecord, seen: &JobObservation<'_>) -> JobRecord {
    let Some(text) = seen.gres.filter(|_| !record.positions.is_empty()) else { return record };
    let gres = Gres::parse(text, record.node.as_deref());
    let minors = record.positions.iter().map(|position| gres.minor(*position));
    if let Some(minors) = minors.collect::<Option<BTreeSet<u32>>>() {
        let uuid = |minor| {
            seen.minors.get(&minor).map_or(RecordedGpu::Minor(minor), |uuid| RecordedGpu::Uuid(uuid.clone()))
        };
        record.gpus = minors.into_iter().map(uuid).collect();
    }
    record
}

/// UUIDs of a record's GPUs.
fn uuids<'a>(
    record: &'a JobRecord,
    minors: &'a BTreeMap<u32, String>,
) -> impl Iterator<Item = &'a str> + use<'a> {
    record.gpus.iter().filter_map(|gpu| match gpu {
        RecordedGpu::Uuid(uuid) => Some(uuid.as_str()),
        RecordedGpu::Minor(minor) => minors.get(minor).map(String::as_str),
    })
}

/// The GPUs that an environment names, but for those that records name.
fn environment_gpus(
    environment: &StepEnvironment,
    gres: &Gres,
    minors: &BTreeMap<u32, String>,
    named: &BTreeSet<&str>,
) -> impl Iterator<Item = RecordedGpu> {
    let gpus = job_environment::gpus(environment).into_iter().filter_map(|position| gres.minor(position));
    let uuids = gpus.filter_map(|minor| minors.get(&minor)).filter(|uuid| !named.contains(uuid.as_str()));
    uuids.cloned().map(RecordedGpu::Uuid)
}

/// A job of which there is only its environment.
fn unrecorded_job(
    job: &str,
    environment: &StepEnvironment,
    seen: &JobObservation<'_>,
    named: &BTreeSet<&str>,
) -> Option<JobRecord> {
    let node = environment.node().map(str::to_owned);
    let gres = Gres::parse(seen.gres.unwrap_or_default(), node.as_deref());
    let record = JobRecord {
        holder: job_environment::holder(job, environment)?,
        job: job.to_owned(),
        sluid: None,
        gpus: environment_gpus(environment, &gres, seen.minors, named).collect(),
        positions: Vec::new(),
        fraction: Fraction::WHOLE,
        node,
        configuration: None,
    };
    let record = amend(record, seen, named);
    (!record.gpus.is_empty()).then_some(record)
}

/// Adds what Slurm tells the job's processes and not its prolog: ids of arrays, the number of shards, and GPUs of several
/// types, of which Slurm 22.05 tells a prolog one.
fn amend(mut record: JobRecord, seen: &JobObservation<'_>, named: &BTreeSet<&str>) -> JobRecord {
    let steps = seen.environments.get(&record.job).map_or(&[][..], Vec::as_slice);
    if let Some(environment) = steps.first() {
        job_environment::add_facts(&mut record.holder.facts, environment);
    }
    // Several slurmd on one machine number GPUs each for itself.
    let is_here =
        |step: &&StepEnvironment| step.node().is_none_or(|node| record.node.as_deref() == Some(node));
    let Some(environment) = steps.iter().find(is_here) else { return record };
    let gres = Gres::parse(seen.gres.unwrap_or_default(), record.node.as_deref());
    if !record.gpus.is_empty() {
        record.gpus.extend(environment_gpus(environment, &gres, seen.minors, named));
        record.gpus.sort();
        record.gpus.dedup();
    }
    let shards = job_environment::shards(environment).filter(|_| record.gpus.len() == 1);
    let uuid = uuids(&record, seen.minors).next();
    let minor = seen.minors.iter().find(|(_, known)| Some(known.as_str()) == uuid).map(|(minor, _)| *minor);
    if let (Some(numerator), Some(minor)) = (shards, minor) {
        let denominator = gres.shards(minor, seen.minors.len()).filter(|shards| *shards >= numerator);
        record.fraction =
            denominator.map_or(record.fraction, |denominator| Fraction { numerator, denominator });
    }
    record
}

/// Whether the job has a cgroup; none where that cannot be known.
fn runs(record: &JobRecord, cgroups: Option<&[JobCgroup]>, was_running: bool) -> Option<bool> {
    let is_its = |cgroup: &JobCgroup| {
        let names = [Some(&cgroup.name), cgroup.job.as_ref()];
        names.contains(&Some(&record.job)) || record.sluid.as_ref() == Some(&cgroup.name)
    };
    // A SLUID of which no step runs may be this job's.
    let is_unknown = |cgroup: &JobCgroup| cgroup.name.starts_with('s') && cgroup.job.is_none();
    match cgroups {
        Some(cgroups) if cgroups.iter().any(is_its) => Some(true),
        Some(cgroups) if record.sluid.is_none() && cgroups.iter().any(is_unknown) => None,
        Some(_) => Some(false),
        None => was_running.then_some(false),
    }
}

fn hold(record: JobRecord, seen: &JobObservation<'_>, known: &mut JobHoldings) {
    let JobRecord { holder, job, sluid, gpus, fraction, .. } = record;
    for gpu in gpus {
        let uuid = match &gpu {
            RecordedGpu::Uuid(uuid) => uuid,
            RecordedGpu::Minor(minor) => match seen.minors.get(minor) {
                Some(uuid) => uuid,
                None => {
                    let reason = format!("no GPU of this node has minor number {minor}");
                    known.problems.insert(format!("a GPU of {} holds nothing: {reason}", holder.id));
                    continue;
                }
            },
        };
        let (device, source) = (Arc::from(uuid.as_str()), HoldingSource::Slurm);
        let allocation = Allocation { holder: holder.clone(), device, fraction, source };
        if !known.allocations.contains(&allocation) {
            known.allocations.push(allocation);
        }
    }
    let cgroups = seen.cgroups.unwrap_or_default().iter();
    let named = cgroups.filter(|cgroup| cgroup.job.as_ref() == Some(&job)).map(|cgroup| cgroup.name.clone());
    for name in named.chain(sluid) {
        known.map.jobs.insert(name, holder.clone());
    }
    known.map.jobs.insert(job, holder);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GPU: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
    const OTHER: &str = "GPU-00000000-052c-4b11-80d3-4d7b2d2d3464";
    const SLUID: &str = "s5K1KKYAYG5D00";

    fn text(more: &str) -> String {
        format!(
            "job_id=211\ncluster=alpha\nuser=ada\nuid=1000\naccount=physics\npartition=gpu\nqos=high\n\
             array_job_id=210\narray_task_id=3\nhet_job_id=\n{more}"
        )
    }

    fn file(name: &str, version: u64, text: &str) -> RecordFile {
        RecordFile { name: name.into(), version: (version, 0, 0), bytes: Ok(text.as_bytes().to_vec()) }
    }

    fn cgroup(name: &str, job: Option<&str>) -> JobCgroup {
        JobCgroup { name: name.into(), job: job.map(str::to_owned), steps: Vec::new() }
    }

    /// A round of records with the cgroups of these jobs, so many seconds after the boot.
    fn round(jobs: &mut Jobs, records: &[RecordFile], cgroups: Option<&[&str]>, now: u64) -> JobHoldings {
        let cgroups = cgroups.map(|jobs| jobs.iter().map(|job| cgroup(job, None)).collect::<Vec<_>>());
        let minors = BTreeMap::from([(8, OTHER.to_owned())]);
        let now = Nanoseconds::from_seconds(now);
        let environments = &BTreeMap::new();
        let cgroups = cgroups.as_deref();
        jobs.observe(JobObservation { records, cgroups, environments, gres: None, minors: &minors, now })
    }

    /// The first round of a record, if there is one, with the environment of job 211 on a node of GPU 0 and 8.
    fn with_environment(text: Option<&str>, variables: &[(&str, &str)]) -> JobHoldings {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = StepEnvironment { uid: 1000, variables: variables.collect() };
        let environments = &BTreeMap::from([("211".to_owned(), vec![environment])]);
        let records: Vec<RecordFile> = text.iter().map(|text| file("211", 1, text)).collect();
        let minors = &BTreeMap::from([(0, GPU.to_owned()), (8, OTHER.to_owned())]);
        let (records, cgroups) = (&*records, Some(&[][..]));
        let gres = Some("Name=shard Count=4 File=/dev/nvidia0");
        let now = Nanoseconds(0);
        Jobs::default().observe(JobObservation { records, cgroups, environments, gres, minors, now })
    }

    #[test]
    fn what_no_prolog_is_told_comes_from_the_environment_of_the_job() {
        let record = text("gpu_minors=0\n").replace("array_job_id=210\narray_task_id=3\n", "");
        let known = with_environment(
            Some(&record),
            &[
                ("SLURM_ARRAY_JOB_ID", "210"),
                ("SLURM_ARRAY_TASK_ID", "4"),
                ("SLURM_JOB_GPUS", "0,8"),
                ("SLURM_JOB_ACCOUNT", "other"),
            ],
        );
        assert_eq!(held(&known), [("slurm:alpha/211", GPU), ("slurm:alpha/211", OTHER)]);
        let facts = &known.allocations[0].holder.facts;
        assert_eq!(facts.get(Fact::SlurmArrayTask).map(|text| &**text), Some("4"));
        assert_eq!(facts.get(Fact::SlurmAccount).map(|text| &**text), Some("physics"));
    }

    #[test]
    fn a_job_of_shards_holds_its_part_of_those_of_its_gpu() {
        let fraction = |gpu: &str, shards: &str| {
            let record = text(&format!("gpu_minors={gpu}\n"));
            with_environment(Some(&record), &[("SLURM_SHARDS_ON_NODE", shards)]).allocations[0].fraction
        };
        assert_eq!(fraction("0", "1"), Fraction { numerator: 1, denominator: 4 });
        assert_eq!(fraction("0", "4"), Fraction { numerator: 4, denominator: 4 });
        assert_eq!(fraction("0", "5"), Fraction::WHOLE, "more than there are");
        assert_eq!(fraction("0", "0"), Fraction::WHOLE);
        assert_eq!(fraction("8", "1"), Fraction::WHOLE, "gres.conf says nothing of its shards");
    }

    #[test]
    fn gres_conf_says_which_device_file_is_at_a_position() {
        let minors = &BTreeMap::from([(0, GPU.to_owned()), (8, OTHER.to_owned())]);
        let observe = |positions: &str, gres| {
            let records =
                &[file("211", 1, &text(&format!("node=n1\ngpus={GPU}\ngpu_positions={positions}\n")))];
            let environments = &BTreeMap::new();
            let now = Nanoseconds(0);
            let seen = JobObservation { records, cgroups: None, environments, gres, minors, now };
            let known = Jobs::default().observe(seen);
            known.allocations.iter().map(|one| one.device.to_string()).collect::<Vec<_>>()
        };
        let reversed = Some("Name=gpu File=/dev/nvidia8\nName=gpu File=/dev/nvidia0\n");
        assert_eq!(observe("0", None), [GPU]);
        assert_eq!(observe("0", Some("AutoDetect=nvml")), [GPU]);
        assert_eq!(observe("0", reversed), [OTHER]);
        assert_eq!(observe("1", reversed), [GPU]);
        assert_eq!(observe("2", reversed), [GPU], "as the prolog found it");
    }

    #[test]
    fn a_job_without_a_record_holds_what_its_environment_names_and_nobody_else_holds() {
        let variables =
            [("SLURM_CLUSTER_NAME", "alpha"), ("SLURM_JOB_GPUS", "0,8"), ("SLURM_JOB_ACCOUNT", "other")];
        let known = with_environment(None, &variables);
        assert_eq!(held(&known), [("slurm:alpha/211", GPU), ("slurm:alpha/211", OTHER)]);
        assert_eq!(known.allocations[0].holder.facts.get(Fact::SlurmAccount), None);
        assert!(known.problems.first().unwrap().contains("does the prolog run?"), "{:?}", known.problems);
        assert_eq!(known.map.holder("211", "0").unwrap().id.as_str(), "slurm:alpha/211.0");
        let others = text("gpu_minors=0\n").replace("job_id=211", "job_id=212");
        let known = with_environment(Some(&others), &variables);
        assert_eq!(held(&known), [("slurm:alpha/212", GPU), ("slurm:alpha/211", OTHER)]);
    }

    fn held(known: &JobHoldings) -> Vec<(&str, &str)> {
        let mut held: Vec<_> =
            known.allocations.iter().map(|one| (one.holder.id.as_str(), &*one.device)).collect();
        // The GPU of most tests first.
        held.sort_by_key(|(holder, gpu)| (std::cmp::Reverse(*holder), std::cmp::Reverse(*gpu)));
        held
    }

    #[test]
    fn a_record_tells_the_job_its_account_and_its_gpus() {
        let record = JobRecord::parse(text(&format!("gpus={GPU}\ngpu_minors=8\n")).as_bytes()).unwrap();
        assert_eq!(record.holder.id.as_str(), "slurm:alpha/211");
        let facts: Vec<_> = record.holder.facts.iter().collect();
        let expected = [
            (Fact::SlurmCluster, "alpha"),
            (Fact::SlurmJob, "211"),
            (Fact::SlurmArrayJob, "210"),
            (Fact::SlurmArrayTask, "3"),
            (Fact::SlurmAccount, "physics"),
            (Fact::SlurmUser, "ada"),
            (Fact::SlurmPartition, "gpu"),
            (Fact::SlurmQos, "high"),
        ];
        assert_eq!((facts, record.holder.facts.uid), (expected.to_vec(), Some(1000)));
        assert_eq!(record.gpus, [RecordedGpu::Uuid(GPU.into()), RecordedGpu::Minor(8)]);
        assert_eq!(record.fraction, Fraction::WHOLE);
        let shared = JobRecord::parse(text(&format!("gpus={GPU}\nmps_percentage=25\n")).as_bytes()).unwrap();
        assert_eq!(shared.fraction, Fraction { numerator: 25, denominator: 100 });
        let instance = GPU.replace("GPU-", "MIG-");
        let instances = JobRecord::parse(text(&format!("gpus={instance}\n")).as_bytes()).unwrap();
        assert_eq!(instances.gpus, [RecordedGpu::Uuid(instance)]);
        let newer = JobRecord::parse(text("from_a_newer_prolog=1\n").as_bytes()).unwrap();
        assert!(newer.gpus.is_empty());
    }

    #[test]
    fn a_record_that_is_not_exactly_one_is_refused_with_a_reason() {
        for (bad, reason) in [
            (String::new(), "no end"),
            ("\n".into(), "not key=value"),
            ("job_id=1\n".into(), "no cluster"),
            ("cluster=a\n".into(), "no job_id"),
            ("job_id=1\ncluster=a".into(), "no end"),
            ("job_id=1\ncluster=a/2\n".into(), "no name of a cluster"),
            ("job_id=1;rm\ncluster=a\n".into(), "no number"),
            ("job_id=007\ncluster=a\n".into(), "no number"),
            ("job_id=-1\ncluster=a\n".into(), "no number"),
            ("job_id=99999999999\ncluster=a\n".into(), "no number"),
            (text("job_id=212\n"), "twice"),
            (text("account\n"), "not key=value"),
            (text("comment=\u{1b}[2J\n"), "control characters"),
            (text(&format!("comment={}\n", "x".repeat(300))), "too long"),
            (text("gpus=0\n"), "not the UUID"),
            (text(&format!("gpus={GPU},\n")), "not the UUID"),
            (text("gpus=MIG-GPU-1\n"), "not the UUID"),
            (text("gpu_minors=0-3\n"), "no minor number"),
            (text("gpu_positions=0-3\n"), "no number"),
            (text("gpu_minors=0,,1\n"), "no minor number"),
            (text("mps_percentage=0\n"), "1 to 100"),
            (text("mps_percentage=101\n"), "1 to 100"),
        ] {
            let error = JobRecord::parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(reason) && !error.contains('\n') && error.len() < 400, "{bad:?}: {error}");
        }
        assert!(JobRecord::parse(b"job_id=1\ncluster=\xff\n").is_err());
    }

    #[test]
    fn a_job_holds_its_gpus_and_names_the_processes_of_its_steps() {
        let mut jobs = Jobs::default();
        let record = file("211", 1, &text(&format!("gpus={GPU}\ngpu_minors=8\n")));
        let known = round(&mut jobs, &[record], Some(&["211"]), 5);
        assert_eq!(held(&known), [("slurm:alpha/211", GPU), ("slurm:alpha/211", OTHER)]);
        assert!(known.problems.is_empty());
        let id = |job: &str, step: &str| known.map.holder(job, step).map(|holder| holder.id.to_string());
        assert_eq!(id("211", "0").as_deref(), Some("slurm:alpha/211.0"));
        assert_eq!(id("211", "batch").as_deref(), Some("slurm:alpha/211.batch"));
        assert_eq!(id("211", "").as_deref(), Some("slurm:alpha/211"));
        assert_eq!(id("211", "../x").as_deref(), Some("slurm:alpha/211"));
        assert_eq!(id("212", "0"), None, "a job without a record is not guessed");
        let step = known.map.holder("211", "0").unwrap();
        assert_eq!(step.facts.get(Fact::SlurmAccount).map(|text| &**text), Some("physics"));
        assert!(step.id.is_within(&known.allocations[0].holder.id));
    }

    #[test]
    fn a_bad_record_and_an_unknown_gpu_hold_nothing_and_are_told() {
        let mut jobs = Jobs::default();
        let unreadable = RecordFile { bytes: Err("it is no regular file".into()), ..file("x", 1, "") };
        let records = [file("a\nb", 1, "garbage\n"), file("211", 1, &text("gpu_minors=0,8\n")), unreadable];
        let known = round(&mut jobs, &records, None, 5);
        assert_eq!(held(&known), [("slurm:alpha/211", OTHER)]);
        assert_eq!(known.problems.len(), 3, "{:#?}", known.problems);
        assert!(known.problems.iter().all(|problem| !problem.contains('\n')));
    }

    #[test]
    fn a_holding_ends_when_the_cgroup_is_gone_in_two_rounds() {
        let mut jobs = Jobs::default();
        let record = [file("211", 1, &text(&format!("gpus={GPU}\n")))];
        assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 5)).len(), 1, "it has none yet");
        assert_eq!(held(&round(&mut jobs, &record, Some(&["211"]), 6)).len(), 1);
        assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 7)).len(), 1);
        assert_eq!(held(&round(&mut jobs, &record, Some(&["211"]), 8)).len(), 1, "missed only once");
        assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 9)).len(), 1);
        let known = round(&mut jobs, &record, Some(&[]), 10);
        assert!(held(&known).is_empty() && known.map == JobMap::default());
        assert!(known.problems.first().unwrap().contains("epilog"), "{:?}", known.problems);
        assert!(held(&round(&mut jobs, &record, Some(&[]), 11)).is_empty(), "ended is ended");
        let next_step = round(&mut jobs, &record, Some(&["211"]), 12);
        assert_eq!(held(&next_step).len(), 1, "it was between two steps");
        assert!(next_step.problems.is_empty() && next_step.map.holder("211", "1").is_some());
        assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 13)).len(), 1);
        assert!(held(&round(&mut jobs, &record, Some(&[]), 14)).is_empty());
        let requeued = [file("211", 2, &text(&format!("gpus={GPU}\n")))];
        assert_eq!(held(&round(&mut jobs, &requeued, Some(&[]), 15)).len(), 1);
        assert!(held(&round(&mut jobs, &[], Some(&["211"]), 16)).is_empty(), "the epilog ends it at once");
    }

    #[test]
    fn a_job_that_never_had_a_cgroup_holds_for_a_minute_where_cgroups_can_be_seen() {
        let mut jobs = Jobs::default();
        let record = [file("211", 1, &text(&format!("gpus={GPU}\n")))];
        for (now, holdings) in [(0, 1), (59, 1), (60, 1), (61, 0)] {
            assert_eq!(held(&round(&mut jobs, &record, Some(&["7"]), now)).len(), holdings, "{now}");
        }
        let mut jobs = Jobs::default();
        for now in [0, 100, 200] {
            assert_eq!(held(&round(&mut jobs, &record, None, now)).len(), 1, "{now}");
        }
    }

    #[test]
    fn a_sluid_stands_for_the_job_that_its_record_or_its_step_names() {
        let minors = BTreeMap::new();
        let observe = |jobs: &mut Jobs, text: &str, cgroups: &[JobCgroup], now| {
            let records = [file("211", 1, text)];
            let now = Nanoseconds::from_seconds(now);
            let (records, cgroups, environments) = (&records, Some(cgroups), &BTreeMap::new());
            jobs.observe(JobObservation { records, cgroups, environments, gres: None, minors: &minors, now })
        };
        let holder = |known: &JobHoldings| known.map.holder(SLUID, "0").map(|holder| holder.id.to_string());
        let told = observe(&mut Jobs::default(), &text(&format!("sluid={SLUID}\n")), &[], 0);
        assert_eq!(holder(&told).as_deref(), Some("slurm:alpha/211.0"));
        let mut jobs = Jobs::default();
        let seen = observe(&mut jobs, &text(""), &[cgroup(SLUID, Some("211"))], 0);
        assert_eq!(holder(&seen).as_deref(), Some("slurm:alpha/211.0"));
        for now in [70, 71, 72] {
            let known = observe(&mut jobs, &text(""), &[cgroup(SLUID, None)], now);
            assert!(known.problems.is_empty(), "no step of it runs, and it has not ended");
            assert_eq!(holder(&known), None);
        }
    }

    proptest! {
        #[test]
        fn any_record_is_parsed_without_a_panic(bytes: Vec<u8>) {
            let _parsed = JobRecord::parse(&bytes);
        }

        #[test]
        fn any_lines_are_parsed_without_a_panic(
            text in "((job_id|cluster|uid|gpus|gpu_minors|mps_percentage|sluid)=[0-9a-zGPU,-]{0,9}\n|\\PC{0,4}\n?){0,9}"
        ) {
            let _parsed = JobRecord::parse(text.as_bytes());
        }
    }
}

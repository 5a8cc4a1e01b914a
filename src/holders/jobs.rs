//! Slurm jobs: which job holds which GPUs, and to which job and step a process belongs.
//!
//! In: the records that the prolog of Slurm wrote, mapping files of other exporters, the cgroups of jobs with the environment
//! of their steps, the node's GPUs. Out: [`JobMap`] and the holdings of jobs, with a reason for each record and GPU that holds
//! nothing. A record goes before a mapping file, and that before the environment. A process belongs to a job by its cgroup;
//! the environment, which the user controls, says only what no record does, and only of the job that the cgroup names. It
//! reads no file itself and knows no clock.

use std::collections::{BTreeMap, BTreeSet};

use super::gres::Gres;
use super::job_environment;
use super::job_mapping::{self, MappedJob};
use super::node_gpus::NodeGpus;
use super::pod_devices::is_uuid;
use super::resolved_workloads::{AllocatedDevice, Allocation};
use crate::host::slurm::{FileVersion, JobCgroup, RecordFile, StepEnvironment};
use crate::model::{Fact, Facts, Fraction, Holder, HolderKind, HoldingSource, Nanoseconds, Utc};

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
        if !job_environment::is_cluster_name(cluster) {
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
    /// The files of other exporters that name the jobs of each GPU.
    pub mappings: &'a [RecordFile],
    /// The cluster, as `slurm.conf` has it.
    pub cluster: Option<&'a str>,
    /// The cgroups of jobs; none where none can be seen on this node.
    pub cgroups: Option<&'a [JobCgroup]>,
    /// The environment of a process of each step, by number of the job, where one could be read.
    pub environments: &'a BTreeMap<String, Vec<StepEnvironment>>,
    /// The text of `gres.conf`, as the prolog copied it.
    pub gres: Option<&'a str>,
    /// The GPUs of the node.
    pub gpus: &'a NodeGpus,
    /// Time since boot.
    pub now: Nanoseconds,
    /// The same time by the wall clock, which files are dated by.
    pub utc: Utc,
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

impl JobHoldings {
    /// Adds a holding that is not known yet: a step is in several hierarchies of cgroups.
    fn allocate(&mut self, holder: &Holder, uuid: &str, fraction: Fraction) {
        let (holder, device, source) = (holder.clone(), AllocatedDevice::from(uuid), HoldingSource::Slurm);
        let allocation = Allocation { holder, device, fraction, source, since: None };
        if !self.allocations.contains(&allocation) {
            self.allocations.push(allocation);
        }
    }
}

/// Follows the jobs of a node from round to round.
#[derive(Debug, Default)]
pub struct Jobs {
    /// By name of the record.
    followed: BTreeMap<String, TrackedRecord>,
    /// By number of the job, those that mapping files alone name.
    mapped: BTreeMap<String, TrackedRecord>,
    /// Numbers of the jobs that have had a record and still have processes: one whose epilog has run is not held again by
    /// its environment.
    recorded: BTreeSet<String>,
}

/// A record that is followed.
#[derive(Debug)]
struct TrackedRecord {
    /// Changes when the record is written anew, as for a job that was requeued.
    version: FileVersion,
    since: Nanoseconds,
    /// Whether the job's cgroup was seen.
    was_running: bool,
    /// In how many rounds in a row the cgroup was missing.
    missing: u8,
}

impl TrackedRecord {
    /// A record that was written when its file says: it may be older than the agent. By a clock that is behind it is new.
    fn begin(version: FileVersion, seen: &JobObservation<'_>) -> Self {
        let written = u64::try_from(version.0).unwrap_or(0).saturating_mul(1_000_000_000);
        let age = seen.utc.0.saturating_sub(written);
        let since = Nanoseconds(seen.now.0.saturating_sub(age));
        Self { version, since, was_running: false, missing: 0 }
    }

    /// Whether the job has ended although its record of that version is still there: an epilog was lost.
    fn has_ended(&mut self, version: FileVersion, record: &JobRecord, seen: &JobObservation<'_>) -> bool {
        if self.version != version {
            *self = Self::begin(version, seen);
        }
        match runs(record, seen.cgroups, self.was_running) {
            Some(true) => (self.was_running, self.missing) = (true, 0),
            Some(false) if self.was_running || seen.now >= self.since + WITHOUT_CGROUP => {
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
        let records = self.records_in_force(&seen, &mut known.problems);
        self.recorded.extend(records.iter().map(|record| record.job.clone()));
        let mapped = job_mapping::read_jobs(seen.mappings, seen.gpus, &mut known.problems);
        let records_of_mappings = self.mappings_in_force(&mapped, &records, &seen, &mut known.problems);
        let told: Vec<JobRecord> = records.into_iter().chain(records_of_mappings).collect();
        let named: BTreeSet<&str> = told.iter().flat_map(|record| uuids(record, seen.gpus)).collect();
        let is_unrecorded = |job: &String| !self.recorded.contains(job) && !mapped.contains_key(job);
        let unrecorded = seen.environments.iter().filter(|(job, _)| is_unrecorded(job));
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
            told.iter().map(|record| amend(record.clone(), &seen, &named)).collect();
        for record in amended.into_iter().chain(unrecorded) {
            hold(&record, &seen, &mut known);
        }
        self.recorded.retain(|job| {
            let is_told = told.iter().any(|record| record.job == *job);
            is_told || seen.environments.contains_key(job) || mapped.contains_key(job)
        });
        known
    }

    /// The records whose jobs have not ended.
    fn records_in_force(
        &mut self,
        seen: &JobObservation<'_>,
        problems: &mut BTreeSet<String>,
    ) -> Vec<JobRecord> {
        self.followed.retain(|name, _| seen.records.iter().any(|file| file.name == *name));
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
            let fresh = || TrackedRecord::begin(file.version, seen);
            let followed = self.followed.entry(file.name.clone()).or_insert_with(fresh);
            if followed.has_ended(file.version, &record, seen) {
                problems.insert(lost_epilog(&record, &format!("its record {:?}", file.name)));
                continue;
            }
            records.push(with_device_files(record, seen));
        }
        records
    }

    /// The jobs that mapping files alone name and that have not ended, without GPUs of these records.
    fn mappings_in_force(
        &mut self,
        mapped: &BTreeMap<String, MappedJob>,
        records: &[JobRecord],
        seen: &JobObservation<'_>,
        problems: &mut BTreeSet<String>,
    ) -> Vec<JobRecord> {
        self.mapped.retain(|job, _| mapped.contains_key(job));
        let recorded: BTreeSet<&str> = records.iter().flat_map(|record| uuids(record, seen.gpus)).collect();
        let mut found = Vec::new();
        for (job, mapping) in mapped.iter().filter(|(job, _)| !self.recorded.contains(*job)) {
            let Some(mut record) = mapped_job(job, mapping, seen) else {
                problems.insert(format!(
                    "job {job} holds nothing: neither slurm.conf nor its environment tells its cluster; mount slurm.conf"
                ));
                continue;
            };
            let fresh = || TrackedRecord::begin(mapping.version, seen);
            let followed = self.mapped.entry(job.clone()).or_insert_with(fresh);
            // A file with several jobs is written anew for each of them, which says nothing of this one.
            if followed.has_ended(followed.version, &record, seen) {
                problems.insert(lost_epilog(&record, &format!("its job mapping {:?}", mapping.files)));
                continue;
            }
            for gpu in mapping.gpus.iter().filter(|gpu| recorded.contains(gpu.as_str())) {
                let id = &record.holder.id;
                problems.insert(format!(
                    "{id} does not hold {gpu} of its job mapping: another job's record names it"
                ));
                record.gpus.retain(|recorded| *recorded != RecordedGpu::Uuid(gpu.clone()));
            }
            found.push(record);
        }
        found
    }
}

/// Why a job whose record is still there holds nothing.
fn lost_epilog(record: &JobRecord, told_by: &str) -> String {
    let id = &record.holder.id;
    format!(
        "{id} holds nothing: it has no cgroup any more and {told_by} is still there; does the epilog run? Between its steps a \
         job has a cgroup only with PrologFlags=Contain"
    )
}

/// A job without a record, in the cluster of `slurm.conf`.
fn configured_holder(job: &str, uid: Option<u32>, seen: &JobObservation<'_>) -> Option<Holder> {
    let cluster = seen.cluster.filter(|cluster| job_environment::is_cluster_name(cluster))?;
    let facts = Facts::new([(Fact::SlurmCluster, cluster), (Fact::SlurmJob, job)]);
    Some(Holder::new(HolderKind::Slurm, facts.with_uid(uid)))
}

/// A job of which there is only its mapping: without an account, which no mapping tells.
fn mapped_job(job: &str, mapping: &MappedJob, seen: &JobObservation<'_>) -> Option<JobRecord> {
    let steps = seen.environments.get(job).map_or(&[][..], Vec::as_slice);
    let holder = match configured_holder(job, mapping.uid, seen) {
        Some(holder) => holder,
        None => job_environment::holder(job, steps.first()?)?,
    };
    Some(JobRecord {
        holder,
        job: job.to_owned(),
        sluid: None,
        gpus: mapping.gpus.iter().cloned().map(RecordedGpu::Uuid).collect(),
        positions: Vec::new(),
        fraction: Fraction::WHOLE,
        node: steps.first().and_then(StepEnvironment::node).map(str::to_owned),
        configuration: None,
    })
}

/// The record with the GPUs at its positions, where `gres.conf` has device files at all of them.
fn with_device_files(mut record: JobRecord, seen: &JobObservation<'_>) -> JobRecord {
    let Some(text) = seen.gres.filter(|_| !record.positions.is_empty()) else { return record };
    let gres = Gres::parse(text, record.node.as_deref());
    let minors = record.positions.iter().map(|position| gres.minor(*position));
    if let Some(minors) = minors.collect::<Option<Vec<u32>>>() {
        // The number of a lost GPU is not known any more. Where positions are numbers, the prolog has found the right GPUs.
        if minors == record.positions && minors.iter().any(|minor| !seen.gpus.minors.contains_key(minor)) {
            return record;
        }
        let minors: BTreeSet<u32> = minors.into_iter().collect();
        let uuid = |minor| {
            seen.gpus
                .minors
                .get(&minor)
                .map_or(RecordedGpu::Minor(minor), |uuid| RecordedGpu::Uuid(uuid.clone()))
        };
        record.gpus = minors.into_iter().map(uuid).collect();
    }
    record
}

/// UUIDs of a record's GPUs.
fn uuids<'a>(record: &'a JobRecord, gpus: &'a NodeGpus) -> impl Iterator<Item = &'a str> + use<'a> {
    record.gpus.iter().filter_map(|gpu| match gpu {
        RecordedGpu::Uuid(uuid) => Some(uuid.as_str()),
        RecordedGpu::Minor(minor) => gpus.minors.get(minor).map(String::as_str),
    })
}

/// Minor numbers of the GPUs that an environment names, with their UUIDs. Where `gres.conf` names no device files a position
/// is taken for the minor number, but not on a node with MIG instances, which have positions too.
fn environment_gpus(environment: &StepEnvironment, gres: &Gres, node: &NodeGpus) -> BTreeMap<u32, String> {
    let has_no_instances = node.instances.as_ref().is_some_and(BTreeMap::is_empty);
    if !gres.has_positions() && !has_no_instances {
        return BTreeMap::new();
    }
    let minors = job_environment::gpus(environment).into_iter().filter_map(|position| gres.minor(position));
    minors.filter_map(|minor| Some((minor, node.minors.get(&minor)?.clone()))).collect()
}

/// GPUs of further types that the environment of a job names. The user can change it, so a record is complete unless
/// `gres.conf` names several types: then the environment adds GPUs of types of which the record has none.
fn gpus_of_further_types(
    record: &JobRecord,
    environment: &StepEnvironment,
    gres: &Gres,
    node: &NodeGpus,
) -> Vec<String> {
    let type_of = |gpu: &RecordedGpu| match gpu {
        RecordedGpu::Minor(minor) => gres.type_of(*minor),
        RecordedGpu::Uuid(uuid) => {
            node.minors.iter().find(|(_, known)| *known == uuid).and_then(|(minor, _)| gres.type_of(*minor))
        }
    };
    // Of a MIG instance and of a GPU that gres.conf does not name no type is known.
    let Some(recorded) = record.gpus.iter().map(type_of).collect::<Option<BTreeSet<_>>>() else {
        return Vec::new();
    };
    let is_further = |minor: u32| gres.type_of(minor).is_some_and(|of_gpu| !recorded.contains(of_gpu));
    let gpus = environment_gpus(environment, gres, node).into_iter();
    gpus.filter(|(minor, _)| is_further(*minor)).map(|(_, uuid)| uuid).collect()
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
    let holder = configured_holder(job, Some(environment.uid), seen);
    let record = JobRecord {
        holder: holder.or_else(|| job_environment::holder(job, environment))?,
        job: job.to_owned(),
        sluid: None,
        gpus: environment_gpus(environment, &gres, seen.gpus)
            .into_values()
            .filter(|uuid| !named.contains(uuid.as_str()))
            .map(RecordedGpu::Uuid)
            .collect(),
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
    let Some(environment) = steps.iter().find(|step| is_on(&record, step)) else { return record };
    let gres = Gres::parse(seen.gres.unwrap_or_default(), record.node.as_deref());
    if !record.gpus.is_empty() {
        let further = gpus_of_further_types(&record, environment, &gres, seen.gpus).into_iter();
        record.gpus.extend(further.filter(|uuid| !named.contains(uuid.as_str())).map(RecordedGpu::Uuid));
    }
    let shards = job_environment::shards(environment).filter(|_| record.gpus.len() == 1);
    let uuid = uuids(&record, seen.gpus).next();
    let minor =
        seen.gpus.minors.iter().find(|(_, known)| Some(known.as_str()) == uuid).map(|(minor, _)| *minor);
    if let (Some(numerator), Some(minor)) = (shards, minor) {
        let denominator = gres.shards(minor, seen.gpus.minors.len()).filter(|shards| *shards >= numerator);
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

fn hold(record: &JobRecord, seen: &JobObservation<'_>, known: &mut JobHoldings) {
    for gpu in &record.gpus {
        let uuid = match gpu {
            RecordedGpu::Uuid(uuid) => uuid,
            RecordedGpu::Minor(minor) => match seen.gpus.minors.get(minor) {
                Some(uuid) => uuid,
                None => {
                    let reason = format!("no GPU of this node has minor number {minor}");
                    known.problems.insert(format!("a GPU of {} holds nothing: {reason}", record.holder.id));
                    continue;
                }
            },
        };
        known.allocate(&record.holder, uuid, record.fraction);
    }
    let cgroups = seen.cgroups.unwrap_or_default().iter();
    let named = cgroups.filter(|cgroup| cgroup.job.as_ref() == Some(&record.job));
    let names = named.map(|cgroup| &cgroup.name).chain(&record.sluid).chain([&record.job]);
    for name in names {
        known.map.jobs.insert(name.clone(), record.holder.clone());
    }
    hold_steps(record, seen, known);
}

/// What the steps of a job hold of what it holds: that is nested in its holding, so a step whose user changed its
/// environment only moves it within his job.
fn hold_steps(record: &JobRecord, seen: &JobObservation<'_>, known: &mut JobHoldings) {
    let of_job: BTreeSet<&str> = uuids(record, seen.gpus).collect();
    let gres = Gres::parse(seen.gres.unwrap_or_default(), record.node.as_deref());
    let steps = seen.environments.get(&record.job).into_iter().flatten().filter(|step| is_on(record, step));
    for step in steps {
        let Some(holder) = known.map.holder(&record.job, &step.step) else { continue };
        let minors = job_environment::step_gpus(step).into_iter().filter_map(|position| gres.minor(position));
        let uuids = minors.filter_map(|minor| seen.gpus.minors.get(&minor));
        for uuid in uuids.filter(|uuid| of_job.contains(uuid.as_str())) {
            known.allocate(&holder, uuid, record.fraction);
        }
    }
}

/// Whether a step runs on the node of the record: several slurmd on one machine number GPUs each for itself.
fn is_on(record: &JobRecord, step: &StepEnvironment) -> bool {
    step.node().is_none_or(|node| record.node.as_deref() == Some(node))
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

    fn file(name: &str, version: i64, text: &str) -> RecordFile {
        RecordFile { name: name.into(), version: (version, 0, 0), bytes: Ok(text.as_bytes().to_vec()) }
    }

    fn cgroup(name: &str, job: Option<&str>) -> JobCgroup {
        JobCgroup { name: name.into(), job: job.map(str::to_owned), steps: Vec::new() }
    }

    /// A node with GPUs of these minor numbers, which are their indices too.
    fn node(gpus: &[(u32, &str)]) -> NodeGpus {
        let minors: BTreeMap<u32, String> =
            gpus.iter().map(|(minor, uuid)| (*minor, (*uuid).to_owned())).collect();
        NodeGpus { indices: Some(minors.clone()), minors, instances: Some(BTreeMap::new()) }
    }

    fn nothing<'a>(
        gpus: &'a NodeGpus,
        environments: &'a BTreeMap<String, Vec<StepEnvironment>>,
    ) -> JobObservation<'a> {
        JobObservation {
            records: &[],
            mappings: &[],
            cluster: None,
            cgroups: None,
            environments,
            gres: None,
            gpus,
            now: Nanoseconds(0),
            utc: Utc(0),
        }
    }

    /// A round of records with the cgroups of these jobs, so many seconds after the boot.
    fn round(jobs: &mut Jobs, records: &[RecordFile], cgroups: Option<&[&str]>, now: u64) -> JobHoldings {
        let cgroups = cgroups.map(|jobs| jobs.iter().map(|job| cgroup(job, None)).collect::<Vec<_>>());
        let gpus = node(&[(8, OTHER)]);
        let (now, cgroups) = (Nanoseconds::from_seconds(now), cgroups.as_deref());
        jobs.observe(JobObservation { records, cgroups, now, ..nothing(&gpus, &BTreeMap::new()) })
    }

    #[test]
    fn the_cluster_of_a_job_without_a_record_is_that_of_slurm_conf() {
        let variables =
            [("SLURM_CLUSTER_NAME", "others"), ("SLURM_JOB_GPUS", "0"), ("SLURM_ARRAY_JOB_ID", "210")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let environment = StepEnvironment { step: "0".into(), uid: 1000, variables };
        let environments = &BTreeMap::from([("211".to_owned(), vec![environment])]);
        let gpus = node(&[(0, GPU)]);
        let seen = JobObservation { cluster: Some("alpha"), ..nothing(&gpus, environments) };
        let known = Jobs::default().observe(seen);
        assert_eq!(held(&known), [("slurm:alpha/211", GPU)]);
        let facts = &known.allocations[0].holder.facts;
        assert_eq!((facts.uid, facts.get(Fact::SlurmArrayJob).map(|id| &**id)), (Some(1000), Some("210")));
    }

    /// The first round of a record, if there is one, with the environment of job 211 on a node of GPU 0 and 8.
    fn with_environment(text: Option<&str>, variables: &[(&str, &str)]) -> JobHoldings {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = StepEnvironment { step: "0".into(), uid: 1000, variables: variables.collect() };
        let environments = &BTreeMap::from([("211".to_owned(), vec![environment])]);
        let records: Vec<RecordFile> = text.iter().map(|text| file("211", 1, text)).collect();
        let gpus = node(&[(0, GPU), (8, OTHER)]);
        let (records, cgroups) = (&*records, Some(&[][..]));
        let gres = Some("Name=shard Count=4 File=/dev/nvidia0");
        Jobs::default().observe(JobObservation { records, cgroups, gres, ..nothing(&gpus, environments) })
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
        assert_eq!(held(&known), [("slurm:alpha/211", GPU)], "its record is complete");
        let facts = &known.allocations[0].holder.facts;
        assert_eq!(facts.get(Fact::SlurmArrayTask).map(|text| &**text), Some("4"));
        assert_eq!(facts.get(Fact::SlurmAccount).map(|text| &**text), Some("physics"));
    }

    /// What job 211 with this record holds whose environment names positions 0 and 1 of that `gres.conf`.
    fn claimed(record: &str, gres: &str) -> Vec<String> {
        let variables = [("SLURM_CLUSTER_NAME", "alpha"), ("SLURM_JOB_GPUS", "0,1")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let environment = StepEnvironment { step: "0".into(), uid: 1000, variables };
        let environments = &BTreeMap::from([("211".to_owned(), vec![environment])]);
        let gpus =
            NodeGpus { instances: Some([((1, 7), Vec::new())].into()), ..node(&[(0, GPU), (1, OTHER)]) };
        let records: Vec<RecordFile> = Some(record)
            .filter(|text| !text.is_empty())
            .map(|record| file("211", 1, &text(record)))
            .into_iter()
            .collect();
        let seen = JobObservation { records: &records, gres: Some(gres), ..nothing(&gpus, environments) };
        let known = Jobs::default().observe(seen);
        held(&known).into_iter().map(|(_, gpu)| gpu.to_owned()).collect()
    }

    #[test]
    fn the_environment_adds_only_gpus_of_further_types_to_a_record() {
        let of_two = "Name=gpu Type=a100 File=/dev/nvidia0\nName=gpu Type=t4 File=/dev/nvidia1\n";
        assert_eq!(claimed("gpu_minors=0\n", of_two), [GPU, OTHER]);
        assert_eq!(claimed(&format!("gpus={GPU}\n"), of_two), [GPU, OTHER]);
        for gres in [
            "",
            "AutoDetect=nvml",
            "Name=gpu File=/dev/nvidia[0-1]",
            "Name=gpu Type=a100 File=/dev/nvidia[0-1]",
        ] {
            assert_eq!(claimed(&format!("gpus={GPU}\n"), gres), [GPU], "{gres}");
        }
    }

    #[test]
    fn a_job_of_mig_instances_holds_no_whole_gpu_by_its_environment() {
        let instance = GPU.replace("GPU-", "MIG-");
        let of_two = "Name=gpu Type=a100 File=/dev/nvidia0\nName=gpu Type=t4 File=/dev/nvidia1\n";
        for gres in ["AutoDetect=nvml", of_two] {
            assert_eq!(claimed(&format!("gpus={instance}\n"), gres), [&*instance], "{gres}");
        }
        assert!(claimed("", "AutoDetect=nvml").is_empty(), "a position may be that of an instance");
        assert_eq!(claimed("", "Name=gpu File=/dev/nvidia[0-1]"), [GPU, OTHER]);
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
        let gpus = node(&[(0, GPU), (8, OTHER)]);
        let observe = |positions: &str, gres| {
            let records =
                &[file("211", 1, &text(&format!("node=n1\ngpus={GPU}\ngpu_positions={positions}\n")))];
            let environments = &BTreeMap::new();
            let seen = JobObservation { records, gres, ..nothing(&gpus, environments) };
            let known = Jobs::default().observe(seen);
            known.allocations.iter().map(|one| one.device.to_string()).collect::<Vec<_>>()
        };
        let reversed = Some("Name=gpu File=/dev/nvidia8\nName=gpu File=/dev/nvidia0\n");
        assert_eq!(observe("0", None), [GPU]);
        assert_eq!(observe("0", Some("AutoDetect=nvml")), [GPU]);
        assert_eq!(observe("0", reversed), [OTHER]);
        assert_eq!(observe("1", reversed), [GPU]);
        assert_eq!(observe("2", reversed), [GPU], "as the prolog found it");
        let with_lost = Some("Name=gpu File=/dev/nvidia[0-1]");
        assert_eq!(observe("1", with_lost), [GPU], "GPU 1 is lost, and the prolog has found its UUID");
        let reversed = Some("Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0\n");
        assert!(observe("0", reversed).is_empty(), "the UUID is that of another GPU");
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

    #[test]
    fn a_step_holds_what_slurm_gave_it_of_its_jobs_gpus_and_is_named_by_its_cgroup() {
        let record = text("gpu_minors=0\n");
        let held_by = |variables: &[(&str, &str)]| {
            let known = with_environment(Some(&record), variables);
            let held = held(&known).into_iter().map(|(holder, gpu)| (holder.to_owned(), gpu.to_owned()));
            held.collect::<Vec<_>>()
        };
        let job = || ("slurm:alpha/211".to_owned(), GPU.to_owned());
        let step = || ("slurm:alpha/211.0".to_owned(), GPU.to_owned());
        assert_eq!(held_by(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "0")]), [step(), job()]);
        assert_eq!(held_by(&[("SLURM_STEP_ID", "1"), ("SLURM_STEP_GPUS", "0")]), [job()], "another step's");
        assert_eq!(held_by(&[("SLURM_STEP_GPUS", "0")]), [job()]);
        assert_eq!(held_by(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "8")]), [job()], "not the job's");
        assert_eq!(held_by(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "x,-1,")]), [job()]);
        let shards = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "0"), ("SLURM_SHARDS_ON_NODE", "1")];
        let known = with_environment(Some(&record), &shards);
        let fractions: Vec<Fraction> = known.allocations.iter().map(|one| one.fraction).collect();
        assert_eq!(fractions, [Fraction { numerator: 1, denominator: 4 }; 2], "never above its job's");
    }

    /// Rounds of mapping files beside records, with the cgroups of these jobs.
    fn mapped(jobs: &mut Jobs, files: [&[RecordFile]; 2], cgroups: &[&str], now: u64) -> JobHoldings {
        let gpus = node(&[(0, GPU), (1, OTHER)]);
        let cgroups: Vec<JobCgroup> = cgroups.iter().map(|job| cgroup(job, None)).collect();
        let [records, mappings] = files;
        let (cgroups, now) = (Some(&*cgroups), Nanoseconds::from_seconds(now));
        let environments = BTreeMap::new();
        let nothing = nothing(&gpus, &environments);
        jobs.observe(JobObservation { records, mappings, cgroups, now, cluster: Some("alpha"), ..nothing })
    }

    #[test]
    fn a_job_that_mapping_files_alone_name_holds_their_gpus_without_an_account() {
        let files = [file("0", 1, "300 1000\n"), file(GPU, 1, "300 1000\n"), file("1", 1, "300\n301\n")];
        let known = mapped(&mut Jobs::default(), [&[], &files], &["300", "301"], 5);
        let both = [("slurm:alpha/301", OTHER), ("slurm:alpha/300", GPU), ("slurm:alpha/300", OTHER)];
        assert_eq!(held(&known), both);
        assert!(known.problems.is_empty(), "{:?}", known.problems);
        let facts = &known.allocations[0].holder.facts;
        assert_eq!((facts.uid, facts.get(Fact::SlurmAccount)), (Some(1000), None));
        assert_eq!(known.map.holder("301", "batch").unwrap().id.as_str(), "slurm:alpha/301.batch");
    }

    #[test]
    fn a_record_goes_before_a_mapping_file_for_its_job_and_for_its_gpus() {
        let record = [file("211", 1, &text(&format!("gpus={GPU}\n")))];
        let mut jobs = Jobs::default();
        let files = [file("0", 1, "300 1000\n"), file("1", 1, "211 1000\n")];
        let known = mapped(&mut jobs, [&record, &files], &["211", "300"], 5);
        assert_eq!(held(&known), [("slurm:alpha/211", GPU)]);
        let problem = known.problems.first().unwrap();
        assert!(problem.contains("slurm:alpha/300") && problem.contains("another job's record"), "{problem}");
        let known = mapped(&mut jobs, [&[], &files], &["211"], 6);
        assert!(!held(&known).contains(&("slurm:alpha/211", OTHER)), "its epilog has run");
    }

    #[test]
    fn a_mapping_file_that_stays_without_its_jobs_cgroup_holds_no_longer() {
        let mut jobs = Jobs::default();
        let files = [file("0", 1, "300 1000\n")];
        assert_eq!(held(&mapped(&mut jobs, [&[], &files], &["300"], 5)).len(), 1);
        assert_eq!(held(&mapped(&mut jobs, [&[], &files], &[], 6)).len(), 1);
        let known = mapped(&mut jobs, [&[], &files], &[], 7);
        assert!(held(&known).is_empty() && known.problems.first().unwrap().contains("epilog"));
        let shared = [file("0", 2, "300 1000\n301 1000\n")];
        let known = mapped(&mut jobs, [&[], &shared], &["301"], 8);
        assert_eq!(held(&known), [("slurm:alpha/301", GPU)], "written anew for another job");
        assert_eq!(held(&mapped(&mut jobs, [&[], &shared], &["300", "301"], 9)).len(), 2, "requeued");
        assert!(held(&mapped(&mut jobs, [&[], &[]], &["300"], 10)).is_empty(), "the epilog removed it");
    }

    #[test]
    fn a_mapping_goes_before_the_environment_which_tells_its_cluster_where_nothing_else_does() {
        let gpus = node(&[(0, GPU), (1, OTHER)]);
        let variables = [("SLURM_CLUSTER_NAME", "beta"), ("SLURM_JOB_GPUS", "1")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let environment = StepEnvironment { step: "batch".into(), uid: 1000, variables };
        let other = StepEnvironment { uid: 1001, ..environment.clone() };
        let environments =
            BTreeMap::from([("300".to_owned(), vec![environment]), ("301".to_owned(), vec![other])]);
        let mappings = [file("1", 1, "300\n"), file("0", 1, "302\n")];
        let seen = JobObservation { mappings: &mappings, ..nothing(&gpus, &environments) };
        let known = Jobs::default().observe(seen);
        assert_eq!(held(&known), [("slurm:beta/300", OTHER)], "301 claims a GPU that a mapping gives to 300");
        assert!(known.problems.first().unwrap().contains("302"), "{:?}", known.problems);
    }

    fn held(known: &JobHoldings) -> Vec<(&str, &str)> {
        let held = known.allocations.iter().map(|one| match &one.device {
            AllocatedDevice::Uuid(uuid) => (one.holder.id.as_str(), &**uuid),
            AllocatedDevice::Instance { .. } => panic!("jobs hold by UUID"),
        });
        let mut held: Vec<_> = held.collect();
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
    fn a_record_that_is_older_than_the_agent_ends_without_another_minute() {
        let records = &[file("211", 1_000, &text(&format!("gpus={GPU}\n")))];
        let holdings = |written_ago: i64, up: u64| {
            let mut jobs = Jobs::default();
            let utc = Utc(u64::try_from(1_000 + written_ago).unwrap() * 1_000_000_000);
            let (gpus, environments) = (NodeGpus::default(), BTreeMap::new());
            let (cgroups, now) = (Some(&[][..]), Nanoseconds::from_seconds(up));
            let seen = JobObservation { records, cgroups, now, utc, ..nothing(&gpus, &environments) };
            [jobs.observe(seen), jobs.observe(seen)].map(|known| known.allocations.len())
        };
        assert_eq!(holdings(61, 500), [1, 0]);
        assert_eq!(holdings(59, 500), [1, 1]);
        assert_eq!(holdings(-100, 500), [1, 1], "the clock is behind");
        assert_eq!(holdings(9_000, 500), [1, 0], "the clock was set since");
    }

    #[test]
    fn a_sluid_stands_for_the_job_that_its_record_or_its_step_names() {
        let gpus = NodeGpus::default();
        let observe = |jobs: &mut Jobs, text: &str, cgroups: &[JobCgroup], now| {
            let (records, cgroups) = (&[file("211", 1, text)], Some(cgroups));
            let now = Nanoseconds::from_seconds(now);
            jobs.observe(JobObservation { records, cgroups, now, ..nothing(&gpus, &BTreeMap::new()) })
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

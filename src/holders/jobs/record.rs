//! The record of a job, a file with lines `key=value` that the Slurm prolog writes, and how long it counts.

use std::collections::{BTreeMap, BTreeSet};

use super::{JobObservation, environment};
use crate::holders::host::slurm::{FileVersion, JobCgroup};
use crate::holders::resolved_workloads::{is_uuid, parse_number};
use crate::model::{Fact, Facts, Fraction, Holder, HolderKind, Nanoseconds};

const MOST_GPUS: usize = 256;

/// A job that has no cgroup for so long after its record was written has ended without an epilog.
const LONGEST_START: Nanoseconds = Nanoseconds::from_seconds(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    pub holder: Holder,
    pub job: String,
    /// SLUID of the job, which Slurm 26.05 names cgroups by.
    pub sluid: Option<String>,
    /// Its GPUs as the prolog found them, which is right where Slurm numbers GPUs like their device files.
    pub gpus: Vec<RecordedGpu>,
    /// Positions of the same GPUs in `gres.conf`.
    pub positions: Vec<u32>,
    pub fraction: Fraction,
    pub node: Option<String>,
    /// Path of the configuration that slurmd uses.
    pub configuration: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordedGpu {
    /// By UUID: of a GPU from the agent's map, or of a MIG instance from Slurm.
    Uuid(String),
    /// By number of the device file, where the map has no UUID.
    Minor(u32),
}

impl JobRecord {
    /// A job without a record. It has no account, since the user can change all other sources.
    pub(super) fn without_account(
        holder: Holder,
        job: &str,
        gpus: Vec<RecordedGpu>,
        node: Option<String>,
    ) -> Self {
        Self {
            holder,
            job: job.to_owned(),
            sluid: None,
            gpus,
            positions: Vec::new(),
            fraction: Fraction::WHOLE,
            node,
            configuration: None,
        }
    }

    /// Parses a record; unknown keys of a newer prolog are ignored.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        if !text.ends_with('\n') {
            return Err("its last line is incomplete".to_owned());
        }
        let mut values = BTreeMap::new();
        for line in text.lines() {
            let (key, value) = line.split_once('=').ok_or_else(|| format!("{line:.80?} is not key=value"))?;
            if value.len() > 256 && !key.starts_with("gpu") || value.chars().any(char::is_control) {
                return Err(format!("the value of {key:.40?} is too long or has control characters"));
            }
            if values.insert(key, value).is_some() {
                return Err(format!("{key:.40?} is given twice"));
            }
        }
        values.retain(|_, value| !value.is_empty());
        Self::from_values(&values)
    }

    fn from_values(values: &BTreeMap<&str, &str>) -> Result<Self, String> {
        let number = |key: &str| match values.get(key) {
            Some(value) if parse_number(value).is_none() => {
                Err(format!("{key} is {value:.40?}, which is not a number"))
            }
            value => Ok(value.copied()),
        };
        let required = |value: Option<_>, key: &str| value.ok_or_else(|| format!("it has no {key}"));
        let job = required(number("job_id")?, "job_id")?;
        let cluster = required(values.get("cluster").copied(), "cluster")?;
        if !environment::is_cluster_name(cluster) {
            return Err(format!("cluster is {cluster:.40?}, which is not a valid cluster name"));
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
            (Fact::SlurmJobName, "job_name"),
        ] {
            facts.set(fact, values.get(key).copied().unwrap_or_default().into());
        }
        facts.started = values.get("start").and_then(|start| start.parse().ok());
        Ok(Self {
            holder: Holder::new(HolderKind::Slurm, facts),
            job: job.to_owned(),
            sluid: values.get("sluid").map(|sluid| (*sluid).to_owned()),
            gpus: parse_gpus(values)?,
            positions: parse_positions(values)?,
            fraction: parse_fraction(number("mps_percentage")?)?,
            node: values.get("node").map(|node| (*node).to_owned()),
            configuration: values.get("configuration").map(|path| (*path).to_owned()),
        })
    }
}

/// The share of a percentage of `gres/mps`; without one a job holds whole GPUs.
fn parse_fraction(percentage: Option<&str>) -> Result<Fraction, String> {
    let Some(percentage) = percentage else { return Ok(Fraction::WHOLE) };
    match percentage.parse() {
        Ok(numerator @ 1..=100) => Ok(Fraction { numerator, denominator: 100 }),
        _ => Err(format!("mps_percentage is {percentage}, which is not 1 to 100")),
    }
}

fn parse_positions(values: &BTreeMap<&str, &str>) -> Result<Vec<u32>, String> {
    let list = values.get("gpu_positions").into_iter().flat_map(|list| list.split(',')).take(MOST_GPUS);
    list.map(|text| {
        parse_number(text).ok_or_else(|| format!("gpu_positions has {text:.80?}, which is not a number"))
    })
    .collect()
}

fn parse_gpus(values: &BTreeMap<&str, &str>) -> Result<Vec<RecordedGpu>, String> {
    let list = |key: &str| values.get(key).into_iter().flat_map(|list| list.split(','));
    let mut gpus = BTreeSet::new();
    for uuid in list("gpus") {
        if !is_uuid(uuid) {
            return Err(format!("{uuid:.80?} is not the UUID of a GPU or of a MIG instance"));
        }
        gpus.insert(RecordedGpu::Uuid(uuid.to_owned()));
    }
    for minor in list("gpu_minors") {
        let number = parse_number(minor).ok_or_else(|| format!("{minor:.80?} is not a minor number"))?;
        gpus.insert(RecordedGpu::Minor(number));
    }
    if gpus.len() > MOST_GPUS {
        return Err(format!("it names more than {MOST_GPUS} GPUs"));
    }
    Ok(gpus.into_iter().collect())
}

#[derive(Debug)]
pub(super) struct TrackedRecord {
    /// It changes when the record is rewritten, as for a job that was requeued.
    pub(super) version: FileVersion,
    /// Time since boot at which the record was written.
    since: Nanoseconds,
    was_running: bool,
    missing: u8,
}

impl TrackedRecord {
    /// Dates the record by its file, which may be older than the agent; a time in the future counts as now.
    pub(super) fn begin(version: FileVersion, observation: &JobObservation<'_>) -> Self {
        let written = u64::try_from(version.0).unwrap_or(0).saturating_mul(1_000_000_000);
        let age = observation.utc.0.saturating_sub(written);
        let since = Nanoseconds(observation.now.0.saturating_sub(age));
        Self { version, since, was_running: false, missing: 0 }
    }

    /// Whether the job has ended although its record of that version is still there, because its epilog did not run.
    pub(super) fn has_ended(
        &mut self,
        version: FileVersion,
        record: &JobRecord,
        observation: &JobObservation<'_>,
    ) -> bool {
        if self.version != version {
            *self = Self::begin(version, observation);
        }
        match has_cgroup(record, observation.cgroups, self.was_running) {
            Some(true) => (self.was_running, self.missing) = (true, 0),
            Some(false) if self.was_running || observation.now >= self.since + LONGEST_START => {
                self.missing = self.missing.saturating_add(1);
            }
            Some(false) | None => {}
        }
        self.missing >= 2
    }
}

/// Whether the job has a cgroup; none where that cannot be known.
fn has_cgroup(record: &JobRecord, cgroups: Option<&[JobCgroup]>, was_running: bool) -> Option<bool> {
    let is_of_job = |cgroup: &JobCgroup| {
        let names = [Some(&cgroup.name), cgroup.job.as_ref()];
        names.contains(&Some(&record.job)) || record.sluid.as_ref() == Some(&cgroup.name)
    };
    // A SLUID without a running step may be this job's.
    let is_unknown = |cgroup: &JobCgroup| cgroup.name.starts_with('s') && cgroup.job.is_none();
    match cgroups {
        Some(cgroups) if cgroups.iter().any(is_of_job) => Some(true),
        Some(cgroups) if record.sluid.is_none() && cgroups.iter().any(is_unknown) => None,
        Some(_) => Some(false),
        None => was_running.then_some(false),
    }
}

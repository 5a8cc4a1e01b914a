//! Slurm jobs: which job holds which GPUs, and to which job and step a process belongs.
//!
//! GPUs of a job come from the record that the Slurm prolog wrote, else from mapping files of other exporters, else from
//! the environment of its steps. The cgroup decides which job a process belongs to; the environment, which the user
//! controls, only fills in what no record says of that job.

mod environment;
mod gpus;
mod gres;
mod mapping;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::resolved_workloads::{Allocation, parse_number};
use crate::holders::host::slurm::{JobCgroup, RecordFile, StepEnvironment};
use crate::model::{Fact, Facts, Fraction, Holder, HolderId, HolderKind, HoldingSource, Nanoseconds, Utc};
pub use gpus::NodeGpus;
use gpus::{add_environment, environment_gpus, is_on_node, uuids, with_device_files};
use gres::Gres;
use mapping::MappedJob;
use record::TrackedRecord;
pub use record::{JobRecord, RecordedGpu};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobMap {
    /// By job number, and by SLUID where it is known.
    jobs: BTreeMap<String, Holder>,
    /// The jobs that have a record of the prolog.
    recorded: BTreeSet<HolderId>,
}

impl JobMap {
    pub(super) fn is_recorded(&self, job: &HolderId) -> bool {
        self.recorded.contains(job)
    }

    pub(super) fn holder(&self, job: &str, step: &str) -> Option<Holder> {
        let holder = self.jobs.get(job)?;
        if !(parse_number(step).is_some() || matches!(step, "batch" | "extern" | "interactive")) {
            return Some(holder.clone());
        }
        let mut facts = holder.facts.clone();
        facts.set(Fact::SlurmStep, step.into());
        Some(Holder::new(HolderKind::Slurm, facts))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct JobObservation<'a> {
    pub records: &'a [RecordFile],
    /// The files of other exporters that name the jobs of each GPU.
    pub mappings: &'a [RecordFile],
    /// The cluster name in `slurm.conf`.
    pub cluster: Option<&'a str>,
    /// The cgroups of jobs; none where the node shows none.
    pub cgroups: Option<&'a [JobCgroup]>,
    /// By job number, the environment of one process of each step, where it could be read.
    pub environments: &'a BTreeMap<String, Vec<StepEnvironment>>,
    /// The text of `gres.conf`, as the prolog copied it.
    pub gres: Option<&'a str>,
    pub gpus: &'a NodeGpus,
    /// Time since boot.
    pub now: Nanoseconds,
    /// The same time by the wall clock, by which files are dated.
    pub utc: Utc,
}

impl JobObservation<'_> {
    fn step_environments(&self, job: &str) -> &[StepEnvironment] {
        self.environments.get(job).map_or(&[], Vec::as_slice)
    }

    fn gres_of(&self, node: Option<&str>) -> Gres {
        Gres::parse(self.gres.unwrap_or_default(), node)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobHoldings {
    pub map: JobMap,
    pub allocations: Vec<Allocation>,
    /// Why records or GPUs hold nothing.
    pub problems: BTreeSet<String>,
}

impl JobHoldings {
    /// Adds a holding once, since a step is in several cgroup hierarchies.
    fn allocate(&mut self, holder: &Holder, uuid: &str, fraction: Fraction) {
        let allocation = Allocation::new(holder, uuid, fraction, HoldingSource::Slurm);
        if !self.allocations.contains(&allocation) {
            self.allocations.push(allocation);
        }
    }

    fn add_job(&mut self, record: &JobRecord, observation: &JobObservation<'_>) {
        for gpu in &record.gpus {
            let uuid = match gpu {
                RecordedGpu::Uuid(uuid) => uuid,
                RecordedGpu::Minor(minor) => match observation.gpus.minors.get(minor) {
                    Some(uuid) => uuid,
                    None => {
                        self.problems.insert(format!(
                            "{} is not billed for one of its GPUs: no GPU of this node has minor number {minor} \
                             (/dev/nvidia{minor})",
                            record.holder.id
                        ));
                        continue;
                    }
                },
            };
            self.allocate(&record.holder, uuid, record.fraction);
        }
        let cgroups = observation.cgroups.unwrap_or_default().iter();
        let of_job = cgroups.filter(|cgroup| cgroup.job.as_ref() == Some(&record.job));
        let names = of_job.map(|cgroup| &cgroup.name).chain(&record.sluid).chain([&record.job]);
        for name in names {
            self.map.jobs.insert(name.clone(), record.holder.clone());
        }
        self.add_steps(record, observation);
    }

    /// Adds the holdings of the steps of a job on its GPUs. A step's holding is nested in the job's, so a user who changes
    /// the environment of a step only moves time within the job.
    fn add_steps(&mut self, record: &JobRecord, observation: &JobObservation<'_>) {
        let of_job: BTreeSet<&str> = uuids(record, observation.gpus).collect();
        let gres = observation.gres_of(record.node.as_deref());
        let steps = observation.step_environments(&record.job).iter();
        for step in steps.filter(|step| is_on_node(record, step)) {
            let Some(holder) = self.map.holder(&record.job, &step.step) else { continue };
            let positions = environment::step_gpus(step).into_iter();
            let minors = positions.filter_map(|position| gres.minor(position));
            let uuids = minors.filter_map(|minor| observation.gpus.minors.get(&minor));
            for uuid in uuids.filter(|uuid| of_job.contains(uuid.as_str())) {
                self.allocate(&holder, uuid, record.fraction);
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct JobTracker {
    /// By file name of the record.
    records: BTreeMap<String, TrackedRecord>,
    /// By job number, jobs that only mapping files name.
    mapped: BTreeMap<String, TrackedRecord>,
    /// Numbers of jobs that have had a record and still have processes. After its epilog, a job must not hold again by
    /// its environment.
    recorded: BTreeSet<String>,
}

impl JobTracker {
    /// Updates the holdings from one round. A holding begins with its record, and ends with it or when the job's cgroup
    /// is missing in two rounds.
    pub fn observe(&mut self, observation: JobObservation<'_>) -> JobHoldings {
        let mut holdings = JobHoldings::default();
        let records = self.active_records(&observation, &mut holdings.problems);
        self.recorded.extend(records.iter().map(|record| record.job.clone()));
        holdings.map.recorded = records.iter().map(|record| record.holder.id.clone()).collect();
        let mapped = mapping::read_jobs(observation.mappings, observation.gpus, &mut holdings.problems);
        let from_mappings = self.active_mappings(&mapped, &records, &observation, &mut holdings.problems);
        let recorded: Vec<JobRecord> = records.into_iter().chain(from_mappings).collect();
        let taken: BTreeSet<&str> =
            recorded.iter().flat_map(|record| uuids(record, observation.gpus)).collect();
        let is_unrecorded = |job: &String| !self.recorded.contains(job) && !mapped.contains_key(job);
        let unrecorded = observation.environments.iter().filter(|(job, _)| is_unrecorded(job));
        let unrecorded: Vec<JobRecord> = unrecorded
            .filter_map(|(job, steps)| unrecorded_job(job, steps.first()?, &observation, &taken))
            .collect();
        for record in &unrecorded {
            holdings.problems.insert(format!(
                "{} has no record: its account is unknown, and its GPUs are those that its environment names; does the \
                 prolog run?",
                record.holder.id
            ));
        }
        let complete: Vec<JobRecord> =
            recorded.iter().map(|record| add_environment(record.clone(), &observation, &taken)).collect();
        for record in complete.into_iter().chain(unrecorded) {
            holdings.add_job(&record, &observation);
        }
        self.recorded.retain(|job| {
            let has_record = recorded.iter().any(|record| record.job == *job);
            has_record || observation.environments.contains_key(job) || mapped.contains_key(job)
        });
        holdings
    }

    fn active_records(
        &mut self,
        observation: &JobObservation<'_>,
        problems: &mut BTreeSet<String>,
    ) -> Vec<JobRecord> {
        self.records.retain(|name, _| observation.records.iter().any(|file| file.name == *name));
        let mut records = Vec::new();
        for file in observation.records {
            let record = file.bytes.as_deref().map_err(String::clone).and_then(JobRecord::parse);
            let mut record = match record {
                Ok(record) => record,
                Err(reason) => {
                    problems
                        .insert(format!("the Slurm job record file {:?} is ignored: {reason}", file.name));
                    continue;
                }
            };
            let begin = || TrackedRecord::begin(file.version, observation);
            let tracked = self.records.entry(file.name.clone()).or_insert_with(begin);
            if tracked.has_ended(file.version, &record, observation) {
                problems.insert(explain_missing_epilog(&record, &format!("its record {:?}", file.name)));
                continue;
            }
            // A record of a Slurm that does not pass the job's start to its prolog.
            let written = || u64::try_from(file.version.0).ok();
            record.holder.facts.started = record.holder.facts.started.or_else(written);
            records.push(with_device_files(record, observation));
        }
        records
    }

    /// The jobs that only mapping files name and that have not ended, without the GPUs of `records`.
    fn active_mappings(
        &mut self,
        mapped: &BTreeMap<String, MappedJob>,
        records: &[JobRecord],
        observation: &JobObservation<'_>,
        problems: &mut BTreeSet<String>,
    ) -> Vec<JobRecord> {
        self.mapped.retain(|job, _| mapped.contains_key(job));
        let recorded: BTreeSet<&str> =
            records.iter().flat_map(|record| uuids(record, observation.gpus)).collect();
        let mut found = Vec::new();
        for (job, mapping) in mapped.iter().filter(|(job, _)| !self.recorded.contains(*job)) {
            let Some(mut record) = mapped_job(job, mapping, observation) else {
                problems.insert(format!(
                    "job {job} is billed for no GPU: neither slurm.conf nor its environment names its cluster; mount slurm.conf"
                ));
                continue;
            };
            let begin = || TrackedRecord::begin(mapping.version, observation);
            let tracked = self.mapped.entry(job.clone()).or_insert_with(begin);
            // A file with several jobs is rewritten for each of them, so a new version does not restart this job.
            if tracked.has_ended(tracked.version, &record, observation) {
                problems
                    .insert(explain_missing_epilog(&record, &format!("its job mapping {:?}", mapping.files)));
                continue;
            }
            for gpu in mapping.gpus.iter().filter(|gpu| recorded.contains(gpu.as_str())) {
                let id = &record.holder.id;
                problems.insert(format!(
                    "{id} is not billed for {gpu} of its job mapping: another job's record names it"
                ));
                record.gpus.retain(|recorded| *recorded != RecordedGpu::Uuid(gpu.clone()));
            }
            found.push(record);
        }
        found
    }
}

fn explain_missing_epilog(record: &JobRecord, source: &str) -> String {
    let id = &record.holder.id;
    format!(
        "{id} is treated as ended: its cgroup is gone, although {source} still exists; does the epilog run? Or the job is \
         between steps and slurm.conf lacks PrologFlags=Contain"
    )
}

fn configured_holder(job: &str, uid: Option<u32>, observation: &JobObservation<'_>) -> Option<Holder> {
    let cluster = observation.cluster.filter(|cluster| environment::is_cluster_name(cluster))?;
    let facts = Facts::new([(Fact::SlurmCluster, cluster), (Fact::SlurmJob, job)]);
    Some(Holder::new(HolderKind::Slurm, facts.with_uid(uid)))
}

/// A job that only mapping files name; they do not name its account.
fn mapped_job(job: &str, mapping: &MappedJob, observation: &JobObservation<'_>) -> Option<JobRecord> {
    let step = observation.step_environments(job).first();
    let holder = match configured_holder(job, mapping.uid, observation) {
        Some(holder) => holder,
        None => environment::holder(job, step?)?,
    };
    let gpus = mapping.gpus.iter().cloned().map(RecordedGpu::Uuid).collect();
    let node = step.and_then(StepEnvironment::node).map(str::to_owned);
    Some(JobRecord::without_account(holder, job, gpus, node))
}

/// A job known only from its environment, with the GPUs that no record or mapping has taken.
fn unrecorded_job(
    job: &str,
    step: &StepEnvironment,
    observation: &JobObservation<'_>,
    taken: &BTreeSet<&str>,
) -> Option<JobRecord> {
    let gres = observation.gres_of(step.node());
    let holder = configured_holder(job, Some(step.uid), observation);
    let holder = holder.or_else(|| environment::holder(job, step))?;
    let gpus = environment_gpus(step, &gres, observation.gpus).into_values();
    let gpus = gpus.filter(|uuid| !taken.contains(uuid.as_str())).map(RecordedGpu::Uuid).collect();
    let record = JobRecord::without_account(holder, job, gpus, step.node().map(str::to_owned));
    let record = add_environment(record, observation, taken);
    (!record.gpus.is_empty()).then_some(record)
}

//! The thread that reads the job records of Slurm's prolog, and writes the map of minor numbers that the prolog reads.
//!
//! It reads the directory of the records once per second, and that of other exporters' mapping files where one is
//! configured; on a node without these directories it does nothing more. While one of them cannot be read, its last
//! content stays in force. The map `gpus`, with a line `MINOR UUID` for each GPU, stays when the agent ends, since jobs
//! start meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::aside::{AsideReader, WantedProcess};
use super::{FIRST_ROUND_TIMEOUT, Resolvers, log_new_problems, replace};
use crate::accounting::batches::Recovered;
use crate::config::SlurmConfig;
use crate::holders::host::Host;
use crate::holders::host::slurm::{self, JobCgroup, MOST_RECORDS, RecordFile, StepEnvironment};
use crate::holders::{Allocation, JobHoldings, JobObservation, JobRecord, JobTracker, NodeGpus};
use crate::model::{Fact, HolderKind, HoldingSource, UnattributedReason};
use crate::runtime::clock::system_now;
use crate::runtime::file::{self, Durability};
use crate::runtime::thread;
use crate::runtime::trace;

/// The map that the prolog of the host's Slurm reads.
const MAP_OF_HOST: &str = "/run/gpumeter/gpus";

pub(super) fn start(shared: &Arc<Resolvers>, recovered: Option<&Recovered>) -> Result<(), thread::Error> {
    let configured = shared.policy.now().config.attribution.slurm.clone();
    if HostJobs::new(shared.host.clone(), &configured).is_none() {
        return Ok(());
    }
    shared.update_workloads(|workloads| workloads.awaited.push(UnattributedReason::Job));
    shared.allocate_recovered(recovered, HoldingSource::Slurm);
    let first_round = shared.start_rounds(
        |statuses| &statuses.jobs,
        move |shared| {
            let mut rounds = JobRounds {
                map: configured.records.as_deref().map(|records| shared.host.path(&map_beside(records))),
                jobs: HostJobs::new(shared.host.clone(), &configured)?,
                recovered: shared.allocated(HoldingSource::Slurm),
                written: None,
                has_map_failed: false,
                problems: BTreeSet::new(),
            };
            Some(move |shared: &Resolvers| rounds.run_round(shared))
        },
    )?;
    let _ = first_round.recv_timeout(FIRST_ROUND_TIMEOUT);
    Ok(())
}

/// The path of the map of minor numbers for a directory of records. The map is in the agent's own directory beside that
/// one, which belongs to root.
pub(crate) fn map_beside(records: &Path) -> PathBuf {
    records.with_file_name("gpumeter").join("gpus")
}

pub(crate) struct HostJobs {
    host: Host,
    records: Option<PathBuf>,
    mappings: Option<PathBuf>,
    last_mappings: Vec<RecordFile>,
    jobs: JobTracker,
    /// The path of slurmd's configuration, from a record.
    configuration: Option<String>,
    /// Name of the cluster in `slurm.conf`, once it was needed.
    cluster: Option<String>,
    /// By directory of the step's cgroup.
    environments: BTreeMap<PathBuf, StepEnvironment>,
    numbers: BTreeMap<String, String>,
    /// Numbers of jobs with a step whose environment is not read yet; none for a SLUID whose number is not known.
    unread: BTreeSet<Option<String>>,
    processes: AsideReader<JobProcess>,
}

enum JobProcess {
    /// The SLUID of the job, and its number.
    Number(String, String),
    /// The directory of the step's cgroup, and its environment.
    Environment(PathBuf, StepEnvironment),
}

impl HostJobs {
    /// None where both directories are turned off.
    pub(crate) fn new(host: Host, configured: &SlurmConfig) -> Option<Self> {
        let path = |directory: &Option<PathBuf>| directory.as_ref().map(|path| host.path(path));
        let (records, mappings) = (path(&configured.records), path(&configured.job_mapping_dir));
        (records.is_some() || mappings.is_some()).then(|| Self {
            records,
            mappings,
            last_mappings: Vec::new(),
            jobs: JobTracker::default(),
            configuration: None,
            cluster: None,
            environments: BTreeMap::new(),
            numbers: BTreeMap::new(),
            unread: BTreeSet::new(),
            processes: AsideReader::new(),
            host,
        })
    }

    pub(crate) fn configuration(&self) -> Option<String> {
        self.host.slurm_configuration(self.configuration.as_deref())
    }

    pub(crate) fn directories(&self) -> String {
        let paths: Vec<String> =
            self.records.iter().chain(&self.mappings).map(|path| path.display().to_string()).collect();
        paths.join(" and ")
    }

    /// Reads everything once and updates the holdings.
    ///
    /// # Errors
    /// A directory cannot be read; not found where neither of them is there yet.
    pub(crate) fn observe(&mut self, gpus: &NodeGpus) -> io::Result<JobHoldings> {
        let directories = || self.records.iter().chain(&self.mappings);
        if let Some(Err(error)) = directories().map(fs::metadata).min_by_key(Result::is_err) {
            return Err(error);
        }
        // Read before the records, since the prolog writes a record before its job has a cgroup.
        let mut cgroups = self.host.slurm_cgroups()?;
        let mut problems = BTreeSet::new();
        let records = read_files(self.records.as_deref(), &mut problems)?;
        match read_files(self.mappings.as_deref(), &mut problems) {
            Ok(mappings) => self.last_mappings = mappings,
            Err(error) if self.records.is_none() => return Err(error),
            Err(error) => {
                problems.insert(format!(
                    "job mappings cannot be read, and stay as they were: {error} (attribution.slurm.job_mapping_dir)"
                ));
            }
        }
        self.read_processes(cgroups.as_deref_mut().unwrap_or_default());
        self.configuration = records.iter().find_map(|file| {
            file.bytes.as_ref().ok().and_then(|bytes| JobRecord::parse(bytes).ok()?.configuration)
        });
        if self.cluster.is_none() && !(self.last_mappings.is_empty() && self.environments.is_empty()) {
            let configuration = self.configuration();
            let name = configuration.as_deref().and_then(|text| slurm::find_setting(text, "ClusterName"));
            // Slurm passes it to the prolog in lower case.
            self.cluster = name.map(str::to_ascii_lowercase);
        }
        let mut environments: BTreeMap<String, Vec<StepEnvironment>> = BTreeMap::new();
        for step in self.environments.values() {
            environments.entry(step.job.clone()).or_default().push(step.clone());
        }
        let gres = self.records.as_deref().and_then(slurm::read_gres);
        let now = system_now();
        let mut known = self.jobs.observe(JobObservation {
            records: &records,
            mappings: &self.last_mappings,
            cluster: self.cluster.as_deref(),
            cgroups: cgroups.as_deref(),
            environments: &environments,
            gres: gres.as_deref(),
            gpus,
            now: now.boottime,
            utc: now.utc,
        });
        known.problems.append(&mut problems);
        Ok(known)
    }

    /// Whether nothing is known yet of the job that held this before: it has a cgroup, and a process in it has not told
    /// its environment.
    fn is_still_unknown(&self, allocation: &Allocation, known: &JobHoldings) -> bool {
        let job = job_number(allocation);
        let is_unread = self.unread.contains(&None) || self.unread.contains(&Some(job.to_owned()));
        is_unread && !known.allocations.iter().any(|one| job_number(one) == job)
    }

    /// Adds what processes say of jobs and steps, each of which is read once.
    fn read_processes(&mut self, cgroups: &mut [JobCgroup]) {
        self.numbers.retain(|sluid, _| cgroups.iter().any(|job| job.name == *sluid));
        self.read_numbers(cgroups);
        for job in &mut *cgroups {
            job.job = self.numbers.get(&job.name).cloned();
        }
        self.read_environments(cgroups);
        // A process that answers late may be of a job that has ended.
        self.environments.retain(|known, _| cgroups.iter().any(|job| job.steps.contains(known)));
        let is_unread = |job: &&JobCgroup| job.steps.iter().any(|step| !self.environments.contains_key(step));
        let unread = cgroups.iter().filter(is_unread).map(JobCgroup::number);
        self.unread = unread.map(|job| job.map(str::to_owned)).collect();
    }

    fn read_numbers(&mut self, cgroups: &[JobCgroup]) {
        let unknown =
            cgroups.iter().filter(|job| job.is_named_by_sluid() && !self.numbers.contains_key(&job.name));
        let wanted = unknown.map(|job| {
            let (host, sluid) = (self.host.clone(), job.name.clone());
            let read = move |pid| Some(JobProcess::Number(sluid.clone(), host.slurmstepd_job(pid)?));
            WantedProcess { pids: job.slurmstepds(), read: Box::new(read) }
        });
        self.read_aside(wanted.collect());
    }

    /// Reads the environment of each step as soon as it has a process.
    fn read_environments(&mut self, cgroups: &[JobCgroup]) {
        let jobs = cgroups.iter().filter_map(|job| Some((&job.steps, job.number()?)));
        let steps = jobs.flat_map(|(steps, job)| steps.iter().map(move |step| (step, job)));
        let wanted = steps.filter(|(step, _)| !self.environments.contains_key(*step)).map(|(step, job)| {
            let (host, step, job) = (self.host.clone(), step.clone(), job.to_owned());
            let pids = slurm::step_pids(&step);
            let read = move |pid| {
                Some(JobProcess::Environment(step.clone(), host.slurm_environment(&step, &job, pid)?))
            };
            WantedProcess { pids, read: Box::new(read) }
        });
        self.read_aside(wanted.collect());
    }

    fn read_aside(&mut self, wanted: Vec<WantedProcess<JobProcess>>) {
        for found in self.processes.read(wanted) {
            match found {
                JobProcess::Number(sluid, job) => drop(self.numbers.insert(sluid, job)),
                JobProcess::Environment(step, of_job) => drop(self.environments.insert(step, of_job)),
            }
        }
    }
}

/// Reads the files of a directory; none where the directory is not configured or not there before its first job.
fn read_files(directory: Option<&Path>, problems: &mut BTreeSet<String>) -> io::Result<Vec<RecordFile>> {
    let Some(directory) = directory else { return Ok(Vec::new()) };
    let mut files = match slurm::read_records(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    if files.len() > MOST_RECORDS {
        files.truncate(MOST_RECORDS);
        let path = directory.display();
        problems.insert(format!(
            "{path} has more than {MOST_RECORDS} files, and no more are read; remove those of ended jobs"
        ));
    }
    Ok(files)
}

struct JobRounds {
    map: Option<PathBuf>,
    jobs: HostJobs,
    /// What was held before the first round, until one knows better.
    recovered: Vec<Allocation>,
    written: Option<BTreeMap<u32, String>>,
    has_map_failed: bool,
    problems: BTreeSet<String>,
}

impl JobRounds {
    fn run_round(&mut self, shared: &Resolvers) {
        let gpus = node_gpus(shared);
        self.write_map(shared, &gpus.minors);
        let _span = trace::begin_round("jobs");
        let status = &shared.statuses.jobs;
        let directory = self.jobs.directories();
        match self.jobs.observe(&gpus) {
            Ok(mut known) => {
                self.recovered.retain(|one| self.jobs.is_still_unknown(one, &known));
                known.allocations.extend(self.recovered.iter().cloned());
                if status.record_success(system_now().boottime) {
                    tracing::info!(directory, "the prolog of Slurm records jobs");
                }
                log_new_problems(&mut self.problems, known.problems);
                shared.update_workloads(|workloads| {
                    workloads.allocate(HoldingSource::Slurm, &known.allocations);
                    replace(&mut workloads.jobs, known.map);
                });
            }
            // The directory is missing where there is no Slurm, or before the first job since the boot.
            Err(error) => {
                let has_jobs = !self.recovered.is_empty() || shared.has_processes_of(HolderKind::Slurm);
                let is_missing = error.kind() == ErrorKind::NotFound;
                if status.record_failure(is_missing && !has_jobs) {
                    let reason = match is_missing {
                        true => "they do not exist, although there are jobs on GPUs; does the prolog of Slurm run?".to_owned(),
                        false => error.to_string(),
                    };
                    tracing::warn!(
                        directory,
                        reason,
                        "records of jobs cannot be read; holdings of jobs stay as they were"
                    );
                }
                self.end_recovered(shared);
            }
        }
    }

    /// While no round has succeeded, ends the holdings of jobs whose cgroup is gone.
    fn end_recovered(&mut self, shared: &Resolvers) {
        if self.recovered.is_empty()
            || shared.statuses.jobs.last().is_some_and(|last| last.succeeded_at.is_some())
        {
            return;
        }
        let Ok(cgroups) = self.jobs.host.slurm_cgroups() else { return };
        self.recovered.retain(|one| may_run(job_number(one), cgroups.as_deref()));
        shared.update_workloads(|workloads| workloads.allocate(HoldingSource::Slurm, &self.recovered));
    }

    /// Writes the map where it has changed. GPUs of a simulated driver are not the host's, so they are never written to
    /// the host's own map.
    fn write_map(&mut self, shared: &Resolvers, minors: &BTreeMap<u32, String>) {
        let Some(map) = self.map.as_ref().filter(|_| !shared.observes) else { return };
        let is_foreign = shared.simulated.load(Ordering::Relaxed) && map == Path::new(MAP_OF_HOST);
        if minors.is_empty() || is_foreign || self.written.as_ref() == Some(minors) {
            return;
        }
        match write_map(map, minors) {
            Ok(()) => (self.written, self.has_map_failed) = (Some(minors.clone()), false),
            // The agent's directory is missing where the node has no Slurm.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if !self.has_map_failed => {
                self.has_map_failed = true;
                let path = map.display();
                tracing::warn!(%path, %error, "the file that maps GPU minor numbers to UUIDs for the Slurm prolog cannot be written; retrying every second");
            }
            Err(_) => {}
        }
    }
}

fn job_number(allocation: &Allocation) -> &str {
    allocation.holder.facts.get(Fact::SlurmJob).map_or("", |job| &**job)
}

/// Whether the job may have a cgroup: one that a SLUID names may be its own until its number is known.
fn may_run(job: &str, cgroups: Option<&[JobCgroup]>) -> bool {
    cgroups.is_none_or(|cgroups| cgroups.iter().any(|one| one.number().is_none_or(|number| number == job)))
}

/// The GPUs as the driver lists them; before that, their minor numbers from the kernel.
fn node_gpus(shared: &Resolvers) -> NodeGpus {
    let mut found = NodeGpus::default();
    if let Some(tracked) = &*shared.gpus.lock() {
        let (mut indices, mut instances) = (BTreeMap::new(), BTreeMap::<_, Vec<String>>::new());
        let gpus = tracked.roster.gpus.iter().zip(&tracked.listed);
        for gpu in gpus.filter(|(_, is_listed)| **is_listed).map(|(gpu, _)| gpu) {
            let (index, uuid) = (gpu.id.index, gpu.id.uuid.to_string());
            if let Ok(minor) = gpu.identity.minor_number.parse() {
                found.minors.insert(minor, uuid.clone());
            }
            indices.insert(index, uuid);
            for instance in &gpu.instances {
                let Ok(id) = instance.gpu_instance.parse() else { continue };
                instances.entry((index, id)).or_default().push(instance.identity.uuid.to_string());
            }
        }
        (found.indices, found.instances) = (Some(indices), Some(instances));
    }
    if found.minors.is_empty() {
        found.minors = shared.host.gpu_minors();
    }
    found
}

/// Replaces the map by a rename, so that the prolog never reads half of it.
fn write_map(path: &Path, minors: &BTreeMap<u32, String>) -> io::Result<()> {
    let mut text = String::new();
    for (minor, uuid) in minors {
        // Writing to a text does not fail.
        let _ = writeln!(text, "{minor} {uuid}");
    }
    file::replace(path, &path.with_file_name(".gpus.new"), 0o644, Durability::Kill, |file| {
        file.write_all(text.as_bytes())?;
        // Also where the umask is stricter.
        file.set_permissions(Permissions::from_mode(0o644))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const GPU: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";

    /// A host with a record of job 211 on that GPU, and what reads its records and the mapping files in `run/gpustat`.
    fn host_with_a_record() -> (tempfile::TempDir, HostJobs) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/gpumeter-slurm")).unwrap();
        fs::create_dir_all(root.path().join("run/gpustat")).unwrap();
        let record = format!("job_id=211\ncluster=alpha\ngpus={GPU}\n");
        fs::write(root.path().join("run/gpumeter-slurm/211"), record).unwrap();
        let config = "attribution: {slurm: {job_mapping_dir: /run/gpustat}}";
        let config = crate::config::Config::parse(config, "test").unwrap();
        let jobs = HostJobs::new(Host::at(root.path()), &config.attribution.slurm).unwrap();
        (root, jobs)
    }

    fn holders(known: &JobHoldings) -> Vec<&str> {
        known.allocations.iter().map(|one| one.holder.id.as_str()).collect()
    }

    #[test]
    fn records_hold_while_job_mappings_cannot_be_read_and_these_stay_as_they_were() {
        let (root, mut jobs) = host_with_a_record();
        fs::create_dir_all(root.path().join("etc/slurm")).unwrap();
        fs::write(root.path().join("etc/slurm/slurm.conf"), "ClusterName=Alpha\n").unwrap();
        let mappings = root.path().join("run/gpustat");
        fs::write(mappings.join(GPU.replace('3', "4")), "212 1000\n").unwrap();
        let both = ["slurm:alpha/211", "slurm:alpha/212"];
        let known = jobs.observe(&NodeGpus::default()).unwrap();
        assert_eq!((holders(&known), known.problems.len()), (both.to_vec(), 0), "{:?}", known.problems);
        fs::set_permissions(&mappings, fs::Permissions::from_mode(0o777)).unwrap();
        let known = jobs.observe(&NodeGpus::default()).unwrap();
        assert_eq!(holders(&known), both);
        let problem = known.problems.first().unwrap();
        assert!(problem.contains("run/gpustat: others than root"), "{problem}");
    }

    #[test]
    fn processes_that_never_tell_their_environment_neither_hold_nor_stop_anything() {
        let (root, mut jobs) = host_with_a_record();
        let scope = root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope");
        let proc = |pid: u32| root.path().join(format!("proc/{pid}"));
        let step = |job: u32, step: u32, pids: &[u32]| {
            let task = scope.join(format!("job_{job}/step_{step}/user/task_0"));
            fs::create_dir_all(&task).unwrap();
            let lines = pids.iter().map(|pid| format!("{pid}\n")).collect::<String>();
            fs::write(task.join("cgroup.procs"), lines).unwrap();
            pids.iter().for_each(|pid| fs::create_dir_all(proc(*pid)).unwrap());
        };
        let record = |job: u32| root.path().join(format!("run/gpumeter-slurm/{job}"));
        step(211, 0, &[71]);
        step(211, 1, &[72, 73]);
        for pid in [71, 72] {
            // Nobody writes into it, so opening it waits for ever.
            assert!(
                std::process::Command::new("mkfifo")
                    .arg(proc(pid).join("environ"))
                    .status()
                    .unwrap()
                    .success()
            );
        }
        fs::write(proc(73).join("environ"), "SLURM_JOB_ID=211\0SLURM_ARRAY_JOB_ID=210\0").unwrap();
        let array =
            |known: &JobHoldings| known.allocations.first()?.holder.facts.get(Fact::SlurmArrayJob).cloned();
        let mut known = jobs.observe(&NodeGpus::default()).unwrap();
        assert_eq!(holders(&known), ["slurm:alpha/211"]);
        while array(&known).as_deref() != Some("210") {
            known = jobs.observe(&NodeGpus::default()).unwrap();
        }
        let other = fs::read_to_string(record(211)).unwrap().replace("211", "212");
        fs::write(record(212), other).unwrap();
        step(212, 0, &[]);
        fs::remove_file(record(211)).unwrap();
        fs::remove_dir_all(scope.join("job_211")).unwrap();
        assert_eq!(holders(&jobs.observe(&NodeGpus::default()).unwrap()), ["slurm:alpha/212"]);
    }

    #[test]
    fn what_a_job_held_stays_until_its_processes_are_read_or_its_cgroup_is_gone() {
        let (root, mut jobs) = host_with_a_record();
        let held = |job: &str| {
            let facts = crate::model::Facts::new([(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, job)]);
            let holder = crate::model::Holder::new(crate::model::HolderKind::Slurm, facts);
            let (fraction, source) = (crate::model::Fraction::WHOLE, HoldingSource::Slurm);
            Allocation::new(&holder, GPU, fraction, source)
        };
        let step = root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope/job_212/step_0");
        fs::create_dir_all(&step).unwrap();
        let known = jobs.observe(&NodeGpus::default()).unwrap();
        let stays = |jobs: &HostJobs, job| jobs.is_still_unknown(&held(job), &known);
        assert!(stays(&jobs, "212"), "its process has not been read");
        assert!(!stays(&jobs, "213"), "it has no cgroup");
        assert!(!stays(&jobs, "211"), "its record decides");
        fs::write(step.join("cgroup.procs"), "71\n").unwrap();
        fs::create_dir_all(root.path().join("proc/71")).unwrap();
        fs::write(root.path().join("proc/71/environ"), "SLURM_JOB_ID=212\0").unwrap();
        while stays(&jobs, "212") {
            jobs.observe(&NodeGpus::default()).unwrap();
        }
        let cgroups = jobs.host.slurm_cgroups().unwrap();
        let may_run = ["212", "213"].map(|job| may_run(job, cgroups.as_deref()));
        assert_eq!(may_run, [true, false]);
    }

    #[test]
    fn more_records_than_are_read_are_told() {
        let (root, mut jobs) = host_with_a_record();
        for number in 0..MOST_RECORDS {
            fs::write(root.path().join(format!("run/gpustat/{number}")), "").unwrap();
        }
        assert!(jobs.observe(&NodeGpus::default()).unwrap().problems.is_empty());
        fs::write(root.path().join("run/gpustat/x"), "").unwrap();
        let known = jobs.observe(&NodeGpus::default()).unwrap();
        let problem = known.problems.first().unwrap();
        assert!(problem.contains("run/gpustat has more than 4096 files"), "{problem}");
    }

    #[test]
    fn the_map_has_a_line_for_each_gpu_and_no_directory_is_made_for_it() {
        let place = tempfile::tempdir().unwrap();
        let path = map_beside(&place.path().join("gpumeter-slurm"));
        let directory = place.path().join("gpumeter");
        fs::create_dir(&directory).unwrap();
        let minors = BTreeMap::from([(8, "GPU-b".to_owned()), (0, "GPU-a".to_owned())]);
        write_map(&path, &minors).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "0 GPU-a\n8 GPU-b\n");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
        let error = write_map(&place.path().join("missing/gpus"), &minors).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

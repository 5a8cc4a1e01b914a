//! The thread that reads the job records of Slurm's prolog, and writes the map of minor numbers that the prolog reads.
//!
//! It reads the directory of the records once per second, and that of other exporters' mapping files where one is
//! configured; on a node without these directories it does nothing more. While one of them cannot be read, its last
//! content stays in force. The map `gpus`, with a line `MINOR UUID` for each GPU, stays when the agent ends, since jobs
//! start meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::{fs, io};

use super::{FIRST_ROUND_TIMEOUT, POLL_INTERVAL, Resolvers, log_new_problems, replace};
use crate::clock::system_now;
use crate::config::SlurmConfig;
use crate::holders::{JobHoldings, JobObservation, JobRecord, JobTracker, NodeGpus};
use crate::host::Host;
use crate::host::slurm::{self, JobCgroup, MOST_RECORDS, RecordFile, StepEnvironment};
use crate::model::{HoldingSource, UnattributedReason};
use crate::thread::{self, Thread};

/// The map that the prolog of the host's Slurm reads.
const MAP_OF_HOST: &str = "/run/gpumeter/gpus";

/// Starts the thread where the configuration names a directory.
pub(super) fn start(shared: &Arc<Resolvers>) -> Result<(), thread::Error> {
    let configured = shared.config.active().config.attribution.slurm.clone();
    let Some(jobs) = HostJobs::new(shared.host.clone(), &configured) else { return Ok(()) };
    let rounds = JobRounds {
        map: configured.records.map(|records| shared.host.path(&map_beside(&records))),
        jobs,
        written: None,
        has_map_failed: false,
        problems: BTreeSet::new(),
    };
    shared.update_workloads(|workloads| workloads.awaited.push(UnattributedReason::Job));
    let shared = Arc::clone(shared);
    let (done, first_round) = mpsc::channel();
    Thread::start("jobs", move || rounds.run(&shared, done))?;
    let _ = first_round.recv_timeout(FIRST_ROUND_TIMEOUT);
    Ok(())
}

/// The path of the map of minor numbers for a directory of records. The map is in the agent's own directory beside that
/// one, which belongs to root.
pub(crate) fn map_beside(records: &Path) -> PathBuf {
    records.with_file_name("gpumeter").join("gpus")
}

/// The jobs of a host, tracked from round to round.
pub(crate) struct HostJobs {
    host: Host,
    /// The directory of records, where one is configured.
    records: Option<PathBuf>,
    /// The directory of mapping files, where one is configured.
    mappings: Option<PathBuf>,
    /// The mapping files as they were last read.
    last_mappings: Vec<RecordFile>,
    jobs: JobTracker,
    /// The path of slurmd's configuration, from a record.
    configuration: Option<String>,
    /// Name of the cluster in `slurm.conf`, once it was needed.
    cluster: Option<String>,
    /// By directory of the step's cgroup.
    environments: BTreeMap<PathBuf, JobStep>,
}

/// The environment of a step, with the number of its job.
struct JobStep {
    job: String,
    environment: StepEnvironment,
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
            host,
        })
    }

    /// The text of `slurm.conf` of this node.
    pub(crate) fn configuration(&self) -> Option<String> {
        self.host.slurm_configuration(self.configuration.as_deref())
    }

    /// The configured directories, in words.
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
        let cgroups = self.host.slurm_cgroups()?;
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
        self.read_environments(cgroups.as_deref().unwrap_or_default());
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
            environments.entry(step.job.clone()).or_default().push(step.environment.clone());
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

    /// Reads the environment of each step once, as soon as it has a process.
    fn read_environments(&mut self, cgroups: &[JobCgroup]) {
        let steps = || cgroups.iter().flat_map(|job| job.steps.iter().map(move |step| (step, job.number())));
        self.environments.retain(|known, _| steps().any(|(step, _)| step == known));
        for (step, job) in steps() {
            let Some(job) = job.filter(|_| !self.environments.contains_key(step)) else { continue };
            if let Some(environment) = self.host.slurm_environment(step, job) {
                self.environments.insert(step.clone(), JobStep { job: job.to_owned(), environment });
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

/// The rounds of the thread.
struct JobRounds {
    /// The path of the map, where a directory of records is configured.
    map: Option<PathBuf>,
    jobs: HostJobs,
    /// The content of the map as last written.
    written: Option<BTreeMap<u32, String>>,
    /// Whether the last write of the map failed.
    has_map_failed: bool,
    /// Problems of the last round, which were logged.
    problems: BTreeSet<String>,
}

impl JobRounds {
    fn run(mut self, shared: &Resolvers, done: mpsc::Sender<()>) {
        let mut done = Some(done);
        loop {
            let gpus = node_gpus(shared);
            self.write_map(shared, &gpus.minors);
            self.run_round(shared, &gpus);
            drop(done.take());
            if shared.stop.wait(POLL_INTERVAL) {
                return;
            }
        }
    }

    fn run_round(&mut self, shared: &Resolvers, gpus: &NodeGpus) {
        let status = &shared.statuses.jobs;
        let directory = self.jobs.directories();
        match self.jobs.observe(gpus) {
            Ok(known) => {
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
                if status.record_failure(error.kind() == ErrorKind::NotFound) {
                    tracing::warn!(directory, %error, "records of jobs cannot be read; holdings of jobs stay as they were");
                }
            }
        }
    }

    /// Writes the map where it has changed. GPUs of a simulated driver are not the host's, so they are never written to
    /// the host's own map.
    fn write_map(&mut self, shared: &Resolvers, minors: &BTreeMap<u32, String>) {
        let Some(map) = &self.map else { return };
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

/// The GPUs as the driver lists them; before that, their minor numbers from the kernel.
fn node_gpus(shared: &Resolvers) -> NodeGpus {
    let mut found = NodeGpus::default();
    if let Some(published) = shared.pages.get() {
        let (mut indices, mut instances) = (BTreeMap::new(), BTreeMap::<_, Vec<String>>::new());
        let gpus = published.snapshot.roster.gpus.iter().zip(&published.snapshot.gpus);
        for gpu in gpus.filter(|(_, state)| state.present).map(|(gpu, _)| gpu) {
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
    let temporary = path.with_file_name(".gpus.new");
    fs::write(&temporary, text)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o644))?;
    fs::rename(&temporary, path)
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

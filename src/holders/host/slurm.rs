//! Slurm's files on a node: job records of its prolog, cgroups and step environments of jobs, configuration files.
//!
//! What records and variables say is interpreted in `holders`.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Host, untrusted};

pub const MOST_RECORDS: usize = 4_096;

/// Largest size of a record in bytes; the prolog's records have less than a tenth of that.
const MOST_BYTES: u64 = 16 * 1024;

const MOST_PIDS: usize = 64;

/// The variables that are used. No other is kept, since a user may set as many as he likes.
const VARIABLES: [&str; 10] = [
    "SLURMD_NODENAME",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_CLUSTER_NAME",
    "SLURM_HET_JOB_ID",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_NAME",
    "SLURM_SHARDS_ON_NODE",
    "SLURM_STEP_GPUS",
    "SLURM_STEP_ID",
];

/// Number of the job; of the components of a heterogeneous job, with the component's number behind it.
const JOB_VARIABLES: [&str; 2] = ["SLURM_JOB_ID", "SLURM_JOB_ID_HET_GROUP_"];

/// Number of a heterogeneous job, which is that of its first component.
const FIRST_COMPONENT: &str = "SLURM_JOB_ID_HET_GROUP_0";

const MOST_CGROUPS: usize = 8_192;

/// Paths of the configuration file: written by hand, then cached by slurmd (configless).
const CONFIGURATIONS: [&str; 4] = [
    "etc/slurm/slurm.conf",
    "etc/slurm-llnl/slurm.conf",
    "run/slurm/conf/slurm.conf",
    "var/spool/slurmd/conf-cache/slurm.conf",
];

/// Version of a file, which orders files by the time of writing: time of modification in seconds and nanoseconds, and
/// inode.
pub type FileVersion = (i64, i64, u64);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordFile {
    pub name: String,
    pub version: FileVersion,
    pub bytes: Result<Vec<u8>, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobCgroup {
    /// Number of the job, or its SLUID.
    pub name: String,
    /// Number of the job where the name is a SLUID and its slurmstepd has been asked.
    pub job: Option<String>,
    /// Directories of the cgroups of its steps, in all hierarchies.
    pub steps: Vec<PathBuf>,
}

impl JobCgroup {
    pub fn number(&self) -> Option<&str> {
        self.job.as_deref().or_else(|| (!self.is_named_by_sluid()).then_some(&*self.name))
    }

    pub fn is_named_by_sluid(&self) -> bool {
        self.name.starts_with('s')
    }

    pub fn slurmstepds(&self) -> Vec<u32> {
        let first = |step: &PathBuf| {
            let pids = untrusted::read_text(&step.join("slurm/cgroup.procs"));
            pids.lines().next()?.parse::<u32>().ok()
        };
        self.steps.iter().filter_map(first).take(MOST_PIDS).collect()
    }
}

/// The variables of Slurm in a process of a step. Slurm sets them; the user may have changed them since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepEnvironment {
    /// Number of the job.
    pub job: String,
    /// The step, as its cgroup names it: a number, `batch`, `extern` or `interactive`.
    pub step: String,
    pub uid: u32,
    pub variables: BTreeMap<String, String>,
}

impl StepEnvironment {
    /// The node that the step runs on, where several slurmd are on one machine.
    pub fn node(&self) -> Option<&str> {
        self.variables.get("SLURMD_NODENAME").map(String::as_str)
    }
}

/// Reads the records in a directory, by name; hidden files are incomplete. Records decide who pays, so the directory
/// must be writable only by root or the agent's own user. At most one more than [`MOST_RECORDS`] is read.
pub fn read_records(directory: &Path) -> io::Result<Vec<RecordFile>> {
    let with_path = |error| add_path(error, directory);
    let about = fs::metadata(directory).map_err(with_path)?;
    let is_own = about.uid() == 0 || about.uid() == rustix::process::geteuid().as_raw();
    if !is_own || about.mode() & 0o022 != 0 {
        return Err(with_path(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "others than root can write there; give the directory to root with mode 0755",
        )));
    }
    let entries = fs::read_dir(directory).map_err(with_path)?.filter_map(Result::ok);
    let mut files: Vec<RecordFile> =
        entries.filter_map(|entry| read_record(&entry)).take(MOST_RECORDS + 1).collect();
    files.sort();
    Ok(files)
}

fn read_record(entry: &DirEntry) -> Option<RecordFile> {
    let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'))?;
    let about = entry.metadata().ok()?;
    let bytes = if !about.is_file() {
        Err("it is no regular file".to_owned())
    } else if about.len() > MOST_BYTES {
        Err("it is longer than 16 KiB".to_owned())
    } else {
        untrusted::read(&entry.path(), MOST_BYTES).map_err(|error| error.to_string())
    };
    Some(RecordFile { name, version: (about.mtime(), about.mtime_nsec(), about.ino()), bytes })
}

/// The processes in the cgroup of a step, except slurmstepd's own, up to a limit.
pub fn step_pids(step: &Path) -> Vec<u32> {
    let mut pids = Vec::new();
    collect_pids(step, 3, &mut pids);
    pids.truncate(MOST_PIDS);
    pids
}

impl Host {
    /// The jobs of Slurm that have cgroups: below `slurmstepd.scope` on v2, below `slurm` of any controller on v1; none
    /// where there is no Slurm.
    pub fn slurm_cgroups(&self) -> io::Result<Option<Vec<JobCgroup>>> {
        let mut found = None;
        for hierarchy in directories(&self.root.join("sys/fs/cgroup"))? {
            let parts = match directories(&hierarchy.path()) {
                // A directory that the agent may not read is not Slurm's.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                parts => parts?,
            };
            for part in parts {
                let Ok(name) = part.file_name().into_string() else { continue };
                if name.ends_with("slurmstepd.scope") {
                    found.get_or_insert_with(Vec::new).extend(self.job_cgroups(&part.path())?);
                } else if name == "slurm" || name.starts_with("slurm_") {
                    let found = found.get_or_insert_with(Vec::new);
                    for user in directories(&part.path())? {
                        found.extend(self.job_cgroups(&user.path())?);
                    }
                }
            }
        }
        Ok(found.map(merge_hierarchies))
    }

    fn job_cgroups(&self, directory: &Path) -> io::Result<Vec<JobCgroup>> {
        let mut jobs = Vec::new();
        for entry in directories(directory)? {
            let (Ok(name), path) = (entry.file_name().into_string(), entry.path()) else { continue };
            if let Some(number) = name.strip_prefix("job_") {
                jobs.push(JobCgroup { name: number.to_owned(), job: None, steps: step_cgroups(&path)? });
            } else if name.len() == 14 && name.starts_with('s') {
                jobs.push(JobCgroup { job: None, name, steps: step_cgroups(&path)? });
            }
        }
        Ok(jobs)
    }

    /// The number of the job that a slurmstepd runs, which calls itself `slurmstepd: [3385.0]`. It may wait for ever.
    pub fn slurmstepd_job(&self, pid: u32) -> Option<String> {
        let command = untrusted::read_waiting(&self.root.join(format!("proc/{pid}/cmdline"))).ok()?;
        let (job, _) =
            std::str::from_utf8(&command).ok()?.strip_prefix("slurmstepd: [")?.split_once(['.', ']'])?;
        (!job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit())).then(|| job.to_owned())
    }

    /// What the environment of a process in that step's cgroup says of the step; none where it is not of that job. It
    /// may wait for ever.
    pub fn slurm_environment(&self, step: &Path, job: &str, pid: u32) -> Option<StepEnvironment> {
        let name = step.file_name()?.to_str()?.strip_prefix("step_")?;
        let process = self.root.join(format!("proc/{pid}"));
        let uid = fs::metadata(&process).ok()?.uid();
        let bytes = untrusted::read_waiting(&process.join("environ")).ok()?;
        let variables = bytes.split(|byte| *byte == 0).filter_map(parse_variable).collect();
        let variables = select_variables(variables, job)?;
        Some(StepEnvironment { job: job.to_owned(), step: name.to_owned(), uid, variables })
    }

    /// The text of `slurm.conf` of this node; `reported` is the path that slurmd passed to the prolog.
    pub fn slurm_configuration(&self, reported: Option<&str>) -> Option<String> {
        let reported = reported.map(|path| path.trim_start_matches('/'));
        let paths = reported.into_iter().chain(CONFIGURATIONS);
        paths.map(|path| self.root.join(path)).find_map(|path| read_configuration(&path))
    }
}

/// One entry per job: a job is in several hierarchies, and below several slurmd of one machine.
fn merge_hierarchies(mut jobs: Vec<JobCgroup>) -> Vec<JobCgroup> {
    jobs.sort();
    jobs.dedup_by(|later, first| {
        let is_same = later.name == first.name;
        if is_same {
            first.job = first.job.take().or_else(|| later.job.take());
            first.steps.append(&mut later.steps);
        }
        is_same
    });
    jobs
}

/// The variables that apply to that job and are used; none where they belong to another job. A component of a heterogeneous job has
/// its number in a variable of its own, beside number, GPUs and shards of the first component.
fn select_variables(mut variables: BTreeMap<String, String>, job: &str) -> Option<BTreeMap<String, String>> {
    let [of_job, of_component] = JOB_VARIABLES;
    let is_first = variables.get(of_job).is_some_and(|number| number == job);
    let is_component = |(name, number): (&String, &String)| name.starts_with(of_component) && number == job;
    if !is_first && !variables.iter().any(is_component) {
        return None;
    }
    let is_of_first = |name: &str| matches!(name, "SLURM_JOB_GPUS" | "SLURM_SHARDS_ON_NODE");
    let is_used = |name: &str| VARIABLES.contains(&name) || name == FIRST_COMPONENT;
    variables.retain(|name, _| is_used(name) && (is_first || !is_of_first(name)));
    Some(variables)
}

fn parse_variable(line: &[u8]) -> Option<(String, String)> {
    let (name, value) = std::str::from_utf8(line).ok()?.split_once('=')?;
    let [of_job, of_component] = JOB_VARIABLES;
    let is_known = VARIABLES.contains(&name) || name == of_job || name.starts_with(of_component);
    let is_plain = name.len() <= 64 && value.len() <= 1024 && !value.contains(char::is_control);
    (is_known && is_plain).then(|| (name.to_owned(), value.to_owned()))
}

fn collect_pids(cgroup: &Path, levels: u8, pids: &mut Vec<u32>) {
    let listed = untrusted::read_text(&cgroup.join("cgroup.procs"));
    pids.extend(listed.lines().filter_map(|line| line.parse::<u32>().ok()));
    if levels == 0 {
        return;
    }
    // An error counts as no process: a step without processes is read again in the next round.
    for below in directories(cgroup).unwrap_or_default().iter().filter(|below| below.file_name() != "slurm") {
        collect_pids(&below.path(), levels - 1, pids);
    }
}

/// The directories in a directory; none where it is gone. Other errors are returned, since a job without a visible
/// cgroup would count as ended.
pub(super) fn directories(path: &Path) -> io::Result<Vec<DirEntry>> {
    let mut directories = Vec::new();
    let entries = match fs::read_dir(path) {
        Err(error) if is_gone(&error) => return Ok(directories),
        entries => entries.map_err(|error| add_path(error, path))?,
    };
    for entry in entries.take(MOST_CGROUPS) {
        let entry = entry.map_err(|error| add_path(error, path))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories.push(entry);
        }
    }
    Ok(directories)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

fn add_path(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The cgroups of a job's steps, by name.
fn step_cgroups(job: &Path) -> io::Result<Vec<PathBuf>> {
    let is_step = |entry: &DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with("step_"));
    let directories = directories(job)?;
    let mut steps: Vec<PathBuf> =
        directories.iter().filter(|entry| is_step(entry)).map(DirEntry::path).collect();
    steps.sort();
    Ok(steps)
}

pub fn find_setting<'a>(configuration: &'a str, key: &str) -> Option<&'a str> {
    let lines = configuration.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut words = lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('='));
    words.find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
}

/// Reads the copy of `gres.conf` that the prolog writes into the directory of the records, as a hidden file.
pub fn read_gres(records: &Path) -> Option<String> {
    read_configuration(&records.join(".gres.conf"))
}

fn read_configuration(path: &Path) -> Option<String> {
    const MOST: u64 = 1024 * 1024;
    untrusted::read(path, MOST).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn cgroups_of_jobs_are_found_on_both_versions_and_with_several_slurmd() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Host::at(root.path()).slurm_cgroups().unwrap(), None);
        let make = |path: &str| fs::create_dir_all(root.path().join("sys/fs/cgroup").join(path)).unwrap();
        make("system.slice/ssh.service/job_1");
        assert_eq!(Host::at(root.path()).slurm_cgroups().unwrap(), None, "no Slurm");
        make("system.slice/slurmstepd.scope/system");
        assert_eq!(Host::at(root.path()).slurm_cgroups().unwrap(), Some(vec![]));
        make("system.slice/slurmstepd.scope/job_211/step_extern/user/task_0");
        make("system.slice/node1_slurmstepd.scope/job_212");
        make("memory/slurm/uid_1000/job_7/step_0");
        make("cpuset/slurm/uid_1000/job_7/step_0");
        make("freezer/slurm_node1/uid_1000/job_8");
        let found = Host::at(root.path()).slurm_cgroups().unwrap().unwrap();
        let names: Vec<&str> = found.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["211", "212", "7", "8"]);
        let steps: Vec<usize> = found.iter().map(|job| job.steps.len()).collect();
        assert_eq!(steps, [1, 0, 2, 0], "of all hierarchies");
        assert_eq!(found[0].number(), Some("211"));
    }

    #[test]
    fn cgroups_that_cannot_be_read_are_an_error_and_no_end_of_all_jobs() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/fs")).unwrap();
        fs::write(root.path().join("sys/fs/cgroup"), "").unwrap();
        let error = Host::at(root.path()).slurm_cgroups().unwrap_err();
        assert!(error.to_string().contains("sys/fs/cgroup"), "{error}");
    }

    #[test]
    fn the_environment_of_a_step_is_that_of_a_process_that_has_the_jobs_number() {
        let root = tempfile::tempdir().unwrap();
        let step = root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope/job_211/step_0");
        fs::create_dir_all(step.join("user/task_0")).unwrap();
        fs::create_dir_all(step.join("slurm")).unwrap();
        fs::write(step.join("slurm/cgroup.procs"), "70\n").unwrap();
        fs::write(step.join("user/task_0/cgroup.procs"), "71\n72\n73\n").unwrap();
        let process = |pid: u32, environment: &[u8]| {
            fs::create_dir_all(root.path().join(format!("proc/{pid}"))).unwrap();
            fs::write(root.path().join(format!("proc/{pid}/environ")), environment).unwrap();
        };
        let host = Host::at(root.path());
        let read = || {
            let found =
                step_pids(&step).into_iter().find_map(|pid| host.slurm_environment(&step, "211", pid));
            found.map(|found| found.variables)
        };
        assert_eq!(read(), None);
        process(70, b"SLURM_JOB_ID=211\0SLURM_JOB_GPUS=7\0");
        process(71, b"PATH=/bin\0SLURM_JOB_ID=1\0SLURM_JOB_GPUS=0\0");
        process(72, b"SLURM_JOB_ID\0=\0\xff=\xff\0");
        assert_eq!(
            read(),
            None,
            "slurmstepd is no process of the job, and another number is not the cgroup's"
        );
        process(73, b"HOME=/\0SLURM_JOB_ID=211\0SLURM_JOB_GPUS=3\0SLURM_STEP_ID=a\nb\0");
        assert_eq!(read(), Some([("SLURM_JOB_GPUS".to_owned(), "3".to_owned())].into()));
    }

    #[test]
    fn of_a_large_environment_only_what_is_used_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let mut environment = b"SLURM_JOB_ID=211\0SLURMD_NODENAME=node1\0SLURM_STEP_GPUS=0\0".to_vec();
        for number in 0..1_000 {
            environment
                .extend(format!("SLURM_JOB_ID_HET_GROUP_{number}=9\0SLURM_OTHER_{number}=x\0").bytes());
        }
        environment.resize(1 << 20, b'x');
        fs::create_dir_all(root.path().join("proc/7")).unwrap();
        fs::write(root.path().join("proc/7/environ"), environment).unwrap();
        let found = Host::at(root.path()).slurm_environment(Path::new("step_0"), "211", 7).unwrap();
        let names: Vec<&str> = found.variables.keys().map(String::as_str).collect();
        assert_eq!(names, ["SLURMD_NODENAME", FIRST_COMPONENT, "SLURM_STEP_GPUS"]);
        assert_eq!(found.node(), Some("node1"));
    }

    #[test]
    fn a_component_of_a_heterogeneous_job_is_not_what_the_environment_says_of_the_first_one() {
        // As Slurm 22.05 has it in a step of both components, that of job 3.
        let variables = [
            ("SLURM_JOB_ID", "2"),
            ("SLURM_JOB_GPUS", "2,3"),
            ("SLURM_JOB_ID_HET_GROUP_0", "2"),
            ("SLURM_JOB_ID_HET_GROUP_1", "3"),
            ("SLURM_STEP_GPUS", "0"),
        ];
        let variables = BTreeMap::from(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let value = |job: &str, name: &str| select_variables(variables.clone(), job)?.get(name).cloned();
        assert_eq!(value("2", "SLURM_JOB_GPUS").as_deref(), Some("2,3"));
        assert_eq!(value("3", "SLURM_JOB_GPUS"), None);
        assert_eq!(value("3", "SLURM_STEP_GPUS").as_deref(), Some("0"));
        assert_eq!(select_variables(variables, "4"), None);
    }

    #[test]
    fn a_sluid_is_resolved_by_the_name_of_its_slurmstepd() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let scope = root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope");
        fs::create_dir_all(scope.join("s5K1KKYAYG5D00/step_0/slurm")).unwrap();
        let cgroup = || host.slurm_cgroups().unwrap().unwrap().remove(0);
        assert_eq!((cgroup().number(), cgroup().slurmstepds()), (None, vec![]));
        fs::write(scope.join("s5K1KKYAYG5D00/step_0/slurm/cgroup.procs"), "77\n").unwrap();
        fs::create_dir_all(root.path().join("proc/77")).unwrap();
        assert!(cgroup().is_named_by_sluid());
        assert_eq!(cgroup().slurmstepds(), [77]);
        for (command, job) in [
            ("slurmstepd: [3385.0]\0\0", Some("3385")),
            ("slurmstepd: [3385.extern]", Some("3385")),
            ("slurmstepd: [x.0]", None),
            ("slurmstepd: [.0]", None),
            ("python3\0slurmstepd: [1.0]", None),
        ] {
            fs::write(root.path().join("proc/77/cmdline"), command).unwrap();
            assert_eq!(host.slurmstepd_job(77).as_deref(), job, "{command:?}");
        }
    }

    #[test]
    fn records_are_files_that_are_complete_and_in_a_directory_of_root() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("slurm");
        assert_eq!(read_records(&directory).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.join("7"), "job_id=7\n").unwrap();
        fs::write(directory.join(".8.tmp"), "job_id=8\n").unwrap();
        fs::write(directory.join("9"), vec![b'x'; 20_000]).unwrap();
        symlink("/etc/shadow", directory.join("link")).unwrap();
        let read = read_records(&directory).unwrap();
        let names: Vec<&str> = read.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["7", "9", "link"]);
        assert_eq!(read[0].bytes.as_deref(), Ok(&b"job_id=7\n"[..]));
        assert!(read[1].bytes.is_err() && read[2].bytes.is_err());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(read_records(&directory).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}

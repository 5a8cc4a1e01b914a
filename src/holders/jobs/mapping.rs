//! Job mapping files, which tell jobstats and dcgm-exporter the jobs of a GPU.
//!
//! A file is named after a GPU or MIG instance: its UUID, the driver's index of the GPU, or `INDEX.INSTANCE`. Each line
//! is a job number, followed by the uid of the owner where jobstats wrote it.

use std::collections::{BTreeMap, BTreeSet};

use super::NodeGpus;
use crate::holders::host::slurm::{FileVersion, RecordFile};
use crate::holders::resolved_workloads::{is_uuid, parse_number};

const MOST_JOBS: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MappedJob {
    /// The owner, where a file names one.
    pub(super) uid: Option<u32>,
    /// UUIDs of the GPUs and MIG instances whose files name it.
    pub(super) gpus: BTreeSet<String>,
    pub(super) files: BTreeSet<String>,
    /// Version of the file that was written last.
    pub(super) version: FileVersion,
}

/// Reads the jobs that the files name, by job number, and adds a problem for each file that is refused.
pub(super) fn read_jobs(
    files: &[RecordFile],
    gpus: &NodeGpus,
    problems: &mut BTreeSet<String>,
) -> BTreeMap<String, MappedJob> {
    let mut jobs: BTreeMap<String, MappedJob> = BTreeMap::new();
    for file in files {
        let parsed = file.bytes.as_deref().map_err(String::clone).and_then(|bytes| {
            let named = parse(bytes)?;
            Ok((if named.is_empty() { Vec::new() } else { find_uuids(&file.name, gpus)? }, named))
        });
        let (uuids, named) = match parsed {
            Ok(parsed) => parsed,
            Err(reason) => {
                problems.insert(format!("the job mapping file {:?} is ignored: {reason}", file.name));
                continue;
            }
        };
        for (job, uid) in named {
            let job = jobs.entry(job).or_default();
            job.uid = job.uid.or(uid);
            job.gpus.extend(uuids.iter().cloned());
            job.files.insert(file.name.clone());
            job.version = job.version.max(file.version);
        }
    }
    jobs
}

/// Finds the UUIDs that a file name stands for: a GPU, or the compute instances of a MIG instance.
fn find_uuids(name: &str, gpus: &NodeGpus) -> Result<Vec<String>, String> {
    if is_uuid(name) {
        return Ok(vec![name.to_owned()]);
    }
    let found = match (name.split_once('.'), &gpus.indices, &gpus.instances) {
        (None, Some(indices), _) => {
            parse_number(name).and_then(|index| indices.get(&index)).map(|uuid| vec![uuid.clone()])
        }
        (Some((index, instance)), _, Some(instances)) => {
            let id = parse_number(index).zip(parse_number(instance));
            id.and_then(|id| instances.get(&id)).cloned()
        }
        // The driver has not reported its GPUs yet, so the name may be valid.
        (None, None, _) | (Some(_), _, None) => return Ok(Vec::new()),
    };
    found.ok_or_else(|| {
        "its name is neither a UUID nor a GPU (INDEX) or MIG instance (INDEX.INSTANCE) of this node"
            .to_owned()
    })
}

/// Number and owner of each job; a file is emptied when its job ends.
fn parse(bytes: &[u8]) -> Result<Vec<(String, Option<u32>)>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.len() > MOST_JOBS {
        return Err(format!("it names more than {MOST_JOBS} jobs"));
    }
    lines
        .into_iter()
        .map(|line| parse_job(line).ok_or_else(|| format!("{line:.80?} is not a job number")))
        .collect()
}

fn parse_job(line: &str) -> Option<(String, Option<u32>)> {
    let mut words = line.split_ascii_whitespace();
    let job = words.next().and_then(parse_number)?;
    let uid = words.next().map(|uid| parse_number(uid).ok_or(())).transpose().ok()?;
    words.next().is_none().then(|| (job.to_string(), uid))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GPU: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
    const OTHER: &str = "GPU-00000000-052c-4b11-80d3-4d7b2d2d3464";
    const INSTANCE: &str = "MIG-00000000-052c-4b11-80d3-4d7b2d2d3464";

    fn gpus() -> NodeGpus {
        NodeGpus {
            minors: BTreeMap::new(),
            indices: Some([(0, GPU.to_owned()), (1, OTHER.to_owned())].into()),
            instances: Some([((1, 7), vec![INSTANCE.to_owned()])].into()),
        }
    }

    type NamedJob = (String, Option<u32>, Vec<String>);

    fn read(files: &[(&str, &str)]) -> (Vec<NamedJob>, Vec<String>) {
        let file = |(name, text): &(&str, &str)| {
            let (name, bytes) = ((*name).to_owned(), Ok(text.as_bytes().to_vec()));
            RecordFile { name, version: (1, 0, 0), bytes }
        };
        let files: Vec<RecordFile> = files.iter().map(file).collect();
        let mut problems = BTreeSet::new();
        let jobs = read_jobs(&files, &gpus(), &mut problems);
        let jobs = jobs.into_iter().map(|(job, known)| (job, known.uid, known.gpus.into_iter().collect()));
        (jobs.collect(), problems.into_iter().collect())
    }

    #[test]
    fn files_of_jobstats_name_one_job_and_its_owner_by_index_and_by_uuid() {
        let files = [("0", "211 1000\n"), (GPU, "211 1000\n"), (INSTANCE, "45916256 262563\n")];
        let expected = vec![
            ("211".to_owned(), Some(1000), vec![GPU.to_owned()]),
            ("45916256".to_owned(), Some(262_563), vec![INSTANCE.to_owned()]),
        ];
        assert_eq!(read(&files), (expected, vec![]));
    }

    #[test]
    fn files_of_dcgm_exporter_name_jobs_line_by_line_of_a_gpu_or_an_instance() {
        let files = [("0", "211\n212"), ("1", "\n"), ("1.7", "213\n")];
        let expected = vec![
            ("211".to_owned(), None, vec![GPU.to_owned()]),
            ("212".to_owned(), None, vec![GPU.to_owned()]),
            ("213".to_owned(), None, vec![INSTANCE.to_owned()]),
        ];
        assert_eq!(read(&files), (expected, vec![]));
    }

    #[test]
    fn a_file_that_names_no_job_or_no_gpu_is_told_and_names_nothing() {
        let long = "7\n".repeat(300);
        for (name, text, reason) in [
            ("0", "job1\n", "not a job number"),
            ("0", "211 ada\n", "not a job number"),
            ("0", "211 1000 1\n", "not a job number"),
            ("0", "0211\n", "not a job number"),
            ("0", "-1\n", "not a job number"),
            ("0", "99999999999\n", "not a job number"),
            ("0", "7\n\u{1b}[2J\n", "not a job number"),
            ("0", &long, "more than 256"),
            ("2", "211\n", "of this node"),
            ("00", "211\n", "of this node"),
            ("1.8", "211\n", "of this node"),
            ("1.7.0", "211\n", "of this node"),
            ("jobs\n", "211\n", "of this node"),
            ("GPU-1", "211\n", "of this node"),
        ] {
            let (jobs, problems) = read(&[(name, text)]);
            assert!(jobs.is_empty(), "{name:?}: {jobs:?}");
            let [problem] = &problems[..] else { panic!("{problems:?}") };
            assert!(problem.contains(reason) && !problem.contains(char::is_control), "{problem}");
        }
    }

    #[test]
    fn before_the_driver_has_told_its_gpus_only_uuids_name_one() {
        let file =
            |name: &str| RecordFile { name: name.into(), version: (1, 0, 0), bytes: Ok(b"211\n".to_vec()) };
        let mut problems = BTreeSet::new();
        let jobs = read_jobs(&["0", "1.7", GPU].map(file), &NodeGpus::default(), &mut problems);
        assert_eq!(jobs["211"].gpus, [GPU.to_owned()].into());
        assert!(problems.is_empty(), "{problems:?}");
    }

    proptest! {
        #[test]
        fn any_file_is_read_without_a_panic(name in "\\PC{0,12}|[0-9.]{1,5}", text in "([0-9 ]{0,12}\n|\\PC{0,4}){0,9}") {
            read(&[(&name, &text)]);
        }
    }
}

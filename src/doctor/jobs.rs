//! Whether the prolog of Slurm records which jobs hold GPUs.

use std::path::PathBuf;

use super::{Finding, count_holders};
use crate::config::Config;
use crate::holders::{Allocation, NodeGpus, ResolvedWorkloads, SessionGpu};
use crate::host::{Host, slurm};
use crate::model::{Fact, HoldingSource};
use crate::resolvers::jobs::{HostJobs, map_beside};

/// Examines the records and the configuration of Slurm; no finding where there is no Slurm, or the configuration turns it
/// off. Adds what was learned to that of which processes are identified by. `gpus` are those that the driver told.
pub(super) fn jobs(
    config: &Config,
    (host, gpus): (&Host, Option<&[SessionGpu]>),
    workloads: &mut ResolvedWorkloads,
) -> Option<Finding> {
    let configured = &config.attribution.slurm;
    let mut jobs = HostJobs::new(host.clone(), configured)?;
    let gpus = node_gpus(host, gpus);
    // A job has ended without an epilog when its cgroup is missing twice.
    let observed = jobs.observe(&gpus).and_then(|_| jobs.observe(&gpus));
    let slurm = jobs.configuration();
    let is_there = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| host.path(path).exists());
    let has_cgroups = host.slurm_cgroups().is_ok_and(|cgroups| cgroups.is_some());
    let known = match observed {
        _ if slurm.is_none() && !has_cgroups && !is_there(&configured.records) => return None,
        Ok(known) => known,
        Err(error) => {
            let why = format!(
                "jobs hold nothing, since their records in {} cannot be read: {error}; the prolog of Slurm \
                 (packaging/slurm/prolog.sh) makes the directory with the first job",
                jobs.directories()
            );
            return Some(Finding::new("jobs", false, why));
        }
    };
    workloads.allocate(HoldingSource::Slurm, &known.allocations);
    let mut problems: Vec<String> = known.problems.iter().cloned().collect();
    problems.extend(slurm.as_deref().into_iter().flat_map(missing_flags));
    if configured.records.as_ref().is_some_and(|records| !host.path(&map_beside(records)).exists()) {
        problems.push("there is no map of GPUs for the prolog; a running agent writes it".to_owned());
    }
    if let Some(mapping) = configured.job_mapping_dir.as_ref().filter(|path| !host.path(path).exists()) {
        problems.push(format!(
            "{} (attribution.slurm.job_mapping_dir) does not exist; its prolog makes it with the first job",
            mapping.display()
        ));
    }
    // A step holds within its job.
    let of_jobs = |one: &&Allocation| one.holder.facts.get(Fact::SlurmStep).is_none();
    let of_jobs: Vec<Allocation> = known.allocations.iter().filter(of_jobs).cloned().collect();
    let summary = format!("records of Slurm tell that {} jobs hold GPUs", count_holders(&of_jobs));
    workloads.jobs = known.map.into();
    Some(Finding::with_problems("jobs", summary, &problems))
}

fn node_gpus(host: &Host, gpus: Option<&[SessionGpu]>) -> NodeGpus {
    let by_index = |gpu: &SessionGpu| Some((gpu.index?, gpu.uuid.to_string()));
    let indices = gpus.map(|gpus| gpus.iter().filter_map(by_index).collect());
    NodeGpus { minors: host.gpu_minors(), indices, instances: None }
}

/// What `slurm.conf` lacks.
fn missing_flags(slurm: &str) -> Option<String> {
    let flags = slurm::find_setting(slurm, "PrologFlags").unwrap_or_default();
    let has = |wanted: &[&str]| {
        flags.split(',').any(|flag| wanted.iter().any(|one| flag.eq_ignore_ascii_case(one)))
    };
    // Each of these implies Alloc; X11 implies Contain.
    if !has(&["alloc", "contain", "x11"]) {
        return Some(
            "slurm.conf has no PrologFlags=Alloc, so a job without a step is not recorded".to_owned(),
        );
    }
    let tracks = slurm::find_setting(slurm, "ProctrackType").unwrap_or("proctrack/cgroup");
    let lacks_contain = tracks.eq_ignore_ascii_case("proctrack/cgroup") && !has(&["contain", "x11"]);
    lacks_contain.then(|| {
        "slurm.conf has no PrologFlags=Contain, so a job has no cgroup while none of its steps runs, and holds nothing \
         where that lasts"
            .to_owned()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_node_without_slurm_has_no_finding_and_one_without_records_has() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let mut workloads = ResolvedWorkloads::default();
        assert!(jobs(&Config::default(), (&host, None), &mut workloads).is_none());
        fs::create_dir_all(root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope")).unwrap();
        let finding = jobs(&Config::default(), (&host, None), &mut workloads).unwrap();
        assert!(!finding.works && finding.why.contains("prolog.sh"), "{}", finding.why);
        let off = Config::parse("attribution: {slurm: {records: off}}", "test").unwrap();
        assert!(jobs(&off, (&host, None), &mut workloads).is_none());
        fs::create_dir_all(root.path().join("run/gpumeter-slurm")).unwrap();
        fs::create_dir_all(root.path().join("run/gpumeter")).unwrap();
        fs::write(root.path().join("run/gpumeter/gpus"), "0 GPU-x\n").unwrap();
        let finding = jobs(&Config::default(), (&host, None), &mut workloads).unwrap();
        assert!(finding.works, "{}", finding.why);
        fs::write(root.path().join("run/gpumeter-slurm/7"), "job_id=7\n").unwrap();
        let finding = jobs(&Config::default(), (&host, None), &mut workloads).unwrap();
        assert!(!finding.works && finding.why.contains("it has no cluster"), "{}", finding.why);
    }

    #[test]
    fn a_job_with_a_step_on_its_gpu_is_counted_once() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let gpu = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
        write("run/gpumeter/gpus", "");
        write("run/gpumeter-slurm/211", &format!("job_id=211\ncluster=alpha\ngpus={gpu}\n"));
        write(
            "proc/driver/nvidia/gpus/0000:01:00.0/information",
            &format!("GPU UUID: {gpu}\nDevice Minor: 0\n"),
        );
        let step = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_211/step_0";
        write(&format!("{step}/cgroup.procs"), "71\n");
        write("proc/71/environ", "SLURM_JOB_ID=211\0SLURM_STEP_ID=0\0SLURM_STEP_GPUS=0\0");
        let mut workloads = ResolvedWorkloads::default();
        let finding = jobs(&Config::default(), (&Host::at(root.path()), None), &mut workloads).unwrap();
        assert!(finding.works && finding.why.contains("that 1 jobs hold"), "{}", finding.why);
        let mut observed =
            HostJobs::new(Host::at(root.path()), &Config::default().attribution.slurm).unwrap();
        let known = observed.observe(&node_gpus(&Host::at(root.path()), None)).unwrap();
        assert_eq!(known.allocations.len(), 2, "of the job and of its step");
    }

    #[test]
    fn a_lost_epilog_is_found() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope")).unwrap();
        for directory in ["run/gpumeter-slurm", "run/gpumeter"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        fs::write(root.path().join("run/gpumeter/gpus"), "").unwrap();
        let record = root.path().join("run/gpumeter-slurm/211");
        let gpu = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
        fs::write(&record, format!("job_id=211\ncluster=alpha\ngpus={gpu}\n")).unwrap();
        let examine = || {
            jobs(&Config::default(), (&Host::at(root.path()), None), &mut ResolvedWorkloads::default())
                .unwrap()
        };
        assert!(examine().works, "it may have no cgroup yet");
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3_600);
        fs::File::options().write(true).open(&record).unwrap().set_modified(long_ago).unwrap();
        let finding = examine();
        assert!(!finding.works && finding.why.contains("does the epilog run?"), "{}", finding.why);
    }

    #[test]
    fn missing_flags_of_the_prolog_are_told() {
        for (slurm, missing) in [
            ("PrologFlags=Contain\n", None),
            ("ClusterName=a PROLOGFLAGS=serial,contain # x\n", None),
            ("PrologFlags=X11\n", None),
            ("PrologFlags=Alloc\nProctrackType=proctrack/linuxproc\n", None),
            ("PrologFlags=Alloc\n", Some("PrologFlags=Contain")),
            ("PrologFlags=Alloc ProctrackType=proctrack/cgroup\n", Some("PrologFlags=Contain")),
            ("#PrologFlags=Alloc\n", Some("PrologFlags=Alloc")),
            ("PrologFlags=Serial\n", Some("PrologFlags=Alloc")),
            ("", Some("PrologFlags=Alloc")),
        ] {
            let told = missing_flags(slurm);
            assert_eq!(told.is_some(), missing.is_some(), "{slurm}: {told:?}");
            assert!(told.unwrap_or_default().contains(missing.unwrap_or_default()), "{slurm}");
        }
    }

    #[test]
    fn mapping_files_of_other_exporters_are_read_where_they_are_configured() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let config = "attribution: {slurm: {records: off, job_mapping_dir: /run/gpustat}}";
        let config = Config::parse(config, "test").unwrap();
        let examine = || jobs(&config, (&host, None), &mut ResolvedWorkloads::default());
        assert!(examine().is_none(), "no Slurm");
        fs::create_dir_all(root.path().join("etc/slurm")).unwrap();
        fs::write(root.path().join("etc/slurm/slurm.conf"), "ClusterName=Alpha PrologFlags=Contain\n")
            .unwrap();
        let finding = examine().unwrap();
        assert!(!finding.works && finding.why.contains("/run/gpustat"), "{}", finding.why);
        fs::create_dir_all(root.path().join("run/gpustat")).unwrap();
        let gpu = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
        fs::write(root.path().join("run/gpustat").join(gpu), "211 1000\n").unwrap();
        let finding = examine().unwrap();
        assert!(finding.works && finding.why.contains("that 1 jobs hold"), "{}", finding.why);
        fs::write(root.path().join("run/gpustat/0"), "all\n").unwrap();
        let finding = examine().unwrap();
        assert!(!finding.works && finding.why.contains("is not a job number"), "{}", finding.why);
    }
}

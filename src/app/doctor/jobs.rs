//! Whether the prolog of Slurm records which jobs hold GPUs.

use std::path::Path;

use super::{Finding, count_holders};
use crate::app::jobs::{HostJobs, map_beside};
use crate::config::Config;
use crate::holders::{JobHoldings, Workloads};
use crate::host::Host;
use crate::model::HoldingSource;

/// Examines the records and the configuration of Slurm; no finding where there is no Slurm, or the configuration turns it
/// off. Adds what was learned to that of which processes are identified by.
pub(super) fn jobs(config: &Config, host: &Host, workloads: &mut Workloads) -> Option<Finding> {
    let records = config.attribution.slurm.records.as_ref()?;
    let directory = host.path(records);
    let mut jobs = HostJobs::new(host.clone(), directory.clone());
    let observed = jobs.observe(&host.gpu_minors());
    let slurm = jobs.configuration();
    let has_slurm = slurm.is_some() || host.slurm_cgroups().is_some() || directory.exists();
    let known = match observed {
        _ if !has_slurm => return None,
        Ok(known) => known,
        Err(error) => {
            let why = format!(
                "jobs hold nothing, since their records in {} cannot be read: {error}; the prolog of Slurm \
                 (packaging/slurm/prolog.sh) makes the directory with the first job",
                records.display()
            );
            return Some(Finding::new("jobs", false, why));
        }
    };
    workloads.allocate(HoldingSource::Slurm, &known.allocations);
    let finding =
        told(&known, slurm.as_deref(), host.path(&map_beside(records)).exists().then_some(&**records));
    workloads.jobs = known.map.into();
    Some(finding)
}

fn told(known: &JobHoldings, slurm: Option<&str>, map: Option<&Path>) -> Finding {
    let mut problems: Vec<String> = known.problems.iter().cloned().collect();
    if slurm.is_some_and(|text| !runs_prolog_at_allocation(text)) {
        problems
            .push("slurm.conf has no PrologFlags=Alloc, so a job without a step is not recorded".to_owned());
    }
    if map.is_none() {
        problems.push("there is no map of GPUs for the prolog; a running agent writes it".to_owned());
    }
    let summary = format!("records of Slurm tell that {} jobs hold GPUs", count_holders(&known.allocations));
    Finding::with_problems("jobs", summary, &problems)
}

/// Whether the prolog runs when a job is allocated: several flags imply that.
fn runs_prolog_at_allocation(slurm: &str) -> bool {
    let lines = slurm.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut words = lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('='));
    words.any(|(key, flags)| {
        let implies = |flag: &str| ["alloc", "contain", "x11"].contains(&&*flag.to_ascii_lowercase());
        key.eq_ignore_ascii_case("PrologFlags") && flags.split(',').any(implies)
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
        let mut workloads = Workloads::default();
        assert!(jobs(&Config::default(), &host, &mut workloads).is_none());
        fs::create_dir_all(root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope")).unwrap();
        let finding = jobs(&Config::default(), &host, &mut workloads).unwrap();
        assert!(!finding.works && finding.why.contains("prolog.sh"), "{}", finding.why);
        let off = Config::parse("attribution: {slurm: {records: off}}", "test").unwrap();
        assert!(jobs(&off, &host, &mut workloads).is_none());
        fs::create_dir_all(root.path().join("run/gpumeter/slurm")).unwrap();
        fs::write(root.path().join("run/gpumeter/gpus"), "0 GPU-x\n").unwrap();
        let finding = jobs(&Config::default(), &host, &mut workloads).unwrap();
        assert!(finding.works, "{}", finding.why);
        fs::write(root.path().join("run/gpumeter/slurm/7"), "job_id=7\n").unwrap();
        let finding = jobs(&Config::default(), &host, &mut workloads).unwrap();
        assert!(!finding.works && finding.why.contains("it has no cluster"), "{}", finding.why);
    }

    #[test]
    fn a_prolog_that_misses_jobs_without_a_step_is_told() {
        for (slurm, well) in [
            ("PrologFlags=Alloc\n", true),
            ("ClusterName=a PROLOGFLAGS=serial,alloc # x\n", true),
            ("PrologFlags=X11\n", true),
            ("#PrologFlags=Alloc\n", false),
            ("PrologFlags=Serial\n", false),
            ("", false),
        ] {
            let finding = told(&JobHoldings::default(), Some(slurm), Some(Path::new("/")));
            assert_eq!(finding.works, well, "{slurm}: {}", finding.why);
        }
        assert!(told(&JobHoldings::default(), None, Some(Path::new("/"))).works, "it cannot be read");
    }
}

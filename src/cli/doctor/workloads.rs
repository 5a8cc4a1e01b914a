//! Whether the kubelet, Slurm and a container runtime report their workloads, and whether GPU processes match them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Finding;
use crate::agent::resolvers::jobs::{HostJobs, map_beside};
use crate::agent::resolvers::pods::{HostPods, pod_sources};
use crate::config::{Config, KubernetesConfig};
use crate::holders::docker::DockerClient;
use crate::holders::host::{Host, slurm};
use crate::holders::kubelet::{Error, KubeletSocket};
use crate::holders::{
    Allocation, BelievedCgroups, NodeGpus, PodHoldings, PodMetadata, PodTracker, ResolvedWorkloads,
    SessionGpu, identify,
};
use crate::model::{Fact, HoldingSource, UnattributedReason};
use crate::runtime::clock::system_now;

/// Asks the kubelet once; no finding where nothing shows that there is one, or the configuration turns it off. Also returns
/// the pods, by which processes such as `pids` are identified.
pub(super) fn check_pods(
    config: &Config,
    host: &Host,
    pids: &BTreeSet<u32>,
) -> (Option<Finding>, ResolvedWorkloads) {
    let attribution = &config.attribution;
    let cgroups = BelievedCgroups::new(&attribution.runtimes, &attribution.container_nodes, host);
    let mut workloads = ResolvedWorkloads { cgroups: cgroups.into(), ..ResolvedWorkloads::default() };
    let kubernetes = &attribution.kubernetes;
    let Some(socket) = &kubernetes.socket else { return (None, workloads) };
    let mut pods = match HostPods::new(host.clone(), PodTracker::default(), kubernetes) {
        Ok(pods) => pods,
        Err(error) => return (Some(Finding::new("pods", false, error.to_string())), workloads),
    };
    let reply = KubeletSocket::new(&host.path(socket)).and_then(|client| pods.ask(&client));
    let (metadata, source) = read_pod_metadata(kubernetes, host);
    let now = system_now().utc;
    let known = pods.observe(reply.as_ref().ok(), &metadata, now);
    workloads.allocate(HoldingSource::Kubernetes, &known.allocations);
    let logs = host.pod_logs();
    let has_directory = host.path(socket).parent().is_some_and(Path::is_dir);
    let has_pods = has_directory
        || logs.pods.is_some()
        || logs.containers.is_some()
        || run_in_pods(host, pids, &workloads);
    let finding = match &reply {
        Err(Error::Missing { .. }) if !has_pods => None,
        Err(error) => {
            let why =
                format!("no GPU is billed to pods, because the kubelet does not list their devices: {error}");
            Some(Finding::new("pods", false, why))
        }
        Ok(_) => Some(describe_pods(&known, &source)),
    };
    workloads.pods = known.map.into();
    (finding, workloads)
}

/// Labels and owners of pods, and in words the source that they come from.
fn read_pod_metadata(kubernetes: &KubernetesConfig, host: &Host) -> (PodMetadata, String) {
    let mut sources = match pod_sources(kubernetes, host) {
        Ok(sources) => sources,
        Err(error) => return (PodMetadata::default(), error.to_string()),
    };
    let pods = sources.refresh(crate::model::Nanoseconds(0)).unwrap_or_default();
    let mut words = match sources.current() {
        Some(source) => format!("labels and owners of {} pods from {source}", pods.len()),
        None => "no labels and owners of pods, because no source provides them".to_owned(),
    };
    for (source, problem) in sources.problems() {
        words.push_str(&format!(" ({source}: {problem})"));
    }
    (PodMetadata::new(&pods, &kubernetes.labels, system_now().utc), words)
}

fn run_in_pods(host: &Host, pids: &BTreeSet<u32>, workloads: &ResolvedWorkloads) -> bool {
    let processes = pids.iter().filter_map(|pid| host.process(*pid).ok());
    let mut reasons = processes
        .filter_map(|process| identify(host, &process, workloads).ok()?.holder.id.unattributed_reason());
    reasons.any(|reason| reason == UnattributedReason::Pod)
}

fn describe_pods(known: &PodHoldings, source: &str) -> Finding {
    let problems: Vec<String> = known.problems.iter().cloned().collect();
    let holders = count_holders(&known.allocations);
    let summary = format!("containers to which the kubelet assigned GPUs: {holders}; {source}");
    Finding::with_problems("pods", summary, &problems)
}

fn count_holders<'a>(allocations: impl IntoIterator<Item = &'a Allocation>) -> usize {
    allocations.into_iter().map(|one| &one.holder.id).collect::<BTreeSet<_>>().len()
}

/// Examines the records and the configuration of Slurm; no finding where there is no Slurm, or the configuration turns it
/// off. Adds the jobs to `workloads`; `gpus` are those of the driver, if it lists them.
pub(super) fn check_jobs(
    config: &Config,
    host: &Host,
    gpus: Option<&[SessionGpu]>,
    workloads: &mut ResolvedWorkloads,
) -> Option<Finding> {
    let configured = &config.attribution.slurm;
    let mut jobs = HostJobs::new(host.clone(), configured)?;
    let gpus = node_gpus(host, gpus);
    // A job has ended without an epilog when its cgroup is missing twice.
    let observed = jobs.observe(&gpus).and_then(|_| jobs.observe(&gpus));
    let slurm = jobs.configuration();
    let exists = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| host.path(path).exists());
    let has_cgroups = host.slurm_cgroups().is_ok_and(|cgroups| cgroups.is_some());
    let known = match observed {
        _ if slurm.is_none() && !has_cgroups && !exists(&configured.records) => return None,
        Ok(known) => known,
        Err(error) => {
            let why = format!(
                "no GPU is billed to jobs, because their records in {} cannot be read: {error}; the prolog of Slurm \
                 (packaging/slurm/prolog.sh) makes the directory with the first job",
                jobs.directories()
            );
            return Some(Finding::new("jobs", false, why));
        }
    };
    workloads.allocate(HoldingSource::Slurm, &known.allocations);
    let mut problems: Vec<String> = known.problems.iter().cloned().collect();
    problems.extend(slurm.as_deref().into_iter().flat_map(missing_flags));
    let map = configured.records.as_deref().map(map_beside);
    if let Some(map) = map.filter(|map| !host.path(map).exists()) {
        problems.push(format!(
            "the file that maps GPU minor numbers to UUIDs for the Slurm prolog ({}) does not exist; start the agent, which \
             writes it",
            map.display()
        ));
    }
    if let Some(mapping) = configured.job_mapping_dir.as_ref().filter(|path| !host.path(path).exists()) {
        problems.push(format!(
            "{} (attribution.slurm.job_mapping_dir) does not exist; its prolog makes it with the first job",
            mapping.display()
        ));
    }
    // A step holds within its job.
    let is_job = |one: &&Allocation| one.holder.facts.get(Fact::SlurmStep).is_none();
    let holders = count_holders(known.allocations.iter().filter(is_job));
    let summary = format!("jobs of Slurm that hold GPUs by their records: {holders}");
    workloads.jobs = known.map.into();
    Some(Finding::with_problems("jobs", summary, &problems))
}

fn node_gpus(host: &Host, gpus: Option<&[SessionGpu]>) -> NodeGpus {
    let by_index = |gpu: &SessionGpu| Some((gpu.index?, gpu.uuid.to_string()));
    let indices = gpus.map(|gpus| gpus.iter().filter_map(by_index).collect());
    NodeGpus { minors: host.gpu_minors(), indices, instances: None }
}

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
         if that lasts"
            .to_owned()
    })
}

/// Asks the container runtime once; no finding if the configuration names none. Adds the containers to `workloads`.
pub(super) fn check_containers(
    config: &Config,
    host: &Host,
    workloads: &mut ResolvedWorkloads,
) -> Option<Finding> {
    let socket = config.attribution.containers.socket.as_ref()?;
    let listed = DockerClient::new(&host.path(socket)).and_then(|client| client.containers());
    Some(match listed {
        Ok(containers) => {
            let why = format!("{} names {} running containers", socket.display(), containers.len());
            workloads.containers = Arc::new(containers);
            Finding::new("containers", true, why)
        }
        Err(error) => {
            let why = format!("containers are billed by their ids, without names and images: {error}");
            Finding::new("containers", false, why)
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_node_without_a_kubelet_has_no_finding_and_one_whose_socket_is_not_mounted_has() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let config = Config::default();
        let none = BTreeSet::new();
        assert!(check_pods(&config, &host, &none).0.is_none());
        fs::create_dir_all(root.path().join("var/log/pods")).unwrap();
        let finding = check_pods(&config, &host, &none).0.unwrap();
        assert!(
            !finding.works
                && finding.why.contains("mount there pod-resources of the kubelet's root directory"),
            "{}",
            finding.why
        );
        fs::remove_dir_all(root.path().join("var/log")).unwrap();
        assert!(check_pods(&config, &host, &none).0.is_none());
        fs::create_dir_all(root.path().join("var/lib/kubelet/pod-resources")).unwrap();
        let finding = check_pods(&config, &host, &none).0.unwrap();
        assert!(!finding.works, "the directory alone shows that there is a kubelet: {}", finding.why);
        let off = Config::parse("attribution: {kubernetes: {socket: off}}", "test").unwrap();
        assert!(check_pods(&off, &host, &none).0.is_none());
    }

    #[test]
    fn a_node_whose_gpus_have_processes_in_pods_has_a_finding_without_any_mount() {
        let tree = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/nested");
        let node = "attribution: {container_nodes: ['/system.slice/docker-2b18f1c4*']}";
        let config = Config::parse(node, "test").unwrap();
        let finding = |pids| check_pods(&config, &Host::at(&tree), &pids).0;
        let unmounted = finding((400..=405).collect()).unwrap();
        assert!(
            !unmounted.works
                && unmounted.why.contains("/var/lib/kubelet/pod-resources/kubelet.sock does not exist"),
            "{}",
            unmounted.why
        );
        assert!(finding(BTreeSet::new()).is_none());
    }

    #[test]
    fn problems_with_the_holdings_of_pods_are_one_finding() {
        let well = describe_pods(&PodHoldings::default(), "");
        assert!(well.works, "{}", well.why);
        let known =
            PodHoldings { problems: ["a device holds nothing".to_owned()].into(), ..PodHoldings::default() };
        let sick = describe_pods(&known, "");
        assert!(!sick.works && sick.why.ends_with("a device holds nothing"), "{}", sick.why);
    }

    #[test]
    fn a_node_without_slurm_has_no_finding_and_one_without_records_has() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let mut workloads = ResolvedWorkloads::default();
        assert!(check_jobs(&Config::default(), &host, None, &mut workloads).is_none());
        fs::create_dir_all(root.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope")).unwrap();
        let finding = check_jobs(&Config::default(), &host, None, &mut workloads).unwrap();
        assert!(!finding.works && finding.why.contains("prolog.sh"), "{}", finding.why);
        let off = Config::parse("attribution: {slurm: {records: off}}", "test").unwrap();
        assert!(check_jobs(&off, &host, None, &mut workloads).is_none());
        fs::create_dir_all(root.path().join("run/gpumeter-slurm")).unwrap();
        fs::create_dir_all(root.path().join("run/gpumeter")).unwrap();
        fs::write(root.path().join("run/gpumeter/gpus"), "0 GPU-x\n").unwrap();
        let finding = check_jobs(&Config::default(), &host, None, &mut workloads).unwrap();
        assert!(finding.works, "{}", finding.why);
        fs::write(root.path().join("run/gpumeter-slurm/7"), "job_id=7\n").unwrap();
        let finding = check_jobs(&Config::default(), &host, None, &mut workloads).unwrap();
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
        let finding = check_jobs(&Config::default(), &Host::at(root.path()), None, &mut workloads).unwrap();
        assert!(finding.works && finding.why.contains("by their records: 1"), "{}", finding.why);
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
            check_jobs(&Config::default(), &Host::at(root.path()), None, &mut ResolvedWorkloads::default())
                .unwrap()
        };
        assert!(examine().works, "it may have no cgroup yet");
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3_600);
        fs::File::options().write(true).open(&record).unwrap().set_modified(long_ago).unwrap();
        let finding = examine();
        assert!(!finding.works && finding.why.contains("does the epilog run?"), "{}", finding.why);
    }

    #[test]
    fn missing_flags_of_the_prolog_are_named() {
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
            let named = missing_flags(slurm);
            assert_eq!(named.is_some(), missing.is_some(), "{slurm}: {named:?}");
            assert!(named.unwrap_or_default().contains(missing.unwrap_or_default()), "{slurm}");
        }
    }

    #[test]
    fn mapping_files_of_other_exporters_are_read_where_they_are_configured() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let config = "attribution: {slurm: {records: off, job_mapping_dir: /run/gpustat}}";
        let config = Config::parse(config, "test").unwrap();
        let examine = || check_jobs(&config, &host, None, &mut ResolvedWorkloads::default());
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
        assert!(finding.works && finding.why.contains("by their records: 1"), "{}", finding.why);
        fs::write(root.path().join("run/gpustat/0"), "all\n").unwrap();
        let finding = examine().unwrap();
        assert!(!finding.works && finding.why.contains("is not a job number"), "{}", finding.why);
    }

    #[test]
    fn a_socket_that_is_not_there_is_a_finding_and_no_socket_is_none() {
        let root = tempfile::tempdir().unwrap();
        let (host, mut workloads) = (Host::at(root.path()), ResolvedWorkloads::default());
        assert!(check_containers(&Config::default(), &host, &mut workloads).is_none());
        let text = "attribution: {containers: {socket: /run/docker.sock}}";
        let config = Config::parse(text, "test").unwrap();
        let finding = check_containers(&config, &host, &mut workloads).unwrap();
        assert!(!finding.works && finding.why.contains("run/docker.sock does not exist"), "{}", finding.why);
    }
}

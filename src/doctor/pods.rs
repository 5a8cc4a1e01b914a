//! Checks whether the kubelet lists the devices of pods, and whether GPU processes can be matched to those pods.

use std::collections::BTreeSet;

use super::{Finding, count_holders};
use crate::clock::system_now;
use crate::config::{Config, KubernetesConfig};
use crate::holders::{PodHoldings, PodMetadata, PodTracker, ResolvedWorkloads, identify};
use crate::host::Host;
use crate::kubelet::{Error, KubeletSocket};
use crate::model::{HoldingSource, UnattributedReason};
use crate::resolvers::pods::{HostPods, pod_sources, resources};

/// Asks the kubelet once; no finding where nothing shows that there is one, or the configuration turns it off. Also what was
/// learned, with which processes such as these are identified.
pub(super) fn pods(
    config: &Config,
    host: &Host,
    pids: &BTreeSet<u32>,
) -> (Option<Finding>, ResolvedWorkloads) {
    let mut workloads = ResolvedWorkloads::default();
    let kubernetes = &config.attribution.kubernetes;
    let Some(socket) = &kubernetes.socket else { return (None, workloads) };
    let (tracker, resources) = (PodTracker::default(), resources(kubernetes));
    let mut pods = HostPods { host: host.clone(), tracker, resources };
    let answer = KubeletSocket::new(&host.path(socket)).and_then(|client| pods.ask(&client));
    let (metadata, described) = described(kubernetes, host);
    let known = pods.observe(answer.as_ref().ok(), &metadata, system_now().utc);
    workloads.allocate(HoldingSource::Kubernetes, &known.allocations);
    let logs = host.pod_logs();
    let has_pods = logs.pods.is_some() || logs.containers.is_some() || run_in_pods(host, pids);
    let finding = match &answer {
        Err(Error::Missing { .. }) if !has_pods => None,
        Err(error) => Some(Finding::new(
            "pods",
            false,
            format!("pods hold nothing, since the kubelet does not tell what they were assigned: {error}"),
        )),
        Ok(_) => Some(told(&known, &described)),
    };
    workloads.pods = known.map.into();
    (finding, workloads)
}

/// Where names and labels of pods come from, or why there is no such source.
fn described(kubernetes: &KubernetesConfig, host: &Host) -> (PodMetadata, String) {
    let mut sources = match pod_sources(kubernetes, host) {
        Ok(sources) => sources,
        Err(error) => return (PodMetadata::default(), error.to_string()),
    };
    let pods = sources.refresh(std::time::Duration::ZERO).unwrap_or_default();
    let mut words = match sources.current() {
        Some(source) => format!("labels and owners of {} pods from {source}", pods.len()),
        None => "no labels and owners of pods, as nobody tells them".to_owned(),
    };
    for (source, problem) in sources.problems() {
        words.push_str(&format!(" ({source}: {problem})"));
    }
    (PodMetadata::new(&pods, &kubernetes.labels, system_now().utc), words)
}

/// Whether one of these processes runs in a pod.
fn run_in_pods(host: &Host, pids: &BTreeSet<u32>) -> bool {
    let processes = pids.iter().filter_map(|pid| host.process(*pid).ok());
    let mut reasons = processes.filter_map(|process| {
        identify(host, &process, &ResolvedWorkloads::default()).ok()?.holder.id.unattributed_reason()
    });
    reasons.any(|reason| reason == UnattributedReason::Pod)
}

fn told(known: &PodHoldings, described: &str) -> Finding {
    let problems: Vec<String> = known.problems.iter().cloned().collect();
    let holders = count_holders(&known.allocations);
    let summary = format!("containers to which the kubelet assigned GPUs: {holders}; {described}");
    Finding::with_problems("pods", summary, &problems)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_kubelet_has_no_finding_and_one_whose_socket_is_not_mounted_has() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let config = Config::default();
        let none = BTreeSet::new();
        assert!(pods(&config, &host, &none).0.is_none());
        std::fs::create_dir_all(root.path().join("var/log/pods")).unwrap();
        let finding = pods(&config, &host, &none).0.unwrap();
        assert!(!finding.works && finding.why.contains("pod-resources of the host"), "{}", finding.why);
        let off = Config::parse("attribution: {kubernetes: {socket: off}}", "test").unwrap();
        assert!(pods(&off, &host, &none).0.is_none());
    }

    #[test]
    fn a_node_whose_gpus_have_processes_in_pods_has_a_finding_without_any_mount() {
        let tree = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/nested");
        let finding = |pids| pods(&Config::default(), &Host::at(&tree), &pids).0;
        let told = finding((400..=405).collect()).unwrap();
        assert!(
            !told.works && told.why.ends_with("/var/lib/kubelet/pod-resources of the host there"),
            "{}",
            told.why
        );
        assert!(finding(BTreeSet::new()).is_none());
    }

    #[test]
    fn what_hinders_the_holdings_of_pods_is_told_in_one_finding() {
        let well = told(&PodHoldings::default(), "");
        assert!(well.works, "{}", well.why);
        let known =
            PodHoldings { problems: ["a device holds nothing".to_owned()].into(), ..PodHoldings::default() };
        let sick = told(&known, "");
        assert!(!sick.works && sick.why.ends_with("a device holds nothing"), "{}", sick.why);
    }
}

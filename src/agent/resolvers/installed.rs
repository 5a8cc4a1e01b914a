//! Whether something that grants GPUs is installed on the host: a kubelet, or Slurm.

use std::path::Path;

use crate::config::{Config, KubernetesConfig, SlurmConfig};
use crate::holders::host::Host;
use crate::model::HowHeld;

/// The scheduler that is installed, as the reason for which presence holds nothing; none where there is none.
pub(crate) fn installed_scheduler(config: &Config, host: &Host) -> Option<HowHeld> {
    let attribution = &config.attribution;
    if has_kubelet(&attribution.kubernetes, host) {
        return Some(HowHeld::Kubelet);
    }
    has_slurm(&attribution.slurm, host).then_some(HowHeld::Slurm)
}

/// Whether there is a kubelet's directory, a cgroup of one, or a configured socket, or a kubelet started the agent itself: the
/// variant `devices` of the manifests sees nothing else of it.
fn has_kubelet(configured: &KubernetesConfig, host: &Host) -> bool {
    let Some(socket) = &configured.socket else { return false };
    let is_configured = configured.socket != Config::default().attribution.kubernetes.socket;
    // The socket lies in `pod-resources` of the kubelet's directory. A container may have the inner one alone.
    let is_there = |directory: &Path| host.path(directory).is_dir();
    let directories = socket.ancestors().skip(1).take(2).filter(|directory| directory.parent().is_some());
    is_configured
        || host.has_our_pod()
        || directories.into_iter().any(is_there)
        || host.pods_with_cgroups().is_some()
}

/// Whether there are records of jobs or cgroups of Slurm, or a directory of mappings is configured. The package makes the
/// default directory of records on every node, so an empty one shows nothing.
fn has_slurm(configured: &SlurmConfig, host: &Host) -> bool {
    let has_entries =
        |path: &Path| host.path(path).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    let is_configured = configured.job_mapping_dir.is_some()
        || configured.records.is_some() && configured.records != Config::default().attribution.slurm.records;
    let is_turned_off = configured.records.is_none() && configured.job_mapping_dir.is_none();
    let has_cgroups = || host.slurm_cgroups().is_ok_and(|cgroups| cgroups.is_some());
    !is_turned_off
        && (is_configured || configured.records.as_deref().is_some_and(has_entries) || has_cgroups())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;

    use super::*;

    fn found(text: &str, paths: &[&str]) -> Option<HowHeld> {
        let root = tempfile::tempdir().unwrap();
        for path in paths {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        installed_scheduler(&Config::parse(text, "test").unwrap(), &Host::at(root.path()))
    }

    #[test]
    fn a_kubelet_is_known_by_its_directory_its_cgroups_or_a_configured_socket() {
        assert_eq!(found("", &["sys/fs/cgroup/system.slice"]), None);
        for path in ["var/lib/kubelet", "var/lib/kubelet/pod-resources", "sys/fs/cgroup/kubepods.slice"] {
            assert_eq!(found("", &[path]), Some(HowHeld::Kubelet), "{path}");
        }
        let elsewhere =
            "attribution: {kubernetes: {socket: /var/lib/k0s/kubelet/pod-resources/kubelet.sock}}";
        assert_eq!(found(elsewhere, &[]), Some(HowHeld::Kubelet));
        assert_eq!(found("attribution: {kubernetes: {socket: off}}", &["var/lib/kubelet"]), None);
    }

    #[test]
    fn slurm_is_known_by_its_records_its_cgroups_or_a_configured_directory_and_not_by_an_empty_one() {
        assert_eq!(found("", &["run/gpumeter-slurm"]), None, "the package makes it");
        for path in ["run/gpumeter-slurm/211", "sys/fs/cgroup/system.slice/slurmstepd.scope"] {
            assert_eq!(found("", &[path]), Some(HowHeld::Slurm), "{path}");
        }
        assert_eq!(found("attribution: {slurm: {job_mapping_dir: /run/gpustat}}", &[]), Some(HowHeld::Slurm));
        assert_eq!(
            found("attribution: {slurm: {records: off}}", &["sys/fs/cgroup/system.slice/slurmstepd.scope"]),
            None
        );
    }
}

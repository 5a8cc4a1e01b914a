//! Which pods have a cgroup, told without the kubelet.

use std::collections::BTreeSet;
use std::path::Path;

use super::Host;
use super::pod_logs::is_uid;
use super::slurm::directories;

/// How deep the kubelet's directory may lie below the cgroup root: on v1 below a controller, on kind below another one.
const MOST_LEVELS: u8 = 4;

impl Host {
    /// The UIDs of the pods that have a cgroup; none where the node shows no cgroup of a kubelet.
    pub fn pods_with_cgroups(&self) -> Option<BTreeSet<String>> {
        let mut found = None;
        find_kubelets(&self.root.join("sys/fs/cgroup"), MOST_LEVELS, &mut found);
        found
    }
}

fn find_kubelets(directory: &Path, levels: u8, found: &mut Option<BTreeSet<String>>) {
    for entry in directories(directory).unwrap_or_default() {
        let name = entry.file_name();
        if name.to_string_lossy().contains("kubepods") {
            add_pods(&entry.path(), found.get_or_insert_default());
        } else if levels > 1 {
            find_kubelets(&entry.path(), levels - 1, found);
        }
    }
}

fn add_pods(directory: &Path, pods: &mut BTreeSet<String>) {
    for entry in directories(directory).unwrap_or_default() {
        let name = entry.file_name().to_string_lossy().replace('_', "-");
        let name = name.strip_suffix(".slice").unwrap_or(&name);
        match name.rsplit_once("pod").filter(|(_, uid)| is_uid(uid)) {
            Some((_, uid)) => drop(pods.insert(uid.to_owned())),
            None if name.ends_with("burstable") || name.ends_with("besteffort") => {
                add_pods(&entry.path(), pods)
            }
            None => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn pods_are_found_by_their_cgroups_whatever_driver_made_them() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        assert_eq!(host.pods_with_cgroups(), None);
        let uid = |first: char| format!("{}-052c-4b11-80d3-4d7b2d2d3464", first.to_string().repeat(8));
        let make = |path: &str| {
            std::fs::create_dir_all(root.path().join("sys/fs/cgroup").join(path)).unwrap();
        };
        make("system.slice/ssh.service");
        assert_eq!(host.pods_with_cgroups(), None, "there is no kubelet");
        make("kubepods.slice/kubepods-burstable.slice");
        assert_eq!(host.pods_with_cgroups(), Some(BTreeSet::new()), "it runs no pod");
        let slice = |first| uid(first).replace('-', "_");
        make(&format!(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-a.scope",
            slice('1')
        ));
        make(&format!("kubepods.slice/kubepods-pod{}.slice", slice('2')));
        make(&format!("memory/kubepods/besteffort/pod{}/ab", uid('3')));
        make(&format!(
            "system.slice/docker-a.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{}.slice",
            slice('4')
        ));
        let hash = "3cae2e45052c4b1180d34d7b2d2d3464";
        make(&format!("kubepods.slice/kubepods-pod{hash}.slice"));
        let expected = [hash.to_owned(), uid('1'), uid('2'), uid('3'), uid('4')];
        assert_eq!(host.pods_with_cgroups(), Some(expected.into()));
    }
}

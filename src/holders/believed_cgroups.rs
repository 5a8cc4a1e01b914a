//! Which cgroups may hold those of workloads. Whoever is root in a container, or runs in a service that delegates its cgroup,
//! names the cgroups below it, so only a container runtime's are believed.

use super::process_location::{enclosing_container, split};
use crate::holders::host::Host;
use crate::model::UnattributedReason as Reason;

/// Services with cgroups of workloads below their own, and the kind of those workloads.
const RUNTIME_SERVICES: &[(&str, Reason)] = &[
    ("containerd.service", Reason::Container),
    ("cri-o.service", Reason::Container),
    ("crio.service", Reason::Container),
    ("docker.service", Reason::Container),
    ("incus.service", Reason::Container),
    ("k0scontroller.service", Reason::Pod),
    ("k0sworker.service", Reason::Pod),
    ("k3s-agent.service", Reason::Pod),
    ("k3s.service", Reason::Pod),
    ("kubelet.service", Reason::Pod),
    ("libvirtd.service", Reason::Vm),
    ("lxd.service", Reason::Container),
    ("podman.service", Reason::Container),
    ("rke2-agent.service", Reason::Pod),
    ("rke2-server.service", Reason::Pod),
    ("slurmd.service", Reason::Job),
    ("snap.docker.dockerd.service", Reason::Container),
    ("snap.lxd.daemon.service", Reason::Container),
    ("snap.microk8s.daemon-containerd.service", Reason::Pod),
    ("snap.microk8s.daemon-kubelet.service", Reason::Pod),
    ("snap.microk8s.daemon-kubelite.service", Reason::Pod),
];

/// The cgroups that are believed beside those of the known runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BelievedCgroups {
    /// Names of services; a `*` at the end stands for any ending.
    runtimes: Vec<String>,
    /// Parts of the paths of containers that are nodes themselves.
    nodes: Vec<Vec<String>>,
}

impl BelievedCgroups {
    /// Beside the known runtimes, these services, and the cgroups of these containers. The container in which the agent
    /// itself runs in a container is a node too: that is how kind, or Kubernetes in LXC, runs a node.
    pub fn new(runtimes: &[String], nodes: &[String], host: &Host) -> Self {
        let own = host.own_cgroups().into_iter().filter_map(|path| enclosing_container(&path));
        let nodes = nodes.iter().map(|path| split(path)).chain(own);
        Self { runtimes: runtimes.to_vec(), nodes: nodes.collect() }
    }

    /// The kind of workloads below a service; none if it is no known runtime.
    pub(super) fn workloads_below(&self, service: &str) -> Option<Reason> {
        let known = RUNTIME_SERVICES.iter().find(|(name, _)| *name == service).map(|(_, reason)| *reason);
        let is_configured = || self.runtimes.iter().any(|name| is_like(service, name));
        known.or_else(|| is_configured().then_some(Reason::Container))
    }

    pub(super) fn is_pod_node(&self, uid: &str, container: &str) -> bool {
        self.nodes.iter().any(|node| names_pod_container(node, uid, container))
    }

    /// How many parts of a path name a container that is a node, which then has at least `container` parts.
    pub(super) fn node_depth(&self, parts: &[&str], container: usize) -> Option<usize> {
        let is_node = |node: &&Vec<String>| {
            node.len() >= container
                && node.len() <= parts.len()
                && node.iter().zip(parts).all(|(name, part)| is_like(part, name))
        };
        self.nodes.iter().filter(is_node).map(Vec::len).max()
    }
}

/// Names of a pod's cgroup before its UID, by the kubelet's drivers and classes of service.
const POD_CGROUPS: [&str; 7] = [
    "pod",
    "kubepods-pod",
    "kubepods-burstable-pod",
    "kubepods-besteffort-pod",
    "kubelet-kubepods-pod",
    "kubelet-kubepods-burstable-pod",
    "kubelet-kubepods-besteffort-pod",
];

/// Names of the cgroup of a pod's container before its id.
const POD_CONTAINERS: [&str; 4] = ["", "cri-containerd-", "crio-", "docker-"];

/// Whether a configured node may be the cgroup of that container of a pod, whatever driver and class of service it has. What
/// is above the pod's own cgroup is not compared, since a kubelet's cgroups may lie anywhere.
fn names_pod_container(node: &[String], uid: &str, container: &str) -> bool {
    let [.., of_pod, of_container] = node else { return false };
    let is_pod = |start: &&str| {
        is_like(&format!("{start}{}.slice", uid.replace('-', "_")), of_pod)
            || is_like(&format!("{start}{uid}"), of_pod)
    };
    let is_container = |start: &&str| {
        is_like(&format!("{start}{container}.scope"), of_container)
            || is_like(&format!("{start}{container}"), of_container)
    };
    POD_CGROUPS.iter().any(is_pod) && POD_CONTAINERS.iter().any(is_container)
}

/// Whether the configured node names the containers of every pod, or of every pod of a class of service: no pod has this UID.
pub fn names_every_pod(node: &str) -> bool {
    names_pod_container(&split(node), "00000000-0000-0000-0000-000000000000", &"0".repeat(64))
}

/// Whether a part has that name; a `*` at the end of the name stands for any ending.
fn is_like(part: &str, name: &str) -> bool {
    name.strip_suffix('*').map_or(part == name, |start| part.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "11111111-052c-4b11-80d3-4d7b2d2d3464";
    const ID: &str = "aa18000000000000000000000000000000000000000000000000000000000abc";

    #[test]
    fn a_node_that_is_a_container_of_a_pod_is_told_by_its_last_two_parts_and_one_of_every_pod_by_both() {
        for (node, is_pod, is_every) in [
            ("/kubepods.slice/kubepods-pod*/cri-containerd-*", true, true),
            ("/kubepods/burstable/pod*/*", true, true),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111*/cri-containerd-*",
                true,
                false,
            ),
            (
                "/kubepods.slice/kubepods-pod11111111_052c_4b11_80d3_4d7b2d2d3464.slice/crio-aa18*",
                true,
                false,
            ),
            ("/kubepods/pod11111111-052c-4b11-80d3-4d7b2d2d3464/aa18*", true, false),
            ("/kubepods/pod11111111-052c-4b11-80d3-4d7b2d2d3464/bb18*", false, false),
            ("/kubepods.slice/kubepods-pod22222222*/cri-containerd-*", false, false),
            ("/lxc.payload.slurm", false, false),
            ("/system.slice/docker-*", false, false),
        ] {
            assert_eq!(names_pod_container(&split(node), UID, ID), is_pod, "{node}");
            assert_eq!(names_every_pod(node), is_every, "{node}");
        }
    }
}

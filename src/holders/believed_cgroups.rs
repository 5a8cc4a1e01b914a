//! Which cgroups may hold those of workloads. Whoever is root in a container, or runs in a service that delegates its cgroup,
//! names the cgroups below it, so only a container runtime's are believed.

use super::process_location::{enclosing_container, split};
use crate::host::Host;
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

/// Whether a part has that name; a `*` at the end of the name stands for any ending.
fn is_like(part: &str, name: &str) -> bool {
    name.strip_suffix('*').map_or(part == name, |start| part.starts_with(start))
}

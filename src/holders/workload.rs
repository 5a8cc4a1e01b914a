//! What shows that a cgroup belongs to a container runtime, a pod, a batch job or a virtual machine.
//!
//! In: the decoded parts of a cgroup path. Out: the kind of workload, which is the reason why nobody is named yet. It
//! does not say whose it is: the resolvers of those kinds will. Until then such a path must not pass for a unit or a
//! user, as a container below `docker.service` would.

use crate::model::UnattributedReason as Reason;

/// Services that keep cgroups of others below their own, and of what kind these are.
const RUNTIMES: &[(&str, Reason)] = &[
    ("containerd.service", Reason::Container),
    ("cri-o.service", Reason::Container),
    ("crio.service", Reason::Container),
    ("docker.service", Reason::Container),
    ("incus.service", Reason::Container),
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
];

/// How runtimes begin the names of their cgroups; `docker-registry.service` is a unit all the same.
const PREFIXES: &[(&str, Reason)] = &[
    ("cri-containerd-", Reason::Container),
    ("crio-", Reason::Container),
    ("docker-", Reason::Container),
    ("libpod-", Reason::Container),
    ("lxc.monitor.", Reason::Container),
    ("lxc.payload.", Reason::Container),
    // systemd-machined's name for what libvirt starts; everything else of machined's is a container.
    ("machine-qemu-", Reason::Vm),
    ("machine-", Reason::Container),
    ("nerdctl-", Reason::Container),
];

/// The kind of workload that the path belongs to. Of several the one with the highest precedence counts: a pod on a
/// node that is itself a container is a pod.
pub(super) fn workload(parts: &[&str]) -> Option<Reason> {
    let below = |at: usize| at + 1 < parts.len();
    let runtime = |at: usize, part: &str| {
        RUNTIMES.iter().find(|(name, _)| below(at) && *name == part).map(|(_, reason)| *reason)
    };
    parts.iter().enumerate().filter_map(|(at, part)| marked(at, part).max(runtime(at, part))).max()
}

fn marked(at: usize, part: &str) -> Option<Reason> {
    let unit = part.ends_with(".service");
    if is_of_slurm(at, part) {
        Some(Reason::Job)
    } else if !unit && part.split(['.', '-', ':']).any(|word| word == "kubepods") {
        Some(Reason::Pod)
    } else if let Some((_, reason)) = PREFIXES.iter().find(|(prefix, _)| !unit && part.starts_with(prefix)) {
        Some(*reason)
    } else if holds_container_id(part) || (at == 0 && matches!(part, "docker" | "lxc")) {
        Some(Reason::Container)
    } else if matches!(part, "machine.slice" | "qemu.slice") || part.ends_with(".libvirt-qemu") {
        Some(Reason::Vm)
    } else {
        None
    }
}

/// Slurm's scope on cgroup v2, `slurm` or `slurm_NODE` at the root of v1.
fn is_of_slurm(at: usize, part: &str) -> bool {
    part == "slurmstepd.scope"
        || part.ends_with("_slurmstepd.scope")
        || (at == 0 && (part == "slurm" || part.starts_with("slurm_")))
}

/// Every runtime names containers by 64 hexadecimal digits, whatever stands around them.
fn holds_container_id(part: &str) -> bool {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    part.as_bytes()
        .chunk_by(|left, right| digit(left) == digit(right))
        .any(|run| run.len() == 64 && digit(&run[0]))
}

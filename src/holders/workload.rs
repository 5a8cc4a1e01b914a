//! What shows that a cgroup belongs to a container runtime, a pod, a batch job or a virtual machine.
//!
//! In: the decoded parts of a cgroup path. Out: yes or no. It does not say whose it is: the resolvers of
//! those kinds will. Until then such a path must at least not pass for a unit, as a container below
//! `docker.service` would.

/// Services that keep cgroups of others below their own.
const RUNTIMES: &[&str] = &[
    "containerd.service",
    "cri-o.service",
    "crio.service",
    "docker.service",
    "incus.service",
    "k3s-agent.service",
    "k3s.service",
    "kubelet.service",
    "libvirtd.service",
    "lxd.service",
    "podman.service",
    "rke2-agent.service",
    "rke2-server.service",
    "slurmd.service",
    "snap.docker.dockerd.service",
];

/// How runtimes begin the names of their cgroups; `docker-registry.service` is a unit all the same.
const PREFIXES: &[&str] = &[
    "cri-containerd-",
    "crio-",
    "docker-",
    "libpod-",
    "lxc.monitor.",
    "lxc.payload.",
    "machine-",
    "nerdctl-",
];

/// Whether the path belongs to a workload of a kind that is not told apart yet.
pub(super) fn is_workload(parts: &[&str]) -> bool {
    let below = |at: usize| at + 1 < parts.len();
    parts.iter().enumerate().any(|(at, part)| marked(part) || (below(at) && RUNTIMES.contains(part)))
}

fn marked(part: &str) -> bool {
    let unit = part.ends_with(".service");
    part == "machine.slice"
        || part == "slurmstepd.scope"
        || part.ends_with("_slurmstepd.scope")
        || (!unit && PREFIXES.iter().any(|prefix| part.starts_with(prefix)))
        || (!unit && part.split(['.', '-', ':']).any(|word| word == "kubepods"))
        || holds_container_id(part)
}

/// Every runtime names containers by 64 hexadecimal digits, whatever stands around them.
fn holds_container_id(part: &str) -> bool {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    part.as_bytes()
        .chunk_by(|left, right| digit(left) == digit(right))
        .any(|run| run.len() == 64 && digit(&run[0]))
}

//! The container, pod, batch job or virtual machine that a cgroup path belongs to.
//!
//! The naming rules are those in the sources of runtimes and schedulers. Resolvers find the holder by the ids in the
//! path. Such a path is never a unit's, although a container may be below `docker.service`. The test of all forms is
//! `cgroup_corpus`.

use crate::host::pod_logs::is_uid;
use crate::model::UnattributedReason as Reason;

/// Services with cgroups of workloads below their own, and the kind of those workloads.
const RUNTIME_SERVICES: &[(&str, Reason)] = &[
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

/// Prefixes of runtimes' cgroup names. They do not apply to services such as `docker-registry.service`.
const RUNTIME_PREFIXES: &[(&str, Reason)] = &[
    ("cri-containerd-", Reason::Container),
    ("crio-", Reason::Container),
    ("docker-", Reason::Container),
    ("libpod-", Reason::Container),
    ("lxc.monitor.", Reason::Container),
    ("lxc.payload.", Reason::Container),
    // systemd-machined's prefix for libvirt; its other machines are containers.
    ("machine-qemu-", Reason::Vm),
    ("machine-", Reason::Container),
    ("nerdctl-", Reason::Container),
];

/// Names of runtimes by the prefix of a part.
const RUNTIME_NAMES: &[(&str, &str)] = &[
    ("cri-containerd-", "containerd"),
    ("containerd.service", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-", "crio"),
    ("docker", "docker"),
    ("snap.docker", "docker"),
    ("libpod-", "podman"),
    ("podman", "podman"),
    ("lxc", "lxc"),
    ("machine-", "nspawn"),
];

/// A workload with the ids in its cgroup path; a field is empty where the path lacks it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WorkloadPath {
    /// A path of an unknown form.
    Unknown,
    /// A virtual machine.
    Vm {
        /// Its name in libvirt, or its number in Proxmox.
        name: String,
    },
    /// A container that belongs to no pod and no job.
    Container {
        /// The runtime that made the cgroup, such as `docker`.
        runtime: &'static str,
        /// Its id, 64 hexadecimal digits, or its name for LXC and systemd-nspawn.
        id: String,
    },
    /// A container of a Kubernetes pod.
    Pod {
        /// The pod's UID with dashes, or 32 hexadecimal digits for a static pod.
        uid: String,
        /// Id of the container, 64 hexadecimal digits.
        container: String,
    },
    /// A step of a Slurm job.
    Job {
        /// The node's name, where one machine runs several slurmd.
        node: String,
        /// Number of the job, or its SLUID, which begins with `s`.
        job: String,
        /// The step: a number, `batch`, `extern` or `interactive`.
        step: String,
    },
}

impl WorkloadPath {
    /// Why a process is unattributed while no resolver names its workload.
    pub(super) const fn reason(&self) -> Reason {
        match self {
            Self::Unknown => Reason::Unknown,
            Self::Vm { .. } => Reason::Vm,
            Self::Container { .. } => Reason::Container,
            Self::Pod { .. } => Reason::Pod,
            Self::Job { .. } => Reason::Job,
        }
    }
}

/// Finds the workload of a path. Of several the one with the highest precedence counts: a pod on a node that is itself
/// a container is a pod.
pub(super) fn parse_workload_path(parts: &[&str]) -> Option<WorkloadPath> {
    Some(match find_kind(parts)? {
        Reason::Unknown => WorkloadPath::Unknown,
        Reason::Vm => WorkloadPath::Vm { name: find_last(parts, vm_name).unwrap_or_default().to_owned() },
        Reason::Container => parse_container(parts),
        Reason::Pod => parse_pod(parts),
        Reason::Job => parse_job(parts),
    })
}

/// The result of the deepest part that has one.
fn find_last<'a, T>(parts: &[&'a str], find: impl FnMut(&'a str) -> Option<T>) -> Option<T> {
    parts.iter().rev().copied().find_map(find)
}

/// `machine-qemu-2-NAME.scope`, `NAME.libvirt-qemu` on cgroup v1, `100.scope` of Proxmox.
fn vm_name(part: &str) -> Option<&str> {
    let scope = part.strip_suffix(".scope");
    if let Some(machine) = scope.and_then(|scope| scope.strip_prefix("machine-qemu-")) {
        return machine.split_once('-').map(|(_, name)| name);
    }
    let number = scope.filter(|scope| scope.bytes().all(|byte| byte.is_ascii_digit()));
    part.strip_suffix(".libvirt-qemu").or(number).filter(|name| !name.is_empty())
}

/// The outermost container, since its processes choose the names below it.
fn parse_container(parts: &[&str]) -> WorkloadPath {
    let name = |at: usize| {
        let part = parts[at];
        let below_lxc = at == 1 && parts[0] == "lxc";
        container_id(part).or_else(|| container_name(part)).or_else(|| below_lxc.then_some(part))
    };
    let at = (0..parts.len()).find(|at| name(*at).is_some());
    let outer = &parts[..at.map_or(parts.len(), |at| at + 1)];
    let runtime = find_last(outer, |part| {
        RUNTIME_NAMES.iter().find(|(prefix, _)| part.starts_with(prefix)).map(|(_, runtime)| *runtime)
    });
    let id = at.and_then(name).unwrap_or_default();
    WorkloadPath::Container { runtime: runtime.unwrap_or("unknown"), id: id.to_owned() }
}

/// `lxc.payload.NAME`, `machine-NAME.scope`, and `/lxc/NAME`, which is how Proxmox numbers them.
fn container_name(part: &str) -> Option<&str> {
    let machine = || part.strip_prefix("machine-").and_then(|rest| rest.strip_suffix(".scope"));
    let name =
        part.strip_prefix("lxc.payload.").or_else(|| part.strip_prefix("lxc.monitor.")).or_else(machine);
    name.filter(|name| !name.is_empty())
}

/// The UID after the first `pod`, and the container id after that; both may be in one part. Ids of a pod inside a
/// container are left out, since the container's processes may have invented them.
fn parse_pod(parts: &[&str]) -> WorkloadPath {
    let pods = parts.iter().position(|part| pod_uid(part).is_some());
    let at = pods.filter(|at| {
        parts[..*at].iter().all(|part| container_id(part).or_else(|| container_name(part)).is_none())
    });
    let uid = at.and_then(|at| pod_uid(parts[at])).unwrap_or_default();
    let container = at.and_then(|at| parts[at..].iter().find_map(|part| container_id(part)));
    WorkloadPath::Pod { uid, container: container.unwrap_or_default().to_owned() }
}

/// With dashes; the systemd driver writes underscores, and static pods have 32 digits without either.
fn pod_uid(part: &str) -> Option<String> {
    let behind = part.match_indices("pod").map(|(at, pod)| &part[at + pod.len()..]);
    behind
        .map(|rest| rest.split(['.', ':']).next().unwrap_or_default().replace('_', "-"))
        .find(|uid| is_uid(uid))
}

fn parse_job(parts: &[&str]) -> WorkloadPath {
    let scope =
        |part: &str| part.strip_suffix("slurmstepd.scope").map(|node| node.trim_end_matches('_').to_owned());
    let v1 = |part: &str| {
        part.strip_prefix("slurm")
            .filter(|_| part == parts[0])
            .map(|node| node[node.len().min(1)..].to_owned())
    };
    let at = parts.iter().position(|part| scope(part).is_some()).unwrap_or(0);
    let node = parts.get(at).and_then(|part| scope(part).or_else(|| v1(part))).unwrap_or_default();
    let below = parts.get(at + 1..).unwrap_or_default();
    let job =
        below.iter().find_map(|part| part.strip_prefix("job_").or_else(|| is_sluid(part).then_some(*part)));
    let step = below.iter().find_map(|part| part.strip_prefix("step_"));
    WorkloadPath::Job {
        node,
        job: job.unwrap_or_default().to_owned(),
        step: step.unwrap_or_default().to_owned(),
    }
}

/// Whether a part is a SLUID, the job id of Slurm 26.05: `s` and 13 digits of Crockford's base 32.
fn is_sluid(part: &str) -> bool {
    let digit = |byte: &u8| byte.is_ascii_digit() || (byte.is_ascii_uppercase() && !b"ILOU".contains(byte));
    part.len() == 14 && part.starts_with('s') && part.as_bytes()[1..].iter().all(digit)
}

fn find_kind(parts: &[&str]) -> Option<Reason> {
    let below = |at: usize| at + 1 < parts.len();
    let runtime = |at: usize, part: &str| {
        RUNTIME_SERVICES.iter().find(|(name, _)| below(at) && *name == part).map(|(_, reason)| *reason)
    };
    parts.iter().enumerate().filter_map(|(at, part)| kind_of_part(at, part).max(runtime(at, part))).max()
}

/// The kind of workload whose cgroups have such a name, at that depth.
fn kind_of_part(at: usize, part: &str) -> Option<Reason> {
    let unit = part.ends_with(".service");
    if is_of_slurm(at, part) {
        Some(Reason::Job)
    } else if !unit && part.split(['.', '-', ':']).any(|word| word == "kubepods") {
        Some(Reason::Pod)
    } else if let Some((_, reason)) =
        RUNTIME_PREFIXES.iter().find(|(prefix, _)| !unit && part.starts_with(prefix))
    {
        Some(*reason)
    } else if container_id(part).is_some() || (at == 0 && matches!(part, "docker" | "lxc")) {
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

/// The container id, which is 64 hexadecimal digits in every runtime, with any text around it.
fn container_id(part: &str) -> Option<&str> {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let mut at = 0;
    for run in part.as_bytes().chunk_by(|left, right| digit(left) == digit(right)) {
        if run.len() == 64 && digit(&run[0]) {
            return part.get(at..at + run.len());
        }
        at += run.len();
    }
    None
}

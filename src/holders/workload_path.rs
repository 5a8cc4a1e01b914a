//! The container, pod, batch job or virtual machine that a cgroup path belongs to.
//!
//! In: the decoded parts of a cgroup path. Out: the workload with the ids in the path, by the naming rules in the
//! sources of runtimes and schedulers. Resolvers find its holder. Such a path is never a unit's, although a container
//! may be below `docker.service`.

use crate::model::UnattributedReason as Reason;

/// Services with cgroups of workloads below their own, and the kind of these.
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

/// Prefixes of the cgroup names of runtimes, which do not apply to services such as `docker-registry.service`.
const PREFIXES: &[(&str, Reason)] = &[
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

/// The runtime by the prefix of a part.
const NAMES: &[(&str, &str)] = &[
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

/// A workload as its cgroup path names it. Fields that the path does not have are empty.
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
    Some(match kind(parts)? {
        Reason::Unknown => WorkloadPath::Unknown,
        Reason::Vm => WorkloadPath::Vm { name: last(parts, vm_name).unwrap_or_default().to_owned() },
        Reason::Container => container(parts),
        Reason::Pod => pod(parts),
        Reason::Job => job(parts),
    })
}

/// The result of the deepest part that has one.
fn last<'a, T>(parts: &[&'a str], tells: impl FnMut(&'a str) -> Option<T>) -> Option<T> {
    parts.iter().rev().copied().find_map(tells)
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

/// The outermost container, since names below it are chosen by whoever runs in it.
fn container(parts: &[&str]) -> WorkloadPath {
    let name = |at: usize| {
        let part = parts[at];
        let below_lxc = at == 1 && parts[0] == "lxc";
        container_id(part).or_else(|| container_name(part)).or_else(|| below_lxc.then_some(part))
    };
    let at = (0..parts.len()).find(|at| name(*at).is_some());
    let outer = &parts[..at.map_or(parts.len(), |at| at + 1)];
    let runtime = last(outer, |part| {
        NAMES.iter().find(|(prefix, _)| part.starts_with(prefix)).map(|(_, runtime)| *runtime)
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
/// container are left out, since whoever runs in the container may have invented them.
fn pod(parts: &[&str]) -> WorkloadPath {
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
    let is_uid = |text: &str| {
        let digits = text.bytes().filter(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).count();
        digits == 32 && (text.len() == 32 || (text.len() == 36 && text.split('-').count() == 5))
    };
    let behind = part.match_indices("pod").map(|(at, pod)| &part[at + pod.len()..]);
    behind
        .map(|rest| rest.split(['.', ':']).next().unwrap_or_default().replace('_', "-"))
        .find(|uid| is_uid(uid))
}

fn job(parts: &[&str]) -> WorkloadPath {
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

/// `s` and 13 digits of Crockford's base 32, which Slurm 26.05 numbers jobs by.
fn is_sluid(part: &str) -> bool {
    let digit = |byte: &u8| byte.is_ascii_digit() || (byte.is_ascii_uppercase() && !b"ILOU".contains(byte));
    part.len() == 14 && part.starts_with('s') && part.as_bytes()[1..].iter().all(digit)
}

fn kind(parts: &[&str]) -> Option<Reason> {
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

/// The container id: 64 hexadecimal digits in every runtime, within any other text.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

    fn at(path: &str) -> WorkloadPath {
        let path = path.replace("CID", ID);
        parse_workload_path(&path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>()).unwrap()
    }

    fn pod(uid: &str, container: &str) -> WorkloadPath {
        WorkloadPath::Pod { uid: uid.into(), container: container.into() }
    }

    fn container(runtime: &'static str, id: &str) -> WorkloadPath {
        WorkloadPath::Container { runtime, id: id.into() }
    }

    fn job(node: &str, job: &str, step: &str) -> WorkloadPath {
        WorkloadPath::Job { node: node.into(), job: job.into(), step: step.into() }
    }

    fn vm(name: &str) -> WorkloadPath {
        WorkloadPath::Vm { name: name.into() }
    }

    #[test]
    fn ids_are_read_from_the_paths_of_all_runtimes_and_schedulers() {
        let uid = "3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
        let fixed = "b6cd0000000000000000000000000000";
        for (path, expected) in [
            (
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod3cae2e45_052c_4b11_80d3_4d7b2d2d3464.slice/cri-containerd-CID.scope",
                pod(uid, ID),
            ),
            (
                "/system.slice/docker-CID.scope/kubelet.slice/kubepods-besteffort-pod3cae2e45_052c_4b11_80d3_4d7b2d2d3464.slice/cri-containerd-CID.scope",
                pod("", ""),
            ),
            (
                "/system.slice/containerd.service/kubepods-besteffort-pod3cae2e45_052c_4b11_80d3_4d7b2d2d3464.slice:cri-containerd:CID",
                pod(uid, ID),
            ),
            (
                "/kubepods.slice/kubepods-pod3cae2e45_052c_4b11_80d3_4d7b2d2d3464.slice/crio-CID.scope/container",
                pod(uid, ID),
            ),
            ("/kubepods/burstable/pod3cae2e45-052c-4b11-80d3-4d7b2d2d3464/CID", pod(uid, ID)),
            ("/kubepods/podb6cd0000000000000000000000000000/CID", pod(fixed, ID)),
            (
                "/kubepods.slice/kubepods-podb6cd0000000000000000000000000000.slice/crio-CID.scope",
                pod(fixed, ID),
            ),
            ("/kubepods.slice", pod("", "")),
            ("/system.slice/k3s.service/x", pod("", "")),
            ("/docker/CID", container("docker", ID)),
            ("/system.slice/docker-CID.scope", container("docker", ID)),
            ("/system.slice/docker.service/docker/x", container("docker", "")),
            ("/system.slice/containerd.service/default/CID", container("containerd", ID)),
            ("/system.slice/nerdctl-CID.scope", container("containerd", ID)),
            ("/machine.slice/libpod-CID.scope/container", container("podman", ID)),
            ("/system.slice/web.service/libpod-payload-CID", container("podman", ID)),
            ("/system.slice/web.service/CID", container("unknown", ID)),
            ("/lxc.payload.c1/system.slice/trainer.service", container("lxc", "c1")),
            ("/lxc/101/ns/init.scope", container("lxc", "101")),
            // What stands below a container is named by whoever runs in it.
            ("/lxc.payload.c1/docker-CID.scope", container("lxc", "c1")),
            ("/docker/CID/system.slice/podman.service/x", container("docker", ID)),
            ("/lxc.payload.c1/kubepods/pod3cae2e45-052c-4b11-80d3-4d7b2d2d3464/CID", pod("", "")),
            ("/machine.slice/machine-tumbleweed.scope/payload", container("nspawn", "tumbleweed")),
            ("/system.slice/slurmstepd.scope/job_211/step_extern/user/task_0", job("", "211", "extern")),
            (
                "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",
                job("", "s5K1KKYAYG5D00", "0"),
            ),
            ("/system.slice/node1_slurmstepd.scope/job_211/step_0/user/task_0", job("node1", "211", "0")),
            ("/slurm_node1/uid_262563/job_55786247/step_0", job("node1", "55786247", "0")),
            ("/slurm/uid_1000/job_7/step_batch/task_0", job("", "7", "batch")),
            (
                "/system.slice/slurmstepd.scope/job_211/step_0/user/task_0/docker-CID.scope",
                job("", "211", "0"),
            ),
            ("/system.slice/slurmstepd.scope/system", job("", "", "")),
            ("/machine.slice/machine-qemu-2-instance-00000001.scope/libvirt", vm("instance-00000001")),
            ("/machine/vm7.libvirt-qemu/emulator", vm("vm7")),
            ("/qemu.slice/100.scope", vm("100")),
            ("/machine.slice", vm("")),
        ] {
            assert_eq!(at(path), expected, "{path}");
        }
    }
}

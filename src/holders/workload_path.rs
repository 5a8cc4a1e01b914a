//! The container, pod, batch job or virtual machine that a cgroup path belongs to.
//!
//! The naming rules are those in the sources of runtimes and schedulers. Resolvers find the holder by the ids in the
//! path. The outermost workload counts, since whoever is root in it names the cgroups below. Such a path is never a
//! unit's, although a container may be below `docker.service`. The test of all forms is `cgroup_corpus`.

use super::believed_cgroups::BelievedCgroups;
use crate::holders::host::pod_logs::is_uid;
use crate::model::UnattributedReason as Reason;

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

/// The templates of systemd and of NixOS for containers of systemd-nspawn, which run as services in `machine.slice`.
const NSPAWN_SERVICES: [&str; 2] = ["systemd-nspawn@", "container@"];

const RUNTIME_NAMES: &[(&str, &str)] = &[
    ("cri-containerd-", "containerd"),
    ("containerd.service", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-", "crio"),
    ("docker", "docker"),
    ("snap.docker", "docker"),
    ("snap.microk8s", "containerd"),
    ("libpod-", "podman"),
    ("podman", "podman"),
    ("lxc", "lxc"),
    ("machine-", "nspawn"),
    (NSPAWN_SERVICES[0], "nspawn"),
    (NSPAWN_SERVICES[1], "nspawn"),
];

/// A workload with the ids in its cgroup path; a field is empty where the path lacks it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WorkloadPath {
    Unknown,
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
    Pod {
        /// The pod's UID with dashes, or 32 hexadecimal digits for a static pod.
        uid: String,
        /// Id of the container, 64 hexadecimal digits.
        container: String,
    },
    Job {
        /// The node's name, where one machine runs several slurmd.
        node: String,
        /// Number of the job, or its SLUID, which begins with `s`.
        job: String,
        /// The step: a number, `batch`, `extern` or `interactive`.
        step: String,
        /// The container of a pod in which it runs, where the configuration names that as a node.
        pod: Option<Box<Self>>,
    },
}

impl WorkloadPath {
    pub(super) const fn without_ids(kind: Reason) -> Self {
        match kind {
            Reason::Unknown => Self::Unknown,
            Reason::Vm => Self::Vm { name: String::new() },
            Reason::Container => Self::Container { runtime: "unknown", id: String::new() },
            Reason::Pod => Self::Pod { uid: String::new(), container: String::new() },
            Reason::Job => {
                Self::Job { node: String::new(), job: String::new(), step: String::new(), pod: None }
            }
        }
    }

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

/// A workload, and how many parts of the path name it; what stands below is named by the workload itself.
pub(super) struct OuterWorkload {
    pub(super) workload: WorkloadPath,
    pub(super) depth: usize,
}

/// Finds the outermost workload of a path. Below a service that is no known runtime there is none. A container that the
/// configuration names as a node is not believed itself, but what runs in it.
pub(super) fn parse_workload_path(parts: &[&str], cgroups: &BelievedCgroups) -> Option<OuterWorkload> {
    let outer = find_outermost(parts, cgroups)?;
    let of_node = || {
        let depth = cgroups.node_depth(parts, outer.depth)?;
        let mut inner = find_outermost(&parts[depth..], cgroups)?;
        if let (WorkloadPath::Job { pod, .. }, WorkloadPath::Pod { .. }) =
            (&mut inner.workload, &outer.workload)
        {
            *pod = Some(Box::new(outer.workload.clone()));
        }
        Some(OuterWorkload { depth: depth + inner.depth, ..inner })
    };
    Some(of_node().unwrap_or(outer))
}

fn find_outermost(parts: &[&str], cgroups: &BelievedCgroups) -> Option<OuterWorkload> {
    // The kind of the workloads below a slice or service.
    let mut below = None;
    for (at, part) in parts.iter().enumerate() {
        match kind_of_part(at, part) {
            Some(Reason::Vm) => match vm_name(part) {
                Some(name) => {
                    return Some(OuterWorkload::new(WorkloadPath::Vm { name: name.to_owned() }, at + 1));
                }
                None => below = below.max(Some(Reason::Vm)),
            },
            // Below a kubelet a container is a pod's, of which the path does not tell which.
            Some(Reason::Container) if below == Some(Reason::Pod) => {
                return Some(OuterWorkload::new(WorkloadPath::without_ids(Reason::Pod), at + 1));
            }
            Some(Reason::Container) => return Some(parse_container(parts, at)),
            Some(Reason::Pod) => return Some(parse_pod(parts, at)),
            Some(Reason::Job) => return Some(parse_job(parts, at)),
            Some(Reason::Unknown) | None => {
                if below == Some(Reason::Vm) && container_name(part).is_some() {
                    return Some(parse_container(parts, at));
                }
                if below == Some(Reason::Vm)
                    && let Some(name) = vm_name(part)
                {
                    return Some(OuterWorkload::new(WorkloadPath::Vm { name: name.to_owned() }, at + 1));
                }
                let service = cgroups.workloads_below(part).filter(|_| at + 1 < parts.len());
                if service.is_none() && (part.ends_with(".service") || part.ends_with(".scope")) {
                    break;
                }
                below = below.max(service);
            }
        }
    }
    below.map(|kind| OuterWorkload::new(WorkloadPath::without_ids(kind), parts.len()))
}

impl OuterWorkload {
    const fn new(workload: WorkloadPath, depth: usize) -> Self {
        Self { workload, depth }
    }
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

/// The container at that part, or directly below it: `/docker/ID`, `/lxc/NAME`.
fn parse_container(parts: &[&str], at: usize) -> OuterWorkload {
    let below_lxc = |at: usize| (at == 1 && parts[0] == "lxc").then(|| parts[at]);
    let name = |at: usize| {
        let part = parts.get(at)?;
        container_id(part).or_else(|| container_name(part)).or_else(|| below_lxc(at))
    };
    let is_parent = at == 0 && matches!(parts[0], "docker" | "lxc");
    let at = if is_parent && name(at).is_none() { at + 1 } else { at };
    let depth = parts.len().min(at + 1);
    // The deepest part that names one.
    let runtime = parts[..depth].iter().rev().find_map(|part| {
        RUNTIME_NAMES.iter().find(|(prefix, _)| part.starts_with(prefix)).map(|(_, runtime)| *runtime)
    });
    let id = name(at).unwrap_or_default().to_owned();
    OuterWorkload::new(WorkloadPath::Container { runtime: runtime.unwrap_or("unknown"), id }, depth)
}

pub(super) fn parse_container_below(parts: &[&str], from: usize) -> Option<OuterWorkload> {
    let is_container = |at: &usize| kind_of_part(*at, parts[*at]) == Some(Reason::Container);
    (from..parts.len()).find(is_container).map(|at| parse_container(parts, at))
}

/// The name in `lxc.payload.NAME`, `machine-NAME.scope` and `systemd-nspawn@NAME.service`.
fn container_name(part: &str) -> Option<&str> {
    let machine = || part.strip_prefix("machine-").and_then(|rest| rest.strip_suffix(".scope"));
    let service = || {
        let instance = NSPAWN_SERVICES.iter().find_map(|template| part.strip_prefix(template))?;
        instance.strip_suffix(".service")
    };
    let lxc = part.strip_prefix("lxc.payload.").or_else(|| part.strip_prefix("lxc.monitor."));
    let name = lxc.or_else(machine).or_else(service);
    name.filter(|name| !name.is_empty())
}

/// The UID after the first `pod`, and the container id after that; both may be in one part. Below a container its
/// processes may have invented both.
fn parse_pod(parts: &[&str], at: usize) -> OuterWorkload {
    let is_container = |part: &&&str| container_id(part).or_else(|| container_name(part)).is_some();
    let outer = parts[at..].iter().take_while(|part| pod_uid(part).is_none() && !is_container(part)).count();
    let pod = at + outer;
    let Some(uid) = parts.get(pod).and_then(|part| pod_uid(part)) else {
        return OuterWorkload::new(WorkloadPath::without_ids(Reason::Pod), parts.len().min(pod + 1));
    };
    let container = parts[pod..].iter().enumerate().find_map(|(at, part)| Some((at, container_id(part)?)));
    let (at, container) = container.unwrap_or_default();
    OuterWorkload::new(WorkloadPath::Pod { uid, container: container.to_owned() }, pod + at + 1)
}

/// With dashes; the systemd driver writes underscores, and static pods have 32 digits without either.
fn pod_uid(part: &str) -> Option<String> {
    let behind = part.match_indices("pod").map(|(at, pod)| &part[at + pod.len()..]);
    behind
        .map(|rest| rest.split(['.', ':']).next().unwrap_or_default().replace('_', "-"))
        .find(|uid| is_uid(uid))
}

/// The job in the next two parts, `/job_7` or `/uid_1000/job_7`, and the step below it.
fn parse_job(parts: &[&str], at: usize) -> OuterWorkload {
    let node = match parts[at].strip_suffix("slurmstepd.scope") {
        Some(node) => node.trim_end_matches('_'),
        None => parts[at].strip_prefix("slurm_").unwrap_or_default(),
    };
    let below = &parts[at + 1..];
    let job = below
        .iter()
        .take(2)
        .find_map(|part| part.strip_prefix("job_").or_else(|| is_sluid(part).then_some(*part)));
    let steps = below.iter().take(3).enumerate();
    let step = steps.filter_map(|(at, part)| Some((at + 1, part.strip_prefix("step_")?))).next();
    let (depth, step) = step.unwrap_or_default();
    let workload = WorkloadPath::Job {
        node: node.to_owned(),
        job: job.unwrap_or_default().to_owned(),
        step: step.to_owned(),
        pod: None,
    };
    OuterWorkload::new(workload, at + 1 + depth)
}

/// Whether a part is a SLUID, the job id of Slurm 26.05: `s` and 13 digits of Crockford's base 32.
fn is_sluid(part: &str) -> bool {
    let digit = |byte: &u8| byte.is_ascii_digit() || (byte.is_ascii_uppercase() && !b"ILOU".contains(byte));
    part.len() == 14 && part.starts_with('s') && part.as_bytes()[1..].iter().all(digit)
}

/// Whether a part reads like a workload that would count before one of that kind.
pub(super) fn reads_like_more_than(part: &str, kind: Option<Reason>) -> bool {
    kind_of_part(1, part) > kind
}

/// The kind of workload whose cgroups have such a name, at that depth.
fn kind_of_part(at: usize, part: &str) -> Option<Reason> {
    let unit = part.ends_with(".service");
    // A slice with an id is of a pod of Podman, whose containers lie below.
    let is_slice = part.ends_with(".slice");
    if is_of_slurm(at, part) {
        Some(Reason::Job)
    } else if !unit && part.split(['.', '-', ':']).any(|word| word == "kubepods") {
        Some(Reason::Pod)
    } else if let Some((_, reason)) =
        RUNTIME_PREFIXES.iter().find(|(prefix, _)| !unit && !is_slice && part.starts_with(prefix))
    {
        Some(*reason)
    } else if (unit && part.starts_with(NSPAWN_SERVICES[0]))
        || (!is_slice && container_id(part).is_some())
        || (at == 0 && matches!(part, "docker" | "lxc"))
    {
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

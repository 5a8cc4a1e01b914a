//! The workloads of this node as the resolvers last published them.
//!
//! Each resolver asks a scheduler or runtime in its own thread and publishes the result, which is immutable and shared;
//! identification and the meter read it and never wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::believed_cgroups::BelievedCgroups;
use super::identify::Identity;
use super::standing::{GrantedSlot, product, sum};
use super::workload_path::WorkloadPath;
use super::{JobMap, PodMap};
use crate::holders::docker::{ContainerDescription, ContainerDescriptions};
use crate::model::{
    Fact, Facts, Fraction, Holder, HolderId, HolderKind, HoldingSource, UnattributedReason, Utc,
};

/// Whether the text is `GPU-` or `MIG-` and a UUID; HAMi appends the number of a share, which is refused.
pub(super) fn is_uuid(text: &str) -> bool {
    let Some(uuid) = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")) else { return false };
    let lengths = uuid.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// Parses a number without sign or leading zeros, as schedulers write it.
pub(super) fn parse_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllocatedDevice {
    /// By UUID: a GPU, `GPU-...`, or a MIG instance, `MIG-...`.
    Uuid(Arc<str>),
    /// A whole GPU instance of a GPU in MIG mode.
    Instance { gpu: Arc<str>, id: u32 },
    /// The same by its memory slices.
    Slices { gpu: Arc<str>, start: u32, size: Option<u32> },
}

impl From<&str> for AllocatedDevice {
    fn from(uuid: &str) -> Self {
        Self::Uuid(uuid.into())
    }
}

impl std::fmt::Display for AllocatedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::Instance { gpu, id } => write!(f, "{gpu} GPU instance {id}"),
            Self::Slices { gpu, start, .. } => write!(f, "{gpu} GPU instance at memory slice {start}"),
        }
    }
}

/// A share of a GPU or MIG instance that a scheduler granted to a workload. A job's share covers its steps; a
/// container's covers the containers of its pod that were granted no share of that GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub holder: Holder,
    pub device: AllocatedDevice,
    pub fraction: Fraction,
    pub source: HoldingSource,
    /// Wall-clock time of the grant, where it is known. The holding counts from then on, as far back as the account's
    /// windows are still open.
    pub since: Option<Utc>,
    /// Wall-clock time of its end, within the last minute, where it ended before that became known here. The holding
    /// counts until then, as far back as the account's windows are still open.
    pub until: Option<Utc>,
    /// The container of a pod in which this job runs, so that its share lies in that of the container.
    pub within: Option<HolderId>,
}

impl Allocation {
    /// An allocation that begins when it is seen.
    pub fn new(
        holder: &Holder,
        device: impl Into<AllocatedDevice>,
        fraction: Fraction,
        source: HoldingSource,
    ) -> Self {
        let (holder, device) = (holder.clone(), device.into());
        Self { holder, device, fraction, source, since: None, until: None, within: None }
    }

    /// Whether both grant the same device to the same holder, whatever its version.
    pub fn is_same_grant(&self, other: &Self) -> bool {
        (self.holder.id.name(), &self.device, self.source)
            == (other.holder.id.name(), &other.device, other.source)
    }

    pub fn fits_beside(&self, others: &[Self]) -> bool {
        let others = others.iter().filter(|other| other.device == self.device);
        let taken =
            others.fold(Fraction { numerator: 0, denominator: 1 }, |taken, one| sum(taken, one.fraction));
        let [a, b] = [taken.numerator, taken.denominator].map(u128::from);
        let [c, d] = [self.fraction.numerator, self.fraction.denominator].map(u128::from);
        // `sum` stops at the whole, so it cannot tell.
        a * d + c * b <= b * d
    }

    /// Its share of a slot; none where it is on another one.
    pub(super) fn share_of(&self, slot: GrantedSlot<'_>) -> Option<Fraction> {
        let device = slot.share_of(&self.device)?;
        Some(if device == Fraction::WHOLE { self.fraction } else { product(self.fraction, device) })
    }
}

#[derive(Clone, Debug, Default)]
pub struct ResolvedWorkloads {
    /// What schedulers allocated, by GPU and holder.
    pub allocations: Arc<[Allocation]>,
    /// Allocations of the kubelet that ended within the last minute.
    pub ended: Arc<Vec<Allocation>>,
    /// The reasons that a running resolver may resolve: it may later name workloads that are unknown now.
    pub awaited: Vec<UnattributedReason>,
    pub pods: Arc<PodMap>,
    pub jobs: Arc<JobMap>,
    pub containers: Arc<ContainerDescriptions>,
    /// Which cgroups may hold those of workloads.
    pub cgroups: Arc<BelievedCgroups>,
    /// The container of a pod in which a run of a job was, by job and begin of the run, while the job has a record.
    pub job_pods: Arc<BTreeMap<(HolderId, Option<u64>), HolderId>>,
}

impl ResolvedWorkloads {
    pub fn allocate(&mut self, source: HoldingSource, allocations: &[Allocation]) {
        let others = self.allocations.iter().filter(|one| one.source != source);
        let all = others.chain(allocations).cloned().collect::<Vec<_>>();
        if *self.allocations != *all {
            self.allocations = all.into();
        }
    }

    /// Sets in which container of a pod each job runs, after a resolver has published something. Such a job ends with the
    /// container at the latest, since a pod that is deleted runs no epilog.
    pub fn nest_jobs(&mut self) {
        let mut pods = BTreeMap::new();
        let holders = |source| {
            let of_source = self.allocations.iter().filter(move |one| one.source == source);
            of_source.map(|one| &one.holder.id)
        };
        let granted: BTreeSet<&HolderId> = holders(HoldingSource::Kubernetes).collect();
        let nested = |one: &Allocation| {
            let run = (one.holder.id.clone(), one.holder.facts.started);
            let Some(pod) = self.job_pods.get(&run).cloned().or_else(|| self.pod_of(one)) else {
                return Some(Allocation { within: None, ..one.clone() });
            };
            let is_granted = granted.contains(&pod);
            pods.insert(run, pod.clone());
            is_granted.then(|| Allocation { within: Some(pod), ..one.clone() })
        };
        let all: Vec<Allocation> = self.allocations.iter().filter_map(nested).collect();
        // A job whose share ended with its pod may still have its record.
        let is_kept = |(job, _): &&(HolderId, Option<u64>)| self.jobs.is_recorded(job);
        let ended = self.job_pods.iter().filter(|(run, _)| is_kept(run));
        for (run, pod) in ended {
            pods.entry(run.clone()).or_insert_with(|| pod.clone());
        }
        if *self.allocations != *all {
            self.allocations = all.into();
        }
        if *self.job_pods != pods {
            self.job_pods = pods.into();
        }
    }

    /// The container of a pod in which a job runs: one that the configuration names as a node, and that was granted the same
    /// GPU as the prolog's record names. What runs in the pod decides nothing: whoever is root there may name its cgroups
    /// like any job's.
    fn pod_of(&self, job: &Allocation) -> Option<HolderId> {
        if job.source != HoldingSource::Slurm || !self.jobs.is_recorded(&job.holder.id) {
            return None;
        }
        let is_node = |one: &&Allocation| {
            let container = self.pods.container_of(&one.holder.id);
            container.is_some_and(|(uid, id)| self.cgroups.is_pod_node(uid, id))
        };
        let of_pods = self.allocations.iter().filter(|one| one.source == HoldingSource::Kubernetes);
        let on_device = of_pods.filter(|one| one.device == job.device).filter(is_node);
        on_device.map(|one| one.holder.id.clone()).max()
    }

    fn is_in_pod(&self, job: &HolderId, pod: &HolderId) -> bool {
        self.allocations.iter().any(|one| one.holder.id == *job && self.pod_of(one).as_ref() == Some(pod))
    }

    pub(super) fn has_same_facts(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pods, &other.pods)
            && Arc::ptr_eq(&self.jobs, &other.jobs)
            && Arc::ptr_eq(&self.containers, &other.containers)
    }

    /// The same holder with the facts that are known now; none where a resolver does not know it, or never did.
    pub(super) fn current(&self, holder: &Holder) -> Option<Holder> {
        let fact = |fact| holder.facts.get(fact).map_or("", |text| &**text);
        let current = match holder.id.kind() {
            HolderKind::Slurm => self.jobs.holder(fact(Fact::SlurmJob), fact(Fact::SlurmStep)),
            HolderKind::Pod => self.pods.with_id(&holder.id).cloned(),
            HolderKind::Container => {
                let id = fact(Fact::Container);
                let description = self.containers.get(id)?;
                container_holder(fact(Fact::ContainerRuntime), id, Some(description))
            }
            _ => None,
        };
        current.filter(|current| current.id == holder.id)
    }

    pub(super) fn identify(&self, path: &WorkloadPath) -> Identity {
        let reason = path.reason();
        if let WorkloadPath::Job { job, pod: Some(pod), .. } = path {
            let pod = self.identify(pod);
            let job = self.jobs.holder(job, "");
            if !job.is_some_and(|job| self.is_in_pod(&job.id, &pod.holder.id)) {
                // The record of a new job may be read later than its first process.
                let awaited = pod.awaited.or_else(|| self.awaited.contains(&reason).then_some(reason));
                return Identity { awaited, ..pod };
            }
        }
        let holder = match path {
            WorkloadPath::Container { runtime, id } => container_holder(runtime, id, self.containers.get(id)),
            WorkloadPath::Vm { name } => (!name.is_empty())
                .then(|| Holder::new(HolderKind::Vm, Facts::new([(Fact::Vm, name.as_str())]))),
            WorkloadPath::Pod { uid, container } => self.pods.holder(uid, container).cloned(),
            WorkloadPath::Job { job, step, .. } => self.jobs.holder(job, step),
            WorkloadPath::Unknown => None,
        };
        let is_complete = holder.is_some() && !self.may_describe(path);
        let is_awaited = !is_complete && self.awaited.contains(&reason);
        Identity {
            holder: holder.unwrap_or_else(|| Holder::remainder(HolderId::unattributed(reason))),
            awaited: is_awaited.then_some(reason),
        }
    }

    /// Whether Docker's API may still report name and image of a container that is known by its id.
    fn may_describe(&self, path: &WorkloadPath) -> bool {
        let WorkloadPath::Container { runtime, id } = path else { return false };
        matches!(*runtime, "docker" | "podman" | "unknown") && !self.containers.contains_key(id)
    }
}

/// A container by the id in its path, without name and image where these are not known.
fn container_holder(runtime: &str, id: &str, description: Option<&ContainerDescription>) -> Option<Holder> {
    let mut facts = Facts::new([(Fact::ContainerRuntime, runtime), (Fact::Container, id)]);
    if let Some(ContainerDescription { name, image }) = description {
        facts.set(Fact::ContainerName, name.as_str().into());
        facts.set(Fact::ContainerImage, image.as_str().into());
    }
    (!id.is_empty()).then(|| Holder::new(HolderKind::Container, facts))
}

//! The workloads of this node as the resolvers last published them.
//!
//! Each resolver asks a scheduler or runtime in its own thread and publishes the result; identification and the meter
//! read it and never wait. Immutable and shared.

use std::sync::Arc;

use super::standing::{GrantedSlot, product, sum};
use super::workload_path::WorkloadPath;
use super::{JobMap, PodMap, container, vm};
use crate::docker::ContainerDescriptions;
use crate::model::{Fraction, Holder, HoldingSource, MigSlot, UnattributedReason, Utc};

/// A GPU or MIG instance as schedulers name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllocatedDevice {
    /// By UUID: a GPU, `GPU-...`, or a MIG instance, `MIG-...`.
    Uuid(Arc<str>),
    /// A whole GPU instance of a GPU in MIG mode.
    Instance {
        /// UUID of the GPU.
        gpu: Arc<str>,
        /// Which of its instances.
        place: InstancePlace,
    },
}

/// Which GPU instance of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstancePlace {
    /// Its id.
    Id(u32),
    /// Its first memory slice, and how many it has where that is known.
    Slices {
        /// The first one.
        start: u32,
        /// How many.
        size: Option<u32>,
    },
}

impl InstancePlace {
    /// Whether it is the place of the GPU instance of that id.
    pub(super) fn is_of(self, id: &str, slot: &MigSlot) -> bool {
        match self {
            Self::Id(own) => id.parse() == Ok(own),
            Self::Slices { start, size } => {
                slot.start == Some(start.into()) && size.is_none_or(|size| slot.size == u64::from(size))
            }
        }
    }
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
            Self::Instance { gpu, place: InstancePlace::Id(id) } => write!(f, "{gpu} GPU instance {id}"),
            Self::Instance { gpu, place: InstancePlace::Slices { start, .. } } => {
                write!(f, "{gpu} GPU instance at memory slice {start}")
            }
        }
    }
}

/// A share of a GPU or MIG instance that a scheduler granted to a workload. A job's share covers its steps; a
/// container's covers the containers of its pod that were granted no share of that GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// To whom it was granted.
    pub holder: Holder,
    /// The GPU or MIG instance.
    pub device: AllocatedDevice,
    /// The share, as it was when granted.
    pub fraction: Fraction,
    /// Which scheduler says so.
    pub source: HoldingSource,
    /// Wall-clock time of the grant, where it is known. The holding counts from then on, as far back as the account's
    /// windows are still open.
    pub since: Option<Utc>,
}

impl Allocation {
    /// Whether both grant the same device to the same holder.
    pub fn is_same_grant(&self, other: &Self) -> bool {
        (&self.holder.id, &self.device, self.source) == (&other.holder.id, &other.device, other.source)
    }

    /// Whether its device has room for it beside these.
    pub fn fits_beside(&self, others: &[Self]) -> bool {
        let others = others.iter().filter(|other| other.device == self.device);
        let taken =
            others.fold(Fraction { numerator: 0, denominator: 1 }, |taken, one| sum(taken, one.fraction));
        let [a, b] = [taken.numerator, taken.denominator].map(u128::from);
        let [c, d] = [self.fraction.numerator, self.fraction.denominator].map(u128::from);
        a * d + c * b <= b * d
    }

    /// Its share of a slot; none where it is on another one.
    pub(super) fn share_of(&self, slot: GrantedSlot<'_>) -> Option<Fraction> {
        let device = slot.share_of(&self.device)?;
        Some(if device == Fraction::WHOLE { self.fraction } else { product(self.fraction, device) })
    }
}

/// The workloads of this node and their allocations.
#[derive(Clone, Debug, Default)]
pub struct ResolvedWorkloads {
    /// What schedulers allocated, by GPU and holder.
    pub allocations: Arc<[Allocation]>,
    /// The kinds with a running resolver, which may later name workloads that are unknown now.
    pub awaited: Vec<UnattributedReason>,
    /// Kubernetes pods.
    pub pods: Arc<PodMap>,
    /// Slurm jobs.
    pub jobs: Arc<JobMap>,
    /// What a runtime says of its containers.
    pub containers: Arc<ContainerDescriptions>,
}

impl ResolvedWorkloads {
    /// Replaces the allocations of a scheduler.
    pub fn allocate(&mut self, source: HoldingSource, allocations: &[Allocation]) {
        let others = self.allocations.iter().filter(|one| one.source != source);
        let all = others.chain(allocations).cloned().collect::<Vec<_>>();
        if *self.allocations != *all {
            self.allocations = all.into();
        }
    }

    /// The holder of processes at that path, or why they are unattributed.
    pub(super) fn holder(&self, path: &WorkloadPath) -> Result<Holder, UnattributedReason> {
        let holder = match path {
            WorkloadPath::Container { runtime, id } => {
                container::holder(runtime, id, self.containers.get(id))
            }
            WorkloadPath::Vm { name } => vm::holder(name),
            WorkloadPath::Pod { uid, container } => self.pods.holder(uid, container).cloned(),
            WorkloadPath::Job { job, step, .. } => self.jobs.holder(job, step),
            WorkloadPath::Unknown => None,
        };
        holder.ok_or_else(|| path.reason())
    }

    /// Whether a runtime may still report name and image of a container that is known by its id.
    pub(super) fn may_describe(&self, path: &WorkloadPath) -> bool {
        let WorkloadPath::Container { runtime, id } = path else { return false };
        container::may_be_described(runtime)
            && self.may_resolve(path.reason())
            && !self.containers.contains_key(id)
    }

    /// Whether a resolver may still name workloads that are unattributed for that reason.
    pub(super) fn may_resolve(&self, reason: UnattributedReason) -> bool {
        self.awaited.contains(&reason)
    }
}

//! Holders: who uses or holds a GPU, at the finest known level, with the facts that tenant rules may use.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Fact, Facts, HolderKind};

/// Begins the names of tenants and holders that are reserved for remainders.
pub const RESERVED: &str = "__";

/// A version of a holder: a workload id such as `unit:trainer.service`, `user:alice`, or a reserved remainder such as
/// `__system__`, followed by [`VERSION`] and a number where facts of that workload have changed.
///
/// Ordered by its text; the account breaks all ties by that order. It is shown without its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HolderId(pub Arc<str>);

/// Begins the number of a version. No cgroup, user or record has it in a name.
const VERSION: char = '\n';

impl HolderId {
    /// Time that nobody held.
    pub const UNALLOCATED: &'static str = "__unallocated__";
    /// Memory slices of a MIG GPU that no profile can use.
    pub const STRANDED: &'static str = "__stranded__";
    /// Time of a GPU that was lost, broken, or between two MIG layouts.
    pub const UNAVAILABLE: &'static str = "__unavailable__";
    /// Money of held time at the full rate, less what terms charge; may be negative, and has no time.
    pub const TERMS: &'static str = "__terms__";
    /// Money of GPU time at the GPU's rate, less the list prices of MIG instances; may be negative, and has no time.
    pub const RATE_VARIANCE: &'static str = "__rate_variance__";
    /// Tenants without series of their own on a page, taken together; never in the ledger.
    pub const OTHER: &'static str = "__other__";
    /// Time that was not observed: neither holdings nor activity are known.
    pub const UNOBSERVED: &'static str = "__unobserved__";
    /// Use by the persistence daemon, display server, MPS control, or the agent itself.
    pub const SYSTEM: &'static str = "__system__";
    /// Use by an unknown holder.
    pub const UNATTRIBUTED: &'static str = "__unattributed__";

    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Its text, with the version.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The workload id, which all versions of a holder share.
    pub fn name(&self) -> &str {
        self.0.split_once(VERSION).map_or(&self.0, |(name, _)| name)
    }

    pub fn workload(&self) -> Arc<str> {
        if self.name().len() == self.0.len() { Arc::clone(&self.0) } else { self.name().into() }
    }

    /// The number of the version; 0 for an id without one.
    pub fn version(&self) -> u64 {
        self.0.split_once(VERSION).and_then(|(_, version)| version.parse().ok()).unwrap_or(0)
    }

    #[must_use]
    pub fn with_version(&self, version: u64) -> Self {
        match version {
            0 => Self(self.workload()),
            _ => Self::new(format!("{}{VERSION}{version}", self.name())),
        }
    }

    /// The remainder that takes the use of processes whose owner is not known for that reason; its tenant is always
    /// [`HolderId::UNATTRIBUTED`].
    pub fn unattributed(reason: UnattributedReason) -> Self {
        Self::new(reason.id())
    }

    pub fn unattributed_reason(&self) -> Option<UnattributedReason> {
        UnattributedReason::ALL.into_iter().find(|reason| reason.id() == self.as_str())
    }

    /// The kind of the workload, also where only its kind is known; none of other remainders.
    pub fn workload_kind(&self) -> Option<HolderKind> {
        match self.unattributed_reason() {
            Some(reason) => reason.workload_kind(),
            None => Some(self.kind()).filter(|kind| *kind != HolderKind::Remainder),
        }
    }

    /// The job of a step, and the pod of a container.
    pub fn outer(&self) -> Option<Self> {
        let part = match self.kind() {
            HolderKind::Slurm => Fact::SlurmStep,
            HolderKind::Pod => Fact::PodContainer,
            _ => return None,
        };
        let mut facts = self.facts();
        facts.get(part)?;
        facts.set(part, "".into());
        Some(Self::of(self.kind(), &facts))
    }

    /// The workload of which a run is: of a step its job, of a container its pod, else itself, without its version.
    pub fn whole(&self) -> Self {
        self.outer().unwrap_or_else(|| Self(self.workload()))
    }

    /// Whether what it does on a GPU may be for any holder there: an MPS server, or a process whose owner is not known.
    pub fn may_work_for_others(&self) -> bool {
        self.as_str() == Self::SYSTEM || self.unattributed_reason().is_some()
    }

    pub fn is_remainder(&self) -> bool {
        self.0.starts_with(RESERVED)
    }
}

impl std::fmt::Display for HolderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why the holder of a process is not known, in ascending order of precedence where several apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnattributedReason {
    /// The process could not be identified, or it is unknown which process was busy.
    Unknown,
    /// It belongs to a virtual machine, and no resolver names virtual machines.
    Vm,
    /// It runs in a container, and no resolver names containers.
    Container,
    /// It runs in a Kubernetes pod, and no resolver names pods.
    Pod,
    /// It belongs to a batch job, and no resolver names jobs.
    Job,
}

impl UnattributedReason {
    /// All reasons, in the order of the page.
    pub const ALL: [Self; 5] = [Self::Container, Self::Pod, Self::Job, Self::Vm, Self::Unknown];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Vm => "vm",
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }

    pub const fn workload_kind(self) -> Option<HolderKind> {
        match self {
            Self::Unknown => None,
            Self::Vm => Some(HolderKind::Vm),
            Self::Container => Some(HolderKind::Container),
            Self::Pod => Some(HolderKind::Pod),
            Self::Job => Some(HolderKind::Slurm),
        }
    }

    /// The text of the remainder's id. Ledgers written before there were reasons have only the first.
    const fn id(self) -> &'static str {
        match self {
            Self::Unknown => HolderId::UNATTRIBUTED,
            Self::Vm => "__unattributed__/vm",
            Self::Container => "__unattributed__/container",
            Self::Pod => "__unattributed__/pod",
            Self::Job => "__unattributed__/job",
        }
    }
}

/// The template of an instance: `worker@.service` of `worker@7.service`.
fn template(unit: &str) -> Option<String> {
    let (prefix, rest) = unit.split_once('@')?;
    let (instance, suffix) = rest.rsplit_once('.')?;
    (!prefix.is_empty() && !instance.is_empty()).then(|| format!("{prefix}@.{suffix}"))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    pub id: HolderId,
    pub facts: Facts,
}

impl Holder {
    /// A holder of that kind; its id is composed of the facts.
    pub fn new(kind: HolderKind, facts: Facts) -> Self {
        Self { id: HolderId::of(kind, &facts), facts }
    }

    /// A holder with the facts that its id contains.
    pub fn from_id(id: HolderId) -> Self {
        Self { facts: id.facts(), id }
    }

    pub fn remainder(id: HolderId) -> Self {
        Self { id, facts: Facts::default() }
    }

    pub fn user(name: &str, uid: Option<u32>) -> Self {
        Self::new(HolderKind::User, Facts::new([(Fact::User, name)]).with_uid(uid))
    }

    pub fn group(name: &str) -> Self {
        Self::new(HolderKind::Group, Facts::new([(Fact::Group, name)]))
    }

    /// Users who hold together, under the id of their grant.
    pub fn team(id: &str) -> Self {
        Self::new(HolderKind::Team, Facts::new([(Fact::Group, id)]))
    }

    pub fn unit(unit: &str, user: Option<&str>, uid: Option<u32>) -> Self {
        let texts = [(Fact::Unit, unit), (Fact::User, user.unwrap_or_default())];
        let mut facts = Facts::new(texts).with_uid(uid);
        facts.set(Fact::UnitTemplate, template(unit).unwrap_or_default().into());
        Self::new(HolderKind::Unit, facts)
    }

    /// The same unit for a user who is not the first one in it.
    #[must_use]
    pub fn of_further_user(&self, uid: u32) -> Self {
        Self { id: self.id.with_unit_user(uid), facts: self.facts.clone() }
    }
}

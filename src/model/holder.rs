//! Who uses or holds a GPU: the finest identity known, with the raw facts that rules may read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A workload id such as `unit:trainer.service`, `user:alice`, or a reserved remainder such as `__system__`.
///
/// Ordered by its text, which is how ties are broken everywhere in the account.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HolderId(pub Arc<str>);

impl HolderId {
    /// Nobody held it.
    pub const UNALLOCATED: &'static str = "__unallocated__";
    /// Lost, broken or reshaping.
    pub const UNAVAILABLE: &'static str = "__unavailable__";
    /// Nobody looked: neither holdings nor activity can be known.
    pub const UNOBSERVED: &'static str = "__unobserved__";
    /// Persistence daemon, display server, MPS control, the agent itself.
    pub const SYSTEM: &'static str = "__system__";
    /// Busy, owner unknown.
    pub const UNATTRIBUTED: &'static str = "__unattributed__";

    /// An id from its text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The remainder that takes the use of processes whose owner is not known for that reason; its tenant is always
    /// [`HolderId::UNATTRIBUTED`].
    pub fn unattributed(reason: UnattributedReason) -> Self {
        Self::new(reason.id())
    }

    /// The reason of a remainder that [`HolderId::unattributed`] names.
    pub fn unattributed_reason(&self) -> Option<UnattributedReason> {
        UnattributedReason::ALL.into_iter().find(|reason| reason.id() == self.as_str())
    }

    /// Whether it is one of the reserved remainders.
    pub fn is_remainder(&self) -> bool {
        self.0.starts_with("__")
    }
}

impl std::fmt::Display for HolderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why the owner of a process is not known, in ascending order of precedence where several apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnattributedReason {
    /// The process could not be identified, or nothing says which process was busy.
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

    /// The value of the `reason` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Vm => "vm",
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Job => "job",
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

/// The kinds of identity, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderKind {
    /// A systemd unit of the system manager.
    Unit,
    /// A Unix user.
    User,
    /// A reserved remainder.
    Remainder,
}

impl HolderKind {
    /// The value of the `kind` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::User => "user",
            Self::Remainder => "remainder",
        }
    }
}

/// Facts about a holder as they were observed; the outer identities stay here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Facts {
    /// systemd unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
    /// Unix user name, or the number where no name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Arc<str>>,
    /// Unix user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// A holder with its facts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Workload id.
    pub id: HolderId,
    /// What kind of identity it is.
    pub kind: HolderKind,
    /// What was observed.
    pub facts: Facts,
}

impl Holder {
    /// The holder of a reserved remainder.
    pub fn remainder(id: HolderId) -> Self {
        Self { id, kind: HolderKind::Remainder, facts: Facts::default() }
    }

    /// A Unix user.
    pub fn user(name: &str, uid: Option<u32>) -> Self {
        Self {
            id: HolderId::new(format!("user:{name}")),
            kind: HolderKind::User,
            facts: Facts { unit: None, user: Some(name.into()), uid },
        }
    }

    /// A systemd unit, with the user it runs as where that is known.
    pub fn unit(unit: &str, user: Option<&str>, uid: Option<u32>) -> Self {
        Self {
            id: HolderId::new(format!("unit:{unit}")),
            kind: HolderKind::Unit,
            facts: Facts { unit: Some(unit.into()), user: user.map(Into::into), uid },
        }
    }
}

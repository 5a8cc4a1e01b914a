//! Which GPU, and what it says of itself.

use std::sync::Arc;

use super::{Bytes, Stamp};

/// A physical GPU: the UUID is its identity, the index a convenience for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuId {
    /// The NVML index at first sight of the UUID in this boot; sticky.
    pub index: u32,
    /// The UUID as the driver prints it, `GPU-…`.
    pub uuid: Arc<str>,
}

/// Where a GPU is that this node had once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whereabouts {
    /// The driver counts it.
    Present,
    /// It is on the PCI bus, and the driver has lost it.
    Lost,
    /// Neither the driver nor the PCI bus has it.
    Gone,
    /// It is lent to a guest: bound to vfio-pci.
    Guest,
    /// Another GPU sits where it sat.
    Replaced,
    /// The operator does not expect it any more.
    Forgotten,
}

impl Whereabouts {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Present, Self::Lost, Self::Gone, Self::Guest, Self::Replaced, Self::Forgotten];

    /// The word in labels, tables and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Lost => "lost",
            Self::Gone => "gone",
            Self::Guest => "guest",
            Self::Replaced => "replaced",
            Self::Forgotten => "forgotten",
        }
    }

    /// The one of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|whereabouts| whereabouts.name() == name)
    }

    /// Whether its account rests: the time of its place is another GPU's, or nobody's.
    pub const fn rests(self) -> bool {
        matches!(self, Self::Replaced | Self::Forgotten)
    }
}

/// What a GPU says of itself; constant within one plan generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Product name, e.g. `NVIDIA H100 80GB HBM3`.
    pub model: Arc<str>,
    /// Board serial number, "" where the board has none.
    pub serial: Arc<str>,
    /// PCI bus id, e.g. `00000000:0F:00.0`.
    pub pci_bus_id: Arc<str>,
    /// Driver version.
    pub driver_version: Arc<str>,
    /// VBIOS version.
    pub vbios_version: Arc<str>,
    /// Whether MIG mode is on.
    pub mig: bool,
}

/// A MIG instance, by the driver's ids; unique within its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId {
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: u32,
}

/// What a MIG instance says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIdentity {
    /// Its ids.
    pub id: InstanceId,
    /// MIG UUID, `MIG-…`.
    pub uuid: Arc<str>,
    /// Profile, e.g. `3g.40gb`.
    pub profile: Arc<str>,
    /// Memory of the instance.
    pub memory: Bytes,
}

/// An XID as the driver told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidEvent {
    /// UUID of the GPU.
    pub uuid: Arc<str>,
    /// The code.
    pub xid: u32,
    /// When it was heard.
    pub at: Stamp,
}

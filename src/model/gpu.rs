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

/// What a GPU says of itself, and how it is read; constant within one plan generation. What a GPU does not
/// say is "".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Product name, e.g. `NVIDIA H100 80GB HBM3`.
    pub model: Arc<str>,
    /// Board serial number; two GPUs of one module share it.
    pub serial: Arc<str>,
    /// Board part number, e.g. `692-2G520-0200-000`.
    pub board_part: Arc<str>,
    /// PCI bus id, e.g. `00000000:0F:00.0`.
    pub pci_bus_id: Arc<str>,
    /// Number of the device file, as in `/dev/nvidia0`; not the index.
    pub minor_number: Arc<str>,
    /// Architecture, e.g. `hopper`, or its number where it has no name yet.
    pub architecture: Arc<str>,
    /// CUDA compute capability, e.g. `9.0`.
    pub compute_capability: Arc<str>,
    /// VBIOS version.
    pub vbios_version: Arc<str>,
    /// Driver version.
    pub driver_version: Arc<str>,
    /// The newest CUDA that the driver serves, e.g. `13.0`.
    pub cuda_version: Arc<str>,
    /// Whether MIG mode is on.
    pub mig: bool,
    /// Where it sits, on a baseboard or in a rack.
    pub platform: Option<Platform>,
    /// The NVLink fabric that it belongs to.
    pub fabric: Option<FabricPlace>,
    /// By what each device point is read, by catalogue point number; none where it is not.
    pub via: Arc<[Option<Via>]>,
}

/// Where a GPU sits; "" is what its board does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Platform {
    /// Serial number of the rack's chassis.
    pub chassis_serial: Arc<str>,
    /// Slot of the chassis.
    pub slot: Arc<str>,
    /// Compute tray.
    pub tray: Arc<str>,
    /// Host within the tray.
    pub host_id: Arc<str>,
    /// Place on the baseboard, from 1.
    pub module_id: Arc<str>,
}

/// The NVLink fabric of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricPlace {
    /// UUID of the cluster, "" on a fabric of one node.
    pub cluster_uuid: Arc<str>,
    /// The clique within the cluster.
    pub clique: Arc<str>,
}

/// By which kind of question the driver is asked for a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The batched field call.
    Field,
    /// A call of its own.
    Call,
    /// The difference of two GPM samples.
    Gpm,
}

impl Via {
    /// The value of the `source` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Field => "field",
            Self::Call => "call",
            Self::Gpm => "gpm",
        }
    }
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

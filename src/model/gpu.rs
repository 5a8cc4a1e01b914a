//! Which GPU, and what it says of itself.

use std::sync::Arc;

use super::{Bytes, Nanoseconds, Stamp};

/// A physical GPU: the UUID is its identity, the index a convenience for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuId {
    /// The NVML index in the driver session in which the GPU was last counted.
    pub index: u32,
    /// The UUID as the driver prints it, `GPU-…`.
    pub uuid: Arc<str>,
}

/// Where a GPU is that this node had once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attachment {
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

impl Attachment {
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
    /// How the memory slices of a MIG GPU are used; absent where the driver does not tell placements.
    pub mig_slices: Option<MigSlices>,
    /// Where it sits, on a baseboard or in a rack.
    pub platform: Option<Platform>,
    /// The NVLink fabric that it belongs to.
    pub fabric: Option<FabricPlace>,
    /// By what each device point is read, by catalogue point number; none where it is not.
    pub via: Arc<[Option<Via>]>,
}

/// The memory slices of a MIG GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigSlices {
    /// All of them.
    pub total: u32,
    /// Those of no instance that a profile could still use.
    pub free: u32,
    /// Those of no instance that none can.
    pub stranded: u32,
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
    /// Its GPU instance's first memory slice and how many it has, e.g. `4:4`; empty where the driver does not tell.
    pub placement: Arc<str>,
    /// Memory of the instance.
    pub memory: Bytes,
}

impl InstanceIdentity {
    /// How many memory slices its GPU instance has, where the driver tells its placement.
    pub fn slices(&self) -> Option<u32> {
        self.placement.split_once(':')?.1.parse().ok()
    }

    /// The first memory slice of its GPU instance, where the driver tells its placement.
    pub fn first_slice(&self) -> Option<u32> {
        self.placement.split_once(':')?.0.parse().ok()
    }
}

/// Where a GPU sits on the PCI bus; its function is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
}

impl PciAddress {
    /// Reads `domain:bus:device`, with or without a function, as drivers and kernels print it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let device = rest.split_once('.').map_or(rest, |(device, _)| device);
        let hex = |part: &str, most: usize| {
            let digits = !part.is_empty() && part.len() <= most && !part.starts_with('+');
            digits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
        };
        let byte = |part| u8::try_from(hex(part, 2)?).ok();
        let address = Self { domain: hex(domain, 8)?, bus: byte(bus)?, device: byte(device)? };
        parts.next().is_none().then_some(address)
    }
}

/// Which GPU an event speaks of, as its source names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuName {
    /// By UUID: the driver.
    Uuid(Arc<str>),
    /// By its place: the kernel's log.
    Pci(PciAddress),
}

/// Who told of an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidSource {
    /// The driver's event set, which tells of every one that it tells of at all.
    Events,
    /// The kernel's log, which knows codes that never become events, but is rate-limited.
    KernelLog,
}

/// XIDs of one code on one GPU, from one source, since the source was last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidCount {
    /// The GPU.
    pub gpu: GpuName,
    /// The code.
    pub xid: u32,
    /// Who told.
    pub source: XidSource,
    /// The GPU instance that it happened in, on a MIG GPU that says so.
    pub gpu_instance: Option<u32>,
    /// The compute instance.
    pub compute_instance: Option<u32>,
    /// How many.
    pub count: u64,
    /// When the last one was heard.
    pub last: Stamp,
    /// The same on the system's boot clock: sources lag in real time, whatever the node's clock is.
    pub heard: Nanoseconds,
}

/// What the driver tells of a GPU beside XIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Notice {
    /// An uncorrectable memory error.
    EccUncorrectable,
    /// Its instances were cut anew.
    MigChanged,
    /// Correctable memory errors come in a storm.
    EccStorm,
    /// A part of its memory was marked for replacement.
    MemoryRetired,
    /// A part of its memory could not be marked for replacement.
    MemoryRetirementFailed,
    /// Bad data was used, and contained.
    PoisonContained,
    /// Bad data was used, and not contained.
    PoisonFatal,
    /// It cannot be used any more.
    Unavailable,
    /// What it needs to recover has changed.
    RecoveryChanged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_however_it_is_printed() {
        let address = PciAddress { domain: 0, bus: 0x0f, device: 0 };
        for text in ["00000000:0F:00.0", "0000:0f:00", "0:f:0"] {
            assert_eq!(PciAddress::parse(text), Some(address), "{text}");
        }
        assert_eq!(PciAddress::parse("0009:01:00.0").map(|address| address.domain), Some(9));
        for text in ["", "0000:0f", "0000:0f:00:1", "0000:+f:00", "0000:100:00", "x:0f:00", "123456789:0f:00"]
        {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }
}

//! GPUs: identity, attachment, events.

use std::sync::Arc;

use super::{Bytes, Nanoseconds, Stamp, Utc, named};

/// A physical GPU: the UUID is its identity, the index a convenience for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuId {
    /// The NVML index in the driver session in which the GPU was last counted.
    pub index: u32,
    /// The UUID as the driver prints it, `GPU-…`.
    pub uuid: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelector {
    All,
    /// The GPU with this index, that of nvidia-smi, in the current driver session.
    Index(u32),
    Uuid(String),
}

impl std::fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("every GPU"),
            Self::Index(index) => write!(f, "GPU {index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

named! {
    /// Whether a GPU that this node has had is still attached to it, and where it went.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Attachment {
        Present = "present",
        /// It is on the PCI bus, and the driver has lost it.
        Lost = "lost",
        /// It is neither listed by the driver nor on the PCI bus.
        Gone = "gone",
        /// It is passed to a guest: bound to vfio-pci.
        Guest = "guest",
        /// Another GPU is at its PCI address.
        Replaced = "replaced",
        /// The operator removed it from the inventory.
        Forgotten = "forgotten",
    }
    fn name
}

impl Attachment {
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attachment| attachment.name() == name)
    }

    /// Whether its account is paused, because another GPU has its slot or the operator removed it.
    pub const fn is_account_paused(self) -> bool {
        matches!(self, Self::Replaced | Self::Forgotten)
    }
}

/// Static properties of a GPU, and how it is read; constant within one plan generation. Unknown texts are "".
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
    pub vbios_version: Arc<str>,
    pub driver_version: Arc<str>,
    /// The newest CUDA version that the driver supports, e.g. `13.0`.
    pub cuda_version: Arc<str>,
    pub mig: bool,
    /// Which memory it has; none where the driver does not say.
    pub memory: Option<MemoryKind>,
    /// How the memory slices of a MIG GPU are used; absent where the driver does not report placements.
    pub mig_slices: Option<MigSlices>,
    pub platform: Option<Platform>,
    /// How many NVLinks the GPU has, connected or not; 0 where it has none or the driver does not say it.
    pub nvlinks: u32,
    pub fabric: Option<FabricPlace>,
    /// Where each device point comes from, by catalogue point number; none where it is not read.
    pub via: Arc<[Option<Via>]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigSlices {
    pub total: u32,
    /// Slices without an instance that a profile can still use.
    pub free: u32,
    /// Slices without an instance that no profile can use.
    pub stranded: u32,
}

/// The position of a GPU in its server or rack; "" where the board does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Platform {
    pub chassis_serial: Arc<str>,
    pub slot: Arc<str>,
    pub tray: Arc<str>,
    /// Host within the tray.
    pub host_id: Arc<str>,
    /// Place on the baseboard, from 1.
    pub module_id: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricPlace {
    /// UUID of the cluster, "" on a fabric of one node.
    pub cluster_uuid: Arc<str>,
    pub clique: Arc<str>,
}

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MemoryKind {
        Device = "device",
        /// The host's, which it shares, as GB10 and Jetson do.
        Unified = "unified",
    }
    fn name
}

named! {
    /// What provides a reading: a kind of driver call, or what stands in for one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Via {
        Field = "field",
        Call = "call",
        Gpm = "gpm",
        /// The sum over the processes on the GPU.
        Processes = "processes",
        /// The host's own memory, from `/proc/meminfo`.
        Host = "host",
    }
    fn name
}

impl Via {
    /// Whether the value is not the driver's own, so that its source is named wherever it is exported.
    pub const fn is_substitute(self) -> bool {
        matches!(self, Self::Processes | Self::Host)
    }
}

/// A MIG instance, by the driver's ids; unique within its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId {
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIdentity {
    pub id: InstanceId,
    /// MIG UUID, `MIG-…`.
    pub uuid: Arc<str>,
    /// Profile, e.g. `3g.40gb`.
    pub profile: Arc<str>,
    /// Its GPU instance's first memory slice and how many it has, e.g. `4:4`; empty where the driver does not report
    /// it.
    pub placement: Arc<str>,
    pub memory: Bytes,
}

impl InstanceIdentity {
    /// Number of memory slices of its GPU instance, where the driver reports its placement.
    pub fn slices(&self) -> Option<u32> {
        self.placement.split_once(':')?.1.parse().ok()
    }

    /// The first memory slice of its GPU instance, where the driver reports its placement.
    pub fn first_slice(&self) -> Option<u32> {
        self.placement.split_once(':')?.0.parse().ok()
    }
}

/// The PCI address of a GPU; its function is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
}

impl std::fmt::Display for PciAddress {
    /// As the driver writes it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
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

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuName {
    Uuid(Arc<str>),
    Pci(PciAddress),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidSource {
    /// The driver's event set, which reports all XIDs of the codes that it supports.
    Events,
    /// The kernel's log, which knows codes that never become events, but is rate-limited.
    KernelLog,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidCount {
    pub gpu: GpuName,
    pub xid: u32,
    pub source: XidSource,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    pub count: u64,
    pub last: Stamp,
    /// The same on the system's boot clock, since the delay of sources is real time even when the agent's clock is
    /// virtual.
    pub received_at: Nanoseconds,
}

/// An error of an NVSwitch, by the kernel's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sxid {
    pub switch: PciAddress,
    pub code: u32,
    /// Whether the switch has stopped until it is reset with its GPUs; otherwise it goes on.
    pub is_fatal: bool,
}

impl Sxid {
    pub const fn severity(&self) -> &'static str {
        if self.is_fatal { "fatal" } else { "non_fatal" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SxidCount {
    pub sxid: Sxid,
    pub count: u64,
    pub last: Utc,
}

/// A driver event of a GPU other than an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Notice {
    EccUncorrectable,
    MigChanged,
    EccStorm,
    /// A part of its memory was marked for replacement.
    MemoryRetired,
    /// A part of its memory could not be marked for replacement.
    MemoryRetirementFailed,
    /// Bad data was used, and contained.
    PoisonContained,
    /// Bad data was used, and not contained.
    PoisonFatal,
    Unavailable,
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
        assert_eq!(address.to_string(), "00000000:0F:00.0");
        for text in ["", "0000:0f", "0000:0f:00:1", "0000:+f:00", "0000:100:00", "x:0f:00", "123456789:0f:00"]
        {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }
}

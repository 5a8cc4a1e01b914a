//! Which GPUs there are, and whether they can be read.

use super::Rows::{self, Gpu};
use super::family::HOPPER;
use super::links::NO_FABRIC;
use super::{Family, GpuRows, InstanceRows, Level};
use crate::model::Unit;
use crate::model::frame::Tier;

pub(super) const ROWS: &[Family] = &[
    Family::gauge(
        "gpu_info",
        Unit::None,
        "Always 1; identity of the GPU as the driver reports it; join other series on uuid.",
        Gpu(GpuRows::Info),
    )
    .labels(&[
        "gpu",
        "uuid",
        "model",
        "serial",
        "board_part",
        "pci_bus_id",
        "minor_number",
        "architecture",
        "compute_capability",
        "vbios_version",
        "driver_version",
        "cuda_version",
        "mig",
        "memory",
    ])
    .values(&[("memory", &["device", "unified"])])
    .level(Level::Lean)
    .tier(Tier::Slow),
    Family::gauge(
        "gpu_platform_info",
        Unit::None,
        "Always 1; where the GPU is installed: its module on the baseboard and, in racks that \
         report it, chassis, slot, tray and host. Absent on other boards.",
        Gpu(GpuRows::PlatformInfo),
    )
    .labels(&["gpu", "uuid", "chassis_serial", "slot", "tray", "host_id", "module_id"])
    .tier(Tier::Slow)
    .unsupported("only boards on a baseboard or in a rack say where they sit, and to drivers from 535 on"),
    Family::gauge(
        "gpu_fabric_info",
        Unit::None,
        "Always 1; the NVLink fabric that the GPU belongs to; GPUs with the same cluster and \
         clique can reach each other.",
        Gpu(GpuRows::FabricInfo),
    )
    .labels(&["gpu", "uuid", "cluster_uuid", "clique"])
    .level(Level::Standard)
    .tier(Tier::Slow)
    .since(HOPPER)
    .unsupported(NO_FABRIC),
    Family::gauge(
        "gpu_present",
        Unit::None,
        "1 while the driver lists the GPU, 0 while it is absent; gpu_absence_info says why.",
        Gpu(GpuRows::Present),
    )
    .level(Level::Lean),
    Family::gauge(
        "gpu_absence_info",
        Unit::None,
        "Always 1; why an expected GPU is absent: lost (on the PCI bus, but the driver no longer \
         reaches it), gone (no longer on the bus), guest (bound to vfio-pci for a virtual \
         machine), replaced (another GPU is in its place). Exported only while the GPU is \
         absent.",
        Gpu(GpuRows::Absence),
    )
    .labels(&["gpu", "uuid", "reason"])
    .level(Level::Lean)
    .values(&[("reason", &["lost", "gone", "guest", "replaced"])]),
    Family::gauge(
        "gpu_up",
        Unit::None,
        "1 while the GPU answers; 0 when its last readings are too old, and they are then left \
         out.",
        Gpu(GpuRows::Up),
    )
    .level(Level::Lean),
    Family::gauge(
        "gpu_mig_info",
        Unit::None,
        "Always 1; profile and placement of a MIG instance; join other series on uuid and \
         gpu_instance.",
        Rows::Instance(InstanceRows::Info),
    )
    .labels(&["gpu", "uuid", "gpu_instance", "compute_instance", "mig_uuid", "profile", "placement"])
    .level(Level::Lean)
    .tier(Tier::Slow),
    Family::gauge(
        "gpu_unsupported",
        Unit::None,
        "Always 1; a metric family that this GPU or its driver cannot provide, and the reason.",
        Gpu(GpuRows::Unsupported),
    )
    .labels(&["gpu", "uuid", "family", "reason"])
    .level(Level::Standard)
    .tier(Tier::Slow)
    .values(&[("reason", &["not_supported", "no_symbol", "no_permission"])]),
];

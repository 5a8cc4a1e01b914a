//! Which GPUs there are, and whether they answer.

use super::{Family, IdentityValue, Kind, Level, Rows};
use crate::model::Unit;
use crate::model::frame::Tier;

const GPU: &[&str] = &["gpu", "uuid"];

pub(super) const ROWS: &[Family] = &[
    Family {
        name: "gpu_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; what the GPU says of itself, to be joined on uuid.",
        labels: &[
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
        ],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::Identity(IdentityValue::Info),
    },
    Family {
        name: "gpu_platform_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; where the GPU sits: the module on its baseboard and, in a rack that tells, chassis, slot, tray and host. Boards outside of such have none.",
        labels: &["gpu", "uuid", "chassis_serial", "slot", "tray", "host_id", "module_id"],
        level: Level::Standard,
        tier: Tier::Slow,
        rows: Rows::Identity(IdentityValue::PlatformInfo),
    },
    Family {
        name: "gpu_fabric_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; the NVLink fabric that the GPU belongs to; GPUs of one cluster and clique reach each other.",
        labels: &["gpu", "uuid", "cluster_uuid", "clique"],
        level: Level::Standard,
        tier: Tier::Slow,
        rows: Rows::Identity(IdentityValue::FabricInfo),
    },
    Family {
        name: "gpu_present",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "1 while the driver counts the GPU, 0 when it is gone.",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Identity(IdentityValue::Present),
    },
    Family {
        name: "gpu_up",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "1 while the GPU answers, 0 when its readings are withheld because the last ones are too old.",
        labels: GPU,
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Identity(IdentityValue::Up),
    },
    Family {
        name: "gpu_mig_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; what a MIG instance is, to be joined on uuid and gpu_instance.",
        labels: &["gpu", "uuid", "gpu_instance", "compute_instance", "mig_uuid", "profile"],
        level: Level::Lean,
        tier: Tier::Slow,
        rows: Rows::Identity(IdentityValue::MigInfo),
    },
    Family {
        name: "gpu_unsupported",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; a family that this GPU or its driver cannot answer, and why.",
        labels: &["gpu", "uuid", "family", "reason"],
        level: Level::Standard,
        tier: Tier::Slow,
        rows: Rows::Identity(IdentityValue::Unsupported),
    },
];

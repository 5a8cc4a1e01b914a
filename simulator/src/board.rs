//! What a board of a model answers: one row per model, numbers from real captures.
//!
//! In: a profile's name from the scenario. Out: its row. It knows nothing of time or load.

use crate::mig::{self, MigProfile};

/// Watts: idle range over boards of the model, and the limits.
pub(crate) struct Power {
    pub(crate) idle: (u32, u32),
    pub(crate) limit_min: u32,
    pub(crate) limit_default: u32,
    pub(crate) limit_max: u32,
}

/// MHz at rest and at most.
pub(crate) struct Clocks {
    pub(crate) sm: (u32, u32),
    pub(crate) memory: (u32, u32),
    pub(crate) video: (u32, u32),
}

/// How hot, and when too hot. Degrees.
pub(crate) struct Thermal {
    /// GPU in the coolest place at rest, and at the power limit.
    pub(crate) gpu: (u32, u32),
    /// Memory likewise, where it is shown.
    pub(crate) memory: Option<(u32, u32)>,
    pub(crate) limits: Limits,
}

/// Thresholds: shutdown, slowdown, memory maximum, GPU maximum.
pub(crate) enum Limits {
    /// Temperatures, before Ada.
    Absolute([u32; 4]),
    /// Distances from the temperature at which the margin is 0 (H100 captures: 46 at 41 C, 58 at 29 C).
    Margins { zero: u32, tlimit: [i32; 4] },
}

/// A model. Sizes are bytes, PCI ids as NVML packs them (device in the upper half).
pub(crate) struct Board {
    pub(crate) profile: &'static str,
    pub(crate) name: &'static str,
    pub(crate) architecture: u32,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) pci_device: u32,
    pub(crate) pci_subsystem: u32,
    pub(crate) vbios: &'static str,
    pub(crate) part: &'static str,
    pub(crate) memory_total: u64,
    pub(crate) memory_reserved: u64,
    pub(crate) memory_bus_bits: u32,
    pub(crate) bar1_total: u64,
    pub(crate) cores: u32,
    pub(crate) power: Power,
    pub(crate) clocks: Clocks,
    pub(crate) thermal: Thermal,
    pub(crate) pcie_generation: u32,
    pub(crate) pcie_width: u32,
    pub(crate) nvlinks: u32,
    /// MB/s of one link.
    pub(crate) nvlink_speed: u32,
    /// NVML_NVLINK_VERSION_*.
    pub(crate) nvlink_version: u32,
    pub(crate) remap_banks: u32,
    pub(crate) gpm: bool,
    /// Whether the power fields (average, instant) are answered, and whether for the memory too.
    pub(crate) power_fields: bool,
    pub(crate) memory_power: bool,
    /// GA100 shows the instant power where others show the mean of a second.
    pub(crate) power_is_mean: bool,
    /// The performance state at rest.
    pub(crate) pstate_rest: u32,
    pub(crate) mig: &'static [MigProfile],
    /// Order of module ids in an eight-GPU baseboard.
    pub(crate) modules: [u32; 8],
    /// How long utilization is averaged; the header says 1/6 s to 1 s by product; which
    /// product has which was not found, so the rows differ within that.
    pub(crate) utilization_window: u64,
}

const MIB: u64 = 1 << 20;

static BOARDS: [Board; 5] = [
    Board {
        profile: "h100",
        name: "NVIDIA H100 80GB HBM3 (simulated)",
        architecture: 9,
        compute_capability: (9, 0),
        pci_device: 0x2330_10DE,
        pci_subsystem: 0x16C1_10DE,
        vbios: "96.00.A5.00.01",
        part: "692-2G520-0200-000",
        memory_total: 85_520_809_984,
        memory_reserved: 501_481_472,
        memory_bus_bits: 5120,
        bar1_total: 131_072 * MIB,
        cores: 16_896,
        power: Power { idle: (67, 101), limit_min: 200, limit_default: 700, limit_max: 700 },
        clocks: Clocks { sm: (345, 1980), memory: (2619, 2619), video: (765, 1545) },
        thermal: Thermal {
            gpu: (28, 65),
            memory: Some((37, 61)),
            limits: Limits::Margins { zero: 87, tlimit: [-8, -2, 0, 0] },
        },
        pcie_generation: 5,
        pcie_width: 16,
        nvlinks: 18,
        nvlink_speed: 26_562,
        nvlink_version: 6,
        remap_banks: 2560,
        gpm: true,
        power_fields: true,
        memory_power: true,
        power_is_mean: true,
        pstate_rest: 0,
        mig: &mig::H100,
        modules: [2, 4, 1, 3, 6, 8, 5, 7],
        utilization_window: 200_000_000,
    },
    Board {
        profile: "h200",
        name: "NVIDIA H200 (simulated)",
        architecture: 9,
        compute_capability: (9, 0),
        pci_device: 0x2335_10DE,
        pci_subsystem: 0x18BE_10DE,
        vbios: "96.00.A5.00.03",
        part: "695-2G520-0280-001",
        memory_total: 150_754_820_096,
        memory_reserved: 614 * MIB,
        memory_bus_bits: 6144,
        bar1_total: 262_144 * MIB,
        cores: 16_896,
        power: Power { idle: (70, 86), limit_min: 200, limit_default: 700, limit_max: 700 },
        clocks: Clocks { sm: (345, 1980), memory: (3201, 3201), video: (765, 1545) },
        thermal: Thermal {
            gpu: (28, 56),
            memory: Some((32, 42)),
            limits: Limits::Margins { zero: 87, tlimit: [-8, -2, 0, 0] },
        },
        pcie_generation: 5,
        pcie_width: 16,
        nvlinks: 18,
        nvlink_speed: 26_562,
        nvlink_version: 6,
        remap_banks: 3072,
        gpm: true,
        power_fields: true,
        memory_power: true,
        power_is_mean: true,
        pstate_rest: 0,
        mig: &mig::H200,
        modules: [2, 4, 1, 3, 6, 8, 5, 7],
        utilization_window: 200_000_000,
    },
    Board {
        profile: "a100",
        name: "NVIDIA A100-SXM4-80GB (simulated)",
        architecture: 7,
        compute_capability: (8, 0),
        pci_device: 0x20B2_10DE,
        pci_subsystem: 0x147F_10DE,
        vbios: "92.00.9E.00.02",
        part: "692-2G506-0212-005",
        memory_total: 81_920 * MIB,
        memory_reserved: 763 * MIB,
        memory_bus_bits: 5120,
        bar1_total: 131_072 * MIB,
        cores: 6_912,
        power: Power { idle: (59, 62), limit_min: 100, limit_default: 500, limit_max: 500 },
        clocks: Clocks { sm: (210, 1410), memory: (1593, 1593), video: (585, 1290) },
        thermal: Thermal {
            gpu: (22, 62),
            memory: Some((39, 70)),
            limits: Limits::Absolute([92, 89, 95, 85]),
        },
        pcie_generation: 4,
        pcie_width: 16,
        nvlinks: 12,
        nvlink_speed: 25_000,
        nvlink_version: 4,
        remap_banks: 640,
        gpm: false,
        power_fields: false,
        memory_power: false,
        power_is_mean: false,
        pstate_rest: 0,
        mig: &mig::A100,
        modules: [3, 7, 5, 6, 1, 2, 4, 8],
        utilization_window: 1_000_000_000,
    },
    Board {
        profile: "l40s",
        name: "NVIDIA L40S (simulated)",
        architecture: 8,
        compute_capability: (8, 9),
        pci_device: 0x26B9_10DE,
        pci_subsystem: 0x1851_10DE,
        vbios: "95.02.66.00.02",
        part: "900-2G133-0080-000",
        memory_total: 48_305_799_168,
        memory_reserved: 609 * MIB,
        memory_bus_bits: 384,
        bar1_total: 65_536 * MIB,
        cores: 18_176,
        power: Power { idle: (33, 40), limit_min: 100, limit_default: 350, limit_max: 350 },
        clocks: Clocks { sm: (210, 2520), memory: (405, 9001), video: (1185, 1965) },
        thermal: Thermal {
            gpu: (29, 68),
            memory: None,
            limits: Limits::Margins { zero: 88, tlimit: [-5, -2, 0, 0] },
        },
        pcie_generation: 4,
        pcie_width: 16,
        nvlinks: 0,
        nvlink_speed: 0,
        nvlink_version: 0,
        remap_banks: 192,
        gpm: false,
        power_fields: true,
        memory_power: false,
        power_is_mean: true,
        pstate_rest: 8,
        mig: &[],
        modules: [1; 8],
        utilization_window: 166_666_000,
    },
    Board {
        profile: "l4",
        name: "NVIDIA L4 (simulated)",
        architecture: 8,
        compute_capability: (8, 9),
        pci_device: 0x27B8_10DE,
        pci_subsystem: 0x16CA_10DE,
        vbios: "95.04.29.00.06",
        part: "900-2G193-0000-000",
        memory_total: 23_034 * MIB,
        memory_reserved: 434 * MIB,
        memory_bus_bits: 192,
        bar1_total: 32_768 * MIB,
        cores: 7_424,
        power: Power { idle: (11, 19), limit_min: 40, limit_default: 72, limit_max: 72 },
        clocks: Clocks { sm: (210, 2040), memory: (405, 6251), video: (765, 1770) },
        thermal: Thermal {
            gpu: (33, 70),
            memory: None,
            limits: Limits::Margins { zero: 85, tlimit: [-5, -2, 0, 0] },
        },
        pcie_generation: 4,
        pcie_width: 16,
        nvlinks: 0,
        nvlink_speed: 0,
        nvlink_version: 0,
        remap_banks: 96,
        gpm: false,
        power_fields: true,
        memory_power: false,
        power_is_mean: true,
        pstate_rest: 8,
        mig: &[],
        modules: [1; 8],
        utilization_window: 166_666_000,
    },
];

/// The row of a profile, by its name in lower case.
pub(crate) fn board(profile: &str) -> Option<&'static Board> {
    BOARDS.iter().find(|board| board.profile == profile)
}

/// The names of all profiles, for the error message.
pub(crate) fn profiles() -> String {
    BOARDS.iter().map(|board| board.profile).collect::<Vec<_>>().join(", ")
}

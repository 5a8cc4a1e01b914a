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
    /// T.Limit offsets in degrees: shutdown, slowdown, memory maximum, GPU maximum.
    pub(crate) tlimit: [i32; 4],
    /// The temperature at which the margin is 0 (captures: 46 at 41 C, 58 at 29 C).
    pub(crate) margin_zero: u32,
    pub(crate) pcie_generation: u32,
    pub(crate) pcie_width: u32,
    pub(crate) nvlinks: u32,
    /// MB/s of one link.
    pub(crate) nvlink_speed: u32,
    pub(crate) remap_banks: u32,
    pub(crate) gpm: bool,
    pub(crate) memory_temperature: bool,
    pub(crate) mig: &'static [MigProfile],
    /// Order of module ids in an eight-GPU baseboard.
    pub(crate) modules: [u32; 8],
    /// How long utilization is averaged; the header says 1/6 s to 1 s by product, Hopper's is taken as 0.2 s.
    pub(crate) utilization_window: u64,
}

const MIB: u64 = 1 << 20;

static BOARDS: [Board; 1] = [Board {
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
    tlimit: [-8, -2, 0, 0],
    margin_zero: 87,
    pcie_generation: 5,
    pcie_width: 16,
    nvlinks: 18,
    nvlink_speed: 26_562,
    remap_banks: 2560,
    gpm: true,
    memory_temperature: true,
    mig: &mig::H100,
    modules: [2, 4, 1, 3, 6, 8, 5, 7],
    utilization_window: 200_000_000,
}];

/// The row of a profile, by its name in lower case.
pub(crate) fn board(profile: &str) -> Option<&'static Board> {
    BOARDS.iter().find(|board| board.profile == profile)
}

/// The names of all profiles, for the error message.
pub(crate) fn profiles() -> String {
    BOARDS.iter().map(|board| board.profile).collect::<Vec<_>>().join(", ")
}

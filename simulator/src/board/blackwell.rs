//! Blackwell: B200 on a baseboard, GB200 and GB300 in a rack, the PRO 6000 at a desk.

use super::{
    Board, Clocks, Fabric, IN_ORDER, Limits, MIB, MemoryPower, ModulePower, NVIDIA, Power, RTX, RackPlace,
    Supported, Thermal,
};
use crate::mig;

/// Healthy: bandwidth full, and nothing else wrong (NVML's mask of two bits each).
const HEALTHY: u32 = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8;

/// Graphics clocks in steps of 7.5 MHz; `highest` is twice the highest.
const fn half_steps(memory: u32, count: u32, highest: u32) -> Supported {
    Supported { memory, count, highest, step: 15 }
}

const B200: Board = Board {
    profile: "b200",
    name: "NVIDIA B200 (simulated)",
    brand: NVIDIA,
    architecture: 10,
    compute_capability: (10, 0),
    pci_device: 0x2901_10DE,
    pci_subsystem: 0x1999_10DE,
    vbios: "97.00.FA.00.09",
    part: Some("692-2G525-0220-500"),
    memory_total: 183_359 * MIB,
    memory_reserved: 728 * MIB,
    memory_bus_bits: 8192,
    bar1_total: 262_144 * MIB,
    cores: 18_944,
    power: Power { idle: (194, 206), limit_min: 200, limit_default: 1000, limit_max: 1000 },
    clocks: Clocks {
        sm: (120, 1965),
        memory: (3996, 3996),
        video: (600, 1965),
        application: (1965, 3996),
        supported: &[half_steps(3996, 247, 3930), half_steps(3402, 247, 3930)],
    },
    thermal: Thermal {
        gpu: (37, 70),
        memory: Some((37, 70)),
        limits: Limits::Margins { zero: 88, tlimit: [-5, -3, 0, 0] },
    },
    fan: None,
    pcie_generation: 5,
    pcie_device_generation: 5,
    pcie_width: 16,
    pcie_max_width: 16,
    nvlinks: 18,
    bridged: None,
    nvlink_speed: 50_000,
    nvlink_version: 7,
    remap_banks: 3840,
    gpm: true,
    power_average: true,
    // 20-25 W at rest; under load as the H100's share.
    memory_power: Some(MemoryPower { rest: 10_000, share: 65 }),
    module_power: None,
    power_is_mean: true,
    pstate_rest: 0,
    mig: &mig::B200,
    mig_slices: 7,
    modules: [6, 8, 7, 5, 2, 4, 3, 1],
    minors: IN_ORDER,
    c2c: Some(false),
    fabric: Some(Fabric { clique: 0, cluster: false, health: HEALTHY }),
    platform: Some(RackPlace { chassis: "", slot: 0, tray: 0, host: 1, switch: true }),
    rack: false,
    encoder: false,
    gsp: true,
    utilization_window: 200_000_000,
};

const GB200: Board = Board {
    profile: "gb200",
    name: "NVIDIA GB200 (simulated)",
    pci_device: 0x2941_10DE,
    pci_subsystem: 0x2046_10DE,
    vbios: "97.00.B9.00.69",
    part: Some("900-2G548-A801-000"),
    memory_total: 189_471 * MIB,
    memory_reserved: 742 * MIB,
    power: Power { idle: (156, 172), limit_min: 200, limit_default: 1200, limit_max: 1200 },
    clocks: Clocks {
        sm: (120, 2062),
        memory: (3996, 3996),
        video: (600, 1890),
        application: (2062, 3996),
        supported: &[half_steps(3996, 260, 4125)],
    },
    thermal: Thermal {
        gpu: (26, 65),
        memory: Some((27, 65)),
        limits: Limits::Margins { zero: 87, tlimit: [-5, -2, 0, 0] },
    },
    pcie_device_generation: 6,
    remap_banks: 3968,
    memory_power: Some(MemoryPower { rest: 20_000, share: 65 }),
    // 452-467 W for two GPUs of 156-172 W.
    module_power: Some(ModulePower { rest: 130, limit_min: 500, limit_max: 2500 }),
    mig: &mig::GB200,
    modules: [2, 1, 4, 3, 2, 1, 4, 3],
    c2c: Some(true),
    fabric: Some(Fabric { clique: 2, cluster: true, health: HEALTHY }),
    platform: Some(RackPlace { chassis: "1820124000001", slot: 14, tray: 4, host: 1, switch: true }),
    rack: true,
    ..B200
};

pub(super) static ROWS: [Board; 4] = [
    B200,
    GB200,
    Board {
        profile: "gb300",
        name: "NVIDIA GB300 (simulated)",
        compute_capability: (10, 3),
        pci_device: 0x31C2_10DE,
        pci_subsystem: 0x21F1_10DE,
        vbios: "97.10.4A.00.1A",
        part: Some("900-2G548-0081-000"),
        memory_total: 284_208 * MIB,
        memory_reserved: 947 * MIB,
        bar1_total: 524_288 * MIB,
        power: Power { idle: (176, 180), limit_min: 200, limit_default: 1400, limit_max: 1400 },
        clocks: Clocks {
            sm: (120, 2070),
            memory: (3996, 3996),
            video: (600, 1912),
            application: (2070, 3996),
            supported: &[half_steps(3996, 261, 4140)],
        },
        thermal: Thermal {
            gpu: (38, 70),
            memory: Some((38, 70)),
            limits: Limits::Margins { zero: 87, tlimit: [-5, -2, 0, 0] },
        },
        pcie_generation: 6,
        remap_banks: 5952,
        memory_power: Some(MemoryPower { rest: 25_000, share: 70 }),
        module_power: Some(ModulePower { rest: 135, limit_min: 500, limit_max: 2900 }),
        // In the mode it can be; its listing was not seen.
        mig: &[],
        fabric: Some(Fabric { clique: 32_766, cluster: true, health: HEALTHY }),
        platform: Some(RackPlace { chassis: "1820124000002", slot: 25, tray: 15, host: 1, switch: true }),
        ..GB200
    },
    Board {
        profile: "rtx-pro-6000",
        name: "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition (simulated)",
        brand: RTX,
        compute_capability: (12, 0),
        pci_device: 0x2BB4_10DE,
        pci_subsystem: 0x204C_10DE,
        vbios: "98.02.6A.00.04",
        part: Some("900-5G153-2500-000"),
        memory_total: 97_887 * MIB,
        memory_reserved: 637 * MIB,
        memory_bus_bits: 512,
        bar1_total: 131_072 * MIB,
        cores: 24_064,
        power: Power { idle: (4, 4), limit_min: 250, limit_default: 300, limit_max: 325 },
        clocks: Clocks {
            sm: (180, 3090),
            memory: (405, 14_001),
            video: (600, 2415),
            application: (3090, 14_001),
            supported: &[half_steps(14_001, 389, 6180)],
        },
        thermal: Thermal {
            gpu: (30, 75),
            memory: None,
            limits: Limits::Margins { zero: 90, tlimit: [-5, -2, 0, 0] },
        },
        fan: Some(30),
        pcie_generation: 4,
        nvlinks: 0,
        nvlink_speed: 0,
        nvlink_version: 0,
        remap_banks: 512,
        gpm: false,
        memory_power: None,
        pstate_rest: 8,
        mig: &mig::RTX_PRO_6000,
        mig_slices: 4,
        modules: [1; 8],
        c2c: None,
        fabric: None,
        platform: None,
        encoder: true,
        utilization_window: 166_666_000,
        ..B200
    },
];

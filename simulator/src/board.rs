//! Board models: one row per model, with numbers from real captures.
//!
//! The rows lie by architecture in `board/`; README.md says which numbers come from data sheets.

mod ada;
mod ampere;
mod blackwell;
pub(crate) mod family;
mod hopper;
mod turing;

use crate::mig::MigProfile;

/// Watts: the idle range over boards of the model, and the limits.
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
    /// The default application clocks: SM and memory.
    pub(crate) application: (u32, u32),
    /// By memory clock, the highest first.
    pub(crate) supported: &'static [Supported],
}

/// The graphics clocks that go with one memory clock: `count` of them, from the highest downwards.
pub(crate) struct Supported {
    pub(crate) memory: u32,
    pub(crate) count: u32,
    /// Twice the highest clock and twice the step, in MHz: Blackwell's steps are of 7.5 MHz.
    pub(crate) highest: u32,
    pub(crate) step: u32,
}

/// Temperatures in degrees Celsius.
pub(crate) struct Thermal {
    /// The GPU in the coolest place, at rest and at the power limit.
    pub(crate) gpu: (u32, u32),
    /// The memory likewise, where the board reports it.
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

/// How the memory's power follows from the GPU's, in milliwatts: at rest, and per thousand of the GPU's.
#[derive(Clone, Copy)]
pub(crate) struct MemoryPower {
    pub(crate) rest: u64,
    pub(crate) share: u64,
}

/// A module of two GPUs and a processor, in watts: its power beside the GPUs, and its limits.
#[derive(Clone, Copy)]
pub(crate) struct ModulePower {
    pub(crate) rest: u32,
    pub(crate) limit_min: u32,
    pub(crate) limit_max: u32,
}

/// Registration with the NVLink fabric.
#[derive(Clone, Copy)]
pub(crate) struct Fabric {
    pub(crate) clique: u32,
    /// A cluster has a UUID; an HGX baseboard answers zeros.
    pub(crate) cluster: bool,
    /// NVML's mask; 0 where the health is not reported.
    pub(crate) health: u32,
}

/// The board's place in a rack. Real boards report empty chassis serials too.
#[derive(Clone, Copy)]
pub(crate) struct RackPlace {
    pub(crate) chassis: &'static str,
    pub(crate) slot: u8,
    pub(crate) tray: u8,
    pub(crate) host: u8,
    pub(crate) switch: bool,
}

/// A model. Sizes are bytes, PCI ids as NVML packs them (device in the upper half).
pub(crate) struct Board {
    pub(crate) profile: &'static str,
    pub(crate) name: &'static str,
    /// NVML_BRAND_*.
    pub(crate) brand: u32,
    pub(crate) architecture: u32,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) pci_device: u32,
    pub(crate) pci_subsystem: u32,
    pub(crate) vbios: &'static str,
    /// `None` on GeForce, which have no serial either.
    pub(crate) part: Option<&'static str>,
    pub(crate) memory_total: u64,
    pub(crate) memory_reserved: u64,
    pub(crate) memory_bus_bits: u32,
    pub(crate) bar1_total: u64,
    pub(crate) cores: u32,
    pub(crate) power: Power,
    pub(crate) clocks: Clocks,
    pub(crate) thermal: Thermal,
    /// Percent at rest; passive boards mostly have none.
    pub(crate) fan: Option<u32>,
    pub(crate) pcie_generation: u32,
    /// The generation that the GPU itself supports.
    pub(crate) pcie_device_generation: u32,
    pub(crate) pcie_width: u32,
    pub(crate) pcie_max_width: u32,
    pub(crate) nvlinks: u32,
    /// How many of them a bridge connects on a board in a slot; none on a baseboard, where all lead to switches.
    pub(crate) bridged: Option<u32>,
    /// MB/s of one link.
    pub(crate) nvlink_speed: u32,
    /// NVML_NVLINK_VERSION_*.
    pub(crate) nvlink_version: u32,
    /// 0 where rows are not remapped.
    pub(crate) remap_banks: u32,
    pub(crate) gpm: bool,
    /// Whether the mean of a second has a field; the instant has one on every board.
    pub(crate) power_average: bool,
    pub(crate) memory_power: Option<MemoryPower>,
    pub(crate) module_power: Option<ModulePower>,
    /// Whether `nvmlDeviceGetPowerUsage` is the mean of a second; on GA100 it is the instant.
    pub(crate) power_is_mean: bool,
    /// The performance state at rest.
    pub(crate) pstate_rest: u32,
    pub(crate) mig: &'static [MigProfile],
    /// Compute slices of the whole GPU in MIG mode.
    pub(crate) mig_slices: u32,
    /// Order of module ids in an eight-GPU baseboard.
    pub(crate) modules: [u32; 8],
    /// Minor numbers of eight GPUs: on some boards the driver's order is not NVML's.
    pub(crate) minors: [u32; 8],
    /// Whether the GPU has a chip-to-chip link, and whether it is on.
    pub(crate) c2c: Option<bool>,
    pub(crate) fabric: Option<Fabric>,
    pub(crate) platform: Option<RackPlace>,
    /// A rack's tray: four GPUs, two on each module, each module with two PCI domains.
    pub(crate) rack: bool,
    /// Whether there is an encoder.
    pub(crate) encoder: bool,
    /// Whether the driver runs on the board's own processor.
    pub(crate) gsp: bool,
    /// Nanoseconds over which utilization is averaged. The header says 1/6 s to 1 s depending on the product;
    /// which product has which is unknown, so the rows vary within that.
    pub(crate) utilization_window: u64,
}

impl Board {
    /// How many NVLinks lead to another GPU or to a switch.
    pub(crate) fn connected_links(&self) -> u32 {
        self.bridged.unwrap_or(self.nvlinks)
    }
}

const MIB: u64 = 1 << 20;
/// NVML_BRAND_TESLA, NVIDIA_RTX, NVIDIA, GEFORCE.
const TESLA: u32 = 2;
const RTX: u32 = 13;
const NVIDIA: u32 = 14;
const GEFORCE: u32 = 5;

const IN_ORDER: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const HGX: [u32; 8] = [2, 4, 1, 3, 6, 8, 5, 7];

/// Graphics clocks in steps of 15 MHz from `highest` downwards.
const fn clocks(memory: u32, count: u32, highest: u32) -> Supported {
    Supported { memory, count, highest: highest * 2, step: 30 }
}

impl Supported {
    /// The graphics clocks in MHz, the highest first; halves are cut off.
    pub(crate) fn graphics(&self) -> impl Iterator<Item = u32> {
        (0..self.count).map(|down| self.highest.saturating_sub(down * self.step) / 2)
    }
}

/// All rows, in the order in which an error lists them.
fn rows() -> impl Iterator<Item = &'static Board> {
    let servers = hopper::ROWS.iter().chain(&blackwell::ROWS).chain(&ampere::ROWS);
    servers.chain(&ada::ROWS).chain(&turing::ROWS)
}

/// The row of a profile, by its name in lower case.
pub(crate) fn board(profile: &str) -> Option<&'static Board> {
    rows().find(|board| board.profile == profile)
}

/// The names of all profiles, for the error message.
pub(crate) fn profiles() -> String {
    rows().map(|board| board.profile).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_clocks_end_at_the_clock_of_rest() {
        for board in rows() {
            for set in board.clocks.supported {
                let clocks: Vec<u32> = set.graphics().collect();
                assert_eq!(clocks.len() as u32, set.count, "{}", board.profile);
                assert!(clocks.windows(2).all(|pair| matches!(pair, [a, b] if a > b)), "{}", board.profile);
                assert!(clocks.last().is_some_and(|least| *least >= 120), "{}: {clocks:?}", board.profile);
            }
        }
    }

    #[test]
    fn minor_numbers_and_modules_are_distinct() {
        for board in rows() {
            let distinct = |numbers: &[u32]| numbers.iter().collect::<std::collections::BTreeSet<_>>().len();
            assert_eq!(distinct(&board.minors), 8, "{}", board.profile);
            assert!(matches!(distinct(&board.modules), 1 | 4 | 8), "{}", board.profile);
        }
    }
}

//! Differences between board families beyond the numbers of their rows: ECC, retired pages, counters that are not
//! 0, sensor rates. From captures.

use super::Board;
use crate::mig::MigProfile;
use crate::surprise::Surprise;

/// NVML's architectures.
const AMPERE: u32 = 7;
const HOPPER: u32 = 9;
const BLACKWELL: u32 = 10;
/// NVML's number of NVLink 5.
const NVLINK_5: u32 = 7;

/// Whether memory has error correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ecc {
    /// GeForce, older boards, and GPUs without memory of their own.
    Absent,
    /// Supported but disabled: workstation boards, and the largest GeForce.
    Off,
    On,
}

pub(crate) fn ecc(board: &Board) -> Ecc {
    match board.name {
        name if name.contains("4090") || name.contains("5090") => Ecc::Off,
        name if name.contains("GeForce") || name.contains("GB10") => Ecc::Absent,
        name if name.contains("RTX") => Ecc::Off,
        _ => Ecc::On,
    }
}

/// Pages were retired before Ampere; since then rows are remapped.
pub(crate) fn retires_pages(board: &Board) -> bool {
    board.architecture < AMPERE && ecc(board) != Ecc::Absent
}

pub(crate) fn remaps_rows(board: &Board) -> bool {
    board.architecture >= AMPERE && board.remap_banks > 0
}

/// Since Ampere parity and SEC-DED errors are counted separately.
pub(crate) fn splits_sram(board: &Board) -> bool {
    board.architecture >= AMPERE
}

/// Seconds of power cap that an idle board reports: H100 7015, B200 645 to 965, and misleading boards.
pub(crate) fn power_capped(board: &Board, surprise: Option<Surprise>) -> u64 {
    match (board.profile, surprise) {
        ("h100", _) | (_, Some(Surprise::PowerCapAtRest)) => 7_015,
        ("b200", _) => 645,
        _ => 0,
    }
}

/// Nanoseconds between two power samples; real rings have 20 to 100 ms.
pub(crate) fn power_sample(board: &Board) -> u64 {
    match board.architecture {
        HOPPER.. => 100_000_000,
        AMPERE => 50_000_000,
        _ => 20_000_000,
    }
}

/// Server boards since Blackwell have power smoothing.
pub(crate) fn smooths_power(board: &Board) -> bool {
    board.architecture > HOPPER && board.pstate_rest == 0
}

/// Since Hopper NVLink fields take the link as their scope; those of single links are gone.
pub(crate) fn scopes_links(board: &Board) -> bool {
    board.architecture >= HOPPER
}

/// NVLink 5 counts packets, recoveries and uncorrected errors in place of the data link's errors.
pub(crate) fn counts_packets(board: &Board) -> bool {
    board.nvlink_version >= NVLINK_5
}

pub(crate) fn is_blackwell(board: &Board) -> bool {
    board.architecture >= BLACKWELL
}

/// NVML's addressing mode: by the CPU's address translation (2), by the kernel (1) where captures show it, none (0).
pub(crate) fn addressing(board: &Board) -> u32 {
    match board.profile {
        _ if board.rack || is_integrated(board) => 2,
        "t4" | "l40s" | "a100-40" | "rtx-2080-super" | "rtx-4080-super" => 1,
        _ => 0,
    }
}

/// Whether the board reports its EDPp multiplier (how far current peaks may exceed the limit).
pub(crate) fn multiplies_peaks(board: &Board) -> bool {
    matches!(board.profile, "h100" | "h200")
}

/// The PCIe generation at rest: some workstation and consumer boards fall to the first.
pub(crate) fn pcie_at_rest(board: &Board) -> u32 {
    match board.profile {
        "rtx-2080-super" | "rtx-4080-super" | "rtx-pro-6000" => 1,
        _ => board.pcie_generation,
    }
}

/// The target temperature of the fans, on workstation and consumer boards.
pub(crate) fn target(board: &Board) -> Option<u32> {
    match board.profile {
        "rtx-2080-super" | "rtx-4080-super" | "rtx-4090" => Some(84),
        "rtx-6000-ada" => Some(85),
        _ => None,
    }
}

/// JPEG engines of an instance: as many as decoders since Hopper; A100 and A30 have one, in the instance with the
/// OFA.
pub(crate) fn jpegs(board: &Board, profile: &MigProfile) -> u32 {
    if board.architecture == AMPERE { profile.ofa } else { profile.decoders }
}

/// Whether clocks stay high in MIG mode without work, as on A100 and A30.
pub(crate) fn awake_when_cut(board: &Board) -> bool {
    board.architecture == AMPERE
}

/// C2C links: Grace boards reach the host's memory over them.
pub(crate) fn c2c_links(board: &Board) -> u32 {
    let is_grace =
        (board.profile.starts_with("gb") || board.profile.starts_with("gh")) && !is_integrated(board);
    if is_grace { 10 } else { 0 }
}

/// Whether the GPU is on one chip with its processor and uses its memory, as GB10 and Jetson do.
pub(crate) fn is_integrated(board: &Board) -> bool {
    board.profile == "gb10"
}

/// What only a board of its own answers: memory, limits of power and temperature.
const OF_BOARDS: [&str; 11] = [
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetPowerManagementMode",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetThermalSettings",
    "nvmlDeviceGetSupportedMemoryClocks",
];

/// Whether every call of the function is "not supported" on the board.
pub(crate) fn refuses(board: &Board, function: &str) -> bool {
    is_integrated(board) && OF_BOARDS.contains(&function)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::board::board;

    #[test]
    fn server_boards_since_ampere_count_errors_and_remap_rows() {
        for profile in ["h100", "h200", "a100", "l40s", "l4"] {
            let board = board(profile).unwrap();
            assert_eq!(ecc(board), Ecc::On, "{profile}");
            assert!(remaps_rows(board) && splits_sram(board) && !retires_pages(board), "{profile}");
            assert!((20_000_000..=100_000_000).contains(&power_sample(board)), "{profile}");
            assert_eq!(c2c_links(board), 0, "{profile}");
        }
    }
}

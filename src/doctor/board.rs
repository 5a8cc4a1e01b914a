//! Why a board cannot tell a family, in one sentence each, and where to look instead.
//!
//! In goes a family that NVML answered with "not supported"; boards differ by generation, by form and by what is
//! fitted, and a driver answers the same for all of it. It does not know which board it is: each sentence holds for
//! every board that gives this answer.

use crate::catalogue::Family;

/// Families, and the sentence for them. What is not listed has [`PLAIN`].
const SENTENCES: [(&[&str], &str); 17] = [
    (
        &["gpu_platform_info"],
        "only boards on a baseboard or in a rack say where they sit, and to drivers from 535 on",
    ),
    (&["gpu_busy_seconds_total"], "no meter of this board tells when it works"),
    (
        &["gpu_fabric_info", "gpu_fabric_state"],
        "only GPUs on an NVLink fabric (Hopper and later behind NVSwitch) belong to one",
    ),
    (
        &[
            "gpu_memory_total_bytes",
            "gpu_memory_used_bytes",
            "gpu_memory_free_bytes",
            "gpu_memory_reserved_bytes",
            "gpu_bar1_total_bytes",
            "gpu_bar1_used_bytes",
        ],
        "a GPU that shares the host's memory has none of its own; see the host's",
    ),
    (&["gpu_power_instant_watts"], "this board tells one power only: gpu_power_watts"),
    (&["gpu_energy_joules_total"], "boards before Volta count no energy, and the account then has none"),
    (
        &["gpu_temperature_limit_celsius"],
        "boards that know distances to their limits have gpu_temperature_margin_celsius instead",
    ),
    (
        &["gpu_temperature_margin_celsius"],
        "boards that know their limits as temperatures have gpu_temperature_limit_celsius instead",
    ),
    (&["gpu_fan_speed_ratio"], "this board has no fan of its own"),
    (&["gpu_pcie_bytes_total"], "of boards before Hopper only newer drivers count them, 580 for one"),
    (
        &[
            "gpu_nvlink_links_up",
            "gpu_nvlink_links_expected",
            "gpu_nvlink_bytes_total",
            "gpu_nvlink_errors_total",
            "gpu_nvlink_link_up",
            "gpu_nvlink_link_bytes_total",
            "gpu_nvlink_link_errors_total",
        ],
        "this board has no NVLink, or its driver is too old to tell; nvidia-smi nvlink -s shows the links",
    ),
    (
        &["gpu_ecc_errors_total", "gpu_ecc_lifetime_errors_total", "gpu_mig_ecc_errors_total"],
        "this board has no ECC, or it is off: nvidia-smi -e 1 and a reset switch it on where there is one",
    ),
    (
        &["gpu_ecc_sram_threshold_exceeded"],
        "boards before Ampere have no such threshold, and without ECC there is none",
    ),
    (
        &["gpu_remapped_rows", "gpu_row_remap_pending", "gpu_row_remap_failure", "gpu_row_remap_banks"],
        "boards before Ampere retire pages instead: gpu_retired_pages; without ECC memory there is neither",
    ),
    (
        &["gpu_retired_pages", "gpu_retired_pages_pending"],
        "boards since Ampere replace rows instead: gpu_remapped_rows; without ECC memory there is neither",
    ),
    (
        &[
            "gpu_c2c_bytes_total",
            "gpu_c2c_payload_bytes_total",
            "gpu_cache_hit_ratio",
            "gpu_module_power_watts",
            "gpu_module_power_instant_watts",
            "gpu_module_power_limit_watts",
        ],
        "this board has no Grace CPU beside it, or its driver does not tell",
    ),
    (&["gpu_recovery_action"], "drivers from 565 on tell it, of most boards"),
];

const PLAIN: &str = "this board cannot tell it";

/// What follows a sentence where MIG mode may be the reason as well.
const MIG: &str = "; or not while MIG mode is on";

/// The sentence for a family that needs performance monitoring.
const NO_GPM: &str = "this board has no GPU performance monitoring; Hopper and later have";

/// All sentences that a board's answer may get, without what is added under MIG.
pub fn board_sentences() -> impl Iterator<Item = &'static str> {
    SENTENCES.iter().map(|(_, sentence)| *sentence).chain([PLAIN, NO_GPM])
}

/// Why a board that answers "not supported" has no such family.
pub(super) fn sentence(family: &Family, mig: bool, has_gpm: bool) -> String {
    let own = SENTENCES.iter().find(|(families, _)| families.contains(&family.name));
    if own.is_none() && family.needs_gpm() && !has_gpm {
        return NO_GPM.to_owned();
    }
    let sentence = own.map_or(PLAIN, |(_, sentence)| sentence);
    // Which of the two it is, the driver does not tell either.
    if mig && !family.is_of_instances() { format!("{sentence}{MIG}") } else { sentence.to_owned() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn every_family_with_a_sentence_is_one_and_has_no_other() {
        let named: Vec<&str> = SENTENCES.iter().flat_map(|(families, _)| families.iter().copied()).collect();
        for (place, name) in named.iter().enumerate() {
            assert!(catalogue::family(name).is_some(), "{name}");
            assert!(!named[..place].contains(name), "{name} has two");
        }
    }

    #[test]
    fn a_family_that_is_named_as_the_other_one_is_one() {
        let words = SENTENCES.iter().flat_map(|(_, sentence)| sentence.split([' ', ';', ':', ',']));
        for name in words.filter(|word| word.starts_with("gpu_")) {
            assert!(catalogue::family(name).is_some(), "{name}");
        }
    }

    #[test]
    fn under_mig_both_reasons_are_told() {
        let fan = catalogue::family("gpu_fan_speed_ratio").unwrap();
        assert_eq!(sentence(fan, false, false), "this board has no fan of its own");
        assert_eq!(
            sentence(fan, true, false),
            "this board has no fan of its own; or not while MIG mode is on"
        );
        let gpm = catalogue::family("gpu_sm_active_seconds_total").unwrap();
        assert_eq!(sentence(gpm, true, false), NO_GPM);
        assert_eq!(sentence(gpm, false, true), PLAIN);
    }
}

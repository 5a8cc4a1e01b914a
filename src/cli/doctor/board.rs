//! Why a board does not report a family, in one sentence each, and where to look instead.
//!
//! NVML answers "not supported" whether the generation, the form factor or the equipment of a board is the reason. So
//! each sentence holds for every board that gives this answer.

use crate::model::catalogue::{Family, Rows, families};

/// The sentence for a family whose row has none.
const PLAIN: &str = "this board does not report it";

/// Follows a sentence where MIG mode may be the reason as well.
const MIG: &str = "; or not while MIG mode is on";

const NO_GPM: &str = "this board has no GPU performance monitoring (GPM); Hopper and later boards do, so only DCGM has DCGM_FI_PROF_* here";

/// All sentences for boards, without the suffix about MIG.
pub fn board_sentences() -> impl Iterator<Item = &'static str> {
    families().filter_map(|family| family.unsupported).chain([PLAIN, NO_GPM])
}

/// Why a board that answers "not supported" does not have the family.
pub(super) fn sentence(family: &Family, mig: bool, has_gpm: bool) -> String {
    if family.unsupported.is_none() && family.needs_gpm() && !has_gpm {
        return NO_GPM.to_owned();
    }
    let sentence = family.unsupported.unwrap_or(PLAIN);
    // The driver does not report which of the two reasons it is.
    if mig && !matches!(family.rows, Rows::Instance(_)) {
        format!("{sentence}{MIG}")
    } else {
        sentence.to_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::catalogue;

    #[test]
    fn a_family_that_is_named_as_the_other_one_is_one() {
        let words = board_sentences().flat_map(|sentence| sentence.split([' ', ';', ':', ',']));
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

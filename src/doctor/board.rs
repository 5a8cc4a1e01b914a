//! Why a board cannot tell a family, in one sentence each, and where to look instead.
//!
//! In goes a family that NVML answered with "not supported"; boards differ by generation, by form and by what is
//! fitted, and a driver answers the same for all of it. It does not know which board it is: each sentence holds for
//! every board that gives this answer.

use crate::catalogue::{Family, Rows, families};

/// The sentence for a family whose row has none.
const PLAIN: &str = "this board cannot tell it";

/// What follows a sentence where MIG mode may be the reason as well.
const MIG: &str = "; or not while MIG mode is on";

/// The sentence for a family that needs performance monitoring.
const NO_GPM: &str = "this board has no GPU performance monitoring; Hopper and later have";

/// All sentences that a board's answer may get, without what is added under MIG.
pub fn board_sentences() -> impl Iterator<Item = &'static str> {
    families().filter_map(|family| family.unsupported).chain([PLAIN, NO_GPM])
}

/// Why a board that answers "not supported" has no such family.
pub(super) fn sentence(family: &Family, mig: bool, has_gpm: bool) -> String {
    if family.unsupported.is_none() && family.needs_gpm() && !has_gpm {
        return NO_GPM.to_owned();
    }
    let sentence = family.unsupported.unwrap_or(PLAIN);
    // Which of the two it is, the driver does not tell either.
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
    use crate::catalogue;

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

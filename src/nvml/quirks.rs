//! What single drivers and boards do wrong, in one place: each quirk with where it was seen.
//!
//! In go the driver's version and what was read; out comes what to do differently. What a probe can tell (a
//! missing function, a refused call) is no quirk: the plan and the lists find that out by asking.
//!
//! Quirks that live elsewhere: fields that drivers number differently are a matter of the catalogue's rows;
//! R545 tags the memory temperature as a double while the union holds an integer (`fields`); GPM goes above
//! 100 % on MIG instances by the difference of two clocks (`catalogue::Bound` cuts 2 %, more is dropped); GB10
//! refuses both memory calls, so that its memory readings are absent while the memory per process still comes.
//! The host's memory, which it shares, is not shown in their place: other programs hold most of that.

use crate::model::{Absence, Reading};

/// A driver's version as far as quirks depend on it: 535.104.05 is branch 535, release 104.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    branch: u32,
    release: u32,
}

/// Which structure the process lists come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListForm {
    /// Pid, memory, GPU and compute instance; 510 and later.
    Third,
    /// The same entries under the name before; 460 and later.
    Second,
    /// Pid and memory alone.
    First,
}

/// What one driver does differently. A driver that does not tell its version is taken for a new one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quirks {
    version: Option<Version>,
}

/// The first release of branch 535 whose third list is what its name says, or is not there.
const MENDED: Version = Version { branch: 535, release: 98 };

impl Quirks {
    /// The quirks of that version, as the driver writes it.
    pub(super) fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse().ok());
        let version = match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(branch), Some(release)) => Some(Version { branch, release }),
            _ => None,
        };
        Self { version }
    }

    /// The form of the process lists to begin with. 535.43 to 535.97 put a field into the third form without
    /// telling: pids and memory come out shuffled (nvitop issue 79, go-nvml issue 75).
    pub(super) fn list_form(self) -> ListForm {
        match self.version {
            Some(version) if version.branch == MENDED.branch && version < MENDED => ListForm::Second,
            _ => ListForm::Third,
        }
    }
}

/// What a GPU shows at one moment, for telling use from a latched flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Appearance {
    /// Activity in billionths.
    pub(super) activity: Reading,
    /// Whether the list of processes was just taken and is empty.
    pub(super) deserted: bool,
    /// Memory that clients allocated, in bytes.
    pub(super) memory: Reading,
    /// Power and its enforced limit, in milliwatts.
    pub(super) power: Reading,
    pub(super) limit: Reading,
}

/// Less than any context takes: the smallest seen hold some 200 MiB.
const NO_CONTEXT: i64 = 64 << 20;

/// Activity from which on a flag may be latched: such a one says 100 %.
const WHOLE: i64 = 990_000_000;

/// Blackwell, seen on 580.159.03: killing a process in the middle of a kernel latches "engine busy", and an idle
/// GPU answers 100 % until it is reset, without an XID (lium-io issue 1140). Busy, with nobody there, no context
/// in memory and less than a third of its power: that is no use. Each of these must be known.
pub(super) fn is_ghost(seen: &Appearance) -> bool {
    let known = || -> Result<bool, Absence> {
        Ok(seen.activity? >= WHOLE
            && seen.deserted
            && seen.memory? < NO_CONTEXT
            && seen.power?.saturating_mul(3) < seen.limit?)
    };
    known().unwrap_or(false)
}

/// A latched flag lasts; what a process did just before it ended is seen for a tick or two.
const HAUNTED: u32 = 3;

/// One meter's looks in a row that showed a ghost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Haunting(u32);

impl Haunting {
    /// Takes a look, if there was one in this tick; whether what it shows is a ghost by now.
    pub(super) fn look(&mut self, ghost: Option<bool>) -> bool {
        match ghost {
            Some(true) => self.0 = self.0.saturating_add(1),
            Some(false) => self.0 = 0,
            None => return false,
        }
        self.0 >= HAUNTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_535_is_asked_for_the_second_list() {
        for (version, form) in [
            ("535.54.03", ListForm::Second),
            ("535.97", ListForm::Second),
            ("535.98", ListForm::Third),
            ("535.104.05", ListForm::Third),
            ("530.41.03", ListForm::Third),
            ("", ListForm::Third),
            ("garbage", ListForm::Third),
        ] {
            assert_eq!(Quirks::of(version).list_form(), form, "{version}");
        }
    }

    #[test]
    fn a_busy_gpu_with_nobody_there_is_a_ghost_only_if_everything_says_so() {
        let ghost = Appearance {
            activity: Ok(1_000_000_000),
            deserted: true,
            memory: Ok(0),
            power: Ok(194_000_000),
            limit: Ok(1_000_000_000),
        };
        assert!(is_ghost(&ghost));
        for real in [
            Appearance { activity: Ok(900_000_000), ..ghost },
            Appearance { deserted: false, ..ghost },
            Appearance { memory: Ok(400 << 20), ..ghost },
            Appearance { power: Ok(600_000_000), ..ghost },
            Appearance { memory: Err(Absence::NotSupported), ..ghost },
            Appearance { power: Err(Absence::NotYet), ..ghost },
        ] {
            assert!(!is_ghost(&real), "{real:?}");
        }
    }

    #[test]
    fn a_ghost_is_told_at_the_third_look_and_forgotten_at_the_first_that_shows_none() {
        let mut haunting = Haunting::default();
        let looks = [Some(true), Some(true), None, Some(true), Some(true), Some(false), Some(true)];
        let told = looks.map(|look| haunting.look(look));
        assert_eq!(told, [false, false, false, true, true, false, false]);
    }
}

//! Quirks of single drivers and boards in one place, each with where it was seen.
//!
//! What the probe finds out by itself (a missing function, a refused call) is no quirk.
//!
//! Quirks handled elsewhere: fields that drivers number differently (rows of the catalogue); R545 tags the
//! memory temperature as a double while the union holds an integer (`fields`); GPM exceeds 100 % on MIG
//! instances because two clocks differ (`catalogue::Bound` cuts 2 % and rejects more); GB10 refuses both memory
//! calls, so its memory is that of its processes and of the host (`plan`, `meter::unified_memory`).

use crate::model::{Absence, Reading};

/// A driver's branch and release: 535.104.05 is branch 535, release 104.
pub(super) type DriverVersion = (u32, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListForm {
    /// Pid, memory, GPU and compute instance; 510 and later.
    V3,
    /// The same entries under an older name; 460 and later.
    V2,
    /// Pid and memory alone.
    V1,
}

/// The quirks of one driver version; an unknown version is treated as a new one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quirks {
    /// None where the driver reports none.
    pub(super) version: Option<DriverVersion>,
}

/// The first release of branch 535 whose third list has the documented structure, or is missing.
const FIXED: DriverVersion = (535, 98);

impl Quirks {
    pub(super) fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse().ok());
        let version = numbers.next().flatten().zip(numbers.next().flatten());
        Self { version }
    }

    /// The list form to start with. 535.43 to 535.97 added a field to the third form without a new version,
    /// which shuffles pids and memory (nvitop issue 79, go-nvml issue 75).
    pub(super) fn list_form(self) -> ListForm {
        match self.version {
            Some(version) if version.0 == FIXED.0 && version < FIXED => ListForm::V2,
            _ => ListForm::V3,
        }
    }
}

/// What a GPU shows at one moment, to tell real use from a stale utilization flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct UtilizationContext {
    /// Activity in billionths.
    pub(super) activity: Reading,
    /// Whether the process lists are known to be empty now.
    pub(super) known_empty: bool,
    /// Memory that clients allocated, in bytes.
    pub(super) memory: Reading,
    /// Power and its enforced limit, in milliwatts.
    pub(super) power: Reading,
    pub(super) limit: Reading,
}

/// Less memory than any context takes; the smallest seen takes about 200 MiB.
const NO_CONTEXT: i64 = 64 << 20;

/// A stale flag shows 100 %, so lower activity is real.
const WHOLE: i64 = 990_000_000;

/// Whether utilization is stale. Blackwell, seen on 580.159.03: killing a process in the middle of a kernel
/// leaves "engine busy" set, and the idle GPU reports 100 % until it is reset, without an XID (lium-io issue
/// 1140). It is stale if the GPU is busy without processes or context memory and draws less than a third of its
/// limit; if one of these is unknown, it is not.
pub(super) fn is_stale_utilization(context: &UtilizationContext) -> bool {
    let known = || -> Result<bool, Absence> {
        Ok(context.activity? >= WHOLE
            && context.known_empty
            && context.memory? < NO_CONTEXT
            && context.power?.saturating_mul(3) < context.limit?)
    };
    known().unwrap_or(false)
}

/// A stale flag stays, while work just before a process ended is shown for a tick or two.
const STALE_AFTER: u32 = 3;

/// How many reads in a row showed stale utilization.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StaleFlag(u32);

impl StaleFlag {
    /// Counts this tick's read, if there was one; whether utilization is stale by now.
    pub(super) fn read(&mut self, stale: Option<bool>) -> bool {
        match stale {
            Some(true) => self.0 = self.0.saturating_add(1),
            Some(false) => self.0 = 0,
            None => return false,
        }
        self.0 >= STALE_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_535_is_asked_for_the_second_list() {
        for (version, form) in [
            ("535.54.03", ListForm::V2),
            ("535.97", ListForm::V2),
            ("535.98", ListForm::V3),
            ("535.104.05", ListForm::V3),
            ("530.41.03", ListForm::V3),
            ("", ListForm::V3),
            ("garbage", ListForm::V3),
        ] {
            assert_eq!(Quirks::of(version).list_form(), form, "{version}");
        }
    }

    #[test]
    fn utilization_is_stale_only_if_memory_power_and_lists_all_show_an_idle_gpu() {
        let stale = UtilizationContext {
            activity: Ok(1_000_000_000),
            known_empty: true,
            memory: Ok(0),
            power: Ok(194_000_000),
            limit: Ok(1_000_000_000),
        };
        assert!(is_stale_utilization(&stale));
        for real in [
            UtilizationContext { activity: Ok(900_000_000), ..stale },
            UtilizationContext { known_empty: false, ..stale },
            UtilizationContext { memory: Ok(400 << 20), ..stale },
            UtilizationContext { power: Ok(600_000_000), ..stale },
            UtilizationContext { memory: Err(Absence::NotSupported), ..stale },
            UtilizationContext { power: Err(Absence::NotYet), ..stale },
        ] {
            assert!(!is_stale_utilization(&real), "{real:?}");
        }
    }

    #[test]
    fn a_stale_flag_is_reported_at_the_third_read_and_cleared_by_the_first_that_shows_none() {
        let mut flag = StaleFlag::default();
        let reads = [Some(true), Some(true), None, Some(true), Some(true), Some(false), Some(true)];
        let results = reads.map(|read| flag.read(read));
        assert_eq!(results, [false, false, false, true, true, false, false]);
    }
}

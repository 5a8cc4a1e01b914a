//! Ways in which real boards mislead their readers, each seen on one: selected per GPU in the scenario.
//!
//! In: a name. Out: what changes in a meter. The truth never changes: only what is shown does. README.md
//! lists them with what a reader takes them for.

/// What is odd about a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surprise {
    /// For ten seconds of every minute without a process: 100 %, full clocks, power above rest.
    AfterLoadWindow,
    /// Persistence mode off: 17 to 25 % without a process, while the idle reason is active.
    PersistenceOff,
    /// Every other second the power is 27 W above the truth.
    FirstLookPower,
    /// Power-cap time of 7015 s at the start, on any board, and the reason active at rest.
    PowerCapAtRest,
    /// Margin and temperature do not add up to a constant.
    DriftingMargin,
    /// No margin on a board whose sisters have one.
    NoMargin,
    /// At rest at 86 MHz, with hardware slowdown and power brake.
    ClockedDown,
    /// At rest at 0 MHz.
    ZeroClock,
    /// PCIe at one lane.
    NarrowLink,
    /// PCIe replays above 100 on a board in good health.
    ManyReplays,
    /// 20 MiB more used than the processes hold.
    HiddenMemory,
    /// Of several processes only the first gets utilization samples.
    OneSample,
    /// Memory utilization of 37 % at rest.
    MemoryBusyAtRest,
    /// Reading raises the clocks to 765 MHz and sets the power cap, without a process.
    WokenByReading,
    /// The fabric's state is "not supported", with clique 0.
    NoFabric,
    /// The registration with the fabric is completed, its status "insufficient resources".
    FabricTooFew,
    /// 353 corrected errors, a row remapped for them and pending; nothing failed.
    RemapPending,
    /// A row remapped, and no error was ever counted.
    RemapWithoutError,
    /// The fields of power answer 3 MW; the call answers well.
    PowerFieldGarbage,
}

/// What a board has behind it whose rows were remapped before the script begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remapped {
    pub(crate) rows: u32,
    pub(crate) pending: bool,
    /// Corrected errors of the DRAM.
    pub(crate) errors: u64,
}

use Surprise::{
    AfterLoadWindow, ClockedDown, DriftingMargin, FabricTooFew, FirstLookPower, HiddenMemory, ManyReplays,
    MemoryBusyAtRest, NarrowLink, NoFabric, NoMargin, OneSample, PersistenceOff, PowerCapAtRest,
    PowerFieldGarbage, RemapPending, RemapWithoutError, WokenByReading, ZeroClock,
};

const SECOND: u64 = 1_000_000_000;

const NAMES: [(&str, Surprise); 19] = [
    ("after_load_window", AfterLoadWindow),
    ("persistence_off", PersistenceOff),
    ("first_look_power", FirstLookPower),
    ("power_cap_at_rest", PowerCapAtRest),
    ("drifting_margin", DriftingMargin),
    ("no_margin", NoMargin),
    ("clocked_down", ClockedDown),
    ("zero_clock", ZeroClock),
    ("narrow_link", NarrowLink),
    ("many_replays", ManyReplays),
    ("hidden_memory", HiddenMemory),
    ("one_sample", OneSample),
    ("memory_busy_at_rest", MemoryBusyAtRest),
    ("woken_by_reading", WokenByReading),
    ("fabric_not_supported", NoFabric),
    ("fabric_insufficient", FabricTooFew),
    ("remap_pending", RemapPending),
    ("remap_without_error", RemapWithoutError),
    ("power_field_garbage", PowerFieldGarbage),
];

impl Surprise {
    /// By the scenario's name; the error lists the names.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, surprise)| *surprise);
        found.ok_or_else(|| {
            let known = NAMES.map(|(known, _)| known).join(", ");
            format!("unknown surprise {name:?}; there are {known}")
        })
    }

    /// GPU and memory percent shown instead of 0 and 0 while no process is there.
    pub(crate) fn without_processes(self, elapsed: u64) -> Option<(u32, u32)> {
        let second = elapsed / SECOND;
        match self {
            AfterLoadWindow if second % 60 < 10 => Some((100, 0)),
            PersistenceOff => Some((17 + u32::try_from(second % 9).unwrap_or(0), 0)),
            MemoryBusyAtRest => Some((0, 37)),
            _ => None,
        }
    }

    /// Whether what is shown without processes brings clocks and state of a load.
    pub(crate) fn wakes(self) -> bool {
        self == AfterLoadWindow
    }

    /// The milliwatts shown for true ones while no process is there; the mean lags behind the instant.
    pub(crate) fn power(self, truth: u64, limit: u64, mean: bool, elapsed: u64) -> u64 {
        match self {
            AfterLoadWindow if elapsed / SECOND % 60 < 10 => limit * if mean { 52 } else { 34 } / 100,
            FirstLookPower if (elapsed / SECOND).is_multiple_of(2) => truth + 27_000,
            _ => truth,
        }
    }

    /// The SM clock at rest.
    pub(crate) fn clock_at_rest(self) -> Option<u32> {
        match self {
            ClockedDown => Some(86),
            ZeroClock => Some(0),
            WokenByReading => Some(765),
            _ => None,
        }
    }

    /// The clocks event reasons at rest, in place of idle.
    pub(crate) fn reasons_at_rest(self) -> Option<u64> {
        match self {
            PowerCapAtRest | WokenByReading => Some(0x4),
            ClockedDown => Some(0x8 | 0x80),
            _ => None,
        }
    }

    /// The margin shown for a true one.
    pub(crate) fn margin(self, truth: i32, elapsed: u64) -> Option<i32> {
        match self {
            NoMargin => None,
            DriftingMargin => Some(truth - i32::try_from(elapsed / (10 * SECOND) % 6).unwrap_or(0)),
            _ => Some(truth),
        }
    }

    /// What was remapped before elapsed 0.
    pub(crate) fn remapped(self) -> Remapped {
        match self {
            RemapPending => Remapped { rows: 1, pending: true, errors: 353 },
            RemapWithoutError => Remapped { rows: 1, ..Remapped::default() },
            _ => Remapped::default(),
        }
    }

    /// Bytes used by nobody.
    pub(crate) fn hidden_memory(self) -> u64 {
        if self == HiddenMemory { 20 << 20 } else { 0 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_and_another_lists_them() {
        for (name, surprise) in NAMES {
            assert_eq!(Surprise::named(name).unwrap(), surprise);
        }
        assert!(Surprise::named("none").unwrap_err().contains("drifting_margin"));
    }
}

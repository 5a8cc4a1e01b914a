//! Misleading readings of real boards, each seen on at least one: the scenario selects one per GPU.
//!
//! They change what a meter shows, never the truth. README.md lists them with what a reader takes them for.

use serde::Deserialize;

/// The kind of misleading reading; the names in the scenario are these in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// No margin on a board whose model has one.
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
    FabricNotSupported,
    /// The registration with the fabric is completed with status "insufficient resources".
    FabricInsufficient,
    /// 353 corrected errors, a row remapped for them and pending; nothing failed.
    RemapPending,
    /// A row was remapped although no error was ever counted.
    RemapWithoutError,
    /// The power fields report 3 MW; the power call reports the truth.
    PowerFieldGarbage,
    /// The bytes over all NVLinks together are 0, also without any link; each link counts.
    LinkTotalsZero,
}

/// Rows remapped, and errors counted, before the script begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FormerRemaps {
    pub(crate) rows: u32,
    pub(crate) pending: bool,
    /// Corrected errors of the DRAM.
    pub(crate) errors: u64,
}

use Surprise::{
    AfterLoadWindow, ClockedDown, DriftingMargin, FirstLookPower, HiddenMemory, MemoryBusyAtRest, NoMargin,
    PersistenceOff, PowerCapAtRest, RemapPending, RemapWithoutError, WokenByReading, ZeroClock,
};

const SECOND: u64 = 1_000_000_000;

impl Surprise {
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

    /// Whether clocks and performance state are also those of a load.
    pub(crate) fn wakes(self) -> bool {
        self == AfterLoadWindow
    }

    /// The milliwatts shown in place of `truth` while no process is there; `mean`: of the mean of a second.
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

    /// The margin shown in place of `truth`.
    pub(crate) fn margin(self, truth: i32, elapsed: u64) -> Option<i32> {
        match self {
            NoMargin => None,
            DriftingMargin => Some(truth - i32::try_from(elapsed / (10 * SECOND) % 6).unwrap_or(0)),
            _ => Some(truth),
        }
    }

    /// What was remapped before elapsed 0.
    pub(crate) fn remapped(self) -> FormerRemaps {
        match self {
            RemapPending => FormerRemaps { rows: 1, pending: true, errors: 353 },
            RemapWithoutError => FormerRemaps { rows: 1, ..FormerRemaps::default() },
            _ => FormerRemaps::default(),
        }
    }

    /// Used bytes that no process holds.
    pub(crate) fn hidden_memory(self) -> u64 {
        if self == HiddenMemory { 20 << 20 } else { 0 }
    }
}

//! The rules, as data: what must be so, for how long, what it makes of the GPU, what to do, and what ends it.
//!
//! Each says where it comes from. A threshold on time keeps short events from being verdicts; a quiet time
//! keeps a verdict from flickering; a fault of the hardware ends with a reset and with nothing else.

use super::inputs::{HealthInput, Reachability};
use crate::catalogue::xid::{Action, Class, Xid};
use crate::model::{HealthState, Nanoseconds, Notice, Remedy};

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name, for programs.
    pub name: &'static str,
    /// What must be so.
    pub when: Condition,
    /// For how long without a break before it counts.
    pub after: Nanoseconds,
    /// What ends it.
    pub clears: ClearedBy,
    /// What it makes of the GPU.
    pub state: HealthState,
    /// What it asks for.
    pub remedy: Remedy,
    /// What is wrong, for people.
    pub what: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
}

/// What must be so.
#[derive(Debug)]
pub enum Condition {
    /// The GPU is there, or not.
    Is(Reachability),
    /// The sign is above 0.
    Positive(HealthInput),
    /// The first sign is below the second.
    Below(HealthInput, HealthInput),
    /// The counter grows by so much within that time.
    Grows(HealthInput, i64, Nanoseconds),
    /// Such an XID is heard.
    Xid(fn(&Xid) -> bool),
    /// The driver gives that notice.
    Noticed(Notice),
}

/// What ends a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearedBy {
    /// That it is no longer so.
    AtOnce,
    /// That it was not so for that long.
    Quiet(Nanoseconds),
    /// A reset of the GPU.
    Reset,
}

impl ClearedBy {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::AtOnce => "the end of the condition",
            Self::Quiet(FIVE_MINUTES) => "five minutes without it",
            Self::Quiet(QUARTER) => "15 minutes without it",
            Self::Quiet(HOUR) => "an hour without it",
            Self::Quiet(_) => "some time without it",
            Self::Reset => "a reset of the GPU, or a reboot",
        }
    }
}

const NOW: Nanoseconds = Nanoseconds(0);
const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);
const FIVE_MINUTES: Nanoseconds = Nanoseconds::from_seconds(300);
const QUARTER: Nanoseconds = Nanoseconds::from_seconds(900);
const HOUR: Nanoseconds = Nanoseconds::from_seconds(3_600);

const MEMORY: &str = "NVIDIA GPU memory error management guide";
const XIDS: &str = "NVIDIA XID catalogue, immediate resolution bucket";
const HEADER: &str = "nvml.h";

use HealthState::{Degraded, Failed, Ok, Unknown};

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "lost",
        when: Condition::Is(Reachability::Lost),
        after: NOW,
        clears: ClearedBy::AtOnce,
        state: Failed,
        remedy: Remedy::RebootNode,
        what: "the driver says that the GPU is gone",
        source: "nvml.h: NVML_ERROR_GPU_IS_LOST lasts until a reset",
    },
    Rule {
        name: "silent",
        when: Condition::Is(Reachability::Unresponsive),
        after: NOW,
        clears: ClearedBy::AtOnce,
        state: Unknown,
        remedy: Remedy::None,
        what: "the GPU does not answer in time; the log and gpumeter_driver_call_in_flight_seconds name the call",
        source: "two ticks without a frame",
    },
    Rule {
        name: "unread",
        when: Condition::Is(Reachability::Unread),
        after: NOW,
        clears: ClearedBy::AtOnce,
        state: Unknown,
        remedy: Remedy::None,
        what: "the GPU has not been read yet",
        source: "no frame",
    },
    reading(
        "recovery_reset",
        HealthInput::RecoveryReset,
        Failed,
        Remedy::ResetGpu,
        "the driver asks for a GPU reset",
        HEADER,
    ),
    reading(
        "recovery_reboot",
        HealthInput::RecoveryReboot,
        Failed,
        Remedy::RebootNode,
        "the driver asks for a reboot",
        HEADER,
    ),
    reading(
        "recovery_drain",
        HealthInput::RecoveryDrain,
        Degraded,
        Remedy::Drain,
        "the driver asks to drain peers first",
        HEADER,
    ),
    reading(
        "recovery_drain_and_reset",
        HealthInput::RecoveryDrainAndReset,
        Degraded,
        Remedy::ResetGpu,
        "the driver asks to drain the GPU and to reset it",
        HEADER,
    ),
    reading(
        "row_remap_pending",
        HealthInput::RowRemapPending,
        Degraded,
        Remedy::ResetGpu,
        "a memory row waits for a reset to be replaced; work may go on until then",
        MEMORY,
    ),
    reading(
        "row_remap_failure",
        HealthInput::RowRemapFailed,
        Failed,
        Remedy::Replace,
        "a memory row could not be replaced, which is a criterion for replacement",
        MEMORY,
    ),
    reading(
        "sram_threshold",
        HealthInput::SramThreshold,
        Failed,
        Remedy::Replace,
        "on-chip memory had too many errors, which is a criterion for replacement",
        MEMORY,
    ),
    reading(
        "pages_pending",
        HealthInput::PagesPending,
        Degraded,
        Remedy::RebootNode,
        "a memory page waits for the driver to be loaded anew to be retired",
        MEMORY,
    ),
    reading(
        "ecc_uncorrectable",
        HealthInput::EccUncorrectable,
        Degraded,
        Remedy::ResetGpu,
        "memory had uncorrectable errors since the driver was loaded",
        MEMORY,
    ),
    Rule {
        name: "nvlink_down",
        when: Condition::Below(HealthInput::LinksUp, HealthInput::LinksExpected),
        after: MINUTE,
        clears: ClearedBy::AtOnce,
        state: Degraded,
        remedy: Remedy::ResetGpu,
        what: "NVLinks are down; reset both ends and look at the fabric manager",
        source: "NVIDIA GPU debug guidelines, NVLink",
    },
    Rule {
        name: "nvlink_errors",
        when: Condition::Grows(HealthInput::LinkErrors, 1, QUARTER),
        after: NOW,
        clears: ClearedBy::Quiet(QUARTER),
        state: Degraded,
        remedy: Remedy::CheckMechanicals,
        what: "NVLink errors grow",
        source: "NVIDIA GPU debug guidelines, NVLink",
    },
    // The driver's word is the state itself: it says another one once the GPU is registered anew.
    Rule {
        name: "fabric_failed",
        when: Condition::Positive(HealthInput::FabricFailed),
        after: MINUTE,
        clears: ClearedBy::AtOnce,
        state: Degraded,
        remedy: Remedy::ResetGpu,
        what: "the GPU could not register with its NVLink fabric, and jobs cannot use it; see that the fabric manager \
               runs, then reset the GPU",
        source: "nvml.h: the fabric's status after its registration has ended",
    },
    Rule {
        name: "pcie_replays",
        when: Condition::Grows(HealthInput::PcieReplays, 15, QUARTER),
        after: NOW,
        clears: ClearedBy::Quiet(QUARTER),
        state: Degraded,
        remedy: Remedy::CheckMechanicals,
        what: "PCIe transfers are repeated, more than one a minute; seating or riser",
        source: "healthy H100 boards show totals above 100, and no growth",
    },
    Rule {
        name: "hw_thermal",
        when: Condition::Positive(HealthInput::HwThermal),
        after: MINUTE,
        clears: ClearedBy::Quiet(FIVE_MINUTES),
        state: Degraded,
        remedy: Remedy::CheckMechanicals,
        what: "the board slows itself down for heat; fans, airflow, inlet temperature",
        source: "nvml.h: clock event reason hardware thermal slowdown",
    },
    Rule {
        name: "hw_power_brake",
        when: Condition::Positive(HealthInput::PowerBrake),
        after: MINUTE,
        clears: ClearedBy::Quiet(FIVE_MINUTES),
        state: Degraded,
        remedy: Remedy::CheckMechanicals,
        what: "the node's power supply slows the board down; supplies, feeds, cables",
        source: "nvml.h: clock event reason hardware power brake",
    },
    xid(
        "xid_hardware",
        |xid| xid.class == Class::Hardware && xid.action == Action::ResetGpu,
        (Failed, Remedy::ResetGpu),
        "a fault of the hardware",
    ),
    xid(
        "xid_reboot",
        |xid| xid.action == Action::RebootNode,
        (Failed, Remedy::RebootNode),
        "a fault that only a reboot clears",
    ),
    xid(
        "xid_driver",
        |xid| xid.class == Class::Driver && xid.action == Action::ResetGpu,
        (Failed, Remedy::ResetGpu),
        "driver or firmware stopped; take a bug report before the reset",
    ),
    xid(
        "xid_link",
        |xid| xid.class == Class::Link && xid.action == Action::ResetGpu && !is_nvlink5(xid),
        (Degraded, Remedy::ResetGpu),
        "an NVLink fault, here or at the other end",
    ),
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_nvlink5",
            is_nvlink5,
            (Degraded, Remedy::ResetGpu),
            "an NVLink 5 error; reset the GPU when gpu_recovery_action asks for it, too",
        )
    },
    xid(
        "xid_mechanicals",
        |xid| xid.action == Action::CheckMechanicals,
        (Failed, Remedy::CheckMechanicals),
        "a fault of power or seating",
    ),
    xid(
        "xid_support",
        |xid| is_the_vendors(xid) && !xid.disused,
        (Degraded, Remedy::ContactSupport),
        "a fault that the vendor must look at",
    ),
    // No verdict: nobody says what it would mean for the GPU.
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_disused",
            |xid| is_the_vendors(xid) && xid.disused,
            (Ok, Remedy::ContactSupport),
            "an XID that NVIDIA's catalogue calls unused; what it means for the GPU is not known",
        )
    },
    // No verdict: newer drivers bring new codes, of which most tell of an application or of nothing. Where one
    // means more, the driver's recovery action and its notices say so.
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_unknown",
            |xid| xid.class == Class::Unknown,
            (Ok, Remedy::ContactSupport),
            "an XID whose meaning is not known here; a newer gpumeter may know it",
        )
    },
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_software",
            |xid| xid.action == Action::UpdateSoftware,
            (Degraded, Remedy::UpdateSoftware),
            "versions do not fit together",
        )
    },
    Rule {
        clears: ClearedBy::Quiet(QUARTER),
        ..xid(
            "xid_application",
            |xid| xid.class == Class::Application && xid.action == Action::RestartApp,
            (Ok, Remedy::RestartApp),
            "an application failed; the GPU did not",
        )
    },
    Rule {
        clears: ClearedBy::Quiet(QUARTER),
        ..xid(
            "xid_application_support",
            |xid| xid.class == Class::Application && xid.action == Action::ContactSupport,
            (Ok, Remedy::ContactSupport),
            "an application failed; ask the vendor if it does so again",
        )
    },
    notice("unavailable", Notice::Unavailable, Failed, Remedy::ResetGpu, "the GPU cannot be used any more"),
    notice(
        "poison_fatal",
        Notice::PoisonFatal,
        Failed,
        Remedy::ResetGpu,
        "bad data was used and not contained",
    ),
    notice(
        "memory_retirement_failed",
        Notice::MemoryRetirementFailed,
        Failed,
        Remedy::ResetGpu,
        "bad memory could not be marked for replacement",
    ),
    notice(
        "ecc_event",
        Notice::EccUncorrectable,
        Degraded,
        Remedy::ResetGpu,
        "an uncorrectable memory error",
    ),
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..notice(
            "ecc_storm",
            Notice::EccStorm,
            Degraded,
            Remedy::Drain,
            "correctable memory errors come in a storm",
        )
    },
];

/// Faults of which NVIDIA says no more than that support is to be asked.
fn is_the_vendors(xid: &Xid) -> bool {
    matches!(xid.class, Class::Hardware | Class::Driver | Class::Link) && xid.action == Action::ContactSupport
}

/// Of these the error's status decides, and most need nothing; every board that knows them also tells the
/// recovery action.
fn is_nvlink5(xid: &Xid) -> bool {
    (144..=150).contains(&xid.code)
}

const fn reading(
    name: &'static str,
    sign: HealthInput,
    state: HealthState,
    remedy: Remedy,
    what: &'static str,
    source: &'static str,
) -> Rule {
    Rule {
        name,
        when: Condition::Positive(sign),
        after: NOW,
        clears: ClearedBy::AtOnce,
        state,
        remedy,
        what,
        source,
    }
}

const fn xid(
    name: &'static str,
    which: fn(&Xid) -> bool,
    (state, remedy): (HealthState, Remedy),
    what: &'static str,
) -> Rule {
    Rule {
        name,
        when: Condition::Xid(which),
        after: NOW,
        clears: ClearedBy::Reset,
        state,
        remedy,
        what,
        source: XIDS,
    }
}

const fn notice(
    name: &'static str,
    notice: Notice,
    state: HealthState,
    remedy: Remedy,
    what: &'static str,
) -> Rule {
    let when = Condition::Noticed(notice);
    Rule { name, when, after: NOW, clears: ClearedBy::Reset, state, remedy, what, source: HEADER }
}

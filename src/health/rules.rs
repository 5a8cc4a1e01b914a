//! The health rules as data: condition, duration, resulting state, remedy, and what clears it.
//!
//! A minimum duration excludes short events, a quiet time keeps a verdict from flickering, and only a reset clears a
//! hardware fault.

use super::inputs::{HealthInput, Reachability};
use crate::catalogue::xid::{Action, Class, Xid};
use crate::model::{HealthState, Nanoseconds, Notice, Remedy};

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name, for programs.
    pub name: &'static str,
    /// The condition.
    pub when: HealthCondition,
    /// How long the condition must hold without interruption.
    pub after: Nanoseconds,
    /// What clears it.
    pub clears: ClearedBy,
    /// The resulting state of the GPU.
    pub state: HealthState,
    /// The action that it requests.
    pub remedy: Remedy,
    /// What is wrong, for people.
    pub what: &'static str,
}

/// A condition on the inputs or events of a GPU.
#[derive(Debug)]
pub enum HealthCondition {
    /// The GPU has this reachability.
    Is(Reachability),
    /// The input is above 0.
    Positive(HealthInput),
    /// The first input is below the second.
    Below(HealthInput, HealthInput),
    /// The counter grows by so much within that time.
    Grows(HealthInput, i64, Nanoseconds),
    /// An XID of this kind was received.
    Xid(fn(&Xid) -> bool),
    /// The driver sent this notice.
    Noticed(Notice),
}

/// What clears a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearedBy {
    /// The end of the condition.
    AtOnce,
    /// So much time without the condition.
    Quiet(Nanoseconds),
    /// A reset of the GPU.
    Reset,
}

impl ClearedBy {
    /// The text for users.
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
const TEN_MINUTES: Nanoseconds = Nanoseconds::from_seconds(600);
const QUARTER: Nanoseconds = Nanoseconds::from_seconds(900);
const HOUR: Nanoseconds = Nanoseconds::from_seconds(3_600);

use HealthState::{Degraded, Failed, Ok, Unknown};

/// All rules.
pub const RULES: &[Rule] = &[
    // nvml.h: NVML_ERROR_GPU_IS_LOST lasts until a reset.
    Rule {
        name: "lost",
        when: HealthCondition::Is(Reachability::Lost),
        after: NOW,
        clears: ClearedBy::AtOnce,
        state: Failed,
        remedy: Remedy::RebootNode,
        what: "the driver says that the GPU is gone",
    },
    // Two ticks without a frame.
    Rule {
        name: "silent",
        when: HealthCondition::Is(Reachability::Unresponsive),
        after: NOW,
        clears: ClearedBy::AtOnce,
        state: Unknown,
        remedy: Remedy::None,
        what: "the GPU does not answer in time; the log and gpumeter_driver_call_in_flight_seconds name the call",
    },
    Rule {
        name: "unread",
        when: HealthCondition::Is(Reachability::Unread),
        after: NOW,
        clears: ClearedBy::AtOnce,
        state: Unknown,
        remedy: Remedy::None,
        what: "the GPU has not been read yet",
    },
    reading(
        "recovery_reset",
        HealthInput::RecoveryReset,
        Failed,
        Remedy::ResetGpu,
        "the driver asks for a GPU reset",
    ),
    reading(
        "recovery_reboot",
        HealthInput::RecoveryReboot,
        Failed,
        Remedy::RebootNode,
        "the driver asks for a reboot",
    ),
    reading(
        "recovery_drain",
        HealthInput::RecoveryDrain,
        Degraded,
        Remedy::Drain,
        "the driver asks to drain peers first",
    ),
    reading(
        "recovery_drain_and_reset",
        HealthInput::RecoveryDrainAndReset,
        Degraded,
        Remedy::ResetGpu,
        "the driver asks to drain the GPU and to reset it",
    ),
    reading(
        "row_remap_pending",
        HealthInput::RowRemapPending,
        Degraded,
        Remedy::ResetGpu,
        "a memory row waits for a reset to be replaced; work may go on until then",
    ),
    reading(
        "row_remap_failure",
        HealthInput::RowRemapFailed,
        Failed,
        Remedy::Replace,
        "a memory row could not be replaced, which is a criterion for replacement",
    ),
    reading(
        "sram_threshold",
        HealthInput::SramThreshold,
        Failed,
        Remedy::Replace,
        "on-chip memory had too many errors, which is a criterion for replacement",
    ),
    reading(
        "pages_pending",
        HealthInput::PagesPending,
        Degraded,
        Remedy::RebootNode,
        "a memory page waits for the driver to be loaded anew to be retired",
    ),
    reading(
        "ecc_uncorrectable",
        HealthInput::EccUncorrectable,
        Degraded,
        Remedy::ResetGpu,
        "memory had uncorrectable errors since the driver was loaded",
    ),
    // NVIDIA GPU debug guidelines, NVLink.
    Rule {
        name: "nvlink_down",
        when: HealthCondition::Below(HealthInput::LinksUp, HealthInput::LinksExpected),
        after: MINUTE,
        clears: ClearedBy::AtOnce,
        state: Degraded,
        remedy: Remedy::ResetGpu,
        what: "NVLinks are down; reset both ends and look at the fabric manager",
    },
    // NVIDIA GPU debug guidelines, NVLink.
    Rule {
        name: "nvlink_errors",
        when: HealthCondition::Grows(HealthInput::LinkErrors, 1, QUARTER),
        after: NOW,
        clears: ClearedBy::Quiet(QUARTER),
        state: Degraded,
        remedy: Remedy::CheckMechanicals,
        what: "NVLink errors grow",
    },
    // The driver reports the current state, which changes once the GPU is registered again.
    // nvml.h: the fabric's status after its registration has ended.
    Rule {
        name: "fabric_failed",
        when: HealthCondition::Positive(HealthInput::FabricFailed),
        after: MINUTE,
        clears: ClearedBy::AtOnce,
        state: Degraded,
        remedy: Remedy::ResetGpu,
        what: "the GPU could not register with its NVLink fabric, and jobs cannot use it; see that the fabric manager \
               runs, then reset the GPU",
    },
    Rule {
        after: TEN_MINUTES,
        ..reading(
            "fabric_in_progress",
            HealthInput::FabricInProgress,
            Degraded,
            Remedy::Drain,
            "the GPU has been registering with its NVLink fabric for ten minutes or more, and jobs cannot use it; see that \
             the fabric manager runs in the driver's version",
        )
    },
    // nvml.h: the fabric's health mask. A recovery of routes that is in progress is no fault.
    fabric_fault(
        "fabric_bandwidth",
        HealthInput::FabricBandwidth,
        Remedy::ResetGpu,
        "the GPU's bandwidth in its NVLink fabric is degraded; a link of it is down",
    ),
    fabric_fault(
        "fabric_route",
        HealthInput::FabricRoute,
        Remedy::ResetGpu,
        "a route of the NVLink fabric to the GPU is unhealthy",
    ),
    fabric_fault(
        "fabric_timeout",
        HealthInput::FabricTimeout,
        Remedy::ResetGpu,
        "accesses over the NVLink fabric timed out, and the GPU has to recover",
    ),
    fabric_fault(
        "fabric_configuration",
        HealthInput::FabricConfiguration,
        Remedy::Drain,
        "the NVLink fabric is configured for another place of the GPU, or has no partition or too few links for it; \
         nvidia-smi -q -d FABRIC says which",
    ),
    // Healthy H100 boards show totals above 100, and no growth.
    Rule {
        name: "pcie_replays",
        when: HealthCondition::Grows(HealthInput::PcieReplays, 15, QUARTER),
        after: NOW,
        clears: ClearedBy::Quiet(QUARTER),
        state: Degraded,
        remedy: Remedy::CheckMechanicals,
        what: "PCIe transfers are repeated, more than one a minute; seating or riser",
    },
    // nvml.h: clock event reason hardware thermal slowdown.
    Rule {
        name: "hw_thermal",
        when: HealthCondition::Positive(HealthInput::HwThermal),
        after: MINUTE,
        clears: ClearedBy::Quiet(FIVE_MINUTES),
        state: Degraded,
        remedy: Remedy::CheckAirflow,
        what: "the board slows itself down for heat",
    },
    // nvml.h: clock event reason software thermal slowdown. The driver slows a GPU down for a moment in many a hot job.
    Rule {
        name: "sw_thermal",
        when: HealthCondition::Positive(HealthInput::SwThermal),
        after: FIVE_MINUTES,
        clears: ClearedBy::Quiet(FIVE_MINUTES),
        state: Degraded,
        remedy: Remedy::CheckAirflow,
        what: "the driver slows the GPU down for heat, for five minutes or more",
    },
    // nvml.h: clock event reason hardware power brake.
    Rule {
        name: "hw_power_brake",
        when: HealthCondition::Positive(HealthInput::PowerBrake),
        after: MINUTE,
        clears: ClearedBy::Quiet(FIVE_MINUTES),
        state: Degraded,
        remedy: Remedy::CheckMechanicals,
        what: "the node's power supply slows the board down; supplies, feeds, cables",
    },
    xid(
        "xid_hardware",
        |xid| xid.class == Class::Hardware && xid.action == Action::ResetGpu,
        Failed,
        Remedy::ResetGpu,
        "a fault of the hardware",
    ),
    xid(
        "xid_reboot",
        |xid| xid.action == Action::RebootNode,
        Failed,
        Remedy::RebootNode,
        "a fault that only a reboot clears",
    ),
    xid(
        "xid_driver",
        |xid| xid.class == Class::Driver && xid.action == Action::ResetGpu,
        Failed,
        Remedy::ResetGpu,
        "driver or firmware stopped; take a bug report before the reset",
    ),
    xid(
        "xid_link",
        |xid| xid.class == Class::Link && xid.action == Action::ResetGpu && !is_nvlink5(xid),
        Degraded,
        Remedy::ResetGpu,
        "an NVLink fault, here or at the other end",
    ),
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_nvlink5",
            is_nvlink5,
            Degraded,
            Remedy::ResetGpu,
            "an NVLink 5 error; reset the GPU when gpu_recovery_action asks for it, too",
        )
    },
    xid(
        "xid_mechanicals",
        |xid| xid.action == Action::CheckMechanicals,
        Failed,
        Remedy::CheckMechanicals,
        "a fault of power or seating",
    ),
    xid(
        "xid_support",
        |xid| needs_support(xid) && !xid.disused,
        Degraded,
        Remedy::ContactSupport,
        "a fault that the vendor must look at",
    ),
    // No verdict, since its meaning for the GPU is not documented.
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_disused",
            |xid| needs_support(xid) && xid.disused,
            Ok,
            Remedy::ContactSupport,
            "an XID that NVIDIA's catalogue calls unused; what it means for the GPU is not known",
        )
    },
    // No verdict: most codes that newer drivers add concern an application or need no action. For the others the driver
    // also reports a recovery action or sends a notice.
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_unknown",
            |xid| xid.class == Class::Unknown,
            Ok,
            Remedy::ContactSupport,
            "an XID whose meaning is not known here; a newer gpumeter may know it",
        )
    },
    Rule {
        clears: ClearedBy::Quiet(HOUR),
        ..xid(
            "xid_software",
            |xid| xid.action == Action::UpdateSoftware,
            Degraded,
            Remedy::UpdateSoftware,
            "versions do not fit together",
        )
    },
    Rule {
        clears: ClearedBy::Quiet(QUARTER),
        ..xid(
            "xid_application",
            |xid| xid.class == Class::Application && xid.action == Action::RestartApp,
            Ok,
            Remedy::RestartApp,
            "an application failed; the GPU did not",
        )
    },
    Rule {
        clears: ClearedBy::Quiet(QUARTER),
        ..xid(
            "xid_application_support",
            |xid| xid.class == Class::Application && xid.action == Action::ContactSupport,
            Ok,
            Remedy::ContactSupport,
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

/// Faults for which NVIDIA only says to contact support.
fn needs_support(xid: &Xid) -> bool {
    matches!(xid.class, Class::Hardware | Class::Driver | Class::Link) && xid.action == Action::ContactSupport
}

/// For these codes the status of the error decides, and most need no action; boards that report them also report a
/// recovery action.
fn is_nvlink5(xid: &Xid) -> bool {
    (144..=150).contains(&xid.code)
}

/// A rule on a reading that is above 0 for as long as the fault lasts: a recovery action of nvml.h, or a memory error by
/// NVIDIA's GPU memory error management guide.
const fn reading(
    name: &'static str,
    input: HealthInput,
    state: HealthState,
    remedy: Remedy,
    what: &'static str,
) -> Rule {
    let (when, clears) = (HealthCondition::Positive(input), ClearedBy::AtOnce);
    Rule { name, when, after: NOW, clears, state, remedy, what }
}

/// A rule on what the NVLink fabric reports of the GPU.
const fn fabric_fault(name: &'static str, input: HealthInput, remedy: Remedy, what: &'static str) -> Rule {
    Rule { after: MINUTE, ..reading(name, input, Degraded, remedy, what) }
}

/// A rule on XIDs, by the immediate resolution bucket of NVIDIA's XID catalogue.
const fn xid(
    name: &'static str,
    which: fn(&Xid) -> bool,
    state: HealthState,
    remedy: Remedy,
    what: &'static str,
) -> Rule {
    Rule {
        name,
        when: HealthCondition::Xid(which),
        after: NOW,
        clears: ClearedBy::Reset,
        state,
        remedy,
        what,
    }
}

/// A rule on a driver event of nvml.h.
const fn notice(
    name: &'static str,
    notice: Notice,
    state: HealthState,
    remedy: Remedy,
    what: &'static str,
) -> Rule {
    let when = HealthCondition::Noticed(notice);
    Rule { name, when, after: NOW, clears: ClearedBy::Reset, state, remedy, what }
}

//! The health rules as data: condition, duration, resulting state, remedy, and what clears it.
//!
//! A minimum duration excludes short events, a quiet time keeps a verdict from flickering, and only a reset clears a
//! hardware fault.

use super::inputs::{HealthInput, Reachability};
use crate::model::catalogue::xid::{self, Action, Class};
use crate::model::{HealthState, Nanoseconds, Notice, Remedy};

#[derive(Debug)]
pub struct Rule {
    pub name: &'static str,
    pub when: HealthCondition,
    /// How long the condition must hold without interruption.
    pub after: Nanoseconds,
    pub clears: ClearedBy,
    pub state: HealthState,
    pub remedy: Remedy,
    /// What is wrong, for people.
    pub what: &'static str,
}

#[derive(Debug)]
pub enum HealthCondition {
    Is(Reachability),
    Positive(HealthInput),
    /// The first input is below the second.
    Below(HealthInput, HealthInput),
    /// The counter grows by so much within that time.
    Grows(HealthInput, i64, Nanoseconds),
    Xid(fn(&xid::Xid) -> bool),
    Noticed(Notice),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearedBy {
    /// The end of the condition.
    AtOnce,
    /// So much time without the condition.
    Quiet(Nanoseconds),
    Reset,
}

impl ClearedBy {
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

use ClearedBy::{AtOnce, Quiet, Reset};
use HealthCondition::{Below, Grows, Is, Noticed, Positive, Xid};

macro_rules! rules {
    ($($name:literal: $when:expr, $after:expr, $clears:expr => $state:ident, $remedy:ident, $what:literal;)+) => {
        pub const RULES: &[Rule] = &[$(Rule {
            name: $name,
            when: $when,
            after: $after,
            clears: $clears,
            state: HealthState::$state,
            remedy: Remedy::$remedy,
            what: $what,
        }),+];
    };
}

// Name: condition, how long it must hold, what clears it => state, remedy, what is wrong.
rules! {
    // nvml.h: NVML_ERROR_GPU_IS_LOST lasts until a reset.
    "lost": Is(Reachability::Lost), NOW, AtOnce => Failed, RebootNode, "the driver says that the GPU is gone";
    // Two ticks without a frame.
    "silent": Is(Reachability::Unresponsive), NOW, AtOnce => Unknown, None,
        "the GPU does not answer in time; the log and gpumeter_driver_call_in_flight_seconds name the call";
    "unread": Is(Reachability::Unread), NOW, AtOnce => Unknown, None, "the GPU has not been read yet";

    // Recovery actions of nvml.h, and memory errors by NVIDIA's GPU memory error management guide.
    "recovery_reset": Positive(HealthInput::RecoveryReset), NOW, AtOnce => Failed, ResetGpu, "the driver asks for a GPU reset";
    "recovery_reboot": Positive(HealthInput::RecoveryReboot), NOW, AtOnce => Failed, RebootNode, "the driver asks for a reboot";
    "recovery_drain": Positive(HealthInput::RecoveryDrain), NOW, AtOnce => Degraded, Drain,
        "the driver asks to drain peers first";
    "recovery_drain_and_reset": Positive(HealthInput::RecoveryDrainAndReset), NOW, AtOnce => Degraded, ResetGpu,
        "the driver asks to drain the GPU and to reset it";
    "row_remap_pending": Positive(HealthInput::RowRemapPending), NOW, AtOnce => Degraded, ResetGpu,
        "a memory row waits for a reset to be replaced; work may go on until then";
    "row_remap_failure": Positive(HealthInput::RowRemapFailed), NOW, AtOnce => Failed, Replace,
        "a memory row could not be replaced, which is a criterion for replacement";
    "sram_threshold": Positive(HealthInput::SramThreshold), NOW, AtOnce => Failed, Replace,
        "on-chip memory had too many errors, which is a criterion for replacement";
    "pages_pending": Positive(HealthInput::PagesPending), NOW, AtOnce => Degraded, RebootNode,
        "a memory page waits for the driver to be loaded anew to be retired";
    "ecc_uncorrectable": Positive(HealthInput::EccUncorrectable), NOW, AtOnce => Degraded, ResetGpu,
        "memory had uncorrectable errors since the driver was loaded";

    // NVIDIA GPU debug guidelines, NVLink.
    "nvlink_down": Below(HealthInput::LinksUp, HealthInput::LinksExpected), MINUTE, AtOnce => Degraded, ResetGpu,
        "NVLinks are down; reset both ends and look at the fabric manager";
    "nvlink_errors": Grows(HealthInput::LinkErrors, 1, QUARTER), NOW, Quiet(QUARTER) => Degraded, CheckMechanicals,
        "NVLink errors grow";
    // The driver reports the current state, which changes once the GPU is registered again.
    // nvml.h: the fabric's status after its registration has ended.
    "fabric_failed": Positive(HealthInput::FabricFailed), MINUTE, AtOnce => Degraded, ResetGpu,
        "the GPU could not register with its NVLink fabric, and jobs cannot use it; see that the fabric manager \
         runs, then reset the GPU";
    "fabric_in_progress": Positive(HealthInput::FabricInProgress), TEN_MINUTES, AtOnce => Degraded, Drain,
        "the GPU has been registering with its NVLink fabric for ten minutes or more, and jobs cannot use it; see that \
         the fabric manager runs in the driver's version";
    // nvml.h: the fabric's health mask. A recovery of routes that is in progress is no fault.
    "fabric_bandwidth": Positive(HealthInput::FabricBandwidth), MINUTE, AtOnce => Degraded, ResetGpu,
        "the GPU's bandwidth in its NVLink fabric is degraded; a link of it is down";
    "fabric_route": Positive(HealthInput::FabricRoute), MINUTE, AtOnce => Degraded, ResetGpu,
        "a route of the NVLink fabric to the GPU is unhealthy";
    "fabric_timeout": Positive(HealthInput::FabricTimeout), MINUTE, AtOnce => Degraded, ResetGpu,
        "accesses over the NVLink fabric timed out, and the GPU has to recover";
    "fabric_configuration": Positive(HealthInput::FabricConfiguration), MINUTE, AtOnce => Degraded, Drain,
        "the NVLink fabric is configured for another place of the GPU, or has no partition or too few links for it; \
         nvidia-smi -q -d FABRIC says which";

    // Healthy H100 boards show totals above 100, and no growth.
    "pcie_replays": Grows(HealthInput::PcieReplays, 15, QUARTER), NOW, Quiet(QUARTER) => Degraded, CheckMechanicals,
        "PCIe transfers are repeated, more than one a minute; seating or riser";
    // Clock event reasons of nvml.h. The driver slows a GPU down for a moment in many a hot job.
    "hw_thermal": Positive(HealthInput::HwThermal), MINUTE, Quiet(FIVE_MINUTES) => Degraded, CheckAirflow,
        "the board slows itself down for heat";
    "sw_thermal": Positive(HealthInput::SwThermal), FIVE_MINUTES, Quiet(FIVE_MINUTES) => Degraded, CheckAirflow,
        "the driver slows the GPU down for heat, for five minutes or more";
    "hw_power_brake": Positive(HealthInput::PowerBrake), MINUTE, Quiet(FIVE_MINUTES) => Degraded, CheckMechanicals,
        "the node's power supply slows the board down; supplies, feeds, cables";

    // XIDs, by the immediate resolution bucket of NVIDIA's XID catalogue.
    "xid_hardware": Xid(|xid| xid.class == Class::Hardware && xid.action == Action::ResetGpu), NOW, Reset => Failed, ResetGpu,
        "a fault of the hardware";
    "xid_reboot": Xid(|xid| xid.action == Action::RebootNode), NOW, Reset => Failed, RebootNode,
        "a fault that only a reboot clears";
    "xid_driver": Xid(|xid| xid.class == Class::Driver && xid.action == Action::ResetGpu), NOW, Reset => Failed, ResetGpu,
        "driver or firmware stopped; take a bug report before the reset";
    "xid_link": Xid(|xid| xid.class == Class::Link && xid.action == Action::ResetGpu && !is_nvlink5(xid)),
        NOW, Reset => Degraded, ResetGpu, "an NVLink fault, here or at the other end";
    "xid_nvlink5": Xid(is_nvlink5), NOW, Quiet(HOUR) => Degraded, ResetGpu,
        "an NVLink 5 error; reset the GPU when gpu_recovery_action asks for it, too";
    "xid_mechanicals": Xid(|xid| xid.action == Action::CheckMechanicals), NOW, Reset => Failed, CheckMechanicals,
        "a fault of power or seating";
    "xid_support": Xid(|xid| needs_support(xid) && !xid.disused), NOW, Reset => Degraded, ContactSupport,
        "a fault that the vendor must look at";
    // No verdict, since its meaning for the GPU is not documented.
    "xid_disused": Xid(|xid| needs_support(xid) && xid.disused), NOW, Quiet(HOUR) => Ok, ContactSupport,
        "an XID that NVIDIA's catalogue calls unused; what it means for the GPU is not known";
    // No verdict: most codes that newer drivers add concern an application or need no action. For the others the driver
    // also reports a recovery action or sends a notice.
    "xid_unknown": Xid(|xid| xid.class == Class::Unknown), NOW, Quiet(HOUR) => Ok, ContactSupport,
        "an XID whose meaning is not known here; a newer gpumeter may know it";
    "xid_software": Xid(|xid| xid.action == Action::UpdateSoftware), NOW, Quiet(HOUR) => Degraded, UpdateSoftware,
        "versions do not fit together";
    "xid_application": Xid(|xid| xid.class == Class::Application && xid.action == Action::RestartApp),
        NOW, Quiet(QUARTER) => Ok, RestartApp, "an application failed; the GPU did not";
    "xid_application_support": Xid(|xid| xid.class == Class::Application && xid.action == Action::ContactSupport),
        NOW, Quiet(QUARTER) => Ok, ContactSupport, "an application failed; ask the vendor if it does so again";

    // Driver events of nvml.h.
    "unavailable": Noticed(Notice::Unavailable), NOW, Reset => Failed, ResetGpu, "the GPU cannot be used any more";
    "poison_fatal": Noticed(Notice::PoisonFatal), NOW, Reset => Failed, ResetGpu, "bad data was used and not contained";
    "memory_retirement_failed": Noticed(Notice::MemoryRetirementFailed), NOW, Reset => Failed, ResetGpu,
        "bad memory could not be marked for replacement";
    "ecc_event": Noticed(Notice::EccUncorrectable), NOW, Reset => Degraded, ResetGpu, "an uncorrectable memory error";
    "ecc_storm": Noticed(Notice::EccStorm), NOW, Quiet(HOUR) => Degraded, Drain, "correctable memory errors come in a storm";
}

/// Faults for which NVIDIA only says to contact support.
fn needs_support(xid: &xid::Xid) -> bool {
    matches!(xid.class, Class::Hardware | Class::Driver | Class::Link) && xid.action == Action::ContactSupport
}

/// For these codes the status of the error decides, and most need no action; boards that report them also report a
/// recovery action.
fn is_nvlink5(xid: &xid::Xid) -> bool {
    (144..=150).contains(&xid.code)
}

//! The inputs of the health judge: readings of a GPU under names of their own.
//!
//! An input is the sum of a family's points. Where a part cannot be read, the sum is absent and clears nothing; what of it is
//! known may still raise a verdict. [`INPUT_SOURCES`] maps each input to a family of the catalogue.

use crate::model::{Reading, SumOfReadings};

/// A reading that health rules use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, and the table below says where each is read")]
pub enum HealthInput {
    RecoveryReset,
    RecoveryReboot,
    RecoveryDrain,
    RecoveryDrainAndReset,
    RowRemapPending,
    RowRemapFailed,
    SramThreshold,
    PagesPending,
    EccUncorrectable,
    LinksUp,
    LinksExpected,
    LinkErrors,
    FabricFailed,
    FabricInProgress,
    FabricBandwidth,
    FabricRoute,
    FabricTimeout,
    FabricConfiguration,
    PcieReplays,
    HwThermal,
    SwThermal,
    PowerBrake,
}

/// Number of inputs.
const COUNT: usize = INPUT_SOURCES.len();

/// The source of an input: the sum over all points of a family, or over those with a label value.
#[derive(Clone, Copy, Debug)]
pub struct InputSource {
    /// The input.
    pub input: HealthInput,
    /// The family's full name.
    pub family: &'static str,
    /// A label and its value.
    pub label: Option<(&'static str, &'static str)>,
}

/// Every input and its source, in the order of [`HealthInput`].
pub const INPUT_SOURCES: &[InputSource] = &[
    labelled(HealthInput::RecoveryReset, "gpu_recovery_action", "action", "reset_gpu"),
    labelled(HealthInput::RecoveryReboot, "gpu_recovery_action", "action", "reboot_node"),
    labelled(HealthInput::RecoveryDrain, "gpu_recovery_action", "action", "drain_p2p"),
    labelled(HealthInput::RecoveryDrainAndReset, "gpu_recovery_action", "action", "drain_and_reset_gpu"),
    whole(HealthInput::RowRemapPending, "gpu_row_remap_pending"),
    whole(HealthInput::RowRemapFailed, "gpu_row_remap_failure"),
    whole(HealthInput::SramThreshold, "gpu_ecc_sram_threshold_exceeded"),
    whole(HealthInput::PagesPending, "gpu_retired_pages_pending"),
    labelled(HealthInput::EccUncorrectable, "gpu_ecc_errors_total", "type", "uncorrected"),
    whole(HealthInput::LinksUp, "gpu_nvlink_links_up"),
    whole(HealthInput::LinksExpected, "gpu_nvlink_links_expected"),
    whole(HealthInput::LinkErrors, "gpu_nvlink_errors_total"),
    labelled(HealthInput::FabricFailed, "gpu_fabric_state", "state", "failed"),
    labelled(HealthInput::FabricInProgress, "gpu_fabric_state", "state", "in_progress"),
    labelled(HealthInput::FabricBandwidth, "gpu_fabric_fault", "reason", "degraded_bandwidth"),
    labelled(HealthInput::FabricRoute, "gpu_fabric_fault", "reason", "route_unhealthy"),
    labelled(HealthInput::FabricTimeout, "gpu_fabric_fault", "reason", "access_timeout"),
    labelled(HealthInput::FabricConfiguration, "gpu_fabric_fault", "reason", "incorrect_configuration"),
    whole(HealthInput::PcieReplays, "gpu_pcie_replays_total"),
    labelled(HealthInput::HwThermal, "gpu_throttle_active", "reason", "hw_thermal_slowdown"),
    labelled(HealthInput::SwThermal, "gpu_throttle_active", "reason", "sw_thermal_slowdown"),
    labelled(HealthInput::PowerBrake, "gpu_throttle_active", "reason", "hw_power_brake"),
];

const fn whole(input: HealthInput, family: &'static str) -> InputSource {
    InputSource { input, family, label: None }
}

const fn labelled(
    input: HealthInput,
    family: &'static str,
    label: &'static str,
    value: &'static str,
) -> InputSource {
    InputSource { input, family, label: Some((label, value)) }
}

const _: () = {
    let mut place = 0;
    while place < INPUT_SOURCES.len() {
        assert!(INPUT_SOURCES[place].input as usize == place, "inputs are in their order");
        place += 1;
    }
};

fn saturate(sum: i128) -> i64 {
    i64::try_from(sum).unwrap_or(i64::MAX)
}

/// Whether the GPU can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reachability {
    /// It has not been read yet.
    #[default]
    Unread,
    /// Its latest readings are fresh.
    Reachable,
    /// Its latest readings are too old.
    Unresponsive,
    /// The driver reports that it is lost.
    Lost,
}

/// The inputs of a GPU at one moment.
#[derive(Clone, Debug, Default)]
pub struct HealthInputs {
    /// Whether it can be read.
    pub presence: Reachability,
    /// Number of resets of the GPU that were detected.
    pub reset_count: u64,
    values: [SumOfReadings; COUNT],
}

impl HealthInputs {
    /// A GPU without readings.
    pub fn new(presence: Reachability, reset_count: u64) -> Self {
        Self { presence, reset_count, values: [SumOfReadings::default(); COUNT] }
    }

    /// Sets an input: the readings of its points.
    pub fn set(&mut self, input: HealthInput, parts: impl IntoIterator<Item = Reading>) {
        self.values[input as usize] = parts.into_iter().collect();
    }

    /// The value of an input, if all of it is known.
    pub fn get(&self, input: HealthInput) -> Option<i64> {
        self.values[input as usize].whole().map(saturate)
    }

    /// The least that the value of an input can be: the sum of those of its points that are known. Health inputs are states
    /// and counts, none of which is negative.
    pub fn at_least(&self, input: HealthInput) -> Option<i64> {
        self.values[input as usize].least().map(saturate)
    }

    /// Whether the driver reports that no recovery action is needed; none where it reports nothing.
    pub fn driver_requests_nothing(&self) -> Option<bool> {
        const ACTIONS: [HealthInput; 4] = [
            HealthInput::RecoveryReset,
            HealthInput::RecoveryReboot,
            HealthInput::RecoveryDrain,
            HealthInput::RecoveryDrainAndReset,
        ];
        ACTIONS.iter().map(|input| self.get(*input)).sum::<Option<i64>>().map(|sum| sum == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::INPUT_SOURCES;
    use crate::catalogue::families;

    #[test]
    fn the_catalogue_marks_the_families_that_are_judged_and_no_others() {
        let judged: BTreeSet<_> = INPUT_SOURCES.iter().map(|source| source.family).collect();
        let marked: BTreeSet<_> =
            families().filter(|family| family.is_judged).map(|family| family.name).collect();
        assert_eq!(judged, marked);
    }
}

//! The inputs of the health judge: readings of a GPU under names of their own, a row each.
//!
//! An input is the sum of a family's points. Where a part cannot be read, the sum is absent and clears nothing; what of it is
//! known may still raise a verdict.

use crate::model::catalogue::LabelPair;
use crate::model::{Reading, SumOfReadings};

#[derive(Clone, Copy, Debug)]
pub struct InputSource {
    pub input: HealthInput,
    /// The family's full name.
    pub family: &'static str,
    /// Labels of those of its points that count; all, if empty.
    pub labels: &'static [LabelPair],
}

macro_rules! inputs {
    ($($input:ident = $family:literal $(($label:literal = $value:literal))?;)+) => {
        /// A reading that health rules use: the sum over the points of a family.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HealthInput {
            $($input),+
        }

        /// Every input and its source, in the order of [`HealthInput`].
        pub const INPUT_SOURCES: &[InputSource] = &[$(InputSource {
            input: HealthInput::$input,
            family: $family,
            labels: &[$(($label, $value))?],
        }),+];
    };
}

inputs! {
    RecoveryReset = "gpu_recovery_action" ("action" = "reset_gpu");
    RecoveryReboot = "gpu_recovery_action" ("action" = "reboot_node");
    RecoveryDrain = "gpu_recovery_action" ("action" = "drain_p2p");
    RecoveryDrainAndReset = "gpu_recovery_action" ("action" = "drain_and_reset_gpu");
    RowRemapPending = "gpu_row_remap_pending";
    RowRemapFailed = "gpu_row_remap_failure";
    SramThreshold = "gpu_ecc_sram_threshold_exceeded";
    PagesPending = "gpu_retired_pages_pending";
    EccUncorrectable = "gpu_ecc_errors_total" ("type" = "uncorrected");
    LinksUp = "gpu_nvlink_links_up";
    LinksExpected = "gpu_nvlink_links_expected";
    LinkErrors = "gpu_nvlink_errors_total";
    FabricFailed = "gpu_fabric_state" ("state" = "failed");
    FabricInProgress = "gpu_fabric_state" ("state" = "in_progress");
    FabricBandwidth = "gpu_fabric_fault" ("reason" = "degraded_bandwidth");
    FabricRoute = "gpu_fabric_fault" ("reason" = "route_unhealthy");
    FabricTimeout = "gpu_fabric_fault" ("reason" = "access_timeout");
    FabricConfiguration = "gpu_fabric_fault" ("reason" = "incorrect_configuration");
    PcieReplays = "gpu_pcie_replays_total";
    HwThermal = "gpu_throttle_active" ("reason" = "hw_thermal_slowdown");
    SwThermal = "gpu_throttle_active" ("reason" = "sw_thermal_slowdown");
    PowerBrake = "gpu_throttle_active" ("reason" = "hw_power_brake");
}

fn saturate(sum: i128) -> i64 {
    i64::try_from(sum).unwrap_or(i64::MAX)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reachability {
    #[default]
    Unread,
    Reachable,
    /// Its latest readings are too old.
    Unresponsive,
    /// The driver reports that it is lost.
    Lost,
}

#[derive(Clone, Debug, Default)]
pub struct HealthInputs {
    pub presence: Reachability,
    pub reset_count: u64,
    values: [SumOfReadings; INPUT_SOURCES.len()],
}

impl HealthInputs {
    pub fn new(presence: Reachability, reset_count: u64) -> Self {
        Self { presence, reset_count, values: [SumOfReadings::default(); INPUT_SOURCES.len()] }
    }

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
    use crate::model::catalogue::families;

    #[test]
    fn the_catalogue_marks_the_families_that_are_judged_and_no_others() {
        let judged: BTreeSet<_> = INPUT_SOURCES.iter().map(|source| source.family).collect();
        let marked: BTreeSet<_> =
            families().filter(|family| family.is_judged).map(|family| family.name).collect();
        assert_eq!(judged, marked);
    }
}

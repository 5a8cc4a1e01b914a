//! What a judge is shown of a GPU: numbers by what they tell, not by how they are read.
//!
//! A sign that nobody can read is absent, and neither raises nor ends a verdict. Which family of the catalogue
//! tells which sign stands in [`INPUT_SOURCES`]; a family that a build does not have tells nothing.

/// Something that a reading tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says it; the table below says where it is read")]
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
    PcieReplays,
    HwThermal,
    PowerBrake,
}

/// How many signs there are.
const COUNT: usize = INPUT_SOURCES.len();

/// Where a sign is read: the sum over all points of a family, or over those with that label value.
#[derive(Clone, Copy, Debug)]
pub struct InputSource {
    /// The sign.
    pub sign: HealthInput,
    /// The family's full name.
    pub family: &'static str,
    /// A label and its value.
    pub label: Option<(&'static str, &'static str)>,
}

/// Every sign and its place, by the order of [`HealthInput`].
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
    whole(HealthInput::PcieReplays, "gpu_pcie_replays_total"),
    labelled(HealthInput::HwThermal, "gpu_throttle_active", "reason", "hw_thermal_slowdown"),
    labelled(HealthInput::PowerBrake, "gpu_throttle_active", "reason", "hw_power_brake"),
];

const fn whole(sign: HealthInput, family: &'static str) -> InputSource {
    InputSource { sign, family, label: None }
}

const fn labelled(
    sign: HealthInput,
    family: &'static str,
    label: &'static str,
    value: &'static str,
) -> InputSource {
    InputSource { sign, family, label: Some((label, value)) }
}

const _: () = {
    let mut place = 0;
    while place < INPUT_SOURCES.len() {
        assert!(INPUT_SOURCES[place].sign as usize == place, "signs stand in their order");
        place += 1;
    }
};

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

/// What is known of a GPU at one moment.
#[derive(Clone, Debug, Default)]
pub struct HealthInputs {
    /// Whether it is there.
    pub presence: Reachability,
    /// Counts the GPU's lives: one more whenever it is seen that it was reset.
    pub life: u64,
    values: [Option<i64>; COUNT],
}

impl HealthInputs {
    /// A GPU of which nothing is read.
    pub fn new(presence: Reachability, life: u64) -> Self {
        Self { presence, life, values: [None; COUNT] }
    }

    /// Takes in the value of a sign.
    pub fn set(&mut self, sign: HealthInput, value: Option<i64>) {
        self.values[sign as usize] = value;
    }

    /// The value of a sign, if it is known.
    pub const fn get(&self, sign: HealthInput) -> Option<i64> {
        self.values[sign as usize]
    }

    /// Whether the driver itself says that the GPU needs nothing; absent where it does not say.
    pub fn driver_is_content(&self) -> Option<bool> {
        const ACTIONS: [HealthInput; 4] = [
            HealthInput::RecoveryReset,
            HealthInput::RecoveryReboot,
            HealthInput::RecoveryDrain,
            HealthInput::RecoveryDrainAndReset,
        ];
        ACTIONS.iter().map(|sign| self.get(*sign)).sum::<Option<i64>>().map(|sum| sum == 0)
    }
}

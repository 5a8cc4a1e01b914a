//! What a judge is shown of a GPU: numbers by what they tell, not by how they are read.
//!
//! A sign that nobody can read is absent, and neither raises nor ends a verdict. Which family of the catalogue
//! tells which sign stands in [`SIGNS`]; a family that a build does not have tells nothing.

/// Something that a reading tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says it; the table below says where it is read")]
pub enum Sign {
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
const COUNT: usize = SIGNS.len();

/// Where a sign is read: the sum over all points of a family, or over those with that label value.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The sign.
    pub sign: Sign,
    /// The family's full name.
    pub family: &'static str,
    /// A label and its value.
    pub label: Option<(&'static str, &'static str)>,
}

/// Every sign and its place, by the order of [`Sign`].
pub const SIGNS: &[Place] = &[
    labelled(Sign::RecoveryReset, "gpu_recovery_action", "action", "reset_gpu"),
    labelled(Sign::RecoveryReboot, "gpu_recovery_action", "action", "reboot_node"),
    labelled(Sign::RecoveryDrain, "gpu_recovery_action", "action", "drain_p2p"),
    labelled(Sign::RecoveryDrainAndReset, "gpu_recovery_action", "action", "drain_and_reset_gpu"),
    whole(Sign::RowRemapPending, "gpu_row_remap_pending"),
    whole(Sign::RowRemapFailed, "gpu_row_remap_failure"),
    whole(Sign::SramThreshold, "gpu_ecc_sram_threshold_exceeded"),
    whole(Sign::PagesPending, "gpu_retired_pages_pending"),
    labelled(Sign::EccUncorrectable, "gpu_ecc_errors_total", "type", "uncorrected"),
    whole(Sign::LinksUp, "gpu_nvlink_links_up"),
    whole(Sign::LinksExpected, "gpu_nvlink_links_expected"),
    whole(Sign::LinkErrors, "gpu_nvlink_errors_total"),
    labelled(Sign::FabricFailed, "gpu_fabric_state", "state", "failed"),
    whole(Sign::PcieReplays, "gpu_pcie_replays_total"),
    labelled(Sign::HwThermal, "gpu_throttle_active", "reason", "hw_thermal_slowdown"),
    labelled(Sign::PowerBrake, "gpu_throttle_active", "reason", "hw_power_brake"),
];

const fn whole(sign: Sign, family: &'static str) -> Place {
    Place { sign, family, label: None }
}

const fn labelled(sign: Sign, family: &'static str, label: &'static str, value: &'static str) -> Place {
    Place { sign, family, label: Some((label, value)) }
}

const _: () = {
    let mut place = 0;
    while place < SIGNS.len() {
        assert!(SIGNS[place].sign as usize == place, "signs stand in their order");
        place += 1;
    }
};

/// Whether the GPU is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// It has not been read yet.
    #[default]
    Unread,
    /// It answers.
    Answers,
    /// Its last readings are too old.
    Silent,
    /// The driver says that it is gone.
    Lost,
}

/// What is known of a GPU at one moment.
#[derive(Clone, Debug, Default)]
pub struct Signs {
    /// Whether it is there.
    pub presence: Presence,
    /// Counts the GPU's lives: one more whenever it is seen that it was reset.
    pub life: u64,
    values: [Option<i64>; COUNT],
}

impl Signs {
    /// A GPU of which nothing is read.
    pub fn new(presence: Presence, life: u64) -> Self {
        Self { presence, life, values: [None; COUNT] }
    }

    /// Takes in the value of a sign.
    pub fn set(&mut self, sign: Sign, value: Option<i64>) {
        self.values[sign as usize] = value;
    }

    /// The value of a sign, if it is known.
    pub const fn get(&self, sign: Sign) -> Option<i64> {
        self.values[sign as usize]
    }

    /// Whether the driver itself says that the GPU needs nothing; absent where it does not say.
    pub fn driver_is_content(&self) -> Option<bool> {
        const ACTIONS: [Sign; 4] =
            [Sign::RecoveryReset, Sign::RecoveryReboot, Sign::RecoveryDrain, Sign::RecoveryDrainAndReset];
        ACTIONS.iter().map(|sign| self.get(*sign)).sum::<Option<i64>>().map(|sum| sum == 0)
    }
}

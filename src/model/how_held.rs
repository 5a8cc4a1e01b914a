//! How GPUs are held on a node where no grant names them, and why.

use serde::{Deserialize, Serialize};

use super::named;

named! {
    /// Whether presence holds GPUs without a grant, and why (`attribution.presence`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum HowHeld {
        /// It does, as configured.
        Presence = "presence",
        /// It does, since nothing that grants GPUs was found at the start.
        NothingGrants = "nothing_grants",
        /// It does not, as configured.
        Grants = "grants",
        /// It does not, since there are standing grants.
        Standing = "standing",
        /// It does not, since there is a kubelet.
        Kubelet = "kubelet",
        /// It does not, since there is Slurm.
        Slurm = "slurm",
        /// It does not, since a scheduler has granted GPUs in this ledger.
        Scheduled = "scheduled",
        /// It does not, since it was off before a reload.
        WasOff = "was_off",
    }
    /// The name in API, ledger and bills.
    fn name
}

impl HowHeld {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    pub const fn is_by_presence(self) -> bool {
        matches!(self, Self::Presence | Self::NothingGrants)
    }

    pub fn describe(self) -> String {
        let (setting, reason) = match self {
            Self::Presence => ("true", ""),
            Self::NothingGrants => ("auto", ", and no kubelet, no Slurm and no standing grant was found"),
            Self::Grants => ("false", ""),
            Self::Standing => ("auto", ", and attribution.standing has grants"),
            Self::Kubelet => ("auto", ", and there is a kubelet"),
            Self::Slurm => ("auto", ", and there is Slurm"),
            Self::Scheduled => ("auto", ", and a scheduler has granted GPUs in this ledger"),
            Self::WasOff => ("auto", " since a reload; it turns on at a start only"),
        };
        let rule = if self.is_by_presence() {
            "by presence: who has a process on a GPU without a grant holds it while the process runs, several in equal shares"
        } else {
            "by grants alone: who uses a GPU without a grant holds nothing"
        };
        format!("GPUs are held {rule} (attribution.presence: {setting}{reason})")
    }

    pub const fn advice(self) -> &'static str {
        match self {
            Self::Presence | Self::NothingGrants => {
                "to let somebody hold a GPU also while away, grant it in attribution.standing and set attribution.presence: true, \
                 so that the other GPUs are held by presence still"
            }
            Self::WasOff => {
                "to let them hold it, restart the agent, set attribution.presence: true, or grant the GPUs in attribution.standing"
            }
            Self::Grants | Self::Standing => {
                "to let them hold it, set attribution.presence: true, or grant the GPUs in attribution.standing"
            }
            Self::Kubelet | Self::Slurm | Self::Scheduled => {
                "to let others than the scheduler's pods and jobs hold GPUs too, set attribution.presence: true, or grant the \
                 GPUs in attribution.standing"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_name_a_reason_and_an_advice() {
        for how in HowHeld::ALL {
            assert_eq!(HowHeld::named(how.name()), Some(how));
            assert_eq!(how.describe().contains("by presence"), how.is_by_presence());
            assert!(how.advice().contains("attribution.standing"), "{how:?}");
        }
        assert_eq!(HowHeld::named("of another release"), None);
    }
}

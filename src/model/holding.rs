//! A claim of a holder to a share of a slot.

use serde::{Deserialize, Serialize};

use super::HolderId;

/// A share of a slot, frozen when granted; `numerator <= denominator`, `denominator > 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fraction {
    /// Parts granted.
    pub numerator: u32,
    /// Parts of the whole slot.
    pub denominator: u32,
}

impl Fraction {
    /// The whole slot.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };
}

impl std::fmt::Display for Fraction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

/// Who granted a holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldingSource {
    /// The operator's configuration (`attribution.standing`).
    Standing,
    /// The kubelet's pod-resources API.
    Kubernetes,
    /// Slurm, as its prolog recorded the job.
    Slurm,
    /// A process was there (`attribution.presence`), granted anew at each change.
    Presence,
}

impl HoldingSource {
    /// The value of the `source` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standing => "standing",
            Self::Kubernetes => "kubernetes",
            Self::Slurm => "slurm",
            Self::Presence => "presence",
        }
    }
}

/// A holder's claim to a share of one slot, for as long as the segment that carries it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holding {
    /// Whose it is.
    pub holder: HolderId,
    /// How much of the slot.
    pub fraction: Fraction,
    /// Who granted it.
    pub source: HoldingSource,
    /// Precedence in a conflict: claims are granted whole in this order. If any claim on the slot has none, all
    /// claims form one rank.
    #[serde(default)]
    pub rank: Option<u32>,
}

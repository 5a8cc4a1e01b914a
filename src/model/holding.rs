//! Holdings: claims of holders to shares of a slot.

use serde::{Deserialize, Serialize};

use super::{HolderId, named};

/// A share of a slot, frozen when granted; `numerator <= denominator`, `denominator > 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fraction {
    pub numerator: u32,
    pub denominator: u32,
}

impl Fraction {
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };

    /// The smaller one of two; this one where they are equal.
    pub fn smaller(self, other: Self) -> Self {
        let [own, others] = [(self, other), (other, self)]
            .map(|(of, by)| u64::from(of.numerator) * u64::from(by.denominator));
        if others < own { other } else { self }
    }

    /// In lowest terms, at most the whole; rounded down where 32 bits are too few. The denominator must be below 2^96.
    pub fn reduced(numerator: u128, denominator: u128) -> Self {
        if numerator >= denominator {
            return Self::WHOLE;
        }
        let divisor = greatest_common_divisor(numerator, denominator);
        let exact = (u32::try_from(numerator / divisor), u32::try_from(denominator / divisor));
        if let (Ok(numerator), Ok(denominator)) = exact {
            return Self { numerator, denominator };
        }
        let rounded = numerator * u128::from(u32::MAX) / denominator;
        Self { numerator: u32::try_from(rounded).unwrap_or(u32::MAX), denominator: u32::MAX }
    }
}

/// Of 0 and n it is n.
pub const fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl std::fmt::Display for Fraction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum HoldingSource {
        /// The operator's configuration (`attribution.standing`).
        Standing = "standing",
        /// The kubelet's pod-resources API.
        Kubernetes = "kubernetes",
        /// Slurm, as its prolog recorded the job.
        Slurm = "slurm",
        /// Presence of a process (`attribution.presence`), granted again at each change.
        Presence = "presence",
    }
    fn name
}

/// A holder's claim to a share of one slot, for as long as the segment that carries it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holding {
    pub holder: HolderId,
    pub fraction: Fraction,
    pub source: HoldingSource,
    /// Precedence in a conflict: claims are granted in full in this order. If a claim on the slot has no rank, all
    /// claims are of one rank.
    #[serde(default)]
    pub rank: Option<u32>,
}

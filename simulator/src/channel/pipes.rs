//! What a phase uses beside its plain shares: pipes, engines and links.
//!
//! `schedule::span` derives the values of missing keys.

use serde::Deserialize;

/// Shares of the time with the engine (`jpeg` and `ofa`: of the phase), and bytes per second of that time.
/// Missing values follow from `sm` and `tensor`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Pipes {
    #[serde(default)]
    pub(crate) occupancy: Option<f64>,
    #[serde(default)]
    pub(crate) integer: Option<f64>,
    #[serde(default)]
    pub(crate) fp64: Option<f64>,
    #[serde(default)]
    pub(crate) fp32: Option<f64>,
    #[serde(default)]
    pub(crate) fp16: Option<f64>,
    /// Parts of `tensor`.
    #[serde(default)]
    pub(crate) dfma: Option<f64>,
    #[serde(default)]
    pub(crate) imma: Option<f64>,
    #[serde(default)]
    pub(crate) jpeg: Option<f64>,
    #[serde(default)]
    pub(crate) ofa: Option<f64>,
    #[serde(default)]
    pub(crate) pcie_tx: Option<f64>,
    #[serde(default)]
    pub(crate) pcie_rx: Option<f64>,
    #[serde(default)]
    pub(crate) nvlink_tx: Option<f64>,
    #[serde(default)]
    pub(crate) nvlink_rx: Option<f64>,
}

/// More bytes per second than any link has.
const TOO_FAST: f64 = 1e13;

impl Pipes {
    pub(super) fn check(&self, place: &str) -> Result<(), String> {
        let shares = [
            ("occupancy", self.occupancy),
            ("integer", self.integer),
            ("fp64", self.fp64),
            ("fp32", self.fp32),
            ("fp16", self.fp16),
            ("dfma", self.dfma),
            ("imma", self.imma),
            ("jpeg", self.jpeg),
            ("ofa", self.ofa),
        ];
        let rates = [
            ("pcie_tx", self.pcie_tx),
            ("pcie_rx", self.pcie_rx),
            ("nvlink_tx", self.nvlink_tx),
            ("nvlink_rx", self.nvlink_rx),
        ];
        let given = |list: &[(&'static str, Option<f64>)], most: f64| {
            let wrong = |value: f64| !(0.0..=most).contains(&value);
            list.iter()
                .find_map(|(name, value)| value.filter(|value| wrong(*value)).map(|value| (*name, value)))
        };
        if let Some((name, share)) = given(&shares, 1.0) {
            return Err(format!("{place}: {name} {share} is not between 0 and 1"));
        }
        match given(&rates, TOO_FAST) {
            Some((name, rate)) => Err(format!("{place}: {name} {rate} is not between 0 and 1e13 bytes/s")),
            None => Ok(()),
        }
    }
}

//! The names of the same quantities in dcgm-exporter and in OpenTelemetry's hardware conventions.
//!
//! A metric that is no linear function of one of our families has no alias; those of dcgm-exporter are in `dcgm.rs`.

use super::LabelPair;

/// A set of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// dcgm-exporter's default and optional counters.
    Dcgm,
    /// OpenTelemetry's semantic conventions for hardware.
    Otel,
}

impl Profile {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dcgm => "dcgm",
            Self::Otel => "otel",
        }
    }
}

#[derive(Debug)]
pub struct Alias {
    pub profile: Profile,
    pub name: &'static str,
    /// The label values that select series of the family; dcgm sums these, except over labels that are renamed.
    pub when: &'static [LabelPair],
    /// Factor and divisor from the family's base unit to the alias' unit.
    pub scale: (u64, u64),
    /// Whether it is the rate per second of a counter.
    pub rate: bool,
    /// Its labels: name and value, or name and `=label` for the value of that label of the family.
    pub labels: &'static [LabelPair],
}

pub(super) const HW_GPU: (&str, &str) = ("hw.type", "gpu");

pub(super) const fn dcgm(name: &'static str) -> Alias {
    Alias::new(Profile::Dcgm, name, &[])
}

pub(super) const fn otel(name: &'static str, labels: &'static [LabelPair]) -> Alias {
    Alias::new(Profile::Otel, name, labels)
}

impl Alias {
    const fn new(profile: Profile, name: &'static str, labels: &'static [LabelPair]) -> Self {
        Self { profile, name, when: &[], scale: (1, 1), rate: false, labels }
    }

    pub(super) const fn when(mut self, labels: &'static [LabelPair]) -> Self {
        self.when = labels;
        self
    }

    pub(super) const fn times(mut self, factor: u64) -> Self {
        self.scale.0 = factor;
        self
    }

    pub(super) const fn over(mut self, divisor: u64) -> Self {
        self.scale.1 = divisor;
        self
    }

    pub(super) const fn per_second(mut self) -> Self {
        self.rate = true;
        self
    }
}

/// Of the pipes of a GPU or an instance.
pub(super) const PIPE_ALIASES: &[Alias] = &[
    dcgm("DCGM_FI_PROF_PIPE_INT_ACTIVE").when(&[("pipe", "integer")]),
    dcgm("DCGM_FI_PROF_PIPE_FP16_ACTIVE").when(&[("pipe", "fp16")]),
    dcgm("DCGM_FI_PROF_PIPE_FP32_ACTIVE").when(&[("pipe", "fp32")]),
    dcgm("DCGM_FI_PROF_PIPE_FP64_ACTIVE").when(&[("pipe", "fp64")]),
    dcgm("DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE").when(&[("pipe", "tensor_dfma")]),
    dcgm("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE").when(&[("pipe", "tensor_hmma")]),
    dcgm("DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE").when(&[("pipe", "tensor_imma")]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::catalogue::{Kind, Rows, families, values_of};

    #[test]
    fn an_alias_selects_by_labels_of_its_family_and_only_a_counter_has_a_rate() {
        for family in families() {
            for alias in family.aliases {
                let prefix = if alias.profile == Profile::Dcgm { "DCGM_FI_" } else { "hw." };
                assert!(alias.name.starts_with(prefix), "{}", alias.name);
                assert!(alias.scale.0 > 0 && alias.scale.1 > 0, "{}", alias.name);
                for (label, value) in alias.when {
                    assert!(values_of(family, label).contains(value), "{}: {label}={value}", alias.name);
                }
                let taken = alias.labels.iter().filter_map(|(_, value)| value.strip_prefix('='));
                assert!(taken.into_iter().all(|label| family.labels.contains(&label)), "{}", alias.name);
                assert!(
                    family.kind == Kind::Counter || !alias.rate,
                    "{}: only a counter has a rate",
                    alias.name
                );
            }
        }
    }

    #[test]
    fn a_series_has_one_name_in_a_profile() {
        let mut seen = BTreeSet::new();
        for family in families() {
            // A GPU and its instances have the same names in dcgm-exporter.
            let is_of_instance = matches!(family.rows, Rows::Instance(_));
            for alias in family.aliases {
                let values: Vec<_> = alias.labels.iter().map(|(_, value)| value).collect();
                let name = (alias.profile.name(), alias.name, values, is_of_instance);
                assert!(seen.insert(name), "{}", alias.name);
            }
        }
    }
}

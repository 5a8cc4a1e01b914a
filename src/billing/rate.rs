//! Rates as the operator gives them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::{Utc, matches_pattern};

/// The operator's rates, in one currency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceBook {
    /// ISO 4217 code, or the operator's name for the unit.
    pub currency: Arc<str>,
    /// The rates; no two have the same selector and begin.
    pub rates: Vec<Rate>,
}

impl PriceBook {
    /// The built-in book, for demonstrations.
    pub fn example() -> Self {
        let rate = Rate {
            selector: RateSelector::default(),
            from: None,
            nano_per_gpu_hour: 2_500_000_000,
            class: EXAMPLE.into(),
            derivation: None,
        };
        Self { currency: "USD".into(), rates: vec![rate] }
    }

    /// Whether it is the built-in book.
    pub fn is_example(&self) -> bool {
        self.rates.iter().any(|rate| &*rate.class == EXAMPLE)
    }
}

/// The price class of the built-in book, which no configuration can give.
pub const EXAMPLE: &str = "example";

/// A rate of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The GPUs that it prices.
    pub selector: RateSelector,
    /// Begin, on a quarter hour; without it, the rate begins at the quarter hour after it was first recorded.
    pub from: Option<Utc>,
    /// Nano-units of the currency per GPU-hour, at least 0.
    pub nano_per_gpu_hour: i64,
    /// The price class.
    pub class: Arc<str>,
    /// How it follows from what the operator gave, as `32.77 per node-hour / 8 GPUs`; none where it was given itself.
    pub derivation: Option<Arc<str>>,
}

/// Which GPUs a rate prices: those that match everything that is given. Each is a pattern with `*` and `?`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateSelector {
    /// UUID of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Name of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Product name of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl RateSelector {
    /// Whether it selects every GPU.
    pub fn is_for_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it selects GPUs of that node.
    pub fn is_for_node(&self, node: &str) -> bool {
        self.node.as_ref().is_none_or(|pattern| matches_pattern(pattern, node))
    }

    /// Whether it selects a GPU of its node.
    pub(super) fn is_for_gpu(&self, uuid: &str, model: &str) -> bool {
        let is_match =
            |pattern: &Option<String>, text| pattern.as_ref().is_none_or(|it| matches_pattern(it, text));
        is_match(&self.uuid, uuid) && is_match(&self.model, model)
    }

    /// Orders selectors: the more specific one is greater.
    pub(super) const fn specificity(&self) -> [bool; 3] {
        [self.uuid.is_some(), self.node.is_some(), self.model.is_some()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_more_specific_than_a_node_and_that_than_a_model() {
        let selector = |uuid: &str, node: &str, model: &str| {
            let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            RateSelector { uuid: given(uuid), node: given(node), model: given(model) }
        };
        let order =
            [selector("", "", ""), selector("", "", "m"), selector("", "n", "m"), selector("u", "", "")];
        assert!(order.windows(2).all(|pair| pair[0].specificity() < pair[1].specificity()));
        assert!(
            selector("", "gpu-*", "").is_for_node("gpu-7") && !selector("", "gpu-*", "").is_for_node("cpu-7")
        );
        assert!(selector("GPU-1*", "n", "").is_for_gpu("GPU-12", "any"));
    }
}

//! Rates as the operator gives them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::json;
use super::schedule::Dated;
use super::terms::Terms;
use crate::model::{MigProfile, NodeIdentity, Price, Tariff, Utc, matches_pattern, named};

/// What the operator decided about prices. An empty one means that there is no money anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriceBook {
    /// The rates, whose prices are in one currency; no two of a kind have the same selector and begin.
    pub rates: Vec<Rate>,
    pub terms: Vec<Terms>,
}

impl PriceBook {
    pub fn is_example(&self) -> bool {
        self.rates.iter().any(Rate::is_example)
    }

    /// The rates of GPU time.
    pub fn prices(&self) -> impl Iterator<Item = &Rate> {
        self.rates.iter().filter(|rate| rate.kind.is_time())
    }

    /// The currency of its prices; none where there are none.
    pub fn currency(&self) -> Option<&Arc<str>> {
        self.prices().next().map(|rate| &rate.tariff.currency)
    }
}

/// A book in another currency than the account, between which gpumeter does not convert.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the book has prices in {book}, and the account in {account}; give the book in {account}")]
pub struct OtherCurrency {
    book: String,
    account: String,
}

impl PriceBook {
    /// Checks that the book is in a currency of the account, of which these are all.
    ///
    /// # Errors
    /// It is in another one.
    pub fn check_currency<'a>(
        &self,
        account: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), OtherCurrency> {
        let Some(book) = self.currency() else { return Ok(()) };
        let mut others = account.into_iter().peekable();
        match others.peek().copied() {
            Some(first) if others.all(|currency| *currency != **book) => {
                Err(OtherCurrency { book: book.to_string(), account: first.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// Begins the price classes of the built-in book, which no configuration can give.
pub const EXAMPLE: &str = "example";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub kind: RateKind,
    pub selector: RateSelector,
    /// Begin, on a quarter hour; without it, the rate begins at the quarter hour after it was first recorded.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::optional_time")]
    pub from: Option<Utc>,
    /// Nano-units of the currency, or nanograms of CO2e, per unit of its kind; at least 0.
    pub nano: i64,
    #[serde(flatten)]
    pub tariff: Tariff,
    /// How it follows from what the operator gave, as `32.77 per node-hour / 8 GPUs`; none where it was given itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derivation: Option<Arc<str>>,
}

impl Rate {
    pub fn is_example(&self) -> bool {
        self.tariff.class.starts_with(EXAMPLE)
    }
}

named! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RateKind {
        /// The price of a GPU for an hour.
        #[default]
        GpuHour = "gpu_hour",
        /// The price of a MIG instance of a profile for an hour.
        InstanceHour = "instance_hour",
        /// The price of a kilowatt-hour that GPUs draw; without one, energy is included in the price of time.
        Kwh = "kwh",
        /// The grams of CO2e that a kilowatt-hour emits.
        CarbonKwh = "carbon_kwh",
    }
    fn name
}

impl RateKind {
    pub const fn is_time(self) -> bool {
        matches!(self, Self::GpuHour | Self::InstanceHour)
    }
}

/// Which GPUs a rate prices: those that match everything that is given. Each text is a pattern with `*` and `?`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateSelector {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Whether the node may be taken away at any time for a lower price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct PricedSlot<'a> {
    pub uuid: &'a str,
    pub model: &'a str,
    /// The profile of a MIG instance; none for a whole GPU.
    pub profile: Option<&'a MigProfile>,
}

struct Criterion {
    /// Its name in descriptions; "" where it has a description of its own.
    words: &'static str,
    wanted: Wanted,
    found: Found,
}

type Wanted = fn(&RateSelector) -> Option<&str>;

enum Found {
    InNode(fn(&NodeIdentity) -> Option<&str>),
    InSlot(for<'a> fn(&PricedSlot<'a>) -> Option<&'a str>),
}

/// The criteria, the most specific first. A new one is a row here, a field of the selector and a key of rates.
const CRITERIA: [Criterion; 7] = [
    of_slot("UUID", |selector| selector.uuid.as_deref(), |slot| Some(slot.uuid)),
    of_node("node", |selector| selector.node.as_deref(), |node| Some(&node.name)),
    of_slot("model", |selector| selector.model.as_deref(), |slot| Some(slot.model)),
    of_node("instance type", |it| it.instance_type.as_deref(), |node| node.instance_type.as_deref()),
    of_node("pool", |selector| selector.pool.as_deref(), |node| node.pool.as_deref()),
    of_node("", |selector| selector.spot.map(yes_or_no), |node| node.spot.map(yes_or_no)),
    of_slot("profile", |it| it.mig_profile.as_deref(), |slot| slot.profile.map(|profile| &*profile.name)),
];

const fn of_node(words: &'static str, wanted: Wanted, found: fn(&NodeIdentity) -> Option<&str>) -> Criterion {
    Criterion { words, wanted, found: Found::InNode(found) }
}

const fn of_slot(
    words: &'static str,
    wanted: Wanted,
    found: for<'a> fn(&PricedSlot<'a>) -> Option<&'a str>,
) -> Criterion {
    Criterion { words, wanted, found: Found::InSlot(found) }
}

const fn yes_or_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

impl RateSelector {
    pub fn is_for_all(&self) -> bool {
        *self == Self::default()
    }

    /// What it asks for, each in words; nothing for all GPUs.
    pub fn describe(&self) -> Vec<String> {
        let named = CRITERIA.iter().filter(|criterion| !criterion.words.is_empty());
        let texts =
            named.filter_map(|criterion| Some(format!("{} {}", criterion.words, (criterion.wanted)(self)?)));
        texts.chain(self.spot.map(|spot| if spot { "spot" } else { "not spot" }.to_owned())).collect()
    }

    /// Orders selectors: the more specific one is greater.
    pub(super) fn specificity(&self) -> [bool; CRITERIA.len()] {
        CRITERIA.each_ref().map(|criterion| (criterion.wanted)(self).is_some())
    }
}

/// Whether a text matches a pattern, where one is given; an unknown text matches none.
fn is_match(pattern: Option<&str>, text: Option<&str>) -> bool {
    pattern.is_none_or(|pattern| text.is_some_and(|text| matches_pattern(pattern, text)))
}

impl Rate {
    pub fn is_for(&self, slot: PricedSlot<'_>) -> bool {
        CRITERIA.iter().all(|criterion| match criterion.found {
            Found::InSlot(found) => is_match((criterion.wanted)(&self.selector), found(&slot)),
            Found::InNode(_) => true,
        })
    }

    pub fn price(&self) -> Price {
        Price { tariff: self.tariff.clone(), nano_per_gpu_hour: self.nano }
    }
}

impl Dated for Rate {
    fn from(&self) -> Option<Utc> {
        self.from
    }

    fn is_for_node(&self, node: &NodeIdentity) -> bool {
        CRITERIA.iter().all(|criterion| match criterion.found {
            Found::InNode(found) => is_match((criterion.wanted)(&self.selector), found(node)),
            Found::InSlot(_) => true,
        })
    }

    fn selects_nodes(&self) -> bool {
        let is_of_node = |criterion: &&Criterion| matches!(criterion.found, Found::InNode(_));
        CRITERIA.iter().filter(is_of_node).any(|criterion| (criterion.wanted)(&self.selector).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(selector: RateSelector) -> Rate {
        let tariff = Tariff { currency: "EUR".into(), class: "spot".into() };
        Rate { kind: RateKind::GpuHour, selector, from: None, nano: 1, tariff, derivation: None }
    }

    #[test]
    fn selectors_are_ordered_by_uuid_node_model_instance_type_and_pool() {
        let given = |text: &str| Some(text.to_owned());
        let none = RateSelector::default;
        let order = [
            none(),
            RateSelector { pool: given("p"), ..none() },
            RateSelector { instance_type: given("t"), ..none() },
            RateSelector { model: given("m"), ..none() },
            RateSelector { node: given("n"), ..none() },
            RateSelector { uuid: given("u"), ..none() },
        ];
        assert!(order.windows(2).all(|pair| pair[0].specificity() < pair[1].specificity()));
    }

    #[test]
    fn a_rate_is_for_nodes_that_match_everything_that_it_gives() {
        let node = NodeIdentity {
            name: "gpu-7".into(),
            pool: Some("spot-a".into()),
            spot: Some(true),
            ..NodeIdentity::default()
        };
        let given = |text: &str| Some(text.to_owned());
        let none = RateSelector::default;
        for (selector, is_for) in [
            (none(), true),
            (RateSelector { node: given("gpu-*"), ..none() }, true),
            (RateSelector { node: given("cpu-*"), ..none() }, false),
            (RateSelector { pool: given("spot-*"), node: given("gpu-?"), ..none() }, true),
            (RateSelector { instance_type: given("*"), ..none() }, false),
            (RateSelector { spot: Some(true), ..none() }, true),
            (RateSelector { spot: Some(false), ..none() }, false),
        ] {
            assert_eq!(rate(selector.clone()).is_for_node(&node), is_for, "{selector:?}");
        }
        let uuid = rate(RateSelector { uuid: given("GPU-1*"), ..none() });
        assert!(uuid.is_for(PricedSlot { uuid: "GPU-12", model: "any", profile: None }));
    }
}

//! Reads the rates of a GPU-hour (`prices.rates`).

use super::key::{Absent, ChangeEffect, Key, KeyType, Table};
use super::problem::{Complaint, FilePosition, ProblemCollector};
use super::read_mapping;
use super::time::moment;
use super::tree::YamlNode;
use super::values::put;
use crate::model::{Money, Utc};

/// Where prices come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriceBookConfig {
    /// The built-in example prices, for demonstrations.
    Example,
    /// The operator's own prices.
    Own {
        /// ISO 4217 code, or the operator's name for the unit.
        currency: String,
        /// At least one, ordered by time; at most one, the first, has no beginning.
        rates: Vec<RateConfig>,
    },
}

/// A price, in force until the start of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateConfig {
    /// Its start, on the 15-minute grid; without it, it is the first.
    pub from: Option<Utc>,
    /// Per GPU-hour, never negative.
    pub gpu_hour: Money,
    /// What kind of price it is.
    pub class: PriceClass,
}

/// What kind of price it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceClass {
    /// List price, no commitment.
    OnDemand,
    /// May be interrupted.
    Spot,
    /// Reserved or owned.
    Committed,
}

impl PriceClass {
    /// In the order of [`Self::NAMES`].
    const ALL: [Self; 3] = [Self::OnDemand, Self::Spot, Self::Committed];
    const NAMES: [&'static str; 3] = [Self::OnDemand.name(), Self::Spot.name(), Self::Committed.name()];

    /// The word in configuration and in the label `price_class`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
            Self::Committed => "committed",
        }
    }
}

keys! { RateDraft;
"A rate while it is read."
pub(crate) struct RateDraft () {
    gpu_hour: Option<Money>, text("a decimal number", price), Required("2.49"), Reload, in "currency per GPU-hour",
        "Price of one GPU for one hour, exact to nine decimals.";
    from: Option<Utc>, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"), Reload,
        "When it begins; it lasts until the next one does. Time before the first has no price.";
    class: Option<PriceClass>, word(PriceClass::NAMES, PriceClass::ALL), Default(PriceClass::OnDemand.name()), Reload,
        "What kind of price it is.";
}
}

/// Reads the list and returns the valid rates, by time.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<RateConfig> {
    let mut rates: Vec<(RateConfig, Option<FilePosition>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = RateDraft::default();
        let Some(places) = read_mapping::read_mapping(item, &path, TABLE.keys, &mut draft, report) else {
            continue;
        };
        let (Some(gpu_hour), Some(class)) = (draft.gpu_hour, draft.class) else { continue };
        let place = places.get("from").or(item.place);
        // A rate with a malformed start does not count as one without a start.
        let is_known = draft.from.is_some() || places.get("from").is_none();
        let same_start = rates.iter().find(|(rate, _)| is_known && rate.from == draft.from);
        if let Some((_, other)) = same_start {
            let other = other.map_or(0, |other| other.line);
            let text = match draft.from {
                Some(_) => format!("begins with the rate on line {other}; give one of them another time"),
                None => {
                    format!("has no beginning, nor has the rate on line {other}; give one of them a time")
                }
            };
            report.add(place, format!("{path}.from"), Complaint(text));
        }
        rates.push((RateConfig { from: draft.from, gpu_hour, class }, place));
    }
    rates.sort_by_key(|(rate, _)| rate.from);
    rates.into_iter().map(|(rate, _)| rate).collect()
}

/// A currency's code or name.
pub(crate) fn currency(text: &str) -> Result<String, Complaint> {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if letters && (1..=16).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(Complaint::about(text, "is not a currency", "give a code such as USD or EUR"))
}

/// A decimal price in nano-units, without floating point.
fn price(text: &str) -> Result<Money, Complaint> {
    let remedy = "give a price per GPU-hour >= 0";
    if let Some(rest) = text.strip_prefix('-')
        && rest.starts_with(|first: char| first.is_ascii_digit())
    {
        return Err(Complaint::about(text, "is negative", remedy));
    }
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return Err(Complaint::about(text, "is not a decimal number", "give digits such as 2.49"));
    }
    let decimals = decimals.trim_end_matches('0');
    if decimals.len() > 9 {
        return Err(Complaint::about(text, "has more than nine decimals", "round it to nine"));
    }
    // With at most nine digits before the point, price times time fits into i128 for any time.
    let whole = whole.trim_start_matches('0');
    if whole.len() > 9 {
        return Err(Complaint::about(text, "is a billion or more per GPU-hour", "give a lower price"));
    }
    let nano = format!("0{whole}{decimals:0<9}").parse::<i128>();
    nano.map(Money).map_err(|_| Complaint::about(text, "is not a decimal number", remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_exact_to_the_nano_unit() {
        let cases = [
            ("0", 0),
            ("2.49", 2_490_000_000),
            ("0.100000000000", 100_000_000),
            ("0.000000001", 1),
            ("999999999.999999999", 999_999_999_999_999_999),
            ("007", 7_000_000_000),
        ];
        for (text, nano) in cases {
            assert_eq!(price(text), Ok(Money(nano)), "{text}");
        }
        for text in ["", ".", "1.", ".5", "1e3", "+1", "1_000", "٣", "nan", "1.2.3", " 1", "0x10"] {
            assert!(price(text).is_err(), "{text}");
        }
    }
}

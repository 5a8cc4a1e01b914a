//! Reads the rates of a GPU-hour (`prices.rates`).

use std::sync::Arc;

use super::key::{Absent, ChangeEffect, Key, KeyType, Table};
use super::problem::{Complaint, FilePosition, ProblemCollector};
use super::read_mapping;
use super::time::moment;
use super::tree::YamlNode;
use super::values::put;
use crate::billing::{Rate, RateSelector};
use crate::model::Utc;

/// The price classes, as in the label `price_class`.
const CLASSES: [&str; 3] = ["on_demand", "spot", "committed"];

keys! { RateDraft;
"A rate while it is read."
pub(crate) struct RateDraft () {
    gpu_hour: Option<i64>, text("a decimal number", price), Optional("2.49"), Reload, in "currency per GPU-hour",
        "Price of one GPU for one hour, exact to nine decimals.";
    node_hour: Option<i64>, text("a decimal number", price), Optional("32.77"), Reload, in "currency per hour",
        "Price of a whole node for one hour, instead of gpu_hour; needs gpus.";
    gpus: Option<u32>, text("a number of GPUs", gpus), Optional("8"), Reload,
        "How many GPUs share the price of the node.";
    gpu_share: Option<i64>, text("a share of 1", share), Optional("0.9"), Reload,
        "The part of the node's price that its GPUs bear; all of it by default.";
    from: Option<Utc>, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"), Reload,
        "When it begins, also in the past; without it, at the next quarter hour.";
    class: Option<&'static str>, word(CLASSES, CLASSES), Default(CLASSES[0]), Reload,
        "What kind of price it is.";
    model: Option<String>, text("a pattern", pattern), Optional("*H100*"), Reload,
        "Only GPUs of these models.";
    node: Option<String>, text("a pattern", pattern), Optional("gpu-a-*"), Reload,
        "Only GPUs of these nodes, so that all nodes can have the same file.";
    uuid: Option<String>, text("a pattern", pattern), Optional("GPU-5f1e*"), Reload,
        "Only GPUs with these UUIDs.";
}
}

/// Reads the list and returns the valid rates.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<Rate> {
    let mut rates: Vec<(Rate, Option<FilePosition>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = RateDraft::default();
        let Some(places) = read_mapping::read_mapping(item, &path, TABLE.keys, &mut draft, report) else {
            continue;
        };
        let price = match rate_price(&draft) {
            Ok(price) => price,
            // A value that is malformed was reported.
            Err((key, _)) if places.get(key).is_some() && draft.is_absent(key) => continue,
            Err((key, text)) => {
                let place = places.get(key).or(item.place);
                report.add(place, format!("{path}.{key}"), Complaint(text.to_owned()));
                continue;
            }
        };
        let RateDraft { class: Some(class), from, model, node, uuid, .. } = draft else { continue };
        let selector = RateSelector { uuid, node, model };
        let place = places.get("from").or(item.place);
        // A rate with a malformed start does not count as one without a start.
        let is_known = from.is_some() || places.get("from").is_none();
        let is_same = |rate: &Rate| is_known && (&rate.selector, rate.from) == (&selector, from);
        if let Some((_, other)) = rates.iter().find(|(rate, _)| is_same(rate)) {
            let line = other.map_or(0, |other| other.line);
            let text = match from {
                Some(_) => format!(
                    "begins with the rate on line {line}, for the same GPUs; give one of them another time"
                ),
                None => format!(
                    "has no beginning, nor has the rate on line {line}, for the same GPUs; give one of them a time"
                ),
            };
            report.add(place, format!("{path}.from"), Complaint(text));
        }
        let (nano_per_gpu_hour, derivation) = price;
        rates.push((Rate { selector, from, nano_per_gpu_hour, class: class.into(), derivation }, place));
    }
    rates.into_iter().map(|(rate, _)| rate).collect()
}

impl RateDraft {
    /// Whether a key of the price has no valid value.
    fn is_absent(&self, key: &str) -> bool {
        match key {
            "gpu_hour" => self.gpu_hour.is_none(),
            "node_hour" => self.node_hour.is_none(),
            "gpu_share" => self.gpu_share.is_none(),
            _ => self.gpus.is_none(),
        }
    }
}

/// Price of a GPU-hour in nano-units, and how it follows from that of a node.
type RatePrice = (i64, Option<Arc<str>>);

/// The price of a rate; or the key that is wrong, and why.
fn rate_price(draft: &RateDraft) -> Result<RatePrice, (&'static str, &'static str)> {
    match (draft.gpu_hour, draft.node_hour, draft.gpus) {
        (Some(_), Some(_), _) => Err(("node_hour", "is given beside gpu_hour; keep one of the two")),
        (Some(_), None, Some(_)) => Err(("gpus", "belongs to node_hour; remove it, or give node_hour")),
        (Some(_), None, None) if draft.gpu_share.is_some() => {
            Err(("gpu_share", "belongs to node_hour; remove it, or give node_hour"))
        }
        (Some(nano), None, None) => Ok((nano, None)),
        (None, Some(_), None) => Err(("gpus", "is missing; give the number of GPUs of the node")),
        (None, None, _) => Err(("gpu_hour", "is missing; give it, or node_hour with gpus")),
        (None, Some(node_hour), Some(gpus)) => {
            let share = draft.gpu_share.unwrap_or(ONE);
            let (product, parts) =
                (i128::from(node_hour) * i128::from(share), i128::from(ONE) * i128::from(gpus));
            // Rounded once, here; it is at most the price of the node.
            let nano = i64::try_from((product + parts / 2) / parts).unwrap_or(i64::MAX);
            let of_share = if share == ONE { String::new() } else { format!(" x {}", shortened(share)) };
            let derivation = format!("{} per node-hour{of_share} / {gpus} GPUs", shortened(node_hour));
            Ok((nano, Some(derivation.into())))
        }
    }
}

/// One in nano-units.
const ONE: i64 = 1_000_000_000;

/// Nano-units as a decimal without trailing zeros.
fn shortened(nano: i64) -> String {
    let text = format!("{}.{:09}", nano / ONE, nano % ONE);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number of GPUs.
fn gpus(text: &str) -> Result<u32, Complaint> {
    let count = text.parse().ok().filter(|count| (1..=1_024).contains(count));
    count.ok_or_else(|| Complaint::about(text, "is not a number of GPUs", "give a number from 1 to 1024"))
}

/// A share of 1 in billionths.
fn share(text: &str) -> Result<i64, Complaint> {
    let share = price(text).ok().filter(|share| (1..=ONE).contains(share));
    share.ok_or_else(|| Complaint::about(text, "is not a share", "give a decimal above 0, and at most 1"))
}

/// A pattern of a selector.
fn pattern(text: &str) -> Result<String, Complaint> {
    if text.is_empty() {
        return Err(Complaint::about(text, "is empty", "give a text in which * stands for anything"));
    }
    Ok(text.to_owned())
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
fn price(text: &str) -> Result<i64, Complaint> {
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
    let whole = whole.trim_start_matches('0');
    if whole.len() > 9 {
        return Err(Complaint::about(text, "is a billion or more per GPU-hour", "give a lower price"));
    }
    let nano = format!("0{whole}{decimals:0<9}").parse();
    nano.map_err(|_| Complaint::about(text, "is not a decimal number", remedy))
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
            assert_eq!(price(text), Ok(nano), "{text}");
        }
        assert_eq!(["1", "0.9"].map(share), [Ok(ONE), Ok(900_000_000)]);
        assert!(share("0").is_err() && share("1.1").is_err() && gpus("0").is_err() && gpus("x").is_err());
        for text in ["", ".", "1.", ".5", "1e3", "+1", "1_000", "٣", "nan", "1.2.3", " 1", "0x10"] {
            assert!(price(text).is_err(), "{text}");
        }
    }
}

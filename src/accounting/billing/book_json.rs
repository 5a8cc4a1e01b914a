//! A book as JSON, as a command sends it to a server that bills with other prices.

use std::collections::BTreeSet;

use serde_json::Value;

use super::rate::{PriceBook, RateKind};
use super::terms::WHOLE_RATE;
use crate::model::QUARTER_HOUR;

/// The most bytes of a book as JSON.
pub const LONGEST_BOOK: usize = 64 * 1024;

/// Prices are less than a billion units.
const MOST_NANO: i64 = 1_000_000_000_000_000_000;

impl PriceBook {
    /// Reads the JSON of [`PriceBook`], of which a configuration could be the origin.
    ///
    /// # Errors
    /// It is no such JSON, has unknown fields, or what no configuration has.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        let given: Value =
            serde_json::from_slice(text).map_err(|error| format!("the book is not JSON: {error}"))?;
        let book: Self = serde_json::from_value(given.clone())
            .map_err(|error| format!("the book is not {{\"rates\": [...], \"terms\": [...]}}: {error}"))?;
        let read = serde_json::to_value(&book).map_err(|error| error.to_string())?;
        if let Some(field) = unknown_field(&given, &read, "") {
            return Err(format!("the book has the unknown field {field}; remove it"));
        }
        book.check()?;
        Ok(book)
    }

    fn check(&self) -> Result<(), String> {
        let Some(currency) = self.currency() else {
            return Err("the book has no prices; give rates of the kind gpu_hour".to_owned());
        };
        let mut keys = BTreeSet::new();
        for (place, rate) in self.rates.iter().enumerate() {
            let wrong = |problem: &str| Err(format!("rates[{place}]: {problem}"));
            if rate.kind != RateKind::CarbonKwh && rate.tariff.currency != *currency {
                return wrong("its currency differs from that of others; a book has one");
            }
            if !(0..MOST_NANO).contains(&rate.nano) {
                return wrong("nano is not between 0 and a billion units");
            }
            if rate.is_example() {
                return wrong("its class is that of gpumeter's own example prices; name another");
            }
            if rate.from.is_some_and(|from| from.floor(QUARTER_HOUR) != from) {
                return wrong("from is not on a quarter hour of UTC");
            }
            if !keys.insert((rate.kind, format!("{:?}", rate.selector), rate.from)) {
                return wrong("another rate has its kind, selector and begin");
            }
        }
        let mut keys = BTreeSet::new();
        for (place, terms) in self.terms.iter().enumerate() {
            let wrong = |problem: &str| Err(format!("terms[{place}]: {problem}"));
            if terms.discount > WHOLE_RATE {
                return wrong("discount is above 1000000000, the whole rate");
            }
            if terms.from.is_some_and(|from| from.floor(QUARTER_HOUR) != from) {
                return wrong("from is not on a quarter hour of UTC");
            }
            if !keys.insert((&terms.tenant, terms.from)) {
                return wrong("others have its tenant and begin");
            }
        }
        Ok(())
    }
}

/// The place of a field that was given and not read.
fn unknown_field(given: &Value, read: &Value, place: &str) -> Option<String> {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => given.iter().find_map(|(name, value)| {
            let place = format!("{place}{}{name}", if place.is_empty() { "" } else { "." });
            match read.get(name) {
                Some(read) => unknown_field(value, read, &place),
                // Null means the default.
                None if value.is_null() => None,
                None => Some(place),
            }
        }),
        (Value::Array(given), Value::Array(read)) => {
            let pairs = given.iter().zip(read).enumerate();
            pairs
                .into_iter()
                .find_map(|(at, (given, read))| unknown_field(given, read, &format!("{place}[{at}]")))
        }
        // Serde also accepts a list in place of an object, with fields in order.
        (Value::Array(_), Value::Object(_)) => Some(format!("{place}[0]")),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;

    fn rate() -> Value {
        json!({"kind": "gpu_hour", "selector": {"model": "*H100*"}, "nano": 1_900_000_000,
            "currency": "EUR", "class": "on_demand"})
    }

    fn problem(book: &Value) -> String {
        PriceBook::from_json(book.to_string().as_bytes()).unwrap_err()
    }

    #[test]
    fn a_book_is_read_as_it_was_written() {
        let book = json!({"rates": [rate(), {"kind": "carbon_kwh", "selector": {}, "nano": 5, "from": "2026-10-01T00:00:00Z",
                "currency": "gCO2e", "class": "energy", "derivation": null}],
            "terms": [{"tenant": "ml", "basis": "used", "discount": 100_000_000, "charges_outside_use": false}]});
        let read = PriceBook::from_json(book.to_string().as_bytes()).unwrap();
        assert_eq!((read.rates.len(), read.terms.len(), read.rates[0].nano), (2, 1, 1_900_000_000));
        let written = serde_json::to_vec(&read).unwrap();
        assert_eq!(PriceBook::from_json(&written), Ok(read));
    }

    #[test]
    fn what_no_configuration_has_is_named() {
        let with = |name: &str, value: Value| {
            let mut rate = rate();
            rate[name] = value;
            json!({"rates": [rate]})
        };
        for (book, told) in [
            (with("price", json!(1)), "the unknown field rates[0].price"),
            (with("selector", json!({"modell": "x"})), "the unknown field rates[0].selector.modell"),
            (json!({"rates": [rate()], "path": "/etc"}), "the unknown field path"),
            (
                json!({"rates": [rate()], "terms": [{"tenant": "a", "off": 1}]}),
                "the unknown field terms[0].off",
            ),
            (with("nano", json!(-1)), "rates[0]: nano is not between"),
            (with("nano", json!(MOST_NANO)), "rates[0]: nano is not between"),
            (with("nano", json!(1.5)), "the book is not {"),
            (with("class", json!("example_spot")), "rates[0]: its class is"),
            (with("from", json!("2026-10-01T00:01:00Z")), "rates[0]: from is not on a quarter hour"),
            (json!({"rates": [rate(), rate()]}), "rates[1]: another rate has"),
            (json!({"rates": []}), "the book has no prices"),
            (json!({}), "the book has no prices"),
            (json!([[rate()], []]), "the unknown field [0]"),
            (
                json!({"rates": [rate()], "terms": [{"tenant": "a", "discount": 1_000_000_001}]}),
                "terms[0]: discount is above",
            ),
            (
                json!({"rates": [rate()], "terms": [{"tenant": "a"}, {"tenant": "a"}]}),
                "terms[1]: others have",
            ),
        ] {
            assert!(problem(&book).contains(told), "{told}: {}", problem(&book));
        }
        let mut other = rate();
        (other["currency"], other["selector"]) = (json!("USD"), json!({}));
        assert!(problem(&json!({"rates": [rate(), other]})).contains("rates[1]: its currency differs"));
        assert!(PriceBook::from_json(b"{").unwrap_err().starts_with("the book is not JSON: "));
    }
}

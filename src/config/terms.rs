//! Reads the terms of tenants (`terms`).

use super::key::{Absent, ChangeEffect, Key, KeyType, Table};
use super::prices;
use super::problem::{Complaint, FilePosition, ProblemCollector};
use super::read_mapping;
use super::time::moment;
use super::tree::YamlNode;
use super::values::{name, put};
use crate::billing::{Basis, Terms, WHOLE_RATE};
use crate::model::{RESERVED, Utc};

keys! { TermsDraft;
"Terms while they are read."
pub(crate) struct TermsDraft () {
    tenant: Option<String>, text("a tenant, or a pattern", tenant), Required("ml"), Reload,
        "The tenant, or a pattern in which * stands for anything.";
    basis: Basis, word(["held", "used"], [Basis::Held, Basis::Used]), Default("held"), Reload,
        "Whether the tenant pays for held or for used time.";
    discount: u32, text("a number of percent", percent), Default("0"), Reload, in "percent",
        "Percent off the rates of time; energy has no discount.";
    outside_use: bool, word(["report", "charge"], [false, true]), Default("report"), Reload,
        "Whether use outside a holding and beyond the own share is charged (for basis held).";
    from: Option<Utc>, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"), Reload,
        "Their start, also in the past; by default the next quarter hour.";
}
}

/// Reads the list and returns the valid terms.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<Terms> {
    let mut all: Vec<(Terms, Option<FilePosition>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = TermsDraft::default();
        let Some(places) = read_mapping::read_mapping(item, &path, TABLE.keys, &mut draft, report) else {
            continue;
        };
        let TermsDraft { tenant: Some(tenant), basis, discount, outside_use, from } = draft else { continue };
        if outside_use && basis == Basis::Used {
            let text = "belongs to basis held; used time includes that use: remove it";
            report.add(places.get("outside_use"), format!("{path}.outside_use"), Complaint(text.to_owned()));
            continue;
        }
        let place = places.get("tenant").or(item.place);
        let is_same = |terms: &Terms| (&terms.tenant, terms.from) == (&tenant, from);
        if let Some((_, other)) = all.iter().find(|(terms, _)| is_same(terms)) {
            let line = other.map_or(0, |other| other.line);
            let text =
                format!("has terms of the same begin on line {line}; keep one, or give another `from`");
            report.add(place, format!("{path}.tenant"), Complaint(text));
            continue;
        }
        all.push((Terms { tenant, from, basis, discount, charges_outside_use: outside_use }, place));
    }
    all.into_iter().map(|(terms, _)| terms).collect()
}

/// The name or pattern of a tenant.
fn tenant(text: &str) -> Result<String, Complaint> {
    let text = name(text)?;
    if text.starts_with(RESERVED) {
        return Err(Complaint::about(&text, "is a remainder, which has no terms", "name a tenant"));
    }
    Ok(text)
}

/// A number of percent, in billionths of the whole.
fn percent(text: &str) -> Result<u32, Complaint> {
    const PARTS_PER_PERCENT: i64 = 100;
    let nano = prices::price(text).ok().filter(|nano| nano % PARTS_PER_PERCENT == 0);
    let parts = nano.and_then(|nano| u32::try_from(nano / PARTS_PER_PERCENT).ok());
    let parts = parts.filter(|parts| *parts <= WHOLE_RATE);
    parts.ok_or_else(|| {
        Complaint::about(
            text,
            "is not a number of percent",
            "give a decimal from 0 to 100, with at most 7 decimals",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_exact() {
        assert_eq!(
            ["10", "0", "100", "12.5", "0.0000001"].map(percent),
            [100_000_000, 0, WHOLE_RATE, 125_000_000, 1].map(Ok)
        );
        for wrong in ["-1", "100.1", "10%", "x", "0.00000001"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}

//! Reads the terms of tenants (`terms`).

use super::entries::{Mistake, entries_of, read_entries};
use super::prices;
use super::problem::{Complaint, ProblemCollector};
use super::time::moment;
use super::tree::YamlNode;
use super::values::name;
use crate::accounting::billing::{Basis, Terms, WHOLE_RATE};
use crate::model::RESERVED;

entry_keys! { Terms;
    tenant => tenant, text("a tenant, or a pattern", tenant), Required("ml"),
        "The tenant, or a pattern in which * stands for anything.";
    basis => basis, word(["held", "used"], [Basis::Held, Basis::Used]), Default("held"),
        "Whether the tenant pays for held or for used time.";
    discount => discount, text("a number of percent", percent), Default("0"), in "percent",
        "Percent off the rates of time; energy has no discount.";
    outside_use => charges_outside_use, word(["report", "charge"], [false, true]), Default("report"),
        "Whether use outside a holding and beyond the own share is charged (for basis held).";
    from => from, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"),
        "Their start, also in the past; by default the next quarter hour.";
}

pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<Terms> {
    entries_of(read_entries(items, base, TABLE.keys, report, |terms: Terms, _, earlier| {
        if terms.tenant.is_empty() {
            return Err(None);
        }
        if terms.charges_outside_use && terms.basis == Basis::Used {
            let text = "belongs to basis held; used time includes that use: remove it";
            return Err(Some(Mistake::of("outside_use", text)));
        }
        let key = |terms: &Terms| (terms.tenant.clone(), terms.from);
        if let Some(first) = earlier.iter().find(|other| key(&other.entry) == key(&terms)) {
            let line = first.at.line("tenant");
            let text =
                format!("has terms of the same begin on line {line}; keep one, or give another `from`");
            return Err(Some(Mistake::of("tenant", text)));
        }
        Ok(terms)
    }))
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

//! The bill as CSV (RFC 4180): one line per group, each with node and period, and no line of totals.
//!
//! Spreadsheets read a text that begins like a formula as one, so such a text has an apostrophe before it.

use ring::digest::{SHA256, digest};

use super::by::{BillGrouping, NONE};
use super::rounding::{decimal, signed_decimal};
use super::sheet::{BillRow, HOURS, Sheet};
use crate::billing::statement::GrantedCredit;
use crate::billing::{Bill, BillRate, print_money};
use crate::model::{Money, shown};

/// The bills under one heading: a line for each group and rate.
pub(super) fn table(bills: &[Bill], by: &BillGrouping) -> String {
    let by = &by.by_rate();
    let mut heads: Vec<String> = ["node", "cluster", "from", "to", "time_zone"].map(str::to_owned).into();
    heads.extend(by.names().into_iter().map(str::to_owned));
    heads.extend(HOURS.iter().map(|column| format!("{}_hours", column.name)));
    heads.extend(
        [
            "energy_kwh",
            "amount",
            "energy_amount",
            "spread",
            "currency",
            "price",
            "price_unit",
            "price_class",
            "co2e_kg",
            "simulated",
            "line",
        ]
        .map(str::to_owned),
    );
    bills.iter().fold(record(&heads), |page, bill| {
        let sheet = Sheet::new(bill, by);
        sheet.rows.iter().fold(page, |page, row| page + &record(&fields(bill, by, row)))
    })
}

/// Credits as lines of the same table, which have a tenant, a negative amount and the number of the credit.
pub(super) fn credits(bill: &Bill, by: &BillGrouping, credits: &[GrantedCredit]) -> String {
    let by = by.by_rate();
    let line = |granted: &GrantedCredit| {
        let mut fields = vec![
            safe_text(&bill.node),
            safe_text(bill.cluster.as_deref().unwrap_or_default()),
            bill.from_local.clone(),
            bill.to_local.clone(),
            bill.time_zone.clone(),
        ];
        let is_tenant = |name: &str| name == "tenant";
        let names = by.names().into_iter();
        fields.extend(
            names.map(|name| if is_tenant(name) { safe_text(&granted.tenant) } else { String::new() }),
        );
        // Hours and energy.
        fields.extend(std::iter::repeat_n(String::new(), HOURS.len() + 1));
        fields.push(print_money(Money(-granted.amount.0)));
        fields.extend([String::new(), String::new(), safe_text(&granted.currency)]);
        fields.extend(std::iter::repeat_n(String::new(), 4));
        fields.extend([bill.simulated.to_string(), format!("credit-{}", granted.credit.number)]);
        record(&fields)
    };
    credits.iter().map(line).collect()
}

fn fields(bill: &Bill, by: &BillGrouping, row: &BillRow) -> Vec<String> {
    let mut fields = vec![
        bill.node.clone(),
        bill.cluster.clone().unwrap_or_default(),
        bill.from_local.clone(),
        bill.to_local.clone(),
        bill.time_zone.clone(),
    ];
    fields.extend(row.names.iter().cloned());
    fields.iter_mut().for_each(|field| *field = safe_text(field));
    fields.extend(HOURS.iter().map(|column| decimal((column.of)(row))));
    fields.push(row.energy.map(decimal).unwrap_or_default());
    let amount = |units: Option<i128>| units.map(signed_decimal).unwrap_or_default();
    let money = Some(row.money).filter(|_| bill.currency.is_some());
    fields.extend([money, row.energy_money, row.spread].map(amount));
    fields.push(safe_text(bill.currency.as_deref().unwrap_or_default()));
    let rate = bill.rates.iter().find(|rate| row.names.last() == Some(&rate.id.to_string()));
    let price = |text: fn(&BillRate) -> String| rate.map(text).unwrap_or_default();
    fields.extend([
        price(|rate| print_money(rate.price)),
        price(|rate| rate.unit.name().to_owned()),
        price(|rate| safe_text(&rate.class)),
        amount(row.emissions),
    ]);
    fields.push(bill.simulated.to_string());
    fields.push(line_id(bill, by, &row.names));
    fields
}

/// Bytes of the digest in the id of a line.
const ID_BYTES: usize = 8;

/// The id of a line: the same whenever the bill of this period is printed, in any time zone.
pub(super) fn line_id(bill: &Bill, by: &BillGrouping, names: &[String]) -> String {
    let (from, to) = (bill.from.to_string(), bill.to.to_string());
    let cluster = bill.cluster.as_deref().unwrap_or_default();
    let period = [cluster, &*bill.node, &*from, &*to];
    let names = names.iter().map(String::as_str);
    // Each text ends with a byte that no UTF-8 text has, so no two keys have the same bytes.
    let mut key = Vec::new();
    for text in period.into_iter().chain(by.names()).chain(names) {
        key.extend(text.bytes().chain([0xff]));
    }
    digest(&SHA256, &key).as_ref().iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// A text as it is shown, which no spreadsheet takes for a formula. The lone dash of usage without a label is none.
fn safe_text(text: &str) -> String {
    let text = shown(text);
    let is_formula = text.starts_with(['=', '+', '-', '@']) && text != NONE;
    if is_formula { format!("'{text}") } else { text.into_owned() }
}

pub(super) fn record(fields: &[String]) -> String {
    fields.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(",") + "\r\n"
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::billing::made;

    #[test]
    fn a_field_that_would_break_the_line_is_quoted() {
        assert_eq!(quoted("lab.service"), "lab.service");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }

    #[test]
    fn a_text_that_looks_like_a_formula_has_an_apostrophe() {
        for text in ["=1+1", "+1", "-1", "@sum", "--"] {
            assert_eq!(safe_text(text), format!("'{text}"));
        }
        assert_eq!(["\t=1", "\r=1"].map(safe_text), ["\\t=1", "\\r=1"]);
        for text in ["", "-", "a=1", "'=1", "lab-1", "__unallocated__"] {
            assert_eq!(safe_text(text), text);
        }
    }

    /// A bill of one line of this tenant and the day that begins so.
    fn bill(tenant: &str, from: &str, time_zone: &str) -> Bill {
        made::bill(&json!({"node": "=n1", "from": from, "to": "2026-11-02T00:00:00Z", "time_zone": time_zone,
            "closed_until": "2026-11-02T00:00:00Z", "lines": [made::line(&json!({"tenant": tenant}))]}))
    }

    #[test]
    fn the_id_of_a_line_depends_on_period_and_names_only() {
        let id = |tenant: &str, from: &str, zone: &str, by: &str| {
            let page = table(&[bill(tenant, from, zone)], &by.parse().unwrap());
            page.trim_end().rsplit(',').next().unwrap().to_owned()
        };
        let day = "2026-11-01T00:00:00Z";
        let known = id("lab", day, "UTC", "tenant");
        assert_eq!(known.len(), 16, "{known}");
        assert_eq!(id("lab", day, "Europe/Zurich", "tenant"), known);
        let others = [
            id("bio", day, "UTC", "tenant"),
            id("lab", "2026-11-01T01:00:00Z", "UTC", "tenant"),
            id("lab", day, "UTC", "tenant,gpu"),
            id("lab", day, "UTC", "gpu,tenant"),
        ];
        assert!(!others.contains(&known), "{others:?}");
        let page = table(&[bill("@x", day, "UTC")], &"tenant,gpu".parse().unwrap());
        assert!(page.starts_with("node,cluster,from,to,time_zone,tenant,gpu,rate,held_hours,"), "{page}");
        assert!(page.contains("\r\n'=n1,,,,UTC,'@x,0,,0.0000,"), "{page}");
    }
}

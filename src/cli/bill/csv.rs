//! The bill as CSV: one line per group and rate, each with node and period, and no line of totals.

use ring::digest::{SHA256, digest};

use super::by::BillGrouping;
use super::columns::{BillGroup, columns, groups};
use crate::billing::statement::GrantedCredit;
use crate::billing::{Bill, print_money};
use crate::cli::Failure;
use crate::cli::report::{CellUnit, Column, ReportCell, ReportTable, csv};
use crate::model::{Money, hexadecimal};

/// The bills under one heading, and the credits of the first one: lines with a tenant, a negative amount and the number of the
/// credit.
pub(super) fn page(bills: &[Bill], by: &BillGrouping, credits: &[GrantedCredit]) -> Result<String, Failure> {
    let by = &by.by_rate();
    let mut tables = Vec::new();
    for bill in bills {
        let rows = groups(bill, by);
        let mut columns = columns(bill, by, &rows);
        let id = |group: &BillGroup<'_>| line_id(bill, by, &group.names).into();
        columns.push(Column::new("", CellUnit::Text, id).csv("line"));
        let names = vec![String::new(); by.names().len()];
        let of_credits = BillGroup { bill, names, lines: Vec::new() };
        let credits = credits
            .iter()
            .filter(|_| tables.is_empty())
            .map(|granted| columns.iter().map(|column| credit_cell(column, granted, &of_credits)).collect());
        let credits: Vec<Vec<ReportCell>> = credits.collect();
        let mut table = ReportTable::new(columns, &rows, None);
        credits.into_iter().for_each(|cells| table.push(cells));
        tables.push(table);
    }
    csv::page(&tables)
}

/// What a line of a credit has in a column: of the bill what holds for all its lines, and no hours.
fn credit_cell<'a>(
    column: &Column<'a, BillGroup<'a>>,
    granted: &GrantedCredit,
    of_credits: &BillGroup<'a>,
) -> ReportCell {
    match &*column.heading.csv {
        "tenant" => granted.tenant.clone().into(),
        "amount" => print_money(Money(-granted.amount.0)).into(),
        "currency" => granted.currency.clone().into(),
        "line" => format!("credit-{}", granted.credit.number).into(),
        _ => match column.cell(of_credits) {
            ReportCell::Amount(_) => ReportCell::Unknown,
            known => known,
        },
    }
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
    hexadecimal(&digest(&SHA256, &key).as_ref()[..ID_BYTES])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::billing::made;

    /// A bill of one line of this tenant and the day that begins so.
    fn bill(tenant: &str, from: &str, time_zone: &str) -> Bill {
        made::bill(&json!({"node": "=n1", "from": from, "to": "2026-11-02T00:00:00Z", "time_zone": time_zone,
            "closed_until": "2026-11-02T00:00:00Z", "lines": [made::line(&json!({"tenant": tenant}))]}))
    }

    #[test]
    fn the_id_of_a_line_depends_on_period_and_names_only() {
        let id = |tenant: &str, from: &str, zone: &str, by: &str| {
            let page = super::page(&[bill(tenant, from, zone)], &by.parse().unwrap(), &[]).unwrap();
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
        let page = super::page(&[bill("@x", day, "UTC")], &"tenant,gpu".parse().unwrap(), &[]).unwrap();
        assert!(page.starts_with("node,cluster,from,to,time_zone,tenant,gpu,rate,held_hours,"), "{page}");
        assert!(page.contains("\r\n'=n1,,,,UTC,'@x,0,,0.0000,"), "{page}");
    }
}

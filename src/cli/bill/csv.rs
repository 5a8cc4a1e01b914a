//! The bill as CSV: one line per group and rate, each with node and period, and no line of totals.

use super::columns::{BillGroup, columns, groups};
use super::line_id::line_id;
use crate::accounting::billing::statement::GrantedCredit;
use crate::accounting::billing::{Bill, BillGrouping, print_money};
use crate::cli::Failure;
use crate::cli::report::{CellUnit, Column, ReportCell, ReportTable, csv};
use crate::model::Money;

/// The bills under one heading, and the credits of the first one: lines with a tenant, a negative amount and the number of the
/// credit.
pub(super) fn page(bills: &[Bill], by: &BillGrouping, credits: &[GrantedCredit]) -> Result<String, Failure> {
    let by = &by.by_rate();
    let mut tables = Vec::new();
    for bill in bills {
        let rows = groups(bill, by);
        let mut columns = columns(bill, by, &rows);
        let id = |group: &BillGroup<'_>| {
            let line = group.lines.first();
            line.map(|line| line_id(by, &group.names, line)).unwrap_or_default().into()
        };
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

/// The cell of a credit's line: what holds for all lines of the bill, and no hours.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::accounting::billing::made;

    fn bill(tenant: &str, from: &str, time_zone: &str) -> Bill {
        made::bill(&json!({"node": "=n1", "from": from, "to": "2026-11-02T00:00:00Z", "time_zone": time_zone,
            "closed_until": "2026-11-02T00:00:00Z", "lines": [made::line(&json!({"tenant": tenant}))]}))
    }

    #[test]
    fn the_id_of_a_line_depends_on_its_names_only() {
        let id = |from: &str, zone: &str| {
            let page = super::page(&[bill("lab", from, zone)], &"tenant,gpu".parse().unwrap(), &[]).unwrap();
            page.trim_end().rsplit(',').next().unwrap().to_owned()
        };
        let day = "2026-11-01T00:00:00Z";
        for (from, zone) in [(day, "UTC"), (day, "Europe/Zurich"), ("2026-11-01T01:00:00Z", "UTC")] {
            assert_eq!(id(from, zone), "tenant+gpu=lab+GPU-0", "{from} {zone}");
        }
        let page = super::page(&[bill("@x", day, "UTC")], &"tenant,gpu".parse().unwrap(), &[]).unwrap();
        assert!(page.starts_with("node,cluster,from,to,time_zone,tenant,gpu,rate,held_hours,"), "{page}");
        assert!(page.contains("\r\n'=n1,,,,UTC,'@x,0,,0.0000,"), "{page}");
    }
}

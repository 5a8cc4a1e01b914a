//! Two periods side by side, by group: held time and money of each, and what has changed.

use std::collections::BTreeMap;

use super::columns::{BillGroup, groups, total_names};
use super::text::{begin, period};
use crate::accounting::billing::{Bill, BillGrouping};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable};

#[derive(Default)]
struct ComparedGroup {
    names: Vec<String>,
    held: [i128; 2],
    money: [i128; 2],
}

pub(super) fn report(bill: &Bill, other: &Bill, by: &BillGrouping) -> Result<Report, String> {
    if let (Some(one), Some(two)) = (&bill.currency, &other.currency)
        && one != two
    {
        return Err(format!(
            "the periods have the currencies {two} and {one}; compare periods of one currency"
        ));
    }
    let mut columns = Column::names(&by.names(), |row: &ComparedGroup| &row.names);
    columns.extend(compared(["held A", "held B"].map(str::to_owned), CellUnit::Hours, |row| row.held));
    if let Some(currency) = bill.currency.as_ref().or(other.currency.as_ref()) {
        let names = ["A", "B"].map(|name| format!("{currency} {name}"));
        columns.extend(compared(names, CellUnit::Money, |row| row.money));
    }
    let total = ComparedGroup { names: total_names(by), ..ComparedGroup::default() };
    let table = ReportTable::new(columns, &compared_groups([other, bill], by), Some(&total)).for_people();
    let mut report = begin(bill);
    report.head = vec![format!("A: {}", period(other)), format!("B: {}", period(bill))];
    report.parts.push(ReportPart::Table("GPU time in hours\n".to_owned(), table));
    Ok(report)
}

/// The bill of an account by recorded prices beside that by others.
pub(super) fn report_books(old: &Bill, new: &Bill, by: &BillGrouping) -> Result<Report, String> {
    let account = |bill: &Bill| (bill.from, bill.to, bill.reconciliation.held);
    if account(old) != account(new) {
        return Err("the account changed between the two bills; ask again".to_owned());
    }
    let Some(currency) = &old.currency else {
        return Err(
            "no price was in force in this period, so there is nothing to compare with; leave --compare-book out"
                .to_owned(),
        );
    };
    let mut columns = Column::names(&by.names(), |row: &ComparedGroup| &row.names);
    let held = |row: &ComparedGroup| ReportCell::Amount(row.held[0]);
    columns.push(Column::new("held", CellUnit::Hours, held).always());
    let names = ["old", "new"].map(|name| format!("{currency} {name}"));
    columns.extend(compared(names, CellUnit::Money, |row| row.money));
    let total = ComparedGroup { names: total_names(by), ..ComparedGroup::default() };
    let table = ReportTable::new(columns, &compared_groups([old, new], by), Some(&total)).for_people();
    let mut report = begin(old);
    report.parts.push(ReportPart::Table("GPU time in hours\n".to_owned(), table));
    Ok(report)
}

/// The groups of both bills, numbers by their value.
fn compared_groups(bills: [&Bill; 2], by: &BillGrouping) -> Vec<ComparedGroup> {
    let mut rows = BTreeMap::<Vec<(Option<u64>, String)>, ComparedGroup>::new();
    for (place, bill) in bills.into_iter().enumerate() {
        let of_bill = groups(bill, by);
        // Rounded here, so that what is printed is also what has changed.
        let rounded = |unit: CellUnit, of: fn(&BillGroup<'_>) -> i128| {
            unit.round(&of_bill.iter().map(of).collect::<Vec<_>>())
        };
        let held = rounded(CellUnit::Hours, |group| group.held());
        let money = rounded(CellUnit::Money, |group| group.money());
        for ((group, held), money) in of_bill.into_iter().zip(held).zip(money) {
            let key = group.names.iter().map(|name| (name.parse().ok(), name.clone())).collect();
            let row = rows.entry(key).or_default();
            row.names = group.names;
            row.held[place] = held;
            row.money[place] = money;
        }
    }
    rows.into_values().collect()
}

fn compared<'a>(
    [one, other]: [String; 2],
    unit: CellUnit,
    of: fn(&ComparedGroup) -> [i128; 2],
) -> [Column<'a, ComparedGroup>; 3] {
    [
        Column::new(one, unit, move |row| ReportCell::Amount(of(row)[0])).always(),
        Column::new(other, unit, move |row| ReportCell::Amount(of(row)[1])).always(),
        Column::new("change", unit, move |row| ReportCell::Amount(of(row)[1] - of(row)[0])).always(),
    ]
}

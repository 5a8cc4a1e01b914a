//! Two periods side by side, by group: held time and money of each, and what has changed.

use std::collections::BTreeMap;

use super::by::BillGrouping;
use super::rounding::signed_decimal;
use super::sheet::{BillRow, Sheet};
use super::text::{align_columns, marks, period, title};
use crate::billing::Bill;

/// A name of a group in its order: numbers by their value.
type SortedName<'a> = (Option<u64>, &'a str);

/// The comparison of a bill with that of another period, as text.
pub(super) fn page(bill: &Bill, other: &Bill, by: &BillGrouping) -> Result<String, String> {
    if let (Some(one), Some(two)) = (&bill.currency, &other.currency)
        && one != two
    {
        return Err(format!(
            "the periods have the currencies {two} and {one}; compare periods of one currency"
        ));
    }
    let currency = bill.currency.as_ref().or(other.currency.as_ref());
    let [sheet, before] = [bill, other].map(|bill| Sheet::new(bill, by));
    let mut groups: BTreeMap<Vec<SortedName<'_>>, [Option<&BillRow>; 2]> = BTreeMap::new();
    for (place, sheet) in [&before, &sheet].into_iter().enumerate() {
        for row in &sheet.rows {
            let names = row.names.iter().map(|name| (name.parse().ok(), &**name));
            groups.entry(names.collect()).or_default()[place] = Some(row);
        }
    }
    let names = by.names().len();
    let mut heads: Vec<String> = by.names().into_iter().map(str::to_owned).collect();
    heads.extend(["held A", "held B", "change"].map(str::to_owned));
    if let Some(currency) = currency {
        heads.extend(["A", "B"].map(|period| format!("{currency} {period}")));
        heads.push("change".into());
    }
    let cells = |names: Vec<String>, rows: [Option<&BillRow>; 2]| {
        let held = rows.map(|row| row.map_or(0, BillRow::held).cast_signed());
        let money = rows.map(|row| row.map_or(0, |row| row.money));
        let mut cells = names;
        for [before, now] in [held].into_iter().chain(currency.map(|_| money)) {
            cells.extend([before, now, now - before].map(signed_decimal));
        }
        cells
    };
    let mut rows = vec![heads];
    rows.extend(groups.into_iter().map(|(names, rows)| {
        let names = names.into_iter().map(|(_, name)| name.to_owned());
        cells(names.collect(), rows)
    }));
    rows.push(cells(sheet.total.names.clone(), [Some(&before.total), Some(&sheet.total)]));
    let mut page = format!("{}\nA: {}\nB: {}\n", title(bill), period(other), period(bill));
    page += &marks(bill).iter().map(|mark| format!("{mark}\n")).collect::<String>();
    Ok(page + "\nGPU time in hours\n" + &align_columns(&rows, names))
}

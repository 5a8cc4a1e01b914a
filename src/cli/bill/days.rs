//! A plot of each day's money, or of its held time, divided among the groups that have most of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::accounting::billing::{Bill, BillGrouping, BillLine};
use crate::cli::report::{CellUnit, DayPlot};

/// Groups with a colour of their own; the others are one.
const SERIES: usize = 5;
/// The most days that are drawn, the last ones of the bill.
const MOST_DAYS: usize = 62;

/// None of a bill that has no days, or only one.
pub(super) fn plot(bill: &Bill, by: &BillGrouping) -> Option<DayPlot> {
    let names: Vec<String> = by
        .groups(bill)
        .into_iter()
        .map(|key| key.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" / "))
        .collect();
    let amount = |line: &BillLine| match &bill.currency {
        Some(_) => line.money.map_or(0, |money| money.0.max(0)),
        None => line.amounts.parts.held().into(),
    };
    let mut days = BTreeMap::<&str, BTreeMap<&str, i128>>::new();
    let mut totals = BTreeMap::<&str, i128>::new();
    for (line, name) in bill.lines.iter().zip(&names) {
        *days.entry(line.day.as_deref()?).or_default().entry(name).or_default() += amount(line);
        *totals.entry(name).or_default() += amount(line);
    }
    while days.len() > MOST_DAYS {
        days.pop_first();
    }
    if days.len() < 2 || totals.values().all(|total| *total == 0) {
        return None;
    }
    let mut series: Vec<&str> = totals.keys().copied().collect();
    series.sort_by_key(|name| Reverse(totals[name]));
    let others = series.split_off(series.len().min(SERIES));
    let days = days.into_iter().map(|(day, amounts)| {
        let of = |name: &&str| amounts.get(name).copied().unwrap_or(0);
        let others: i128 = others.iter().map(of).sum();
        (day.to_owned(), series.iter().map(of).chain([others]).collect())
    });
    let by = by.names().join(" and ");
    let (title, unit) = match &bill.currency {
        Some(currency) => (format!("Money by day and {by}, in {currency}"), CellUnit::Money),
        None => (format!("GPU time held by day and {by}, in hours"), CellUnit::Hours),
    };
    let days = days.collect();
    let mut series: Vec<String> = series.into_iter().map(str::to_owned).collect();
    series.extend((!others.is_empty()).then(|| format!("others ({})", others.len())));
    Some(DayPlot { title, unit, series, days })
}

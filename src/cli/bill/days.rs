//! A plot of each day's money, or of its held time, divided among the groups that have most of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::by::BillGrouping;
use super::html::{escape, escape_name};
use super::rounding::{decimal, in_hour_units, in_money_units};
use crate::billing::Bill;
use crate::model::Money;

/// Groups with a colour of their own; the others are one.
const SERIES: usize = 5;
/// The most days that are drawn, the last ones of the bill.
const MOST_DAYS: usize = 62;

/// Measures in the units of the view box.
const WIDTH: u128 = 760;
const HEIGHT: u128 = 220;
const BASE: u128 = 190;
const TOP: u128 = 20;

/// What is drawn of a day: the amount of each group, in printed units.
type Days<'a> = BTreeMap<&'a str, BTreeMap<&'a str, u128>>;

/// The plot as a section; nothing of a bill without days.
pub(super) fn draw(bill: &Bill, by: &BillGrouping) -> String {
    let names: Vec<String> = by
        .groups(bill)
        .into_iter()
        .map(|key| key.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" / "))
        .collect();
    let amounts: Vec<u128> = if bill.currency.is_some() {
        in_money_units(bill.lines.iter().map(|line| Money(line.money.map_or(0, |money| money.0.max(0)))))
            .into_iter()
            .map(i128::unsigned_abs)
            .collect()
    } else {
        in_hour_units(&bill.lines.iter().map(|line| line.amounts.parts.held().into()).collect::<Vec<_>>())
    };
    let mut days = Days::new();
    let mut totals: BTreeMap<&str, u128> = BTreeMap::new();
    for ((line, name), amount) in bill.lines.iter().zip(&names).zip(amounts) {
        let Some(day) = &line.day else { return String::new() };
        *days.entry(day).or_default().entry(name).or_default() += amount;
        *totals.entry(name).or_default() += amount;
    }
    while days.len() > MOST_DAYS {
        days.pop_first();
    }
    let mut series: Vec<&str> = totals.keys().copied().collect();
    series.sort_by_key(|name| Reverse(totals[name]));
    series.truncate(SERIES);
    let largest = days.values().map(|day| day.values().sum::<u128>()).max().unwrap_or(0);
    if days.len() < 2 || largest == 0 {
        return String::new();
    }
    let what = match &bill.currency {
        Some(currency) => format!("Money by day and {}, in {currency}", by.names().join(" and ")),
        None => format!("GPU time held by day and {}, in hours", by.names().join(" and ")),
    };
    let step = WIDTH / days.len() as u128;
    let bars = days
        .iter()
        .enumerate()
        .map(|(place, (day, amounts))| draw_day(day, amounts, &series, place as u128 * step, step, largest));
    let key = series.iter().enumerate().map(|(place, name)| {
        format!("<span class=\"key\"><i class=\"series-{place}\"></i> {}</span> ", escape_name(name))
    });
    let others = if totals.len() > SERIES {
        format!(
            "<span class=\"key\"><i class=\"series-{SERIES}\"></i> others ({})</span>",
            totals.len() - SERIES
        )
    } else {
        String::new()
    };
    let title = escape(&what);
    format!(
        "<section>\n<h2>{title}</h2>\n<p>{}{others}</p>\n<svg role=\"img\" aria-labelledby=\"plot-days\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\n\
         <title id=\"plot-days\">{title}</title>\n<text x=\"0\" y=\"12\">{}</text>{}</svg>\n</section>\n",
        key.collect::<String>(),
        decimal(largest),
        bars.collect::<String>()
    )
}

/// The stacked bars of one day.
fn draw_day(
    day: &str,
    amounts: &BTreeMap<&str, u128>,
    series: &[&str],
    left: u128,
    step: u128,
    largest: u128,
) -> String {
    let width = (step * 4 / 5).max(1);
    let own = series.iter().map(|name| amounts.get(name).copied().unwrap_or(0));
    let others = amounts.iter().filter(|(name, _)| !series.contains(name)).map(|(_, amount)| amount).sum();
    let mut bottom = BASE;
    let mut bars = String::new();
    for (place, amount) in own.chain([others]).enumerate() {
        let height = amount * (BASE - TOP) / largest;
        bottom -= height;
        if height > 0 {
            bars += &format!(
                "<rect class=\"series-{place}\" x=\"{left}\" y=\"{bottom}\" width=\"{width}\" height=\"{height}\"/>"
            );
        }
    }
    let sum: u128 = amounts.values().sum();
    let label = day.get(8..).unwrap_or(day);
    format!(
        "<g><title>{}: {}</title>{bars}<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text></g>\n",
        escape(day),
        decimal(sum),
        left + width / 2,
        BASE + 16,
        escape(label)
    )
}

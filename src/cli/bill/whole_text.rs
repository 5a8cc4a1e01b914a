//! What a tenant, a day or a remainder is made of, as text.

use jiff::tz::TimeZone;

use super::explain_text::{Priced, price_entries};
use super::text::{begin, counted, seconds, trimmed};
use crate::accounting::billing::{
    ExplainedWhole, InsideRow, InsideWhole, LineRates, PricedPart, WholeSums, zone_of,
};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable};
use crate::cli::wrap;
use crate::model::{TimeSum, shown};

/// How many prices are written out.
const MOST_PRICED: usize = 20;

pub(super) fn report(title: &str, whole: &ExplainedWhole) -> Report {
    let zone = zone_of(&whole.bill.time_zone);
    let mut report = begin(&whole.bill);
    report.head.insert(0, std::mem::replace(&mut report.title, shown(title).into_owned()));
    report.parts.push(ReportPart::Note(total(whole)));
    let named = whole.priced.iter().take(MOST_PRICED);
    report.parts.extend(named.map(|part| ReportPart::Note(priced(part, whole, &zone))));
    let more = whole.priced.len().saturating_sub(MOST_PRICED);
    if more > 0 {
        report
            .parts
            .push(ReportPart::Note(format!("and {more} more prices with smaller amounts; --json has all\n")));
    }
    report.parts.extend(whole.inside.iter().map(|inside| table(inside, whole)));
    if whole.meaning().is_none() {
        report.legend.extend(whole.remainders.clone());
    }
    report.parts.push(ReportPart::Note(sum(whole)));
    report
}

fn hours(time: TimeSum) -> String {
    CellUnit::Hours.print(time.0.cast_signed())
}

/// How many lines it has, and how the time of them was held and used.
fn total(whole: &ExplainedWhole) -> String {
    let sums = &whole.total;
    let parts = [
        ("within", sums.within),
        ("lent", sums.lent),
        ("idle", sums.idle),
        ("unmeasured", sums.unmeasured),
        ("unavailable", sums.unavailable),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, time)| time.0 > 0)
        .map(|(name, time)| format!("{} h {name}", hours(time)))
        .collect();
    let of = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    let mut entries = Vec::new();
    entries.extend(whole.meaning().map(|meaning| ("meaning", meaning.to_owned())));
    entries.push(("held", format!("{} h{of}", hours(sums.held()))));
    if sums.used.0 > 0 {
        entries.push(("used", format!("{} h", hours(sums.used))));
    }
    if sums.energy.0 > 0 {
        entries.push(("energy", format!("{} kWh", CellUnit::Kwh.print(sums.energy.0.cast_signed()))));
    }
    let entries = entries.iter().map(|(name, value)| wrap(&format!("  {name:10} "), value));
    format!("{} of the bill\n{}", counted(sums.lines, "line"), entries.collect::<String>())
}

/// The rate and terms of a part, and time x rate = amount.
fn priced(part: &PricedPart, whole: &ExplainedWhole, zone: &TimeZone) -> String {
    let PricedPart { rate, energy_rate, terms, mig_slices, sums } = part;
    let priced = Priced {
        rates: LineRates { time: *rate, energy: *energy_rate, carbon: None, terms: *terms },
        slices: *mig_slices,
        charged: sums.charged,
        unpriced: sums.unpriced,
        energy: Some(sums.energy).filter(|energy| energy.0 > 0),
        money: sums.money,
        energy_money: sums.energy_money,
        first: None,
    };
    let entries = price_entries(&priced, &whole.bill, zone).into_iter();
    let entries: String = entries.map(|(name, value)| wrap(&format!("  {name:10} "), &value)).collect();
    format!("{}, held {} h\n{entries}", counted(sums.lines, "line"), hours(sums.held()))
}

fn table(inside: &InsideWhole, whole: &ExplainedWhole) -> ReportPart {
    let InsideWhole { property, rows, others, rest } = inside;
    let rest = (*others > 0).then(|| InsideRow { name: format!("{others} others"), sums: rest.clone() });
    let rows: Vec<InsideRow> = rows.iter().cloned().chain(rest).collect();
    let time = |heading, of: fn(&WholeSums) -> TimeSum| {
        Column::new(heading, CellUnit::Hours, move |row: &InsideRow| of(&row.sums).into())
    };
    let mut columns = vec![
        Column::new(&**property, CellUnit::Text, |row: &InsideRow| row.name.clone().into()),
        time("held", WholeSums::held).always(),
        time("idle", |sums| sums.idle),
        time("used", |sums| sums.used),
    ];
    columns.extend(whole.bill.currency.as_ref().map(|currency| {
        Column::new(currency, CellUnit::Money, |row: &InsideRow| {
            row.sums.money.map_or(ReportCell::Unknown, |money| ReportCell::Amount(money.0))
        })
    }));
    let total = InsideRow { name: "total".to_owned(), sums: WholeSums::default() };
    let table = ReportTable::new(columns, &rows, Some(&total)).for_people();
    ReportPart::Table("GPU time in hours\n".to_owned(), table)
}

fn sum(whole: &ExplainedWhole) -> String {
    let sums = &whole.total;
    let amount = whole.bill.currency.as_ref().zip(sums.money).map(|(currency, money)| {
        format!(", charged {} s, {} {currency}", seconds(sums.charged), trimmed(money))
    });
    format!(
        "{}: held {} h{}, as in the bill\n",
        counted(sums.lines, "line"),
        hours(sums.held()),
        amount.unwrap_or_default()
    )
}

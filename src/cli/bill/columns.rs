//! The columns of a bill: whoever adds one adds a line to [`columns`], and text, CSV and HTML have it.

use std::collections::{BTreeMap, BTreeSet};

use super::days;
use super::text::{NO_TIME, begin, notes, pending};
use crate::accounting::billing::{Bill, BillGrouping, BillLine, BillRate, GroupKey, REMAINDERS, print_money};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable};

/// The lines of a bill that have the same names.
pub(super) struct BillGroup<'a> {
    pub(super) bill: &'a Bill,
    /// By each property of the grouping.
    pub(super) names: Vec<String>,
    pub(super) lines: Vec<&'a BillLine>,
}

impl BillGroup<'_> {
    pub(super) fn time(&self, of: impl Fn(&BillLine) -> u64) -> i128 {
        self.lines.iter().map(|line| i128::from(of(line))).sum()
    }

    pub(super) fn known(&self, of: impl Fn(&BillLine) -> Option<i128>) -> ReportCell {
        self.lines
            .iter()
            .filter_map(|line| of(line))
            .reduce(|sum, one| sum + one)
            .map_or(ReportCell::Unknown, ReportCell::Amount)
    }

    pub(super) fn held(&self) -> i128 {
        self.time(|line| line.amounts.parts.held())
    }

    pub(super) fn money(&self) -> i128 {
        self.lines.iter().filter_map(|line| line.money).map(|money| money.0).sum()
    }

    fn rate(&self, text: fn(&BillRate) -> String) -> ReportCell {
        let rate = self.bill.rates.iter().find(|rate| self.names.last() == Some(&rate.id.to_string()));
        rate.map(text).into()
    }
}

/// The groups by name; GPUs by index.
pub(super) fn groups<'a>(bill: &'a Bill, by: &BillGrouping) -> Vec<BillGroup<'a>> {
    let mut groups = BTreeMap::<GroupKey, Vec<&BillLine>>::new();
    for (line, key) in bill.lines.iter().zip(by.groups(bill)) {
        groups.entry(key).or_default().push(line);
    }
    let named = groups.into_iter().map(|(key, lines)| {
        let names = key.into_iter().map(|(_, name)| name).collect();
        BillGroup { bill, names, lines }
    });
    named.collect()
}

pub(super) fn total_names(by: &BillGrouping) -> Vec<String> {
    let mut names = vec![String::new(); by.names().len()];
    names[0] = "total".into();
    names
}

type BillColumn<'a> = Column<'a, BillGroup<'a>>;

/// A column that only CSV has.
fn csv<'a, T: Into<ReportCell>>(name: &'static str, of: impl Fn(&BillGroup<'_>) -> T + 'a) -> BillColumn<'a> {
    Column::new("", CellUnit::Text, move |group| of(group).into()).csv(name)
}

fn hours<'a>(name: &'static str, help: &'static str, of: fn(&BillLine) -> u64) -> BillColumn<'a> {
    let of = move |group: &BillGroup<'_>| ReportCell::Amount(group.time(of));
    Column::new(name, CellUnit::Hours, of).csv(format!("{name}_hours")).help(help)
}

fn money<'a>(
    heading: impl Into<String>,
    csv: &'static str,
    help: &'static str,
    of: fn(&BillLine) -> Option<i128>,
) -> BillColumn<'a> {
    Column::new(heading, CellUnit::Money, move |group: &BillGroup<'_>| group.known(of)).csv(csv).help(help)
}

pub(super) fn columns<'a>(bill: &Bill, by: &BillGrouping, rows: &[BillGroup<'_>]) -> Vec<BillColumn<'a>> {
    let mut columns = vec![
        csv("node", |group| group.bill.node.clone()),
        csv("cluster", |group| group.bill.cluster.clone()),
        csv("from", |group| group.bill.from_local.clone()),
        csv("to", |group| group.bill.to_local.clone()),
        csv("time_zone", |group| group.bill.time_zone.clone()),
    ];
    columns.extend(Column::names(&by.names(), |group: &BillGroup<'a>| &group.names));
    columns.extend(times(bill, rows));
    columns.extend(amounts(bill));
    columns
}

/// The columns of hours. `within` is left to CSV where it would repeat `used`.
fn times<'a>(bill: &Bill, rows: &[BillGroup<'_>]) -> Vec<BillColumn<'a>> {
    let is_within = rows.iter().all(|group| {
        group.time(|line| line.amounts.parts.within) == group.time(|line| line.amounts.used.total())
    });
    let has_no_prices = bill.unpriced.is_none();
    vec![
        hours("held", "GPU time that was granted", |line| line.amounts.parts.held()).always(),
        hours("within", "held, and used by its holder", |line| line.amounts.parts.within)
            .hidden_if(is_within),
        hours("lent", "held, not used by its holder, and used by others", |line| line.amounts.parts.lent),
        hours("idle", "held, and used by nobody", |line| line.amounts.parts.idle),
        hours("unmeasured", "held while it could not be measured whether the GPU was used", |line| {
            line.amounts.parts.unmeasured
        }),
        hours(
            "unavailable",
            "held while the GPU was lost or failed; its price goes to __unavailable__",
            |line| line.amounts.parts.unavailable,
        ),
        hours("used", "GPU time that processes kept busy, held or not", |line| line.amounts.used.total()),
        hours("beyond", "used above the user's own share of the GPU", |line| line.amounts.used.beyond),
        hours("outside", "used on a GPU that only others held", |line| line.amounts.used.outside),
        hours("unheld", "used while nobody held the GPU", |line| line.amounts.used.unheld),
        hours("charged", "time that the amount is for: held and available, or what terms charge", |line| {
            line.charged.0
        })
        .always()
        .hidden_if(has_no_prices),
        hours("unpriced", "the same while no price was in force; it costs nothing", |line| line.unpriced.0)
            .hidden_if(has_no_prices),
    ]
}

fn amounts<'a>(bill: &Bill) -> Vec<BillColumn<'a>> {
    let currency = bill.currency.as_deref().unwrap_or_default();
    let energy_money = |line: &BillLine| line.energy_money.map(|money| money.0);
    let price = |group: &BillGroup<'_>| group.rate(|rate| print_money(rate.price));
    vec![
        Column::new("kWh", CellUnit::Kwh, |group: &BillGroup<'_>| {
            group.known(|line| line.has_energy.then(|| i128::from(line.energy())))
        })
        .csv("energy_kwh")
        .help("energy: idle power shared by held time, the rest by use; - where it is not measured")
        .always(),
        // CSV has the two amounts in the other order.
        money(format!("kWh {currency}"), "", "kWh x price; part of the amount", energy_money),
        Column::new(currency, CellUnit::Money, |group: &BillGroup<'_>| {
            group.bill.currency.as_ref().map_or(ReportCell::Unknown, |_| ReportCell::Amount(group.money()))
        })
        .csv("amount")
        .help("charged x price, and kWh x price where energy has one"),
        money("", "energy_amount", "", energy_money),
        money("spread", "spread", "share of the remainders that are spread over tenants", |line| {
            line.spread.map(|money| money.0)
        }),
        csv("currency", |group| group.bill.currency.clone()),
        Column::new("", CellUnit::Number, price).csv("price"),
        csv("price_unit", |group| group.rate(|rate| rate.unit.name().to_owned())),
        csv("price_class", |group| group.rate(|rate| rate.class.clone())),
        Column::new("kgCO2e", CellUnit::Kilograms, |group: &BillGroup<'_>| {
            group.known(|line| line.emissions.map(|grams| grams.0))
        })
        .csv("co2e_kg")
        .help("kWh x grams of CO2e per kWh"),
        csv("simulated", |group| group.bill.simulated.to_string()),
    ]
}

/// Which columns people see.
#[derive(Clone, Debug)]
pub(in crate::cli) enum ShownColumns {
    /// All that say something.
    Every,
    /// Those for which a printed page has room, the amount beside the names, and the cost center of tenants.
    Page,
    /// These, by their names in the table or in CSV, or as attributes of tenants.
    Named(Vec<String>),
}

/// The attribute of tenants that a page has a column for.
const COST_CENTER: &str = "cost_center";

/// What a page has room for first, by the names in CSV.
const FIRST: [&str; 7] =
    ["amount", "spread", "held_hours", "charged_hours", "idle_hours", "used_hours", "energy_kwh"];

impl ShownColumns {
    /// The attributes of tenants among them, of a bill by tenant.
    fn attributes<'a>(&self, bill: &'a Bill, by: &BillGrouping) -> Vec<&'a str> {
        let names: BTreeSet<&str> =
            bill.tenant_attributes.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
        let is_shown = |name: &&str| match self {
            Self::Every => false,
            Self::Page => *name == COST_CENTER,
            Self::Named(_) => true,
        };
        let is_by_it = |name: &&str| by.names().contains(name);
        match by.place_of("tenant") {
            Some(_) => names.into_iter().filter(is_shown).filter(|name| !is_by_it(name)).collect(),
            None => Vec::new(),
        }
    }

    /// The table with these columns, and the names of those that have no room.
    fn of(&self, table: ReportTable) -> Result<(ReportTable, Vec<String>), String> {
        match self {
            Self::Every => Ok((table.for_people(), Vec::new())),
            Self::Page => Ok(table.for_people().for_page(&FIRST)),
            Self::Named(names) => Ok((table.named(names)?, Vec::new())),
        }
    }
}

/// # Errors
/// A column is named that the bill does not have.
pub(super) fn report(bill: &Bill, by: &BillGrouping, shown: &ShownColumns) -> Result<Report, String> {
    let mut report = begin(bill);
    let rows = groups(bill, by);
    if rows.is_empty() {
        report.parts.push(ReportPart::Note(NO_TIME.to_owned() + &pending(bill)));
        return Ok(report);
    }
    let total = BillGroup { bill, names: total_names(by), lines: bill.lines.iter().collect() };
    let mut columns = columns(bill, by, &rows);
    columns.extend(shown.attributes(bill, by).into_iter().map(|name| attribute(name, by)));
    let (table, left_out) = shown.of(ReportTable::new(columns, &rows, Some(&total)))?;
    report.legend = table.legend();
    let is_there = |tenant: &str| rows.iter().any(|row| row.names.iter().any(|name| name == tenant));
    let remainders = REMAINDERS.iter().filter(|(tenant, _)| is_there(tenant));
    report.legend.extend(remainders.map(|(tenant, meaning)| ((*tenant).to_owned(), (*meaning).to_owned())));
    report.parts.push(ReportPart::Table("GPU time in hours\n".to_owned(), table));
    if !left_out.is_empty() {
        report.parts.push(ReportPart::Note(format!("left out of the table: {}\n", left_out.join(", "))));
    }
    report.parts.extend(notes(bill).into_iter().map(ReportPart::Note));
    report.parts.extend(days::plot(bill, by).map(ReportPart::Plot));
    Ok(report)
}

/// An attribute of the tenant of a row.
fn attribute<'a>(name: &'a str, by: &BillGrouping) -> BillColumn<'a> {
    let place = by.place_of("tenant");
    Column::new(name, CellUnit::Text, move |group: &BillGroup<'_>| {
        let tenant = place.and_then(|place| group.names.get(place));
        let attributes = tenant.and_then(|tenant| group.bill.tenant_attributes.get(tenant));
        attributes.and_then(|attributes| attributes.get(name)).cloned().into()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::super::csv;
    use super::*;
    use crate::accounting::billing::made;
    use crate::cli::report::{html, text};
    use crate::cli::tests::compare_golden;

    const HOUR: u64 = 3_600_000_000_000;

    /// A bill of two days in Berlin, with these fields instead.
    fn bill(other: Value) -> Bill {
        let mut fields = json!({"from": "2026-10-31T23:00:00Z", "to": "2026-11-02T23:00:00Z",
            "from_local": "2026-11-01T00:00:00+01:00", "to_local": "2026-11-03T00:00:00+01:00",
            "time_zone": "Europe/Berlin", "closed_until": "2026-11-02T23:00:00Z",
            "gpus": [{"gpu": 0, "uuid": "GPU-0", "model": "H100", "slot_ns": 48 * HOUR,
                "accounted_since": "2026-10-31T23:00:00Z", "settled_until": "2026-11-02T23:00:00Z"}]});
        fields.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        made::bill(&fields)
    }

    /// A third of an hour held and half used, on that day.
    fn line(tenant: &str, day: &str, other: Value) -> Value {
        let mut line = json!({"tenant": tenant, "holder": tenant, "day": day, "held_ns": HOUR / 3,
            "within_ns": HOUR / 6, "idle_ns": HOUR / 6, "used_ns": HOUR / 6, "charged_ns": HOUR / 3});
        line.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        made::line(&line)
    }

    fn every_column() -> Bill {
        let priced = json!({"rate": "1", "money": "0.700000000", "energy_money": "0.033333333",
            "energy_static_uj": HOUR / 7, "energy_dynamic_uj": HOUR / 7, "lent_ns": HOUR / 7, "unmeasured_ns": HOUR / 7,
            "unavailable_ns": HOUR / 7, "held_ns": HOUR * 16 / 21, "beyond_share_ns": HOUR / 7, "outside_holding_ns": HOUR / 7,
            "unheld_ns": HOUR / 7, "used_ns": HOUR * 25 / 42, "unpriced_ns": HOUR / 9, "spread": "0.000050000",
            "co2e_grams": "1.000000000"});
        let (first, second) = ("2026-11-01", "2026-11-02");
        let lines = [
            line("=ml", first, priced.clone()),
            line("bio, \"b\"", first, priced.clone()),
            line("bio, \"b\"", second, priced),
            line("__unallocated__", second, json!({"within_ns": 0, "idle_ns": HOUR / 3, "used_ns": 0})),
        ];
        bill(
            json!({"currency": "EUR", "cluster": "c1", "unpriced_ns": HOUR / 3, "lines": lines, "simulated": true,
            "rates": [{"id": "1", "unit": "gpu_hour", "since": null, "price": "2.100000000", "class": "spot",
                "slot_ns": HOUR, "money": "2.100000000"}]}),
        )
    }

    #[test]
    fn bills_in_every_format_are_as_committed() {
        let by: BillGrouping = "tenant".parse().unwrap();
        let two_days = ["2026-11-01", "2026-11-02"].map(|day| line("ml", day, json!({})));
        for (name, bill) in [
            ("empty", bill(json!({"lines": []}))),
            ("without-prices", bill(json!({"lines": two_days}))),
            ("every-column", every_column()),
        ] {
            let bills = std::slice::from_ref(&bill);
            let shown = |shown| report(&bill, &by, &shown).unwrap();
            compare_golden(&format!("bill/{name}.txt"), &text::report(&shown(ShownColumns::Every)));
            let page = html::page(&[shown(ShownColumns::Page)], &[], &[]);
            compare_golden(&format!("bill/{name}.html"), &page);
            compare_golden(&format!("bill/{name}.csv"), &csv::page(bills, &by, &[]).unwrap());
        }
    }

    fn with_cost_center() -> Bill {
        let own = [("cost_center".to_owned(), "4711".to_owned()), ("owner".to_owned(), "ada".to_owned())];
        Bill { tenant_attributes: [("=ml".to_owned(), own.into())].into(), ..every_column() }
    }

    /// The heads of the tables of a page, and what is said to be left out.
    fn heads(by: &str, shown: &ShownColumns) -> (Vec<Vec<String>>, Option<String>) {
        let page = html::page(&[report(&with_cost_center(), &by.parse().unwrap(), shown).unwrap()], &[], &[]);
        let table = |part: &str| {
            let row = part.split("</tr>").next().unwrap().to_owned();
            let cells =
                row.split("</th>").filter_map(|cell| cell.rsplit_once('>')).map(|(_, name)| name.to_owned());
            cells.filter(|name| !name.is_empty()).collect()
        };
        let bare = page.replace("<bdi>", "").replace("</bdi>", "");
        let left_out =
            page.split("<p>left out of the table: ").nth(1).and_then(|rest| rest.split("</p>").next());
        (bare.split("<thead>").skip(1).map(table).collect(), left_out.map(str::to_owned))
    }

    #[test]
    fn a_page_has_the_amount_beside_the_names_the_cost_center_and_at_most_eight_columns() {
        let (tables, left_out) = heads("tenant", &ShownColumns::Page);
        assert_eq!(tables, [["tenant", "cost_center", "EUR", "spread", "held", "charged", "idle", "used"]]);
        assert_eq!(
            left_out.unwrap(),
            "kWh, within, lent, unmeasured, unavailable, beyond, outside, unheld, unpriced, kWh EUR, kgCO2e"
        );
        let (tables, _) = heads("day,tenant", &ShownColumns::Page);
        assert_eq!(tables, [["day", "tenant", "cost_center", "EUR", "spread", "held", "charged", "idle"]]);
        let (tables, _) = heads("workload", &ShownColumns::Page);
        assert_eq!(tables, [["workload", "EUR", "spread", "held", "charged", "idle", "used", "kWh"]]);
    }

    #[test]
    fn named_columns_are_those_in_their_order_and_more_than_a_page_has_go_on_below() {
        let named = |names: &[&str]| ShownColumns::Named(names.iter().map(|&name| name.to_owned()).collect());
        let few = named(&["held_hours", "amount", "tenant", "owner", "lent", "held"]);
        let (tables, left_out) = heads("tenant", &few);
        assert_eq!(
            (tables, left_out),
            (vec![["tenant", "owner", "held", "EUR", "lent"].map(str::to_owned).to_vec()], None)
        );
        let many =
            ["amount", "spread", "held", "charged", "idle", "used", "energy_kwh", "energy_amount", "beyond"];
        let (tables, _) = heads("tenant", &named(&many));
        assert_eq!(tables[0], ["tenant", "EUR", "spread", "held", "charged", "idle", "used", "kWh"]);
        assert_eq!(tables[1..], [["tenant", "energy_amount", "beyond"]]);
        let text =
            text::report(&report(&with_cost_center(), &"tenant".parse().unwrap(), &named(&["EUR"])).unwrap());
        assert!(text.contains("\ntenant              EUR\n"), "{text}");
        let unknown = report(&every_column(), &"tenant".parse().unwrap(), &named(&["held", "cost_center"]));
        assert_eq!(
            unknown.err().unwrap(),
            "there is no column \"cost_center\"; there are held, within, lent, idle, unmeasured, unavailable, used, beyond, \
             outside, unheld, charged, unpriced, kWh, kWh EUR, EUR, energy_amount, spread, kgCO2e"
        );
    }

    #[test]
    fn every_grouping_has_the_same_total_in_every_column() {
        let total = |by: &str| {
            let report = report(&every_column(), &by.parse().unwrap(), &ShownColumns::Every).unwrap();
            let page = text::report(&report);
            let total = page.lines().find(|line| line.starts_with("total")).unwrap().to_owned();
            total.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        for by in ["workload", "gpu", "model", "node", "day", "tenant,gpu", "day,tenant"] {
            assert_eq!(total(by), total("tenant"), "by {by}");
        }
    }
}

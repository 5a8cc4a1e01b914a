//! The costs of a ledger are the sums of its bills, by every grouping, filter, period and zone, and a reader of one tenant gets
//! nothing of others.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use gpumeter::accounting::billing::costs::{CostReport, CostRequest, CostRow, CostSums};
use gpumeter::accounting::billing::{Bill, BillGrouping, BillLine, BillRequest, ExactMoney, LineDetail};
use gpumeter::accounting::ledger::Reader;
use gpumeter::cli::demo::HistoryExtent;
use gpumeter::model::{PARTS, RESERVED, USES, Utc, VisibleAccount, round_to_digit};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::history::{END, Written, scenario};

/// A history with energy and emissions that have a price, terms, attributes and budgets.
static PRICED: LazyLock<Written> =
    LazyLock::new(|| Written::new(&priced_scenario(), HistoryExtent { days: 28, nodes: 1, seed: 7 }));

pub(crate) fn priced_scenario() -> Value {
    let mut scenario = scenario();
    let prices = |hour: &str| {
        json!({"currency": "EUR", "energy": {"kwh": "0.20", "pue": "1.25"}, "rates": [{"gpu_hour": hour},
            {"model": "*L4*", "gpu_hour": "0.70", "class": "spot"}]})
    };
    scenario["config"] = json!({
        "node": {"name": "past", "cluster": "c", "pool": "night"},
        "attribution": {"presence": true, "standing": [{"gpu": 1, "fraction": "1/4", "user": "bob"}]},
        "prices": prices("2.00"),
        "carbon": {"grams_per_kwh": 380, "source": "a test"},
        "terms": [{"tenant": "web", "basis": "used", "discount": 10}],
        "tenants": {
            "attributes": {"web": {"cost_center": "4711", "owner": "ada"}, "lab": {"cost_center": "4712"}},
            "budgets": {"web": 500, "lab": 100},
        },
    })
    .to_string()
    .into();
    scenario["history"]["settings"] = json!([
        {"recorded": "-20d", "prices": prices("3.10")}, {"recorded": "-6d", "prices": prices("2.00")}
    ]);
    scenario
}

pub(crate) fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

pub(crate) fn request(parameters: &[(String, String)], zone: &TimeZone) -> CostRequest {
    let parameters = parameters.iter().map(|(name, value)| (name.as_str(), value.clone()));
    CostRequest::parse(parameters, zone.clone(), END).unwrap()
}

fn costs(request: &CostRequest) -> CostReport {
    Reader::open(&PRICED.ledger()).unwrap().costs(request).unwrap()
}

fn bill(period: [Utc; 2], zone: &TimeZone) -> Bill {
    let [from, to] = period.map(Some);
    let detail = LineDetail { day: true, ..LineDetail::whole() };
    let request = BillRequest { from, to, zone: zone.clone(), detail, ..BillRequest::default() };
    Reader::open(&PRICED.ledger()).unwrap().bill(&request).unwrap()
}

fn names(bill: &Bill, by: &str) -> Vec<Vec<String>> {
    let groups = by.parse::<BillGrouping>().unwrap().groups(bill);
    groups.into_iter().map(|key| key.into_iter().map(|(_, name)| name).collect()).collect()
}

/// The sums of lines, and their money as the bill rounded it.
#[derive(Default)]
struct Summed {
    times: [u128; PARTS.len() + USES.len()],
    charged: u128,
    energy: u128,
    exact: ExactMoney,
    money: i128,
    grams: i128,
}

impl Summed {
    fn add(&mut self, line: &BillLine) {
        for (time, amount) in self.times.iter_mut().zip(PARTS.iter().chain(USES)) {
            *time += u128::from(amount.of(&line.amounts));
        }
        self.charged += u128::from(line.charged.0);
        self.energy += u128::from(line.energy());
        self.exact = self.exact.plus(line.exact).unwrap();
        self.money += line.money.unwrap().0;
        self.grams += line.emissions.map_or(0, |grams| grams.0);
    }

    fn equals(&self, sums: &CostSums) -> bool {
        let energy = sums.energy.map_or(0, |energy| energy.0);
        (self.times, self.charged, self.energy) == (sums.times.map(|time| time.0), sums.charged.0, energy)
            && self.exact == sums.money
    }
}

/// Numbers that depend on the case alone.
struct Chooser(u64);

impl Chooser {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const PERIODS: [&str; 6] = [
    "2026-11",
    "this-month",
    "2026-11-03..2026-11-19",
    "2026-11-22..2026-11-23",
    "2026-10-27..2026-11-04",
    "2026",
];
pub(crate) const GROUPS: [&str; 14] = [
    "tenant",
    "workload",
    "gpu",
    "uuid",
    "model",
    "class",
    "day",
    "node",
    "cluster",
    "namespace",
    "account",
    "attribute:cost_center",
    "day,tenant",
    "user,gpu",
];
pub(crate) const ZONES: [&str; 4] = ["UTC", "Europe/Zurich", "Asia/Kathmandu", "America/New_York"];

fn hundredths(text: &str) -> i128 {
    text.replace('.', "").parse().unwrap()
}

/// What a column shows is what its rows have, rounded together, and adds up to what the total shows.
fn check_column(
    rows: &[CostRow],
    total: &CostRow,
    shown: fn(&CostRow) -> String,
    exact: Vec<i128>,
    digit: i128,
) {
    let rounded: Vec<i128> = round_to_digit(&exact, digit).into_iter().map(|one| one / digit).collect();
    let printed: Vec<i128> = rows.iter().map(|row| hundredths(&shown(row))).collect();
    assert_eq!(printed, rounded);
    assert_eq!(printed.iter().sum::<i128>(), hundredths(&shown(total)));
}

/// A report of random parameters, beside the bill of its period.
pub(crate) fn check_case(
    case: u64,
    costs: &dyn Fn(&CostRequest) -> CostReport,
    bill: &dyn Fn([Utc; 2], &TimeZone) -> Bill,
) {
    let mut choose = Chooser(case);
    let (period, group) = (choose.one(&PERIODS), choose.one(&GROUPS));
    let zone = zone(choose.one(&ZONES));
    let mut parameters =
        vec![("period".to_owned(), period.to_owned()), ("group".to_owned(), group.to_owned())];
    let whole = request(&parameters, &zone).ranges([Utc(0), END]).unwrap().period;
    let mut bill = bill(whole, &zone);
    if choose.below(2) == 1 {
        let property = choose.one(&GROUPS[..11]);
        let property = if property == "day" { "tenant" } else { property };
        let values = names(&bill, property);
        // A workload with several tenants is selected whoever pays, and a replaced GPU by its index.
        let plain = |name: &str| match property {
            "workload" | "gpu" => name.split(" (").next().unwrap_or_default().to_owned(),
            _ => name.to_owned(),
        };
        let chosen = plain(&values[choose.below(values.len())][0]);
        let mut own = values.iter().map(|names| plain(&names[0]) == chosen);
        bill.lines.retain(|_| own.next().unwrap());
        parameters.push((property.to_owned(), chosen));
    }
    let report = costs(&request(&parameters, &zone));
    let mut sums = BTreeMap::<Vec<String>, Summed>::new();
    for (line, names) in bill.lines.iter().zip(names(&bill, group)) {
        sums.entry(names).or_default().add(line);
    }
    let rows: Vec<&CostRow> = report.rows.iter().filter(|row| sums.contains_key(&row.values)).collect();
    assert_eq!(rows.len(), sums.len(), "case {case}: {parameters:?}");
    for row in report.rows.iter().filter(|row| !sums.contains_key(&row.values)) {
        assert!(row.amounts.sums == CostSums::default() && row.before.is_some(), "case {case}: {row:?}");
    }
    let mut total = Summed::default();
    bill.lines.iter().for_each(|line| total.add(line));
    assert!(total.equals(&report.total.amounts.sums), "case {case}: {parameters:?}");
    let of = |row: &CostRow, of: fn(&Summed) -> i128| sums.get(&row.values).map_or(0, of);
    for row in rows {
        let summed = &sums[&row.values];
        assert!(summed.equals(&row.amounts.sums), "case {case}: {parameters:?}: {row:?}");
        let rounded = row.amounts.rounded;
        // A line and a row are each rounded by less than a nano-unit.
        let lines = bill.lines.len() as i128;
        assert!((rounded.money.unwrap().0 - summed.money).abs() <= lines, "case {case}: {row:?}");
        assert!((rounded.emissions.map_or(0, |grams| grams.0) - summed.grams).abs() <= lines, "case {case}");
    }
    let column = |column: fn(&Summed) -> i128| report.rows.iter().map(|row| of(row, column)).collect();
    let amount = |row: &CostRow| row.shown.amount.clone().unwrap();
    check_column(&report.rows, &report.total, amount, column(|one| one.money), 10_000_000);
    let held = |one: &Summed| one.times[..PARTS.len()].iter().sum::<u128>().cast_signed();
    check_column(
        &report.rows,
        &report.total,
        |row| row.shown.hours["held"].clone(),
        column(held),
        36_000_000_000,
    );
}

#[test]
fn costs_are_the_sums_of_the_bill_by_every_grouping_filter_period_and_zone() {
    (0..30).for_each(|case| check_case(case, &costs, &bill));
}

#[test]
fn remainders_are_divided_among_tenants_as_the_bill_does() {
    let zone = zone("Europe/Zurich");
    for spread in [vec!["__unallocated__"], vec!["__unallocated__", "__unavailable__", "__terms__"]] {
        let spread: Vec<String> = spread.into_iter().map(str::to_owned).collect();
        let mut parameters = vec![("period".to_owned(), "2026-11".to_owned())];
        parameters.extend(spread.iter().map(|one| ("spread".to_owned(), one.clone())));
        let asked = request(&parameters, &zone);
        let mut bill = bill(asked.ranges([Utc(0), END]).unwrap().period, &zone);
        bill.spread(&spread).unwrap();
        let report = costs(&asked);
        for row in &report.rows {
            let lines = bill.lines.iter().filter(|line| line.tenant == row.name);
            let of_bill: i128 = lines.clone().filter_map(|line| line.spread).map(|money| money.0).sum();
            let of_row = row.amounts.rounded.spread.unwrap().0;
            assert!((of_row - of_bill).abs() <= bill.lines.len() as i128, "{}: {of_row} {of_bill}", row.name);
        }
        assert_eq!(report.total.amounts.rounded.spread.unwrap().0, 0);
    }
}

#[test]
fn an_open_month_has_a_projection_a_comparison_budgets_and_hours() {
    let zone = zone("UTC");
    let report = costs(&request(&[], &zone));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["period"]["open"], json!(true));
    assert_eq!(json["before"], Value::Null, "the account begins within the month before");
    let number = |text: &Value| text.as_str().unwrap().parse::<f64>().unwrap();
    let [amount, lowest, highest] =
        ["amount", "lowest", "highest"].map(|name| number(&json["projection"][name]));
    let spent = number(&json["total"]["money"]);
    assert!(spent < lowest && lowest <= amount && amount <= highest, "{}", json["projection"]);
    // 27 of 30 days are over, and days differ by less than half.
    assert!((spent * 1.05..spent * 1.2).contains(&amount), "{spent} {amount}");
    let row = |name: &str| report.rows.iter().find(|row| row.name == name).unwrap();
    assert_eq!(row("web").budget.as_ref().unwrap().amount, "500.000000000");
    assert_eq!(row("web").cost_center.as_deref(), Some("4711"));
    assert!(report.budget.is_some());
    let hours = report.hours.as_ref().unwrap();
    let of_hours: f64 = hours.iter().map(|hour| hour.held).sum::<f64>() / 168.0;
    let of_tenants = report.rows.iter().filter(|row| !row.remainder);
    let held: u128 = of_tenants.map(|row| row.amounts.sums.held()).sum();
    let average = held as f64 / (27.0 * 24.0 * 3.6e12);
    assert!((of_hours / average - 1.0).abs() < 0.05, "{of_hours} {average}");
    let year = costs(&request(&[("period".into(), "2026".into())], &zone));
    assert!(year.hours.is_none(), "a year is read by day");
    let week = costs(&request(&[("period".into(), "2026-11-20..2026-11-27".into())], &zone));
    let compared = bill([Utc(END.0 - 15 * 86_400_000_000_000), Utc(END.0 - 8 * 86_400_000_000_000)], &zone);
    let json = serde_json::to_value(&week).unwrap();
    assert_eq!(json["before"]["period"]["name"], "2026-11-13..2026-11-20");
    let exact = ExactMoney::sum(compared.lines.iter().map(|line| line.exact)).unwrap();
    let money = number(&json["before"]["total"]["money"]);
    assert!((money - exact.floor().0 as f64 / 1e9).abs() < 1e-6, "{money}");
}

#[test]
fn a_reader_of_some_tenants_gets_nothing_of_others() {
    let zone = zone("UTC");
    let whole = bill([Utc(END.0 - 27 * 86_400_000_000_000), END], &zone);
    let own = |line: &BillLine| line.tenant == "lab";
    let others = whole.lines.iter().filter(|line| !own(line) && !line.tenant.starts_with(RESERVED));
    let others: Vec<&str> = others.flat_map(|line| [&*line.tenant, line.holder.name()]).collect();
    let exact = ExactMoney::sum(whole.lines.iter().filter(|line| own(line)).map(|line| line.exact)).unwrap();
    for group in GROUPS {
        let parameters = [("group", group), ("spread", "__unallocated__")];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let visible = VisibleAccount::Tenants(vec!["lab".to_owned()]);
        let report = costs(&CostRequest { visible, ..request(&parameters, &zone) });
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(report.total.amounts.sums.money, exact, "by {group}");
        assert!(report.partial && report.rows.iter().all(|row| !row.remainder), "by {group}");
        for other in &others {
            assert!(!text.contains(&format!("\"{other}\"")), "by {group}: {other}");
        }
    }
    let visible = VisibleAccount::OfUser("bob".into());
    let report = costs(&CostRequest { visible, ..request(&[], &zone) });
    assert_eq!(report.rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["bob"]);
}

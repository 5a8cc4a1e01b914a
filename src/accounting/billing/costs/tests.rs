//! Reports of a made-up fleet of two nodes.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::*;
use crate::accounting::billing::{ExactMoney, TenantBudget};
use crate::model::{EnergySum, Money, NodeIdentity, TimeSum, Utc, VisibleAccount};

const HOUR: u128 = 3_600_000_000_000;

fn at(text: &str) -> Utc {
    Utc::try_from(text.parse::<Timestamp>().unwrap()).unwrap()
}

fn key(node: &str, tenant: &str) -> Arc<CostKey> {
    let node = NodeIdentity { name: node.to_owned(), ..NodeIdentity::default() };
    let (model, tenant, class) = ("H100".into(), tenant.into(), Some("spot".into()));
    Arc::new(CostKey { node: Arc::new(node), model, tenant, class, workload: None })
}

/// Hours within and idle, at 2 per hour.
fn sums(within: u64, idle: u64) -> CostSums {
    let mut sums = CostSums::default();
    let [within, idle] = [within, idle].map(|hours| u128::from(hours) * HOUR);
    (sums.times[0], sums.times[2], sums.times[5]) = (TimeSum(within), TimeSum(idle), TimeSum(within));
    sums.charged = TimeSum(within + idle);
    sums.energy = Some(EnergySum(within));
    sums.money = ExactMoney::of_time(2_000_000_000, u64::try_from(within + idle).unwrap());
    sums
}

fn request(parameters: &[(&'static str, &str)]) -> CostRequest {
    let parameters = parameters.iter().map(|(name, value)| (*name, (*value).to_owned()));
    CostRequest::parse(parameters, TimeZone::UTC, at("2026-11-03T12:00:00Z")).unwrap()
}

fn tenants() -> CostTenants {
    let attributes = [("ml", "cc-1"), ("bio", "cc-2")]
        .map(|(tenant, center)| (tenant.to_owned(), [("cost_center".to_owned(), center.to_owned())].into()));
    let budget = TenantBudget { amount: Money(100_000_000_000), currency: "EUR".into() };
    CostTenants { attributes: attributes.into(), budgets: [("ml".to_owned(), budget)].into() }
}

/// Node, tenant, day, hours within and idle.
const ROWS: [(&str, &str, i8, u64, u64); 6] = [
    ("n1", "ml", 1, 10, 5),
    ("n1", "ml", 2, 3, 0),
    ("n2", "bio", 1, 4, 4),
    ("n2", "__unallocated__", 1, 0, 16),
    ("n1", "chem", 2, 1, 0),
    // Of what has nothing there is no row.
    ("n2", "__unavailable__", 1, 0, 0),
];

fn report(request: &CostRequest, currency: Option<&str>) -> Value {
    report_of(&ROWS, request, currency)
}

fn report_of(rows: &[(&str, &str, i8, u64, u64)], request: &CostRequest, currency: Option<&str>) -> Value {
    let ranges = request.ranges([at("2026-09-01T00:00:00Z"), at("2026-11-03T12:00:00Z")]).unwrap();
    let tenants = tenants();
    let mut draft = CostDraft::new(request, &ranges, &tenants);
    let day = |day: i8| Date::constant(2026, 11, day);
    for &(node, tenant, of, within, idle) in rows {
        draft.add(&key(node, tenant), day(of), &sums(within, idle)).unwrap();
    }
    draft.add_before(&key("n1", "ml"), &sums(7, 0)).unwrap();
    let weeks = local_hours([at("2026-10-06T00:00:00Z"), ranges.period[1]], &TimeZone::UTC);
    let of_hour = key("", "ml");
    for hour in weeks {
        // The last week costs twice as much as the others.
        let hours = if hour.begin >= at("2026-10-27T00:00:00Z") { 2 } else { 1 };
        draft.add_hour(&of_hour, &hour, &HourSums::of("ml", &sums(hours, 0))).unwrap();
    }
    let facts = CostFacts {
        source: CostSource { kind: "fleet", nodes: 2, ..CostSource::default() },
        currency: currency.map(str::to_owned),
        compares_money: true,
        options: "--exports DIR".to_owned(),
        ..CostFacts::default()
    };
    serde_json::to_value(draft.finish(facts).unwrap()).unwrap()
}

fn names(report: &Value) -> Vec<&str> {
    report["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn rows_are_by_amount_with_remainders_last_and_add_up_to_the_total() {
    let report = report(&request(&[]), Some("EUR"));
    assert_eq!(names(&report), ["ml", "bio", "chem", "__unallocated__"]);
    let properties = report["properties"].as_array().unwrap();
    for property in ["tenant", "node", "class", "account", "attribute:cost_center"] {
        assert!(properties.contains(&json!(property)), "{properties:?}");
    }
    let ml = &report["rows"][0];
    let hours = json!({"held": "18.00", "within": "13.00", "lent": "0.00", "idle": "5.00", "unmeasured": "0.00",
        "unavailable": "0.00", "used": "13.00", "beyond": "0.00", "outside": "0.00", "unheld": "0.00", "charged": "18.00",
        "unpriced": "0.00"});
    let mut shown =
        json!({"idle_share": "27.8", "kwh": "13.00", "co2e_kg": null, "amount": "36.00", "spread": null});
    shown.as_object_mut().unwrap().extend(hours.as_object().unwrap().clone());
    assert_eq!(ml["shown"], shown);
    assert_eq!((&ml["money"], &ml["held_ns"]), (&json!("36.000000000"), &json!((18 * HOUR).to_string())));
    assert_eq!((&ml["cost_center"], &ml["filter"]), (&json!("cc-1"), &json!({"tenant": "ml"})));
    assert_eq!(ml["budget"], json!({"amount": "100.000000000", "used": 0.36}));
    assert_eq!(ml["before"], json!({"held": "7.00", "amount": "14.00"}));
    assert_eq!(report["total"]["money"], json!("86.000000000"));
    assert_eq!(report["shares"], json!({"idle": 0.3333, "unallocated": 0.3720, "unavailable": 0.0}));
    assert_eq!(report["before"]["total"]["shown"]["amount"], json!("14.00"));
    assert_eq!(report["before"]["period"]["to"], json!("2026-10-03T12:00:00+00:00"));
    assert_eq!(report["period"]["asked_to"], json!("2026-12-01T00:00:00+00:00"));
    assert_eq!(
        report["command"],
        json!("gpumeter bill --exports DIR --from 2026-11-01 --by tenant --time-zone UTC")
    );
    assert_eq!(
        report["focus_command"],
        json!("gpumeter bill --exports DIR --from 2026-11-01 --time-zone UTC --focus costs.parquet")
    );
    let days = report["days"].as_array().unwrap();
    assert_eq!(days[1]["rows"][1], json!({"name": "chem", "held": "1.00", "idle": "0.00", "amount": "2.00"}));
}

#[test]
fn time_that_nobody_held_has_its_name_in_the_days_beside_any_number_of_tenants() {
    let tenants: Vec<String> = (0..14).map(|number| format!("team-{number:02}")).collect();
    let mut rows: Vec<_> = tenants.iter().map(|tenant| ("n1", tenant.as_str(), 1, 2, 0)).collect();
    rows.push(("n1", "__unallocated__", 1, 0, 5));
    let report = report_of(&rows, &request(&[]), Some("EUR"));
    let day = report["days"][0]["rows"].as_array().unwrap();
    let found: Vec<_> = day.iter().map(|row| (row["name"].as_str(), row["held"].as_str().unwrap())).collect();
    assert_eq!(found[10..], [(Some("team-10"), "2.00"), (Some("__unallocated__"), "5.00"), (None, "6.00")]);
}

#[test]
fn the_rows_that_are_not_shown_are_one_that_adds_up() {
    let report = report(&request(&[("top", "1")]), Some("EUR"));
    assert_eq!((names(&report), &report["rest"]["name"]), (vec!["ml"], &json!("3 others")));
    assert_eq!(report["rest"]["shown"]["amount"], json!("50.00"));
    assert_eq!(report["rest"]["filter"], Value::Null);
    assert_eq!(report["total"]["shown"]["amount"], json!("86.00"));
}

#[test]
fn a_report_by_day_has_a_row_a_day_which_selects_that_day() {
    let report = report(&request(&[("group", "day,tenant"), ("node", "n1")]), Some("EUR"));
    assert_eq!(names(&report), ["2026-11-01, ml", "2026-11-02, chem", "2026-11-02, ml"]);
    let filter = json!({"period": "2026-11-01..2026-11-02", "tenant": "ml"});
    assert_eq!(report["rows"][0]["filter"], filter);
    assert_eq!(report["hours"], Value::Null, "sums by tenant and hour do not tell nodes apart");
    assert_eq!(report["budget"], Value::Null, "a budget is not of one node");
}

#[test]
fn what_nobody_held_is_divided_by_charged_time_as_a_bill_does() {
    let spread = [("spread", "__unallocated__")];
    let shown = |report: &Value| {
        let rows = report["rows"].as_array().unwrap().iter();
        rows.map(|row| row["shown"]["spread"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = report(&request(&spread), Some("EUR"));
    assert_eq!(shown(&all), ["21.33", "9.48", "1.19", "-32.00"]);
    assert_eq!(all["total"]["shown"]["spread"], json!("0.00"));
    let some = report(&request(&[spread[0], ("tenant", "ml"), ("tenant", "bio")]), Some("EUR"));
    assert_eq!(shown(&some), ["21.33", "9.48"], "others pay the rest");
}

#[test]
fn a_reader_of_one_tenant_gets_its_lines_and_nothing_of_others() {
    let visible = VisibleAccount::Tenants(vec!["bio".to_owned()]);
    let own = report(&CostRequest { visible, ..request(&[("spread", "__unallocated__")]) }, Some("EUR"));
    assert_eq!((names(&own), &own["partial"]), (vec!["bio"], &json!(true)));
    assert_eq!(own["total"]["shown"]["amount"], json!("16.00"));
    assert_eq!(own["shares"], json!({"idle": 0.5, "unallocated": null, "unavailable": 0.0}));
    assert_eq!(
        (&own["budget"], &own["rows"][0]["spread"], &own["hours"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let text = own.to_string();
    for other in ["ml", "chem", "cc-1", "n1"] {
        assert!(!text.contains(&format!("\"{other}\"")), "{other}");
    }
}

#[test]
fn an_open_month_is_projected_from_the_hours_of_the_last_four_weeks() {
    let report = report(&request(&[]), Some("EUR"));
    // 660 hours are left; an hour costs 2 in three weeks and 4 in one.
    let expected = |hour: u32| format!("{}.000000000", 86 + 660 * hour);
    assert_eq!(report["projection"]["lowest"], json!(expected(2)));
    assert_eq!(report["projection"]["highest"], json!(expected(4)));
    assert_eq!(report["projection"]["amount"], json!("1736.000000000"));
    let hours = report["hours"].as_array().unwrap();
    assert_eq!(hours[24 * 6], json!({"weekday": 7, "hour": 0, "held": 2.0, "used": 2.0, "idle": 0.0}));
    assert_eq!(hours[24 * 3]["held"], json!(0.0), "no Thursday is over yet");
}

#[test]
fn without_prices_there_is_no_money_anywhere() {
    let report = report(&request(&[("spread", "__unallocated__")]), None);
    for name in ["currency", "budget", "projection"] {
        assert_eq!(report[name], Value::Null, "{name}");
    }
    for row in report["rows"].as_array().unwrap().iter().chain([&report["total"]]) {
        for name in ["money", "energy_money", "spread"] {
            assert_eq!(row[name], Value::Null, "{name}");
        }
        assert_eq!(row["shown"]["amount"], Value::Null);
    }
    assert_eq!(report["total"]["shown"]["held"], json!("43.00"));
}

//! Bills as rows of FOCUS: sums, products, and the rules that the specification has for each column.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gpumeter::accounting::billing::focus::{
    COLUMNS, FocusError, FocusRow, FocusType, FocusValue, focus_rows,
};
use gpumeter::accounting::billing::{Bill, BillRequest, ExactMoney, PriceBook};
use gpumeter::accounting::ledger::Reader;
use gpumeter::model::Utc;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::exports::{export, fleet_bill, node, source};
use super::laws::{books, settled, worlds};
use super::month::{HOURS, MONTH, at};
use super::world::*;

/// A row by the names of columns.
type Cells = BTreeMap<&'static str, FocusValue>;

fn cells(row: &FocusRow<'_>) -> Cells {
    COLUMNS.iter().map(|column| (column.name, (column.value)(row))).collect()
}

fn text<'a>(cells: &'a Cells, name: &str) -> Option<&'a str> {
    match &cells[name] {
        FocusValue::Text(text) => Some(text),
        FocusValue::Null => None,
        other => panic!("{name}: {other:?}"),
    }
}

/// The units of a decimal.
fn number(cells: &Cells, name: &str) -> Option<i128> {
    match &cells[name] {
        FocusValue::Decimal(decimal) => Some(decimal.units),
        FocusValue::Null => None,
        other => panic!("{name}: {other:?}"),
    }
}

fn time(cells: &Cells, name: &str) -> Utc {
    match &cells[name] {
        FocusValue::Time(at) => *at,
        other => panic!("{name}: {other:?}"),
    }
}

fn bill_in(world: &World, zone: &TimeZone, book: &PriceBook) -> Bill {
    let request = BillRequest {
        zone: zone.clone(),
        detail: by_day(),
        book: Some(book.clone()),
        ..BillRequest::default()
    };
    let bill = Reader::open(&world.path()).unwrap().bill(&request).unwrap();
    Bill { billing_account: Some("gpus".into()), invoice_issuer: Some("Example".into()), ..bill }
}

/// Columns of 1.3 that are mandatory, and of 1.2 for its readers.
const MANDATORY: [&str; 25] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "HostProviderName",
    "InvoiceIssuerName",
    "ListCost",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
    "ServiceSubcategory",
];

const NEVER_NULL: [&str; 25] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "HostProviderName",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
    "ServiceSubcategory",
    "Tags",
];

/// Not null where the charge is usage, null or free otherwise.
const OF_USAGE: [&str; 11] = [
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "SkuId",
    "SkuMeter",
    "SkuPriceId",
    "AllocatedMethodId",
];

/// Checks what FOCUS demands of one row.
fn check_row(row: &FocusRow<'_>, bill: &Bill) {
    let cells = cells(row);
    for name in NEVER_NULL {
        assert_ne!(cells[name], FocusValue::Null, "{name}");
    }
    let is_usage = text(&cells, "ChargeCategory") == Some("Usage");
    assert!(is_usage || text(&cells, "ChargeCategory") == Some("Adjustment"));
    for name in OF_USAGE {
        assert_eq!(cells[name] == FocusValue::Null, !is_usage, "{name}: {cells:?}");
    }
    for (name, allowed) in [
        ("PricingCategory", &["Standard", "Dynamic", "Committed", "Other"][..]),
        ("ChargeFrequency", &["One-Time", "Recurring", "Usage-Based"]),
        ("ServiceCategory", &["Compute"]),
        ("ServiceSubcategory", &["Other (Compute)"]),
        ("PricingUnit", &["GPU-Hours", "kWh"]),
        ("ConsumedUnit", &["GPU-Seconds", "Joules"]),
    ] {
        assert!(text(&cells, name).is_none_or(|value| allowed.contains(&value)), "{name}");
    }
    assert_eq!(text(&cells, "BillingCurrency"), bill.currency.as_deref());
    assert!(text(&cells, "BillingCurrency").is_some_and(|code| code.len() == 3));
    // Periods are half-open and contained in the billing period and the bill.
    let (begin, end) = (time(&cells, "ChargePeriodStart"), time(&cells, "ChargePeriodEnd"));
    assert!(begin < end, "{begin:?} {end:?}");
    assert!(time(&cells, "BillingPeriodStart") <= begin && end <= time(&cells, "BillingPeriodEnd"));
    assert!(bill.from <= begin && end <= bill.to);
    // Prices are not negative, and multiply out.
    for (price, cost) in [("ContractedUnitPrice", "ContractedCost"), ("ListUnitPrice", "ListCost")] {
        if let (Some(price), Some(quantity)) = (number(&cells, price), number(&cells, "PricingQuantity")) {
            assert!(price >= 0 && quantity >= 0);
            assert_eq!(Some(price * quantity), number(&cells, cost));
        }
    }
    assert_eq!(cells["BilledCost"], cells["EffectiveCost"]);
    assert_eq!(cells["BilledCost"], cells["ContractedCost"]);
    // What depends on another column.
    let null = |name: &str| cells[name] == FocusValue::Null;
    assert_eq!(null("SubAccountId"), null("SubAccountName"));
    assert_eq!(null("SubAccountId"), null("SubAccountType"));
    assert_eq!(null("AllocatedMethodId"), null("AllocatedMethodDetails"));
    assert!(!null("AllocatedResourceId") || null("AllocatedResourceName") && null("AllocatedTags"));
    assert!(!null("SkuPriceId") || null("SkuPriceDetails"));
    let tenant = text(&cells, "x_Tenant").unwrap_or("__");
    assert_eq!(tenant.starts_with("__"), null("SubAccountId"));
    assert!(!tenant.starts_with("__") || null("AllocatedResourceId"), "{cells:?}");
    for name in ["AllocatedTags", "AllocatedMethodDetails", "SkuPriceDetails", "Tags", "x_TenantAttributes"] {
        let json = text(&cells, name).map(|json| serde_json::from_str::<serde_json::Value>(json).unwrap());
        assert!(json.is_none_or(|json| json.is_object()), "{name}");
    }
    for column in COLUMNS {
        match (&cells[column.name], column.kind) {
            (FocusValue::Decimal(decimal), FocusType::Decimal(digits, places)) => {
                assert_eq!(decimal.scale, places, "{}", column.name);
                assert!(decimal.units.unsigned_abs() < 10_u128.pow(digits.into()), "{}", column.name);
            }
            (FocusValue::Text(text), FocusType::Text) => assert!(!text.is_empty(), "{}", column.name),
            (FocusValue::Time(_), FocusType::Time) | (FocusValue::Null, _) => {}
            other => panic!("{}: {other:?}", column.name),
        }
    }
}

/// Units of 22 places, rounded down.
fn scaled(exact: ExactMoney) -> i128 {
    (exact.parts() * 25).div_euclid(9)
}

fn sum(rows: &[FocusRow<'_>], column: &str) -> i128 {
    rows.iter().filter_map(|row| number(&cells(row), column)).sum()
}

fn check_rows(rows: &[FocusRow<'_>], bill: &Bill) {
    rows.iter().for_each(|row| check_row(row, bill));
    assert!(rows.iter().all(|row| text(&cells(row), "x_LocalDay") == Some(row.day)));
    let exact = ExactMoney::sum(bill.lines.iter().map(|line| line.exact)).unwrap();
    for column in ["BilledCost", "ContractedCost", "EffectiveCost", "ListCost"] {
        assert_eq!(sum(rows, column), scaled(exact), "{column}");
    }
    let held: u64 = bill.lines.iter().map(|line| line.amounts.parts.held()).sum();
    assert_eq!(sum(rows, "x_HeldSeconds"), i128::from(held));
    let energy: u64 = bill.lines.iter().filter(|line| line.has_energy).map(|line| line.energy()).sum();
    assert_eq!(sum(rows, "x_EnergyJoules"), i128::from(energy) * 1_000);
    // The shares of what was split sum to one, and one price has one product.
    let (mut ratios, mut products) = (BTreeMap::new(), BTreeMap::new());
    for row in rows {
        let cells = cells(row);
        if let Some(ratio) = row.ratio {
            *ratios.entry((row.gpu, row.kind, row.period)).or_insert(0) += ratio.units;
        }
        if let (Some(price), Some(sku)) = (text(&cells, "SkuPriceId"), text(&cells, "SkuId")) {
            assert_eq!(products.entry(price.to_owned()).or_insert_with(|| sku.to_owned()), sku);
        }
    }
    assert!(ratios.values().all(|sum| *sum == 1_000_000_000_000), "{ratios:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_of_any_bill_sum_to_it_and_keep_the_rules_of_focus((windows, rates) in worlds(), book in books()) {
        let (world, _) = settled(&windows, &rates);
        for zone in ["UTC", "Europe/Zurich", "Asia/Kathmandu"] {
            let bill = bill_in(&world, &TimeZone::get(zone).unwrap(), &book);
            if bill.currency.is_none() {
                prop_assert_eq!(focus_rows(&bill).unwrap_err(), FocusError::NoPrices);
                continue;
            }
            check_rows(&focus_rows(&bill).unwrap(), &bill);
            // A bill that an agent sends has the same rows.
            let sent: Bill = serde_json::from_str(&serde_json::to_string(&bill).unwrap()).unwrap();
            let rows = |bill: &Bill| focus_rows(bill).unwrap().iter().map(cells).collect::<Vec<_>>();
            prop_assert_eq!(rows(&sent), rows(&bill));
        }
    }
}

/// A ledger of an hour of two GPUs, and its bill.
fn hour(book: &PriceBook) -> (World, Bill) {
    let quarter = (900, vec![([1, 1, 1, 0, 0], [1, 1]); 4]);
    let (world, _) = settled(&[quarter.clone(), quarter.clone(), quarter.clone(), quarter], &[1]);
    let bill = bill_in(&world, &TimeZone::UTC, book);
    (world, bill)
}

#[test]
fn whole_quarter_hours_are_exact_without_a_row_for_what_was_rounded() {
    let prices = book(&[(0, 2_100_000_001)]);
    let (world, whole) = hour(&prices);
    let request = BillRequest { detail: by_day(), book: Some(prices), ..between(None, Some(after(3600))) };
    let bill = Reader::open(&world.path()).unwrap().bill(&request).unwrap();
    let bill = Bill { billing_account: whole.billing_account, invoice_issuer: whole.invoice_issuer, ..bill };
    let rows = focus_rows(&bill).unwrap();
    check_rows(&rows, &bill);
    assert!(rows.len() > 4 && rows.iter().all(|row| row.line.is_some()), "{}", rows.len());
    assert_eq!(sum(&rows, "BilledCost"), 2 * 2_100_000_001 * 10_i128.pow(13));
}

#[test]
fn a_bill_that_focus_cannot_express_is_refused_with_the_remedy() {
    let (_world, bill) = hour(&book(&[(0, 2_100_000_000)]));
    let refused = |bill: Bill| focus_rows(&bill).unwrap_err().to_string();
    assert_eq!(
        refused(Bill { currency: None, ..bill.clone() }),
        "no price was in force, and FOCUS is about money; configure prices.rates"
    );
    assert_eq!(
        refused(Bill { currency: Some("credits".into()), ..bill.clone() }),
        r#"FOCUS wants a national currency as in ISO 4217, such as EUR, and prices.currency is "credits""#
    );
    assert_eq!(
        refused(Bill { billing_account: None, ..bill.clone() }),
        "FOCUS needs the account that the costs belong to; set billing.account in the agent's configuration, or give --billing-account"
    );
    assert_eq!(
        refused(Bill { invoice_issuer: None, ..bill.clone() }),
        "FOCUS needs the organisation that issues the bill; set billing.invoice_issuer in the agent's configuration, or give --invoice-issuer"
    );
    assert_eq!(
        refused(Bill { time_zone: "Mars/Base".into(), ..bill.clone() }),
        r#""Mars/Base" is no time zone that this machine knows; give --time-zone"#
    );
    let mut undated = bill;
    undated.lines[0].day = None;
    assert_eq!(refused(undated), "the bill is not by day");
}

#[test]
fn every_mandatory_column_is_there_once_and_own_columns_are_marked() {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for name in MANDATORY {
        assert!(names.contains(&name), "{name}");
    }
    let own = names.iter().position(|name| name.starts_with("x_")).unwrap();
    assert!(names[..own].is_sorted());
    for name in &names[own..] {
        let word = name.strip_prefix("x_").unwrap();
        let is_pascal = word.starts_with(|first: char| first.is_ascii_uppercase())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(is_pascal, "{name}");
    }
}

#[test]
fn a_zone_without_a_name_is_refused() {
    let zone = TimeZone::fixed(jiff::tz::offset(5));
    let (world, _) = hour(&book(&[(0, 2_100_000_000)]));
    let bill = bill_in(&world, &zone, &book(&[(0, 2_100_000_000)]));
    assert_eq!(bill.time_zone, "+05:00");
    let error = focus_rows(&bill).unwrap_err().to_string();
    assert_eq!(error, "the time zone has no name, in which months and days begin; give --time-zone");
}

/// The rows of a bill over exports by day.
fn fleet(directory: &Path, request: BillRequest) -> Bill {
    let bill = fleet_bill(&source(directory), &BillRequest { detail: by_day(), ..request });
    Bill { billing_account: Some("gpus".into()), invoice_issuer: Some("Example".into()), ..bill.unwrap() }
}

#[test]
fn rows_over_exports_are_those_of_the_ledger() {
    let directory = tempfile::tempdir().unwrap();
    export(&MONTH.path(), directory.path());
    let zone = TimeZone::get("Europe/Zurich").unwrap();
    let (from, to) = (Some(at(0)), Some(at(HOURS)));
    let request = BillRequest { zone, detail: by_day(), ..between(from, to) };
    let made = fleet(directory.path(), request.clone());
    let bill = Reader::open(&MONTH.path()).unwrap().bill(&request).unwrap();
    let bill = Bill { billing_account: Some("gpus".into()), invoice_issuer: Some("Example".into()), ..bill };
    let rows = |bill: &Bill| {
        let rows = focus_rows(bill).unwrap();
        check_rows(&rows, bill);
        let mut rows: Vec<String> = rows.iter().map(|row| format!("{:?}", cells(row))).collect();
        rows.sort();
        rows
    };
    assert_eq!(rows(&made), rows(&bill));
}

#[test]
fn a_row_over_exports_names_the_node_of_its_gpu() {
    let directory = tempfile::tempdir().unwrap();
    for (name, gpu) in [("a", 0), ("b", 1), ("c", 2)] {
        export(&node(name, gpu, 8).path(), directory.path());
    }
    let bill = fleet(directory.path(), BillRequest::default());
    let rows = focus_rows(&bill).unwrap();
    check_rows(&rows, &bill);
    let resources: BTreeSet<String> =
        rows.iter().map(|row| text(&cells(row), "ResourceId").unwrap().to_owned()).collect();
    let expected = [("a", 0), ("b", 1), ("c", 2)].map(|(name, gpu)| format!("{name}/{}", uuid(gpu)));
    assert_eq!(resources, expected.into());
}

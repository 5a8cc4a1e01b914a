//! The columns of FOCUS 1.3, in a table: name, type, and what a row has there.

use std::collections::BTreeMap;

use super::decimal::{COST_SCALE, PRICE_SCALE, QUANTITY_SCALE};
use super::rows::{FocusRow, RowKind};
use crate::accounting::billing::{BillLine, EXAMPLE};
use crate::model::{Decimal, HolderId, RESERVED, Utc};

pub const FOCUS_VERSION: &str = "1.3";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FocusType {
    Text,
    Time,
    /// A decimal: the number of all digits, and how many of them are decimal places.
    Decimal(u8, u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FocusValue {
    Null,
    Text(String),
    Time(Utc),
    /// A decimal with the places of its column.
    Decimal(Decimal),
}

#[derive(Clone, Copy, Debug)]
pub struct FocusColumn {
    pub name: &'static str,
    pub kind: FocusType,
    pub value: fn(&FocusRow<'_>) -> FocusValue,
}

const COST: FocusType = FocusType::Decimal(38, COST_SCALE);
// A price of 18 digits times a quantity of 20 has the 38 digits that databases multiply exactly.
const PRICE: FocusType = FocusType::Decimal(18, PRICE_SCALE);
const QUANTITY: FocusType = FocusType::Decimal(20, QUANTITY_SCALE);
/// Seconds and joules, which are integers of nanoseconds and microjoules.
const AMOUNT: FocusType = FocusType::Decimal(20, 9);

macro_rules! columns {
    ($($name:literal $kind:expr, $value:expr;)*) => {
        /// All columns, in the order of the files: those of FOCUS, then our own.
        pub const COLUMNS: &[FocusColumn] = &[$(FocusColumn { name: $name, kind: $kind, value: $value },)*];
    };
}

columns! {
    "AllocatedMethodDetails" FocusType::Text, method_details;
    "AllocatedMethodId" FocusType::Text, |row| match row.kind {
        RowKind::Time => text("gpumeter-time-v1"),
        RowKind::Energy => text("gpumeter-energy-v1"),
        RowKind::Adjustment => FocusValue::Null,
    };
    "AllocatedResourceId" FocusType::Text, |row| optional(allocated(row).map(|line| line.holder.name()));
    "AllocatedResourceName" FocusType::Text, |row| optional(allocated(row).and_then(workload_name));
    "AllocatedTags" FocusType::Text, |row| allocated(row).map_or(FocusValue::Null, |line| json_object(&line.labels));
    "BilledCost" COST, |row| FocusValue::Decimal(row.cost);
    "BillingAccountId" FocusType::Text, |row| optional(row.bill.billing_account.as_deref());
    "BillingAccountName" FocusType::Text, |row| optional(row.bill.billing_account.as_deref());
    "BillingCurrency" FocusType::Text, |row| optional(row.bill.currency.as_deref());
    "BillingPeriodEnd" FocusType::Time, |row| FocusValue::Time(row.month[1]);
    "BillingPeriodStart" FocusType::Time, |row| FocusValue::Time(row.month[0]);
    "ChargeCategory" FocusType::Text, |row| text(if row.kind == RowKind::Adjustment { "Adjustment" } else { "Usage" });
    "ChargeClass" FocusType::Text, |_| FocusValue::Null;
    "ChargeDescription" FocusType::Text, |row| text(description(row));
    "ChargeFrequency" FocusType::Text, |_| text("Usage-Based");
    "ChargePeriodEnd" FocusType::Time, |row| FocusValue::Time(row.period[1]);
    "ChargePeriodStart" FocusType::Time, |row| FocusValue::Time(row.period[0]);
    "CommitmentDiscountStatus" FocusType::Text, |_| FocusValue::Null;
    "ConsumedQuantity" AMOUNT, consumed_quantity;
    "ConsumedUnit" FocusType::Text, |row| match row.kind {
        RowKind::Time => text("GPU-Seconds"),
        RowKind::Energy => text("Joules"),
        RowKind::Adjustment => FocusValue::Null,
    };
    "ContractedCost" COST, |row| FocusValue::Decimal(row.cost);
    "ContractedUnitPrice" PRICE, |row| decimal(row.price);
    "EffectiveCost" COST, |row| FocusValue::Decimal(row.cost);
    "HostProviderName" FocusType::Text, |row| optional(row.bill.invoice_issuer.as_deref());
    "InvoiceId" FocusType::Text, |_| FocusValue::Null;
    "InvoiceIssuerName" FocusType::Text, |row| optional(row.bill.invoice_issuer.as_deref());
    "ListCost" COST, |row| FocusValue::Decimal(row.list_cost);
    "ListUnitPrice" PRICE, |row| decimal(row.list_price);
    "PricingCategory" FocusType::Text, |row| match (row.kind, row.rate) {
        (RowKind::Adjustment, _) => FocusValue::Null,
        // The price of a commitment is agreed with tenants like any other; the commitment is not theirs.
        (_, Some(rate)) => match rate.class.trim_start_matches(EXAMPLE).trim_start_matches('_') {
            "on_demand" | "committed" | "owned" => text("Standard"),
            "spot" => text("Dynamic"),
            _ => text("Other"),
        },
        (_, None) => text("Other"),
    };
    // Prices are in the currency of the bill.
    "PricingCurrency" FocusType::Text, |row| optional(row.bill.currency.as_deref());
    "PricingCurrencyContractedUnitPrice" PRICE, |row| decimal(row.price);
    "PricingCurrencyEffectiveCost" COST, |row| FocusValue::Decimal(row.cost);
    "PricingCurrencyListUnitPrice" PRICE, |row| decimal(row.list_price);
    "PricingQuantity" QUANTITY, |row| decimal(row.quantity);
    "PricingUnit" FocusType::Text, |row| unit(row).map_or(FocusValue::Null, text);
    "ProviderName" FocusType::Text, |row| optional(row.bill.invoice_issuer.as_deref());
    "PublisherName" FocusType::Text, |row| optional(row.bill.invoice_issuer.as_deref());
    "ResourceId" FocusType::Text, |row| text(resource_id(row));
    "ResourceName" FocusType::Text, |row| match row.node {
        "" => FocusValue::Null,
        node => text(format!("{node} GPU {}", row.gpu.index)),
    };
    "ResourceType" FocusType::Text, |_| text("GPU");
    "ServiceCategory" FocusType::Text, |_| text("Compute");
    "ServiceName" FocusType::Text, |_| text("GPU");
    "ServiceProviderName" FocusType::Text, |row| optional(row.bill.invoice_issuer.as_deref());
    "ServiceSubcategory" FocusType::Text, |_| text("Other (Compute)");
    "SkuId" FocusType::Text, |row| sku_id(row).map_or(FocusValue::Null, text);
    "SkuMeter" FocusType::Text, |row| match row.kind {
        RowKind::Time => text("GPU time"),
        RowKind::Energy => text("Electricity"),
        RowKind::Adjustment => FocusValue::Null,
    };
    "SkuPriceDetails" FocusType::Text, sku_price_details;
    "SkuPriceId" FocusType::Text, |row| sku_price_id(row).map_or(FocusValue::Null, text);
    "SubAccountId" FocusType::Text, |row| optional(tenant(row));
    "SubAccountName" FocusType::Text, |row| optional(tenant(row));
    "SubAccountType" FocusType::Text, |row| tenant(row).map_or(FocusValue::Null, |_| text("Tenant"));
    "Tags" FocusType::Text, tags;
    "x_Tenant" FocusType::Text, |row| optional(row.line.map(|line| line.tenant.as_str()));
    "x_TenantAttributes" FocusType::Text, |row| {
        let attributes = row.line.and_then(|line| row.bill.tenant_attributes.get(&line.tenant));
        attributes.map_or(FocusValue::Null, json_object)
    };
    "x_LocalDay" FocusType::Text, |row| text(row.day);
    "x_TimeZone" FocusType::Text, |row| text(&row.bill.time_zone);
    "x_GpuUuid" FocusType::Text, |row| text(&*row.gpu.uuid);
    "x_GpuModel" FocusType::Text, |row| optional(row.model);
    "x_GpuInstance" FocusType::Text, |row| {
        let instance = row.line.and_then(|line| line.slot.gpu_instance);
        instance.map_or(FocusValue::Null, |id| text(id.to_string()))
    };
    "x_MigProfile" FocusType::Text, |row| optional(profile(row));
    "x_PriceClass" FocusType::Text, |row| optional(row.rate.map(|rate| rate.class.as_str()));
    "x_Terms" FocusType::Text, |row| {
        let id = row.line.and_then(|line| line.rates.terms);
        let terms = row.bill.terms.iter().find(|terms| Some(terms.id) == id);
        optional(terms.map(|terms| terms.terms.as_str()))
    };
    "x_HeldSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.parts.held());
    "x_UsedSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.used.total());
    "x_LentSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.parts.lent);
    "x_IdleSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.parts.idle);
    "x_UnmeasuredSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.parts.unmeasured);
    "x_UnavailableSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.parts.unavailable);
    "x_BeyondShareSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.used.beyond);
    "x_OutsideHoldingSeconds" AMOUNT, |row| seconds(row, |line| line.amounts.used.outside);
    "x_EnergyJoules" AMOUNT, |row| decimal(time_line(row).filter(|line| line.has_energy).map(joules));
    "x_Co2eGrams" AMOUNT, |row| {
        let grams = time_line(row).and_then(|line| line.emissions);
        decimal(grams.map(|grams| Decimal { units: grams.0, scale: 9 }))
    };
    "x_Grade" FocusType::Text, |row| optional(time_line(row).map(|line| line.grade.name()));
    "x_Simulated" FocusType::Text, |row| text(row.bill.simulated.to_string());
}

fn text(text: impl Into<String>) -> FocusValue {
    FocusValue::Text(text.into())
}

/// A text, or null where there is none; FOCUS has no empty texts.
fn optional(value: Option<&str>) -> FocusValue {
    value.filter(|value| !value.is_empty()).map_or(FocusValue::Null, text)
}

fn decimal(value: Option<Decimal>) -> FocusValue {
    value.map_or(FocusValue::Null, FocusValue::Decimal)
}

/// The tenant; none of a remainder.
fn tenant<'a>(row: &FocusRow<'a>) -> Option<&'a str> {
    row.line.map(|line| line.tenant.as_str()).filter(|tenant| !tenant.starts_with(RESERVED))
}

/// The line of a charge that is allocated to a workload; none of what is left, and of adjustments.
fn allocated<'a>(row: &FocusRow<'a>) -> Option<&'a BillLine> {
    row.line.filter(|line| row.kind != RowKind::Adjustment && !line.holder.name().starts_with(RESERVED))
}

/// The line of a row of time. Times and energy of the line stand there only, so that they are not counted twice.
fn time_line<'a>(row: &FocusRow<'a>) -> Option<&'a BillLine> {
    row.line.filter(|_| row.kind == RowKind::Time)
}

fn seconds(row: &FocusRow<'_>, of: fn(&BillLine) -> u64) -> FocusValue {
    decimal(time_line(row).map(|line| Decimal { units: of(line).into(), scale: 9 }))
}

fn joules(line: &BillLine) -> Decimal {
    Decimal { units: i128::from(line.energy()) * 1_000, scale: 9 }
}

fn consumed_quantity(row: &FocusRow<'_>) -> FocusValue {
    match (row.kind, row.line) {
        (RowKind::Time, _) => seconds(row, |line| line.amounts.used.total()),
        (RowKind::Energy, Some(line)) => FocusValue::Decimal(joules(line)),
        _ => FocusValue::Null,
    }
}

fn workload_name(line: &BillLine) -> Option<&str> {
    let names = ["k8s_pod_name", "slurm_job_id", "container_name", "vm_name", "systemd_unit"];
    names.into_iter().find_map(|name| line.labels.get(name).map(String::as_str))
}

fn resource_id(row: &FocusRow<'_>) -> String {
    let names = [row.cluster.unwrap_or_default(), row.node, &*row.gpu.uuid];
    names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/")
}

fn profile<'a>(row: &FocusRow<'a>) -> Option<&'a str> {
    row.line.and_then(|line| line.slot.profile.as_ref()).map(|profile| &*profile.name)
}

fn unit(row: &FocusRow<'_>) -> Option<&'static str> {
    match row.kind {
        RowKind::Time => Some("GPU-Hours"),
        RowKind::Energy => Some("kWh"),
        RowKind::Adjustment => None,
    }
}

/// What is sold: a model, also an instance of it, or electricity.
fn sku_id(row: &FocusRow<'_>) -> Option<String> {
    match row.kind {
        RowKind::Time => {
            let model = row.model.unwrap_or("GPU");
            Some(profile(row).map_or_else(|| model.to_owned(), |profile| format!("{model} {profile}")))
        }
        RowKind::Energy => Some("Electricity".to_owned()),
        RowKind::Adjustment => None,
    }
}

/// What is sold at that list price; the same on every node and in every month.
fn sku_price_id(row: &FocusRow<'_>) -> Option<String> {
    let class = row.rate.map_or("unpriced", |rate| &rate.class);
    Some(format!("{}/{class}/{}", sku_id(row)?, row.list_price?))
}

fn sku_price_details(row: &FocusRow<'_>) -> FocusValue {
    match (row.kind, profile(row)) {
        (RowKind::Time, None) => text(r#"{"GpuCount":1}"#),
        (RowKind::Time, Some(profile)) => {
            json_object(&BTreeMap::from([("x_MigProfile".to_owned(), profile.to_owned())]))
        }
        _ => FocusValue::Null,
    }
}

/// Node and cluster, which are ours and have our prefix, and the attributes of the tenant, which are the operator's.
fn tags(row: &FocusRow<'_>) -> FocusValue {
    let known = [("gpumeter/node", Some(row.node)), ("gpumeter/cluster", row.cluster)];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let attributes = row.line.and_then(|line| row.bill.tenant_attributes.get(&line.tenant));
    let attributes = attributes.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
    json_object(&attributes.chain(known.filter(|(_, value)| !value.is_empty())).collect())
}

fn json_object(pairs: &BTreeMap<String, String>) -> FocusValue {
    let json: serde_json::Map<String, serde_json::Value> =
        pairs.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    text(serde_json::Value::Object(json).to_string())
}

/// The part of the GPU's time or energy that the row has, in the format of FOCUS.
fn method_details(row: &FocusRow<'_>) -> FocusValue {
    let (Some(ratio), Some(quantity), Some(unit)) = (row.ratio, row.quantity, unit(row)) else {
        return FocusValue::Null;
    };
    text(format!(
        r#"{{"Elements":[{{"AllocatedRatio":{ratio},"UsageQuantity":{quantity},"UsageUnit":"{unit}"}}]}}"#
    ))
}

fn description(row: &FocusRow<'_>) -> String {
    let what = match (row.kind, row.line) {
        (RowKind::Time, Some(_)) if row.rate.is_none() => "GPU time for which no price was in force",
        (RowKind::Time, _) => "GPU time",
        (RowKind::Energy, _) => "Energy of GPU time",
        (RowKind::Adjustment, Some(line)) if line.tenant == HolderId::TERMS => {
            "What the terms of tenants take off or add"
        }
        (RowKind::Adjustment, Some(_)) => {
            "Difference between the prices of MIG instances and of the whole GPU"
        }
        (RowKind::Adjustment, None) => "What costs and quantities were rounded by",
    };
    match row.line.filter(|_| row.kind != RowKind::Adjustment) {
        Some(line) => format!("{what}, {}, {}", line.tenant, line.holder.name()),
        None => what.to_owned(),
    }
}

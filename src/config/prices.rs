//! Reads the rates of time, energy and emissions (`prices`, `carbon`).

use super::key::{Absent, ChangeEffect, Key, KeyType, Table};
use super::problem::{Complaint, FilePosition, ProblemCollector};
use super::read_mapping;
use super::settings::{CarbonConfig, EnergyConfig};
use super::time::moment;
use super::tree::YamlNode;
use super::values::{billionths, flag, put};
use crate::billing::{EXAMPLE, PriceBook, Rate, RateKind, RateSelector};
use crate::model::{Decimal, Tariff, Utc};

/// The price classes, as in the label `price_class`.
const CLASSES: [&str; 4] = ["on_demand", "spot", "committed", "owned"];

/// The class of energy, and of emissions.
const ENERGY: &str = "energy";

/// The unit of emissions.
const EMISSIONS: &str = "gCO2e";

keys! { RateDraft;
"A rate while it is read."
pub(crate) struct RateDraft () {
    gpu_hour: Option<i64>, text("a decimal number", price), Optional("2.49"), Reload, in "currency per GPU-hour",
        "Price of one GPU for one hour, exact to nine decimals.";
    instance_hour: Option<i64>, text("a decimal number", price), Optional("0.55"), Reload, in "currency per hour",
        "Price of a MIG instance for an hour; needs mig_profile, and a rate for the whole GPU.";
    node_hour: Option<i64>, text("a decimal number", price), Optional("32.77"), Reload, in "currency per hour",
        "Price of a whole node for one hour, instead of gpu_hour; needs gpus.";
    upfront: Option<i64>, text("a decimal number", price), Optional("100000"), Reload, in "currency",
        "Amount paid once for a committed node; needs term_years.";
    term_years: Option<i64>, text("a number of years", years), Optional("3"), Reload, in "years",
        "How long the commitment lasts, in years of 365 days.";
    node_price: Option<i64>, text("a decimal number", price), Optional("280000"), Reload, in "currency",
        "Purchase price of your own node, instead of gpu_hour; needs gpus and years.";
    years: Option<i64>, text("a number of years", years), Optional("5"), Reload, in "years",
        "Useful life of your own node, in years of 365 days.";
    residual_value: Option<i64>, text("a decimal number", price), Optional("20000"), Reload, in "currency",
        "Value of your own node after that; 0 by default.";
    yearly_cost: Option<i64>, text("a decimal number", price), Optional("30000"), Reload, in "currency per year",
        "Cost to run your own node for a year; 0 by default.";
    gpus: Option<u32>, text("a number of GPUs", gpus), Optional("8"), Reload,
        "How many GPUs share the price of the node.";
    gpu_share: Option<i64>, text("a share of 1", share), Optional("0.9"), Reload,
        "The part of the node's price that is for its GPUs; by default all of it.";
    from: Option<Utc>, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"), Reload,
        "Its start, also in the past; by default the next quarter hour.";
    class: Option<&'static str>, word(CLASSES, CLASSES), Optional("committed"), Reload,
        "Kind of price; by default committed or owned if so derived, otherwise on_demand.";
    model: Option<String>, text("a pattern", pattern), Optional("*H100*"), Reload,
        "Only GPUs of these models.";
    node: Option<String>, text("a pattern", pattern), Optional("gpu-a-*"), Reload,
        "Only GPUs of these nodes, so that all nodes can have the same file.";
    instance_type: Option<String>, text("a pattern", pattern), Optional("p4d.24xlarge"), Reload,
        "Only GPUs of nodes of these types (node.instance_type).";
    pool: Option<String>, text("a pattern", pattern), Optional("spot-*"), Reload,
        "Only GPUs of nodes of these pools (node.pool).";
    spot: Option<bool>, text("true or false", flag), Optional("true"), Reload,
        "Only GPUs of spot nodes (true) or of other nodes (false); see node.spot.";
    uuid: Option<String>, text("a pattern", pattern), Optional("GPU-5f1e*"), Reload,
        "Only GPUs with these UUIDs.";
    mig_profile: Option<String>, text("a pattern", pattern), Optional("1g.10gb"), Reload,
        "Profile of the MIG instances that instance_hour prices.";
}
}

/// Reads the list and returns the valid rates.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<Rate> {
    let mut rates: Vec<(Rate, Option<FilePosition>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = RateDraft::default();
        let Some(places) = read_mapping::read_mapping(item, &path, TABLE.keys, &mut draft, report) else {
            continue;
        };
        let derived = match draft.derive() {
            Ok(derived) => derived,
            Err((key, _)) if places.get(key).is_some() && draft.is_absent(key) => continue,
            Err((key, text)) => {
                let place = places.get(key).or(item.place);
                report.add(place, format!("{path}.{key}"), Complaint(text.to_owned()));
                continue;
            }
        };
        let from = draft.from;
        let rate = draft.into_rate(derived);
        let place = places.get("from").or(item.place);
        // A rate with a malformed start does not count as one without a start.
        let is_known = from.is_some() || places.get("from").is_none();
        let key = |rate: &Rate| (rate.kind, rate.selector.clone(), rate.from);
        if let Some((_, other)) = rates.iter().find(|(other, _)| is_known && key(other) == key(&rate)) {
            let line = other.map_or(0, |other| other.line);
            let text = match from {
                Some(_) => format!(
                    "begins with the rate on line {line}, for the same GPUs; give one of them another time"
                ),
                None => format!(
                    "has no beginning, nor has the rate on line {line}, for the same GPUs; give one of them a time"
                ),
            };
            report.add(place, format!("{path}.from"), Complaint(text));
        }
        rates.push((rate, place));
    }
    rates.into_iter().map(|(rate, _)| rate).collect()
}

/// A price that follows from what the operator gave.
struct DerivedPrice {
    kind: RateKind,
    nano: i64,
    /// The class, where none is given.
    class: &'static str,
    derivation: Option<String>,
}

impl DerivedPrice {
    fn given(kind: RateKind, nano: i64) -> Self {
        Self { kind, nano, class: CLASSES[0], derivation: None }
    }
}

/// The key that is wrong or missing, and why.
type KeyMistake = (&'static str, &'static str);

impl RateDraft {
    /// Whether a key of the price has no valid value. A malformed value was reported.
    fn is_absent(&self, key: &str) -> bool {
        let value = match key {
            "gpu_hour" => self.gpu_hour,
            "instance_hour" => self.instance_hour,
            "node_hour" => self.node_hour,
            "node_price" => self.node_price,
            "upfront" => self.upfront,
            "term_years" => self.term_years,
            "years" => self.years,
            "residual_value" => self.residual_value,
            "yearly_cost" => self.yearly_cost,
            "gpu_share" => self.gpu_share,
            _ => return self.gpus.is_none(),
        };
        value.is_none()
    }

    /// Checks that the given keys belong to `base`, which is given.
    fn check_keys(&self, base: &'static str, allowed: &[&str]) -> Result<(), KeyMistake> {
        const ALL: [(&str, &str); 11] = [
            ("gpu_hour", "is given beside another price; keep one of the two"),
            ("instance_hour", "is given beside another price; keep one of the two"),
            ("node_hour", "is given beside another price; keep one of the two"),
            ("node_price", "is given beside another price; keep one of the two"),
            ("upfront", "belongs to a committed price; give node_hour and term_years, or remove it"),
            ("term_years", "belongs to upfront; remove it, or give upfront"),
            ("years", "belongs to node_price; remove it, or give node_price"),
            ("residual_value", "belongs to node_price; remove it, or give node_price"),
            ("yearly_cost", "belongs to node_price; remove it, or give node_price"),
            ("gpus", "belongs to node_hour; remove it, or give node_hour"),
            ("gpu_share", "belongs to node_hour; remove it, or give node_hour"),
        ];
        let wrong =
            ALL.iter().find(|(key, _)| *key != base && !allowed.contains(key) && !self.is_absent(key));
        wrong.map_or(Ok(()), |mistake| Err(*mistake))
    }

    /// The price of the rate.
    fn derive(&self) -> Result<DerivedPrice, KeyMistake> {
        const MISSING: &str = "is missing; give it, or another price: instance_hour, node_hour or node_price";
        if self.instance_hour.is_none() && self.mig_profile.is_some() {
            return Err(("instance_hour", "is missing; give the price of an instance of mig_profile"));
        }
        if let Some(nano) = self.gpu_hour {
            self.check_keys("gpu_hour", &[])?;
            return Ok(DerivedPrice::given(RateKind::GpuHour, nano));
        }
        if let Some(nano) = self.instance_hour {
            self.check_keys("instance_hour", &[])?;
            if self.mig_profile.is_none() {
                return Err(("mig_profile", "is missing; give the profile that instance_hour is for"));
            }
            return Ok(DerivedPrice::given(RateKind::InstanceHour, nano));
        }
        if self.node_price.is_some() {
            return self.derive_owned();
        }
        if self.node_hour.is_some() || self.upfront.is_some() {
            return self.derive_from_node_hour();
        }
        Err(("gpu_hour", MISSING))
    }

    /// The share of a GPU in a price per node-hour, a fraction of nano-units, with its description.
    fn share_of_gpu(&self, parts: NodeHour, class: &'static str) -> Result<DerivedPrice, KeyMistake> {
        let gpus = self.gpus.ok_or(("gpus", "is missing; give the number of GPUs of the node"))?;
        let share = self.gpu_share.unwrap_or(ONE);
        let product = parts.nano_hours.checked_mul(i128::from(share));
        let product = product.ok_or(("gpu_share", "makes a price that is too large; give fewer decimals"))?;
        let parts_of_one = i128::from(ONE) * i128::from(gpus) * parts.hours;
        // Rounded once, here.
        let nano = i64::try_from((product + parts_of_one / 2) / parts_of_one).unwrap_or(i64::MAX);
        let of_share = if share == ONE { String::new() } else { format!(" x {}", shortened(share)) };
        let derivation = Some(format!("{}{of_share} / {gpus} GPUs", parts.description));
        Ok(DerivedPrice { kind: RateKind::GpuHour, nano, class, derivation })
    }

    fn derive_from_node_hour(&self) -> Result<DerivedPrice, KeyMistake> {
        self.check_keys("node_hour", &["upfront", "term_years", "gpus", "gpu_share"])?;
        let hourly = self.node_hour.unwrap_or(0);
        let Some(upfront) = self.upfront else {
            if self.term_years.is_some() {
                return Err(("term_years", "belongs to upfront; remove it, or give upfront"));
            }
            let description = format!("{} per node-hour", shortened(hourly));
            let parts = NodeHour { nano_hours: hourly.into(), hours: 1, description };
            return self.share_of_gpu(parts, CLASSES[0]);
        };
        let years = self.term_years.ok_or(("term_years", "is missing; give the years of the commitment"))?;
        let hours = HOURS_OF_YEAR * i128::from(years);
        let nano_hours = i128::from(upfront) + i128::from(hourly) * hours;
        let description =
            format!("({} upfront / {years} years + {} per node-hour)", shortened(upfront), shortened(hourly));
        self.share_of_gpu(NodeHour { nano_hours, hours, description }, "committed")
    }

    fn derive_owned(&self) -> Result<DerivedPrice, KeyMistake> {
        self.check_keys("node_price", &["years", "residual_value", "yearly_cost", "gpus", "gpu_share"])?;
        let years = self.years.ok_or(("years", "is missing; give the years for which the node is used"))?;
        let (price, residual) = (self.node_price.unwrap_or(0), self.residual_value.unwrap_or(0));
        if residual > price {
            return Err(("residual_value", "is more than node_price; give at most that"));
        }
        let yearly = self.yearly_cost.unwrap_or(0);
        let nano_hours = i128::from(price - residual) + i128::from(yearly) * i128::from(years);
        let description = format!(
            "(({} - {}) / {years} years + {} per year)",
            shortened(price),
            shortened(residual),
            shortened(yearly)
        );
        let hours = HOURS_OF_YEAR * i128::from(years);
        self.share_of_gpu(NodeHour { nano_hours, hours, description }, "owned")
    }

    fn into_rate(self, derived: DerivedPrice) -> Rate {
        let Self { from, class, model, node, uuid, instance_type, pool, spot, mig_profile, .. } = self;
        let class = class.unwrap_or(derived.class).into();
        Rate {
            kind: derived.kind,
            selector: RateSelector { uuid, node, model, instance_type, pool, spot, mig_profile },
            from,
            nano: derived.nano,
            // The currency of the book is set when all its keys are read.
            tariff: Tariff { currency: "".into(), class },
            derivation: derived.derivation.map(Into::into),
        }
    }
}

/// A price per node-hour: nano-units over hours.
struct NodeHour {
    nano_hours: i128,
    hours: i128,
    description: String,
}

/// Hours of a year of 365 days.
const HOURS_OF_YEAR: i128 = 8_760;

impl EnergyConfig {
    /// The rate of a kilowatt-hour, with the site's overhead.
    pub(super) fn rate(&self) -> Option<Rate> {
        let per_kwh = self.kwh?;
        Some(rate_of_kwh(RateKind::Kwh, per_kwh, self.pue, self.from, None))
    }
}

impl CarbonConfig {
    /// The grams of CO2e of a kilowatt-hour, with the site's overhead.
    pub(super) fn rate(&self) -> Option<Rate> {
        let per_kwh = self.grams_per_kwh?;
        Some(rate_of_kwh(RateKind::CarbonKwh, per_kwh, self.pue, self.from, self.source.as_deref()))
    }
}

fn rate_of_kwh(
    kind: RateKind,
    per_kwh: i64,
    pue: Option<i64>,
    from: Option<Utc>,
    source: Option<&str>,
) -> Rate {
    let product = i128::from(per_kwh) * i128::from(pue.unwrap_or(ONE));
    let nano = i64::try_from((product + i128::from(ONE) / 2) / i128::from(ONE)).unwrap_or(i64::MAX);
    let unit = if kind == RateKind::Kwh { "per kWh" } else { "g per kWh" };
    let mut derivation = pue.map(|pue| format!("{} {unit} x PUE {}", shortened(per_kwh), shortened(pue)));
    if let Some(source) = source {
        derivation = Some(derivation.map_or_else(String::new, |told| told + "; ") + "source: " + source);
    }
    Rate {
        kind,
        selector: RateSelector::default(),
        from,
        nano,
        tariff: Tariff { currency: EMISSIONS.into(), class: ENERGY.into() },
        derivation: derivation.map(Into::into),
    }
}

/// One in nano-units.
const ONE: i64 = 1_000_000_000;

/// Nano-units as a decimal.
fn shortened(nano: i64) -> Decimal {
    Decimal::of_nano(nano.into())
}

/// The built-in book, for demonstrations: public list prices, and a price that is made up for all other GPUs.
pub(super) fn example_book() -> PriceBook {
    const PRICES: &str = include_str!("example_prices.yaml");
    let config = super::Config::parse(PRICES, "example_prices.yaml").unwrap_or_default();
    let mut book = config.prices;
    for rate in &mut book.rates {
        rate.tariff.class = format!("{EXAMPLE}_{}", rate.tariff.class).into();
    }
    book
}

/// A number of GPUs.
fn gpus(text: &str) -> Result<u32, Complaint> {
    let count = text.parse().ok().filter(|count| (1..=1_024).contains(count));
    count.ok_or_else(|| Complaint::about(text, "is not a number of GPUs", "give a number from 1 to 1024"))
}

/// A share of 1 in billionths.
fn share(text: &str) -> Result<i64, Complaint> {
    let share = price(text).ok().filter(|share| (1..=ONE).contains(share));
    share.ok_or_else(|| Complaint::about(text, "is not a share", "give a decimal above 0, and at most 1"))
}

/// A ratio of energies, in billionths.
pub(crate) fn pue(text: &str) -> Result<i64, Complaint> {
    let pue = price(text).ok().filter(|pue| (ONE..=5 * ONE).contains(pue));
    pue.ok_or_else(|| Complaint::about(text, "is not a PUE", "give a decimal from 1 to 5"))
}

/// A number of years.
fn years(text: &str) -> Result<i64, Complaint> {
    let years = text.parse().ok().filter(|years| (1..=20).contains(years));
    years
        .ok_or_else(|| Complaint::about(text, "is not a number of years", "give a whole number from 1 to 20"))
}

/// A pattern of a selector.
fn pattern(text: &str) -> Result<String, Complaint> {
    if text.is_empty() {
        return Err(Complaint::about(text, "is empty", "give a text in which * stands for anything"));
    }
    Ok(text.to_owned())
}

/// A currency's code or name.
pub(crate) fn currency(text: &str) -> Result<String, Complaint> {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if letters && (1..=16).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(Complaint::about(text, "is not a currency", "give a code such as USD or EUR"))
}

/// A price in nano-units, less than a billion units.
pub(crate) fn price(text: &str) -> Result<i64, Complaint> {
    billionths(text, 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_shares_have_bounds() {
        assert_eq!(["1", "0.9"].map(share), [Ok(ONE), Ok(900_000_000)]);
        assert!(share("0").is_err() && share("1.1").is_err() && gpus("0").is_err() && gpus("x").is_err());
    }
}

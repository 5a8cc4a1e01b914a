//! Reads the rates of time, energy and emissions (`prices`, `carbon`).

use super::entries::{EntryPlace, Mistake, entries_of, read_entries};
use super::problem::{Complaint, ProblemCollector};
use super::settings::{CarbonConfig, EnergyConfig};
use super::time::moment;
use super::tree::YamlNode;
use super::values::{billionths, flag};
use crate::accounting::billing::{EXAMPLE, PriceBook, Rate, RateKind, RateSelector};
use crate::model::{Decimal, Tariff, Utc};

/// The price classes, as in the label `price_class`.
const CLASSES: [&str; 4] = ["on_demand", "spot", "committed", "owned"];

/// The class of energy, and of emissions.
const ENERGY: &str = "energy";

const EMISSIONS: &str = "gCO2e";

/// A rate while it is read: what is not its price, and the prices from which that follows.
#[derive(Default)]
pub(crate) struct RateDraft {
    rate: Rate,
    gpu_hour: Option<i64>,
    instance_hour: Option<i64>,
    node_hour: Option<i64>,
    upfront: Option<i64>,
    term_years: Option<i64>,
    node_price: Option<i64>,
    years: Option<i64>,
    residual_value: Option<i64>,
    yearly_cost: Option<i64>,
    gpus: Option<u32>,
    gpu_share: Option<i64>,
}

entry_keys! { RateDraft;
    gpu_hour => gpu_hour, text("a decimal number", price), Optional("2.49"), in "currency per GPU-hour",
        "Price of one GPU for one hour, exact to nine decimals.";
    instance_hour => instance_hour, text("a decimal number", price), Optional("0.55"), in "currency per hour",
        "Price of a MIG instance for an hour; needs mig_profile, and a rate for the whole GPU.";
    node_hour => node_hour, text("a decimal number", price), Optional("32.77"), in "currency per hour",
        "Price of a whole node for one hour, instead of gpu_hour; needs gpus.";
    upfront => upfront, text("a decimal number", price), Optional("100000"), in "currency",
        "Amount paid once for a committed node; needs term_years.";
    term_years => term_years, text("a number of years", years), Optional("3"), in "years",
        "How long the commitment lasts, in years of 365 days.";
    node_price => node_price, text("a decimal number", price), Optional("280000"), in "currency",
        "Purchase price of your own node, instead of gpu_hour; needs gpus and years.";
    years => years, text("a number of years", years), Optional("5"), in "years",
        "Useful life of your own node, in years of 365 days.";
    residual_value => residual_value, text("a decimal number", price), Optional("20000"), in "currency",
        "Value of your own node after that; 0 by default.";
    yearly_cost => yearly_cost, text("a decimal number", price), Optional("30000"), in "currency per year",
        "Cost to run your own node for a year; 0 by default.";
    gpus => gpus, text("a number of GPUs", gpus), Optional("8"),
        "How many GPUs share the price of the node.";
    gpu_share => gpu_share, text("a share of 1", share), Optional("0.9"),
        "The part of the node's price that is for its GPUs; by default all of it.";
    from => rate.from, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"),
        "Its start, also in the past; by default the next quarter hour.";
    class => rate.tariff.class, word(CLASSES, CLASSES), Optional("committed"),
        "Kind of price; by default committed or owned if so derived, otherwise on_demand.";
    model => rate.selector.model, text("a pattern", pattern), Optional("*H100*"),
        "Only GPUs of these models.";
    node => rate.selector.node, text("a pattern", pattern), Optional("gpu-a-*"),
        "Only GPUs of these nodes, so that all nodes can have the same file.";
    instance_type => rate.selector.instance_type, text("a pattern", pattern), Optional("p4d.24xlarge"),
        "Only GPUs of nodes of these types (node.instance_type).";
    pool => rate.selector.pool, text("a pattern", pattern), Optional("spot-*"),
        "Only GPUs of nodes of these pools (node.pool).";
    spot => rate.selector.spot, text("true or false", flag), Optional("true"),
        "Only GPUs of spot nodes (true) or of other nodes (false); see node.spot.";
    uuid => rate.selector.uuid, text("a pattern", pattern), Optional("GPU-5f1e*"),
        "Only GPUs with these UUIDs.";
    mig_profile => rate.selector.mig_profile, text("a pattern", pattern), Optional("1g.10gb"),
        "Profile of the MIG instances that instance_hour prices.";
}

pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<Rate> {
    entries_of(read_entries(items, base, TABLE.keys, report, |mut draft: RateDraft, at, earlier| {
        draft.derive(at).map_err(|(key, text)| {
            // A malformed value is reported already.
            let is_malformed = text.starts_with(MISSING) && at.has(key);
            (!is_malformed).then(|| Mistake::of(key, text))
        })?;
        let rate = draft.rate;
        let key = |rate: &Rate| (rate.kind, rate.selector.clone(), rate.from);
        // A rate with a malformed start does not count as one without a start.
        let is_known = rate.from.is_some() || !at.has("from");
        match earlier.iter().find(|other| is_known && key(&other.entry) == key(&rate)) {
            None => Ok(rate),
            Some(first) => {
                let line = first.at.line("from");
                let text = match rate.from {
                    Some(_) => format!(
                        "begins with the rate on line {line}, for the same GPUs; give one of them another time"
                    ),
                    None => format!(
                        "has no beginning, nor has the rate on line {line}, for the same GPUs; give one of them a time"
                    ),
                };
                Err(Some(Mistake::of("from", text)))
            }
        }
    }))
}

/// The key that is wrong or missing, and why.
type KeyMistake = (&'static str, &'static str);

/// Prefix of a mistake about a missing key.
const MISSING: &str = "is missing";

/// The keys of prices, each with what is wrong where it does not belong to the price that is given.
const PRICE_KEYS: [KeyMistake; 11] = [
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

fn check_keys(at: &EntryPlace, allowed: &[&str]) -> Result<(), KeyMistake> {
    let wrong = PRICE_KEYS.iter().find(|(key, _)| !allowed.contains(key) && at.has(key));
    wrong.map_or(Ok(()), |mistake| Err(*mistake))
}

impl RateDraft {
    /// Sets the price of the rate, and its class where none is given.
    fn derive(&mut self, at: &EntryPlace) -> Result<(), KeyMistake> {
        if self.instance_hour.is_none() && self.rate.selector.mig_profile.is_some() {
            return Err(("instance_hour", "is missing; give the price of an instance of mig_profile"));
        }
        if let Some(nano) = self.gpu_hour {
            check_keys(at, &["gpu_hour"])?;
            self.set(nano, CLASSES[0]);
            return Ok(());
        }
        if let Some(nano) = self.instance_hour {
            check_keys(at, &["instance_hour"])?;
            if self.rate.selector.mig_profile.is_none() {
                return Err(("mig_profile", "is missing; give the profile that instance_hour is for"));
            }
            self.rate.kind = RateKind::InstanceHour;
            self.set(nano, CLASSES[0]);
            return Ok(());
        }
        if self.node_price.is_some() {
            return self.derive_owned(at);
        }
        if self.node_hour.is_some() || self.upfront.is_some() {
            return self.derive_from_node_hour(at);
        }
        Err(("gpu_hour", "is missing; give it, or another price: instance_hour, node_hour or node_price"))
    }

    fn set(&mut self, nano: i64, class: &'static str) {
        self.rate.nano = nano;
        if self.rate.tariff.class.is_empty() {
            self.rate.tariff.class = class.into();
        }
    }

    fn set_share_of_gpu(&mut self, parts: FreeHour, class: &'static str) -> Result<(), KeyMistake> {
        let gpus = self.gpus.ok_or(("gpus", "is missing; give the number of GPUs of the node"))?;
        let share = self.gpu_share.unwrap_or(ONE);
        let product = parts.nano_hours.checked_mul(i128::from(share));
        let product = product.ok_or(("gpu_share", "makes a price that is too large; give fewer decimals"))?;
        let parts_of_one = i128::from(ONE) * i128::from(gpus) * parts.hours;
        // Rounded once, here.
        let nano = i64::try_from((product + parts_of_one / 2) / parts_of_one).unwrap_or(i64::MAX);
        let of_share = if share == ONE { String::new() } else { format!(" x {}", shortened(share)) };
        self.rate.derivation = Some(format!("{}{of_share} / {gpus} GPUs", parts.description).into());
        self.set(nano, class);
        Ok(())
    }

    fn derive_from_node_hour(&mut self, at: &EntryPlace) -> Result<(), KeyMistake> {
        check_keys(at, &["node_hour", "upfront", "term_years", "gpus", "gpu_share"])?;
        let hourly = self.node_hour.unwrap_or(0);
        let Some(upfront) = self.upfront else {
            if self.term_years.is_some() {
                return Err(("term_years", "belongs to upfront; remove it, or give upfront"));
            }
            let description = format!("{} per node-hour", shortened(hourly));
            let parts = FreeHour { nano_hours: hourly.into(), hours: 1, description };
            return self.set_share_of_gpu(parts, CLASSES[0]);
        };
        let years = self.term_years.ok_or(("term_years", "is missing; give the years of the commitment"))?;
        let hours = HOURS_OF_YEAR * i128::from(years);
        let nano_hours = i128::from(upfront) + i128::from(hourly) * hours;
        let description =
            format!("({} upfront / {years} years + {} per node-hour)", shortened(upfront), shortened(hourly));
        self.set_share_of_gpu(FreeHour { nano_hours, hours, description }, "committed")
    }

    fn derive_owned(&mut self, at: &EntryPlace) -> Result<(), KeyMistake> {
        check_keys(at, &["node_price", "years", "residual_value", "yearly_cost", "gpus", "gpu_share"])?;
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
        self.set_share_of_gpu(FreeHour { nano_hours, hours, description }, "owned")
    }
}

/// A price per node-hour: nano-units over hours.
struct FreeHour {
    nano_hours: i128,
    hours: i128,
    description: String,
}

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

fn years(text: &str) -> Result<i64, Complaint> {
    let years = text.parse().ok().filter(|years| (1..=20).contains(years));
    years
        .ok_or_else(|| Complaint::about(text, "is not a number of years", "give a whole number from 1 to 20"))
}

fn pattern(text: &str) -> Result<String, Complaint> {
    if text.is_empty() {
        return Err(Complaint::about(text, "is empty", "give a text in which * stands for anything"));
    }
    Ok(text.to_owned())
}

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

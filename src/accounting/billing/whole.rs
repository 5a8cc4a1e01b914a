//! What a tenant, a day, a remainder or any other part of a bill is made of as a whole: how much of what, at which rates and
//! terms. Its money is that of the bill's lines, so that it adds up to the bill to the last digit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::bill::{Bill, BillLine, LineRates};
use super::grouping::{BillGrouping, PropertyFilters};
use super::json;
use super::request::BillRequest;
use crate::model::{EnergySum, Microjoules, MigProfile, Money, TimeSum, Utc};

/// Reserved tenants that a bill may have, with what is booked on them.
pub const REMAINDERS: [(&str, &str); 8] = [
    ("__unallocated__", "time that nobody held"),
    ("__stranded__", "time of MIG placements that no profile can use"),
    (
        "__unavailable__",
        "time in which nobody held a GPU that was lost or failed, and the price of all unavailable time",
    ),
    ("__unobserved__", "time in which no agent watched the GPU"),
    ("__system__", "use by the system: display server, persistence daemon, the agent"),
    ("__unattributed__", "use by processes whose owner is not known"),
    ("__terms__", "held time at the full rate, less what terms charge"),
    ("__rate_variance__", "the GPU's rate, less the prices of its MIG instances"),
];

/// How many of each property are named.
const MOST_NAMED: usize = 10;

/// Which part of a bill is explained as a whole.
#[derive(Clone, Debug, Default)]
pub struct WholeRequest {
    /// The bill, of which its own filter selects nothing.
    pub bill: BillRequest,
    pub filters: PropertyFilters,
}

impl WholeRequest {
    /// Reads `from`, `to` and `time_zone`, each at most once, and the properties of `bill --by` with a value.
    ///
    /// # Errors
    /// An unknown parameter, one that is given twice, or a value that it cannot have.
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a str, String)>,
        zone: TimeZone,
        now: Utc,
    ) -> Result<Self, String> {
        let (mut of_bill, mut filters) = (Vec::new(), PropertyFilters::default());
        for (name, value) in parameters {
            if matches!(name, "from" | "to" | "time_zone") {
                of_bill.push((name, value));
                continue;
            }
            let property = name.parse().map_err(|_| {
                format!(
                    "unknown parameter {name:?}; use from, to, time_zone, or a property of bill --by such as tenant or node"
                )
            })?;
            filters.add(property, value)?;
        }
        Ok(Self::of(BillRequest::parse(of_bill, zone, now)?, filters))
    }

    /// A request for what filters select of a bill.
    pub fn of(bill: BillRequest, filters: PropertyFilters) -> Self {
        let detail =
            filters.properties().fold(bill.detail.clone(), |detail, property| detail.and(property.detail()));
        Self { bill: BillRequest { detail, ..bill }, filters }
    }
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedWhole {
    /// Period, node, currency, and the rates and terms of its lines; it has no lines and no GPUs.
    pub bill: Bill,
    pub total: WholeSums,
    /// By rates, terms and size of MIG instances, the dearest first.
    pub priced: Vec<PricedPart>,
    /// By each property of which it has several.
    pub inside: Vec<InsideWhole>,
    /// What the remainders among its tenants mean.
    pub remainders: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeSums {
    pub lines: u64,
    #[serde(rename = "within_ns", with = "json::integer")]
    pub within: TimeSum,
    #[serde(rename = "lent_ns", with = "json::integer")]
    pub lent: TimeSum,
    #[serde(rename = "idle_ns", with = "json::integer")]
    pub idle: TimeSum,
    #[serde(rename = "unmeasured_ns", with = "json::integer")]
    pub unmeasured: TimeSum,
    #[serde(rename = "unavailable_ns", with = "json::integer")]
    pub unavailable: TimeSum,
    #[serde(rename = "used_ns", with = "json::integer")]
    pub used: TimeSum,
    /// The time that the money is for.
    #[serde(rename = "charged_ns", with = "json::integer")]
    pub charged: TimeSum,
    #[serde(rename = "unpriced_ns", with = "json::integer")]
    pub unpriced: TimeSum,
    /// Of lines whose energy was measured.
    #[serde(rename = "energy_uj", with = "json::integer")]
    pub energy: EnergySum,
    /// None where no price was in force in the whole bill.
    #[serde(with = "json::optional_money")]
    pub money: Option<Money>,
    /// The part of it for energy.
    #[serde(with = "json::optional_money")]
    pub energy_money: Option<Money>,
}

/// What was priced alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricedPart {
    /// The numbers of the rates and the terms among those of the bill.
    pub rate: Option<i64>,
    pub energy_rate: Option<i64>,
    pub terms: Option<i64>,
    /// Of MIG instances: the slices of one, and those of the GPU.
    pub mig_slices: Option<[u64; 2]>,
    #[serde(flatten)]
    pub sums: WholeSums,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideWhole {
    /// As `bill --by` has it.
    pub property: String,
    pub rows: Vec<InsideRow>,
    /// How many others there are, and their sums.
    pub others: u64,
    pub rest: WholeSums,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideRow {
    pub name: String,
    #[serde(flatten)]
    pub sums: WholeSums,
}

impl WholeSums {
    pub fn held(&self) -> TimeSum {
        let parts = [self.within, self.lent, self.idle, self.unmeasured, self.unavailable];
        TimeSum(parts.iter().map(|part| part.0).sum())
    }

    fn of(line: &BillLine) -> Self {
        let parts = &line.amounts.parts;
        let time = |time: u64| TimeSum(time.into());
        Self {
            lines: 1,
            within: time(parts.within),
            lent: time(parts.lent),
            idle: time(parts.idle),
            unmeasured: time(parts.unmeasured),
            unavailable: time(parts.unavailable),
            used: time(line.amounts.used.total()),
            charged: line.charged.into(),
            unpriced: line.unpriced.into(),
            energy: Microjoules(if line.has_energy { line.energy() } else { 0 }).into(),
            money: line.money,
            energy_money: line.energy_money,
        }
    }

    fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.within += other.within;
        self.lent += other.lent;
        self.idle += other.idle;
        self.unmeasured += other.unmeasured;
        self.unavailable += other.unavailable;
        self.used += other.used;
        self.charged += other.charged;
        self.unpriced += other.unpriced;
        self.energy += other.energy;
        let plus = |one: Option<Money>, other: Option<Money>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.money = plus(self.money, other.money);
        self.energy_money = plus(self.energy_money, other.energy_money);
    }

    fn order(&self) -> (i128, u128) {
        (-self.money.unwrap_or_default().0, u128::MAX - self.held().0)
    }
}

impl ExplainedWhole {
    /// What filters select of a bill.
    pub fn of_bill(mut bill: Bill, filters: &PropertyFilters) -> Self {
        let mut selected = filters.selected(&bill).into_iter();
        let (is_partial, rates, terms) = (bill.partial, bill.rates.clone(), bill.terms.clone());
        bill.keep_lines(|_| selected.next() == Some(true));
        let inside = properties(&bill).into_iter().filter_map(|by| inside(&bill, by)).collect();
        let tenants: BTreeSet<&str> = bill.lines.iter().map(|line| &*line.tenant).collect();
        let reserved = REMAINDERS.into_iter().filter(|(name, _)| tenants.contains(name));
        let remainders = reserved.map(|(name, meaning)| (name.to_owned(), meaning.to_owned())).collect();
        let mut total = WholeSums::default();
        let mut priced = BTreeMap::<(LineRates, Option<Arc<str>>), PricedPart>::new();
        for line in bill.take_lines() {
            let sums = WholeSums::of(&line);
            total.add(&sums);
            let profile = line.slot.profile.as_ref();
            // Emissions are no money.
            let rates = LineRates { carbon: None, ..line.rates };
            let part = priced.entry((rates, profile.map(|profile| Arc::clone(&profile.name))));
            part.or_insert_with(|| PricedPart::new(rates, profile)).sums.add(&sums);
        }
        let mut priced: Vec<PricedPart> = priced.into_values().collect();
        priced.sort_by_key(|part| part.sums.order());
        let used: BTreeSet<i64> =
            priced.iter().flat_map(|part| [part.rate, part.energy_rate]).flatten().collect();
        bill.rates = rates.into_iter().filter(|rate| used.contains(&rate.id)).collect();
        let used: BTreeSet<i64> = priced.iter().filter_map(|part| part.terms).collect();
        bill.terms = terms.into_iter().filter(|one| used.contains(&one.id)).collect();
        bill.partial = is_partial;
        Self { bill, total, priced, inside, remainders }
    }

    /// Whether it is one remainder.
    pub fn meaning(&self) -> Option<&str> {
        let only = self.inside.iter().all(|inside| inside.property != "tenant");
        self.remainders.values().next().filter(|_| only).map(String::as_str)
    }
}

impl PricedPart {
    fn new(rates: LineRates, profile: Option<&MigProfile>) -> Self {
        let LineRates { time, energy, terms, .. } = rates;
        Self {
            rate: time,
            energy_rate: energy,
            terms,
            mig_slices: profile.map(|profile| [profile.size, profile.total]),
            sums: WholeSums::default(),
        }
    }
}

/// What a whole may be made of; a node's GPUs, or the nodes of a fleet.
fn properties(bill: &Bill) -> [&'static str; 3] {
    if bill.fleet.is_some() { ["tenant", "workload", "node"] } else { ["tenant", "workload", "gpu"] }
}

/// Its parts by a property; none of one part.
fn inside(bill: &Bill, property: &'static str) -> Option<InsideWhole> {
    let by: BillGrouping = property.parse().ok()?;
    let mut groups = BTreeMap::<_, WholeSums>::new();
    for (line, key) in bill.lines.iter().zip(by.groups(bill)) {
        groups.entry(key).or_default().add(&WholeSums::of(line));
    }
    let mut rows: Vec<InsideRow> = groups
        .into_iter()
        .map(|(key, sums)| InsideRow { name: key.into_iter().map(|(_, name)| name).collect(), sums })
        .collect();
    rows.sort_by_key(|row| row.sums.order());
    if rows.len() < 2 {
        return None;
    }
    let mut rest = WholeSums::default();
    let others = rows.split_off(rows.len().min(MOST_NAMED));
    others.iter().for_each(|row| rest.add(&row.sums));
    Some(InsideWhole { property: property.to_owned(), rows, others: others.len() as u64, rest })
}

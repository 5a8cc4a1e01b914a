//! A row of the report: exact integers, and what a page shows of them.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::key::{CostSums, RoundedMoney};
use crate::accounting::billing::print_money;
use crate::model::{Decimal, RESERVED, round_to_digit};

#[derive(Clone, Debug, Default, Serialize)]
pub struct CostRow {
    pub name: String,
    /// What people call its workload; none of a group of others, and where only its id is known.
    pub title: Option<String>,
    /// By each property of the grouping.
    pub values: Vec<String>,
    /// The parameters that select what is in the row.
    pub filter: Option<BTreeMap<String, String>>,
    pub remainder: bool,
    pub cost_center: Option<String>,
    /// Those of the row's tenant.
    pub attributes: BTreeMap<String, String>,
    #[serde(flatten)]
    pub amounts: CostAmounts,
    pub shown: ShownAmounts,
    pub budget: Option<BudgetUse>,
    pub before: Option<CostBefore>,
}

/// Exact sums. Times in nanoseconds, energy in microjoules, money in nano-units.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostAmounts {
    pub sums: CostSums,
    pub of_tenants: HeldIdle,
    pub rounded: RoundedMoney,
}

/// Held time without that of remainders, and what of it was idle, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldIdle {
    pub held: u128,
    pub idle: u128,
}

impl HeldIdle {
    pub(super) fn of(tenant: &str, sums: &CostSums) -> Self {
        if tenant.starts_with(RESERVED) {
            return Self::default();
        }
        Self { held: sums.held(), idle: sums.idle() }
    }

    #[must_use]
    pub(super) const fn plus(self, other: Self) -> Self {
        Self { held: self.held + other.held, idle: self.idle + other.idle }
    }
}

/// With two decimals; rows add up to the total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShownAmounts {
    /// Hours by the names of [`TIMES`].
    #[serde(flatten)]
    pub hours: BTreeMap<&'static str, String>,
    /// Of what tenants held, in percent with one decimal; none where they held nothing.
    pub idle_share: Option<String>,
    pub kwh: Option<String>,
    pub co2e_kg: Option<String>,
    pub amount: Option<String>,
    pub spread: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BudgetUse {
    pub amount: String,
    /// The share of it that is spent.
    pub used: Option<f64>,
}

/// Of the same row in the period before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CostBefore {
    pub held: String,
    pub amount: Option<String>,
}

type TimeOf = fn(&CostSums) -> u128;

/// The times of a row: what JSON calls them, before `_ns` where they are exact.
const TIMES: [(&str, TimeOf); 12] = [
    ("held", CostSums::held),
    ("within", |sums| sums.times[0].0),
    ("lent", |sums| sums.times[1].0),
    ("idle", CostSums::idle),
    ("unmeasured", |sums| sums.times[3].0),
    ("unavailable", CostSums::unavailable),
    ("used", CostSums::used),
    ("beyond", |sums| sums.times[6].0),
    ("outside", |sums| sums.times[7].0),
    ("unheld", |sums| sums.times[8].0),
    ("charged", |sums| sums.charged.0),
    ("unpriced", |sums| sums.unpriced.0),
];

/// The name of the attribute that is a column of its own.
const COST_CENTER: &str = "cost_center";

impl CostRow {
    pub(super) fn set_attributes(&mut self, attributes: Option<&BTreeMap<String, String>>) {
        self.attributes = attributes.cloned().unwrap_or_default();
        self.cost_center = self.attributes.get(COST_CENTER).cloned();
    }
}

impl Serialize for CostAmounts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { sums, rounded, .. } = self;
        let money = [
            ("money", rounded.money),
            ("energy_money", rounded.energy),
            ("co2e_grams", rounded.emissions),
            ("spread", rounded.spread),
        ];
        let mut json = to.serialize_map(None)?;
        for (name, of) in TIMES {
            json.serialize_entry(&format!("{name}_ns"), &of(sums).to_string())?;
        }
        json.serialize_entry("energy_uj", &sums.energy.map(|energy| energy.to_string()))?;
        for (name, money) in money {
            json.serialize_entry(name, &money.map(print_money))?;
        }
        json.end()
    }
}

/// What a column shows: the unit of its last printed digit, in the unit of its integers.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShownColumn {
    Hours,
    Kwh,
    Kilograms,
    Money,
}

impl ShownColumn {
    const fn digit(self) -> i128 {
        match self {
            Self::Hours | Self::Kwh => 36_000_000_000,
            Self::Kilograms => 10_000_000_000,
            Self::Money => 10_000_000,
        }
    }

    pub(super) fn print(self, amount: i128) -> String {
        let units = (amount + self.digit() / 2).div_euclid(self.digit());
        format!("{:.2}", Decimal { units, scale: 2 })
    }

    /// The texts of amounts that are rounded together, and that of their sum last; none where an amount is not known, and no sum
    /// where none is.
    pub(super) fn print_all(self, amounts: &[Option<i128>]) -> Vec<Option<String>> {
        let known: Vec<i128> = amounts.iter().copied().flatten().collect();
        let rounded = round_to_digit(&known, self.digit());
        let sum = (!known.is_empty()).then(|| self.print(rounded.iter().sum()));
        let mut rounded = rounded.into_iter();
        let texts =
            amounts.iter().map(|amount| amount.and_then(|_| rounded.next()).map(|one| self.print(one)));
        texts.collect::<Vec<_>>().into_iter().chain([sum]).collect()
    }
}

/// What rows show, and their total last.
pub(super) fn shown(rows: &[CostAmounts]) -> Vec<ShownAmounts> {
    let column = |column: ShownColumn, of: fn(&CostAmounts) -> Option<i128>| {
        column.print_all(&rows.iter().map(of).collect::<Vec<_>>()).into_iter()
    };
    let mut hours = TIMES.map(|(name, of)| {
        let times: Vec<_> = rows.iter().map(|row| Some(of(&row.sums).cast_signed())).collect();
        (name, ShownColumn::Hours.print_all(&times).into_iter())
    });
    let mut kwh = column(ShownColumn::Kwh, |row| row.sums.energy.map(|energy| energy.0.cast_signed()));
    let mut co2e_kg = column(ShownColumn::Kilograms, |row| row.rounded.emissions.map(|grams| grams.0));
    let mut amount = column(ShownColumn::Money, |row| row.rounded.money.map(|money| money.0));
    let mut spread = column(ShownColumn::Money, |row| row.rounded.spread.map(|money| money.0));
    let of_tenants = rows.iter().map(|row| row.of_tenants);
    let total = of_tenants.clone().fold(HeldIdle::default(), HeldIdle::plus);
    let shown = of_tenants.chain([total]).map(|HeldIdle { held, idle }| ShownAmounts {
        hours: hours
            .iter_mut()
            .map(|(name, texts)| {
                (*name, texts.next().flatten().unwrap_or_else(|| ShownColumn::Hours.print(0)))
            })
            .collect(),
        idle_share: percent(idle, held),
        kwh: kwh.next().flatten(),
        co2e_kg: co2e_kg.next().flatten(),
        amount: amount.next().flatten(),
        spread: spread.next().flatten(),
    });
    shown.collect()
}

/// With one decimal, rounded half up.
fn percent(part: u128, whole: u128) -> Option<String> {
    let units = (part * 1_000 + whole / 2).checked_div(whole)?;
    Some(format!("{:.1}", Decimal { units: units.cast_signed(), scale: 1 }))
}

/// A share with four decimals; none of nothing.
pub(super) fn ratio(part: i128, whole: i128) -> Option<f64> {
    let units = part.checked_mul(10_000)?.checked_div(whole)?;
    Some(units as f64 / 10_000.0)
}

//! A bill grouped by tenant or another property of its lines, rounded to the digits that are printed, and its columns.

use std::collections::BTreeMap;

use super::by::{BillGrouping, BillProperty, GroupKey};
use super::rounding::{decimal, round, signed_decimal};
use crate::billing::{Bill, BillLine};
use crate::model::Amounts;

/// Grams in a kilogram, which the table shows.
const KILO: i128 = 1_000;

/// The sums over the lines of a group: exact, or in units of the last printed digit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BillRow {
    /// The name of its group, by each property.
    pub(super) names: Vec<String>,
    /// Used within, lent, idle, unmeasured, unavailable: together, what was held.
    pub(super) parts: [u128; 5],
    /// Used beyond the share, outside any holding, and while the GPU was unheld.
    pub(super) beside: [u128; 3],
    /// All use. It is not within + beside where a nested holder used what another one holds.
    pub(super) used: u128,
    /// Time that `money` is for.
    pub(super) charged: u128,
    /// The same while no price was in force.
    pub(super) unpriced: u128,
    /// None while no line's energy was measured.
    pub(super) energy: Option<u128>,
    /// Money, and what else is in nano-units of money or grams. Those of terms and of MIG instances may be negative.
    pub(super) money: i128,
    /// The part of `money` that is for energy; none while energy has no price of its own.
    pub(super) energy_money: Option<i128>,
    /// Its share of remainders; none where none are spread.
    pub(super) spread: Option<i128>,
    /// CO2e; none while it is not known.
    pub(super) emissions: Option<i128>,
}

pub(super) const WITHIN: usize = 0;
const WITHIN_NAME: &str = "within";
pub(super) const UNAVAILABLE: usize = 4;

impl BillRow {
    /// Held time: the sum of its parts.
    pub(super) fn held(&self) -> u128 {
        self.parts.iter().sum()
    }

    /// Use that is within a holding, or beside what was held.
    pub(super) fn within_and_beside(&self) -> u128 {
        self.parts[WITHIN] + self.beside.iter().sum::<u128>()
    }

    pub(super) fn add_line(&mut self, line: &BillLine) {
        let Amounts { parts, used, energy_static, energy_dynamic, .. } = &line.amounts;
        let parts = [parts.within, parts.lent, parts.idle, parts.unmeasured, parts.unavailable];
        let energy = u128::from(energy_static.0) + u128::from(energy_dynamic.0);
        self.add(&Self {
            names: Vec::new(),
            parts: parts.map(u128::from),
            beside: [used.beyond, used.outside, used.unheld].map(u128::from),
            used: used.total().into(),
            charged: line.charged.0.into(),
            unpriced: line.unpriced.0.into(),
            energy: line.has_energy.then_some(energy),
            money: line.money.map_or(0, |money| money.0),
            energy_money: line.energy_money.map(|money| money.0),
            spread: line.spread.map(|money| money.0),
            emissions: line.emissions.map(|grams| grams.0 / KILO),
        });
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (sum, one) in self.parts.iter_mut().zip(other.parts) {
            *sum += one;
        }
        for (sum, one) in self.beside.iter_mut().zip(other.beside) {
            *sum += one;
        }
        self.used += other.used;
        self.charged += other.charged;
        self.unpriced += other.unpriced;
        self.energy = sum_of_known(self.energy, other.energy);
        self.money += other.money;
        self.energy_money = sum_of_known(self.energy_money, other.energy_money);
        self.spread = sum_of_known(self.spread, other.spread);
        self.emissions = sum_of_known(self.emissions, other.emissions);
    }
}

/// The sum of what is known of two amounts.
fn sum_of_known<T: std::ops::Add<Output = T> + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.zip(other).map(|(one, other)| one + other).or(one).or(other)
}

/// A bill as it is printed.
pub(super) struct Sheet {
    /// By name; GPUs by index.
    pub(super) rows: Vec<BillRow>,
    /// Their sum.
    pub(super) total: BillRow,
    /// Whether all use is within holdings, before anything was rounded. Then `within` would repeat `used`.
    used_is_within: bool,
}

impl Sheet {
    pub(super) fn new(bill: &Bill, by: &BillGrouping) -> Self {
        let by_tenant = BillGrouping::from(BillProperty::Tenant);
        let mut rows = exact_rows(&bill.lines, by.groups(bill));
        let mut tenants = exact_rows(&bill.lines, by_tenant.groups(bill));
        let has_terms = !bill.terms.is_empty();
        let used_is_within = rows.iter().all(|row| row.parts[WITHIN] == row.used);
        round(&mut tenants, None, has_terms);
        // Parts are rounded row by row, so those of another grouping are moved to the totals of this one.
        round(&mut rows, Some(&sum(&tenants)).filter(|_| *by != by_tenant), has_terms);
        let mut total = sum(&rows);
        total.names = vec![String::new(); by.names().len()];
        total.names[0] = "total".into();
        Self { rows, total, used_is_within }
    }

    /// The columns of hours that are shown: those that are not zero in every row, and held and charged time.
    fn columns(&self, bill: &Bill) -> Vec<&'static BillColumn> {
        let has_prices = bill.unpriced.is_some();
        let is_shown = |column: &&BillColumn| {
            (has_prices || !column.needs_prices)
                && (column.shows_zeros || self.rows.iter().any(|row| (column.of)(row) > 0))
                && !(self.used_is_within && column.name == WITHIN_NAME)
        };
        HOURS.iter().filter(is_shown).collect()
    }

    /// The headings of the table.
    pub(super) fn heads(&self, bill: &Bill, by: &BillGrouping) -> Vec<String> {
        let mut heads: Vec<String> = by.names().into_iter().map(str::to_owned).collect();
        heads.extend(self.columns(bill).iter().map(|column| column.name.to_owned()));
        heads.push("kWh".into());
        heads.extend(self.money_columns(bill).iter().map(|column| column.name.clone()));
        heads
    }

    /// The columns of money and emissions that are shown.
    pub(super) fn money_columns(&self, bill: &Bill) -> Vec<MoneyColumn> {
        let mut columns = Vec::new();
        let mut add = |name: String, of: fn(&BillRow) -> Option<i128>, meaning: &'static str| {
            if of(&self.total).is_some() {
                columns.push(MoneyColumn { name, of, meaning });
            }
        };
        if let Some(currency) = &bill.currency {
            add(format!("kWh {currency}"), |row| row.energy_money, "kWh x price; part of the amount");
            let has_energy = self.total.energy_money.is_some();
            let meaning = if has_energy { "charged x price, and kWh x price" } else { "charged x price" };
            add(currency.clone(), |row| Some(row.money), meaning);
            add("spread".into(), |row| row.spread, "share of the remainders that are spread over tenants");
        }
        // The table has kilograms.
        add("kgCO2e".into(), |row| row.emissions, "kWh x grams of CO2e per kWh");
        columns
    }

    /// The numbers of a row, under the headings after its names.
    pub(super) fn cells(&self, bill: &Bill, row: &BillRow) -> Vec<String> {
        let columns = self.columns(bill);
        let mut cells: Vec<String> = columns.iter().map(|column| decimal((column.of)(row))).collect();
        cells.push(row.energy.map_or_else(|| "-".to_owned(), decimal));
        let money = self.money_columns(bill);
        cells.extend(
            money.iter().map(|column| (column.of)(row).map_or_else(|| "-".to_owned(), signed_decimal)),
        );
        cells
    }

    /// What the legend explains: each shown column, and each reserved tenant in the table.
    pub(super) fn legend(&self, bill: &Bill, whose: &str) -> Vec<(String, String)> {
        let columns = self.columns(bill);
        let hours = columns.iter().map(|column| {
            let is_by_terms = column.name == "charged" && !bill.terms.is_empty();
            let by_terms = if is_by_terms { "; under terms, what they charge" } else { "" };
            let meaning = column.explain(&columns, self.used_is_within, whose);
            (column.name.to_owned(), meaning + by_terms)
        });
        let mut entries: Vec<(String, String)> = hours.collect();
        entries.push(("kWh".into(), ENERGY.into()));
        let money = self.money_columns(bill);
        entries.extend(money.into_iter().map(|column| (column.name, column.meaning.to_owned())));
        let is_there = |tenant: &str| self.rows.iter().any(|row| row.names.iter().any(|name| name == tenant));
        let remainders = REMAINDERS.iter().filter(|(tenant, _)| is_there(tenant));
        entries.extend(remainders.map(|(tenant, meaning)| ((*tenant).to_owned(), (*meaning).to_owned())));
        entries
    }
}

/// The exact sums of each group.
fn exact_rows(lines: &[BillLine], groups: Vec<GroupKey>) -> Vec<BillRow> {
    let mut rows: BTreeMap<GroupKey, BillRow> = BTreeMap::new();
    for (line, group) in lines.iter().zip(groups) {
        rows.entry(group).or_default().add_line(line);
    }
    let named = rows.into_iter().map(|(group, row)| {
        let names = group.into_iter().map(|(_, name)| name).collect();
        BillRow { names, ..row }
    });
    named.collect()
}

fn sum(rows: &[BillRow]) -> BillRow {
    let mut total = BillRow::default();
    for row in rows {
        total.add(row);
    }
    total
}

/// A column of money or emissions.
pub(super) struct MoneyColumn {
    /// Its heading.
    name: String,
    of: fn(&BillRow) -> Option<i128>,
    /// Its explanation in the legend.
    meaning: &'static str,
}

/// Placeholder in a meaning for what a line is grouped by.
const WHOSE: &str = "WHOSE";
/// Placeholder in a meaning for the columns of the parts of held time.
const PARTS: &str = "PARTS";
/// What a meaning says of unavailable time.
const LESS_UNAVAILABLE: &str = " less unavailable";

/// A column of hours.
pub(super) struct BillColumn {
    /// Its heading in the table; in CSV followed by `_hours`.
    pub(super) name: &'static str,
    /// Its explanation in the legend, with placeholders.
    meaning: &'static str,
    pub(super) of: fn(&BillRow) -> u128,
    /// Whether only bills with prices have it.
    needs_prices: bool,
    /// Whether it is shown where every row is zero.
    shows_zeros: bool,
    /// Whether it is a part of held time.
    is_part: bool,
}

impl BillColumn {
    const fn new(name: &'static str, of: fn(&BillRow) -> u128, meaning: &'static str) -> Self {
        Self { name, meaning, of, needs_prices: false, shows_zeros: false, is_part: false }
    }

    const fn part(name: &'static str, of: fn(&BillRow) -> u128, meaning: &'static str) -> Self {
        Self { is_part: true, ..Self::new(name, of, meaning) }
    }

    /// The explanation in a legend of these columns; `whose` is what the lines belong to. Use is a part of held time only
    /// where all of it is within.
    pub(super) fn explain(&self, shown: &[&Self], used_is_within: bool, whose: &str) -> String {
        let is_part = |column: &&&Self| column.is_part || (column.name == "used" && used_is_within);
        let parts: Vec<&str> = shown.iter().filter(is_part).map(|column| column.name).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(" = {}", parts.join(" + ")) };
        let meaning = self.meaning.replace(WHOSE, whose).replace(PARTS, &parts);
        let has_unavailable = shown.iter().any(|column| column.name == "unavailable");
        if has_unavailable { meaning } else { meaning.replace(LESS_UNAVAILABLE, "") }
    }
}

/// All columns of hours, in their order.
pub(super) const HOURS: [BillColumn; 12] = [
    BillColumn {
        shows_zeros: true,
        ..BillColumn::new("held", BillRow::held, "GPU time granted to WHOSEPARTS")
    },
    BillColumn::part(WITHIN_NAME, |row| row.parts[WITHIN], "held, and used by WHOSE"),
    BillColumn::part("lent", |row| row.parts[1], "held, not used by WHOSE, and used by others"),
    BillColumn::part("idle", |row| row.parts[2], "held, and used by nobody"),
    BillColumn::part(
        "unmeasured",
        |row| row.parts[3],
        "held while it could not be measured whether the GPU was used",
    ),
    BillColumn::part(
        "unavailable",
        |row| row.parts[UNAVAILABLE],
        "held while the GPU was lost or failed; its price goes to __unavailable__",
    ),
    BillColumn::new("used", |row| row.used, "GPU time that processes of WHOSE kept busy, held or not"),
    BillColumn::new("beyond", |row| row.beside[0], "used above WHOSE's own share; not part of held"),
    BillColumn::new(
        "outside",
        |row| row.beside[1],
        "used on a GPU that others held and WHOSE did not; not part of held",
    ),
    BillColumn::new("unheld", |row| row.beside[2], "used while nobody held the GPU; not part of held"),
    BillColumn {
        needs_prices: true,
        shows_zeros: true,
        ..BillColumn::new(
            "charged",
            |row| row.charged,
            "time that the amount is for: held less unavailable, while a price was in force",
        )
    },
    BillColumn {
        needs_prices: true,
        ..BillColumn::new(
            "unpriced",
            |row| row.unpriced,
            "the same while no price was in force; it costs nothing",
        )
    },
];

/// The explanation of energy in the legend.
const ENERGY: &str = "energy: idle power shared by held time, the rest by use; - where it is not measured";

/// Reserved tenants that a bill may have, with what is booked on them.
pub(super) const REMAINDERS: [(&str, &str); 8] = [
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

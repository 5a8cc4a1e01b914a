//! A bill grouped by tenant or another property of its lines, rounded to the digits that are printed, and its columns.
//!
//! It makes a row per group in units of the last printed digit, such that the parts of each row add up, and the rows of
//! each column to its total. The totals of held time, energy and money are rounded to the nearest and divided among rows by
//! largest remainder, and the held time of each row among its parts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::by::{BillGrouping, BillProperty, GroupKey};
use crate::billing::{Bill, BillLine};
use crate::model::{Amounts, Money};

/// Decimals of hours, kWh and money.
const PLACES: u32 = 4;
/// The last printed digit of hours, in nanoseconds, and of kWh, in microjoules.
const UNIT: u128 = 360_000_000;
/// The last printed digit of money, in nano-units.
const MONEY_UNIT: i128 = 100_000;
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

/// Money columns of a row.
const MONEY: [fn(&mut BillRow) -> Option<&mut i128>; 4] = [
    |row| Some(&mut row.money),
    |row| row.energy_money.as_mut(),
    |row| row.spread.as_mut(),
    |row| row.emissions.as_mut(),
];

const WITHIN: usize = 0;
const WITHIN_NAME: &str = "within";
const UNAVAILABLE: usize = 4;

impl BillRow {
    /// Held time: the sum of its parts.
    pub(super) fn held(&self) -> u128 {
        self.parts.iter().sum()
    }

    /// Use that is within a holding, or beside what was held.
    fn within_and_beside(&self) -> u128 {
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
}

impl Sheet {
    pub(super) fn new(bill: &Bill, by: &BillGrouping) -> Self {
        let by_tenant = BillGrouping::from(BillProperty::Tenant);
        let mut rows = exact_rows(&bill.lines, by.groups(bill));
        let mut tenants = exact_rows(&bill.lines, by_tenant.groups(bill));
        let has_terms = !bill.terms.is_empty();
        round(&mut tenants, None, has_terms);
        // Parts are rounded row by row, so those of another grouping are moved to the totals of this one.
        round(&mut rows, Some(&sum(&tenants)).filter(|_| *by != by_tenant), has_terms);
        Self::with_total(rows, by.names().len())
    }

    /// Rows with so many columns of names, and their sum.
    fn with_total(rows: Vec<BillRow>, names: usize) -> Self {
        let mut total = sum(&rows);
        total.names = vec![String::new(); names];
        total.names[0] = "total".into();
        Self { rows, total }
    }

    /// The columns of hours that are shown: those that are not zero in every row, and held and charged time. Without use
    /// beside what is held, `within` would repeat `used`.
    fn columns(&self, bill: &Bill) -> Vec<&'static BillColumn> {
        let has_prices = bill.unpriced.is_some();
        let repeats_used = self.rows.iter().all(|row| row.parts[WITHIN] == row.used);
        let is_shown = |column: &&BillColumn| {
            (has_prices || !column.needs_prices)
                && (column.shows_zeros || self.rows.iter().any(|row| (column.of)(row) > 0))
                && !(repeats_used && column.name == WITHIN_NAME)
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
            (column.name.to_owned(), column.explain(&columns, whose) + by_terms)
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

    /// The explanation in a legend of these columns; `whose` is what the lines belong to.
    pub(super) fn explain(&self, shown: &[&Self], whose: &str) -> String {
        let has_within = shown.iter().any(|column| column.name == WITHIN_NAME);
        let is_part = |column: &&&Self| column.is_part || (column.name == "used" && !has_within);
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

/// Exact sums to units of the last printed digit, in place; with these totals of parts and of charged time. Terms charge
/// other time than what is held, so it is rounded by itself.
fn round(rows: &mut [BillRow], totals: Option<&BillRow>, has_terms: bool) {
    let exact = rows.to_vec();
    let held: Vec<u128> = rows.iter().map(BillRow::held).collect();
    for (row, held) in rows.iter_mut().zip(in_hour_units(&held)) {
        divide(held, row.parts.iter_mut().collect());
    }
    if let Some(totals) = totals {
        let exact: Vec<[u128; 5]> = exact.iter().map(|row| row.parts).collect();
        fit_columns(rows.iter_mut().map(|row| &mut row.parts).collect(), &exact, &totals.parts);
    }
    for place in 0..3 {
        let total = nearest(rows.iter().map(|row| row.beside[place]).sum(), UNIT);
        divide(total, rows.iter_mut().map(|row| &mut row.beside[place]).collect());
    }
    round_used(rows, &exact);
    if has_terms {
        let columns: [fn(&mut BillRow) -> &mut u128; 2] = [|row| &mut row.charged, |row| &mut row.unpriced];
        for charged in columns {
            let total = nearest(rows.iter_mut().map(|row| *charged(row)).sum(), UNIT);
            divide(total, rows.iter_mut().map(charged).collect());
        }
    } else {
        round_charged(rows, &exact);
    }
    if let Some(totals) = totals.filter(|_| !has_terms) {
        let prices = |row: &BillRow| [row.charged, row.unpriced];
        let exact: Vec<[u128; 2]> = exact.iter().map(prices).collect();
        let mut cells: Vec<[u128; 2]> = rows.iter().map(prices).collect();
        fit_columns(cells.iter_mut().collect(), &exact, &prices(totals));
        for (row, [charged, unpriced]) in rows.iter_mut().zip(cells) {
            (row.charged, row.unpriced) = (charged, unpriced);
        }
    }
    let energy = nearest(rows.iter().filter_map(|row| row.energy).sum(), UNIT);
    divide(energy, rows.iter_mut().filter_map(|row| row.energy.as_mut()).collect());
    for column in MONEY {
        round_money(rows.iter_mut().filter_map(column).collect());
    }
}

/// Rounds money such that it sums to its total, which is rounded half up: each is rounded down, and the largest fractions are
/// raised, ties in their order.
fn round_money(cells: Vec<&mut i128>) {
    let exact: Vec<i128> = cells.iter().map(|cell| **cell).collect();
    let total = (exact.iter().sum::<i128>() + MONEY_UNIT / 2).div_euclid(MONEY_UNIT);
    let mut rounded: Vec<i128> = exact.iter().map(|money| money.div_euclid(MONEY_UNIT)).collect();
    let missing = total - rounded.iter().sum::<i128>();
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by_key(|place| Reverse(exact[*place].rem_euclid(MONEY_UNIT)));
    for (_, place) in (0..missing).zip(order) {
        rounded[place] += 1;
    }
    for (cell, rounded) in cells.into_iter().zip(rounded) {
        *cell = rounded;
    }
}

/// Rounds charged and unpriced time, which are together held time less unavailable time, plus the unavailable time that the
/// row pays for: its own where it is grouped with it, else that of others in rows of `__unavailable__`.
fn round_charged(rows: &mut [BillRow], exact: &[BillRow]) {
    let (mut printed, mut unavailable, mut paid_by_others) = (0, 0, Vec::new());
    let mut paid: Vec<u128> = Vec::new();
    for (row, exact) in rows.iter().zip(exact) {
        let own = exact.parts[UNAVAILABLE];
        let pays = (exact.charged + exact.unpriced).saturating_sub(exact.held() - own);
        if pays == own {
            paid.push(row.parts[UNAVAILABLE]);
            paid_by_others.push(0);
        } else {
            printed += row.parts[UNAVAILABLE];
            unavailable += own;
            paid.push(0);
            paid_by_others.push(pays);
        }
    }
    // A bill of some tenants may have the one row and not the other.
    let is_complete = unavailable == paid_by_others.iter().sum::<u128>();
    let total = if is_complete { printed } else { nearest(paid_by_others.iter().sum(), UNIT) };
    let shares = apportion(total, &paid_by_others);
    for ((row, own), others) in rows.iter_mut().zip(paid).zip(shares) {
        let due = row.held() - row.parts[UNAVAILABLE] + own + others;
        divide(due, vec![&mut row.charged, &mut row.unpriced]);
    }
}

/// Moves units within rows, where that adds least to the errors of rounding, until the columns have these totals.
fn fit_columns<const N: usize>(mut cells: Vec<&mut [u128; N]>, exact: &[[u128; N]], totals: &[u128; N]) {
    loop {
        let sums: Vec<u128> = (0..N).map(|place| cells.iter().map(|row| row[place]).sum()).collect();
        let above = (0..N).find(|place| sums[*place] > totals[*place]);
        let below = (0..N).find(|place| sums[*place] < totals[*place]);
        let (Some(above), Some(below)) = (above, below) else { return };
        let error = |row: usize| {
            let less = (cells[row][above] * UNIT).cast_signed() - exact[row][above].cast_signed();
            let more = exact[row][below].cast_signed() - (cells[row][below] * UNIT).cast_signed();
            // A part that is zero stays zero if there is another row.
            (exact[row][below] == 0, -(less + more))
        };
        let rows = (0..cells.len()).filter(|row| cells[*row][above] > 0);
        let Some(row) = rows.min_by_key(|row| error(*row)) else { return };
        cells[row][above] -= 1;
        cells[row][below] += 1;
    }
}

/// Rounds all use: to the printed within + beside where that is exact, else by largest remainder.
fn round_used(rows: &mut [BillRow], exact: &[BillRow]) {
    let (mut printed, mut within_and_beside, mut used) = (0, 0, 0);
    let mut nested = Vec::new();
    for (row, exact) in rows.iter_mut().zip(exact) {
        if exact.used == exact.within_and_beside() {
            row.used = row.within_and_beside();
            continue;
        }
        printed += row.within_and_beside();
        within_and_beside += exact.within_and_beside();
        used += exact.used;
        nested.push(&mut row.used);
    }
    // A bill of some tenants may have the one holder and not the other.
    divide(if used == within_and_beside { printed } else { nearest(used, UNIT) }, nested);
}

/// Replaces each exact value by its share of `total`.
fn divide(total: u128, cells: Vec<&mut u128>) {
    let exact: Vec<u128> = cells.iter().map(|cell| **cell).collect();
    for (cell, share) in cells.into_iter().zip(apportion(total, &exact)) {
        *cell = share;
    }
}

/// Shares of `total` in proportion to `exact`, by largest remainder, ties in their order; they sum to it unless
/// all of `exact` is 0.
pub(super) fn apportion(total: u128, exact: &[u128]) -> Vec<u128> {
    let sum: u128 = exact.iter().sum();
    if sum == 0 {
        return vec![0; exact.len()];
    }
    let quota = |value: &u128| total.saturating_mul(*value);
    let mut shares: Vec<u128> = exact.iter().map(|value| quota(value) / sum).collect();
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by_key(|place| Reverse(quota(&exact[*place]) % sum));
    let left = total.saturating_sub(shares.iter().sum());
    for (_, place) in (0..left).zip(order) {
        shares[place] += 1;
    }
    shares
}

/// Exact values in units of the last printed digit of hours, such that they sum to their rounded total.
pub(super) fn in_hour_units(exact: &[u128]) -> Vec<u128> {
    apportion(nearest(exact.iter().sum(), UNIT), exact)
}

/// A number of units, rounded half up.
fn nearest(value: u128, unit: u128) -> u128 {
    (value + unit / 2) / unit
}

/// Units of the last printed digit, as a decimal.
pub(super) fn decimal(units: u128) -> String {
    let one = 10_u128.pow(PLACES);
    format!("{}.{:0places$}", units / one, units % one, places = PLACES as usize)
}

/// The same of an amount that may be negative.
pub(super) fn signed_decimal(units: i128) -> String {
    let sign = if units < 0 { "-" } else { "" };
    format!("{sign}{}", decimal(units.unsigned_abs()))
}

/// Money in units of the last printed digit, such that it sums to its rounded total.
pub(super) fn in_money_units(money: impl IntoIterator<Item = Money>) -> Vec<i128> {
    let mut units: Vec<i128> = money.into_iter().map(|money| money.0).collect();
    round_money(units.iter_mut().collect());
    units
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::HolderId;

    /// A line with these parts, time beside what is held, and shares in quarters that are unpriced.
    fn line((tenant, gpu): (usize, u32), parts: [u64; 5], beside: [u64; 3], quarters: u64) -> Value {
        let [within_ns, lent_ns, idle_ns, unmeasured_ns, unavailable_ns] = parts;
        let [beyond, outside, unheld] = beside;
        let due = within_ns + lent_ns + idle_ns + unmeasured_ns;
        let unpriced = due / 4 * quarters;
        json!({"tenant": format!("tenant-{tenant}"), "holder": format!("unit:{tenant}"), "gpu": gpu,
            "uuid": format!("GPU-{gpu}"), "held_ns": due + unavailable_ns, "within_ns": within_ns,
            "lent_ns": lent_ns, "idle_ns": idle_ns, "unmeasured_ns": unmeasured_ns,
            "unavailable_ns": unavailable_ns, "used_ns": within_ns + beyond + outside + unheld,
            "beyond_share_ns": beyond, "outside_holding_ns": outside, "unheld_ns": unheld,
            "energy_static_uj": lent_ns, "energy_dynamic_uj": within_ns, "grade": "measured", "measured_ns": 0,
            "method": "observed", "sources": [], "charged_ns": due - unpriced, "unpriced_ns": unpriced,
            "money": format!("{}.{:09}", due / 1_000_000_000_000, due % 1_000_000_000)})
    }

    /// A bill of random lines, with the price of unavailable time of each GPU on its reserved tenant.
    fn bills() -> impl Strategy<Value = Bill> {
        let time = || (0..=2_592_000_000_000_000_u64, 0..16_u32).prop_map(|(time, less)| time >> (3 * less));
        let parts = [time(), time(), time(), time(), time()];
        let one = ((0..6_usize, 0..4_u32), parts, [time(), time(), time()], 0..=4_u64);
        proptest::collection::vec(one, 0..30).prop_map(|lines| {
            let mut all: Vec<Value> = Vec::new();
            for (key, parts, beside, quarters) in lines {
                let mut of_others = line(key, [0; 5], [0; 3], 0);
                of_others["tenant"] = HolderId::UNAVAILABLE.into();
                of_others["holder"] = HolderId::UNAVAILABLE.into();
                of_others["charged_ns"] = parts[UNAVAILABLE].into();
                all.extend([line(key, parts, beside, quarters), of_others]);
            }
            serde_json::from_value(json!({"node": "n1", "from": "2026-11-01T00:00:00Z",
                "to": "2026-11-01T01:00:00Z", "closed_until": "2026-11-01T01:00:00Z", "currency": "EUR",
                "unpriced_ns": 0, "lines": all,
                "gpus": (0..3).map(|gpu| json!({"gpu": gpu, "uuid": format!("GPU-{gpu}"), "model": format!("H{}", gpu / 2),
                    "slot_ns": 0, "settled_until": "2026-11-01T01:00:00Z"})).collect::<Vec<_>>(),
                "reconciliation": {"slot_ns": 0, "held_ns": 0, "imbalance_ns": "0", "gpu_money": "0.000000000",
                    "line_money": "0.000000000", "imbalance_money": "0.000000000"}}))
            .unwrap()
        })
    }

    fn rows() -> impl Strategy<Value = Vec<BillRow>> {
        // From nothing to a month, in nanoseconds, with many short times.
        let time = || (0..=2_592_000_000_000_000_u128, 0..16_u32).prop_map(|(time, less)| time >> (3 * less));
        let parts = [time(), time(), time(), time(), time()];
        let others = (time(), time(), time(), 0..=4_u128, proptest::option::of(time()), time());
        let row = (parts, others).prop_map(|(parts, (beyond, outside, unheld, quarter, energy, money))| {
            let due = parts[..UNAVAILABLE].iter().sum::<u128>();
            let unpriced = due * quarter / 4;
            let beside = [beyond, outside, unheld];
            let used = parts[WITHIN] + beyond + outside + unheld;
            BillRow {
                parts,
                beside,
                used,
                charged: due - unpriced,
                unpriced,
                energy,
                money: money.cast_signed(),
                ..BillRow::default()
            }
        });
        proptest::collection::vec(row, 0..20).prop_map(|mut rows| {
            let unavailable = rows.iter().map(|row| row.parts[UNAVAILABLE]).sum();
            rows.push(BillRow {
                names: vec![HolderId::UNAVAILABLE.into()],
                charged: unavailable,
                ..BillRow::default()
            });
            rows
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_grouping_has_the_same_totals_and_rows_that_add_up(bill in bills()) {
            let total = |by: &str| {
                let sheet = Sheet::new(&bill, &by.parse().unwrap());
                for row in &sheet.rows {
                    assert_eq!(row.used, row.within_and_beside(), "{by}: {row:?}");
                }
                BillRow { names: Vec::new(), ..sheet.total }
            };
            let expected = total("tenant");
            for by in ["workload", "gpu", "model", "node", "user", "tenant,gpu", "model,tenant", "node,workload"] {
                prop_assert_eq!(&total(by), &expected, "by {}", by);
            }
        }

        #[test]
        fn every_row_and_every_column_adds_up_and_totals_are_rounded_to_the_nearest(exact in rows()) {
            let mut printed = exact.clone();
            round(&mut printed, None, false);
            let column = |rows: &[BillRow], cell: fn(&BillRow) -> u128| rows.iter().map(cell).sum::<u128>();
            for (cell, unit) in [
                (BillRow::held as fn(&BillRow) -> u128, UNIT),
                (|row| row.beside[0], UNIT),
                (|row| row.energy.unwrap_or(0), UNIT),
                (|row| row.money.unsigned_abs(), MONEY_UNIT.unsigned_abs()),
                (|row| row.charged + row.unpriced, UNIT),
            ] {
                prop_assert_eq!(column(&printed, cell), nearest(column(&exact, cell), unit));
            }
            let unavailable = printed.iter().map(|row| row.parts[UNAVAILABLE]).sum::<u128>();
            for (row, exact) in printed.iter().zip(&exact) {
                prop_assert_eq!(row.used, row.within_and_beside());
                prop_assert!((row.held() * UNIT).abs_diff(exact.held()) < 2 * UNIT);
                let others = if row.names.is_empty() { 0 } else { unavailable };
                let due = row.held() - row.parts[UNAVAILABLE] + others;
                prop_assert!(exact.charged + exact.unpriced == 0 || row.charged + row.unpriced == due);
                for (part, exact) in row.parts.iter().zip(exact.parts) {
                    prop_assert!((part * UNIT).abs_diff(exact) < 2 * UNIT);
                }
            }
        }
    }

    #[test]
    fn the_largest_remainder_is_served_first_and_ties_in_their_order() {
        assert_eq!(apportion(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(apportion(3, &[25, 0, 45, 30]), [1, 0, 1, 1]);
        assert_eq!(apportion(0, &[1, 2]), [0, 0]);
        assert_eq!(apportion(1, &[0, 0]), [0, 0]);
    }

    #[test]
    fn units_are_printed_with_every_place() {
        assert_eq!((decimal(0), decimal(12_345)), ("0.0000".to_owned(), "1.2345".to_owned()));
    }
}

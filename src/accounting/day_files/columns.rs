//! The columns of a day file. Engines find them by name; new ones are added at the end and are optional.

use std::borrow::Cow;

use crate::accounting::billing::{BillRate, DayHeader, DayRow, ExactMoney, RateKind};
use crate::model::{AMOUNTS, Amount, Amounts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Text,
    Integer,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cell<'a> {
    Text(Option<Cow<'a, str>>),
    Integer(Option<i64>),
}

/// A column that distinguishes rows: all but the quarter hour and what is added up.
pub(super) struct KeyColumn {
    pub(super) name: &'static str,
    pub(super) column_type: ColumnType,
    /// Whether a bill reads it; the others follow from these and the header, and are there for SQL.
    pub(super) is_read: bool,
    pub(super) of: for<'a> fn(&'a DayHeader, &'a DayRow) -> Cell<'a>,
}

const fn text(name: &'static str, of: for<'a> fn(&'a DayHeader, &'a DayRow) -> Cell<'a>) -> KeyColumn {
    KeyColumn { name, column_type: ColumnType::Text, is_read: true, of }
}

const fn integer(name: &'static str, of: for<'a> fn(&'a DayHeader, &'a DayRow) -> Cell<'a>) -> KeyColumn {
    KeyColumn { name, column_type: ColumnType::Integer, is_read: true, of }
}

const fn derived(column: KeyColumn) -> KeyColumn {
    KeyColumn { is_read: false, ..column }
}

pub(super) const QUARTER: &str = "quarter_hour";

/// The columns that distinguish rows, in the order by which rows are sorted.
pub(super) const KEYS: &[KeyColumn] = &[
    derived(text("ledger", |header, _| some(&header.ledger))),
    text("cluster", |_, row| optional(row.node.cluster.as_deref())),
    text("node", |_, row| some(&row.node.name)),
    text("pool", |_, row| optional(row.node.pool.as_deref())),
    text("instance_type", |_, row| optional(row.node.instance_type.as_deref())),
    integer("spot", |_, row| Cell::Integer(row.node.spot.map(i64::from))),
    integer("gpu", |_, row| Cell::Integer(Some(row.line.gpu.index.into()))),
    text("gpu_uuid", |_, row| some(&row.line.gpu.uuid)),
    derived(text("gpu_model", |header, row| {
        optional(header.gpus.iter().find(|gpu| gpu.gpu.uuid == row.line.gpu.uuid).map(|gpu| &*gpu.model))
    })),
    integer("gpu_instance", |_, row| Cell::Integer(row.line.slot.gpu_instance.map(i64::from))),
    text("mig_profile", |_, row| optional(row.line.slot.profile.as_ref().map(|profile| &*profile.name))),
    integer("mig_size", |_, row| Cell::Integer(row.line.slot.profile.as_ref().map(|it| signed(it.size)))),
    integer("mig_total", |_, row| Cell::Integer(row.line.slot.profile.as_ref().map(|it| signed(it.total)))),
    text("tenant", |_, row| some(&row.line.tenant)),
    text("workload", |_, row| some(row.line.holder.name())),
    integer("workload_version", |_, row| Cell::Integer(Some(signed(row.line.holder.version())))),
    text("labels", |_, row| {
        let labels = &row.line.labels;
        let json = (!labels.is_empty()).then(|| serde_json::to_string(labels).unwrap_or_default());
        Cell::Text(json.map(Cow::Owned))
    }),
    integer("rate", |_, row| Cell::Integer(row.line.rates.time)),
    integer("energy_rate", |_, row| Cell::Integer(row.line.rates.energy)),
    integer("carbon_rate", |_, row| Cell::Integer(row.line.rates.carbon)),
    integer("terms", |_, row| Cell::Integer(row.line.rates.terms)),
    integer("gpu_rate", |_, row| Cell::Integer(row.gpu_rate)),
    derived(text("currency", |header, row| {
        optional(row.line.rates.time.or(row.gpu_rate).and(header.currency.as_deref()))
    })),
    derived(text("price_class", |header, row| {
        optional(rate(header, row.line.rates.time).map(|rate| &*rate.class))
    })),
    derived(integer("gpu_nano_per_hour", |header, row| price(header, row.gpu_rate))),
    derived(integer("nanograms_per_kwh", |header, row| price(header, row.line.rates.carbon))),
    text("grade", |_, row| some(row.line.grade.name())),
    text("method", |_, row| some(row.line.method.name())),
    integer("coarse", |_, row| Cell::Integer(Some(row.line.coarse.into()))),
    text("sources", |_, row| {
        let names: Vec<&str> = row.line.sources.iter().map(|source| source.name()).collect();
        Cell::Text(Some(Cow::Owned(names.join(","))))
    }),
    text("granted_by", |_, row| {
        let names: Vec<&str> = row.line.granted_by.iter().map(|source| source.name()).collect();
        Cell::Text((!names.is_empty()).then(|| Cow::Owned(names.join(","))))
    }),
];

fn some(text: &str) -> Cell<'_> {
    Cell::Text(Some(Cow::Borrowed(text)))
}

fn optional(text: Option<&str>) -> Cell<'_> {
    Cell::Text(text.map(Cow::Borrowed))
}

/// A number for a column, which has 63 bits.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn rate(header: &DayHeader, id: Option<i64>) -> Option<&BillRate> {
    header.rates.iter().find(|rate| Some(rate.id) == id)
}

/// The nano-units per hour or kWh of a rate.
fn price(header: &DayHeader, id: Option<i64>) -> Cell<'_> {
    let is_simple = |rate: &&BillRate| rate.unit != RateKind::InstanceHour;
    Cell::Integer(rate(header, id).filter(is_simple).and_then(|rate| i64::try_from(rate.price.0).ok()))
}

#[derive(Clone, Copy)]
pub(super) struct SumColumn {
    pub(super) name: &'static str,
    of: SumPlace,
}

#[derive(Clone, Copy)]
enum SumPlace {
    Amount(&'static Amount),
    Charged,
    Unpriced,
}

impl SumColumn {
    pub(super) fn of<'a>(&self, sums: &'a mut Sums) -> &'a mut u64 {
        match self.of {
            SumPlace::Amount(amount) => amount.of_mut(&mut sums.amounts),
            SumPlace::Charged => &mut sums.charged,
            SumPlace::Unpriced => &mut sums.unpriced,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) amounts: Amounts,
    pub(super) charged: u64,
    pub(super) unpriced: u64,
}

impl Sums {
    /// In the order of [`SUMS`].
    pub(super) fn numbers(mut self) -> SumNumbers {
        let mut numbers = [0; SUMS.len()];
        numbers.iter_mut().zip(SUMS).for_each(|(number, column)| *number = *column.of(&mut self));
        numbers
    }

    pub(super) fn of_numbers(numbers: &SumNumbers) -> Self {
        let mut sums = Self::default();
        SUMS.iter().zip(numbers).for_each(|(column, number)| *column.of(&mut sums) = *number);
        sums
    }
}

/// The numbers of a row, in the order of [`SUMS`].
pub(super) type SumNumbers = [u64; SUMS.len()];

/// The columns that are added up: the amounts, then charged and unpriced time.
pub(super) const SUMS: &[SumColumn] = &{
    const LAST: usize = AMOUNTS.len() + 1;
    let mut columns = [SumColumn { name: "charged_ns", of: SumPlace::Charged }; LAST + 1];
    columns[LAST] = SumColumn { name: "unpriced_ns", of: SumPlace::Unpriced };
    let mut place = 0;
    while place < AMOUNTS.len() {
        let amount = &AMOUNTS[place];
        columns[place] = SumColumn { name: amount.name, of: SumPlace::Amount(amount) };
        place += 1;
    }
    columns
};

/// A column of money in 1/3.6e12 of a nano-unit, which is exact.
pub(super) struct ExactColumn {
    pub(super) name: &'static str,
    pub(super) of: fn(&DayRow) -> ExactMoney,
}

/// The columns of money: all of a row, and the part of it that is for energy.
pub(super) const MONEY: [ExactColumn; 2] = [
    ExactColumn { name: "cost", of: |row| row.line.exact },
    ExactColumn { name: "energy_cost", of: |row| row.line.exact_energy },
];

pub(super) fn message_type(keys: &[KeyColumn]) -> String {
    let keys = keys.iter().map(|column| match column.column_type {
        ColumnType::Text => format!("optional binary {} (STRING);", column.name),
        ColumnType::Integer => format!("optional int64 {};", column.name),
    });
    let sums = SUMS.iter().map(|column| format!("required int64 {};", column.name));
    let money = MONEY
        .iter()
        .map(|column| format!("required fixed_len_byte_array(16) {} (DECIMAL(38,0));", column.name));
    let columns: String = keys.chain(sums).chain(money).collect();
    format!("message gpumeter_account {{ required int64 {QUARTER} (TIMESTAMP(MICROS,true)); {columns} }}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_exports_has_every_column_with_its_type() {
        let page = include_str!("../../../docs/exports.md");
        let (_, table) = page.split_once("\n| column | type | |\n|---|---|---|\n").unwrap();
        let rows = table.lines().map_while(|line| line.strip_prefix("| `")?.split_once("` | "));
        let shown: Vec<(&str, &str)> =
            rows.map(|(name, rest)| (name, rest.split_once(' ').unwrap().0)).collect();
        let keys = KEYS.iter().map(|column| match column.column_type {
            ColumnType::Text => (column.name, "text"),
            ColumnType::Integer => (column.name, "integer"),
        });
        let sums = SUMS.iter().map(|column| (column.name, "integer"));
        let money = MONEY.iter().map(|column| (column.name, "decimal"));
        let columns: Vec<(&str, &str)> =
            [(QUARTER, "timestamp")].into_iter().chain(keys).chain(sums).chain(money).collect();
        assert_eq!(shown, columns);
    }
}

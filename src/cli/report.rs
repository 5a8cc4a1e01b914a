//! A report: title, marks, tables of typed cells, notes and a legend. What prints it ([`text`], [`csv`], [`html`]) knows no
//! report, and a report prints nothing itself.
//!
//! Each column of amounts is rounded by itself, so that its rows add up to its total; so rows do not always add up in their
//! last digits. Earlier versions rounded the hours of a row together too, which no reader asked for.

pub(super) mod csv;
pub(super) mod html;
pub(super) mod text;

use std::borrow::Cow;

use crate::model::{Decimal, TimeSum, round_to_digit};

/// Columns of a table for which a page of A4 in portrait has room, names included.
const PAGE_COLUMNS: usize = 8;

/// What the cells of a column are: it decides how they are aligned, rounded and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellUnit {
    Text,
    /// A whole number, or a text that is aligned as a number.
    Number,
    /// Amounts in nanoseconds.
    Hours,
    /// Amounts in nanoseconds.
    Seconds,
    /// Amounts in microjoules.
    Kwh,
    /// Amounts in nano-units.
    Money,
    /// Amounts in nanograms.
    Kilograms,
}

impl CellUnit {
    /// The last printed digit, and the number of decimals.
    const fn last_digit(self) -> (i128, u8) {
        match self {
            Self::Text | Self::Number => (1, 0),
            Self::Hours | Self::Kwh => (360_000_000, 4),
            Self::Seconds => (100_000_000, 1),
            Self::Money => (100_000, 4),
            Self::Kilograms => (100_000_000, 4),
        }
    }

    /// Multiples of the last printed digit that sum to the total, which is rounded half up: each amount is rounded down, and
    /// the largest fractions are raised, ties in their order.
    pub(super) fn round(self, exact: &[i128]) -> Vec<i128> {
        round_to_digit(exact, self.last_digit().0)
    }

    /// Rounds the amounts among cells together, and returns their sum; none where there is no amount.
    fn round_cells(self, cells: &mut [ReportCell]) -> Option<i128> {
        let amounts = cells.iter_mut().filter_map(|cell| match cell {
            ReportCell::Amount(amount) => Some(amount),
            _ => None,
        });
        let amounts: Vec<&mut i128> = amounts.collect();
        let rounded = self.round(&amounts.iter().map(|amount| **amount).collect::<Vec<_>>());
        let sum = rounded.iter().copied().reduce(|sum, one| sum + one);
        amounts.into_iter().zip(rounded).for_each(|(amount, rounded)| *amount = rounded);
        sum
    }

    /// An amount, rounded half up.
    pub(super) fn print(self, amount: i128) -> String {
        let (digit, scale) = self.last_digit();
        let decimal = Decimal { units: (amount + digit / 2).div_euclid(digit), scale };
        format!("{decimal:.*}", usize::from(scale))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReportCell {
    /// A dash, and nothing in CSV.
    Unknown,
    Text(String),
    /// An amount in the unit of its column.
    Amount(i128),
}

impl From<String> for ReportCell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<TimeSum> for ReportCell {
    fn from(time: TimeSum) -> Self {
        Self::Amount(time.0.cast_signed())
    }
}

impl<T: Into<Self>> From<Option<T>> for ReportCell {
    fn from(known: Option<T>) -> Self {
        known.map_or(Self::Unknown, T::into)
    }
}

pub(super) struct Heading {
    /// What it is called where people read it; empty where only CSV has it.
    pub(super) name: String,
    /// What it is called in CSV; empty where CSV does not have it.
    pub(super) csv: String,
    unit: CellUnit,
    help: &'static str,
    /// Whether it is shown where it says nothing: where every cell is unknown or a time of 0.
    is_always_shown: bool,
}

/// A column of a report whose rows are made from `R`.
pub(super) struct Column<'a, R> {
    pub(super) heading: Heading,
    of: Box<dyn Fn(&R) -> ReportCell + 'a>,
}

impl<'a, R: 'a> Column<'a, R> {
    pub(super) fn new(name: impl Into<String>, unit: CellUnit, of: impl Fn(&R) -> ReportCell + 'a) -> Self {
        let (name, csv, help, is_always_shown) = (name.into(), String::new(), "", false);
        Self { heading: Heading { name, csv, unit, help, is_always_shown }, of: Box::new(of) }
    }

    pub(super) fn names(names: &[&str], of: fn(&R) -> &[String]) -> Vec<Self> {
        let columns = names.iter().enumerate().map(|(place, name)| {
            Self::new(*name, CellUnit::Text, move |row| of(row)[place].clone().into()).csv(*name)
        });
        columns.collect()
    }

    pub(super) fn csv(mut self, csv: impl Into<String>) -> Self {
        self.heading.csv = csv.into();
        self
    }

    pub(super) fn help(mut self, help: &'static str) -> Self {
        self.heading.help = help;
        self
    }

    pub(super) fn always(mut self) -> Self {
        self.heading.is_always_shown = true;
        self
    }

    pub(super) fn hidden_if(mut self, is_hidden: bool) -> Self {
        if is_hidden {
            self.heading.name.clear();
        }
        self
    }

    pub(super) fn cell(&self, row: &R) -> ReportCell {
        (self.of)(row)
    }
}

impl Heading {
    /// Whether a person or CSV calls it that.
    fn is_called(&self, name: &str) -> bool {
        !name.is_empty() && [&*self.name, &*self.csv, self.short_csv()].contains(&name)
    }

    /// The name by which a person asks for it; none of a name of rows, and of what only CSV has.
    fn asked_as(&self) -> Option<&str> {
        let is_of_rows = self.unit == CellUnit::Text && !self.csv.is_empty();
        let name = if self.name.is_empty() { self.short_csv() } else { &self.name };
        (!is_of_rows && self.unit != CellUnit::Number && !name.is_empty()).then_some(name)
    }

    fn short_csv(&self) -> &str {
        self.csv.strip_suffix("_hours").unwrap_or(&self.csv)
    }

    fn is_name_of_rows(&self) -> bool {
        self.unit == CellUnit::Text && !self.csv.is_empty() && !self.name.is_empty()
    }
}

pub(super) struct TableColumn {
    heading: Heading,
    /// By row, the total last.
    cells: Vec<ReportCell>,
}

pub(super) struct ReportTable {
    columns: Vec<TableColumn>,
    /// How many rows there are before the total.
    rows: usize,
    has_total: bool,
    /// Lines below each row; empty where no row has any.
    pub(super) below: Vec<String>,
}

impl ReportTable {
    /// The total has the sum of each column of amounts, and what its own row has in the other columns.
    pub(super) fn new<'a, R: 'a>(
        columns: impl IntoIterator<Item = Column<'a, R>>,
        rows: &[R],
        total: Option<&R>,
    ) -> Self {
        let columns = columns.into_iter().map(|column| {
            let mut cells: Vec<ReportCell> = rows.iter().map(|row| column.cell(row)).collect();
            let sum = column.heading.unit.round_cells(&mut cells);
            cells.extend(total.map(|total| sum.map_or_else(|| column.cell(total), ReportCell::Amount)));
            TableColumn { heading: column.heading, cells }
        });
        let columns = columns.collect();
        Self { columns, rows: rows.len(), has_total: total.is_some(), below: Vec::new() }
    }

    /// Without the columns that say nothing, and those of CSV.
    pub(super) fn for_people(mut self) -> Self {
        self.columns.retain(|TableColumn { heading, cells }| {
            let says_something = |cell: &ReportCell| match cell {
                ReportCell::Unknown => false,
                ReportCell::Text(_) => true,
                ReportCell::Amount(amount) => *amount != 0 || heading.unit != CellUnit::Hours,
            };
            let is_shown = heading.is_always_shown || cells.iter().any(says_something);
            is_shown && !heading.name.is_empty()
        });
        self
    }

    /// With the names of its rows and these columns, in this order.
    ///
    /// # Errors
    /// There is no such column; the error lists all.
    pub(super) fn named(mut self, names: &[String]) -> Result<Self, String> {
        let mut kept: Vec<usize> = self.places(Heading::is_name_of_rows).collect();
        for name in names {
            let place = self.places(|heading| heading.is_called(name)).next();
            let place = place
                .filter(|place| kept.contains(place) || self.columns[*place].heading.asked_as().is_some());
            let Some(place) = place else {
                let known = self.columns.iter().filter_map(|column| column.heading.asked_as());
                let known: Vec<&str> = known.collect();
                return Err(format!("there is no column {name:?}; there are {}", known.join(", ")));
            };
            if !kept.contains(&place) {
                kept.push(place);
            }
        }
        for column in &mut self.columns {
            if let Some(name) = column.heading.asked_as().map(str::to_owned) {
                column.heading.name = name;
            }
        }
        Ok(self.ordered(&kept))
    }

    /// As many columns as a page has room for: the names of its rows and what CSV does not have, then amounts, the first ones of
    /// `first` before the names of others. Returns the names of the columns that are left out.
    pub(super) fn for_page(self, first: &[&str]) -> (Self, Vec<String>) {
        let is_text = |heading: &Heading| heading.unit == CellUnit::Text;
        let leading: Vec<usize> = self.places(is_text).collect();
        let rank = |place: &usize| {
            let csv = &*self.columns[*place].heading.csv;
            first.iter().position(|name| *name == csv).unwrap_or(first.len())
        };
        let mut others: Vec<usize> = self.places(|heading| !is_text(heading)).collect();
        others.sort_by_key(rank);
        let room = PAGE_COLUMNS.saturating_sub(leading.len()).max(1);
        let left_out = others.split_off(others.len().min(room));
        let left_out = left_out.into_iter().map(|place| self.columns[place].heading.name.clone()).collect();
        (self.ordered(&[leading, others].concat()), left_out)
    }

    fn places(&self, is_meant: impl Fn(&Heading) -> bool) -> impl Iterator<Item = usize> {
        let columns = self.columns.iter().enumerate();
        columns.filter(move |(_, column)| is_meant(&column.heading)).map(|(place, _)| place)
    }

    fn ordered(mut self, places: &[usize]) -> Self {
        let mut columns: Vec<Option<TableColumn>> = self.columns.into_iter().map(Some).collect();
        self.columns = places.iter().filter_map(|place| columns.get_mut(*place)?.take()).collect();
        self
    }

    /// Adds a row, whose amounts are printed as they are.
    pub(super) fn push(&mut self, cells: Vec<ReportCell>) {
        self.columns.iter_mut().zip(cells).for_each(|(column, cell)| column.cells.push(cell));
        self.rows += 1;
    }

    pub(super) fn legend(&self) -> Vec<(String, String)> {
        let explained = self.columns.iter().map(|column| &column.heading).filter(|one| !one.help.is_empty());
        explained.map(|heading| (heading.name.clone(), heading.help.to_owned())).collect()
    }
}

impl TableColumn {
    /// The text of a cell; none where it is unknown.
    fn text(&self, row: usize) -> Option<Cow<'_, str>> {
        match &self.cells[row] {
            ReportCell::Unknown => None,
            ReportCell::Text(text) => Some(text.into()),
            ReportCell::Amount(amount) => Some(self.heading.unit.print(*amount).into()),
        }
    }
}

pub(super) struct DayPlot {
    pub(super) title: String,
    pub(super) unit: CellUnit,
    /// Their names; an amount of another series is the last of its day.
    pub(super) series: Vec<String>,
    /// The date, and the amount of each series.
    pub(super) days: Vec<(String, Vec<i128>)>,
}

pub(super) enum ReportPart {
    /// A table below its caption, which may have several lines.
    Table(String, ReportTable),
    Note(String),
    /// Only HTML draws it.
    Plot(DayPlot),
}

#[derive(Default)]
pub(super) struct Report {
    pub(super) title: String,
    /// Lines below the title.
    pub(super) head: Vec<String>,
    /// What a reader must know before the numbers.
    pub(super) marks: Vec<String>,
    pub(super) parts: Vec<ReportPart>,
    pub(super) legend: Vec<(String, String)>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn rounded_amounts_sum_to_their_rounded_total_and_each_moves_by_less_than_a_digit(
            exact in proptest::collection::vec(-2_592_000_000_000_000_i128..2_592_000_000_000_000, 0..30),
        ) {
            for unit in [CellUnit::Hours, CellUnit::Money, CellUnit::Seconds, CellUnit::Text] {
                let (digit, _) = unit.last_digit();
                let rounded = unit.round(&exact);
                let [sum, rounded_sum] = [&exact, &rounded].map(|amounts| amounts.iter().sum::<i128>());
                prop_assert!(rounded_sum % digit == 0 && 2 * (rounded_sum - sum).abs() <= digit);
                for (exact, rounded) in exact.iter().zip(&rounded) {
                    prop_assert!(rounded % digit == 0 && (exact - rounded).abs() < digit.max(1));
                }
                prop_assert_eq!(&unit.round(&rounded), &rounded, "what is rounded stays");
            }
        }
    }

    #[test]
    fn the_largest_fraction_is_raised_first_and_ties_in_their_order() {
        let thirds = [120_000_000; 3];
        assert_eq!(CellUnit::Hours.round(&thirds), [360_000_000, 0, 0]);
        assert_eq!(CellUnit::Money.round(&[60_000, 90_000, 0, -10_000]), [0, 100_000, 0, 0]);
    }

    #[test]
    fn an_amount_is_printed_with_every_place_and_rounded_half_up() {
        assert_eq!(CellUnit::Hours.print(4_444_200_000_000), "1.2345");
        assert_eq!(
            [0, -100_000, 49_999].map(|amount| CellUnit::Money.print(amount)),
            ["0.0000", "-0.0001", "0.0000"]
        );
        let seconds = [-40_000_000, 149_999_999, -60_000_000_000].map(|time| CellUnit::Seconds.print(time));
        assert_eq!(seconds, ["0.0", "0.1", "-60.0"]);
    }

    fn table(rows: &[(&str, Option<i128>)]) -> ReportTable {
        let columns = [
            Column::new("name", CellUnit::Text, |row: &(&str, Option<i128>)| row.0.to_owned().into()),
            Column::new("held", CellUnit::Hours, |row: &(&str, Option<i128>)| {
                row.1.map_or(ReportCell::Unknown, ReportCell::Amount)
            })
            .help("what it held"),
        ];
        ReportTable::new(columns, rows, Some(&("total", None))).for_people()
    }

    #[test]
    fn an_unknown_cell_is_no_zero_and_a_column_that_says_nothing_is_left_out_with_its_explanation() {
        let some = table(&[("a", Some(3_600_000_000_000)), ("b", None)]);
        assert_eq!(text::table(&some), "name     held\na      1.0000\nb           -\ntotal  1.0000\n");
        assert_eq!(some.legend(), [("held".to_owned(), "what it held".to_owned())]);
        let none = table(&[("a", Some(100)), ("b", None)]);
        assert_eq!(text::table(&none), "name \na    \nb    \ntotal\n");
        assert!(none.legend().is_empty());
    }
}

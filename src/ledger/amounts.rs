//! The columns of amounts in the tables `account` and `counter`: one list from which they are written, summed and read.
//! A new amount is one row here and a migration.

use rusqlite::Row;

use super::column::{clamped, loaded, stored};
use crate::model::Amounts;

/// A column of `account`, and of `counter` where it is one of [`COUNTER`].
pub(super) struct AmountColumn {
    pub(super) name: &'static str,
    field: fn(&mut Amounts) -> &mut u64,
    /// Whether the driver reports it; see [`clamped`].
    is_reported: bool,
}

const fn counted(name: &'static str, field: fn(&mut Amounts) -> &mut u64) -> AmountColumn {
    AmountColumn { name, field, is_reported: false }
}

const fn reported(name: &'static str, field: fn(&mut Amounts) -> &mut u64) -> AmountColumn {
    AmountColumn { name, field, is_reported: true }
}

const COLUMNS: [AmountColumn; 13] = [
    counted("within_ns", |amounts| &mut amounts.parts.within),
    counted("lent_ns", |amounts| &mut amounts.parts.lent),
    counted("idle_ns", |amounts| &mut amounts.parts.idle),
    counted("unmeasured_ns", |amounts| &mut amounts.parts.unmeasured),
    counted("unavailable_ns", |amounts| &mut amounts.parts.unavailable),
    counted("used_within_ns", |amounts| &mut amounts.used.within),
    counted("used_beyond_ns", |amounts| &mut amounts.used.beyond),
    counted("used_outside_ns", |amounts| &mut amounts.used.outside),
    counted("used_unheld_ns", |amounts| &mut amounts.used.unheld),
    reported("energy_static_uj", |amounts| &mut amounts.energy_static.0),
    reported("energy_dynamic_uj", |amounts| &mut amounts.energy_dynamic.0),
    reported("memory_byte_seconds", |amounts| &mut amounts.memory_byte_seconds),
    counted("measured_ns", |amounts| &mut amounts.measured),
];

/// Columns of `account`.
pub(super) static ACCOUNT: &[AmountColumn; 13] = &COLUMNS;

/// Columns of `counter`: the first of those.
pub(super) static COUNTER: &[AmountColumn; 11] = match COLUMNS.first_chunk() {
    Some(columns) => columns,
    None => unreachable!(),
};

/// The parts of held time: the first of those.
pub(super) static PARTS: &[AmountColumn; 5] = match COLUMNS.first_chunk() {
    Some(columns) => columns,
    None => unreachable!(),
};

/// An SQL expression of each column, joined by the text `between`.
pub(super) fn join_expressions(
    columns: &[AmountColumn],
    between: &str,
    expression: impl Fn(&AmountColumn) -> String,
) -> String {
    columns.iter().map(expression).collect::<Vec<_>>().join(between)
}

/// The names of columns, separated by commas.
pub(super) fn names(columns: &[AmountColumn]) -> String {
    join_expressions(columns, ",", |column| column.name.to_owned())
}

impl AmountColumn {
    /// The SQL assignment that adds a new row's value to the stored one.
    pub(super) fn addition(&self) -> String {
        let name = self.name;
        if self.is_reported {
            format!("{name}={name}+min(excluded.{name},{}-{name})", i64::MAX)
        } else {
            format!("{name}={name}+excluded.{name}")
        }
    }
}

/// Writes amounts into the parameters of a statement.
pub(super) fn store(columns: &[AmountColumn], amounts: &Amounts, values: &mut [i64]) -> rusqlite::Result<()> {
    let mut amounts = *amounts;
    for (column, value) in columns.iter().zip(values) {
        let amount = *(column.field)(&mut amounts);
        *value = if column.is_reported { clamped(amount) } else { stored(amount)? };
    }
    Ok(())
}

/// Reads amounts from the columns that begin at `first`.
pub(super) fn load(columns: &[AmountColumn], row: &Row<'_>, first: usize) -> rusqlite::Result<Amounts> {
    let mut amounts = Amounts::default();
    for (index, column) in columns.iter().enumerate() {
        *(column.field)(&mut amounts) = loaded(row, first + index)?;
    }
    Ok(amounts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ledger::schema::open_writer;
    use crate::model::Utc;

    #[test]
    fn the_tables_have_these_columns_between_their_keys_and_their_grades() {
        let directory = tempfile::tempdir().unwrap();
        let (connection, _) = open_writer(&directory.path().join("ledger.db"), Utc(0)).unwrap();
        let columns = |table: &str| -> Vec<String> {
            let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1)").unwrap();
            statement.query_map([table], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        let account =
            format!("minute_ns,gpu,holder,gpu_instance,profile,{},grade,method,source", names(ACCOUNT));
        assert_eq!(columns("account").join(","), account);
        assert_eq!(
            columns("counter").join(","),
            format!("gpu,holder,gpu_instance,born_ns,{}", names(COUNTER))
        );
        assert_eq!(PARTS.iter().map(|column| column.name).next_back(), Some("unavailable_ns"));
    }
}

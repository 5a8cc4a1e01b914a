//! The amounts as columns of the tables `account` and `counter`. Their units are those of the model, but for maxima of memory: of
//! each row they need two bytes less in KiB, in which memory is given out.

use rusqlite::Row;

use super::column::{clamped, loaded, stored};
use crate::model::{AMOUNTS, Amount, AmountKind, Amounts};

pub(super) const ACCOUNT: &[Amount] = AMOUNTS;

/// The columns of `counter`: the first of those.
pub(super) const COUNTER: &[Amount] = AMOUNTS.split_at(11).0;

const KIB: u64 = 1024;

/// An SQL expression of each column, joined by the text `between`.
pub(super) fn join_expressions(
    columns: &[Amount],
    between: &str,
    expression: impl Fn(&Amount) -> String,
) -> String {
    columns.iter().map(expression).collect::<Vec<_>>().join(between)
}

/// The names of columns, separated by commas.
pub(super) fn names(columns: &[Amount]) -> String {
    join_expressions(columns, ",", name)
}

/// The name of a column.
pub(super) fn name(amount: &Amount) -> String {
    match amount.kind {
        AmountKind::Maximum => amount.name.replace("_bytes", "_kib"),
        AmountKind::Counted | AmountKind::Reported => amount.name.to_owned(),
    }
}

pub(super) fn addition(column: &Amount) -> String {
    let name = name(column);
    match column.kind {
        AmountKind::Counted => format!("{name}={name}+excluded.{name}"),
        AmountKind::Reported => format!("{name}={name}+min(excluded.{name},{}-{name})", i64::MAX),
        AmountKind::Maximum => format!("{name}=max({name},excluded.{name})"),
    }
}

pub(super) fn store(columns: &[Amount], amounts: &Amounts, values: &mut [i64]) -> rusqlite::Result<()> {
    for (column, value) in columns.iter().zip(values) {
        let amount = column.of(amounts);
        *value = match column.kind {
            AmountKind::Counted => stored(amount)?,
            AmountKind::Reported => clamped(amount),
            AmountKind::Maximum => clamped(amount.div_ceil(KIB)),
        };
    }
    Ok(())
}

pub(super) fn load(columns: &[Amount], row: &Row<'_>, first: usize) -> rusqlite::Result<Amounts> {
    let mut amounts = Amounts::default();
    for (index, column) in columns.iter().enumerate() {
        let value = loaded(row, first + index)?;
        let is_in_kib = column.kind == AmountKind::Maximum;
        *column.of_mut(&mut amounts) = if is_in_kib { value.saturating_mul(KIB) } else { value };
    }
    Ok(amounts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::accounting::ledger::schema::open_writer;
    use crate::model::Utc;

    #[test]
    fn the_tables_have_these_columns_between_their_keys_and_their_grades() {
        let directory = tempfile::tempdir().unwrap();
        let (connection, _) = open_writer(&directory.path().join("ledger.db"), Utc(0)).unwrap();
        let columns = |table: &str| -> Vec<String> {
            let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1)").unwrap();
            statement.query_map([table], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        let account = format!(
            "minute_ns,gpu,holder,gpu_instance,profile,{},grade,method,source,granted_by",
            names(ACCOUNT)
        );
        assert_eq!(columns("account").join(","), account);
        assert_eq!(
            columns("counter").join(","),
            format!("gpu,holder,gpu_instance,born_ns,{}", names(COUNTER))
        );
    }
}

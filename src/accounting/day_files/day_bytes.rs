//! Writes the file of a day: Parquet with the header and a digest of the rows in its metadata. The same day makes the same bytes.

use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::KeyValue;

use super::columns::{Cell, KEYS, KeyColumn, MONEY, SUMS, Sums, message_type, signed};
use super::control::{
    DIGEST_KEY, FORMAT, FORMAT_KEY, FileHeader, HEADER_KEY, MICROSECOND, RowDigest, digest_of,
};
use super::parquet_column::{ParquetCell, write_parquet};
use crate::accounting::billing::{BillLine, DayAccount, DayHeader, DayRow};

/// The bytes of a day's file.
///
/// # Errors
/// Those of the Parquet writer.
pub fn write_day(day: &DayAccount) -> ParquetResult<Vec<u8>> {
    write_columns(day, KEYS)
}

fn write_columns(day: &DayAccount, columns: &[KeyColumn]) -> ParquetResult<Vec<u8>> {
    let mut rows: Vec<(Vec<Cell<'_>>, &DayRow)> = day
        .rows
        .iter()
        .map(|row| (columns.iter().map(|column| (column.of)(&day.header, row)).collect(), row))
        .collect();
    rows.sort_by(|(left, one), (right, other)| (left, one.from).cmp(&(right, other.from)));
    let metadata = metadata(&day.header, columns, &rows)?;
    let quarters = rows.iter().map(|(_, row)| ParquetCell::Integer(quarter_of(row))).collect();
    let keys = (0..columns.len()).map(|place| rows.iter().map(|(cells, _)| cell(&cells[place])).collect());
    let sum = |row: &DayRow, column: usize| ParquetCell::Integer(signed(*SUMS[column].of(&mut sums_of(row))));
    let sums = (0..SUMS.len()).map(|column| rows.iter().map(|(_, row)| sum(row, column)).collect());
    let money = MONEY
        .iter()
        .map(|column| rows.iter().map(|(_, row)| ParquetCell::Decimal((column.of)(row).parts())).collect());
    let cells = std::iter::once(quarters).chain(keys).chain(sums).chain(money);
    write_parquet(&message_type(columns), "gpumeter", cells, metadata)
}

fn metadata(
    header: &DayHeader,
    columns: &[KeyColumn],
    rows: &[(Vec<Cell<'_>>, &DayRow)],
) -> ParquetResult<Vec<KeyValue>> {
    let mut digest = RowDigest::default();
    for (cells, row) in rows {
        let read = columns.iter().zip(cells).filter(|(column, _)| column.is_read);
        digest.add_keys(read.map(|(_, cell)| cell));
        digest.add_row(quarter_of(row), &sums_of(row).numbers(), [row.line.exact, row.line.exact_energy]);
    }
    let header = FileHeader { day: header.clone(), rows: digest.finish() };
    let header = serde_json::to_string(&header).map_err(|error| ParquetError::External(error.into()))?;
    Ok(vec![
        KeyValue::new(FORMAT_KEY.to_owned(), FORMAT.to_string()),
        KeyValue::new(DIGEST_KEY.to_owned(), digest_of(header.as_bytes())),
        KeyValue::new(HEADER_KEY.to_owned(), header),
    ])
}

fn quarter_of(row: &DayRow) -> i64 {
    signed(row.from.0 / MICROSECOND)
}

fn cell(cell: &Cell<'_>) -> ParquetCell {
    match cell {
        Cell::Text(Some(text)) => ParquetCell::Text(ByteArray::from(text.as_bytes().to_vec())),
        Cell::Integer(Some(number)) => ParquetCell::Integer(*number),
        Cell::Text(None) | Cell::Integer(None) => ParquetCell::Null,
    }
}

fn sums_of(row: &DayRow) -> Sums {
    let BillLine { amounts, charged, unpriced, .. } = &row.line;
    Sums { amounts: *amounts, charged: charged.0, unpriced: unpriced.0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::super::day_file::{DayFile, RunLimits};
    use super::*;
    use crate::accounting::billing::DayRevision;
    use crate::model::{
        Amounts, DAY, GpuId, HolderId, HoldingSource, Nanoseconds, NodeIdentity, Parts, QUARTER_HOUR,
        TimeSum, Utc,
    };

    #[test]
    fn a_file_without_a_later_column_is_read_with_empty_cells() {
        let from = Utc(20_000 * DAY.0);
        let parts = Parts { idle: QUARTER_HOUR.0, ..Parts::default() };
        let line = BillLine {
            tenant: "a".to_owned(),
            amounts: Amounts { parts, ..Amounts::default() },
            granted_by: vec![HoldingSource::Slurm, HoldingSource::Presence],
            unpriced: Nanoseconds(parts.held()),
            ..BillLine::empty(GpuId { index: 0, uuid: "GPU-0".into() }, HolderId::new("user:a"))
        };
        let node = Arc::new(NodeIdentity::default());
        let row = DayRow { from, to: from.plus(QUARTER_HOUR), node, gpu_rate: None, line };
        let revision = DayRevision { slot: TimeSum(QUARTER_HOUR.0.into()), ..DayRevision::default() };
        let header = DayHeader { day: from, revision, ..DayHeader::default() };
        let day = DayAccount { header, rows: vec![row.clone()] };
        let read = |bytes: Vec<u8>| {
            let alone = BTreeSet::new();
            let to = from.plus(DAY);
            let limits = RunLimits { from, to, cuts: &[], by_quarter: &alone, all_by_quarter: true };
            let mut runs = Vec::new();
            let file = DayFile::of_bytes(bytes).unwrap();
            file.read_runs(limits, |run| {
                runs.push(run);
                Ok(())
            })
            .unwrap();
            runs
        };
        assert_eq!(read(write_day(&day).unwrap()), std::slice::from_ref(&row));
        let (last, earlier) = KEYS.split_last().unwrap();
        assert_eq!(last.name, "granted_by");
        let line = BillLine { granted_by: Vec::new(), ..row.line.clone() };
        assert_eq!(read(write_columns(&day, earlier).unwrap()), [DayRow { line, ..row }]);
    }
}

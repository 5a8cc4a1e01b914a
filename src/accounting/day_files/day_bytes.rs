//! Writes the file of a day: Parquet with the header and a digest of the rows in its metadata. The same day makes the same bytes.

use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::KeyValue;

use super::columns::{Cell, KEYS, MONEY, SUMS, Sums, message_type, signed};
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
    let mut rows: Vec<(Vec<Cell<'_>>, &DayRow)> = day
        .rows
        .iter()
        .map(|row| (KEYS.iter().map(|column| (column.of)(&day.header, row)).collect(), row))
        .collect();
    rows.sort_by(|(left, one), (right, other)| (left, one.from).cmp(&(right, other.from)));
    let metadata = metadata(&day.header, &rows)?;
    let quarters = rows.iter().map(|(_, row)| ParquetCell::Integer(quarter_of(row))).collect();
    let keys = (0..KEYS.len()).map(|place| rows.iter().map(|(cells, _)| cell(&cells[place])).collect());
    let sum = |row: &DayRow, column: usize| ParquetCell::Integer(signed(*SUMS[column].of(&mut sums_of(row))));
    let sums = (0..SUMS.len()).map(|column| rows.iter().map(|(_, row)| sum(row, column)).collect());
    let money = MONEY
        .iter()
        .map(|column| rows.iter().map(|(_, row)| ParquetCell::Decimal((column.of)(row).parts())).collect());
    let columns = std::iter::once(quarters).chain(keys).chain(sums).chain(money);
    write_parquet(&message_type(), "gpumeter", columns, metadata)
}

fn metadata(header: &DayHeader, rows: &[(Vec<Cell<'_>>, &DayRow)]) -> ParquetResult<Vec<KeyValue>> {
    let mut digest = RowDigest::default();
    for (cells, row) in rows {
        let read = KEYS.iter().zip(cells).filter(|(column, _)| column.is_read);
        digest.add_keys(read.map(|(_, cell)| cell));
        digest.add_row(quarter_of(row), &sums_of(row), [row.line.exact, row.line.exact_energy]);
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

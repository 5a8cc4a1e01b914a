//! Writes the file of a day: Parquet with the header and control sums in its metadata. The same day makes the same bytes.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::columns::{Cell, ColumnType, KEYS, MONEY, SUMS, Sums, message_type, signed};
use super::control::{
    ColumnSums, DIGEST_KEY, FORMAT, FORMAT_KEY, FileHeader, HEADER_KEY, KeyDigest, MICROSECOND, digest_of,
};
use super::parquet_column::{decimal, write_optional, write_required};
use crate::accounting::billing::{BillLine, DayAccount, DayRow, ExactMoney};

/// The bytes of a day's file.
///
/// # Errors
/// Those of the Parquet writer.
pub fn write_day(day: &DayAccount) -> ParquetResult<Vec<u8>> {
    let header = &day.header;
    let mut rows: Vec<(Vec<Cell<'_>>, &DayRow)> = day
        .rows
        .iter()
        .map(|row| (KEYS.iter().map(|column| (column.of)(header, row)).collect(), row))
        .collect();
    rows.sort_by(|(left, one), (right, other)| (left, one.from).cmp(&(right, other.from)));
    let schema = Arc::new(parse_message_type(&message_type())?);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("gpumeter".to_owned())
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let mut control = ColumnSums::default();
    let mut group = writer.next_row_group()?;
    let quarters: Vec<i64> = rows.iter().map(|(_, row)| signed(row.from.0 / MICROSECOND)).collect();
    write_required::<Int64Type>(&mut group, &quarters)?;
    write_keys(&mut group, &rows)?;
    for column in SUMS {
        let numbers: Vec<i64> = rows.iter().map(|(_, row)| signed(*column.of(&mut sums_of(row)))).collect();
        control.add(column.name, numbers.iter().map(|number| i128::from(*number)));
        write_required::<Int64Type>(&mut group, &numbers)?;
    }
    for column in &MONEY {
        let money: Vec<ExactMoney> = rows.iter().map(|(_, row)| (column.of)(row)).collect();
        control.add(column.name, money.iter().map(|money| money.parts()));
        let money: Vec<FixedLenByteArray> = money.iter().map(|money| decimal(money.parts())).collect();
        write_required::<FixedLenByteArrayType>(&mut group, &money)?;
    }
    group.close()?;
    let mut keys = KeyDigest::default();
    for ((cells, _), quarter) in rows.iter().zip(&quarters) {
        keys.add(KEYS.iter().zip(cells).filter(|(column, _)| column.is_read).map(|(_, cell)| cell.clone()));
        keys.add_row(*quarter);
    }
    let places = keys.places;
    let header = FileHeader { day: header.clone(), sums: control.sums, keys: keys.finish(), places };
    let header = serde_json::to_string(&header).map_err(|error| ParquetError::External(error.into()))?;
    writer.append_key_value_metadata(KeyValue::new(FORMAT_KEY.to_owned(), FORMAT.to_string()));
    writer.append_key_value_metadata(KeyValue::new(DIGEST_KEY.to_owned(), digest_of(header.as_bytes())));
    writer.append_key_value_metadata(KeyValue::new(HEADER_KEY.to_owned(), header));
    writer.into_inner()
}

/// Writes the columns that tell rows apart.
fn write_keys(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    rows: &[(Vec<Cell<'_>>, &DayRow)],
) -> ParquetResult<()> {
    for (place, column) in KEYS.iter().enumerate() {
        let cells = rows.iter().map(|(cells, _)| &cells[place]);
        match column.column_type {
            ColumnType::Text => {
                let texts = cells.map(|cell| match cell {
                    Cell::Text(text) => text.as_ref().map(|text| ByteArray::from(text.as_bytes().to_vec())),
                    Cell::Integer(_) => None,
                });
                write_optional::<ByteArrayType>(group, texts)?;
            }
            ColumnType::Integer => {
                let numbers = cells.map(|cell| match cell {
                    Cell::Integer(number) => *number,
                    Cell::Text(_) => None,
                });
                write_optional::<Int64Type>(group, numbers)?;
            }
        }
    }
    Ok(())
}

fn sums_of(row: &DayRow) -> Sums {
    let BillLine { amounts, charged, unpriced, .. } = &row.line;
    Sums { amounts: *amounts, charged: charged.0, unpriced: unpriced.0 }
}

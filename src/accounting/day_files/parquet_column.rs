//! Writes Parquet files of one row group, for day files and for FOCUS.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

/// What a row has in a column.
pub enum ParquetCell {
    Null,
    Text(ByteArray),
    Integer(i64),
    /// A decimal of 16 bytes, in units of its last place.
    Decimal(i128),
}

/// The bytes of a file whose schema is in Parquet's language. `columns` has the cells of each of its columns.
///
/// # Errors
/// Those of the Parquet writer.
pub fn write_parquet(
    schema: &str,
    created_by: &str,
    columns: impl IntoIterator<Item = Vec<ParquetCell>>,
    metadata: Vec<KeyValue>,
) -> ParquetResult<Vec<u8>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(created_by.to_owned())
        .set_key_value_metadata(Some(metadata))
        .build();
    let schema = Arc::new(parse_message_type(schema)?);
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    for cells in columns {
        let column = group.next_column()?;
        let fewer = || ParquetError::General("the schema has fewer columns than are written".into());
        write_column(column.ok_or_else(fewer)?, cells)?;
    }
    group.close()?;
    file.into_inner()
}

fn write_column(mut column: SerializedColumnWriter<'_>, cells: Vec<ParquetCell>) -> ParquetResult<()> {
    // Ignored where the column must have a value in every row.
    let levels: Vec<i16> = cells.iter().map(|cell| (!matches!(cell, ParquetCell::Null)).into()).collect();
    let (mut texts, mut integers, mut decimals) = (Vec::new(), Vec::new(), Vec::new());
    for cell in cells {
        match cell {
            ParquetCell::Null => {}
            ParquetCell::Text(text) => texts.push(text),
            ParquetCell::Integer(number) => integers.push(number),
            ParquetCell::Decimal(number) => {
                decimals.push(ByteArray::from(number.to_be_bytes().to_vec()).into());
            }
        }
    }
    match column.untyped() {
        ColumnWriter::ByteArrayColumnWriter(writer) => writer.write_batch(&texts, Some(&levels), None)?,
        ColumnWriter::Int64ColumnWriter(writer) => writer.write_batch(&integers, Some(&levels), None)?,
        ColumnWriter::FixedLenByteArrayColumnWriter(writer) => {
            writer.write_batch(&decimals, Some(&levels), None)?
        }
        _ => return Err(ParquetError::General("the schema has a column of another type".into())),
    };
    column.close()
}

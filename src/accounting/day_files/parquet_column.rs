//! Writes the columns of Parquet files, one after the other.

use parquet::data_type::{ByteArray, DataType, FixedLenByteArray};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::writer::SerializedRowGroupWriter;

/// The number of a decimal, of 16 bytes.
pub fn decimal(number: i128) -> FixedLenByteArray {
    ByteArray::from(number.to_be_bytes().to_vec()).into()
}

/// Writes the next column of a group, which has a value in every row.
///
/// # Errors
/// Those of the Parquet writer.
pub(super) fn write_required<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
) -> ParquetResult<()> {
    write::<T>(group, values, None)
}

/// Writes the next column of a group, which may lack values.
///
/// # Errors
/// Those of the Parquet writer.
pub fn write_optional<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    cells: impl Iterator<Item = Option<T::T>>,
) -> ParquetResult<()> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    for cell in cells {
        levels.push(cell.is_some().into());
        values.extend(cell);
    }
    write::<T>(group, &values, Some(&levels))
}

fn write<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> ParquetResult<()> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("the schema has fewer columns than are written".into()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

//! Reads the file of a day, and refuses one that is not as it was written.

use std::collections::BTreeSet;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FixedLenByteArrayType, Int64Type};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, FileReader, RowGroupReader, SerializedFileReader};
use serde::de::DeserializeOwned;

use super::columns::{Cell, ColumnType, KEYS, MONEY, QUARTER, SUMS, SumNumbers, Sums};
use super::control::{
    DIGEST_KEY, FORMAT, FORMAT_KEY, FileHeader, HEADER_KEY, MICROSECOND, RowDigest, digest_of,
};
use super::directory::{DayPath, date_of, is_cluster_name};
use super::error::FileProblem;
use super::money_check::{MoneyCheck, RowMoney, RowPrices};
use super::pages::CheckedPages;
use crate::accounting::billing::{BillLine, DayHeader, DayRow, ExactMoney, LineRates};
use crate::model::{
    DAY, GpuId, Grade, HolderId, Method, MigProfile, Nanoseconds, NodeIdentity, QUARTER_HOUR, SlotId, Utc,
};
use crate::runtime::file;

/// The most rows of a file: 450 times those of 16 GPUs with 7 instances of 4 holders each.
const MOST_ROWS: i64 = 20_000_000;
/// The most bytes of a file when it is decompressed.
const MOST_BYTES: i64 = 4 << 30;
const BATCH: usize = 8_192;
/// Times, energies and memory of a row are smaller, so that those of a row can be added up.
const MOST_OF_ROW: u64 = 1 << 60;

pub struct DayFile<R: ChunkReader + 'static> {
    reader: SerializedFileReader<CheckedPages<R>>,
    header: FileHeader,
}

/// Limits at which runs end, besides changes of a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLimits<'a> {
    pub(super) from: Utc,
    pub(super) to: Utc,
    /// No run goes over one of these times; they are in order.
    pub(super) cuts: &'a [Utc],
    /// Runs of these GPUs are of one quarter hour each, and of the whole day.
    pub(super) by_quarter: &'a BTreeSet<Arc<str>>,
    pub(super) all_by_quarter: bool,
}

impl DayFile<File> {
    /// Opens a file on disk; only what is read of it is in memory.
    ///
    /// # Errors
    /// The file cannot be read, or is no export that this version reads.
    pub fn open(path: &Path) -> Result<Self, FileProblem> {
        Self::read(file::open(path)?)
    }
}

impl DayFile<Bytes> {
    /// Opens a file in memory.
    ///
    /// # Errors
    /// It is no export that this version reads.
    pub fn of_bytes(bytes: Vec<u8>) -> Result<Self, FileProblem> {
        Self::read(bytes.into())
    }
}

/// Runs what reads a file. The Parquet reader panics on some damaged files.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, FileProblem>) -> Result<T, FileProblem> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(FileProblem::Damaged("its pages cannot be decoded".to_owned())))
}

impl<R: ChunkReader + 'static> DayFile<R> {
    pub(super) fn read(source: R) -> Result<Self, FileProblem> {
        guarded(|| Self::read_footer(source))
    }

    fn read_footer(source: R) -> Result<Self, FileProblem> {
        let reader = SerializedFileReader::new(CheckedPages(source))?;
        let header: FileHeader = read_header(reader.metadata())?;
        let DayHeader { day, revision, .. } = &header.day;
        if revision.settled_until > day.plus(DAY) {
            return Err(FileProblem::Damaged(format!(
                "it says to go on after its day, up to {}",
                revision.settled_until
            )));
        }
        Ok(Self { reader, header })
    }

    pub const fn header(&self) -> &DayHeader {
        &self.header.day
    }

    pub(super) fn into_header(self) -> DayHeader {
        self.header.day
    }

    /// Gives the runs of rows within the limits to `take` and checks all rows. An error invalidates all runs.
    pub(super) fn read_runs(
        &self,
        limits: RunLimits<'_>,
        take: impl FnMut(DayRow) -> Result<(), FileProblem>,
    ) -> Result<(), FileProblem> {
        guarded(|| self.read_groups(limits, take))
    }

    fn read_groups(
        &self,
        limits: RunLimits<'_>,
        take: impl FnMut(DayRow) -> Result<(), FileProblem>,
    ) -> Result<(), FileProblem> {
        let mut draft = RunDraft {
            day: self.header.day.day,
            limits,
            digest: RowDigest::default(),
            held: 0,
            money: MoneyCheck::new(&self.header.day)?,
            take,
        };
        for group in 0..self.reader.num_row_groups() {
            let mut group = GroupReader::open(&self.reader, group)?;
            while let Some(rows) = group.next_rows()? {
                draft.add(&rows)?;
            }
        }
        draft.money.finish_slot()?;
        if self.header.rows != draft.digest.finish() {
            return Err(FileProblem::Damaged("its rows are not what was written".to_owned()));
        }
        // The ledger recorded the time of the GPUs themselves too.
        let DayHeader { revision, imbalance, .. } = &self.header.day;
        if revision.slot.0.cast_signed() != draft.held + imbalance {
            return Err(FileProblem::Damaged("its rows do not hold the time of its GPUs".to_owned()));
        }
        Ok(())
    }

    pub(super) fn check_place(&self, place: &DayPath) -> Result<(), FileProblem> {
        let DayHeader { day, ledger, cluster, .. } = &self.header.day;
        let is_own = date_of(*day) == place.date && *ledger == place.ledger;
        if is_own && is_cluster_name(&place.cluster, cluster.as_deref()) {
            return Ok(());
        }
        let (day, cluster) = (date_of(*day), cluster.as_deref().unwrap_or("none"));
        Err(FileProblem::Damaged(format!(
            "it is the file of {day} of ledger {ledger} in cluster {cluster}, and in the folder of another"
        )))
    }
}

enum KeyValues {
    Text(Vec<Option<ByteArray>>),
    Integer(Vec<Option<i64>>),
    Missing,
}

impl KeyValues {
    fn is_same(&self, row: usize, other: usize) -> bool {
        match self {
            // Cells of one text are mostly one place in memory.
            Self::Text(texts) => match (&texts[row], &texts[other]) {
                (Some(one), Some(other)) => std::ptr::eq(one.data(), other.data()) || one == other,
                (one, other) => one.is_none() && other.is_none(),
            },
            Self::Integer(numbers) => numbers[row] == numbers[other],
            Self::Missing => true,
        }
    }

    /// The cell of a row; none where the file lacks the column.
    fn cell(&self, row: usize) -> Result<Option<Cell<'_>>, FileProblem> {
        Ok(match self {
            Self::Text(texts) => {
                let text = texts[row].as_ref().map(ByteArray::as_utf8).transpose()?;
                Some(Cell::Text(text.map(Into::into)))
            }
            Self::Integer(numbers) => Some(Cell::Integer(numbers[row])),
            Self::Missing => None,
        })
    }
}

/// What a file says of itself in its footer; an error where it would take too long or too much memory, or where the header is not
/// what was written.
pub(super) fn read_header<T: DeserializeOwned>(metadata: &ParquetMetaData) -> Result<T, FileProblem> {
    check_size(metadata)?;
    let value = |key: &str| {
        let mut all = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        all.find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref())
    };
    let format = value(FORMAT_KEY).and_then(|format| format.parse().ok()).ok_or(FileProblem::Foreign)?;
    if format > FORMAT {
        return Err(FileProblem::Newer(format));
    }
    let header = value(HEADER_KEY).ok_or(FileProblem::Foreign)?;
    if value(DIGEST_KEY) != Some(&*digest_of(header.as_bytes())) {
        return Err(FileProblem::Damaged("its header is not what was written".to_owned()));
    }
    serde_json::from_str(header)
        .map_err(|error| FileProblem::Damaged(format!("its header cannot be read: {error}")))
}

/// Refuses a file by its footer if it would take too long or too much memory.
fn check_size(metadata: &ParquetMetaData) -> Result<(), FileProblem> {
    let groups = metadata.row_groups();
    let rows = groups.iter().map(|group| group.num_rows());
    let bytes = groups.iter().flat_map(|group| group.columns()).map(|column| column.uncompressed_size());
    let sum = |mut numbers: Box<dyn Iterator<Item = i64> + '_>| {
        numbers.try_fold(0_i64, |sum, number| sum.checked_add(number).filter(|_| number >= 0))
    };
    match (sum(Box::new(rows)), sum(Box::new(bytes))) {
        (Some(rows), Some(bytes)) if rows <= MOST_ROWS && bytes <= MOST_BYTES => Ok(()),
        (Some(rows), Some(bytes)) => Err(FileProblem::TooLarge { rows, bytes }),
        _ => Err(FileProblem::Damaged("its footer has sizes that no file has".to_owned())),
    }
}

struct GroupReader {
    left: usize,
    quarters: ColumnReaderImpl<Int64Type>,
    keys: Vec<KeyReader>,
    sums: Vec<ColumnReaderImpl<Int64Type>>,
    money: Vec<ColumnReaderImpl<FixedLenByteArrayType>>,
}

enum KeyReader {
    Text(ColumnReaderImpl<ByteArrayType>),
    Integer(ColumnReaderImpl<Int64Type>),
    /// The file lacks it: it is empty everywhere.
    Missing,
}

impl GroupReader {
    fn open<R: ChunkReader + 'static>(
        reader: &SerializedFileReader<R>,
        group: usize,
    ) -> Result<Self, FileProblem> {
        let schema = reader.metadata().file_metadata().schema_descr();
        let place = |name: &str| (0..schema.num_columns()).find(|place| schema.column(*place).name() == name);
        let group = reader.get_row_group(group)?;
        let left = usize::try_from(group.metadata().num_rows())
            .map_err(|_| FileProblem::Damaged("it has fewer rows than none".to_owned()))?;
        let needed =
            |name: &str| place(name).ok_or_else(|| FileProblem::Damaged(format!("it has no column {name}")));
        let keys = KEYS.iter().filter(|column| column.is_read).map(|column| {
            Ok(match (column.column_type, place(column.name)) {
                (ColumnType::Text, Some(place)) => KeyReader::Text(open_column(&*group, place)?),
                (ColumnType::Integer, Some(place)) => KeyReader::Integer(open_column(&*group, place)?),
                (_, None) => KeyReader::Missing,
            })
        });
        let sums = SUMS.iter().map(|column| open_column(&*group, needed(column.name)?));
        let money = MONEY.iter().map(|column| open_column(&*group, needed(column.name)?));
        Ok(Self {
            left,
            quarters: open_column(&*group, needed(QUARTER)?)?,
            keys: keys.collect::<Result<_, FileProblem>>()?,
            sums: sums.collect::<Result<_, FileProblem>>()?,
            money: money.collect::<Result<_, FileProblem>>()?,
        })
    }

    /// The next rows; none after the last one.
    fn next_rows(&mut self) -> Result<Option<RowBatch>, FileProblem> {
        let count = self.left.min(BATCH);
        if count == 0 {
            return Ok(None);
        }
        self.left -= count;
        let empty = |name: &str| FileProblem::Damaged(format!("the column {name} has an empty cell"));
        let keys = self.keys.iter_mut().map(|column| {
            Ok(match column {
                KeyReader::Text(column) => KeyValues::Text(read_column(column, count)?),
                KeyReader::Integer(column) => KeyValues::Integer(read_column(column, count)?),
                KeyReader::Missing => KeyValues::Missing,
            })
        });
        let keys = keys.collect::<Result<_, FileProblem>>()?;
        let required = |name: &str, column: &mut ColumnReaderImpl<Int64Type>| {
            let numbers = read_column(column, count)?.into_iter();
            numbers.map(|number| number.ok_or_else(|| empty(name))).collect::<Result<Vec<i64>, FileProblem>>()
        };
        let quarters = required(QUARTER, &mut self.quarters)?;
        let mut sums = vec![[0; SUMS.len()]; count];
        for (place, (column, reader)) in SUMS.iter().zip(&mut self.sums).enumerate() {
            for (row, number) in sums.iter_mut().zip(required(column.name, reader)?) {
                row[place] = u64::try_from(number)
                    .ok()
                    .filter(|number| *number < MOST_OF_ROW)
                    .ok_or_else(|| FileProblem::Damaged(format!("{} is {number} in a row", column.name)))?;
            }
        }
        let money = MONEY.iter().zip(&mut self.money).map(|(column, reader)| {
            let money = read_column(reader, count)?.into_iter().map(|cell| {
                let bytes = cell.as_ref().map(|cell| cell.data()).unwrap_or_default();
                let bytes = bytes.try_into().map_err(|_| empty(column.name))?;
                Ok(ExactMoney::of_parts(i128::from_be_bytes(bytes)))
            });
            money.collect::<Result<Vec<_>, FileProblem>>()
        });
        let money = money.collect::<Result<_, FileProblem>>()?;
        Ok(Some(RowBatch { count, quarters, keys, sums, money }))
    }
}

fn open_column<T: DataType>(
    group: &dyn RowGroupReader,
    place: usize,
) -> Result<ColumnReaderImpl<T>, FileProblem> {
    let found = group.metadata().column(place).column_type();
    if found != T::get_physical_type() {
        return Err(FileProblem::Damaged(format!("column {place} has type {found}")));
    }
    Ok(get_typed_column_reader::<T>(group.get_column_reader(place)?))
}

fn read_column<T: DataType>(
    column: &mut ColumnReaderImpl<T>,
    count: usize,
) -> Result<Vec<Option<T::T>>, FileProblem> {
    let (mut values, mut levels) = (Vec::with_capacity(count), Vec::new());
    let (rows, ..) = column.read_records(count, Some(&mut levels), None, &mut values)?;
    if rows != count {
        return Err(FileProblem::Damaged("a column has fewer rows than the others".to_owned()));
    }
    if values.len() == count {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    Ok(levels.iter().map(|level| if *level > 0 { values.next() } else { None }).collect())
}

struct RowBatch {
    count: usize,
    quarters: Vec<i64>,
    /// In the order of the columns of [`KEYS`] that are read.
    keys: Vec<KeyValues>,
    sums: Vec<SumNumbers>,
    money: Vec<Vec<ExactMoney>>,
}

struct RunDraft<'a, F> {
    day: Utc,
    limits: RunLimits<'a>,
    digest: RowDigest,
    /// Held time of all rows, in nanoseconds.
    held: i128,
    money: MoneyCheck<'a>,
    take: F,
}

impl<F: FnMut(DayRow) -> Result<(), FileProblem>> RunDraft<'_, F> {
    /// Adds the next rows; no run goes from one such call to the next.
    fn add(&mut self, rows: &RowBatch) -> Result<(), FileProblem> {
        let limits = self.limits;
        // What holds for the rows of the last run, and that run with its interval between two cuts while it goes on.
        let mut last: Option<(DayRow, RowPrices)> = None;
        let mut current: Option<(usize, DayRow)> = None;
        for row in 0..rows.count {
            let is_same = row > 0 && rows.keys.iter().all(|column| column.is_same(row, row - 1));
            let quarter = Utc(u64::try_from(rows.quarters[row]).unwrap_or(0).saturating_mul(MICROSECOND));
            if quarter.floor(QUARTER_HOUR) != quarter || quarter.floor(DAY) != self.day {
                return Err(FileProblem::Damaged(format!(
                    "a row is of {quarter}, no quarter hour of its day"
                )));
            }
            if !is_same {
                let cells = RowCells::read(rows, row)?;
                self.digest.add_keys(cells.0.iter().map(|(_, cell)| cell));
                let empty = cells.run(quarter)?;
                let prices = self.money.prices(&empty)?;
                last = Some((empty, prices));
            }
            let Some((empty, prices)) = &last else { continue };
            let money = [rows.money[0][row], rows.money[1][row]];
            self.digest.add_row(rows.quarters[row], &rows.sums[row], money);
            let sums = Sums::of_numbers(&rows.sums[row]);
            self.held += i128::from(sums.amounts.parts.held());
            self.money.add(prices, &RowMoney { quarter, sums: &sums, money })?;
            let is_alone = limits.by_quarter.contains(&empty.line.gpu.uuid);
            let is_inside = is_alone || limits.from <= quarter && quarter < limits.to;
            let interval = limits.cuts.partition_point(|cut| *cut <= quarter);
            let goes_on = is_same && is_inside && !is_alone && !limits.all_by_quarter;
            if !(goes_on && current.as_ref().is_some_and(|(of, _)| *of == interval))
                && let Some((_, run)) = current.take()
            {
                (self.take)(run)?;
            }
            if is_inside {
                let (_, run) =
                    current.get_or_insert_with(|| (interval, DayRow { from: quarter, ..empty.clone() }));
                run.to = quarter.plus(QUARTER_HOUR);
                add_to_run(run, &sums, money)?;
            }
        }
        current.map_or(Ok(()), |(_, run)| (self.take)(run))
    }
}

fn add_to_run(run: &mut DayRow, sums: &Sums, [money, energy]: [ExactMoney; 2]) -> Result<(), FileProblem> {
    let line = &mut run.line;
    line.add_amounts(&sums.amounts, [sums.charged, sums.unpriced].map(Nanoseconds))?;
    line.exact = line.exact.plus(money)?;
    line.exact_energy = line.exact_energy.plus(energy)?;
    Ok(())
}

/// The cells of a row that tell it apart, by column.
struct RowCells<'a>(Vec<(&'static str, Cell<'a>)>);

impl<'a> RowCells<'a> {
    fn read(rows: &'a RowBatch, row: usize) -> Result<Self, FileProblem> {
        let columns = KEYS.iter().filter(|column| column.is_read).zip(&rows.keys);
        columns
            .filter_map(|(column, values)| {
                Some(values.cell(row).transpose()?.map(|cell| (column.name, cell)))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// A run without amounts that begins with the row.
    fn run(&self, from: Utc) -> Result<DayRow, FileProblem> {
        let holder = HolderId::new(self.needed("workload")?);
        let line = BillLine {
            tenant: self.needed("tenant")?.to_owned(),
            labels: self
                .text("labels")
                .map(serde_json::from_str)
                .transpose()
                .map_err(|_| self.damaged("labels"))?
                .unwrap_or_default(),
            slot: self.slot()?,
            rates: LineRates {
                time: self.number("rate"),
                energy: self.number("energy_rate"),
                carbon: self.number("carbon_rate"),
                terms: self.number("terms"),
            },
            grade: named::<Grade>(self.needed("grade")?).ok_or_else(|| self.damaged("grade"))?,
            method: named::<Method>(self.needed("method")?).ok_or_else(|| self.damaged("method"))?,
            coarse: self.number("coarse").is_some_and(|coarse| coarse != 0),
            sources: self.names("sources")?,
            granted_by: self.names("granted_by")?,
            ..BillLine::empty(
                GpuId {
                    index: self.unsigned("gpu")?.ok_or_else(|| self.damaged("gpu"))?,
                    uuid: self.needed("gpu_uuid")?.into(),
                },
                holder.with_version(self.unsigned("workload_version")?.unwrap_or(0)),
            )
        };
        Ok(DayRow { from, to: from, node: self.node().into(), gpu_rate: self.number("gpu_rate"), line })
    }

    fn damaged(&self, name: &str) -> FileProblem {
        FileProblem::Damaged(format!("its column {name} has a text or number that gpumeter does not write"))
    }

    fn cell(&self, name: &str) -> Option<&Cell<'a>> {
        self.0.iter().find(|(column, _)| *column == name).map(|(_, cell)| cell)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.cell(name) {
            Some(Cell::Text(text)) => text.as_deref(),
            _ => None,
        }
    }

    /// Names between commas.
    fn names<T: DeserializeOwned>(&self, column: &str) -> Result<Vec<T>, FileProblem> {
        let names = self.text(column).unwrap_or_default().split(',').filter(|name| !name.is_empty());
        names.map(|name| named(name).ok_or_else(|| self.damaged(column))).collect()
    }

    fn needed(&self, name: &str) -> Result<&str, FileProblem> {
        self.text(name).ok_or_else(|| self.damaged(name))
    }

    fn number(&self, name: &str) -> Option<i64> {
        match self.cell(name) {
            Some(Cell::Integer(number)) => *number,
            _ => None,
        }
    }

    fn unsigned<T: TryFrom<i64>>(&self, name: &str) -> Result<Option<T>, FileProblem> {
        self.number(name).map(|number| T::try_from(number).map_err(|_| self.damaged(name))).transpose()
    }

    fn slot(&self) -> Result<SlotId, FileProblem> {
        let (size, total) = (self.unsigned("mig_size")?, self.unsigned("mig_total")?);
        let profile = match (self.text("mig_profile"), size, total) {
            (Some(name), Some(size), Some(total)) => Some(MigProfile { name: name.into(), size, total }),
            _ => None,
        };
        Ok(SlotId { gpu_instance: self.unsigned("gpu_instance")?, profile })
    }

    fn node(&self) -> NodeIdentity {
        let owned = |name: &str| self.text(name).map(str::to_owned);
        NodeIdentity {
            name: owned("node").unwrap_or_default(),
            cluster: owned("cluster"),
            pool: owned("pool"),
            instance_type: owned("instance_type"),
            spot: self.number("spot").map(|spot| spot != 0),
            simulated: false,
        }
    }
}

fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, RowGroupMetaData};
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    fn checked(groups: &[(i64, i64)]) -> Result<(), String> {
        let schema = parse_message_type("message day { required int64 cost; }").unwrap();
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let groups = groups.iter().map(|(rows, bytes)| {
            let column = ColumnChunkMetaData::builder(schema.column(0)).set_total_uncompressed_size(*bytes);
            let group = RowGroupMetaData::builder(Arc::clone(&schema)).set_num_rows(*rows);
            group.add_column_metadata(column.build().unwrap()).build().unwrap()
        });
        let file = FileMetaData::new(1, 0, None, None, Arc::clone(&schema), None);
        check_size(&ParquetMetaData::new(file, groups.collect())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_with_more_than_20_million_rows_or_4_gib_is_refused_by_its_footer() {
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&[(MOST_ROWS - 1, MOST_BYTES - 1), (1, 1)]), Ok(()));
        for groups in [&[(2_700_000, 0); 8][..], &[(1, MOST_BYTES), (1, 1)]] {
            let error = checked(groups).unwrap_err();
            assert!(
                error.contains("above the 20 million rows and 4 GiB") && error.contains("--skip-damaged"),
                "{error}"
            );
        }
        for groups in
            [&[(-1, 0)][..], &[(i64::MAX, 0), (i64::MAX, 0)], &[(1, -1), (1, 1)], &[(0, i64::MAX), (0, 1)]]
        {
            assert!(checked(groups).unwrap_err().contains("sizes that no file has"));
        }
    }
}

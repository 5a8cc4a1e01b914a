//! Reads the file of a day, and refuses one that is not as it was written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FixedLenByteArrayType, Int64Type};
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};

use super::columns::{Cell, ColumnType, KEYS, MONEY, PARTS, QUARTER, SUMS, Sums};
use super::control::{
    DIGEST_KEY, FORMAT, FORMAT_KEY, FileHeader, HEADER_KEY, KeyDigest, MICROSECOND, digest_of,
};
use super::directory::date_of;
use super::error::FileProblem;
use crate::billing::{BillLine, DayHeader, ExactMoney, LineRates};
use crate::input;
use crate::model::{
    ActivitySource, DAY, GpuId, Grade, HolderId, Method, MigProfile, Nanoseconds, NodeIdentity, QUARTER_HOUR,
    SlotId, Utc,
};

/// The most rows of a file: 64 times those of 16 GPUs with 7 instances of 4 holders each.
const MOST_ROWS: i64 = 64 * 96 * 16 * 7 * 4;

/// A file of a day, opened for reading.
pub struct DayFile<R: ChunkReader + 'static> {
    reader: SerializedFileReader<R>,
    header: FileHeader,
}

/// Consecutive rows of a file that differ only in quarter hour and amounts, as one line.
#[derive(Clone, Debug)]
pub struct DayRun {
    /// Begin of the first quarter hour.
    pub from: Utc,
    /// End of the last quarter hour.
    pub to: Utc,
    /// The node then.
    pub node: Arc<NodeIdentity>,
    /// The rate of the whole GPU.
    pub gpu_rate: Option<i64>,
    /// The line.
    pub line: BillLine,
}

/// Where runs end beside where a cell changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLimits<'a> {
    /// RowGroup before are left out.
    pub(super) from: Utc,
    /// RowGroup from then on are left out.
    pub(super) to: Utc,
    /// No run goes over one of these times; they are in order.
    pub(super) cuts: &'a [Utc],
    /// Runs of these GPUs are of one quarter hour each.
    pub(super) by_quarter: &'a BTreeSet<Arc<str>>,
}

impl DayFile<File> {
    /// Opens a file on disk; only what is read of it is in memory.
    ///
    /// # Errors
    /// The file cannot be read, or is no export that this version reads.
    pub fn open(path: &Path) -> Result<Self, FileProblem> {
        Self::read(input::open(path)?)
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
fn guarded<T>(read: impl FnOnce() -> Result<T, FileProblem>) -> Result<T, FileProblem> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(FileProblem::Damaged("its pages cannot be decoded".to_owned())))
}

impl<R: ChunkReader + 'static> DayFile<R> {
    fn read(source: R) -> Result<Self, FileProblem> {
        guarded(|| Self::read_footer(source))
    }

    fn read_footer(source: R) -> Result<Self, FileProblem> {
        let reader = SerializedFileReader::new(source)?;
        let metadata = reader.metadata().file_metadata();
        let value = |key: &str| {
            let all = metadata.key_value_metadata().into_iter().flatten();
            all.into_iter().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref())
        };
        let format = value(FORMAT_KEY).and_then(|format| format.parse().ok()).ok_or(FileProblem::Foreign)?;
        if format > FORMAT {
            return Err(FileProblem::Newer(format));
        }
        let header = value(HEADER_KEY).ok_or(FileProblem::Foreign)?;
        if value(DIGEST_KEY) != Some(&*digest_of(header.as_bytes())) {
            return Err(FileProblem::Damaged("its header is not what was written".to_owned()));
        }
        let header = serde_json::from_str(header)
            .map_err(|error| FileProblem::Damaged(format!("its header cannot be read: {error}")))?;
        Ok(Self { reader, header })
    }

    /// What holds for the whole day.
    pub const fn header(&self) -> &DayHeader {
        &self.header.day
    }

    /// The same, of a file that is no longer needed.
    pub(super) fn into_header(self) -> DayHeader {
        self.header.day
    }

    /// The runs of rows in that period.
    pub(super) fn runs(&self, limits: RunLimits<'_>) -> Result<Vec<DayRun>, FileProblem> {
        guarded(|| self.read_runs(limits))
    }

    fn read_runs(&self, limits: RunLimits<'_>) -> Result<Vec<DayRun>, FileProblem> {
        let mut runs = Vec::new();
        let (mut control, mut keys) = (BTreeMap::<&str, i128>::new(), KeyDigest::default());
        for group in 0..self.reader.num_row_groups() {
            let rows = RowGroup::read(&self.reader, group)?;
            for (column, numbers) in SUMS.iter().zip(&rows.sums) {
                let sum = control.entry(column.name).or_default();
                *sum = numbers.iter().fold(*sum, |sum, number| sum.wrapping_add((*number).into()));
            }
            for (column, money) in MONEY.iter().zip(&rows.money) {
                let sum = control.entry(column.name).or_default();
                *sum = money.iter().fold(*sum, |sum, money| sum.wrapping_add(money.parts()));
            }
            rows.add_runs(self.header.day.day, &limits, &mut keys, &mut runs)?;
        }
        for (name, sum) in &control {
            if self.header.sums.get(*name).is_some_and(|written| *written != sum.to_string()) {
                return Err(FileProblem::Damaged(format!(
                    "the column {name} does not sum to what was written"
                )));
            }
        }
        if self.header.places != keys.places {
            return Err(FileProblem::Damaged("its quarter hours are not what was written".to_owned()));
        }
        if self.header.keys != keys.finish() {
            return Err(FileProblem::Damaged("its texts are not what was written".to_owned()));
        }
        self.check_time(&control)?;
        Ok(runs)
    }
}

impl<R: ChunkReader + 'static> DayFile<R> {
    /// Checks that the rows hold the GPU time that the ledger recorded for the GPUs themselves.
    fn check_time(&self, sums: &BTreeMap<&str, i128>) -> Result<(), FileProblem> {
        let held: i128 = SUMS[..PARTS].iter().filter_map(|column| sums.get(column.name)).sum();
        let DayHeader { revision, imbalance, .. } = &self.header.day;
        if revision.slot.0.cast_signed() != held + imbalance {
            return Err(FileProblem::Damaged("its rows do not hold the time of its GPUs".to_owned()));
        }
        Ok(())
    }

    /// Checks that the file is where its header belongs.
    pub(super) fn check_place(&self, date: &str, ledger: &str) -> Result<(), FileProblem> {
        let DayHeader { day, ledger: own, .. } = &self.header.day;
        if date_of(*day) == date && own == ledger {
            return Ok(());
        }
        let text =
            format!("it is the file of {} of ledger {own}, and in the folder of another", date_of(*day));
        Err(FileProblem::Damaged(text))
    }
}

/// A column that tells rows apart, of a row group.
enum KeyValues {
    Text(Vec<Option<ByteArray>>),
    Integer(Vec<Option<i64>>),
}

impl KeyValues {
    fn is_same(&self, row: usize, other: usize) -> bool {
        match self {
            Self::Text(texts) => texts[row] == texts[other],
            Self::Integer(numbers) => numbers[row] == numbers[other],
        }
    }

    fn cell(&self, row: usize) -> Result<Cell<'_>, FileProblem> {
        Ok(match self {
            Self::Text(texts) => {
                let text = texts[row].as_ref().map(ByteArray::as_utf8).transpose()?;
                Cell::Text(text.map(Into::into))
            }
            Self::Integer(numbers) => Cell::Integer(numbers[row]),
        })
    }
}

/// The columns of a row group that a bill reads.
struct RowGroup {
    count: usize,
    quarters: Vec<i64>,
    /// In the order of the columns of [`KEYS`] that are read; a column that the file lacks is empty everywhere.
    keys: Vec<KeyValues>,
    sums: Vec<Vec<i64>>,
    money: Vec<Vec<ExactMoney>>,
}

impl RowGroup {
    fn read<R: ChunkReader + 'static>(
        reader: &SerializedFileReader<R>,
        group: usize,
    ) -> Result<Self, FileProblem> {
        let schema = reader.metadata().file_metadata().schema_descr();
        let place = |name: &str| (0..schema.num_columns()).find(|place| schema.column(*place).name() == name);
        let group = reader.get_row_group(group)?;
        let count = Some(group.metadata().num_rows()).filter(|count| *count <= MOST_ROWS);
        let count = count
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| FileProblem::Damaged("it says that it has too many rows".to_owned()))?;
        let missing = |name: &str| FileProblem::Damaged(format!("it has no column {name}"));
        let integers = |place: usize| -> Result<Vec<Option<i64>>, FileProblem> {
            read_column::<Int64Type>(&*group, place, count)
        };
        let required = |name: &str| -> Result<Vec<i64>, FileProblem> {
            let numbers = integers(place(name).ok_or_else(|| missing(name))?)?;
            Ok(numbers.into_iter().map(Option::unwrap_or_default).collect())
        };
        let quarters = required(QUARTER)?;
        let keys = KEYS.iter().filter(|column| column.is_read).map(|column| {
            Ok(match (column.column_type, place(column.name)) {
                (ColumnType::Text, Some(place)) => {
                    KeyValues::Text(read_column::<ByteArrayType>(&*group, place, count)?)
                }
                (ColumnType::Integer, Some(place)) => KeyValues::Integer(integers(place)?),
                (_, None) => KeyValues::Integer(vec![None; count]),
            })
        });
        let keys = keys.collect::<Result<_, FileProblem>>()?;
        let sums = SUMS.iter().map(|column| required(column.name)).collect::<Result<_, _>>()?;
        let money = MONEY.iter().map(|column| {
            let place = place(column.name).ok_or_else(|| missing(column.name))?;
            let cells = read_column::<FixedLenByteArrayType>(&*group, place, count)?;
            let money = cells.into_iter().map(|cell| {
                let bytes = cell.as_ref().map(|cell| cell.data()).unwrap_or_default();
                let bytes = bytes.try_into().map_err(|_| missing(column.name))?;
                Ok(ExactMoney::of_parts(i128::from_be_bytes(bytes)))
            });
            money.collect::<Result<Vec<_>, FileProblem>>()
        });
        Ok(Self { count, quarters, keys, sums, money: money.collect::<Result<_, _>>()? })
    }

    /// Adds the runs of the rows in the period.
    fn add_runs(
        &self,
        day: Utc,
        limits: &RunLimits<'_>,
        keys: &mut KeyDigest,
        runs: &mut Vec<DayRun>,
    ) -> Result<(), FileProblem> {
        // The interval between two cuts of the last run, while that goes on.
        let mut current: Option<usize> = None;
        for row in 0..self.count {
            let is_same = row > 0 && self.keys.iter().all(|column| column.is_same(row, row - 1));
            if !is_same {
                let cells = self.keys.iter().map(|column| column.cell(row)).collect::<Result<Vec<_>, _>>()?;
                keys.add(cells.into_iter());
            }
            let quarter = Utc(u64::try_from(self.quarters[row]).unwrap_or(0).saturating_mul(MICROSECOND));
            if quarter.floor(QUARTER_HOUR) != quarter || quarter.floor(DAY) != day {
                return Err(FileProblem::Damaged(format!("row {row} is of no quarter hour of its day")));
            }
            keys.add_row(self.quarters[row]);
            if quarter < limits.from || quarter >= limits.to {
                current = current.filter(|_| is_same);
                continue;
            }
            let interval = limits.cuts.partition_point(|cut| *cut <= quarter);
            if !is_same || current != Some(interval) {
                runs.push(self.run(row, quarter)?);
                current = Some(interval);
            }
            if let Some(run) = runs.last_mut() {
                run.to = quarter.plus(QUARTER_HOUR);
                self.add_row(&mut run.line, row)?;
                current = current.filter(|_| !limits.by_quarter.contains(&run.line.gpu.uuid));
            }
        }
        Ok(())
    }

    fn add_row(&self, line: &mut BillLine, row: usize) -> Result<(), FileProblem> {
        let mut sums = Sums::default();
        for (column, numbers) in SUMS.iter().zip(&self.sums) {
            *(column.of)(&mut sums) = u64::try_from(numbers[row])
                .map_err(|_| FileProblem::Damaged(format!("{} is negative in row {row}", column.name)))?;
        }
        let too_much = |_| FileProblem::Damaged("its sum of money is too large".to_owned());
        line.add_amounts(&sums.amounts, [sums.charged, sums.unpriced].map(Nanoseconds))
            .map_err(|_| FileProblem::Damaged(format!("its times in row {row} are too large")))?;
        line.exact = line.exact.plus(self.money[0][row]).map_err(too_much)?;
        line.exact_energy = line.exact_energy.plus(self.money[1][row]).map_err(too_much)?;
        Ok(())
    }

    /// A run without amounts that begins with a row.
    fn run(&self, row: usize, from: Utc) -> Result<DayRun, FileProblem> {
        let cells = RowCells::read(self, row)?;
        let holder = HolderId::new(cells.needed("workload")?);
        let sources = cells.text("sources").unwrap_or_default().split(',').filter(|name| !name.is_empty());
        let sources = sources.map(|name| named(name).ok_or_else(|| cells.damaged("sources")));
        let line = BillLine {
            tenant: cells.needed("tenant")?.to_owned(),
            labels: cells
                .text("labels")
                .map(serde_json::from_str)
                .transpose()
                .map_err(|_| cells.damaged("labels"))?
                .unwrap_or_default(),
            slot: cells.slot()?,
            rates: LineRates {
                time: cells.number("rate"),
                energy: cells.number("energy_rate"),
                carbon: cells.number("carbon_rate"),
                terms: cells.number("terms"),
            },
            grade: named::<Grade>(cells.needed("grade")?).ok_or_else(|| cells.damaged("grade"))?,
            method: named::<Method>(cells.needed("method")?).ok_or_else(|| cells.damaged("method"))?,
            coarse: cells.number("coarse").is_some_and(|coarse| coarse != 0),
            sources: sources.collect::<Result<Vec<ActivitySource>, _>>()?,
            ..BillLine::empty(
                GpuId {
                    index: cells.unsigned("gpu")?.ok_or_else(|| cells.damaged("gpu"))?,
                    uuid: cells.needed("gpu_uuid")?.into(),
                },
                holder.with_version(cells.unsigned("workload_version")?.unwrap_or(0)),
            )
        };
        Ok(DayRun { from, to: from, node: cells.node().into(), gpu_rate: cells.number("gpu_rate"), line })
    }
}

/// The cells of a row that tell it apart, by column.
struct RowCells<'a> {
    row: usize,
    texts: BTreeMap<&'static str, &'a str>,
    numbers: BTreeMap<&'static str, i64>,
}

impl<'a> RowCells<'a> {
    fn read(rows: &'a RowGroup, row: usize) -> Result<Self, FileProblem> {
        let mut cells = Self { row, texts: BTreeMap::new(), numbers: BTreeMap::new() };
        for (column, values) in KEYS.iter().filter(|column| column.is_read).zip(&rows.keys) {
            match values {
                KeyValues::Text(all) => {
                    if let Some(text) = &all[row] {
                        cells.texts.insert(column.name, text.as_utf8()?);
                    }
                }
                KeyValues::Integer(all) => {
                    cells.numbers.extend(all[row].map(|number| (column.name, number)));
                }
            }
        }
        Ok(cells)
    }

    fn damaged(&self, name: &str) -> FileProblem {
        FileProblem::Damaged(format!("{name} in row {} is none that gpumeter writes", self.row))
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.texts.get(name).copied()
    }

    fn needed(&self, name: &str) -> Result<&'a str, FileProblem> {
        self.text(name).ok_or_else(|| self.damaged(name))
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.numbers.get(name).copied()
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

/// The value of that name in JSON.
fn named<T: serde::de::DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

fn read_column<T: DataType>(
    group: &dyn parquet::file::reader::RowGroupReader,
    place: usize,
    count: usize,
) -> Result<Vec<Option<T::T>>, FileProblem> {
    let column = group.get_column_reader(place)?;
    let found = group.metadata().column(place).column_type();
    if found != T::get_physical_type() {
        return Err(FileProblem::Damaged(format!("column {place} has type {found}")));
    }
    let mut column = get_typed_column_reader::<T>(column);
    let (mut values, mut levels) = (Vec::with_capacity(count), Vec::new());
    let (rows, ..) = column.read_records(count, Some(&mut levels), None, &mut values)?;
    if rows != count {
        return Err(FileProblem::Damaged(format!("column {place} has {rows} of {count} rows")));
    }
    if values.len() == count {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    Ok(levels.iter().map(|level| if *level > 0 { values.next() } else { None }).collect())
}

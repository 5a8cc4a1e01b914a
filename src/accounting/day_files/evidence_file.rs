//! The evidence of a day as a file beside the day's account: shapes and runs as rows of one table, told apart by `kind`. It
//! belongs to the account of one revision, and is read with no other.

use std::collections::BTreeMap;
use std::path::Path;

use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::KeyValue;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use super::columns::signed;
use super::control::{DIGEST_KEY, FORMAT, FORMAT_KEY, HEADER_KEY, MICROSECOND, digest_of};
use super::day_file::{guarded, read_header};
use super::error::FileProblem;
use super::pages::CheckedPages;
use super::parquet_column::{ParquetCell, write_parquet};
use crate::accounting::billing::{DayEvidence, DayRevision, DayRun, DayShape, EvidenceHeader, EvidenceOwner};
use crate::model::{AMOUNTS, DAY, GpuId, HolderId, IDLE_COLUMNS, Run, SHAPE_COLUMNS, Series, Shape, Utc};
use crate::runtime::file;

/// The type of a column, in Parquet's language.
const TEXT: &str = "optional binary {} (STRING);";
const INTEGER: &str = "optional int64 {};";
const TIME: &str = "optional int64 {} (TIMESTAMP(MICROS,true));";

/// What `kind` says of a row.
const SHAPE: &str = "shape";
const RUN: &str = "run";

/// The columns that say what a shape is, and whose.
const OF_SHAPES: [&str; 8] =
    ["kind", "gpu", "gpu_uuid", "gpu_instance", "tenant", "workload", "workload_version", "series"];

/// A row of the file.
enum EvidenceRow<'a> {
    Shape(&'a EvidenceHeader, &'a DayShape),
    Run(&'a DayRun),
}

struct EvidenceColumn {
    name: &'static str,
    column_type: &'static str,
    of: Box<dyn Fn(&EvidenceRow<'_>) -> ParquetCell>,
}

impl EvidenceColumn {
    fn new(
        name: &'static str,
        column_type: &'static str,
        of: impl Fn(&EvidenceRow<'_>) -> ParquetCell + 'static,
    ) -> Self {
        Self { name, column_type, of: Box::new(of) }
    }

    /// A column that only runs have.
    fn of_run(
        name: &'static str,
        column_type: &'static str,
        of: impl Fn(&DayRun) -> ParquetCell + 'static,
    ) -> Self {
        Self::new(name, column_type, move |row| match row {
            EvidenceRow::Run(run) => of(run),
            EvidenceRow::Shape(..) => ParquetCell::Null,
        })
    }

    /// A column that only shapes have.
    fn of_shape(
        name: &'static str,
        column_type: &'static str,
        of: impl Fn(&DayShape) -> ParquetCell + 'static,
    ) -> Self {
        Self::new(name, column_type, move |row| match row {
            EvidenceRow::Shape(_, shape) => of(shape),
            EvidenceRow::Run(_) => ParquetCell::Null,
        })
    }
}

impl EvidenceRow<'_> {
    const fn owner(&self) -> &EvidenceOwner {
        match self {
            Self::Shape(_, shape) => &shape.owner,
            Self::Run(run) => &run.owner,
        }
    }

    /// The day of a shape, and the time of a run.
    const fn times(&self) -> [Utc; 2] {
        match self {
            Self::Shape(header, _) => [header.day, header.day.plus(DAY)],
            Self::Run(DayRun { run, .. }) => [run.begin, run.end],
        }
    }
}

/// The columns, in their order.
fn columns() -> Vec<EvidenceColumn> {
    let mut columns = vec![
        EvidenceColumn::new("kind", TEXT, |row| {
            text(if matches!(row, EvidenceRow::Run(_)) { RUN } else { SHAPE })
        }),
        EvidenceColumn::new("begin", TIME, |row| time(row.times()[0])),
        EvidenceColumn::new("end", TIME, |row| time(row.times()[1])),
        EvidenceColumn::new("gpu", INTEGER, |row| ParquetCell::Integer(row.owner().gpu.index.into())),
        EvidenceColumn::new("gpu_uuid", TEXT, |row| text(&row.owner().gpu.uuid)),
        EvidenceColumn::new("gpu_instance", INTEGER, |row| {
            row.owner().gpu_instance.map_or(ParquetCell::Null, |id| ParquetCell::Integer(id.into()))
        }),
        EvidenceColumn::new("tenant", TEXT, |row| text(&row.owner().tenant)),
        EvidenceColumn::new("workload", TEXT, |row| text(row.owner().holder.name())),
        EvidenceColumn::new("workload_version", INTEGER, |row| integer(row.owner().holder.version())),
        EvidenceColumn::of_shape("series", TEXT, |shape| text(shape.series.name())),
    ];
    for (place, name) in SHAPE_COLUMNS.into_iter().enumerate() {
        columns.push(EvidenceColumn::of_shape(name, INTEGER, move |shape| integer(shape.shape.0[place])));
    }
    let optional = |at: Option<Utc>| at.map_or(ParquetCell::Null, time);
    columns.push(EvidenceColumn::of_run("name", TEXT, |run| text(&run.name)));
    columns.push(EvidenceColumn::of_run("first_use", TIME, move |run| optional(run.run.first_use)));
    columns.push(EvidenceColumn::of_run("last_use", TIME, move |run| optional(run.run.last_use)));
    for (place, name) in IDLE_COLUMNS.as_flattened().iter().enumerate() {
        columns.push(EvidenceColumn::of_run(name, INTEGER, move |run| {
            integer(run.run.idle.between.as_flattened()[place])
        }));
    }
    for amount in AMOUNTS {
        columns
            .push(EvidenceColumn::of_run(amount.name, INTEGER, |run| integer(amount.of(&run.run.amounts))));
    }
    columns
}

fn text(text: &str) -> ParquetCell {
    ParquetCell::Text(ByteArray::from(text.as_bytes().to_vec()))
}

fn integer(number: u64) -> ParquetCell {
    ParquetCell::Integer(signed(number))
}

fn time(at: Utc) -> ParquetCell {
    integer(at.0 / MICROSECOND)
}

/// The bytes of the file of a day's evidence.
///
/// # Errors
/// Those of the Parquet writer.
pub fn write_evidence(evidence: &DayEvidence) -> ParquetResult<Vec<u8>> {
    let columns = columns();
    let schema: String = columns.iter().map(|column| column.column_type.replace("{}", column.name)).collect();
    let shapes = evidence.shapes.iter().map(|shape| EvidenceRow::Shape(&evidence.header, shape));
    let rows: Vec<EvidenceRow<'_>> = shapes.chain(evidence.runs.iter().map(EvidenceRow::Run)).collect();
    let cells = columns.iter().map(|column| rows.iter().map(|row| (column.of)(row)).collect());
    let header =
        serde_json::to_string(&evidence.header).map_err(|error| ParquetError::External(error.into()))?;
    let metadata = vec![
        KeyValue::new(FORMAT_KEY.to_owned(), FORMAT.to_string()),
        KeyValue::new(DIGEST_KEY.to_owned(), digest_of(header.as_bytes())),
        KeyValue::new(HEADER_KEY.to_owned(), header),
    ];
    write_parquet(&format!("message gpumeter_evidence {{ {schema} }}"), "gpumeter", cells, metadata)
}

/// The evidence in a file; none where there is no file, or it belongs to another revision of the day's account.
///
/// # Errors
/// It cannot be read, or is no file of evidence that this version reads.
pub fn read_evidence(path: &Path, revision: &DayRevision) -> Result<Option<DayEvidence>, FileProblem> {
    let (mut shapes, mut runs) = (Vec::new(), Vec::new());
    let header = read_rows(
        path,
        revision,
        |_| true,
        |kind, row| {
            match kind {
                SHAPE => shapes.push(row.shape()?),
                RUN => runs.push(row.run()?),
                // A later version may have other kinds.
                _ => {}
            }
            Ok(())
        },
    )?;
    Ok(header.map(|header| DayEvidence { header, shapes, runs }))
}

/// The shapes of that, without the time that reading the many columns of runs takes.
///
/// # Errors
/// As of [`read_evidence`].
pub(super) fn read_shapes(path: &Path, revision: &DayRevision) -> Result<Vec<DayShape>, FileProblem> {
    let is_of_shapes = |name: &str| OF_SHAPES.contains(&name) || SHAPE_COLUMNS.contains(&name);
    let mut shapes = Vec::new();
    read_rows(path, revision, is_of_shapes, |kind, row| {
        if kind == SHAPE {
            shapes.push(row.shape()?);
        }
        Ok(())
    })?;
    Ok(shapes)
}

/// Reads some columns of all rows, and gives each with its kind.
fn read_rows(
    path: &Path,
    revision: &DayRevision,
    is_wanted: impl Fn(&str) -> bool,
    mut add: impl FnMut(&str, &Cells<'_>) -> Result<(), FileProblem>,
) -> Result<Option<EvidenceHeader>, FileProblem> {
    let source = match file::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        source => source?,
    };
    guarded(|| {
        let reader = SerializedFileReader::new(CheckedPages(source))?;
        let header: EvidenceHeader = read_header(reader.metadata())?;
        if header.revision != *revision {
            return Ok(None);
        }
        let schema = reader.metadata().file_metadata().schema();
        let fields = schema.get_fields().iter().filter(|field| is_wanted(field.name())).cloned().collect();
        let wanted = Type::group_type_builder(schema.name()).with_fields(fields).build()?;
        for row in reader.get_row_iter(Some(wanted))? {
            let row = row?;
            let row = Cells::of(&row);
            add(row.text("kind")?, &row)?;
        }
        Ok(Some(header))
    })
}

/// The revision of the account to which the evidence in a file belongs; none where no file can be read.
pub(super) fn revision_of(path: &Path) -> Option<DayRevision> {
    let source = file::open(path).ok()?;
    let header = guarded(|| {
        read_header::<EvidenceHeader>(SerializedFileReader::new(CheckedPages(source))?.metadata())
    });
    header.ok().map(|header| header.revision)
}

/// The cells of a row by column.
struct Cells<'a>(BTreeMap<&'a str, &'a Field>);

impl<'a> Cells<'a> {
    fn of(row: &'a Row) -> Self {
        Self(row.get_column_iter().map(|(name, field)| (name.as_str(), field)).collect())
    }

    fn text(&self, name: &str) -> Result<&'a str, FileProblem> {
        match self.0.get(name) {
            Some(Field::Str(text)) => Ok(text),
            _ => Err(FileProblem::Damaged(format!("a row has no text in column {name}"))),
        }
    }

    /// None where the cell is empty.
    fn optional(&self, name: &str) -> Result<Option<u64>, FileProblem> {
        let number = match self.0.get(name) {
            Some(Field::Null) => return Ok(None),
            Some(Field::Long(number) | Field::TimestampMicros(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        number.map(Some).ok_or_else(|| FileProblem::Damaged(format!("a row has no number in column {name}")))
    }

    fn integer(&self, name: &str) -> Result<u64, FileProblem> {
        Ok(self.optional(name)?.unwrap_or(0))
    }

    fn time(&self, name: &str) -> Result<Option<Utc>, FileProblem> {
        Ok(self.optional(name)?.map(|at| Utc(at.saturating_mul(MICROSECOND))))
    }

    fn owner(&self) -> Result<EvidenceOwner, FileProblem> {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(EvidenceOwner {
            gpu: GpuId { index: small(self.integer("gpu")?), uuid: self.text("gpu_uuid")?.into() },
            gpu_instance: self.optional("gpu_instance")?.map(small),
            tenant: self.text("tenant")?.to_owned(),
            holder: HolderId::new(self.text("workload")?).with_version(self.integer("workload_version")?),
        })
    }

    fn shape(&self) -> Result<DayShape, FileProblem> {
        let name = self.text("series")?;
        let series = Series::ALL.into_iter().find(|series| series.name() == name);
        let mut shape = Shape::default();
        for (time, name) in shape.0.iter_mut().zip(SHAPE_COLUMNS) {
            *time = self.integer(name)?;
        }
        Ok(DayShape {
            owner: self.owner()?,
            series: series.ok_or_else(|| FileProblem::Damaged(format!("no series is called {name}")))?,
            shape,
        })
    }

    fn run(&self) -> Result<DayRun, FileProblem> {
        let owner = self.owner()?;
        let mut run = Run::new(owner.holder.clone(), self.time("begin")?.unwrap_or_default());
        run.end = self.time("end")?.unwrap_or_default();
        (run.first_use, run.last_use) = (self.time("first_use")?, self.time("last_use")?);
        for (number, name) in run.idle.between.as_flattened_mut().iter_mut().zip(IDLE_COLUMNS.as_flattened())
        {
            *number = self.integer(name)?;
        }
        for amount in AMOUNTS {
            *amount.of_mut(&mut run.amounts) = self.integer(amount.name)?;
        }
        Ok(DayRun { owner, name: self.text("name")?.to_owned(), run })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::Nanoseconds;

    fn evidence() -> DayEvidence {
        let owner = EvidenceOwner {
            gpu: GpuId { index: 3, uuid: "GPU-3".into() },
            gpu_instance: Some(7),
            tenant: "physics".into(),
            holder: HolderId::new("slurm:c/1").with_version(2),
        };
        let mut shape = Shape::default();
        shape.add_alone(9_500, Nanoseconds(5));
        shape.add_shared(Nanoseconds(6));
        shape.add_unknown(Nanoseconds(7));
        let mut run = Run::new(owner.holder.clone(), Utc(1_000));
        (run.end, run.first_use) = (Utc(9_000), Some(Utc(2_000)));
        run.idle.between[6] = [1, 25 * 3_600];
        for (amount, value) in AMOUNTS.iter().zip(1..) {
            *amount.of_mut(&mut run.amounts) = value;
        }
        let revision = DayRevision { settled_until: Utc(3), ..DayRevision::default() };
        DayEvidence {
            header: EvidenceHeader {
                ledger: "one".into(),
                node: "gpu-1".into(),
                revision,
                ..EvidenceHeader::default()
            },
            shapes: vec![DayShape { owner: owner.clone(), series: Series::Dram, shape }],
            runs: vec![DayRun { owner, name: "slurm:c/train".to_owned(), run }],
        }
    }

    #[test]
    fn evidence_is_read_as_it_was_written_and_only_with_the_account_of_its_revision() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("evidence.parquet");
        let written = evidence();
        let revision = written.header.revision;
        assert_eq!(read_evidence(&path, &revision).unwrap(), None, "no file");
        let bytes = write_evidence(&written).unwrap();
        assert_eq!(bytes, write_evidence(&written).unwrap());
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read_evidence(&path, &revision).unwrap(), Some(written));
        assert_eq!(read_shapes(&path, &revision).unwrap(), evidence().shapes);
        assert_eq!(revision_of(&path), Some(revision));
        let other = DayRevision { rate: Utc(8), ..revision };
        assert_eq!(read_evidence(&path, &other).unwrap(), None);
        std::fs::write(&path, b"PAR1 and nothing").unwrap();
        assert!(read_evidence(&path, &revision).is_err());
    }

    #[test]
    fn the_page_about_exports_has_every_column_of_evidence_with_its_type() {
        let page = include_str!("../../../docs/exports.md");
        let (_, table) = page.split_once("\n| column of evidence | type | |\n|---|---|---|\n").unwrap();
        let rows = table.lines().map_while(|line| line.strip_prefix("| `")?.split_once("` | "));
        let shown: Vec<(&str, &str)> =
            rows.map(|(name, rest)| (name, rest.split_once(' ').unwrap().0)).collect();
        let all = columns();
        let types = all.iter().map(|column| match column.column_type {
            TEXT => (column.name, "text"),
            TIME => (column.name, "timestamp"),
            _ => (column.name, "integer"),
        });
        assert_eq!(shown, types.collect::<Vec<_>>());
    }
}

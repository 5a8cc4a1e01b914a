//! Makes a bill from the files of many ledgers, one file after the other, in memory that is bounded by the lines of the bill.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::ChunkReader;
use serde::{Deserialize, Serialize};

use super::cache::DateSums;

use super::control::{digest_of, digest_of_file};
use super::day_file::{DayFile, RunLimits};
use super::directory::{DayPath, ExportDirectory, date_of};
use super::error::{ExportError, FileProblem};
use super::evidence_file::{read_evidence, read_shapes};
use super::expected::{ExpectedNode, FileTimes, MissingTime, ReportGap, Reports};
use super::lines::RunSums;
use super::quarters::{GpuQuarter, QuarterDraft};
use super::reasons::{FileReasons, ReasonsDraft};
use super::shared_gpus::{GpuOwners, ResolvedRuns, SharedRuns};
use super::tree::ExportTree;
use crate::accounting::billing::costs::LocalHour;
use crate::accounting::billing::{
    Bill, BillDraft, BillLine, BillRate, BillRequest, BillTerms, DayEvidence, DayHeader, DayRevision, DayRow,
    DayShape, ExactMoney, ExportedFile, Fleet, FleetReasons, GpuConflict, LineDetail, LineFilter, LineRates,
    PriceBook, PricedSlot, PricedSpan, RateKind, RateSchedule, StatedBudgets, days_between, list_first,
};
use crate::model::{
    Amounts, DAY, GpuId, Nanoseconds, NodeIdentity, QUARTER_HOUR, TimeSum, Utc, VisibleAccount,
};
use crate::runtime::file;
use crate::runtime::thread::map_in_order;

/// A larger file is not read into memory as a whole.
const IN_MEMORY: u64 = 32 << 20;

#[derive(Clone, Debug)]
pub struct ExportSource<'a> {
    pub directory: &'a Path,
    pub expected: Vec<ExpectedNode>,
    pub skip_damaged: bool,
    pub digests: bool,
    /// The time now, where others write the directory: links are not followed, and nothing later is read.
    pub untrusted_at: Option<Utc>,
    /// Files that a bill need not read, since they have no line that it is of.
    pub left_out: Option<&'a BTreeSet<PathBuf>>,
}

impl<'a> ExportSource<'a> {
    /// All that is in a directory, without a list of nodes.
    pub const fn of(directory: &'a Path) -> Self {
        Self {
            directory,
            expected: Vec::new(),
            skip_damaged: false,
            digests: false,
            untrusted_at: None,
            left_out: None,
        }
    }

    /// The files, by date and ledger.
    ///
    /// # Errors
    /// The directory cannot be read, or has none.
    pub(super) fn days(&self) -> Result<Vec<DayPath>, ExportError> {
        let Some(now) = self.untrusted_at else { return ExportDirectory(self.directory).days() };
        let tree = ExportTree::read(self.directory, now, |_| true);
        let tree = tree.map_err(|(path, error)| FileProblem::Io(error).at(&path))?;
        let files = tree.dates.into_values().flatten().filter(|file| file.state.is_some());
        let days: Vec<DayPath> = files.map(|file| file.day).collect();
        if days.is_empty() { Err(ExportError::Empty(self.directory.to_owned())) } else { Ok(days) }
    }

    /// Up to where the last day is exported.
    ///
    /// # Errors
    /// There is no export below the directory, or one of the last day cannot be read.
    pub fn exported_until(&self) -> Result<Utc, ExportError> {
        self.last_export(&self.days()?)
    }

    /// The evidence beside an account of that revision, if there is any.
    pub(super) fn evidence(
        &self,
        day: &DayPath,
        revision: &DayRevision,
    ) -> Result<Option<DayEvidence>, FileProblem> {
        self.evidence_path(day).map_or(Ok(None), |path| read_evidence(&path, revision))
    }

    /// The shapes of that evidence.
    pub(super) fn shapes(&self, day: &DayPath, revision: &DayRevision) -> Result<Vec<DayShape>, FileProblem> {
        self.evidence_path(day).map_or(Ok(Vec::new()), |path| read_shapes(&path, revision))
    }

    /// None where it is a link in a tree of others.
    fn evidence_path(&self, day: &DayPath) -> Option<PathBuf> {
        let path = ExportDirectory::evidence_beside(&day.path);
        (self.untrusted_at.is_none() || !path.is_symlink()).then_some(path)
    }

    fn last_export(&self, all: &[DayPath]) -> Result<Utc, ExportError> {
        let mut last = Utc(0);
        for (place, day) in all.iter().enumerate().rev() {
            if last.0 > 0 && all.get(place + 1).is_some_and(|next| next.date != day.date) {
                break;
            }
            match DayFile::open(&day.path) {
                Ok(file) => last = last.max(file.header().revision.settled_until),
                Err(problem) if self.skip_damaged && problem.is_damage() => {}
                Err(problem) => return Err(problem.at(&day.path)),
            }
        }
        Ok(self.untrusted_at.map_or(last, |now| last.min(now)))
    }
}

/// Makes bills, one after the other, each of a span in one currency; tells after each file how many were read, and how
/// many there are.
///
/// # Errors
/// A file that cannot be read, two currencies on one day, times that are not on quarter hours.
pub fn make_bills(
    source: &ExportSource<'_>,
    request: &BillRequest,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Bill>, ExportError> {
    make_bills_by_steps(source, request, |done, total| {
        progress(done, total);
        Ok(())
    })
}

/// Makes bills, unless `is_cancelled` says before a file that nobody wants them any more.
///
/// # Errors
/// Those of [`make_bills`]; it is cancelled.
pub fn make_bills_unless(
    source: &ExportSource<'_>,
    request: &BillRequest,
    is_cancelled: impl Fn() -> bool,
) -> Result<Vec<Bill>, ExportError> {
    make_bills_by_steps(
        source,
        request,
        |_, _| if is_cancelled() { Err(ExportError::Cancelled) } else { Ok(()) },
    )
}

fn make_bills_by_steps(
    source: &ExportSource<'_>,
    request: &BillRequest,
    mut step: impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<Vec<Bill>, ExportError> {
    let all = source.days()?;
    let exported_until = source.last_export(&all)?;
    request.by_currency(
        |request| {
            let draft = FleetDraft::new(source, request, exported_until)?;
            make_bill(draft, &all, &mut step)
        },
        |error| match error {
            ExportError::Currencies { day, .. } => Some(*day),
            _ => None,
        },
    )
}

fn make_bill(
    mut draft: FleetDraft<'_>,
    all: &[DayPath],
    step: &mut impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<Bill, ExportError> {
    let (from, to) = (draft.from, draft.to);
    let is_inside = |day: &DayPath| date_of(from.floor(DAY)) <= day.date && day.date < date_of(to.ceil(DAY));
    let left_out = draft.source.left_out;
    let is_read = |day: &&DayPath| is_inside(day) && left_out.is_none_or(|files| !files.contains(&day.path));
    let files = all.iter().filter(is_read).cloned().collect();
    draft.read(files, step)?;
    draft.finish()
}

/// What the files of a date have, in sums that are cut at local hours.
#[derive(Debug)]
pub(super) struct SummedDate {
    pub(super) sums: DateSums,
    pub(super) facts: FleetFacts,
    pub(super) conflicts: Vec<GpuConflict>,
    /// What is remembered of each file that was read, by its path.
    pub(super) files: BTreeMap<PathBuf, FileContent>,
}

/// Sums the files of a date as a bill does, and leaves out those that cannot be read. The request is of the date.
///
/// # Errors
/// Two currencies; a sum that does not fit; it is cancelled.
pub(super) fn sum_date(
    source: &ExportSource<'_>,
    request: &BillRequest,
    files: Vec<DayPath>,
    hours: Vec<LocalHour>,
    is_cancelled: impl Fn() -> bool,
) -> Result<SummedDate, ExportError> {
    let mut draft = FleetDraft::new(source, request, request.to.unwrap_or_default())?;
    draft.days = hours.iter().map(|hour| hour.begin).collect();
    draft.sums = Some(DateSums::new(hours));
    draft.read(files, &mut |_, _| if is_cancelled() { Err(ExportError::Cancelled) } else { Ok(()) })?;
    draft.finish_sums()
}

/// The files that are read of those that were found.
pub(super) struct SurveyedFiles {
    pub(super) files: Vec<DayPath>,
    /// The GPUs of several ledgers, by date.
    pub(super) shared: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    pub(super) skipped: Vec<(PathBuf, FileProblem)>,
}

/// Reads all headers, and leaves out files that a later one replaces and those with a problem that is skipped.
///
/// # Errors
/// A file with another problem.
pub(super) fn survey(
    files: Vec<DayPath>,
    is_skipped: impl Fn(&FileProblem) -> bool,
    step: &mut impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<SurveyedFiles, ExportError> {
    let mut kept = BTreeMap::<(String, String), (DayRevision, usize)>::new();
    let (mut gpus, mut skipped) = (Vec::new(), Vec::new());
    let read = |day: &DayPath| {
        let file = DayFile::open(&day.path)?;
        file.check_place(day)?;
        Ok((file.header().revision, file.header().gpus.clone()))
    };
    map_in_order(&files, read, |place, read| {
        step(0, files.len())?;
        let day = &files[place];
        let (revision, of_day) = match read {
            Ok(read) => read,
            Err(problem) if is_skipped(&problem) => {
                skipped.push((day.path.clone(), problem));
                return Ok(());
            }
            Err(problem) => return Err(problem.at(&day.path)),
        };
        gpus.push((day.date.clone(), day.ledger.clone(), of_day));
        let kept = kept.entry((day.date.clone(), day.ledger.clone())).or_insert((revision, place));
        // A node that changed its cluster may have left a file under the old one.
        if kept.0 < revision {
            *kept = (revision, place);
        }
        Ok::<(), ExportError>(())
    })?;
    let mut owners = GpuOwners::default();
    for (date, ledger, gpus) in &gpus {
        owners.add(date, ledger, gpus.iter().map(|gpu| &gpu.gpu.uuid));
    }
    let places: BTreeSet<usize> = kept.into_values().map(|(_, place)| place).collect();
    let files = files.into_iter().enumerate().filter(|(place, _)| places.contains(place));
    Ok(SurveyedFiles { files: files.map(|(_, day)| day).collect(), shared: owners.into_shared(), skipped })
}

struct FleetDraft<'a> {
    source: &'a ExportSource<'a>,
    request: &'a BillRequest,
    from: Utc,
    to: Utc,
    exported_until: Utc,
    days: Vec<Utc>,
    bill: BillDraft<'a>,
    /// Takes the lines in place of the bill.
    sums: Option<DateSums>,
    contents: BTreeMap<PathBuf, FileContent>,
    /// The GPUs of several ledgers, by date.
    shared_gpus: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Their runs on the date of the last file.
    shared: SharedRuns,
    date: String,
    /// What the files of that date say, `ID of NODE`, where lines are selected.
    file_reasons: BTreeMap<Arc<str>, FileReasons>,
    conflicts: Vec<GpuConflict>,
    files: Vec<ExportedFile>,
    reports: Reports<'a>,
    reasons: ReasonsDraft,
    missing: TimeSum,
    facts: FleetFacts,
}

struct RunReader<'a> {
    from: Utc,
    to: Utc,
    /// Begins of local days, and of rates and terms of the book.
    cuts: BTreeSet<Utc>,
    reports: Reports<'a>,
    shared: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    detail: LineDetail,
    filter: Option<&'a LineFilter>,
    visible: &'a VisibleAccount,
    digests: bool,
}

struct ReadDay {
    header: DayHeader,
    runs: Vec<DayRow>,
    /// Empty where no lines are selected.
    quarters: Vec<GpuQuarter>,
    /// Empty where no node is expected.
    times: FileTimes,
    digest: Option<String>,
}

impl<'a> RunReader<'a> {
    fn new(draft: &FleetDraft<'a>) -> Self {
        let mut cuts: BTreeSet<Utc> = draft.days.iter().copied().collect();
        if let Some(book) = &draft.request.book {
            cuts.extend(book_cuts(book));
        }
        let reports = Reports::new(&draft.source.expected);
        Self {
            from: draft.from,
            to: draft.to,
            cuts,
            reports,
            shared: draft.shared_gpus.clone(),
            // A filter may select by what the bill does not tell apart.
            detail: if draft.is_filtered() { LineDetail::whole() } else { draft.request.detail.clone() },
            filter: draft.is_filtered().then_some(&draft.request.filter),
            visible: &draft.request.visible,
            digests: draft.source.digests,
        }
    }

    fn read(&self, day: &DayPath) -> Result<ReadDay, FileProblem> {
        let mut file = file::open(&day.path)?;
        if file.metadata()?.len() > IN_MEMORY {
            let digest = self.digests.then(|| digest_of_file(&mut file)).transpose()?;
            return self.read_file(day, DayFile::read(file)?, digest);
        }
        let mut bytes = Vec::new();
        file.take(IN_MEMORY).read_to_end(&mut bytes)?;
        let digest = self.digests.then(|| digest_of(&bytes));
        self.read_file(day, DayFile::of_bytes(bytes)?, digest)
    }

    fn read_file<R: ChunkReader + 'static>(
        &self,
        day: &DayPath,
        file: DayFile<R>,
        digest: Option<String>,
    ) -> Result<ReadDay, FileProblem> {
        file.check_place(day)?;
        let mut cuts = self.cuts.clone();
        cuts.extend(self.reports.cuts(&file.header().node));
        let cuts: Vec<Utc> = cuts.into_iter().collect();
        let none = BTreeSet::new();
        let by_quarter = self.shared.get(&*day.date).unwrap_or(&none);
        // The last quarter hour of the account is not over.
        let end = self.to.min(file.header().revision.settled_until);
        let mut times = FileTimes::default();
        let all_by_quarter = self.filter.is_some() || !self.reports.is_empty();
        let limits = RunLimits { from: self.from, to: self.to, cuts: &cuts, by_quarter, all_by_quarter };
        let (mut sums, mut quarters) = (
            RunSums::new(&self.detail, limits),
            self.filter.map(|filter| QuarterDraft::new(filter, self.visible)),
        );
        file.read_runs(limits, |run| {
            // A GPU of several ledgers is read for its whole day.
            let is_inside = self.from <= run.from && run.from < self.to;
            // What becomes of a shared GPU is known once all files of its date are read.
            let is_own = is_inside && !by_quarter.contains(&run.line.gpu.uuid);
            if let Some(quarters) = quarters.as_mut().filter(|_| is_own) {
                quarters.add(&run, run.to.min(end));
            }
            if is_inside && !self.reports.is_empty() {
                times.add(&run);
            }
            Ok(sums.add(run)?)
        })?;
        Ok(ReadDay {
            runs: sums.into_runs().collect(),
            header: file.into_header(),
            quarters: quarters.map(QuarterDraft::finish).unwrap_or_default(),
            times,
            digest: digest.map(|digest| format!("sha256:{digest}")),
        })
    }
}

fn book_cuts(book: &PriceBook) -> impl Iterator<Item = Utc> {
    let rates = book.rates.iter().filter_map(|rate| rate.from);
    rates.chain(book.terms.iter().filter_map(|terms| terms.from))
}

#[derive(Debug, Default)]
pub(super) struct FleetFacts {
    pub(super) currency: Option<String>,
    currencies: BTreeSet<String>,
    is_priced: bool,
    pub(super) is_simulated: bool,
    imbalance: i128,
    pub(super) clusters: BTreeSet<String>,
    nodes: BTreeMap<String, BTreeSet<String>>,
    /// Up to where each ledger is exported, and its node.
    pub(super) ends: BTreeMap<String, (Utc, String)>,
    pub(super) attributes: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) budgets: BTreeMap<String, StatedBudgets>,
    pub(super) skipped: Vec<(PathBuf, FileProblem)>,
}

/// What is remembered of a file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileContent {
    pub(super) ledger: String,
    pub(super) node: String,
    pub(super) settled_until: Utc,
    /// The UUIDs of its GPUs, each with its index.
    pub(super) gpus: BTreeMap<Arc<str>, u32>,
}

impl FileContent {
    fn of(header: &DayHeader) -> Self {
        Self {
            ledger: header.ledger.clone(),
            node: header.node.clone(),
            settled_until: header.revision.settled_until,
            gpus: header.gpus.iter().map(|gpu| (Arc::clone(&gpu.gpu.uuid), gpu.gpu.index)).collect(),
        }
    }
}

impl<'a> FleetDraft<'a> {
    fn new(
        source: &'a ExportSource<'a>,
        request: &'a BillRequest,
        exported_until: Utc,
    ) -> Result<Self, ExportError> {
        let [from, to] = request.period(exported_until);
        for at in [request.from, request.to].into_iter().flatten() {
            if at.floor(QUARTER_HOUR) != at {
                return Err(ExportError::Grid(at.to_string()));
            }
        }
        let days = if request.detail.day { days_between(from, to, &request.zone) } else { Vec::new() };
        Ok(Self {
            source,
            request,
            from,
            to,
            exported_until,
            days,
            bill: BillDraft::new(request),
            sums: None,
            contents: BTreeMap::new(),
            shared_gpus: BTreeMap::new(),
            shared: SharedRuns::default(),
            date: String::new(),
            file_reasons: BTreeMap::new(),
            conflicts: Vec::new(),
            files: Vec::new(),
            reports: Reports::new(&source.expected),
            reasons: ReasonsDraft::default(),
            missing: TimeSum(0),
            facts: FleetFacts::default(),
        })
    }

    fn read(
        &mut self,
        files: Vec<DayPath>,
        step: &mut impl FnMut(usize, usize) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let files = self.survey(files, step)?;
        let reader = RunReader::new(self);
        map_in_order(
            &files,
            |day| reader.read(day),
            |place, read| {
                self.add_file(&files[place], read)?;
                step(place + 1, files.len())
            },
        )
    }

    fn survey(
        &mut self,
        files: Vec<DayPath>,
        step: &mut impl FnMut(usize, usize) -> Result<(), ExportError>,
    ) -> Result<Vec<DayPath>, ExportError> {
        let (skips_all, skips_damaged) = (self.sums.is_some(), self.source.skip_damaged);
        let is_skipped = |problem: &FileProblem| skips_all || (skips_damaged && problem.is_damage());
        let surveyed = survey(files, is_skipped, step)?;
        self.facts.skipped.extend(surveyed.skipped);
        self.shared_gpus = surveyed.shared;
        Ok(surveyed.files)
    }

    /// What was read of a file; none of a damaged one that is left out on request.
    fn unless_skipped<T>(
        &mut self,
        day: &DayPath,
        read: Result<T, FileProblem>,
    ) -> Result<Option<T>, ExportError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(problem) if self.sums.is_some() || (self.source.skip_damaged && problem.is_damage()) => {
                self.facts.skipped.push((day.path.clone(), problem));
                Ok(None)
            }
            Err(problem) => Err(problem.at(&day.path)),
        }
    }

    fn add_file(&mut self, day: &DayPath, read: Result<ReadDay, FileProblem>) -> Result<(), ExportError> {
        let Some(ReadDay { mut header, runs, quarters, times, digest }) = self.unless_skipped(day, read)?
        else {
            return Ok(());
        };
        if self.date != day.date {
            self.resolve_shared()?;
            self.date.clone_from(&day.date);
        }
        self.facts.add(&header, &day.path, self.request.book.is_none())?;
        header.gpus.iter().for_each(|gpu| self.bill.add_gpu(gpu));
        self.reports.add_gpus(&header);
        let numbers = self.bill.numbers(&header.rates, &header.terms);
        // What was reported is not missing, whatever becomes of it.
        self.reports.add(times, &numbers);
        let runs = runs.into_iter().map(|run| numbers.of_row(run));
        let (shared, own): (Vec<DayRow>, Vec<DayRow>) = runs.partition(|run| self.is_shared(run));
        let ledger: Arc<str> = format!("{} of {}", header.ledger, header.node).into();
        if self.sums.is_some() {
            self.contents.insert(day.path.clone(), FileContent::of(&header));
        }
        if self.is_filtered() {
            let reasons = FileReasons::take(&mut header);
            for mut quarter in quarters {
                quarter.own.iter_mut().for_each(|own| numbers.apply(&mut own.run));
                self.reasons.add(quarter, &reasons, &mut self.bill);
            }
            self.reasons.add_incidents(&reasons);
            self.file_reasons.insert(Arc::clone(&ledger), reasons);
        }
        shared.into_iter().for_each(|run| self.shared.add(&ledger, run));
        self.add_priced(own)?;
        let path = day.path.strip_prefix(self.source.directory).unwrap_or(&day.path);
        self.files
            .push(ExportedFile { path: path.display().to_string(), digest: digest.unwrap_or_default() });
        Ok(())
    }

    /// Adds the runs of the GPUs that several ledgers had on the date of the last file.
    fn resolve_shared(&mut self) -> Result<(), ExportError> {
        let ResolvedRuns { runs, conflicts } =
            std::mem::take(&mut self.shared).resolve([self.from, self.to])?;
        self.conflicts.extend(conflicts);
        let files = std::mem::take(&mut self.file_reasons);
        let filter = self.is_filtered().then_some(&self.request.filter);
        let mut quarters = BTreeMap::<Arc<str>, QuarterDraft<'_>>::new();
        for (ledger, run) in runs.iter().flatten() {
            let (Some(filter), Some(file)) = (filter, files.get(ledger)) else { continue };
            let new = || QuarterDraft::new(filter, &self.request.visible);
            let draft = quarters.entry(Arc::clone(ledger)).or_insert_with(new);
            draft.add(run, run.to.min(self.to).min(file.settled_until));
        }
        let quarters = quarters.into_iter().flat_map(|(ledger, draft)| {
            draft.finish().into_iter().map(move |quarter| (Arc::clone(&ledger), quarter))
        });
        let mut quarters: Vec<(Arc<str>, GpuQuarter)> = quarters.collect();
        quarters
            .sort_by(|(_, one), (_, other)| (&one.gpu.uuid, one.from).cmp(&(&other.gpu.uuid, other.from)));
        for (ledger, quarter) in quarters {
            self.reasons.add(quarter, &files[&ledger], &mut self.bill);
        }
        files.values().for_each(|file| self.reasons.add_incidents(file));
        runs.into_iter().try_for_each(|runs| self.add_priced(runs.into_iter().map(|(_, run)| run).collect()))
    }

    fn is_filtered(&self) -> bool {
        self.request.filter != LineFilter::default()
    }

    fn is_shared(&self, run: &DayRow) -> bool {
        if self.shared_gpus.is_empty() {
            return false;
        }
        let of_date = self.shared_gpus.get(&*date_of(run.from));
        of_date.is_some_and(|gpus| gpus.contains(&run.line.gpu.uuid))
    }

    fn add_priced(&mut self, runs: Vec<DayRow>) -> Result<(), ExportError> {
        let Some(book) = &self.request.book else {
            return runs.into_iter().try_for_each(|run| self.add_run(run));
        };
        // A node whose pool or name changes has other rates from then on.
        let mut spans = BTreeMap::<(Arc<str>, Utc, String), Vec<DayRow>>::new();
        let cuts: BTreeSet<Utc> = book_cuts(book).chain(self.days.iter().copied()).collect();
        for run in runs.into_iter().filter(|run| run.line.amounts != Amounts::default()) {
            let of_node = self.reports.cuts(&run.node.name).filter(|cut| *cut <= run.from).max();
            let begin = cuts.range(..=run.from).next_back().copied().max(of_node);
            let begin = begin.unwrap_or_default().max(run.from.floor(DAY));
            let begin = if self.is_shared(&run) { run.from } else { begin };
            let node = format!("{:?}", run.node);
            spans.entry((Arc::clone(&run.line.gpu.uuid), begin, node)).or_default().push(run);
        }
        for ((_, at, _), runs) in spans {
            self.add_span(book, at, runs)?;
        }
        Ok(())
    }

    /// Prices the lines of a GPU in a span in which no rate of the book begins.
    fn add_span(&mut self, book: &PriceBook, at: Utc, runs: Vec<DayRow>) -> Result<(), ExportError> {
        let Some(first) = runs.first() else { return Ok(()) };
        let (node, gpu, from) = (Arc::clone(&first.node), first.line.gpu.clone(), first.from);
        let to = runs.iter().map(|run| run.to).max().unwrap_or(from);
        let schedule = RateSchedule::always(book, &node);
        let model = self.bill.model(&gpu.uuid).to_owned();
        let whole = PricedSlot { uuid: &gpu.uuid, model: &model, profile: None };
        let gpu_rate = schedule.rate(RateKind::GpuHour, whole, at).map(|rate| rate.id);
        let lines = runs.into_iter().map(|run| unpriced(run.line)).collect();
        let priced = PricedSpan { schedule: &schedule, gpu: &gpu, model: &model, at }.price(lines)?;
        let rates: Vec<BillRate> = schedule.rates.entries().iter().map(BillRate::new).collect();
        let terms: Vec<BillTerms> = schedule.terms.entries().iter().map(BillTerms::new).collect();
        let numbers = self.bill.numbers(&rates, &terms);
        for line in priced {
            let run = DayRow { from, to, node: Arc::clone(&node), gpu_rate, line };
            self.add_run(numbers.of_row(run))?;
        }
        Ok(())
    }

    fn add_run(&mut self, run: DayRow) -> Result<(), ExportError> {
        if !self.request.filter.is_for(&run.line) {
            return Ok(());
        }
        if let Some(sums) = &mut self.sums {
            return Ok(sums.add(run, &self.bill)?);
        }
        let DayRow { from, node, gpu_rate, line, .. } = run;
        self.bill.add_time(&line.gpu.uuid, Nanoseconds(line.amounts.parts.held()), gpu_rate)?;
        self.bill.add_line(from, Some(&node), line)?;
        Ok(())
    }

    fn finish_sums(mut self) -> Result<SummedDate, ExportError> {
        self.resolve_shared()?;
        let mut sums = self.sums.take().unwrap_or_default();
        sums.finish()?;
        Ok(SummedDate { sums, facts: self.facts, conflicts: self.conflicts, files: self.contents })
    }

    fn finish(mut self) -> Result<Bill, ExportError> {
        self.resolve_shared()?;
        self.conflicts.sort_by(|one, other| (&one.gpu, &one.date).cmp(&(&other.gpu, &other.date)));
        let mut gaps: Vec<String> =
            self.reports.unexpected().into_iter().map(|node| format!("{node} is not expected")).collect();
        gaps.extend(self.conflicts.iter().map(ToString::to_string));
        for missing in self.reports.missing(self.from, self.to)? {
            let time: TimeSum = missing.gaps.iter().map(|gap| gap.time).sum();
            let seconds = time.0 / u128::from(Nanoseconds::SECOND.0);
            self.missing += time;
            gaps.push(format!("{} did not report {seconds} s of {}", missing.node, missing.gpu.gpu.uuid));
            self.add_missing(missing)?;
        }
        let mut reasons = std::mem::take(&mut self.reasons);
        let measured = std::mem::take(&mut reasons.measured);
        let ends = self.facts.ends.values().map(|(end, node)| (node.clone(), *end));
        let mut settled = BTreeMap::new();
        // A node that begins a new ledger goes on in that.
        ends.for_each(|(node, end)| {
            let known = settled.entry(node).or_insert(end);
            *known = end.max(*known);
        });
        let reasons = FleetReasons { settled, ..reasons.finish(&self.bill) };
        if let Some(book) = &self.request.book {
            book.check_currency(self.facts.currencies.iter().map(String::as_str))?;
        }
        let imbalance = self.facts.imbalance;
        let is_partial = self.is_filtered();
        let mut bill = self.into_bill(gaps, reasons);
        for line in &mut bill.lines {
            line.has_energy |= measured.contains(&line.gpu.uuid);
        }
        bill.add_up()?;
        bill.reconciliation.imbalance += imbalance;
        if is_partial {
            bill.keep_lines(|_| true);
        }
        Ok(bill)
    }

    fn into_bill(self, gaps: Vec<String>, reasons: FleetReasons) -> Bill {
        let notes = self.notes();
        let Self { request, from, to, exported_until, bill, conflicts, files, facts, .. } = self;
        let bill = bill.finish([from, to], exported_until);
        let is_priced = facts.is_priced || request.book.is_some();
        let currency = match &request.book {
            Some(book) => book.currency().map(|currency| currency.to_string()),
            None => facts.currency,
        };
        let tenant_budgets = StatedBudgets::all_counting(&facts.budgets, currency.as_deref());
        let differing = facts
            .budgets
            .iter()
            .filter_map(|(tenant, stated)| stated.difference(tenant, currency.as_deref()))
            .collect();
        let mut bill = Bill {
            // Statements of fleets in several clusters are told apart by it.
            cluster: Some(&facts.clusters).filter(|all| all.len() == 1).and_then(|all| all.first().cloned()),
            fleet: Some(Fleet {
                nodes: facts.nodes.len() as u64,
                clusters: facts.clusters.into_iter().collect(),
                notes,
                conflicts,
                differing_budgets: differing,
                files,
                gaps,
                reasons,
            }),
            simulated: facts.is_simulated,
            unpriced: bill.unpriced.filter(|_| is_priced),
            tenant_attributes: facts.attributes,
            tenant_budgets,
            currency,
            ..bill
        };
        bill.keep_tenants();
        bill
    }

    fn add_missing(&mut self, missing: MissingTime) -> Result<(), ExportError> {
        let MissingTime { node, gpu, gaps } = missing;
        let node = Arc::new(NodeIdentity { name: node, ..NodeIdentity::default() });
        self.bill.add_gpu(&gpu);
        let Some(book) = &self.request.book else {
            return gaps.iter().try_for_each(|gap| self.add_gap(gap, &gpu.gpu, &node));
        };
        let cuts: BTreeSet<Utc> = book_cuts(book).collect();
        for gap in gaps.iter().flat_map(|gap| gap.cut_at(cuts.iter().copied())) {
            let (from, to, line) = (gap.from, gap.to, gap.line(&gpu.gpu));
            let run = DayRow { from, to, node: Arc::clone(&node), gpu_rate: None, line };
            self.add_span(book, from, vec![run])?;
        }
        Ok(())
    }

    fn add_gap(&mut self, gap: &ReportGap, gpu: &GpuId, node: &Arc<NodeIdentity>) -> Result<(), ExportError> {
        let mut line = gap.line(gpu);
        if let Some(rate) = gap.rate {
            (line.charged, line.unpriced) = (gap.time, Nanoseconds(0));
            line.exact = ExactMoney::of_time(self.bill.price_of(rate), gap.time.0);
            line.rates = LineRates { time: Some(rate), ..LineRates::default() };
        }
        let run = DayRow { from: gap.from, to: gap.to, node: Arc::clone(node), gpu_rate: gap.rate, line };
        self.add_run(run)
    }

    fn notes(&self) -> Vec<String> {
        let facts = &self.facts;
        let mut notes = Vec::new();
        let behind = facts.ends.values().filter(|(end, _)| end.plus(QUARTER_HOUR) < self.to);
        let behind: Vec<String> = behind.map(|(end, node)| format!("{node} (up to {end})")).collect();
        if !behind.is_empty() {
            notes.push(format!("exports end before the bill: {}", list_first(&behind)));
        }
        let twice: Vec<String> = facts
            .nodes
            .iter()
            .filter(|(_, ledgers)| ledgers.len() > 1)
            .map(|(node, ledgers)| format!("{node} ({} ledgers)", ledgers.len()))
            .collect();
        if !twice.is_empty() {
            notes.push(format!(
                "several ledgers have the same node name, and all are counted: {}",
                list_first(&twice)
            ));
        }
        if self.missing > TimeSum(0) {
            let hours = self.missing.0 / u128::from(3_600 * Nanoseconds::SECOND.0);
            notes.push(format!(
                "not reported by expected nodes, and charged at the rate that each GPU had before, or the book's: {hours} GPU-hours"
            ));
        }
        if !facts.skipped.is_empty() {
            let skipped: Vec<String> =
                facts.skipped.iter().map(|(path, _)| path.display().to_string()).collect();
            notes.push(format!("LEFT OUT, damaged: {}", list_first(&skipped)));
        }
        if !self.source.expected.is_empty() {
            let unexpected: Vec<String> = self.reports.unexpected().into_iter().map(str::to_owned).collect();
            if !unexpected.is_empty() {
                notes.push(format!("not expected, and counted: {}", list_first(&unexpected)));
            }
        }
        notes
    }
}

impl FleetFacts {
    fn add(&mut self, header: &DayHeader, path: &Path, is_priced: bool) -> Result<(), ExportError> {
        match (&self.currency, &header.currency) {
            (Some(first), Some(other)) if first != other && is_priced => {
                return Err(ExportError::Currencies {
                    first: first.clone(),
                    second: other.clone(),
                    path: path.to_owned(),
                    day: header.day,
                });
            }
            (None, Some(currency)) => self.currency = Some(currency.clone()),
            _ => {}
        }
        if !header.rates.iter().any(BillRate::is_example) {
            self.currencies.extend(header.currency.clone());
        }
        self.is_priced |= header.priced;
        self.is_simulated |= header.simulated;
        self.imbalance += header.imbalance;
        self.clusters.extend(header.cluster.clone());
        self.nodes.entry(header.node.clone()).or_default().insert(header.ledger.clone());
        let end = self.ends.entry(header.ledger.clone()).or_insert_with(|| (Utc(0), header.node.clone()));
        if header.revision.settled_until > end.0 {
            *end = (header.revision.settled_until, header.node.clone());
        }
        self.attributes.extend(header.tenant_attributes.clone());
        for (tenant, budget) in &header.tenant_budgets {
            self.budgets.entry(tenant.clone()).or_default().add(header.day, &header.node, budget);
        }
        Ok(())
    }
}

fn unpriced(line: BillLine) -> BillLine {
    BillLine {
        rates: LineRates::default(),
        charged: Nanoseconds(0),
        unpriced: Nanoseconds(0),
        exact: ExactMoney::ZERO,
        exact_energy: ExactMoney::ZERO,
        ..line
    }
}

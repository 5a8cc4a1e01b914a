//! Makes a bill from the files of many ledgers, one file after the other, in memory that is bounded by the lines of the bill.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use jiff::tz::TimeZone;
use parquet::file::reader::ChunkReader;

use super::control::{digest_of, digest_of_file};
use super::day_file::{DayFile, DayRun, RunLimits};
use super::directory::{DayPath, ExportDirectory, date_of};
use super::error::{ExportError, FileProblem};
use super::expected::{ExpectedNode, FileTimes, MissingTime, ReportGap, Reports};
use super::lines::{FileNumbers, FleetLines, FleetSums, LineDetail, RunSums};
use super::shared_gpus::{GpuOwners, ResolvedRuns, SharedRuns};
use super::uses::FileUses;
use crate::billing::{
    Bill, BillGpu, BillLine, BillRate, BillTerms, DayHeader, DayRevision, ExactMoney, ExportedFile, Fleet,
    GpuConflict, LineFilter, LineRates, MinuteUses, Month, PriceBook, PricedSlot, PricedSpan, RateKind,
    RateSchedule, Reconciliation, TenantBudget, UsageHistory, WorkloadUsage, days_between, local_date,
    local_time, zone_name,
};
use crate::file;
use crate::model::{Amounts, DAY, GpuId, Nanoseconds, NodeIdentity, QUARTER_HOUR, TimeSum, Utc};
use crate::thread::map_in_order;

/// A larger file is not read into memory as a whole.
const IN_MEMORY: u64 = 32 << 20;
/// The most names in a note.
const NAMES: usize = 5;

/// Which bill is made.
#[derive(Clone, Debug)]
pub struct FleetRequest<'a> {
    /// The directory of the exports.
    pub directory: &'a Path,
    /// Begin; none: that of the month of the last exported time.
    pub from: Option<Utc>,
    /// End; none: the end of what is exported.
    pub to: Option<Utc>,
    /// The time zone of days and months.
    pub zone: TimeZone,
    /// How finely lines are told apart.
    pub detail: LineDetail,
    /// Which lines; all others are not in the bill.
    pub filter: LineFilter,
    /// Prices and terms in place of the exported ones.
    pub book: Option<&'a PriceBook>,
    /// The nodes that should have reported.
    pub expected: &'a [ExpectedNode],
    /// Whether damaged files are left out.
    pub skip_damaged: bool,
    /// Whether the digest of each file is wanted.
    pub digests: bool,
}

/// How far a bill is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Files that were read.
    pub done: usize,
    /// All files.
    pub total: usize,
}

/// A bill, and the files that it was made from.
#[derive(Clone, Debug)]
pub struct FleetBill {
    /// The bill.
    pub bill: Bill,
    /// The files that were read, with their digests where these are wanted.
    pub files: Vec<ExportedFile>,
    /// What is missing by the list of expected nodes, each in words.
    pub gaps: Vec<String>,
    /// Where lines are selected, what their workloads did on each GPU, by quarter hours.
    pub usage: Vec<WorkloadUsage>,
}

impl AsRef<Bill> for FleetBill {
    fn as_ref(&self) -> &Bill {
        &self.bill
    }
}

/// Makes bills, one after the other, each of a span in one currency; tells their progress after each file.
///
/// # Errors
/// A file that cannot be read, two currencies on one day, times that are not on quarter hours.
pub fn make_bills(
    request: &FleetRequest<'_>,
    mut progress: impl FnMut(Progress),
) -> Result<Vec<FleetBill>, ExportError> {
    let all = ExportDirectory(request.directory).days()?;
    let mut make = |request: &FleetRequest<'_>| {
        FleetDraft::new(request, &all).and_then(|draft| make_bill(draft, &all, &mut progress))
    };
    let (mut request, mut bills) = (request.clone(), Vec::new());
    loop {
        match make(&request) {
            Err(ExportError::Currencies { day, .. }) if request.from < Some(day) => {
                bills.push(make(&FleetRequest { to: Some(day), ..request.clone() })?);
                request.from = Some(day);
            }
            last => {
                bills.push(last?);
                return Ok(bills);
            }
        }
    }
}

fn make_bill(
    mut draft: FleetDraft<'_>,
    all: &[DayPath],
    progress: &mut impl FnMut(Progress),
) -> Result<FleetBill, ExportError> {
    let (from, to) = (draft.from, draft.to);
    let is_inside = |day: &DayPath| date_of(from.floor(DAY)) <= day.date && day.date < date_of(to.ceil(DAY));
    let mut files: Vec<DayPath> = all.iter().filter(|day| is_inside(day)).cloned().collect();
    files = draft.survey(files)?;
    let total = files.len();
    let reader = RunReader::new(&draft);
    let mut read_files = Vec::new();
    map_in_order(
        &files,
        |day| reader.read(day),
        |place, read| {
            read_files.extend(draft.add_file(&files[place], read)?);
            progress(Progress { done: place + 1, total });
            Ok::<(), ExportError>(())
        },
    )?;
    let (bill, gaps, usage) = draft.finish()?;
    Ok(FleetBill { bill, files: read_files, gaps, usage })
}

/// A bill while it is made.
struct FleetDraft<'a> {
    request: &'a FleetRequest<'a>,
    from: Utc,
    to: Utc,
    exported_until: Utc,
    days: Vec<Utc>,
    lines: FleetLines,
    /// The GPUs of several ledgers, by date.
    shared_gpus: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    shared: SharedRuns,
    conflicts: Vec<GpuConflict>,
    /// The numbers of the rates and terms of each ledger that has a GPU of several.
    numbers_of_shared: BTreeMap<Arc<str>, Arc<FileNumbers>>,
    reports: Reports<'a>,
    /// What workloads did on GPUs, where lines are selected.
    usage: UsageHistory,
    /// GPU time that expected nodes did not report.
    missing: TimeSum,
    facts: FleetFacts,
}

/// Reads the runs of files, on any thread.
struct RunReader<'a> {
    from: Utc,
    to: Utc,
    /// Begins of local days, and of rates and terms of the book.
    cuts: BTreeSet<Utc>,
    reports: Reports<'a>,
    shared: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    detail: LineDetail,
    /// Where only some lines are in the bill, which.
    filter: Option<&'a LineFilter>,
    digests: bool,
}

/// What a bill needs of a file.
struct ReadDay {
    header: DayHeader,
    runs: Vec<DayRun>,
    uses: Vec<(GpuId, MinuteUses)>,
    /// Empty where no node is expected.
    times: FileTimes,
    digest: Option<String>,
}

impl<'a> RunReader<'a> {
    fn new(draft: &FleetDraft<'a>) -> Self {
        let mut cuts: BTreeSet<Utc> = draft.days.iter().copied().collect();
        if let Some(book) = draft.request.book {
            cuts.extend(book_cuts(book));
        }
        let reports = Reports::new(draft.request.expected);
        Self {
            from: draft.from,
            to: draft.to,
            cuts,
            reports,
            shared: draft.shared_gpus.clone(),
            // A filter may select by what the bill does not tell apart.
            detail: if draft.is_filtered() { LineDetail::whole() } else { draft.request.detail.clone() },
            filter: draft.is_filtered().then_some(&draft.request.filter),
            digests: draft.request.digests,
        }
    }

    /// The header of a file and all runs in the period.
    fn read(&self, day: &DayPath) -> Result<ReadDay, FileProblem> {
        let mut file = file::open(&day.path)?;
        if file.metadata()?.len() > IN_MEMORY {
            let digest = self.digests.then(|| digest_of_file(&mut file)).transpose()?;
            return self.read_file(day, &DayFile::read(file)?, digest);
        }
        let mut bytes = Vec::new();
        file.take(IN_MEMORY).read_to_end(&mut bytes)?;
        let digest = self.digests.then(|| digest_of(&bytes));
        self.read_file(day, &DayFile::of_bytes(bytes)?, digest)
    }

    fn read_file<R: ChunkReader + 'static>(
        &self,
        day: &DayPath,
        file: &DayFile<R>,
        digest: Option<String>,
    ) -> Result<ReadDay, FileProblem> {
        file.check_place(&day.date, &day.ledger)?;
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
        let (mut sums, mut uses) = (RunSums::new(&self.detail, limits), self.filter.map(FileUses::new));
        file.read_runs(limits, |run| {
            // A GPU of several ledgers is read for its whole day.
            let is_inside = self.from <= run.from && run.from < self.to;
            if let Some(uses) = uses.as_mut().filter(|_| is_inside) {
                uses.add(&run, run.to.min(end));
            }
            if is_inside && !self.reports.is_empty() {
                times.add(&run);
            }
            Ok(sums.add(run)?)
        })?;
        Ok(ReadDay {
            header: file.header().clone(),
            runs: sums.into_runs().collect(),
            uses: uses.map(FileUses::finish).unwrap_or_default(),
            times,
            digest: digest.map(|digest| format!("sha256:{digest}")),
        })
    }
}

/// The times at which rates and terms of a book begin.
fn book_cuts(book: &PriceBook) -> impl Iterator<Item = Utc> {
    let rates = book.rates.iter().filter_map(|rate| rate.from);
    rates.chain(book.terms.iter().filter_map(|terms| terms.from))
}

/// What the headers say together.
#[derive(Default)]
struct FleetFacts {
    currency: Option<String>,
    /// The currencies of operators' prices.
    currencies: BTreeSet<String>,
    is_priced: bool,
    is_simulated: bool,
    /// The difference that files found in their ledgers.
    imbalance: i128,
    clusters: BTreeSet<String>,
    /// The ledgers of each node.
    nodes: BTreeMap<String, BTreeSet<String>>,
    /// Up to where each ledger is exported, and its node.
    ends: BTreeMap<String, (Utc, String)>,
    attributes: BTreeMap<String, BTreeMap<String, String>>,
    budgets: BTreeMap<String, TenantBudget>,
    skipped: Vec<String>,
}

impl<'a> FleetDraft<'a> {
    fn new(request: &'a FleetRequest<'a>, all: &[DayPath]) -> Result<Self, ExportError> {
        let zone = &request.zone;
        let exported_until = last_export(all, request.skip_damaged)?;
        let to = request.to.map_or(exported_until, |to| to.min(exported_until));
        let month = Month::containing(Utc(to.0.saturating_sub(1)), zone);
        let from = request.from.unwrap_or_else(|| month.map_or(to, |month| month.begin));
        let to = to.max(from);
        for at in [request.from, request.to].into_iter().flatten() {
            if at.floor(QUARTER_HOUR) != at {
                return Err(ExportError::Grid(at.to_string()));
            }
        }
        let days = if request.detail.day { days_between(from, to, zone) } else { Vec::new() };
        Ok(Self {
            request,
            from,
            to,
            exported_until,
            days,
            lines: FleetLines::default(),
            shared_gpus: BTreeMap::new(),
            shared: SharedRuns::default(),
            conflicts: Vec::new(),
            numbers_of_shared: BTreeMap::new(),
            reports: Reports::new(request.expected),
            usage: UsageHistory::default(),
            missing: TimeSum(0),
            facts: FleetFacts::default(),
        })
    }

    /// Reads all headers, and leaves out files that a later one replaces and, on request, damaged ones.
    fn survey(&mut self, files: Vec<DayPath>) -> Result<Vec<DayPath>, ExportError> {
        let mut kept = BTreeMap::<(String, String), (DayRevision, usize)>::new();
        let mut gpus = Vec::new();
        let read = |day: &DayPath| {
            DayFile::open(&day.path).map(|file| (file.header().revision, file.header().gpus.clone()))
        };
        map_in_order(&files, read, |place, read| {
            let day = &files[place];
            let Some((revision, of_day)) = self.unless_skipped(day, read)? else { return Ok(()) };
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
        self.shared_gpus = owners.into_shared();
        let places: BTreeSet<usize> = kept.into_values().map(|(_, place)| place).collect();
        Ok(files
            .into_iter()
            .enumerate()
            .filter(|(place, _)| places.contains(place))
            .map(|(_, day)| day)
            .collect())
    }

    /// What was read of a file; none of a damaged one that is left out on request.
    fn unless_skipped<T>(
        &mut self,
        day: &DayPath,
        read: Result<T, FileProblem>,
    ) -> Result<Option<T>, ExportError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(problem) if self.request.skip_damaged && problem.is_damage() => {
                self.facts.skipped.push(day.path.display().to_string());
                Ok(None)
            }
            Err(problem) => Err(problem.at(&day.path)),
        }
    }

    /// Adds a file; none if it is left out.
    fn add_file(
        &mut self,
        day: &DayPath,
        read: Result<ReadDay, FileProblem>,
    ) -> Result<Option<ExportedFile>, ExportError> {
        let Some(ReadDay { header, runs, uses, times, digest }) = self.unless_skipped(day, read)? else {
            return Ok(None);
        };
        uses.iter().for_each(|(gpu, quarter)| self.usage.add(gpu, quarter));
        self.facts.add(&header, &day.path, self.request.book.is_none())?;
        self.lines.add_gpus(&header);
        self.reports.add_gpus(&header);
        let numbers = self.lines.numbers(&header.rates, &header.terms);
        // What was reported is not missing, whatever becomes of it.
        self.reports.add(times, &numbers);
        self.add_runs(&header, runs, numbers)?;
        let path = day.path.strip_prefix(self.request.directory).unwrap_or(&day.path);
        Ok(Some(ExportedFile { path: path.display().to_string(), digest: digest.unwrap_or_default() }))
    }

    /// Whether only some lines are in the bill.
    fn is_filtered(&self) -> bool {
        self.request.filter != LineFilter::default()
    }

    fn is_shared(&self, run: &DayRun) -> bool {
        if self.shared_gpus.is_empty() {
            return false;
        }
        let of_date = self.shared_gpus.get(&*date_of(run.from));
        of_date.is_some_and(|gpus| gpus.contains(&run.line.gpu.uuid))
    }

    fn add_runs(
        &mut self,
        header: &DayHeader,
        runs: Vec<DayRun>,
        numbers: FileNumbers,
    ) -> Result<(), ExportError> {
        let (shared, own): (Vec<DayRun>, Vec<DayRun>) = runs.into_iter().partition(|run| self.is_shared(run));
        let ledger: Arc<str> = format!("{} of {}", header.ledger, header.node).into();
        self.add_priced(own, &numbers)?;
        if !shared.is_empty() {
            shared.into_iter().for_each(|run| self.shared.add(&ledger, run));
            // The rates of a ledger keep their numbers.
            self.numbers_of_shared
                .entry(ledger)
                .and_modify(|known| *known = Arc::new(known.with(&numbers)))
                .or_insert_with(|| Arc::new(numbers));
        }
        Ok(())
    }

    /// Adds runs of one file, priced anew where there is a book.
    fn add_priced(&mut self, runs: Vec<DayRun>, numbers: &FileNumbers) -> Result<(), ExportError> {
        let Some(book) = self.request.book else {
            return runs.into_iter().try_for_each(|run| self.add_run(run, numbers));
        };
        // A node whose pool or name changes has other rates from then on.
        let mut spans = BTreeMap::<(Arc<str>, Utc, String), Vec<DayRun>>::new();
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
    fn add_span(&mut self, book: &PriceBook, at: Utc, runs: Vec<DayRun>) -> Result<(), ExportError> {
        let Some(first) = runs.first() else { return Ok(()) };
        let (node, gpu, from) = (Arc::clone(&first.node), first.line.gpu.clone(), first.from);
        let to = runs.iter().map(|run| run.to).max().unwrap_or(from);
        let schedule = RateSchedule::always(book, &node);
        let model = self.lines.model(&gpu.uuid).to_owned();
        let whole = PricedSlot { uuid: &gpu.uuid, model: &model, profile: None };
        let gpu_rate = schedule.rate(RateKind::GpuHour, whole, at).map(|rate| rate.id);
        let lines = runs.into_iter().map(|run| unpriced(run.line)).collect();
        let priced = PricedSpan { schedule: &schedule, gpu: &gpu, model: &model, at }.price(lines)?;
        let rates: Vec<BillRate> = schedule.rates.entries().iter().map(BillRate::new).collect();
        let terms: Vec<BillTerms> = schedule.terms.entries().iter().map(BillTerms::new).collect();
        let numbers = self.lines.numbers(&rates, &terms);
        for line in priced {
            self.add_run(DayRun { from, to, node: Arc::clone(&node), gpu_rate, line }, &numbers)?;
        }
        Ok(())
    }

    fn add_run(&mut self, run: DayRun, numbers: &FileNumbers) -> Result<(), ExportError> {
        if !self.request.filter.is_for(&run.line) {
            return Ok(());
        }
        let day = self.request.detail.day.then(|| local_date(run.from, &self.request.zone));
        self.lines.add(run, numbers, &self.request.detail, day.as_deref())?;
        Ok(())
    }

    /// The bill, and what is missing by the list of expected nodes.
    fn finish(mut self) -> Result<(Bill, Vec<String>, Vec<WorkloadUsage>), ExportError> {
        let ResolvedRuns { runs, conflicts } =
            std::mem::take(&mut self.shared).resolve([self.from, self.to])?;
        for runs in runs {
            let numbers = runs.first().and_then(|(ledger, _)| self.numbers_of_shared.get(ledger)).cloned();
            let runs = runs.into_iter().map(|(_, run)| run).collect();
            if let Some(numbers) = numbers {
                self.add_priced(runs, &numbers)?;
            }
        }
        let mut gaps: Vec<String> =
            self.reports.unexpected().into_iter().map(|node| format!("{node} is not expected")).collect();
        gaps.extend(conflicts.iter().map(ToString::to_string));
        self.conflicts = conflicts;
        for missing in self.reports.missing(self.from, self.to)? {
            let time: TimeSum = missing.gaps.iter().map(|gap| gap.time).sum();
            let seconds = time.0 / u128::from(Nanoseconds::SECOND.0);
            self.missing += time;
            gaps.push(format!("{} did not report {seconds} s of {}", missing.node, missing.gpu.gpu.uuid));
            self.add_missing(missing)?;
        }
        let usage = std::mem::take(&mut self.usage).finish();
        if let Some(book) = self.request.book {
            book.check_currency(self.facts.currencies.iter().map(String::as_str))?;
        }
        let imbalance = self.facts.imbalance;
        let is_partial = self.is_filtered();
        let mut bill = self.bill();
        bill.add_up()?;
        bill.reconciliation.imbalance += imbalance;
        if is_partial {
            bill.keep_lines(|_| true);
        }
        Ok((bill, gaps, usage))
    }

    /// The bill without sums.
    fn bill(self) -> Bill {
        let notes = self.notes();
        let Self { request, from, to, exported_until, lines, conflicts, facts, .. } = self;
        let zone = &request.zone;
        let FleetSums { lines, gpus, rates, terms } = lines.finish();
        let is_there = |tenant: &str| lines.iter().any(|line| line.tenant == tenant);
        Bill {
            node: String::new(),
            // Statements of fleets in several clusters are told apart by it.
            cluster: Some(&facts.clusters).filter(|all| all.len() == 1).and_then(|all| all.first().cloned()),
            how_held: None,
            claim_conflicts: Vec::new(),
            billing_account: None,
            invoice_issuer: None,
            fleet: Some(Fleet {
                nodes: facts.nodes.len() as u64,
                clusters: facts.clusters.into_iter().collect(),
                notes,
                conflicts,
            }),
            simulated: facts.is_simulated,
            from,
            to,
            from_local: local_time(from, zone),
            to_local: local_time(to, zone),
            time_zone: zone_name(zone, to),
            asked_to: request.to.filter(|asked| *asked > to).map(|asked| local_time(asked, zone)),
            closed_until: exported_until,
            partial: false,
            currency: match request.book {
                Some(book) => book.currency().map(|currency| currency.to_string()),
                None => facts.currency,
            },
            example_prices: rates.iter().any(BillRate::is_example),
            unpriced: (facts.is_priced || request.book.is_some())
                .then(|| gpus.iter().map(BillGpu::unpriced).sum()),
            tenant_attributes: facts.attributes.into_iter().filter(|(tenant, _)| is_there(tenant)).collect(),
            tenant_budgets: facts.budgets.into_iter().filter(|(tenant, _)| is_there(tenant)).collect(),
            rates,
            terms,
            lines,
            gpus,
            reconciliation: Reconciliation::default(),
        }
    }

    /// Adds time that an expected node did not report.
    fn add_missing(&mut self, missing: MissingTime) -> Result<(), ExportError> {
        let MissingTime { node, gpu, gaps } = missing;
        let node = Arc::new(NodeIdentity { name: node, ..NodeIdentity::default() });
        self.lines.add_gpu(&gpu);
        let Some(book) = self.request.book else {
            return gaps.iter().try_for_each(|gap| self.add_gap(gap, &gpu.gpu, &node));
        };
        let cuts: BTreeSet<Utc> = book_cuts(book).collect();
        for gap in gaps.iter().flat_map(|gap| gap.cut_at(cuts.iter().copied())) {
            let (from, to, line) = (gap.from, gap.to, gap.line(&gpu.gpu));
            let run = DayRun { from, to, node: Arc::clone(&node), gpu_rate: None, line };
            self.add_span(book, from, vec![run])?;
        }
        Ok(())
    }

    /// Adds a gap at the rate that the GPU had before it.
    fn add_gap(&mut self, gap: &ReportGap, gpu: &GpuId, node: &Arc<NodeIdentity>) -> Result<(), ExportError> {
        let mut line = gap.line(gpu);
        if let Some(rate) = gap.rate {
            (line.charged, line.unpriced) = (gap.time, Nanoseconds(0));
            line.exact = ExactMoney::of_time(self.lines.price_of(rate), gap.time.0);
            line.rates = LineRates { time: Some(rate), ..LineRates::default() };
        }
        let run = DayRun { from: gap.from, to: gap.to, node: Arc::clone(node), gpu_rate: gap.rate, line };
        self.add_run(run, &FileNumbers::same(gap.rate))
    }

    /// What a reader must know about the exports.
    fn notes(&self) -> Vec<String> {
        let facts = &self.facts;
        let mut notes = Vec::new();
        let list = |names: &[String]| {
            let shown = names.iter().take(NAMES).cloned().collect::<Vec<_>>().join(", ");
            let more = names.len().saturating_sub(NAMES);
            if more > 0 { format!("{shown} and {more} more") } else { shown }
        };
        let behind = facts.ends.values().filter(|(end, _)| end.plus(QUARTER_HOUR) < self.to);
        let behind: Vec<String> = behind.map(|(end, node)| format!("{node} (up to {end})")).collect();
        if !behind.is_empty() {
            notes.push(format!("exports end before the bill: {}", list(&behind)));
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
                list(&twice)
            ));
        }
        if self.missing > TimeSum(0) {
            let hours = self.missing.0 / u128::from(3_600 * Nanoseconds::SECOND.0);
            notes.push(format!(
                "not reported by expected nodes, and charged at the rate that each GPU had before, or the book's: {hours} GPU-hours"
            ));
        }
        if !facts.skipped.is_empty() {
            notes.push(format!("LEFT OUT, damaged: {}", list(&facts.skipped)));
        }
        if !self.request.expected.is_empty() {
            let unexpected: Vec<String> = self.reports.unexpected().into_iter().map(str::to_owned).collect();
            if !unexpected.is_empty() {
                notes.push(format!("not expected, and counted: {}", list(&unexpected)));
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
        self.budgets.extend(header.tenant_budgets.clone());
        Ok(())
    }
}

/// A line as it was before it was priced.
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

/// Up to where the last day is exported.
///
/// # Errors
/// There is no export below the directory, or one of the last day cannot be read.
pub fn exported_until(directory: &Path, skip_damaged: bool) -> Result<Utc, ExportError> {
    last_export(&ExportDirectory(directory).days()?, skip_damaged)
}

fn last_export(all: &[DayPath], skip_damaged: bool) -> Result<Utc, ExportError> {
    let mut last = Utc(0);
    for (place, day) in all.iter().enumerate().rev() {
        if last.0 > 0 && all.get(place + 1).is_some_and(|next| next.date != day.date) {
            break;
        }
        match DayFile::open(&day.path) {
            Ok(file) => last = last.max(file.header().revision.settled_until),
            Err(problem) if skip_damaged && problem.is_damage() => {}
            Err(problem) => return Err(problem.at(&day.path)),
        }
    }
    Ok(last)
}

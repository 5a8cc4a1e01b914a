//! Reads the evidence of advice from the files of many ledgers, by quarter hours, one file after the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parquet::file::reader::ChunkReader;

use super::day_file::{DayFile, RunLimits};
use super::directory::{DayPath, ExportDirectory, date_of};
use super::error::{ExportError, FileProblem};
use super::evidence_file::read_evidence;
use super::expected::{ExpectedNode, FileTimes, Reports};
use super::fleet::{ExportSource, SurveyedFiles, survey};
use crate::accounting::advice::{
    Advice, AdviceEvidence, AdviceRequest, AdviceSource, COMMITMENT_DAYS, FleetEvidence, IdleStretch, PERIOD,
    ProcessPresence, SlotKey, SlotRun, StretchDraft, WorkloadKey, advise,
};
use crate::accounting::billing::{BillLine, DayHeader, DayIncident, DayRow, ExactMoney, FileNumbers, Terms};
use crate::accounting::tenants::recurring_name;
use crate::model::{
    DAY, Fact, Facts, Grade, HOUR, Holder, HolderId, Microjoules, Nanoseconds, QUARTER_HOUR, Series, Shape,
    Utc, VisibleAccount, WorkloadClass,
};
use crate::runtime::thread::map_in_order;

/// The findings over the files of a directory; tells after each file how many were read, and how many there are.
///
/// # Errors
/// A file that cannot be read; it is cancelled.
pub fn make_advice(
    source: &ExportSource<'_>,
    request: &AdviceRequest,
    mut step: impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<Advice, ExportError> {
    let to = source.exported_until()?;
    let from = Utc(to.0.saturating_sub(PERIOD.0)).floor(DAY);
    let wants_fleet = !source.expected.is_empty() && request.visible == VisibleAccount::Everything;
    let begin = if wants_fleet { Utc(to.0.saturating_sub(COMMITMENT_DAYS * DAY.0)).floor(DAY) } else { from };
    let all = source.days()?;
    let is_inside = |day: &DayPath| date_of(begin) <= day.date && day.date < date_of(to.ceil(DAY));
    let files = all.into_iter().filter(is_inside).collect();
    let is_skipped = |problem: &FileProblem| source.skip_damaged && problem.is_damage();
    let SurveyedFiles { files, shared, skipped } = survey(files, is_skipped, &mut step)?;
    let follows_links = source.untrusted_at.is_none();
    let visible = &request.visible;
    let reader = DayReader { shared: &shared, visible, since: from, wants_fleet, follows_links };
    let mut draft = FleetAdvice::new([begin, from, to], &source.expected);
    draft.is_shared = !shared.is_empty();
    draft.skipped += skipped.len();
    map_in_order(
        &files,
        |day| reader.read(day),
        |place, read| {
            match read {
                Ok(day) => draft.add(day),
                Err(problem) if is_skipped(&problem) => draft.skipped += 1,
                Err(problem) => return Err(problem.at(&files[place].path)),
            }
            step(place + 1, files.len())
        },
    )?;
    draft.finish(request)
}

struct DayReader<'a> {
    /// The GPUs of several ledgers, by date: nobody knows which of them is right.
    shared: &'a BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    visible: &'a VisibleAccount,
    /// Only what is of the fleet is read of days before.
    since: Utc,
    wants_fleet: bool,
    follows_links: bool,
}

/// By place of the workload, and slot.
type DaySlots = HashMap<(usize, SlotKey), SlotDay>;

/// What the files of one day of one ledger say.
struct AdviceDay {
    header: DayHeader,
    /// The GPUs on which memory of processes was reported.
    with_memory: BTreeSet<Arc<str>>,
    keys: Vec<KnownWorkload>,
    /// By place in `keys`.
    slots: DaySlots,
    fleet: Option<FleetDay>,
}

#[derive(Clone)]
struct KnownWorkload {
    key: WorkloadKey,
    name: String,
    class: WorkloadClass,
}

/// A workload on a slot, on one day or up to now.
#[derive(Default)]
struct SlotDay {
    stretches: StretchDraft,
    runs: Vec<SlotRun>,
    grade: Grade,
    shapes: [Shape; Series::ALL.len()],
}

/// What is kept of a row.
struct QuarterRow {
    /// Place of its workload; none of a remainder, and of what the reader may not see.
    key: Option<usize>,
    /// Whether it may have worked for any of the others.
    is_unclear: bool,
    held: Nanoseconds,
    idle: Nanoseconds,
    used: Nanoseconds,
    unknown: Nanoseconds,
    /// Whether the row's holding was used.
    is_busy: bool,
    has_memory: bool,
    waiting: Microjoules,
    grade: Grade,
    rate: Option<i64>,
}

impl DayReader<'_> {
    fn read(&self, day: &DayPath) -> Result<AdviceDay, FileProblem> {
        let file = DayFile::open(&day.path)?;
        file.check_place(day)?;
        self.read_file(day, file)
    }

    fn read_file<R: ChunkReader + 'static>(
        &self,
        day: &DayPath,
        file: DayFile<R>,
    ) -> Result<AdviceDay, FileProblem> {
        let none = BTreeSet::new();
        let begin = file.header().day;
        let limits = RunLimits {
            from: begin,
            to: begin.plus(DAY),
            cuts: &[],
            by_quarter: &none,
            all_by_quarter: true,
        };
        let shared = self.shared.get(&*day.date).unwrap_or(&none);
        let is_recent = begin >= self.since;
        let mut draft = AdviceDayDraft::new(file.header(), self.visible);
        let mut fleet = self.wants_fleet.then(|| FleetDay::new(file.header()));
        file.read_runs(limits, |run| {
            if let Some(fleet) = &mut fleet {
                fleet.add(&run);
            }
            if is_recent && !shared.contains(&run.line.gpu.uuid) {
                draft.add(&run);
            }
            Ok(())
        })?;
        if let Some(fleet) = &mut fleet {
            fleet.services = draft.services();
        }
        let mut slots = draft.slots();
        let AdviceDayDraft { keys, with_memory, .. } = draft;
        let (revision, path) = (file.header().revision, ExportDirectory::evidence_beside(&day.path));
        let is_followed = self.follows_links || !path.is_symlink();
        let evidence = if is_recent && is_followed { read_evidence(&path, &revision)? } else { None };
        for shape in evidence.into_iter().flat_map(|evidence| evidence.shapes) {
            let workload = outer_of(&shape.owner.holder);
            let is_own = |known: &KnownWorkload| {
                known.key.workload == workload && *known.key.tenant == *shape.owner.tenant
            };
            let Some(place) = keys.iter().position(is_own) else { continue };
            let slot =
                SlotKey { uuid: Arc::clone(&shape.owner.gpu.uuid), gpu_instance: shape.owner.gpu_instance };
            if let Some(known) = slots.get_mut(&(place, slot)) {
                known.shapes[shape.series as usize].add(&shape.shape);
            }
        }
        Ok(AdviceDay { header: file.into_header(), with_memory, keys, slots, fleet })
    }
}

/// The rows of a day while they are read.
struct AdviceDayDraft<'a> {
    header: &'a DayHeader,
    visible: &'a VisibleAccount,
    classes: HashMap<&'a HolderId, WorkloadClass>,
    terms: HashMap<i64, Option<Terms>>,
    /// The last row's holder and tenant, whose rows follow each other, with the place of the workload.
    last: Option<(HolderId, String, Option<usize>)>,
    keys: Vec<KnownWorkload>,
    with_memory: BTreeSet<Arc<str>>,
    quarters: BTreeMap<(Arc<str>, Option<u32>, Utc), Vec<QuarterRow>>,
}

impl<'a> AdviceDayDraft<'a> {
    fn new(header: &'a DayHeader, visible: &'a VisibleAccount) -> Self {
        let tenancies = header.reasons.iter().flat_map(|reasons| &reasons.tenancies);
        let classes = tenancies.flat_map(|one| one.holders.iter().map(|holder| (holder, one.tenancy.class)));
        let terms = header.terms.iter().map(|terms| (terms.id, Terms::described(&terms.terms)));
        Self {
            header,
            visible,
            classes: classes.collect(),
            terms: terms.collect(),
            last: None,
            keys: Vec::new(),
            with_memory: BTreeSet::new(),
            quarters: BTreeMap::new(),
        }
    }

    fn add(&mut self, run: &DayRow) {
        let line = &run.line;
        let (parts, used) = (&line.amounts.parts, line.amounts.used.total());
        if line.amounts.memory_peak > 0 {
            self.with_memory.insert(Arc::clone(&line.gpu.uuid));
        }
        let id = &line.holder;
        let row = QuarterRow {
            key: self.key(line),
            is_unclear: id.as_str() == HolderId::SYSTEM || id.unattributed_reason().is_some(),
            held: Nanoseconds(parts.held()),
            idle: Nanoseconds(parts.idle),
            used: Nanoseconds(used),
            unknown: Nanoseconds(parts.unmeasured + parts.unavailable),
            is_busy: parts.within + used > 0,
            has_memory: line.amounts.memory_byte_seconds > 0,
            waiting: line.amounts.energy_waiting,
            grade: line.grade,
            rate: self.rate(line),
        };
        if row.key.is_some() || (row.is_unclear && row.has_memory) {
            let slot = (Arc::clone(&line.gpu.uuid), line.slot.gpu_instance, run.from);
            self.quarters.entry(slot).or_default().push(row);
        }
    }

    /// The place of the workload of a line.
    fn key(&mut self, line: &BillLine) -> Option<usize> {
        if let Some((holder, tenant, place)) = &self.last
            && (holder, tenant) == (&line.holder, &line.tenant)
        {
            return *place;
        }
        let label = |fact: Fact| line.labels.get(fact.label()).map(String::as_str);
        let is_seen = !line.holder.is_remainder() && self.visible.shows(&line.tenant, label);
        let place = is_seen.then(|| {
            let key = WorkloadKey { tenant: line.tenant.as_str().into(), workload: outer_of(&line.holder) };
            let facts = Fact::ALL.iter().filter_map(|fact| Some((*fact, label(*fact)?)));
            let name = recurring_name(&Holder { id: line.holder.clone(), facts: Facts::new(facts) });
            let class = self.classes.get(&line.holder).copied().unwrap_or_default();
            let is_itself = line.holder.name() == key.workload.name();
            match self.keys.iter().position(|known| known.key == key) {
                Some(place) => {
                    // The facts of the workload itself count before those of its parts.
                    if is_itself {
                        (self.keys[place].name, self.keys[place].class) = (name, class);
                    }
                    place
                }
                None => {
                    self.keys.push(KnownWorkload { key, name, class });
                    self.keys.len() - 1
                }
            }
        });
        self.last = Some((line.holder.clone(), line.tenant.clone(), place));
        place
    }

    /// What an hour of idle GPU time of a line costs.
    fn rate(&self, line: &BillLine) -> Option<i64> {
        let rate = line.rates.time.and_then(|id| self.header.rates.iter().find(|rate| rate.id == id))?;
        let nano = rate.nano_per_gpu_hour(line.slot.profile.as_ref()).ok()?;
        match line.rates.terms {
            // Terms that cannot be read may be any.
            Some(id) => self.terms.get(&id)?.as_ref().map(|terms| Terms::of_idle(Some(terms), nano)),
            None => Some(nano),
        }
    }

    /// How many replicas of each service held GPUs in each quarter hour, and how many of these may have used them.
    fn services(&self) -> ServiceCounts {
        let mut busy = BTreeMap::<(Utc, usize), bool>::new();
        for ((_, _, from), rows) in &self.quarters {
            for row in rows.iter().filter(|row| row.held.0 > 0 || row.is_busy) {
                let Some(key) = row.key.filter(|key| self.keys[*key].class == WorkloadClass::Service) else {
                    continue;
                };
                *busy.entry((*from, key)).or_default() |= row.is_busy || row.unknown.0 > 0;
            }
        }
        let mut counts = ServiceCounts::new();
        for ((from, key), is_busy) in busy {
            let KnownWorkload { key, name, .. } = &self.keys[key];
            let service = counts.entry((Arc::clone(&key.tenant), name.clone())).or_default();
            let [held, used] = service.entry(from).or_default();
            (*held, *used) = (held.saturating_add(1), used.saturating_add(is_busy.into()));
        }
        counts
    }

    /// What each workload had of each slot.
    fn slots(&self) -> DaySlots {
        let mut slots = DaySlots::new();
        let end = self.header.revision.settled_until;
        for ((uuid, gpu_instance, from), rows) in &self.quarters {
            let to = from.plus(QUARTER_HOUR).min(end).max(*from);
            let keys: BTreeSet<usize> = rows.iter().filter_map(|row| row.key).collect();
            for key in keys {
                let slot = SlotKey { uuid: Arc::clone(uuid), gpu_instance: *gpu_instance };
                let quarter = Quarter::of(rows, key, [*from, to]);
                let day = slots.entry((key, slot)).or_default();
                day.stretches.of_service(self.keys[key].class == WorkloadClass::Service);
                day.add(&quarter, gpu_instance.is_none());
            }
        }
        slots
    }
}

/// What a workload had of a slot in a quarter hour.
struct Quarter {
    from: Utc,
    to: Utc,
    sum: QuarterRow,
    process: ProcessPresence,
}

impl Quarter {
    fn of(rows: &[QuarterRow], key: usize, [from, to]: [Utc; 2]) -> Self {
        let mut sum = QuarterRow {
            key: Some(key),
            is_unclear: rows.iter().any(|row| row.is_unclear && row.has_memory),
            held: Nanoseconds(0),
            idle: Nanoseconds(0),
            used: Nanoseconds(0),
            unknown: Nanoseconds(0),
            is_busy: false,
            has_memory: false,
            waiting: Microjoules(0),
            grade: Grade::Measured,
            rate: None,
        };
        let mut is_first = true;
        for row in rows.iter().filter(|row| row.key == Some(key)) {
            sum.held += row.held;
            sum.idle += row.idle;
            sum.used += row.used;
            sum.unknown += row.unknown;
            sum.is_busy |= row.is_busy;
            sum.has_memory |= row.has_memory;
            sum.waiting.0 = sum.waiting.0.saturating_add(row.waiting.0);
            sum.grade = sum.grade.max(row.grade);
            if row.idle.0 > 0 {
                // A change of the rate within the quarter hour: the lower one counts.
                sum.rate = if is_first { row.rate } else { sum.rate.min(row.rate) };
                is_first = false;
            }
        }
        let process = match (sum.is_unclear, sum.has_memory) {
            (true, _) => ProcessPresence::Unclear,
            (false, true) => ProcessPresence::Present,
            (false, false) => ProcessPresence::Absent,
        };
        Self { from, to, sum, process }
    }
}

impl SlotDay {
    fn add(&mut self, quarter: &Quarter, is_whole_gpu: bool) {
        let Quarter { from, to, sum, process } = quarter;
        self.grade = self.grade.max(sum.grade);
        if sum.held.0 > 0 {
            self.add_to_run(quarter);
        }
        if sum.is_busy || sum.unknown.0 > 0 || sum.idle.0 == 0 {
            return;
        }
        self.stretches.add(IdleStretch {
            from: *from,
            to: *to,
            grid: to.since(*from),
            idle: sum.idle,
            process: *process,
            waiting: sum.waiting,
            rate: sum.rate,
            is_alone: is_whole_gpu && sum.idle == to.since(*from),
        });
    }

    fn add_to_run(&mut self, quarter: &Quarter) {
        let Quarter { from, to, sum, .. } = quarter;
        let run = SlotRun {
            begin: *from,
            end: *to,
            grid: to.since(*from),
            goes_on: false,
            last_use: sum.is_busy.then_some(*to),
            held: sum.held,
            used: sum.used,
            unknown: sum.unknown,
        };
        self.append(run);
    }

    fn append(&mut self, next: SlotRun) {
        match self.runs.last_mut() {
            Some(last) if last.end == next.begin => {
                last.end = next.end;
                last.last_use = next.last_use.or(last.last_use);
                last.held += next.held;
                last.used += next.used;
                last.unknown += next.unknown;
            }
            _ => self.runs.push(next),
        }
    }

    /// Adds the next day.
    fn add_day(&mut self, day: Self) {
        day.stretches.into_stretches().into_iter().for_each(|one| self.stretches.add(one));
        day.runs.into_iter().for_each(|run| self.append(run));
        self.grade = self.grade.max(day.grade);
        self.shapes.iter_mut().zip(&day.shapes).for_each(|(sum, more)| sum.add(more));
    }
}

/// By tenant and name, then by quarter hour.
type ServiceCounts = BTreeMap<(Arc<str>, String), BTreeMap<Utc, [u16; 2]>>;

/// What a day of one ledger says of the fleet.
struct FleetDay {
    /// With begins of that day.
    evidence: FleetEvidence,
    services: ServiceCounts,
    times: FileTimes,
    models: BTreeMap<Arc<str>, String>,
    rates: BTreeMap<i64, (i64, String)>,
}

impl FleetDay {
    fn new(header: &DayHeader) -> Self {
        let rates = header.rates.iter();
        let rates = rates.filter_map(|rate| Some((rate.id, (rate.nano().ok()?, rate.class.clone()))));
        let models = header.gpus.iter().map(|gpu| (Arc::clone(&gpu.gpu.uuid), gpu.model.clone()));
        let evidence =
            FleetEvidence { begin: header.day, models_begin: header.day, ..FleetEvidence::default() };
        Self {
            evidence,
            services: ServiceCounts::new(),
            times: FileTimes::default(),
            models: models.collect(),
            rates: rates.collect(),
        }
    }

    fn add(&mut self, run: &DayRow) {
        self.times.add(run);
        let (parts, uuid) = (&run.line.amounts.parts, &run.line.gpu.uuid);
        let held = parts.held();
        if held == 0 {
            return;
        }
        let rate = run.gpu_rate.and_then(|id| self.rates.get(&id));
        let (nano, class) = rate.map_or((0, ""), |(nano, class)| (*nano, class.as_str()));
        let node = self.evidence.nodes.entry(run.node.name.clone()).or_default();
        if !node.gpus.contains(uuid) {
            node.gpus.insert(Arc::clone(uuid));
        }
        node.stays |= matches!(class, COMMITTED | OWNED);
        node.is_unpriced |= rate.is_none();
        if let Some(hour) = self.evidence.node_hour(&run.node.name, run.from) {
            hour.all += held;
            hour.money = hour.money.saturating_add(ExactMoney::of_time(nano, held).parts());
            if run.line.holder.as_str() == HolderId::UNALLOCATED {
                hour.free += parts.idle;
            }
        }
        let Some(model) = self.models.get(uuid) else { return };
        let known = self.evidence.models.entry(model.clone()).or_default();
        match class {
            ON_DEMAND => known.on_demand.insert(nano),
            COMMITTED => known.committed.insert(nano),
            _ => false,
        };
        if class == ON_DEMAND
            && !run.line.holder.is_remainder()
            && let Some(hour) = self.evidence.held_hour(model, run.from)
        {
            *hour += held;
        }
    }
}

/// Classes of rates.
const ON_DEMAND: &str = "on_demand";
const COMMITTED: &str = "committed";
const OWNED: &str = "owned";

/// The evidence of all files up to now.
struct FleetAdvice<'a> {
    evidence: AdviceEvidence,
    slots: HashMap<(WorkloadKey, SlotKey), SlotDay>,
    /// The models on which memory of processes was reported.
    models: BTreeMap<Arc<str>, String>,
    /// By node: another one may not show them.
    with_memory: BTreeSet<(String, String)>,
    currencies: BTreeSet<String>,
    ends: BTreeMap<Arc<str>, Utc>,
    nodes: BTreeSet<String>,
    is_simulated: bool,
    skipped: usize,
    fleet: FleetEvidence,
    reports: Reports<'a>,
    /// Whether a GPU is in several ledgers on one day.
    is_shared: bool,
}

impl<'a> FleetAdvice<'a> {
    fn new([begin, from, to]: [Utc; 3], expected: &'a [ExpectedNode]) -> Self {
        Self {
            evidence: AdviceEvidence { from, to, ..AdviceEvidence::default() },
            slots: HashMap::new(),
            models: BTreeMap::new(),
            with_memory: BTreeSet::new(),
            currencies: BTreeSet::new(),
            ends: BTreeMap::new(),
            nodes: BTreeSet::new(),
            is_simulated: false,
            skipped: 0,
            fleet: FleetEvidence { begin: from, models_begin: begin, ..FleetEvidence::default() },
            reports: Reports::new(expected),
            is_shared: false,
        }
    }

    fn add(&mut self, day: AdviceDay) {
        let AdviceDay { header, with_memory, keys, slots, fleet } = day;
        if let Some(fleet) = fleet {
            self.reports.add_gpus(&header);
            self.add_fleet(fleet);
        }
        self.is_simulated |= header.simulated;
        self.currencies.extend(header.currency);
        for gpu in header.gpus {
            let known = self.evidence.gpus.entry(Arc::clone(&gpu.gpu.uuid)).or_default();
            (known.gpu, known.node) = (gpu.gpu.clone(), header.node.clone());
            if with_memory.contains(&gpu.gpu.uuid) {
                self.with_memory.insert((header.node.clone(), gpu.model.clone()));
            }
            let end = self.ends.entry(Arc::clone(&gpu.gpu.uuid)).or_default();
            *end = gpu.settled_until.max(*end);
            self.models.insert(gpu.gpu.uuid, gpu.model);
        }
        self.nodes.insert(header.node);
        for DayIncident { uuid, incident } in header.reasons.into_iter().flat_map(|reasons| reasons.incidents)
        {
            self.evidence.gpus.entry(uuid).or_default().incidents.push(incident);
        }
        for KnownWorkload { key, name, class } in &keys {
            let known = self.evidence.workloads.entry(key.clone()).or_default();
            (known.name, known.class) = (name.clone(), *class);
        }
        for ((place, slot), day) in slots {
            let known = self.slots.entry((keys[place].key.clone(), slot)).or_default();
            known.stretches.of_service(keys[place].class == WorkloadClass::Service);
            known.add_day(day);
        }
    }

    fn add_fleet(&mut self, day: FleetDay) {
        let FleetDay { evidence, services, times, .. } = day;
        self.reports.add(times, &FileNumbers::default());
        for (name, node) in evidence.nodes {
            let known = self.fleet.nodes.entry(name.clone()).or_default();
            known.gpus.extend(node.gpus);
            known.stays |= node.stays;
            known.is_unpriced |= node.is_unpriced;
            for (place, hour) in (0..).zip(&node.hours) {
                let from = evidence.begin.plus(Nanoseconds(HOUR.0 * place));
                if let Some(known) = self.fleet.node_hour(&name, from) {
                    known.free += hour.free;
                    known.all += hour.all;
                    known.money = known.money.saturating_add(hour.money);
                }
            }
        }
        for (name, model) in evidence.models {
            let known = self.fleet.models.entry(name.clone()).or_default();
            known.on_demand.extend(model.on_demand);
            known.committed.extend(model.committed);
            for (place, held) in (0..).zip(&model.held) {
                let from = evidence.models_begin.plus(Nanoseconds(HOUR.0 * place));
                if let Some(known) = self.fleet.held_hour(&name, from) {
                    *known += held;
                }
            }
        }
        for (service, quarters) in services {
            for (from, [held, busy]) in quarters {
                if let Some(known) = self.fleet.service_quarter(service.clone(), from) {
                    *known = [known[0].saturating_add(held), known[1].saturating_add(busy)];
                }
            }
        }
    }

    /// What is missing of the fleet; none where it is complete.
    fn incomplete(&self) -> Result<Option<&'static str>, ExportError> {
        if self.reports.is_empty() {
            return Ok(Some(
                "nodes that nobody needs, commitments and spare replicas are looked for by gpumeter advise --exports DIRECTORY --expect FILE, \
                 with a list of all nodes",
            ));
        }
        let missing = self.reports.missing(self.fleet.models_begin, self.evidence.to)?;
        let is_complete = missing.is_empty() && self.reports.unexpected().is_empty();
        let text = "nodes that nobody needs, commitments and spare replicas are not looked for: some time of the expected nodes is \
                    missing, or a node is not expected; gpumeter bill --exports --expect names them";
        Ok((!is_complete || self.is_shared || self.skipped > 0).then_some(text))
    }

    fn finish(mut self, request: &AdviceRequest) -> Result<Advice, ExportError> {
        let incomplete = self.incomplete()?;
        let has_one_currency = self.currencies.len() <= 1;
        let currencies = self.currencies.iter().cloned().collect::<Vec<_>>().join(", ");
        self.evidence.currency = self.currencies.pop_first().filter(|_| has_one_currency);
        if incomplete.is_none() && has_one_currency {
            self.evidence.fleet = Some(std::mem::take(&mut self.fleet));
        }
        for (uuid, gpu) in &mut self.evidence.gpus {
            let place = self.models.get(uuid).map(|model| (gpu.node.clone(), model.clone()));
            gpu.reports_memory = place.is_some_and(|place| self.with_memory.contains(&place));
        }
        for ((key, slot), mut day) in self.slots {
            let end = self.ends.get(&slot.uuid).copied().unwrap_or_default();
            if let Some(last) = day.runs.last_mut() {
                last.goes_on = last.end >= end;
            }
            let known = self.evidence.slot(&key, slot);
            (known.runs, known.stretches) = (day.runs, day.stretches.finish());
            if !has_one_currency {
                known.stretches.iter_mut().for_each(|stretch| stretch.rate = None);
            }
            (known.grade, known.shapes) = (day.grade, day.shapes);
        }
        let source = AdviceSource {
            kind: "fleet".to_owned(),
            node: None,
            nodes: self.nodes.len(),
            simulated: self.is_simulated,
        };
        let mut advice = advise(&self.evidence, request, source);
        if self.skipped > 0 && !advice.partial {
            advice.notes.push(format!("{} damaged files were left out", self.skipped));
        }
        if !has_one_currency {
            advice.notes.push(format!("prices are in {currencies}, so no amount is added up"));
        }
        if !advice.partial {
            advice.notes.extend(incomplete.map(str::to_owned));
        }
        Ok(advice)
    }
}

fn outer_of(id: &HolderId) -> HolderId {
    id.outer().unwrap_or_else(|| HolderId(id.workload()))
}

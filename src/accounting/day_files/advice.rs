//! Reads the evidence of advice from the files of many ledgers, by quarter hours, one file after the other.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use parquet::file::reader::ChunkReader;

use super::day_file::{DayFile, RunLimits};
use super::day_walk::read_days;
use super::directory::DayPath;
use super::error::{ExportError, FileProblem};
use super::expected::{ExpectedNode, FileTimes, Reports};
use super::fleet::ExportSource;
use crate::accounting::advice::{
    Advice, AdviceEvidence, AdviceForReaders, AdviceRequest, AdviceSource, COMMITMENT_DAYS, ChargedRates,
    ChargedTime, FleetEvidence, PERIOD, ProfilePrice, SlotEvidence, SlotKey, SlotRow, SlotRun, SlotTime,
    WorkloadEvidence, WorkloadKey, least_idle,
};
use crate::accounting::billing::{
    BillLine, BillRate, DayHeader, DayIncident, DayRow, DayShape, ExactMoney, FileNumbers, Terms, WHOLE_RATE,
};
use crate::model::{
    Bytes, DAY, Fact, Facts, Grade, HOUR, Holder, HolderId, MigProfile, Nanoseconds, QUARTER_HOUR, Shapes,
    Utc, VisibleAccount, WorkloadClass,
};

/// The findings over the files of a directory; tells after each file how many were read, and how many there are.
///
/// # Errors
/// A file that cannot be read; it is cancelled.
pub fn make_advice(
    source: &ExportSource<'_>,
    request: &AdviceRequest,
    step: impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<Advice, ExportError> {
    let known = read_all_evidence(source, &request.visible, step)?;
    let is_partial = request.visible != VisibleAccount::Everything;
    Ok(known.advice(is_partial, request.explain.as_deref()).wanted(request))
}

/// The same for all readers, without the stretches of findings.
///
/// # Errors
/// As of [`make_advice`].
pub fn make_advice_for_readers(
    source: &ExportSource<'_>,
    step: impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<AdviceForReaders, ExportError> {
    let known = read_all_evidence(source, &VisibleAccount::Everything, step)?;
    let [everything, of_tenants] = [false, true].map(|is_partial| known.advice(is_partial, None));
    Ok(AdviceForReaders { everything, of_tenants })
}

/// What all files say.
struct ReadEvidence {
    evidence: AdviceEvidence,
    source: AdviceSource,
    /// What could not be looked at, for all readers, and for readers of everything.
    notes: [Vec<String>; 2],
}

impl ReadEvidence {
    fn advice(&self, is_partial: bool, explain: Option<&str>) -> Advice {
        let notes = if is_partial { &self.notes[..1] } else { &self.notes[..] }.concat();
        Advice { notes, ..Advice::of_all(&self.evidence, is_partial, explain, self.source.clone()) }
    }
}

fn read_all_evidence(
    source: &ExportSource<'_>,
    visible: &VisibleAccount,
    step: impl FnMut(usize, usize) -> Result<(), ExportError>,
) -> Result<ReadEvidence, ExportError> {
    let to = source.exported_until()?;
    let from = Utc(to.0.saturating_sub(PERIOD.0)).floor(DAY);
    let wants_fleet = !source.expected.is_empty() && *visible == VisibleAccount::Everything;
    let begin = if wants_fleet { Utc(to.0.saturating_sub(COMMITMENT_DAYS * DAY.0)).floor(DAY) } else { from };
    let reader = DayReader { source, visible, since: from, wants_fleet };
    let expected = if wants_fleet { source.expected.as_slice() } else { &[] };
    let mut draft = FleetAdvice::new([begin, from, to], expected);
    let read = |day: &DayPath, shared: &BTreeSet<Arc<str>>| reader.read(day, shared);
    let unread = read_days(source, [begin, to], step, read, |day| {
        draft.add(day);
        Ok(())
    })?;
    (draft.skipped, draft.is_shared) = (unread.skipped, unread.has_shared);
    draft.finish()
}

struct DayReader<'a> {
    source: &'a ExportSource<'a>,
    visible: &'a VisibleAccount,
    /// Only what is of the fleet is read of days before.
    since: Utc,
    wants_fleet: bool,
}

/// By place of the workload, and slot.
type DaySlots = HashMap<(usize, SlotKey), SlotEvidence>;

/// What the files of one day of one ledger say.
struct AdviceDay {
    header: DayHeader,
    /// The GPUs on which memory of processes was reported.
    with_memory: BTreeSet<Arc<str>>,
    keys: Vec<KnownWorkload>,
    /// By place in `keys`.
    slots: DaySlots,
    /// By place in `keys`, and part.
    shapes: BTreeMap<(usize, HolderId), Shapes>,
    /// By UUID.
    profiles: DayProfiles,
    fleet: Option<FleetDay>,
}

/// The profiles of instances of each GPU, with what they cost.
type DayProfiles = BTreeMap<Arc<str>, BTreeMap<MigProfile, ProfilePrice>>;

/// A workload with its name and class.
type KnownWorkload = (WorkloadKey, WorkloadEvidence);

/// What is kept of a row.
struct QuarterRow {
    /// Place of its workload; none of a remainder, and of what the reader may not see.
    key: Option<usize>,
    /// Whether somebody has memory who may have worked for any of the others.
    is_unclear: bool,
    held: Nanoseconds,
    used: Nanoseconds,
    unknown: Nanoseconds,
    /// Whether the row's holding was used.
    is_busy: bool,
    grade: Grade,
    row: SlotRow,
    memory_peak: Bytes,
    charged: ChargedTime,
}

impl DayReader<'_> {
    /// Reads a file without the GPUs that several ledgers have: nobody knows which of them is right.
    fn read(&self, day: &DayPath, shared: &BTreeSet<Arc<str>>) -> Result<AdviceDay, FileProblem> {
        let file = DayFile::open(&day.path)?;
        file.check_place(day)?;
        self.read_file(day, file, shared)
    }

    fn read_file<R: ChunkReader + 'static>(
        &self,
        day: &DayPath,
        file: DayFile<R>,
        shared: &BTreeSet<Arc<str>>,
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
        let slots = draft.slots();
        let AdviceDayDraft { keys, with_memory, profiles, .. } = draft;
        let revision = file.header().revision;
        let read = if is_recent { self.source.shapes(day, &revision)? } else { Vec::new() };
        let mut shapes = BTreeMap::<(usize, HolderId), Shapes>::new();
        for DayShape { owner, series, shape } in read {
            let own = WorkloadKey::of(owner.tenant.into(), &owner.holder);
            let place = keys.iter().position(|(key, _)| *key == own);
            if let Some(place) = place.filter(|_| !shared.contains(&owner.gpu.uuid)) {
                shapes.entry((place, owner.holder)).or_default()[series as usize].add(&shape);
            }
        }
        Ok(AdviceDay { header: file.into_header(), with_memory, keys, slots, shapes, profiles, fleet })
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
    profiles: DayProfiles,
    /// Each once in memory.
    charged: HashSet<Arc<ChargedRates>>,
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
            profiles: DayProfiles::new(),
            charged: HashSet::new(),
            quarters: BTreeMap::new(),
        }
    }

    fn add(&mut self, run: &DayRow) {
        let line = &run.line;
        let (parts, used) = (&line.amounts.parts, line.amounts.used.total());
        if line.amounts.memory_peak > 0 {
            self.with_memory.insert(Arc::clone(&line.gpu.uuid));
        }
        self.note_profile(line);
        let rates = self.rates(run);
        let rates = interned(&mut self.charged, rates);
        let (is_busy, unknown) = (parts.within + used > 0, Nanoseconds(parts.unmeasured + parts.unavailable));
        let has_memory = line.amounts.memory_byte_seconds > 0;
        let row = QuarterRow {
            key: self.key(line),
            is_unclear: has_memory && line.holder.may_work_for_others(),
            held: Nanoseconds(parts.held()),
            used: Nanoseconds(used),
            unknown,
            is_busy,
            grade: line.grade,
            row: SlotRow {
                idle: Nanoseconds(parts.idle),
                unmeasured: Nanoseconds(parts.unmeasured),
                is_quiet: !is_busy && parts.unavailable == 0,
                has_memory,
                waiting: line.amounts.energy_waiting,
                rate: self.rate(line),
            },
            memory_peak: Bytes(line.amounts.memory_peak),
            charged: ChargedTime {
                from: run.from,
                to: run.to.min(self.header.revision.settled_until),
                held: Nanoseconds(parts.held() - parts.unavailable),
                rates,
            },
        };
        if row.key.is_some() || row.is_unclear {
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
            let key = WorkloadKey::of(line.tenant.as_str().into(), &line.holder);
            let place = self.keys.iter().position(|(known, _)| *known == key);
            let place = place.unwrap_or_else(|| {
                self.keys.push((key, WorkloadEvidence::default()));
                self.keys.len() - 1
            });
            let facts = Fact::ALL.iter().filter_map(|fact| Some((*fact, label(*fact)?)));
            let holder = Holder { id: line.holder.clone(), facts: Facts::new(facts) };
            let class = self.classes.get(&line.holder).copied().unwrap_or_default();
            let (key, known) = &mut self.keys[place];
            known.describe(key, &holder, class);
            place
        });
        self.last = Some((line.holder.clone(), line.tenant.clone(), place));
        place
    }

    fn rate_of(&self, id: Option<i64>) -> Option<&'a BillRate> {
        id.and_then(|id| self.header.rates.iter().find(|rate| rate.id == id))
    }

    /// What an hour of idle time costs where an hour costs that at the full rate.
    fn of_idle(&self, line: &BillLine, nano: i64) -> Option<i64> {
        match line.rates.terms {
            // Terms that cannot be read may be any.
            Some(id) => self.terms.get(&id)?.as_ref().map(|terms| Terms::of_idle(Some(terms), nano)),
            None => Some(nano),
        }
    }

    /// What an hour of idle GPU time of a line costs.
    fn rate(&self, line: &BillLine) -> Option<i64> {
        let nano = self.rate_of(line.rates.time)?.nano_per_gpu_hour(line.slot.profile.as_ref()).ok()?;
        self.of_idle(line, nano)
    }

    fn rates(&self, run: &DayRow) -> ChargedRates {
        let (line, paid) = (&run.line, self.of_idle(&run.line, WHOLE_RATE.into()));
        let slot = paid.and(self.rate_of(line.rates.time));
        ChargedRates {
            profile: line.slot.profile.clone(),
            slot: slot.and_then(|rate| rate.nano_per_gpu_hour(line.slot.profile.as_ref()).ok()),
            gpu: self.rate_of(run.gpu_rate).and_then(|rate| rate.nano().ok()),
            paid: paid.unwrap_or(0),
        }
    }

    fn note_profile(&mut self, line: &BillLine) {
        let Some(profile) = &line.slot.profile else { return };
        let rate = self.rate_of(line.rates.time);
        let of_gpu = self.profiles.entry(Arc::clone(&line.gpu.uuid)).or_default();
        let price = of_gpu.entry(profile.clone()).or_default();
        if let Some((rate, Ok(nano))) = rate.map(|rate| (rate, rate.nano_per_gpu_hour(Some(profile)))) {
            price.add(rate.unit, nano);
        }
    }

    /// How many replicas of each service held GPUs in each quarter hour, and how many of these may have used them.
    fn services(&self) -> ServiceCounts {
        let mut busy = BTreeMap::<(Utc, usize), bool>::new();
        for ((_, _, from), rows) in &self.quarters {
            for row in rows.iter().filter(|row| row.held.0 > 0 || row.is_busy) {
                let Some(key) = row.key.filter(|key| self.keys[*key].1.class == WorkloadClass::Service)
                else {
                    continue;
                };
                *busy.entry((*from, key)).or_default() |= row.is_busy || row.unknown.0 > 0;
            }
        }
        let mut counts = ServiceCounts::new();
        for ((from, key), is_busy) in busy {
            let (key, known) = &self.keys[key];
            let service = counts.entry((Arc::clone(&key.tenant), known.name.to_string())).or_default();
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
                let slot = slots.entry((key, slot)).or_default();
                Quarter::of(rows, key, [*from, to]).add_to(slot, gpu_instance.is_none());
                let own = rows.iter().filter(|row| row.key == Some(key)).map(|row| &row.charged);
                own.filter(|charged| charged.held.0 > 0).for_each(|charged| slot.add_held(charged.clone()));
            }
        }
        slots
    }
}

/// What a workload had of a slot in a quarter hour.
struct Quarter {
    times: [Utc; 2],
    held: Nanoseconds,
    used: Nanoseconds,
    unknown: Nanoseconds,
    is_busy: bool,
    grade: Grade,
    is_unclear: bool,
    memory_peak: Bytes,
    time: SlotTime,
}

impl Quarter {
    fn of(rows: &[QuarterRow], key: usize, times: [Utc; 2]) -> Self {
        let mut sum = Self {
            times,
            held: Nanoseconds(0),
            used: Nanoseconds(0),
            unknown: Nanoseconds(0),
            is_busy: false,
            grade: Grade::Measured,
            is_unclear: rows.iter().any(|row| row.is_unclear),
            memory_peak: Bytes(0),
            time: SlotTime::default(),
        };
        for row in rows.iter().filter(|row| row.key == Some(key)) {
            sum.held += row.held;
            sum.used += row.used;
            sum.unknown += row.unknown;
            sum.is_busy |= row.is_busy;
            sum.grade = sum.grade.max(row.grade);
            sum.memory_peak = sum.memory_peak.max(row.memory_peak);
            sum.time.add(row.row);
        }
        sum
    }

    fn add_to(&self, slot: &mut SlotEvidence, is_whole_gpu: bool) {
        slot.grade = slot.grade.max(self.grade);
        if self.held.0 > 0 {
            append(&mut slot.runs, self.run());
        }
        if let Some(stretch) = self.time.stretch(self.times, self.is_unclear, is_whole_gpu) {
            // A short one may go on from the day before, or on the next.
            slot.add_idle(stretch, Nanoseconds(0));
        }
    }

    fn run(&self) -> SlotRun {
        let Self { times: [from, to], held, used, unknown, is_busy, memory_peak, .. } = *self;
        SlotRun {
            begin: from,
            end: to,
            grid: to.since(from),
            goes_on: false,
            first_use: is_busy.then_some(from),
            last_use: is_busy.then_some(to),
            held,
            used,
            unknown,
            memory_peak,
        }
    }
}

/// Adds a run, or what follows of the last one.
fn append(runs: &mut Vec<SlotRun>, next: SlotRun) {
    match runs.last_mut() {
        Some(last) if last.end == next.begin => {
            last.end = next.end;
            last.first_use = last.first_use.or(next.first_use);
            last.last_use = next.last_use.or(last.last_use);
            last.held += next.held;
            last.used += next.used;
            last.unknown += next.unknown;
            last.memory_peak = last.memory_peak.max(next.memory_peak);
        }
        _ => runs.push(next),
    }
}

/// The one of those that are known which is equal.
fn interned<T: Eq + Hash + ?Sized>(
    known: &mut HashSet<Arc<T>>,
    one: impl Into<Arc<T>> + Borrow<T>,
) -> Arc<T> {
    if let Some(known) = known.get(one.borrow()) {
        return Arc::clone(known);
    }
    let one = one.into();
    known.insert(Arc::clone(&one));
    one
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

/// The end of the last day that all nodes must have reported whole: they report at different times.
fn complete_until(to: Utc) -> Utc {
    Utc(to.0.saturating_sub(LATEST_REPORT.0)).floor(DAY)
}

/// How long after the end of a day the last node may report it.
const LATEST_REPORT: Nanoseconds = Nanoseconds::from_seconds(6 * 3_600);

/// Classes of rates.
const ON_DEMAND: &str = "on_demand";
const COMMITTED: &str = "committed";
const OWNED: &str = "owned";

/// The evidence of all files up to now.
struct FleetAdvice<'a> {
    evidence: AdviceEvidence,
    /// Tenants and names of workloads, each once in memory.
    texts: HashSet<Arc<str>>,
    /// Likewise.
    rates: HashSet<Arc<ChargedRates>>,
    /// The GPUs on which memory of processes was reported.
    with_memory: BTreeSet<Arc<str>>,
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
            texts: HashSet::new(),
            rates: HashSet::new(),
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
        let AdviceDay { header, with_memory, mut keys, slots, shapes, profiles, fleet } = day;
        if let Some(fleet) = fleet {
            self.reports.add_gpus(&header);
            self.add_fleet(fleet);
        }
        self.is_simulated |= header.simulated;
        self.currencies.extend(header.currency);
        for gpu in header.gpus {
            let known = self.evidence.gpus.entry(Arc::clone(&gpu.gpu.uuid)).or_default();
            for (profile, price) in profiles.get(&gpu.gpu.uuid).into_iter().flatten() {
                let of_model = self.evidence.profiles.entry(gpu.model.clone()).or_default();
                of_model.entry(profile.clone()).or_default().append(*price);
            }
            (known.gpu, known.node, known.model) = (gpu.gpu.clone(), header.node.clone(), gpu.model);
            known.memory = gpu.memory.or(known.memory);
            let end = self.ends.entry(gpu.gpu.uuid).or_default();
            *end = gpu.settled_until.max(*end);
        }
        self.with_memory.extend(with_memory);
        self.nodes.insert(header.node);
        for DayIncident { uuid, incident } in header.reasons.into_iter().flat_map(|reasons| reasons.incidents)
        {
            self.evidence.gpus.entry(uuid).or_default().incidents.push(incident);
        }
        for (key, named) in &mut keys {
            [key.tenant, named.name] =
                [&key.tenant, &named.name].map(|text| interned(&mut self.texts, Arc::clone(text)));
            let known = self.evidence.workloads.entry(key.clone()).or_default();
            (known.name, known.class) = (Arc::clone(&named.name), named.class);
        }
        for ((place, part), shapes) in shapes {
            self.evidence.add_shapes(&keys[place].0, &part, &shapes);
        }
        for ((place, mut slot), day) in slots {
            let (key, named) = &keys[place];
            if let Some((uuid, _)) = self.evidence.gpus.get_key_value(&slot.uuid) {
                slot.uuid = Arc::clone(uuid);
            }
            let known = self.evidence.slot(key, slot);
            day.stretches.into_iter().for_each(|one| known.add_idle(one, least_idle(named.class)));
            day.runs.into_iter().for_each(|run| append(&mut known.runs, run));
            for held in day.held {
                let rates = interned(&mut self.rates, held.rates);
                known.add_held(ChargedTime { rates, ..held });
            }
            known.grade = known.grade.max(day.grade);
            // Most get no more.
            known.stretches.shrink_to_fit();
            known.runs.shrink_to_fit();
            known.held.shrink_to_fit();
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
        let missing = self.reports.missing(self.fleet.models_begin, complete_until(self.evidence.to))?;
        let is_complete = missing.is_empty() && self.reports.unexpected().is_empty();
        let text = "nodes that nobody needs, commitments and spare replicas are not looked for: some time of the expected nodes is \
                    missing, or a node is not expected; gpumeter bill --exports --expect names them";
        Ok((!is_complete || self.is_shared || self.skipped > 0).then_some(text))
    }

    fn finish(mut self) -> Result<ReadEvidence, ExportError> {
        let incomplete = self.incomplete()?;
        let has_one_currency = self.currencies.len() <= 1;
        let currencies = self.currencies.iter().cloned().collect::<Vec<_>>().join(", ");
        self.evidence.currency = self.currencies.pop_first().filter(|_| has_one_currency);
        if incomplete.is_none() && has_one_currency {
            self.evidence.fleet = Some(std::mem::take(&mut self.fleet));
        }
        self.evidence.set_reporting(&self.with_memory);
        for workload in self.evidence.workloads.values_mut() {
            for (slot, known) in &mut workload.slots {
                if let Some(last) = known.runs.last_mut() {
                    last.goes_on = last.end >= self.ends.get(&slot.uuid).copied().unwrap_or_default();
                }
                known.forget_short(least_idle(workload.class));
                if !has_one_currency {
                    known.stretches.iter_mut().for_each(|stretch| stretch.rate = None);
                    for held in &mut known.held {
                        let without = ChargedRates { slot: None, ..(*held.rates).clone() };
                        held.rates = interned(&mut self.rates, without);
                    }
                }
            }
        }
        let source = AdviceSource {
            kind: "fleet".to_owned(),
            node: None,
            nodes: self.nodes.len(),
            simulated: self.is_simulated,
        };
        let skipped = (self.skipped > 0).then(|| format!("{} damaged files were left out", self.skipped));
        let unpriced =
            (!has_one_currency).then(|| format!("prices are in {currencies}, so no amount is added up"));
        let of_everything = skipped.into_iter().chain(incomplete.map(str::to_owned)).collect();
        let notes = [unpriced.into_iter().collect(), of_everything];
        Ok(ReadEvidence { evidence: self.evidence, source, notes })
    }
}

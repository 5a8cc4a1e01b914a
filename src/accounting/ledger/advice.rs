//! Reads the evidence of advice from the ledger: rows of the account without use, runs, and incidents. Rows in which a holder worked
//! are most of a busy ledger: SQLite passes them over. Only where smaller instances are looked for are all rows read and added up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, Row, params};

use super::billing::{HOLDERS, SIMULATED, StoredAccount, load_holder_id, load_profiles};
use super::column::{loaded, loaded_grade, loaded_instance, loaded_json, loaded_optional, rows, stored};
use super::error::Cause;
use super::evidence::loaded_series;
use super::{incidents, node, reader};
use crate::accounting::advice::{
    Advice, AdviceEvidence, AdviceRequest, AdviceSource, ChargedRates, ChargedTime, EvidenceGpu, PERIOD,
    ProfilePrice, SlotEvidence, SlotKey, SlotRow, SlotRun, SlotTime, WorkloadKey, advise, least_idle,
};
use crate::accounting::billing::{
    DayGpu, PricedSlot, Rate, RateKind, RateSelector, SlotRates, Terms, WHOLE_RATE,
};
use crate::accounting::tenants::{class, tenant};
use crate::model::{
    Bytes, Evidence, Grade, HolderId, HolderKind, Microjoules, MigProfile, Nanoseconds, QUARTER_HOUR, Run,
    RunKey, SHAPE_COLUMNS, Shape, ShapeKey, Shapes, Utc,
};

pub(super) fn make_advice(connection: &Connection, request: &AdviceRequest) -> Result<Advice, Cause> {
    let account = StoredAccount::load(connection, reader::holders(connection, HOLDERS, [])?)?;
    let source = source(&account)?;
    let node = source.node.clone().unwrap_or_default();
    let evidence = EvidenceReader::new(&account, request, node)?.read()?;
    Ok(advise(&evidence, request, source))
}

/// The node whose ledger it is.
pub(super) fn source(account: &StoredAccount<'_>) -> Result<AdviceSource, Cause> {
    let node = node::load(account.connection)?;
    Ok(AdviceSource {
        kind: "node".to_owned(),
        nodes: 1,
        simulated: node.simulated || account.gpus.iter().any(|(_, gpu)| gpu.model.ends_with(SIMULATED)),
        node: Some(node.name).filter(|name| !name.is_empty()),
    })
}

struct EvidenceReader<'a> {
    account: &'a StoredAccount<'a>,
    request: &'a AdviceRequest,
    evidence: AdviceEvidence,
    /// By key in the file.
    gpus: HashMap<i64, Arc<str>>,
    profiles: HashMap<i64, MigProfile>,
    ids: HashMap<i64, HolderId>,
    /// The names of the containers of pods of which several hold GPUs, as a list in JSON.
    divided: String,
}

/// What is open while the rows of a span are read, in which no rate and no rule changes.
#[derive(Default)]
struct SpanDraft {
    /// By the key of a holder; none of one that the reader may not see.
    keys: HashMap<i64, Option<Arc<WorkloadKey>>>,
    /// What an hour of idle GPU time costs, by GPU, instance, profile and tenant.
    rates: HashMap<(i64, i64, i64, Arc<str>), Option<i64>>,
}

/// The workloads on a GPU in a minute, or a quarter hour.
#[derive(Default)]
struct MinuteDraft {
    times: Vec<(Arc<WorkloadKey>, Option<u32>, SlotTime)>,
    /// The instances with memory of who may have worked for any of them.
    unclear: Vec<Option<u32>>,
}

impl MinuteDraft {
    fn add(&mut self, key: &Arc<WorkloadKey>, gpu_instance: Option<u32>, row: SlotRow) {
        let is_same =
            |(known, of, _): &(Arc<WorkloadKey>, Option<u32>, SlotTime)| known == key && *of == gpu_instance;
        let place = self.times.iter().position(is_same).unwrap_or_else(|| {
            self.times.push((Arc::clone(key), gpu_instance, SlotTime::default()));
            self.times.len() - 1
        });
        self.times[place].2.add(row);
    }
}

type Drafts = HashMap<(Arc<WorkloadKey>, i64, Option<u32>), SlotEvidence>;

/// A row of the account without use, or one that says something of others on the slot.
struct QuietRow {
    minute: Utc,
    gpu: i64,
    gpu_instance: Option<u32>,
    profile: i64,
    holder: i64,
    idle: Nanoseconds,
    unmeasured: Nanoseconds,
    has_memory: bool,
    waiting: Microjoules,
    grade: Grade,
    /// Whether nothing is known to have been used of it, and the GPU had not failed.
    is_quiet: bool,
}

/// Rows in which the holder did not use the slot, those of who may have used it for him, those that were not measured alone, and those of
/// pods of which several containers hold GPUs. Time that nobody held is none of them.
const QUIET: &str = r"SELECT minute_ns, gpu, gpu_instance, profile, holder, idle_ns, memory_byte_seconds, energy_waiting_uj, grade,
            within_ns + unavailable_ns + used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns = 0, unmeasured_ns
     FROM account WHERE minute_ns >= ?1 AND minute_ns < ?2
       AND (within_ns + used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns = 0 OR grade > 0
            OR holder IN (SELECT id FROM holder WHERE name IN (SELECT value FROM json_each(?3)))
            OR holder IN (SELECT id FROM holder WHERE name LIKE '\_\_unattributed%' ESCAPE '\' OR name = '__system__'))
       AND holder NOT IN (SELECT id FROM holder
                          WHERE name IN ('__unallocated__', '__unavailable__', '__unobserved__', '__stranded__'))
     ORDER BY minute_ns, gpu";

impl<'a> EvidenceReader<'a> {
    fn new(account: &'a StoredAccount<'a>, request: &'a AdviceRequest, node: String) -> Result<Self, Cause> {
        let to = account.closed_until();
        let begin = account.gpus.iter().map(|(_, gpu)| gpu.accounted_since).min().unwrap_or_default();
        let from = Utc(to.0.saturating_sub(PERIOD.0)).max(begin).max(account.rolled.deleted_until);
        let from = from.floor(QUARTER_HOUR);
        let gpu = |gpu: &DayGpu| EvidenceGpu {
            gpu: gpu.gpu.clone(),
            node: node.clone(),
            model: gpu.model.clone(),
            memory: gpu.memory,
            ..EvidenceGpu::default()
        };
        let gpus = account.gpus.iter().map(|(_, of)| (Arc::clone(&of.gpu.uuid), gpu(of)));
        Ok(Self {
            evidence: AdviceEvidence {
                from,
                to,
                currency: account.currency(to),
                gpus: gpus.collect(),
                ..AdviceEvidence::default()
            },
            gpus: account.gpus.iter().map(|(key, gpu)| (*key, Arc::clone(&gpu.gpu.uuid))).collect(),
            profiles: load_profiles(account.connection)?,
            ids: HashMap::new(),
            divided: serde_json::to_string(&divided(account.holders.keys()))?,
            account,
            request,
        })
    }

    fn read(mut self) -> Result<AdviceEvidence, Cause> {
        let mut with_memory = BTreeSet::new();
        self.read_rows(&mut with_memory)?;
        self.read_runs(&mut with_memory)?;
        self.read_shapes()?;
        self.read_open(&mut with_memory)?;
        self.read_profiles()?;
        self.read_held()?;
        for (gpu, incident) in
            incidents::between(self.account.connection, [self.evidence.from, self.evidence.to])?
        {
            let known = self.gpus.get(&gpu).and_then(|uuid| self.evidence.gpus.get_mut(uuid));
            known.into_iter().for_each(|known| known.incidents.push(incident.clone()));
        }
        let with_memory = with_memory.iter().filter_map(|gpu| self.gpus.get(gpu).cloned());
        self.evidence.set_reporting(&with_memory.collect());
        Ok(self.evidence)
    }

    fn id(&mut self, holder: i64) -> rusqlite::Result<HolderId> {
        if let Some(known) = self.ids.get(&holder) {
            return Ok(known.clone());
        }
        let id = load_holder_id(self.account.connection, holder)?;
        self.ids.insert(holder, id.clone());
        Ok(id)
    }

    /// The workload of a holder with its tenant at a time; none where the reader may not see it.
    fn key(&mut self, id: &HolderId, at: Utc) -> Option<WorkloadKey> {
        if id.is_remainder() {
            return None;
        }
        let holder = self.account.holder(id);
        let rules = self.account.rules.rules(at);
        let tenant = tenant(&holder, rules);
        let fact = |fact| holder.facts.get(fact).map(|text| &**text);
        if !self.request.visible.shows(&tenant, fact) {
            return None;
        }
        let key = WorkloadKey::of(tenant, id);
        let class = class(&holder, rules);
        self.evidence.workloads.entry(key.clone()).or_default().describe(&key, &holder, class);
        Some(key)
    }

    fn read_rows(&mut self, with_memory: &mut BTreeSet<i64>) -> Result<(), Cause> {
        let (from, to) = (self.evidence.from, self.evidence.to);
        let mut drafts = Drafts::new();
        let account = self.account;
        for [from, to] in account.spans([from, to], []) {
            let mut span = SpanDraft::default();
            let mut statement = account.connection.prepare_cached(QUIET)?;
            let mut found = statement.query(params![stored(from.0)?, stored(to.0)?, self.divided])?;
            let mut rows = Vec::<QuietRow>::new();
            while let Some(row) = found.next()? {
                let row = read_quiet(row)?;
                if rows.first().is_some_and(|first| (first.minute, first.gpu) != (row.minute, row.gpu)) {
                    self.add_minute(&rows, &mut span, &mut drafts)?;
                    rows.clear();
                }
                if row.has_memory {
                    with_memory.insert(row.gpu);
                }
                rows.push(row);
            }
            self.add_minute(&rows, &mut span, &mut drafts)?;
        }
        for ((key, gpu, gpu_instance), mut draft) in drafts {
            let Some(uuid) = self.gpus.get(&gpu) else { continue };
            let slot = SlotKey { uuid: Arc::clone(uuid), gpu_instance };
            draft.forget_short(self.least_idle(&key));
            self.evidence.slot(&key, slot).stretches = draft.stretches;
        }
        Ok(())
    }

    /// Adds the rows of one minute, or quarter hour, of a GPU.
    fn add_minute(
        &mut self,
        rows: &[QuietRow],
        span: &mut SpanDraft,
        drafts: &mut Drafts,
    ) -> Result<(), Cause> {
        let mut minute = MinuteDraft::default();
        for row in rows {
            let id = self.id(row.holder)?;
            if id.is_remainder() {
                let is_unclear = id.may_work_for_others() && row.has_memory;
                minute.unclear.extend(is_unclear.then_some(row.gpu_instance));
                continue;
            }
            let known = span.keys.get(&row.holder).cloned();
            let key = known.unwrap_or_else(|| self.key(&id, row.minute).map(Arc::new));
            span.keys.insert(row.holder, key.clone());
            let Some(key) = key else { continue };
            self.note_grade(&key, row);
            let rate = if row.idle.0 > 0 { self.rate(row, &key.tenant, span) } else { None };
            let QuietRow { idle, unmeasured, is_quiet, has_memory, waiting, .. } = *row;
            let row_of_slot = SlotRow { idle, unmeasured, is_quiet, has_memory, waiting, rate };
            minute.add(&key, row.gpu_instance, row_of_slot);
        }
        let Some(QuietRow { minute: from, gpu, .. }) = rows.first() else { return Ok(()) };
        let times = [*from, self.account.rolled.end_of(*from)];
        for (key, gpu_instance, time) in minute.times {
            let is_unclear = minute.unclear.contains(&gpu_instance);
            let Some(stretch) = time.stretch(times, is_unclear, gpu_instance.is_none()) else { continue };
            let least = self.least_idle(&key);
            drafts.entry((key, *gpu, gpu_instance)).or_default().add_idle(stretch, least);
        }
        Ok(())
    }

    fn least_idle(&self, key: &WorkloadKey) -> Nanoseconds {
        least_idle(self.evidence.workloads.get(key).map(|one| one.class).unwrap_or_default())
    }

    fn note_grade(&mut self, key: &WorkloadKey, row: &QuietRow) {
        if let Some(uuid) = self.gpus.get(&row.gpu).filter(|_| row.grade > Grade::SplitByActivity) {
            let slot = SlotKey { uuid: Arc::clone(uuid), gpu_instance: row.gpu_instance };
            let slot = self.evidence.slot(key, slot);
            slot.grade = slot.grade.max(row.grade);
        }
    }

    fn rate(&self, row: &QuietRow, tenant: &Arc<str>, span: &mut SpanDraft) -> Option<i64> {
        let instance = row.gpu_instance.map_or(-1, i64::from);
        let rate = span.rates.entry((row.gpu, instance, row.profile, Arc::clone(tenant)));
        *rate.or_insert_with(|| {
            let (_, gpu) = self.account.gpus.iter().find(|(key, _)| *key == row.gpu)?;
            let rates = self.rates(gpu, self.profiles.get(&row.profile), row.minute)?;
            let terms = self.account.rates.terms_of(tenant, row.minute).map(|terms| &terms.entry);
            Some(Terms::of_idle(terms, rates.nano_per_gpu_hour()))
        })
    }

    /// Finds the profiles of each model that were seen, or have a price, with what they cost.
    fn read_profiles(&mut self) -> Result<(), Cause> {
        let (account, period) = (self.account, [self.evidence.from, self.evidence.to]);
        let mut known = BTreeMap::<String, BTreeMap<MigProfile, ProfilePrice>>::new();
        let gpus: HashMap<i64, &DayGpu> = account.gpus.iter().map(|(key, gpu)| (*key, gpu)).collect();
        if !self.profiles.is_empty() {
            let sql = "SELECT DISTINCT gpu, profile FROM account WHERE minute_ns >= ?1 AND minute_ns < ?2 AND profile > 0";
            let period = [stored(period[0].0)?, stored(period[1].0)?];
            let seen: Vec<(i64, i64)> =
                rows(account.connection, sql, period, |row| Ok((row.get(0)?, row.get(1)?)))?;
            for (gpu, profile) in seen {
                if let Some((gpu, profile)) = gpus.get(&gpu).zip(self.profiles.get(&profile)) {
                    known.entry(gpu.model.clone()).or_default().entry(profile.clone()).or_default();
                }
            }
        }
        for rate in account.rates.rates.in_force(period[1]) {
            for (profile, gpu) in gpus.values().filter_map(|gpu| Some((sold(&rate.entry, gpu)?, gpu))) {
                let of_model = known.entry(gpu.model.clone()).or_default();
                if of_model.keys().all(|seen| seen.name != profile.name) {
                    of_model.insert(profile, ProfilePrice::default());
                }
            }
        }
        for [from, _] in account.spans(period, []) {
            for gpu in gpus.values() {
                for (profile, price) in known.get_mut(&gpu.model).into_iter().flatten() {
                    let rates = self.rates(gpu, Some(profile), from);
                    if let Some(unit) = rates.and_then(|rates| Some(rates.time()?.entry.kind)) {
                        price.add(unit, rates.map_or(0, |rates| rates.nano_per_gpu_hour()));
                    }
                }
            }
        }
        self.evidence.profiles = known;
        Ok(())
    }

    /// The rates of a slot at a time; none in another currency, or without a price.
    fn rates<'b>(
        &'b self,
        gpu: &'b DayGpu,
        profile: Option<&'b MigProfile>,
        at: Utc,
    ) -> Option<SlotRates<'b>> {
        let slot = PricedSlot { uuid: &gpu.gpu.uuid, model: &gpu.model, profile };
        let rates = SlotRates::find(&self.account.rates, slot, at);
        let is_known = self.evidence.currency.as_deref() == Some(&*rates.tariff()?.currency);
        is_known.then_some(rates)
    }

    /// Reads for how long workloads held the slots of boards of which profiles are known.
    fn read_held(&mut self) -> Result<(), Cause> {
        let account = self.account;
        let gpus = account.gpus.iter().filter(|(_, gpu)| self.evidence.profiles.contains_key(&gpu.model));
        let gpus: HashMap<i64, &DayGpu> = gpus.map(|(key, gpu)| (*key, gpu)).collect();
        if gpus.is_empty() {
            return Ok(());
        }
        let keys = serde_json::to_string(&gpus.keys().collect::<Vec<_>>())?;
        let sql = "SELECT minute_ns, gpu, holder, gpu_instance, profile, within_ns + lent_ns + idle_ns + unmeasured_ns
             FROM account WHERE minute_ns >= ?1 AND minute_ns < ?2 AND gpu IN (SELECT value FROM json_each(?3))";
        for [from, to] in account.spans([self.evidence.from, self.evidence.to], []) {
            // By holder, GPU, instance and profile: SQLite would sort the rows first.
            let mut found = BTreeMap::<(i64, i64, Option<u32>, i64), ([Utc; 2], u64)>::new();
            let mut statement = account.connection.prepare_cached(sql)?;
            let mut rows = statement.query(params![stored(from.0)?, stored(to.0)?, keys])?;
            while let Some(row) = rows.next()? {
                let (minute, held): (Utc, u64) = (Utc(loaded(row, 0)?), loaded(row, 5)?);
                if held > 0 {
                    let of = (row.get(2)?, row.get(1)?, loaded_instance(row, 3)?, row.get(4)?);
                    let ([begin, end], sum) = found.entry(of).or_insert(([minute; 2], 0));
                    (*begin, *end) = ((*begin).min(minute), (*end).max(minute));
                    *sum += held;
                }
            }
            for ((holder, gpu, gpu_instance, profile), ([begin, last], held)) in found {
                let (end, held) = (account.rolled.end_of(last), Nanoseconds(held));
                let id = self.id(holder)?;
                let (Some(key), Some(gpu)) = (self.key(&id, from), gpus.get(&gpu)) else { continue };
                let profile = self.profiles.get(&profile).cloned();
                let rates = self.rates(gpu, profile.as_ref(), from);
                let terms = account.rates.terms_of(&key.tenant, from).map(|terms| &terms.entry);
                let rates = ChargedRates {
                    profile: profile.clone(),
                    slot: rates.map(|rates| rates.nano_per_gpu_hour()),
                    gpu: rates.and_then(|rates| rates.gpu).map(|rate| rate.entry.nano),
                    paid: Terms::of_idle(terms, WHOLE_RATE.into()),
                };
                let slot = SlotKey { uuid: Arc::clone(&gpu.gpu.uuid), gpu_instance };
                let next = ChargedTime { from: begin, to: end, held, rates: rates.into() };
                self.evidence.slot(&key, slot).add_held(next);
            }
        }
        Ok(())
    }

    fn read_runs(&mut self, with_memory: &mut BTreeSet<i64>) -> Result<(), Cause> {
        let sql = "SELECT DISTINCT gpu FROM run WHERE memory_peak_kib > 0";
        with_memory.extend(rows::<i64, Vec<_>>(self.account.connection, sql, [], |row| row.get(0))?);
        let sql = "SELECT gpu, gpu_instance, holder, begin_ns, end_ns, last_use_ns, first_use_ns,
                within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns,
                used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns, unmeasured_ns + unavailable_ns, memory_peak_kib
             FROM run WHERE end_ns >= ?1 ORDER BY end_ns";
        let found: Vec<(i64, Option<u32>, i64, SlotRun)> =
            rows(self.account.connection, sql, [stored(self.evidence.from.0)?], |row| {
                let run = SlotRun {
                    begin: Utc(loaded(row, 3)?),
                    end: Utc(loaded(row, 4)?),
                    grid: Nanoseconds(0),
                    goes_on: false,
                    last_use: loaded_optional(row, 5)?.map(Utc),
                    first_use: loaded_optional(row, 6)?.map(Utc),
                    held: Nanoseconds(loaded(row, 7)?),
                    used: Nanoseconds(loaded(row, 8)?),
                    unknown: Nanoseconds(loaded(row, 9)?),
                    memory_peak: Bytes(loaded(row, 10)?.saturating_mul(1024)),
                };
                Ok((row.get(0)?, loaded_instance(row, 1)?, row.get(2)?, run))
            })?;
        for (gpu, gpu_instance, holder, run) in found {
            let id = self.id(holder)?;
            self.add_run(&id, gpu, gpu_instance, run);
        }
        Ok(())
    }

    /// Reads shapes by who held then, not by who holds now.
    fn read_shapes(&mut self) -> Result<(), Cause> {
        let sums: Vec<String> = SHAPE_COLUMNS.iter().map(|name| format!("sum({name})")).collect();
        let sql = format!(
            "SELECT holder, series, {} FROM shape
             WHERE hours IN (1, 24) AND begin_ns >= ?1 AND begin_ns < ?2 GROUP BY holder, series",
            sums.join(",")
        );
        for [from, to] in self.account.spans([self.evidence.from, self.evidence.to], []) {
            let found: Vec<(i64, Shapes)> =
                rows(self.account.connection, &sql, [stored(from.0)?, stored(to.0)?], |row| {
                    let mut shape = Shape::default();
                    for (place, time) in shape.0.iter_mut().enumerate() {
                        *time = loaded(row, 2 + place)?;
                    }
                    let mut shapes = Shapes::default();
                    shapes[loaded_series(row, 1)? as usize] = shape;
                    Ok((row.get(0)?, shapes))
                })?;
            for (holder, shapes) in found {
                let id = self.id(holder)?;
                self.add_shapes(&id, from, &shapes);
            }
        }
        Ok(())
    }

    fn add_shapes(&mut self, id: &HolderId, at: Utc, shapes: &Shapes) {
        if let Some(key) = self.key(id, at) {
            self.evidence.add_shapes(&key, id, shapes);
        }
    }

    fn read_open(&mut self, with_memory: &mut BTreeSet<i64>) -> Result<(), Cause> {
        let open: Vec<(i64, Evidence)> =
            rows(self.account.connection, "SELECT id, evidence FROM gpu", [], |row| {
                Ok((row.get(0)?, loaded_json(row, 1)?))
            })?;
        for (gpu, evidence) in open {
            for (ShapeKey { hour, holder, .. }, shapes) in evidence.shapes {
                self.add_shapes(&holder, hour, &shapes);
            }
            for (RunKey { gpu_instance, .. }, run) in evidence.runs {
                if run.amounts.memory_peak > 0 {
                    with_memory.insert(gpu);
                }
                let id = run.holder.clone();
                self.add_run(&id, gpu, gpu_instance, open_run(&run));
            }
        }
        Ok(())
    }

    fn add_run(&mut self, id: &HolderId, gpu: i64, gpu_instance: Option<u32>, run: SlotRun) {
        // Who held nothing has nothing to give back.
        if run.held.0 == 0 {
            return;
        }
        let Some(uuid) = self.gpus.get(&gpu).cloned() else { return };
        let Some(key) = self.key(id, Utc(run.end.0.saturating_sub(1))) else { return };
        self.evidence.slot(&key, SlotKey { uuid, gpu_instance }).runs.push(run);
    }
}

/// The containers of pods of which several are known.
fn divided<'a>(holders: impl Iterator<Item = &'a HolderId>) -> BTreeSet<Arc<str>> {
    let mut parts = HashMap::<HolderId, BTreeSet<Arc<str>>>::new();
    for id in holders.filter(|id| id.kind() == HolderKind::Pod) {
        if let Some(pod) = id.outer() {
            parts.entry(pod).or_default().insert(id.workload());
        }
    }
    parts.into_values().filter(|parts| parts.len() > 1).flatten().collect()
}

fn read_quiet(row: &Row<'_>) -> rusqlite::Result<QuietRow> {
    Ok(QuietRow {
        minute: Utc(loaded(row, 0)?),
        gpu: row.get(1)?,
        gpu_instance: loaded_instance(row, 2)?,
        profile: row.get(3)?,
        holder: row.get(4)?,
        idle: Nanoseconds(loaded(row, 5)?),
        has_memory: row.get::<_, i64>(6)? > 0,
        waiting: Microjoules(loaded(row, 7)?),
        grade: loaded_grade(row, 8)?,
        is_quiet: row.get(9)?,
        unmeasured: Nanoseconds(loaded(row, 10)?),
    })
}

fn open_run(run: &Run) -> SlotRun {
    let parts = &run.amounts.parts;
    SlotRun {
        begin: run.begin,
        end: run.end,
        grid: Nanoseconds(0),
        goes_on: true,
        first_use: run.first_use,
        last_use: run.last_use,
        held: Nanoseconds(parts.held()),
        used: Nanoseconds(run.amounts.used.total()),
        unknown: Nanoseconds(parts.unmeasured + parts.unavailable),
        memory_peak: Bytes(run.amounts.memory_peak),
    }
}

/// The profile of a rate in force that names it for a model or a board, if it is for that board and a part of it: what a name says is
/// nine tenths of its slices or more.
fn sold(rate: &Rate, gpu: &DayGpu) -> Option<MigProfile> {
    let RateSelector { uuid, model, mig_profile, .. } = &rate.selector;
    let name = mig_profile.as_deref().filter(|name| !name.contains(['*', '?']))?;
    let profile = MigProfile::by_name(name, gpu.memory?)?;
    let said = u128::from(MigProfile::memory_by_name(name)?.0) * u128::from(profile.total);
    let part = u128::from(gpu.memory?.0) * u128::from(profile.size);
    let slot = PricedSlot { uuid: &gpu.gpu.uuid, model: &gpu.model, profile: Some(&profile) };
    let is_sold = rate.kind == RateKind::InstanceHour && (uuid.is_some() || model.is_some());
    (is_sold && said <= part && said * 10 >= part * 9 && rate.is_for(slot)).then_some(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_read_of_pods_of_which_several_containers_are_known() {
        let ids = ["k8s:one/main", "k8s:two/main", "k8s:two/side", "slurm:c/7.0", "slurm:c/7.1", "user:ada"];
        let ids = ids.map(HolderId::new);
        let divided = divided(ids.iter());
        assert_eq!(divided.iter().map(|name| &**name).collect::<Vec<_>>(), ["k8s:two/main", "k8s:two/side"]);
    }
}

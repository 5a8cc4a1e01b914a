//! Explains lines of a bill by the minutes, holders, rates, rules and remarks in the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::amounts::{self, ACCOUNT, names};
use super::billing::{StoredAccount, load_holder_id, load_profiles};
use super::column::{
    grantors_of, loaded, loaded_grade, loaded_instance, loaded_json, loaded_method, rows, sources_of, stored,
};
use super::error::Cause;
use super::incidents;
use super::rolled::RolledTime;
use crate::accounting::advice::job_report;
use crate::accounting::batches::XidSum;
use crate::accounting::billing::{
    Bill, BillLine, BillRequest, ClockStep, DayGpu, ExplainedLine, Explanation, GpuEvent, GpuMinute,
    GpuRecord, HistoryDraft, JobReport, LineFilter, MinuteRow, NodeBoot, PricedSlot, Remark, RulesVersion,
    SlotRates, Tenancy, TenantBasis, XidRecord,
};
use crate::accounting::tenants::{TenantRules, class, class_rule, tenant};
use crate::model::{Holder, HolderId, HolderKind, MigProfile, Nanoseconds, SlotId, Utc, VisibleAccount};

pub(super) fn explain(connection: &Connection, request: &BillRequest) -> Result<Explanation, Cause> {
    let mut explanation = explain_whole(connection, request)?;
    if request.visible != VisibleAccount::Everything {
        explanation.gpus.iter_mut().for_each(GpuRecord::hide_others);
    }
    Ok(explanation)
}

/// The jobs of a request. Of the faults of GPUs each has those in whose time it was alone, whoever reads it.
pub(super) fn report_jobs(connection: &Connection, request: &BillRequest) -> Result<JobReport, Cause> {
    Ok(job_report(&explain_whole(connection, request)?, request))
}

/// An explanation with what its GPUs did while others held them.
fn explain_whole(connection: &Connection, request: &BillRequest) -> Result<Explanation, Cause> {
    let (account, period) = StoredAccount::open(connection, request)?;
    let bill = account.bill(request, period)?.visible_to(&request.visible);
    let (bill, lines) = select(bill, &request.filter);
    let mut draft = HistoryDraft::new(lines);
    let spans = account.spans(period, []);
    for span in &spans {
        account.add_minutes(*span, &mut draft)?;
    }
    let (mut lines, usage, events) = draft.finish();
    for line in &mut lines {
        account.complete(line, &spans);
    }
    add_first_seen(connection, &mut lines)?;
    let gpus = gpu_records(&account, &lines, events)?;
    let (from, to) = range(lines.iter()).unwrap_or((bill.to, bill.to));
    Ok(Explanation {
        usage,
        gpus,
        clock_steps: load_clock_steps(connection, from, to)?,
        boots: load_boots(connection, from, to)?,
        quarter_hours_until: Some(account.rolled.until.min(bill.to)).filter(|until| bill.from < *until),
        settled: [(bill.node.clone(), bill.to)].into(),
        lines,
        bill,
    })
}

fn select(mut bill: Bill, filter: &LineFilter) -> (Bill, Vec<BillLine>) {
    let mut lines = bill.take_lines();
    filter.retain(&mut lines);
    let rates = lines.iter().flat_map(|line| [line.rates.time, line.rates.energy, line.rates.carbon]);
    let rates: BTreeSet<i64> = rates.flatten().collect();
    let terms: BTreeSet<i64> = lines.iter().filter_map(|line| line.rates.terms).collect();
    bill.rates.retain(|rate| rates.contains(&rate.id));
    bill.terms.retain(|one| terms.contains(&one.id));
    (bill, lines)
}

type Places = HashMap<(HolderId, SlotId), usize>;

impl StoredAccount<'_> {
    /// The lines on a GPU to which the rows of their holders belong from that time on.
    fn places(&self, draft: &HistoryDraft, gpu: &DayGpu, at: Utc) -> Places {
        let lines = draft.lines().enumerate().filter(|(_, line)| line.gpu.uuid == gpu.gpu.uuid);
        let own = lines.filter(|(_, line)| self.is_line_at(gpu, line, at));
        own.map(|(place, line)| ((line.holder.clone(), line.slot.clone()), place)).collect()
    }

    /// Whether rows of its holder belong to the line from that time on: tenant, rates and terms are those of then.
    fn is_line_at(&self, gpu: &DayGpu, line: &BillLine, at: Utc) -> bool {
        let (uuid, model, profile) = (&*gpu.gpu.uuid, &*gpu.model, line.slot.profile.as_ref());
        let rates = SlotRates::find(&self.rates, PricedSlot { uuid, model, profile }, at);
        *tenant(&self.holder(&line.holder), self.rules.rules(at)) == *line.tenant
            && rates.numbers(self.rates.terms_of(&line.tenant, at)) == line.rates
    }

    fn complete(&self, line: &mut ExplainedLine, spans: &[[Utc; 2]]) {
        let of = line.line.clone();
        line.started = self.holders.get(&of.holder).and_then(started);
        let Some((_, gpu)) = self.gpus.iter().find(|(_, gpu)| gpu.gpu.uuid == of.gpu.uuid) else { return };
        for &[from, to] in spans.iter().filter(|[from, _]| self.is_line_at(gpu, &of, *from)) {
            // A line with charges alone has no minutes of its own.
            let own = if line.spans.is_empty() { Some([from, to]) } else { line.time_between(from, to) };
            own.into_iter().for_each(|own| line.add_tenancy(self.tenancy(&of.holder, own)));
        }
    }

    /// Why a holder has its tenant in a time in which no rule begins or ends.
    pub(super) fn tenancy(&self, holder: &HolderId, [from, to]: [Utc; 2]) -> Tenancy {
        let version = self.rules.in_force(from);
        let (holder, rules) = (self.holder(holder), self.rules.rules(from));
        Tenancy {
            from,
            to,
            version: version.map(RulesVersion::new),
            basis: basis(&holder, rules),
            class: class(&holder, rules),
            class_rule: class_rule(&holder, rules).map(|(place, _)| place + 1),
        }
    }
}

fn basis(holder: &Holder, rules: &TenantRules) -> TenantBasis {
    if holder.id.is_remainder() {
        return TenantBasis::Reserved;
    }
    if let Some((place, _)) = rules.rule_of(holder) {
        let rule = &rules.rules[place];
        let (patterns, tenant) = (rule.patterns.clone(), rule.tenant.clone());
        return TenantBasis::Rule { number: place + 1, patterns, tenant };
    }
    let mut facts = holder.id.kind().tenant_facts().iter();
    let known = facts.find(|fact| holder.facts.get(**fact).is_some());
    known.map_or(TenantBasis::Workload, |fact| TenantBasis::Label(fact.label().to_owned()))
}

fn started(holder: &Holder) -> Option<Utc> {
    Some(Utc(holder.facts.started?.checked_mul(Nanoseconds::SECOND.0)?))
}

impl StoredAccount<'_> {
    /// Adds the minutes of the GPUs of the lines to the draft, from a span in which no line changes.
    fn add_minutes(&self, [from, to]: [Utc; 2], draft: &mut HistoryDraft) -> Result<(), Cause> {
        let uuids: BTreeSet<Arc<str>> = draft.lines().map(|line| Arc::clone(&line.gpu.uuid)).collect();
        for (key, gpu) in self.gpus.iter().filter(|(_, gpu)| uuids.contains(&gpu.gpu.uuid)) {
            let places = self.places(draft, gpu, from);
            self.each_minute((*key, gpu), [from, to], |minute| {
                draft.add(&minute, |at| {
                    let MinuteRow { holder, slot, .. } = &minute.rows[at];
                    places.get(&(holder.clone(), slot.clone())).copied()
                });
            })?;
        }
        Ok(())
    }

    /// Passes each minute or quarter hour of a GPU, in order of time.
    fn each_minute(
        &self,
        (key, gpu): (i64, &DayGpu),
        [from, to]: [Utc; 2],
        mut add: impl FnMut(GpuMinute<'_>),
    ) -> Result<(), Cause> {
        let mut ids = HashMap::<i64, HolderId>::new();
        let profiles = load_profiles(self.connection)?;
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT m.minute_ns, m.slot_ns, m.coarse, a.holder, a.gpu_instance, a.grade, a.method, a.source, a.profile, a.granted_by, {}
             FROM minute m LEFT JOIN account a ON a.minute_ns = m.minute_ns AND a.gpu = m.gpu
             WHERE m.minute_ns >= ?1 AND m.minute_ns < ?2 AND m.gpu = ?3
             ORDER BY m.minute_ns",
            names(ACCOUNT)
        ))?;
        let mut found = statement.query(params![stored(from.0)?, stored(to.0)?, key])?;
        let mut rows = Vec::new();
        let mut open: Option<(Utc, Nanoseconds, bool)> = None;
        let mut pass = |open: Option<(Utc, Nanoseconds, bool)>, rows: &[MinuteRow]| {
            if let Some((minute, slot, coarse)) = open {
                let to = self.rolled.end_of(minute);
                add(GpuMinute { uuid: &gpu.gpu.uuid, minute, to, slot, coarse, rows });
            }
        };
        while let Some(row) = found.next()? {
            let minute = (Utc(loaded(row, 0)?), Nanoseconds(loaded(row, 1)?), row.get(2)?);
            if open.is_some_and(|(open, ..)| open != minute.0) {
                pass(open, &rows);
                rows.clear();
            }
            open = Some(minute);
            if let Some(key) = row.get::<_, Option<i64>>(3)? {
                let holder = match ids.get(&key) {
                    Some(known) => known.clone(),
                    None => ids.entry(key).or_insert(load_holder_id(self.connection, key)?).clone(),
                };
                rows.push(read_row(row, holder, &profiles)?);
            }
        }
        pass(open, &rows);
        Ok(())
    }
}

fn read_row(
    row: &rusqlite::Row<'_>,
    holder: HolderId,
    profiles: &HashMap<i64, MigProfile>,
) -> rusqlite::Result<MinuteRow> {
    let profile = profiles.get(&row.get(8)?).cloned();
    Ok(MinuteRow {
        slot: SlotId { gpu_instance: loaded_instance(row, 4)?, profile },
        holder,
        amounts: amounts::load(ACCOUNT, row, 10)?,
        grade: loaded_grade(row, 5)?,
        method: loaded_method(row, 6)?,
        sources: sources_of(row.get(7)?),
        granted_by: grantors_of(row.get(9)?),
    })
}

fn add_first_seen(connection: &Connection, lines: &mut [ExplainedLine]) -> Result<(), Cause> {
    let sql = "SELECT first_seen_ns FROM holder WHERE name = ?1 AND version = ?2";
    for line in lines {
        let key = params![line.line.holder.name(), stored(line.line.holder.version())?];
        let mut found: Vec<Utc> = rows(connection, sql, key, |row| Ok(Utc(loaded(row, 0)?)))?;
        line.first_seen = found.pop();
    }
    Ok(())
}

fn range<'a>(lines: impl Iterator<Item = &'a ExplainedLine>) -> Option<(Utc, Utc)> {
    lines.flat_map(|line| &line.spans).fold(None, |range, span| {
        let (from, to) = range.unwrap_or((span.from, span.to));
        Some((from.min(span.from), to.max(span.to)))
    })
}

/// What is known of the GPUs of the lines, each from the first to the last minute of the lines on it.
fn gpu_records(
    account: &StoredAccount<'_>,
    lines: &[ExplainedLine],
    mut events: BTreeMap<String, Vec<GpuEvent>>,
) -> Result<Vec<GpuRecord>, Cause> {
    let connection = account.connection;
    let mut records = Vec::new();
    for (key, DayGpu { gpu, model, memory, .. }) in &account.gpus {
        let own = || lines.iter().filter(|line| line.line.gpu == *gpu);
        let Some((from, to)) = range(own()) else { continue };
        let incidents = incidents::between(connection, [from, to])?.into_iter();
        let incidents = incidents.filter(|(of, _)| of == key).map(|(_, incident)| incident);
        records.push(GpuRecord {
            gpu: gpu.clone(),
            model: model.clone(),
            memory: *memory,
            events: events.remove(&*gpu.uuid).unwrap_or_default(),
            incidents: incidents.collect(),
            remarks: load_remarks(connection, &account.rolled, *key, (from, to), own())?,
            xids: load_xids(connection, *key, (from, to))?,
        });
    }
    Ok(records)
}

/// The remarks on the slots of these lines. Other holders have no name in them.
fn load_remarks<'a>(
    connection: &Connection,
    rolled: &RolledTime,
    gpu: i64,
    (from, to): (Utc, Utc),
    lines: impl Iterator<Item = &'a ExplainedLine>,
) -> Result<Vec<Remark>, Cause> {
    let (mut slots, mut holders) = (BTreeSet::from(["gpu".to_owned()]), BTreeSet::new());
    for ExplainedLine { line, .. } in lines {
        slots.extend(line.slot.gpu_instance.map(|id| id.to_string()));
        holders.extend([line.holder.as_str(), line.holder.name()]);
    }
    let mut statement = connection.prepare(
        "SELECT minute_ns, text FROM remark WHERE minute_ns >= ?1 AND minute_ns < ?2 AND gpu = ?3 ORDER BY text, minute_ns",
    )?;
    let mut found = statement.query(params![stored(from.0)?, stored(to.0)?, gpu])?;
    let mut remarks = Vec::<Remark>::new();
    while let Some(row) = found.next()? {
        let (minute, text) = (Utc(loaded(row, 0)?), row.get::<_, String>(1)?);
        let Some((slot, rest)) = text.split_once(": ") else { continue };
        if !slots.contains(slot) {
            continue;
        }
        let text = match rest.split_once(' ') {
            Some(("yield", claims)) => describe_yield(claims, &holders),
            Some(("conflict", holder)) if !holders.contains(holder) => "claims of others conflict".to_owned(),
            Some(("conflict", holder)) => {
                format!("the claim of {} conflicts with another", HolderId::new(holder))
            }
            _ => rest.to_owned(),
        };
        let to = rolled.end_of(minute);
        match remarks.iter_mut().find(|known| known.to == minute && known.text == text) {
            Some(last) => last.to = to,
            None => remarks.push(Remark { from: minute, to, text }),
        }
    }
    remarks.sort_by(|left, right| (left.from, &left.text).cmp(&(right.from, &right.text)));
    Ok(remarks)
}

/// Which claim yields to which, as `HOLDER to HOLDER, HOLDER`; other holders appear as their kind.
fn describe_yield(claims: &str, own: &BTreeSet<&str>) -> String {
    let (holder, earlier) = claims.rsplit_once(" to ").unwrap_or((claims, ""));
    let name = |id: &str| match HolderId::new(id).kind() {
        _ if own.contains(id) => id.to_owned(),
        HolderKind::Pod => "a pod".to_owned(),
        HolderKind::Slurm => "a job of Slurm".to_owned(),
        _ => "a standing grant that stands earlier in the file".to_owned(),
    };
    let earlier: BTreeSet<String> = earlier.split(", ").map(name).collect();
    let earlier = earlier.into_iter().collect::<Vec<_>>().join(" and ");
    let holder =
        if own.contains(holder) { format!("the claim of {holder}") } else { "a claim of others".to_owned() };
    format!("{holder} does not fit beside that of {earlier}, which comes first: it yields and holds nothing")
}

/// The XIDs of a GPU whose last error was in that time.
fn load_xids(connection: &Connection, gpu: i64, (from, to): (Utc, Utc)) -> Result<Vec<XidRecord>, Cause> {
    let codes = connection
        .query_row("SELECT codes FROM xid_sum WHERE gpu = ?1", [gpu], |row| {
            loaded_json::<BTreeMap<u32, XidSum>>(row, 0)
        })
        .optional()?;
    let codes = codes.unwrap_or_default().into_iter();
    let recent = codes.filter(|(_, sum)| from <= sum.last && sum.last < to);
    Ok(recent.map(|(xid, XidSum { count, last, .. })| XidRecord { xid, count, last }).collect())
}

fn load_clock_steps(connection: &Connection, from: Utc, to: Utc) -> rusqlite::Result<Vec<ClockStep>> {
    let sql = "SELECT at_ns, step_ns FROM clock_step WHERE at_ns >= ?1 AND at_ns < ?2 ORDER BY at_ns";
    rows(connection, sql, [stored(from.0)?, stored(to.0)?], |row| {
        Ok(ClockStep { at: Utc(loaded(row, 0)?), step_ns: row.get(1)? })
    })
}

fn load_boots(connection: &Connection, from: Utc, to: Utc) -> rusqlite::Result<Vec<NodeBoot>> {
    let sql = "SELECT first_seen_ns FROM boot WHERE first_seen_ns >= ?1 AND first_seen_ns < ?2 ORDER BY 1";
    rows(connection, sql, [stored(from.0)?, stored(to.0)?], |row| Ok(NodeBoot { at: Utc(loaded(row, 0)?) }))
}

//! Makes the bill of a span of whole minutes from the rows of the ledger. Minutes that are not closed are left for the next
//! bill.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::{Connection, params};

use super::amounts::{self, ACCOUNT, AmountColumn, join_expressions};
use super::column::{self, loaded, loaded_grade, loaded_method, stored};
use super::error::Cause;
use super::{MINUTE, node, rates, reader, tenant_rules};
use crate::billing::{
    Bill, BillGpu, BillLine, Charge, ChargedSlot, EXAMPLE, ExactMoney, RateSchedule, Reconciliation,
    RecordedRate, charges,
};
use crate::model::{Facts, GpuId, Holder, HolderId, Nanoseconds, Utc};
use crate::tenants::{RecordedRules, TenantRules, tenant};

/// A GPU whose account ends this long before that of another is gone, and does not delay bills.
const GONE_AFTER: Nanoseconds = Nanoseconds::from_seconds(3600);

/// End of the product names of simulated GPUs.
const SIMULATED: &str = "(simulated)";

/// Makes the bill from the first minute `from` (none: the begin of the month of the last minute, in `zone`) to the end of
/// the last minute `to` (none: the end of what is closed).
pub(super) fn make_bill(
    connection: &Connection,
    from: Option<Utc>,
    to: Option<Utc>,
    zone: &TimeZone,
) -> Result<Bill, Cause> {
    let gpus = load_gpus(connection)?;
    let closed_until = closed_until(&gpus);
    let to = to.map(|to| on_grid("to", to)).transpose()?;
    let end = to.map_or(closed_until, |to| to.min(closed_until));
    let from = from.map_or(Ok(month_start(end, zone)), |from| on_grid("from", from))?;
    if let Some(to) = to.filter(|to| *to < from) {
        return Err(Cause::Backwards { from, to });
    }
    let end = end.max(from);
    let schedule = rates::load(connection)?;
    let rules = tenant_rules::load(connection)?;
    let mut draft = BillDraft { gpus, lines: BTreeMap::new(), holders: load_holders(connection)? };
    let changes = schedule.changes_between(from, end).into_iter().chain(rules.changes_between(from, end));
    let mut at = from;
    for until in changes.chain([end]).collect::<BTreeSet<Utc>>() {
        draft.add(connection, SpanTerms { rates: &schedule, rules: rules.in_force(at) }, at, until)?;
        at = until;
    }
    let (gpus, lines) = draft.finish();
    let node = node::load(connection)?;
    let currency = find_currency(&gpus)?;
    let example_prices = rates_of(&gpus).any(|rate| &*rate.price.tariff.class == EXAMPLE);
    let mut bill = Bill {
        simulated: node.simulated || gpus.iter().any(|gpu| gpu.model.ends_with(SIMULATED)),
        node: node.name,
        cluster: node.cluster,
        from,
        to: end,
        from_local: local_time(from, zone),
        to_local: local_time(end, zone),
        time_zone: zone.iana_name().unwrap_or("local time").to_owned(),
        asked_to: to.filter(|to| *to > end).map(|to| local_time(to, zone)),
        closed_until,
        partial: false,
        currency,
        prices: Vec::new(),
        example_prices,
        unpriced: (!schedule.rates().is_empty()).then(|| unpriced(&gpus)),
        tenant_attributes: attributes_of(&lines, rules.versions().last()),
        lines,
        gpus,
        reconciliation: Reconciliation::default(),
    };
    bill.add_up()?;
    Ok(bill)
}

fn on_grid(edge: &'static str, at: Utc) -> Result<Utc, Cause> {
    if at.floor(MINUTE) == at { Ok(at) } else { Err(Cause::Grid { edge, at }) }
}

/// The beginning of the calendar month, in that zone, that contains the last minute before `end`.
fn month_start(end: Utc, zone: &TimeZone) -> Utc {
    let last = i128::from(end.0.saturating_sub(1));
    let start = jiff::Timestamp::from_nanosecond(last)
        .and_then(|last| last.to_zoned(zone.clone()).first_of_month())
        .and_then(|first| first.start_of_day());
    // Every time of 64 bits in nanoseconds has a month.
    start.ok().and_then(|start| u64::try_from(start.timestamp().as_nanosecond()).ok()).map_or(end, Utc)
}

/// Local time in RFC 3339.
fn local_time(at: Utc, zone: &TimeZone) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at.0)).map_or_else(
        |_| at.0.to_string(),
        |time| time.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    )
}

/// All GPUs by key in the file, without time.
fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<(i64, BillGpu)>> {
    connection
        .prepare(
            "SELECT id, gpu_index, uuid, model, settled_until_ns FROM gpu
             ORDER BY gpu_index, uuid",
        )?
        .query_map([], |row| {
            let gpu = BillGpu {
                gpu: GpuId { index: row.get(1)?, uuid: row.get::<_, String>(2)?.into() },
                model: row.get(3)?,
                slot: Nanoseconds(0),
                settled_until: Utc(loaded(row, 4)?),
                money: None,
                intervals: Vec::new(),
            };
            Ok((row.get(0)?, gpu))
        })?
        .collect()
}

fn closed_until(gpus: &[(i64, BillGpu)]) -> Utc {
    let ends = || gpus.iter().map(|(_, gpu)| gpu.settled_until);
    let newest = ends().max().unwrap_or_default();
    ends().filter(|end| newest.since(*end) <= GONE_AFTER).min().unwrap_or_default().floor(MINUTE)
}

/// A bill while it is made, from one change of rates or tenant rules to the next.
struct BillDraft {
    /// By key in the file.
    gpus: Vec<(i64, BillGpu)>,
    lines: BTreeMap<(GpuId, HolderId, Option<u32>, String), BillLine>,
    /// All versions of holders.
    holders: BTreeMap<HolderId, Holder>,
}

/// What a bill applies to a span.
#[derive(Clone, Copy)]
struct SpanTerms<'a> {
    rates: &'a RateSchedule,
    rules: &'a TenantRules,
}

impl BillDraft {
    /// Adds a span in which no rate and no tenant rule begins or ends.
    fn add(
        &mut self,
        connection: &Connection,
        terms: SpanTerms<'_>,
        from: Utc,
        to: Utc,
    ) -> Result<(), Cause> {
        let times = load_times(connection, from, to)?;
        let mut lines = load_lines(connection, from, to)?;
        for (key, gpu) in &mut self.gpus {
            let Some(slot) = times.get(key).copied() else { continue };
            let rate = terms.rates.in_force(&gpu.gpu.uuid, &gpu.model, from);
            gpu.add(slot, rate)?;
            for mut line in charged_lines(&gpu.gpu, lines.remove(key).unwrap_or_default(), rate) {
                let id = || line.holder.clone();
                let holder = self.holders.entry(id()).or_insert_with(|| Holder::from_id(id()));
                line.tenant = tenant(holder, terms.rules).to_string();
                let key = (line.gpu.clone(), line.holder.clone(), line.gpu_instance, line.tenant.clone());
                match self.lines.entry(key) {
                    Entry::Occupied(mut sum) => sum.get_mut().add(&line)?,
                    Entry::Vacant(vacant) => drop(vacant.insert(line)),
                }
            }
        }
        Ok(())
    }

    /// The GPUs with time, and the lines by tenant, GPU and holder.
    fn finish(self) -> (Vec<BillGpu>, Vec<BillLine>) {
        let gpus = self.gpus.into_iter().map(|(_, gpu)| gpu).filter(|gpu| gpu.slot.0 > 0);
        let mut lines: Vec<BillLine> = self.lines.into_values().collect();
        mark_energy(&mut lines);
        for line in &mut lines {
            let facts = self.holders.get(&line.holder).map(|holder| &holder.facts);
            let labels = facts.into_iter().flat_map(Facts::iter);
            line.labels = labels.map(|(fact, text)| (fact.label().to_owned(), text.to_owned())).collect();
        }
        lines.sort_by(|left, right| {
            let key = |line: &BillLine| (line.gpu.index, line.gpu_instance);
            (&left.tenant, key(left), left.holder.name()).cmp(&(
                &right.tenant,
                key(right),
                right.holder.name(),
            ))
        });
        (gpus.collect(), lines)
    }
}

/// All versions of holders.
pub(super) const HOLDERS: &str = "SELECT name, version, facts FROM holder ORDER BY name, id";

/// The last recorded attributes of the tenants of these lines.
fn attributes_of(
    lines: &[BillLine],
    last: Option<&RecordedRules>,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let tenants: BTreeSet<&str> = lines.iter().map(|line| &*line.tenant).collect();
    let all = last.into_iter().flat_map(|last| &last.rules.attributes);
    let own = all.filter(|(tenant, _)| tenants.contains(&***tenant));
    own.map(|(tenant, attributes)| (tenant.clone(), attributes.clone())).collect()
}

/// All versions of holders, by id.
fn load_holders(connection: &Connection) -> rusqlite::Result<BTreeMap<HolderId, Holder>> {
    let holders = reader::holders(connection, HOLDERS, [])?;
    Ok(holders.into_iter().map(|holder| (holder.id.clone(), holder)).collect())
}

/// GPU time of each GPU, by its key in the file.
fn load_times(connection: &Connection, from: Utc, to: Utc) -> rusqlite::Result<BTreeMap<i64, Nanoseconds>> {
    connection
        .prepare_cached(
            "SELECT gpu, sum(slot_ns) FROM minute WHERE minute_ns >= ?1 AND minute_ns < ?2 GROUP BY gpu",
        )?
        .query_map(params![stored(from.0)?, stored(to.0)?], |row| {
            Ok((row.get(0)?, Nanoseconds(loaded(row, 1)?)))
        })?
        .collect()
}

/// The rates that priced any time.
fn rates_of(gpus: &[BillGpu]) -> impl Iterator<Item = &RecordedRate> {
    gpus.iter().flat_map(|gpu| &gpu.intervals).filter_map(|interval| interval.rate.as_ref())
}

/// GPU time without a rate.
fn unpriced(gpus: &[BillGpu]) -> Nanoseconds {
    let intervals = gpus.iter().flat_map(|gpu| &gpu.intervals);
    intervals.filter(|interval| interval.rate.is_none()).map(|interval| interval.slot).sum()
}

/// The currency of the prices in force; an error where there are several.
fn find_currency(gpus: &[BillGpu]) -> Result<Option<String>, Cause> {
    let mut currencies = rates_of(gpus).map(|rate| &*rate.price.tariff.currency);
    let Some(first) = currencies.next() else { return Ok(None) };
    match currencies.find(|currency| *currency != first) {
        Some(second) => Err(Cause::Currencies { first: first.to_owned(), second: second.to_owned() }),
        None => Ok(Some(first.to_owned())),
    }
}

/// The lines of one GPU with what each is charged under a rate.
fn charged_lines(gpu: &GpuId, mut lines: Vec<BillLine>, rate: Option<&RecordedRate>) -> Vec<BillLine> {
    let charged = charges(lines.iter().map(|line| ChargedSlot {
        gpu_instance: line.gpu_instance,
        holder: &line.holder,
        parts: &line.amounts.parts,
    }));
    for Charge { gpu_instance, holder, .. } in &charged[lines.len()..] {
        // `__unavailable__` is charged for holders' unavailable time without time of its own.
        let empty = BillLine::empty(gpu.clone(), holder.clone());
        lines.push(BillLine { gpu_instance: *gpu_instance, ..empty });
    }
    for (line, Charge { time, .. }) in lines.iter_mut().zip(charged) {
        *if rate.is_some() { &mut line.charged } else { &mut line.unpriced } = Nanoseconds(time);
        let nano_per_gpu_hour = rate.map_or(0, |rate| rate.price.nano_per_gpu_hour);
        line.exact = ExactMoney::of_time(nano_per_gpu_hour, time);
    }
    lines
}

/// Marks the lines of GPUs with any energy. Every GPU draws power, so one without energy was not measured.
fn mark_energy(lines: &mut [BillLine]) {
    let drew = |line: &&BillLine| line.amounts.energy_static.max(line.amounts.energy_dynamic).0 > 0;
    let measured: BTreeSet<Arc<str>> =
        lines.iter().filter(drew).map(|line| Arc::clone(&line.gpu.uuid)).collect();
    for line in lines {
        line.has_energy = measured.contains(&line.gpu.uuid);
    }
}

/// The lines of each GPU, by its key in the file, without money.
fn load_lines(connection: &Connection, from: Utc, to: Utc) -> rusqlite::Result<BTreeMap<i64, Vec<BillLine>>> {
    let sums = join_expressions(ACCOUNT, ",", AmountColumn::sum);
    let mut statement = connection.prepare_cached(&format!(
        "SELECT a.gpu, g.gpu_index, g.uuid, h.name, h.version, max(grade), max(method), max(coarse),
                max(source = 0), max(source = 1), max(source = 2), max(source = 3),
                a.gpu_instance, {sums}
         FROM account a
         JOIN minute m ON m.minute_ns = a.minute_ns AND m.gpu = a.gpu
         JOIN gpu g ON g.id = a.gpu
         JOIN holder h ON h.id = a.holder
         WHERE a.minute_ns >= ?1 AND a.minute_ns < ?2
         GROUP BY a.gpu, a.holder, a.gpu_instance
         ORDER BY g.gpu_index, g.uuid, h.name, h.id, a.gpu_instance"
    ))?;
    let mut rows = statement.query(params![stored(from.0)?, stored(to.0)?])?;
    let mut lines = BTreeMap::<i64, Vec<BillLine>>::new();
    while let Some(row) = rows.next()? {
        lines.entry(row.get(0)?).or_default().push(read_line(row)?);
    }
    Ok(lines)
}

fn read_line(row: &rusqlite::Row<'_>) -> rusqlite::Result<BillLine> {
    let mut sources = Vec::new();
    for (index, source) in column::SOURCES.into_iter().enumerate() {
        if row.get(8 + index)? {
            sources.push(source);
        }
    }
    let gpu = GpuId { index: row.get(1)?, uuid: row.get::<_, String>(2)?.into() };
    Ok(BillLine {
        gpu_instance: column::loaded_instance(row, 12)?,
        amounts: amounts::load_sums(ACCOUNT, row, 13)?,
        grade: loaded_grade(row, 5)?,
        method: loaded_method(row, 6)?,
        coarse: row.get(7)?,
        sources,
        ..BillLine::empty(gpu, column::loaded_id(row, 3)?)
    })
}

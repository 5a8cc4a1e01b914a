//! Makes a bill: the account of a span of whole minutes, and the proof that its sums agree.
//!
//! Money is time x rate, exact, and rounded by whoever shows it. So the lines of two adjacent bills add up to those of one.
//! Minutes that are not closed are left for the next bill.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::{Connection, params};

use super::MINUTE;
use super::amounts::{self, ACCOUNT, AmountColumn, join_expressions};
use super::column::{self, loaded, loaded_grade, loaded_method, stored};
use super::error::Cause;
use super::rates;
use crate::billing::{Charge, ChargedSlot, ExactMoney, MoneyOverflow, RateSchedule, RecordedRate, charges};
use crate::model::{ActivitySource, Amounts, GpuId, Grade, HolderId, Method, Nanoseconds, Utc};

/// A GPU whose account ends this long before that of another is gone, and does not delay bills.
const GONE_AFTER: Nanoseconds = Nanoseconds::from_seconds(3600);

/// The account from `from` to `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerBill {
    /// First minute.
    pub from: Utc,
    /// End of the last minute: as asked for, or `closed_until` where that is earlier.
    pub to: Utc,
    /// The end that was asked for, where the bill ends earlier.
    pub asked_to: Option<Utc>,
    /// Every GPU's minutes are closed up to this time.
    pub closed_until: Utc,
    /// Currency of all money here; none where no price was in force.
    pub currency: Option<String>,
    /// Whether the ledger has any price, in force here or not.
    pub has_prices: bool,
    /// Lines by GPU, then holder; remainders have lines too.
    pub lines: Vec<BillLine>,
    /// Totals by GPU.
    pub gpus: Vec<GpuTotal>,
    /// Proof that the sums agree.
    pub reconciliation: Reconciliation,
}

/// What one version of a holder held and used on one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillLine {
    /// The GPU.
    pub gpu: GpuId,
    /// Id of the GPU instance; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    /// The version of the holder.
    pub holder: HolderId,
    /// What the holder held, used and drew.
    pub amounts: Amounts,
    /// Whether the GPU's energy was measured; if not, the energy in `amounts` is meaningless.
    pub has_energy: bool,
    /// The worst grade of any minute.
    pub grade: Grade,
    /// `Bridged` if any minute was.
    pub method: Method,
    /// Whether any minute is a share of merged windows.
    pub coarse: bool,
    /// The coarsest activity source of each minute, each once.
    pub sources: Vec<ActivitySource>,
    /// Time for which `money` is charged: held less unavailable, and for `__unavailable__` all unavailable time, while a
    /// price was in force.
    pub charged: Nanoseconds,
    /// The same time while no price was in force.
    pub unpriced: Nanoseconds,
    /// Money of the charged time; none where no price was in force in the whole bill.
    pub money: Option<ExactMoney>,
}

impl BillLine {
    /// A line without time.
    pub(super) fn empty(gpu: GpuId, holder: HolderId) -> Self {
        Self {
            gpu,
            gpu_instance: None,
            holder,
            amounts: Amounts::default(),
            has_energy: false,
            grade: Grade::Measured,
            method: Method::Observed,
            coarse: false,
            sources: Vec::new(),
            charged: Nanoseconds(0),
            unpriced: Nanoseconds(0),
            money: None,
        }
    }
}

/// One GPU's total, from the times recorded for the GPU itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuTotal {
    /// The GPU.
    pub gpu: GpuId,
    /// Product name.
    pub model: String,
    /// GPU time.
    pub slot: Nanoseconds,
    /// End of its account; before the end of the bill only where the GPU is gone.
    pub settled_until: Utc,
    /// Its time by price.
    pub intervals: Vec<Interval>,
    /// Sum of the intervals; none where no price was in force.
    pub money: Option<ExactMoney>,
}

/// GPU time under one price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The rate; none where no rate was in force.
    pub rate: Option<RecordedRate>,
    /// GPU time.
    pub slot: Nanoseconds,
    /// Money of that time.
    pub money: Option<ExactMoney>,
}

/// Sums that were computed separately and must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciliation {
    /// GPU time of all GPUs.
    pub slot: Nanoseconds,
    /// GPU time while no price was in force.
    pub unpriced: Nanoseconds,
    /// Held time of all lines.
    pub held: Nanoseconds,
    /// Money of all GPUs.
    pub gpu_money: ExactMoney,
    /// Money of all lines.
    pub line_money: ExactMoney,
    /// GPU time - held time, in nanoseconds; must be 0.
    pub imbalance: i128,
    /// Money of GPUs - money of lines; must be 0.
    pub imbalance_money: ExactMoney,
}

/// Makes the bill from the first minute `from` (none: the begin of the month of the last minute, in `zone`) to the end of
/// the last minute `to` (none: the end of what is closed).
pub(super) fn make_bill(
    connection: &Connection,
    from: Option<Utc>,
    to: Option<Utc>,
    zone: &TimeZone,
) -> Result<LedgerBill, Cause> {
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
    let mut draft = BillDraft { gpus, lines: BTreeMap::new() };
    let mut at = from;
    for until in schedule.changes_between(from, end).into_iter().chain([end]) {
        draft.add(connection, &schedule, at, until)?;
        at = until;
    }
    let (gpus, lines) = draft.finish();
    let currency = find_currency(&gpus)?;
    let is_priced = currency.is_some();
    let gpus: Vec<GpuTotal> =
        gpus.into_iter().map(|gpu| GpuTotal { money: gpu.money.filter(|_| is_priced), ..gpu }).collect();
    let lines: Vec<BillLine> =
        lines.into_iter().map(|line| BillLine { money: line.money.filter(|_| is_priced), ..line }).collect();
    Ok(LedgerBill {
        from,
        to: end,
        asked_to: to.filter(|to| *to > end),
        closed_until,
        currency,
        has_prices: !schedule.rates().is_empty(),
        reconciliation: reconcile(&gpus, &lines)?,
        lines,
        gpus,
    })
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

/// All GPUs by key in the file, without time.
fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<(i64, GpuTotal)>> {
    connection
        .prepare(
            "SELECT id, gpu_index, uuid, model, settled_until_ns FROM gpu
             ORDER BY gpu_index, uuid",
        )?
        .query_map([], |row| {
            let total = GpuTotal {
                gpu: GpuId { index: row.get(1)?, uuid: row.get::<_, String>(2)?.into() },
                model: row.get(3)?,
                slot: Nanoseconds(0),
                settled_until: Utc(loaded(row, 4)?),
                intervals: Vec::new(),
                money: None,
            };
            Ok((row.get(0)?, total))
        })?
        .collect()
}

fn closed_until(gpus: &[(i64, GpuTotal)]) -> Utc {
    let ends = || gpus.iter().map(|(_, total)| total.settled_until);
    let newest = ends().max().unwrap_or_default();
    ends().filter(|end| newest.since(*end) <= GONE_AFTER).min().unwrap_or_default().floor(MINUTE)
}

/// A bill while it is made, rate by rate. All money in it is present, be it 0.
struct BillDraft {
    /// By key in the file.
    gpus: Vec<(i64, GpuTotal)>,
    lines: BTreeMap<(GpuId, HolderId, Option<u32>), BillLine>,
}

impl BillDraft {
    /// Adds a span in which no rate begins or ends.
    fn add(
        &mut self,
        connection: &Connection,
        schedule: &RateSchedule,
        from: Utc,
        to: Utc,
    ) -> Result<(), Cause> {
        let times = load_times(connection, from, to)?;
        let mut lines = load_lines(connection, from, to)?;
        for (key, total) in &mut self.gpus {
            let Some(slot) = times.get(key).copied() else { continue };
            let rate = schedule.in_force(&total.gpu.uuid, &total.model, from);
            total.add(slot, rate)?;
            for line in charged_lines(&total.gpu, lines.remove(key).unwrap_or_default(), rate) {
                match self.lines.entry((line.gpu.clone(), line.holder.clone(), line.gpu_instance)) {
                    Entry::Occupied(mut sum) => merge_line(sum.get_mut(), &line)?,
                    Entry::Vacant(vacant) => drop(vacant.insert(line)),
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> (Vec<GpuTotal>, Vec<BillLine>) {
        let gpus = self.gpus.into_iter().map(|(_, total)| total).filter(|total| total.slot.0 > 0);
        let mut lines: Vec<BillLine> = self.lines.into_values().collect();
        mark_energy(&mut lines);
        (gpus.collect(), lines)
    }
}

impl GpuTotal {
    /// Adds GPU time under a rate.
    fn add(&mut self, slot: Nanoseconds, rate: Option<&RecordedRate>) -> Result<(), MoneyOverflow> {
        let money = rate.map(|rate| ExactMoney::of_time(rate.price.nano_per_gpu_hour, slot.0));
        self.slot += slot;
        self.money = Some(self.money.unwrap_or_default().plus(money.unwrap_or_default())?);
        match self.intervals.iter_mut().find(|interval| interval.rate.as_ref() == rate) {
            Some(known) => {
                known.slot += slot;
                known.money = known.money.zip(money).map(|(known, more)| known.plus(more)).transpose()?;
            }
            None => self.intervals.push(Interval { rate: rate.cloned(), slot, money }),
        }
        Ok(())
    }
}

/// GPU time of each GPU in nanoseconds, by its key in the file.
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

/// The currency of the prices in force; an error where there are several.
fn find_currency(gpus: &[GpuTotal]) -> Result<Option<String>, Cause> {
    let rates = gpus.iter().flat_map(|gpu| &gpu.intervals).filter_map(|interval| interval.rate.as_ref());
    let mut currencies = rates.map(|rate| &*rate.price.tariff.currency);
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
        line.money = Some(ExactMoney::of_time(nano_per_gpu_hour, time));
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

fn merge_line(line: &mut BillLine, other: &BillLine) -> Result<(), MoneyOverflow> {
    line.amounts.add(&other.amounts);
    line.grade = line.grade.max(other.grade);
    line.charged += other.charged;
    line.unpriced += other.unpriced;
    line.method = line.method.max(other.method);
    line.coarse |= other.coarse;
    line.sources.extend(&other.sources);
    line.sources.sort();
    line.sources.dedup();
    line.money = line.money.zip(other.money).map(|(one, other)| one.plus(other)).transpose()?;
    Ok(())
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

fn reconcile(gpus: &[GpuTotal], lines: &[BillLine]) -> Result<Reconciliation, MoneyOverflow> {
    let intervals = || gpus.iter().flat_map(|gpu| &gpu.intervals);
    let slot: Nanoseconds = intervals().map(|interval| interval.slot).sum();
    let held: Nanoseconds = lines.iter().map(|line| Nanoseconds(line.amounts.parts.held())).sum();
    let gpu_money = ExactMoney::sum(intervals().filter_map(|interval| interval.money))?;
    let line_money = ExactMoney::sum(lines.iter().filter_map(|line| line.money))?;
    Ok(Reconciliation {
        slot,
        unpriced: intervals().filter(|interval| interval.money.is_none()).map(|interval| interval.slot).sum(),
        held,
        gpu_money,
        line_money,
        imbalance: i128::from(slot.0) - i128::from(held.0),
        imbalance_money: gpu_money.minus(line_money)?,
    })
}

//! A bill: what the account says of a span of whole minutes, and its proof.
//!
//! The money of a GPU under one price is `money(end) - money(begin)` of its GPU time since that price
//! began, so two adjacent bills add up to one exactly; it is split along what was held in the bill
//! (therefore one holder's lines of two adjacent bills may differ from the joint line by a nano-unit).
//! Minutes that are not closed are left for the next bill.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::{Connection, params};

use super::MINUTE;
use super::amounts::{self, ACCOUNT, AmountColumn, join_expressions};
use super::bill::{BillLine, GpuTotal, Interval, LedgerBill, Reconciliation};
use super::book::{self, PriceVersion};
use super::column::{self, loaded, loaded_grade, loaded_method, stored};
use super::error::Cause;
use super::settle::money_between;
use crate::attribution::{HeldParts, charged_times, split_money};
use crate::model::{GpuId, HolderId, Money, Nanoseconds, Utc};

/// A GPU whose account ends so long before that of another is gone or was taken out: it holds up no bill.
const LEFT_BEHIND: Nanoseconds = Nanoseconds::from_seconds(3600);

/// What a bill covers; see [`Bill`].
pub(super) struct Period<'z> {
    /// First minute; without it, the begin of the month of the last one.
    pub(super) from: Option<Utc>,
    /// End of the last minute; without it, the end of what is closed.
    pub(super) to: Option<Utc>,
    /// Where months begin.
    pub(super) zone: &'z TimeZone,
}

pub(super) fn make_bill(connection: &Connection, period: &Period<'_>) -> Result<LedgerBill, Cause> {
    let gpus = load_gpus(connection)?;
    let closed_until = closed_until(&gpus);
    let to = period.to.map(|to| on_grid("to", to)).transpose()?;
    let end = to.map_or(closed_until, |to| to.min(closed_until));
    let from = period.from.map_or(Ok(month_start(end, period.zone)), |from| on_grid("from", from))?;
    if let Some(to) = to.filter(|to| *to < from) {
        return Err(Cause::Backwards { from, to });
    }
    let end = end.max(from);
    let mut bill = LedgerBill {
        from,
        to: end,
        asked_to: to.filter(|to| *to > end),
        closed_until,
        currency: None,
        has_prices: false,
        lines: Vec::new(),
        gpus: Vec::new(),
        reconciliation: Reconciliation::default(),
    };
    let versions = book::versions(connection)?;
    bill.has_prices = versions.iter().any(|version| version.rate.is_some());
    let slots = load_priced_times(connection, from, end, &versions)?;
    bill.currency = find_currency(&slots)?;
    for gpu in gpus {
        let total = gpu_total(&gpu, slots.get(&gpu.key).map_or(&[], Vec::as_slice), bill.currency.is_some());
        bill.gpus.push(total);
    }
    bill.gpus.retain(|total| total.slot.0 > 0);
    add_lines(connection, &mut bill, &slots)?;
    reconcile(&mut bill);
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
    // Every time that 64 bits hold has a month.
    start.ok().and_then(|start| u64::try_from(start.timestamp().as_nanosecond()).ok()).map_or(end, Utc)
}

struct BilledGpu {
    key: i64,
    id: GpuId,
    model: String,
    settled_until: Utc,
}

fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<BilledGpu>> {
    connection
        .prepare(
            "SELECT id, gpu_index, uuid, model, settled_until_ns FROM gpu
             ORDER BY gpu_index, uuid",
        )?
        .query_map([], |row| {
            Ok(BilledGpu {
                key: row.get(0)?,
                id: GpuId { index: row.get(1)?, uuid: row.get::<_, String>(2)?.into() },
                model: row.get(3)?,
                settled_until: Utc(loaded(row, 4)?),
            })
        })?
        .collect()
}

fn closed_until(gpus: &[BilledGpu]) -> Utc {
    let newest = gpus.iter().map(|gpu| gpu.settled_until).max().unwrap_or_default();
    gpus.iter()
        .map(|gpu| gpu.settled_until)
        .filter(|until| newest.since(*until) <= LEFT_BEHIND)
        .min()
        .unwrap_or_default()
        .floor(MINUTE)
}

/// GPU time of one GPU under one price: from, to since that price began for it.
struct PricedTime<'v> {
    price: Option<i64>,
    version: Option<&'v PriceVersion>,
    slot: u64,
    begin: u64,
    end: u64,
}

impl PricedTime<'_> {
    fn money(&self) -> Option<Money> {
        let rate = self.version?.rate.as_ref()?;
        Some(money_between(rate, self.begin, self.end))
    }
}

fn load_priced_times<'v>(
    connection: &Connection,
    from: Utc,
    to: Utc,
    versions: &'v [PriceVersion],
) -> rusqlite::Result<BTreeMap<i64, Vec<PricedTime<'v>>>> {
    let mut statement = connection.prepare(
        "SELECT gpu, price, sum(slot_ns), min(price_time_ns - slot_ns), max(price_time_ns)
         FROM minute WHERE minute_ns >= ?1 AND minute_ns < ?2
         GROUP BY gpu, price ORDER BY gpu, min(minute_ns)",
    )?;
    let mut rows = statement.query(params![stored(from.0)?, stored(to.0)?])?;
    let mut slots = BTreeMap::<i64, Vec<PricedTime<'v>>>::new();
    while let Some(row) = rows.next()? {
        let price: Option<i64> = row.get(1)?;
        slots.entry(row.get(0)?).or_default().push(PricedTime {
            price,
            version: versions.iter().find(|version| Some(version.id) == price),
            slot: loaded(row, 2)?,
            begin: loaded(row, 3)?,
            end: loaded(row, 4)?,
        });
    }
    Ok(slots)
}

/// The one currency of all prices in force.
fn find_currency(slots: &BTreeMap<i64, Vec<PricedTime<'_>>>) -> Result<Option<String>, Cause> {
    let mut found: Option<&str> = None;
    let rates = slots.values().flatten().filter_map(|slot| slot.version?.rate.as_ref());
    for currency in rates.map(|rate| &*rate.tariff.currency) {
        match found {
            Some(first) if first != currency => {
                return Err(Cause::Currencies { first: first.to_owned(), second: currency.to_owned() });
            }
            _ => found = Some(currency),
        }
    }
    Ok(found.map(str::to_owned))
}

fn gpu_total(gpu: &BilledGpu, slots: &[PricedTime<'_>], priced: bool) -> GpuTotal {
    let intervals: Vec<Interval> = slots
        .iter()
        .map(|slot| {
            let rate = slot.version.and_then(|version| version.rate.as_ref());
            Interval {
                since: slot.version.map(|version| version.from),
                nano_per_gpu_hour: rate.map(|rate| rate.nano_per_gpu_hour),
                class: rate.map(|rate| rate.tariff.class.to_string()),
                slot: Nanoseconds(slot.slot),
                money: slot.money(),
            }
        })
        .collect();
    GpuTotal {
        gpu: gpu.id.clone(),
        model: gpu.model.clone(),
        slot: intervals.iter().map(|interval| interval.slot).sum(),
        settled_until: gpu.settled_until,
        money: priced.then(|| intervals.iter().filter_map(|interval| interval.money).sum()),
        intervals,
    }
}

/// One line of one price interval, as SQL sums it.
struct Partial {
    gpu: i64,
    price: Option<i64>,
    line: BillLine,
}

/// Makes the lines, with the money of each price interval split along what was held in it.
fn add_lines(
    connection: &Connection,
    bill: &mut LedgerBill,
    slots: &BTreeMap<i64, Vec<PricedTime<'_>>>,
) -> Result<(), Cause> {
    let priced = bill.currency.is_some();
    let mut groups = BTreeMap::<(i64, Option<i64>), Vec<BillLine>>::new();
    for partial in load_partial_lines(connection, bill.from, bill.to)? {
        groups.entry((partial.gpu, partial.price)).or_default().push(partial.line);
    }
    let mut joined = BTreeMap::<(GpuId, HolderId, Option<u32>), BillLine>::new();
    for ((gpu, price), mut group) in groups {
        let slot = slots.get(&gpu).and_then(|slots| slots.iter().find(|slot| slot.price == price));
        let charged = charged_times(group.iter().map(|line| HeldParts {
            gpu_instance: line.gpu_instance,
            holder: &line.holder,
            parts: &line.amounts.parts,
        }));
        let money = slot.and_then(PricedTime::money);
        let shares = split_money(money.unwrap_or_default(), &charged.times)?;
        let gpu = group.first().map(|line| line.gpu.clone());
        for (gpu, gpu_instance) in gpu.iter().cycle().zip(charged.added) {
            // Nobody but holders had unavailable time: the line that is charged for it has no time of its own.
            let holder = HolderId::new(HolderId::UNAVAILABLE);
            group.push(BillLine { gpu_instance, ..BillLine::empty(gpu.clone(), holder) });
        }
        for ((line, (_, time)), share) in group.iter_mut().zip(charged.times).zip(shares) {
            *if money.is_some() { &mut line.charged } else { &mut line.unpriced } = Nanoseconds(time);
            line.money = priced.then_some(share);
        }
        for line in group {
            let key = (line.gpu.clone(), line.holder.clone(), line.gpu_instance);
            match joined.get_mut(&key) {
                Some(joined) => merge_line(joined, &line),
                None => {
                    joined.insert(key, line);
                }
            }
        }
    }
    bill.lines = joined.into_values().collect();
    mark_energy(&mut bill.lines);
    Ok(())
}

/// No GPU that is there draws nothing: one whose lines have no energy at all was not measured, which is not 0.
fn mark_energy(lines: &mut [BillLine]) {
    let drew = |line: &&BillLine| line.amounts.energy_static.max(line.amounts.energy_dynamic).0 > 0;
    let measured: BTreeSet<Arc<str>> =
        lines.iter().filter(drew).map(|line| Arc::clone(&line.gpu.uuid)).collect();
    for line in lines {
        line.has_energy = measured.contains(&line.gpu.uuid);
    }
}

fn merge_line(line: &mut BillLine, other: &BillLine) {
    line.amounts.add(&other.amounts);
    line.grade = line.grade.max(other.grade);
    line.charged += other.charged;
    line.unpriced += other.unpriced;
    line.method = line.method.max(other.method);
    line.coarse |= other.coarse;
    line.sources.extend(&other.sources);
    line.sources.sort();
    line.sources.dedup();
    line.money = line.money.zip(other.money).map(|(one, other)| one + other);
}

fn load_partial_lines(connection: &Connection, from: Utc, to: Utc) -> rusqlite::Result<Vec<Partial>> {
    let sums = join_expressions(ACCOUNT, ",", AmountColumn::sum);
    connection
        .prepare(&format!(
            "SELECT a.gpu, m.price, g.gpu_index, g.uuid, h.name, max(grade), max(method), max(coarse),
                    max(source = 0), max(source = 1), max(source = 2), max(source = 3),
                    a.gpu_instance, {sums}
             FROM account a
             JOIN minute m ON m.minute_ns = a.minute_ns AND m.gpu = a.gpu
             JOIN gpu g ON g.id = a.gpu
             JOIN holder h ON h.id = a.holder
             WHERE a.minute_ns >= ?1 AND a.minute_ns < ?2
             GROUP BY a.gpu, m.price, a.holder, a.gpu_instance
             ORDER BY g.gpu_index, g.uuid, h.name, a.gpu_instance"
        ))?
        .query_map(params![stored(from.0)?, stored(to.0)?], read_partial_line)?
        .collect()
}

fn read_partial_line(row: &rusqlite::Row<'_>) -> rusqlite::Result<Partial> {
    let mut sources = Vec::new();
    for (index, source) in column::SOURCES.into_iter().enumerate() {
        if row.get(8 + index)? {
            sources.push(source);
        }
    }
    let gpu = GpuId { index: row.get(2)?, uuid: row.get::<_, String>(3)?.into() };
    let line = BillLine {
        gpu_instance: column::loaded_instance(row, 12)?,
        amounts: amounts::load_sums(ACCOUNT, row, 13)?,
        grade: loaded_grade(row, 5)?,
        method: loaded_method(row, 6)?,
        coarse: row.get(7)?,
        sources,
        ..BillLine::empty(gpu, HolderId::new(row.get::<_, String>(4)?))
    };
    Ok(Partial { gpu: row.get(0)?, price: row.get(1)?, line })
}

fn reconcile(bill: &mut LedgerBill) {
    let intervals = || bill.gpus.iter().flat_map(|gpu| &gpu.intervals);
    let mut proof = Reconciliation {
        slot: intervals().map(|interval| interval.slot).sum(),
        unpriced: intervals().filter(|interval| interval.money.is_none()).map(|interval| interval.slot).sum(),
        held: bill.lines.iter().map(|line| Nanoseconds(line.amounts.parts.held())).sum(),
        gpu_money: intervals().filter_map(|interval| interval.money).sum(),
        line_money: bill.lines.iter().filter_map(|line| line.money).sum(),
        ..Reconciliation::default()
    };
    proof.imbalance = i128::from(proof.slot.0) - i128::from(proof.held.0);
    proof.imbalance_money = proof.gpu_money - proof.line_money;
    bill.reconciliation = proof;
}

//! Makes a bill: the account of a span of whole minutes, and the proof that its sums agree.
//!
//! The money of a GPU under one price is the difference of its money at both ends, each since that price began, so two
//! adjacent bills add up to one exactly. It is split along what was held in the bill; therefore a holder's lines of two
//! adjacent bills may differ from the joint line by a nano-unit. Minutes that are not closed are left for the next bill.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::{Connection, params};

use super::MINUTE;
use super::amounts::{self, ACCOUNT, AmountColumn, join_expressions};
use super::book::{self, PriceVersion};
use super::column::{self, loaded, loaded_grade, loaded_method, stored};
use super::error::Cause;
use super::minutes::money_between;
use crate::attribution::{HeldParts, HolderTime, charged_times, split_money};
use crate::model::{ActivitySource, Amounts, GpuId, Grade, HolderId, Method, Money, Nanoseconds, Utc};

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
    pub money: Option<Money>,
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
    pub money: Option<Money>,
}

/// GPU time under one price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// When the price began, possibly before the bill; none before the first price.
    pub since: Option<Utc>,
    /// Billionths of the currency per GPU-hour; none where there was no price.
    pub nano_per_gpu_hour: Option<i64>,
    /// The price class.
    pub class: Option<String>,
    /// GPU time.
    pub slot: Nanoseconds,
    /// Money of that time.
    pub money: Option<Money>,
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
    pub gpu_money: Money,
    /// Money of all lines.
    pub line_money: Money,
    /// GPU time - held time, in nanoseconds; must be 0.
    pub imbalance: i128,
    /// Money of GPUs - money of lines; must be 0.
    pub imbalance_money: Money,
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
    let versions = book::versions(connection)?;
    let times = load_priced_times(connection, from, end, &versions)?;
    let currency = find_currency(&times)?;
    let is_priced = currency.is_some();
    let gpus = gpus
        .into_iter()
        .map(|(key, total)| add_intervals(total, times.get(&key).map_or(&[], Vec::as_slice), is_priced));
    let gpus: Vec<GpuTotal> = gpus.filter(|total| total.slot.0 > 0).collect();
    let lines = load_lines(connection, from, end)?;
    let lines = add_money(lines, &times, is_priced)?;
    Ok(LedgerBill {
        from,
        to: end,
        asked_to: to.filter(|to| *to > end),
        closed_until,
        currency,
        has_prices: versions.iter().any(|version| version.rate.is_some()),
        reconciliation: reconcile(&gpus, &lines),
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

/// Time of one GPU under one price.
struct PricedTime<'v> {
    price: Option<i64>,
    version: Option<&'v PriceVersion>,
    /// GPU time in nanoseconds.
    slot: u64,
    /// Begin and end in GPU time since that price began.
    begin: u64,
    end: u64,
}

impl PricedTime<'_> {
    fn money(&self) -> Option<Money> {
        let rate = self.version?.rate.as_ref()?;
        Some(money_between(rate, self.begin, self.end))
    }
}

/// The priced times of each GPU, by its key in the file.
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
    let mut times = BTreeMap::<i64, Vec<PricedTime<'v>>>::new();
    while let Some(row) = rows.next()? {
        let price: Option<i64> = row.get(1)?;
        times.entry(row.get(0)?).or_default().push(PricedTime {
            price,
            version: versions.iter().find(|version| Some(version.id) == price),
            slot: loaded(row, 2)?,
            begin: loaded(row, 3)?,
            end: loaded(row, 4)?,
        });
    }
    Ok(times)
}

/// The currency of the prices in force; an error where there are several.
fn find_currency(times: &BTreeMap<i64, Vec<PricedTime<'_>>>) -> Result<Option<String>, Cause> {
    let mut found: Option<&str> = None;
    let rates = times.values().flatten().filter_map(|time| time.version?.rate.as_ref());
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

fn add_intervals(total: GpuTotal, times: &[PricedTime<'_>], is_priced: bool) -> GpuTotal {
    let interval = |time: &PricedTime<'_>| {
        let rate = time.version.and_then(|version| version.rate.as_ref());
        Interval {
            since: time.version.map(|version| version.from),
            nano_per_gpu_hour: rate.map(|rate| rate.nano_per_gpu_hour),
            class: rate.map(|rate| rate.tariff.class.to_string()),
            slot: Nanoseconds(time.slot),
            money: time.money(),
        }
    };
    let intervals: Vec<Interval> = times.iter().map(interval).collect();
    GpuTotal {
        slot: intervals.iter().map(|interval| interval.slot).sum(),
        money: is_priced.then(|| intervals.iter().filter_map(|interval| interval.money).sum()),
        intervals,
        ..total
    }
}

/// Lines of one GPU under one price, by the GPU's key and the price's.
type PricedLines = BTreeMap<(i64, Option<i64>), Vec<BillLine>>;

/// Splits the money of each GPU and price along what was held, and joins the lines of each holder.
fn add_money(
    lines: PricedLines,
    times: &BTreeMap<i64, Vec<PricedTime<'_>>>,
    is_priced: bool,
) -> Result<Vec<BillLine>, Cause> {
    let mut joined = BTreeMap::<(GpuId, HolderId, Option<u32>), BillLine>::new();
    for ((gpu, price), mut group) in lines {
        let time = times.get(&gpu).and_then(|times| times.iter().find(|time| time.price == price));
        let charged = charged_times(group.iter().map(|line| HeldParts {
            gpu_instance: line.gpu_instance,
            holder: &line.holder,
            parts: &line.amounts.parts,
        }));
        let money = time.and_then(PricedTime::money);
        let shares = split_money(money.unwrap_or_default(), &charged)?;
        let gpu = group.first().map(|line| line.gpu.clone());
        for (gpu, HolderTime { gpu_instance, holder, .. }) in gpu.iter().cycle().zip(&charged[group.len()..])
        {
            // `__unavailable__` is charged for holders' unavailable time without time of its own.
            let gpu_instance = *gpu_instance;
            group.push(BillLine { gpu_instance, ..BillLine::empty(gpu.clone(), holder.clone()) });
        }
        for ((mut line, HolderTime { time, .. }), share) in group.into_iter().zip(charged).zip(shares) {
            *if money.is_some() { &mut line.charged } else { &mut line.unpriced } = Nanoseconds(time);
            line.money = is_priced.then_some(share);
            match joined.entry((line.gpu.clone(), line.holder.clone(), line.gpu_instance)) {
                Entry::Occupied(mut sum) => merge_line(sum.get_mut(), &line),
                Entry::Vacant(vacant) => drop(vacant.insert(line)),
            }
        }
    }
    let mut lines: Vec<BillLine> = joined.into_values().collect();
    mark_energy(&mut lines);
    Ok(lines)
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

/// The lines under each price, without money.
fn load_lines(connection: &Connection, from: Utc, to: Utc) -> rusqlite::Result<PricedLines> {
    let sums = join_expressions(ACCOUNT, ",", AmountColumn::sum);
    let mut statement = connection.prepare(&format!(
        "SELECT a.gpu, m.price, g.gpu_index, g.uuid, h.name, h.version, max(grade), max(method), max(coarse),
                max(source = 0), max(source = 1), max(source = 2), max(source = 3),
                a.gpu_instance, {sums}
         FROM account a
         JOIN minute m ON m.minute_ns = a.minute_ns AND m.gpu = a.gpu
         JOIN gpu g ON g.id = a.gpu
         JOIN holder h ON h.id = a.holder
         WHERE a.minute_ns >= ?1 AND a.minute_ns < ?2
         GROUP BY a.gpu, m.price, a.holder, a.gpu_instance
         ORDER BY g.gpu_index, g.uuid, h.name, h.id, a.gpu_instance"
    ))?;
    let mut rows = statement.query(params![stored(from.0)?, stored(to.0)?])?;
    let mut lines = PricedLines::new();
    while let Some(row) = rows.next()? {
        lines.entry((row.get(0)?, row.get(1)?)).or_default().push(read_line(row)?);
    }
    Ok(lines)
}

fn read_line(row: &rusqlite::Row<'_>) -> rusqlite::Result<BillLine> {
    let mut sources = Vec::new();
    for (index, source) in column::SOURCES.into_iter().enumerate() {
        if row.get(9 + index)? {
            sources.push(source);
        }
    }
    let gpu = GpuId { index: row.get(2)?, uuid: row.get::<_, String>(3)?.into() };
    Ok(BillLine {
        gpu_instance: column::loaded_instance(row, 13)?,
        amounts: amounts::load_sums(ACCOUNT, row, 14)?,
        grade: loaded_grade(row, 6)?,
        method: loaded_method(row, 7)?,
        coarse: row.get(8)?,
        sources,
        ..BillLine::empty(gpu, column::loaded_id(row, 4)?)
    })
}

fn reconcile(gpus: &[GpuTotal], lines: &[BillLine]) -> Reconciliation {
    let intervals = || gpus.iter().flat_map(|gpu| &gpu.intervals);
    let mut proof = Reconciliation {
        slot: intervals().map(|interval| interval.slot).sum(),
        unpriced: intervals().filter(|interval| interval.money.is_none()).map(|interval| interval.slot).sum(),
        held: lines.iter().map(|line| Nanoseconds(line.amounts.parts.held())).sum(),
        gpu_money: intervals().filter_map(|interval| interval.money).sum(),
        line_money: lines.iter().filter_map(|line| line.money).sum(),
        ..Reconciliation::default()
    };
    proof.imbalance = i128::from(proof.slot.0) - i128::from(proof.held.0);
    proof.imbalance_money = proof.gpu_money - proof.line_money;
    proof
}

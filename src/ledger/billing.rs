//! Makes the bill of a span of whole minutes from the rows of the ledger. Minutes that are not closed are left for the next
//! bill.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::tz::TimeZone;
use rusqlite::{Connection, params};

use super::amounts::{self, ACCOUNT, names};
use super::column::{loaded, loaded_grade, loaded_id, loaded_method, sources_of, stored};
use super::error::Cause;
use super::rolled::RolledTime;
use super::{MINUTE, history, node, reader};
use crate::billing::{
    Bill, BillGpu, BillLine, BillRate, BillTerms, ClaimConflict, ExactMoney, LineRates, Month, PriceBook,
    PricedSlot, PricedSpan, Rate, RateKind, RateSchedule, Reconciliation, Recorded, TenantBudget,
    days_between, local_date, local_time, mark_measured_energy, zone_name,
};
use crate::model::{
    Amounts, GpuId, Grade, Holder, HolderId, Method, MigProfile, Nanoseconds, QUARTER_HOUR, SlotId, Utc,
};
use crate::tenants::{RuleSchedule, TenantRules, tenant};

/// A GPU whose account ends this long before that of another is gone, and does not delay bills.
const GONE_AFTER: Nanoseconds = Nanoseconds::from_seconds(3600);

/// End of the product names of simulated GPUs.
pub(super) const SIMULATED: &str = "(simulated)";

/// Which bill is made.
#[derive(Clone, Debug)]
pub(super) struct BillOptions {
    /// The time zone of months and local times.
    pub(super) zone: TimeZone,
    /// Whether lines are told apart by local date.
    pub(super) by_day: bool,
    /// Prices and terms in place of the recorded ones.
    pub(super) book: Option<PriceBook>,
}

impl Default for BillOptions {
    fn default() -> Self {
        Self { zone: TimeZone::UTC, by_day: false, book: None }
    }
}

/// Makes the bill from the first minute `from` (none: the begin of the month of the last minute, in the zone) to the end of
/// the last minute `to` (none: the end of what is closed).
pub(super) fn make_bill(
    connection: &Connection,
    from: Option<Utc>,
    to: Option<Utc>,
    request: &BillOptions,
) -> Result<Bill, Cause> {
    let zone = &request.zone;
    let closed_until = closed_until(load_gpus(connection)?.iter().map(|(_, gpu)| gpu.settled_until));
    let to = to.map(|to| on_grid("to", to)).transpose()?;
    let end = to.map_or(closed_until, |to| to.min(closed_until));
    let month = Month::containing(Utc(end.0.saturating_sub(1)), zone);
    let month_start = month.as_ref().map_or(end, |month| month.begin);
    let from = from.map_or(Ok(month_start), |from| on_grid("from", from))?;
    if let Some(to) = to.filter(|to| *to < from) {
        return Err(Cause::Backwards { from, to });
    }
    let end = end.max(from);
    let node = node::load(connection)?;
    let (recorded, rules) = history::load(connection)?;
    RolledTime::load(connection)?.check_period(from, end)?;
    let schedule = match &request.book {
        Some(book) => {
            book.check_currency(recorded.currencies(from, end))?;
            RateSchedule::always(book, &node)
        }
        None => recorded,
    };
    let (gpus, lines) = charged_lines(connection, from, end, &schedule, &rules, request)?;
    let rates = rates_of(&gpus, &lines, &schedule);
    let currency = find_currency(&rates, from)?;
    let rates: Vec<BillRate> = rates.into_iter().map(BillRate::new).collect();
    let mut bill = Bill {
        simulated: node.simulated || gpus.iter().any(|gpu| gpu.model.ends_with(SIMULATED)),
        node: node.name,
        cluster: node.cluster,
        fleet: None,
        how_held: node::load_how_held(connection, from)?,
        claim_conflicts: load_conflicts(connection, [from, end])?,
        billing_account: None,
        invoice_issuer: None,
        from,
        to: end,
        from_local: local_time(from, zone),
        to_local: local_time(end, zone),
        time_zone: zone_name(zone, end),
        asked_to: to.filter(|to| *to > end).map(|to| local_time(to, zone)),
        closed_until,
        partial: false,
        currency,
        example_prices: rates.iter().any(BillRate::is_example),
        rates,
        terms: terms_of(&lines, &schedule),
        unpriced: schedule.has_prices().then(|| gpus.iter().map(BillGpu::unpriced).sum()),
        tenant_attributes: attributes_of(&lines, rules.versions().entries().last().map(|last| &last.entry)),
        tenant_budgets: budgets_of(&lines, rules.budgets_until(month.map_or(end, |month| month.end))),
        lines,
        gpus,
        reconciliation: Reconciliation::default(),
    };
    bill.add_up()?;
    Ok(bill)
}

/// Such bills, one after the other, each of a span in one currency.
pub(super) fn make_bills(
    connection: &Connection,
    mut from: Option<Utc>,
    to: Option<Utc>,
    request: &BillOptions,
) -> Result<Vec<Bill>, Cause> {
    let mut bills = Vec::new();
    loop {
        match make_bill(connection, from, to, request) {
            Err(Cause::Currencies { since, .. }) => {
                bills.push(make_bill(connection, from, Some(since), request)?);
                from = Some(since);
            }
            last => {
                bills.push(last?);
                return Ok(bills);
            }
        }
    }
}

/// The GPUs with time between two times, and the lines of what tenants are charged for it.
pub(super) fn charged_lines(
    connection: &Connection,
    from: Utc,
    to: Utc,
    schedule: &RateSchedule,
    rules: &RuleSchedule,
    request: &BillOptions,
) -> Result<(Vec<BillGpu>, Vec<BillLine>), Cause> {
    let (gpus, holders) = (load_gpus(connection)?, load_holders(connection)?);
    let mut draft = BillDraft { gpus, lines: BTreeMap::new(), holders, schedule };
    let changes = schedule.changes_between(from, to).into_iter().chain(rules.changes_between(from, to));
    let days = if request.by_day { days_between(from, to, &request.zone) } else { Vec::new() };
    let mut span = BillSpan { from, to, rules: rules.rules(from), day: None };
    for until in changes.chain(days).chain([to]).collect::<BTreeSet<Utc>>() {
        span = BillSpan { to: until, rules: rules.rules(span.from), ..span };
        span.day = request.by_day.then(|| local_date(span.from, &request.zone));
        draft.add(connection, &span)?;
        span.from = until;
    }
    Ok(draft.finish())
}

/// The priced lines of each quarter hour between two times, and the GPUs with time.
pub(super) fn quarter_lines(
    connection: &Connection,
    [from, to]: [Utc; 2],
    (schedule, rules): (&RateSchedule, &RuleSchedule),
    mut visit: impl FnMut(Utc, Vec<BillLine>),
) -> Result<Vec<BillGpu>, Cause> {
    let of_period = reader::holders(connection, HOLDERS_BETWEEN, [stored(from.0)?, stored(to.0)?])?;
    let holders = of_period.into_iter().map(|holder| (holder.id.clone(), holder)).collect();
    let gpus = load_gpus(connection)?;
    let mut draft = BillDraft { gpus, lines: BTreeMap::new(), holders, schedule };
    let mut at = from;
    while at < to {
        let end = at.floor(QUARTER_HOUR).plus(QUARTER_HOUR).min(to);
        draft.add(connection, &BillSpan { from: at, to: end, rules: rules.rules(at), day: None })?;
        visit(at, draft.take_lines());
        at = end;
    }
    Ok(draft.finish().0)
}

fn on_grid(edge: &'static str, at: Utc) -> Result<Utc, Cause> {
    if at.floor(MINUTE) == at { Ok(at) } else { Err(Cause::Grid { edge, at }) }
}

/// All GPUs by key in the file, without time.
pub(super) fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<(i64, BillGpu)>> {
    connection
        .prepare(
            "SELECT id, gpu_index, uuid, model, settled_until_ns, first_seen_ns FROM gpu
             ORDER BY gpu_index, uuid",
        )?
        .query_map([], |row| {
            let gpu = BillGpu {
                gpu: GpuId { index: row.get(1)?, uuid: row.get::<_, String>(2)?.into() },
                model: row.get(3)?,
                slot: Nanoseconds(0),
                settled_until: Utc(loaded(row, 4)?),
                accounted_since: Utc(loaded(row, 5)?),
                money: None,
                intervals: Vec::new(),
                energy_money: ExactMoney::ZERO,
            };
            Ok((row.get(0)?, gpu))
        })?
        .collect()
}

/// The end of the minutes that are closed on all GPUs but those that are gone, from the ends of their accounts.
pub(super) fn closed_until(ends: impl Iterator<Item = Utc> + Clone) -> Utc {
    let newest = ends.clone().max().unwrap_or_default();
    ends.filter(|end| newest.since(*end) <= GONE_AFTER).min().unwrap_or_default().floor(MINUTE)
}

/// Up to where the account is closed.
pub(super) fn closed_time(connection: &Connection) -> rusqlite::Result<Utc> {
    let gpus = load_gpus(connection)?;
    Ok(closed_until(gpus.iter().map(|(_, gpu)| gpu.settled_until)))
}

/// What tells lines of a bill apart.
type LineKey = (GpuId, HolderId, SlotId, String, LineRates, Option<String>);

/// A bill while it is made, from one change of rates, terms or tenant rules to the next.
struct BillDraft<'a> {
    /// By key in the file.
    gpus: Vec<(i64, BillGpu)>,
    lines: BTreeMap<LineKey, BillLine>,
    /// All versions of holders.
    holders: BTreeMap<HolderId, Holder>,
    schedule: &'a RateSchedule,
}

/// A part of a bill in which no rate, no terms and no tenant rule begins or ends.
struct BillSpan<'a> {
    from: Utc,
    to: Utc,
    rules: &'a TenantRules,
    /// The local date, in bills by day.
    day: Option<String>,
}

impl BillDraft<'_> {
    fn add(&mut self, connection: &Connection, span: &BillSpan<'_>) -> Result<(), Cause> {
        let times = load_times(connection, span)?;
        let mut lines = load_lines(connection, span, &self.gpus)?;
        for (key, gpu) in &mut self.gpus {
            let Some(slot) = times.get(key).copied() else { continue };
            let whole = PricedSlot { uuid: &gpu.gpu.uuid, model: &gpu.model, profile: None };
            let rate = self.schedule.rate(RateKind::GpuHour, whole, span.from);
            let mut of_gpu = lines.remove(key).unwrap_or_default();
            for line in &mut of_gpu {
                let id = || line.holder.clone();
                let holder = self.holders.entry(id()).or_insert_with(|| Holder::from_id(id()));
                line.tenant = tenant(holder, span.rules).to_string();
            }
            let (schedule, model) = (self.schedule, &*gpu.model);
            let priced = PricedSpan { schedule, gpu: &gpu.gpu, model, at: span.from }.price(of_gpu)?;
            gpu.add(slot, rate.map(|rate| (rate.id, rate.entry.nano)))?;
            for mut line in priced {
                gpu.energy_money = gpu.energy_money.plus(line.exact_energy)?;
                line.day.clone_from(&span.day);
                let (gpu, holder, slot) = (line.gpu.clone(), line.holder.clone(), line.slot.clone());
                let key = (gpu, holder, slot, line.tenant.clone(), line.rates, line.day.clone());
                match self.lines.entry(key) {
                    Entry::Occupied(mut sum) => sum.get_mut().add(&line)?,
                    Entry::Vacant(vacant) => drop(vacant.insert(line)),
                }
            }
        }
        Ok(())
    }

    /// The lines since the last call, in no order.
    fn take_lines(&mut self) -> Vec<BillLine> {
        let mut lines: Vec<BillLine> = std::mem::take(&mut self.lines).into_values().collect();
        for line in &mut lines {
            let Some(holder) = self.holders.get(&line.holder) else { continue };
            let labels = holder.facts.iter().map(|(fact, text)| (fact.label().to_owned(), text.to_owned()));
            let of_pod = holder.facts.pod_labels().iter();
            let of_pod = of_pod.map(|label| (label.name.to_string(), label.value.to_string()));
            line.labels = labels.chain(of_pod).collect();
        }
        lines
    }

    /// The GPUs with time, and the lines by tenant, GPU and holder.
    fn finish(mut self) -> (Vec<BillGpu>, Vec<BillLine>) {
        let mut lines = self.take_lines();
        let gpus = self.gpus.into_iter().map(|(_, gpu)| gpu).filter(|gpu| gpu.slot.0 > 0);
        mark_measured_energy(&mut lines);
        lines.sort_by(|left, right| {
            let key = |line: &BillLine| (line.gpu.index, line.slot.gpu_instance);
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

/// The versions of holders with time between two times.
const HOLDERS_BETWEEN: &str = "SELECT name, version, facts FROM holder
     WHERE id IN (SELECT holder FROM account WHERE minute_ns >= ?1 AND minute_ns < ?2) ORDER BY name, id";

/// The budgets of the tenants of these lines.
pub(super) fn budgets_of(
    lines: &[BillLine],
    budgets: &BTreeMap<String, TenantBudget>,
) -> BTreeMap<String, TenantBudget> {
    let own = lines.iter().filter_map(|line| budgets.get_key_value(&line.tenant));
    own.map(|(tenant, budget)| (tenant.clone(), budget.clone())).collect()
}

/// The attributes of the tenants of these lines.
pub(super) fn attributes_of(
    lines: &[BillLine],
    rules: Option<&TenantRules>,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let tenants: BTreeSet<&str> = lines.iter().map(|line| &*line.tenant).collect();
    let all = rules.into_iter().flat_map(|rules| &rules.attributes);
    let own = all.filter(|(tenant, _)| tenants.contains(&***tenant));
    own.map(|(tenant, attributes)| (tenant.clone(), attributes.clone())).collect()
}

/// All versions of holders, by id.
fn load_holders(connection: &Connection) -> rusqlite::Result<BTreeMap<HolderId, Holder>> {
    let holders = reader::holders(connection, HOLDERS, [])?;
    Ok(holders.into_iter().map(|holder| (holder.id.clone(), holder)).collect())
}

/// GPU time of each GPU, by its key in the file.
fn load_times(connection: &Connection, span: &BillSpan<'_>) -> rusqlite::Result<BTreeMap<i64, Nanoseconds>> {
    connection
        .prepare_cached(
            "SELECT gpu, sum(slot_ns) FROM minute WHERE minute_ns >= ?1 AND minute_ns < ?2 GROUP BY gpu",
        )?
        .query_map(params![stored(span.from.0)?, stored(span.to.0)?], |row| {
            Ok((row.get(0)?, Nanoseconds(loaded(row, 1)?)))
        })?
        .collect()
}

/// All rates that priced anything, by their begin.
pub(super) fn rates_of<'a>(
    gpus: &[BillGpu],
    lines: &[BillLine],
    schedule: &'a RateSchedule,
) -> Vec<&'a Recorded<Rate>> {
    let of_line = |line: &BillLine| [line.rates.time, line.rates.energy, line.rates.carbon];
    let of_gpus = gpus.iter().flat_map(|gpu| &gpu.intervals).filter_map(|interval| interval.rate);
    let ids = lines.iter().flat_map(of_line).flatten().chain(of_gpus);
    let ids: BTreeSet<i64> = ids.collect();
    let rates = schedule.rates.entries().iter().filter(|rate| ids.contains(&rate.id));
    let mut rates: Vec<&Recorded<Rate>> = rates.collect();
    rates.sort_by_key(|rate| (rate.entry.kind, rate.begin, rate.entry.nano));
    rates
}

/// The terms of the lines.
pub(super) fn terms_of(lines: &[BillLine], schedule: &RateSchedule) -> Vec<BillTerms> {
    let ids: BTreeSet<i64> = lines.iter().filter_map(|line| line.rates.terms).collect();
    let terms = schedule.terms.entries().iter().filter(|terms| ids.contains(&terms.id));
    terms.map(BillTerms::new).collect()
}

/// The currency of the rates of a period that begins at `from`; an error where there are several.
pub(super) fn find_currency(rates: &[&Recorded<Rate>], from: Utc) -> Result<Option<String>, Cause> {
    let prices = || rates.iter().filter(|rate| rate.entry.kind != RateKind::CarbonKwh);
    let currency = |rate: &Recorded<Rate>| rate.entry.tariff.currency.to_string();
    let Some(first) = prices().min_by_key(|rate| rate.begin) else { return Ok(None) };
    let others = prices().filter(|rate| currency(rate) != currency(first));
    let Some(other) = others.min_by_key(|rate| rate.begin) else { return Ok(Some(currency(first))) };
    let (first, second, since) = (currency(first), currency(other), other.begin);
    Err(if since > from {
        Cause::Currencies { first, second, since }
    } else {
        Cause::MixedCurrencies { first, second, since }
    })
}

/// What tells the rows of one line apart: the keys of GPU, holder, GPU instance and profile.
type RowKey = (i64, i64, i64, i64);

/// The sum of the rows of one line.
struct LineSum {
    amounts: Amounts,
    grade: Grade,
    method: Method,
    /// A set of bits.
    sources: i64,
}

/// The lines of each GPU, by its key in the file, without money. Rows are summed up here, since SQLite would sort all of them by
/// line first, on disk where a month has millions.
fn load_lines(
    connection: &Connection,
    span: &BillSpan<'_>,
    gpus: &[(i64, BillGpu)],
) -> rusqlite::Result<BTreeMap<i64, Vec<BillLine>>> {
    let (sums, coarse) = (sum_rows(connection, span)?, coarse_rows(connection, span)?);
    let gpus: HashMap<i64, &GpuId> = gpus.iter().map(|(key, gpu)| (*key, &gpu.gpu)).collect();
    let profiles = load_profiles(connection)?;
    let mut named = Vec::with_capacity(sums.len());
    for (key, sum) in sums {
        named.push((load_holder_id(connection, key.1)?, key, sum));
    }
    named.sort_by(|(name, key, _), (other_name, other_key, _)| {
        (name.name(), key).cmp(&(other_name.name(), other_key))
    });
    let mut lines = BTreeMap::<i64, Vec<BillLine>>::new();
    for (holder, key, sum) in named {
        let Some(gpu) = gpus.get(&key.0) else { continue };
        lines.entry(key.0).or_default().push(BillLine {
            slot: SlotId { gpu_instance: u32::try_from(key.2).ok(), profile: profiles.get(&key.3).cloned() },
            amounts: sum.amounts,
            grade: sum.grade,
            method: sum.method,
            coarse: coarse.contains(&key),
            sources: sources_of(sum.sources),
            ..BillLine::empty(GpuId::clone(gpu), holder)
        });
    }
    Ok(lines)
}

fn sum_rows(connection: &Connection, span: &BillSpan<'_>) -> rusqlite::Result<HashMap<RowKey, LineSum>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT gpu, holder, gpu_instance, profile, grade, method, source, {} FROM account
         WHERE minute_ns >= ?1 AND minute_ns < ?2",
        names(ACCOUNT)
    ))?;
    let mut rows = statement.query(params![stored(span.from.0)?, stored(span.to.0)?])?;
    let mut sums = HashMap::<RowKey, LineSum>::new();
    while let Some(row) = rows.next()? {
        let key = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let (grade, method) = (loaded_grade(row, 4)?, loaded_method(row, 5)?);
        let (sources, amounts): (i64, Amounts) = (row.get(6)?, amounts::load(ACCOUNT, row, 7)?);
        let sum = sums.entry(key).or_insert(LineSum { amounts: Amounts::default(), grade, method, sources });
        sum.amounts.add(&amounts);
        sum.grade = sum.grade.max(grade);
        sum.method = sum.method.max(method);
        sum.sources |= sources;
    }
    Ok(sums)
}

/// The lines with a row of a coarse minute; there are few such minutes.
fn coarse_rows(connection: &Connection, span: &BillSpan<'_>) -> rusqlite::Result<HashSet<RowKey>> {
    connection
        .prepare_cached(
            "SELECT DISTINCT a.gpu, a.holder, a.gpu_instance, a.profile
             FROM minute m CROSS JOIN account a ON a.minute_ns = m.minute_ns AND a.gpu = m.gpu
             WHERE m.coarse AND m.minute_ns >= ?1 AND m.minute_ns < ?2",
        )?
        .query_map(params![stored(span.from.0)?, stored(span.to.0)?], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect()
}

/// The id of the version of a holder with that key.
pub(super) fn load_holder_id(connection: &Connection, key: i64) -> rusqlite::Result<HolderId> {
    connection
        .prepare_cached("SELECT name, version FROM holder WHERE id = ?1")?
        .query_row([key], |row| loaded_id(row, 0))
}

/// The conflicts of claims between two times, by slot and holders. They are told by quarter hours, which a roll-up keeps. A
/// holder alone was in no conflict: earlier releases wrote the same for a claim that yielded.
fn load_conflicts(connection: &Connection, [from, to]: [Utc; 2]) -> rusqlite::Result<Vec<ClaimConflict>> {
    let mut found: BTreeMap<(GpuId, String, Utc), BTreeSet<String>> = BTreeMap::new();
    let mut statement = connection.prepare(
        "SELECT gpu_index, uuid, minute_ns, text FROM remark JOIN gpu ON id = gpu
         WHERE minute_ns >= ?1 AND minute_ns < ?2 AND text LIKE '%: conflict %'",
    )?;
    let mut rows = statement.query(params![stored(from.0)?, stored(to.0)?])?;
    while let Some(row) = rows.next()? {
        let gpu = GpuId { index: row.get(0)?, uuid: row.get::<_, String>(1)?.into() };
        let (at, text) = (Utc(loaded(row, 2)?).floor(QUARTER_HOUR), row.get::<_, String>(3)?);
        if let Some((slot, holder)) = text.split_once(": conflict ") {
            found.entry((gpu, slot.to_owned(), at)).or_default().insert(holder.to_owned());
        }
    }
    let mut conflicts: BTreeMap<(GpuId, String, BTreeSet<String>), u64> = BTreeMap::new();
    for ((gpu, slot, _), holders) in found {
        if holders.len() > 1 {
            *conflicts.entry((gpu, slot, holders)).or_default() += 1;
        }
    }
    let conflict =
        |((gpu, slot, holders), quarter_hours): ((GpuId, String, BTreeSet<String>), u64)| ClaimConflict {
            gpu,
            gpu_instance: slot.parse().ok(),
            holders: holders.into_iter().collect(),
            quarter_hours,
        };
    Ok(conflicts.into_iter().map(conflict).collect())
}

/// The profiles of MIG instances, by key.
pub(super) fn load_profiles(connection: &Connection) -> rusqlite::Result<HashMap<i64, MigProfile>> {
    connection
        .prepare("SELECT id, name, size, total FROM mig_profile")?
        .query_map([], |row| {
            let name = row.get::<_, String>(1)?.into();
            Ok((row.get(0)?, MigProfile { name, size: loaded(row, 2)?, total: loaded(row, 3)? }))
        })?
        .collect()
}

//! Reads a day of the account by quarter hours, for exports. What is not closed is left for later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::Connection;

use super::billing::{
    GpuSpan, HOLDERS_BETWEEN, SIMULATED, StoredAccount, closed_time, find_currency, used_rates,
};
use super::column::{loaded, rows, stored};
use super::error::Cause;
use super::node::NodeHistory;
use super::reader;
use super::{evidence, history, incidents};
use crate::accounting::billing::{
    BillRate, BillTerms, DayAccount, DayGpu, DayHeader, DayIncident, DayReasons, DayRevision, DayRow,
    DayTenancy, LineRates, RateSchedule, mark_measured_energy,
};
use crate::accounting::tenants::RuleSchedule;
use crate::model::{DAY, GpuId, HolderId, Nanoseconds, QUARTER_HOUR, TimeSum, Utc};

/// The most holders, and the most incidents, whose reasons are in the header of a day: it is read whole with each bill. A holder
/// under two versions of the rules counts twice.
const MOST_REASONS: usize = 4_096;

pub(super) fn days(connection: &Connection) -> Result<Vec<(Utc, DayRevision)>, Cause> {
    let first = "SELECT max((SELECT coalesce(min(minute_ns), 0) FROM minute), exports_since_ns), deleted_until_ns FROM ledger";
    let (first, deleted) =
        connection.query_row(first, [], |row| Ok((Utc(loaded(row, 0)?), Utc(loaded(row, 1)?))))?;
    // A day of which rows are deleted keeps the file that it has.
    let first = first.max(deleted.ceil(DAY));
    let end = closed_time(connection)?;
    let uid: String = connection.query_row("SELECT uid FROM ledger", [], |row| row.get(0))?;
    if uid.is_empty() {
        // No agent of this schema has owned it yet.
        return Ok(Vec::new());
    }
    let (schedule, rules) = history::load(connection)?;
    let sql = "SELECT minute_ns / 86400000000000, sum(slot_ns) FROM minute WHERE minute_ns >= ?1 AND minute_ns < ?2 GROUP BY 1";
    let slots: BTreeMap<u64, Nanoseconds> =
        rows(connection, sql, [stored(first.0)?, stored(end.0)?], |row| {
            Ok((loaded(row, 0)?, Nanoseconds(loaded(row, 1)?)))
        })?;
    let mut day = first.floor(DAY);
    let evidence = evidence::day_times(connection, day, end)?;
    let mut days = Vec::new();
    while first.0 > 0 && day < end {
        let of_day = |times: &BTreeMap<u64, Nanoseconds>| {
            times.get(&(day.0 / DAY.0)).copied().unwrap_or_default().into()
        };
        let (slot, evidence) = (of_day(&slots), of_day(&evidence));
        days.push((day, DayRevision { slot, evidence, ..revision(day, end, &schedule, &rules) }));
        day = day.plus(DAY);
    }
    Ok(days)
}

/// The cluster of the node at the end of a day, and the id of the ledger.
pub(super) fn owner(connection: &Connection, day: Utc) -> Result<(Option<String>, String), Cause> {
    let ledger = connection.query_row("SELECT uid FROM ledger", [], |row| row.get(0))?;
    let to = day.plus(DAY).min(closed_time(connection)?);
    let nodes = NodeHistory::load(connection)?;
    Ok((nodes.at(Utc(to.0.saturating_sub(1))).cluster.clone(), ledger))
}

/// What a day is made from now.
pub(super) fn revision_of(connection: &Connection, day: Utc) -> Result<DayRevision, Cause> {
    let end = closed_time(connection)?;
    let sql = "SELECT coalesce(sum(slot_ns), 0) FROM minute
               WHERE minute_ns >= max(?1, (SELECT exports_since_ns FROM ledger)) AND minute_ns < ?2";
    let period = [stored(day.0)?, stored(day.plus(DAY).min(end).0)?];
    let slot = connection.query_row(sql, period, |row| Ok(Nanoseconds(loaded(row, 0)?)))?;
    let evidence = evidence_of(connection, day, end)?;
    let (schedule, rules) = history::load(connection)?;
    Ok(DayRevision { slot: slot.into(), evidence, ..revision(day, end, &schedule, &rules) })
}

/// The time of a day's evidence up to `end`.
fn evidence_of(connection: &Connection, day: Utc, end: Utc) -> rusqlite::Result<TimeSum> {
    let times = evidence::day_times(connection, day, day.plus(DAY).min(end))?;
    Ok(times.values().copied().sum())
}

fn revision(day: Utc, end: Utc, schedule: &RateSchedule, rules: &RuleSchedule) -> DayRevision {
    let until = day.plus(DAY);
    DayRevision {
        settled_until: end.min(until),
        rate: schedule.rates.last_recorded(day, until),
        terms: schedule.terms.last_recorded(day, until),
        rules: rules.last_recorded(day, until),
        slot: TimeSum(0),
        evidence: TimeSum(0),
    }
}

pub(super) fn read_day(connection: &Connection, day: Utc) -> Result<DayAccount, Cause> {
    let sql = "SELECT uid, exports_since_ns FROM ledger";
    let (ledger, since) =
        connection.query_row(sql, [], |row| Ok((row.get::<_, String>(0)?, Utc(loaded(row, 1)?))))?;
    let nodes = NodeHistory::load(connection)?;
    let closed = closed_time(connection)?;
    let (from, to) = (day.max(since), day.plus(DAY).min(closed));
    let period = [stored(from.0)?, stored(to.0)?];
    let account = StoredAccount::load(connection, reader::holders(connection, HOLDERS_BETWEEN, period)?)?;
    let DayRows { mut rows, gpus, slot } = read_rows(&account, [from, to], &nodes)?;
    mark_measured_energy(&mut rows, |row| &mut row.line);
    let of_line = |row: &DayRow| {
        let LineRates { time, energy, carbon, .. } = row.line.rates;
        [time, energy, carbon, row.gpu_rate]
    };
    let used = used_rates(&account.rates, &rows.iter().flat_map(of_line).flatten().collect());
    let currency = find_currency(&used, from)?;
    let terms: BTreeSet<i64> = rows.iter().filter_map(|row| row.line.rates.terms).collect();
    let terms = account.rates.terms.entries().iter().filter(|one| terms.contains(&one.id));
    let tenants: BTreeSet<&str> = rows.iter().map(|row| &*row.line.tenant).collect();
    let end = day.plus(DAY);
    let rates = used.into_iter().map(|rate| {
        let rate = BillRate::new(rate);
        // What ends later does not change the day.
        BillRate { until: rate.until.filter(|until| *until < end), ..rate }
    });
    let held: TimeSum = rows.iter().map(|row| Nanoseconds(row.line.amounts.parts.held())).sum();
    let node = nodes.at(Utc(to.0.saturating_sub(1)));
    let at_end = account.rules.in_force(Utc(end.0 - 1)).map(|rules| &*rules.entry);
    let header = DayHeader {
        ledger,
        cluster: node.cluster.clone(),
        node: node.name.clone(),
        day,
        revision: DayRevision {
            slot,
            evidence: evidence_of(connection, day, closed)?,
            ..revision(day, closed, &account.rates, &account.rules)
        },
        simulated: node.simulated || gpus.values().any(|gpu| gpu.model.ends_with(SIMULATED)),
        priced: account.rates.has_prices(),
        currency,
        rates: rates.collect(),
        terms: terms.map(BillTerms::new).collect(),
        tenant_attributes: at_end.map(|rules| of_tenants(&rules.attributes, &tenants)).unwrap_or_default(),
        tenant_budgets: at_end.map(|rules| of_tenants(&rules.budgets, &tenants)).unwrap_or_default(),
        gpus: gpus
            .into_values()
            .map(|gpu| DayGpu { settled_until: gpu.settled_until.min(end), ..gpu })
            .collect(),
        imbalance: slot.difference(held),
        reasons: Some(reasons(&account, &rows, [from, to])?),
    };
    Ok(DayAccount { header, rows })
}

/// Why the rows of a day are what they are. It is made from what changes only with the revision or with the facts of holders, so
/// that a day that is written again has the same reasons.
fn reasons(account: &StoredAccount<'_>, rows: &[DayRow], [from, to]: [Utc; 2]) -> Result<DayReasons, Cause> {
    let mut reasons = DayReasons::default();
    let mut left = MOST_REASONS;
    let changes = account.rules.changes_between(from, to);
    let edges: Vec<Utc> = [from].into_iter().chain(changes).chain([to]).collect();
    for (&from, &to) in edges.iter().zip(&edges[1..]) {
        let own = rows.iter().filter(|row| row.from < to && from < row.to);
        let own: BTreeSet<&HolderId> = own.map(|row| &row.line.holder).collect();
        reasons.holders_left_out += own.len().saturating_sub(left);
        let begin = reasons.tenancies.len();
        for holder in own.iter().copied().take(left) {
            let tenancy = account.tenancy(holder, [from, to]);
            let known = reasons.tenancies[begin..].iter_mut().find(|known| known.tenancy.is_as(&tenancy));
            match known {
                Some(known) => known.holders.push(holder.clone()),
                None => reasons.tenancies.push(DayTenancy { tenancy, holders: vec![holder.clone()] }),
            }
        }
        left = left.saturating_sub(own.len());
    }
    let incidents = incidents::between(account.connection, [from, to])?.into_iter();
    let uuid = |gpu: i64| account.gpus.iter().find(|(key, _)| *key == gpu).map(|(_, gpu)| &gpu.gpu.uuid);
    let incidents =
        incidents.filter_map(|(gpu, incident)| Some(DayIncident { uuid: Arc::clone(uuid(gpu)?), incident }));
    reasons.incidents = incidents.collect();
    reasons.incidents_left_out = reasons.incidents.len().saturating_sub(MOST_REASONS);
    reasons.incidents.truncate(MOST_REASONS);
    Ok(reasons)
}

fn of_tenants<V: Clone>(all: &BTreeMap<String, V>, tenants: &BTreeSet<&str>) -> BTreeMap<String, V> {
    let own = all.iter().filter(|(tenant, _)| tenants.contains(&***tenant));
    own.map(|(tenant, value)| (tenant.clone(), value.clone())).collect()
}

#[derive(Default)]
struct DayRows {
    rows: Vec<DayRow>,
    gpus: BTreeMap<GpuId, DayGpu>,
    slot: TimeSum,
}

/// Reads the rows by quarter hours. A quarter hour that a rate or a tenant rule divides has rows for each part.
fn read_rows(
    account: &StoredAccount<'_>,
    [from, to]: [Utc; 2],
    nodes: &NodeHistory,
) -> Result<DayRows, Cause> {
    let first = from.floor(QUARTER_HOUR);
    let quarters = std::iter::successors(Some(first), |at| Some(at.plus(QUARTER_HOUR)));
    let spans = account.spans([from, to], quarters.take_while(|at| *at < to));
    let mut day = DayRows::default();
    account.read(&spans, |span| {
        let GpuSpan { from, to, gpu, slot, rate: gpu_rate, lines } = span;
        day.slot += slot.into();
        if slot.0 > 0 {
            day.gpus.entry(gpu.gpu.clone()).or_insert_with(|| gpu.clone());
        }
        let quarter = from.floor(QUARTER_HOUR);
        let node = nodes.at(from);
        day.rows.extend(lines.into_iter().map(|line| DayRow {
            from: quarter,
            to,
            node: Arc::clone(node),
            gpu_rate,
            line,
        }));
        Ok(())
    })?;
    Ok(day)
}

//! Reads a day of the account by quarter hours, for exports. What is not closed is left for later.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::billing::{
    SIMULATED, attributes_of, budgets_of, closed_time, find_currency, quarter_lines, rates_of, terms_of,
};
use super::column::{loaded, stored};
use super::error::Cause;
use super::history;
use super::node::NodeHistory;
use crate::billing::{
    BillRate, DayAccount, DayGpu, DayHeader, DayRevision, DayRow, PricedSlot, RateKind, RateSchedule,
    mark_measured_energy,
};
use crate::model::{DAY, Nanoseconds, QUARTER_HOUR, TimeSum, Utc};
use crate::tenants::RuleSchedule;

/// The days of the account that are exported, with their revisions.
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
    let slots: BTreeMap<u64, Nanoseconds> = connection
        .prepare(
            "SELECT minute_ns / 86400000000000, sum(slot_ns) FROM minute WHERE minute_ns >= ?1 AND minute_ns < ?2 GROUP BY 1",
        )?
        .query_map([stored(first.0)?, stored(end.0)?], |row| Ok((loaded(row, 0)?, Nanoseconds(loaded(row, 1)?))))?
        .collect::<Result<_, _>>()?;
    let mut days = Vec::new();
    let mut day = first.floor(DAY);
    while first.0 > 0 && day < end {
        let slot = slots.get(&(day.0 / DAY.0)).copied().unwrap_or_default();
        days.push((day, DayRevision { slot: slot.into(), ..revision(day, end, &schedule, &rules) }));
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

/// A revision without GPU time.
fn revision(day: Utc, end: Utc, schedule: &RateSchedule, rules: &RuleSchedule) -> DayRevision {
    let until = day.plus(DAY);
    DayRevision {
        settled_until: end.min(until),
        rate: schedule.rates.last_recorded(day, until),
        terms: schedule.terms.last_recorded(day, until),
        rules: rules.last_recorded(day, until),
        slot: TimeSum(0),
    }
}

/// The account of the day that begins at that time.
pub(super) fn read_day(connection: &Connection, day: Utc) -> Result<DayAccount, Cause> {
    let sql = "SELECT uid, exports_since_ns FROM ledger";
    let (ledger, since) =
        connection.query_row(sql, [], |row| Ok((row.get::<_, String>(0)?, Utc(loaded(row, 1)?))))?;
    let (schedule, rules) = history::load(connection)?;
    let nodes = NodeHistory::load(connection)?;
    let closed = closed_time(connection)?;
    let (from, to) = (day.max(since), day.plus(DAY).min(closed));
    let (mut lines, mut begins) = (Vec::new(), Vec::new());
    let gpus = quarter_lines(connection, [from, to], (&schedule, &rules), |begin, of_span| {
        begins.extend(of_span.iter().map(|_| begin));
        lines.extend(of_span);
    })?;
    mark_measured_energy(&mut lines);
    let used = rates_of(&gpus, &lines, &schedule);
    let currency = find_currency(&used, from)?;
    let end = day.plus(DAY);
    let rates = used.into_iter().map(|rate| {
        let rate = BillRate::new(rate);
        // What ends later does not change the day.
        BillRate { until: rate.until.filter(|until| *until < end), ..rate }
    });
    let slot: TimeSum = gpus.iter().map(|gpu| gpu.slot).sum();
    let held: TimeSum = lines.iter().map(|line| Nanoseconds(line.amounts.parts.held())).sum();
    let node = nodes.at(Utc(to.0.saturating_sub(1)));
    let at_end = rules.in_force(Utc(end.0 - 1)).map(|rules| &*rules.entry);
    let header = DayHeader {
        ledger,
        cluster: node.cluster.clone(),
        node: node.name.clone(),
        day,
        revision: DayRevision { slot, ..revision(day, closed, &schedule, &rules) },
        simulated: node.simulated || gpus.iter().any(|gpu| gpu.model.ends_with(SIMULATED)),
        priced: schedule.has_prices(),
        currency,
        rates: rates.collect(),
        terms: terms_of(&lines, &schedule),
        tenant_attributes: attributes_of(&lines, at_end),
        tenant_budgets: at_end.map(|rules| budgets_of(&lines, &rules.budgets)).unwrap_or_default(),
        gpus: gpus
            .into_iter()
            .map(|gpu| DayGpu {
                gpu: gpu.gpu,
                model: gpu.model,
                accounted_since: gpu.accounted_since,
                settled_until: gpu.settled_until.min(end),
            })
            .collect(),
        imbalance: slot.difference(held),
    };
    let models: BTreeMap<&str, &str> = header.gpus.iter().map(|gpu| (&*gpu.gpu.uuid, &*gpu.model)).collect();
    let rows = lines.into_iter().zip(begins).map(|(line, begin)| {
        let model = models.get(&*line.gpu.uuid).copied().unwrap_or_default();
        let whole = PricedSlot { uuid: &line.gpu.uuid, model, profile: None };
        let gpu_rate = schedule.rate(RateKind::GpuHour, whole, begin).map(|rate| rate.id);
        DayRow { quarter: begin.floor(QUARTER_HOUR), node: Arc::clone(nodes.at(begin)), gpu_rate, line }
    });
    let rows = rows.collect();
    Ok(DayAccount { header, rows })
}

//! Evidence in the ledger. What is open waits in one text beside the account of its GPU, which every window replaces in its
//! own transaction, so a kill loses no more of it than of the account. The shapes of an hour become rows when it is over, and
//! a run when its workload was not seen for some minutes.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::amounts::{self, ACCOUNT, names};
use super::billing::GONE_AFTER;
use super::column::{
    loaded, loaded_id, loaded_instance, loaded_json, loaded_optional, put, rows, stored, stored_instance,
};
use super::error::Cause;
use super::node::NodeHistory;
use super::state::TransactionDraft;
use super::{counters, day, history};
use crate::accounting::billing::{DayEvidence, DayRun, DayShape, EvidenceHeader, EvidenceOwner};
use crate::accounting::tenants::{recurring_name, tenant};
use crate::model::{
    DAY, Evidence, GpuId, HOUR, Holder, HolderId, IDLE_COLUMNS, LONGEST_PAUSE, Nanoseconds, Run, RunKey,
    SHAPE_COLUMNS, Series, Settlement, Shape, ShapeKey, Utc,
};

/// Of so many shapes, and of so many runs, those that are not of the last window are stored early: every window writes what is open
/// again. Shapes are added to their rows, and a workload that is back begins a run.
const MOST_OPEN: usize = 100;

/// Of a shape that is the sum of an hour, and of one that is the sum of a day: in `shape.hours`.
const ONE_HOUR: i64 = 1;
const ONE_DAY: i64 = 24;

/// Adds the evidence of a window to what is open of its GPU, and stores what it has ended.
pub(super) fn add_window(
    draft: &mut TransactionDraft<'_>,
    uuid: &Arc<str>,
    window: &Settlement,
    now: Utc,
) -> Result<(), Cause> {
    let evidence = Arc::make_mut(&mut draft.gpu(uuid)?.evidence);
    evidence.append(window.evidence.clone());
    let hour = window.to.floor(HOUR);
    let is_full = evidence.shapes.len() > MOST_OPEN;
    let is_over = |key: &ShapeKey| key.hour < hour || (is_full && !window.evidence.shapes.contains_key(key));
    let shapes = evidence.shapes.extract_if(.., |key, _| is_over(key)).collect();
    let pause = if evidence.runs.len() > MOST_OPEN { window.to.since(window.from) } else { LONGEST_PAUSE };
    let has_ended = |run: &Run| window.to.since(run.end) >= pause.min(LONGEST_PAUSE);
    let runs = evidence.runs.extract_if(.., |_, run| has_ended(run)).collect();
    store(draft, uuid, Evidence { shapes, runs }, now)
}

/// Stores what is open of a GPU, whose account goes on without anything from before.
pub(super) fn end(draft: &mut TransactionDraft<'_>, uuid: &Arc<str>, now: Utc) -> Result<(), Cause> {
    let connection = draft.connection;
    let gpu = draft.gpu(uuid)?;
    let evidence = std::mem::take(Arc::make_mut(&mut gpu.evidence));
    put(connection, "UPDATE gpu SET evidence = '{}' WHERE id = ?1", [gpu.id])?;
    store(draft, uuid, evidence, now)
}

/// Stores what is open of the GPUs whose accounts ended long ago: days are closed without them, and what came later would be
/// missing in the files of these days.
pub(super) fn end_of_gone(draft: &mut TransactionDraft<'_>, now: Utc) -> Result<(), Cause> {
    let TransactionDraft { base, changes, .. } = &*draft;
    let gpus = base.gpus.iter().map(|(uuid, gpu)| (uuid, changes.gpus.get(uuid).unwrap_or(gpu)));
    let gone = gpus
        .filter(|(_, gpu)| now.since(gpu.settled_until) > GONE_AFTER && *gpu.evidence != Evidence::default());
    let gone: Vec<Arc<str>> = gone.map(|(uuid, _)| Arc::clone(uuid)).collect();
    gone.iter().try_for_each(|uuid| end(draft, uuid, now))
}

/// The time of the shapes and runs of each day, by which a change of them is noticed. Roll-ups keep it.
pub(super) fn day_times(
    connection: &Connection,
    from: Utc,
    to: Utc,
) -> rusqlite::Result<BTreeMap<u64, Nanoseconds>> {
    let from = from.max(exports_since(connection)?);
    let sql = format!(
        "SELECT day, sum(time) FROM (
            SELECT begin_ns / {day} AS day, {times} AS time FROM shape
            WHERE hours IN ({ONE_HOUR}, {ONE_DAY}) AND begin_ns >= ?1 AND begin_ns < ?2
            UNION ALL
            SELECT (end_ns + {gap}) / {day}, end_ns - begin_ns FROM run WHERE end_ns >= ?1 - {gap} AND end_ns < ?2 - {gap}
         ) GROUP BY day",
        day = DAY.0,
        gap = LONGEST_PAUSE.0,
        times = SHAPE_COLUMNS.join("+"),
    );
    rows(connection, &sql, [stored(from.0)?, stored(to.0)?], |row| {
        Ok((loaded(row, 0)?, Nanoseconds(loaded(row, 1)?)))
    })
}

fn store(
    draft: &mut TransactionDraft<'_>,
    uuid: &Arc<str>,
    evidence: Evidence,
    now: Utc,
) -> Result<(), Cause> {
    let connection = draft.connection;
    let gpu = draft.gpu(uuid)?.id;
    for (key, shapes) in evidence.shapes {
        let holder = stored_holder(draft, &key.holder, now)?;
        let known = Series::ALL.into_iter().zip(&shapes).filter(|(_, shape)| shape.is_known());
        for (series, shape) in known {
            let slot = stored_instance(key.gpu_instance);
            insert_shape(connection, [stored(key.hour.0)?, gpu, slot, holder, series as i64], shape)?;
        }
    }
    for (RunKey { gpu_instance, .. }, run) in evidence.runs {
        let holder = stored_holder(draft, &run.holder, now)?;
        let known = draft.stored_holder(&run.holder)?;
        let facts = counters::facts(connection, &known)?;
        let name = recurring_name(&Holder { id: run.holder.clone(), facts });
        insert_run(connection, [gpu, stored_instance(gpu_instance), holder], &name, &run)?;
    }
    Ok(())
}

/// The key of a holder in the file, which gets it where it lacks it.
fn stored_holder(draft: &mut TransactionDraft<'_>, id: &HolderId, now: Utc) -> Result<i64, Cause> {
    if draft.holder(id)?.is_none() {
        draft.store_holder(&Holder::from_id(id.clone()), now)?;
    }
    Ok(draft.stored_holder(id)?.id)
}

/// What a row of `shape` becomes when another one is added to it.
static ADD_SHAPE: LazyLock<String> = LazyLock::new(|| {
    let sums: Vec<String> =
        SHAPE_COLUMNS.iter().map(|name| format!("{name}={name}+excluded.{name}")).collect();
    format!("ON CONFLICT DO UPDATE SET {}", sums.join(","))
});

fn insert_shape(connection: &Connection, key: [i64; 5], shape: &Shape) -> rusqlite::Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "INSERT INTO shape(hours,begin_ns,gpu,gpu_instance,holder,series,{})VALUES({}){}",
            SHAPE_COLUMNS.join(","),
            ["?"; SHAPE_COLUMNS.len() + 6].join(","),
            *ADD_SHAPE
        )
    });
    let mut values = [ONE_HOUR; SHAPE_COLUMNS.len() + 6];
    values[1..6].copy_from_slice(&key);
    for (value, time) in values[6..].iter_mut().zip(shape.0) {
        *value = stored(time)?;
    }
    put(connection, &SQL, values)
}

fn insert_run(connection: &Connection, key: [i64; 3], name: &str, run: &Run) -> rusqlite::Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "INSERT INTO run(name,end_ns,gpu,gpu_instance,holder,begin_ns,first_use_ns,last_use_ns,{},{})VALUES({}) ON CONFLICT DO NOTHING",
            IDLE_COLUMNS.as_flattened().join(","),
            names(ACCOUNT),
            ["?"; 8 + 2 * IDLE_COLUMNS.len() + ACCOUNT.len()].join(",")
        )
    });
    let time = |at: Option<Utc>| at.map(|at| stored(at.0)).transpose();
    let mut values = vec![stored(run.end.0)?.into(), key[0].into(), key[1].into(), key[2].into()];
    values.extend(
        [Some(run.begin), run.first_use, run.last_use]
            .map(time)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?,
    );
    for number in run.idle.between.as_flattened() {
        values.push(Some(stored(*number)?));
    }
    let mut sums = [0; ACCOUNT.len()];
    amounts::store(ACCOUNT, &run.amounts, &mut sums)?;
    values.extend(sums.map(Some));
    let name: &dyn rusqlite::ToSql = &name;
    let values = std::iter::once(name).chain(values.iter().map(|value| value as &dyn rusqlite::ToSql));
    put(connection, &SQL, rusqlite::params_from_iter(values))
}

/// The day whose shapes of hours are to be summed up, if those before are.
pub(super) fn first_unsummed_day(connection: &Connection, before: Utc) -> rusqlite::Result<Option<Utc>> {
    let sql = "SELECT begin_ns FROM shape WHERE hours = ?1 AND begin_ns < ?2 ORDER BY begin_ns LIMIT 1";
    let range = params![ONE_HOUR, stored(before.floor(DAY).0)?];
    let first = connection.prepare_cached(sql)?.query_row(range, |row| loaded(row, 0)).optional()?;
    Ok(first.map(|at| Utc(at).floor(DAY)))
}

/// Adds at most so many shapes of hours to those of their day.
pub(super) fn sum_up_day(transaction: &Transaction<'_>, day: Utc, most: i64) -> rusqlite::Result<()> {
    let rows = "FROM shape WHERE hours = ?1 AND begin_ns >= ?2 AND begin_ns < ?3
                ORDER BY begin_ns,gpu,gpu_instance,holder,series LIMIT ?4";
    let range = params![ONE_HOUR, stored(day.0)?, stored(day.plus(DAY).0)?, most];
    let columns = SHAPE_COLUMNS.join(",");
    let add = format!(
        "INSERT INTO shape(hours,begin_ns,gpu,gpu_instance,holder,series,{columns})
         SELECT {ONE_DAY},?2,gpu,gpu_instance,holder,series,{columns} {rows} {}",
        *ADD_SHAPE
    );
    transaction.prepare_cached(&add)?.execute(range)?;
    let delete = format!(
        "DELETE FROM shape WHERE (hours,begin_ns,gpu,gpu_instance,holder,series) IN
         (SELECT hours,begin_ns,gpu,gpu_instance,holder,series {rows})"
    );
    transaction.prepare_cached(&delete)?.execute(range)?;
    Ok(())
}

/// The tables with evidence: name, condition by which rows are deleted, which their keys answer, and key.
const TABLES: [[&str; 3]; 4] = [
    ["shape", "hours = 1 AND begin_ns < ?1", "hours,begin_ns,gpu,gpu_instance,holder,series"],
    ["shape", "hours = 24 AND begin_ns < ?1", "hours,begin_ns,gpu,gpu_instance,holder,series"],
    ["run", "end_ns < ?1", "end_ns,gpu,gpu_instance,holder"],
    ["incident", "from_ns < ?1 AND to_ns < ?1", "from_ns,gpu,kind,code"],
];

/// Whether there is evidence of days that ended before that time.
pub(super) fn has_older(connection: &Connection, before: Utc) -> rusqlite::Result<bool> {
    let before = stored(before.floor(DAY).0)?;
    let sql = "SELECT EXISTS (SELECT 1 FROM shape WHERE hours = ?1 AND begin_ns < ?3)
                   OR EXISTS (SELECT 1 FROM shape WHERE hours = ?2 AND begin_ns < ?3)
                   OR EXISTS (SELECT 1 FROM run WHERE end_ns < ?3)
                   OR EXISTS (SELECT 1 FROM incident WHERE from_ns < ?3 AND to_ns < ?3)";
    connection.prepare_cached(sql)?.query_row(params![ONE_HOUR, ONE_DAY, before], |row| row.get(0))
}

/// Deletes at most so many rows of days that ended before that time.
pub(super) fn delete_older(transaction: &Transaction<'_>, before: Utc, most: i64) -> rusqlite::Result<()> {
    let (before, mut left) = (stored(before.floor(DAY).0)?, most);
    for [name, is_older, key] in TABLES {
        let sql = format!(
            "DELETE FROM {name} WHERE ({key}) IN (SELECT {key} FROM {name} WHERE {is_older} LIMIT ?2)"
        );
        left -= transaction.prepare_cached(&sql)?.execute([before, left])? as i64;
    }
    Ok(())
}

/// The time before which evidence belongs to the ledger from which this one was copied.
fn exports_since(connection: &Connection) -> rusqlite::Result<Utc> {
    connection.query_row("SELECT exports_since_ns FROM ledger", [], |row| Ok(Utc(loaded(row, 0)?)))
}

/// The shapes and runs of the day that begins at that time, up to `closed`. A run is of the day on which it is known to have
/// ended, so that a day that is closed gets no other runs later.
pub(super) fn read_day(connection: &Connection, day: Utc, closed: Utc) -> Result<DayEvidence, Cause> {
    let (cluster, ledger) = day::owner(connection, day)?;
    let (to, end) = (day.plus(DAY).min(closed), day.plus(DAY));
    let from = day.max(exports_since(connection)?);
    let header = EvidenceHeader {
        ledger,
        cluster,
        node: NodeHistory::load(connection)?.at(Utc(to.0.saturating_sub(1))).name.clone(),
        day,
        revision: day::revision_of(connection, day)?,
    };
    let (_, rules) = history::load(connection)?;
    let rules = rules.rules(Utc(end.0 - 1));
    let owner = |row: &Row<'_>| -> rusqlite::Result<EvidenceOwner> {
        let (index, uuid) = (row.get(0)?, row.get::<_, String>(1)?.into());
        let holder = Holder { id: loaded_id(row, 3)?, facts: loaded_json(row, 5)? };
        Ok(EvidenceOwner {
            gpu: GpuId { index, uuid },
            gpu_instance: loaded_instance(row, 2)?,
            tenant: tenant(&holder, rules).to_string(),
            holder: holder.id,
        })
    };
    let whose = "gpu_index, uuid, gpu_instance, holder.name, version, facts";
    let sums: Vec<String> = SHAPE_COLUMNS.iter().map(|name| format!("sum({name})")).collect();
    let sql = format!(
        "SELECT {whose}, series, {} FROM shape JOIN gpu ON gpu.id = gpu JOIN holder ON holder.id = holder
         WHERE hours IN (?1, ?2) AND begin_ns >= ?3 AND begin_ns < ?4 GROUP BY gpu, gpu_instance, holder, series",
        sums.join(",")
    );
    let shapes = rows(connection, &sql, [ONE_HOUR, ONE_DAY, stored(from.0)?, stored(to.0)?], |row| {
        let mut shape = Shape::default();
        for (place, time) in shape.0.iter_mut().enumerate() {
            *time = loaded(row, 7 + place)?;
        }
        Ok(DayShape { owner: owner(row)?, series: loaded_series(row, 6)?, shape })
    })?;
    let sql = format!(
        "SELECT {whose}, run.name, begin_ns, end_ns, first_use_ns, last_use_ns, {}, {}
         FROM run JOIN gpu ON gpu.id = gpu JOIN holder ON holder.id = holder WHERE end_ns >= ?1 AND end_ns < ?2
         ORDER BY end_ns, gpu, gpu_instance, holder",
        IDLE_COLUMNS.as_flattened().join(","),
        names(ACCOUNT)
    );
    let ended = |at: Utc| stored(at.0.saturating_sub(LONGEST_PAUSE.0));
    let runs = rows(connection, &sql, [ended(from)?, ended(to)?], |row| {
        let owner = owner(row)?;
        let mut run = Run::new(owner.holder.clone(), Utc(loaded(row, 7)?));
        run.end = Utc(loaded(row, 8)?);
        run.first_use = loaded_optional(row, 9)?.map(Utc);
        run.last_use = loaded_optional(row, 10)?.map(Utc);
        for (place, number) in run.idle.between.as_flattened_mut().iter_mut().enumerate() {
            *number = loaded(row, 11 + place)?;
        }
        run.amounts = amounts::load(ACCOUNT, row, 11 + IDLE_COLUMNS.as_flattened().len())?;
        Ok(DayRun { owner, name: row.get(6)?, run })
    })?;
    Ok(DayEvidence { header, shapes, runs })
}

pub(super) fn loaded_series(row: &Row<'_>, index: usize) -> rusqlite::Result<Series> {
    let place: i64 = row.get(index)?;
    let series = usize::try_from(place).ok().and_then(|place| Series::ALL.get(place).copied());
    series.ok_or(rusqlite::Error::IntegralValueOutOfRange(index, place))
}

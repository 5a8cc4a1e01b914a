//! Loads holders and their counters from the file: recent ones at the start, others when they return.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::amounts::{self, COUNTER, join_expressions, names};
use super::column::{
    loaded, loaded_id, loaded_instance, loaded_json, loaded_money, rows, stored, stored_instance,
};
use super::state::StoredHolder;
use crate::accounting::batches::{AccruedCost, CounterKey, HolderCounter, TenantKey};
use crate::model::{Facts, HolderId, HolderKind, Nanoseconds, PARTS, Tariff, Utc};

/// Counters that changed within this time before the last settled minute are loaded at the start.
const RECENT: Nanoseconds = Nanoseconds::from_seconds(600);

static ONE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT born_ns, {} FROM counter WHERE gpu = ?1 AND holder = ?2 AND gpu_instance = ?3",
        names(COUNTER)
    )
});

/// All counters of a tenant on a slot. `CROSS JOIN` makes SQLite read the tenant's holders first instead of all counters of
/// the GPU.
static OF_TENANT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT born_ns, {} FROM holder h CROSS JOIN counter c ON c.gpu = ?1 AND c.holder = h.id AND c.gpu_instance = ?3
         WHERE h.tenant = ?2",
        names(COUNTER)
    )
});

pub(super) fn holder(connection: &Connection, id: &HolderId) -> rusqlite::Result<Option<StoredHolder>> {
    connection
        .prepare_cached("SELECT id, tenant FROM holder WHERE name = ?1 AND version = ?2")?
        .query_row(params![id.name(), stored(id.version())?], |row| {
            Ok(StoredHolder { id: row.get(0)?, tenant: row.get::<_, String>(1)?.into(), rules: None })
        })
        .optional()
}

pub(super) fn facts(connection: &Connection, holder: &StoredHolder) -> rusqlite::Result<Facts> {
    connection
        .prepare_cached("SELECT facts FROM holder WHERE id = ?1")?
        .query_row([holder.id], |row| loaded_json(row, 0))
}

/// The versions of a holder that have a counter on a slot; `gpu` is the GPU's key in the file.
pub(super) fn versions(
    connection: &Connection,
    gpu: i64,
    CounterKey { gpu_instance, holder, .. }: &CounterKey,
) -> rusqlite::Result<Vec<(HolderId, StoredHolder)>> {
    let sql = "SELECT h.name, h.version, h.id, h.tenant
               FROM holder h CROSS JOIN counter c ON c.gpu = ?2 AND c.holder = h.id AND c.gpu_instance = ?3
               WHERE h.name = ?1";
    rows(connection, sql, params![holder.name(), gpu, stored_instance(*gpu_instance)], |row| {
        let stored = StoredHolder { id: row.get(2)?, tenant: row.get::<_, String>(3)?.into(), rules: None };
        Ok((loaded_id(row, 0)?, stored))
    })
}

pub(super) fn counter(
    connection: &Connection,
    gpu: i64,
    gpu_instance: Option<u32>,
    holder: &StoredHolder,
) -> rusqlite::Result<Option<HolderCounter>> {
    let key = params![gpu, holder.id, stored_instance(gpu_instance)];
    let counter = connection.prepare_cached(&ONE)?.query_row(key, loaded_counter).optional()?;
    let Some(mut counter) = counter else { return Ok(None) };
    counter.tenant = Arc::clone(&holder.tenant);
    let mut statement = connection.prepare_cached(
        "SELECT currency, class, held_units, held_nanos, held_rest, used_units, used_nanos, used_rest, born_ns
         FROM cost WHERE gpu = ?1 AND holder = ?2 AND gpu_instance = ?3",
    )?;
    let mut found = statement.query(key)?;
    while let Some(row) = found.next()? {
        let (tariff, mut cost) = cost(row)?;
        cost.born = Utc(loaded(row, 8)?);
        counter.costs.insert(tariff, cost);
    }
    Ok(Some(counter))
}

/// The sum of all counters of a tenant on a slot, where it has any; `gpu` is the GPU's key in the file.
pub(super) fn tenant_sum(
    connection: &Connection,
    gpu: i64,
    TenantKey { gpu_instance, tenant, .. }: &TenantKey,
) -> rusqlite::Result<Option<HolderCounter>> {
    let mut sum = HolderCounter { tenant: Arc::clone(tenant), ..HolderCounter::default() };
    let key = params![gpu, tenant, stored_instance(*gpu_instance)];
    let mut statement = connection.prepare_cached(&OF_TENANT)?;
    let mut found = statement.query(key)?;
    let mut is_empty = true;
    while let Some(row) = found.next()? {
        is_empty = false;
        sum.add(&loaded_counter(row)?);
    }
    if is_empty {
        return Ok(None);
    }
    let mut statement = connection.prepare_cached(
        "SELECT currency, class, held_units, held_nanos, held_rest, used_units, used_nanos, used_rest
         FROM holder h CROSS JOIN cost c ON c.gpu = ?1 AND c.holder = h.id AND c.gpu_instance = ?3
         WHERE h.tenant = ?2",
    )?;
    let mut found = statement.query(key)?;
    while let Some(row) = found.next()? {
        let costs = BTreeMap::from([cost(row)?]);
        sum.add(&HolderCounter { costs, ..HolderCounter::default() });
    }
    Ok(Some(sum))
}

/// The keys of counters that changed lately, of those of the other versions of their holders, and of those of remainders,
/// with the GPU's key and the holder.
pub(super) fn recent(
    connection: &Connection,
    uuids: &BTreeMap<i64, Arc<str>>,
) -> rusqlite::Result<Vec<(CounterKey, i64, StoredHolder)>> {
    let since: i64 =
        connection.query_row("SELECT coalesce(max(minute_ns), 0) FROM minute", [], |row| row.get(0))?;
    let since = stored(Utc(since.unsigned_abs()).0.saturating_sub(RECENT.0))?;
    let mut statement = connection.prepare(
        "SELECT DISTINCT c.gpu, h.name, h.version, h.id, h.tenant, c.gpu_instance
         FROM (SELECT DISTINCT gpu, holder, gpu_instance FROM account WHERE minute_ns >= ?1
               UNION
               SELECT gpu, holder, gpu_instance FROM counter JOIN holder ON id = holder WHERE kind = 'remainder') r
         JOIN holder n ON n.id = r.holder
         JOIN holder h ON h.name = n.name
         JOIN counter c ON c.gpu = r.gpu AND c.holder = h.id AND c.gpu_instance = r.gpu_instance",
    )?;
    let mut found = statement.query([since])?;
    let mut recent = Vec::new();
    while let Some(row) = found.next()? {
        let gpu: i64 = row.get(0)?;
        // Foreign keys guarantee the GPU; a row that lost it shows as an imbalance instead of a panic.
        let Some(uuid) = uuids.get(&gpu) else { continue };
        let holder = StoredHolder { id: row.get(3)?, tenant: row.get::<_, String>(4)?.into(), rules: None };
        let key = CounterKey {
            gpu: Arc::clone(uuid),
            gpu_instance: loaded_instance(row, 5)?,
            holder: loaded_id(row, 1)?,
        };
        recent.push((key, gpu, holder));
    }
    Ok(recent)
}

/// Held time of all counters, in nanoseconds.
pub(super) fn held(connection: &Connection) -> rusqlite::Result<i128> {
    let held = join_expressions(PARTS, "+", |column| column.name.to_owned());
    // One sum per GPU, since all together could exceed 64 bits.
    let sql = format!("SELECT sum({held}) FROM counter GROUP BY gpu");
    let sums: Vec<i64> = rows(connection, &sql, [], |row| row.get(0))?;
    Ok(sums.into_iter().map(i128::from).sum())
}

/// Whether a holder that only a scheduler has, a pod or a job, has ever held anything. Counters are never deleted.
pub(super) fn has_scheduled(connection: &Connection) -> rusqlite::Result<bool> {
    let held = join_expressions(PARTS, "+", |column| column.name.to_owned());
    let kinds = [HolderKind::Pod, HolderKind::Slurm].map(HolderKind::name);
    connection
        .prepare(&format!(
            "SELECT EXISTS (SELECT 1 FROM counter CROSS JOIN holder ON id = holder WHERE kind IN (?1, ?2) AND {held} > 0)"
        ))?
        .query_row(kinds, |row| row.get(0))
}

/// Held time of each GPU instance, as (key of the GPU, id of the instance, nanoseconds).
pub(super) fn instances(connection: &Connection) -> rusqlite::Result<Vec<(i64, u32, u64)>> {
    let held = join_expressions(PARTS, "+", |column| column.name.to_owned());
    let sql = format!(
        "SELECT gpu, gpu_instance, sum({held}) FROM counter WHERE gpu_instance >= 0 GROUP BY gpu, gpu_instance"
    );
    rows(connection, &sql, [], |row| Ok((row.get(0)?, row.get(1)?, loaded(row, 2)?)))
}

fn loaded_counter(row: &Row<'_>) -> rusqlite::Result<HolderCounter> {
    Ok(HolderCounter {
        born: Utc(loaded(row, 0)?),
        amounts: amounts::load(COUNTER, row, 1)?,
        ..HolderCounter::default()
    })
}

/// Currency, class, held and used money.
fn cost(row: &Row<'_>) -> rusqlite::Result<(Tariff, AccruedCost)> {
    let tariff = Tariff { currency: row.get::<_, String>(0)?.into(), class: row.get::<_, String>(1)?.into() };
    Ok((tariff, AccruedCost { born: Utc(0), held: loaded_money(row, 2)?, used: loaded_money(row, 5)? }))
}

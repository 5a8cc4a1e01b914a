//! The SQL statements that write, one function each.

use std::sync::{Arc, LazyLock};

use rusqlite::{Connection, OptionalExtension, params};

use super::amounts::{self, ACCOUNT, COUNTER, join_expressions, names};
use super::column::{clamped, grantor_bit, loaded, put, source_bit, stored, stored_instance, stored_money};
use super::error::Cause;
use super::minutes::MinutePart;
use super::state::{LedgerGpu, StoredHolder};
use crate::accounting::batches::{GpuRegistration, HolderCounter};
use crate::model::{Facts, Holder, Holding, Microjoules, MigProfile, Row, Settlement, Span, Utc};

pub(super) fn upsert_gpu(connection: &Connection, registration: &GpuRegistration) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            "INSERT INTO gpu (uuid, gpu_index, model, memory_bytes, first_seen_ns, settled_until_ns)
             VALUES (?1, ?2, ?3, ?5, ?4, ?4)
             ON CONFLICT (uuid) DO UPDATE SET gpu_index = excluded.gpu_index,
                model = CASE excluded.model WHEN '' THEN model ELSE excluded.model END,
                memory_bytes = ifnull(excluded.memory_bytes, memory_bytes)
             RETURNING id",
        )?
        .query_row(
            params![
                registration.gpu.uuid,
                registration.gpu.index,
                registration.model,
                stored(registration.at.0)?,
                registration.memory.map(|memory| stored(memory.0)).transpose()?
            ],
            |row| row.get(0),
        )
}

/// Stores a version of a holder that the file does not have, and returns its key in the file.
pub(super) fn insert_holder(
    connection: &Connection,
    holder: &Holder,
    tenant: &str,
    now: Utc,
) -> Result<i64, Cause> {
    let id = &holder.id;
    let facts = serde_json::to_string(&holder.facts)?;
    let sql = "INSERT INTO holder (name, version, kind, facts, first_seen_ns, tenant) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = params![id.name(), stored(id.version())?, id.kind().name(), facts, stored(now.0)?, tenant];
    put(connection, sql, values)?;
    Ok(connection.last_insert_rowid())
}

pub(super) fn update_facts(
    connection: &Connection,
    holder: &StoredHolder,
    facts: &Facts,
) -> Result<(), Cause> {
    let sql = "UPDATE holder SET facts = ?2 WHERE id = ?1";
    Ok(put(connection, sql, params![holder.id, serde_json::to_string(facts)?])?)
}

/// Makes room for a new version under the id of this one. Returns its own version from now on: its key, unless a version of
/// the same name, such as itself, has that number.
pub(super) fn retire_version(connection: &Connection, holder: &StoredHolder) -> rusqlite::Result<u64> {
    connection
        .prepare_cached(
            "UPDATE holder SET version = iif(
                 EXISTS (SELECT 1 FROM holder other WHERE other.name = holder.name AND other.version = holder.id),
                 (SELECT max(other.version) + 1 FROM holder other WHERE other.name = holder.name),
                 id)
             WHERE id = ?1 RETURNING version",
        )?
        .query_row([holder.id], |row| loaded(row, 0))
}

/// Stores a raw span; `replaces` is true where one with the same begin is stored.
pub(super) fn insert_span(
    connection: &Connection,
    gpu: i64,
    span: &Span,
    replaces: bool,
) -> Result<(), Cause> {
    let from = stored(span.from.0)?;
    if replaces {
        put(connection, "DELETE FROM raw WHERE gpu = ?1 AND from_ns = ?2", [gpu, from])?;
    }
    let sql = "INSERT INTO raw (gpu, from_ns, to_ns, span) VALUES (?1, ?2, ?3, ?4)";
    Ok(put(connection, sql, params![gpu, from, stored(span.to.0)?, serde_json::to_string(span)?])?)
}

pub(super) fn delete_settled_spans(connection: &Connection, gpu: &LedgerGpu) -> rusqlite::Result<()> {
    let sql = "DELETE FROM raw WHERE gpu = ?1 AND from_ns < ?2";
    put(connection, sql, [gpu.id, stored(gpu.settled_until.0)?])
}

pub(super) fn update_holdings(
    connection: &Connection,
    gpu: i64,
    holdings: &Arc<[Holding]>,
) -> Result<(), Cause> {
    let sql = "UPDATE gpu SET holdings = ?2 WHERE id = ?1";
    Ok(put(connection, sql, params![gpu, serde_json::to_string(holdings)?])?)
}

/// Stores the value of the driver's energy counter up to which spans and windows have its energy.
pub(super) fn update_energy_counter(
    connection: &Connection,
    gpu: i64,
    counter: Microjoules,
) -> rusqlite::Result<()> {
    put(connection, "UPDATE gpu SET energy_counter_uj = ?2 WHERE id = ?1", [gpu, clamped(counter.0)])
}

/// Stores the continuation of a suspended account, without carries, weights, holdings and energy counter.
pub(super) fn update_resumed_gpu(connection: &Connection, gpu: &LedgerGpu) -> rusqlite::Result<()> {
    let sql = "UPDATE gpu SET settled_until_ns = ?2, carry = '{}', weights = '{}', holdings = '[]', energy_counter_uj = NULL WHERE id = ?1";
    put(connection, sql, [gpu.id, stored(gpu.settled_until.0)?])
}

pub(super) fn update_settled_gpu(
    connection: &Connection,
    gpu: &LedgerGpu,
    last: &Settlement,
) -> Result<(), Cause> {
    let sql = "UPDATE gpu SET settled_until_ns = ?2, slot_ns = ?3, carry = ?4, weights = ?5, evidence = ?6 WHERE id = ?1";
    let (carry, weights) = (serde_json::to_string(&last.carry)?, serde_json::to_string(&last.weights)?);
    let evidence = serde_json::to_string(&*gpu.evidence)?;
    let values = params![gpu.id, stored(gpu.settled_until.0)?, stored(gpu.slot)?, carry, weights, evidence];
    Ok(put(connection, sql, values)?)
}

/// What a row of `minute` becomes when another one is added to it.
pub(super) const MINUTE_SUMS: &str =
    "UPDATE SET slot_ns = slot_ns + excluded.slot_ns, coarse = max(coarse, excluded.coarse)";

static ADD_TO_MINUTE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO minute (minute_ns, gpu, slot_ns, coarse) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO {MINUTE_SUMS}"
    )
});

/// Adds the GPU time of a part to the row of its minute, which begins at `row`.
pub(super) fn add_to_minute(
    connection: &Connection,
    (row, gpu): (Utc, i64),
    part: &MinutePart,
    coarse: bool,
) -> rusqlite::Result<()> {
    let time = stored(part.to.since(part.from).0)?;
    put(connection, &ADD_TO_MINUTE, params![stored(row.0)?, gpu, time, coarse])
}

/// What a row of `account` becomes when another one is added to it.
pub(super) static ACCOUNT_SUMS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "UPDATE SET {},grade=max(grade,excluded.grade),method=max(method,excluded.method),source=source|excluded.source,\
         granted_by=granted_by|excluded.granted_by",
        join_expressions(ACCOUNT, ",", amounts::addition),
    )
});

static ADD_TO_ACCOUNT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO account(minute_ns,gpu,holder,gpu_instance,profile,{},grade,method,source,granted_by)VALUES({}) ON CONFLICT DO {}",
        names(ACCOUNT),
        ["?"; ACCOUNT.len() + 9].join(","),
        *ACCOUNT_SUMS,
    )
});

/// The key of a profile in the file, which is stored where it is new.
fn profile_key(connection: &Connection, profile: &MigProfile) -> rusqlite::Result<i64> {
    let key = params![profile.name, stored(profile.size)?, stored(profile.total)?];
    let known = connection
        .prepare_cached("SELECT id FROM mig_profile WHERE name = ?1 AND size = ?2 AND total = ?3")?
        .query_row(key, |row| row.get(0))
        .optional()?;
    if let Some(id) = known {
        return Ok(id);
    }
    connection.execute("INSERT INTO mig_profile (name, size, total) VALUES (?1, ?2, ?3)", key)?;
    Ok(connection.last_insert_rowid())
}

/// Adds a row to its minute and slot, which keeps the worst of grade and method, and all sources.
pub(super) fn add_to_account(
    connection: &Connection,
    minute: Utc,
    gpu: i64,
    holder: i64,
    row: &Row,
) -> rusqlite::Result<()> {
    let mut values = [0; ACCOUNT.len() + 9];
    let slot = stored_instance(row.slot.gpu_instance);
    let profile = row.slot.profile.as_ref().map_or(Ok(0), |profile| profile_key(connection, profile))?;
    values[..5].copy_from_slice(&[stored(minute.0)?, gpu, holder, slot, profile]);
    amounts::store(ACCOUNT, &row.amounts, &mut values[5..])?;
    values[ACCOUNT.len() + 5..].copy_from_slice(&[
        row.grade as i64,
        row.method as i64,
        source_bit(row.source),
        grantor_bit(row.granted_by),
    ]);
    put(connection, &ADD_TO_ACCOUNT, values)
}

/// Stores the flags of a window, each once per row, which begins at `row`.
pub(super) fn insert_remarks(
    connection: &Connection,
    (row, gpu): (Utc, i64),
    window: &Settlement,
) -> rusqlite::Result<()> {
    for flag in &window.flags {
        let sql = "INSERT INTO remark (minute_ns, gpu, text) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
        put(connection, sql, params![stored(row.0)?, gpu, flag])?;
    }
    Ok(())
}

static REPLACE_COUNTER: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT OR REPLACE INTO counter(gpu,holder,gpu_instance,born_ns,{})VALUES({})",
        names(COUNTER),
        ["?"; COUNTER.len() + 4].join(",")
    )
});

pub(super) fn replace_counter(
    connection: &Connection,
    gpu: i64,
    holder: i64,
    gpu_instance: Option<u32>,
    counter: &HolderCounter,
) -> rusqlite::Result<()> {
    let slot = stored_instance(gpu_instance);
    let mut values = [0; COUNTER.len() + 4];
    values[..4].copy_from_slice(&[gpu, holder, slot, stored(counter.born.0)?]);
    amounts::store(COUNTER, &counter.amounts, &mut values[4..])?;
    put(connection, &REPLACE_COUNTER, values)?;
    for (tariff, cost) in &counter.costs {
        let [held_units, held_nanos, held_rest] = stored_money(cost.held)?;
        let [used_units, used_nanos, used_rest] = stored_money(cost.used)?;
        let sql = "INSERT OR REPLACE INTO cost VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        let values = params![
            gpu,
            holder,
            slot,
            tariff.currency,
            tariff.class,
            stored(cost.born.0)?,
            held_units,
            held_nanos,
            used_units,
            used_nanos,
            held_rest,
            used_rest,
        ];
        put(connection, sql, values)?;
    }
    Ok(())
}

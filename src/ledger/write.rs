//! The statements that write, one function each.

use std::sync::Arc;

use rusqlite::{Connection, params};

use super::MINUTE;
use super::batch::Sight;
use super::column::{clamped, grade_rank, method_rank, source_rank, stored, stored_money};
use super::cut::Piece;
use super::error::Cause;
use super::state::{Counter, Gpu, StoredHolder};
use crate::model::{Holder, Holding, Microjoules, Row, Settlement, Span, Utc};
use crate::tenants::tenant;

/// A GPU at first sight; its key.
pub(super) fn sight(connection: &Connection, sight: &Sight) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            "INSERT INTO gpu (uuid, gpu_index, model, first_seen_ns, settled_until_ns)
             VALUES (?1, ?2, ?3, ?4, ?4)
             ON CONFLICT (uuid) DO UPDATE SET gpu_index = excluded.gpu_index,
                model = CASE excluded.model WHEN '' THEN model ELSE excluded.model END
             RETURNING id",
        )?
        .query_row(params![sight.gpu.uuid, sight.gpu.index, sight.model, stored(sight.at.0)?], |row| {
            row.get(0)
        })
}

/// A holder with its newest facts.
pub(super) fn holder(connection: &Connection, holder: &Holder, now: Utc) -> Result<StoredHolder, Cause> {
    let tenant = tenant(holder);
    let facts = serde_json::to_string(&holder.facts)?;
    let id = connection
        .prepare_cached(
            "INSERT INTO holder (name, kind, facts, first_seen_ns, tenant) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, facts = excluded.facts, tenant = excluded.tenant
             RETURNING id",
        )?
        .query_row(params![holder.id.as_str(), holder.id.kind().name(), facts, stored(now.0)?, tenant], |row| {
            row.get(0)
        })?;
    Ok(StoredHolder { id, tenant })
}

/// A raw span; `replaces` says that one is stored that begins where it does.
pub(super) fn raw(connection: &Connection, gpu: i64, span: &Span, replaces: bool) -> Result<(), Cause> {
    let from = stored(span.from.0)?;
    if replaces {
        connection
            .prepare_cached("DELETE FROM raw WHERE gpu = ?1 AND from_ns = ?2")?
            .execute(params![gpu, from])?;
    }
    connection
        .prepare_cached("INSERT INTO raw (gpu, from_ns, to_ns, span) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![gpu, from, stored(span.to.0)?, serde_json::to_string(span)?])?;
    Ok(())
}

/// Drops the raw spans that begin before the end of the account.
pub(super) fn forget_raw(connection: &Connection, gpu: &Gpu) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM raw WHERE gpu = ?1 AND from_ns < ?2")?
        .execute(params![gpu.id, stored(gpu.settled_until.0)?])?;
    Ok(())
}

/// Who held at the end of the last span.
pub(super) fn holdings(connection: &Connection, gpu: i64, holdings: &Arc<[Holding]>) -> Result<(), Cause> {
    connection
        .prepare_cached("UPDATE gpu SET holdings = ?2 WHERE id = ?1")?
        .execute(params![gpu, serde_json::to_string(holdings)?])?;
    Ok(())
}

/// The driver's energy counter, up to which the joules are in spans or windows.
pub(super) fn energy_counter(
    connection: &Connection,
    gpu: i64,
    counter: Microjoules,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE gpu SET energy_counter_uj = ?2 WHERE id = ?1")?
        .execute(params![gpu, clamped(counter.0)])?;
    Ok(())
}

/// Where an account goes on that rested: what it carried is of another time.
pub(super) fn resumed(connection: &Connection, gpu: &Gpu) -> Result<(), Cause> {
    connection
        .prepare_cached(
            "UPDATE gpu SET settled_until_ns = ?2, carry = '{}', weights = '{}', holdings = '[]',
                            energy_counter_uj = NULL
             WHERE id = ?1",
        )?
        .execute(params![gpu.id, stored(gpu.settled_until.0)?])?;
    Ok(())
}

/// Where the account stands after its last window.
pub(super) fn gpu_settled(connection: &Connection, gpu: &Gpu, last: &Settlement) -> Result<(), Cause> {
    connection
        .prepare_cached(
            "UPDATE gpu SET settled_until_ns = ?2, slot_ns = ?3, price = ?4, price_time_ns = ?5,
                            carry = ?6, weights = ?7
             WHERE id = ?1",
        )?
        .execute(params![
            gpu.id,
            stored(gpu.settled_until.0)?,
            stored(gpu.slot)?,
            gpu.price,
            stored(gpu.price_time)?,
            serde_json::to_string(&last.carry)?,
            serde_json::to_string(&last.weights)?,
        ])?;
    Ok(())
}

/// The GPU time of a piece, added to its minute.
pub(super) fn minute(
    connection: &Connection,
    gpu: &Gpu,
    piece: &Piece,
    coarse: bool,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO minute (minute_ns, gpu, slot_ns, price, price_time_ns, coarse)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO UPDATE SET slot_ns = slot_ns + excluded.slot_ns,
                price_time_ns = excluded.price_time_ns, coarse = max(coarse, excluded.coarse)",
        )?
        .execute(params![
            stored(piece.from.floor(MINUTE).0)?,
            gpu.id,
            stored(piece.to.since(piece.from).0)?,
            gpu.price,
            stored(gpu.price_time)?,
            coarse,
        ])?;
    Ok(())
}

/// A row, added to its minute (minute, GPU, holder); the worst of grade, method and source stays. What the
/// driver tells (energy, memory) stops at the largest INTEGER: a REAL would be refused.
pub(super) fn account(
    connection: &Connection,
    (minute, gpu, holder): (Utc, i64, i64),
    row: &Row,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO account VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
                                     ?16, ?17, ?18, ?19)
         ON CONFLICT DO UPDATE SET
            within_ns = within_ns + excluded.within_ns,
            lent_ns = lent_ns + excluded.lent_ns,
            waste_ns = waste_ns + excluded.waste_ns,
            unmeasured_ns = unmeasured_ns + excluded.unmeasured_ns,
            unavailable_ns = unavailable_ns + excluded.unavailable_ns,
            used_within_ns = used_within_ns + excluded.used_within_ns,
            used_beyond_ns = used_beyond_ns + excluded.used_beyond_ns,
            used_outside_ns = used_outside_ns + excluded.used_outside_ns,
            used_unheld_ns = used_unheld_ns + excluded.used_unheld_ns,
            energy_static_uj = energy_static_uj
                + min(excluded.energy_static_uj, 9223372036854775807 - energy_static_uj),
            energy_dynamic_uj = energy_dynamic_uj
                + min(excluded.energy_dynamic_uj, 9223372036854775807 - energy_dynamic_uj),
            memory_byte_seconds = memory_byte_seconds
                + min(excluded.memory_byte_seconds, 9223372036854775807 - memory_byte_seconds),
            measured_ns = measured_ns + excluded.measured_ns,
            grade = max(grade, excluded.grade),
            method = max(method, excluded.method),
            source = CASE WHEN 2 IN (source, excluded.source) THEN 2 WHEN 1 IN (source, excluded.source) THEN 1
                ELSE max(source, excluded.source) END",
    )?;
    statement.execute(params![
        stored(minute.0)?,
        gpu,
        holder,
        stored(row.parts.within)?,
        stored(row.parts.lent)?,
        stored(row.parts.waste)?,
        stored(row.parts.unmeasured)?,
        stored(row.parts.unavailable)?,
        stored(row.used.within)?,
        stored(row.used.beyond)?,
        stored(row.used.outside)?,
        stored(row.used.unheld)?,
        clamped(row.energy_static.0),
        clamped(row.energy_dynamic.0),
        clamped(row.memory_byte_seconds),
        stored(row.measured)?,
        grade_rank(row.grade),
        method_rank(row.method),
        source_rank(row.source),
    ])?;
    Ok(())
}

/// The remarks of a window, each once per minute.
pub(super) fn remarks(connection: &Connection, gpu: i64, window: &Settlement) -> rusqlite::Result<()> {
    for flag in &window.flags {
        connection
            .prepare_cached(
                "INSERT INTO remark (minute_ns, gpu, text) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
            )?
            .execute(params![stored(window.from.floor(MINUTE).0)?, gpu, flag])?;
    }
    Ok(())
}

/// A counter (GPU, holder) and its costs, whole.
pub(super) fn counter(
    connection: &Connection,
    (gpu, holder): (i64, i64),
    counter: &Counter,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO counter
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            gpu,
            holder,
            stored(counter.born.0)?,
            stored(counter.parts.within)?,
            stored(counter.parts.lent)?,
            stored(counter.parts.waste)?,
            stored(counter.parts.unmeasured)?,
            stored(counter.parts.unavailable)?,
            stored(counter.used.within)?,
            stored(counter.used.beyond)?,
            stored(counter.used.outside)?,
            stored(counter.used.unheld)?,
            clamped(counter.energy_static.0),
            clamped(counter.energy_dynamic.0),
        ])?;
    for (tariff, cost) in &counter.costs {
        let (held, used) = (stored_money(cost.held)?, stored_money(cost.used)?);
        connection
            .prepare_cached("INSERT OR REPLACE INTO cost VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?
            .execute(params![
                gpu,
                holder,
                tariff.currency,
                tariff.class,
                stored(cost.born.0)?,
                held.0,
                held.1,
                used.0,
                used.1,
            ])?;
    }
    Ok(())
}

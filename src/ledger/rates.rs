//! The rates and terms of a node in its ledger. What was recorded stays, and the ledger alone decides when one begins and
//! ends.

use rusqlite::{Connection, Row, Transaction, params};

use super::column::{loaded, loaded_json, loaded_optional, stored};
use super::error::Cause;
use super::node;
use super::timeline::stored_until;
use crate::account::AccountTimeline;
use crate::billing::{PriceBook, Rate, RateKind, RateSchedule, Recorded, RecordedAt, Schedule, Terms};
use crate::model::{Nanoseconds, Tariff, Utc};

/// A price book that the operator put in force.
#[derive(Debug)]
pub(super) struct BookChange {
    pub(super) book: PriceBook,
    /// Time since boot at which it was put in force.
    pub(super) decided: Nanoseconds,
}

/// Records books in the file, one after the other.
pub(super) fn record(
    transaction: &Transaction<'_>,
    changes: &[BookChange],
    timeline: AccountTimeline,
) -> Result<(), Cause> {
    let (last, covered_until) = stored_until(transaction)?;
    let (node, node_since) = (node::load(transaction)?, node::identity_since(transaction)?);
    let mut schedule = load(transaction)?;
    let mut is_changed = false;
    for BookChange { book, decided } in changes {
        let at = RecordedAt {
            now: timeline.at(*decided).max(last.unwrap_or_default()),
            node: &node,
            node_since,
            is_new: last.is_none(),
            covered_until,
        };
        is_changed |= schedule.record(book, at);
    }
    if is_changed {
        schedule.rates.entries().iter().try_for_each(|rate| store_rate(transaction, rate))?;
        schedule.terms.entries().iter().try_for_each(|terms| store_terms(transaction, terms))?;
    }
    Ok(())
}

fn stored_optional(at: Option<Utc>) -> rusqlite::Result<Option<i64>> {
    at.map(|at| stored(at.0)).transpose()
}

/// Stores a rate, or its end.
fn store_rate(connection: &Connection, rate: &Recorded<Rate>) -> Result<(), Cause> {
    let Rate { kind, selector, from, nano, tariff, derivation } = &rate.entry;
    connection.execute(
        "INSERT INTO rate (id, unit, selector, given_from_ns, begin_ns, end_ns, currency, class, nano_per_unit,
                           derivation, recorded_ns)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (id) DO UPDATE SET end_ns = excluded.end_ns",
        params![
            rate.id,
            kind.name(),
            serde_json::to_string(selector)?,
            stored_optional(*from)?,
            stored(rate.begin.0)?,
            stored_optional(rate.end)?,
            tariff.currency,
            tariff.class,
            nano,
            derivation,
            stored(rate.recorded.0)?,
        ],
    )?;
    Ok(())
}

/// Stores terms, or their end.
fn store_terms(connection: &Connection, terms: &Recorded<Terms>) -> Result<(), Cause> {
    connection.execute(
        "INSERT INTO terms (id, terms, given_from_ns, begin_ns, end_ns, recorded_ns) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id) DO UPDATE SET end_ns = excluded.end_ns",
        params![
            terms.id,
            serde_json::to_string(&terms.entry)?,
            stored_optional(terms.entry.from)?,
            stored(terms.begin.0)?,
            stored_optional(terms.end)?,
            stored(terms.recorded.0)?,
        ],
    )?;
    Ok(())
}

/// All recorded rates and terms.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<RateSchedule> {
    let sql = "SELECT id, begin_ns, end_ns, recorded_ns, given_from_ns, unit, selector, currency, class,
                      nano_per_unit, derivation
               FROM rate ORDER BY id";
    let rates = load_entries(connection, sql, load_rate)?;
    let sql = "SELECT id, begin_ns, end_ns, recorded_ns, given_from_ns, terms FROM terms ORDER BY id";
    let terms = load_entries(connection, sql, |row| {
        Ok(Terms { from: loaded_optional(row, 4)?.map(Utc), ..loaded_json(row, 5)? })
    })?;
    Ok(RateSchedule { rates: Schedule::new(rates), terms: Schedule::new(terms) })
}

/// The recorded entries of a query, whose first columns are id, begin, end and time of the record.
fn load_entries<E>(
    connection: &Connection,
    sql: &str,
    load: impl Fn(&Row<'_>) -> rusqlite::Result<E>,
) -> rusqlite::Result<Vec<Recorded<E>>> {
    connection
        .prepare(sql)?
        .query_map([], |row| {
            Ok(Recorded {
                id: row.get(0)?,
                entry: load(row)?,
                begin: Utc(loaded(row, 1)?),
                end: loaded_optional(row, 2)?.map(Utc),
                recorded: Utc(loaded(row, 3)?),
            })
        })?
        .collect()
}

fn load_rate(row: &Row<'_>) -> rusqlite::Result<Rate> {
    let (from, unit) = (loaded_optional(row, 4)?.map(Utc), row.get::<_, String>(5)?);
    let kind = RateKind::from_name(&unit).ok_or_else(|| {
        let error = format!("{unit:?} is no unit of a rate").into();
        rusqlite::Error::FromSqlConversionFailure(5, rusqlite::types::Type::Text, error)
    })?;
    Ok(Rate {
        kind,
        selector: loaded_json(row, 6)?,
        from,
        tariff: Tariff { currency: row.get::<_, String>(7)?.into(), class: row.get::<_, String>(8)?.into() },
        nano: row.get(9)?,
        derivation: row.get::<_, Option<String>>(10)?.map(Into::into),
    })
}

//! The rates of a node in its ledger. What was recorded stays, and the ledger alone decides when a rate begins and ends.

use rusqlite::{Connection, Transaction, params};

use super::column::{loaded, loaded_json, loaded_optional, stored};
use super::error::Cause;
use super::node;
use crate::account::AccountTimeline;
use crate::billing::{PriceBook, RateSchedule, RecordedAt, RecordedRate};
use crate::model::{Nanoseconds, Price, Tariff, Utc};

/// A price book that the operator put in force; none ends all rates.
#[derive(Debug)]
pub(super) struct BookChange {
    pub(super) book: Option<PriceBook>,
    /// Time since boot at which it was put in force.
    pub(super) decided: Nanoseconds,
}

/// Records books in the file, one after the other.
pub(super) fn record(
    transaction: &Transaction<'_>,
    changes: &[BookChange],
    timeline: AccountTimeline,
) -> Result<(), Cause> {
    let last: Option<i64> =
        transaction.query_row("SELECT max(minute_ns) FROM minute", [], |row| row.get(0))?;
    let covered_until =
        transaction.query_row("SELECT covered_until_ns FROM ledger", [], |row| Ok(Utc(loaded(row, 0)?)))?;
    let node = node::load(transaction)?.name;
    let mut schedule = load(transaction)?;
    let mut is_changed = false;
    for BookChange { book, decided } in changes {
        let at = RecordedAt {
            now: timeline.at(*decided).max(Utc(last.unwrap_or_default().unsigned_abs())),
            node: &node,
            is_new: last.is_none(),
            covered_until,
        };
        is_changed |= schedule.record(book.as_ref(), at);
    }
    if is_changed {
        schedule.rates().iter().try_for_each(|rate| store(transaction, rate))?;
    }
    Ok(())
}

/// Stores a rate, or its end.
fn store(connection: &Connection, rate: &RecordedRate) -> Result<(), Cause> {
    let optional = |at: Option<Utc>| at.map(|at| stored(at.0)).transpose();
    connection.execute(
        "INSERT INTO rate (id, selector, given_from_ns, begin_ns, end_ns, currency, class, nano_per_gpu_hour,
                           derivation, recorded_ns)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT (id) DO UPDATE SET end_ns = excluded.end_ns",
        params![
            rate.id,
            serde_json::to_string(&rate.selector)?,
            optional(rate.given_from)?,
            stored(rate.begin.0)?,
            optional(rate.end)?,
            rate.price.tariff.currency,
            rate.price.tariff.class,
            rate.price.nano_per_gpu_hour,
            rate.derivation,
            stored(rate.recorded.0)?,
        ],
    )?;
    Ok(())
}

/// All recorded rates.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<RateSchedule> {
    let rates = connection
        .prepare(
            "SELECT id, selector, given_from_ns, begin_ns, end_ns, currency, class, nano_per_gpu_hour, derivation,
                    recorded_ns
             FROM rate ORDER BY id",
        )?
        .query_map([], |row| {
            let tariff =
                Tariff { currency: row.get::<_, String>(5)?.into(), class: row.get::<_, String>(6)?.into() };
            Ok(RecordedRate {
                id: row.get(0)?,
                selector: loaded_json(row, 1)?,
                given_from: loaded_optional(row, 2)?.map(Utc),
                begin: Utc(loaded(row, 3)?),
                end: loaded_optional(row, 4)?.map(Utc),
                price: Price { tariff, nano_per_gpu_hour: row.get(7)? },
                derivation: row.get::<_, Option<String>>(8)?.map(Into::into),
                recorded: Utc(loaded(row, 9)?),
            })
        })?
        .collect::<Result<_, _>>()?;
    Ok(RateSchedule::new(rates))
}

//! What the operator decided, in a node's ledger: rates, terms and tenant rules. What was recorded stays, and the ledger alone
//! decides when an entry begins and ends.

use rusqlite::{Connection, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::column::{loaded, loaded_json, loaded_optional, put, rows, stored};
use super::error::Cause;
use super::node;
use super::timeline::stored_until;
use crate::accounting::batches::AccountTimeline;
use crate::accounting::billing::{RateSchedule, Recorded, RecordedAt, Schedule};
use crate::accounting::tenants::{Decision, RuleSchedule};
use crate::model::Utc;

const RATE: &str = "rate";
const TERMS: &str = "terms";
const RULES: &str = "rules";

/// Records a decision in the file.
pub(super) fn record(
    connection: &mut Connection,
    decision: &Decision,
    timeline: AccountTimeline,
) -> Result<(), Cause> {
    let transaction = connection.transaction()?;
    let (last, covered_until) = stored_until(&transaction)?;
    let node = node::load(&transaction)?;
    let at = RecordedAt {
        now: timeline.at(decision.decided).max(last.unwrap_or_default()),
        node: &node,
        node_since: node::identity_since(&transaction)?,
        is_new: last.is_none(),
        covered_until,
    };
    let (mut rates, mut rules) = load(&transaction)?;
    if decision.book.as_ref().is_some_and(|book| rates.record(book, at)) {
        store(&transaction, RATE, &rates.rates)?;
        store(&transaction, TERMS, &rates.terms)?;
    }
    if decision.rules.as_ref().is_some_and(|given| rules.record(given, at)) {
        store(&transaction, RULES, rules.versions())?;
    }
    Ok(transaction.commit()?)
}

fn store<E: Serialize>(connection: &Connection, kind: &str, schedule: &Schedule<E>) -> Result<(), Cause> {
    let sql = "INSERT INTO history (kind, id, entry, begin_ns, end_ns, recorded_ns, covered_until_ns)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
               ON CONFLICT (kind, id) DO UPDATE SET end_ns = excluded.end_ns";
    for Recorded { id, entry, begin, end, recorded, covered_until } in schedule.entries() {
        let values = params![
            kind,
            id,
            serde_json::to_string(entry)?,
            stored(begin.0)?,
            end.map(|end| stored(end.0)).transpose()?,
            stored(recorded.0)?,
            stored(covered_until.0)?,
        ];
        put(connection, sql, values)?;
    }
    Ok(())
}

pub(super) fn load(connection: &Connection) -> rusqlite::Result<(RateSchedule, RuleSchedule)> {
    let rates =
        RateSchedule { rates: load_schedule(connection, RATE)?, terms: load_schedule(connection, TERMS)? };
    Ok((rates, RuleSchedule::new(load_schedule(connection, RULES)?)))
}

fn load_schedule<E: DeserializeOwned>(connection: &Connection, kind: &str) -> rusqlite::Result<Schedule<E>> {
    let sql = "SELECT id, entry, begin_ns, end_ns, recorded_ns, covered_until_ns FROM history WHERE kind = ?1 ORDER BY id";
    let entries = rows(connection, sql, [kind], |row| {
        Ok(Recorded {
            id: row.get(0)?,
            entry: loaded_json(row, 1)?,
            begin: Utc(loaded(row, 2)?),
            end: loaded_optional(row, 3)?.map(Utc),
            recorded: Utc(loaded(row, 4)?),
            covered_until: Utc(loaded(row, 5)?),
        })
    });
    Ok(Schedule::new(entries?))
}

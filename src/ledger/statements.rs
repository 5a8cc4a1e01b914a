//! Closed periods: their prices and tenants are final, so that a document once printed is never wrong.

use std::path::Path;
use std::sync::mpsc::Sender;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::billing::{closed_until, load_gpus};
use super::column::{loaded, stored};
use super::error::{Cause, Error};
use super::expected::{self, InventoryRow};
use super::files::LedgerLock;
use super::owner::Ledger;
use super::{owner, schema};
use crate::model::Utc;

/// What is recorded of statements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatementOrder {
    /// Close a period.
    Close(ClosedPeriod),
    /// Record the document of a closed period, or a credit for one.
    Record(RecordedDocument),
}

/// A period that a statement is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedPeriod {
    /// Its begin.
    #[serde(with = "crate::billing::time")]
    pub from: Utc,
    /// Its end.
    #[serde(with = "crate::billing::time")]
    pub to: Utc,
    /// Who closes it.
    pub by: String,
}

/// A document that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedDocument {
    /// The period of the statement, or of that for which the credit is.
    pub period: ClosedPeriod,
    /// Whether it is a credit.
    pub is_credit: bool,
    /// Its number.
    pub number: String,
    /// Its digest.
    pub digest: String,
}

/// An order that the ledger's owner is to execute.
#[derive(Debug)]
pub struct PendingOrder {
    /// The order.
    pub order: StatementOrder,
    /// Receives the time of the order, or why it was refused.
    pub reply: Sender<Result<Utc, String>>,
}

impl Ledger {
    /// Executes an order; returns its time, that of the last commit.
    ///
    /// # Errors
    /// The period is not over, or closed already; the disk.
    pub fn record_statement(&mut self, order: &StatementOrder) -> Result<Utc, Error> {
        execute(&mut self.connection, order).map_err(|cause| cause.at(&self.path, "close a period"))
    }
}

/// Executes an order in a ledger that no agent is using; returns its time, that of the last commit.
///
/// # Errors
/// Those of [`Ledger::record_statement`]; a running agent owns the ledger; the file is no ledger.
pub fn record_statement(path: &Path, order: &StatementOrder) -> Result<Utc, Error> {
    record(path, order).map_err(|cause| cause.at(path, "close a period"))
}

fn record(path: &Path, order: &StatementOrder) -> Result<Utc, Cause> {
    // Opening for writing would create a missing file.
    drop(schema::open_reader(path)?);
    let path = owner::resolve_path(path)?;
    let _lock = LedgerLock::acquire(&path)?;
    let (mut connection, _) = schema::open_writer(&path, Utc(0))?;
    execute(&mut connection, order)
}

fn execute(connection: &mut Connection, order: &StatementOrder) -> Result<Utc, Cause> {
    let transaction = connection.transaction()?;
    let last_commit: u64 =
        transaction.query_row("SELECT last_commit_ns FROM ledger", [], |row| loaded(row, 0))?;
    let at = match order {
        StatementOrder::Close(period) => close(&transaction, period, Utc(last_commit))?,
        StatementOrder::Record(document) => record_document(&transaction, document, Utc(last_commit))?,
    };
    transaction.commit()?;
    Ok(at)
}

/// A closed period as it is stored.
struct StoredPeriod {
    id: i64,
    period: [Utc; 2],
    at: Utc,
    number: Option<String>,
}

fn load_period(row: &Row<'_>) -> rusqlite::Result<StoredPeriod> {
    Ok(StoredPeriod {
        id: row.get(0)?,
        period: [Utc(loaded(row, 1)?), Utc(loaded(row, 2)?)],
        at: Utc(loaded(row, 3)?),
        number: row.get(4)?,
    })
}

/// The first closed period that overlaps this one.
fn overlapping(connection: &Connection, period: &ClosedPeriod) -> rusqlite::Result<Option<StoredPeriod>> {
    connection
        .query_row(
            "SELECT id, from_ns, to_ns, closed_ns, number FROM statement
             WHERE kind = 'statement' AND from_ns < ?2 AND to_ns > ?1 ORDER BY id LIMIT 1",
            params![stored(period.from.0)?, stored(period.to.0)?],
            load_period,
        )
        .optional()
}

fn close(connection: &Connection, period: &ClosedPeriod, now: Utc) -> Result<Utc, Cause> {
    let ClosedPeriod { from, to, by } = period;
    let gpus = load_gpus(connection)?;
    let settled = closed_until(gpus.iter().map(|(_, gpu)| gpu.settled_until));
    if *to > settled {
        return Err(Cause::NotSettled { to: *to, settled });
    }
    // One that hangs does not delay bills for ever, but its time would be missing for ever.
    let mut expected = expected::list(connection)?.into_iter();
    let is_behind = |row: &InventoryRow| {
        let account = gpus.iter().find(|(_, gpu)| gpu.gpu.uuid == row.gpu.uuid);
        let until = account.map(|(_, gpu)| gpu.settled_until);
        !row.expected.attachment.is_account_paused() && until.is_some_and(|until| until < *to)
    };
    if let Some(row) = expected.find(is_behind) {
        return Err(Cause::GpuNotSettled { gpu: row.gpu.uuid, to: *to });
    }
    if let Some(known) = overlapping(connection, period)? {
        // A document that could not be written is written later.
        if known.number.is_none() && known.period == [*from, *to] {
            return Ok(known.at);
        }
        let [from, to] = known.period;
        return Err(Cause::Closed { from, to, number: known.number.unwrap_or_default() });
    }
    connection.execute(
        "INSERT INTO statement (kind, from_ns, to_ns, closed_by, closed_ns) VALUES ('statement', ?1, ?2, ?3, ?4)",
        params![stored(from.0)?, stored(to.0)?, by, stored(now.0)?],
    )?;
    connection.execute("UPDATE ledger SET covered_until_ns = max(covered_until_ns, ?1)", [stored(to.0)?])?;
    Ok(now)
}

fn record_document(connection: &Connection, document: &RecordedDocument, now: Utc) -> Result<Utc, Cause> {
    let RecordedDocument { period, is_credit, number, digest } = document;
    let closed = overlapping(connection, period)?.filter(|known| known.period == [period.from, period.to]);
    let Some(StoredPeriod { id, at, .. }) = closed else {
        return Err(Cause::NotClosed { from: period.from, to: period.to });
    };
    if *is_credit {
        connection.execute(
            "INSERT INTO statement (kind, from_ns, to_ns, closed_by, closed_ns, number, digest)
             VALUES ('credit', ?1, ?2, ?3, ?4, ?5, ?6)",
            params![stored(period.from.0)?, stored(period.to.0)?, period.by, stored(now.0)?, number, digest],
        )?;
        return Ok(now);
    }
    connection.execute(
        "UPDATE statement SET number = ?2, digest = ?3 WHERE id = ?1 AND number IS NULL",
        params![id, number, digest],
    )?;
    Ok(at)
}

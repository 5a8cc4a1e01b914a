//! Closed periods: their prices and tenants are final, so that a document once printed is never wrong.

use std::path::Path;
use std::sync::mpsc::Sender;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::billing::{closed_until, load_gpus};
use super::column::{loaded, stored};
use super::error::{Cause, Error};
use super::expected::{self, InventoryRow};
use super::migration::last_commit;
use super::owner::Ledger;
use super::{node, owner};
use crate::accounting::billing::chain;
use crate::accounting::billing::statement::{Document, Statement, StoredDocument};
use crate::model::{NodeIdentity, Utc};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatementOrder {
    Close(ClosedPeriod),
    Record(RecordedDocument),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedPeriod {
    #[serde(with = "crate::accounting::billing::time")]
    pub from: Utc,
    #[serde(with = "crate::accounting::billing::time")]
    pub to: Utc,
    pub by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedDocument {
    /// The period of the statement, or of that for which the credit is.
    pub period: ClosedPeriod,
    pub is_credit: bool,
    pub number: String,
    pub digest: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedDocuments {
    /// The name of its node; empty where that is unknown.
    pub node: String,
    pub cluster: Option<String>,
    /// The documents, in the order in which they were recorded.
    pub documents: Vec<RecordedDocument>,
    /// Closed periods whose statement is not recorded, as after a kill.
    pub unfinished: Vec<ClosedPeriod>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    #[error(
        "the ledger recorded {0} for this number: it was changed and given a new digest; a copy from before restores it"
    )]
    Changed(String),
    #[error(
        "the ledger has not recorded it; if you gave it, give the same credit again (tenant, amount and reason), which records it"
    )]
    Unrecorded,
    /// A statement of a period for which the ledger recorded another one.
    #[error("the ledger recorded document {0} for its period; remove this one")]
    Other(String),
    #[error(
        "the ledger closed its period and has not recorded it; close the month again, which completes that"
    )]
    Unfinished,
    #[error("the ledger has not closed {from} to {to}; is it the ledger of that statement?")]
    Foreign { from: Utc, to: Utc },
    #[error(
        "document {number} is missing, which the ledger recorded with {digest}; put it back{}",
        if *.is_credit { ", or give the credit again if it was never written" } else { "" }
    )]
    Missing { is_credit: bool, number: String, digest: String },
}

impl RecordedDocuments {
    pub fn has(&self, stored: &StoredDocument) -> bool {
        let is_credit = matches!(stored.document, Document::Credit(_));
        let id = stored.id();
        self.documents.iter().any(|known| {
            (known.is_credit, &known.number, &known.digest) == (is_credit, &id.number, &id.digest)
        })
    }

    /// Whether the document is one of this ledger's node alone; `documents` has the statement of a credit.
    pub fn is_own(&self, stored: &StoredDocument, documents: &[&StoredDocument]) -> bool {
        statement_of(stored, documents).is_some_and(|statement| {
            let bill = &statement.bill;
            bill.fleet.is_none() && (&bill.node, &bill.cluster) == (&self.node, &self.cluster)
        })
    }

    pub fn problem(&self, stored: &StoredDocument, documents: &[&StoredDocument]) -> Option<RecordProblem> {
        if self.has(stored) {
            return None;
        }
        let bill = &statement_of(stored, documents).filter(|_| self.is_own(stored, documents))?.bill;
        let is_same = |period: &ClosedPeriod| (period.from, period.to) == (bill.from, bill.to);
        let is_credit = matches!(stored.document, Document::Credit(_));
        let closed = self.documents.iter().find(|known| !known.is_credit && is_same(&known.period));
        let is_unfinished = self.unfinished.iter().any(is_same);
        // Documents of another directory may have the number, for other periods.
        let is_number_of = |known: &&RecordedDocument| {
            known.number == stored.document.number()
                && (closed.is_none() && !is_unfinished
                    || known.is_credit == is_credit && is_same(&known.period))
        };
        if let Some(known) = self.documents.iter().find(is_number_of) {
            return Some(RecordProblem::Changed(known.digest.clone()));
        }
        Some(match (&stored.document, closed) {
            (Document::Statement(_), _) if is_unfinished => RecordProblem::Unfinished,
            (Document::Statement(_), Some(other)) => RecordProblem::Other(other.number.clone()),
            (Document::Credit(_), closed) if is_unfinished || closed.is_some() => RecordProblem::Unrecorded,
            _ => RecordProblem::Foreign { from: bill.from, to: bill.to },
        })
    }

    /// The first recorded document whose number none of these has.
    pub fn missing(&self, documents: &[&StoredDocument]) -> Option<RecordProblem> {
        self.documents.iter().find(|known| !has_number(documents, &known.number)).map(missing)
    }

    /// The first recorded document that belongs to the chain of these and is not there: the statement that was recorded right after
    /// them, and, if asked for, a credit for a statement of theirs. The ledger may have documents in other directories too.
    pub fn missing_among(&self, documents: &[&StoredDocument], with_credits: bool) -> Option<RecordProblem> {
        let is_here = |known: &RecordedDocument| documents.iter().any(|stored| stored.digest == known.digest);
        let last = self.documents.iter().rposition(is_here)?;
        let next = chain::next_number(documents.iter().copied());
        let is_credited = |credit: &RecordedDocument| {
            let mut statements = self.documents.iter().filter(|known| !known.is_credit && is_here(known));
            statements
                .any(|known| (known.period.from, known.period.to) == (credit.period.from, credit.period.to))
        };
        let belongs = |place: usize, known: &RecordedDocument| match known.is_credit {
            true => with_credits && is_credited(known),
            false => place == last + 1 && known.number == next,
        };
        let mut recorded = self.documents.iter().enumerate();
        let found = recorded
            .find(|(place, known)| !has_number(documents, &known.number) && belongs(*place, known))?;
        Some(missing(found.1))
    }
}

fn has_number(documents: &[&StoredDocument], number: &str) -> bool {
    documents.iter().any(|known| known.document.number() == number)
}

fn missing(known: &RecordedDocument) -> RecordProblem {
    let RecordedDocument { is_credit, number, digest, .. } = known.clone();
    RecordProblem::Missing { is_credit, number, digest }
}

fn statement_of<'a>(stored: &'a StoredDocument, documents: &[&'a StoredDocument]) -> Option<&'a Statement> {
    match &stored.document {
        Document::Statement(statement) => Some(statement),
        Document::Credit(credit) => documents.iter().find_map(|known| match &known.document {
            Document::Statement(statement) if statement.number == credit.statement.number => {
                Some(&**statement)
            }
            _ => None,
        }),
    }
}

pub(super) fn recorded(connection: &Connection) -> Result<RecordedDocuments, Cause> {
    let NodeIdentity { name, cluster, .. } = node::load(connection)?;
    let mut all = RecordedDocuments { node: name, cluster, ..RecordedDocuments::default() };
    let mut statement = connection.prepare(
        "SELECT kind = 'credit', from_ns, to_ns, closed_by, number, digest FROM statement ORDER BY id",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let period = ClosedPeriod { from: Utc(loaded(row, 1)?), to: Utc(loaded(row, 2)?), by: row.get(3)? };
        match (row.get(4)?, row.get(5)?) {
            (Some(number), Some(digest)) => {
                let is_credit = row.get(0)?;
                all.documents.push(RecordedDocument { period, is_credit, number, digest });
            }
            _ => all.unfinished.push(period),
        }
    }
    Ok(all)
}

#[derive(Debug)]
pub struct PendingOrder {
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
/// Those of [`Ledger::record_statement`]; a running agent owns the ledger; the file is no ledger, or one of an older schema.
pub fn record_statement(path: &Path, order: &StatementOrder) -> Result<Utc, Error> {
    record(path, order).map_err(|cause| cause.at(path, "close a period"))
}

fn record(path: &Path, order: &StatementOrder) -> Result<Utc, Cause> {
    let (_lock, mut connection) = owner::open_current(path)?;
    execute(&mut connection, order)
}

fn execute(connection: &mut Connection, order: &StatementOrder) -> Result<Utc, Cause> {
    let transaction = connection.transaction()?;
    let now = last_commit(&transaction)?;
    let at = match order {
        StatementOrder::Close(period) => close(&transaction, period, now)?,
        StatementOrder::Record(document) => record_document(&transaction, document, now)?,
    };
    transaction.commit()?;
    Ok(at)
}

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
    let Some(StoredPeriod { id, at, number: closed_as, .. }) = closed else {
        return Err(Cause::NotClosed { from: period.from, to: period.to });
    };
    // Another directory may have a document of the number.
    let known = "SELECT 1 FROM statement WHERE number = ?1 AND digest = ?2";
    if connection.query_row(known, [number, digest], |_| Ok(())).optional()?.is_some() {
        return Ok(at);
    }
    if *is_credit {
        connection.execute(
            "INSERT INTO statement (kind, from_ns, to_ns, closed_by, closed_ns, number, digest)
             VALUES ('credit', ?1, ?2, ?3, ?4, ?5, ?6)",
            params![stored(period.from.0)?, stored(period.to.0)?, period.by, stored(now.0)?, number, digest],
        )?;
        return Ok(now);
    }
    if let Some(number) = closed_as {
        let digest = "SELECT digest FROM statement WHERE id = ?1";
        let digest = connection.query_row(digest, [id], |row| row.get(0))?;
        return Err(Cause::Recorded { number, digest });
    }
    connection.execute(
        "UPDATE statement SET number = ?2, digest = ?3 WHERE id = ?1 AND number IS NULL",
        params![id, number, digest],
    )?;
    Ok(at)
}

//! A read-only view of a ledger, beside its owner or without one.
//!
//! Each question is answered within one read transaction, so a bill never sees half a batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::Connection;

use super::bill::LedgerBill;
use super::billing::{self, Period};
use super::column::loaded_json;
use super::error::{Cause, Error};
use super::expected::{self, InventoryRow};
use super::node::{self, NodeIdentity};
use super::schema;
use super::statement::Statement;
use crate::model::{Holder, HolderId, Utc};

/// A connection that only reads; may block on the disk, so never on a thread that must not.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    path: PathBuf,
    zone: TimeZone,
}

impl Reader {
    /// Opens a ledger for reading. A program other than the owner asks [`super::unowned`] first.
    ///
    /// # Errors
    /// No such file, not a ledger, a newer schema.
    pub fn open(path: &Path) -> Result<Self, Error> {
        schema::open_reader(path)
            .map(|connection| Self { connection, path: path.to_owned(), zone: TimeZone::UTC })
            .map_err(|cause| cause.at(path, "open the ledger for reading"))
    }

    /// The same, with months and local times of that zone instead of UTC.
    #[must_use]
    pub fn in_zone(self, zone: TimeZone) -> Self {
        Self { zone, ..self }
    }

    /// Interrupts a query soon after `is_unwanted` has become true; it is asked every few thousand steps of SQLite's
    /// virtual machine, which is about every millisecond.
    ///
    /// # Errors
    /// The connection takes no handler.
    pub fn interrupt_when(
        &mut self,
        is_unwanted: impl FnMut() -> bool + Send + 'static,
    ) -> Result<(), Error> {
        const STEPS: i32 = 10_000;
        self.connection
            .progress_handler(STEPS, Some(is_unwanted))
            .map_err(|error| Cause::from(error).at(&self.path, "prepare to make a bill"))
    }

    /// The bill of whole minutes from `from` (none: the beginning of the month of the last minute, in the reader's zone) to
    /// `to` (none: the end), as far as they are closed; see [`Bill`].
    ///
    /// # Errors
    /// Times off the grid or in the wrong order, two currencies, the disk.
    pub fn bill(&mut self, from: Option<Utc>, to: Option<Utc>) -> Result<LedgerBill, Error> {
        self.connection
            .transaction()
            .map_err(Cause::from)
            .and_then(|transaction| billing::make_bill(&transaction, &Period { from, to, zone: &self.zone }))
            .map_err(|cause| cause.at(&self.path, "make a bill"))
    }

    /// The bill of that period as it is shown, by tenant.
    ///
    /// # Errors
    /// Those of [`Reader::bill`], and a kind of holder that this agent does not know.
    pub fn statement(&mut self, from: Option<Utc>, to: Option<Utc>) -> Result<Statement, Error> {
        let bill = self.bill(from, to)?;
        Ok(Statement::new(&bill, &self.holders()?, &self.node()?, &self.zone))
    }

    /// The node whose ledger it is.
    ///
    /// # Errors
    /// The disk.
    pub fn node(&self) -> Result<NodeIdentity, Error> {
        node::load(&self.connection).map_err(|error| Cause::from(error).at(&self.path, "read its node"))
    }

    /// All GPUs that the ledger ever saw, by index, and where each is.
    ///
    /// # Errors
    /// The disk.
    pub fn inventory(&self) -> Result<Vec<InventoryRow>, Error> {
        expected::list(&self.connection).map_err(|cause| cause.at(&self.path, "list its GPUs"))
    }

    /// All holders with their facts, by id.
    ///
    /// # Errors
    /// The disk; a kind that this agent does not know.
    pub fn holders(&self) -> Result<Vec<Holder>, Error> {
        holders(&self.connection, "true").map_err(|cause| cause.at(&self.path, "list its holders"))
    }
}

/// The last name of each uid among the facts of holders, the latest first. A name that is the uid's number was none.
pub(super) fn user_names(connection: &Connection) -> rusqlite::Result<Vec<(u32, Arc<str>)>> {
    connection
        .prepare(
            "SELECT facts ->> 'uid' AS uid, facts ->> 'user' AS user, max(id) AS latest
             FROM holder
             WHERE uid IS NOT NULL AND user IS NOT NULL AND user <> CAST(uid AS TEXT)
             GROUP BY uid ORDER BY latest DESC LIMIT 4096",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?.into())))?
        .collect()
}

/// The holders for which that condition holds, with their facts, by id.
pub(super) fn holders(connection: &Connection, condition: &'static str) -> Result<Vec<Holder>, Cause> {
    let sql = format!("SELECT name, facts FROM holder WHERE {condition} ORDER BY name");
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut holders = Vec::new();
    while let Some(row) = rows.next()? {
        let id = HolderId::new(row.get::<_, String>(0)?);
        holders.push(Holder { id, facts: loaded_json(row, 1)? });
    }
    Ok(holders)
}

//! A read-only view of a ledger, beside its owner or without one.
//!
//! Each question is answered within one read transaction, so a bill never sees half a batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;

use super::bill::Bill;
use super::billing;
use super::column::loaded_json;
use super::error::{Cause, Error};
use super::expected::{self, Listed};
use super::schema;
use crate::model::{Holder, HolderId, HolderKind, Utc};

/// A connection that only reads; may block on the disk, so never on a thread that must not.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    path: PathBuf,
}

impl Reader {
    /// Opens a ledger for reading. A program other than the owner asks [`super::unowned`] first.
    ///
    /// # Errors
    /// No such file, not a ledger, a newer schema.
    pub fn open(path: &Path) -> Result<Self, Error> {
        schema::reader(path)
            .map(|connection| Self { connection, path: path.to_owned() })
            .map_err(|cause| cause.at(path, "open the ledger for reading"))
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

    /// The bill of whole minutes from `from` (none: the beginning of the month, in UTC, of the last minute) to `to`
    /// (none: the end), as far as they are closed; see [`Bill`].
    ///
    /// # Errors
    /// Times off the grid or in the wrong order, two currencies, the disk.
    pub fn bill(&mut self, from: Option<Utc>, to: Option<Utc>) -> Result<Bill, Error> {
        self.connection
            .transaction()
            .map_err(Cause::from)
            .and_then(|transaction| billing::bill(&transaction, from, to))
            .map_err(|cause| cause.at(&self.path, "make a bill"))
    }

    /// All GPUs that the ledger ever saw, by index, and where each is.
    ///
    /// # Errors
    /// The disk.
    pub fn inventory(&self) -> Result<Vec<Listed>, Error> {
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
    let sql = format!("SELECT name, kind, facts FROM holder WHERE {condition} ORDER BY name");
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut holders = Vec::new();
    while let Some(row) = rows.next()? {
        let kind: HolderKind = serde_json::from_value(row.get::<_, String>(1)?.into())?;
        let id = HolderId::new(row.get::<_, String>(0)?);
        holders.push(Holder { id, kind, facts: loaded_json(row, 2)? });
    }
    Ok(holders)
}

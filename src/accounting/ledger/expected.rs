//! The inventory: every GPU that the node has had, and whether it is expected now.
//!
//! The tick loop passes changes, and an operator forgets a GPU that is not expected any more. A forgotten GPU keeps its
//! account.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::column::{loaded, put, rows, stored};
use super::error::{Cause, Error};
use super::migration::last_commit;
use super::{owner, xids};
use crate::accounting::batches::Expected;
use crate::model::{Attachment, GpuId, Nanoseconds, Utc};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryRow {
    pub gpu: GpuId,
    /// Product name; empty where it is unknown.
    pub model: Arc<str>,
    pub expected: Expected,
}

/// Stores the attachment of a GPU; one that was never registered is ignored.
pub(super) fn store(connection: &Connection, expected: &Expected) -> Result<(), Cause> {
    let Expected { gpu, bus, attachment, since } = expected;
    let sql = "INSERT OR REPLACE INTO expected (gpu, pci_bus_id, attachment, since_ns)
               SELECT id, ?2, ?3, ?4 FROM gpu WHERE uuid = ?1";
    Ok(put(connection, sql, params![gpu, bus, attachment.name(), stored(since.0)?])?)
}

/// All GPUs of the ledger, by index.
pub(super) fn list(connection: &Connection) -> Result<Vec<InventoryRow>, Cause> {
    let sql = "SELECT uuid, gpu_index, model, first_seen_ns, pci_bus_id, attachment, since_ns
               FROM gpu LEFT JOIN expected ON expected.gpu = gpu.id ORDER BY gpu_index, uuid";
    let listed = rows(connection, sql, [], |row| {
        let uuid: Arc<str> = row.get::<_, String>(0)?.into();
        let word: Option<String> = row.get(5)?;
        let since = if word.is_some() { loaded(row, 6)? } else { loaded(row, 3)? };
        let expected = Expected {
            gpu: Arc::clone(&uuid),
            bus: row.get::<_, Option<String>>(4)?.unwrap_or_default().into(),
            // A newer agent may have written an unknown word; the GPU is expected all the same.
            attachment: word.and_then(|word| Attachment::parse(&word)).unwrap_or(Attachment::Present),
            since: Utc(since),
        };
        Ok(InventoryRow {
            gpu: GpuId { index: row.get(1)?, uuid },
            model: row.get::<_, String>(2)?.into(),
            expected,
        })
    });
    Ok(listed?)
}

/// Marks a GPU as not expected any more, in a ledger that no agent is using; false where the ledger has no such GPU. Boot
/// and time since boot say at which account time.
///
/// # Errors
/// A running agent owns the ledger; the file is no ledger, or one of an older schema; the disk.
pub fn forget(path: &Path, uuid: &str, boot_id: &str, boottime: Nanoseconds) -> Result<bool, Error> {
    forget_gpu(path, uuid, boot_id, boottime).map_err(|cause| cause.at(path, "forget a GPU"))
}

fn forget_gpu(path: &Path, uuid: &str, boot_id: &str, boottime: Nanoseconds) -> Result<bool, Cause> {
    let (_lock, connection) = owner::open_current(path)?;
    let Some(InventoryRow { expected, .. }) =
        list(&connection)?.into_iter().find(|listed| *listed.expected.gpu == *uuid)
    else {
        return Ok(false);
    };
    let now = account_time(&connection, boot_id, boottime)?;
    // A suspended account keeps the time at which it was suspended.
    let since = if expected.attachment.is_account_paused() { expected.since } else { now };
    let transaction = connection.unchecked_transaction()?;
    store(&transaction, &Expected { attachment: Attachment::Forgotten, since, ..expected })?;
    xids::forget(&transaction, uuid, now)?;
    transaction.commit()?;
    Ok(true)
}

/// Account time of a moment of that boot; the last commit where the boot's offset is not stored.
fn account_time(connection: &Connection, boot_id: &str, boottime: Nanoseconds) -> Result<Utc, Cause> {
    let last = last_commit(connection)?;
    let offset = connection
        .query_row("SELECT offset_ns FROM boot WHERE boot_id = ?1 AND boot_id <> ''", [boot_id], |row| {
            row.get(0)
        })
        .optional()?;
    let now = offset.map_or(0, |offset| boottime.0.saturating_add_signed(offset));
    Ok(last.max(Utc(now)))
}

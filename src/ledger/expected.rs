//! Which GPUs this node is expected to have: where each is that it had once, and since when.
//!
//! The tick loop passes changes, and an operator says when a GPU is not expected any more. The inventory is read from
//! here. Accounts are not touched: a forgotten GPU keeps what was billed.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::column::{loaded, stored};
use super::error::{Cause, Error};
use super::lock::LedgerLock;
use super::{schema, xids};
use crate::model::{Attachment, GpuId, Nanoseconds, Utc};

/// Where a GPU is, from some time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// PCI address at which it sits or sat, "" where it is not known.
    pub bus: Arc<str>,
    /// Where it is.
    pub whereabouts: Attachment,
    /// Since when, in account time; while its account is suspended, since when it is.
    pub since: Utc,
}

/// A row of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryRow {
    /// Which GPU, with the index under which it was last seen.
    pub gpu: GpuId,
    /// Product name, "" if it never said it.
    pub model: Arc<str>,
    /// Where it is.
    pub expected: Expected,
}

/// Stores where a registered GPU is; a GPU that was never registered is ignored.
pub(super) fn store(connection: &Connection, expected: &Expected) -> Result<(), Cause> {
    connection
        .prepare_cached(
            "INSERT INTO expected (gpu, pci_bus_id, whereabouts, since_ns)
             SELECT id, ?2, ?3, ?4 FROM gpu WHERE uuid = ?1
             ON CONFLICT (gpu) DO UPDATE SET pci_bus_id = excluded.pci_bus_id,
                whereabouts = excluded.whereabouts, since_ns = excluded.since_ns",
        )?
        .execute(params![
            expected.gpu,
            expected.bus,
            expected.whereabouts.name(),
            stored(expected.since.0)?
        ])?;
    Ok(())
}

/// All GPUs that the ledger ever saw, by index.
pub(super) fn list(connection: &Connection) -> Result<Vec<InventoryRow>, Cause> {
    let mut statement = connection.prepare(
        "SELECT uuid, gpu_index, model, first_seen_ns, pci_bus_id, whereabouts, since_ns
         FROM gpu LEFT JOIN expected ON expected.gpu = gpu.id ORDER BY gpu_index, uuid",
    )?;
    let rows = statement.query_map([], |row| {
        let uuid: Arc<str> = row.get::<_, String>(0)?.into();
        let word: Option<String> = row.get(5)?;
        let since = if word.is_some() { loaded(row, 6)? } else { loaded(row, 3)? };
        let expected = Expected {
            gpu: Arc::clone(&uuid),
            bus: row.get::<_, Option<String>>(4)?.unwrap_or_default().into(),
            // A word that a newer agent wrote means at least that it is expected.
            whereabouts: word.and_then(|word| Attachment::parse(&word)).unwrap_or(Attachment::Present),
            since: Utc(since),
        };
        Ok(InventoryRow {
            gpu: GpuId { index: row.get(1)?, uuid },
            model: row.get::<_, String>(2)?.into(),
            expected,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Marks a GPU as not expected any more, in a ledger that no agent owns; false where the ledger has no such
/// GPU. The boot and the time since it say which moment of the account that is.
///
/// # Errors
/// Owned by a running agent, which is to be asked instead; not a ledger; the disk.
pub fn forget(path: &Path, uuid: &str, boot_id: &str, boottime: Nanoseconds) -> Result<bool, Error> {
    forget_gpu(path, uuid, boot_id, boottime).map_err(|cause| cause.at(path, "forget a GPU"))
}

fn forget_gpu(path: &Path, uuid: &str, boot_id: &str, boottime: Nanoseconds) -> Result<bool, Cause> {
    // A writer makes the file that it does not find.
    drop(schema::open_reader(path)?);
    let _lock = LedgerLock::acquire(path)?;
    let (connection, _) = schema::open_writer(path, Utc(0))?;
    let Some(InventoryRow { expected, .. }) =
        list(&connection)?.into_iter().find(|listed| *listed.expected.gpu == *uuid)
    else {
        return Ok(false);
    };
    let now = account_time(&connection, boot_id, boottime)?;
    // A suspended account keeps the time at which it was suspended.
    let since = if expected.whereabouts.is_account_paused() { expected.since } else { now };
    let transaction = connection.unchecked_transaction()?;
    store(&transaction, &Expected { whereabouts: Attachment::Forgotten, since, ..expected })?;
    xids::forget(&transaction, uuid, now)?;
    transaction.commit()?;
    Ok(true)
}

/// Account time of a moment of that boot. In a boot whose offset is not stored the account stands at its last commit.
fn account_time(connection: &Connection, boot_id: &str, boottime: Nanoseconds) -> Result<Utc, Cause> {
    let last = connection.query_row("SELECT last_commit_ns FROM ledger", [], |row| loaded(row, 0))?;
    let offset = connection
        .query_row("SELECT offset_ns FROM boot WHERE boot_id = ?1 AND boot_id <> ''", [boot_id], |row| {
            row.get(0)
        })
        .optional()?;
    let now = offset.map_or(0, |offset| boottime.0.saturating_add_signed(offset));
    Ok(Utc(now.max(last)))
}

//! Sticky faults: health reasons that only a reset of the GPU ends. They survive a restart of the agent in the same boot,
//! with the values that show whether the GPU was reset meanwhile.

use rusqlite::{Connection, params};

use super::column::{loaded_json, put, rows};
use super::error::Cause;
use crate::accounting::batches::StickyFaults;

/// Replaces the stored faults of a GPU; a GPU that was never registered gets none.
pub(super) fn store(connection: &Connection, faults: &StickyFaults, boot_id: &str) -> Result<(), Cause> {
    let sql = "INSERT OR REPLACE INTO sticky_fault (gpu, boot_id, faults) SELECT id, ?2, ?3 FROM gpu WHERE uuid = ?1";
    Ok(put(connection, sql, params![faults.gpu, boot_id, serde_json::to_string(faults)?])?)
}

/// Loads the faults of this boot. A reboot resets all GPUs, and without a boot id every start counts as a reboot.
pub(super) fn load(connection: &Connection, boot_id: &str) -> Result<Vec<StickyFaults>, Cause> {
    connection.execute("DELETE FROM sticky_fault WHERE boot_id <> ?1 OR boot_id = ''", [boot_id])?;
    let sql = "SELECT uuid, faults FROM sticky_fault JOIN gpu ON gpu.id = sticky_fault.gpu ORDER BY uuid";
    let faults: Vec<StickyFaults> = rows(connection, sql, [], |row| {
        // Faults that cannot be read must not keep the ledger from opening.
        let faults: StickyFaults = loaded_json(row, 1).unwrap_or_default();
        Ok(StickyFaults { gpu: row.get::<_, String>(0)?.into(), ..faults })
    })?;
    Ok(faults.into_iter().filter(StickyFaults::has_any).collect())
}

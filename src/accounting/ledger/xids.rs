//! Stores the XID errors of each GPU, so that their counters survive a restart of the agent.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};

use super::column::{loaded_json, loaded_optional, put, rows, stored};
use super::error::Cause;
use crate::accounting::batches::{XidSum, XidSums};
use crate::model::{Nanoseconds, Utc};

/// Stores the sums of a GPU; returns false for a GPU that was never registered.
pub(super) fn store(connection: &Connection, sums: &XidSums, boot_id: &str) -> Result<bool, Cause> {
    let since = sums.since.map(|since| stored(since.0)).transpose()?;
    let rows = connection
        .prepare_cached(
            "INSERT OR REPLACE INTO xid_sum (gpu, since_ns, actions, codes, boot_id)
             SELECT id, ?2, ?3, ?4, ?5 FROM gpu WHERE uuid = ?1",
        )?
        .execute(params![
            sums.gpu,
            since,
            serde_json::to_string(&sums.actions)?,
            serde_json::to_string(&sums.codes)?,
            boot_id
        ])?;
    Ok(rows > 0)
}

/// Restarts the counts of a GPU that is not expected any more.
pub(super) fn forget(connection: &Connection, uuid: &str, at: Utc) -> Result<(), Cause> {
    let sql = "UPDATE xid_sum SET since_ns = ?2, actions = '{}', codes = '{}'
               WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
    Ok(put(connection, sql, params![uuid, stored(at.0)?])?)
}

/// Loads the sums of all GPUs; bursts of an earlier boot have ended.
pub(super) fn load(connection: &Connection, boot_id: &str) -> Result<Vec<XidSums>, Cause> {
    let sql = "SELECT uuid, since_ns, actions, codes, xid_sum.boot_id = ?1 AND ?1 <> ''
               FROM xid_sum JOIN gpu ON gpu.id = xid_sum.gpu";
    let sums = rows(connection, sql, [boot_id], |row| {
        // Sums that cannot be read must not keep the ledger from opening.
        let mut codes: BTreeMap<u32, XidSum> = loaded_json(row, 3).unwrap_or_default();
        if !row.get::<_, bool>(4)? {
            for code in codes.values_mut() {
                (code.events, code.lines, code.last_reported) = (0, 0, Nanoseconds(0));
            }
        }
        Ok(XidSums {
            gpu: row.get::<_, String>(0)?.into(),
            since: loaded_optional(row, 1)?.map(Utc),
            actions: loaded_json(row, 2).unwrap_or_default(),
            codes,
        })
    });
    Ok(sums?)
}

//! Stores the XID errors of each GPU, so that their counters survive a restart of the agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::column::{loaded, loaded_json, stored};
use super::error::Cause;
use crate::model::{Nanoseconds, Utc};

/// XID errors of one GPU since the ledger was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XidSums {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// When counting restarted because the GPU was forgotten; none if it never was.
    pub since: Option<Utc>,
    /// Counts by recommended action, of all errors even if there were too many codes to store.
    pub actions: BTreeMap<Arc<str>, u64>,
    /// Errors by code.
    pub codes: BTreeMap<u32, XidSum>,
}

/// One XID code on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidSum {
    /// Number of errors.
    pub count: u64,
    /// Wall clock of the last error.
    pub last: Utc,
    /// Errors reported by the driver's events in the current burst.
    pub events: u64,
    /// Errors reported by the kernel log in the current burst.
    pub lines: u64,
    /// Time since boot at which a source last reported the code; stored as `heard`, its former name.
    #[serde(rename = "heard")]
    pub last_reported: Nanoseconds,
}

impl XidSums {
    /// A key that grows with every counted error and when the GPU is forgotten, to find the newer of two states.
    pub fn version(&self) -> (Option<Utc>, u64) {
        (self.since, self.actions.values().fold(0, |sum: u64, count| sum.saturating_add(*count)))
    }
}

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
    connection
        .prepare_cached(
            "UPDATE xid_sum SET since_ns = ?2, actions = '{}', codes = '{}'
             WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?1)",
        )?
        .execute(params![uuid, stored(at.0)?])?;
    Ok(())
}

/// Loads the sums of all GPUs; bursts of an earlier boot have ended.
pub(super) fn load(connection: &Connection, boot_id: &str) -> Result<Vec<XidSums>, Cause> {
    let mut statement = connection.prepare(
        "SELECT uuid, since_ns, actions, codes, xid_sum.boot_id = ?1 AND ?1 <> ''
         FROM xid_sum JOIN gpu ON gpu.id = xid_sum.gpu",
    )?;
    let sums = statement.query_map([boot_id], |row| {
        let since = row.get::<_, Option<i64>>(1)?.map(|_| loaded(row, 1)).transpose()?;
        // Sums that cannot be read must not keep the ledger from opening.
        let mut codes: BTreeMap<u32, XidSum> = loaded_json(row, 3).unwrap_or_default();
        if !row.get::<_, bool>(4)? {
            for code in codes.values_mut() {
                (code.events, code.lines, code.last_reported) = (0, 0, Nanoseconds(0));
            }
        }
        Ok(XidSums {
            gpu: row.get::<_, String>(0)?.into(),
            since: since.map(Utc),
            actions: loaded_json(row, 2).unwrap_or_default(),
            codes,
        })
    })?;
    Ok(sums.collect::<rusqlite::Result<_>>()?)
}

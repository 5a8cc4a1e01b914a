//! XID errors of each GPU over all time: they outlive the agent, so that a restart is no reset of their counters.
//!
//! In: the sums of a GPU whenever they change, whole. Out: the same at the next start. It does not know what a
//! code means.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::column::{loaded, loaded_json, stored};
use super::error::Cause;
use crate::model::{Nanoseconds, Utc};

/// XID errors of one GPU over all time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XidSums {
    /// UUID of the GPU.
    pub gpu: Arc<str>,
    /// When counting began again because the GPU was forgotten; none where it never was.
    pub since: Option<Utc>,
    /// Counts by recommended action; complete even where there were too many codes to keep.
    pub actions: BTreeMap<Arc<str>, u64>,
    /// What is known of each code.
    pub codes: BTreeMap<u32, XidSum>,
}

/// One XID code on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidSum {
    /// How many.
    pub count: u64,
    /// Wall clock of the last one.
    pub last: Utc,
    /// What the driver's events reported since both sources were quiet about the code.
    pub events: u64,
    /// What the kernel log reported since then.
    pub lines: u64,
    /// Time since boot at which a source last reported the code.
    #[serde(rename = "heard")]
    pub last_reported: Nanoseconds,
}

impl XidSums {
    /// Orders two states of one GPU's sums: they only grow, until the GPU is forgotten.
    pub fn age(&self) -> (Option<Utc>, u64) {
        (self.since, self.actions.values().fold(0, |sum: u64, count| sum.saturating_add(*count)))
    }
}

/// Stores the sums of a GPU; false where the GPU is not known.
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

/// Begins the counts of a GPU again: it is not expected any more.
pub(super) fn forget(connection: &Connection, uuid: &str, at: Utc) -> Result<(), Cause> {
    connection
        .prepare_cached(
            "UPDATE xid_sum SET since_ns = ?2, actions = '{}', codes = '{}'
             WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?1)",
        )?
        .execute(params![uuid, stored(at.0)?])?;
    Ok(())
}

/// The sums of all GPUs. In another boot no source goes on with what it reported before.
pub(super) fn load(connection: &Connection, boot_id: &str) -> Result<Vec<XidSums>, Cause> {
    let mut statement = connection.prepare(
        "SELECT uuid, since_ns, actions, codes, xid_sum.boot_id = ?1 AND ?1 <> ''
         FROM xid_sum JOIN gpu ON gpu.id = xid_sum.gpu",
    )?;
    let sums = statement.query_map([boot_id], |row| {
        let since = row.get::<_, Option<i64>>(1)?.map(|_| loaded(row, 1)).transpose()?;
        // The account opens without them where they cannot be read.
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

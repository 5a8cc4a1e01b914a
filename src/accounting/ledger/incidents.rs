//! Incidents: when each GPU had which fault, from the health verdicts and from XIDs.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, params};

use super::column::{loaded_json, put, rows, stored};
use super::error::Cause;
use crate::accounting::batches::{OpenIncidents, XidSum, XidSums};
use crate::model::{Nanoseconds, Utc};

/// The kind of an XID, whose incident has its code. Those of the health verdicts have the names of their rules.
const XID: &str = "xid";

/// An XID that comes again within this time is of the same incident, so that a storm of them is one row.
const XID_GAP: Nanoseconds = Nanoseconds::from_seconds(5 * 60);

/// Begins the incidents of a GPU that are not open yet, and ends the open ones that are not in the list any more. A GPU that was
/// never registered has none.
pub(super) fn store_open(connection: &Connection, now: &OpenIncidents) -> Result<(), Cause> {
    let OpenIncidents { gpu, at, kinds } = now;
    let at = stored(at.0)?;
    let sql = "SELECT kind FROM incident WHERE to_ns IS NULL AND gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
    let open: BTreeSet<String> = rows(connection, sql, [gpu], |row| row.get(0))?;
    for kind in open.iter().filter(|kind| !kinds.contains(kind.as_str())) {
        let sql = "UPDATE incident SET to_ns = max(from_ns, ?3)
                   WHERE to_ns IS NULL AND kind = ?2 AND gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
        put(connection, sql, params![gpu, kind, at])?;
    }
    for kind in kinds.iter().filter(|kind| !open.contains(&***kind)) {
        // One that ended at this moment goes on.
        let sql = "INSERT INTO incident (from_ns, to_ns, gpu, kind, code) SELECT ?3, NULL, id, ?2, 0 FROM gpu WHERE uuid = ?1
                   ON CONFLICT DO UPDATE SET to_ns = NULL";
        put(connection, sql, params![gpu, kind, at])?;
    }
    Ok(())
}

/// Stores an incident for each XID of which the sums have more than the stored ones, before these are replaced.
pub(super) fn store_xids(connection: &Connection, sums: &XidSums, at: Utc) -> Result<(), Cause> {
    let sql = "SELECT codes FROM xid_sum WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
    let known =
        connection.prepare_cached(sql)?.query_row([&sums.gpu], |row| loaded_json(row, 0)).optional()?;
    let known: BTreeMap<u32, XidSum> = known.unwrap_or_default();
    let (at_ns, gap) = (stored(at.0)?, stored(at.0.saturating_sub(XID_GAP.0))?);
    let is_new = |(code, sum): &(&u32, &XidSum)| sum.count > known.get(code).map_or(0, |known| known.count);
    for (code, _) in sums.codes.iter().filter(is_new) {
        let sql = "UPDATE incident SET to_ns = ?3 WHERE to_ns >= ?4 AND kind = ?5 AND code = ?2
                   AND gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
        let continued = connection.prepare_cached(sql)?.execute(params![sums.gpu, code, at_ns, gap, XID])?;
        if continued == 0 {
            let sql = "INSERT INTO incident (from_ns, to_ns, gpu, kind, code) SELECT ?3, ?3, id, ?4, ?2 FROM gpu WHERE uuid = ?1
                       ON CONFLICT DO NOTHING";
            put(connection, sql, params![sums.gpu, code, at_ns, XID])?;
        }
    }
    Ok(())
}

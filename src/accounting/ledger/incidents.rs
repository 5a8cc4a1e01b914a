//! Incidents: when each GPU had which fault, from the health verdicts and from XIDs. A fault that is back after a short pause goes on
//! with its incident, so that a storm of XIDs, or a verdict that comes and goes, is one row.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};

use super::column::{loaded, loaded_optional, put, rows, stored};
use super::error::Cause;
use crate::accounting::batches::{OpenIncidents, SeenXids};
use crate::accounting::billing::GpuIncident;
use crate::model::{LONGEST_PAUSE, Utc};

/// The kind of an XID, whose incident has its code. Those of the health verdicts have the names of their rules.
const XID: &str = "xid";

/// Begins the incidents of a GPU that are not open yet, and ends the open ones that are not in the list any more. A GPU that was
/// never registered has none.
pub(super) fn store_open(connection: &Connection, now: &OpenIncidents) -> Result<(), Cause> {
    let OpenIncidents { gpu, at, kinds } = now;
    let sql = "SELECT kind FROM incident WHERE to_ns IS NULL AND gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
    let open: BTreeSet<String> = rows(connection, sql, [gpu], |row| row.get(0))?;
    for kind in open.iter().filter(|kind| !kinds.contains(kind.as_str())) {
        let sql = "UPDATE incident SET to_ns = max(from_ns, ?3)
                   WHERE to_ns IS NULL AND kind = ?2 AND gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
        put(connection, sql, params![gpu, kind, stored(at.0)?])?;
    }
    for kind in kinds.iter().filter(|kind| !open.contains(&***kind)) {
        store(connection, gpu, kind, 0, *at, None)?;
    }
    Ok(())
}

/// The incidents between two times, each as far as it is, with the key of its GPU, in the order in which they began.
pub(super) fn between(
    connection: &Connection,
    [from, to]: [Utc; 2],
) -> Result<Vec<(i64, GpuIncident)>, Cause> {
    let sql = "SELECT gpu, from_ns, to_ns, kind, code FROM incident
               WHERE from_ns < ?2 AND (to_ns IS NULL OR to_ns > ?1 OR from_ns >= ?1) ORDER BY from_ns, kind, code, gpu";
    let found: Vec<(i64, GpuIncident)> = rows(connection, sql, [stored(from.0)?, stored(to.0)?], |row| {
        let incident = GpuIncident {
            from: Utc(loaded(row, 1)?),
            to: loaded_optional(row, 2)?.map_or(to, Utc),
            kind: row.get(3)?,
            code: Some(row.get(4)?).filter(|code| *code != 0),
        };
        Ok((row.get(0)?, incident))
    })?;
    let clipped = found.into_iter();
    Ok(clipped.filter_map(|(gpu, incident)| Some((gpu, incident.between(from, to)?))).collect())
}

pub(super) fn store_xids(connection: &Connection, seen: &SeenXids) -> Result<(), Cause> {
    store(connection, &seen.gpu, XID, seen.code, seen.from, Some(seen.to))
}

/// Stores an incident; one that begins soon after the last of its kind and code goes on with it. Without an end it goes on.
fn store(
    connection: &Connection,
    gpu: &str,
    kind: &str,
    code: u32,
    from: Utc,
    to: Option<Utc>,
) -> Result<(), Cause> {
    let end = to.map(|to| stored(to.0)).transpose()?;
    let pause = stored(from.0.saturating_sub(LONGEST_PAUSE.0))?;
    // The greater of a time and NULL is NULL.
    let sql = "UPDATE incident SET to_ns = max(to_ns, ?4) WHERE to_ns > ?5 AND kind = ?2 AND code = ?3
               AND gpu = (SELECT id FROM gpu WHERE uuid = ?1)";
    let known = connection.prepare_cached(sql)?.execute(params![gpu, kind, code, end, pause])?;
    if known == 0 {
        let sql = "INSERT INTO incident (from_ns, to_ns, gpu, kind, code) SELECT ?5, ?4, id, ?2, ?3 FROM gpu WHERE uuid = ?1
                   ON CONFLICT DO NOTHING";
        put(connection, sql, params![gpu, kind, code, end, stored(from.0)?])?;
    }
    Ok(())
}

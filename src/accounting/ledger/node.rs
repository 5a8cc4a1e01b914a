//! The node's identity on bills, stored at each start of the agent for readers on any machine.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::column::{loaded, rows, stored};
use super::error::Cause;
use crate::model::{HowHeld, NodeIdentity, Utc};

/// Stores the identity. A ledger that was once of a simulated node stays marked. What selects rates holds from the end of
/// the recorded account on, where it was another before.
pub(super) fn store(connection: &Connection, node: &NodeIdentity) -> Result<(), Cause> {
    connection.execute(
        "INSERT OR REPLACE INTO past_node (until_ns, name, cluster, pool, instance_type, spot)
         SELECT (SELECT max(minute_ns) FROM minute) + 60000000000, name, cluster, pool, instance_type, spot FROM node
         WHERE (name, cluster, pool, instance_type, spot) IS NOT (?1, ?2, ?3, ?4, ?5)
           AND EXISTS (SELECT 1 FROM minute)",
        params![node.name, node.cluster, node.pool, node.instance_type, node.spot],
    )?;
    connection.execute(
        "INSERT INTO node (id, name, cluster, pool, instance_type, spot, simulated) VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, cluster = excluded.cluster, pool = excluded.pool,
             instance_type = excluded.instance_type, spot = excluded.spot,
             since_ns = CASE WHEN (name, pool, instance_type, spot)
                               IS (excluded.name, excluded.pool, excluded.instance_type, excluded.spot)
                        THEN since_ns ELSE coalesce((SELECT max(minute_ns) FROM minute), 0) END,
             simulated = max(simulated, excluded.simulated)",
        params![node.name, node.cluster, node.pool, node.instance_type, node.spot, node.simulated],
    )?;
    Ok(())
}

/// Stores how GPUs are held on the node, from the end of the recorded account on where it was another way before.
pub(super) fn store_how_held(connection: &Connection, how_held: HowHeld) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE node SET how_held = ?1,
             how_held_since_ns = coalesce((SELECT max(minute_ns) FROM minute) + 60000000000, 0)
         WHERE how_held IS NOT ?1",
        [how_held.name()],
    )?;
    Ok(())
}

/// How GPUs have been held on the node from a time on; none where that changed later, where no agent stored it, or one of a
/// later release.
pub(super) fn load_how_held(connection: &Connection, from: Utc) -> Result<Option<HowHeld>, Cause> {
    let sql = "SELECT how_held FROM node WHERE how_held IS NOT NULL AND how_held_since_ns <= ?1";
    let name = connection.query_row(sql, [stored(from.0)?], |row| row.get::<_, String>(0)).optional()?;
    Ok(name.and_then(|name| HowHeld::named(&name)))
}

/// Since when the node has the name, pool, instance type and spot by which rates select it.
pub(super) fn identity_since(connection: &Connection) -> rusqlite::Result<Utc> {
    let since = connection.query_row("SELECT since_ns FROM node", [], |row| Ok(Utc(loaded(row, 0)?)));
    Ok(since.optional()?.unwrap_or_default())
}

/// The stored identity; the empty one in a ledger of an older agent.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<NodeIdentity> {
    let sql = "SELECT name, cluster, pool, instance_type, spot, simulated FROM node";
    Ok(connection.query_row(sql, [], read).optional()?.unwrap_or_default())
}

fn read(row: &Row<'_>) -> rusqlite::Result<NodeIdentity> {
    Ok(NodeIdentity {
        name: row.get(0)?,
        cluster: row.get(1)?,
        pool: row.get(2)?,
        instance_type: row.get(3)?,
        spot: row.get(4)?,
        simulated: row.get(5)?,
    })
}

pub(super) struct NodeHistory {
    /// In order of their ends.
    past: Vec<(Utc, Arc<NodeIdentity>)>,
    now: Arc<NodeIdentity>,
}

impl NodeHistory {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let now = load(connection)?;
        let sql =
            "SELECT name, cluster, pool, instance_type, spot, ?1, until_ns FROM past_node ORDER BY until_ns";
        let past =
            rows(connection, sql, [now.simulated], |row| Ok((Utc(loaded(row, 6)?), Arc::new(read(row)?))))?;
        Ok(Self { past, now: Arc::new(now) })
    }

    pub(super) fn at(&self, at: Utc) -> &Arc<NodeIdentity> {
        self.past.iter().find(|(until, _)| at < *until).map_or(&self.now, |(_, node)| node)
    }
}

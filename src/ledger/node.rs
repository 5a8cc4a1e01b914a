//! The node's identity on bills, stored at each start of the agent for readers on any machine.

use rusqlite::{Connection, OptionalExtension, params};

use super::column::loaded;
use super::error::Cause;
use crate::model::{NodeIdentity, Utc};

/// Stores the identity. A ledger that was once of a simulated node stays marked. What selects rates holds from the end of
/// the recorded account on, where it was another before.
pub(super) fn store(connection: &Connection, node: &NodeIdentity) -> Result<(), Cause> {
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

/// Since when the node has the name, pool, instance type and spot by which rates select it.
pub(super) fn identity_since(connection: &Connection) -> rusqlite::Result<Utc> {
    let since = connection.query_row("SELECT since_ns FROM node", [], |row| Ok(Utc(loaded(row, 0)?)));
    Ok(since.optional()?.unwrap_or_default())
}

/// The stored identity; the empty one in a ledger of an older agent.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<NodeIdentity> {
    let sql = "SELECT name, cluster, pool, instance_type, spot, simulated FROM node";
    let node = connection.query_row(sql, [], |row| {
        Ok(NodeIdentity {
            name: row.get(0)?,
            cluster: row.get(1)?,
            pool: row.get(2)?,
            instance_type: row.get(3)?,
            spot: row.get(4)?,
            simulated: row.get(5)?,
        })
    });
    Ok(node.optional()?.unwrap_or_default())
}

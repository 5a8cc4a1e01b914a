//! The node's identity on bills, stored at each start of the agent for readers on any machine.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::Cause;
use crate::model::NodeIdentity;

/// Stores the identity. A ledger that was once of a simulated node stays marked.
pub(super) fn store(connection: &Connection, node: &NodeIdentity) -> Result<(), Cause> {
    connection.execute(
        "INSERT INTO node (id, name, cluster, pool, instance_type, spot, simulated) VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, cluster = excluded.cluster, pool = excluded.pool,
             instance_type = excluded.instance_type, spot = excluded.spot,
             simulated = max(simulated, excluded.simulated)",
        params![node.name, node.cluster, node.pool, node.instance_type, node.spot, node.simulated],
    )?;
    Ok(())
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

//! The node's identity on bills, stored at each start of the agent for readers on any machine.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::Cause;

/// The node whose account a ledger is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Its name; empty where it is unknown.
    pub name: String,
    /// Its cluster.
    pub cluster: Option<String>,
    /// Whether its GPUs are simulated or replayed.
    pub simulated: bool,
}

/// Stores the identity. A ledger that was once of a simulated node stays marked.
pub(super) fn store(connection: &Connection, node: &NodeIdentity) -> Result<(), Cause> {
    connection.execute(
        "INSERT INTO node (id, name, cluster, simulated) VALUES (1, ?1, ?2, ?3)
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, cluster = excluded.cluster,
             simulated = max(simulated, excluded.simulated)",
        params![node.name, node.cluster, node.simulated],
    )?;
    Ok(())
}

/// The stored identity; the empty one in a ledger of an older agent.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<NodeIdentity> {
    let node = connection.query_row("SELECT name, cluster, simulated FROM node", [], |row| {
        Ok(NodeIdentity { name: row.get(0)?, cluster: row.get(1)?, simulated: row.get(2)? })
    });
    Ok(node.optional()?.unwrap_or_default())
}

//! The node whose account this is, as bills name it.
//!
//! In: name and cluster at each start of the agent. Out: the last of them, for whoever reads the ledger, on
//! whichever machine. Other tables do not refer to it.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::Cause;

/// The node whose account this is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Its name; empty where none is known.
    pub name: String,
    /// The cluster to which it belongs.
    pub cluster: Option<String>,
    /// Whether its GPUs are simulated or replayed.
    pub simulated: bool,
}

/// Stores the identity in place of the last; a ledger that was once of a simulated node stays marked.
pub(super) fn store(connection: &Connection, node: &NodeIdentity) -> Result<(), Cause> {
    connection.execute(
        "INSERT INTO node (id, name, cluster, simulated) VALUES (1, ?1, ?2, ?3)
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, cluster = excluded.cluster,
             simulated = max(simulated, excluded.simulated)",
        params![node.name, node.cluster, node.simulated],
    )?;
    Ok(())
}

/// The identity that was stored last; the empty one where an older agent wrote the ledger.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<NodeIdentity> {
    let node = connection.query_row("SELECT name, cluster, simulated FROM node", [], |row| {
        Ok(NodeIdentity { name: row.get(0)?, cluster: row.get(1)?, simulated: row.get(2)? })
    });
    Ok(node.optional()?.unwrap_or_default())
}

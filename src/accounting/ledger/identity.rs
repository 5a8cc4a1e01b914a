//! The id of a ledger, which tells its exports from those of others.

use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::{Connection, params};

use super::error::Cause;
use super::timeline::stored_until;
use super::{MINUTE, column};
use crate::model::hexadecimal;

/// Gives the ledger an id where it has none, and another one where it was copied to another machine. The time before belongs to
/// the ledger that it was copied from.
pub(super) fn resume(connection: &Connection, machine_id: &str) -> Result<(), Cause> {
    let (uid, known) = connection.query_row("SELECT uid, machine_id FROM ledger", [], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })?;
    let is_copy = !known.is_empty() && !machine_id.is_empty() && known != machine_id;
    if uid.is_empty() || is_copy {
        let last = stored_until(connection)?.0.filter(|_| is_copy);
        let since = last.map_or(0, |minute| minute.plus(MINUTE).0);
        connection.execute(
            "UPDATE ledger SET uid = ?1, exports_since_ns = max(exports_since_ns, ?2)",
            params![new_id()?, column::stored(since)?],
        )?;
    }
    if !machine_id.is_empty() && known != machine_id {
        connection.execute("UPDATE ledger SET machine_id = ?1", [machine_id])?;
    }
    if is_copy {
        tracing::warn!(
            "this ledger comes from another machine (/etc/machine-id differs): it has a new id, and exports begin anew"
        );
    }
    Ok(())
}

/// A random id of 32 hexadecimal digits.
fn new_id() -> Result<String, Cause> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Cause::Unwritable(std::io::Error::other("the kernel gives no random numbers")))?;
    Ok(hexadecimal(&bytes))
}

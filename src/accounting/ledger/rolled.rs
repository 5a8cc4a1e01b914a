//! The times whose rows are sums of quarter hours, or are deleted.

use rusqlite::Connection;

use super::MINUTE;
use super::column::{loaded, put, stored};
use super::error::Cause;
use crate::model::{QUARTER_HOUR, Utc};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RolledTime {
    /// Rows that begin before are sums of quarter hours.
    pub(super) until: Utc,
    /// Rows that begin before are deleted; 0 where none is.
    pub(super) deleted_until: Utc,
}

impl RolledTime {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let sql = "SELECT rolled_until_ns, deleted_until_ns FROM ledger";
        connection.query_row(sql, [], |row| {
            Ok(Self { until: Utc(loaded(row, 0)?), deleted_until: Utc(loaded(row, 1)?) })
        })
    }

    pub(super) fn store(&self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE ledger SET rolled_until_ns = ?1, deleted_until_ns = ?2";
        put(connection, sql, [stored(self.until.0)?, stored(self.deleted_until.0)?])
    }

    pub(super) fn row_of(&self, minute: Utc) -> Utc {
        if minute < self.until { minute.floor(QUARTER_HOUR) } else { minute }
    }

    pub(super) fn end_of(&self, row: Utc) -> Utc {
        if row < self.until { row.plus(QUARTER_HOUR) } else { row.plus(MINUTE) }
    }

    /// Refuses a period whose rows are deleted in part, or whose edges lie within a row.
    pub(super) fn check_period(&self, from: Utc, to: Utc) -> Result<(), Cause> {
        if from < self.deleted_until {
            return Err(Cause::Deleted { from, until: self.deleted_until });
        }
        for (edge, at) in [("from", from), ("to", to)] {
            let begin = at.floor(QUARTER_HOUR);
            if at < self.until && at != begin {
                let end = begin.plus(QUARTER_HOUR);
                return Err(Cause::RolledUp { edge, at, begin, end, until: self.until });
            }
        }
        Ok(())
    }
}

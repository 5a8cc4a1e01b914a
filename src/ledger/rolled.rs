//! The times whose rows are sums of quarter hours, or are deleted.

use rusqlite::{Connection, params};

use super::MINUTE;
use super::column::{loaded, stored};
use super::error::Cause;
use crate::billing::RateSchedule;
use crate::model::{QUARTER_HOUR, Utc};
use crate::tenants::RuleSchedule;

/// What retention has done to the rows of a ledger.
#[derive(Clone, Debug, Default)]
pub(super) struct RolledTime {
    /// Rows that begin before are sums of quarter hours.
    pub(super) until: Utc,
    /// Rows that begin before are deleted; 0 where none is.
    pub(super) deleted_until: Utc,
    /// Changes of rates and tenant rules inside quarter hours. Agents before schema version 5 recorded them on whole minutes;
    /// there a quarter hour has several sums, so that each keeps its rate.
    changes: Vec<Utc>,
}

impl RolledTime {
    /// Loads it; `rates` and `rules` are those that the ledger recorded.
    pub(super) fn load(
        connection: &Connection,
        rates: &RateSchedule,
        rules: &RuleSchedule,
    ) -> rusqlite::Result<Self> {
        let all = (Utc(0), Utc(u64::MAX));
        let changes =
            rates.changes_between(all.0, all.1).into_iter().chain(rules.changes_between(all.0, all.1));
        let mut changes: Vec<Utc> = changes.filter(|at| at.floor(QUARTER_HOUR) != *at).collect();
        changes.sort_unstable();
        let sql = "SELECT rolled_until_ns, deleted_until_ns FROM ledger";
        let ends = |row: &rusqlite::Row<'_>| Ok((Utc(loaded(row, 0)?), Utc(loaded(row, 1)?)));
        let (until, deleted_until) = connection.query_row(sql, [], ends)?;
        Ok(Self { until, deleted_until, changes })
    }

    /// Stores both times.
    pub(super) fn store(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached("UPDATE ledger SET rolled_until_ns = ?1, deleted_until_ns = ?2")?
            .execute(params![stored(self.until.0)?, stored(self.deleted_until.0)?])?;
        Ok(())
    }

    /// The quarter hour, or the part of one between changes, that contains a time.
    pub(super) fn quarter(&self, at: Utc) -> (Utc, Utc) {
        let begin = at.floor(QUARTER_HOUR);
        let inside = |change: &&Utc| begin < **change && **change < begin.plus(QUARTER_HOUR);
        let changes = || self.changes.iter().filter(inside).copied();
        (
            changes().filter(|change| *change <= at).max().unwrap_or(begin),
            changes().find(|change| *change > at).unwrap_or(begin.plus(QUARTER_HOUR)),
        )
    }

    /// The `minute_ns` of the row of a minute.
    pub(super) fn row_of(&self, minute: Utc) -> Utc {
        if minute < self.until { self.quarter(minute).0 } else { minute }
    }

    /// The end of the time of a row.
    pub(super) fn end_of(&self, row: Utc) -> Utc {
        if row < self.until { self.quarter(row).1 } else { row.plus(MINUTE) }
    }

    /// Refuses a period whose rows are deleted in part, or whose edges lie within a row.
    pub(super) fn check_period(&self, from: Utc, to: Utc) -> Result<(), Cause> {
        if from < self.deleted_until {
            return Err(Cause::Deleted { from, until: self.deleted_until });
        }
        for (edge, at) in [("from", from), ("to", to)] {
            let (begin, end) = self.quarter(at);
            if at < self.until && at != begin {
                return Err(Cause::RolledUp { edge, at, begin, end, until: self.until });
            }
        }
        Ok(())
    }
}

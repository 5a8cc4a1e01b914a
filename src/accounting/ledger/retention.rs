//! Retention: sums up old minutes to quarter hours, and deletes old quarter hours.
//!
//! Sums stand in the rows of the quarter hour's first minute, so every query over whole quarter hours finds the same before,
//! between and after the steps. A step is one transaction with few rows, so a batch never waits long, and an agent that is
//! killed continues where the last step ended.

use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::amounts::{ACCOUNT, names};
use super::billing::closed_until;
use super::column::{loaded, stored};
use super::error::{Cause, Error};
use super::evidence;
use super::migration::last_commit;
use super::owner::Ledger;
use super::rolled::RolledTime;
use super::write::{ACCOUNT_SUMS, MINUTE_SUMS};
use crate::model::{Nanoseconds, QUARTER_HOUR, Utc};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Rows of minutes; older ones are summed up to quarter hours.
    pub minutes: Nanoseconds,
    /// Rows of quarter hours; older ones are deleted.
    pub quarter_hours: Nanoseconds,
}

const MOST_ROWS: i64 = 2_000;

/// Rows that a step sums up: each is read, added to a sum that is read and written, found again and deleted.
const SUMMED_ROWS: i64 = MOST_ROWS / 5;

/// Rows that a step deletes: each is found before.
const DELETED_ROWS: i64 = MOST_ROWS / 2;

struct RowTable {
    name: &'static str,
    /// The columns that distinguish the rows of a minute.
    key: &'static str,
    values: String,
    /// What becomes of a row that meets the sum.
    sum: &'static str,
}

/// The tables, in the order in which rows leave them: as long as `minute` has rows, the others may have some.
static TABLES: LazyLock<[RowTable; 3]> = LazyLock::new(|| {
    let values = format!(",{},grade,method,source,granted_by", names(ACCOUNT));
    let account =
        RowTable { name: "account", key: "gpu,holder,gpu_instance,profile", values, sum: &ACCOUNT_SUMS };
    let remark = RowTable { name: "remark", key: "gpu,text", values: String::new(), sum: "NOTHING" };
    let values = ",slot_ns,coarse".to_owned();
    [account, remark, RowTable { name: "minute", key: "gpu", values, sum: MINUTE_SUMS }]
});

impl Ledger {
    /// Takes the next step of retention; false where there is nothing to do now. A row's age counts from the account's last
    /// commit, so no step depends on a clock.
    ///
    /// # Errors
    /// The disk; then the step is not taken.
    pub fn retain(&mut self, retention: Retention) -> Result<bool, Error> {
        self.take_step(retention).map_err(|cause| cause.at(&self.path, "sum up or delete old minutes"))
    }

    /// Stores time before that by quarter hours from the first row on, as retention would leave it. The ledger has no rows yet.
    ///
    /// # Errors
    /// The disk.
    pub fn store_quarter_hours_until(&mut self, until: Utc) -> Result<(), Error> {
        let rolled =
            RolledTime { until: until.floor(QUARTER_HOUR).max(self.state.rolled.until), ..self.state.rolled };
        let stored = rolled.store(&self.connection).map_err(Cause::from);
        stored.map_err(|cause| cause.at(&self.path, "store old time by quarter hours"))?;
        self.state.rolled = rolled;
        Ok(())
    }

    fn take_step(&mut self, retention: Retention) -> Result<bool, Cause> {
        let Some((rolled, step)) = self.next_step(retention)? else { return Ok(false) };
        // A step that is lost is taken again.
        self.sync_commits(false)?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        rolled.store(&transaction)?;
        match step {
            RetentionStep::Delete { before } => delete_rows(&transaction, before)?,
            RetentionStep::SumUp { begin, end } => sum_up_rows(&transaction, begin, end)?,
            RetentionStep::DeleteEvidence { before } => {
                evidence::delete_older(&transaction, before, DELETED_ROWS)?;
            }
            RetentionStep::SumUpShapes { day } => evidence::sum_up_day(&transaction, day, SUMMED_ROWS)?,
        }
        transaction.commit()?;
        self.state.rolled = rolled;
        Ok(true)
    }

    fn next_step(&self, retention: Retention) -> rusqlite::Result<Option<(RolledTime, RetentionStep)>> {
        let connection = &self.connection;
        let now = last_commit(connection)?;
        let before = |span: Nanoseconds| Utc(now.0.saturating_sub(span.0)).floor(QUARTER_HOUR);
        let mut rolled = self.state.rolled;
        let delete_before = before(retention.quarter_hours);
        if first_minute(connection, Utc(0))?.is_some_and(|first| first < delete_before) {
            rolled.deleted_until = rolled.deleted_until.max(delete_before);
            return Ok(Some((rolled, RetentionStep::Delete { before: delete_before })));
        }
        if evidence::has_older(connection, delete_before)? {
            return Ok(Some((rolled, RetentionStep::DeleteEvidence { before: delete_before })));
        }
        if let Some(day) = evidence::first_unsummed_day(connection, before(retention.minutes))? {
            return Ok(Some((rolled, RetentionStep::SumUpShapes { day })));
        }
        // Rows that come late, of a GPU that is settled again, are added to the sums.
        let settled = self.state.gpus.values().map(|gpu| gpu.settled_until);
        let sum_up_before = before(retention.minutes).min(closed_until(settled));
        let last = Utc(rolled.until.0.saturating_sub(1)).floor(QUARTER_HOUR);
        let Some(first) = first_minute(connection, Utc(last.0 + 1))? else { return Ok(None) };
        let begin = first.floor(QUARTER_HOUR);
        let end = begin.plus(QUARTER_HOUR);
        if end > sum_up_before.max(rolled.until) {
            return Ok(None);
        }
        rolled.until = rolled.until.max(end);
        Ok(Some((rolled, RetentionStep::SumUp { begin, end })))
    }
}

enum RetentionStep {
    /// Deletes some rows that begin before that time.
    Delete {
        before: Utc,
    },
    /// Adds some rows of a quarter hour to its sums.
    SumUp {
        begin: Utc,
        end: Utc,
    },
    DeleteEvidence {
        before: Utc,
    },
    /// Adds some shapes of hours to those of their day.
    SumUpShapes {
        day: Utc,
    },
}

fn first_minute(connection: &Connection, from: Utc) -> rusqlite::Result<Option<Utc>> {
    connection
        .prepare_cached("SELECT minute_ns FROM minute WHERE minute_ns >= ?1 ORDER BY minute_ns LIMIT 1")?
        .query_row([stored(from.0)?], |row| Ok(Utc(loaded(row, 0)?)))
        .optional()
}

fn delete_rows(transaction: &Transaction<'_>, before: Utc) -> rusqlite::Result<()> {
    let mut left = DELETED_ROWS;
    for RowTable { name, key, .. } in TABLES.iter() {
        let sql = format!(
            "DELETE FROM {name} WHERE (minute_ns,{key}) IN
             (SELECT minute_ns,{key} FROM {name} WHERE minute_ns < ?1 ORDER BY minute_ns,{key} LIMIT ?2)"
        );
        left -= transaction.prepare_cached(&sql)?.execute(params![stored(before.0)?, left])? as i64;
    }
    Ok(())
}

fn sum_up_rows(transaction: &Transaction<'_>, begin: Utc, end: Utc) -> rusqlite::Result<()> {
    let mut left = SUMMED_ROWS;
    for RowTable { name, key, values, sum } in TABLES.iter() {
        let rows =
            format!("FROM {name} WHERE minute_ns > ?1 AND minute_ns < ?2 ORDER BY minute_ns,{key} LIMIT ?3");
        let range = params![stored(begin.0)?, stored(end.0)?, left];
        let add = format!(
            "INSERT INTO {name}(minute_ns,{key}{values}) SELECT ?1,{key}{values} {rows} ON CONFLICT DO {sum}"
        );
        transaction.prepare_cached(&add)?.execute(range)?;
        let delete = format!("DELETE FROM {name} WHERE (minute_ns,{key}) IN (SELECT minute_ns,{key} {rows})");
        left -= transaction.prepare_cached(&delete)?.execute(range)? as i64;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::accounting::ledger::Opening;
    use crate::model::Stamp;

    /// A ledger with a quarter hour in which 12 GPUs had 9 holders each, and 3 remarks a minute.
    fn full(directory: &std::path::Path) -> Ledger {
        let now = Stamp { boottime: Nanoseconds::from_seconds(9_000), utc: Utc(86_400_000_000_000) };
        let opening = Opening { boot_id: "first".into(), now, ..Opening::default() };
        let open = || Ledger::open(&directory.join("ledger.db"), &opening).unwrap().0;
        let sql = "
            WITH g(n) AS (VALUES(1) UNION ALL SELECT n + 1 FROM g WHERE n < 12)
            INSERT INTO gpu (id, uuid, gpu_index, model, first_seen_ns, settled_until_ns)
                SELECT n, 'GPU-' || n, n, '', 0, 1800000000000 FROM g;
            WITH h(n) AS (VALUES(1) UNION ALL SELECT n + 1 FROM h WHERE n < 9)
            INSERT INTO holder SELECT n, 'user:' || n, 0, 'user', '{}', 0, n FROM h;
            WITH m(n) AS (VALUES(0) UNION ALL SELECT n + 1 FROM m WHERE n < 29)
            INSERT INTO minute SELECT n * 60000000000, gpu.id, 60000000000, n = 3 FROM m, gpu;
            INSERT INTO account SELECT minute_ns, gpu, holder.id, -1, 0, holder.id * 1000000000, 0, 24, 0, 0, 0, 0, 0, 0, 7, 8,
                minute_ns % 97, 5, 9, minute_ns / 60000000000 % 15, holder.id % 3, 0, 1 << holder.id % 4,
                1 << minute_ns / 60000000000 % 2 FROM minute, holder;
            INSERT INTO remark SELECT minute_ns, gpu, 'remark ' || gpu % 2 FROM minute WHERE gpu < 4;";
        open().connection.execute_batch(sql).unwrap();
        open()
    }

    #[test]
    fn a_step_touches_at_most_its_rows_and_the_sums_stay() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = full(directory.path());
        let sums = |ledger: &Ledger| -> (i64, i64, i64, i64, i64) {
            let sql = "SELECT (SELECT sum(slot_ns) FROM minute), sum(within_ns), sum(memory_byte_seconds), max(memory_peak_kib), max(grade)
                       FROM account";
            let row = |row: &rusqlite::Row<'_>| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
            };
            ledger.connection.query_row(sql, [], row).unwrap()
        };
        let (before, changes) = (sums(&ledger), |ledger: &Ledger| ledger.connection.total_changes());
        let keep = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) };
        let (mut steps, mut begun) = (0, changes(&ledger));
        while ledger.retain(keep).unwrap() {
            // Of the five that each row counts for, one is written and one deleted; and the row of `ledger`.
            let touched = (changes(&ledger) - begun - 1) / 2 * 5;
            assert!(touched <= 2_000, "{touched} rows in step {steps}");
            assert_eq!(sums(&ledger), before);
            (steps, begun) = (steps + 1, changes(&ledger));
        }
        // Of each quarter hour 14 minutes with 108 rows, 3 remarks and 12 GPUs.
        assert_eq!(steps, 2 * (14_u64 * (108 + 3 + 12)).div_ceil(400));
        let number = |sql: &str| ledger.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        let counts =
            ["account", "minute", "remark"].map(|name| number(&format!("SELECT count(*) FROM {name}")));
        assert_eq!(counts, [2 * 108, 2 * 12, 2 * 3]);
        assert_eq!(number("SELECT sum(coarse) FROM minute"), 12, "the worst is kept");
        drop(ledger);
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = full(directory.path());
        let mut begun = changes(&ledger);
        while ledger.retain(Retention { quarter_hours: Nanoseconds(0), ..keep }).unwrap() {
            let touched = 2 * (changes(&ledger) - begun - 1);
            assert!(touched <= 2_000, "{touched} rows of a deletion");
            begun = changes(&ledger);
        }
        let left: i64 =
            ledger.connection.query_row("SELECT count(*) FROM account", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0);
    }
}

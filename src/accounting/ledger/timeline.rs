//! Stores the account's time axis of each boot.

use rusqlite::{Connection, OptionalExtension, params};

use super::column::{loaded, loaded_optional, stored};
use super::error::Cause;
use crate::accounting::batches::{AccountTimeline, Boot};
use crate::model::{Nanoseconds, Stamp, Utc};

/// The begin of the last stored minute, and the time before which what was charged is final. Where all minutes are deleted, the
/// first is the end of their time.
pub(super) fn stored_until(connection: &Connection) -> rusqlite::Result<(Option<Utc>, Utc)> {
    let sql =
        "SELECT coalesce((SELECT max(minute_ns) FROM minute), nullif(deleted_until_ns, 0)), covered_until_ns
               FROM ledger";
    connection.query_row(sql, [], |row| Ok((loaded_optional(row, 0)?.map(Utc), Utc(loaded(row, 1)?))))
}

/// The stored axis of this boot, or a new one, which is stored. Without a boot id every call counts as a new boot.
pub(super) fn resume_timeline(
    connection: &mut Connection,
    boot_id: &str,
    now: Stamp,
    synchronised: bool,
) -> Result<(AccountTimeline, Boot), Cause> {
    let last = latest_time(connection)?;
    let known = connection
        .query_row(
            "SELECT offset_ns, first_seen_ns FROM boot WHERE boot_id = ?1 AND boot_id <> ''",
            [boot_id],
            |row| Ok((AccountTimeline { offset: row.get(0)? }, Utc(loaded(row, 1)?))),
        )
        .optional()?;
    let transaction = connection.transaction()?;
    let (timeline, first_seen) = match known {
        Some((axis, first_seen)) => {
            let behind = last.since(axis.at(now.boottime));
            (AccountTimeline { offset: axis.offset + stored(behind.0)? }, first_seen)
        }
        None => {
            let axis = AccountTimeline::of_boot(now, synchronised, Some(last)).ok_or(Cause::ClockNotSet)?;
            // The driver's counter restarts with a boot and may exceed the old value before its first read; the difference
            // would be energy that nobody used.
            transaction.execute("UPDATE gpu SET energy_counter_uj = NULL", [])?;
            (axis, axis.at(now.boottime))
        }
    };
    transaction.execute(
        "INSERT OR REPLACE INTO boot (boot_id, offset_ns, first_seen_ns) VALUES (?1, ?2, ?3)",
        params![boot_id, timeline.offset, stored(first_seen.0)?],
    )?;
    transaction.commit()?;
    Ok((timeline, Boot { booted: timeline.at(Nanoseconds(0)), first_seen }))
}

/// Wall clock - account time at the last recorded step of this boot; 0 without one, since a boot begins at the wall clock.
pub(super) fn recorded_lead(connection: &Connection, boot_id: &str) -> rusqlite::Result<i64> {
    let step = connection
        .query_row(
            "SELECT step_ns FROM clock_step
             WHERE at_ns >= (SELECT first_seen_ns FROM boot WHERE boot_id = ?1)
             ORDER BY at_ns DESC LIMIT 1",
            [boot_id],
            |row| row.get(0),
        )
        .optional()?;
    Ok(step.unwrap_or(0))
}

fn latest_time(connection: &Connection) -> rusqlite::Result<Utc> {
    connection.query_row(
        "SELECT max((SELECT last_commit_ns FROM ledger),
                    (SELECT coalesce(max(settled_until_ns), 0) FROM gpu),
                    (SELECT coalesce(max(to_ns), 0) FROM raw))",
        [],
        |row| Ok(Utc(loaded(row, 0)?)),
    )
}

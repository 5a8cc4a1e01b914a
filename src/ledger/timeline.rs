//! The account's time axis: time since boot plus an offset that is frozen for each boot.
//!
//! So a step of the wall clock neither doubles nor loses GPU time; it is recorded beside the account. A
//! new boot takes the wall clock anew, but account time never falls before what is stored: a clock that
//! was ahead, or one without a battery, makes the axis run ahead of UTC until it is caught up with a boot.

use rusqlite::{Connection, OptionalExtension, params};

use super::column::{loaded, stored};
use super::error::Cause;
use crate::model::{Nanoseconds, Stamp, Utc};

/// Translates time since boot into account time, within one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Account time - time since boot, in nanoseconds.
    pub offset: i64,
}

impl Timeline {
    /// A time that begins as the wall clock says.
    pub const fn starting(now: Stamp) -> Self {
        Self { offset: now.utc.0.wrapping_sub(now.boottime.0).cast_signed() }
    }

    /// Account time of a moment of this boot.
    pub const fn at(self, boottime: Nanoseconds) -> Utc {
        Utc(boottime.0.saturating_add_signed(self.offset))
    }

    /// How far the wall clock is ahead of account time, in nanoseconds; constant unless it steps.
    pub const fn lead(self, now: Stamp) -> i64 {
        now.utc.0.wrapping_sub(self.at(now.boottime).0) as i64
    }
}

/// The axis for this boot: the one that is stored, or a new one, which is stored. Without a boot id nobody
/// knows whether it is still the same boot, so it counts as a new one.
pub(super) fn resume(connection: &Connection, boot_id: &str, now: Stamp) -> Result<Timeline, Cause> {
    let known = connection
        .query_row("SELECT offset_ns FROM boot WHERE boot_id = ?1 AND boot_id <> ''", [boot_id], |row| {
            row.get(0)
        })
        .optional()?;
    let offset = match known {
        Some(offset) => offset,
        None => stored(now.utc.0)? - stored(now.boottime.0)?,
    };
    let here = Timeline { offset }.at(now.boottime);
    let behind = largest(connection)?.since(here);
    let timeline = Timeline { offset: offset + stored(behind.0)? };
    if known.is_none() {
        // The driver's counter begins anew with a boot, and may be above the old one before it is first
        // read; the difference would be joules that nobody used. Before the boot is stored, so that a kill
        // between the two forgets it again.
        connection.execute("UPDATE gpu SET energy_counter_uj = NULL", [])?;
        connection.execute(
            "INSERT OR REPLACE INTO boot (boot_id, offset_ns, first_seen_ns) VALUES (?1, ?2, ?3)",
            params![boot_id, timeline.offset, stored(timeline.at(now.boottime).0)?],
        )?;
    } else if known != Some(timeline.offset) {
        connection.execute(
            "UPDATE boot SET offset_ns = ?2 WHERE boot_id = ?1",
            params![boot_id, timeline.offset],
        )?;
    }
    Ok(timeline)
}

/// The lead of the wall clock when a step was last recorded in this boot; 0 where none was, since a boot
/// takes the wall clock as it is.
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

/// The largest time that anything in the ledger bears.
fn largest(connection: &Connection) -> rusqlite::Result<Utc> {
    connection.query_row(
        "SELECT max((SELECT last_commit_ns FROM ledger),
                    (SELECT coalesce(max(settled_until_ns), 0) FROM gpu),
                    (SELECT coalesce(max(to_ns), 0) FROM raw))",
        [],
        |row| Ok(Utc(loaded(row, 0)?)),
    )
}

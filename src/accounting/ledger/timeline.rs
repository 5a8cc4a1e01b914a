//! Stores the account's time axis of each boot, and moves what is stored on a provisional one once its offset is fixed.

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::column::{loaded, loaded_json, loaded_optional, stored};
use super::error::Cause;
use crate::accounting::batches::{AccountTimeline, Anchor, Boot, TimelineBasis};
use crate::model::{Nanoseconds, Span, Stamp, Utc};

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
    if let Some(known) = load_fixed_boot(connection, boot_id, now)? {
        return Ok(known);
    }
    let provisional = load_or_start_provisional(connection, boot_id, now)?;
    let Some(anchor) = provisional.anchor(now, synchronised) else {
        let first_seen = match provisional.basis {
            TimelineBasis::LastCommit(since) => since,
            TimelineBasis::WallClock | TimelineBasis::NewLedger => Utc(0),
        };
        return Ok((provisional, Boot { booted: Utc(0), first_seen }));
    };
    let transaction = connection.transaction()?;
    let boot = fix_offset(&transaction, boot_id, &anchor)?;
    transaction.commit()?;
    Ok((AccountTimeline::fixed_by(&anchor), boot))
}

/// The axis of a boot whose offset is fixed.
fn load_fixed_boot(
    connection: &Connection,
    boot_id: &str,
    now: Stamp,
) -> Result<Option<(AccountTimeline, Boot)>, Cause> {
    let known = connection
        .query_row(
            "SELECT offset_ns, first_seen_ns FROM boot WHERE boot_id = ?1 AND boot_id <> ''",
            [boot_id],
            |row| Ok((row.get(0)?, Utc(loaded(row, 1)?))),
        )
        .optional()?;
    let Some((offset, first_seen)) = known else { return Ok(None) };
    let stored_axis = AccountTimeline { offset, basis: TimelineBasis::WallClock };
    let behind = latest_time(connection)?.since(stored_axis.at(now.boottime));
    let timeline = AccountTimeline { offset: offset + stored(behind.0)?, ..stored_axis };
    if behind.0 > 0 {
        connection.execute(
            "UPDATE boot SET offset_ns = ?2 WHERE boot_id = ?1",
            params![boot_id, timeline.offset],
        )?;
    }
    Ok(Some((timeline, Boot { booted: timeline.at(Nanoseconds(0)), first_seen })))
}

/// The stored provisional axis of this boot, or a new one, which continues from the last commit.
fn load_or_start_provisional(
    connection: &mut Connection,
    boot_id: &str,
    now: Stamp,
) -> Result<AccountTimeline, Cause> {
    let known = connection
        .query_row(
            "SELECT offset_ns, since_ns FROM provisional_boot WHERE boot_id = ?1 AND boot_id <> ''",
            [boot_id],
            |row| {
                let basis = match loaded(row, 1)? {
                    0 => TimelineBasis::NewLedger,
                    since => TimelineBasis::LastCommit(Utc(since)),
                };
                Ok(AccountTimeline { offset: row.get(0)?, basis })
            },
        )
        .optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    let is_new: bool = connection.query_row(
        // Without any fixed boot, all that is stored moves with this one.
        "SELECT NOT EXISTS (SELECT 1 FROM boot)",
        [],
        |row| row.get(0),
    )?;
    let last = latest_time(connection)?;
    let (basis, since) =
        if is_new { (TimelineBasis::NewLedger, Utc(0)) } else { (TimelineBasis::LastCommit(last), last) };
    // Now is 1 ns after everything that was committed, so that the begin of a span shows its boot.
    let offset = stored(last.0)?.saturating_add((!is_new).into()) - stored(now.boottime.0)?;
    let transaction = connection.transaction()?;
    // The driver's counter restarts with a boot and may exceed the old value before its first read; the difference would
    // be energy that nobody used.
    transaction.execute("UPDATE gpu SET energy_counter_uj = NULL", [])?;
    // Times of an earlier provisional boot stay as they are, since its offset can no longer be found.
    transaction.execute("DELETE FROM provisional_boot", [])?;
    transaction.execute(
        "INSERT INTO provisional_boot (boot_id, offset_ns, since_ns) VALUES (?1, ?2, ?3)",
        params![boot_id, offset, stored(since.0)?],
    )?;
    transaction.commit()?;
    Ok(AccountTimeline { offset, basis })
}

/// Fixes the offset of this boot, and moves what is stored on its provisional axis.
pub(super) fn fix_offset(
    transaction: &Transaction<'_>,
    boot_id: &str,
    anchor: &Anchor,
) -> Result<Boot, Cause> {
    let was_provisional =
        transaction.execute("DELETE FROM provisional_boot WHERE boot_id = ?1", [boot_id])? > 0;
    if was_provisional {
        let bounds = params![anchor.shift, stored(anchor.since.unwrap_or_default().0)?];
        for statement in [
            "UPDATE ledger SET last_commit_ns = last_commit_ns + ?1 WHERE last_commit_ns > ?2",
            "UPDATE ledger SET created_ns = created_ns + ?1 WHERE created_ns > ?2",
            "UPDATE gpu SET settled_until_ns = settled_until_ns + ?1 WHERE settled_until_ns > ?2",
            "UPDATE gpu SET first_seen_ns = first_seen_ns + ?1 WHERE first_seen_ns > ?2",
            "UPDATE xid_sum SET since_ns = since_ns + ?1 WHERE since_ns > ?2",
            "UPDATE expected SET since_ns = since_ns + ?1 WHERE since_ns > ?2",
            "UPDATE holder SET first_seen_ns = first_seen_ns + ?1 WHERE first_seen_ns > ?2",
        ] {
            transaction.execute(statement, bounds)?;
        }
        move_raw_spans(transaction, anchor)?;
    }
    let first_seen = match anchor.since {
        None => transaction.query_row("SELECT created_ns FROM ledger", [], |row| Ok(Utc(loaded(row, 0)?)))?,
        Some(since) => anchor.moved(Utc(since.0.saturating_add(1))),
    };
    transaction.execute(
        "INSERT OR REPLACE INTO boot (boot_id, offset_ns, first_seen_ns) VALUES (?1, ?2, ?3)",
        params![boot_id, anchor.offset, stored(first_seen.0)?],
    )?;
    Ok(Boot { booted: anchor.booted, first_seen })
}

fn move_raw_spans(transaction: &Transaction<'_>, anchor: &Anchor) -> Result<(), Cause> {
    let since = anchor.since.unwrap_or_default();
    let raw: Vec<(i64, i64, Span)> = transaction
        .prepare("SELECT rowid, gpu, span FROM raw WHERE to_ns > ?1")?
        .query_map([stored(since.0)?], |row| Ok((row.get(0)?, row.get(1)?, loaded_json(row, 2)?)))?
        .collect::<Result<_, _>>()?;
    for (rowid, gpu, span) in raw {
        transaction.execute("DELETE FROM raw WHERE rowid = ?1", [rowid])?;
        let (before_boot, span) = anchor.moved_span(span);
        for span in before_boot.iter().chain([&span]) {
            super::write::insert_span(transaction, gpu, span, false)?;
        }
    }
    Ok(())
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

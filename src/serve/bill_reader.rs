//! The reader thread: answers bills from the ledger's file, so that neither tick loop nor I/O waits for a disk.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use thiserror::Error;
use tokio::sync::mpsc;

use super::{BillError, BillRequest};
use crate::clock::Stop;
use crate::ledger::{Cause, MINUTE, Reader, Statement};
use crate::model::Utc;

/// A bill that cannot be made.
#[derive(Debug, Error)]
pub enum BillProblem {
    /// A time that is none.
    #[error("{name}: {text:?} is not a valid time; write it like 2026-01-31 or 2026-01-31T08:00:00Z")]
    Time {
        /// `from` or `to`.
        name: &'static str,
        /// What was given.
        text: String,
    },
    /// A time within a minute.
    #[error("{name}: {text:?} is not on a whole minute; bills cover whole minutes, leave out the seconds")]
    Grid {
        /// `from` or `to`.
        name: &'static str,
        /// What was given.
        text: String,
    },
    /// A bill that ends before it begins.
    #[error("from: {from:?} lies after to: {to:?}; exchange them")]
    Backwards {
        /// What was given as the begin.
        from: String,
        /// What was given as the end.
        to: String,
    },
    /// The ledger cannot answer.
    #[error(transparent)]
    Ledger(#[from] crate::ledger::Error),
}

/// The statement of a ledger between two times, as far as they are closed; it is given up when `is_unwanted`.
pub fn statement(
    path: &Path,
    from: Option<&str>,
    to: Option<&str>,
    is_unwanted: impl FnMut() -> bool + Send + 'static,
) -> Result<Statement, BillProblem> {
    let zone = own_zone();
    let [begin, end] =
        [("from", from), ("to", to)].map(|(name, text)| text.map(|text| time(name, text, &zone)).transpose());
    let (begin, end) = (begin?, end?);
    if let (Some(from), Some(to)) = (from, to)
        && begin > end
    {
        return Err(BillProblem::Backwards { from: from.into(), to: to.into() });
    }
    let mut reader = Reader::open(path)?.in_zone(zone);
    reader.interrupt_when(is_unwanted)?;
    Ok(reader.statement(begin, end)?)
}

/// The time zone of this machine, from TZ or /etc/localtime; UTC where neither names one.
fn own_zone() -> TimeZone {
    let zone = TimeZone::system();
    if zone.is_unknown() { TimeZone::UTC } else { zone }
}

/// A moment with its offset, or a date with or without a time of day, which is meant in that zone.
fn time(name: &'static str, text: &str, zone: &TimeZone) -> Result<Utc, BillProblem> {
    let wrong = || BillProblem::Time { name, text: text.into() };
    let moment = match text.parse::<Timestamp>() {
        Ok(moment) => moment,
        Err(_) => {
            let local: DateTime = text.parse().map_err(|_| wrong())?;
            zone.to_timestamp(local).map_err(|_| wrong())?
        }
    };
    // The ledger's times end in 2262.
    let moment = i64::try_from(moment.as_nanosecond()).ok().and_then(|moment| u64::try_from(moment).ok());
    let moment = moment.map(Utc).ok_or_else(wrong)?;
    if moment.floor(MINUTE) != moment {
        return Err(BillProblem::Grid { name, text: text.into() });
    }
    Ok(moment)
}

/// Answers requests until the agent stops or nobody can ask any more.
pub(crate) fn answer_bills(path: &Path, mut requests: mpsc::Receiver<BillRequest>, stop: &Stop) {
    while let Some(BillRequest { from, to, visible, reply }) = requests.blocking_recv() {
        if stop.is_called() {
            return;
        }
        // The server closes the reply at its deadline and when the client has gone, which may be before this.
        if reply.is_closed() {
            continue;
        }
        let reply = Arc::new(reply);
        let (asker, stop) = (Arc::clone(&reply), stop.clone());
        let is_unwanted = move || asker.is_closed() || stop.is_called();
        let statement = statement(path, from.as_deref(), to.as_deref(), is_unwanted);
        let answer = json(statement.map(|statement| match visible {
            None => statement,
            Some(tenants) => statement.of_tenants(&tenants),
        }));
        // The reader has gone with its handler, so this is the last reference.
        if let Some(reply) = Arc::into_inner(reply) {
            let _ = reply.send(answer);
        }
    }
}

fn json(statement: Result<Statement, BillProblem>) -> Result<String, BillError> {
    let statement = statement.map_err(|problem| match problem {
        BillProblem::Ledger(error) if !matches!(error.cause, Cause::Currencies { .. }) => {
            BillError::Unreadable(error.to_string())
        }
        problem => BillError::BadQuestion(problem.to_string()),
    })?;
    serde_json::to_string(&statement).map_err(|error| BillError::Unreadable(error.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use tokio::sync::oneshot;

    use super::*;
    use crate::ledger::{Ledger, Opening};

    /// A ledger whose bill never ends.
    fn endless(path: &Path) {
        let connection = rusqlite::Connection::open(path).unwrap();
        let schema = "ALTER TABLE minute RENAME TO rows_of_minutes;
            CREATE VIEW minute AS
            WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers)
            SELECT n AS minute_ns, 0 AS gpu, NULL AS price, 0 AS slot_ns, 0 AS price_time_ns FROM numbers";
        connection.execute_batch(schema).unwrap();
    }

    #[test]
    fn a_date_without_an_offset_is_meant_in_the_node_s_time_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(5));
        let at = |text: &str| time("from", text, &zone).map(|at| at.0 / 1_000_000_000);
        for text in ["2026-11-01", "2026-11-01T00:00", "2026-11-01 00:00:00", "2026-10-31T19:00:00Z"] {
            assert_eq!(at(text).unwrap(), 1_793_473_200, "{text}");
        }
        assert_eq!(at("2026-11-01T00:00:00+05:00").unwrap(), 1_793_473_200);
    }

    #[test]
    fn a_day_in_which_clocks_are_set_has_23_or_25_hours() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let at = |text: &str| time("from", text, &zone).map(|at| at.0 / 1_000_000_000).unwrap();
        for (day, next, hours) in [
            ("2026-03-28", "2026-03-29", 24),
            ("2026-03-29", "2026-03-30", 23),
            ("2026-10-25", "2026-10-26", 25),
            ("2026-12-31", "2027-01-01", 24),
        ] {
            assert_eq!(at(next) - at(day), hours * 3_600, "{day}");
        }
        // A time that this day does not have, and one that it has twice.
        assert_eq!(at("2026-03-29 02:30"), at("2026-03-29 03:30"));
        assert_eq!(at("2026-10-25 02:30"), at("2026-10-25T02:30:00+02:00"));
    }

    #[test]
    fn a_time_that_no_bill_can_begin_with_is_refused_in_the_words_of_the_user() {
        let told = |text: &str| time("to", text, &TimeZone::UTC).unwrap_err().to_string();
        let seconds = "2026-11-01T08:00:30Z";
        assert_eq!(
            told(seconds),
            r#"to: "2026-11-01T08:00:30Z" is not on a whole minute; bills cover whole minutes, leave out the seconds"#
        );
        for text in ["yesterday", "", "2026-13-01", "1969-12-31", "2999-01-01", "2026-11", "11/01/2026"] {
            assert!(told(text).starts_with(&format!("to: {text:?} is not a valid time; ")), "{text}");
        }
        let path = Path::new("/nonexistent");
        let backwards = statement(path, Some("2026-11-15"), Some("2026-11-01"), || false).unwrap_err();
        assert_eq!(backwards.to_string(), r#"from: "2026-11-15" lies after to: "2026-11-01"; exchange them"#);
    }

    fn eventually(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it did not happen");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_bill_that_nobody_waits_for_is_interrupted_or_not_begun_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        drop(Ledger::open(&path, &Opening::default()).unwrap());
        endless(&path);
        let (sender, requests) = mpsc::channel(2);
        let reader = thread::spawn(move || answer_bills(&path, requests, &Stop::default()));
        let ask = || {
            let (reply, answer) = oneshot::channel();
            sender.blocking_send(BillRequest { from: None, to: None, visible: None, reply }).unwrap();
            answer
        };
        let awaited = ask();
        eventually(|| sender.capacity() == 2);
        let queued = ask();
        drop(queued);
        drop(awaited);
        drop(sender);
        eventually(|| reader.is_finished());
        reader.join().unwrap();
    }

    #[test]
    fn a_bill_is_interrupted_when_the_agent_stops() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        drop(Ledger::open(&path, &Opening::default()).unwrap());
        endless(&path);
        let stop = Stop::default();
        let (sender, requests) = mpsc::channel(1);
        let theirs = stop.clone();
        let reader = thread::spawn(move || answer_bills(&path, requests, &theirs));
        let (reply, _answer) = oneshot::channel();
        sender.blocking_send(BillRequest { from: None, to: None, visible: None, reply }).unwrap();
        eventually(|| sender.capacity() == 1);
        stop.call();
        drop(sender);
        eventually(|| reader.is_finished());
        reader.join().unwrap();
    }
}

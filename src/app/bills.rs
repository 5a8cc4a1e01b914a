//! The reader thread: answers bills from the ledger's file, so that neither pulse nor I/O waits for a disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::mpsc;

use super::{Shared, StartError, Thread};
use crate::clock::Stop;
use crate::ledger::{Cause, Reader, Statement};
use crate::model::Utc;
use crate::serve::{BillError, BillRequest};

/// A bill that cannot be made.
#[derive(Debug, Error)]
pub enum BillProblem {
    /// A time that is none.
    #[error("{name}: {text:?} is not a valid time; write it like 2026-01-31T00:00:00Z, on a whole minute")]
    Time {
        /// `from` or `to`.
        name: &'static str,
        /// What was given.
        text: String,
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
    let from = from.map(|text| time("from", text)).transpose()?;
    let to = to.map(|text| time("to", text)).transpose()?;
    let mut reader = Reader::open(path)?;
    reader.interrupt_when(is_unwanted)?;
    let bill = reader.bill(from, to)?;
    Ok(Statement::new(&bill, &reader.holders()?))
}

fn time(name: &'static str, text: &str) -> Result<Utc, BillProblem> {
    let wrong = || BillProblem::Time { name, text: text.into() };
    let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_nanosecond()).map(Utc).map_err(|_| wrong())
}

const fn is_wrong_question(cause: &Cause) -> bool {
    matches!(cause, Cause::Grid { .. } | Cause::Backwards { .. } | Cause::Currencies { .. })
}

/// How many bills may wait; more are refused at once.
const WAITING: usize = 16;

/// Starts the thread, if there is a ledger to read, and says where to ask.
pub(super) fn start(
    path: Option<PathBuf>,
    shared: &Arc<Shared>,
) -> Result<mpsc::Sender<BillRequest>, StartError> {
    let (sender, requests) = mpsc::channel::<BillRequest>(WAITING);
    // Without a ledger nobody answers, and the server says so.
    let Some(path) = path else { return Ok(sender) };
    let stop = shared.stop.clone();
    Thread::start("reader", move || answer_requests(&path, requests, &stop))?;
    Ok(sender)
}

fn answer_requests(path: &Path, mut requests: mpsc::Receiver<BillRequest>, stop: &Stop) {
    while let Some(BillRequest { from, to, reply }) = requests.blocking_recv() {
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
        let answer = json(statement(path, from.as_deref(), to.as_deref(), is_unwanted));
        // The reader has gone with its handler, so this is the last reference.
        if let Some(reply) = Arc::into_inner(reply) {
            let _ = reply.send(answer);
        }
    }
}

fn json(statement: Result<Statement, BillProblem>) -> Result<String, BillError> {
    let statement = statement.map_err(|problem| match problem {
        BillProblem::Time { .. } => BillError::BadQuestion(problem.to_string()),
        BillProblem::Ledger(error) if is_wrong_question(&error.cause) => {
            BillError::BadQuestion(error.to_string())
        }
        BillProblem::Ledger(error) => BillError::Unreadable(error.to_string()),
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
        let reader = thread::spawn(move || answer_requests(&path, requests, &Stop::default()));
        let ask = || {
            let (reply, answer) = oneshot::channel();
            sender.blocking_send(BillRequest { from: None, to: None, reply }).unwrap();
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
        let reader = thread::spawn(move || answer_requests(&path, requests, &theirs));
        let (reply, _answer) = oneshot::channel();
        sender.blocking_send(BillRequest { from: None, to: None, reply }).unwrap();
        eventually(|| sender.capacity() == 1);
        stop.call();
        drop(sender);
        eventually(|| reader.is_finished());
        reader.join().unwrap();
    }
}

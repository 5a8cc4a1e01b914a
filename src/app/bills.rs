//! The reader thread: answers bills from the ledger's file, so that neither pulse nor I/O waits for a disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::mpsc;

use super::{Shared, StartError, Thread};
use crate::ledger::{Cause, Reader, Statement};
use crate::model::Utc;
use crate::serve::{BillError, BillRequest};

/// A bill that cannot be made.
#[derive(Debug, Error)]
pub enum BillProblem {
    /// A time that is none.
    #[error("{name}: {text:?} is no time; write it like 2026-01-31T00:00:00Z, on a whole minute")]
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

/// The statement of a ledger between two times, as far as they are closed.
pub fn statement(path: &Path, from: Option<&str>, to: Option<&str>) -> Result<Statement, BillProblem> {
    let from = from.map(|text| time("from", text)).transpose()?;
    let to = to.map(|text| time("to", text)).transpose()?;
    let mut reader = Reader::open(path)?;
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
    let (sender, mut requests) = mpsc::channel::<BillRequest>(WAITING);
    // Without a ledger nobody answers, and the server says so.
    let Some(path) = path else { return Ok(sender) };
    let stop = shared.stop.clone();
    Thread::start("reader", move || {
        while let Some(request) = requests.blocking_recv() {
            if stop.is_called() {
                return;
            }
            let answer = statement(&path, request.from.as_deref(), request.to.as_deref());
            let answer = answer.map_err(|problem| match problem {
                BillProblem::Time { .. } => BillError::BadQuestion(problem.to_string()),
                BillProblem::Ledger(error) if is_wrong_question(&error.cause) => {
                    BillError::BadQuestion(error.to_string())
                }
                BillProblem::Ledger(error) => BillError::Unreadable(error.to_string()),
            });
            let answer = answer.and_then(|statement| {
                serde_json::to_string(&statement).map_err(|error| BillError::Unreadable(error.to_string()))
            });
            // Who asked may have gone.
            let _ = request.reply.send(answer);
        }
    })?;
    Ok(sender)
}

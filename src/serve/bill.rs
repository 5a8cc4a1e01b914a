//! Asks the thread that reads the ledger for a bill, and waits only so long.
//!
//! SQL blocks, so it never runs here: questions go through a bounded queue to that thread, and the answer
//! comes back as JSON. Metrics do not notice a slow bill.

use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::query::Query;
use super::security::Visible;

/// A question to the thread that reads the ledger.
#[derive(Debug)]
pub struct BillRequest {
    /// Start of the bill, as the client wrote it.
    pub from: Option<String>,
    /// End of the bill, as the client wrote it.
    pub to: Option<String>,
    /// Whose lines the client sees.
    pub visible: Visible,
    /// Where the bill goes, as JSON; closed when nobody waits for it any more.
    pub reply: oneshot::Sender<Result<String, BillError>>,
}

/// Why there is no bill.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BillError {
    /// The question makes no sense; says what to ask instead.
    #[error("{0}")]
    BadQuestion(String),
    /// The ledger cannot be read at the moment; says why.
    #[error("{0}")]
    Unreadable(String),
}

/// A bill as JSON, or the status and the line that say why not.
pub(super) async fn ask(
    bills: &mpsc::Sender<BillRequest>,
    (query, visible): (Query, Visible),
    patience: Duration,
) -> Result<String, (StatusCode, String)> {
    let unavailable = |line: &str| (StatusCode::SERVICE_UNAVAILABLE, line.to_owned());
    let (reply, answer) = oneshot::channel();
    let request = BillRequest { from: query.from, to: query.to, visible, reply };
    bills.try_send(request).map_err(|error| match error {
        TrySendError::Full(_) => unavailable("too many bills are being written; try again"),
        TrySendError::Closed(_) => unavailable("this agent reads no ledger; see its log for why"),
    })?;
    match timeout(patience, answer).await {
        Ok(Ok(Ok(bill))) => Ok(bill),
        Ok(Ok(Err(error @ BillError::BadQuestion(_)))) => Err((StatusCode::BAD_REQUEST, error.to_string())),
        Ok(Ok(Err(error @ BillError::Unreadable(_)))) => Err(unavailable(&error.to_string())),
        Ok(Err(_)) => Err(unavailable("the ledger's reader gave no answer; see the agent's log for why")),
        Err(_) => {
            let line = format!("no bill within {} s; ask for a shorter time", patience.as_secs_f64());
            Err((StatusCode::GATEWAY_TIMEOUT, line))
        }
    }
}

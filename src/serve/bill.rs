//! Reads a request for a bill and asks the thread that reads the ledger, with a limit on time.
//!
//! SQL blocks, so it never runs here: questions go through a bounded queue to that thread, and the answer
//! comes back as JSON. A slow bill does not delay metrics. The query has `from` and `to`, each at most once, and nothing
//! else, so that a mistyped name is an error and not a bill of another month.

use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::security::VisibleTenants;

/// A request to the thread that reads the ledger.
#[derive(Debug)]
pub struct BillRequest {
    /// Start of the bill, as the client wrote it.
    pub from: Option<String>,
    /// End of the bill, as the client wrote it.
    pub to: Option<String>,
    /// Whose lines the client sees.
    pub visible: VisibleTenants,
    /// Where the bill goes, as JSON; closed when nobody waits for it any more.
    pub reply: oneshot::Sender<Result<String, BillError>>,
}

/// Why there is no bill.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BillError {
    /// The request is invalid; says what to write instead.
    #[error("{0}")]
    BadQuestion(String),
    /// The ledger cannot be read at the moment; says why.
    #[error("{0}")]
    Unreadable(String),
}

/// A bill as JSON, or the status and the line that say why not.
pub(super) async fn request_bill(
    bills: &mpsc::Sender<BillRequest>,
    query: BillQuery,
    visible: VisibleTenants,
    longest: Duration,
) -> Result<String, (StatusCode, String)> {
    let unavailable = |line: &str| (StatusCode::SERVICE_UNAVAILABLE, line.to_owned());
    let (reply, answer) = oneshot::channel();
    let request = BillRequest { from: query.from, to: query.to, visible, reply };
    bills.try_send(request).map_err(|error| match error {
        TrySendError::Full(_) => unavailable("too many bills are being written; try again"),
        TrySendError::Closed(_) => unavailable("this agent reads no ledger; see its log for why"),
    })?;
    match timeout(longest, answer).await {
        Ok(Ok(Ok(bill))) => Ok(bill),
        Ok(Ok(Err(error @ BillError::BadQuestion(_)))) => Err((StatusCode::BAD_REQUEST, error.to_string())),
        Ok(Ok(Err(error @ BillError::Unreadable(_)))) => Err(unavailable(&error.to_string())),
        Ok(Err(_)) => Err(unavailable("the ledger's reader gave no answer; see the agent's log for why")),
        Err(_) => {
            let line = format!("no bill within {} s; ask for a shorter time", longest.as_secs_f64());
            Err((StatusCode::GATEWAY_TIMEOUT, line))
        }
    }
}

/// The parameters of the query; the ledger parses the times.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BillQuery {
    /// Start of the bill.
    pub(super) from: Option<String>,
    /// End of the bill.
    pub(super) to: Option<String>,
}

/// Reads the part of the address behind the question mark.
pub(super) fn parse_query(text: Option<&str>) -> Result<BillQuery, String> {
    let mut query = BillQuery::default();
    for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = match name {
            "from" => &mut query.from,
            "to" => &mut query.to,
            _ => return Err(format!("unknown parameter {name:?}; use from and to")),
        };
        let value = decode(value)
            .ok_or_else(|| format!("{name}={value} is not percent-encoded UTF-8; encode it anew"))?;
        if slot.replace(value).is_some() {
            return Err(format!("{name} is given twice; give it once"));
        }
    }
    // An empty field of a form means that nothing was chosen.
    query.from = query.from.filter(|value| !value.is_empty());
    query.to = query.to.filter(|value| !value.is_empty());
    Ok(query)
}

/// Decodes percent-encoding. A `+` stays: it begins a zone's offset far more often than it means a space.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
            bytes.push(high << 4 | low);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_with_its_encoding_undone() {
        let query = parse_query(Some("from=2026-10-01T00%3A00%3A00+02:00&to=")).unwrap();
        assert_eq!(query, BillQuery { from: Some("2026-10-01T00:00:00+02:00".to_owned()), to: None });
        assert_eq!(parse_query(None).unwrap(), BillQuery::default());
        assert_eq!(parse_query(Some("&&")).unwrap(), BillQuery::default());
    }

    #[test]
    fn a_broken_query_is_named() {
        let error = |text| parse_query(Some(text)).unwrap_err();
        assert_eq!(error("form=1"), r#"unknown parameter "form"; use from and to"#);
        assert_eq!(error("from=1&from=2"), "from is given twice; give it once");
        for broken in ["from=%", "from=%4", "from=%zz", "from=%ff", "from=%+1"] {
            assert!(error(broken).contains("encode it anew"), "{broken}");
        }
    }
}

//! Requests for bills, explanations, costs, advice, jobs, fit and demand.
//!
//! SQL blocks, so a bill is never made on the I/O thread: requests go through a bounded queue to the reader thread, and the answer
//! comes back as JSON. A slow bill delays neither metrics nor ticks. A query has `from`, `to`, `time_zone` and `by`, each at most
//! once, for an explanation and for jobs what selects lines instead of `by`, for the others what the `parse` of their
//! request reads, and nothing else, so that a mistyped name is an error and not a bill of
//! another period.
//!
//! A bill may be asked with prices of its own, which are the body of a POST. Nothing is stored. A browser asks before it sends JSON
//! to another site, and no answer here allows it.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use jiff::tz::TimeZone;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::response::JSON;
use crate::accounting::advice::AdviceRequest;
use crate::accounting::billing::costs::CostRequest;
use crate::accounting::billing::{BillRequest, JobReport, LONGEST_BOOK, PriceBook, WholeRequest};
use crate::accounting::planning::{DemandRequest, FitRequest};
use crate::config::decode_percent;
use crate::model::VisibleAccount;
use crate::output::render::gzip;
use crate::runtime::clock::system_now;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What the thread that reads the ledger answers.
#[derive(Clone, Debug)]
pub enum LedgerQuestion {
    Bill(BillRequest),
    /// Of the lines of the request.
    Explanation(BillRequest),
    Costs(CostRequest),
    Whole(WholeRequest),
    /// Without what the configuration dismisses.
    Advice(AdviceRequest),
    Fit(FitRequest),
    Demand(DemandRequest),
    Jobs(BillRequest),
}

/// Which of them a path asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LedgerAnswer {
    Bill,
    Explanation,
    Costs,
    Whole,
    Advice,
    Fit,
    Demand,
    Jobs,
}

impl LedgerQuestion {
    /// What to do where the answer takes too long.
    const fn instead(&self) -> &'static str {
        match self {
            // Their periods are fixed.
            Self::Advice(_) => {
                "without a limit: gpumeter advise --exports DIRECTORY, where the exports of all nodes are"
            }
            Self::Fit(_) => {
                "without a limit: gpumeter fit --exports DIRECTORY, where the exports of all nodes are"
            }
            Self::Demand(_) => {
                "without a limit: gpumeter demand --exports DIRECTORY, where the exports of all nodes are"
            }
            _ => "ask for a shorter period",
        }
    }
}

#[derive(Debug)]
pub struct BillJob {
    pub question: LedgerQuestion,
    pub reply: BillReply,
}

/// Takes the answer as JSON.
#[derive(Debug)]
pub struct BillReply {
    sender: oneshot::Sender<Result<Bytes, BillRefusal>>,
    wants_gzip: bool,
}

impl BillJob {
    /// A job, and where its answer comes.
    pub fn new(
        question: LedgerQuestion,
        wants_gzip: bool,
    ) -> (Self, oneshot::Receiver<Result<Bytes, BillRefusal>>) {
        let (sender, answer) = oneshot::channel();
        (Self { question, reply: BillReply { sender, wants_gzip } }, answer)
    }
}

impl BillReply {
    /// Whether nothing waits for it any more.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Compresses the answer here, since that of a large one would hold up all other requests, and sends it.
    pub fn send(self, answer: Result<String, BillRefusal>) {
        let encode = |text: String| if self.wants_gzip { gzip(text.as_bytes()) } else { text.into() };
        // The one that asked may have left.
        let _ = self.sender.send(answer.map(encode));
    }
}

/// The way to the thread that answers.
#[derive(Debug)]
pub struct BillQueue {
    jobs: mpsc::Sender<BillJob>,
    /// For a bill with a book, which costs more than others: one at a time.
    with_book: Semaphore,
}

impl BillQueue {
    pub fn new(jobs: mpsc::Sender<BillJob>) -> Self {
        Self { jobs, with_book: Semaphore::new(1) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillRefusal {
    /// Whether the request is the reason, and not the ledger.
    pub is_of_request: bool,
    pub text: String,
}

/// The answer as JSON, compressed on request, or the status and text of the error.
pub(super) async fn request_bill(
    bills: &BillQueue,
    question: LedgerQuestion,
    wants_gzip: bool,
    limit: Duration,
) -> Result<Bytes, (StatusCode, String)> {
    let unavailable = |line: &str| (StatusCode::SERVICE_UNAVAILABLE, line.to_owned());
    let has_book = matches!(&question, LedgerQuestion::Bill(request) if request.book.is_some());
    let instead = question.instead();
    let _permit = match has_book.then(|| bills.with_book.try_acquire()).transpose() {
        Ok(permit) => permit,
        Err(_) => return Err(unavailable("another bill with other prices is being made; try again soon")),
    };
    let (job, answer) = BillJob::new(question, wants_gzip);
    bills.jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => unavailable("too many requests wait for the account; try again"),
        TrySendError::Closed(_) => unavailable("this server has no account to read; its log says why"),
    })?;
    match timeout(limit, answer).await {
        Ok(Ok(Ok(bill))) => Ok(bill),
        Ok(Ok(Err(BillRefusal { is_of_request: true, text }))) => Err((StatusCode::BAD_REQUEST, text)),
        Ok(Ok(Err(refusal))) => Err(unavailable(&refusal.text)),
        Ok(Err(_)) => Err(unavailable("the reader of the account failed; the log of this server says why")),
        Err(_) => {
            let line = format!("no answer within {} s; {instead}", limit.as_secs_f64());
            Err((StatusCode::GATEWAY_TIMEOUT, line))
        }
    }
}

/// Reads the prices and terms in the body of a request, which is never longer in memory than a book may be.
pub(super) async fn read_book<B>(
    request: &mut Request<B>,
    limit: Duration,
) -> Result<PriceBook, (StatusCode, String)>
where
    B: Body<Error: Into<BoxError>> + Unpin,
{
    let refused = |status, line: &str| Err((status, line.to_owned()));
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case(JSON) {
        let line = "prices and terms are JSON; send them with Content-Type: application/json";
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, line);
    }
    match timeout(limit, Limited::new(request.body_mut(), LONGEST_BOOK).collect()).await {
        Ok(Ok(body)) => {
            PriceBook::from_json(&body.to_bytes()).map_err(|line| (StatusCode::BAD_REQUEST, line))
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let line = "the book is longer than 64 KiB; give fewer rates";
            refused(StatusCode::PAYLOAD_TOO_LARGE, line)
        }
        Ok(Err(error)) => refused(StatusCode::BAD_REQUEST, &format!("the book ended early: {error}")),
        Err(_) => {
            let line = format!("the book did not arrive within {} s", limit.as_secs_f64());
            refused(StatusCode::REQUEST_TIMEOUT, &line)
        }
    }
}

/// Parses the query string of a path; `zone` holds where it gives none.
pub(super) fn parse_query(
    text: Option<&str>,
    answer: LedgerAnswer,
    zone: &TimeZone,
    visible: VisibleAccount,
) -> Result<LedgerQuestion, String> {
    const OF_BILLS: [&str; 4] = ["from", "to", "time_zone", "by"];
    let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // A browser encodes the colon of attribute:NAME.
        let name = decode_percent(name)
            .ok_or_else(|| format!("{name} is not percent-encoded UTF-8; encode it again"))?;
        if answer == LedgerAnswer::Bill && !OF_BILLS.contains(&&*name) {
            return Err(format!("unknown parameter {name:?}; use from, to, time_zone and by"));
        }
        let value = decode_percent(value)
            .ok_or_else(|| format!("{name}={value} is not percent-encoded UTF-8; encode it again"))?;
        Ok((name, value))
    });
    let pairs = pairs.collect::<Result<Vec<_>, String>>()?;
    let pairs = pairs.iter().map(|(name, value)| (&**name, value.clone()));
    let (zone, now) = (zone.clone(), system_now().utc);
    if answer == LedgerAnswer::Costs {
        return Ok(LedgerQuestion::Costs(CostRequest { visible, ..CostRequest::parse(pairs, zone, now)? }));
    }
    if answer == LedgerAnswer::Whole {
        let request = WholeRequest::parse(pairs, zone, now)?;
        let bill = BillRequest { visible, ..request.bill };
        return Ok(LedgerQuestion::Whole(WholeRequest { bill, ..request }));
    }
    if answer == LedgerAnswer::Advice {
        return Ok(LedgerQuestion::Advice(AdviceRequest { visible, ..AdviceRequest::parse(pairs)? }));
    }
    if answer == LedgerAnswer::Fit {
        return Ok(LedgerQuestion::Fit(FitRequest::parse(pairs)?));
    }
    if answer == LedgerAnswer::Demand {
        return Ok(LedgerQuestion::Demand(DemandRequest::parse(pairs, zone)?));
    }
    if answer == LedgerAnswer::Jobs {
        return Ok(LedgerQuestion::Jobs(BillRequest { visible, ..JobReport::parse(pairs, zone, now)? }));
    }
    let request = BillRequest { visible, ..BillRequest::parse(pairs, zone, now)? };
    if answer == LedgerAnswer::Bill {
        return Ok(LedgerQuestion::Bill(request));
    }
    if request.detail.day {
        return Err("by is for bills; leave it out".to_owned());
    }
    Ok(LedgerQuestion::Explanation(request))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::Utc;

    fn parse(text: Option<&str>) -> Result<BillRequest, String> {
        match parse_query(text, LedgerAnswer::Bill, &TimeZone::UTC, VisibleAccount::Everything)? {
            LedgerQuestion::Bill(request) => Ok(request),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn a_query_is_read_with_its_encoding_undone() {
        let request = parse(Some("from=2026-10-01T00%3A00%3A00+02:00&to=")).unwrap();
        assert_eq!((request.from, request.to), (Some(Utc(1_790_805_600_000_000_000)), None));
        for empty in [None, Some("&&")] {
            let request = parse(empty).unwrap();
            assert_eq!((request.from, request.to), (None, None));
        }
    }

    #[test]
    fn an_answer_that_takes_too_long_says_which_command_has_no_limit() {
        let told = |query: Option<&str>, answer: LedgerAnswer| {
            let (jobs, _waiting) = mpsc::channel(1);
            let question = parse_query(query, answer, &TimeZone::UTC, VisibleAccount::Everything).unwrap();
            let asked = BillQueue::new(jobs);
            let asked = request_bill(&asked, question, false, Duration::ZERO);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(asked).unwrap_err()
        };
        for (query, answer, instead) in [
            (None, LedgerAnswer::Advice, "gpumeter advise --exports DIRECTORY"),
            (Some("workload=a&workload=b"), LedgerAnswer::Fit, "gpumeter fit --exports DIRECTORY"),
            (None, LedgerAnswer::Demand, "gpumeter demand --exports DIRECTORY"),
            (Some("job=7"), LedgerAnswer::Jobs, "ask for a shorter period"),
        ] {
            let (status, line) = told(query, answer);
            assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
            assert!(line.starts_with("no answer within 0 s; ") && line.contains(instead), "{line}");
        }
    }

    #[test]
    fn a_broken_query_is_named() {
        let error = |text| parse(Some(text)).unwrap_err();
        assert_eq!(error("form=1"), r#"unknown parameter "form"; use from, to, time_zone and by"#);
        assert_eq!(error("job=7"), r#"unknown parameter "job"; use from, to, time_zone and by"#);
        assert_eq!(error("from=1&from=2"), "from is given twice; give it once");
        for broken in ["from=%", "from=%4", "from=%zz", "from=%ff", "from=%+1"] {
            assert!(error(broken).contains("encode it again"), "{broken}");
        }
        let error = |text, answer| {
            parse_query(Some(text), answer, &TimeZone::UTC, VisibleAccount::Everything).unwrap_err()
        };
        assert_eq!(error("by=day", LedgerAnswer::Explanation), "by is for bills; leave it out");
        assert!(
            error("form=1", LedgerAnswer::Costs).contains("unknown parameter \"form\"; use period, group")
        );
    }
}

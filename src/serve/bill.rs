//! Bills and explanations: reads the request, and makes the answer on the reader thread.
//!
//! SQL blocks, so it never runs on the I/O thread: requests go through a bounded queue to the reader thread, and the bill
//! comes back as JSON. A slow bill delays neither metrics nor ticks. The query has `from`, `to`, `time_zone` and `by`, each at most
//! once, for an explanation what selects lines instead of `by`, and nothing else, so that a mistyped name is an error and not a bill
//! of another period.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use thiserror::Error;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::billing::{Bill, BillsJson, Explanation, LineFilter, PriceBook};
use crate::clock::{Stop, system_now, system_zone};
use crate::config::{BillingConfig, decode_percent};
use crate::ledger::{Cause, ExplainedPart, Reader};
use crate::model::{MINUTE, Utc, VisibleAccount};

/// A request to the reader thread.
#[derive(Debug)]
pub struct BillRequest {
    /// What the client asked for.
    pub query: BillQuery,
    /// The lines that are to be explained; none for the bill.
    pub explained: Option<LineFilter>,
    /// What the client may read.
    pub visible: VisibleAccount,
    /// Receives the answer as JSON; closed when nothing waits for it any more.
    pub reply: oneshot::Sender<Result<String, BillProblem>>,
}

/// A bill or an explanation as JSON, or the status and text of the error.
pub(super) async fn request_bill(
    bills: &mpsc::Sender<BillRequest>,
    (query, explained): (BillQuery, Option<LineFilter>),
    visible: VisibleAccount,
    limit: Duration,
) -> Result<String, (StatusCode, String)> {
    let unavailable = |line: &str| (StatusCode::SERVICE_UNAVAILABLE, line.to_owned());
    let (reply, answer) = oneshot::channel();
    let request = BillRequest { query, explained, visible, reply };
    bills.try_send(request).map_err(|error| match error {
        TrySendError::Full(_) => unavailable("too many bills are requested at once; try again"),
        TrySendError::Closed(_) => unavailable("this agent has no ledger to read; its log says why"),
    })?;
    match timeout(limit, answer).await {
        Ok(Ok(Ok(bill))) => Ok(bill),
        Ok(Ok(Err(problem))) => Err((problem.status(), problem.to_string())),
        Ok(Err(_)) => Err(unavailable("the ledger reader failed; the agent's log says why")),
        Err(_) => {
            let line = format!("no bill within {} s; request a shorter period", limit.as_secs_f64());
            Err((StatusCode::GATEWAY_TIMEOUT, line))
        }
    }
}

/// Which bill is asked for, in the words of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BillQuery {
    /// Start of the bill.
    pub from: Option<String>,
    /// End of the bill.
    pub to: Option<String>,
    /// Time zone of dates and months; the agent's where it is not given.
    pub time_zone: Option<String>,
    /// `day` for lines of each local day.
    pub by: Option<String>,
}

/// The value of `by` for lines of each local day.
pub const BY_DAY: &str = "day";

impl BillQuery {
    /// The parameters that are given, by name.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [("from", &self.from), ("to", &self.to), ("time_zone", &self.time_zone), ("by", &self.by)];
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }

    /// Sets a parameter, to none where the value is empty; false for one that it does not have.
    fn set(&mut self, name: &str, value: String) -> Result<bool, String> {
        let slot = match name {
            "from" => &mut self.from,
            "to" => &mut self.to,
            "time_zone" => &mut self.time_zone,
            "by" => &mut self.by,
            _ => return Ok(false),
        };
        // Forms send empty fields for values that were not given.
        if !value.is_empty() && slot.replace(value).is_some() {
            return Err(format!("{name} is given twice; give it once"));
        }
        Ok(true)
    }
}

/// Parses the query string of a bill.
pub(super) fn parse_query(text: Option<&str>) -> Result<BillQuery, String> {
    let mut query = BillQuery::default();
    for (name, value) in pairs(text)? {
        if !query.set(name, value)? {
            return Err(format!("unknown parameter {name:?}; use from, to, time_zone and by"));
        }
    }
    if let Some(by) = query.by.as_ref().filter(|by| *by != BY_DAY) {
        return Err(format!("by={by:?} is not known; give by=day, or leave it out"));
    }
    Ok(query)
}

/// Parses the query string of an explanation.
pub(super) fn parse_explain_query(text: Option<&str>) -> Result<(BillQuery, LineFilter), String> {
    let (mut query, mut filter) = (BillQuery::default(), LineFilter::default());
    for (name, value) in pairs(text)? {
        if !query.set(name, value.clone())? {
            filter.set(name, &value)?;
        }
    }
    if query.by.is_some() {
        return Err("by is for bills; leave it out".to_owned());
    }
    Ok((query, filter))
}

/// The parameters, decoded.
fn pairs(text: Option<&str>) -> Result<Vec<(&str, String)>, String> {
    let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode_percent(value)
            .ok_or_else(|| format!("{name}={value} is not percent-encoded UTF-8; encode it again"))?;
        Ok((name, value))
    });
    pairs.collect()
}

/// A bill that cannot be made.
#[derive(Debug, Error)]
pub enum BillProblem {
    /// A text that is not a time.
    #[error("{name}: {text:?} is not a valid time; write it like 2026-01-31 or 2026-01-31T08:00:00Z")]
    Time {
        /// `from` or `to`.
        name: &'static str,
        /// The text.
        text: String,
    },
    /// A text that is not the name of a time zone.
    #[error("time_zone: {0:?} is no time zone that this machine knows; write it like Europe/Zurich or UTC")]
    Zone(String),
    /// A time that is not on a whole minute.
    #[error("{name}: {text:?} is not on a whole minute; bills cover whole minutes, leave out the seconds")]
    NotWholeMinute {
        /// `from` or `to`.
        name: &'static str,
        /// The text.
        text: String,
    },
    /// A bill that ends before it begins.
    #[error("from: {from:?} is after to: {to:?}; swap them")]
    Backwards {
        /// The requested start.
        from: String,
        /// The requested end.
        to: String,
    },
    /// A bill that begins in the future.
    #[error("from: {from:?} is in the future; the account is closed up to {closed_until}")]
    Future {
        /// The requested start.
        from: String,
        /// End of the last complete minute.
        closed_until: String,
    },
    /// The ledger cannot be read.
    #[error(transparent)]
    Ledger(#[from] crate::ledger::Error),
    /// The bill cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl BillProblem {
    /// Whether the request or the ledger is the reason.
    const fn status(&self) -> StatusCode {
        match self {
            Self::Ledger(error) => match error.cause {
                Cause::Currencies { .. }
                | Cause::MixedCurrencies { .. }
                | Cause::RolledUp { .. }
                | Cause::Deleted { .. } => StatusCode::BAD_REQUEST,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            },
            Self::Json(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// The bills of a ledger for a period, up to the last closed minute, each of a span in one currency; cancelled once `is_cancelled`
/// returns true. Dates and months are those of the requested time zone, else of `zone`, else of this machine. A `book`
/// replaces the recorded prices.
pub fn read_bills(
    path: &Path,
    query: &BillQuery,
    zone: Option<&TimeZone>,
    book: Option<&PriceBook>,
    is_cancelled: impl FnMut() -> bool + Send + 'static,
) -> Result<Vec<Bill>, BillProblem> {
    let (reader, [begin, end]) = open_period(path, query, zone)?;
    let mut reader = reader.by_day(query.by.is_some()).with_book(book.cloned());
    reader.interrupt_when(is_cancelled)?;
    let bills = reader.bills(begin, end)?;
    bills.first().map_or(Ok(()), |bill| check_begun(query, begin, bill))?;
    Ok(bills)
}

/// Explains lines of such a bill to a reader who may see that part of the account.
pub fn read_explanation(
    path: &Path,
    (query, filter): (&BillQuery, &LineFilter),
    zone: Option<&TimeZone>,
    visible: &VisibleAccount,
    is_cancelled: impl FnMut() -> bool + Send + 'static,
) -> Result<Explanation, BillProblem> {
    let (mut reader, [from, to]) = open_period(path, query, zone)?;
    reader.interrupt_when(is_cancelled)?;
    let explanation = reader.explain(ExplainedPart { from, to, filter, visible })?;
    check_begun(query, from, &explanation.bill)?;
    Ok(explanation)
}

/// A reader in the time zone of the query, and begin and end of its period.
fn open_period(
    path: &Path,
    query: &BillQuery,
    zone: Option<&TimeZone>,
) -> Result<(Reader, [Option<Utc>; 2]), BillProblem> {
    let (zone, period) = period(query, zone)?;
    Ok((Reader::open(path)?.in_zone(zone), period))
}

/// The time zone of a query, else `zone`, else that of this machine; and begin and end of its period.
///
/// # Errors
/// A text that is no time or time zone; an end before the begin.
pub fn period(
    query: &BillQuery,
    zone: Option<&TimeZone>,
) -> Result<(TimeZone, [Option<Utc>; 2]), BillProblem> {
    let zone = match (&query.time_zone, zone) {
        (Some(name), _) => TimeZone::get(name).map_err(|_| BillProblem::Zone(name.clone()))?,
        (None, Some(zone)) => zone.clone(),
        (None, None) => system_zone(),
    };
    let (from, to) = (query.from.as_deref(), query.to.as_deref());
    let [begin, end] = [("from", from), ("to", to)]
        .map(|(name, text)| text.map(|text| parse_time(name, text, &zone)).transpose());
    let (begin, end) = (begin?, end?);
    if let (Some(from), Some(to)) = (from, to)
        && begin > end
    {
        return Err(BillProblem::Backwards { from: from.into(), to: to.into() });
    }
    Ok((zone, [begin, end]))
}

/// Checks that the bill does not begin in the future.
fn check_begun(query: &BillQuery, begin: Option<Utc>, bill: &Bill) -> Result<(), BillProblem> {
    if let (Some(from), Some(begin)) = (&query.from, begin)
        && begin > bill.closed_until.max(system_now().utc)
    {
        let closed_until = bill.closed_until.to_string();
        return Err(BillProblem::Future { from: from.clone(), closed_until });
    }
    Ok(())
}

/// Parses a time with an offset, or a date with or without a time of day in that zone.
fn parse_time(name: &'static str, text: &str, zone: &TimeZone) -> Result<Utc, BillProblem> {
    let wrong = || BillProblem::Time { name, text: text.into() };
    let moment = match text.parse::<Timestamp>() {
        Ok(moment) => moment,
        Err(_) => {
            let local: DateTime = text.parse().map_err(|_| wrong())?;
            zone.to_timestamp(local).map_err(|_| wrong())?
        }
    };
    // The times of the ledger end in 2262.
    let moment = i64::try_from(moment.as_nanosecond()).ok().and_then(|moment| u64::try_from(moment).ok());
    let moment = moment.map(Utc).ok_or_else(wrong)?;
    if moment.floor(MINUTE) != moment {
        return Err(BillProblem::NotWholeMinute { name, text: text.into() });
    }
    Ok(moment)
}

/// The reader thread: makes bills until the agent stops or the server has ended.
pub(crate) fn answer_bills(
    path: &Path,
    config: &BillingConfig,
    mut requests: mpsc::Receiver<BillRequest>,
    stop: &Stop,
) {
    while let Some(BillRequest { query, explained, visible, reply }) = requests.blocking_recv() {
        if stop.is_called() {
            return;
        }
        // The server closes the reply at its deadline, or when the client has left.
        if reply.is_closed() {
            continue;
        }
        let reply = Arc::new(reply);
        let (receiver, stop) = (Arc::clone(&reply), stop.clone());
        let is_cancelled = move || receiver.is_closed() || stop.is_called();
        let json = match explained {
            None => {
                read_bills(path, &query, config.time_zone.as_ref(), None, is_cancelled).and_then(|bills| {
                    let bills = bills.into_iter().map(|bill| {
                        let bill = Bill {
                            billing_account: config.account.clone(),
                            invoice_issuer: config.invoice_issuer.clone(),
                            ..bill
                        };
                        bill.visible_to(&visible)
                    });
                    Ok(serde_json::to_string(&BillsJson(&bills.collect::<Vec<_>>()))?)
                })
            }
            Some(filter) => {
                read_explanation(path, (&query, &filter), config.time_zone.as_ref(), &visible, is_cancelled)
                    .and_then(|explanation| Ok(serde_json::to_string(&explanation)?))
            }
        };
        // The query has dropped its reference, so this is the last one.
        if let Some(reply) = Arc::into_inner(reply) {
            let _ = reply.send(json);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use tokio::sync::oneshot;

    use super::*;
    use crate::billing::only_bill;
    use crate::ledger::{Ledger, Opening};

    /// A ledger whose bill never ends.
    fn endless(path: &Path) {
        let connection = rusqlite::Connection::open(path).unwrap();
        let schema = "ALTER TABLE minute RENAME TO rows_of_minutes;
            CREATE VIEW minute AS
            WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers)
            SELECT n AS minute_ns, 0 AS gpu, 0 AS slot_ns, 0 AS coarse FROM numbers";
        connection.execute_batch(schema).unwrap();
    }

    #[test]
    fn a_date_without_an_offset_is_meant_in_the_node_s_time_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(5));
        let at = |text: &str| parse_time("from", text, &zone).map(|at| at.0 / 1_000_000_000);
        for text in ["2026-11-01", "2026-11-01T00:00", "2026-11-01 00:00:00", "2026-10-31T19:00:00Z"] {
            assert_eq!(at(text).unwrap(), 1_793_473_200, "{text}");
        }
        assert_eq!(at("2026-11-01T00:00:00+05:00").unwrap(), 1_793_473_200);
    }

    #[test]
    fn a_day_in_which_clocks_are_set_has_23_or_25_hours() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let at = |text: &str| parse_time("from", text, &zone).map(|at| at.0 / 1_000_000_000).unwrap();
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
        let told = |text: &str| parse_time("to", text, &TimeZone::UTC).unwrap_err().to_string();
        let seconds = "2026-11-01T08:00:30Z";
        assert_eq!(
            told(seconds),
            r#"to: "2026-11-01T08:00:30Z" is not on a whole minute; bills cover whole minutes, leave out the seconds"#
        );
        for text in ["yesterday", "", "2026-13-01", "1969-12-31", "2999-01-01", "2026-11", "11/01/2026"] {
            assert!(told(text).starts_with(&format!("to: {text:?} is not a valid time; ")), "{text}");
        }
        let path = Path::new("/nonexistent");
        let query = |from: &str, to: &str, zone: Option<&str>| BillQuery {
            from: Some(from.to_owned()),
            to: Some(to.to_owned()),
            time_zone: zone.map(str::to_owned),
            by: None,
        };
        let problem = |query| read_bills(path, &query, None, None, || false).unwrap_err();
        let nowhere = problem(query("2026-11-01", "2026-11-15", Some("Europe/Nowhere")));
        assert!(
            nowhere.to_string().starts_with(r#"time_zone: "Europe/Nowhere" is no time zone"#),
            "{nowhere}"
        );
        let backwards = problem(query("2026-11-15", "2026-11-01", None));
        assert_eq!(backwards.to_string(), r#"from: "2026-11-15" is after to: "2026-11-01"; swap them"#);
    }

    #[test]
    fn the_requested_time_zone_holds_then_the_configured_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        drop(Ledger::open(&path, &Opening::default()).unwrap());
        let configured = TimeZone::get("Asia/Kolkata").unwrap();
        let zone_of = |time_zone: Option<&str>| {
            let (from, time_zone) = (Some("2024-11-01".to_owned()), time_zone.map(str::to_owned));
            let query = BillQuery { from, time_zone, ..BillQuery::default() };
            let bill =
                only_bill(read_bills(&path, &query, Some(&configured), None, || false).unwrap()).unwrap();
            (bill.from_local, bill.time_zone)
        };
        let kathmandu = ("2024-11-01T00:00:00+05:45".to_owned(), "Asia/Kathmandu".to_owned());
        assert_eq!(zone_of(Some("Asia/Kathmandu")), kathmandu);
        let kolkata = ("2024-11-01T00:00:00+05:30".to_owned(), "Asia/Kolkata".to_owned());
        assert_eq!(zone_of(None), kolkata);
    }

    #[test]
    fn a_bill_that_begins_in_the_future_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        drop(Ledger::open(&path, &Opening::default()).unwrap());
        let query = BillQuery { from: Some("2199-01-01".to_owned()), ..BillQuery::default() };
        let problem = read_bills(&path, &query, Some(&TimeZone::UTC), None, || false).unwrap_err();
        assert_eq!(problem.status(), StatusCode::BAD_REQUEST);
        let told = problem.to_string();
        assert!(
            told.starts_with(r#"from: "2199-01-01" is in the future; the account is closed up to "#),
            "{told}"
        );
    }

    fn eventually(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(120), "it did not happen");
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
        let reader =
            thread::spawn(move || answer_bills(&path, &BillingConfig::default(), requests, &Stop::default()));
        let ask = || {
            let (reply, answer) = oneshot::channel();
            sender
                .blocking_send(BillRequest {
                    query: BillQuery::default(),
                    explained: None,
                    visible: VisibleAccount::Everything,
                    reply,
                })
                .unwrap();
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
        let reader = thread::spawn(move || answer_bills(&path, &BillingConfig::default(), requests, &theirs));
        let (reply, _answer) = oneshot::channel();
        sender
            .blocking_send(BillRequest {
                query: BillQuery::default(),
                explained: None,
                visible: VisibleAccount::Everything,
                reply,
            })
            .unwrap();
        eventually(|| sender.capacity() == 1);
        stop.call();
        drop(sender);
        eventually(|| reader.is_finished());
        reader.join().unwrap();
    }

    #[test]
    fn a_query_is_read_with_its_encoding_undone() {
        let query = parse_query(Some("from=2026-10-01T00%3A00%3A00+02:00&to=")).unwrap();
        assert_eq!(
            query,
            BillQuery { from: Some("2026-10-01T00:00:00+02:00".to_owned()), ..BillQuery::default() }
        );
        assert_eq!(parse_query(None).unwrap(), BillQuery::default());
        assert_eq!(parse_query(Some("&&")).unwrap(), BillQuery::default());
    }

    #[test]
    fn a_broken_query_is_named() {
        let error = |text| parse_query(Some(text)).unwrap_err();
        assert_eq!(error("form=1"), r#"unknown parameter "form"; use from, to, time_zone and by"#);
        assert_eq!(error("by=week"), r#"by="week" is not known; give by=day, or leave it out"#);
        assert_eq!(parse_query(Some("by=day")).unwrap().by.as_deref(), Some(BY_DAY));
        assert_eq!(error("from=1&from=2"), "from is given twice; give it once");
        for broken in ["from=%", "from=%4", "from=%zz", "from=%ff", "from=%+1"] {
            assert!(error(broken).contains("encode it again"), "{broken}");
        }
    }
}

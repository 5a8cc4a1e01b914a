//! The reader thread: makes bills, explanations, costs and advice from the ledger, so that SQL never blocks the I/O thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::mpsc;

use super::{Shared, StartError};
use crate::accounting::advice::AdviceRequest;
use crate::accounting::billing::{Bill, BillsJson, ExplainedWhole, only_bill};
use crate::accounting::ledger::{Error, Reader};
use crate::config::Config;
use crate::output::serve::{BillJob, BillRefusal, LedgerQuestion};
use crate::runtime::clock::Stop;
use crate::runtime::thread::Thread;

/// Starts the thread, if there is a ledger; without one the channel is closed.
pub(super) fn start(path: Option<PathBuf>, shared: &Shared) -> Result<mpsc::Sender<BillJob>, StartError> {
    /// Further requests are refused at once.
    const QUEUE_LENGTH: usize = 16;
    let (sender, jobs) = mpsc::channel(QUEUE_LENGTH);
    let Some(path) = path else { return Ok(sender) };
    let stop = shared.stop.clone();
    let policy = Arc::clone(&shared.policy);
    Thread::start("reader", move || {
        answer_bills(&path, || policy.now().config.clone(), jobs, &stop);
    })?;
    Ok(sender)
}

fn answer_bills(path: &Path, config: impl Fn() -> Config, mut jobs: mpsc::Receiver<BillJob>, stop: &Stop) {
    while let Some(BillJob { question, reply }) = jobs.blocking_recv() {
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
        let reader = Reader::open(path).and_then(|mut reader| {
            reader.interrupt_when(is_cancelled)?;
            Ok(reader)
        });
        let answer = reader.map_err(refusal).and_then(|mut reader| {
            let bills = match question {
                LedgerQuestion::Bill(request) => reader.bills(&request).map_err(refusal)?,
                LedgerQuestion::Explanation(request) => {
                    return json(&reader.explain(&request).map_err(refusal)?);
                }
                LedgerQuestion::Whole(request) => {
                    let bill = only_bill(reader.bills(&request.bill).map_err(refusal)?);
                    let bill =
                        bill.map_err(|error| BillRefusal { is_of_request: true, text: error.to_string() })?;
                    return json(&ExplainedWhole::of_bill(bill, &request.filters));
                }
                LedgerQuestion::Jobs(request) => return json(&reader.jobs(&request).map_err(refusal)?),
                LedgerQuestion::Costs(request) => return json(&reader.costs(&request).map_err(refusal)?),
                LedgerQuestion::Advice(request) => {
                    let dismissed = config().advice.dismiss.into();
                    let request = AdviceRequest { dismissed, ..request };
                    return json(&reader.advice(&request).map_err(refusal)?);
                }
                LedgerQuestion::Fit(request) => return json(&reader.fit(&request).map_err(refusal)?),
                LedgerQuestion::Demand(request) => return json(&reader.demand(&request).map_err(refusal)?),
            };
            let billing = config().billing;
            let bills = bills.into_iter().map(|bill| Bill {
                billing_account: billing.account.clone(),
                invoice_issuer: billing.invoice_issuer.clone(),
                ..bill
            });
            json(&BillsJson(&bills.collect::<Vec<_>>()))
        });
        // The query has dropped its reference, so this is the last one.
        if let Some(reply) = Arc::into_inner(reply) {
            reply.send(answer);
        }
    }
}

fn refusal(error: Error) -> BillRefusal {
    BillRefusal { is_of_request: error.is_of_request(), text: error.to_string() }
}

fn json(answer: &impl Serialize) -> Result<String, BillRefusal> {
    serde_json::to_string(answer)
        .map_err(|error| BillRefusal { is_of_request: false, text: error.to_string() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use hyper::body::Bytes;
    use tokio::sync::oneshot;

    use super::*;
    use crate::accounting::billing::BillRequest;
    use crate::accounting::ledger::{Ledger, Opening};
    use crate::model::Utc;

    type Answer = oneshot::Receiver<Result<Bytes, BillRefusal>>;

    fn ledger(directory: &tempfile::TempDir) -> PathBuf {
        let path = directory.path().join("ledger.db");
        drop(Ledger::open(&path, &Opening::default()).unwrap());
        path
    }

    /// A ledger whose bill never ends.
    fn endless(directory: &tempfile::TempDir) -> PathBuf {
        let path = ledger(directory);
        let connection = rusqlite::Connection::open(&path).unwrap();
        let schema = "ALTER TABLE minute RENAME TO rows_of_minutes;
            CREATE VIEW minute AS
            WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers)
            SELECT n AS minute_ns, 0 AS gpu, 0 AS slot_ns, 0 AS coarse FROM numbers";
        connection.execute_batch(schema).unwrap();
        path
    }

    fn ask(sender: &mpsc::Sender<BillJob>, request: BillRequest) -> Answer {
        let (job, answer) = BillJob::new(LedgerQuestion::Bill(request), false);
        sender.blocking_send(job).unwrap();
        answer
    }

    fn eventually(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(120), "it did not happen");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_bill_that_begins_in_the_future_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = ledger(&directory);
        let (sender, jobs) = mpsc::channel(1);
        let from = Some(Utc(7_226_582_400_000_000_000));
        let answer = ask(&sender, BillRequest { from, now: Utc(0), ..BillRequest::default() });
        drop(sender);
        answer_bills(&path, Config::default, jobs, &Stop::default());
        let refusal = answer.blocking_recv().unwrap().unwrap_err();
        assert!(refusal.is_of_request);
        let told = "from: 2199-01-01T00:00:00+00:00 is in the future; the account is closed up to ";
        assert!(refusal.text.contains(told), "{}", refusal.text);
    }

    #[test]
    fn a_bill_that_nobody_waits_for_is_interrupted_or_not_begun_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = endless(&directory);
        let (sender, jobs) = mpsc::channel(2);
        let reader = thread::spawn(move || answer_bills(&path, Config::default, jobs, &Stop::default()));
        let awaited = ask(&sender, BillRequest::default());
        eventually(|| sender.capacity() == 2);
        let queued = ask(&sender, BillRequest::default());
        drop(queued);
        drop(awaited);
        drop(sender);
        eventually(|| reader.is_finished());
        reader.join().unwrap();
    }

    #[test]
    fn a_bill_is_interrupted_when_the_agent_stops() {
        let directory = tempfile::tempdir().unwrap();
        let path = endless(&directory);
        let stop = Stop::default();
        let (sender, jobs) = mpsc::channel(1);
        let theirs = stop.clone();
        let reader = thread::spawn(move || answer_bills(&path, Config::default, jobs, &theirs));
        let _answer = ask(&sender, BillRequest::default());
        eventually(|| sender.capacity() == 1);
        stop.call();
        drop(sender);
        eventually(|| reader.is_finished());
        reader.join().unwrap();
    }
}

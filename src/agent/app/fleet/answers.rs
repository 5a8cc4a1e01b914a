//! The threads that answer: one reads the cache, and one makes bills and explanations from the files, of which each does one
//! thing at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::FleetShared;
use super::statements::KnownStatements;
use crate::accounting::advice::{AdviceRequest, job_report};
use crate::accounting::billing::costs::{CostReport, CostRequest};
use crate::accounting::billing::{
    Bill, BillRequest, BillsJson, ExplainedWhole, Explanation, GpuRecord, only_bill,
};
use crate::accounting::day_files::{
    CacheError, CostCacheReader, ExportError, ExportSource, make_advice, make_bills_unless, make_demand,
    make_fit,
};
use crate::model::VisibleAccount;
use crate::output::serve::{BillJob, BillRefusal, BillReply, LedgerQuestion};
use crate::runtime::thread::{self, Thread, VitalThreads};

/// Further requests are refused at once.
const QUEUE_LENGTH: usize = 16;

#[derive(Clone)]
pub(super) struct Answers {
    pub(super) reader: CostCacheReader,
    pub(super) statements: Option<PathBuf>,
    pub(super) shared: Arc<FleetShared>,
}

impl Answers {
    pub(super) fn start(self, vital: &VitalThreads) -> Result<mpsc::Sender<BillJob>, thread::Error> {
        let (sender, jobs) = mpsc::channel(QUEUE_LENGTH);
        // A job comes with the only place, or is refused.
        let (files, of_files) = sync_channel::<(BillJob, OwnedSemaphorePermit)>(1);
        let bills = self.clone();
        let stop = self.shared.stop.clone();
        Thread::start_again("bills", &stop, move || {
            while let Ok((BillJob { question, reply }, place)) = of_files.recv() {
                if bills.shared.stop.is_called() {
                    return;
                }
                answer(reply, &bills.shared, |is_cancelled| {
                    let answer = bills.read_files(question, &is_cancelled);
                    // Whoever has the answer may ask again.
                    drop(place);
                    answer
                });
            }
        })?;
        let mut statements = KnownStatements::new(self.statements.clone());
        Thread::start_vital("costs", vital, move || self.answer_all(jobs, &files, &mut statements))?;
        Ok(sender)
    }

    fn answer_all(
        &self,
        mut jobs: mpsc::Receiver<BillJob>,
        files: &SyncSender<(BillJob, OwnedSemaphorePermit)>,
        statements: &mut KnownStatements,
    ) {
        let of_files = Arc::new(Semaphore::new(1));
        while let Some(BillJob { question, reply }) = jobs.blocking_recv() {
            if self.shared.stop.is_called() {
                return;
            }
            match question {
                LedgerQuestion::Costs(request) => {
                    answer(reply, &self.shared, |is_cancelled| {
                        self.costs(&request, statements, is_cancelled)
                    });
                }
                question => match Arc::clone(&of_files).try_acquire_owned() {
                    // The thread is gone where the server stops.
                    Ok(place) => drop(files.try_send((BillJob { question, reply }, place))),
                    Err(_) => {
                        let text = "another answer is being made from the exports; try again soon".to_owned();
                        reply.send(Err(BillRefusal { is_of_request: false, text }));
                    }
                },
            }
        }
    }

    fn costs(
        &self,
        request: &CostRequest,
        statements: &mut KnownStatements,
        is_cancelled: impl FnMut() -> bool + Send + 'static,
    ) -> Result<String, BillRefusal> {
        let look = self.shared.status.look();
        if look.ended.is_none() {
            return Err(not_of_request(&CacheError::Unfilled, &VisibleAccount::Everything));
        }
        let report = self.reader.costs(request, &look.refused, is_cancelled);
        let mut report: CostReport = report.map_err(|error| match error {
            CacheError::Request(text) => of_request(text),
            error => not_of_request(&error, &request.visible),
        })?;
        report.statement = statements.compared(request, &report);
        json(&report)
    }

    fn read_files(
        &self,
        question: LedgerQuestion,
        is_cancelled: &(impl Fn() -> bool + Sync),
    ) -> Result<String, BillRefusal> {
        let one = |bills| only_bill(bills).map_err(|error| of_request(error.to_string()));
        let (request, is_explanation) = match question {
            LedgerQuestion::Whole(request) => {
                let bill = one(self.bills(&request.bill, is_cancelled)?)?;
                return json(&ExplainedWhole::of_bill(bill, &request.filters));
            }
            LedgerQuestion::Jobs(request) => {
                let bill = one(self.bills_of_jobs(&request, is_cancelled)?)?;
                return json(&job_report(&Explanation::of_bill(bill), &request));
            }
            LedgerQuestion::Bill(request) => (request, false),
            LedgerQuestion::Explanation(request) => (request, true),
            LedgerQuestion::Costs(_) => return Err(of_request("costs are read from the cache".to_owned())),
            LedgerQuestion::Advice(request) => return self.advice(request, is_cancelled),
            LedgerQuestion::Fit(request) => {
                return planned(make_fit(&self.shared.source(), &request, unless(is_cancelled)));
            }
            LedgerQuestion::Demand(request) => {
                return planned(make_demand(&self.shared.source(), &request, unless(is_cancelled)));
            }
        };
        let bills = self.bills(&request, is_cancelled)?;
        if !is_explanation {
            return json(&BillsJson(&bills));
        }
        let mut explanation = Explanation::of_bill(one(bills)?);
        if request.visible != VisibleAccount::Everything {
            explanation.bill.partial = true;
            explanation.gpus.iter_mut().for_each(GpuRecord::hide_others);
        }
        json(&explanation)
    }

    /// The stretches of a finding are read from the files; all else is made already.
    fn advice(
        &self,
        request: AdviceRequest,
        is_cancelled: &(impl Fn() -> bool + Sync),
    ) -> Result<String, BillRefusal> {
        let dismissed = self.shared.config().advice.dismiss.as_slice().into();
        let request = AdviceRequest { dismissed, ..request };
        if request.explain.is_none() {
            let advice = self.shared.advice.answer(&request);
            return json(&advice.map_err(|text| BillRefusal { is_of_request: false, text })?);
        }
        let source = self.shared.source_of_advice();
        let advice = source.and_then(|source| make_advice(&source, &request, unless(is_cancelled)));
        json(&advice.map_err(|error| not_of_request(&error, &request.visible))?)
    }

    /// Bills of the files in which the jobs may be: to read those of a month of all nodes takes longer than an answer may.
    fn bills_of_jobs(
        &self,
        request: &BillRequest,
        is_cancelled: &(impl Fn() -> bool + Sync),
    ) -> Result<Vec<Bill>, BillRefusal> {
        let of_user = match &request.visible {
            VisibleAccount::OfSlurmUser { user, .. } => Some(user.to_string()),
            _ => None,
        };
        let label = request.filter.common_label().or(of_user);
        let left_out = label.map(|label| self.reader.files_without(&label, request, &self.shared.exports));
        let left_out = left_out.transpose().map_err(|error| not_of_request(&error, &request.visible))?;
        self.bills_from(
            &ExportSource { left_out: left_out.as_ref(), ..self.shared.source() },
            request,
            is_cancelled,
        )
    }

    fn bills(
        &self,
        request: &BillRequest,
        is_cancelled: &(impl Fn() -> bool + Sync),
    ) -> Result<Vec<Bill>, BillRefusal> {
        self.bills_from(&self.shared.source(), request, is_cancelled)
    }

    fn bills_from(
        &self,
        source: &ExportSource<'_>,
        request: &BillRequest,
        is_cancelled: &(impl Fn() -> bool + Sync),
    ) -> Result<Vec<Bill>, BillRefusal> {
        let made = make_bills_unless(source, request, is_cancelled);
        let made = made.map_err(|error| match error {
            ExportError::Grid(_) | ExportError::Book(_) => of_request(error.to_string()),
            error => not_of_request(&error, &request.visible),
        })?;
        let config = &self.shared.config().billing;
        let bills = made.into_iter().map(|bill| Bill {
            billing_account: config.account.clone(),
            invoice_issuer: config.invoice_issuer.clone(),
            ..bill.visible_to(&request.visible)
        });
        Ok(bills.collect())
    }
}

/// Answers a job, unless nobody waits for it any more; the work is told when that becomes so.
fn answer<F>(reply: BillReply, shared: &Arc<FleetShared>, work: F)
where
    F: FnOnce(Box<dyn Fn() -> bool + Send + Sync>) -> Result<String, BillRefusal>,
{
    if reply.is_closed() {
        return;
    }
    let reply = Arc::new(reply);
    let (receiver, stop) = (Arc::clone(&reply), shared.stop.clone());
    let answer = work(Box::new(move || receiver.is_closed() || stop.is_called()));
    // The work has dropped its reference, so this is the last one.
    if let Some(reply) = Arc::into_inner(reply) {
        reply.send(answer);
    }
}

/// The error as it is for a reader of everything. It may name files, of which others see nothing.
fn not_of_request(error: &dyn std::fmt::Display, visible: &VisibleAccount) -> BillRefusal {
    let text = if *visible == VisibleAccount::Everything {
        error.to_string()
    } else {
        tracing::warn!(%error, "a reader of some tenants has no answer");
        "the exports cannot be read; the log of this server says why".to_owned()
    };
    BillRefusal { is_of_request: false, text }
}

/// A step between two files that ends the work once it is cancelled.
fn unless(is_cancelled: impl Fn() -> bool) -> impl FnMut(usize, usize) -> Result<(), ExportError> {
    move |_, _| if is_cancelled() { Err(ExportError::Cancelled) } else { Ok(()) }
}

fn planned(answer: Result<impl Serialize, ExportError>) -> Result<String, BillRefusal> {
    json(&answer.map_err(|error| match error {
        ExportError::Request(text) => of_request(text),
        error => not_of_request(&error, &VisibleAccount::Everything),
    })?)
}

const fn of_request(text: String) -> BillRefusal {
    BillRefusal { is_of_request: true, text }
}

fn json(answer: &impl Serialize) -> Result<String, BillRefusal> {
    serde_json::to_string(answer)
        .map_err(|error| BillRefusal { is_of_request: false, text: error.to_string() })
}

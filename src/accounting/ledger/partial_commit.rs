//! Commits the valid parts of a batch that was refused.
//!
//! All GPUs of a tick share one transaction, so one GPU's invalid part refuses all. Only that part is dropped and reported;
//! the next window of its GPU settles the lost time as unobserved.

use std::mem::take;
use std::sync::Arc;

use super::error::Error;
use super::owner::Ledger;
use super::queue::split_by_gpu;
use crate::accounting::batches::{Acknowledged, LedgerBatch};

#[derive(Debug, Default)]
pub struct PartialCommit {
    /// What was committed, in order.
    pub acknowledged: Vec<Acknowledged>,
    /// What was dropped: UUID of the GPU, and the reason.
    pub dropped: Vec<(Arc<str>, Error)>,
    /// What the disk prevented, in order; put it back into the queue.
    pub unfinished: Vec<LedgerBatch>,
    pub prevented: Option<Error>,
}

impl Ledger {
    /// Commits a refused batch GPU by GPU, each with all holders. The part of a GPU that is refused is committed window by
    /// window, and then its spans; what is still refused is dropped. What the disk prevents is returned with all that
    /// follows it.
    pub fn commit_by_gpu(&mut self, batch: LedgerBatch) -> PartialCommit {
        let mut outcome = PartialCommit::default();
        for (gpu, part) in split_by_gpu(batch) {
            if let Some(part) = self.commit_part(&gpu, part, &mut outcome, false) {
                for step in split_into_steps(part) {
                    self.commit_part(&gpu, step, &mut outcome, true);
                }
            }
        }
        outcome
    }

    /// Commits a part. A refused part is returned, or dropped on the `last` try.
    fn commit_part(
        &mut self,
        gpu: &Arc<str>,
        part: LedgerBatch,
        outcome: &mut PartialCommit,
        last: bool,
    ) -> Option<LedgerBatch> {
        if outcome.prevented.is_some() {
            outcome.unfinished.push(part);
            return None;
        }
        match self.commit(&part) {
            Ok(acknowledged) => outcome.acknowledged.push(acknowledged),
            Err(error) if error.may_pass() => {
                outcome.unfinished.push(part);
                outcome.prevented = Some(error);
            }
            Err(error) if last => outcome.dropped.push((Arc::clone(gpu), error)),
            Err(_) => return Some(part),
        }
        None
    }
}

/// The smallest batches that make up the batch of one GPU: its registration, each window, its spans.
fn split_into_steps(mut part: LedgerBatch) -> Vec<LedgerBatch> {
    let (now, sync) = (part.now, part.sync);
    let empty = || LedgerBatch { now, sync, ..LedgerBatch::default() };
    let (closed, resumed, open) = (take(&mut part.closed), take(&mut part.resumed), take(&mut part.open));
    let mut steps = vec![part];
    for closed in closed {
        // The end of a later suspension would move the account past this window.
        let before = resumed.iter().filter(|resumed| resumed.at <= closed.settlement.from).cloned();
        steps.push(LedgerBatch { resumed: before.collect(), closed: vec![closed], ..empty() });
    }
    steps.push(LedgerBatch { resumed, ..empty() });
    steps.extend(open.into_iter().map(|open| LedgerBatch { open: vec![open], ..empty() }));
    steps
}

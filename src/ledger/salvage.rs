//! What to do with a batch that was refused: commit GPU by GPU what can be, and drop what cannot.
//!
//! All GPUs share one transaction, so that a tick costs one; the price is that one GPU's refusal refuses
//! all. A refusal stays one however often it is asked, so the guilty part is dropped and told, not kept:
//! the GPU's next window names the hole.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::{Acknowledged, Batch};
use super::error::Error;
use super::owner::Ledger;

/// What became of a batch that was refused as a whole.
#[derive(Debug, Default)]
pub struct Salvage {
    /// What was committed, in order.
    pub acknowledged: Vec<Acknowledged>,
    /// What was dropped: the GPU, and why.
    pub dropped: Vec<(Arc<str>, Error)>,
    /// What the disk prevented, to be put back; in order.
    pub unfinished: Vec<Batch>,
    /// Why it did.
    pub prevented: Option<Error>,
}

impl Ledger {
    /// Commits a refused batch GPU by GPU, each with all holders; of a GPU whose part is refused, window by
    /// window and then its spans. Only what is still refused is dropped. What the disk prevents is handed
    /// back with all that comes after it.
    pub fn salvage(&mut self, batch: Batch) -> Salvage {
        let mut salvage = Salvage::default();
        for (gpu, part) in by_gpu(batch) {
            if let Some(part) = self.rescue(&gpu, part, &mut salvage, false) {
                for step in steps(part) {
                    self.rescue(&gpu, step, &mut salvage, true);
                }
            }
        }
        salvage
    }

    /// Tries a part; one that is refused is given back, or dropped where it is the `last` try.
    fn rescue(&mut self, gpu: &Arc<str>, part: Batch, salvage: &mut Salvage, last: bool) -> Option<Batch> {
        if salvage.prevented.is_some() {
            salvage.unfinished.push(part);
            return None;
        }
        match self.commit(&part) {
            Ok(acknowledged) => salvage.acknowledged.push(acknowledged),
            Err(error) if error.may_pass() => {
                salvage.unfinished.push(part);
                salvage.prevented = Some(error);
            }
            Err(error) if last => salvage.dropped.push((Arc::clone(gpu), error)),
            Err(_) => return Some(part),
        }
        None
    }
}

/// The batch of each GPU alone.
fn by_gpu(batch: Batch) -> BTreeMap<Arc<str>, Batch> {
    let Batch {
        now,
        anchor,
        sights,
        expected,
        latched,
        xids,
        holders,
        grantees,
        open,
        closed,
        resumed,
        sync,
    } = batch;
    let mut parts = BTreeMap::<Arc<str>, Batch>::new();
    let empty = || Batch {
        now,
        anchor,
        sync,
        holders: holders.clone(),
        grantees: grantees.clone(),
        ..Batch::default()
    };
    for sight in sights {
        parts.entry(Arc::clone(&sight.gpu.uuid)).or_insert_with(empty).sights.push(sight);
    }
    for expected in expected {
        parts.entry(Arc::clone(&expected.gpu)).or_insert_with(empty).expected.push(expected);
    }
    for latched in latched {
        parts.entry(Arc::clone(&latched.gpu)).or_insert_with(empty).latched.push(latched);
    }
    for sums in xids {
        parts.entry(Arc::clone(&sums.gpu)).or_insert_with(empty).xids.push(sums);
    }
    for closed in closed {
        parts.entry(Arc::clone(&closed.gpu)).or_insert_with(empty).closed.push(closed);
    }
    for resumed in resumed {
        parts.entry(Arc::clone(&resumed.gpu)).or_insert_with(empty).resumed.push(resumed);
    }
    for open in open {
        parts.entry(Arc::clone(&open.gpu)).or_insert_with(empty).open.push(open);
    }
    parts
}

/// The smallest batches that make up the batch of one GPU: its sight, each window, its spans.
fn steps(part: Batch) -> Vec<Batch> {
    let Batch {
        now,
        anchor,
        sights,
        expected,
        latched,
        xids,
        holders,
        grantees,
        open,
        closed,
        resumed,
        sync,
    } = part;
    let empty = || Batch { now, anchor, sync, ..Batch::default() };
    let mut steps = vec![Batch { sights, expected, latched, xids, holders, grantees, ..empty() }];
    for closed in closed {
        // What rests later must not be passed by.
        let before = resumed.iter().filter(|resumed| resumed.at <= closed.settlement.from).cloned();
        steps.push(Batch { resumed: before.collect(), closed: vec![closed], ..empty() });
    }
    steps.push(Batch { resumed, ..empty() });
    steps.extend(open.into_iter().map(|open| Batch { open: vec![open], ..empty() }));
    steps
}

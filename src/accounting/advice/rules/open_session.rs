//! A3 of interactive workloads: a notebook or a shell that keeps memory on a GPU and computes nothing for hours.

use super::{
    AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup, beyond, count_gpus, count_workloads,
    counted, hours, sum,
};
use crate::accounting::advice::evidence::{IdleStretch, ProcessPresence};
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::gates::{LEAST_TIME, draws_power, grace_without_use};
use crate::model::{Grade, Nanoseconds};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::OpenSession,
    code: "A3",
    rule: "an interactive workload with a process that uses nothing for more than 2 hours, and draws no more power than a waiting \
           process; the first 2 hours do not count",
    risk: "what is only in the memory of the process is lost when it ends",
    how: "stop the notebook or session after work, by a culler of the notebook server or a time limit of the partition; save to disk first",
    is_credit: false,
    find,
};

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let mut stretches = Vec::new();
    for (key, class, slot, evidence) in group.slots() {
        let Some(grace) = grace_without_use(class) else { continue };
        let is_waiting = |one: &IdleStretch| one.process == ProcessPresence::Present && !draws_power(one);
        let found = beyond(known.unclaimed(key, slot, evidence), grace, is_waiting, draws_power).into_iter();
        stretches.extend(found.map(|stretch| FoundStretch { key, slot, stretch }));
    }
    let last = stretches.iter().map(|found| found.stretch.to).max()?;
    if sum(&stretches) < LEAST_TIME || !known.is_recent(last) {
        return None;
    }
    let (gpus, runs) = (count_gpus(&stretches), count_workloads(&stretches));
    let longest = stretches.iter().map(|found| found.stretch.length()).max().unwrap_or(Nanoseconds(0));
    let what = format!(
        "kept a process on {} in {} without using it for {} of GPU time; at most {} at a time",
        counted(gpus, "GPU"),
        counted(runs, "run"),
        hours(sum(&stretches)),
        hours(longest),
    );
    Some(FoundAdvice::idle(what, String::new(), runs, Grade::Measured, stretches))
}

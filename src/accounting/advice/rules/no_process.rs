//! A1: GPUs that are held while their holder has no process on them. This is what nobody else's tools show, since they look at
//! processes.

use super::{
    AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup, beyond, count_gpus, count_workloads,
    counted, hours, sum,
};
use crate::accounting::advice::evidence::{IdleStretch, ProcessPresence};
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::gates::{LEAST_TIME, grace_without_process};
use crate::model::{Grade, Nanoseconds};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::HeldWithoutProcess,
    code: "A1",
    rule: "held without a process for more than 30 minutes (batch) or 2 hours (interactive, unknown); that time does not count",
    risk: "none for the workload, which had nothing there; a person may have kept the place on purpose",
    how: "end the job or pod when its work is done, and load images and data before it starts; hand GPUs out by a scheduler instead of a \
          standing grant; where it is meant to be, give it the class warm or reserve in advice.classes",
    is_credit: false,
    find,
};

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let mut stretches = Vec::new();
    for (key, class, slot, evidence) in group.slots() {
        let reports_memory = known.evidence.gpus.get(&slot.uuid).is_some_and(|gpu| gpu.reports_memory);
        let Some(grace) = grace_without_process(class).filter(|_| reports_memory) else { continue };
        let is_absent = |one: &IdleStretch| one.process == ProcessPresence::Absent;
        let is_present = |one: &IdleStretch| one.process == ProcessPresence::Present;
        let found = beyond(known.unclaimed(key, slot, evidence), grace, is_absent, is_present).into_iter();
        stretches.extend(found.map(|stretch| FoundStretch { key, slot, stretch }));
    }
    let last = stretches.iter().map(|found| found.stretch.to).max()?;
    if sum(&stretches) < LEAST_TIME || !known.is_recent(last) {
        return None;
    }
    let (gpus, runs) = (count_gpus(&stretches), count_workloads(&stretches));
    let longest = stretches.iter().map(|found| found.stretch.length()).max().unwrap_or(Nanoseconds(0));
    let what = format!(
        "held {} of GPU time without a process, on {} in {}; at most {} at a time",
        hours(sum(&stretches)),
        counted(gpus, "GPU"),
        counted(runs, "run"),
        hours(longest),
    );
    Some(FoundAdvice::idle(what, String::new(), runs, Grade::Measured, stretches))
}

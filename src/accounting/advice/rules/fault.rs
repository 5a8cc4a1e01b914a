//! A8: time that was held and charged while a fault of the platform kept the GPU from working. It is a credit that the operator may
//! give, not a saving. Time of a GPU that had failed is charged to nobody, so it is in no such finding.

use super::{
    AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup, count_gpus, count_workloads, counted, hours,
    sum,
};
use crate::accounting::advice::evidence::{EvidenceGpu, IdleStretch, SlotEvidence};
use crate::accounting::advice::finding::FindingKind;
use crate::model::{Grade, Nanoseconds, STOPS_WORK, Utc};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::HeldBesideFault,
    code: "A8",
    rule: "worked, and then used nothing for 10 minutes or more while its GPU had a fault of hardware, driver or fabric that stops work; \
           errors of applications do not count",
    risk: "the holder may have been idle for another reason",
    how: "look at the fault with gpumeter explain, and give the amount back with gpumeter statement credit",
    is_credit: true,
    find,
};

const LEAST: Nanoseconds = Nanoseconds::from_seconds(10 * 60);

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let (mut stretches, mut kinds) = (Vec::new(), Vec::new());
    for (key, _, slot, evidence) in group.slots() {
        let Some(gpu) = known.evidence.gpus.get(&slot.uuid) else { continue };
        // Who may see only his own lines learns of the GPU only what was while nobody else was there.
        let own = known.free(key, slot, evidence).filter(|stretch| stretch.is_alone || !known.is_partial);
        for (kind, stretch) in beside_faults(gpu, evidence, own) {
            kinds.push(kind);
            stretches.push(FoundStretch { key, slot, stretch });
        }
    }
    let last = stretches.iter().map(|found| found.stretch.to).max()?;
    kinds.sort_unstable();
    kinds.dedup();
    let what = format!(
        "idle for {} beside a fault ({}), on {} in {}",
        hours(sum(&stretches)),
        kinds.join(", "),
        counted(count_gpus(&stretches), "GPU"),
        counted(count_workloads(&stretches), "run"),
    );
    let runs = count_workloads(&stretches);
    let found = FoundAdvice::idle(what, kinds.join(","), runs, Grade::Measured, stretches);
    known.is_recent(last).then_some(found)
}

/// The parts of stretches that are beside a fault, each once, with its kind.
fn beside_faults<'a>(
    gpu: &'a EvidenceGpu,
    evidence: &SlotEvidence,
    stretches: impl Iterator<Item = IdleStretch>,
) -> Vec<(&'a str, IdleStretch)> {
    let faults = faults(gpu);
    let parts = stretches.flat_map(|stretch| {
        let part = move |(kind, from, to): &(&'a str, Utc, Utc)| {
            let part = stretch.between(*from, *to).filter(|part| part.length() >= LEAST)?;
            worked_before(evidence, part, *from).then_some((*kind, part))
        };
        faults.iter().filter_map(part).collect::<Vec<_>>()
    });
    parts.collect()
}

/// The times in which work stops, with the first kind of fault of each.
fn faults(gpu: &EvidenceGpu) -> Vec<(&str, Utc, Utc)> {
    let faults = gpu.incidents.iter().filter(|incident| STOPS_WORK.contains(&&*incident.kind));
    let mut faults: Vec<(&str, Utc, Utc)> = faults.map(|one| (&*one.kind, one.from, one.to)).collect();
    faults.sort_unstable_by_key(|(kind, from, to)| (*from, *to, *kind));
    let mut merged = Vec::<(&str, Utc, Utc)>::new();
    for (kind, from, to) in faults {
        match merged.last_mut() {
            Some((_, _, end)) if from <= *end => *end = to.max(*end),
            _ => merged.push((kind, from, to)),
        }
    }
    merged
}

/// Whether the holder worked before the fault and stopped with it: who was idle before would have been idle without it.
fn worked_before(evidence: &SlotEvidence, part: IdleStretch, fault: Utc) -> bool {
    let mut idle_since = part.from;
    for before in evidence.stretches.iter().rev().filter(|stretch| stretch.from < part.from) {
        if before.to < idle_since {
            break;
        }
        idle_since = before.from;
    }
    let run = evidence.runs.iter().find(|run| run.begin <= part.from && part.from < run.end);
    let has_worked = run.and_then(|run| run.first_use).is_some_and(|first| first < fault);
    // A fault may be noticed only when work has stopped for it.
    has_worked && idle_since.plus(Nanoseconds(LEAST.0 + part.grid.0)) >= fault
}

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
    let idle = evidence.stretches.iter().filter(|stretch| stretch.idle.0 > 0);
    for before in idle.rev().filter(|stretch| stretch.from < part.from) {
        // In a shorter break it may as well have been idle while nothing was measured, as where a driver hangs before its fault is told.
        if idle_since.since(before.to) >= LEAST {
            break;
        }
        idle_since = before.from;
    }
    let run = evidence.runs.iter().find(|run| run.begin <= part.from && part.from < run.end);
    let has_worked = run.and_then(|run| run.first_use).is_some_and(|first| first < fault);
    // A fault may be noticed only when work has stopped for it.
    has_worked && idle_since.plus(Nanoseconds(LEAST.0 + part.grid.0)) >= fault
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::advice::evidence::{ProcessPresence, SlotRun};
    use crate::model::{MINUTE, Microjoules};

    #[test]
    fn who_was_idle_before_a_time_without_measurement_did_not_work_until_the_fault() {
        let at = |minutes: u64| Utc(minutes * MINUTE.0);
        let idle = |from: u64, to: u64| IdleStretch {
            from: at(from),
            to: at(to),
            grid: MINUTE,
            idle: at(to).since(at(from)),
            unknown: Nanoseconds(0),
            process: ProcessPresence::Present,
            waiting: Microjoules(0),
            rate: None,
            is_alone: true,
        };
        let run = SlotRun { end: at(200), first_use: Some(at(0)), ..SlotRun::default() };
        let worked = |stretches: &[IdleStretch]| {
            let evidence =
                SlotEvidence { runs: vec![run], stretches: stretches.to_vec(), ..SlotEvidence::default() };
            worked_before(&evidence, idle(98, 150), at(100))
        };
        assert!(worked(&[idle(98, 150)]) && worked(&[idle(20, 60), idle(98, 150)]));
        assert!(!worked(&[idle(60, 150)]));
        assert!(!worked(&[idle(20, 95), idle(98, 150)]), "three minutes were not measured");
    }
}

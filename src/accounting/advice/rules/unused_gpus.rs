//! A2: a workload that asks for more GPUs than it uses, run after run.

use std::cmp::Reverse;

use super::runs::{WholeRun, runs};
use super::{AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup, counted};
use crate::accounting::advice::evidence::{IdleStretch, SlotEvidence, SlotRun};
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::gates::{Recurrence, draws_power};
use crate::model::{DAY, Nanoseconds};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::UnusedGpus,
    code: "A2",
    rule: "in every run at least so many of its GPUs were used for less than 1 % of the time while each of the others was used for more \
           than 10 %; 3 runs or 7 days, 24 GPU-hours, at most 5 % unmeasured",
    risk: "a later run may need them, as with another input",
    how: "ask for fewer GPUs (--gpus of Slurm, nvidia.com/gpu of the pod), or start one rank per GPU (torchrun --nproc-per-node, srun --ntasks)",
    is_credit: false,
    find,
};

/// A shorter run, such as one that failed at its start, says nothing.
const LEAST_RUN: Nanoseconds = Nanoseconds::from_seconds(30 * 60);

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let is_long = |run: &WholeRun<'_>| {
        // Some ranks of one that goes on may start late.
        run.slots.len() > 1 && run.length() >= if run.goes_on { DAY } else { LEAST_RUN }
    };
    let runs: Vec<WholeRun<'a>> = runs(group).into_iter().filter(is_long).collect();
    let mut recurrence = Recurrence::default();
    let mut unused = Vec::new();
    for run in &runs {
        if !run.is_even() {
            return None;
        }
        let of_run = unused_of(run)?;
        if of_run.len() == run.slots.len() {
            // All idle, which is another finding.
            continue;
        }
        run.add_to(&mut recurrence);
        unused.push((run, of_run));
    }
    let least = unused.iter().map(|(_, places)| places.len()).min().filter(|least| *least > 0)?;
    if !recurrence.is_enough(known.evidence.to) {
        return None;
    }
    let (mut stretches, mut used) = (Vec::new(), Nanoseconds(0));
    for (run, places) in &unused {
        for place in places.iter().take(least) {
            let (slot, evidence, of_slot) = run.slots[*place];
            used += of_slot.used;
            let free = known.free(run.key, slot, evidence);
            let parts = free.filter_map(|stretch| stretch.between(of_slot.begin, of_slot.end));
            stretches.extend(parts.map(|stretch| FoundStretch { key: run.key, slot, stretch }));
        }
    }
    let of = unused.last().map_or(0, |(run, _)| run.slots.len());
    let is_mig = stretches.iter().any(|found| found.slot.gpu_instance.is_some());
    let noun = if is_mig { "MIG instances" } else { "GPUs" };
    let how = if used.0 == 0 { "never used" } else { "used for less than 1 % of the time" };
    let what = format!("{least} of {of} {noun} were {how}, in {}", counted(recurrence.runs, "run"));
    let (facts, runs, grade) = (format!("{least}/{of}"), recurrence.runs, recurrence.grade);
    Some(FoundAdvice::idle(what, facts, runs, grade, stretches)).filter(|found| !found.stretches.is_empty())
}

/// The places of the slots that a run never used, those with the least idle time first; none where it is not clear which it used.
fn unused_of(run: &WholeRun<'_>) -> Option<Vec<usize>> {
    let mut unused = Vec::new();
    for (place, (_, evidence, of_slot)) in run.slots.iter().enumerate() {
        let measured = u128::from(of_slot.held.0.saturating_sub(of_slot.unknown.0));
        let used = u128::from(of_slot.used.0);
        if measured == 0 {
            return None;
        }
        if used * 10 > measured {
            continue;
        }
        if used * 100 >= measured || parts(evidence, of_slot).any(|part| draws_power(&part)) {
            return None;
        }
        unused.push((place, parts(evidence, of_slot).map(|part| part.idle).sum::<Nanoseconds>()));
    }
    unused.sort_by_key(|(place, idle)| (*idle, Reverse(*place)));
    Some(unused.into_iter().map(|(place, _)| place).collect())
}

fn parts(evidence: &SlotEvidence, run: &SlotRun) -> impl Iterator<Item = IdleStretch> {
    let run = *run;
    evidence.stretches.iter().filter_map(move |stretch| stretch.between(run.begin, run.end))
}

//! A3 of batch jobs: they go on holding their GPUs long after their last use, run after run.

use super::runs::{WholeRun, runs};
use super::{AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup, hours};
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::gates::{Recurrence, draws_power};
use crate::model::{Nanoseconds, Utc, WorkloadClass};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::IdleEnd,
    code: "A3",
    rule: "a batch job used nothing from some time to its end, for an hour or more and a fifth of the run or more, in at least 3 runs and \
           half of all; 24 GPU-hours, at most 5 % unmeasured",
    risk: "the end may be work on CPUs or disks, such as an evaluation or an upload, that needs the job to go on; of a job on \
           several nodes, a ledger knows one",
    how: "end the job after its last use of a GPU, and do the rest in a job without GPUs that begins when it ends (sbatch --dependency)",
    is_credit: false,
    find,
};

const LEAST_TAIL: Nanoseconds = Nanoseconds::from_seconds(3_600);

/// In so many runs.
const LEAST_RUNS: usize = 3;

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    if !matches!(group.class, WorkloadClass::Batch | WorkloadClass::Interruptible) {
        return None;
    }
    let ended = runs(group).into_iter().filter(|run| !run.goes_on);
    let ended: Vec<(WholeRun<'a>, Utc)> =
        ended.filter_map(|run| run.last_use().map(|last| (run, last))).collect();
    let mut recurrence = Recurrence::default();
    ended.iter().for_each(|(run, _)| run.add_to(&mut recurrence));
    let with_tail: Vec<_> = ended.iter().filter_map(|(run, last)| tail(known, run, *last)).collect();
    if with_tail.len() < LEAST_RUNS
        || with_tail.len() * 2 < ended.len()
        || !recurrence.is_enough(known.evidence.to)
    {
        return None;
    }
    let mut lengths: Vec<Nanoseconds> = with_tail.iter().map(|(length, _)| *length).collect();
    lengths.sort_unstable();
    let what = format!(
        "used nothing in the last {} (median) of {} of {} runs",
        hours(lengths[lengths.len() / 2]),
        lengths.len(),
        ended.len(),
    );
    let (runs, grade) = (with_tail.len(), recurrence.grade);
    let stretches = with_tail.into_iter().flat_map(|(_, stretches)| stretches).collect();
    Some(FoundAdvice::idle(what, String::new(), runs, grade, stretches))
}

/// The idle end of a run, with its length; none where it is too short, or not known to be idle on every slot.
fn tail<'a>(
    known: &Known<'a>,
    run: &WholeRun<'a>,
    last_use: Utc,
) -> Option<(Nanoseconds, Vec<FoundStretch<'a>>)> {
    let grid = run.slots.iter().map(|(_, _, run)| run.grid).max().unwrap_or_default();
    let length = run.end.since(last_use);
    // The run may have ended before the end of its last row.
    let least = Nanoseconds(length.0.saturating_sub(grid.0));
    if least < LEAST_TAIL || least.0 * 5 < run.length().0 {
        return None;
    }
    let mut found = Vec::new();
    for (slot, evidence, of_slot) in &run.slots {
        let free = known.free(run.key, slot, evidence);
        let parts = free.filter_map(|stretch| stretch.between(last_use, of_slot.end));
        let stretches: Vec<FoundStretch<'a>> =
            parts.map(|stretch| FoundStretch { key: run.key, slot, stretch }).collect();
        let seen: Nanoseconds = stretches.iter().map(|found| found.stretch.length()).sum();
        // The last use is within a row, and so is the end.
        let row = stretches.iter().map(|found| found.stretch.grid).max().unwrap_or_default();
        let is_seen = u128::from(seen.0 + 2 * row.0) * 20 >= u128::from(length.0) * 19;
        if !is_seen || stretches.iter().any(|found| draws_power(&found.stretch)) {
            return None;
        }
        found.extend(stretches);
    }
    Some((length, found))
}

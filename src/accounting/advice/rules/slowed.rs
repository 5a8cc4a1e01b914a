//! A10: runs whose GPUs the board or the driver slowed down, for heat or for power supply. How much longer a run took for it is not
//! known, so there is no amount. A power cap is no such slowing.

use super::runs::{WholeRun, runs};
use super::{AdviceRule, FoundAdvice, Known, WorkloadGroup, counted, hours};
use crate::accounting::advice::evidence::{EvidenceGpu, SlotRun};
use crate::accounting::advice::finding::FindingKind;
use crate::model::{Grade, Nanoseconds, Utc};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::ClocksHeld,
    code: "A10",
    rule: "the board or the driver slowed a used GPU down, for heat or power supply, for an hour or more and 5 % or more of the runs on it",
    risk: "none",
    how: "let the operator look at airflow, supplies and cables (runbook GpuThrottledByHeat); until then ask for another node",
    is_credit: false,
    find,
};

/// The findings of a health verdict by which clocks are held.
const SLOWED: [&str; 3] = ["hw_thermal", "sw_thermal", "hw_power_brake"];

const LEAST: Nanoseconds = Nanoseconds::from_seconds(3_600);

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let (mut slots, mut slowed, mut length, mut count) = (Vec::new(), 0, 0, 0);
    let (mut first, mut last) = (Utc(u64::MAX), Utc(0));
    for run in &runs(group) {
        let WholeRun { key, begin, end, .. } = run;
        let mut is_slowed = false;
        for (slot, _, of_slot) in &run.slots {
            let gpu = known.evidence.gpus.get(&slot.uuid);
            let Some(gpu) = gpu.filter(|_| is_used(of_slot) && (has_whole_gpu(of_slot) || !known.is_partial))
            else {
                continue;
            };
            let time = time_slowed(gpu, of_slot);
            length += of_slot.end.since(of_slot.begin).0;
            if time.0 > 0 {
                slowed += time.0;
                slots.push((*key, *slot));
                is_slowed = true;
            }
        }
        if is_slowed {
            (first, last, count) = (first.min(*begin), last.max(*end), count + 1);
        }
    }
    if slowed < LEAST.0 || u128::from(slowed) * 20 < u128::from(length) || !known.is_recent(last) {
        return None;
    }
    slots.sort_unstable();
    slots.dedup();
    let what = format!(
        "slowed down for heat or power supply for {} of {} on {}, in {}",
        hours(Nanoseconds(slowed)),
        hours(Nanoseconds(length)),
        counted(slots.len(), "GPU"),
        counted(count, "run"),
    );
    let seen = Some([first, last]);
    Some(FoundAdvice {
        what,
        facts: String::new(),
        runs: count,
        grade: Grade::Measured,
        stretches: Vec::new(),
        slots,
        seen,
        extent: Nanoseconds(slowed),
    })
}

/// Whether it worked for more than a tenth of its time, so that clocks mattered.
fn is_used(run: &SlotRun) -> bool {
    u128::from(run.used.0) * 10 > u128::from(run.held.0)
}

fn has_whole_gpu(run: &SlotRun) -> bool {
    u128::from(run.held.0) * 100 >= u128::from(run.end.since(run.begin).0) * 99
}

/// How long a run was beside such a finding; beside two at one time it counts once.
fn time_slowed(gpu: &EvidenceGpu, run: &SlotRun) -> Nanoseconds {
    let slowed = gpu.incidents.iter().filter(|incident| SLOWED.contains(&&*incident.kind));
    let mut times: Vec<[Utc; 2]> = slowed
        .map(|incident| [incident.from.max(run.begin), incident.to.min(run.end)])
        .filter(|[from, to]| from < to)
        .collect();
    times.sort_unstable();
    let (mut covered, mut sum) = (Utc(0), 0);
    for [from, to] in times {
        sum += to.since(from.max(covered)).0;
        covered = covered.max(to);
    }
    Nanoseconds(sum)
}

//! Runs of workloads over all their slots.

use super::WorkloadGroup;
use crate::accounting::advice::evidence::{SlotEvidence, SlotKey, SlotRun, WorkloadKey};
use crate::accounting::advice::gates::Recurrence;
use crate::model::{LONGEST_PAUSE, Nanoseconds, Utc};

/// A run of one workload on all its slots, as a job on four GPUs.
pub(super) struct WholeRun<'a> {
    pub(super) key: &'a WorkloadKey,
    pub(super) begin: Utc,
    pub(super) end: Utc,
    pub(super) goes_on: bool,
    pub(super) slots: Vec<(&'a SlotKey, &'a SlotEvidence, SlotRun)>,
}

impl WholeRun<'_> {
    pub(super) const fn length(&self) -> Nanoseconds {
        self.end.since(self.begin)
    }

    /// Whether it had all its slots from begin to end.
    pub(super) fn is_even(&self) -> bool {
        let is_whole = |(_, _, run): &(_, _, SlotRun)| {
            run.begin.since(self.begin) <= LONGEST_PAUSE && self.end.since(run.end) <= LONGEST_PAUSE
        };
        self.slots.iter().all(is_whole)
    }

    /// Adds it, as one run, to what was seen of its workload.
    pub(super) fn add_to(&self, recurrence: &mut Recurrence) {
        for (place, (_, evidence, of_slot)) in self.slots.iter().enumerate() {
            recurrence.add(of_slot, evidence.grade, place == 0);
        }
    }

    pub(super) fn last_use(&self) -> Option<Utc> {
        self.slots.iter().filter_map(|(_, _, run)| run.last_use).max()
    }
}

/// The runs of a group in order of their ends; those of a workload that overlap are one.
pub(super) fn runs<'a>(group: &WorkloadGroup<'a>) -> Vec<WholeRun<'a>> {
    let mut all = Vec::new();
    for (key, workload) in group.workloads {
        let of_slots = workload
            .slots
            .iter()
            .flat_map(|(slot, evidence)| evidence.runs.iter().map(move |run| (slot, evidence, *run)));
        let mut of_slots: Vec<_> = of_slots.collect();
        of_slots.sort_by_key(|(slot, _, run)| (run.begin, *slot));
        let mut runs = Vec::<WholeRun<'a>>::new();
        for (slot, evidence, run) in of_slots {
            match runs.last_mut() {
                Some(last) if run.begin < last.end => {
                    last.end = last.end.max(run.end);
                    last.goes_on |= run.goes_on;
                    last.slots.push((slot, evidence, run));
                }
                _ => runs.push(WholeRun {
                    key,
                    begin: run.begin,
                    end: run.end,
                    goes_on: run.goes_on,
                    slots: vec![(slot, evidence, run)],
                }),
            }
        }
        all.extend(runs);
    }
    all.sort_by_key(|run| (run.end, run.begin));
    all
}

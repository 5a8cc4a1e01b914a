//! When a process is present, and how the driver lists it.
//!
//! In: the workers' spans. Out: stays (spans without a gap between them, across the end of a cycle too), and
//! the process list at an elapsed time, with ended processes that are still listed.

use super::{Cycle, NOWHERE, SLICE, WorkSpan, Worker};

/// The list on which a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListedKind {
    #[default]
    Compute,
    Graphics,
    Both,
    /// A client of MPS.
    Client,
}

/// How the driver lists a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Face {
    pub(crate) kind: ListedKind,
    /// Its memory is shown as not available.
    pub(crate) memory_unknown: bool,
    /// Nanoseconds for which it stays listed after its end.
    pub(crate) linger: u64,
    /// The SM percentage of its utilization samples, in place of the truth.
    pub(crate) garbage: Option<u32>,
}

/// A time without a gap in which a process was present, in elapsed nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    pub(crate) began: u64,
    /// None while it lasts.
    pub(crate) ended: Option<u64>,
}

impl Worker {
    /// Merges spans without a gap; in slices of the cycle, ascending.
    fn runs(&self) -> Vec<(u64, u64)> {
        let mut spans: Vec<(u64, u64)> = self.spans.iter().map(|span| (span.from, span.to)).collect();
        spans.sort_unstable();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (from, to) in spans {
            match runs.last_mut() {
                Some(run) if from <= run.1 => run.1 = run.1.max(to),
                _ => runs.push((from, to)),
            }
        }
        runs
    }

    /// The bytes held in the phase that holds most.
    pub(crate) fn most_memory(&self) -> u64 {
        self.spans.iter().map(|span| span.memory).max().unwrap_or(0)
    }
}

impl Cycle {
    /// The worker's stay at an elapsed time, or the last one before it.
    pub(crate) fn stay(&self, worker: &Worker, elapsed: u64) -> Option<Stay> {
        let runs = worker.runs();
        let now = elapsed / SLICE;
        let (begun, slice) = (now / self.cycle * self.cycle, now % self.cycle);
        if let Some((from, _)) = runs.iter().find(|(from, to)| (*from..*to).contains(&slice)) {
            return Some(Stay { began: self.joined(&runs, begun + from) * SLICE, ended: None });
        }
        let here = runs.iter().rev().find(|(_, to)| *to <= slice).map(|run| (begun, *run));
        let before = || Some((begun.checked_sub(self.cycle)?, *runs.last()?));
        let (base, (from, to)) = here.or_else(before)?;
        Some(Stay { began: self.joined(&runs, base + from) * SLICE, ended: Some((base + to) * SLICE) })
    }

    /// The slice at which a stay begins, which may be at the end of the cycle before.
    fn joined(&self, runs: &[(u64, u64)], began: u64) -> u64 {
        let Some((from, to)) = runs.last().copied().filter(|_| began.is_multiple_of(self.cycle)) else {
            return began;
        };
        if to != self.cycle {
            return began;
        }
        // A worker that is present in the whole cycle has been since elapsed 0.
        if from == 0 { 0 } else { began.checked_sub(self.cycle).map_or(0, |base| base + from) }
    }

    /// The workers that the driver lists at an elapsed time; those without a span have ended.
    pub(crate) fn listed(&self, elapsed: u64) -> impl Iterator<Item = (&Worker, Option<&WorkSpan>)> {
        let (_, slice, _) = self.place(elapsed);
        let placed = self.script.workers.iter().filter(|worker| worker.engine != NOWHERE);
        placed.filter_map(move |worker| match worker.span(slice) {
            Some((_, span)) => Some((worker, Some(span))),
            None if worker.face.linger == 0 => None,
            None => {
                let ended = self.stay(worker, elapsed)?.ended?;
                (elapsed - ended < worker.face.linger).then_some((worker, None))
            }
        })
    }
}

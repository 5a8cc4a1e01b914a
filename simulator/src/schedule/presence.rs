//! When a process is there, and as what the driver lists it.
//!
//! In: the workers' spans. Out: stays (spans without a gap between them, over the end of a cycle too) and
//! the list of an elapsed time with those that have ended but are not yet gone from it.

use super::{Cycle, NOWHERE, SLICE, Span, Worker};

/// As what a process is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Compute,
    Graphics,
    Both,
    /// A client of MPS, whose work its server does.
    Client,
}

/// What the driver says of a process beside the truth.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Face {
    pub(crate) kind: Kind,
    /// Its memory is shown as not available.
    pub(crate) memory_unknown: bool,
    /// Nanoseconds for which it is still listed after its end.
    pub(crate) linger: u64,
    /// What its utilization samples show instead of its share.
    pub(crate) garbage: Option<u32>,
}

/// A time without a gap for which a process was there, in elapsed nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    pub(crate) began: u64,
    /// None while it lasts.
    pub(crate) ended: Option<u64>,
}

impl Worker {
    /// Spans without a gap, in slices of the cycle, by time.
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

    /// The most bytes that any phase holds.
    pub(crate) fn most_memory(&self) -> u64 {
        self.spans.iter().map(|span| span.memory).max().unwrap_or(0)
    }
}

impl Cycle {
    /// The stay of a worker that lasts at an elapsed time, or the last one before it.
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

    /// Where a stay begins whose last run begins at a slice: maybe at the end of the cycle before.
    fn joined(&self, runs: &[(u64, u64)], began: u64) -> u64 {
        let Some((from, to)) = runs.last().copied().filter(|_| began.is_multiple_of(self.cycle)) else {
            return began;
        };
        if to != self.cycle {
            return began;
        }
        // Who is there for all of the cycle has been there for ever.
        if from == 0 { 0 } else { began.checked_sub(self.cycle).map_or(0, |base| base + from) }
    }

    /// The workers on the driver's list at an elapsed time; those without a span have ended.
    pub(crate) fn listed(&self, elapsed: u64) -> impl Iterator<Item = (&Worker, Option<&Span>)> {
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

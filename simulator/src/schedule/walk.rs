//! RunningStorm sums over slices, from one time to a later one; totals are computed from them on demand.

use super::span::SpanTime;
use super::{Cycle, SLICE, Totals, Work};

/// What is counted slice by slice: for each span of each worker only two durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) busy: u64,
    pub(super) energy: u64,
    pub(super) engines: Vec<Turns>,
    pub(super) spans: Vec<SpanTime>,
}

/// One engine's busy nanoseconds and context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turns {
    pub(super) busy: u64,
    pub(super) switches: u64,
}

impl Sums {
    pub(super) fn nothing(engines: usize, spans: usize) -> Self {
        Self {
            busy: 0,
            energy: 0,
            engines: vec![Turns::default(); engines],
            spans: vec![SpanTime::default(); spans],
        }
    }

    pub(super) fn add(&mut self, other: &Self, times: u64) {
        self.busy += other.busy * times;
        self.energy += other.energy * times;
        for (mine, theirs) in self.engines.iter_mut().zip(&other.engines) {
            mine.busy += theirs.busy * times;
            mine.switches += theirs.switches * times;
        }
        for (mine, theirs) in self.spans.iter_mut().zip(&other.spans) {
            mine.held += theirs.held * times;
            mine.present += theirs.present * times;
        }
    }
}

/// A time of the repeating script and the sums up to it; it only goes forward.
pub(crate) struct Walk<'a> {
    pub(super) cycle: &'a Cycle,
    /// Slices done, and nanoseconds into the next.
    pub(super) slices: u64,
    pub(super) part: u64,
    pub(super) sums: Sums,
    /// Nothing runs: `advance` does nothing.
    pub(super) stopped: bool,
}

impl Walk<'_> {
    /// Goes on to an elapsed time; an earlier time changes nothing.
    pub(crate) fn advance(&mut self, elapsed: u64) {
        if self.stopped {
            return;
        }
        let (slices, part) = (elapsed / SLICE, elapsed % SLICE);
        while self.slices < slices {
            let slice = self.slices % self.cycle.cycle;
            let end = (slice + (slices - self.slices)).min(self.cycle.cycle);
            self.cycle.add_slices(slice..end, &mut self.sums);
            self.slices += end - slice;
            self.part = 0;
        }
        if self.slices == slices {
            self.part = self.part.max(part);
        }
    }

    /// Everything done so far.
    pub(crate) fn totals(&self) -> Totals {
        let cycle = self.cycle;
        let mut begun;
        let mut sums = &self.sums;
        if self.part > 0 {
            begun = self.sums.clone();
            cycle.add_part(self.slices % cycle.cycle, self.part, &mut begun);
            sums = &begun;
        }
        let mut engines = vec![Work::default(); sums.engines.len()];
        let mut workers = Vec::with_capacity(cycle.script.workers.len());
        let mut used = sums.spans.iter();
        for worker in &cycle.script.workers {
            let mut work = Work::default();
            for (span, used) in worker.spans.iter().zip(used.by_ref()) {
                work += span.work(*used);
            }
            if let Some(engine) = engines.get_mut(worker.engine) {
                *engine += work;
            }
            workers.push(work);
        }
        for (engine, turns) in engines.iter_mut().zip(&sums.engines) {
            *engine = engine.within(turns.busy);
        }
        let switches = sums.engines.iter().map(|turns| turns.switches).collect();
        Totals { busy: sums.busy, energy: sums.energy, engines, switches, workers, ..Totals::default() }
    }
}

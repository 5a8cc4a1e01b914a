//! A GPU's timeline: a cycle that began at some time, and the sums from before.
//!
//! In: the cycle of the current MIG layout, when it began and what had been done until then. Out: sums and
//! readings at any elapsed time. A GPU with a new layout, a lost one or one under a reloaded driver gets a new
//! timeline, whose sums go on from the old one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(test)]
use super::Script;
use super::{Cycle, Stay, Totals, Walk, WorkSpan, Worker};

/// The sums from which a timeline goes on; all zero at the beginning of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Since {
    /// Elapsed nanoseconds at which the timeline began.
    pub(crate) at: u64,
    /// Everything done until then; `None` at the beginning of the scenario.
    pub(crate) done: Option<Totals>,
    /// The part of it that the driver no longer counts, since it was reloaded.
    pub(crate) forgotten: Option<Totals>,
    /// Elapsed nanoseconds at which the driver began to count from 0.
    pub(crate) counting: u64,
    /// Nothing runs and nothing is counted: the GPU is absent or has no driver.
    pub(crate) stopped: bool,
}

/// One GPU in time.
pub(crate) struct Timeline {
    cycle: Arc<Cycle>,
    since: Since,
    /// Elapsed nanoseconds at which the scenario reloads the driver, ascending.
    loads: Vec<u64>,
    /// The cycle's sums at the time at which the timeline began.
    begun: Totals,
}

impl Timeline {
    /// The scenario's own timeline, from elapsed 0.
    #[cfg(test)]
    pub(crate) fn new(script: Script) -> Self {
        Self::going_on(Arc::new(Cycle::new(script)), Vec::new(), Since::default())
    }

    pub(crate) fn going_on(cycle: Arc<Cycle>, loads: Vec<u64>, since: Since) -> Self {
        let begun = cycle.totals(since.at);
        Self { cycle, since, loads, begun }
    }

    /// Elapsed nanoseconds at which it began.
    pub(crate) fn began(&self) -> u64 {
        self.since.at
    }

    /// The elapsed time up to which work was done.
    pub(crate) fn until(&self, elapsed: u64) -> u64 {
        if self.since.stopped { self.since.at } else { elapsed.max(self.since.at) }
    }

    pub(crate) fn cycle(&self) -> &Arc<Cycle> {
        &self.cycle
    }

    pub(crate) fn workers(&self) -> &[Worker] {
        self.cycle.workers()
    }

    pub(crate) fn share(&self, engine: usize) -> f64 {
        self.cycle.share(engine)
    }

    /// Elapsed nanoseconds of the last load of the driver, by the scenario or the state file; 0: none yet.
    pub(crate) fn loaded(&self, elapsed: u64) -> u64 {
        let scripted = self.loads.iter().rev().find(|at| **at <= elapsed).copied();
        scripted.unwrap_or(0).max(self.since.counting)
    }

    /// What the driver has counted since its last load. Differences between two times need `lifetime`, which
    /// no load interrupts.
    pub(crate) fn counted(&self, elapsed: u64) -> Totals {
        let all = self.lifetime(elapsed);
        let loaded = self.loaded(elapsed);
        match &self.since.forgotten {
            _ if loaded > self.since.at => all.without(&self.lifetime(loaded)),
            Some(forgotten) => all.without(forgotten),
            None => all,
        }
    }

    /// Everything done since elapsed 0, across driver loads.
    pub(crate) fn lifetime(&self, elapsed: u64) -> Totals {
        let at = self.until(elapsed);
        match &self.since.done {
            None if self.since.stopped => self.begun.clone(),
            None => self.cycle.totals(elapsed),
            Some(done) => done.grown(&self.begun, &self.cycle.totals(at)),
        }
    }

    /// The workers present at an elapsed time, with their index and span.
    pub(crate) fn present(&self, elapsed: u64) -> impl Iterator<Item = (usize, &Worker, &WorkSpan)> {
        let runs = !self.since.stopped;
        self.cycle.present(elapsed).filter(move |_| runs)
    }

    /// A walk of the cycle from an elapsed time on, for differences between times near each other.
    pub(crate) fn walk(&self, elapsed: u64) -> Walk<'_> {
        let mut walk = self.cycle.walk(if self.since.stopped { self.since.at } else { elapsed });
        walk.stopped = self.since.stopped;
        walk
    }

    /// The workers that the driver lists at an elapsed time; those without a span have ended.
    pub(crate) fn listed(&self, elapsed: u64) -> impl Iterator<Item = (&Worker, Option<&WorkSpan>)> {
        let runs = !self.since.stopped;
        self.cycle.listed(elapsed).filter(move |_| runs)
    }

    /// The worker's stay at an elapsed time, or the last one before it.
    pub(crate) fn stay(&self, worker: &Worker, elapsed: u64) -> Option<Stay> {
        self.cycle.stay(worker, elapsed)
    }

    /// Mean milliwatts between two elapsed times; it takes time proportional to the slices between them.
    pub(crate) fn power(&self, from: u64, to: u64) -> u64 {
        self.cycle.power(from, to)
    }

    /// The bits of the reasons in force.
    pub(crate) fn brakes(&self, elapsed: u64) -> u64 {
        self.cycle.brakes(elapsed)
    }

    /// Nanoseconds since the last load of the driver in which the reasons were in force.
    pub(crate) fn braked(&self, reasons: u64, elapsed: u64) -> u64 {
        let before = self.cycle.braked(reasons, self.loaded(elapsed));
        self.cycle.braked(reasons, elapsed).saturating_sub(before)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::channel::scenario::Phase;
    use crate::schedule::{PowerModel, Work};

    const SECOND: u64 = 1_000_000_000;

    fn cycle(engines: usize) -> Arc<Cycle> {
        let phase: Phase = serde_json::from_str(r#"{"from":0,"to":10,"demand":0.8,"tensor":0.5}"#).unwrap();
        let spans = vec![WorkSpan::new(&phase)];
        let share = 1_000_000 / engines as u64;
        Arc::new(Cycle::new(Script {
            seed: 5,
            cycle_seconds: 10.0,
            engines: vec![share; engines],
            workers: vec![Worker { pid: 1, engine: 0, spans, face: crate::schedule::Face::default() }],
            brakes: Vec::new(),
            power: PowerModel { idle: 70_000, dynamic: 630_000 },
            together: false,
        }))
    }

    fn next(from: &Timeline, engines: usize, at: u64, forget: bool) -> Timeline {
        let done = from.lifetime(at).laid_out(engines, |place| from.share(place));
        let forgotten = forget.then(|| done.clone());
        let since =
            Since { at, done: Some(done), forgotten, counting: if forget { at } else { 0 }, stopped: false };
        Timeline::going_on(cycle(engines), Vec::new(), since)
    }

    #[test]
    fn sums_continue_across_a_new_mig_layout() {
        let first = Timeline::going_on(cycle(1), Vec::new(), Since::default());
        let at = 7 * SECOND + 123;
        let second = next(&first, 3, at, false);
        assert_eq!(second.counted(at).energy, first.counted(at).energy);
        assert_eq!(second.counted(at).workers, first.counted(at).workers);
        assert_eq!(second.counted(at).engines.len(), 3);
        let sum = |totals: &Totals| totals.engines.iter().map(|work| work.busy).sum::<u64>();
        assert_eq!(sum(&second.counted(at)), sum(&first.counted(at)));
        let whole = |timeline: &Timeline, at| timeline.counted(at).of_whole(|place| timeline.share(place));
        assert_eq!(whole(&second, at), whole(&first, at));
        assert!(whole(&second, at + SECOND).sm >= whole(&first, at).sm);
        assert_eq!(second.counted(at).of_engine(0), Work::default(), "a new layout has done nothing");
        let third = next(&second, 1, at + SECOND, false);
        assert_eq!(whole(&third, at + SECOND), whole(&second, at + SECOND));
        assert!(second.counted(at + SECOND).energy > first.counted(at).energy + 70 * 1_000_000 - 1_000);
        // Before its beginning a timeline has the sums of its beginning.
        assert_eq!(second.counted(0), second.counted(at));
    }

    #[test]
    fn a_reloaded_driver_counts_from_zero_and_the_truth_continues() {
        let first = Timeline::going_on(cycle(1), Vec::new(), Since::default());
        let at = 30 * SECOND;
        let second = next(&first, 1, at, true);
        assert_eq!((second.counted(at).energy, second.counted(at).busy), (0, 0));
        let truth = |timeline: &Timeline, at| Totals {
            carried: Work::default(),
            former: Work::default(),
            ..timeline.lifetime(at)
        };
        assert_eq!(truth(&second, at), truth(&first, at));
        assert_eq!(truth(&second, at + SECOND), truth(&first, at + SECOND));
        assert_eq!((second.loaded(at), first.loaded(at)), (at, 0));
    }

    #[test]
    fn a_driver_reloaded_by_the_scenario_counts_from_zero_under_a_new_layout_too() {
        let load = 4 * SECOND;
        let first = Timeline::going_on(cycle(1), vec![load], Since::default());
        assert_eq!((first.loaded(load - 1), first.loaded(load)), (0, load));
        assert_eq!(first.counted(load).energy, 0);
        let at = 7 * SECOND;
        let counted = first.counted(at);
        assert_eq!(counted.energy, first.lifetime(at).energy - first.lifetime(load).energy);
        // What the next change of the state file settles: the sums until then, and the part that is forgotten.
        let since = Since {
            at,
            done: Some(first.lifetime(at)),
            forgotten: Some(first.lifetime(load)),
            counting: load,
            stopped: false,
        };
        let second = Timeline::going_on(cycle(1), vec![load, 9 * SECOND], since);
        assert_eq!(second.counted(at), counted);
        assert_eq!(second.counted(9 * SECOND).energy, 0);
    }

    #[test]
    fn a_stopped_gpu_does_nothing() {
        let first = Timeline::going_on(cycle(1), Vec::new(), Since::default());
        let done = Some(first.lifetime(SECOND));
        let since = Since { at: SECOND, done, stopped: true, ..Since::default() };
        let stopped = Timeline::going_on(cycle(1), Vec::new(), since);
        assert_eq!(stopped.lifetime(9 * SECOND), first.lifetime(SECOND));
        assert_eq!(stopped.present(2 * SECOND).count(), 0);
    }
}

//! A GPU's timeline: a cycle that began at some time, on top of what was done before.
//!
//! In: the cycle of the layout in force, when it came into force and what had been done until then. Out:
//! sums and readings at any elapsed time. A GPU that is cut anew, lost or put under a new driver gets a new
//! timeline; the sums go on from the old one. It knows nothing of why.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(test)]
use super::Script;
use super::{Cycle, Span, Stay, Totals, Walk, Worker};

/// Where a timeline goes on from; all zero at the scenario's own beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Since {
    /// Elapsed nanoseconds at which this layout came into force.
    pub(crate) at: u64,
    /// Everything done until then; none at the very beginning.
    pub(crate) done: Option<Totals>,
    /// The part of it that the driver no longer counts: it has been loaded anew.
    pub(crate) forgotten: Option<Totals>,
    /// Elapsed nanoseconds at which the driver began to count.
    pub(crate) counting: u64,
    /// Nothing runs and nothing is counted: the GPU is away, or without a driver.
    pub(crate) stopped: bool,
}

/// One GPU in time.
pub(crate) struct Timeline {
    cycle: Arc<Cycle>,
    since: Since,
    /// Elapsed nanoseconds at which the scenario has the driver loaded anew, rising.
    loads: Vec<u64>,
    /// The cycle's own sums at the beginning.
    begun: Totals,
}

impl Timeline {
    /// As the scenario has it, from elapsed 0.
    #[cfg(test)]
    pub(crate) fn new(script: Script) -> Self {
        Self::going_on(Arc::new(Cycle::new(script)), Vec::new(), Since::default())
    }

    pub(crate) fn going_on(cycle: Arc<Cycle>, loads: Vec<u64>, since: Since) -> Self {
        let begun = cycle.totals(since.at);
        Self { cycle, since, loads, begun }
    }

    /// Elapsed nanoseconds at which it goes on from what was before.
    pub(crate) fn began(&self) -> u64 {
        self.since.at
    }

    /// The time up to which something has been done at an elapsed time.
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

    /// When the driver that answers at an elapsed time was loaded, by script or by the state; 0: before all.
    pub(crate) fn loaded(&self, elapsed: u64) -> u64 {
        let scripted = self.loads.iter().rev().find(|at| **at <= elapsed).copied();
        scripted.unwrap_or(0).max(self.since.counting)
    }

    /// Everything that the driver of an elapsed time has counted up to it; for differences between two times
    /// take `lifetime`, which no load of the driver interrupts.
    pub(crate) fn counted(&self, elapsed: u64) -> Totals {
        let all = self.lifetime(elapsed);
        let loaded = self.loaded(elapsed);
        match &self.since.forgotten {
            _ if loaded > self.since.at => all.without(&self.lifetime(loaded)),
            Some(forgotten) => all.without(forgotten),
            None => all,
        }
    }

    /// Everything done since elapsed 0, whoever counted it.
    pub(crate) fn lifetime(&self, elapsed: u64) -> Totals {
        let at = self.until(elapsed);
        match &self.since.done {
            None if self.since.stopped => self.begun.clone(),
            None => self.cycle.totals(elapsed),
            Some(done) => done.grown(&self.begun, &self.cycle.totals(at)),
        }
    }

    /// The workers that exist at an elapsed time, with what they do.
    pub(crate) fn present(&self, elapsed: u64) -> impl Iterator<Item = (usize, &Worker, &Span)> {
        let runs = !self.since.stopped;
        self.cycle.present(elapsed).filter(move |_| runs)
    }

    /// A walk of the cycle itself that begins at an elapsed time, for differences between times near each other.
    pub(crate) fn walk(&self, elapsed: u64) -> Walk<'_> {
        let mut walk = self.cycle.walk(if self.since.stopped { self.since.at } else { elapsed });
        walk.stopped = self.since.stopped;
        walk
    }

    /// The workers on the driver's list at an elapsed time; those without a span have ended.
    pub(crate) fn listed(&self, elapsed: u64) -> impl Iterator<Item = (&Worker, Option<&Span>)> {
        let runs = !self.since.stopped;
        self.cycle.listed(elapsed).filter(move |_| runs)
    }

    /// The stay of a worker that lasts at an elapsed time, or the last one before it.
    pub(crate) fn stay(&self, worker: &Worker, elapsed: u64) -> Option<Stay> {
        self.cycle.stay(worker, elapsed)
    }

    /// Mean milliwatts between two elapsed times not far apart; what is before 0 counts as rest.
    pub(crate) fn power(&self, from: u64, to: u64) -> u64 {
        self.cycle.power(from, to)
    }

    /// The bits of the reasons in force.
    pub(crate) fn brakes(&self, elapsed: u64) -> u64 {
        self.cycle.brakes(elapsed)
    }

    /// Nanoseconds for which any of the reasons was in force since the driver was loaded.
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
        let spans = vec![Span::new(&phase)];
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
    fn sums_go_on_over_a_new_layout_without_a_jump() {
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
        assert_eq!(second.counted(at).of_engine(0), Work::default(), "what is cut anew has done nothing");
        let third = next(&second, 1, at + SECOND, false);
        assert_eq!(whole(&third, at + SECOND), whole(&second, at + SECOND));
        assert!(second.counted(at + SECOND).energy > first.counted(at).energy + 70 * 1_000_000 - 1_000);
        // Before its time it stands at its beginning.
        assert_eq!(second.counted(0), second.counted(at));
    }

    #[test]
    fn a_driver_loaded_anew_counts_from_nothing_and_the_truth_goes_on() {
        let first = Timeline::going_on(cycle(1), Vec::new(), Since::default());
        let at = 30 * SECOND;
        let second = next(&first, 1, at, true);
        assert_eq!((second.counted(at).energy, second.counted(at).busy), (0, 0));
        // Whatever layout it is told to be of.
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
    fn a_driver_loaded_by_script_counts_from_nothing_over_a_new_layout_too() {
        let load = 4 * SECOND;
        let first = Timeline::going_on(cycle(1), vec![load], Since::default());
        assert_eq!((first.loaded(load - 1), first.loaded(load)), (0, load));
        assert_eq!(first.counted(load).energy, 0);
        let at = 7 * SECOND;
        let counted = first.counted(at);
        assert_eq!(counted.energy, first.lifetime(at).energy - first.lifetime(load).energy);
        // As the state's next entry has it: the sums until then, and what of them is forgotten.
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

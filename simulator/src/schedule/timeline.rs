//! One GPU in time: its cycle, as the driver and the meters ask for it.
//!
//! In: a cycle. Out: its sums and readings at any elapsed time. It knows nothing of why.

use std::sync::Arc;

#[cfg(test)]
use super::Script;
use super::{Cycle, Span, Stay, Totals, Walk, Worker};

/// One GPU in time.
pub(crate) struct Timeline {
    cycle: Arc<Cycle>,
}

impl Timeline {
    /// As the scenario has it, from elapsed 0.
    #[cfg(test)]
    pub(crate) fn new(script: Script) -> Self {
        Self::going_on(Arc::new(Cycle::new(script)))
    }

    pub(crate) fn going_on(cycle: Arc<Cycle>) -> Self {
        Self { cycle }
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

    /// Everything done up to an elapsed time.
    pub(crate) fn totals(&self, elapsed: u64) -> Totals {
        self.cycle.totals(elapsed)
    }

    /// A walk that begins at an elapsed time, for differences between times near each other.
    pub(crate) fn walk(&self, elapsed: u64) -> Walk<'_> {
        self.cycle.walk(elapsed)
    }

    /// The workers that exist at an elapsed time, with what they do.
    pub(crate) fn present(&self, elapsed: u64) -> impl Iterator<Item = (usize, &Worker, &Span)> {
        self.cycle.present(elapsed)
    }

    /// The workers on the driver's list at an elapsed time; those without a span have ended.
    pub(crate) fn listed(&self, elapsed: u64) -> impl Iterator<Item = (&Worker, Option<&Span>)> {
        self.cycle.listed(elapsed)
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

    /// Nanoseconds for which any of the reasons was in force since elapsed 0.
    pub(crate) fn braked(&self, reasons: u64, elapsed: u64) -> u64 {
        self.cycle.braked(reasons, elapsed)
    }
}

//! The state of one GPU beside its work: memory health, links, how it is shared, what the driver remembers.
//!
//! In: the scenario's incidents. Out: counts and states at an elapsed time, since elapsed 0 or since the
//! driver was loaded last. It knows no NVML and no handles.

mod health;
mod links;

pub(crate) use health::{HBM_BANKS, Health};
pub(crate) use links::{Carried, Links, Traffic, part};

use crate::board::Board;
use crate::channel::incidents::Incidents;
use crate::channel::scenario::Scenario;
use crate::channel::settled::Slot;
use crate::channel::sharing::UseOf;
use crate::schedule::{self, Cycle, SLICE};

/// One GPU's condition.
pub(crate) struct Condition {
    pub(crate) health: Health,
    pub(crate) links: Links,
    pub(crate) use_of: UseOf,
    replays: Vec<Event<()>>,
    downgrades: Vec<Lasting<(Option<u32>, Option<u32>)>>,
    cycle: u64,
}

/// Something that happens so many times at once, in every cycle.
#[derive(Clone, Copy, Debug)]
struct Event<T> {
    /// Nanoseconds into the cycle.
    at: u64,
    count: u64,
    what: T,
}

impl<T> Event<T> {
    fn new(at: f64, count: u64, what: T) -> Self {
        Self { at: nanoseconds(at), count, what }
    }

    /// How often it has happened up to an elapsed time.
    fn times(&self, elapsed: u64, cycle: u64) -> u64 {
        elapsed / cycle + u64::from(self.at <= elapsed % cycle)
    }

    /// How much of it there was after a time and up to another.
    fn counted(&self, (after, until): (u64, u64), cycle: u64) -> u64 {
        // Nothing is before elapsed 0: what happens at 0 has happened since.
        let before = if after == 0 { 0 } else { self.times(after, cycle) };
        self.times(until, cycle).saturating_sub(before).saturating_mul(self.count)
    }
}

/// Something that is so between two times of every cycle.
#[derive(Clone, Copy, Debug)]
struct Lasting<T> {
    from: u64,
    to: u64,
    what: T,
}

impl<T> Lasting<T> {
    fn new(from: f64, to: f64, what: T) -> Self {
        Self { from: nanoseconds(from), to: nanoseconds(to), what }
    }

    fn at(&self, elapsed: u64, cycle: u64) -> bool {
        (self.from..self.to).contains(&(elapsed % cycle))
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    schedule::slices(seconds) * SLICE
}

impl Condition {
    /// Of the GPU in a place; the seed decides which bank a row is in.
    pub(crate) fn new(
        scenario: &Scenario,
        (index, seed): (u32, u64),
        use_of: UseOf,
        board: &Board,
        (work, slot): (&Cycle, &Slot),
    ) -> Self {
        let Incidents { replays, pcie, .. } = &scenario.incidents;
        let cycle = work.length();
        let replays = replays.iter().filter(|entry| entry.gpu == index);
        let pcie = pcie.iter().filter(|entry| entry.gpu == index);
        Self {
            health: Health::new(&scenario.incidents, (index, seed), board.remap_banks, cycle, slot.came),
            links: Links::new(&scenario.incidents, index, board.nvlinks, work, slot.links.clone()),
            use_of,
            replays: replays.map(|entry| Event::new(entry.at, entry.count, ())).collect(),
            downgrades: pcie
                .map(|entry| Lasting::new(entry.from, entry.to, (entry.generation, entry.width)))
                .collect(),
            cycle,
        }
    }

    /// When the scenario has the driver loaded anew: elapsed nanoseconds, rising.
    pub(crate) fn driver_loads(scenario: &Scenario) -> Vec<u64> {
        let mut loads: Vec<u64> = scenario.incidents.driver_loads.iter().map(|at| nanoseconds(*at)).collect();
        loads.sort_unstable();
        loads
    }

    /// PCIe packets sent again after a time and up to another.
    pub(crate) fn replays(&self, span: (u64, u64)) -> u64 {
        self.replays.iter().map(|event| event.counted(span, self.cycle)).sum()
    }

    /// PCIe generation and width, of those that are the most.
    pub(crate) fn pcie(&self, most: (u32, u32), elapsed: u64) -> (u32, u32) {
        let now = self.downgrades.iter().filter(|lasting| lasting.at(elapsed, self.cycle));
        now.fold(most, |(generation, width), Lasting { what, .. }| {
            (generation.min(what.0.unwrap_or(generation)), width.min(what.1.unwrap_or(width)))
        })
    }

    /// Up to when accounting records, in elapsed nanoseconds; none where it never did.
    pub(crate) fn accounted_until(&self, elapsed: u64) -> Option<u64> {
        let end = self.use_of.accounting_until.map_or(u64::MAX, nanoseconds);
        self.use_of.accounting.then_some(elapsed.min(end))
    }
}

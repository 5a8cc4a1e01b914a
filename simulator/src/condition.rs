//! The state of one GPU beside its work: memory health, links, how it is shared, what the driver remembers.
//!
//! In: the scenario's incidents. Out: counts and states at an elapsed time, since elapsed 0 or since the
//! driver was last loaded. It knows no NVML and no handles.

mod health;
mod links;

use health::BoardMemory;
pub(crate) use health::{HBM_BANKS, Health};
pub(crate) use links::{Carried, Links, Traffic, part};

use crate::board::Board;
use crate::channel::incidents::{Incidents, Trouble};
use crate::channel::scenario::Scenario;
use crate::channel::sharing::UseOf;
use crate::schedule::{self, Cycle, SLICE};

/// One GPU's condition.
pub(crate) struct Condition {
    pub(crate) health: Health,
    pub(crate) links: Links,
    pub(crate) use_of: UseOf,
    replays: Vec<Event<()>>,
    downgrades: Vec<Lasting<(Option<u32>, Option<u32>)>>,
    fabric: Vec<Lasting<Trouble>>,
    cycle: u64,
}

/// Something that happens `count` times at one time of every cycle.
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

    /// How much of it happened after one time and up to another; `after` 0 includes elapsed 0.
    fn counted(&self, (after, until): (u64, u64), cycle: u64) -> u64 {
        let before = if after == 0 { 0 } else { self.times(after, cycle) };
        self.times(until, cycle).saturating_sub(before).saturating_mul(self.count)
    }
}

/// A state between two times of every cycle.
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

/// What one GPU's condition follows from, beside the scenario's incidents.
pub(crate) struct ConditionInputs<'a> {
    /// The scenario's number of the GPU.
    pub(crate) gpu: u32,
    /// Decides which bank a remapped row is in.
    pub(crate) seed: u64,
    pub(crate) board: &'a Board,
    pub(crate) use_of: UseOf,
    pub(crate) work: &'a Cycle,
    /// Elapsed nanoseconds at which the board was put in; 0: it was there from the beginning.
    pub(crate) came: u64,
    /// What the links had carried before.
    pub(crate) links: Carried,
}

impl Condition {
    pub(crate) fn new(incidents: &Incidents, inputs: ConditionInputs<'_>) -> Self {
        let ConditionInputs { gpu, seed, board, use_of, work, came, links } = inputs;
        let Incidents { replays, pcie, fabric, .. } = incidents;
        let cycle = work.length();
        let replays = replays.iter().filter(|entry| entry.gpu == gpu);
        let pcie = pcie.iter().filter(|entry| entry.gpu == gpu);
        let fabric = fabric.iter().filter(|entry| entry.gpu == gpu);
        let memory = BoardMemory { banks: board.remap_banks, seed, cycle, came };
        Self {
            health: Health::new(incidents, gpu, memory),
            links: Links::new(incidents, gpu, board, work, links),
            use_of,
            replays: replays.map(|entry| Event::new(entry.at, entry.count, ())).collect(),
            downgrades: pcie
                .map(|entry| Lasting::new(entry.from, entry.to, (entry.generation, entry.width)))
                .collect(),
            fabric: fabric.map(|entry| Lasting::new(entry.from, entry.to, entry.trouble)).collect(),
            cycle,
        }
    }

    /// Elapsed nanoseconds at which the scenario reloads the driver, in ascending order.
    pub(crate) fn driver_loads(scenario: &Scenario) -> Vec<u64> {
        let mut loads: Vec<u64> = scenario.incidents.driver_loads.iter().map(|at| nanoseconds(*at)).collect();
        loads.sort_unstable();
        loads
    }

    /// PCIe packets that were sent again after one time and up to another.
    pub(crate) fn replays(&self, span: (u64, u64)) -> u64 {
        self.replays.iter().map(|event| event.counted(span, self.cycle)).sum()
    }

    /// PCIe generation and width now; `most` are those without a downgrade.
    pub(crate) fn pcie(&self, most: (u32, u32), elapsed: u64) -> (u32, u32) {
        let now = self.downgrades.iter().filter(|lasting| lasting.at(elapsed, self.cycle));
        now.fold(most, |(generation, width), Lasting { what, .. }| {
            (generation.min(what.0.unwrap_or(generation)), width.min(what.1.unwrap_or(width)))
        })
    }

    /// What is wrong with the GPU's place in its fabric now.
    pub(crate) fn fabric_troubles(&self, elapsed: u64) -> impl Iterator<Item = Trouble> {
        self.fabric.iter().filter(move |lasting| lasting.at(elapsed, self.cycle)).map(|lasting| lasting.what)
    }

    /// Elapsed nanoseconds until which the driver records accounting; `None` where it never did.
    pub(crate) fn accounted_until(&self, elapsed: u64) -> Option<u64> {
        let end = self.use_of.accounting_until.map_or(u64::MAX, nanoseconds);
        self.use_of.accounting.then_some(elapsed.min(end))
    }
}

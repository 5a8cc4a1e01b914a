//! The truth: what one GPU really does, slice by slice, and its sums.
//!
//! In: a seed, the workers with their phases, the engines (one, or one per MIG instance) and a power model.
//! Out: cumulative totals at any elapsed time. The work is bounded, since the script repeats and one cycle is
//! summed once, with a checkpoint every second. Meters, NVML and clocks are not known here.
//!
//! In every slice each present worker wants its engine with the probability of its demand. A hash decides, so
//! the same script gives the same slices everywhere. Workers that want the same slice share it equally; under
//! MPS each has it whole.

use std::sync::Mutex;

use crate::lock;

mod presence;
mod slices;
mod span;
mod timeline;
mod walk;
mod work;

pub(crate) use presence::{Face, ListedKind, Stay};
pub(crate) use span::WorkSpan;
pub(crate) use timeline::{Since, Timeline};
use walk::Sums;
pub(crate) use walk::Walk;
pub(crate) use work::{Totals, Work};

/// Nanoseconds of a slice.
pub(crate) const SLICE: u64 = 10_000_000;
/// Slices between two checkpoints; in long cycles more, so that there are at most `CHECKPOINTS`.
const STRIDE: u64 = 100;
const CHECKPOINTS: u64 = 3_600;
const MILLION: u64 = 1_000_000;

/// The engine of a worker whose instance the MIG layout lacks: the worker does not run.
pub(crate) const NOWHERE: usize = usize::MAX;

/// A process on this GPU.
pub(crate) struct Worker {
    pub(crate) pid: u32,
    pub(crate) engine: usize,
    pub(crate) spans: Vec<WorkSpan>,
    /// How the driver lists it.
    pub(crate) face: Face,
}

impl Worker {
    fn span(&self, slice: u64) -> Option<(usize, &WorkSpan)> {
        self.spans.iter().enumerate().find(|(_, span)| span.contains(slice))
    }
}

/// A reason for lower clocks, in force between two slices.
pub(crate) struct Brake {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// NVML's bit.
    pub(crate) reason: u64,
}

/// Milliwatts at rest, and the milliwatts that full use adds.
#[derive(Clone, Copy)]
pub(crate) struct PowerModel {
    pub(crate) idle: u64,
    pub(crate) dynamic: u64,
}

/// What a timeline is made from.
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) cycle_seconds: f64,
    /// Each engine's share of the GPU, in millionths.
    pub(crate) engines: Vec<u64>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) brakes: Vec<Brake>,
    pub(crate) power: PowerModel,
    /// Whether workers that want the same slice run side by side (MPS) instead of taking turns.
    pub(crate) together: bool,
}

/// One GPU's repeating script, summed from elapsed 0.
pub(crate) struct Cycle {
    script: Script,
    /// Slices in a cycle.
    cycle: u64,
    stride: u64,
    /// The position of each worker's first span among the spans of all.
    offsets: Vec<usize>,
    /// Slices at which a span or a brake begins or ends, ascending, and the end of the cycle.
    changes: Vec<u64>,
    /// Sums at the beginning of every stride.
    checkpoints: Vec<Sums>,
    whole: Sums,
    /// The last two results: one call of a client needs the totals of the same two times repeatedly.
    known: Mutex<[Option<(u64, Totals)>; 2]>,
}

impl Cycle {
    pub(crate) fn new(script: Script) -> Self {
        let cycle = slices(script.cycle_seconds).max(1);
        let stride = STRIDE.max(cycle / CHECKPOINTS);
        let mut spans = 0;
        let mut offsets = Vec::new();
        for worker in &script.workers {
            offsets.push(spans);
            spans += worker.spans.len();
        }
        let whole = Sums::nothing(script.engines.len(), spans);
        let changes = changes(&script, cycle);
        let checkpoints = Vec::new();
        let mut cycles =
            Self { script, cycle, stride, offsets, changes, checkpoints, whole, known: Mutex::default() };
        let mut sum = cycles.whole.clone();
        let mut from = 0;
        while from < cycle {
            let to = (from + stride).min(cycle);
            cycles.checkpoints.push(sum.clone());
            cycles.add_slices(from..to, &mut sum);
            from = to;
        }
        cycles.whole = sum;
        cycles
    }

    pub(crate) fn workers(&self) -> &[Worker] {
        &self.script.workers
    }

    /// Nanoseconds until the script repeats.
    pub(crate) fn length(&self) -> u64 {
        self.cycle * SLICE
    }

    /// An engine's share of the GPU.
    pub(crate) fn share(&self, engine: usize) -> f64 {
        self.script.engines.get(engine).map_or(0.0, |millionths| *millionths as f64 / MILLION as f64)
    }

    /// Everything done up to an elapsed time.
    pub(crate) fn totals(&self, elapsed: u64) -> Totals {
        let mut known = lock(&self.known);
        if let Some((_, totals)) = known.iter().flatten().find(|(at, _)| *at == elapsed) {
            return totals.clone();
        }
        let totals = self.walk(elapsed).totals();
        known.swap(0, 1);
        known[0] = Some((elapsed, totals.clone()));
        totals
    }

    /// A walk from an elapsed time on: cheaper than the totals of many times near each other.
    pub(crate) fn walk(&self, elapsed: u64) -> Walk<'_> {
        let (cycles, slice, part) = self.place(elapsed);
        let stride = slice / self.stride;
        let known = usize::try_from(stride).ok().and_then(|index| self.checkpoints.get(index));
        let mut sums = known.cloned().unwrap_or_default();
        self.add_slices(stride * self.stride..slice, &mut sums);
        sums.add(&self.whole, cycles);
        Walk { cycle: self, slices: elapsed / SLICE, part, sums, stopped: false }
    }

    /// The workers present at an elapsed time, with their index and span.
    pub(crate) fn present(&self, elapsed: u64) -> impl Iterator<Item = (usize, &Worker, &WorkSpan)> {
        let (_, slice, _) = self.place(elapsed);
        let workers = self.script.workers.iter().enumerate().filter(|(_, worker)| worker.engine != NOWHERE);
        workers.filter_map(move |(index, worker)| Some((index, worker, worker.span(slice)?.1)))
    }

    /// Mean milliwatts between two elapsed times; it takes time proportional to the slices between them.
    pub(crate) fn power(&self, from: u64, to: u64) -> u64 {
        let (mut at, mut sum) = (from, 0);
        while at < to {
            let (_, slice, part) = self.place(at);
            let step = (SLICE - part).min(to - at);
            sum += self.draw(slice) * step;
            at += step;
        }
        sum.checked_div(to.saturating_sub(from)).unwrap_or(self.script.power.idle)
    }

    /// The bits of the reasons in force.
    pub(crate) fn brakes(&self, elapsed: u64) -> u64 {
        let (_, slice, _) = self.place(elapsed);
        self.braking(slice)
    }

    /// Nanoseconds since elapsed 0 in which the reasons were in force.
    pub(crate) fn braked(&self, reasons: u64, elapsed: u64) -> u64 {
        let (cycles, slice, part) = self.place(elapsed);
        let rest = slice * SLICE + part;
        let spans = self.script.brakes.iter().filter(|brake| brake.reason & reasons != 0);
        spans
            .map(|brake| {
                let (from, to) = (brake.from * SLICE, brake.to * SLICE);
                cycles * (to - from) + rest.clamp(from, to) - from
            })
            .sum()
    }

    /// Completed cycles, the slice within the cycle, nanoseconds into the slice.
    fn place(&self, elapsed: u64) -> (u64, u64, u64) {
        let slices = elapsed / SLICE;
        (slices / self.cycle, slices % self.cycle, elapsed % SLICE)
    }

    fn braking(&self, slice: u64) -> u64 {
        let brakes = self.script.brakes.iter().filter(|brake| (brake.from..brake.to).contains(&slice));
        brakes.fold(0, |reasons, brake| reasons | brake.reason)
    }
}

/// The slices that differ from the one before, and the end of the cycle.
fn changes(script: &Script, cycle: u64) -> Vec<u64> {
    let spans = script.workers.iter().flat_map(|worker| &worker.spans);
    let comings = spans.flat_map(|span| [span.from, span.to]);
    let brakes = script.brakes.iter().flat_map(|brake| [brake.from, brake.to]);
    let mut changes: Vec<u64> = comings.chain(brakes).filter(|change| *change < cycle).collect();
    changes.push(cycle);
    changes.sort_unstable();
    changes.dedup();
    changes
}

/// Seconds in slices, rounded.
pub(crate) fn slices(seconds: f64) -> u64 {
    rounded(seconds * 1e9 / SLICE as f64)
}

fn millionths(share: f64) -> u64 {
    rounded(share * MILLION as f64)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the scenario's check has bounded it"
)]
fn rounded(value: f64) -> u64 {
    value.round().max(0.0) as u64
}

/// Splitmix64: well mixed and the same everywhere.
pub(crate) fn hash(value: u64) -> u64 {
    let mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;

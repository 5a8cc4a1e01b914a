//! The truth: what one GPU really does, slice by slice, and its sums.
//!
//! In: a seed, the workers with their phases, the engines (one, or one per MIG instance) and a power model.
//! Out: cumulative totals at any elapsed time in bounded work, since one cycle is summed once with a
//! checkpoint every second and the script repeats. It knows no meter, no NVML and no clock.
//!
//! In every slice each present worker wants its engine with the probability of its demand, by a hash, so
//! the same script gives the same slices everywhere. Workers that want the same slice share it equally, or,
//! under MPS, all have it.

use std::sync::Mutex;

use crate::lock;

mod presence;
mod slices;
mod span;
mod timeline;
mod walk;
mod work;

pub(crate) use presence::{Face, Kind, Stay};
pub(crate) use span::Span;
pub(crate) use timeline::{Since, Timeline};
use walk::Sums;
pub(crate) use walk::Walk;
pub(crate) use work::{Totals, Work};

/// Nanoseconds of a slice.
pub(crate) const SLICE: u64 = 10_000_000;
/// Slices between two checkpoints, unless the cycle is so long that these would fill memory.
const STRIDE: u64 = 100;
const CHECKPOINTS: u64 = 3_600;
const MILLION: u64 = 1_000_000;

/// The engine of a worker whose place the GPU's layout does not have: it does not run.
pub(crate) const NOWHERE: usize = usize::MAX;

/// A process on this GPU.
pub(crate) struct Worker {
    pub(crate) pid: u32,
    pub(crate) engine: usize,
    pub(crate) spans: Vec<Span>,
    /// What the driver says of it.
    pub(crate) face: Face,
}

impl Worker {
    fn span(&self, slice: u64) -> Option<(usize, &Span)> {
        self.spans.iter().enumerate().find(|(_, span)| span.contains(slice))
    }
}

/// A reason for lower clocks between two slices.
pub(crate) struct Brake {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// NVML's bit.
    pub(crate) reason: u64,
}

/// Milliwatts: at rest, and what full use of everything adds.
#[derive(Clone, Copy)]
pub(crate) struct PowerModel {
    pub(crate) idle: u64,
    pub(crate) dynamic: u64,
}

/// What a timeline is made from.
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) cycle_seconds: f64,
    /// The share of the GPU that each engine is, in millionths.
    pub(crate) engines: Vec<u64>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) brakes: Vec<Brake>,
    pub(crate) power: PowerModel,
    /// Whether workers that want the same slice all have it whole (MPS) instead of sharing it by turns.
    pub(crate) together: bool,
}

/// One GPU's script without end, summed from elapsed 0.
pub(crate) struct Cycle {
    script: Script,
    /// Slices in a cycle.
    cycle: u64,
    stride: u64,
    /// Where each worker's spans begin among all.
    offsets: Vec<usize>,
    /// Slices at which somebody comes or goes, or a brake does, rising; the cycle's end is one.
    changes: Vec<u64>,
    /// Sums at the beginning of every stride.
    checkpoints: Vec<Sums>,
    whole: Sums,
    /// The last two answers: one call of a client asks for the same times again and again.
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

    /// The share of the GPU that an engine is.
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

    /// A walk that begins at an elapsed time: cheaper than asking for the totals of many times near it.
    pub(crate) fn walk(&self, elapsed: u64) -> Walk<'_> {
        let (cycles, slice, part) = self.place(elapsed);
        let stride = slice / self.stride;
        let known = usize::try_from(stride).ok().and_then(|index| self.checkpoints.get(index));
        let mut sums = known.cloned().unwrap_or_default();
        self.add_slices(stride * self.stride..slice, &mut sums);
        sums.add(&self.whole, cycles);
        Walk { cycle: self, slices: elapsed / SLICE, part, sums, stopped: false }
    }

    /// The workers that exist at an elapsed time, with what they do.
    pub(crate) fn present(&self, elapsed: u64) -> impl Iterator<Item = (usize, &Worker, &Span)> {
        let (_, slice, _) = self.place(elapsed);
        let workers = self.script.workers.iter().enumerate().filter(|(_, worker)| worker.engine != NOWHERE);
        workers.filter_map(move |(index, worker)| Some((index, worker, worker.span(slice)?.1)))
    }

    /// Mean milliwatts between two elapsed times not far apart; what is before 0 counts as rest.
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

    /// Nanoseconds for which any of the reasons was in force since elapsed 0.
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

    /// Cycles completed, the slice within the cycle, nanoseconds into the slice.
    fn place(&self, elapsed: u64) -> (u64, u64, u64) {
        let slices = elapsed / SLICE;
        (slices / self.cycle, slices % self.cycle, elapsed % SLICE)
    }

    fn braking(&self, slice: u64) -> u64 {
        let brakes = self.script.brakes.iter().filter(|brake| (brake.from..brake.to).contains(&slice));
        brakes.fold(0, |reasons, brake| reasons | brake.reason)
    }
}

/// Every slice at which something is other than in the one before, and the end of the cycle.
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

/// Whole slices in so many seconds.
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

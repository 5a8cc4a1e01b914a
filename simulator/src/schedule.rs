//! The truth: what one GPU really does, slice by slice, and its sums.
//!
//! In: a seed, the workers with their phases, the engines (one, or one per MIG instance) and a power model.
//! Out: cumulative totals at any elapsed time in bounded work, since one cycle is summed once with a
//! checkpoint every second and the script repeats. It knows no meter, no NVML and no clock.
//!
//! In every slice each present worker wants its engine with the probability of its demand, by a hash, so
//! the same script gives the same slices everywhere. Workers that want the same slice share it equally.

mod timeline;
mod work;

use crate::channel::scenario::Phase;
pub(crate) use timeline::{Since, Timeline};
pub(crate) use work::{Totals, Work};

/// Nanoseconds of a slice.
pub(crate) const SLICE: u64 = 10_000_000;
/// Slices between two checkpoints, unless the cycle is so long that these would fill memory.
const STRIDE: u64 = 100;
const CHECKPOINTS: u64 = 3_600;
const MILLION: u64 = 1_000_000;

/// A phase in slices and parts per million.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    from: u64,
    to: u64,
    demand: u64,
    /// Bytes held while the phase lasts.
    pub(crate) memory: u64,
    sm: u64,
    tensor: u64,
    dram: u64,
    encoder: u64,
    decoder: u64,
}

impl Span {
    pub(crate) fn new(phase: &Phase) -> Self {
        Self {
            from: slices(phase.from),
            to: slices(phase.to),
            demand: millionths(phase.demand),
            memory: phase.memory_bytes,
            sm: millionths(phase.sm),
            tensor: millionths(phase.tensor),
            dram: millionths(phase.dram),
            encoder: millionths(phase.encoder),
            decoder: millionths(phase.decoder),
        }
    }

    /// What a worker does in a slice of which it has `held` nanoseconds.
    fn work(&self, held: u64) -> Work {
        Work {
            busy: held,
            sm: held * self.sm / MILLION,
            tensor: held * self.tensor / MILLION,
            dram: held * self.dram / MILLION,
            encoder: SLICE * self.encoder / MILLION,
            decoder: SLICE * self.decoder / MILLION,
        }
    }
}

/// The engine of a worker whose place the GPU's layout does not have: it does not run.
pub(crate) const NOWHERE: usize = usize::MAX;

/// A process on this GPU.
pub(crate) struct Worker {
    pub(crate) pid: u32,
    pub(crate) engine: usize,
    pub(crate) spans: Vec<Span>,
}

impl Worker {
    fn span(&self, slice: u64) -> Option<&Span> {
        self.spans.iter().find(|span| (span.from..span.to).contains(&slice))
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
}

/// One GPU's script without end, summed from elapsed 0.
pub(crate) struct Cycle {
    script: Script,
    /// Slices in a cycle.
    cycle: u64,
    stride: u64,
    /// Sums at the beginning of every stride.
    checkpoints: Vec<Totals>,
    whole: Totals,
}

impl Cycle {
    pub(crate) fn new(script: Script) -> Self {
        let cycle = slices(script.cycle_seconds).max(1);
        let stride = STRIDE.max(cycle / CHECKPOINTS);
        let whole = Totals::nothing(script.engines.len(), script.workers.len());
        let mut cycles = Self { script, cycle, stride, checkpoints: Vec::new(), whole };
        let mut sum = cycles.whole.clone();
        for slice in 0..cycle {
            if slice.is_multiple_of(stride) {
                cycles.checkpoints.push(sum.clone());
            }
            cycles.accumulate(slice, SLICE, &mut sum);
        }
        cycles.whole = sum;
        cycles
    }

    pub(crate) fn workers(&self) -> &[Worker] {
        &self.script.workers
    }

    /// The share of the GPU that an engine is.
    pub(crate) fn share(&self, engine: usize) -> f64 {
        self.script.engines.get(engine).map_or(0.0, |millionths| *millionths as f64 / MILLION as f64)
    }

    /// Everything done up to an elapsed time.
    pub(crate) fn totals(&self, elapsed: u64) -> Totals {
        let (cycles, slice, part) = self.place(elapsed);
        let stride = slice / self.stride;
        let mut sum = usize::try_from(stride)
            .ok()
            .and_then(|index| self.checkpoints.get(index))
            .cloned()
            .unwrap_or_default();
        for full in stride * self.stride..slice {
            self.accumulate(full, SLICE, &mut sum);
        }
        self.accumulate(slice, part, &mut sum);
        sum.add(&self.whole, cycles);
        sum
    }

    /// The workers that exist at an elapsed time, with what they do.
    pub(crate) fn present(&self, elapsed: u64) -> impl Iterator<Item = (usize, &Worker, &Span)> {
        let (_, slice, _) = self.place(elapsed);
        let workers = self.script.workers.iter().enumerate().filter(|(_, worker)| worker.engine != NOWHERE);
        workers.filter_map(move |(index, worker)| Some((index, worker, worker.span(slice)?)))
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

    /// Whether a worker wants its engine in a slice.
    fn wants(&self, index: usize, slice: u64) -> Option<(&Worker, &Span, bool)> {
        let worker = self.script.workers.get(index)?;
        let span = worker.span(slice)?;
        let place = (slice << 20) ^ (worker.engine as u64) << 60;
        let wants = hash(self.script.seed ^ hash(place ^ u64::from(worker.pid))) % MILLION < span.demand;
        Some((worker, span, wants))
    }

    /// Calls `each` with what every present worker does in a slice.
    fn slice(&self, slice: u64, mut each: impl FnMut(usize, &Worker, Work)) {
        for (engine, _) in self.script.engines.iter().enumerate() {
            let here =
                |index: &usize| self.script.workers.get(*index).is_some_and(|worker| worker.engine == engine);
            let all = 0..self.script.workers.len();
            let want = |index: usize| self.wants(index, slice).is_some_and(|(_, _, wants)| wants);
            let wanting = all.clone().filter(here).filter(|index| want(*index)).count() as u64;
            let mut remainder = SLICE.checked_rem(wanting).unwrap_or(0);
            for index in all.filter(here) {
                let Some((worker, span, wants)) = self.wants(index, slice) else { continue };
                let mut held = 0;
                if wants {
                    held = SLICE.checked_div(wanting).unwrap_or(0) + remainder;
                    remainder = 0;
                }
                each(index, worker, span.work(held));
            }
        }
    }

    fn accumulate(&self, slice: u64, part: u64, sum: &mut Totals) {
        if part == 0 {
            return;
        }
        let scale = |time: u64| time * part / SLICE;
        let mut busy = 0;
        let mut dynamic = 0;
        self.slice(slice, |index, worker, work| {
            busy |= work.busy;
            dynamic += self.heat(worker.engine, work);
            let scaled = work.map(scale);
            if let Some(mine) = sum.workers.get_mut(index) {
                *mine += scaled;
            }
            if let Some(engine) = sum.engines.get_mut(worker.engine) {
                *engine += scaled;
            }
        });
        if busy > 0 {
            sum.busy += part;
        }
        sum.energy += self.milliwatts(slice, dynamic) * part / MILLION;
    }

    /// Milliwatts in a slice.
    fn draw(&self, slice: u64) -> u64 {
        let mut dynamic = 0;
        self.slice(slice, |_, worker, work| dynamic += self.heat(worker.engine, work));
        self.milliwatts(slice, dynamic)
    }

    /// Milliwatts that work in a slice adds: most of it clocks and SMs, then tensor cores, then memory.
    fn heat(&self, engine: usize, work: Work) -> u64 {
        let share = self.script.engines.get(engine).copied().unwrap_or(0);
        let weighted = 30 * work.busy
            + 30 * work.sm
            + 25 * work.tensor
            + 15 * work.dram
            + 2 * (work.encoder + work.decoder);
        self.script.power.dynamic * (weighted / 100) / SLICE * share / MILLION
    }

    fn milliwatts(&self, slice: u64, dynamic: u64) -> u64 {
        let bounded = dynamic.min(self.script.power.dynamic);
        // Any brake lowers the clocks, and so the power above rest.
        let braked = if self.braking(slice) == 0 { bounded } else { bounded * 4 / 5 };
        self.script.power.idle + braked
    }
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

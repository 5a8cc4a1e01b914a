//! Rings of samples that the driver keeps of processes and of the GPU.
//!
//! In: the timeline and the last time that a client has read. Out: the samples after it, oldest first, as far
//! as the ring still holds them.

use super::{Meters, POWER_SEEN, percent};
use crate::board::family;
use crate::schedule::{ListedKind, Work};
use crate::surprise::Surprise;

/// Length of a window of process utilization: a sixth of a second.
const PROCESS_WINDOW: u64 = 166_666_000;
/// How many windows the driver keeps, also of ended processes.
const PROCESS_WINDOWS: u64 = 16;
/// How many process samples the driver keeps: with many processes the ring holds fewer windows.
const PROCESS_RING: usize = 128;
/// Samples of the GPU in one ring.
pub(crate) const RING: u64 = 120;
/// Nanoseconds between two samples of utilization and of clocks: a sixth of a second.
const STEP: u64 = 166_666_000;

/// One process in one window, in whole percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessWindowSample {
    pub(crate) worker: usize,
    /// Elapsed nanoseconds at the end of the window.
    pub(crate) at: u64,
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
    pub(crate) jpeg: u32,
    pub(crate) ofa: u32,
}

/// What a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Milliwatts.
    Power,
    /// Whole percent.
    Gpu,
    Memory,
    Encoder,
    Decoder,
    Jpeg,
    Ofa,
    /// Whether the clocks were above those of rest: 0 or 1.
    Awake,
}

impl Meters<'_> {
    /// The samples of processes that ended after `since` (elapsed nanoseconds), oldest first.
    pub(crate) fn process_samples(&self, since: Option<u64>) -> Vec<ProcessWindowSample> {
        let last = self.elapsed / PROCESS_WINDOW;
        let first = since.map_or(0, |since| since / PROCESS_WINDOW).max(last.saturating_sub(PROCESS_WINDOWS));
        let mut samples = Vec::new();
        if first >= last {
            return samples;
        }
        let mut walk = self.timeline.walk(first * PROCESS_WINDOW);
        let mut before = walk.totals();
        for window in first + 1..=last {
            let at = window * PROCESS_WINDOW;
            walk.advance(at);
            let after = walk.totals();
            let workers = before.workers.iter().zip(&after.workers).enumerate();
            let seen = if self.surprise == Some(Surprise::OneSample) { 1 } else { usize::MAX };
            for (worker, (earlier, later)) in workers.take(seen) {
                samples.extend(self.sample(worker, at, *later - *earlier));
            }
            before = after;
        }
        let lost = samples.len().saturating_sub(PROCESS_RING);
        samples.split_off(lost)
    }

    /// `None` for a process that did nothing: the driver has no sample of it.
    fn sample(&self, worker: usize, at: u64, work: Work) -> Option<ProcessWindowSample> {
        let of = |time| percent(time, PROCESS_WINDOW);
        let face = self.timeline.workers().get(worker)?.face;
        // Clients of MPS run side by side: the driver reports the SMs of each instead of its turns.
        let sm = of(if face.kind == ListedKind::Client { work.sm } else { work.busy });
        let sample = ProcessWindowSample {
            worker,
            at,
            sm,
            memory: of(work.dram),
            encoder: of(work.encoder),
            decoder: of(work.decoder),
            jpeg: of(work.jpeg),
            ofa: of(work.ofa),
        };
        let ProcessWindowSample { memory, encoder, decoder, jpeg, ofa, .. } = sample;
        let did = sm + memory + encoder + decoder + jpeg + ofa > 0;
        did.then_some(ProcessWindowSample { sm: face.garbage.unwrap_or(sm), ..sample })
    }

    /// Time and value of the samples that ended after `since` (elapsed nanoseconds), oldest first. Utilization
    /// is not recorded while no process is present.
    pub(crate) fn ring(&self, ring: Ring, since: Option<u64>) -> Vec<(u64, u64)> {
        let step = if ring == Ring::Power { family::power_sample(self.board) } else { STEP };
        let last = self.elapsed / step;
        let first = since.map_or(0, |since| since / step).max(last.saturating_sub(RING));
        if ring == Ring::Power {
            let seen = |at: u64| (at, self.timeline.power(at.saturating_sub(POWER_SEEN.min(step)), at));
            return (first + 1..=last).map(|number| seen(number * step)).collect();
        }
        let mut samples = Vec::new();
        if first >= last {
            return samples;
        }
        let mut walk = self.timeline.walk(first * step);
        let mut before = walk.totals();
        for number in first + 1..=last {
            let at = number * step;
            walk.advance(at);
            let after = walk.totals();
            let (busy, work) = (after.busy - before.busy, after.all() - before.all());
            let there = self.timeline.present(at - 1).next().is_some() || work != Work::default();
            if ring == Ring::Awake {
                samples.push((at, u64::from(busy + work.encoder + work.decoder + work.jpeg + work.ofa > 0)));
            } else if there {
                samples.push((at, u64::from(share(ring, busy, work))));
            }
            before = after;
        }
        samples
    }
}

fn share(ring: Ring, busy: u64, work: Work) -> u32 {
    let time = match ring {
        Ring::Power | Ring::Awake | Ring::Gpu => busy,
        Ring::Memory => work.dram,
        Ring::Encoder => work.encoder,
        Ring::Decoder => work.decoder,
        Ring::Jpeg => work.jpeg,
        Ring::Ofa => work.ofa,
    };
    percent(time, STEP)
}

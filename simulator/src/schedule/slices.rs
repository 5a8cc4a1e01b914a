//! Which worker has which engine in a slice, and sums over slices.
//!
//! Between two changes slices differ only in which workers want an engine. They are counted by that, and each
//! kind is summed once: a cycle of sixty thousand slices takes well under a millisecond.

use std::ops::Range;

use super::walk::Sums;
use super::{Cycle, MILLION, NOWHERE, SLICE, WorkSpan, Worker, hash};

/// The most uncertain workers whose slices are counted by kind; with more there are as many kinds as slices.
const DOUBTFUL: usize = 6;

impl Cycle {
    /// Adds whole slices of one cycle.
    pub(super) fn add_slices(&self, slices: Range<u64>, sum: &mut Sums) {
        let mut from = slices.start;
        while from < slices.end {
            let next = self.changes.partition_point(|change| *change <= from);
            let to = self.changes.get(next).map_or(slices.end, |change| slices.end.min(*change));
            self.add_alike(from..to, sum);
            from = to;
        }
    }

    /// Adds slices without a change between them.
    fn add_alike(&self, slices: Range<u64>, sum: &mut Sums) {
        let mut doubtful: Vec<(&Worker, &WorkSpan, usize)> = Vec::new();
        for (worker, offset) in self.script.workers.iter().zip(&self.offsets) {
            match worker.span(slices.start) {
                Some((number, span)) if worker.engine != NOWHERE && !span.certain() => {
                    doubtful.push((worker, span, offset + number));
                }
                _ => {}
            }
        }
        if doubtful.len() > DOUBTFUL {
            for slice in slices {
                self.add_part(slice, SLICE, sum);
            }
            return;
        }
        let mut kinds = [0_u64; 1 << DOUBTFUL];
        for slice in slices.clone() {
            let wanted = (0..).zip(&doubtful);
            let kind = wanted.fold(0_usize, |kind, (bit, (worker, span, _))| {
                kind | usize::from(self.wants(worker, span, slice)) << bit
            });
            if let Some(times) = kinds.get_mut(kind) {
                *times += 1;
            }
        }
        for (kind, times) in kinds.iter().enumerate().filter(|(_, times)| **times > 0) {
            let wants = |_: &Worker, span: &WorkSpan, number: usize| {
                let bit = doubtful.iter().position(|(_, _, known)| *known == number);
                bit.map_or(span.demand > 0, |bit| kind >> bit & 1 == 1)
            };
            self.add(slices.start, (SLICE, *times), wants, sum);
        }
    }

    /// Adds the first nanoseconds of one slice, or all of it.
    pub(super) fn add_part(&self, slice: u64, part: u64, sum: &mut Sums) {
        self.add(slice, (part, 1), |worker, span, _| self.wants(worker, span, slice), sum);
    }

    /// Adds `part` nanoseconds of a slice `times` times; `wants` returns whether a worker wants its engine.
    fn add(
        &self,
        slice: u64,
        (part, times): (u64, u64),
        wants: impl Fn(&Worker, &WorkSpan, usize) -> bool,
        sum: &mut Sums,
    ) {
        if part == 0 {
            return;
        }
        let scale = |time: u64| if part == SLICE { time } else { time * part / SLICE };
        let mut busy = false;
        let mut dynamic = 0;
        let mut last = None;
        self.share_out(slice, wants, |worker, span, number, held| {
            dynamic += self.heat(worker.engine, span, held);
            if let Some(mine) = sum.spans.get_mut(number) {
                mine.held += scale(held) * times;
                mine.present += part * times;
            }
            if held == 0 {
                return;
            }
            busy = true;
            if let Some(engine) = sum.engines.get_mut(worker.engine) {
                // A second worker on an engine needs a context switch, except under MPS.
                if last == Some(worker.engine) {
                    engine.switches += u64::from(!self.script.together && part == SLICE) * times;
                } else {
                    engine.busy += part * times;
                }
            }
            last = Some(worker.engine);
        });
        if busy {
            sum.busy += part * times;
        }
        sum.energy += self.milliwatts(slice, dynamic) * part / MILLION * times;
    }

    /// The GPU's milliwatts in a slice.
    pub(super) fn draw(&self, slice: u64) -> u64 {
        let mut dynamic = 0;
        let wants = |worker: &Worker, span: &WorkSpan, _| self.wants(worker, span, slice);
        self.share_out(slice, wants, |worker, span, _, held| dynamic += self.heat(worker.engine, span, held));
        self.milliwatts(slice, dynamic)
    }

    /// Whether a worker wants its engine in a slice.
    fn wants(&self, worker: &Worker, span: &WorkSpan, slice: u64) -> bool {
        let place = (slice << 20) ^ (worker.engine as u64) << 60;
        hash(self.script.seed ^ hash(place ^ u64::from(worker.pid))) % MILLION < span.demand
    }

    /// Calls `each` with every present worker, its span and the span's number, and its nanoseconds of the slice.
    fn share_out(
        &self,
        slice: u64,
        wants: impl Fn(&Worker, &WorkSpan, usize) -> bool,
        mut each: impl FnMut(&Worker, &WorkSpan, usize, u64),
    ) {
        for (engine, _) in self.script.engines.iter().enumerate() {
            let workers = self.script.workers.iter().zip(&self.offsets);
            let here =
                workers.filter(|(worker, _)| worker.engine == engine).filter_map(|(worker, offset)| {
                    let (number, span) = worker.span(slice)?;
                    Some((worker, span, offset + number))
                });
            let wanting =
                here.clone().filter(|(worker, span, number)| wants(worker, span, *number)).count() as u64;
            let turns = if self.script.together { wanting.min(1) } else { wanting };
            let mut remainder = SLICE.checked_rem(turns).unwrap_or(0);
            for (worker, span, number) in here {
                let mut held = 0;
                if wanting > 0 && wants(worker, span, number) {
                    held = SLICE.checked_div(turns).unwrap_or(0) + remainder;
                    remainder = 0;
                }
                each(worker, span, number, held);
            }
        }
    }

    /// Milliwatts that a worker adds in a slice.
    fn heat(&self, engine: usize, span: &WorkSpan, held: u64) -> u64 {
        let share = self.script.engines.get(engine).copied().unwrap_or(0);
        self.script.power.dynamic * (span.heat(held) / 100) / SLICE * share / MILLION
    }

    fn milliwatts(&self, slice: u64, dynamic: u64) -> u64 {
        let bounded = dynamic.min(self.script.power.dynamic);
        // A brake lowers the clocks, and with them the power above rest.
        let braked = if self.braking(slice) == 0 { bounded } else { bounded * 4 / 5 };
        self.script.power.idle + braked
    }
}

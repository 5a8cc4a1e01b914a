//! The driver's ring of utilization samples: drained at every tick, it covers the whole time since the last
//! one, where a single utilization window covers its last sixth of a second.
//!
//! In go the ring's samples since the last one seen, out comes the mean share of time busy. Stamps are compared
//! with one another only: they may stand in the driver's own clock. An empty ring is no answer, nor is one that ends
//! before the tick does: idle boards stop filling theirs, so whoever asks must ask the plain utilization, too.

use nvml_wrapper_sys::bindings as sys;

use super::door::{Door, Handle, INSUFFICIENT_SIZE, NOT_FOUND, Refusal, ask, more_room};
use crate::model::{Absence, Nanoseconds, Rejection, Sampled};

/// Rings hold some hundred samples; a driver that wants room for more than this answers garbage.
const MOST: usize = 4_096;

/// The longest window by product is a second: one sample covers no more.
const LONGEST_WINDOW: u64 = 1_000_000;

/// Stamps that are closer than this are one moment.
const SHORTEST_WINDOW: u64 = 10_000;

/// How often a ring may be empty on a busy GPU before it is read from its beginning: its clock was set back.
const PATIENCE: u32 = 3;

/// For how long a ring's last sample stands where none is new.
const STANDS: Nanoseconds = Nanoseconds::from_seconds(2);

/// Percent to billionths.
const PERCENT: u64 = 10_000_000;

const NO_SAMPLE: sys::nvmlSample_t =
    sys::nvmlSample_t { timeStamp: 0, sampleValue: sys::nvmlValue_t { ullVal: 0 } };

/// The ring of GPU utilization of one GPU, as far as it was read.
pub(super) struct Ring {
    buffer: Vec<sys::nvmlSample_t>,
    /// The newest stamp seen, in the ring's microseconds; none before the first look.
    last_seen: Option<u64>,
    spacing: Option<u64>,
    /// The newest sample and when it came.
    newest: Option<(Window, Nanoseconds)>,
    drained: Option<Nanoseconds>,
    /// Whether the time up to there was told as idle, though no sample of the ring speaks of it.
    told: bool,
    empty: u32,
    refused: Option<Absence>,
}

// SAFETY: the buffer is plain memory that the driver writes only during a call.
unsafe impl Send for Ring {}

/// One believed sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    stamp: u64,
    percent: u32,
}

/// What a look into the ring brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// Percent of the last window, the mean since the look before, and the time since of which the ring says nothing
    /// though a window would have been over.
    Samples { last: u32, mean: Sampled, rest: Nanoseconds },
    /// Nothing new.
    Nothing,
}

impl Ring {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![NO_SAMPLE; 128],
            last_seen: None,
            spacing: None,
            newest: None,
            drained: None,
            told: false,
            empty: 0,
            refused: None,
        }
    }

    /// Takes what is new out of the ring. A board that has none is not asked again.
    pub(super) fn drain(&mut self, door: &mut Door, device: Handle) -> Result<Drained, Absence> {
        if let Some(absence) = self.refused {
            return Err(absence);
        }
        match self.ask(door, device) {
            Ok((kind, count)) => {
                let samples = self.buffer.get(..count).unwrap_or_default();
                let (believed, dropped) = believed(samples, kind, self.last_seen.unwrap_or(0));
                door.reject(Rejection::Sample, dropped);
                Ok(self.take(believed, door.clock().now().boottime))
            }
            Err(absence) => {
                self.refused = absence.is_permanent().then_some(absence);
                Err(absence)
            }
        }
    }

    fn ask(&mut self, door: &mut Door, Handle(device): Handle) -> Result<(u32, usize), Absence> {
        let kind = sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES;
        let since = self.last_seen.unwrap_or(0);
        let mut value_type = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
        loop {
            let mut count = u32::try_from(self.buffer.len()).unwrap_or(u32::MAX);
            let buffer = self.buffer.as_mut_ptr();
            let answer = ask!(
                door,
                nvmlDeviceGetSamples(device, kind, since, &raw mut value_type, &raw mut count, buffer)
            );
            match answer {
                // A full buffer may be the oldest part of more.
                Ok(()) if count as usize >= self.buffer.len() && self.buffer.len() < MOST => {
                    self.buffer.resize((self.buffer.len() * 4).min(MOST), NO_SAMPLE);
                }
                Ok(()) => return Ok((value_type, (count as usize).min(self.buffer.len()))),
                Err(Refusal::Code(NOT_FOUND)) => return Ok((value_type, 0)),
                Err(Refusal::Code(INSUFFICIENT_SIZE)) => {
                    let Some(room) = more_room(self.buffer.len(), count as usize, MOST) else {
                        door.reject(Rejection::Count, 1);
                        return Err(Absence::Rejected);
                    };
                    self.buffer.resize(room, NO_SAMPLE);
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    fn take(&mut self, windows: Vec<Window>, now: Nanoseconds) -> Drained {
        let Some(newest) = windows.last().copied() else { return Drained::Nothing };
        let reach = Nanoseconds(now.0.saturating_sub(self.drained.map_or(now.0, |drained| drained.0)));
        // Time that was told as idle is told: what the ring says now is of the time since. Only then, since two
        // stamps of ordinary ticks lie a little further apart or closer than the ticks.
        let told = std::mem::take(&mut self.told).then(|| newest.stamp.saturating_sub(reach.0 / 1_000));
        let since = self.last_seen.map(|seen| seen.max(told.unwrap_or(0)));
        self.spacing = spacing(&windows).or(self.spacing);
        (self.last_seen, self.newest) = (Some(newest.stamp), Some((newest, now)));
        (self.empty, self.drained) = (0, Some(now));
        // What stood in the ring before the first look belongs to no tick.
        let mean = since.map_or_else(|| stands(newest), |since| mean(&windows, since, self.spacing));
        // No stamp reaches further back than the time that went by here.
        let mean = Sampled { covered: mean.covered.min(reach), ..mean };
        let rest = Nanoseconds(reach.0 - mean.covered.0);
        let window = self.spacing.unwrap_or(LONGEST_WINDOW).min(LONGEST_WINDOW) * 1_000;
        let is_over = since.is_some() && rest.0 > window + window / 4;
        Drained::Samples { last: newest.percent, mean, rest: if is_over { rest } else { Nanoseconds(0) } }
    }

    /// What a tick was at whose end the ring said nothing and the plain utilization is 0: the GPU was idle by then.
    pub(super) fn ended(&mut self, mean: Sampled, rest: Nanoseconds) -> Sampled {
        self.told = true;
        let whole = mean.covered + rest;
        let busy = u128::from(mean.ratio) * u128::from(mean.covered.0) / u128::from(whole.0.max(1));
        Sampled { ratio: u64::try_from(busy).unwrap_or(mean.ratio), covered: whole }
    }

    /// What an empty ring means, once the plain utilization is known, in billionths: idle where that is 0, else
    /// the last window stands for a while. None where the ring cannot be believed.
    pub(super) fn when_empty(&mut self, utilization: u64, now: Nanoseconds) -> Option<Sampled> {
        let since = self.drained.unwrap_or(now);
        if utilization == 0 {
            (self.drained, self.told, self.empty) = (Some(now), true, 0);
            return Some(Sampled { ratio: 0, covered: Nanoseconds(now.0.saturating_sub(since.0)) });
        }
        let (newest, at) = self.newest?;
        if now.0.saturating_sub(at.0) <= STANDS.0 {
            return Some(stands(newest));
        }
        self.empty += 1;
        if self.empty >= PATIENCE {
            (self.last_seen, self.empty) = (None, 0);
        }
        None
    }
}

fn stands(window: Window) -> Sampled {
    Sampled { ratio: u64::from(window.percent) * PERCENT, covered: Nanoseconds(0) }
}

/// What can be true of an answer, in order of time, and how many samples cannot. Samples that were seen before
/// are no mistake: some drivers give the whole ring.
fn believed(samples: &[sys::nvmlSample_t], kind: u32, since: u64) -> (Vec<Window>, u64) {
    let mut windows = Vec::with_capacity(samples.len());
    let mut dropped = 0;
    for sample in samples {
        match percent(sample, kind) {
            Some(percent) if sample.timeStamp > since => {
                windows.push(Window { stamp: sample.timeStamp, percent });
            }
            Some(_) => {}
            None => dropped += 1,
        }
    }
    windows.sort_by_key(|window| window.stamp);
    windows.dedup_by_key(|window| window.stamp);
    (windows, dropped)
}

fn percent(sample: &sys::nvmlSample_t, kind: u32) -> Option<u32> {
    let value = sample.sampleValue;
    // SAFETY: all members are plain integers at offset 0 of zeroed memory: every bit pattern is a value.
    let raw = unsafe {
        match kind {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => u64::from(value.uiVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG
            | sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => value.ullVal,
            _ => return None,
        }
    };
    u32::try_from(raw).ok().filter(|percent| *percent <= 100)
}

/// The least time between two samples that are two.
fn spacing(windows: &[Window]) -> Option<u64> {
    let gaps = windows.iter().zip(windows.iter().skip(1)).map(|(one, next)| next.stamp - one.stamp);
    gaps.filter(|gap| *gap >= SHORTEST_WINDOW).min()
}

/// Busy time over all the time since then. A sample covers the ring's spacing before it; a longer gap is a time in
/// which the ring had nothing to tell, as on an idle board. What came before is of a time that is told.
fn mean(windows: &[Window], since: u64, spacing: Option<u64>) -> Sampled {
    let longest = spacing.unwrap_or(LONGEST_WINDOW).min(LONGEST_WINDOW);
    let mut before = since;
    let mut busy: u128 = 0;
    for window in windows.iter().filter(|window| window.stamp > since) {
        // A hair of jitter between two stamps is no gap.
        let gap = window.stamp - before;
        let covered = if gap <= longest + longest / 4 { gap } else { longest };
        busy += u128::from(covered) * u128::from(u64::from(window.percent) * PERCENT);
        before = window.stamp;
    }
    let whole = before - since;
    let ratio = busy / u128::from(whole.max(1));
    Sampled { ratio: u64::try_from(ratio).unwrap_or(0), covered: Nanoseconds(whole.saturating_mul(1_000)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UINT: u32 = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
    const SIXTH: u64 = 166_667;

    fn sample(stamp: u64, percent: u32) -> sys::nvmlSample_t {
        sys::nvmlSample_t { timeStamp: stamp, sampleValue: sys::nvmlValue_t { uiVal: percent } }
    }

    fn windows(samples: &[(u64, u32)], since: u64) -> Vec<Window> {
        let raw: Vec<_> = samples.iter().map(|(stamp, percent)| sample(*stamp, *percent)).collect();
        believed(&raw, UINT, since).0
    }

    #[test]
    fn the_mean_of_a_tick_is_that_of_all_its_windows() {
        let start = 7_000_000;
        let ring: Vec<_> = (1..=6).map(|n| (start + n * SIXTH, if n <= 3 { 100 } else { 0 })).collect();
        let windows = windows(&ring, start);
        let mean = mean(&windows, start, spacing(&windows));
        assert_eq!(mean.ratio, 500_000_000);
        assert_eq!(mean.covered, Nanoseconds(6 * SIXTH * 1_000));
    }

    #[test]
    fn a_gap_in_the_ring_is_idle_time() {
        let windows = windows(&[(2_000_000, 100), (2_100_000, 100)], 1_000_000);
        let mean = mean(&windows, 1_000_000, spacing(&windows));
        assert_eq!(mean.ratio, 181_818_181, "two windows of 0.1 s in 1.1 s");
    }

    #[test]
    fn what_cannot_be_true_is_dropped_and_counted_and_what_was_seen_is_neither() {
        let raw = [sample(10, 50), sample(30, 101), sample(30, 40), sample(20, 30), sample(20, 30)];
        let (windows, dropped) = believed(&raw, UINT, 10);
        assert_eq!(windows, [Window { stamp: 20, percent: 30 }, Window { stamp: 30, percent: 40 }]);
        assert_eq!(dropped, 1);
        assert_eq!(believed(&raw, 0, 10).0, [], "a double is no percentage of this ring");
        assert_eq!(believed(&[sample(u64::MAX, u32::MAX)], UINT, 0), (Vec::new(), 1));
    }

    #[test]
    fn stamps_at_the_ends_of_the_range_do_not_overflow() {
        let windows = windows(&[(u64::MAX, 100)], 0);
        let mean = mean(&windows, 0, None);
        assert_eq!(mean.ratio, 0);
        assert_eq!(mean.covered, Nanoseconds(u64::MAX));
    }

    #[test]
    fn a_stamp_of_the_future_covers_no_more_than_the_time_that_went_by() {
        let second = Nanoseconds::from_seconds;
        let mut ring = Ring::new();
        ring.take(windows(&[(1_000_000, 80)], 0), second(1));
        let Drained::Samples { mean, .. } = ring.take(windows(&[(u64::MAX, 80)], 1_000_000), second(2))
        else {
            panic!("it is new")
        };
        assert_eq!(mean.covered, second(1));
    }

    #[test]
    fn an_empty_ring_is_idle_only_if_utilization_says_so() {
        let second = Nanoseconds::from_seconds;
        let mut ring = Ring::new();
        assert_eq!(ring.when_empty(500_000_000, second(1)), None, "it has never said anything");
        ring.take(windows(&[(1_000_000, 80)], 0), second(2));
        assert_eq!(ring.when_empty(500_000_000, second(3)), Some(stands(Window { stamp: 0, percent: 80 })));
        let idle = ring.when_empty(0, second(4));
        assert_eq!(idle, Some(Sampled { ratio: 0, covered: second(2) }));
    }

    #[test]
    fn what_was_told_as_idle_takes_nothing_from_the_work_after_it() {
        let second = Nanoseconds::from_seconds;
        let mut ring = Ring::new();
        ring.take(windows(&[(12_000_000, 100)], 0), second(12));
        for tick in 13..=30 {
            assert!(ring.when_empty(0, second(tick)).is_some());
        }
        // The first of these came too late for the tick before, of which it is told that it was idle.
        let burst: Vec<_> = (0..=6).map(|n| (29_950_000 + n * SIXTH, if n == 0 { 9 } else { 100 })).collect();
        let all = Sampled { ratio: 1_000_000_000, covered: second(1) };
        let told = |drained| match drained {
            Drained::Samples { mean, rest, .. } => {
                assert_eq!(rest, Nanoseconds(0));
                mean
            }
            Drained::Nothing => panic!("there are samples"),
        };
        let mean = told(ring.take(windows(&burst, 12_000_000), second(31)));
        assert_eq!((mean.ratio / 10_000_000, mean.covered), (100, all.covered));
        // Of a tick that half a burst fills, half is told; and the next tick goes on from what was seen.
        let seen = burst[6].0;
        assert!(ring.when_empty(0, second(40)).is_some());
        let half: Vec<_> = (1..=3).map(|n| (40_500_000 + n * SIXTH, 100)).collect();
        let mean = told(ring.take(windows(&half, seen), second(41)));
        assert_eq!((mean.ratio / 10_000_000, mean.covered), (50, all.covered));
        let next: Vec<_> = (4..=9).map(|n| (40_500_000 + n * SIXTH, 100)).collect();
        let mean = told(ring.take(windows(&next, half[2].0), Nanoseconds(second(42).0 - 5_000_000)));
        assert_eq!(mean.ratio, all.ratio, "a stamp's jitter cuts no window");
    }

    #[test]
    fn a_ring_that_ends_before_the_tick_leaves_a_rest_which_is_idle_if_utilization_says_so() {
        let second = Nanoseconds::from_seconds;
        let mut ring = Ring::new();
        ring.take(windows(&[(9_800_000, 100), (10_000_000, 100)], 0), second(10));
        let half = windows(&[(10_200_000, 100), (10_400_000, 100)], 10_000_000);
        let Drained::Samples { mean, rest, .. } = ring.take(half, second(11)) else {
            panic!("there are samples")
        };
        assert_eq!((mean.covered.0, rest.0), (400_000_000, 600_000_000));
        let told = ring.ended(mean, rest);
        assert_eq!(told, Sampled { ratio: 400_000_000, covered: second(1) });
        // The rest is told: work that begins thereafter does not share it.
        let next: Vec<_> = (1..=5).map(|n| (11_000_000 + n * 200_000, 100)).collect();
        let Drained::Samples { mean, rest, .. } = ring.take(windows(&next, 10_400_000), second(12)) else {
            panic!("there are samples")
        };
        assert_eq!((mean.ratio, mean.covered, rest.0), (1_000_000_000, second(1), 0));
        // A window that is not over yet is no rest.
        let late: Vec<_> = (6..=9).map(|n| (11_000_000 + n * 200_000, 100)).collect();
        let Drained::Samples { rest, .. } = ring.take(windows(&late, 12_000_000), second(13)) else {
            panic!("there are samples")
        };
        assert_eq!(rest.0, 0);
    }

    #[test]
    fn a_ring_whose_clock_was_set_back_is_read_from_its_beginning() {
        let second = Nanoseconds::from_seconds;
        let mut ring = Ring::new();
        ring.take(windows(&[(u64::MAX, 80)], 0), second(1));
        for tick in 10..13 {
            assert_eq!(ring.when_empty(800_000_000, second(tick)), None);
        }
        assert_eq!(ring.last_seen, None);
        let first = ring.take(windows(&[(5_000_000, 60)], 0), second(13));
        assert_eq!(
            first,
            Drained::Samples {
                last: 60,
                mean: stands(Window { stamp: 5_000_000, percent: 60 }),
                rest: Nanoseconds(0),
            }
        );
    }
}

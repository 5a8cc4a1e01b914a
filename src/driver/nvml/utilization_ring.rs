//! Reads the driver's ring of utilization samples. It covers the whole time since the last read, while the
//! utilization call covers the last sixth of a second.
//!
//! Stamps are only compared with one another, since they may be of the driver's own clock. Idle boards stop
//! filling the ring, so if it is empty or ends before the tick does, the caller must make the utilization call
//! too.

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, NOT_FOUND, call};
use crate::model::{Absence, Nanoseconds, Rejection, Sampled};

/// Rings have some hundred samples; a driver that wants room for more than this returns garbage.
const MOST: usize = 4_096;

/// The longest window of any product is a second, so one sample covers no more.
const LONGEST_WINDOW: u64 = 1_000_000;

/// Stamps closer than this are the same moment.
const SHORTEST_WINDOW: u64 = 10_000;

/// How often the ring may be empty on a busy GPU before it is read from its beginning, since its clock was set
/// back.
const EMPTY_READS_BEFORE_RESTART: u32 = 3;

const REPEAT_LAST_SAMPLE: Nanoseconds = Nanoseconds::from_seconds(2);

const PERCENT: u64 = 10_000_000;

const NO_SAMPLE: sys::nvmlSample_t =
    sys::nvmlSample_t { timeStamp: 0, sampleValue: sys::nvmlValue_t { ullVal: 0 } };

pub(super) struct UtilizationRing {
    buffer: Vec<sys::nvmlSample_t>,
    /// The newest stamp seen, in the ring's microseconds; none before the first read.
    last_seen: Option<u64>,
    spacing: Option<u64>,
    newest: Option<(RingSample, Nanoseconds)>,
    drained: Option<Nanoseconds>,
    /// Whether the time up to `drained` was counted as idle without a sample.
    counted_idle: bool,
    empty: u32,
    refused: Option<Absence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingSample {
    stamp: u64,
    percent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingRead {
    /// Percent of the last sample, the mean since the last read, and the time at the end that no sample covers
    /// although a window would have been over.
    Samples {
        last: u32,
        mean: Sampled,
        rest: Nanoseconds,
    },
    Nothing,
}

impl UtilizationRing {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![NO_SAMPLE; 128],
            last_seen: None,
            spacing: None,
            newest: None,
            drained: None,
            counted_idle: false,
            empty: 0,
            refused: None,
        }
    }

    /// Reads the new samples. A board that has no ring is not called again.
    pub(super) fn read_new(&mut self, api: &mut DriverApi, device: Handle) -> Result<RingRead, Absence> {
        if let Some(absence) = self.refused {
            return Err(absence);
        }
        match self.fetch(api, device) {
            Ok((kind, count)) => {
                let samples = self.buffer.get(..count).unwrap_or_default();
                let (plausible, dropped) = plausible(samples, kind, self.last_seen.unwrap_or(0));
                api.reject(Rejection::Sample, dropped);
                Ok(self.add_samples(plausible, api.clock().now().boottime))
            }
            Err(absence) => {
                self.refused = absence.is_permanent().then_some(absence);
                Err(absence)
            }
        }
    }

    fn fetch(&mut self, api: &mut DriverApi, Handle(device): Handle) -> Result<(u32, usize), Absence> {
        let kind = sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES;
        let since = self.last_seen.unwrap_or(0);
        let mut value_type = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
        loop {
            let answer = api.read_array(&mut self.buffer, NO_SAMPLE, MOST, |api, buffer, count| {
                call!(api, nvmlDeviceGetSamples(device, kind, since, &raw mut value_type, count, buffer))
            });
            let count = if answer == Err(CallError::Code(NOT_FOUND)) { 0 } else { answer? };
            if count < self.buffer.len() || count >= MOST {
                return Ok((value_type, count));
            }
            // A full buffer may hold the oldest samples only.
            self.buffer.resize((count * 4).min(MOST), NO_SAMPLE);
        }
    }

    fn add_samples(&mut self, windows: Vec<RingSample>, now: Nanoseconds) -> RingRead {
        let Some(newest) = windows.last().copied() else { return RingRead::Nothing };
        let reach = Nanoseconds(now.0.saturating_sub(self.drained.map_or(now.0, |drained| drained.0)));
        // Time that was counted as idle is not counted again, so new samples cover the time since. Otherwise it
        // is not cut, since stamps jitter against ticks.
        let counted_idle =
            std::mem::take(&mut self.counted_idle).then(|| newest.stamp.saturating_sub(reach.0 / 1_000));
        let since = self.last_seen.map(|seen| seen.max(counted_idle.unwrap_or(0)));
        self.spacing = spacing(&windows).or(self.spacing);
        (self.last_seen, self.newest) = (Some(newest.stamp), Some((newest, now)));
        (self.empty, self.drained) = (0, Some(now));
        // Samples from before the first read belong to no tick.
        let mean = since.map_or_else(|| repeat_sample(newest), |since| mean(&windows, since, self.spacing));
        // Samples cannot cover more than the time since the last read.
        let mean = Sampled { covered: mean.covered.min(reach), ..mean };
        let rest = Nanoseconds(reach.0 - mean.covered.0);
        let window = self.spacing.unwrap_or(LONGEST_WINDOW).min(LONGEST_WINDOW) * 1_000;
        let is_over = since.is_some() && rest.0 > window + window / 4;
        RingRead::Samples { last: newest.percent, mean, rest: if is_over { rest } else { Nanoseconds(0) } }
    }

    /// Adds idle time for the end of a tick that has no samples while the utilization call returns 0.
    pub(super) fn add_idle_rest(&mut self, mean: Sampled, rest: Nanoseconds) -> Sampled {
        self.counted_idle = true;
        let whole = mean.covered + rest;
        let busy = u128::from(mean.ratio) * u128::from(mean.covered.0) / u128::from(whole.0.max(1));
        Sampled { ratio: u64::try_from(busy).unwrap_or(mean.ratio), covered: whole }
    }

    /// What an empty ring means, given the utilization call in billionths: idle if that is 0, else the last
    /// sample is repeated for a while. None if the ring is not reliable.
    pub(super) fn interpret_empty(&mut self, utilization: u64, now: Nanoseconds) -> Option<Sampled> {
        let since = self.drained.unwrap_or(now);
        if utilization == 0 {
            (self.drained, self.counted_idle, self.empty) = (Some(now), true, 0);
            return Some(Sampled { ratio: 0, covered: Nanoseconds(now.0.saturating_sub(since.0)) });
        }
        let (newest, at) = self.newest?;
        if now.0.saturating_sub(at.0) <= REPEAT_LAST_SAMPLE.0 {
            return Some(repeat_sample(newest));
        }
        self.empty += 1;
        if self.empty >= EMPTY_READS_BEFORE_RESTART {
            (self.last_seen, self.empty) = (None, 0);
        }
        None
    }
}

fn repeat_sample(window: RingSample) -> Sampled {
    Sampled { ratio: u64::from(window.percent) * PERCENT, covered: Nanoseconds(0) }
}

/// The plausible new samples in order of time, and how many are implausible. Known samples are ignored, since
/// some drivers return the whole ring.
fn plausible(samples: &[sys::nvmlSample_t], kind: u32, since: u64) -> (Vec<RingSample>, u64) {
    let mut windows = Vec::with_capacity(samples.len());
    let mut dropped = 0;
    for sample in samples {
        match percent(sample, kind) {
            Some(percent) if sample.timeStamp > since => {
                windows.push(RingSample { stamp: sample.timeStamp, percent });
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

fn spacing(windows: &[RingSample]) -> Option<u64> {
    let gaps = windows.iter().zip(windows.iter().skip(1)).map(|(one, next)| next.stamp - one.stamp);
    gaps.filter(|gap| *gap >= SHORTEST_WINDOW).min()
}

/// Busy time over the time since `since`. A sample covers the ring's spacing before it; a longer gap was idle,
/// since idle boards write no samples.
fn mean(windows: &[RingSample], since: u64, spacing: Option<u64>) -> Sampled {
    let longest = spacing.unwrap_or(LONGEST_WINDOW).min(LONGEST_WINDOW);
    let mut before = since;
    let mut busy: u128 = 0;
    for window in windows.iter().filter(|window| window.stamp > since) {
        // Jitter between two stamps is no gap.
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

    fn windows(samples: &[(u64, u32)], since: u64) -> Vec<RingSample> {
        let raw: Vec<_> = samples.iter().map(|(stamp, percent)| sample(*stamp, *percent)).collect();
        plausible(&raw, UINT, since).0
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
        let (windows, dropped) = plausible(&raw, UINT, 10);
        assert_eq!(windows, [RingSample { stamp: 20, percent: 30 }, RingSample { stamp: 30, percent: 40 }]);
        assert_eq!(dropped, 1);
        assert_eq!(plausible(&raw, 0, 10).0, [], "a double is no percentage of this ring");
        assert_eq!(plausible(&[sample(u64::MAX, u32::MAX)], UINT, 0), (Vec::new(), 1));
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
        let mut ring = UtilizationRing::new();
        ring.add_samples(windows(&[(1_000_000, 80)], 0), second(1));
        let RingRead::Samples { mean, .. } =
            ring.add_samples(windows(&[(u64::MAX, 80)], 1_000_000), second(2))
        else {
            panic!("it is new")
        };
        assert_eq!(mean.covered, second(1));
    }

    #[test]
    fn an_empty_ring_is_idle_only_if_utilization_says_so() {
        let second = Nanoseconds::from_seconds;
        let mut ring = UtilizationRing::new();
        assert_eq!(ring.interpret_empty(500_000_000, second(1)), None, "it has never had a sample");
        ring.add_samples(windows(&[(1_000_000, 80)], 0), second(2));
        assert_eq!(
            ring.interpret_empty(500_000_000, second(3)),
            Some(repeat_sample(RingSample { stamp: 0, percent: 80 }))
        );
        let idle = ring.interpret_empty(0, second(4));
        assert_eq!(idle, Some(Sampled { ratio: 0, covered: second(2) }));
    }

    #[test]
    fn time_counted_as_idle_takes_nothing_from_later_work() {
        let second = Nanoseconds::from_seconds;
        let mut ring = UtilizationRing::new();
        ring.add_samples(windows(&[(12_000_000, 100)], 0), second(12));
        for tick in 13..=30 {
            assert!(ring.interpret_empty(0, second(tick)).is_some());
        }
        // The first sample came too late for the tick before, which was counted as idle.
        let burst: Vec<_> = (0..=6).map(|n| (29_950_000 + n * SIXTH, if n == 0 { 9 } else { 100 })).collect();
        let all = Sampled { ratio: 1_000_000_000, covered: second(1) };
        let counted_idle = |drained| match drained {
            RingRead::Samples { mean, rest, .. } => {
                assert_eq!(rest, Nanoseconds(0));
                mean
            }
            RingRead::Nothing => panic!("there are samples"),
        };
        let mean = counted_idle(ring.add_samples(windows(&burst, 12_000_000), second(31)));
        assert_eq!((mean.ratio / 10_000_000, mean.covered), (100, all.covered));
        // A tick that is half filled by a burst is half busy, and the next tick continues from the last sample.
        let seen = burst[6].0;
        assert!(ring.interpret_empty(0, second(40)).is_some());
        let half: Vec<_> = (1..=3).map(|n| (40_500_000 + n * SIXTH, 100)).collect();
        let mean = counted_idle(ring.add_samples(windows(&half, seen), second(41)));
        assert_eq!((mean.ratio / 10_000_000, mean.covered), (50, all.covered));
        let next: Vec<_> = (4..=9).map(|n| (40_500_000 + n * SIXTH, 100)).collect();
        let mean =
            counted_idle(ring.add_samples(windows(&next, half[2].0), Nanoseconds(second(42).0 - 5_000_000)));
        assert_eq!(mean.ratio, all.ratio, "a stamp's jitter cuts no window");
    }

    #[test]
    fn a_ring_that_ends_before_the_tick_leaves_a_rest_which_is_idle_if_utilization_says_so() {
        let second = Nanoseconds::from_seconds;
        let mut ring = UtilizationRing::new();
        ring.add_samples(windows(&[(9_800_000, 100), (10_000_000, 100)], 0), second(10));
        let half = windows(&[(10_200_000, 100), (10_400_000, 100)], 10_000_000);
        let RingRead::Samples { mean, rest, .. } = ring.add_samples(half, second(11)) else {
            panic!("there are samples")
        };
        assert_eq!((mean.covered.0, rest.0), (400_000_000, 600_000_000));
        let counted_idle = ring.add_idle_rest(mean, rest);
        assert_eq!(counted_idle, Sampled { ratio: 400_000_000, covered: second(1) });
        // The uncovered time is counted already, so later work does not cover it.
        let next: Vec<_> = (1..=5).map(|n| (11_000_000 + n * 200_000, 100)).collect();
        let RingRead::Samples { mean, rest, .. } = ring.add_samples(windows(&next, 10_400_000), second(12))
        else {
            panic!("there are samples")
        };
        assert_eq!((mean.ratio, mean.covered, rest.0), (1_000_000_000, second(1), 0));
        // A window that is not over yet is not uncovered time.
        let late: Vec<_> = (6..=9).map(|n| (11_000_000 + n * 200_000, 100)).collect();
        let RingRead::Samples { rest, .. } = ring.add_samples(windows(&late, 12_000_000), second(13)) else {
            panic!("there are samples")
        };
        assert_eq!(rest.0, 0);
    }

    #[test]
    fn a_ring_whose_clock_was_set_back_is_read_from_its_beginning() {
        let second = Nanoseconds::from_seconds;
        let mut ring = UtilizationRing::new();
        ring.add_samples(windows(&[(u64::MAX, 80)], 0), second(1));
        for tick in 10..13 {
            assert_eq!(ring.interpret_empty(800_000_000, second(tick)), None);
        }
        assert_eq!(ring.last_seen, None);
        let first = ring.add_samples(windows(&[(5_000_000, 60)], 0), second(13));
        assert_eq!(
            first,
            RingRead::Samples {
                last: 60,
                mean: repeat_sample(RingSample { stamp: 5_000_000, percent: 60 }),
                rest: Nanoseconds(0),
            }
        );
    }
}

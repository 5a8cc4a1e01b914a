//! How busy each process kept a GPU since the last look.

use nvml_wrapper_sys::bindings as sys;

use super::door::{Door, Handle, INSUFFICIENT_SIZE, NOT_FOUND, Refusal, ask, more_room};
use super::lists::MOST;
use crate::model::{Absence, ProcessSample, Rejection, Utc};

/// The longest sample window that is believed; the driver keeps older samples too.
const LONGEST_WINDOW: u64 = 5_000_000;

/// How far the driver's clock may be ahead of the host's, and how far back the first look goes.
const SECOND: u64 = 1_000_000;

/// Buffer and memory of the last look, kept between ticks.
pub(super) struct Processes {
    samples: Vec<sys::nvmlProcessUtilizationSample_t>,
    /// The newest sample seen, in the driver's microseconds since 1970.
    last_seen: u64,
    /// The length of a window, once the driver has told several samples of one process in one answer.
    spacing: Option<u64>,
    /// How far the newest sample was behind the host's clock when it came, in microseconds.
    lag: u64,
    /// Up to when ticks went by without asking.
    rested: u64,
    /// Why the driver will never tell, as on a MIG parent, and whether it did not at the last look.
    refused: Option<Absence>,
    failed: bool,
}

// SAFETY: the buffers are plain memory that the driver writes only during a call.
unsafe impl Send for Processes {}

const NO_SAMPLE: sys::nvmlProcessUtilizationSample_t = sys::nvmlProcessUtilizationSample_t {
    pid: 0,
    timeStamp: 0,
    smUtil: 0,
    memUtil: 0,
    encUtil: 0,
    decUtil: 0,
};

impl Processes {
    pub(super) fn new() -> Self {
        Self {
            samples: vec![NO_SAMPLE; 32],
            last_seen: 0,
            spacing: None,
            lag: SECOND,
            rested: 0,
            refused: None,
            failed: false,
        }
    }

    /// Asks again what was refused for good: the GPU was planned anew.
    pub(super) fn begin(&mut self) {
        self.refused = None;
    }

    /// Whether samples can be counted on.
    pub(super) fn may_tell(&self) -> bool {
        self.refused.is_none() && !self.failed
    }

    /// Lets a tick go by without asking: the next answer covers it, unless it is skipped.
    pub(super) fn rest(&mut self, now: Utc) {
        self.rested = (now.0 / 1_000).saturating_sub(self.lag);
    }

    /// Leaves what was done in ticks that went by out of the next answer.
    pub(super) fn skip(&mut self) {
        self.last_seen = self.last_seen.max(self.rested);
        self.rested = 0;
    }

    /// Utilization samples that are new since the last look. Nothing ran: an empty list.
    pub(super) fn samples(
        &mut self,
        door: &mut Door,
        device: Handle,
        now: Utc,
    ) -> Result<Vec<ProcessSample>, Absence> {
        if let Some(absence) = self.refused {
            return Err(absence);
        }
        let answer = self.ask(door, device, now);
        self.failed = answer.is_err();
        self.refused = answer.as_ref().err().copied().filter(|absence| absence.is_permanent());
        answer
    }

    fn ask(
        &mut self,
        door: &mut Door,
        Handle(device): Handle,
        now: Utc,
    ) -> Result<Vec<ProcessSample>, Absence> {
        let now = now.0 / 1_000;
        // At first, since from the beginning the answer would be a long average over everything buffered; and
        // after the clock was set back, or nothing would be new until it has caught up.
        if self.last_seen == 0 || self.last_seen > now + SECOND {
            self.last_seen = now.saturating_sub(SECOND);
        }
        let since = self.last_seen;
        let count = loop {
            let mut count = u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
            let buffer = self.samples.as_mut_ptr();
            match ask!(door, nvmlDeviceGetProcessUtilization(device, buffer, &raw mut count, since)) {
                Ok(()) => break (count as usize).min(self.samples.len()),
                Err(Refusal::Code(NOT_FOUND)) => break 0,
                Err(Refusal::Code(INSUFFICIENT_SIZE)) => {
                    let Some(room) = more_room(self.samples.len(), count as usize, MOST) else {
                        door.reject(Rejection::Count, 1);
                        return Err(Absence::Rejected);
                    };
                    self.samples.resize(room, NO_SAMPLE);
                }
                Err(refusal) => return Err(refusal.into()),
            }
        };
        let answer = &self.samples[..count];
        let new = answer.iter().filter(|sample| sample.timeStamp > since);
        let garbage = new.filter(|sample| !is_possible(sample, now)).count();
        door.reject(Rejection::Sample, garbage as u64);
        let believed = answer.iter().copied().filter(|sample| is_new(sample, since, now)).collect::<Vec<_>>();
        self.last_seen = believed.iter().map(|sample| sample.timeStamp).fold(since, u64::max);
        if !believed.is_empty() {
            self.lag = now.saturating_sub(self.last_seen).min(SECOND);
        }
        self.spacing = spacing(&believed).or(self.spacing);
        Ok(weigh(&believed, since, self.spacing))
    }
}

/// Whether it is new and can be true.
fn is_new(sample: &sys::nvmlProcessUtilizationSample_t, since: u64, now: u64) -> bool {
    sample.timeStamp > since && is_possible(sample, now)
}

/// Whether it can be true: percentages up to 100, and not of the future.
fn is_possible(sample: &sys::nvmlProcessUtilizationSample_t, now: u64) -> bool {
    let percent = sample.smUtil <= 100 && sample.encUtil <= 100 && sample.decUtil <= 100;
    sample.pid != 0 && percent && sample.timeStamp <= now + SECOND
}

/// No driver's window is shorter; stamps that are closer than this are the same moment.
const SHORTEST_WINDOW: u64 = 10_000;

/// The least time between two samples of one process; none when each process has one sample.
fn spacing(samples: &[sys::nvmlProcessUtilizationSample_t]) -> Option<u64> {
    let mut stamps: Vec<_> = samples.iter().map(|sample| (sample.pid, sample.timeStamp)).collect();
    stamps.sort_unstable();
    stamps.dedup();
    let pairs = stamps.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    pairs.map(|pair| pair[1].1 - pair[0].1).filter(|length| *length >= SHORTEST_WINDOW).min()
}

/// Samples with the time that each covers.
///
/// Most drivers answer one mean per process since the last look. Others list the windows themselves, of one
/// length for all: `spacing` is that length. A process that paused has a gap before its next sample, which
/// that sample does not cover.
fn weigh(
    samples: &[sys::nvmlProcessUtilizationSample_t],
    since: u64,
    spacing: Option<u64>,
) -> Vec<ProcessSample> {
    samples
        .iter()
        .map(|sample| ProcessSample {
            pid: sample.pid,
            window: spacing.unwrap_or(sample.timeStamp - since).min(LONGEST_WINDOW),
            sm: sample.smUtil,
            // No part of the account, so a wrong one does not cost the sample.
            memory: (sample.memUtil <= 100).then_some(sample.memUtil),
            encoder: sample.encUtil,
            decoder: sample.decUtil,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pid: u32, stamp: u64, percent: u32) -> sys::nvmlProcessUtilizationSample_t {
        sys::nvmlProcessUtilizationSample_t { pid, timeStamp: stamp, smUtil: percent, ..NO_SAMPLE }
    }

    fn worked(samples: &[ProcessSample], pid: u32) -> u64 {
        samples
            .iter()
            .filter(|sample| sample.pid == pid)
            .map(|sample| sample.window * u64::from(sample.sm))
            .sum()
    }

    #[test]
    fn equal_work_in_a_list_of_windows_weighs_equally() {
        // One is busy first, the other last.
        let answer = [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)];
        let answer = answer.map(|(pid, after)| sample(pid, SECOND + after * 100_000, 70));
        let weighed = weigh(&answer, SECOND, spacing(&answer));
        assert_eq!(worked(&weighed, 1), 3 * 100_000 * 70);
        assert_eq!(worked(&weighed, 1), worked(&weighed, 2));
    }

    #[test]
    fn a_mean_since_the_last_look_covers_all_of_it() {
        let answer = [sample(1, 2_000, 50), sample(2, 1_500, 50)];
        assert_eq!(spacing(&answer), None);
        let weighed = weigh(&answer, 1_000, None);
        assert_eq!(weighed.iter().map(|sample| sample.window).collect::<Vec<_>>(), [1_000, 500]);
    }

    #[test]
    fn a_pause_between_two_samples_is_covered_by_neither() {
        let answer =
            [(1, 1), (1, 9), (2, 1), (2, 2)].map(|(pid, after)| sample(pid, SECOND + after * 100_000, 50));
        let weighed = weigh(&answer, SECOND, spacing(&answer));
        assert!(weighed.iter().all(|sample| sample.window == 100_000), "{weighed:?}");
    }

    #[test]
    fn a_tick_that_went_by_is_covered_by_the_next_answer_unless_it_is_skipped() {
        let mut processes = Processes { last_seen: 5 * SECOND, lag: SECOND / 4, ..Processes::new() };
        processes.skip();
        assert_eq!(processes.last_seen, 5 * SECOND, "none went by");
        processes.rest(Utc(9_000_000_000));
        assert_eq!(processes.last_seen, 5 * SECOND);
        processes.skip();
        assert_eq!(processes.last_seen, 9 * SECOND - SECOND / 4);
    }

    #[test]
    fn what_cannot_be_true_is_dropped() {
        let now = 10 * SECOND;
        for (sample, kept) in [
            (sample(1, now, 100), true),
            (sample(1, now + SECOND, 1), true),
            (sample(1, now + SECOND + 1, 1), false),
            (sample(1, now - SECOND, 1), false),
            (sample(1, now, 101), false),
            (sample(0, now, 1), false),
        ] {
            assert_eq!(is_new(&sample, now - SECOND, now), kept, "{sample:?}");
        }
    }
}

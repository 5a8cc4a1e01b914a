//! Reads how much each process used a GPU since the last read.

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, NOT_FOUND, call};
use super::process_lists::MOST;
use crate::model::{Absence, ProcessSample, Rejection, Utc};

/// The longest window that one sample may cover; the driver keeps older samples too.
const LONGEST_WINDOW: u64 = 5_000_000;

/// How far the driver's clock may be ahead of the host's, and how far back the first read goes.
const SECOND: u64 = 1_000_000;

pub(super) struct ProcessSamples {
    samples: Vec<sys::nvmlProcessUtilizationSample_t>,
    /// The newest sample seen, in the driver's microseconds since 1970.
    last_seen: u64,
    /// The length of a window; known once the driver returned several samples of one process at once.
    spacing: Option<u64>,
    /// How far the newest sample was behind the host's clock when it came, in microseconds.
    lag: u64,
    deferred_until: u64,
    /// Why the driver refuses for good, as on a MIG parent, and whether the last read failed.
    refused: Option<Absence>,
    failed: bool,
}

const NO_SAMPLE: sys::nvmlProcessUtilizationSample_t = sys::nvmlProcessUtilizationSample_t {
    pid: 0,
    timeStamp: 0,
    smUtil: 0,
    memUtil: 0,
    encUtil: 0,
    decUtil: 0,
};

impl ProcessSamples {
    pub(super) fn new() -> Self {
        Self {
            samples: vec![NO_SAMPLE; 32],
            last_seen: 0,
            spacing: None,
            lag: SECOND,
            deferred_until: 0,
            refused: None,
            failed: false,
        }
    }

    pub(super) fn retry_refused(&mut self) {
        self.refused = None;
    }

    /// Whether the last read succeeded, or none was made yet.
    pub(super) fn are_available(&self) -> bool {
        self.refused.is_none() && !self.failed
    }

    /// Skips a tick; the next read covers it unless it is dropped.
    pub(super) fn defer(&mut self, now: Utc) {
        self.deferred_until = (now.0 / 1_000).saturating_sub(self.lag);
    }

    pub(super) fn drop_deferred(&mut self) {
        self.last_seen = self.last_seen.max(self.deferred_until);
        self.deferred_until = 0;
    }

    /// Utilization samples that are new since the last read; empty if nothing ran.
    pub(super) fn read(
        &mut self,
        api: &mut DriverApi,
        device: Handle,
        now: Utc,
    ) -> Result<Vec<ProcessSample>, Absence> {
        if let Some(absence) = self.refused {
            return Err(absence);
        }
        let answer = self.fetch(api, device, now);
        self.failed = answer.is_err();
        self.refused = answer.as_ref().err().copied().filter(|absence| absence.is_permanent());
        answer
    }

    fn fetch(
        &mut self,
        api: &mut DriverApi,
        Handle(device): Handle,
        now: Utc,
    ) -> Result<Vec<ProcessSample>, Absence> {
        let now = now.0 / 1_000;
        // Without a start the first answer would be a long average over everything buffered. After the clock was
        // set back, nothing would be new until it has caught up.
        if self.last_seen == 0 || self.last_seen > now + SECOND {
            self.last_seen = now.saturating_sub(SECOND);
        }
        let since = self.last_seen;
        let answer = api.read_array(&mut self.samples, NO_SAMPLE, MOST, |api, buffer, count| {
            call!(api, nvmlDeviceGetProcessUtilization(device, buffer, count, since))
        });
        let count = if answer == Err(CallError::Code(NOT_FOUND)) { 0 } else { answer? };
        let new = self.samples[..count].iter().copied().filter(|sample| sample.timeStamp > since);
        let (plausible, garbage): (Vec<_>, Vec<_>) = new.partition(|sample| is_plausible(sample, now));
        api.reject(Rejection::Sample, garbage.len() as u64);
        self.last_seen = plausible.iter().map(|sample| sample.timeStamp).fold(since, u64::max);
        if !plausible.is_empty() {
            self.lag = now.saturating_sub(self.last_seen).min(SECOND);
        }
        self.spacing = spacing(&plausible).or(self.spacing);
        Ok(weigh(&plausible, since, self.spacing))
    }
}

/// Whether a sample is plausible: percentages up to 100, and not in the future.
fn is_plausible(sample: &sys::nvmlProcessUtilizationSample_t, now: u64) -> bool {
    let percent = sample.smUtil <= 100 && sample.encUtil <= 100 && sample.decUtil <= 100;
    sample.pid != 0 && percent && sample.timeStamp <= now + SECOND
}

/// No driver's window is shorter; stamps closer than this are the same moment.
const SHORTEST_WINDOW: u64 = 10_000;

/// The least time between two samples of one process; none if each process has one sample.
fn spacing(samples: &[sys::nvmlProcessUtilizationSample_t]) -> Option<u64> {
    let mut stamps: Vec<_> = samples.iter().map(|sample| (sample.pid, sample.timeStamp)).collect();
    stamps.sort_unstable();
    stamps.dedup();
    let pairs = stamps.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    pairs.map(|pair| pair[1].1 - pair[0].1).filter(|length| *length >= SHORTEST_WINDOW).min()
}

/// Samples with the time that each covers.
///
/// Most drivers return one mean per process since the last read. Others return each window, all of length
/// `spacing`. A process that paused has a gap before its next sample, which that sample does not cover.
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
            // It is not part of the account, so an implausible one does not reject the sample.
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
        // The first process works before the second.
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
        let mut processes =
            ProcessSamples { last_seen: 5 * SECOND, lag: SECOND / 4, ..ProcessSamples::new() };
        processes.drop_deferred();
        assert_eq!(processes.last_seen, 5 * SECOND, "none went by");
        processes.defer(Utc(9_000_000_000));
        assert_eq!(processes.last_seen, 5 * SECOND);
        processes.drop_deferred();
        assert_eq!(processes.last_seen, 9 * SECOND - SECOND / 4);
    }

    #[test]
    fn what_cannot_be_true_is_dropped() {
        let now = 10 * SECOND;
        for (sample, kept) in [
            (sample(1, now, 100), true),
            (sample(1, now + SECOND, 1), true),
            (sample(1, now + SECOND + 1, 1), false),
            (sample(1, now, 101), false),
            (sample(0, now, 1), false),
        ] {
            assert_eq!(is_plausible(&sample, now), kept, "{sample:?}");
        }
    }
}

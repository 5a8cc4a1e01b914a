//! What is shown of processes by value: memory, and how busy each kept each engine.
//!
//! In: a frame's samples and lists. Out: the values of one process, or of several together. It knows nothing of
//! accounts: what a process used is split elsewhere, from the same samples.

use std::collections::BTreeMap;

use super::integrate::WHOLE;
use super::publish::whole;
use crate::model::snapshot::ProcessState;
use crate::model::{Absence, Bytes, Frame, GpuProcess, ProcessSample, Reading};

/// Engines that samples tell of, in the catalogue's order of process values after memory.
const ENGINES: usize = 4;

/// One percent of a GPU's time, in billionths.
const PERCENT: u128 = 10_000_000;

/// How busy each process kept each engine since the last look.
pub(super) struct Busy(BTreeMap<u32, [Mean; ENGINES]>);

/// Percent times window, and the windows that told, of one engine.
#[derive(Clone, Copy, Default)]
struct Mean {
    worked: u128,
    covered: u128,
}

impl Busy {
    pub(super) fn of(frame: &Frame) -> Self {
        Self::from_samples(frame.samples.iter().flatten())
    }

    /// The mean over a process' windows: most drivers answer one, others list several.
    fn from_samples<'a>(samples: impl Iterator<Item = &'a ProcessSample>) -> Self {
        let mut busy: BTreeMap<u32, [Mean; ENGINES]> = BTreeMap::new();
        for sample in samples {
            let percents = [Some(sample.sm), sample.memory, Some(sample.encoder), Some(sample.decoder)];
            for (mean, percent) in busy.entry(sample.pid).or_default().iter_mut().zip(percents) {
                if let Some(percent) = percent {
                    mean.worked += u128::from(sample.window) * u128::from(percent);
                    mean.covered += u128::from(sample.window);
                }
            }
        }
        Self(busy)
    }

    /// The values of one process.
    pub(super) fn one(&self, process: &GpuProcess) -> ProcessState {
        let memory = process.memory.map_or(Err(Absence::NotSupported), |Bytes(memory)| Ok(whole(memory)));
        state(memory, self.shares(process.pid))
    }

    /// What several are together; an engine of which nobody among them has a sample is absent.
    pub(super) fn all(&self, processes: &[&GpuProcess]) -> ProcessState {
        let memory = processes.iter().filter_map(|process| process.memory);
        let memory = memory.fold(0, |sum: u64, Bytes(memory)| sum.saturating_add(memory));
        let shares: Vec<_> = processes.iter().map(|process| self.shares(process.pid)).collect();
        let engines = std::array::from_fn(|engine| {
            let told = shares.iter().filter_map(|of| of.get(engine).copied().flatten());
            // Clients of MPS run at the same time, so their sum may be above the whole.
            told.reduce(|sum, share| sum + share).map(|sum| sum.min(WHOLE))
        });
        state(Ok(whole(memory)), engines)
    }

    fn shares(&self, pid: u32) -> [Option<u64>; ENGINES] {
        self.0.get(&pid).copied().unwrap_or_default().map(Mean::share)
    }
}

impl Mean {
    /// In billionths.
    fn share(self) -> Option<u64> {
        u64::try_from((self.worked * PERCENT).checked_div(self.covered)?).ok()
    }
}

fn state(memory: Reading, engines: [Option<u64>; ENGINES]) -> ProcessState {
    let [sm, traffic, encoder, decoder] = engines.map(|share| share.map(whole).ok_or(Absence::NotYet));
    ProcessState { values: [memory, sm, traffic, encoder, decoder] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Reading = Err(Absence::NotYet);

    fn sample(pid: u32, window: u64, sm: u32, memory: Option<u32>) -> ProcessSample {
        ProcessSample { pid, window, sm, memory, encoder: 10, decoder: 0 }
    }

    fn process(pid: u32) -> GpuProcess {
        GpuProcess { pid, gpu_instance: None, memory: Some(Bytes(7)) }
    }

    #[test]
    fn several_windows_of_a_process_have_one_mean() {
        let samples = [sample(1, 100, 100, Some(20)), sample(1, 300, 0, Some(40))];
        let of = Busy::from_samples(samples.iter()).one(&process(1));
        assert_eq!(of.values, [Ok(7), Ok(250_000_000), Ok(350_000_000), Ok(100_000_000), Ok(0)]);
    }

    #[test]
    fn an_engine_that_no_sample_tells_of_is_absent() {
        let samples = [sample(1, 100, 50, None), sample(1, 100, 70, None)];
        let busy = Busy::from_samples(samples.iter());
        assert_eq!(busy.one(&process(1)).values[1..3], [Ok(600_000_000), NONE]);
        assert_eq!(busy.one(&process(2)).values, [Ok(7), NONE, NONE, NONE, NONE]);
    }

    #[test]
    fn the_rest_is_a_sum_of_at_most_the_whole_and_of_those_who_have_samples() {
        let samples = [sample(1, 100, 60, Some(10)), sample(2, 100, 70, None)];
        let busy = Busy::from_samples(samples.iter());
        let rest = [process(1), process(2), process(3)];
        let of = busy.all(&rest.iter().collect::<Vec<_>>());
        assert_eq!(of.values, [Ok(21), Ok(whole(WHOLE)), Ok(100_000_000), Ok(200_000_000), Ok(0)]);
    }
}

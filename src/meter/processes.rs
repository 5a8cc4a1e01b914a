//! The processes of a snapshot: the largest of each GPU by memory, and one row for the rest.
//!
//! In: the frames of GPUs that answer, who processes are, how many fit. Out: roster entries with their values.
//! It knows nothing of accounts: what a process used is split elsewhere, from the same samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::budget::{self, Cost, Purse};
use super::{Gpu, Meter};
use crate::catalogue::{Level, Rows};
use crate::holders::Identities;
use crate::model::snapshot::{GpuState, ProcessEntry, ProcessState};
use crate::model::{Absence, Frame, GpuProcess, ProcessSample, Reading};
use crate::tenants::tenant;

/// Engines that samples tell of, in the catalogue's order of process values after memory.
const ENGINES: usize = 4;

/// All of a GPU's time, in billionths.
const WHOLE: i64 = 1_000_000_000;

impl Meter {
    /// Processes by GPU and pid, the largest first into the limit; what is above it is one row per GPU.
    pub(super) fn processes(
        &self,
        gpus: &[&Gpu],
        states: &[GpuState],
        identities: &Identities,
        purse: &mut Purse<'_>,
    ) -> (Vec<ProcessEntry>, Vec<ProcessState>) {
        if self.policy.level < Level::Full {
            return (Vec::new(), Vec::new());
        }
        let lists: Vec<Vec<&GpuProcess>> =
            gpus.iter().zip(states).map(|(gpu, state)| by_size(gpu, state)).collect();
        let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
        let cost = Cost::at(Level::Full, |rows| match rows {
            Rows::Process(points) => points.len(),
            _ => 0,
        });
        let limit = budget::most_processes(&counts, self.policy.processes, purse.room(&cost));
        let mut rows = Vec::new();
        for (place, (gpu, processes)) in gpus.iter().zip(&lists).enumerate() {
            let (Some(frame), Some(limit)) = (gpu.frame.as_deref(), limit) else { continue };
            let busy = Busy::of(frame);
            let (largest, rest) = processes.split_at(limit.min(processes.len()));
            let mut named = largest.to_vec();
            named.sort_by_key(|process| (process.pid, process.gpu_instance));
            rows.extend(named.iter().map(|process| process_row(place, process, &busy, identities)));
            if !rest.is_empty() {
                rows.push(other_row(place, rest, &busy));
            }
        }
        let wanted = budget::rows(&counts, self.policy.processes);
        purse.pay(&cost, rows.len(), wanted.saturating_sub(rows.len()));
        rows.into_iter().unzip()
    }
}

/// The processes of a GPU that answers, largest first.
fn by_size<'a>(gpu: &'a Gpu, state: &GpuState) -> Vec<&'a GpuProcess> {
    let frame = gpu.frame.as_deref().filter(|_| state.is_up());
    let listed = frame.and_then(|frame| frame.processes.as_ref().ok());
    let mut processes: Vec<_> = listed.into_iter().flat_map(|list| list.iter()).collect();
    processes.sort_by_key(|process| (std::cmp::Reverse(process.memory), process.pid));
    processes
}

/// How busy each process kept each engine since the last look.
struct Busy(BTreeMap<u32, [Option<i64>; ENGINES]>);

impl Busy {
    fn of(frame: &Frame) -> Self {
        let mut by_process: BTreeMap<u32, Vec<&ProcessSample>> = BTreeMap::new();
        for sample in frame.samples.iter().flatten() {
            by_process.entry(sample.pid).or_default().push(sample);
        }
        Self(by_process.into_iter().map(|(pid, samples)| (pid, means(&samples))).collect())
    }

    fn values(&self, pid: u32, memory: Reading) -> ProcessState {
        let engines = self.0.get(&pid).copied().unwrap_or_default();
        state(memory, engines)
    }
}

/// The mean over a process' windows, in billionths: most drivers answer one, others list several.
fn means(samples: &[&ProcessSample]) -> [Option<i64>; ENGINES] {
    let engines: [fn(&ProcessSample) -> Option<u32>; ENGINES] = [
        |sample| Some(sample.sm),
        |sample| sample.memory,
        |sample| Some(sample.encoder),
        |sample| Some(sample.decoder),
    ];
    engines.map(|percent| {
        let told = || samples.iter().filter_map(|sample| Some((sample.window, percent(sample)?)));
        let covered: u128 = told().map(|(window, _)| u128::from(window)).sum();
        let worked: u128 = told().map(|(window, percent)| u128::from(window) * u128::from(percent)).sum();
        i64::try_from((worked * 10_000_000).checked_div(covered)?).ok()
    })
}

fn state(memory: Reading, engines: [Option<i64>; ENGINES]) -> ProcessState {
    let [sm, traffic, encoder, decoder] = engines.map(|share| share.ok_or(Absence::NotYet));
    ProcessState { values: [memory, sm, traffic, encoder, decoder] }
}

fn process_row(
    gpu: usize,
    process: &GpuProcess,
    busy: &Busy,
    identities: &Identities,
) -> (ProcessEntry, ProcessState) {
    let identified = identities.get(process.pid);
    let entry = ProcessEntry {
        gpu,
        gpu_instance: process.gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
        pid: process.pid.to_string().into(),
        process: identified.map(|known| Arc::clone(&known.name)).unwrap_or_default(),
        workload: identified.map(|known| Arc::clone(&known.holder.id.0)).unwrap_or_default(),
        tenant: identified.map(|known| tenant(&known.holder)).unwrap_or_default(),
    };
    let memory = process.memory.map_or(Err(Absence::NotSupported), |bytes| Ok(whole(bytes.0)));
    (entry, busy.values(process.pid, memory))
}

/// What the rest is together; an engine of which nobody among them has a sample is absent.
fn other_row(gpu: usize, rest: &[&GpuProcess], busy: &Busy) -> (ProcessEntry, ProcessState) {
    let none: Arc<str> = "".into();
    let entry = ProcessEntry {
        gpu,
        gpu_instance: Arc::clone(&none),
        pid: "other".into(),
        process: Arc::clone(&none),
        workload: Arc::clone(&none),
        tenant: none,
    };
    let memory = rest.iter().filter_map(|process| process.memory).map(|memory| memory.0);
    let engines = std::array::from_fn(|engine| {
        let shares = rest.iter().filter_map(|process| busy.0.get(&process.pid)?[engine]);
        // Clients of MPS run at the same time, so their sum may be above the whole.
        shares.reduce(|sum, share| sum + share).map(|sum| sum.min(WHOLE))
    });
    (entry, state(Ok(whole(memory.fold(0, u64::saturating_add))), engines))
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(window: u64, sm: u32, memory: Option<u32>) -> ProcessSample {
        ProcessSample { pid: 1, window, sm, memory, encoder: 10, decoder: 0 }
    }

    #[test]
    fn several_windows_of_a_process_have_one_mean() {
        let samples = [sample(100, 100, Some(20)), sample(300, 0, Some(40))];
        let of = means(&samples.iter().collect::<Vec<_>>());
        assert_eq!(of, [Some(250_000_000), Some(350_000_000), Some(100_000_000), Some(0)]);
    }

    #[test]
    fn an_engine_that_no_sample_tells_of_is_absent() {
        let samples = [sample(100, 50, None), sample(100, 70, None)];
        assert_eq!(means(&samples.iter().collect::<Vec<_>>())[..2], [Some(600_000_000), None]);
        assert_eq!(means(&[]), [None; ENGINES]);
    }

    #[test]
    fn the_rest_is_a_sum_of_at_most_the_whole_and_of_those_who_have_samples() {
        let process = |pid| GpuProcess { pid, gpu_instance: None, memory: None };
        let busy = Busy(BTreeMap::from([
            (1, [Some(600_000_000), Some(100_000_000), None, Some(0)]),
            (2, [Some(700_000_000), Some(200_000_000), None, None]),
        ]));
        let rest = [process(1), process(2), process(3)];
        let (entry, state) = other_row(0, &rest.iter().collect::<Vec<_>>(), &busy);
        assert_eq!(&*entry.pid, "other");
        let none = Err(Absence::NotYet);
        assert_eq!(state.values, [Ok(0), Ok(WHOLE), Ok(300_000_000), none, Ok(0)]);
    }
}

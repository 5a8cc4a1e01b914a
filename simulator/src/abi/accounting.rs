//! Accounting: the driver's records of running and ended processes.
//!
//! One record for each pid: of the current stay, or of the latest that has ended. A driver reload clears the records,
//! they stay readable after accounting was turned off, and MIG mode has none. Where accounting was never on the list
//! is empty and not an error, unlike the header says: nvml-wrapper's tests expect that of real boards.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlAccountingStats_t, nvmlEnableState_t};

use super::answer::{NOT_FOUND, Refused};
use super::buffers::{Out, fill};
use super::{Device, gpu_calls};
use crate::schedule::{Stay, hash};

/// The most records that the driver keeps.
const BUFFER: c_uint = 4000;
/// Ada boards drop the memory of ended processes (L40S at 595); Hopper keeps it.
const ADA: u32 = 8;

/// `nvmlAccountingStats_v2_t`, which is newer than the bindings: the sums of the samples beside their means,
/// in hundredths of percent.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SummedStats {
    pid: c_uint,
    running: c_uint,
    gpu: c_uint,
    memory: c_uint,
    most_memory: c_ulonglong,
    samples: c_uint,
    gpu_sum: c_ulonglong,
    memory_sum: c_ulonglong,
    time: c_ulonglong,
    start: c_ulonglong,
}

/// Nanoseconds between two samples of a process.
const SAMPLE: u64 = 166_666_667;

/// A worker's index, and its stay.
type AccountingRecord = (usize, Stay);

gpu_calls! {
    fn nvmlDeviceGetAccountingMode(at, mode: Out<nvmlEnableState_t>) {
        mode.put(c_uint::from(at.undivided().is_ok() && records_until(at) == Some(at.now.elapsed)))
    }

    fn nvmlDeviceGetAccountingBufferSize(at, size: Out<c_uint>) {
        size.put(BUFFER)
    }

    // The order is arbitrary, as the real one.
    fn nvmlDeviceGetAccountingPids(at, count: Out<c_uint>, pids: Out<c_uint>) {
        let mut known: Vec<c_uint> = records(at)?.into_keys().collect();
        known.sort_by_key(|pid| hash(u64::from(*pid)));
        known.truncate(BUFFER as usize);
        fill(count, pids, &known)
    }

    fn nvmlDeviceGetAccountingStats(at, pid: c_uint, stats: Out<nvmlAccountingStats_t>) {
        let records = records(at)?;
        let record = records.get(&pid).ok_or(NOT_FOUND)?;
        stats.put(stats_of(at, record).ok_or(NOT_FOUND)?)
    }

    fn nvmlDeviceGetAccountingStats_v2(at, stats: Out<SummedStats>) {
        let pid = stats.get()?.pid;
        let records = records(at)?;
        let record = records.get(&pid).ok_or(NOT_FOUND)?;
        stats.put(summed(at, pid, record).ok_or(NOT_FOUND)?)
    }
}

fn summed(at: &Device<'_>, pid: c_uint, record: &AccountingRecord) -> Option<SummedStats> {
    let one = stats_of(at, record)?;
    let (_, stay) = record;
    let lived = stay.ended.unwrap_or(records_until(at)?).saturating_sub(stay.began);
    let samples = lived / SAMPLE;
    Some(SummedStats {
        pid,
        running: one.isRunning,
        gpu: one.gpuUtilization,
        memory: one.memoryUtilization,
        most_memory: one.maxMemoryUsage,
        samples: c_uint::try_from(samples).unwrap_or(c_uint::MAX),
        gpu_sum: samples.saturating_mul(u64::from(one.gpuUtilization) * 100),
        memory_sum: samples.saturating_mul(u64::from(one.memoryUtilization) * 100),
        time: one.time,
        start: one.startTime,
    })
}

fn records_until(at: &Device<'_>) -> Option<u64> {
    at.gpu.condition.accounted_until(at.now.elapsed)
}

/// The record of every pid; empty where accounting was never on.
fn records(at: &Device<'_>) -> Result<BTreeMap<c_uint, AccountingRecord>, Refused> {
    at.undivided()?;
    let Some(until) = records_until(at) else { return Ok(BTreeMap::new()) };
    let (loaded, _) = at.since_load();
    let mut records: BTreeMap<c_uint, AccountingRecord> = BTreeMap::new();
    for (place, worker) in at.gpu.timeline.workers().iter().enumerate() {
        let Some(stay) = at.gpu.timeline.stay(worker, until) else { continue };
        if stay.ended.is_some_and(|ended| ended <= loaded) {
            continue;
        }
        let end = |stay: &Stay| stay.ended.unwrap_or(u64::MAX);
        let newer = records.get(&worker.pid).is_none_or(|(_, known)| end(known) < end(&stay));
        if newer {
            records.insert(worker.pid, (place, stay));
        }
    }
    Ok(records)
}

fn stats_of(at: &Device<'_>, (place, stay): &AccountingRecord) -> Option<nvmlAccountingStats_t> {
    let timeline = &at.gpu.timeline;
    let until = stay.ended.unwrap_or(records_until(at)?);
    let worker = timeline.workers().get(*place)?;
    let (before, after) = (timeline.lifetime(stay.began), timeline.lifetime(until));
    let work = *after.workers.get(*place)? - *before.workers.get(*place)?;
    let lived = until.saturating_sub(stay.began);
    let percent = |time: u64| {
        let share = u128::from(time) * 100 / u128::from(lived.max(1));
        c_uint::try_from(share.min(100)).unwrap_or(100)
    };
    let running = stay.ended.is_none();
    let forgotten = !running && at.gpu.board.architecture == ADA;
    let begun = at.now.utc.saturating_sub(at.now.elapsed);
    Some(nvmlAccountingStats_t {
        gpuUtilization: percent(work.busy),
        memoryUtilization: percent(work.dram),
        maxMemoryUsage: if forgotten { 0 } else { worker.most_memory() },
        // Milliseconds, and none while it lasts.
        time: if running { 0 } else { lived / 1_000_000 },
        startTime: (begun + stay.began) / 1_000,
        isRunning: running.into(),
        reserved: [0; 5],
    })
}

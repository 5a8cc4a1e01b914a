//! Process lists and process utilization.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_v1_t,
};

use super::answer::{INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Refused};
use super::buffers::{Out, expect_version, fill};
use super::{Device, device_calls, gpu_calls};
use crate::meters::ProcessWindowSample;
use crate::schedule::ListedKind;

/// NVML_VALUE_NOT_AVAILABLE.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// The first architecture with the detailed list.
const HOPPER: u32 = 9;
/// GPU and compute instance of a process on a GPU without MIG.
const NO_INSTANCE: c_uint = c_uint::MAX;

device_calls! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at, List::Compute))
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at, List::Compute))
    }

    fn nvmlDeviceGetComputeRunningProcesses(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) {
        fill(count, infos, &short(&running(at, List::Compute)))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at, List::Graphics))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at, List::Graphics))
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) {
        fill(count, infos, &short(&running(at, List::Graphics)))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at, List::Mps))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at, List::Mps))
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) {
        fill(count, infos, &short(&running(at, List::Mps)))
    }

    fn nvmlDeviceGetRunningProcessDetailList(at, request: Out<nvmlProcessDetailList_v1_t>) {
        expect_version::<nvmlProcessDetailList_v1_t>(request.version()?, 1)?;
        let mut asked = request.get()?;
        if at.gpu.board.architecture < HOPPER {
            return Err(NOT_SUPPORTED);
        }
        let list = match asked.mode {
            0 => List::Compute,
            1 => List::Graphics,
            2 => List::Mps,
            _ => return Err(INVALID_ARGUMENT),
        };
        let details: Vec<_> = running(at, list).iter().map(|process| nvmlProcessDetail_v1_t {
            pid: process.pid,
            usedGpuMemory: process.usedGpuMemory,
            gpuInstanceId: process.gpuInstanceId,
            computeInstanceId: process.computeInstanceId,
            // No memory is protected while confidential computing is off.
            usedGpuCcProtectedMemory: 0,
        }).collect();
        let filled = fill(Out::at(&raw mut asked.numProcArrayEntries), Out::at(asked.procArray), &details);
        request.put(asked)?;
        filled
    }
}

gpu_calls! {
    // Samples that end after `last_seen` (UTC microseconds), one for each process and window of 1/6 s.
    fn nvmlDeviceGetProcessUtilization(
        at,
        samples: Out<nvmlProcessUtilizationSample_t>,
        count: Out<c_uint>,
        last_seen: c_ulonglong
    ) {
        let found = samples_since(at, last_seen)?;
        let samples_found: Vec<_> = found.iter().map(|(pid, stamp, sample)| nvmlProcessUtilizationSample_t {
            pid: *pid,
            timeStamp: *stamp,
            smUtil: sample.sm,
            memUtil: sample.memory,
            encUtil: sample.encoder,
            decUtil: sample.decoder,
        }).collect();
        fill(count, samples, &samples_found)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(at, request: Out<nvmlProcessesUtilizationInfo_v1_t>) {
        expect_version::<nvmlProcessesUtilizationInfo_v1_t>(request.version()?, 1)?;
        let mut asked = request.get()?;
        let found = samples_since(at, asked.lastSeenTimeStamp)?;
        let infos: Vec<_> = found.iter().map(|(pid, stamp, sample)| nvmlProcessUtilizationInfo_v1_t {
            timeStamp: *stamp,
            pid: *pid,
            smUtil: sample.sm,
            memUtil: sample.memory,
            encUtil: sample.encoder,
            decUtil: sample.decoder,
            jpgUtil: sample.jpeg,
            ofaUtil: sample.ofa,
        }).collect();
        let filled = fill(Out::at(&raw mut asked.processSamplesCount), Out::at(asked.procUtilArray), &infos);
        request.put(asked)?;
        filled
    }
}

/// The driver's three process lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Compute,
    Graphics,
    Mps,
}

impl List {
    fn has(self, kind: ListedKind) -> bool {
        match kind {
            ListedKind::Compute => self == Self::Compute,
            ListedKind::Graphics => self == Self::Graphics,
            ListedKind::Both => self != Self::Mps,
            ListedKind::Client => self == Self::Mps,
        }
    }
}

/// The processes on a list; ended ones can stay listed for a while, without memory.
fn running(at: &Device<'_>, list: List) -> Vec<nvmlProcessInfo_v2_t> {
    let mut found = Vec::new();
    for (worker, span) in at.gpu.timeline.listed(at.now.elapsed) {
        let instance = at.gpu.instances.iter().find(|instance| instance.engine == worker.engine);
        let asked = at.instance.map(|instance| instance.engine);
        if !list.has(worker.face.kind) || asked.is_some_and(|engine| engine != worker.engine) {
            continue;
        }
        let held = span.map_or(0, |span| span.memory);
        found.push(nvmlProcessInfo_v2_t {
            pid: worker.pid,
            usedGpuMemory: if worker.face.memory_unknown { NOT_AVAILABLE } else { held },
            gpuInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.id),
            computeInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.compute),
        });
    }
    found
}

/// Converts to the first version of the structure, without instances.
fn short(running: &[nvmlProcessInfo_v2_t]) -> Vec<nvmlProcessInfo_v1_t> {
    let of = |process: &nvmlProcessInfo_v2_t| nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.usedGpuMemory,
    };
    running.iter().map(of).collect()
}

type Stamped = (c_uint, c_ulonglong, ProcessWindowSample);

/// Samples with pid and time stamp; without any it fails with NOT_FOUND, as on an idle GPU.
fn samples_since(at: &Device<'_>, last_seen: c_ulonglong) -> Result<Vec<Stamped>, Refused> {
    at.undivided()?;
    let begun = at.now.utc.saturating_sub(at.now.elapsed);
    let stamp = |elapsed: u64| (begun + elapsed) / 1_000;
    let since = last_seen.saturating_mul(1_000).checked_sub(begun);
    let mut found = Vec::new();
    for sample in at.meters().process_samples(since) {
        let Some(worker) = at.gpu.timeline.workers().get(sample.worker) else { continue };
        if stamp(sample.at) > last_seen {
            found.push((worker.pid, stamp(sample.at), sample));
        }
    }
    if found.is_empty() { Err(NOT_FOUND) } else { Ok(found) }
}

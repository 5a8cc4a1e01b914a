//! Who is on a GPU, and what share of it each had.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_v1_t,
};

use super::answer::{NOT_FOUND, Refused};
use super::buffers::{Out, expect_version, fill};
use super::{Device, device_calls, gpu_calls};
use crate::meters::ProcessSample;

/// GPU and compute instance of a process on a GPU without MIG.
const NO_INSTANCE: c_uint = c_uint::MAX;

device_calls! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at))
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &running(at))
    }

    fn nvmlDeviceGetComputeRunningProcesses(at, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) {
        let running = running(at);
        let short: Vec<_> = running.iter().map(|process| nvmlProcessInfo_v1_t {
            pid: process.pid,
            usedGpuMemory: process.usedGpuMemory,
        }).collect();
        fill(count, infos, &short)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(_, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &[])
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(_, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &[])
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(_, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) {
        fill(count, infos, &[])
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(_, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &[])
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(_, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
        fill(count, infos, &[])
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(_, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) {
        fill(count, infos, &[])
    }
}

gpu_calls! {
    // Time stamps are UTC microseconds; samples that end after the last seen one are given, one for each
    // process and window of a sixth of a second.
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
        let mut asked = request.get()?;
        expect_version::<nvmlProcessesUtilizationInfo_v1_t>(asked.version, 1)?;
        let found = samples_since(at, asked.lastSeenTimeStamp)?;
        let infos: Vec<_> = found.iter().map(|(pid, stamp, sample)| nvmlProcessUtilizationInfo_v1_t {
            timeStamp: *stamp,
            pid: *pid,
            smUtil: sample.sm,
            memUtil: sample.memory,
            encUtil: sample.encoder,
            decUtil: sample.decoder,
            jpgUtil: 0,
            ofaUtil: 0,
        }).collect();
        let filled = fill(Out::at(&raw mut asked.processSamplesCount), Out::at(asked.procUtilArray), &infos);
        request.put(asked)?;
        filled
    }
}

fn running(at: &Device<'_>) -> Vec<nvmlProcessInfo_v2_t> {
    let mut found = Vec::new();
    for (_, worker, span) in at.gpu.timeline.present(at.now.elapsed) {
        let instance = at.gpu.instances.iter().find(|instance| instance.engine == worker.engine);
        let asked = at.instance.map(|instance| instance.engine);
        if asked.is_some_and(|engine| engine != worker.engine) {
            continue;
        }
        found.push(nvmlProcessInfo_v2_t {
            pid: worker.pid,
            usedGpuMemory: span.memory,
            gpuInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.id),
            computeInstanceId: instance.map_or(NO_INSTANCE, |instance| instance.compute),
        });
    }
    found
}

type Stamped = (c_uint, c_ulonglong, ProcessSample);

/// Samples with pid and time stamp; none at all is NOT_FOUND, as on an idle GPU.
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

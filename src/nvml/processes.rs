//! Which processes have a context on a GPU, and how busy each kept it.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings as sys;

use super::door::{Door, Handle, INSUFFICIENT_SIZE, NOT_FOUND, Refusal, ask};
use crate::model::{Absence, Bytes, GpuProcess, Nanoseconds, ProcessSample, Utc};

/// More processes than any GPU runs: a driver that asks for more answers garbage.
const MOST: usize = 65_536;

/// The driver's word for "no value" in 32 and 64 bits.
const UNKNOWN_ID: u32 = u32::MAX;
const UNKNOWN_MEMORY: u64 = u64::MAX;

/// The longest sample window that is believed; the driver keeps older samples too.
const LONGEST_WINDOW: u64 = 5_000_000;

/// Buffers and memory of the last look, kept between ticks.
pub(super) struct Processes {
    infos: Vec<sys::nvmlProcessInfo_t>,
    samples: Vec<sys::nvmlProcessUtilizationSample_t>,
    /// The newest sample seen, in the driver's microseconds since 1970.
    last_seen: u64,
}

// SAFETY: the buffers are plain memory that the driver writes only during a call.
unsafe impl Send for Processes {}

const NO_INFO: sys::nvmlProcessInfo_t = sys::nvmlProcessInfo_t {
    pid: 0,
    usedGpuMemory: 0,
    gpuInstanceId: UNKNOWN_ID,
    computeInstanceId: UNKNOWN_ID,
};

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
        Self { infos: vec![NO_INFO; 32], samples: vec![NO_SAMPLE; 32], last_seen: 0 }
    }

    /// All processes with a context, by pid; one that is listed twice (compute and graphics) counts once,
    /// with the larger memory, since both lists show the same allocation.
    pub(super) fn list(&mut self, door: &mut Door, device: Handle) -> Result<Vec<GpuProcess>, Absence> {
        let mut found = BTreeMap::new();
        let compute = self.one_list(door, device, false, &mut found);
        let graphics = self.one_list(door, device, true, &mut found);
        compute.or(graphics)?;
        Ok(found.into_values().collect())
    }

    fn one_list(
        &mut self,
        door: &mut Door,
        Handle(device): Handle,
        graphics: bool,
        found: &mut BTreeMap<(u32, Option<u32>), GpuProcess>,
    ) -> Result<(), Absence> {
        let count = loop {
            let mut count = u32::try_from(self.infos.len()).unwrap_or(u32::MAX);
            let buffer = self.infos.as_mut_ptr();
            let answer = if graphics {
                ask!(door, nvmlDeviceGetGraphicsRunningProcesses_v3(device, &raw mut count, buffer))
            } else {
                ask!(door, nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, buffer))
            };
            match answer {
                Ok(()) => break (count as usize).min(self.infos.len()),
                Err(Refusal::Code(INSUFFICIENT_SIZE)) => grow(&mut self.infos, count, NO_INFO)?,
                Err(refusal) => return Err(refusal.into()),
            }
        };
        for info in &self.infos[..count] {
            let instance = (info.gpuInstanceId != UNKNOWN_ID).then_some(info.gpuInstanceId);
            let memory = (info.usedGpuMemory != UNKNOWN_MEMORY).then_some(Bytes(info.usedGpuMemory));
            let entry = found.entry((info.pid, instance)).or_insert(GpuProcess {
                pid: info.pid,
                gpu_instance: instance,
                memory,
            });
            entry.memory = entry.memory.max(memory);
        }
        Ok(())
    }

    /// Utilization samples that are new since the last look. Nothing ran: an empty list.
    pub(super) fn samples(
        &mut self,
        door: &mut Door,
        Handle(device): Handle,
        now: Utc,
    ) -> Result<Vec<ProcessSample>, Absence> {
        if self.last_seen == 0 {
            // From the beginning the answer would be a long average over everything buffered.
            self.last_seen = (now.0 / 1_000).saturating_sub(1_000_000);
        }
        let since = self.last_seen;
        let count = loop {
            let mut count = u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
            let buffer = self.samples.as_mut_ptr();
            match ask!(door, nvmlDeviceGetProcessUtilization(device, buffer, &raw mut count, since)) {
                Ok(()) => break (count as usize).min(self.samples.len()),
                Err(Refusal::Code(NOT_FOUND)) => break 0,
                Err(Refusal::Code(INSUFFICIENT_SIZE)) => grow(&mut self.samples, count, NO_SAMPLE)?,
                Err(refusal) => return Err(refusal.into()),
            }
        };
        Ok(self.believe(count, since, now))
    }

    /// Keeps what can be true: percentages up to 100, stamps after the last look and not in the future.
    fn believe(&mut self, count: usize, since: u64, now: Utc) -> Vec<ProcessSample> {
        let latest = now.plus(Nanoseconds::SECOND).0 / 1_000;
        let mut believed = Vec::with_capacity(count);
        for sample in &self.samples[..count] {
            let percent = sample.smUtil <= 100 && sample.encUtil <= 100 && sample.decUtil <= 100;
            if sample.pid == 0 || !percent || sample.timeStamp <= since || sample.timeStamp > latest {
                continue;
            }
            self.last_seen = self.last_seen.max(sample.timeStamp);
            believed.push(ProcessSample {
                pid: sample.pid,
                window: (sample.timeStamp - since).min(LONGEST_WINDOW),
                sm: sample.smUtil,
                encoder: sample.encUtil,
                decoder: sample.decUtil,
            });
        }
        believed
    }
}

fn grow<T: Clone>(buffer: &mut Vec<T>, wanted: u32, blank: T) -> Result<(), Absence> {
    // Slack, since processes may have started meanwhile; a driver that wants less than it has is broken.
    let wanted = (wanted as usize).max(buffer.len()) + 8;
    if wanted > MOST {
        return Err(Absence::Rejected);
    }
    buffer.resize(wanted, blank);
    Ok(())
}

//! Inputs of a meter for measurements: GPUs, times, a policy, frames.

use gpumeter::meter::Policy;
use gpumeter::model::catalogue::{Level, device_points, first_point};
use gpumeter::model::{
    Bytes, Frame, GpuId, GpuIdentity, GpuProcess, HowHeld, Nanoseconds, ProcessSample, Stamp, Stretch, Utc,
};

pub const SECOND: u64 = 1_000_000_000;
pub const EPOCH: Utc = Utc(1_800_000_000 * SECOND);

pub fn id(index: u32) -> GpuId {
    GpuId { index, uuid: format!("GPU-00000000-0000-0000-0000-00000000000{index}").into() }
}

pub fn stamp(seconds: u64) -> Stamp {
    Stamp {
        boottime: Nanoseconds((1_000 + seconds) * SECOND),
        utc: EPOCH.plus(Nanoseconds::from_seconds(seconds)),
    }
}

/// Level full with presence holdings.
pub fn policy(intervals: [u64; 3]) -> Policy {
    Policy {
        level: Level::Full,
        dcgm: false,
        workload_counters: false,
        intervals: intervals.map(Nanoseconds::from_seconds),
        standing: Vec::new(),
        allocations: std::sync::Arc::default(),
        how_held: HowHeld::Presence,
        birth_delay: Nanoseconds::from_seconds(60),
        processes: 200,
        series: 20_000,
        rates: Default::default(),
        tenant_rules: Default::default(),
    }
}

/// A frame in which all tiers were read and these processes keep the GPU busy, `sm` percent each.
pub fn frame(gpu: GpuId, seconds: u64, pids: &[u32], sm: u32) -> Frame {
    const ENERGY: usize = first_point("gpu_energy_joules_total");
    let mut readings: Vec<_> = device_points().map(|_| Ok(500_000_000)).collect();
    readings[ENERGY] = Ok(i64::try_from(seconds * 400_000_000).unwrap_or(0));
    let process = |pid: &u32| GpuProcess { pid: *pid, gpu_instance: None, memory: Some(Bytes(1 << 30)) };
    let sample =
        |pid: &u32| ProcessSample { pid: *pid, window: 1_000_000, sm, memory: None, encoder: 0, decoder: 0 };
    Frame {
        gpu,
        identity: GpuIdentity { model: "made up".into(), ..GpuIdentity::default() }.into(),
        generation: 1,
        begun: stamp(seconds),
        ended: stamp(seconds),
        tiers: [Some(stamp(seconds)); 3],
        readings: readings.into(),
        counters: Box::default(),
        instances: Default::default(),
        sampled: None,
        processes: Ok(pids.iter().map(process).collect()),
        list_read: None,
        listed: Some(stamp(seconds)),
        known_empty: false,
        samples: Ok(pids.iter().map(sample).collect()),
        stretch: Stretch::default(),
        rejected: Vec::new(),
        calls: Vec::new(),
    }
}

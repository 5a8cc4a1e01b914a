//! MIG instances of a GPU: their identity and readings.

use std::ffi::c_uint;
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::calls;
use super::driver_api::{CallError, DriverApi, Handle, NOT_FOUND, call};
use super::gpm::{GpmCounters, GpmPair};
use super::inventory::{name, uuid};
use super::mig_placements::{SlicePlacement, slices};
use super::plausibility::{CounterCheck, check_reading};
use crate::model::catalogue::{Bound, CallValue, Counter, InstanceValue, MEMORY};
use crate::model::frame::Tier;
use crate::model::{Absence, Bytes, InstanceFrame, InstanceId, InstanceIdentity, MigSlices, Reading, Unit};

/// GPM's ids of the ratios of an instance.
const RATIOS: [(InstanceValue, u32); 13] = [
    (InstanceValue::GrEngineActive, 1),
    (InstanceValue::SmActive, 2),
    (InstanceValue::SmOccupancy, 3),
    (InstanceValue::TensorActive, 5),
    (InstanceValue::DramActive, 10),
    (InstanceValue::Integer, 4),
    (InstanceValue::Fp16, 13),
    (InstanceValue::Fp32, 12),
    (InstanceValue::Fp64, 11),
    (InstanceValue::TensorDfma, 6),
    (InstanceValue::TensorDmma, 8),
    (InstanceValue::TensorHmma, 7),
    (InstanceValue::TensorImma, 9),
];
const PERCENT: i64 = 10_000_000;

pub(super) struct MigInstance {
    handle: Handle,
    identity: InstanceIdentity,
    /// Whether its GPU instance is read through it; other compute instances of it have the same values.
    first: bool,
    /// Whether the driver reported under this plan that it no longer exists.
    missing: bool,
    gpm: Option<GpmPair>,
    errors: CounterCheck,
    counters: GpmCounters,
    /// In the order of the catalogue's instance values.
    readings: [Reading; InstanceValue::ALL.len()],
}

/// The MIG layout of a GPU: ids and UUID of each instance, by id.
pub(super) type InstanceLayout = Vec<(InstanceId, Arc<str>)>;

#[derive(Default)]
pub(super) struct MigInstances {
    /// Instances with a known identity, by id.
    pub(super) found: Vec<MigInstance>,
    /// All instances with known ids and UUID.
    pub(super) layout: InstanceLayout,
    /// How the GPU's memory slices are used, if the driver reports it.
    pub(super) slices: Option<MigSlices>,
    /// True unless a call failed that may work later.
    pub(super) is_final: bool,
}

/// Finds the instances of a GPU; `gpm` has the counters of each, if GPM works.
pub(super) fn find_instances(api: &mut DriverApi, parent: Handle, gpm: Option<&[Counter]>) -> MigInstances {
    let handles = match read_handles(api, parent) {
        Ok(handles) => handles,
        Err(absence) => return MigInstances { is_final: absence.is_permanent(), ..MigInstances::default() },
    };
    let (mut found, mut layout) = (Vec::new(), Vec::new());
    let mut is_final = true;
    for handle in handles {
        let answer = read_ids(api, handle).and_then(|(id, uuid)| {
            layout.push((id, Arc::clone(&uuid)));
            read_identity(api, handle, id, uuid)
        });
        match answer {
            Ok(identity) => found.push(MigInstance::new(handle, identity)),
            Err(absence) => is_final &= absence.is_permanent(),
        }
    }
    layout.sort();
    found.sort_by_key(|instance| instance.identity.id);
    let mut last: Option<(u32, Result<SlicePlacement, Absence>)> = None;
    let mut placements = Vec::new();
    for instance in &mut found {
        let id = instance.identity.id.gpu_instance;
        let known = last.filter(|(known, _)| *known == id);
        instance.first = known.is_none();
        let placement = known.map_or_else(|| read_placement(api, parent, id), |(_, placement)| placement);
        last = Some((id, placement));
        instance.identity.placement = placement.map_or_else(
            |_| Arc::default(),
            |SlicePlacement { start, size }| format!("{start}:{size}").into(),
        );
        if instance.first {
            placements.push(placement);
            is_final &= gpm.is_none_or(|counters| instance.allocate_gpm(api, counters));
        }
    }
    let placements: Result<Vec<SlicePlacement>, Absence> = placements.into_iter().collect();
    let slices = placements.and_then(|placements| slices(api, parent, &placements));
    is_final &= slices.err().is_none_or(Absence::is_permanent);
    MigInstances { found, layout, slices: slices.ok(), is_final }
}

pub(super) fn read_layout(api: &mut DriverApi, parent: Handle) -> Result<InstanceLayout, Absence> {
    let mut found = Vec::new();
    for handle in read_handles(api, parent)? {
        match read_ids(api, handle) {
            Ok(instance) => found.push(instance),
            Err(absence) if absence.is_permanent() => {}
            Err(absence) => return Err(absence),
        }
    }
    found.sort();
    Ok(found)
}

/// The handles of the instances; unused indexes return NOT_FOUND.
fn read_handles(api: &mut DriverApi, Handle(parent): Handle) -> Result<Vec<Handle>, Absence> {
    let mut most: c_uint = 0;
    call!(api, nvmlDeviceGetMaxMigDeviceCount(parent, &raw mut most))?;
    let mut handles = Vec::new();
    for index in 0..most.min(16) {
        let mut device = std::ptr::null_mut();
        match call!(api, nvmlDeviceGetMigDeviceHandleByIndex(parent, index, &raw mut device)) {
            Ok(()) => handles.push(Handle(device)),
            Err(CallError::Code(NOT_FOUND)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(handles)
}

/// The ids and UUID of an instance; both, since ids are reused.
fn read_ids(api: &mut DriverApi, handle: Handle) -> Result<(InstanceId, Arc<str>), Absence> {
    let Handle(device) = handle;
    let (mut gpu_instance, mut compute_instance): (c_uint, c_uint) = (0, 0);
    call!(api, nvmlDeviceGetGpuInstanceId(device, &raw mut gpu_instance))?;
    call!(api, nvmlDeviceGetComputeInstanceId(device, &raw mut compute_instance))?;
    if gpu_instance.max(compute_instance) > LAST_ID {
        return Err(Absence::Rejected);
    }
    Ok((InstanceId { gpu_instance, compute_instance }, uuid(api, handle)?))
}

/// The highest id: a GPU has at most eight instances, and ids are reused.
const LAST_ID: c_uint = 255;

fn read_identity(
    api: &mut DriverApi,
    handle: Handle,
    id: InstanceId,
    uuid: Arc<str>,
) -> Result<InstanceIdentity, Absence> {
    let Handle(device) = handle;
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut attributes: sys::nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
    call!(api, nvmlDeviceGetAttributes_v2(device, &raw mut attributes))?;
    let memory = attributes.memorySizeMB.saturating_mul(1 << 20);
    to_i64(memory).and_then(|memory| Bound::BYTES.accept(memory).ok_or(Absence::Rejected))?;
    Ok(InstanceIdentity {
        id,
        uuid,
        profile: profile(&name(api, handle).unwrap_or_default()),
        placement: Arc::default(),
        memory: Bytes(memory),
    })
}

/// The placement of a GPU instance, which drivers return to administrators only. Its handle needs no freeing.
fn read_placement(api: &mut DriverApi, Handle(parent): Handle, id: u32) -> Result<SlicePlacement, Absence> {
    let mut instance: sys::nvmlGpuInstance_t = std::ptr::null_mut();
    call!(api, nvmlDeviceGetGpuInstanceById(parent, id, &raw mut instance))?;
    // SAFETY: the structure is integers and a pointer, for all of which zero is a value.
    let mut info: sys::nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    call!(api, nvmlGpuInstanceGetInfo(instance, &raw mut info))?;
    if info.id == id { SlicePlacement::of(info.placement) } else { Err(Absence::Rejected) }
}

/// Converts `NVIDIA H100 80GB HBM3 MIG 1g.10gb` to `1g.10gb`.
fn profile(name: &str) -> Arc<str> {
    name.rsplit_once(" MIG ")
        .and_then(|(_, profile)| profile.split_whitespace().next())
        .unwrap_or_default()
        .into()
}

impl MigInstance {
    fn new(handle: Handle, identity: InstanceIdentity) -> Self {
        Self {
            handle,
            identity,
            first: false,
            missing: false,
            gpm: None,
            errors: CounterCheck::new(Unit::None),
            counters: GpmCounters::new(Vec::new()),
            readings: [Err(Absence::NotYet); _],
        }
    }

    /// Allocates its sample buffers; whether the result is final.
    fn allocate_gpm(&mut self, api: &mut DriverApi, counters: &[Counter]) -> bool {
        let counters = GpmCounters::new(counters.into());
        match GpmPair::new(api, RATIOS.iter().map(|(_, id)| *id).chain(counters.ids()).collect()) {
            Ok(pair) => {
                self.gpm = Some(pair);
                self.counters = counters;
                true
            }
            Err(absence) => absence.is_permanent(),
        }
    }

    pub(super) fn identity(&self) -> &InstanceIdentity {
        &self.identity
    }

    /// Its handle, if its GPU instance is read through it.
    pub(super) fn device(&self) -> Option<Handle> {
        self.first.then_some(self.handle)
    }

    /// Whether its activity can be read.
    pub(super) fn has_pair(&self) -> bool {
        self.gpm.is_some()
    }

    pub(super) fn is_missing(&self) -> bool {
        self.missing
    }

    /// Reads what is due: two calls on every tick, one more with the medium and with the slow tier.
    pub(super) fn read(&mut self, api: &mut DriverApi, parent: Handle, due: [bool; 3]) -> InstanceFrame {
        if self.first {
            self.read_activity(api, parent);
            if due[Tier::Medium as usize] {
                self.read_memory(api);
            }
            if due[Tier::Slow as usize] {
                self.read_errors(api);
            }
        }
        InstanceFrame {
            identity: self.identity.clone(),
            readings: self.readings.into(),
            counters: self.counters.readings(),
        }
    }

    fn store(&mut self, api: &mut DriverApi, value: InstanceValue, raw: Result<i64, Absence>) {
        let counter = (value == InstanceValue::SramUncorrected).then_some(&mut self.errors);
        self.readings[value as usize] = check_reading(api, raw, value.bound(), counter);
    }

    fn read_memory(&mut self, api: &mut DriverApi) {
        let was_there = self.readings[InstanceValue::MemoryTotal as usize].is_ok();
        api.take_not_found();
        let memory = calls::memory(api, self.handle);
        self.missing |= was_there && api.take_not_found();
        for (value, place) in
            [(InstanceValue::MemoryTotal, 0), (InstanceValue::MemoryUsed, 1), (InstanceValue::MemoryFree, 2)]
        {
            self.store(
                api,
                value,
                memory.and_then(|memory| memory.get(CallValue::of(MEMORY, place))).and_then(to_i64),
            );
        }
    }

    fn read_errors(&mut self, api: &mut DriverApi) {
        // The probe does not read this counter, so its first read makes both calls that a new counter needs.
        for _ in 0..1 + u8::from(self.errors.is_new()) {
            let errors = calls::instance_errors(api, self.handle).and_then(to_i64);
            self.store(api, InstanceValue::SramUncorrected, errors);
        }
    }

    fn read_activity(&mut self, api: &mut DriverApi, parent: Handle) {
        let instance = Some(self.identity.id.gpu_instance);
        let answer = match &mut self.gpm {
            Some(pair) => {
                let was_there = pair.has_sample();
                api.take_not_found();
                let sampled = pair.sample(api, parent, instance);
                self.missing |= was_there && api.take_not_found();
                sampled.and_then(|()| pair.compute(api))
            }
            None => Err(Absence::NotSupported),
        };
        for (value, id) in RATIOS {
            let ratio = self.gpm.as_ref().ok_or(Absence::NotSupported);
            let ratio = ratio.and_then(|pair| answer.and_then(|()| pair.value(id, PERCENT)));
            self.store(api, value, ratio);
        }
        if let Some(pair) = &self.gpm {
            self.counters.read(api, pair, answer);
        }
    }

    pub(super) fn free(self, api: &mut DriverApi) {
        if let Some(pair) = self.gpm {
            pair.free(api);
        }
    }
}

/// Clears all readings except permanent absences, since they may be another instance's.
pub(super) fn clear_readings(frames: &[InstanceFrame]) -> Arc<[InstanceFrame]> {
    let none =
        |readings: &[Reading]| readings.iter().map(|reading| reading.and(Err(Absence::Failed))).collect();
    let disowned = frames.iter().map(|frame| InstanceFrame {
        identity: frame.identity.clone(),
        readings: none(&frame.readings),
        counters: none(&frame.counters),
    });
    disowned.collect()
}

fn to_i64(amount: u64) -> Reading {
    i64::try_from(amount).map_err(|_| Absence::Rejected)
}

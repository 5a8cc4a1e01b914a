//! MIG instances of a GPU: what they are, and their readings.

use std::ffi::c_uint;
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::belief::{Belief, taken};
use super::calls;
use super::door::{Door, Handle, NOT_FOUND, Refusal, ask};
use super::gpm::{Counters, Pair};
use super::inventory::{name, uuid};
use super::placements::{Placement, slices};
use crate::catalogue::{Bound, CallValue, Counter, InstanceValue};
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

/// One MIG instance with its sample buffers and its latest readings.
pub(super) struct Instance {
    handle: Handle,
    identity: InstanceIdentity,
    /// Whether its GPU instance is read through it; the other compute instances show the same.
    first: bool,
    /// Whether the driver no longer knows it, though it did under this plan.
    gone: bool,
    gpm: Option<Pair>,
    errors: Belief,
    counters: Counters,
    /// By the order of the catalogue's instance values.
    readings: [Reading; InstanceValue::ALL.len()],
}

/// How a GPU is cut: ids and UUID of each instance, by id.
pub(super) type Layout = Vec<(InstanceId, Arc<str>)>;

/// What was found of a GPU's instances.
#[derive(Default)]
pub(super) struct Instances {
    /// Those that say what they are, by id.
    pub(super) found: Vec<Instance>,
    /// All that say who they are.
    pub(super) layout: Layout,
    /// How the GPU's memory slices are used, where the driver tells that.
    pub(super) slices: Option<MigSlices>,
    /// Whether none is missing that may come.
    pub(super) whole: bool,
}

/// The instances of a GPU, with what GPM may count of each, where it works.
pub(super) fn find(door: &mut Door, parent: Handle, gpm: Option<&[Counter]>) -> Instances {
    let handles = match handles(door, parent) {
        Ok(handles) => handles,
        Err(absence) => return Instances { whole: absence.is_permanent(), ..Instances::default() },
    };
    let (mut found, mut layout) = (Vec::new(), Vec::new());
    let mut whole = true;
    for handle in handles {
        let answer = place(door, handle).and_then(|(id, uuid)| {
            layout.push((id, Arc::clone(&uuid)));
            identity(door, handle, (id, uuid))
        });
        match answer {
            Ok(identity) => found.push(Instance::new(handle, identity)),
            Err(absence) => whole &= absence.is_permanent(),
        }
    }
    layout.sort();
    found.sort_by_key(|instance| instance.identity.id);
    let mut last: Option<(u32, Result<Placement, Absence>)> = None;
    let mut placements = Vec::new();
    for instance in &mut found {
        let id = instance.identity.id.gpu_instance;
        let known = last.filter(|(known, _)| *known == id);
        instance.first = known.is_none();
        let placement = known.map_or_else(|| placement(door, parent, id), |(_, placement)| placement);
        last = Some((id, placement));
        instance.identity.placement = placement
            .map_or_else(|_| Arc::default(), |Placement { start, size }| format!("{start}:{size}").into());
        if instance.first {
            placements.push(placement);
            whole &= gpm.is_none_or(|counters| instance.pair_up(door, counters));
        }
    }
    let placements: Result<Vec<Placement>, Absence> = placements.into_iter().collect();
    let slices = placements.and_then(|placements| slices(door, parent, &placements));
    whole &= slices.err().is_none_or(Absence::is_permanent);
    Instances { found, layout, slices: slices.ok(), whole }
}

/// Which instances there are now.
pub(super) fn layout(door: &mut Door, parent: Handle) -> Result<Layout, Absence> {
    let mut found = Vec::new();
    for handle in handles(door, parent)? {
        match place(door, handle) {
            Ok(instance) => found.push(instance),
            Err(absence) if absence.is_permanent() => {}
            Err(absence) => return Err(absence),
        }
    }
    found.sort();
    Ok(found)
}

/// The handles of the instances. Empty places answer NOT_FOUND.
fn handles(door: &mut Door, Handle(parent): Handle) -> Result<Vec<Handle>, Absence> {
    let mut most: c_uint = 0;
    ask!(door, nvmlDeviceGetMaxMigDeviceCount(parent, &raw mut most))?;
    let mut handles = Vec::new();
    for index in 0..most.min(16) {
        let mut device = std::ptr::null_mut();
        match ask!(door, nvmlDeviceGetMigDeviceHandleByIndex(parent, index, &raw mut device)) {
            Ok(()) => handles.push(Handle(device)),
            Err(Refusal::Code(NOT_FOUND)) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(handles)
}

/// Which instance it is. Ids and UUID are asked for, since ids are used again.
fn place(door: &mut Door, handle: Handle) -> Result<(InstanceId, Arc<str>), Absence> {
    let Handle(device) = handle;
    let (mut gpu_instance, mut compute_instance): (c_uint, c_uint) = (0, 0);
    ask!(door, nvmlDeviceGetGpuInstanceId(device, &raw mut gpu_instance))?;
    ask!(door, nvmlDeviceGetComputeInstanceId(device, &raw mut compute_instance))?;
    if gpu_instance.max(compute_instance) > LAST_ID {
        return Err(Absence::Rejected);
    }
    Ok((InstanceId { gpu_instance, compute_instance }, uuid(door, handle)?))
}

/// No instance has a higher id: a GPU is cut into eight at most, and ids are used again.
const LAST_ID: c_uint = 255;

fn identity(
    door: &mut Door,
    handle: Handle,
    (id, uuid): (InstanceId, Arc<str>),
) -> Result<InstanceIdentity, Absence> {
    let Handle(device) = handle;
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut attributes: sys::nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
    ask!(door, nvmlDeviceGetAttributes_v2(device, &raw mut attributes))?;
    let memory = attributes.memorySizeMB.saturating_mul(1 << 20);
    whole(memory).and_then(|memory| Bound::BYTES.hold(memory).ok_or(Absence::Rejected))?;
    Ok(InstanceIdentity {
        id,
        uuid,
        profile: profile(&name(door, handle).unwrap_or_default()),
        placement: Arc::default(),
        memory: Bytes(memory),
    })
}

/// Where a GPU instance lies, which drivers tell only who may change it. Its handle is nothing to be given back.
fn placement(door: &mut Door, Handle(parent): Handle, id: u32) -> Result<Placement, Absence> {
    let mut instance: sys::nvmlGpuInstance_t = std::ptr::null_mut();
    ask!(door, nvmlDeviceGetGpuInstanceById(parent, id, &raw mut instance))?;
    // SAFETY: the structure is integers and a pointer, for all of which zero is a value.
    let mut info: sys::nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    ask!(door, nvmlGpuInstanceGetInfo(instance, &raw mut info))?;
    if info.id == id { Placement::of(info.placement) } else { Err(Absence::Rejected) }
}

/// `NVIDIA H100 80GB HBM3 MIG 1g.10gb` to `1g.10gb`.
fn profile(name: &str) -> Arc<str> {
    name.rsplit_once(" MIG ")
        .and_then(|(_, profile)| profile.split_whitespace().next())
        .unwrap_or_default()
        .into()
}

impl Instance {
    fn new(handle: Handle, identity: InstanceIdentity) -> Self {
        Self {
            handle,
            identity,
            first: false,
            gone: false,
            gpm: None,
            errors: Belief::new(Unit::None),
            counters: Counters::new(Vec::new()),
            readings: [Err(Absence::NotYet); _],
        }
    }

    /// Gets its sample buffers, and whether that is for good.
    fn pair_up(&mut self, door: &mut Door, counters: &[Counter]) -> bool {
        let counters = Counters::new(counters.into());
        match Pair::new(door, RATIOS.iter().map(|(_, id)| *id).chain(counters.ids()).collect()) {
            Ok(pair) => {
                self.gpm = Some(pair);
                self.counters = counters;
                true
            }
            Err(absence) => absence.is_permanent(),
        }
    }

    /// What it is.
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

    /// Whether the driver no longer knows it: the GPU was cut anew.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Reads what is due of the instance: two calls at every tick, one more with the medium and the slow tier.
    pub(super) fn read(&mut self, door: &mut Door, parent: Handle, due: [bool; 3]) -> InstanceFrame {
        if self.first {
            self.read_activity(door, parent);
            if due[Tier::Medium as usize] {
                self.read_memory(door);
            }
            if due[Tier::Slow as usize] {
                self.read_errors(door);
            }
        }
        InstanceFrame {
            identity: self.identity.clone(),
            readings: self.readings.into(),
            counters: self.counters.readings(),
        }
    }

    fn put(&mut self, door: &mut Door, value: InstanceValue, raw: Result<i64, Absence>) {
        let counter = (value == InstanceValue::SramUncorrected).then_some(&mut self.errors);
        self.readings[value as usize] = taken(door, raw, (1, value.bound()), counter);
    }

    fn read_memory(&mut self, door: &mut Door) {
        let was_there = self.readings[InstanceValue::MemoryTotal as usize].is_ok();
        door.take_missed();
        let memory = calls::memory(door, self.handle);
        self.gone |= was_there && door.take_missed();
        for (value, from) in [
            (InstanceValue::MemoryTotal, CallValue::MemoryTotal),
            (InstanceValue::MemoryUsed, CallValue::MemoryUsed),
            (InstanceValue::MemoryFree, CallValue::MemoryFree),
        ] {
            self.put(door, value, memory.and_then(|memory| memory.get(from)).and_then(whole));
        }
    }

    fn read_errors(&mut self, door: &mut Door) {
        // Nobody has asked before: the counter begins with two answers.
        for _ in 0..1 + u8::from(self.errors.is_new()) {
            let errors = calls::instance_errors(door, self.handle).and_then(whole);
            self.put(door, InstanceValue::SramUncorrected, errors);
        }
    }

    fn read_activity(&mut self, door: &mut Door, parent: Handle) {
        let instance = Some(self.identity.id.gpu_instance);
        let answer = match &mut self.gpm {
            Some(pair) => {
                let was_there = pair.has_sample();
                door.take_missed();
                let sampled = pair.sample(door, parent, instance);
                self.gone |= was_there && door.take_missed();
                sampled.and_then(|()| pair.compute(door))
            }
            None => Err(Absence::NotSupported),
        };
        for (value, id) in RATIOS {
            let ratio = self.gpm.as_ref().ok_or(Absence::NotSupported);
            let ratio = ratio.and_then(|pair| answer.and_then(|()| pair.value(id, PERCENT)));
            self.put(door, value, ratio);
        }
        if let Some(pair) = &self.gpm {
            self.counters.read(door, pair, answer);
        }
    }

    pub(super) fn free(self, door: &mut Door) {
        if let Some(pair) = self.gpm {
            pair.free(door);
        }
    }
}

/// Frames that tell nothing but what is refused for good: what was read may be another instance's.
pub(super) fn disown(frames: &[InstanceFrame]) -> Arc<[InstanceFrame]> {
    let none =
        |readings: &[Reading]| readings.iter().map(|reading| reading.and(Err(Absence::Failed))).collect();
    let disowned = frames.iter().map(|frame| InstanceFrame {
        identity: frame.identity.clone(),
        readings: none(&frame.readings),
        counters: none(&frame.counters),
    });
    disowned.collect()
}

fn whole(amount: u64) -> Reading {
    i64::try_from(amount).map_err(|_| Absence::Rejected)
}

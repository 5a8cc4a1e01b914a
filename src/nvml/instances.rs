//! MIG instances of a GPU: what they are, and their readings.

use std::ffi::c_uint;
use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;

use super::calls;
use super::door::{Door, Handle, NOT_FOUND, Refusal, ask};
use super::gpm::Pair;
use super::inventory::{name, uuid};
use crate::catalogue::{CallValue, InstanceValue};
use crate::model::{Absence, Bytes, InstanceFrame, InstanceId, InstanceIdentity, Reading};

/// GPM's graphics engine activity, in percent.
const GR_ENGINE: u32 = 1;
const PERCENT: i64 = 10_000_000;

/// One MIG instance with its sample buffers.
pub(super) struct Instance {
    handle: Handle,
    identity: InstanceIdentity,
    gpm: Option<Pair>,
}

/// The instances of a GPU, by id, and whether none is missing that may come.
pub(super) fn find(door: &mut Door, parent: Handle, gpm: bool) -> (Vec<Instance>, bool) {
    let handles = match handles(door, parent) {
        Ok(handles) => handles,
        Err(absence) => return (Vec::new(), absence.is_permanent()),
    };
    let mut found = Vec::new();
    let mut whole = true;
    for handle in handles {
        match identity(door, handle) {
            Ok(identity) => {
                let pair = if gpm { Some(Pair::new(door, vec![GR_ENGINE])) } else { None };
                whole &= !matches!(&pair, Some(Err(absence)) if !absence.is_permanent());
                found.push(Instance { handle, identity, gpm: pair.and_then(Result::ok) });
            }
            Err(absence) => whole &= absence.is_permanent(),
        }
    }
    found.sort_by_key(|instance| instance.identity.id);
    (found, whole)
}

/// Which instances there are: ids and UUID, by id. Both are asked for, since ids are used again.
pub(super) fn layout(door: &mut Door, parent: Handle) -> Result<Vec<(InstanceId, Arc<str>)>, Absence> {
    let mut found = Vec::new();
    for handle in handles(door, parent)? {
        match ids(door, handle).and_then(|id| Ok((id, uuid(door, handle)?))) {
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

fn ids(door: &mut Door, Handle(device): Handle) -> Result<InstanceId, Absence> {
    let (mut gpu_instance, mut compute_instance): (c_uint, c_uint) = (0, 0);
    ask!(door, nvmlDeviceGetGpuInstanceId(device, &raw mut gpu_instance))?;
    ask!(door, nvmlDeviceGetComputeInstanceId(device, &raw mut compute_instance))?;
    Ok(InstanceId { gpu_instance, compute_instance })
}

fn identity(door: &mut Door, handle: Handle) -> Result<InstanceIdentity, Absence> {
    let Handle(device) = handle;
    let id = ids(door, handle)?;
    // SAFETY: the structure is integers, for all of which zero is a value.
    let mut attributes: sys::nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
    ask!(door, nvmlDeviceGetAttributes_v2(device, &raw mut attributes))?;
    Ok(InstanceIdentity {
        id,
        uuid: uuid(door, handle)?,
        profile: profile(&name(door, handle).unwrap_or_default()),
        memory: Bytes(attributes.memorySizeMB.saturating_mul(1 << 20)),
    })
}

/// `NVIDIA H100 80GB HBM3 MIG 1g.10gb` to `1g.10gb`.
fn profile(name: &str) -> Arc<str> {
    name.rsplit_once(" MIG ")
        .and_then(|(_, profile)| profile.split_whitespace().next())
        .unwrap_or_default()
        .into()
}

impl Instance {
    /// What it is.
    pub(super) fn identity(&self) -> &InstanceIdentity {
        &self.identity
    }

    /// Whether its activity can be read.
    pub(super) fn has_pair(&self) -> bool {
        self.gpm.is_some()
    }

    /// Reads the instance, in the order of the catalogue's instance values.
    pub(super) fn read(&mut self, door: &mut Door, parent: Handle) -> InstanceFrame {
        let memory = calls::memory(door, self.handle);
        let bytes = |value| {
            let amount = memory.and_then(|values| values.get(value))?;
            i64::try_from(amount).map_err(|_| Absence::Rejected)
        };
        let activity = self.activity(door, parent);
        let readings = InstanceValue::ALL.map(|value| match value {
            InstanceValue::MemoryTotal => bytes(CallValue::MemoryTotal),
            InstanceValue::MemoryUsed => bytes(CallValue::MemoryUsed),
            InstanceValue::GrEngineActive => activity,
        });
        InstanceFrame { identity: self.identity.clone(), readings: readings.into() }
    }

    fn activity(&mut self, door: &mut Door, parent: Handle) -> Reading {
        let pair = self.gpm.as_mut().ok_or(Absence::NotSupported)?;
        pair.sample(door, parent, Some(self.identity.id.gpu_instance))?;
        pair.compute(door)?;
        pair.value(GR_ENGINE, PERCENT)
    }

    pub(super) fn free(self, door: &mut Door) {
        if let Some(pair) = self.gpm {
            pair.free(door);
        }
    }
}

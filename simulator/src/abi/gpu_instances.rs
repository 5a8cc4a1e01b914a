//! GPU instances: a board's profiles, free placements, existing instances.
//!
//! A GPU instance's handle is that of its first MIG device with a mark, so that a wrong one is refused like any
//! other wrong handle.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};

use super::answer::{Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Refused};
use super::buffers::{Out, array, expect_version};
use super::{Device, gpu_calls, handle};
use crate::board::family;
use crate::mig::MigProfile;
use crate::node::Instance;

/// XOR with it turns a device handle into that of its GPU instance, and back.
const MARK: usize = 1 << 60;
/// NVML_GPU_INSTANCE_PROFILE_COUNT.
const PROFILES: c_uint = 17;

/// Exports functions about a GPU instance; the body gets the device of its first compute instance.
macro_rules! gpu_instance_calls {
    ($(fn $name:ident($at:ident, $instance:ident $(, $argument:ident: $kind:ty)*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            instance: nvml_wrapper_sys::bindings::nvmlGpuInstance_t,
            $($argument: $kind),*
        ) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            let device = $crate::abi::gpu_instances::device_of(instance);
            let arguments: $crate::replay::Arguments<'_> = &[&instance, $(&$argument),*];
            $crate::abi::on_device(stringify!($name), device, arguments, |$at| {
                let $instance = $at.instance.ok_or($crate::abi::answer::INVALID_ARGUMENT)?;
                $body
            })
        }
    )* };
}

pub(super) use gpu_instance_calls;

pub(super) fn device_of(instance: nvmlGpuInstance_t) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(instance.addr() ^ MARK)
}

/// The handle of the GPU instance with an id.
pub(super) fn handle_of(at: &Device<'_>, id: c_uint) -> Result<nvmlGpuInstance_t, Refused> {
    let position = at.gpu.instances.iter().position(|instance| instance.id == id).ok_or(NOT_FOUND)?;
    Ok(std::ptr::without_provenance_mut(handle(at.gpu, Some(position)).addr() ^ MARK))
}

/// The GPU instances, each by its first compute instance.
fn instances<'a>(at: &Device<'a>) -> impl Iterator<Item = &'a Instance> {
    at.gpu.instances.iter().filter(|instance| instance.compute == 0)
}

fn by_id(at: &Device<'_>, id: c_uint) -> Result<&'static MigProfile, Refused> {
    capable(at)?;
    at.gpu.board.mig.iter().find(|profile| profile.id == id).ok_or(NOT_SUPPORTED)
}

fn by_enumerator(at: &Device<'_>, enumerator: c_uint) -> Result<&'static MigProfile, Refused> {
    capable(at)?;
    if enumerator >= PROFILES {
        return Err(INVALID_ARGUMENT);
    }
    at.gpu.board.mig.iter().find(|profile| profile.enumerator == enumerator).ok_or(NOT_SUPPORTED)
}

fn capable(at: &Device<'_>) -> Answer {
    if at.gpu.board.mig_slices == 0 { Err(NOT_SUPPORTED) } else { Ok(()) }
}

fn divided(at: &Device<'_>) -> Answer {
    if at.gpu.divided { Ok(()) } else { Err(NOT_SUPPORTED) }
}

gpu_calls! {
    fn nvmlDeviceGetGpuInstanceProfileInfo(at, profile: c_uint, info: Out<nvmlGpuInstanceProfileInfo_t>) {
        let profile = by_enumerator(at, profile)?;
        info.put(nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.most(),
            multiprocessorCount: profile.sms,
            copyEngineCount: profile.copy_engines,
            decoderCount: profile.decoders,
            encoderCount: 0,
            jpegCount: family::jpegs(at.gpu.board, profile),
            ofaCount: profile.ofa,
            memorySizeMB: profile.memory_mib,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(at, profile: c_uint, info: Out<nvmlGpuInstanceProfileInfo_v3_t>) {
        put_profile(at, by_enumerator(at, profile)?, info)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(at, id: c_uint, info: Out<nvmlGpuInstanceProfileInfo_v3_t>) {
        put_profile(at, by_id(at, id)?, info)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        at,
        id: c_uint,
        placements: Out<nvmlGpuInstancePlacement_t>,
        count: Out<c_uint>
    ) {
        put_placements(at, id, placements, count)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        at,
        id: c_uint,
        placements: Out<nvmlGpuInstancePlacement_t>,
        count: Out<c_uint>
    ) {
        put_placements(at, id, placements, count)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(at, id: c_uint, count: Out<c_uint>) {
        let profile = by_id(at, id)?;
        divided(at)?;
        let mut taken: Vec<(&MigProfile, u32)> =
            instances(at).map(|instance| (instance.profile, instance.start)).collect();
        let mut fitting = 0;
        for start in profile.starts {
            if !taken.iter().any(|(other, place)| profile.overlaps(*start, other, *place)) {
                taken.push((profile, *start));
                fitting += 1;
            }
        }
        count.put(fitting)
    }

    fn nvmlDeviceGetGpuInstances(at, id: c_uint, found: Out<nvmlGpuInstance_t>, count: Out<c_uint>) {
        let profile = by_id(at, id)?;
        divided(at)?;
        let ids = instances(at).filter(|instance| instance.profile.id == profile.id);
        let handles: Vec<_> = ids.map(|instance| handle_of(at, instance.id)).collect::<Result<_, _>>()?;
        // `count` is only an output: by the header the array holds as many as the profile allows.
        count.pointer()?;
        for (place, handle) in handles.iter().enumerate() {
            found.put_at(place, *handle)?;
        }
        count.put(handles.len().try_into().unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetGpuInstanceById(at, id: c_uint, found: Out<nvmlGpuInstance_t>) {
        divided(at)?;
        found.put(handle_of(at, id)?)
    }
}

gpu_instance_calls! {
    fn nvmlGpuInstanceGetInfo(at, instance, info: Out<nvmlGpuInstanceInfo_t>) {
        info.put(nvmlGpuInstanceInfo_t {
            device: handle(at.gpu, None),
            id: instance.id,
            profileId: instance.profile.id,
            placement: nvmlGpuInstancePlacement_t { start: instance.start, size: instance.profile.size },
        })
    }
}

fn put_profile(at: &Device<'_>, profile: &MigProfile, info: Out<nvmlGpuInstanceProfileInfo_v3_t>) -> Answer {
    let short = Out::at(info.pointer()?.cast::<nvmlGpuInstanceProfileInfo_v2_t>());
    let version = short.version()?;
    let name = array(&format!("MIG {}", profile.name));
    if expect_version::<nvmlGpuInstanceProfileInfo_v2_t>(version, 2).is_ok() {
        return short.put(nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.most(),
            multiprocessorCount: profile.sms,
            copyEngineCount: profile.copy_engines,
            decoderCount: profile.decoders,
            encoderCount: 0,
            jpegCount: family::jpegs(at.gpu.board, profile),
            ofaCount: profile.ofa,
            memorySizeMB: profile.memory_mib,
            name,
        });
    }
    expect_version::<nvmlGpuInstanceProfileInfo_v3_t>(version, 3)?;
    info.put(nvmlGpuInstanceProfileInfo_v3_t {
        version,
        id: profile.id,
        sliceCount: profile.slices,
        instanceCount: profile.most(),
        multiprocessorCount: profile.sms,
        copyEngineCount: profile.copy_engines,
        decoderCount: profile.decoders,
        encoderCount: 0,
        jpegCount: family::jpegs(at.gpu.board, profile),
        ofaCount: profile.ofa,
        memorySizeMB: profile.memory_mib,
        name,
        capabilities: profile.capabilities(),
    })
}

/// Possible placements on an empty GPU; without an array only their number.
fn put_placements(
    at: &Device<'_>,
    id: c_uint,
    placements: Out<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
) -> Answer {
    let profile = by_id(at, id)?;
    let known: Vec<_> = profile
        .starts
        .iter()
        .map(|start| nvmlGpuInstancePlacement_t { start: *start, size: profile.size })
        .collect();
    let number = c_uint::try_from(known.len()).unwrap_or(c_uint::MAX);
    if placements.pointer().is_err() {
        return count.put(number);
    }
    let room = count.get()? as usize;
    count.put(number)?;
    if room < known.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    known.iter().enumerate().try_for_each(|(place, placement)| placements.put_at(place, *placement))
}

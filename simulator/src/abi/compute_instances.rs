//! Compute instances: a GPU instance's profiles, free placements, existing instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t,
    nvmlComputeInstanceProfileInfo_v3_t, nvmlReturn_t,
};

use super::answer::{Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Refused};
use super::buffers::{Out, array, expect_version};
use super::gpu_instances::{gpu_instance_calls, handle_of};
use super::{Device, handle, on_device};
use crate::board::family;
use crate::node::Instance;

/// XOR with it turns a MIG device handle into that of its compute instance, and back.
const MARK: usize = 1 << 61;
/// NVML_COMPUTE_INSTANCE_PROFILE_COUNT.
const PROFILES: c_uint = 8;

fn handle_at(at: &Device<'_>, instance: &Instance) -> Result<nvmlComputeInstance_t, Refused> {
    let position = at.gpu.instances.iter().position(|other| other.engine == instance.engine);
    let device = handle(at.gpu, Some(position.ok_or(NOT_FOUND)?));
    Ok(std::ptr::without_provenance_mut(device.addr() ^ MARK))
}

/// The compute instances of one GPU instance.
fn within<'a>(at: &Device<'a>, instance: &Instance) -> impl Iterator<Item = &'a Instance> {
    at.gpu.instances.iter().filter(move |other| other.entry == instance.entry)
}

gpu_instance_calls! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        at,
        instance,
        profile: c_uint,
        engines: c_uint,
        info: Out<nvmlComputeInstanceProfileInfo_t>
    ) {
        let slices = slices_of(instance, profile, engines)?;
        info.put(nvmlComputeInstanceProfileInfo_t {
            id: instance.profile.compute_profile(slices),
            sliceCount: slices,
            instanceCount: instance.profile.slices / slices,
            multiprocessorCount: sms(at, instance, slices),
            sharedCopyEngineCount: instance.profile.copy_engines,
            sharedDecoderCount: instance.profile.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: family::jpegs(at.gpu.board, instance.profile),
            sharedOfaCount: instance.profile.ofa,
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        at,
        instance,
        profile: c_uint,
        engines: c_uint,
        info: Out<nvmlComputeInstanceProfileInfo_v3_t>
    ) {
        put_profile(at, instance, slices_of(instance, profile, engines)?, info)
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(at, instance, id: c_uint, count: Out<c_uint>) {
        let slices = slices_of_id(instance, id)?;
        let taken: u32 = within(at, instance).map(|other| other.compute_slices).sum();
        count.put(instance.profile.slices.saturating_sub(taken) / slices)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        at,
        instance,
        id: c_uint,
        placements: Out<nvmlComputeInstancePlacement_t>,
        count: Out<c_uint>
    ) {
        let slices = slices_of_id(instance, id)?;
        let number = instance.profile.slices / slices;
        if placements.pointer().is_err() {
            return count.put(number);
        }
        let room = count.get()?;
        count.put(number)?;
        if room < number {
            return Err(INSUFFICIENT_SIZE);
        }
        (0..number).try_for_each(|place| {
            let placement = nvmlComputeInstancePlacement_t { start: place * slices, size: slices };
            placements.put_at(place as usize, placement)
        })
    }

    fn nvmlGpuInstanceGetComputeInstances(
        at,
        instance,
        id: c_uint,
        found: Out<nvmlComputeInstance_t>,
        count: Out<c_uint>
    ) {
        let slices = slices_of_id(instance, id)?;
        count.pointer()?;
        let mut number = 0;
        for other in within(at, instance).filter(|other| other.compute_slices == slices) {
            found.put_at(number as usize, handle_at(at, other)?)?;
            number += 1;
        }
        count.put(number)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(at, instance, id: c_uint, found: Out<nvmlComputeInstance_t>) {
        let other = within(at, instance).find(|other| other.compute == id).ok_or(NOT_FOUND)?;
        found.put(handle_at(at, other)?)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlComputeInstanceGetInfo_v2(
    compute: nvmlComputeInstance_t,
    info: Out<nvmlComputeInstanceInfo_t>,
) -> nvmlReturn_t {
    put_info("nvmlComputeInstanceGetInfo_v2", compute, info)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlComputeInstanceGetInfo(
    compute: nvmlComputeInstance_t,
    info: Out<nvmlComputeInstanceInfo_t>,
) -> nvmlReturn_t {
    put_info("nvmlComputeInstanceGetInfo", compute, info)
}

fn put_info(
    function: &'static str,
    compute: nvmlComputeInstance_t,
    info: Out<nvmlComputeInstanceInfo_t>,
) -> nvmlReturn_t {
    on_device(function, std::ptr::without_provenance_mut(compute.addr() ^ MARK), &[], |at| {
        let instance = at.instance.ok_or(INVALID_ARGUMENT)?;
        info.put(nvmlComputeInstanceInfo_t {
            device: handle(at.gpu, None),
            gpuInstance: handle_of(at, instance.id)?,
            id: instance.compute,
            profileId: instance.profile.compute_profile(instance.compute_slices),
            placement: nvmlComputeInstancePlacement_t {
                start: instance.compute_start,
                size: instance.compute_slices,
            },
        })
    })
}

/// The slices of the profile with one of NVML's enumerators; the only engine profile is the shared one.
fn slices_of(instance: &Instance, profile: c_uint, engines: c_uint) -> Result<u32, Refused> {
    if profile >= PROFILES || engines != 0 {
        return Err(INVALID_ARGUMENT);
    }
    slices_of_id(instance, profile)
}

fn slices_of_id(instance: &Instance, id: c_uint) -> Result<u32, Refused> {
    let mut known = instance.profile.compute_profiles();
    known.find(|(known, _)| *known == id).map(|(_, slices)| slices).ok_or(NOT_SUPPORTED)
}

fn sms(at: &Device<'_>, instance: &Instance, slices: u32) -> u32 {
    if slices == instance.profile.slices {
        instance.profile.sms
    } else {
        slices * at.gpu.board.mig.first().map_or(0, |smallest| smallest.sms)
    }
}

fn put_profile(
    at: &Device<'_>,
    instance: &Instance,
    slices: u32,
    info: Out<nvmlComputeInstanceProfileInfo_v3_t>,
) -> Answer {
    let short = Out::at(info.pointer()?.cast::<nvmlComputeInstanceProfileInfo_v2_t>());
    let version = short.version()?;
    let profile = instance.profile;
    let (id, multiprocessors) = (profile.compute_profile(slices), sms(at, instance, slices));
    let whole = slices == profile.slices;
    let name = array(&if whole {
        format!("MIG {}", profile.name)
    } else {
        format!("MIG {slices}c.{}", profile.name)
    });
    if expect_version::<nvmlComputeInstanceProfileInfo_v2_t>(version, 2).is_ok() {
        return short.put(nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id,
            sliceCount: slices,
            instanceCount: profile.slices / slices,
            multiprocessorCount: multiprocessors,
            sharedCopyEngineCount: profile.copy_engines,
            sharedDecoderCount: profile.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: family::jpegs(at.gpu.board, profile),
            sharedOfaCount: profile.ofa,
            name,
        });
    }
    expect_version::<nvmlComputeInstanceProfileInfo_v3_t>(version, 3)?;
    info.put(nvmlComputeInstanceProfileInfo_v3_t {
        version,
        id,
        sliceCount: slices,
        instanceCount: profile.slices / slices,
        multiprocessorCount: multiprocessors,
        sharedCopyEngineCount: profile.copy_engines,
        sharedDecoderCount: profile.decoders,
        sharedEncoderCount: 0,
        sharedJpegCount: family::jpegs(at.gpu.board, profile),
        sharedOfaCount: profile.ofa,
        name,
        capabilities: 0,
    })
}

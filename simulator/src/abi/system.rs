//! The system around the GPUs: driver branch, units, excluded GPUs, confidential computing.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlConfComputeMemSizeInfo_t, nvmlConfComputeSystemCaps_t, nvmlConfComputeSystemState_t, nvmlHwbcEntry_t,
    nvmlMemory_t, nvmlSystemConfComputeSettings_t, nvmlSystemDriverBranchInfo_t, nvmlUnit_t,
};

use super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED};
use super::buffers::{Out, array, expect_version, fill};
use super::{gpu_calls, node_calls};

/// The first architecture with confidential computing.
const HOPPER: u32 = 9;

node_calls! {
    fn nvmlSystemGetDriverBranch(node, _, branch: Out<nvmlSystemDriverBranchInfo_t>, length: c_uint) {
        let version = branch.version()?;
        expect_version::<nvmlSystemDriverBranchInfo_t>(version, 1)?;
        let name = format!("r{}_00", node.driver_major());
        if name.len() >= length as usize {
            return Err(super::answer::INSUFFICIENT_SIZE);
        }
        branch.put(nvmlSystemDriverBranchInfo_t { version, branch: array(&name) })
    }

    // Host interface cards and S-class units are obsolete.
    fn nvmlSystemGetHicVersion(_node, _, count: Out<c_uint>, entries: Out<nvmlHwbcEntry_t>) {
        fill(count, entries, &[])
    }

    fn nvmlUnitGetCount(_node, _, count: Out<c_uint>) {
        count.put(0)
    }

    fn nvmlUnitGetHandleByIndex(_node, _, _index: c_uint, _unit: Out<nvmlUnit_t>) {
        Err(INVALID_ARGUMENT)
    }

    fn nvmlGetExcludedDeviceCount(_node, _, count: Out<c_uint>) {
        count.put(0)
    }

    // Its name until CUDA 11.
    fn nvmlGetBlacklistDeviceCount(_node, _, count: Out<c_uint>) {
        count.put(0)
    }

    fn nvmlSystemGetConfComputeCapabilities(node, _, capabilities: Out<nvmlConfComputeSystemCaps_t>) {
        let capable = node.gpus.iter().all(|gpu| gpu.board.architecture >= HOPPER);
        capabilities.put(nvmlConfComputeSystemCaps_t { cpuCaps: 0, gpusCaps: capable.into() })
    }

    fn nvmlSystemGetConfComputeState(_node, _, state: Out<nvmlConfComputeSystemState_t>) {
        state.put(nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 })
    }

    fn nvmlSystemGetConfComputeSettings(_node, _, settings: Out<nvmlSystemConfComputeSettings_t>) {
        let version = settings.version()?;
        expect_version::<nvmlSystemConfComputeSettings_t>(version, 1)?;
        settings.put(nvmlSystemConfComputeSettings_t {
            version,
            environment: 0,
            ccFeature: 0,
            devToolsMode: 0,
            multiGpuMode: 0,
        })
    }

    fn nvmlSystemGetConfComputeGpusReadyState(_node, _, ready: Out<c_uint>) {
        ready.put(0)
    }
}

gpu_calls! {
    fn nvmlDeviceGetConfComputeMemSizeInfo(at, sizes: Out<nvmlConfComputeMemSizeInfo_t>) {
        if at.gpu.board.architecture < HOPPER {
            return Err(NOT_SUPPORTED);
        }
        let all: c_ulonglong = at.gpu.board.memory_total / 1024;
        sizes.put(nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib: 0, unprotectedMemSizeKib: all })
    }

    // Every board answers, all zeros.
    fn nvmlDeviceGetConfComputeProtectedMemoryUsage(at, memory: Out<nvmlMemory_t>) {
        memory.put(nvmlMemory_t { total: 0, free: 0, used: 0 })
    }
}

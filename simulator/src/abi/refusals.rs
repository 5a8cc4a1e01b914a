//! Every other function of the header: there, counted and faulted as all are, and refusing.
//!
//! A reader without rights gets "insufficient permissions" from what would change something, and "not
//! supported" from what no simulated board has. The functions take their first argument alone: what else a
//! caller passes is its own to clean up, on every platform that NVML runs on. Who writes one of these for
//! real takes its name out here: a symbol that is there twice does not link.

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use super::answer::{INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED};
use super::{gpu_calls, on_device, on_node};

/// Functions whose first argument is a GPU or a MIG device.
macro_rules! devices_refuse {
    ($refusal:ident: $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: nvmlDevice_t) -> nvmlReturn_t {
            on_device(stringify!($name), device, &[], |_| Err($refusal))
        }
    )* };
}

/// Functions about something else.
macro_rules! all_refuse {
    ($refusal:ident: $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> nvmlReturn_t {
            on_node(stringify!($name), &[], |_, _| Err($refusal))
        }
    )* };
}

gpu_calls! {
    // There since Blackwell, and not for everyone.
    fn nvmlDevicePowerSmoothingActivatePresetProfile(at) {
        Err(if at.gpu.board.architecture >= 10 { NO_PERMISSION } else { NOT_SUPPORTED })
    }

    fn nvmlDevicePowerSmoothingUpdatePresetProfileParam(at) {
        Err(if at.gpu.board.architecture >= 10 { NO_PERMISSION } else { NOT_SUPPORTED })
    }

    fn nvmlDevicePowerSmoothingSetState(at) {
        Err(if at.gpu.board.architecture >= 10 { NO_PERMISSION } else { NOT_SUPPORTED })
    }
}

devices_refuse! { NOT_SUPPORTED:
    nvmlDeviceFreezeNvLinkUtilizationCounter
    nvmlDeviceGetActiveVgpus
    nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBBXTimeData_v1
    nvmlDeviceGetBridgeChipInfo
    nvmlDeviceGetClockOffsets
    nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate
    nvmlDeviceGetCreatableVgpus
    nvmlDeviceGetDramEncryptionMode
    nvmlDeviceGetFanSpeedRPM
    nvmlDeviceGetGpcClkMinMaxVfOffset
    nvmlDeviceGetGpcClkVfOffset
    nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGridLicensableFeatures
    nvmlDeviceGetGridLicensableFeatures_v2
    nvmlDeviceGetGridLicensableFeatures_v3
    nvmlDeviceGetGridLicensableFeatures_v4
    nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetMemClkMinMaxVfOffset
    nvmlDeviceGetMemClkVfOffset
    nvmlDeviceGetNvLinkInfo
    nvmlDeviceGetNvLinkRemotePciInfo
    nvmlDeviceGetNvLinkUtilizationControl
    nvmlDeviceGetNvLinkUtilizationCounter
    nvmlDeviceGetNvlinkBwMode
    nvmlDeviceGetNvlinkSupportedBwModes
    nvmlDeviceGetPerformanceModes
    nvmlDeviceGetPgpuMetadataString
    nvmlDeviceGetPowerMizerMode_v1
    nvmlDeviceGetRepairStatus
    nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetUnrepairableMemoryFlag_v1
    nvmlDeviceGetVgpuCapabilities
    nvmlDeviceGetVgpuHeterogeneousMode
    nvmlDeviceGetVgpuInstancesUtilizationInfo
    nvmlDeviceGetVgpuMetadata
    nvmlDeviceGetVgpuProcessUtilization
    nvmlDeviceGetVgpuProcessesUtilizationInfo
    nvmlDeviceGetVgpuSchedulerCapabilities
    nvmlDeviceGetVgpuSchedulerLog
    nvmlDeviceGetVgpuSchedulerLog_v2
    nvmlDeviceGetVgpuSchedulerState
    nvmlDeviceGetVgpuSchedulerState_v2
    nvmlDeviceGetVgpuTypeCreatablePlacements
    nvmlDeviceGetVgpuTypeSupportedPlacements
    nvmlDeviceGetVgpuUtilization
    nvmlDeviceReadPRMCounters_v1
    nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAutoBoostedClocksEnabled
    nvmlDeviceSetClockOffsets
    nvmlDeviceSetConfComputeUnprotectedMemSize
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled
    nvmlDeviceSetDramEncryptionMode
    nvmlDeviceSetDriverModel
    nvmlDeviceSetGpcClkVfOffset
    nvmlDeviceSetGpuOperationMode
    nvmlDeviceSetMemClkVfOffset
    nvmlDeviceSetNvLinkUtilizationControl
    nvmlDeviceSetPowerMizerMode_v1
    nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode
    nvmlDeviceSetVgpuSchedulerState
    nvmlDeviceSetVgpuSchedulerState_v2
    nvmlDeviceSetVirtualizationMode
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo
}

devices_refuse! { NO_PERMISSION:
    nvmlDeviceClearAccountingPids
    nvmlDeviceClearCpuAffinity
    nvmlDeviceClearEccErrorCounts
    nvmlDeviceClearFieldValues
    nvmlDeviceCreateGpuInstance
    nvmlDeviceCreateGpuInstanceWithPlacement
    nvmlDeviceReadWritePRM_v1
    nvmlDeviceResetApplicationsClocks
    nvmlDeviceResetGpuLockedClocks
    nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceResetNvLinkErrorCounters
    nvmlDeviceSetAPIRestriction
    nvmlDeviceSetAccountingMode
    nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetComputeMode
    nvmlDeviceSetCpuAffinity
    nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetEccMode
    nvmlDeviceSetFanControlPolicy
    nvmlDeviceSetFanSpeed_v2
    nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetMemoryLockedClocks
    nvmlDeviceSetMigMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold
    nvmlDeviceSetNvlinkBwMode
    nvmlDeviceSetPersistenceMode
    nvmlDeviceSetPowerManagementLimit
    nvmlDeviceSetPowerManagementLimit_v2
    nvmlDeviceSetTemperatureThreshold
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlGpmSetStreamingEnabled
}

all_refuse! { NOT_SUPPORTED:
    nvmlGetVgpuCompatibility
    nvmlGetVgpuDriverCapabilities
    nvmlGetVgpuVersion
    nvmlGpuInstanceGetActiveVgpus
    nvmlGpuInstanceGetCreatableVgpus
    nvmlGpuInstanceGetVgpuHeterogeneousMode
    nvmlGpuInstanceGetVgpuSchedulerLog
    nvmlGpuInstanceGetVgpuSchedulerState
    nvmlGpuInstanceGetVgpuTypeCreatablePlacements
    nvmlGpuInstanceSetVgpuHeterogeneousMode
    nvmlGpuInstanceSetVgpuSchedulerState
    nvmlSetVgpuVersion
    nvmlSystemEventSetCreate
    nvmlSystemEventSetFree
    nvmlSystemEventSetWait
    nvmlSystemGetCPER_v1
    nvmlSystemGetConfComputeKeyRotationThresholdInfo
    nvmlSystemGetNvlinkBwMode
    nvmlSystemRegisterEvents
    nvmlVgpuInstanceClearAccountingPids
    nvmlVgpuInstanceGetAccountingMode
    nvmlVgpuInstanceGetAccountingPids
    nvmlVgpuInstanceGetAccountingStats
    nvmlVgpuInstanceGetEccMode
    nvmlVgpuInstanceGetEncoderCapacity
    nvmlVgpuInstanceGetEncoderSessions
    nvmlVgpuInstanceGetEncoderStats
    nvmlVgpuInstanceGetFBCSessions
    nvmlVgpuInstanceGetFBCStats
    nvmlVgpuInstanceGetFbUsage
    nvmlVgpuInstanceGetFrameRateLimit
    nvmlVgpuInstanceGetGpuInstanceId
    nvmlVgpuInstanceGetGpuPciId
    nvmlVgpuInstanceGetLicenseInfo
    nvmlVgpuInstanceGetLicenseInfo_v2
    nvmlVgpuInstanceGetLicenseStatus
    nvmlVgpuInstanceGetMdevUUID
    nvmlVgpuInstanceGetMetadata
    nvmlVgpuInstanceGetPlacementId
    nvmlVgpuInstanceGetRuntimeStateSize
    nvmlVgpuInstanceGetType
    nvmlVgpuInstanceGetUUID
    nvmlVgpuInstanceGetVmDriverVersion
    nvmlVgpuInstanceGetVmID
    nvmlVgpuInstanceSetEncoderCapacity
    nvmlVgpuTypeGetBAR1Info
    nvmlVgpuTypeGetCapabilities
    nvmlVgpuTypeGetClass
    nvmlVgpuTypeGetDeviceID
    nvmlVgpuTypeGetFbReservation
    nvmlVgpuTypeGetFrameRateLimit
    nvmlVgpuTypeGetFramebufferSize
    nvmlVgpuTypeGetGpuInstanceProfileId
    nvmlVgpuTypeGetGspHeapSize
    nvmlVgpuTypeGetLicense
    nvmlVgpuTypeGetMaxInstances
    nvmlVgpuTypeGetMaxInstancesPerGpuInstance
    nvmlVgpuTypeGetMaxInstancesPerVm
    nvmlVgpuTypeGetName
    nvmlVgpuTypeGetNumDisplayHeads
    nvmlVgpuTypeGetResolution
}

all_refuse! { NO_PERMISSION:
    nvmlComputeInstanceDestroy
    nvmlDeviceDiscoverGpus
    nvmlDeviceModifyDrainState
    nvmlDeviceRemoveGpu
    nvmlDeviceRemoveGpu_v2
    nvmlGpuInstanceCreateComputeInstance
    nvmlGpuInstanceCreateComputeInstanceWithPlacement
    nvmlGpuInstanceDestroy
    nvmlSystemSetConfComputeGpusReadyState
    nvmlSystemSetConfComputeKeyRotationThresholdInfo
    nvmlSystemSetNvlinkBwMode
}

// Handles of units, of which there are none, and places in an empty list.
all_refuse! { INVALID_ARGUMENT:
    nvmlGetExcludedDeviceInfoByIndex
    nvmlUnitGetDevices
    nvmlUnitGetFanSpeedInfo
    nvmlUnitGetLedState
    nvmlUnitGetPsuInfo
    nvmlUnitGetTemperature
    nvmlUnitGetUnitInfo
    nvmlUnitSetLedState
}

//! Every other function of the header: exported, counted, subject to faults, and always failing.
//!
//! An unprivileged reader gets "insufficient permissions" from functions that change something, and "not
//! supported" from those that no simulated board has. The functions take only their first argument: by the C
//! calling conventions the caller cleans up the others. To implement one of them, remove its name here: a
//! duplicate symbol does not link. Some are newer than the bindings: from the library of driver 610 and from
//! nvidia-ml-py 13.615.

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use super::answer::{INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED};
use super::fields::power_smoothing;
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

/// Functions whose first argument is something else.
macro_rules! all_refuse {
    ($refusal:ident: $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> nvmlReturn_t {
            on_node(stringify!($name), &[], |_, _| Err($refusal))
        }
    )* };
}

gpu_calls! {
    // On server boards since Blackwell, for privileged users.
    fn nvmlDevicePowerSmoothingActivatePresetProfile(at) {
        Err(power_smoothing(at.gpu.board))
    }

    fn nvmlDevicePowerSmoothingUpdatePresetProfileParam(at) {
        Err(power_smoothing(at.gpu.board))
    }

    fn nvmlDevicePowerSmoothingSetState(at) {
        Err(power_smoothing(at.gpu.board))
    }
}

devices_refuse! { NOT_SUPPORTED:
    nvmlDeviceFreezeNvLinkUtilizationCounter
    nvmlDeviceGetActiveVgpus
    nvmlDeviceGetAdaptiveTgpModeInfo_v1
    nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBBXTimeData_v1
    nvmlDeviceGetBankRemapperStatus_v1
    nvmlDeviceGetBridgeChipInfo
    nvmlDeviceGetClockOffsets
    nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate
    nvmlDeviceGetCreatableVgpus
    nvmlDeviceGetDramEncryptionMode
    nvmlDeviceGetFanSpeedRPM
    nvmlDeviceGetGpcClkMinMaxVfOffset
    nvmlDeviceGetGpcClkVfOffset
    nvmlDeviceGetGpuFabricInfo_v4
    nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGridLicensableFeatures
    nvmlDeviceGetGridLicensableFeatures_v2
    nvmlDeviceGetGridLicensableFeatures_v3
    nvmlDeviceGetGridLicensableFeatures_v4
    nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetHostname_v1
    nvmlDeviceGetMemClkMinMaxVfOffset
    nvmlDeviceGetMemClkVfOffset
    nvmlDeviceGetMemoryLimits_v1
    nvmlDeviceGetNvLinkInfo
    nvmlDeviceGetNvLinkRemotePciInfo
    nvmlDeviceGetNvLinkTelemetrySamples_v1
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
    nvmlDevicePerfMetricsGetSamples_v1
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
    nvmlDeviceVgpuForceGspUnload
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
    nvmlDeviceSetAdaptiveTgpMode_v1
    nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetComputeMode
    nvmlDeviceSetCpuAffinity
    nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetEccMode
    nvmlDeviceSetFanControlPolicy
    nvmlDeviceSetFanSpeed_v2
    nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetHostname_v1
    nvmlDeviceSetMemoryLimits_v1
    nvmlDeviceSetMemoryLockedClocks
    nvmlDeviceSetMigMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold
    nvmlDeviceSetNvlinkBwMode
    nvmlDeviceSetNvlinkBwModeAsync_v1
    nvmlDeviceSetPersistenceMode
    nvmlDeviceSetPowerManagementLimit
    nvmlDeviceSetPowerManagementLimit_v2
    nvmlDeviceSetRusdSettings_v1
    nvmlDeviceSetTemperatureThreshold
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1
    nvmlGpmSetStreamingEnabled
}

all_refuse! { NOT_SUPPORTED:
    nvmlDeviceGetHandles
    nvmlEventSetGetContextCount_v1
    nvmlEventSetGetContextData_v1
    nvmlEventSetGetContextInfo_v1
    nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1
    nvmlEventSetRegisterGpuOperationalEvents_v1
    nvmlEventSetWait_v3
    nvmlGetVgpuCompatibility
    nvmlGetVgpuDriverCapabilities
    nvmlGetVgpuVersion
    nvmlGpuInstanceGetActiveVgpus
    nvmlGpuInstanceGetCreatableVgpus
    nvmlGpuInstanceGetVgpuHeterogeneousMode
    nvmlGpuInstanceGetVgpuSchedulerLog
    nvmlGpuInstanceGetVgpuSchedulerLog_v2
    nvmlGpuInstanceGetVgpuSchedulerState
    nvmlGpuInstanceGetVgpuSchedulerState_v2
    nvmlGpuInstanceGetVgpuTypeCreatablePlacements
    nvmlGpuInstanceSetVgpuHeterogeneousMode
    nvmlGpuInstanceSetVgpuSchedulerState
    nvmlGpuInstanceSetVgpuSchedulerState_v2
    nvmlInternalGetExportTable
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

// Their arguments are handles of units, which do not exist, or indices of an empty list.
all_refuse! { INVALID_ARGUMENT:
    nvmlGetBlacklistDeviceInfoByIndex
    nvmlGetExcludedDeviceInfoByIndex
    nvmlUnitGetDevices
    nvmlUnitGetFanSpeedInfo
    nvmlUnitGetLedState
    nvmlUnitGetPsuInfo
    nvmlUnitGetTemperature
    nvmlUnitGetUnitInfo
    nvmlUnitSetLedState
}

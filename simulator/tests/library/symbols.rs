//! The library exports every function of the header, and each returns an answer or an error.

use std::ffi::c_void;

use crate::header::Argument;
use crate::support::{Node, SECOND};
use libloading::Library;

/// Functions of the library of driver 610 that the bindings lack.
const OF_610: [&str; 21] = [
    "nvmlDeviceGetAccountingStats_v2",
    "nvmlDeviceGetBBXTimeData_v1",
    "nvmlDeviceGetHandles",
    "nvmlDeviceGetHostname_v1",
    "nvmlDeviceGetRemappedRows_v2",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    "nvmlDeviceGetVgpuSchedulerLog_v2",
    "nvmlDeviceGetVgpuSchedulerState_v2",
    "nvmlDeviceReadPRMCounters_v1",
    "nvmlDeviceSetHostname_v1",
    "nvmlDeviceSetRusdSettings_v1",
    "nvmlDeviceSetVgpuSchedulerState_v2",
    "nvmlDeviceVgpuForceGspUnload",
    "nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1",
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlGpuInstanceGetVgpuSchedulerLog_v2",
    "nvmlGpuInstanceGetVgpuSchedulerState_v2",
    "nvmlGpuInstanceSetVgpuSchedulerState_v2",
    "nvmlInternalGetExportTable",
    "nvmlSystemGetCPER_v1",
];

/// Further functions that nvidia-ml-py 13.615 uses.
const OF_PYTHON: [&str; 15] = [
    "nvmlDeviceGetAdaptiveTgpModeInfo_v1",
    "nvmlDeviceGetBankRemapperStatus_v1",
    "nvmlDeviceGetGpuFabricInfo_v4",
    "nvmlDeviceGetMemoryLimits_v1",
    "nvmlDeviceGetNvLinkTelemetrySamples_v1",
    "nvmlDevicePerfMetricsGetSamples_v1",
    "nvmlDeviceSetAdaptiveTgpMode_v1",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlDeviceSetNvlinkBwModeAsync_v1",
    "nvmlEventSetGetContextCount_v1",
    "nvmlEventSetGetContextData_v1",
    "nvmlEventSetGetContextInfo_v1",
    "nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1",
    "nvmlEventSetRegisterGpuOperationalEvents_v1",
    "nvmlEventSetWait_v3",
];

/// The functions of the bindings' header (13.0), and all with the newer ones.
const COUNTED: (usize, usize) = (396, 432);

#[test]
fn every_function_of_the_newest_header_is_there() {
    let mut names = crate::header::names();
    let of_bindings = names.len();
    names.extend(OF_610.into_iter().chain(OF_PYTHON).map(str::to_owned));
    assert_eq!((of_bindings, names.len()), COUNTED);
    let node = Node::new(r#"{"gpus":[{"profile":"h100"}]}"#);
    // SAFETY: the library runs no code of its own while it is loaded.
    let library = unsafe { Library::new(node.library()) }.unwrap();
    // SAFETY: the symbol is looked up, not called.
    let missing = |name: &&String| unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_err();
    let missing: Vec<_> = names.iter().filter(missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn two_functions_newer_than_the_bindings_answer() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"a100","accounting":true}],
            "remaps":[{"at":1,"gpu":0,"cause":"uncorrectable","pending":true}],
            "processes":[{"pid":7,"gpu":0,"phases":[{"from":0,"to":12,"demand":0.5,"memory_bytes":4096}]}]}"#,
    );
    let nvml = node.nvml();
    node.hold(30 * SECOND);
    let device = nvml.device_by_index(0).unwrap();
    // SAFETY: as above; it is the library that is initialised above.
    let library = unsafe { Library::new(node.library()) }.unwrap();
    type Call = unsafe extern "C" fn(nvml_wrapper_sys::bindings::nvmlDevice_t, *mut u32) -> u32;
    let ask = |name: &str, words: &mut [u32; 20]| {
        // SAFETY: the handle is the library's own, and the words are as many as either structure has.
        unsafe { library.get::<Call>(name.as_bytes()).unwrap()(device.handle(), words.as_mut_ptr()) }
    };
    let mut rows = [9; 20];
    assert_eq!(ask("nvmlDeviceGetRemappedRows_v2", &mut rows), 0);
    assert_eq!(rows.get(..7).unwrap(), [0, 0, 1, 0, 1, 0, 9]);
    let mut stats = [0; 20];
    assert_eq!(ask("nvmlDeviceGetAccountingStats_v2", &mut stats), 6);
    stats[0] = 7;
    assert_eq!(ask("nvmlDeviceGetAccountingStats_v2", &mut stats), 0);
    // Pid, running, GPU and memory percent, most memory, samples, sums, milliseconds.
    let [pid, running, percent, memory, most, ..] = stats;
    assert_eq!((pid, running, memory, most), (7, 0, 0, 4096));
    assert!((49..=51).contains(&percent), "{percent}");
    // Twelve seconds are 71 whole samples.
    let sum = 71 * 100 * percent;
    assert_eq!((stats.get(6), stats.get(8), stats.get(12)), (Some(&71), Some(&sum), Some(&12_000)));
}

#[test]
fn every_function_refuses_a_null_device_and_is_counted() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100"}]}"#);
    let nvml = node.nvml();
    // SAFETY: as above; it is the library that is initialised above.
    let library = unsafe { Library::new(node.library()) }.unwrap();
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;
    let asked: Vec<String> =
        crate::header::names().into_iter().filter(|name| name.starts_with("nvmlDeviceGet")).collect();
    for name in asked.iter().filter(|name| !name.contains("HandleBy") && !name.contains("GetCount")) {
        // SAFETY: NVML's functions return an int-sized code and take at most six words here, all zero: no
        // device, no count, and null for what would be written.
        let code = unsafe { library.get::<Call>(name.as_bytes()).unwrap()(0, 0, 0, 0, 0, 0) };
        assert_eq!(code, 2, "{name}");
    }
    drop(nvml);
    let calls = node.read("calls");
    assert!(asked.iter().filter(|name| calls.contains(&format!("\"{name}\":1"))).count() > 150, "{calls}");
}

#[test]
fn every_output_pointer_may_be_null() {
    let node = Node::new(
        r#"{"gpus":[{"profile":"h100"},{"profile":"rtx-6000-ada"},{"profile":"t4"},{"profile":"h100","mig":[{"profile":"3g.40gb","start":4}]}]}"#,
    );
    let nvml = node.nvml();
    // SAFETY: as above; it is the library that is initialised above.
    let library = unsafe { Library::new(node.library()) }.unwrap();
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;
    let mut handles: Vec<usize> = (0..4)
        // SAFETY: it is only passed back to the library that gave it.
        .map(|index| unsafe { nvml.device_by_index(index).unwrap().handle() }.addr())
        .collect();
    let parent = nvml.device_by_index(3).unwrap();
    // SAFETY: as above.
    handles.push(unsafe { parent.mig_device_by_index(0).unwrap().handle() }.addr());
    let buffers = vec![vec![0_u64; 4_096]; 6];
    let mut answered = 0;
    for (name, arguments) in crate::header::functions() {
        let reads = arguments.first() == Some(&Argument::Device) && name.contains("Get");
        if !reads || !arguments.contains(&Argument::Pointer) || arguments.len() > 6 {
            continue;
        }
        // SAFETY: NVML's functions take words and return an int-sized code.
        let call = unsafe { library.get::<Call>(name.as_bytes()).unwrap() };
        for device in &handles {
            let words = |with: bool| {
                let mut words = [0; 6];
                words[0] = *device;
                for (place, argument) in arguments.iter().enumerate().skip(1) {
                    let buffer = buffers.get(place).unwrap().as_ptr().addr();
                    words[place] = match argument {
                        Argument::Pointer if with => buffer,
                        Argument::Number => 1,
                        _ => 0,
                    };
                }
                words
            };
            let [a, b, c, d, e, f] = words(true);
            // SAFETY: every pointer is to a buffer of zeros that is larger than any structure.
            if unsafe { call(a, b, c, d, e, f) } != 0 {
                continue;
            }
            answered += 1;
            let [a, b, c, d, e, f] = words(false);
            // SAFETY: null is for the function to refuse.
            assert_eq!(unsafe { call(a, b, c, d, e, f) }, 2, "{name}");
        }
    }
    assert!(answered > 300, "{answered}");
}

#[test]
fn functions_that_change_something_need_permission() {
    use nvml_wrapper::error::NvmlError;
    let node = Node::new(r#"{"gpus":[{"profile":"h100"}]}"#);
    let nvml = node.nvml();
    let mut gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.set_persistent(false), Err(NvmlError::NoPermission)));
    assert!(matches!(gpu.set_power_management_limit(300_000), Err(NvmlError::NoPermission)));
    assert!(matches!(gpu.reset_gpu_locked_clocks(), Err(NvmlError::NoPermission)));
    assert!(matches!(gpu.active_vgpus(), Err(NvmlError::NotSupported)));
    assert_eq!(nvml.unit_count().unwrap(), 0);
    // Faults apply to functions that always fail too.
    node.faults(r#"[{"function":"nvmlDeviceGetActiveVgpus","gpu":0,"code":15}]"#);
    assert!(matches!(gpu.active_vgpus(), Err(NvmlError::GpuLost)));
}

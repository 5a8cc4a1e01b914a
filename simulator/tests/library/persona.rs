//! Driver variants: missing symbols, longer structures, wrong types.

use std::fs;

use crate::support::{EIGHT, Node, SECOND};
use libloading::Library;
use nvidia_ml::persona::{Persona, without};
use nvml_wrapper::enum_wrappers::device::{TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

type List = unsafe extern "C" fn(sys::nvmlDevice_t, *mut u32, *mut sys::nvmlProcessInfo_t) -> u32;

fn with_persona(name: &str) -> Node {
    Node::new(&EIGHT.replacen('{', &format!(r#"{{"persona":"{name}","#), 1))
}

/// A node whose library file lacks the persona's symbols.
fn directory(name: &str) -> Node {
    let node = with_persona(name);
    let library = fs::read(node.library()).unwrap();
    let copy = without(&library, &Persona::named(name).unwrap().missing()).unwrap();
    assert_eq!(copy.len(), library.len());
    fs::write(node.library(), copy).unwrap();
    node
}

fn has(library: &Library, symbol: &str) -> bool {
    unsafe { library.get::<unsafe extern "C" fn() -> u32>(symbol.as_bytes()) }.is_ok()
}

#[test]
fn functions_that_an_older_driver_lacks_are_not_in_its_library() {
    let node = directory("r470");
    let library = unsafe { Library::new(node.library()) }.unwrap();
    for gone in [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlGpmSampleGet",
        "nvmlDeviceGetJpgUtilization",
    ] {
        assert!(!has(&library, gone), "{gone}");
    }
    for there in ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlInit_v2"] {
        assert!(has(&library, there), "{there}");
    }
    let nvml = node.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), "470.256.02");
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.memory_info(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert!(gpu.power_usage().is_ok());
}

#[test]
fn every_driver_variant_makes_a_working_library() {
    for name in Persona::names() {
        let node = directory(name);
        let nvml = node.nvml();
        assert_eq!(nvml.device_count().unwrap(), 8, "{name}");
        let expected = Persona::named(name).unwrap().driver_version();
        assert_eq!(nvml.sys_driver_version().unwrap(), expected);
        let lacks = |symbol| Persona::named(name).unwrap().missing().contains(&symbol);
        let lists = &nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3;
        assert_eq!(lists.is_err(), lacks("nvmlDeviceGetComputeRunningProcesses_v3"), "{name}");
    }
}

#[test]
fn a_missing_function_that_is_still_exported_returns_function_not_found() {
    let node = with_persona("r535_98");
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.running_compute_processes(), Err(NvmlError::FunctionNotFound)));
    let library = unsafe { Library::new(node.library()) }.unwrap();
    let list = unsafe { library.get::<List>(b"nvmlDeviceGetComputeRunningProcesses_v2") }.unwrap();
    let mut count = 0;
    assert_eq!(unsafe { list(gpu.handle(), &raw mut count, std::ptr::null_mut()) }, 7);
}

#[test]
fn early_535_misaligns_clients_with_the_shorter_structure() {
    let node = with_persona("early_535");
    let nvml = node.nvml();
    node.hold(20 * SECOND);
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let mut room = [0_u64; 16];
    let mut count = 5;
    let list = nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref().unwrap();
    assert_eq!(unsafe { list(device, &raw mut count, room.as_mut_ptr().cast()) }, 0);
    assert_eq!(count, 2);
    // 32 bytes each: pid, memory, instances, and eight bytes that the short structure lacks.
    assert_eq!((room[0] as u32, room[1], room[3]), (4211, 21_474_836_480, 0));
    assert_eq!((room[4] as u32, room[5], room[7]), (4212, 1_073_741_824, 0));
    let short: sys::nvmlProcessInfo_t =
        unsafe { room.as_ptr().add(3).cast::<sys::nvmlProcessInfo_t>().read() };
    assert_ne!(short.pid, 4212);
    // The array is too short for both entries: nothing is written past its end.
    room = [0; 16];
    count = 2;
    assert_eq!(unsafe { list(device, &raw mut count, room.as_mut_ptr().cast()) }, 0);
    assert_eq!(room[6..], [0; 10]);
    let library = unsafe { Library::new(node.library()) }.unwrap();
    let second = unsafe { library.get::<List>(b"nvmlDeviceGetComputeRunningProcesses_v2") }.unwrap();
    count = 5;
    assert_eq!(unsafe { second(device, &raw mut count, room.as_mut_ptr().cast()) }, 0);
    assert_eq!(room[3] as u32, 4212);
}

#[test]
fn r545_marks_an_integer_as_a_double() {
    let node = with_persona("r545_double_tag");
    let nvml = node.nvml();
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let mut field: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    field.fieldId = 82;
    let read = nvml.lib().nvmlDeviceGetFieldValues.as_ref().unwrap();
    assert_eq!(unsafe { read(device, 1, &raw mut field) }, 0);
    assert_eq!((field.nvmlReturn, field.valueType), (0, 0));
    assert!((20..60).contains(&unsafe { field.value.uiVal }));
}

#[test]
fn gb10_reports_neither_memory_nor_fan_nor_limits_and_one_lane() {
    let node = with_persona("gb10");
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.name().unwrap(), "NVIDIA GB10 (simulated)");
    assert!(matches!(gpu.memory_info(), Err(NvmlError::NotSupported)));
    assert!(!gpu.running_compute_processes().unwrap().is_empty());
    assert_eq!(gpu.num_fans().unwrap(), 0);
    assert!(matches!(gpu.fan_speed(0), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.enforced_power_limit(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.power_management_limit_constraints(), Err(NvmlError::NotSupported)));
    assert!(matches!(
        gpu.temperature_threshold(TemperatureThreshold::Slowdown),
        Err(NvmlError::NotSupported)
    ));
    assert_eq!((gpu.max_pcie_link_gen().unwrap(), gpu.max_pcie_link_width().unwrap()), (1, 1));
    assert!(gpu.power_usage().is_ok() && gpu.temperature(TemperatureSensor::Gpu).is_ok());
}

#[test]
fn drivers_before_580_82_have_other_field_ids() {
    let node = with_persona("r580_ids");
    let nvml = node.nvml();
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let read = nvml.lib().nvmlDeviceGetFieldValues.as_ref().unwrap();
    let answers = |id| {
        let mut field: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        field.fieldId = id;
        assert_eq!(unsafe { read(device, 1, &raw mut field) }, 0);
        field.nvmlReturn
    };
    assert_eq!((answers(251), answers(269)), (0, 3));
}

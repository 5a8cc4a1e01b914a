//! Buffers, versions, scopes and types of the C interface, through the raw function table.

use std::ptr;

use crate::support::{EIGHT, Node, SECOND};
use nvml_wrapper_sys::bindings as sys;

const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const INSUFFICIENT_SIZE: u32 = 7;
const VERSION_MISMATCH: u32 = 25;

#[test]
fn an_array_that_is_too_small_is_refused_with_the_needed_count() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.hold(20 * SECOND);
    let list = nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref().unwrap();
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let mut count = 0;
    assert_eq!(unsafe { list(device, &raw mut count, ptr::null_mut()) }, INSUFFICIENT_SIZE);
    assert_eq!(count, 2);
    let none = sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
    let mut infos = [none; 3];
    count = 1;
    assert_eq!(unsafe { list(device, &raw mut count, infos.as_mut_ptr()) }, INSUFFICIENT_SIZE);
    assert_eq!((count, infos.map(|info| info.pid)), (2, [0, 0, 0]));
    count = 3;
    assert_eq!(unsafe { list(device, &raw mut count, infos.as_mut_ptr()) }, 0);
    assert_eq!((count, infos.map(|info| info.pid)), (2, [4211, 4212, 0]));
    assert_eq!(infos.map(|info| info.gpuInstanceId), [u32::MAX, u32::MAX, 0]);
    assert_eq!(unsafe { list(device, ptr::null_mut(), infos.as_mut_ptr()) }, INVALID_ARGUMENT);
    // GPU 1 has no process, so that an array of length 0 is large enough.
    let idle = unsafe { nvml.device_by_index(1).unwrap().handle() };
    count = 0;
    assert_eq!(unsafe { list(idle, &raw mut count, ptr::null_mut()) }, 0);
    assert_eq!(count, 0);
}

#[test]
fn a_text_that_is_too_long_for_its_buffer_is_refused() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let uuid = nvml.lib().nvmlDeviceGetUUID.as_ref().unwrap();
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let mut buffer = [0; 41];
    assert_eq!(unsafe { uuid(device, buffer.as_mut_ptr(), 40) }, INSUFFICIENT_SIZE);
    assert_eq!(unsafe { uuid(device, buffer.as_mut_ptr(), 41) }, 0);
    assert_eq!(unsafe { uuid(device, ptr::null_mut(), 41) }, INVALID_ARGUMENT);
    assert_eq!(unsafe { uuid(ptr::without_provenance_mut(64), buffer.as_mut_ptr(), 41) }, INVALID_ARGUMENT);
}

#[test]
fn memory_of_another_version_is_refused() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    let memory = nvml.lib().nvmlDeviceGetMemoryInfo_v2.as_ref().unwrap();
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let mut asked = sys::nvmlMemory_v2_t { version: 1, total: 0, reserved: 0, free: 0, used: 0 };
    assert_eq!(unsafe { memory(device, &raw mut asked) }, VERSION_MISMATCH);
    asked.version = u32::try_from(size_of::<sys::nvmlMemory_v2_t>()).unwrap() | 2 << 24;
    assert_eq!(unsafe { memory(device, &raw mut asked) }, 0);
    assert_eq!(asked.reserved, 501_481_472);
}

#[test]
fn each_field_has_its_own_scope_type_and_code() {
    let node = Node::new(EIGHT);
    let nvml = node.nvml();
    node.hold(30 * SECOND);
    let read = nvml.lib().nvmlDeviceGetFieldValues.as_ref().unwrap();
    let device = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let ask = |field, scope| {
        let mut value: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        (value.fieldId, value.scopeId) = (field, scope);
        assert_eq!(unsafe { read(device, 1, &raw mut value) }, 0);
        (value.nvmlReturn, value.valueType, unsafe { value.value.ullVal }, unsafe { value.value.siVal })
    };
    let links: u64 = (0..18).map(|link| ask(138, link).2).sum();
    let (code, kind, all, _) = ask(138, u32::MAX);
    assert_eq!((code, kind, all), (0, 3, links));
    assert!(links > 0);
    assert_eq!(ask(138, 18).0, INVALID_ARGUMENT);
    let limits: Vec<_> = (193..=196).map(|field| (ask(field, 0).1, ask(field, 0).3)).collect();
    assert_eq!(limits, [(5, -8), (5, -2), (5, 0), (5, 0)]);
    assert_eq!(ask(186, 1).0, NOT_SUPPORTED);
    assert_eq!(ask(83, 0).2, nvml.device_by_index(0).unwrap().total_energy_consumption().unwrap());
    // Ten seconds of a software power cap, added to the large time of an idle H100.
    let capped = ask(74, 0).2;
    node.hold(0);
    assert_eq!((capped - ask(74, 0).2, ask(76, 0).2), (10 * SECOND, 0));
    node.hold(30 * SECOND);
    // Field ids of driver 580.82 and later.
    assert_eq!((ask(251, 0).0, ask(269, 0).0), (NOT_SUPPORTED, 0));
    assert_eq!(ask(9_999, 0).0, INVALID_ARGUMENT);
    assert_eq!(unsafe { read(device, 1, ptr::null_mut()) }, INVALID_ARGUMENT);
}

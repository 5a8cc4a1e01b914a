//! The library has every function of the header, and a reader gets an answer or a refusal from each.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(missing_docs, reason = "a test")]

#[path = "support/header.rs"]
mod header;
mod support;

use std::ffi::c_void;

use libloading::Library;
use support::Node;

#[test]
fn every_function_of_the_header_is_there() {
    let names = header::names();
    assert!(names.len() > 390, "{}", names.len());
    let node = Node::new(r#"{"gpus":[{"profile":"h100"}]}"#);
    // SAFETY: the library runs no code of its own while it is loaded.
    let library = unsafe { Library::new(node.library()) }.unwrap();
    // SAFETY: the symbol is looked up, not called.
    let missing = |name: &&String| unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_err();
    let missing: Vec<_> = names.iter().filter(missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_function_refuses_a_null_device_and_is_counted() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100"}]}"#);
    let nvml = node.nvml();
    // SAFETY: as above; it is the library that is initialised above.
    let library = unsafe { Library::new(node.library()) }.unwrap();
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;
    let asked: Vec<String> =
        header::names().into_iter().filter(|name| name.starts_with("nvmlDeviceGet")).collect();
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
fn what_would_change_something_is_forbidden_to_readers() {
    use nvml_wrapper::error::NvmlError;
    let node = Node::new(r#"{"gpus":[{"profile":"h100"}]}"#);
    let nvml = node.nvml();
    let mut gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.set_persistent(false), Err(NvmlError::NoPermission)));
    assert!(matches!(gpu.set_power_management_limit(300_000), Err(NvmlError::NoPermission)));
    assert!(matches!(gpu.reset_gpu_locked_clocks(), Err(NvmlError::NoPermission)));
    assert!(matches!(gpu.active_vgpus(), Err(NvmlError::NotSupported)));
    assert_eq!(nvml.unit_count().unwrap(), 0);
    // What refuses is slow, hangs or fails like all others.
    node.faults(r#"[{"function":"nvmlDeviceGetActiveVgpus","gpu":0,"code":15}]"#);
    assert!(matches!(gpu.active_vgpus(), Err(NvmlError::GpuLost)));
}

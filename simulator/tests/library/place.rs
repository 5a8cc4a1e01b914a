//! Rack, fabric, handles by UUID, and encoder sessions: structures in the versions that callers pass.

use std::mem;
use std::ptr;

use crate::support::{Node, SECOND};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

fn raw(gpu: &Device<'_>) -> sys::nvmlDevice_t {
    // SAFETY: it is only passed back to the library that gave it.
    unsafe { gpu.handle() }
}

fn version<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap() | number << 24
}

/// The code, and the clique, state, health mask and summary of the newest structure.
fn fabric(gpu: &Device<'_>) -> (u32, u32, u8, u32, u8) {
    // SAFETY: numbers may be zero.
    let mut info: sys::nvmlGpuFabricInfo_v3_t = unsafe { mem::zeroed() };
    info.version = version::<sys::nvmlGpuFabricInfo_v3_t>(3);
    let ask = gpu.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref().unwrap();
    // SAFETY: the structure is as long as its version says.
    let code = unsafe { ask(raw(gpu), &raw mut info) };
    (code, info.cliqueId, info.state, info.healthMask, info.healthSummary)
}

#[test]
fn fabric_info_is_written_in_the_requested_version_and_no_further() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100"},{"profile":"gb200"},{"profile":"l4"}]}"#);
    let nvml = node.nvml();
    let gpu = |index| nvml.device_by_index(index).unwrap();
    assert_eq!(fabric(&gpu(0)), (0, 0, 3, 0, 0));
    let (code, clique, state, health, summary) = fabric(&gpu(1));
    assert_eq!((code, clique, state, summary), (0, 2, 3, 1));
    assert_eq!(health & 3, 2, "bandwidth is not degraded");
    assert_eq!(fabric(&gpu(2)).0, 3);
    let mut padded = [0xAA_u8; 64];
    // SAFETY: the buffer is longer than the structure, and aligned enough for x86 and Arm.
    let info = unsafe { &mut *padded.as_mut_ptr().cast::<[u8; 64]>() };
    let older = version::<sys::nvmlGpuFabricInfo_v2_t>(2);
    info.get_mut(..4).unwrap().copy_from_slice(&older.to_ne_bytes());
    let ask = nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { ask(raw(&gpu(1)), info.as_mut_ptr().cast()) }, 0);
    let length = size_of::<sys::nvmlGpuFabricInfo_v2_t>();
    assert!(info.get(length..).unwrap().iter().all(|byte| *byte == 0xAA), "{info:?}");
    info.get_mut(..4).unwrap().copy_from_slice(&7_u32.to_ne_bytes());
    // SAFETY: as above.
    assert_eq!(unsafe { ask(raw(&gpu(1)), info.as_mut_ptr().cast()) }, 25);
}

#[test]
fn misleading_fabric_states_are_reported_and_fill_four_bytes() {
    let alone = Node::new(r#"{"gpus":[{"profile":"h100"}]}"#);
    let nvml = alone.nvml();
    assert_eq!(fabric(&nvml.device_by_index(0).unwrap()), (0, 0, 3, 0, 0));
    let odd = Node::new(
        r#"{"gpus":[{"profile":"gb200","surprise":"fabric_not_supported"},{"profile":"h100","surprise":"fabric_insufficient"}]}"#,
    );
    let nvml = odd.nvml();
    let gpu = |index| nvml.device_by_index(index).unwrap();
    assert_eq!(fabric(&gpu(0)), (0, 0, 0, 0, 0));
    // Clients that read four bytes of the state get the same number as those that read one.
    let ask = nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().unwrap();
    let mut words = [u32::MAX; 16];
    words[0] = version::<sys::nvmlGpuFabricInfo_v3_t>(3);
    // SAFETY: the buffer is longer than the structure, and as aligned.
    assert_eq!(unsafe { ask(raw(&gpu(1)), words.as_mut_ptr().cast()) }, 0);
    assert_eq!((words.get(5), words.get(6), words.get(7)), (Some(&23), Some(&0), Some(&3)));
}

#[test]
fn rack_boards_report_slot_and_tray_and_others_report_zeros() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100"},{"profile":"gb200"}]}"#);
    let nvml = node.nvml();
    let place = |index| {
        // SAFETY: numbers may be zero.
        let mut info: sys::nvmlPlatformInfo_v2_t = unsafe { mem::zeroed() };
        info.version = version::<sys::nvmlPlatformInfo_v2_t>(2);
        let ask = nvml.lib().nvmlDeviceGetPlatformInfo.as_ref().unwrap();
        // SAFETY: the structure is as long as its version says.
        assert_eq!(unsafe { ask(raw(&nvml.device_by_index(index).unwrap()), &raw mut info) }, 0);
        (info.slotNumber, info.trayIndex, info.hostId, info.peerType, info.moduleId)
    };
    assert_eq!(place(0), (0, 0, 1, 0, 2));
    assert_eq!(place(1), (14, 4, 1, 1, 1));
}

#[test]
fn a_gpu_is_found_by_the_bytes_of_its_uuid() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100","count":2}]}"#);
    let nvml = node.nvml();
    let second = nvml.device_by_index(1).unwrap();
    let digits = second.uuid().unwrap().replace("GPU-", "").replace('-', "");
    let mut bytes = [0; 16];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2).unwrap(), 16).unwrap();
    }
    // SAFETY: numbers may be zero.
    let mut uuid: sys::nvmlUUID_t = unsafe { mem::zeroed() };
    (uuid.version, uuid.type_, uuid.value.bytes) = (version::<sys::nvmlUUID_t>(1), 2, bytes);
    let mut found = ptr::null_mut();
    let ask = nvml.lib().nvmlDeviceGetHandleByUUIDV.as_ref().unwrap();
    // SAFETY: both are this function's own.
    assert_eq!(unsafe { ask(&raw const uuid, &raw mut found) }, 0);
    assert_eq!(found, raw(&second));
    uuid.value.bytes = [0; 16];
    // SAFETY: as above.
    assert_eq!(unsafe { ask(&raw const uuid, &raw mut found) }, 6);
}

#[test]
fn an_encoding_process_has_an_encoder_session() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"l40s"}],"processes":[
            {"pid":5,"gpu":0,"phases":[{"from":0,"to":30,"encoder":0.5,"demand":0.1}]},
            {"pid":6,"gpu":0,"phases":[{"from":0,"to":60,"demand":0.5}]}]}"#,
    );
    let nvml = node.nvml();
    node.hold(10 * SECOND);
    let gpu = nvml.device_by_index(0).unwrap();
    let sessions = gpu.encoder_sessions().unwrap();
    assert_eq!(
        sessions.iter().map(|session| (session.pid, session.average_fps)).collect::<Vec<_>>(),
        [(5, 30)]
    );
    assert_eq!(gpu.encoder_stats().unwrap().session_count, 1);
    node.hold(40 * SECOND);
    assert!(gpu.encoder_sessions().unwrap().is_empty());
    assert!(gpu.fbc_sessions_info().unwrap().is_empty());
}

#[test]
fn the_one_sample_board_has_samples_of_one_process_only() {
    let process =
        |pid: u32| format!(r#"{{"pid":{pid},"gpu":0,"phases":[{{"from":0,"to":60,"demand":0.9}}]}}"#);
    let node = Node::new(&format!(
        r#"{{"cycle_seconds":60,"gpus":[{{"profile":"h100","surprise":"one_sample"}}],"processes":[{},{}]}}"#,
        process(5),
        process(6)
    ));
    let nvml = node.nvml();
    node.hold(20 * SECOND);
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.running_compute_processes().unwrap().len(), 2);
    let samples = gpu.process_utilization_stats(None).unwrap();
    assert!(!samples.is_empty() && samples.iter().all(|sample| sample.pid == 5));
    let unknown = Node::new(r#"{"gpus":[{"profile":"h100","surprise":"none"}]}"#);
    let init = nvml_wrapper::Nvml::builder().lib_path(unknown.library().as_os_str()).init();
    assert!(matches!(init, Err(NvmlError::Unknown)));
    let error = unknown.read("error");
    assert!(error.contains("unknown variant `none`, expected one of `after_load_window`"), "{error}");
}

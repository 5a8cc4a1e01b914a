//! Process lists, process samples, and sharing of a GPU.

use crate::raw::{
    INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, VERSION_MISMATCH, call, gpu, version,
};
use crate::support::{BEGUN, Node, SECOND};
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings as sys;

const LISTS: &str = r#"{"cycle_seconds":60,"gpus":[{"profile":"h100"},{"profile":"h100","mps":true},{"profile":"a100"}],
    "processes":[
        {"pid":1,"name":"train","gpu":0,"phases":[{"from":0,"to":10,"demand":1.0,"memory_bytes":1048576}],"zombie_ms":500},
        {"pid":2,"gpu":0,"type":"G","phases":[{"from":0,"to":60,"memory_bytes":2097152}],"memory_unknown":true},
        {"pid":3,"gpu":0,"type":"C+G","phases":[{"from":0,"to":60,"memory_bytes":4194304}]},
        {"pid":11,"gpu":1,"phases":[{"from":0,"to":60,"demand":1.0,"sm":0.3,"memory_bytes":1048576}]},
        {"pid":12,"gpu":1,"phases":[{"from":0,"to":60,"demand":1.0,"sm":0.5,"memory_bytes":1048576}]}]}"#;

fn pids(nvml: &Nvml, gpu: sys::nvmlDevice_t) -> [Vec<(u32, u64)>; 3] {
    let none = sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    for (place, list) in lists.iter_mut().enumerate() {
        let (mut count, mut infos) = (8, [none; 8]);
        let infos_at = infos.as_mut_ptr();
        let code = match place {
            0 => call!(nvml, nvmlDeviceGetComputeRunningProcesses_v3, gpu, &raw mut count, infos_at),
            1 => call!(nvml, nvmlDeviceGetGraphicsRunningProcesses_v3, gpu, &raw mut count, infos_at),
            _ => call!(nvml, nvmlDeviceGetMPSComputeRunningProcesses_v3, gpu, &raw mut count, infos_at),
        };
        assert_eq!(code, 0);
        let found = infos.iter().take(count as usize);
        *list = found.map(|info| (info.pid, info.usedGpuMemory)).collect();
    }
    lists
}

#[test]
fn processes_are_listed_by_type_and_memory_can_be_unknown() {
    let node = Node::new(LISTS);
    let nvml = node.nvml();
    let [compute, graphics, mps] = pids(&nvml, gpu(&nvml, 0));
    assert_eq!(compute, [(1, 1 << 20), (3, 4 << 20)]);
    assert_eq!(graphics, [(2, u64::MAX), (3, 4 << 20)]);
    assert_eq!(mps, []);
}

#[test]
fn an_ended_process_stays_listed_without_memory_as_scripted() {
    let node = Node::new(LISTS);
    let nvml = node.nvml();
    let compute = || pids(&nvml, gpu(&nvml, 0)).into_iter().next().unwrap();
    node.hold(10 * SECOND + 400_000_000);
    assert_eq!(compute(), [(1, 0), (3, 4 << 20)]);
    node.hold(10 * SECOND + 500_000_000);
    assert_eq!(compute(), [(3, 4 << 20)]);
}

#[test]
fn mps_clients_are_on_the_mps_list_and_the_server_is_a_compute_process() {
    let node = Node::new(LISTS);
    let nvml = node.nvml();
    node.hold(6 * SECOND);
    let board = gpu(&nvml, 1);
    let [compute, graphics, mps] = pids(&nvml, board);
    assert_eq!((compute, graphics), (vec![(9_001, 28 << 20)], vec![]));
    assert_eq!(mps, [(11, 1 << 20), (12, 1 << 20)]);
    assert_eq!(nvml.sys_process_name(9_001, 64).unwrap(), "nvidia-cuda-mps-server");
    // Both run all of the time side by side, and the GPU is not busier than that.
    assert_eq!(nvml.device_by_index(1).unwrap().utilization_rates().unwrap().gpu, 100);
    let samples = nvml.device_by_index(1).unwrap().process_utilization_stats(None).unwrap();
    let shares: Vec<_> = samples.iter().rev().take(2).map(|sample| (sample.pid, sample.sm_util)).collect();
    assert_eq!(shares, [(12, 50), (11, 30)]);
    let truth = node.read("truth");
    assert!(truth.contains(r#""pid":11,"gpu":1,"instance":null,"busy_ns":6000000000"#), "{truth}");
    assert!(truth.contains(r#""pid":12,"gpu":1,"instance":null,"busy_ns":6000000000"#), "{truth}");
    let (first, second) = (crate::raw::sample(&nvml, board), {
        node.hold(8 * SECOND);
        crate::raw::sample(&nvml, board)
    });
    let [busy, sm] = crate::raw::between(&nvml, first, second, &[1, 2])[..] else { unreachable!() };
    assert_eq!((busy, sm.map(f64::round)), (Ok(100.0), Ok(80.0)));
}

#[test]
fn an_exclusive_gpu_refuses_two_processes_at_a_time() {
    let script = |to: u32| {
        format!(
            r#"{{"gpus":[{{"profile":"h100","exclusive":true}}],"processes":[
            {{"pid":1,"gpu":0,"phases":[{{"from":0,"to":{to}}}]}},
            {{"pid":2,"gpu":0,"phases":[{{"from":10,"to":20}}]}}]}}"#
        )
    };
    let node = Node::new(&script(10));
    let mut mode = 0;
    let nvml = node.nvml();
    assert_eq!(call!(nvml, nvmlDeviceGetComputeMode, gpu(&nvml, 0), &raw mut mode), 0);
    assert_eq!(mode, 3);
    let node = Node::new(&script(11));
    assert!(Nvml::builder().lib_path(node.library().as_os_str()).init().is_err());
    assert!(node.read("error").contains("gpu 0 is exclusive: pid 2 comes at 10 s"), "{}", node.read("error"));
}

#[test]
fn every_version_of_a_list_has_its_own_layout() {
    let node = Node::new(LISTS);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let library = unsafe { libloading::Library::new(node.library()) }.unwrap();
    type Short = unsafe extern "C" fn(sys::nvmlDevice_t, *mut u32, *mut sys::nvmlProcessInfo_v1_t) -> u32;
    let list = unsafe { library.get::<Short>(b"nvmlDeviceGetComputeRunningProcesses") }.unwrap();
    let mut infos = [sys::nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 }; 3];
    let mut count = 3;
    assert_eq!(unsafe { list(board, &raw mut count, infos.as_mut_ptr()) }, 0);
    assert_eq!((count, infos.map(|info| info.pid)), (2, [1, 3, 0]));
    assert_eq!(infos.map(|info| info.usedGpuMemory), [1 << 20, 4 << 20, 0]);
    let mut details: [sys::nvmlProcessDetail_v1_t; 2] = unsafe { std::mem::zeroed() };
    let mut request = sys::nvmlProcessDetailList_v1_t {
        version: 1,
        mode: 0,
        numProcArrayEntries: 1,
        procArray: details.as_mut_ptr(),
    };
    let ask = |gpu, request: *mut _| call!(nvml, nvmlDeviceGetRunningProcessDetailList, gpu, request);
    assert_eq!(ask(board, &raw mut request), VERSION_MISMATCH);
    request.version = version::<sys::nvmlProcessDetailList_v1_t>(1);
    assert_eq!(ask(board, &raw mut request), INSUFFICIENT_SIZE);
    assert_eq!(request.numProcArrayEntries, 2);
    assert_eq!(ask(board, &raw mut request), 0);
    assert_eq!(details.map(|detail| (detail.pid, detail.usedGpuMemory)), [(1, 1 << 20), (3, 4 << 20)]);
    request.mode = 3;
    assert_eq!(ask(board, &raw mut request), INVALID_ARGUMENT);
    request.mode = 0;
    // Not before Hopper.
    assert_eq!(ask(gpu(&nvml, 2), &raw mut request), NOT_SUPPORTED);
}

/// Twenty processes, one of which shows garbage.
fn twenty_processes() -> String {
    let mut processes: Vec<String> = (100..120)
        .map(|pid| {
            let garbage = if pid == 107 { r#","garbage_sm":4294967295"# } else { "" };
            format!(
                r#"{{"pid":{pid},"gpu":0{garbage},"phases":[
                {{"from":0,"to":30,"demand":1.0,"jpeg":0.3,"ofa":0.2,"decoder":0.1}}]}}"#
            )
        })
        .collect();
    processes.push(r#"{"pid":300,"gpu":1,"phases":[{"from":0,"to":30,"demand":1.0,"dram":0.4}]}"#.into());
    format!(
        r#"{{"cycle_seconds":60,"gpus":[{{"profile":"h100","count":2}}],"processes":[{}]}}"#,
        processes.join(",")
    )
}

#[test]
fn the_ring_of_process_samples_overflows_with_many_processes_and_shows_garbage() {
    let node = Node::new(&twenty_processes());
    let nvml = node.nvml();
    node.hold(20 * SECOND);
    let crowded = nvml.device_by_index(0).unwrap().process_utilization_stats(None).unwrap();
    let alone = nvml.device_by_index(1).unwrap().process_utilization_stats(None).unwrap();
    // The whole ring: sixteen windows of one process, six and a part of twenty.
    assert_eq!((crowded.len(), alone.len()), (128, 16));
    let garbage: Vec<_> =
        crowded.iter().filter(|sample| sample.sm_util > 100).map(|sample| sample.pid).collect();
    assert!(garbage.len() >= 6 && garbage.iter().all(|pid| *pid == 107), "{garbage:?}");
    // Ended processes have samples for a while, and then none.
    node.hold(31 * SECOND);
    assert!(!nvml.device_by_index(1).unwrap().process_utilization_stats(None).unwrap().is_empty());
    node.hold(34 * SECOND);
    assert!(nvml.device_by_index(1).unwrap().process_utilization_stats(None).is_err());
}

#[test]
fn the_newer_process_samples_have_jpeg_and_ofa() {
    let node = Node::new(&twenty_processes());
    let nvml = node.nvml();
    node.hold(20 * SECOND);
    let board = gpu(&nvml, 0);
    let none: sys::nvmlProcessUtilizationInfo_v1_t = unsafe { std::mem::zeroed() };
    let mut infos = vec![none; 128];
    let mut request = sys::nvmlProcessesUtilizationInfo_v1_t {
        version: version::<sys::nvmlProcessesUtilizationInfo_v1_t>(1),
        processSamplesCount: 128,
        lastSeenTimeStamp: (BEGUN + 19_700_000_000) / 1_000,
        procUtilArray: infos.as_mut_ptr(),
    };
    let ask = |request: *mut _| call!(nvml, nvmlDeviceGetProcessesUtilizationInfo, board, request);
    assert_eq!((ask(&raw mut request), request.processSamplesCount), (0, 40));
    let first = infos.first().unwrap();
    assert_eq!((first.pid, first.jpgUtil, first.ofaUtil, first.decUtil), (100, 30, 20, 10));
    assert!(first.timeStamp > request.lastSeenTimeStamp);
    request.lastSeenTimeStamp = (BEGUN + 20 * SECOND) / 1_000;
    assert_eq!(ask(&raw mut request), NOT_FOUND);
}

#[test]
fn a_process_stays_listed_across_the_end_of_the_cycle() {
    let node = Node::new(
        r#"{"cycle_seconds":10,"gpus":[{"profile":"h100"}],"processes":[
            {"pid":5,"gpu":0,"phases":[{"from":0,"to":2},{"from":8,"to":10}]}]}"#,
    );
    let nvml = node.nvml();
    let listed = |seconds: u64| {
        node.hold(seconds * SECOND);
        !pids(&nvml, gpu(&nvml, 0))[0].is_empty()
    };
    assert_eq!([1, 3, 9, 11, 13].map(listed), [true, false, true, true, false]);
}
